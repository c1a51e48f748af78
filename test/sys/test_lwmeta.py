# SPDX-License-Identifier: Apache-2.0
"""The metadata server: what it answers, the token, bounds, options. Run by test_lwmeta.sh; beside it stand tests of its
leases and owners, of bad and many clients, and of its file."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest

from meta import ABSENT, DELETED, DUPLICATE, PATIENCE, UNCHANGED, UPDATED, Served, Server, escape, refused, target
from wire import RANDOM, eventually, main

KEYS = [
    "mooncake/ram/node:1",
    "mooncake/ram/node%3A1",
    "a b",
    "a+b",
    " ",
    "%",
    "%25",
    "100%",
    "ü/漢字/🙂",
    b"\xff\xfe\x80",
    "a&key=b",
    "a=b?c#d;e",
    "../..//x",
    "'\"<>\\",
    "k" * 1024,
]


class Protocol(Served):
    def test_as_the_reference_answers(self):
        self.assertEqual(self.ask("GET", "k"), ABSENT)
        self.assertEqual(self.ask("DELETE", "k"), ABSENT)
        self.assertEqual(self.ask("PUT", "k", b'{"a":1}'), UPDATED)
        self.assertEqual(self.ask("PUT", "k", b'{"a":2}'), UPDATED)
        status, body, headers = self.client.raw("GET", target("k"))
        self.assertEqual((status, body), (200, b'{"a":2}'))
        self.assertEqual(headers["Content-Type"], "application/json; charset=utf-8")
        self.assertIsNone(headers["Lanewise-Lease"])
        self.assertIsNone(headers["Lanewise-Owner"])
        self.assertEqual(self.ask("DELETE", "k"), DELETED)
        self.assertEqual(self.ask("GET", "k"), ABSENT)
        for method in ("GET", "PUT", "DELETE"):
            for path in ("/metadata", "/metadata?key", "/metadata?key=", "/metadata?kez=1"):
                self.assertEqual(self.client.raw(method, path)[:2], (400, b"metadata key is required"))
        for method in ("PATCH", "OPTIONS", "BREW"):
            status, body, headers = self.client.raw(method, target("k"))
            self.assertEqual((status, body), (405, b"Method not allowed"))
            self.assertEqual(headers["Allow"], "GET, PUT, POST, DELETE")
        self.assertEqual(self.client.raw("HEAD", target("k"))[0], 405)

    def test_an_engines_address_is_not_replaced(self):
        key = "mooncake/rpc_meta/node"
        self.assertEqual(self.ask("PUT", key, b"1"), UPDATED)
        self.assertEqual(self.ask("PUT", key, b"1"), UNCHANGED)
        self.assertEqual(self.ask("PUT", key, b"2"), DUPLICATE)
        self.assertEqual(self.ask("PUT", key, b"2", owner="me"), DUPLICATE)
        self.assertEqual(self.ask("GET", key), (200, b"1"))
        self.assertEqual(self.ask("PUT", key, b"2", owner="me", match=""), UPDATED)
        self.assertEqual(self.ask("PUT", key, b"3", owner="me"), UPDATED)
        self.assertEqual(self.ask("DELETE", key, owner="me"), DELETED)
        self.assertEqual(self.ask("PUT", key, b"4"), UPDATED)
        with Server("--rpc-meta", "replace") as other:
            self.assertEqual(other.ask("PUT", key, b"1"), UPDATED)
            self.assertEqual(other.ask("PUT", key, b"2"), UPDATED)

    def test_keys_round_trip(self):
        for i, key in enumerate(KEYS):
            self.assertEqual(self.ask("PUT", key, b"%d" % i), UPDATED, key)
        for i, key in enumerate(KEYS):
            self.assertEqual(self.ask("GET", key), (200, b"%d" % i), key)
        self.assertEqual(self.client.raw("GET", "/metadata?key=a+b")[:2], (200, b"2"))  # a plus is a blank
        self.assertEqual(self.client.raw("GET", "/metadata/?x=1&key=%61%20b&y")[:2], (200, b"2"))
        self.assertEqual(self.server.metrics()["lwmeta_keys"], len(KEYS))
        for key in KEYS:
            self.assertEqual(self.ask("DELETE", key), DELETED, key)
        self.assertEqual(self.server.metrics()["lwmeta_bytes"], 0)

    def test_bad_keys(self):
        for key in ("\0", "a\0b", "\n", "a\x1f", "\x7f"):
            self.assertEqual(self.ask("PUT", key, b"x")[0], 400, repr(key))
        self.assertEqual(self.client.raw("PUT", "/metadata?key=a&key=b", b"x")[0], 400)
        self.assertEqual(self.ask("PUT", "k" * 1025, b"x"), (414, b"key is too long"))
        self.assertEqual(self.ask("PUT", "ü" * 1025, b"x"), (414, b"key is too long"))
        self.assertEqual(self.server.metrics()["lwmeta_keys"], 0)

    def test_values_are_bytes(self):
        for size in (0, 1, 4095, 16384, 16385, 100000, 5 << 20):
            value = RANDOM.randbytes(size)
            self.assertEqual(self.ask("PUT", "k", value), UPDATED)
            self.assertEqual(self.ask("GET", "k"), (200, value))
        parts = [RANDOM.randbytes(RANDOM.randrange(1, 50000)) for _ in range(20)]
        status = self.client.raw("PUT", target("k"), iter(parts), encode_chunked=True)[0]
        self.assertEqual((status, self.ask("GET", "k")), (200, (200, b"".join(parts))))
        self.assertEqual(self.server.metrics()["lwmeta_uploading_bytes"], 0)

    def test_other_paths(self):
        self.assertEqual(self.client.raw("GET", "/health")[:2], (200, b"ok"))
        self.assertEqual(self.client.raw("HEAD", "/health")[:2], (200, b""))
        self.assertEqual(self.client.raw("PUT", "/health", b"x")[0], 405)
        for path in ("/", "/metadat", "/metadata2", "/metadata//", "/health/", "/%6detadata%00x"):
            self.assertIn(self.client.raw("GET", path)[0], (404,) if "%00" not in path else (400, 404), path)

    def test_curl_is_a_client(self):
        if not shutil.which("curl"):
            self.skipTest("there is no curl")
        url = f"http://{self.server.host}:{self.server.port}/metadata?key=" + escape("mooncake/ram/ü b")
        with tempfile.NamedTemporaryFile() as file:
            file.write(RANDOM.randbytes(3 << 20))  # more than 1 MiB: it asks before it sends
            file.flush()
            base = ["curl", "-sS", "--noproxy", "*", "-w", " %{http_code}", "-H", "Content-Type: application/json", url]
            for arguments, expected in (
                (("-X", "PUT", "-T", file.name), b"metadata updated 200"),
                (("-o", file.name + ".back"), b" 200"),
                (("-X", "POST"), b"metadata renewed 200"),
                (("-X", "DELETE"), b"metadata deleted 200"),
                ((), b"metadata not found 404"),
            ):
                done = subprocess.run([*base, *arguments], capture_output=True, timeout=PATIENCE, check=True)
                self.assertEqual(done.stdout, expected)
            with open(file.name, "rb") as sent, open(file.name + ".back", "rb") as back:
                self.assertTrue(sent.read() == back.read())
            os.unlink(file.name + ".back")


class Token(unittest.TestCase):
    secret = "s3cret-Token/+="

    def check(self, server):
        good = {"Authorization": f"Bearer {self.secret}"}
        bad = [self.secret[:-1], self.secret + "x", self.secret.lower(), "", "x" * 5000]
        for method in ("GET", "PUT", "POST", "DELETE", "HEAD"):
            for headers in [{}, {"Authorization": self.secret}, {"Authorization": f"Basic {self.secret}"}] + [
                {"Authorization": f"Bearer {word}"} for word in bad
            ]:
                status, _, answer = server.raw(method, target("k"), headers=headers)
                self.assertEqual((status, answer["WWW-Authenticate"]), (401, "Bearer"), headers)
        self.assertEqual(server.raw("PUT", target("k"), b"x", headers=good)[0], 200)
        self.assertEqual(server.raw("GET", target("k"), headers={"authorization": f"bearer  {self.secret}"})[0], 200)
        self.assertEqual(server.raw("PUT", target("k"), b"y" * 100000)[0], 401)
        self.assertEqual(server.raw("GET", target("k"), headers=good)[1], b"x")
        self.assertEqual(server.raw("GET", "/metrics")[0], 401)
        self.assertEqual(server.raw("GET", "/health")[0], 200)
        shown = server.line + server.said() + str(server.metrics(good))
        for name in ("environ", "cmdline"):
            with open(f"/proc/{server.process.pid}/{name}", encoding="latin1") as file:
                shown += file.read()
        self.assertNotIn(self.secret, shown)

    def test_from_a_file(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(self.secret + "\nsecond line\n")
            file.flush()
            with Server("--token-file", file.name, environment={"LWMETA_TOKEN": "another"}) as server:
                self.check(server)

    def test_from_the_environment(self):
        with Server(environment={"LWMETA_TOKEN": self.secret}) as server:
            self.check(server)

    def test_bad_tokens(self):
        with tempfile.NamedTemporaryFile("w") as file:
            for content in ("", "\n", "a b", "x" * 4097, "t\u00fc"):
                file.truncate(0)
                file.seek(0)
                file.write(content)
                file.flush()
                status, said = refused("--port", "0", "--token-file", file.name)
                self.assertEqual(status, 1)
                self.assertIn("no token", said)
        self.assertEqual(refused("--port", "0", "--token-file", "/nonexistent/token")[0], 1)
        self.assertEqual(refused("--port", "0", environment={"LWMETA_TOKEN": ""})[0], 1)


class Bounds(unittest.TestCase):
    def test_a_value(self):
        with Server("--max-value", "64k") as server, server.client() as client:
            most = RANDOM.randbytes(65536)
            self.assertEqual(client.ask("PUT", "k", most), UPDATED)
            large = (413, b"value is too large")
            self.assertEqual(client.ask("PUT", "k", most + b"x"), large)
            self.assertEqual(client.ask("PUT", "k", bytes(20 << 20)), large)
            parts = (bytes(1000) for _ in range(5000))
            self.assertEqual(client.raw("PUT", target("k"), parts, encode_chunked=True)[:2], large)
            self.assertEqual(client.ask("GET", "k"), (200, most))
            with server.connect() as sock:
                length = f"Content-Length: {1 << 62}\r\nExpect: 100-continue\r\n\r\n"
                sock.sendall(f"PUT {target('k')} HTTP/1.1\r\nHost: x\r\n{length}".encode())
                self.assertIn(b"413", sock.recv(12))
            self.assertEqual(server.metrics()["lwmeta_uploading_bytes"], 0)

    def test_keys_and_bytes(self):
        full = (507, b"there is no room for it")
        with Server("--max-keys", "10") as server, server.client() as client:
            for i in range(10):
                self.assertEqual(client.ask("PUT", f"k{i}", b"x", ttl=2 if i == 9 else 60), UPDATED)
            self.assertEqual(client.ask("PUT", "more", b"x"), full)
            self.assertEqual(client.ask("PUT", "k0", b"other"), UPDATED)
            self.assertEqual(client.ask("DELETE", "k0"), DELETED)
            self.assertEqual(client.ask("PUT", "more", b"x"), UPDATED)
            self.assertTrue(eventually(lambda: client.ask("PUT", "after the lease", b"x") == UPDATED))
        with Server("--max-bytes", "10k") as server, server.client() as client:
            self.assertEqual(client.ask("PUT", "k", bytes(9000)), UPDATED)
            self.assertEqual(client.ask("PUT", "l", bytes(900)), full)
            self.assertEqual(client.ask("PUT", "k", bytes(10000)), full)
            self.assertEqual(client.ask("PUT", "k", bytes(8000)), UPDATED)
            self.assertEqual(client.ask("PUT", "l", bytes(900)), UPDATED)
            self.assertEqual(server.metrics()["lwmeta_bytes"], 8901 + 2 * 256 + 1)

    def test_values_on_their_way(self):
        with Server("--max-value", "1m", "--max-connections", "100") as server:
            socks = [server.connect() for _ in range(60)]
            for sock in socks:
                sock.sendall(f"PUT {target('k')} HTTP/1.1\r\nHost: x\r\nContent-Length: 600000\r\n\r\n".encode())
                sock.sendall(bytes(599999))
            # What is being refused at this moment is counted, too: a part of a body for each thread that serves.
            limit = 8 * (1 << 20) + 100 * 16384 + 8 * 65536
            self.assertTrue(eventually(lambda: server.metrics()["lwmeta_uploading_bytes"] > 3 << 20))
            self.assertLessEqual(server.metrics()["lwmeta_uploading_bytes"], limit)
            for sock in socks:
                sock.sendall(b"x")
            answers = [sock.recv(12)[9:] for sock in socks]
            for sock in socks:
                sock.close()
            self.assertEqual(set(answers), {b"200", b"503"})
            self.assertEqual(server.metrics()["lwmeta_uploading_bytes"], 0)
            self.assertEqual(server.ask("GET", "k"), (200, bytes(599999) + b"x"))

    def test_a_head(self):
        with Server() as server:
            for head in (b"X: " + b"y" * 200000, b"X: y\r\n" * 20000):
                with server.connect() as sock:
                    try:
                        sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n")
                        answer = sock.recv(12)
                    except OSError:
                        answer = b""
                    self.assertIn(answer[9:10], (b"", b"4"))
            self.assertIn(server.raw("GET", target("k" * 100000))[0], (413, 414, 431))
            self.assertEqual(server.raw("GET", "/health")[0], 200)


class Options(unittest.TestCase):
    def test_wrong_usage(self):
        for arguments in (
            ("--port", "65536"),
            ("--port", ""),
            ("--threads", "0"),
            ("--listen", "localhost"),
            ("--listen", "1.2.3.4.5"),
            ("--listen", ""),
            ("--max-key", "9k"),
            ("--timeout", "0"),
            ("--rpc-meta", "x"),
            ("--recover",),
            ("--nonsense",),
            ("argument",),
        ):
            status, said = refused(*arguments)
            self.assertEqual(status, 2, arguments)
            self.assertTrue(said.startswith("lwmeta: ") or "unrecognized" in said, said)

    def test_addresses(self):
        with Server() as server:
            status, said = refused("--port", str(server.port))
            self.assertEqual(status, 1)
            self.assertIn("Address already in use", said)
        with Server(listen="0.0.0.0") as server:
            self.assertEqual(server.ask("GET", "k"), ABSENT)
        if not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"):
            self.skipTest("there is no IPv6")
        for listen in ("[::1]", "::1", "[::]"):
            with Server(listen=listen) as server:
                self.assertIn("http://[::", server.line)
                self.assertEqual(server.ask("GET", "k"), ABSENT)

    def test_it_ends_in_order(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            server = Server("--threads", "1")
            client = server.client()
            client.ask("PUT", "k", b"x")
            silent, half = server.connect(), server.connect()
            if number == signal.SIGTERM:
                half.sendall(b"PUT /metadata?key=k HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345")
            status, said, took = server.end(number)
            self.assertEqual((status, said), (0, ""))
            self.assertLess(took, 10)
            for sock in (silent, half, client.http.sock):
                sock.close()


if __name__ == "__main__":
    main()
