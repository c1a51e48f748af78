# SPDX-License-Identifier: Apache-2.0
"""The engine and a model of the reference's, each against the other: random transfers in both directions, refusals, notes
and probes, many at once. Run by test_reference.sh."""

import ctypes
import mmap
import os
import random
import subprocess
import threading
import time
import unittest

import lanewise
from lanewise.mooncake.engine import TransferEngine
from reference import Reference, Rejected
from wire import MIB, PROBE, RANDOM, connect, main

FIRST, SECOND, APART = 0x10000000, 0x10000000 + MIB, 0x30000000  # two side by side, one alone
SIZES = (1, 7, 4096, 65535, 65536, 65537, 300000)


class Both(unittest.TestCase):
    VERSION = 2

    def setUp(self):
        self.engine = lanewise.Engine("127.0.0.1", settings={"drivers": "tcp,null"})
        self.addCleanup(self.engine.close)
        self.memory = mmap.mmap(-1, 4 * MIB)
        self.memory[:] = RANDOM.randbytes(4 * MIB)
        self.buffer = self.engine.register(self.memory)
        self.model = Reference([(FIRST, MIB), (SECOND, MIB), (APART, 2 * MIB)], self.VERSION)
        self.addCleanup(self.finish)
        for memory in self.model.memory.values():
            memory[:] = RANDOM.randbytes(len(memory))

    def finish(self):
        self.model.close()
        self.assertEqual(self.model.problems, [])

    def ours(self, at, size):
        return self.memory[at : at + size]

    def theirs(self, addr, size):
        return bytes(self.model.place(addr, size))

    def eventually_same(self, at, addr, size):
        """A WRITE of version 1 is over before it has arrived."""
        until = time.monotonic() + 10
        while self.theirs(addr, size) != self.ours(at, size):
            self.assertLess(time.monotonic(), until)
            time.sleep(0.001)


class WeAsk(Both):
    """Our engine is the initiator."""

    def test_random_transfers(self):
        with self.engine.open(self.model.name) as peer:
            for _ in range(60):
                size = RANDOM.choice(SIZES)
                at = RANDOM.randrange(4 * MIB - size)
                addr = RANDOM.choice((FIRST, SECOND, APART)) + RANDOM.randrange(MIB - size + 1)
                if RANDOM.random() < 0.5:
                    self.engine.write(peer, self.buffer.addr + at, addr, size)
                    self.eventually_same(at, addr, size)
                else:
                    self.engine.read(peer, self.buffer.addr + at, addr, size)
                    self.assertEqual(self.ours(at, size), self.theirs(addr, size))

    def test_batches(self):
        count, size = 200, 3000
        with self.engine.open(self.model.name) as peer:
            for op in (lanewise.WRITE, lanewise.READ):
                self.memory[:] = RANDOM.randbytes(4 * MIB)
                local = [self.buffer.addr + i * size for i in range(count)]
                remote = [APART + i * (size + 5) for i in range(count)]
                with self.engine.submit(op, peer, local, remote, [size] * count) as batch:
                    self.assertEqual(batch.result(), count * size)
                for i in range(count):
                    self.eventually_same(i * size, remote[i], size)

    def test_range_over_two_of_its_buffers(self):
        """It serves a request inside one buffer alone: ours is cut where they meet."""
        with self.engine.open(self.model.name) as peer:
            for op in (lanewise.WRITE, lanewise.READ):
                self.memory[:] = RANDOM.randbytes(4 * MIB)
                addr, size = SECOND - 1000, 5000
                with self.engine.submit(op, peer, [self.buffer.addr], [addr], [size]) as batch:
                    batch.result()
                self.eventually_same(0, addr, 1000)
                self.eventually_same(1000, SECOND, 4000)

    def test_range_that_it_took_back_is_refused(self):
        with self.engine.open(self.model.name) as peer:
            gone = self.model.memory.pop(APART)
            for op in (lanewise.WRITE, lanewise.READ):
                if op == lanewise.WRITE and self.VERSION != 2:
                    continue  # nothing tells
                with self.assertRaises(lanewise.TransferError) as caught:
                    with self.engine.submit(op, peer, [self.buffer.addr], [APART], [1000], 5) as batch:
                        batch.result()
                # After the first one it was asked again, and we know.
                reasons = ("refused", "remote_range") if self.VERSION == 2 else ("reset", "timeout", "remote_range")
                self.assertIn(caught.exception.reason, reasons)
            self.model.memory[APART] = gone
            self.engine.read(peer, self.buffer.addr, APART, 1000)

    def test_notes_and_probes(self):
        with self.engine.open(self.model.name) as peer:
            peer.probe()
            peer.notify("agent1", 'quotes " and \\ and \u20ac')
        self.assertEqual(self.model.notes, [("agent1", 'quotes " and \\ and \u20ac')])
        self.assertIn((PROBE, "{}\n"), self.model.requests)

    def test_eight_threads(self):
        with self.engine.open(self.model.name) as peer:

            def work(i):
                rand = random.Random(i)
                share = 4 * MIB // 8
                for _ in range(20):
                    size = rand.choice((100, 5000, 70000))
                    at = i * share + rand.randrange(share - size)
                    addr = APART + i * MIB // 4 + rand.randrange(MIB // 4 - size)
                    try:
                        self.engine.write(peer, self.buffer.addr + at, addr, size)
                        self.eventually_same(at, addr, size)
                    except BaseException as error:
                        wrong.append(error)
                        raise

            wrong = []
            threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(wrong, [])

    def test_through_the_python_interface(self):
        engine = TransferEngine()
        self.assertEqual(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0)
        at = engine.allocate_managed_buffer(MIB)
        ctypes.memmove(at, self.memory[:MIB], MIB)
        local = [at + i * 4096 for i in range(256)]
        remote = [APART + i * 8192 for i in range(256)]
        self.assertEqual(engine.batch_transfer_sync_write(self.model.name, local, remote, [4096] * 256), 0)
        for i in range(256):
            self.eventually_same(i * 4096, remote[i], 4096)
        self.assertEqual(engine.send_probe(self.model.name), 0)
        engine.close()


    def test_benchmark_by_the_references_flags(self):
        """lwbench in the place of its benchmark and of its validator."""
        program = os.path.join(os.environ["LW_BUILD_DIR"], "lwbench")
        small = ["--block_size=4096", "--batch_size=8", "--threads=2", "--buffer_size=1048576", "--duration=1"]
        for more in (["--operation=write"], ["--operation=read"], ["--validate"]):
            if more == ["--validate"] and self.VERSION != 2:
                continue  # a WRITE of version 1 is not confirmed, so a READ behind it on another connection may pass it
            done = subprocess.run(
                [program, "--local_server_name=127.0.0.1", f"--segment_id={self.model.name}", *small, *more],
                capture_output=True,
                text=True,
                timeout=40,
                check=False,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("Test completed: duration 1.", done.stderr)


class WeAskAnOldOne(WeAsk):
    VERSION = 1


class WeAskOneThatDoesNotSay(WeAsk):
    VERSION = None


class TheyAsk(Both):
    """Our engine is the target."""

    def transfer(self, peer, version, kept):
        size = RANDOM.choice(SIZES)
        write = RANDOM.random() < 0.5
        at, own = RANDOM.randrange(4 * MIB - size), APART + RANDOM.randrange(MIB)
        self.model.transfer(peer, write, own, self.buffer.addr + at, size, kept, version)
        if write and version == 1:
            self.eventually_same(at, own, size)
        self.assertEqual(self.ours(at, size), self.theirs(own, size))

    def test_random_transfers_each_in_a_connection_of_its_own(self):
        peer = self.model.open(self.engine.name)
        for _ in range(40):
            for version in (1, 2):
                self.transfer(peer, version, None)

    def test_random_transfers_in_one_connection_versions_mixed(self):
        peer = self.model.open(self.engine.name)
        with connect(peer["tcp_data_port"]) as sock:
            for _ in range(100):
                self.transfer(peer, RANDOM.choice((1, 2)), sock)

    def test_refusals(self):
        peer = self.model.open(self.engine.name)
        with self.engine.register(bytearray(4096), access=lanewise.ACCESS_LOCAL) as own:
            for version in (1, 2):
                for addr, size in ((self.buffer.addr + 4 * MIB, 1), (self.buffer.addr - 1, 2), (4096, 10), (own.addr, 1)):
                    for write in (False, True):
                        if write and version == 1:
                            continue  # nothing tells
                        with self.assertRaises(Rejected):
                            self.model.transfer(peer, write, APART, addr, size, None, version)
        self.transfer(peer, 2, None)

    def test_notes_and_probes(self):
        self.model.notify(self.engine.name, "agent1", "notification1 \u20ac")
        self.assertEqual([(n.name, n.text) for n in self.engine.notes()], [("agent1", "notification1 \u20ac")])
        self.assertEqual(self.model.handshake(self.engine.name, PROBE, {}), '{"status":"success"}\n')

    def test_many_at_once_both_ways(self):
        """Each asks the other at the same moment, from four threads each."""
        peer = self.model.open(self.engine.name)
        wrong = []

        def theirs(i):
            for k in range(25):
                self.model.transfer(peer, k % 2 == 0, APART + i * 4096, self.buffer.addr + i * 4096, 4096)

        def ours(i):
            with self.engine.open(self.model.name) as segment:
                for k in range(25):
                    move = self.engine.write if k % 2 == 0 else self.engine.read
                    move(segment, self.buffer.addr + MIB + i * 4096, FIRST + i * 4096, 4096)

        def run(work, i):
            try:
                work(i)
            except Exception as error:  # pylint: disable=broad-except
                wrong.append(error)

        threads = [threading.Thread(target=run, args=(work, i)) for work in (theirs, ours) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        for i in range(4):
            self.assertEqual(self.ours(i * 4096, 4096), self.theirs(APART + i * 4096, 4096))
            self.assertEqual(self.ours(MIB + i * 4096, 4096), self.theirs(FIRST + i * 4096, 4096))


if __name__ == "__main__":
    main()
