# SPDX-License-Identifier: Apache-2.0
"""The metadata server and its clients: silent, slow, deaf, too many, speaking something else, and 32 that are good. Run
by test_lwmeta_clients.sh."""

import socket
import statistics
import threading
import time
import unittest

from meta import ABSENT, DELETED, PATIENCE, UPDATED, Server
from wire import RANDOM, eventually, main

GOOD = b"PUT /metadata?key=k HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
_PUT = b"PUT /metadata?key=k HTTP/1.1\r\nHost: x\r\n"
NO_HTTP = [
    b"\r\n\r\n",
    b"\0" * 1000,
    b"GET\r\n\r\n",
    b"GET /metadata?key=k\r\n\r\n",
    b"GET /metadata?key=k HTTP/9.9\r\nHost: x\r\n\r\n",
    b"GET /metadata?key=k HTTP/1.1\r\n\r\n",
    _PUT + b"Content-Length: -1\r\n\r\n",
    _PUT + b"Content-Length: 99999999999999999999999\r\n\r\n",
    _PUT + b"Content-Length: 1x\r\n\r\nabc",
    _PUT + b"Content-Length: 10\r\n\r\nabc",
    _PUT + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n",
    _PUT + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    bytes.fromhex("16030100ba010000b60303") + bytes(range(180)),
]


class Clients(unittest.TestCase):
    def latencies(self, server, count=300):
        with server.client() as client:
            taken = []
            for i in range(count):
                begin = time.monotonic()
                self.assertEqual(client.ask("PUT", f"fast{i % 10}", b"x" * 500), UPDATED)
                self.assertEqual(client.ask("GET", f"fast{i % 10}")[0], 200)
                taken.append(time.monotonic() - begin)
        return statistics.median(taken), max(taken)

    def test_bad_clients_delay_no_one(self):
        with Server("--threads", "2") as server:
            alone, _ = self.latencies(server)
            server.ask("PUT", "large", bytes(8 << 20))
            head = b"PUT /metadata?key=slow HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
            silent = [server.connect() for _ in range(40)]
            headless = [server.connect() for _ in range(30)]
            bodiless = [server.connect() for _ in range(20)]
            deaf = [server.connect(receive_buffer=4096) for _ in range(10)]
            for sock in bodiless:
                sock.sendall(head)
            for sock in deaf:
                sock.sendall(b"GET /metadata?key=large HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
            over = threading.Event()

            def drip():
                while not over.wait(0.02):
                    for i, sock in enumerate(headless):
                        sock.send(head[i : i + 1])
                    for sock in bodiless:
                        sock.send(b"x")

            thread = threading.Thread(target=drip)
            thread.start()
            beside, most = self.latencies(server)
            over.set()
            thread.join()
            self.assertTrue(eventually(lambda: server.metrics()["lwmeta_connections"] == 101))
            for sock in silent + headless + bodiless + deaf:
                sock.close()
            print(f"median {alone * 1e3:.2f} ms alone, {beside * 1e3:.2f} ms beside them, at most {most * 1e3:.0f} ms")
            self.assertLess(beside, max(10 * alone, 0.05))
            self.assertLess(most, 2)
            self.assertTrue(eventually(lambda: server.metrics()["lwmeta_connections"] == 1))
            self.assertEqual(server.metrics()["lwmeta_uploading_bytes"], 0)
            self.assertEqual(server.ask("GET", "slow"), ABSENT)

    def test_who_waits_too_long_is_cut(self):
        with Server("--timeout", "2") as server:
            server.ask("PUT", "large", bytes(8 << 20))
            begin = time.monotonic()
            silent, drip, deaf = server.connect(), server.connect(), server.connect(receive_buffer=4096)
            deaf.sendall(b"GET /metadata?key=large HTTP/1.1\r\nHost: x\r\n\r\n")
            drip.settimeout(0.05)
            busy = server.client()
            cut = False
            while not cut:
                self.assertLess(time.monotonic() - begin, PATIENCE)
                self.assertEqual(busy.ask("GET", "k"), ABSENT)
                try:
                    drip.send(b"G")
                    cut = drip.recv(1) == b""
                except TimeoutError:
                    pass
                except ConnectionError:
                    cut = True
            self.assertGreater(time.monotonic() - begin, 1.9)
            self.assertEqual(silent.recv(1), b"")
            self.assertTrue(eventually(lambda: server.metrics()["lwmeta_connections"] == 2))
            self.assertEqual(server.metrics()["lwmeta_connections_slow_total"], 3)
            while time.monotonic() - begin < 4.5:  # a connection that is in use lives on
                self.assertEqual(busy.ask("GET", "k"), ABSENT)
            for sock in (silent, drip, deaf, busy.http):
                sock.close()

    def test_more_than_there_is_room_for(self):
        with Server("--max-connections", "20") as server:
            with server.client() as client:
                socks = []
                for _ in range(100):
                    socks.append(server.connect())
                    self.assertEqual(client.ask("GET", "k"), ABSENT)
            self.assertEqual(server.ask("GET", "k"), ABSENT)
            self.assertTrue(eventually(lambda: server.metrics()["lwmeta_connections"] <= 20))
            self.assertGreaterEqual(server.metrics()["lwmeta_connections_crowded_total"], 80)
            self.assertEqual(socks[0].recv(1), b"")
            for sock in socks:
                sock.close()

    def test_no_http(self):
        inputs = list(NO_HTTP)
        for _ in range(150):
            data = bytearray(GOOD)
            for _ in range(RANDOM.randrange(1, 4)):
                data[RANDOM.randrange(len(data))] = RANDOM.randrange(256)
            inputs.append(bytes(data[: RANDOM.randrange(1, len(data) + 1)]))
        with Server("--timeout", "2") as server:
            socks = [server.connect() for _ in inputs]
            for sock, data in zip(socks, inputs):
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
            for i, (sock, data) in enumerate(zip(socks, inputs)):
                try:
                    answer = sock.recv(12)
                except ConnectionError:
                    answer = b""
                self.assertIn(answer[9:10], (b"", b"4", b"5") + ((b"2",) if i >= len(NO_HTTP) else ()), data)
                sock.close()
            self.assertEqual(server.raw("GET", "/health")[:2], (200, b"ok"))
            self.assertEqual(server.metrics()["lwmeta_uploading_bytes"], 0)

    def test_many_threads(self):
        sent, wrong = [], []
        until = time.monotonic() + 3.3

        def work(number, server):
            count, mine = {}, f"thread {number}"
            with server.client() as client:
                while time.monotonic() < until:
                    value = str(number).encode() * RANDOM.randrange(1, 2000)
                    for method, key, body, expected in (
                        ("PUT", mine, value, UPDATED),
                        ("GET", mine, None, (200, value)),
                        ("PUT", "shared", value, UPDATED),
                        ("GET", "shared", None, None),
                        ("DELETE", mine, None, DELETED),
                        ("GET", mine, None, ABSENT),
                    ):
                        answer = client.ask(method, key, body)
                        count[method, answer[0]] = count.get((method, answer[0]), 0) + 1
                        # What is shared is of one writer, not of two.
                        if answer != (expected or (200, answer[1][:2] * (len(answer[1]) // 2))):
                            wrong.append((method, key, answer))
            sent.append(count)

        with Server("--threads", "4") as server:
            threads = [threading.Thread(target=work, args=(10 + i, server)) for i in range(32)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(wrong, [])
            self.assertEqual(len(sent), 32)
            metrics = server.metrics()
            for kind in (("PUT", 200), ("GET", 200), ("GET", 404), ("DELETE", 200)):
                count = sum(one.get(kind, 0) for one in sent)
                self.assertGreater(count, 32)
                self.assertEqual(metrics['lwmeta_requests_total{method="%s",status="%d"}' % kind], count)
            counted = sum(value for name, value in metrics.items() if "requests_total{" in name)
            self.assertEqual(counted, sum(sum(one.values()) for one in sent))
            self.assertEqual((metrics["lwmeta_keys"], metrics["lwmeta_requests_aborted_total"]), (1, 0))
            self.assertGreater(metrics["lwmeta_uptime_seconds"], 3)


if __name__ == "__main__":
    main()
