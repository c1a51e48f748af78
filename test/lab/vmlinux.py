# SPDX-License-Identifier: Apache-2.0
"""vmlinux.py BZIMAGE OUT: writes the uncompressed kernel that a bzImage carries. Where it lies and how long it is stands in
the setup header (Documentation/arch/x86/boot.rst of Linux: setup_sects, payload_offset, payload_length)."""

import lzma
import struct
import subprocess
import sys
import zlib

SECTOR = 512


def payload(image):
    """The compressed kernel inside a bzImage."""
    if image[0x202:0x206] != b"HdrS":
        raise ValueError("no setup header of a bzImage")
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (setup_sectors + 1) * SECTOR + offset
    return image[start : start + length]


def unpack(data):
    """What a payload decompresses to; four bytes of its size stand behind it."""
    if data.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor(format=lzma.FORMAT_XZ).decompress(data)
    if data.startswith(b"\x1f\x8b"):
        return zlib.decompressobj(31).decompress(data)
    if data.startswith(b"\x28\xb5\x2f\xfd"):
        return subprocess.run(["zstd", "-dc"], input=data[:-4], stdout=subprocess.PIPE, check=True).stdout
    raise ValueError(f"compressed in an unknown way: {data[:6].hex()}")


def main():
    with open(sys.argv[1], "rb") as file:
        kernel = unpack(payload(file.read()))
    if not kernel.startswith(b"\x7fELF"):
        raise ValueError("the payload is no ELF file")
    with open(sys.argv[2], "wb") as file:
        file.write(kernel)


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError, lzma.LZMAError, zlib.error, subprocess.CalledProcessError) as error:
        sys.exit(f"vmlinux.py: {sys.argv[1]}: {error}")
