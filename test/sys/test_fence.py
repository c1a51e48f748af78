# SPDX-License-Identifier: Apache-2.0
"""Lanes that connect anew: what their old connection still had under way is not stored after the new one is greeted, so
an initiator may repeat a WRITE that broke. Run by test_fence.sh."""

import socket
import struct
import threading
import time
import unittest

from wire import HELLO, MIB, OK, PATIENCE, RANDOM, READ2, WRITE2, FakeTarget, Peer, connect, header, main, reset, rest, take


class Target(unittest.TestCase):
    """Scripted initiators; two workers, so that connections of a lane meet on one and on different ones."""

    @classmethod
    def setUpClass(cls):
        cls.target = Peer(4 * MIB, "workers=2", "tcp_max_served=300", "max_lanes=700")
        cls.base = cls.target.addr
        cls.life = int(cls.target.descriptor["lw"]["incarnation"], 16)

    @classmethod
    def tearDownClass(cls):
        assert cls.target.end() == 0

    def greet(self, token):
        sock = connect(self.target.data_port)
        sock.sendall(header(token, self.life, HELLO))
        return sock

    def token(self):
        return RANDOM.getrandbits(56) << 8 | RANDOM.getrandbits(8)

    def read(self, offset, length):
        with connect(self.target.data_port) as sock:
            sock.sendall(header(length, self.base + offset, READ2))
            answer = take(sock, 8 + length)
            self.assertEqual(answer[:8], OK)
            return answer[8:]

    def test_older_connection_ends_before_the_newer_is_greeted(self):
        for count in range(12):
            token = self.token()
            self.target.ask(f"fill 0 {MIB} {count}")
            with self.greet(token) as old:
                self.assertEqual(take(old, 8), OK)
                old.sendall(header(MIB, self.base, WRITE2) + bytes(MIB // 2))
                newer = token & ~0xFF | (token + 1 + count % 3) & 0xFF
                with self.greet(newer) as new:
                    self.assertEqual(take(new, 8), OK)
                    before = self.target.sum(0, MIB)
                    try:
                        old.sendall(bytes(MIB // 2))
                        self.assertEqual(rest(old), b"")
                    except OSError:
                        pass  # reset: as it should be
                    self.assertEqual(self.target.sum(0, MIB), before)
                    # The newer one serves.
                    new.sendall(header(3, self.base + 2 * MIB, WRITE2) + b"new")
                    self.assertEqual(take(new, 8), OK)
                    self.assertEqual(self.read(2 * MIB, 3), b"new")

    def test_older_connection_that_greets_late_is_closed_unserved(self):
        for _ in range(6):
            token = self.token()
            with self.greet(token & ~0xFF | (token + 1) & 0xFF) as new:
                self.assertEqual(take(new, 8), OK)
                self.target.ask("fill 0 16 1")
                before = self.target.sum(0, 16)
                with connect(self.target.data_port) as old:
                    old.sendall(header(token, self.life, HELLO) + header(3, self.base, WRITE2) + b"old")
                    self.assertEqual(rest(old), b"")
                self.assertEqual(self.target.sum(0, 16), before)
                new.sendall(header(3, self.base, WRITE2) + b"new")
                self.assertEqual(take(new, 8), OK)

    def test_lanes_with_other_tokens_or_none_are_left_alone(self):
        token = self.token()
        others = [self.greet(token ^ 0x100), self.greet(token ^ (1 << 63)), self.greet(0), connect(self.target.data_port)]
        for sock in others[:3]:
            self.assertEqual(take(sock, 8), OK)
        for count in range(20):
            with self.greet(token & ~0xFF | (token + count) & 0xFF) as sock:
                self.assertEqual(take(sock, 8), OK)
        for sock in others:
            sock.sendall(header(3, self.base, WRITE2) + b"abc")
            self.assertEqual(take(sock, 8), OK)
            sock.close()

    def test_many_greetings_at_once_all_answered(self):
        """More than there are fences, some of which leave before theirs is up."""
        for _ in range(3):
            socks = [self.greet(self.token()) for _ in range(200)]
            for sock in socks[::3]:
                reset(sock)
            for i, sock in enumerate(socks):
                if i % 3 != 0:
                    self.assertEqual(take(sock, 8), OK)
                    sock.close()


class Initiator(unittest.TestCase):
    """The engine's lanes to targets whose connections break."""

    def setUp(self):
        self.peer = Peer(4 * MIB, "tcp_splice_bytes=1000000")

    def tearDown(self):
        self.assertEqual(self.peer.end(), 0)

    def test_write_that_broke_is_repeated_on_the_next_connection_of_the_lane(self):
        for spliced in (False, True):
            broken = []

            def answer(target, number, op, addr, size, sock):
                if op == WRITE2 and len(broken) < 2:
                    broken.append(addr)
                    take(sock, size // 2)
                    reset(sock)
                    return False
                return None

            fake = FakeTarget(incarnation=RANDOM.getrandbits(64), answer=answer)
            segment = self.peer.open(fake.name)
            length = 2 * MIB if spliced else 100000
            self.peer.ask(f"fill 0 {length} 5")
            outcome = self.peer.run("write", segment, 0, fake.BASE, length)
            self.assertEqual(outcome.counts, (1, 0, 0, 0), outcome)
            self.assertEqual(len(broken), 2)
            with fake.lock:
                hellos = [head for head in fake.headers if head[16] == HELLO]
            tokens = [struct.unpack("<Q", head[:8])[0] for head in hellos]
            self.assertEqual(len(tokens), 3)
            self.assertEqual({token >> 8 for token in tokens}, {tokens[0] >> 8})
            self.assertEqual([(token - tokens[0]) & 0xFF for token in tokens], [0, 1, 2])
            self.peer.ask(f"close {segment}")
            fake.close()

    def test_write_to_a_peer_without_fences_that_broke_fails(self):
        def answer(target, number, op, addr, size, sock):
            take(sock, size // 2)
            reset(sock)
            return False

        fake = FakeTarget(answer=answer)
        segment = self.peer.open(fake.name)
        outcome = self.peer.run("write", segment, 0, fake.BASE, 100000)
        self.assertEqual((outcome.counts, outcome.reason), ((0, 1, 0, 0), "reset"), outcome)
        self.assertEqual(len(fake.headers), 1)
        fake.close()

    def test_write_that_breaks_each_time_ends_failed(self):
        def answer(target, number, op, addr, size, sock):
            reset(sock)
            return False

        fake = FakeTarget(incarnation=RANDOM.getrandbits(64), answer=answer)
        segment = self.peer.open(fake.name)
        outcome = self.peer.run("write", segment, 0, fake.BASE, 1000, 3)
        self.assertEqual((outcome.counts, outcome.reason), ((0, 3, 0, 0), "reset"), outcome)
        fake.close()


if __name__ == "__main__":
    main()
