# SPDX-License-Identifier: Apache-2.0
"""Transfers, handles and peers that come and go by the thousand where there are 64 ports for outgoing connections:
nothing runs short, everything completes, and descriptors, threads, memory and mappings are what they were after the
first ones. Run by test_churn.sh, in a network namespace of its own."""

import fcntl
import socket
import struct
import time
import unittest

from wire import MIB, RANDOM, Peer, eventually, main

TRANSFERS = 20000
HANDLES = 2000
LIVES = 2000
AT_LEAST = 200  # of both; the rest while the time lasts
HANDLES_S, LIVES_S = 20, 30
KILLED = 20  # every so many lives a process is killed


def prepare_network():
    with open("/proc/sys/net/ipv4/ip_local_port_range", "w", encoding="ascii") as file:
        file.write("40000 40063")
    with socket.socket() as sock:  # up, as `ip link set lo up` does
        name = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16xH14x", fcntl.ioctl(sock, 0x8913, name))[0]
        fcntl.ioctl(sock, 0x8914, struct.pack("16sH14x", b"lo", flags | 1))


class Churn(unittest.TestCase):
    def setUp(self):
        self.hub = self.peer()
        self.other = self.peer()

    def peer(self):
        peer = Peer(MIB)
        self.addCleanup(lambda: self.assertEqual(peer.end(), 0))
        return peer

    def usage(self, peer):
        """Descriptors, threads, KiB, mappings."""
        # Connections of peers that are gone end with them, but a little later.
        eventually(lambda: peer.state()[4] == self.lanes, 2)
        with open(f"/proc/{peer.process.pid}/maps", encoding="ascii") as file:
            maps = len(file.readlines())
        return peer.state()[:3] + [maps]

    def flat(self, before, after):
        for what, old, new in zip(("descriptors", "threads", "KiB", "mappings"), before, after):
            slack = max(1024, old // 20) if what == "KiB" else max(1, old // 20)
            self.assertLessEqual(abs(new - old), slack, f"{what}: {old} before, {new} after")

    def many(self, limit, limit_s):
        """Numbers for as many rounds as the time allows."""
        begin, done = time.monotonic(), 0
        while done < limit and (done < AT_LEAST or time.monotonic() - begin < limit_s):
            yield done
            done += 1
        print(f"{done} in {time.monotonic() - begin:.1f} s", flush=True)

    def move(self, mover, segment, target_addr, op=None):
        outcome = mover.run(op or RANDOM.choice(("read", "write")), segment, 0, target_addr, 4096)
        self.assertEqual(outcome.counts, (1, 0, 0, 0), outcome)

    def test_transfers_to_one_peer(self):
        self.lanes = 1
        segment = self.hub.open(self.other.name)
        before = None
        for i in range(0, TRANSFERS, 100):
            outcome = self.hub.run(RANDOM.choice(("read", "write")), segment, 0, self.other.addr, 4096, 100)
            self.assertEqual(outcome.counts, (100, 0, 0, 0), outcome)
            if i == TRANSFERS // 2:  # the tables of tasks were gone through once
                before = self.usage(self.hub), self.usage(self.other)
        self.flat(before[0], self.usage(self.hub))
        self.flat(before[1], self.usage(self.other))

    def test_handles_of_one_peer(self):
        self.lanes = 0
        before = None
        for i in self.many(HANDLES, HANDLES_S):
            segment = self.hub.open(self.other.name)
            self.move(self.hub, segment, self.other.addr)
            self.assertEqual(self.hub.ask(f"close {segment}"), "ok")
            if i == AT_LEAST // 2:
                before = self.usage(self.hub), self.usage(self.other)
        self.flat(before[0], self.usage(self.hub))
        self.flat(before[1], self.usage(self.other))

    def life(self, peer, end):
        """A peer takes a transfer and gives one. end() ends its engine, before or after the handle is given back."""
        segment = self.hub.open(peer.name)
        self.assertIsInstance(segment, str, segment)
        self.move(self.hub, segment, peer.addr, "write")
        self.move(peer, peer.open(self.hub.name), self.hub.addr)
        first = RANDOM.randrange(2)
        if first:
            end()
        self.assertEqual(self.hub.ask(f"close {segment}"), "ok")
        if not first:
            end()

    def begin_again(self, peer):
        word, peer.name, addr, _ = peer.ask("again").split()
        self.assertEqual(word, "ready")
        peer.addr = int(addr)

    def test_peers_that_live_for_one_transfer(self):
        self.lanes = 0
        before = None
        for i in self.many(LIVES, LIVES_S):
            if i % KILLED == KILLED - 1:
                mortal = Peer(MIB)
                self.life(mortal, mortal.kill)
            else:
                self.life(self.other, lambda: self.begin_again(self.other))
            if i == AT_LEAST // 2:
                before = self.usage(self.hub)
        self.flat(before, self.usage(self.hub))


if __name__ == "__main__":
    prepare_network()
    main()
