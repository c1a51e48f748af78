# SPDX-License-Identifier: Apache-2.0
"""A network that spoils what passes: bits that change, connections that are cut, ended or half-closed in the middle of a
request, that stand still, and that drip. No request ends as completed with other bytes, each ends with a reason, what
may be repeated is repeated, and what goes to others does not wait. Run by test_relay.sh."""

import time
import unittest

from relay import BACK, CUT, END, FLIP, HALF, THERE, Deed, Relay
from wire import MIB, RANDOM, Handshake, Peer, main

LENGTH = 200000
ROUNDS = 25


class Network(unittest.TestCase):
    def peer(self, *options):
        peer = Peer(4 * MIB, *options)
        self.addCleanup(lambda: self.assertEqual(peer.end(), 0))
        return peer

    def behind(self, target):
        """A relay to the target, and the name of the target behind it."""
        relay = Relay(target.data_port)
        self.addCleanup(relay.close)
        handshake = Handshake(target.descriptor | {"tcp_data_port": relay.port})
        handshake.document["name"] = handshake.name
        self.addCleanup(handshake.close)
        return relay, handshake.name

    def move(self, mover, target, op, segment, timeout_ms=5000):
        """One request over fresh bytes: its outcome, and whether they arrived."""
        source = mover if op == "write" else target
        source.ask(f"fill 0 {LENGTH} {RANDOM.randrange(1 << 30)}")
        outcome = mover.run(op, segment, 0, target.addr, LENGTH, timeout_ms=timeout_ms)
        return outcome, mover.sum(0, LENGTH) == target.sum(0, LENGTH)

    def warm(self, mover, target, segment):
        """The connection is up and greeted."""
        for op in ("write", "read"):
            outcome, same = self.move(mover, target, op, segment)
            self.assertEqual((outcome.counts, same), ((1, 0, 0, 0), True), outcome)

    def somewhere(self, op):
        """A direction, and a byte of a request in it."""
        direction = RANDOM.choice((THERE, BACK))
        carries = direction == (THERE if op == "write" else BACK)
        return direction, RANDOM.randrange(LENGTH if carries else 8)

    def test_changed_bit_with_checksums_is_found(self):
        target, mover = self.peer("tcp_checksum=on"), self.peer("tcp_checksum=on")
        relay, name = self.behind(target)
        segment = mover.open(name)
        self.warm(mover, target, segment)
        reasons = {}
        for i in range(2 * ROUNDS):
            op = ("write", "read")[i % 2]
            direction, after = self.somewhere(op)
            deed = relay.deed = Deed(FLIP, direction, after, RANDOM.randrange(8))
            outcome, same = self.move(mover, target, op, segment)
            self.assertEqual(deed.done, 1)
            reasons[outcome.reason] = reasons.get(outcome.reason, 0) + 1
            self.assertTrue(same or outcome.counts[0] == 0, f"other bytes are said to be there: {outcome}")
            # Of an answer's status it may be known that something is wrong, and not what.
            self.assertIn(outcome.reason, ("none", "corrupt", "protocol", "refused", "reset"), outcome)
            if outcome.counts[0] != 0:
                self.assertEqual(direction, BACK if op == "write" else THERE, outcome)
            self.warm(mover, target, segment)
        self.assertGreater(reasons.get("corrupt", 0), ROUNDS // 2, reasons)

    def test_changed_bit_without_checksums_is_not_found(self):
        # So the test above would see it if nothing were checked.
        target, mover = self.peer(), self.peer()
        relay, name = self.behind(target)
        segment = mover.open(name)
        self.warm(mover, target, segment)
        for op, direction in (("write", THERE), ("read", BACK)):
            relay.deed = Deed(FLIP, direction, 1000, 3)
            outcome, same = self.move(mover, target, op, segment)
            self.assertEqual((outcome.counts, same), ((1, 0, 0, 0), False), outcome)

    def test_changed_bit_of_the_greeting_harms_no_byte(self):
        target, mover = self.peer("tcp_checksum=on"), self.peer("tcp_checksum=on")
        relay, name = self.behind(target)
        for i in range(ROUNDS):
            segment = mover.open(name)
            direction = RANDOM.choice((THERE, BACK))
            relay.deed = Deed(FLIP, direction, RANDOM.randrange(24 if direction == THERE else 8), RANDOM.randrange(8))
            outcome, same = self.move(mover, target, ("write", "read")[i % 2], segment)
            self.assertTrue(same or outcome.counts[0] == 0, outcome)
            relay.deed = None
            # It may have said that the peer lives another life: then by name there is a way.
            self.assertEqual(mover.ask(f"close {segment}"), "ok")
            segment = mover.open(name)
            self.warm(mover, target, segment)
            self.assertEqual(mover.ask(f"close {segment}"), "ok")

    def broken_once(self, what):
        target, mover = self.peer(), self.peer()
        relay, name = self.behind(target)
        segment = mover.open(name)
        self.warm(mover, target, segment)
        for i in range(ROUNDS):
            op = ("write", "read")[i % 2]
            direction, after = self.somewhere(op)
            before = relay.accepted
            deed = relay.deed = Deed(what, direction, after)
            outcome, same = self.move(mover, target, op, segment)
            self.assertEqual(deed.done, 1)
            self.assertEqual((outcome.counts, same), ((1, 0, 0, 0), True), outcome)
            self.assertEqual(relay.accepted, before + 1)
        return relay

    def test_connection_reset_in_a_request_is_repeated(self):
        self.broken_once(CUT)

    def test_connection_ended_in_a_request_is_repeated(self):
        self.broken_once(END)

    def test_connection_half_closed_in_a_request_is_repeated(self):
        self.broken_once(HALF)

    def broken_always(self, what):
        target, mover = self.peer(), self.peer()
        relay, name = self.behind(target)
        for direction, op in ((THERE, "write"), (BACK, "read")):
            segment = mover.open(name)
            deed = relay.deed = Deed(what, direction, LENGTH // 2, always=True)
            outcome, _ = self.move(mover, target, op, segment)
            self.assertEqual((outcome.counts, outcome.reason), ((0, 1, 0, 0), "reset"), outcome)
            self.assertGreater(deed.done, 1)
            relay.deed = None
            self.warm(mover, target, segment)
            self.assertEqual(mover.ask(f"close {segment}"), "ok")

    def test_connection_always_reset_ends_with_a_reason(self):
        self.broken_always(CUT)

    def test_connection_always_half_closed_ends_with_a_reason(self):
        self.broken_always(HALF)

    def test_network_that_stands_still_for_a_while_fails_nothing(self):
        target, mover = self.peer(), self.peer()
        relay, name = self.behind(target)
        segment = mover.open(name)
        self.warm(mover, target, segment)
        mover.tell(f"run write {segment} 0 {target.addr} {3 * MIB} 1 20000")
        relay.stalled = True
        time.sleep(2)
        relay.stalled = False
        self.assertTrue(mover.answer().startswith("ran 1 0 0 0"))
        self.assertEqual(mover.sum(0, 3 * MIB), target.sum(0, 3 * MIB))
        self.assertEqual(relay.accepted, 1)

    def test_network_that_stands_still_ends_with_the_deadline(self):
        target, mover = self.peer(), self.peer()
        relay, name = self.behind(target)
        segment = mover.open(name)
        self.warm(mover, target, segment)
        relay.stalled = True
        outcome, _ = self.move(mover, target, "write", segment, timeout_ms=500)
        relay.stalled = False
        self.assertEqual((outcome.counts, outcome.reason), ((0, 0, 0, 1), "timeout"), outcome)
        self.assertLess(outcome.ms, 2500)
        self.warm(mover, target, segment)

    def test_peer_behind_a_drip_holds_up_no_other(self):
        slow, well, mover = self.peer(), self.peer(), self.peer()
        relay, name = self.behind(slow)
        segment, other = mover.open(name), mover.open(well.name)
        self.warm(mover, slow, segment)
        relay.drip = (100, 0.01)
        before = relay.passed[THERE]
        self.assertEqual(mover.ask(f"stream write {segment} {2 * MIB} {slow.addr} 65536 8"), "ok")
        spent = []
        for i in range(200):
            outcome = mover.run(("write", "read")[i % 2], other, 0, well.addr, 4096)
            self.assertEqual(outcome.counts, (1, 0, 0, 0), outcome)
            spent.append(outcome.ms)
        self.assertGreater(relay.passed[THERE], before)  # it does drip
        spent.sort()
        print(f"beside the drip: {spent[100]} ms, the longest {spent[-1]} ms", flush=True)
        # 64 KiB take seven seconds there: who waits for one of them would show in each.
        self.assertLess(spent[190], 200)
        relay.drip = None
        completed, failed = map(int, mover.ask("stop").split()[1:])
        self.assertEqual(failed, 0, completed)


if __name__ == "__main__":
    main()
