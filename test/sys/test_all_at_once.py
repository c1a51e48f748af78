# SPDX-License-Identifier: Apache-2.0
"""Engines that all open each other and all write and read both ways, at the same moment, 200 rounds in all: nobody waits
for somebody who waits, everything completes and is exact, a round takes less than two seconds. Run by
test_all_at_once.sh."""

import time
import unittest

from relay import Relay
from wire import RANDOM, Handshake, Peer, eventually, main

ROUND_S = 2
PIECE, PIECES = 32 * 1024, 8
SHARE = PIECE * PIECES  # of the memory: one sends, one is written by each other engine


class AllAtOnce(unittest.TestCase):
    def meet(self, engines, rounds, late=0):
        peers = [Peer((engines + 2) * SHARE) for _ in range(engines)]
        for peer in peers:
            self.addCleanup(lambda peer=peer: self.assertEqual(peer.end(), 0))
        names = [self.late_name(peer, late) if late else peer.name for peer in peers]
        spent = []
        for _ in range(rounds):
            begin = time.monotonic()
            self.round(peers, names)
            spent.append(time.monotonic() - begin)
        spent.sort()
        print(f"{engines} engines: a round took {spent[rounds // 2]:.3f} s, the longest {spent[-1]:.3f} s", flush=True)
        # Who waits for somebody who waits does so each time; a busy machine may stand still once.
        self.assertLess(spent[rounds * 9 // 10], ROUND_S)
        # No connection is left of handles that were closed.
        for peer in peers:
            self.assertTrue(eventually(lambda peer=peer: peer.state()[4] == 0))

    def late_name(self, peer, late):
        """A name that leads to the peer through relays that are slow at both ports."""
        seed = RANDOM.randrange(1 << 30)
        data = Relay(peer.data_port, late=late, seed=seed)
        self.addCleanup(data.close)
        handshake = Handshake(peer.descriptor | {"tcp_data_port": data.port})
        handshake.document["name"] = handshake.name
        self.addCleanup(handshake.close)
        name = Relay(handshake.port, late=late, seed=seed + 1)
        self.addCleanup(name.close)
        handshake.document["name"] = f"127.0.0.1:{name.port}"
        return handshake.document["name"]

    def all(self, peers, lines):
        """Everybody gets all of his lines at once; his answers."""
        for peer, own in zip(peers, lines):
            peer.tell(*own)
        return [[peer.answer() for _ in own] for peer, own in zip(peers, lines)]

    def round(self, peers, names):
        count = len(peers)
        others = [[k for k in range(count) if k != i] for i in range(count)]
        fill = [f"fill 0 {SHARE} {RANDOM.randrange(1 << 30)}" for _ in peers]
        opened = self.all(peers, [[fill[i]] + [f"open {names[k]}" for k in others[i]] for i in range(count)])
        handles = []
        for answers in opened:
            for answer in answers[1:]:
                self.assertTrue(answer.startswith("segment "), answer)
            handles.append([answer.split()[1] for answer in answers[1:]])
        lines = []
        for i in range(count):
            own = [f"sum 0 {SHARE}"]
            for k, handle in zip(others[i], handles[i]):
                # Each has a place for each other one.
                own.append(f"run write {handle} 0 {peers[k].addr + (2 + i) * SHARE} {PIECE} {PIECES} 5000")
            for k, handle in zip(others[i], handles[i]):
                own.append(f"run read {handle} {SHARE} {peers[k].addr} {PIECE} {PIECES} 5000")
                own.append(f"sum {SHARE} {SHARE}")
            lines.append(own)
        answers = self.all(peers, lines)
        sums = [own[0] for own in answers]
        for i, own in enumerate(answers):
            for answer in own[1:count] + own[count::2]:
                self.assertTrue(answer.startswith(f"ran {PIECES} 0 0 0 "), answer)
            self.assertEqual(own[count + 1 :: 2], [sums[k] for k in others[i]])
        last = self.all(
            peers,
            [
                [f"sum {(2 + k) * SHARE} {SHARE}" for k in others[i]] + [f"close {handle}" for handle in handles[i]]
                for i in range(count)
            ],
        )
        for i, own in enumerate(last):
            self.assertEqual(own[: count - 1], [sums[k] for k in others[i]])
            self.assertEqual(own[count - 1 :], ["ok"] * (count - 1))

    def test_2_engines(self):
        self.meet(2, 70)

    def test_3_engines(self):
        self.meet(3, 60)

    def test_8_engines(self):
        self.meet(8, 30)

    def test_2_engines_with_delays(self):
        self.meet(2, 20, 0.02)

    def test_3_engines_with_delays(self):
        self.meet(3, 20, 0.02)

    def test_8_engines_with_delays(self):
        self.meet(8, 5, 0.01)


if __name__ == "__main__":
    main()
