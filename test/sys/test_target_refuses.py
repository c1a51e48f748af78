# SPDX-License-Identifier: Apache-2.0
"""Peers that are not there, do not answer, or answer nonsense: calls and requests end in time and say why, and other
peers are served meanwhile. Run by test_target_refuses.sh."""

import socket
import time
import unittest

from wire import MIB, FakeTarget, Handshake, Peer, Port, call, frame, main, reset, rest, take

ECONNREFUSED, ETIMEDOUT, EPROTO, ECONNRESET, ENOTSUP = 111, 110, 71, 104, 95


class Refusals(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.peer = Peer(4 * MIB)
        cls.well = FakeTarget()
        cls.steady = cls.peer.open(cls.well.name)
        cls.peer.run("write", cls.steady, 0, FakeTarget.BASE, 10)
        cls.before = cls.peer.state()

    @classmethod
    def tearDownClass(cls):
        cls.well.close()
        status = cls.peer.end()
        assert status == 0, f"the initiator ended with {status}"

    def tearDown(self):
        # Whatever happened: others are served, and nothing is left open.
        self.assertEqual(self.peer.run("write", self.steady, 0, FakeTarget.BASE, 1000).counts, (1, 0, 0, 0))

    def open_fails(self, name, errors, timeout_ms, least_ms=0):
        begin = time.monotonic()
        answer = self.peer.ask(f"open {name} {timeout_ms}")
        spent_ms = (time.monotonic() - begin) * 1000
        words = answer.split()
        self.assertEqual(words[0], "error", answer)
        self.assertIn(-int(words[1]), errors, answer)
        self.assertIn(name, answer)
        self.assertTrue(least_ms <= spent_ms <= timeout_ms + 500, f"{spent_ms} ms: {answer}")

    def request_fails(self, fake, reasons, timeout_ms, least_ms=0, count=20):
        segment = self.peer.open(fake.name)
        for op in ("write", "read"):
            outcome = self.peer.run(op, segment, 0, fake.BASE, 30000, count, timeout_ms)
            self.assertEqual(outcome.counts[0], 0, outcome)
            self.assertIn(outcome.reason, reasons, outcome)
            self.assertIn(fake.name, outcome.text)
            self.assertTrue(least_ms <= outcome.ms <= timeout_ms + 1000, outcome)
        self.assertEqual(self.peer.ask(f"close {segment}"), "ok")

    def fake(self):
        fake = FakeTarget()
        self.addCleanup(fake.close)
        return fake

    def port(self, serve):
        port = Port(serve)
        self.addCleanup(port.close)
        return f"127.0.0.1:{port.port}"

    def test_open_where_nobody_listens_refused(self):
        with socket.create_server(("127.0.0.1", 0)) as sock:
            port = sock.getsockname()[1]
        self.open_fails(f"127.0.0.1:{port}", (ECONNREFUSED,), 2000)

    def test_open_where_nobody_accepts_times_out(self):
        with socket.create_server(("127.0.0.1", 0)) as sock:
            self.open_fails(f"127.0.0.1:{sock.getsockname()[1]}", (ETIMEDOUT,), 500, 450)

    def test_open_where_nobody_answers_times_out(self):
        self.open_fails(self.port(rest), (ETIMEDOUT,), 500, 450)

    def test_open_where_answer_comes_in_drops_times_out(self):
        def drip(sock):
            for byte in frame(1, "{" + " " * 1000):
                sock.sendall(bytes((byte,)))
                time.sleep(0.05)

        self.open_fails(self.port(drip), (ETIMEDOUT,), 500, 450)

    def test_open_where_connection_is_closed_or_reset_fails(self):
        def close(sock):
            take(sock, 9)

        self.open_fails(self.port(close), (ECONNRESET,), 2000)
        self.open_fails(self.port(reset), (ECONNRESET, ECONNREFUSED), 2000)

    def test_open_where_nonsense_is_answered_fails(self):
        answers = {
            "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "SSH": b"SSH-2.0-OpenSSH_9.2p1\r\n",
            "another type": frame(3, '{"status":"success"}\n'),
            "no JSON": frame(1, "hello\n"),
            "cut JSON": frame(1, '{"buffers":[{"addr":1\n'),
            "null": frame(1, "null\n"),
            "a number": frame(1, "5\n"),
            "an array": frame(1, "[]\n"),
            "empty": frame(1, "{}\n"),
            "too long": b"\xff" * 9,
        }
        for name, answer in answers.items():
            with self.subTest(name):

                def serve(sock, answer=answer):
                    take(sock, 9)
                    sock.sendall(answer)
                    rest(sock)

                self.open_fails(self.port(serve), (EPROTO,), 2000)

    def test_open_of_documents_that_lie_fails(self):
        fake = self.fake()
        good = dict(fake.handshake.document)
        buffer = good["buffers"][0]
        for change in (
            {"protocol": 5},
            {"tcp_data_port": "80"},
            {"tcp_data_port": 70000},
            {"tcp_data_port": -1},
            {"buffers": 5},
            {"buffers": [5]},
            {"buffers": [{"addr": "1", "length": 1, "name": "x"}]},
            {"buffers": [{"addr": 1 << 63, "length": 1 << 63, "name": "x"}]},
            {"buffers": [buffer, buffer]},
        ):
            with self.subTest(change):
                fake.handshake.document = good | change
                self.open_fails(fake.name, (EPROTO,), 2000)
        fake.handshake.document = good | {"protocol": "carrier-pigeon"}
        self.open_fails(fake.name, (EPROTO, ENOTSUP), 2000)

    def test_requests_where_nobody_listens_unreachable(self):
        fake = self.fake()
        fake.data.close()
        self.request_fails(fake, ("unreachable",), 2000)

    def test_requests_where_nobody_accepts_time_out(self):
        fake = self.fake()
        with socket.create_server(("127.0.0.1", 0)) as sock:
            fake.handshake.document["tcp_data_port"] = sock.getsockname()[1]
            self.request_fails(fake, ("timeout",), 500, 450)

    def test_requests_where_nobody_answers_time_out(self):
        fake = self.fake()
        fake.serve = rest
        fake.data.serve = rest
        self.request_fails(fake, ("timeout",), 500, 450)

    def test_requests_where_connections_are_closed_or_reset_fail(self):
        for end in (socket.socket.close, reset):
            fake = self.fake()
            fake.data.serve = end
            self.request_fails(fake, ("reset", "unreachable", "timeout"), 1000)

    def test_ten_thousand_failures_log_little_and_no_bytes_of_anybody(self):
        secret = "payloadpayload"

        def refuse(_target, _number, _op, _addr, _size, sock):
            sock.sendall(secret.encode() * 4)  # no answer of the protocol
            return False

        liar = FakeTarget(size=MIB, answer=refuse)
        self.addCleanup(liar.close)
        peer = Peer(MIB, "log_level=debug", "refresh=off")
        segment, failed = peer.open(liar.name), 0
        before = len(peer.log)
        for i in range(100):
            op = "read" if i % 2 else "write"
            addr = liar.BASE + (0 if i % 4 < 2 else 2 * MIB)  # offered, and not
            outcome = peer.run(op, segment, 0, addr, 64, 100)
            self.assertEqual(outcome.counts, (0, 100, 0, 0), outcome)
            failed += 100
        for i in range(20):
            peer.ask(f"tell 127.0.0.1:1 {secret} {secret}")
            self.assertEqual(call(peer.port, secret.encode() * 4), b"")
            self.assertEqual(call(peer.data_port, secret.encode() * 4)[8:], b"")
        self.assertEqual(peer.end(), 0)
        lines = peer.log[before:]
        print(f"{failed} failures, {len(lines)} lines of the log", flush=True)
        self.assertTrue(any("not the protocol" in line for line in lines))
        self.assertLess(len(lines), 20)
        self.assertFalse([line for line in lines if secret[:7] in line])

    def test_zz_nothing_is_left_open(self):
        until = time.monotonic() + 5
        while (now := self.peer.state())[:2] != self.before[:2] and time.monotonic() < until:
            time.sleep(0.05)
        self.assertEqual(now[:2], self.before[:2])


if __name__ == "__main__":
    main()
