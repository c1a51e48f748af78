# SPDX-License-Identifier: Apache-2.0
"""A target with few places for connections: idle initiators do not use them up, and no request fails when a connection
has to go for another one's sake. Only when all are busy a new one is refused. Run by test_places.sh."""

import fcntl
import os
import signal
import struct
import termios
import time
import unittest

from wire import (
    HELLO,
    LEAVING,
    MIB,
    OK,
    RANDOM,
    READ2,
    WRITE2,
    FakeTarget,
    Peer,
    connect,
    crc,
    eventually,
    header,
    main,
    reset,
    rest,
    take,
)

ANSWERS = 16  # of 1 MiB: more than sockets hold


def unconfirmed(sock):
    """Bytes that were sent and that the other end does not have."""
    return struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0]


class Places(unittest.TestCase):
    """A target with few places."""

    PLACES = 64
    INITIATORS = 300

    def peer(self, *options):
        peer = Peer(4 * MIB, *options)
        self.addCleanup(lambda: self.assertEqual(peer.end(), 0))
        return peer

    def setUp(self):
        self.target = self.peer(f"tcp_max_served={self.PLACES}")
        self.life = int(self.target.descriptor["lw"]["incarnation"], 16)

    def client(self, greeting=True):
        """Of ours, by its bytes: says HELLO and moves something."""
        sock = connect(self.target.data_port)
        self.addCleanup(sock.close)
        hello = header(0, self.life, HELLO) if greeting else b""
        data = RANDOM.randbytes(RANDOM.randrange(1, 5000))
        sock.sendall(hello + header(len(data), self.target.addr + MIB, WRITE2) + data)
        self.assertEqual(take(sock, len(hello) // 3 + 8), hello and OK + OK or OK)
        return sock

    def served(self, sock):
        sock.sendall(header(100, self.target.addr, READ2))
        return take(sock, 108)[:8]

    def test_idle_initiators_make_room_the_longest_idle_first(self):
        idle = [self.client() for _ in range(self.INITIATORS)]
        self.assertLessEqual(self.target.state()[4], self.PLACES)
        for sock in idle[: -self.PLACES]:
            self.assertEqual(rest(sock), LEAVING)
        for sock in idle[-self.PLACES :]:
            self.assertEqual(self.served(sock), OK)

    def test_used_again_is_not_the_longest_idle(self):
        first, second, *others = [self.client() for _ in range(self.PLACES)]
        self.assertEqual(self.served(first), OK)
        self.client()
        self.assertEqual(rest(second), LEAVING)
        self.assertEqual(self.served(first), OK)

    def test_peers_that_know_no_hello_are_closed_when_silent(self):
        idle = [self.client(greeting=False) for _ in range(self.PLACES)]
        time.sleep(1.2)
        self.assertEqual(self.served(self.client()), OK)
        self.assertEqual(rest(idle[0]), b"")

    def test_engines_more_than_places_no_request_fails(self):
        # Each connection is needed again when it has just been the longest idle.
        movers = [self.peer(f"tcp_lanes={lanes}", "workers=1") for lanes in (16, 16, 16, 16, 16, 16)]
        segments = [mover.open(self.target.name) for mover in movers]
        spent = []
        for _ in range(60):
            for j, (mover, segment) in enumerate(zip(movers, segments)):
                at, count = self.target.addr + j * 512 * 1024, RANDOM.choice((1, 16, 64))
                outcome = mover.run("write", segment, 0, at, 4096, count)
                self.assertEqual(outcome.counts, (count, 0, 0, 0), outcome)
                spent.append(outcome.ms)
        self.assertLess(sorted(spent)[len(spent) // 2], 200)

    def test_all_busy_new_one_refused_served_later(self):
        busy = [self.client() for _ in range(self.PLACES)]
        for i, sock in enumerate(busy):
            # A part of a header, a part of a body, an answer that is not taken.
            part = header(MIB, self.target.addr, (WRITE2, WRITE2, READ2)[i % 3])
            sock.sendall((part[:7], part + b"0123456789", part * ANSWERS)[i % 3])
        time.sleep(0.3)
        for _ in range(5):
            with connect(self.target.data_port) as sock:
                self.assertEqual(rest(sock), b"")
        told = eventually(lambda: any("tcp_max_served" in line for line in self.target.log))
        self.assertTrue(told, "the refusal is not in the log")
        for i, sock in enumerate(busy):
            if i % 3 != 2:
                sock.sendall((header(MIB, self.target.addr, WRITE2)[7:] + bytes(MIB), bytes(MIB - 10))[i % 3])
                self.assertEqual(take(sock, 8), OK)
            else:
                self.assertEqual(len(take(sock, ANSWERS * (MIB + 8))), ANSWERS * (MIB + 8))
        for _ in range(3):
            self.assertEqual(self.served(self.client()), OK)


    def test_reset_ones_leave_their_places_before_the_target_read_of_it(self):
        # All are there at once when it goes on: those that were given up, and one that has something to do.
        os.kill(self.target.process.pid, signal.SIGSTOP)
        try:
            for _ in range(self.PLACES + 10):
                sock = connect(self.target.data_port)
                sock.sendall(header(MIB, self.target.addr, READ2) * 5)
                reset(sock)
            late = connect(self.target.data_port)
            self.addCleanup(late.close)
            late.sendall(header(100, self.target.addr, READ2))
        finally:
            os.kill(self.target.process.pid, signal.SIGCONT)
        self.assertEqual(take(late, 108)[:8], OK)


class Leaving(unittest.TestCase):
    """What our initiator sent while its connection ended for another one's sake goes to the next connection."""

    def test_requests_that_cross_the_end_complete_each_once(self):
        peer = Peer(4 * MIB)
        self.addCleanup(lambda: self.assertEqual(peer.end(), 0))
        applied = []

        def answer(fake, number, op, addr, size, sock):
            if number % 11 == 10:
                self.assertTrue(eventually(lambda: unconfirmed(sock) == 0))
                sock.sendall(LEAVING)
                return False  # the body is not read: a reset follows the status
            if op == WRITE2:
                applied.append(addr)
            return None

        fake = FakeTarget(incarnation=0x0123456789ABCDEF, answer=answer)
        self.addCleanup(fake.close)
        segment = peer.open(fake.name)
        for op in ("write", "read") * 20:
            length, count = RANDOM.choice(((1000, 64), (40000, 20), (MIB, 1)))
            peer.ask(f"fill 0 {length * count} {RANDOM.randrange(1 << 30)}")
            applied.clear()
            outcome = peer.run(op, segment, 0, fake.BASE, length, count)
            self.assertEqual(outcome.counts, (count, 0, 0, 0), outcome)
            self.assertEqual(peer.sum(0, length * count), crc(fake.memory[: length * count]))
            self.assertEqual(len(applied), len(set(applied)), "a WRITE was carried out twice")
        self.assertGreater(fake.data.accepted, 20)


if __name__ == "__main__":
    main()
