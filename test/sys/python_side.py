# SPDX-License-Identifier: Apache-2.0
"""The other side of a connector: a Python process with a TransferEngine and layers of memory, driven by lines of JSON.

As a program (python_side.py LAYERS BYTES [METADATA NAME]) it answers each line [method, arguments...] with one line, its result; Side is
how a test talks to it.
"""

import ctypes
import json
import mmap
import select
import subprocess
import sys
import zlib

PATIENCE = 20  # seconds that any answer may take


class Side:
    """Such a process."""

    def __init__(self, layers, size, *store):
        """store: the URL of a metadata store, and a name there."""
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(layers), str(size), *store], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.session, self.layers = self.answer()

    def answer(self):
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            raise TimeoutError("the other side does not answer")
        line = self.process.stdout.readline()
        if not line:
            raise EOFError(f"the other side is gone: {self.process.wait()}")
        return json.loads(line)

    def ask(self, *question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def kill(self):
        self.process.kill()
        return self.end()

    def end(self):
        self.process.stdin.close()
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.process.stdout.close()


class Memory:
    """Layers of memory."""

    def __init__(self, layers, size):
        self.size = size
        self.maps = [mmap.mmap(-1, size) for _ in range(layers)]
        self.addresses = [ctypes.addressof(ctypes.c_char.from_buffer(m)) for m in self.maps]

    def crc(self, layer, offset, length):
        return zlib.crc32(self.maps[layer][offset : offset + length])


class Answers:
    def __init__(self, engine, memory):
        self.engine, self.memory, self.more = engine, memory, []

    def crc(self, layer, offset, length):
        return self.memory.crc(layer, offset, length)

    def crcs(self, places):
        return [self.memory.crc(*place) for place in places]

    def fill(self, layer, byte):
        self.memory.maps[layer][:] = bytes([byte]) * self.memory.size
        return 0

    def notes(self):
        return [(note.name, note.msg) for note in self.engine.get_notifies()]

    def write(self, session, layer, remote, length):
        """To somebody else, from the start of a layer."""
        result = self.engine.transfer_sync_write(session, self.memory.addresses[layer], remote, length)
        return [result, self.engine.last_error() if result else ""]

    def another(self, size):
        """The address of a layer that is registered now."""
        self.more.append(Memory(1, size))
        at = self.more[-1].addresses[0]
        return at if self.engine.register_memory(at, size) == 0 else 0

    def another_crc(self, length):
        return self.more[-1].crc(0, 0, length)

    def unregister(self, layer):
        return self.engine.unregister_memory(self.memory.addresses[layer])


def main():
    from lanewise.mooncake.engine import TransferEngine

    memory = Memory(int(sys.argv[1]), int(sys.argv[2]))
    engine = TransferEngine()
    metadata, name = sys.argv[3:] or ("P2PHANDSHAKE", "127.0.0.1")
    assert engine.initialize(name, metadata, "tcp", "") == 0, engine.last_error()
    assert engine.batch_register_memory(memory.addresses, [memory.size] * len(memory.addresses)) == 0
    answers = Answers(engine, memory)
    session = name if sys.argv[3:] else f"127.0.0.1:{engine.get_rpc_port()}"
    print(json.dumps((session, memory.addresses)), flush=True)
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        print(json.dumps(getattr(answers, method)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
