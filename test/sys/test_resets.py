# SPDX-License-Identifier: Apache-2.0
"""Connections that are closed, half-closed or reset at any byte, a thousand times on each port, of a host that leaves
SIGPIPE as it is by default and gets a signal every millisecond. The host lives, and is as before: its descriptors, its
threads, what it does about SIGPIPE. Whole requests before a half-close are answered, exactly; a request that a signal
interrupts is neither lost nor sent twice. Run by test_resets.sh."""

import signal
import socket
import time
import unittest

from wire import (
    CONNECTION,
    METADATA,
    MIB,
    OK,
    PROBE,
    RANDOM,
    READ1,
    READ2,
    WRITE1,
    WRITE2,
    FakeTarget,
    Peer,
    connect,
    eventually,
    frame,
    header,
    main,
    reset,
    rest,
    take,
)

CLIENTS = 1000
SIZES = (1, 100, 5000, 70000)


def sigpipe(peer):
    """Whether the process ignores, catches, blocks it."""
    with open(f"/proc/{peer.process.pid}/status", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    return [int(lines[name], 16) >> (signal.SIGPIPE - 1) & 1 for name in ("SigIgn", "SigCgt", "SigBlk")]


def answer_to(requests, length):
    """What comes back for that many bytes of them."""
    answer = b""
    for request, reply in requests:
        length -= len(request)
        if length < 0:
            break
        answer += reply
    return answer


def timeless(data):
    """Without what a descriptor tells of the time."""
    return data.split(b'"timestamp":')[0]


def end(test, sock, expected):
    """Ends a client in one of five ways; what it got, if it waited for that."""
    way = RANDOM.randrange(5)
    if way == 0:
        reset(sock)
    elif way == 1:
        sock.close()
    elif way == 2:  # nobody will read the answers: they meet a closed socket
        sock.shutdown(socket.SHUT_WR)
        sock.close()
    elif way == 3:
        sock.shutdown(socket.SHUT_WR)
        test.assertTrue(timeless(rest(sock)) == timeless(expected), "cut short, or other bytes")
        sock.close()
    else:  # a part of the answers
        if expected:
            take(sock, RANDOM.randrange(1, len(expected) + 1))
        RANDOM.choice((reset, socket.socket.close))(sock)


class Host:
    """The tests, for a host that drives its engine in one of two ways."""

    options = ()

    def setUp(self):
        self.host = Peer(4 * MIB, "alarm=1000", *self.options)
        self.addCleanup(lambda: self.assertEqual(self.host.end(), 0))
        # A healthy peer, which also drives the host's engine where its own threads do.
        self.well = Peer(MIB)
        self.addCleanup(self.well.end)
        segment = self.host.open(self.well.name)
        self.assertEqual(self.host.run("write", segment, 0, self.well.addr, 4096).counts, (1, 0, 0, 0))
        self.assertEqual(self.host.ask(f"stream write {segment} {3 * MIB} {self.well.addr} 4096 1"), "ok")
        self.assertEqual(sigpipe(self.host), [0, 0, 0])
        self.before = None
        eventually(self.settled)
        self.addCleanup(self.check)

    def settled(self):
        """Whether what the stream opens when it first waits is there."""
        last, self.before = self.before, self.host.state()
        time.sleep(0.2)
        return last is not None and last[:2] == self.before[:2]

    def check(self):
        eventually(lambda: self.host.state()[:2] == self.before[:2])
        self.assertEqual(self.host.state()[:2], self.before[:2], "descriptors or threads")
        self.assertEqual(sigpipe(self.host), [0, 0, 0])
        completed, failed = map(int, self.host.ask("stop").split()[1:])
        self.assertGreater(completed, 0)
        self.assertEqual(failed, 0)

    def requests(self):
        requests = []
        for _ in range(RANDOM.randrange(1, 6)):
            size, write, read = RANDOM.choice(SIZES), RANDOM.choice((WRITE1, WRITE2)), RANDOM.choice((READ1, READ2))
            data, at = RANDOM.randbytes(size), self.host.addr + RANDOM.randrange(MIB)
            requests.append((header(size, at, write) + data, OK if write == WRITE2 else b""))
            requests.append((header(size, at, read), (OK if read == READ2 else b"") + data))
        return requests

    def test_data_port(self):
        for _ in range(CLIENTS):
            requests = self.requests()
            stream = b"".join(request for request, _ in requests)
            stream = stream[: RANDOM.choice((RANDOM.randrange(len(stream)), len(stream)))]
            with connect(self.host.data_port) as sock:
                sock.sendall(stream)
                end(self, sock, answer_to(requests, len(stream)))
        # Whatever was cut off: what comes afterwards is exact.
        for request, reply in self.requests():
            with connect(self.host.data_port) as sock:
                sock.sendall(request)
                self.assertEqual(take(sock, len(reply)), reply)

    def test_handshake_port(self):
        connection = '{"local_gid":"","local_lid":0,"local_nic_path":"a@b","payload":"","peer_nic_path":"c@d","qp_num":[1]}'
        kinds = ((PROBE, "{}\n"), (METADATA, "{}\n"), (CONNECTION, connection))
        answers = {}
        for kind, text in kinds:
            with connect(self.host.port) as sock:
                sock.sendall(frame(kind, text))
                answers[kind] = rest(sock)
                self.assertNotEqual(answers[kind], b"")
        for _ in range(CLIENTS):
            kind, text = RANDOM.choice(kinds)
            whole = frame(kind, text)
            part = whole[: RANDOM.choice((RANDOM.randrange(len(whole)), len(whole)))]
            with connect(self.host.port) as sock:
                sock.sendall(part)
                end(self, sock, answers[kind] if part == whole else b"")

    def test_signals_lose_no_request_and_double_none(self):
        fake = FakeTarget(incarnation=0x0123456789ABCDEF)
        self.addCleanup(fake.close)
        segment = self.host.open(fake.name)
        for i in range(150):
            length, count = RANDOM.choice(((1000, 200), (16384, 64), (MIB, 1)))
            op = ("write", "read")[i % 2]
            fake.headers.clear()
            outcome = self.host.run(op, segment, 0, fake.BASE, length, count)
            self.assertEqual(outcome.counts, (count, 0, 0, 0), outcome)
            code = WRITE2 if op == "write" else READ2
            wanted = [header(length, fake.BASE + k * length, code) for k in range(count)]
            self.assertEqual(sorted(head for head in fake.headers if head[16] == code), sorted(wanted))

    def test_targets_that_close_in_the_middle_of_requests(self):
        def answer(fake, number, op, addr, size, sock):
            if op == WRITE2:
                take(sock, RANDOM.randrange(size))
            else:
                sock.sendall((OK + bytes(size))[: RANDOM.randrange(size)])
            RANDOM.choice((reset, socket.socket.close))(sock)
            return False

        fake = FakeTarget(answer=answer)
        self.addCleanup(fake.close)
        segment = self.host.open(fake.name)
        for i in range(200):
            outcome = self.host.run(("write", "read")[i % 2], segment, 0, fake.BASE, MIB, timeout_ms=2000)
            self.assertEqual(outcome.counts[0], 0, outcome)
            self.assertIn(outcome.reason, ("reset", "unreachable"), outcome)
        fake.answer = None
        self.assertEqual(self.host.run("write", segment, 0, fake.BASE, MIB).counts, (1, 0, 0, 0))
        self.assertEqual(self.host.ask(f"close {segment}"), "ok")


class Workers(Host, unittest.TestCase):
    pass


class Caller(Host, unittest.TestCase):
    """The signals interrupt the thread that does the engine's work."""

    options = ("poll=caller",)


if __name__ == "__main__":
    main()
