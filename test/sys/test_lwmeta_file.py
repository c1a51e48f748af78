# SPDX-License-Identifier: Apache-2.0
"""The metadata server's file: what was answered is there after a kill, a cut-off write, a compaction; damage is named.
Run by test_lwmeta_file.sh."""

import http.client
import os
import tempfile
import threading
import time
import unittest

from meta import ABSENT, DELETED, HELD, RENEWED, UPDATED, Server, refused, target
from wire import RANDOM, eventually, main

FULL = (507, b"there is no room for it")


def change(server, name, kept, wrong):
    """Changes keys until the server is gone. kept: what each may be: two things if it got no answer."""
    number = 0
    try:
        with server.client() as client:
            while True:
                key, number = f"{name} {number % 40}", number + 1
                before = kept.get(key, [ABSENT])
                if RANDOM.random() < 0.2:
                    kept[key] = [*before, ABSENT]
                    expected = DELETED if before != [ABSENT] else ABSENT
                    answer = client.ask("DELETE", key)
                else:
                    value = str(number).encode() * RANDOM.randrange(1, 3000)
                    kept[key] = [*before, (200, value)]
                    expected, answer = UPDATED, client.ask("PUT", key, value)
                if answer != expected:
                    wrong.append((key, answer, expected))
                kept[key] = kept[key][-1:]
    except (OSError, http.client.HTTPException):
        pass  # it was killed


class File(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "entries")

    def tearDown(self):
        self.folder.cleanup()

    def server(self, *options, **named):
        return Server("--file", self.path, *options, **named)

    def names(self):
        return sorted(os.listdir(self.folder.name))

    def content(self):
        with open(self.path, "rb") as file:
            return file.read()

    def write(self, content):
        with open(self.path, "wb") as file:
            file.write(content)

    def refuse(self, *options):
        status, said = refused("--port", "0", "--file", self.path, *options)
        self.assertEqual(status, 1)
        self.assertIn(self.path, said)
        return said


class Restarts(File):
    def test_all_is_there_again(self):
        values = {f"k{i}/ü %": RANDOM.randbytes(RANDOM.choice((0, 1, 1000, 100000))) for i in range(50)}
        with self.server() as server, server.client() as client:
            for key, value in values.items():
                self.assertEqual(client.ask("PUT", key, b"before"), UPDATED)
                self.assertEqual(client.ask("PUT", key, value), UPDATED)
            client.ask("PUT", "gone", b"x")
            self.assertEqual(client.ask("DELETE", "gone"), DELETED)
            client.ask("PUT", "owned", b"x", owner="me", ttl=60)
        self.assertEqual(self.names(), ["entries"])
        self.assertEqual(os.stat(self.path).st_mode & 0o777, 0o600)
        with self.server() as server, server.client() as client:
            for key, value in values.items():
                self.assertEqual(client.ask("GET", key), (200, value))
            self.assertEqual(client.ask("GET", "gone"), ABSENT)
            self.assertEqual(client.ask("DELETE", "owned", owner="you"), HELD)
            headers = client.raw("GET", target("owned"))[2]
            self.assertEqual(headers["Lanewise-Owner"], "me")
            self.assertGreater(float(headers["Lanewise-Lease"]), 55)
            self.assertEqual(server.metrics()["lwmeta_keys"], len(values) + 1)

    def test_leases_begin_anew(self):
        with self.server() as server, server.client() as client:
            client.ask("PUT", "short", b"x", ttl=0.2)
            client.ask("PUT", "put", b"x", ttl=2)
            client.ask("PUT", "posted", b"x")
            self.assertEqual(client.ask("POST", "posted", ttl=2), RENEWED)
            self.assertTrue(eventually(lambda: client.ask("GET", "short") == ABSENT))
            size = os.path.getsize(self.path)
            for _ in range(20):  # a renewal needs no room in the file
                self.assertEqual(client.ask("POST", "put"), RENEWED)
                self.assertEqual(client.ask("PUT", "put", b"x", ttl=2), UPDATED)
            self.assertLess(os.path.getsize(self.path), size + 500)
            server.kill()
        time.sleep(2.1)
        with self.server() as server, server.client() as client:
            self.assertEqual(client.ask("GET", "short"), ABSENT)
            self.assertEqual(client.ask("GET", "put"), (200, b"x"))
            self.assertEqual(client.ask("GET", "posted"), (200, b"x"))
            self.assertTrue(eventually(lambda: client.ask("GET", "put") == ABSENT == client.ask("GET", "posted")))
        with self.server() as server:
            self.assertEqual(server.metrics()["lwmeta_keys"], 0)

    def test_killed_between_writes(self):
        kept, wrong = {}, []
        for _ in range(6):
            with self.server(*RANDOM.choice(((), ("--sync",)))) as server:
                self.check(server, kept)
                threads = [threading.Thread(target=change, args=(server, f"t{i}", kept, wrong)) for i in range(4)]
                for thread in threads:
                    thread.start()
                time.sleep(RANDOM.uniform(0.05, 0.4))
                server.kill()
                for thread in threads:
                    thread.join()
        self.assertEqual(wrong, [])
        self.assertGreater(len(kept), 20)
        with self.server() as server:
            self.check(server, kept)

    def check(self, server, kept):
        with server.client() as client:
            for key, answers in kept.items():
                answer = client.ask("GET", key)
                self.assertIn(answer, answers)
                kept[key] = [answer]

    def test_made_small_again(self):
        with self.server() as server, server.client() as client:
            beside, wrong, over = [], [], threading.Event()

            def add():
                with server.client() as other:
                    while not over.is_set():
                        key = f"beside {len(beside)}"
                        if other.ask("PUT", key, b"x", owner="me") != UPDATED or other.ask("GET", key)[0] != 200:
                            wrong.append(key)
                        beside.append(key)

            thread = threading.Thread(target=add)
            thread.start()
            for i in range(24):
                client.ask("PUT", f"large {i % 6}", b"%2d" % i * 1000000)
            self.assertTrue(eventually(lambda: server.metrics()["lwmeta_file_rewrites_total"] >= 1))
            over.set()
            thread.join()
            self.assertEqual(wrong, [])
            self.assertTrue(eventually(lambda: server.metrics()["lwmeta_file_bytes"] < 30000000))
            self.assertEqual(server.metrics()["lwmeta_file_bytes"], os.path.getsize(self.path))
            server.kill()
        with self.server() as server, server.client() as client:
            for i in range(18, 24):
                self.assertEqual(client.ask("GET", f"large {i % 6}"), (200, b"%2d" % i * 1000000))
            self.assertEqual([key for key in beside if client.ask("GET", key) != (200, b"x")], [])
        self.assertEqual(self.names(), ["entries"])

    def test_what_a_compaction_left_is_taken_away(self):
        with self.server() as server:
            server.ask("PUT", "k", b"x")
        with open(self.path + ".tmp", "wb") as file:
            file.write(b"lwmeta 1\nhalf")
        with self.server() as server:
            self.assertEqual(server.ask("GET", "k"), (200, b"x"))
            self.assertEqual(self.names(), ["entries"])


class Damage(File):
    def setUp(self):
        super().setUp()
        self.ends = []  # of the file after each entry
        with self.server() as server, server.client() as client:
            for i in range(10):
                client.ask("PUT", f"k{i}", b"value %d" % i * 30, owner="me", ttl=600)
                self.ends.append(os.path.getsize(self.path))
        self.good = self.content()

    def check(self, server, count):
        with server.client() as client:
            for i in range(10):
                expected = (200, b"value %d" % i * 30) if i < count else ABSENT
                self.assertEqual(client.ask("GET", f"k{i}"), expected)

    def test_a_write_that_was_cut_off(self):
        sizes = [self.ends[-2], self.ends[-2] + 1, self.ends[-1] - 1, 1, 8, 9, 10]
        sizes += [RANDOM.randrange(len(self.good)) for _ in range(6)]
        for size in sizes:
            self.write(self.good[:size])
            server = self.server()
            count = sum(end <= size for end in self.ends)
            self.check(server, count)
            self.assertEqual(server.ask("PUT", "after", b"x"), UPDATED)
            status, said, _ = server.end()
            self.assertEqual(status, 0)
            self.assertEqual("cut off" in said, size > 9 and size not in self.ends, (size, said))
            with self.server() as server:
                self.check(server, count)
                self.assertEqual(server.ask("GET", "after"), (200, b"x"))

    def test_an_end_that_never_reached_the_disk(self):
        for tail in (bytes(50), bytes(5000), self.good[self.ends[-2] : -100] + bytes(100)):
            self.write(self.good + tail)
            server = self.server()
            self.check(server, 10)
            status, said, _ = server.end()
            self.assertEqual(status, 0)
            self.assertIn(f"dropped its last {len(tail)} bytes", said)
            self.assertEqual(self.content(), self.good)

    def test_any_damaged_byte_is_seen(self):
        for at in [self.ends[4] - 1, self.ends[4], *(RANDOM.randrange(self.ends[-2]) for _ in range(10))]:
            content = bytearray(self.good)
            content[at] ^= RANDOM.randrange(1, 256)
            self.write(content)
            said = self.refuse()
            self.assertEqual(self.content(), bytes(content))
            if at < 9:
                self.assertIn("no file of lwmeta", said)
                continue
            count = sum(end <= at for end in self.ends)
            begin = self.ends[count - 1] if count else 9
            self.assertIn(f"is damaged at byte {begin};", said)
            self.assertIn("--recover", said)
            server = self.server("--recover")
            self.check(server, count)
            server.ask("PUT", "after", b"x")
            status, said, _ = server.end()
            self.assertEqual(status, 0)
            self.assertIn(f"damaged from byte {begin}", said)
            self.assertEqual(self.names(), ["entries", "entries.damaged"])
            with open(self.path + ".damaged", "rb") as file:
                self.assertEqual(file.read(), bytes(content))
            with self.server() as server:
                self.check(server, count)
                self.assertEqual(server.ask("GET", "after"), (200, b"x"))

    def test_what_is_no_file_of_ours(self):
        for content in (b"something else\n", b"lwmeta 2\n" + self.good[9:], b"{}"):
            self.write(content)
            for options in ((), ("--recover",)):
                self.assertIn("no file of lwmeta", self.refuse(*options))
            self.assertEqual(self.content(), content)
        os.unlink(self.path)
        os.mkfifo(self.path)
        self.assertIn("not a plain file", self.refuse())
        os.unlink(self.path)
        os.symlink("elsewhere", self.path)
        self.refuse()
        os.unlink(self.path)
        os.mkdir(self.path)
        self.refuse()
        self.assertEqual(refused("--port", "0", "--file", self.path + "/no/such")[0], 1)

    def test_one_server_a_file(self):
        with self.server() as server:
            self.assertIn("in use", self.refuse())
            with server.client() as client:
                for i in range(40):  # a compaction puts another file in its place
                    client.ask("PUT", "k", b"%d" % i * 50000)
            self.assertTrue(eventually(lambda: server.metrics()["lwmeta_file_rewrites_total"] >= 1))
            self.assertIn("in use", self.refuse())


class NoRoom(File):
    def test_a_file_that_may_not_grow(self):
        with self.server(file_limit=200000) as server, server.client() as client:
            self.assertEqual(client.ask("PUT", "k", b"x" * 100000), UPDATED)
            self.assertEqual(client.ask("PUT", "k", b"y" * 150000), FULL)
            self.assertEqual(client.ask("PUT", "l", b"y" * 150000), FULL)
            self.assertEqual(client.ask("GET", "k"), (200, b"x" * 100000))
            self.assertEqual(client.ask("GET", "l"), ABSENT)
            self.assertEqual(client.ask("PUT", "m", b"z" * 1000), UPDATED)
            server.kill()
        with self.server() as server, server.client() as client:
            self.assertEqual(client.ask("GET", "k"), (200, b"x" * 100000))
            self.assertEqual(client.ask("GET", "l"), ABSENT)
            self.assertEqual(client.ask("GET", "m"), (200, b"z" * 1000))
            self.assertEqual(server.said(), "")


if __name__ == "__main__":
    main()
