# SPDX-License-Identifier: Apache-2.0
"""Requests outside of what a peer offers, and how often they make us ask it again. Run by test_refresh.sh."""

import time
import unittest

from wire import METADATA, MIB, REFUSED, FakeTarget, Peer, eventually, main

PART = 4096


class Misses(unittest.TestCase):
    def setUp(self):
        self.mover = Peer(4 * MIB)
        self.addCleanup(lambda: self.assertEqual(self.mover.end(), 0))

    @staticmethod
    def check(target, _number, _op, addr, size, sock):
        """Refuses what is beyond the memory."""
        if addr >= target.BASE and addr + size <= target.BASE + len(target.memory):
            return None
        sock.sendall(REFUSED)
        return False

    def fake(self, **options):
        target = FakeTarget(size=MIB, answer=self.check, **options)
        self.addCleanup(target.close)
        return target

    def questions(self, target):
        return sum(kind == METADATA for kind, _ in target.handshake.requests)

    def test_range_that_never_was_is_no_storm_of_questions(self):
        # One of ours refuses itself what is asked too soon for a question; of others all wait for the next one.
        for incarnation in (0x1234, None):
            with self.subTest(incarnation=incarnation):
                target = self.fake(incarnation=incarnation)
                segment = self.mover.open(target.name)
                begin, before = time.monotonic(), self.questions(target)
                for _ in range(2):
                    outcome = self.mover.run("write", segment, 0, target.BASE + 2 * MIB, 64, 1500)
                    self.assertEqual(outcome.counts, (0, 1500, 0, 0), outcome)
                    self.assertIn(outcome.reason, ("refused", "remote_range"))
                took = time.monotonic() - begin
                self.assertLess(took, 15)
                self.assertLessEqual(self.questions(target) - before, took + 1)
                outcome = self.mover.run("write", segment, 0, target.BASE, PART)
                self.assertEqual(outcome.counts, (1, 0, 0, 0), outcome)

    def test_late_buffers_of_another_kind_of_engine_are_found(self):
        target = self.fake()
        segment = self.mover.open(target.name)
        # It can't be asked more than once a second: a request waits for its turn, and the next ones need none.
        for i in range(1, 4):
            target.memory.extend(bytes(MIB))
            target.handshake.document["buffers"].append(
                {"addr": target.BASE + i * MIB, "length": MIB, "name": target.name}
            )
            for k in range(5):
                outcome = self.mover.run("write", segment, 0, target.BASE + i * MIB + k * PART, PART)
                self.assertEqual(outcome.counts, (1, 0, 0, 0), outcome)
                self.assertLess(outcome.ms, 1500 if k == 0 else 500)

    def test_foreign_peer_that_moved_is_another_one(self):
        # It tells no incarnation: another data port is all that shows it.
        target, other = self.fake(), self.fake()
        segment = self.mover.open(target.name)
        self.assertEqual(self.mover.run("write", segment, 0, target.BASE, PART).counts, (1, 0, 0, 0))
        target.data.close()
        target.handshake.document["tcp_data_port"] = other.data.port

        def told():
            return self.mover.run("write", segment, 0, target.BASE, PART).reason == "restarted"

        self.assertTrue(eventually(told))
        self.assertNotEqual(fresh := self.mover.open(target.name), segment)
        self.assertEqual(self.mover.run("write", fresh, 0, target.BASE, PART).counts, (1, 0, 0, 0))


if __name__ == "__main__":
    main()
