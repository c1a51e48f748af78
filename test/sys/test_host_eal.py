# SPDX-License-Identifier: Apache-2.0
"""A host process with a DPDK of its own: its EAL is started before the engine or beside it, or ended again; both work on.
Run by test_host_eal.sh."""

import ctypes.util
import subprocess
import sys
import unittest

# Steps in order: host (the host's EAL starts), end (it ends), open (an engine more), close (all of them).
PROGRAM = """
import ctypes, os, sys
import lanewise

SIZE = 1 << 20
ARGUMENTS = [b"host", b"--no-huge", b"--no-shconf", b"-m", b"64", b"--no-pci", b"--no-telemetry", b"--iova-mode=va"]
eal = None
engines = []

def host():
    global eal
    eal = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
    argv = (ctypes.c_char_p * (len(ARGUMENTS) + 1))(*ARGUMENTS, None)
    assert eal.rte_eal_init(len(ARGUMENTS), argv) >= 0, "the host's EAL does not start"

def check_host():
    # Its own lcores, and memory of its own heap.
    eal.rte_malloc.restype = ctypes.c_void_p
    memory = eal.rte_malloc(None, ctypes.c_size_t(4096), 0)
    assert memory
    eal.rte_free(ctypes.c_void_p(memory))
    return eal.rte_lcore_count()

def move():
    for here, there in zip(engines, engines[1:] + engines[:1]):
        data, target = bytearray(os.urandom(SIZE)), bytearray(SIZE)
        with here.register(data) as source, there.register(target) as place, here.open(there.name) as segment:
            assert here.write(segment, source.addr, place.addr, SIZE) == SIZE
        assert data == target

lcores = None
for step in sys.argv[2:]:
    if step == "host":
        host()
        lcores = check_host()
    elif step == "end":
        assert eal.rte_eal_cleanup() == 0
        eal = None
    elif step == "open":
        engines.append(lanewise.Engine("127.0.0.1", settings={"drivers": "tcp"}))
    elif step == "close":
        while engines:
            engines.pop().close()
    move()
    assert eal is None or check_host() == lcores
print("done")
"""
EAL = ctypes.util.find_library("rte_eal")


class Host(unittest.TestCase):
    def run_steps(self, *steps):
        command = [sys.executable, "-c", PROGRAM, EAL, *steps]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, "done\n"), done.stderr)
        # Ours started too: it is another copy.
        self.assertNotIn("plain threads", done.stderr)

    def test_host_begins_then_engines(self):
        self.run_steps("host", "open", "open", "close", "open")

    def test_host_begins_beside_engines(self):
        self.run_steps("open", "open", "host", "open", "close")

    def test_host_ends_beside_engines(self):
        self.run_steps("host", "open", "open", "end", "open", "close")


if __name__ == "__main__":
    if EAL is None:
        print("there is no librte_eal for a host to use")
        sys.exit(77)
    unittest.main(verbosity=2)
