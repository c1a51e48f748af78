# SPDX-License-Identifier: Apache-2.0
"""One suite over the four ways by which engines find each other: they ask, or a store tells them. Run by
test_directory.sh."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import unittest
import urllib.parse

from stores import ENVIRONMENT, Etcd, Http, Lwmeta, Redis, eventually, free_port, run_all
from wire import MIB, PROBE, RANDOM, Handshake, Peer, call, compact, frame

os.environ.update(ENVIRONMENT)  # proxies that nobody answers at

EBUSY, ENOENT, EIO, EACCES, ENOSPC, EROFS, EPROTO = 16, 2, 5, 13, 28, 30, 71
EILSEQ, ETIMEDOUT, ECONNREFUSED, ESTALE, ENOBUFS = 84, 110, 111, 116, 105
LEASE = 2
PART = 64 * 1024
SIZE = MIB
EVERY_BYTE = "".join(f"%{byte:02x}" for byte in (0, 1, 9, 10, 13, 34, 39, 92, 127, 0)) + "x%00"


def error_of(answer):
    words = answer.split(" ", 2)
    return -int(words[1]) if words[0] == "error" else 0


def ports(address):
    """Two ports that are free now."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    while True:
        port = RANDOM.randrange(10000, 14900)  # below those that connections get
        with socket.socket(family) as one, socket.socket(family) as other:
            try:
                one.bind((address, port))
                other.bind((address, port + 1))
            except OSError:
                continue
            return f"port_min={port}", f"port_max={port + 1}"


def rate_during(peer, call):
    """What the peer's stream completes in a second while something is called."""
    before, begin = int(peer.ask("count").split()[1]), time.monotonic()
    call()
    return (int(peer.ask("count").split()[1]) - before) / (time.monotonic() - begin)


class Way:
    """By asking."""

    store = None

    def start(self):
        pass

    def close(self):
        pass

    def options(self, name, address="127.0.0.1"):
        return (*ports(address), f"as=[{address}]" if ":" in address else f"as={address}")

    def name(self, peer):
        return peer.name


class Stored(Way):
    kind = None

    def start(self):
        self.store = self.kind()

    def close(self):
        self.store.close()

    def options(self, name, address="127.0.0.1"):
        return (f"metadata={self.store.url}", f"as={name}", f"address={address}", f"store_lease_s={LEASE}",
                "store_timeout_ms=1000", "handshake_timeout_ms=2000")  # fmt: skip

    def key(self, name):
        return f"mooncake/{name}" if "/" in name else f"mooncake/ram/{name}"

    def put(self, name, contact, document):
        """Somebody else's documents. False: the server refuses such ones."""
        for key, text in ((f"mooncake/rpc_meta/{name}", contact), (self.key(name), document)):
            try:
                if issubclass(self.kind, Http):
                    self.store.curl(key, "-X", "DELETE", "-o", "/dev/null")
            except subprocess.CalledProcessError:
                pass
            try:
                self.store.write(key, text)
            except subprocess.CalledProcessError:
                return False
        return True

    def holds(self, name):
        """Whether the store has the name's documents: both, or neither."""
        found = []
        for key in (f"mooncake/rpc_meta/{name}", self.key(name)):
            try:
                found.append(self.store.read(key) != "")
            except subprocess.CalledProcessError:
                found.append(False)
        return found[0] if found[0] == found[1] else None


class ByEtcd(Stored):
    kind = Etcd

    def puts(self):
        status = json.loads(self.store.ctl("endpoint", "status", "--write-out", "json"))
        return status[0]["Status"]["header"]["revision"]


class ByRedis(Stored):
    kind = Redis

    def puts(self):
        text = self.store.cli("INFO", "commandstats").decode()
        return sum(map(int, re.findall(r"cmdstat_set:calls=(\d+)", text)))


class ByLwmeta(Stored):
    kind = Lwmeta

    def puts(self):
        text = self.store.run("curl", "-s", "--noproxy", "*", self.store.url.replace("/metadata", "/metrics")).decode()
        return sum(int(float(n)) for n in re.findall(r'^lwmeta_requests_total\{[^}]*method="PUT"[^}]*\} (\S+)$', text, re.M))


class ByHttp(Stored):
    kind = Http

    def puts(self):
        return int(self.store.read("puts"))


class Case(unittest.TestCase):
    way_kind = None

    @classmethod
    def setUpClass(cls):
        cls.way = cls.way_kind()
        cls.way.start()
        cls.addClassCleanup(cls.way.close)

    def peer(self, name, *options, size=SIZE, address="127.0.0.1"):
        peer = Peer(size, *self.way.options(name, address), *options)
        self.addCleanup(lambda: peer.process.poll() is None and self.assertEqual(peer.end(), 0))
        return peer

    def ok(self, answer):
        self.assertFalse(answer.startswith("error"), answer)
        return answer

    def fails(self, errors, answer, *words):
        self.assertIn(error_of(answer), errors if isinstance(errors, tuple) else (errors,), answer)
        for word in words:
            self.assertIn(word, answer)

    def open(self, peer, name, timeout_ms=5000):
        answer = self.ok(peer.ask(f"open {urllib.parse.quote(name, safe='')} {timeout_ms}"))
        return answer.split()[1]

    def move(self, source, target, segment, offset=0, length=PART):
        source.ask(f"fill {offset} {length} {time.monotonic_ns() % 1000003}")
        outcome = source.run("write", segment, offset, target.addr + offset, length)
        self.assertEqual(outcome.counts, (1, 0, 0, 0), outcome)
        self.assertEqual(source.sum(offset, length), target.sum(offset, length))


class Suite:
    """Everywhere."""

    def test_open_by_name_reaches_the_peer(self):
        a, b = self.peer("node-a"), self.peer("node-b")
        self.move(a, b, self.open(a, b.name))
        self.move(b, a, self.open(b, a.name))
        self.assertEqual(self.open(a, a.name), "0")
        self.ok(a.ask(f"probe {self.open(a, b.name)}"))

    @unittest.skipUnless(os.path.exists("/proc/net/if_inet6"), "no IPv6 here")
    def test_ipv6_reaches_and_is_reached(self):
        a, b, c = self.peer("node-a", address="::1"), self.peer("node-b", address="::1"), self.peer("node-c")
        self.move(a, b, self.open(a, b.name))
        self.move(b, a, self.open(b, a.name))
        self.move(c, a, self.open(c, a.name))  # IPv4 alone is announced by c, which says nothing of where it connects
        self.ok(b.ask(f"tell {a.name} over v6"))
        self.assertEqual(a.ask("note"), "note over v6")
        if self.way.store:
            self.assertIn('"ip_or_host_name":"::1"', self.way.store.read("mooncake/rpc_meta/node-a"))
        else:
            self.assertRegex(a.name, r"^\[::1\]:\d+$")

    def test_unknown_name_fails_with_a_reason(self):
        a = self.peer("node-a")
        name = "nobody-here" if self.way.store else f"127.0.0.1:{free_port()}"
        self.fails((ENOENT, ECONNREFUSED), a.ask(f"open {name} 3000"), name)

    def test_buffers_registered_late_are_found(self):
        a, b = self.peer("node-a"), self.peer("node-b", "offer=")
        segment = self.open(a, b.name)
        self.ok(b.ask(f"register 0 {PART} 3"))
        self.move(a, b, segment)
        self.ok(b.ask(f"register {PART} {PART} 3"))
        self.move(a, b, segment, PART)
        self.move(a, b, segment, PART // 2)
        self.assertTrue(eventually(lambda: a.ask(f"ranges {segment}") == "ranges 2"))
        buffer = self.ok(b.ask(f"register {2 * PART} {PART} 3")).split()[1]
        self.ok(a.ask(f"refresh {segment}"))
        self.assertEqual(a.ask(f"ranges {segment}"), "ranges 3")
        self.ok(b.ask(f"unregister {buffer}"))
        outcome = a.run("write", segment, 0, b.addr + 2 * PART, PART)
        self.assertIn(outcome.reason, ("refused", "remote_range"))
        self.ok(a.ask(f"refresh {segment}"))
        self.assertEqual(a.ask(f"ranges {segment}"), "ranges 2")

    def test_notes_arrive_once_in_order_byte_by_byte(self):
        a, b = self.peer("node-a"), self.peer("node-b", "notify_queue=50")
        segment = self.open(a, b.name)
        self.assertEqual(b.ask("wait 0"), "none")
        self.ok(a.ask(f"notify {segment} {EVERY_BYTE} {EVERY_BYTE * 3}"))
        self.assertEqual(b.ask("wait 5000"), "ready")
        self.assertEqual(b.ask("note"), f"note {EVERY_BYTE} {EVERY_BYTE * 3}")
        self.ok(a.ask(f"tell {urllib.parse.quote(b.name)} - -"))
        self.assertEqual(b.ask("note"), "note - -")
        for i in range(50):
            self.ok(a.ask(f"notify {segment} number {i}" if i % 2 else f"tell {b.name} number {i}"))
        self.fails(ENOBUFS, a.ask(f"notify {segment} number 50"))
        self.assertEqual([b.ask("note") for _ in range(50)], [f"note number {i}" for i in range(50)])
        self.assertEqual((b.ask("note"), b.ask("wait 0")), ("none", "none"))

    def test_first_note_of_a_batch_reaches_an_engine_that_was_just_opened(self):
        a = self.peer("node-a")
        for i in range(5):
            b = self.peer(f"node-new{i}")
            segment = self.open(a, b.name)
            self.ok(a.ask(f"write {segment} 0 {b.addr} {PART} done {i}"))
            self.assertEqual(b.ask("wait 5000"), "ready")
            self.assertEqual(b.sum(0, PART), a.sum(0, PART))
            self.assertEqual((b.ask("note"), b.ask("note")), (f"note done {i}", "none"))
            self.fails(EIO, a.ask(f"write {segment} 0 {b.addr + SIZE} {PART} never {i}"))
            self.assertEqual(b.ask("note"), "none")

    def restarted(self, name, options):
        """An engine under a name that another one had."""
        for _ in range(30):
            again = Peer(SIZE, *options)
            if self.way.store or again.name == name:
                self.addCleanup(lambda: again.process.poll() is None and self.assertEqual(again.end(), 0))
                return again
            again.end()
        return self.fail("another engine does not get the same port")

    def test_peer_that_restarts_is_found_by_a_plain_open(self):
        a, options = self.peer("node-a"), self.way.options("node-r")
        b = Peer(SIZE, *options)
        segment = self.open(a, b.name)
        self.move(a, b, segment)
        for _ in range(3):
            b.kill()
            b = self.restarted(b.name, options)
            outcome = a.run("write", segment, 0, b.addr, PART)
            self.assertEqual(outcome.counts, (0, 1, 0, 0), outcome)
            self.assertIn(outcome.reason, ("restarted", "unreachable", "reset"))
            fresh = self.open(a, b.name)
            self.assertNotEqual(fresh, segment)
            self.move(a, b, fresh)
            self.ok(a.ask(f"tell {b.name} to you"))
            self.assertEqual(b.ask("note"), "note to you")
            self.assertTrue(eventually(lambda: a.run("write", segment, 0, b.addr, PART).reason == "restarted"))
            self.fails((ESTALE, EPROTO), a.ask(f"refresh {segment}"))
            segment = fresh

    def test_watched_peer_that_is_gone_is_told(self):
        a, options = self.peer("node-a"), self.way.options("node-w")
        b, still = Peer(SIZE, *options), self.peer("node-still")
        for peer in (b, still):
            self.ok(a.ask(f"watch {self.open(a, peer.name)} 1000"))
        os.kill(b.process.pid, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(b.process.pid, signal.SIGCONT)
        self.assertEqual(a.ask("wait 1000"), "none")
        b.kill()
        begin = time.monotonic()
        self.assertEqual(a.ask("wait 5000"), "ready")
        self.assertLess(time.monotonic() - begin, 2.5)
        word, kind, error, name = a.ask("event").split()
        self.assertEqual((word, kind, name), ("event", "1", b.name))
        self.assertIn(-int(error), (ECONNREFUSED, 104, ETIMEDOUT))
        self.assertEqual((a.ask("event"), a.ask("wait 0")), ("none", "none"))

    def test_watched_peer_that_restarts_is_told(self):
        a, options = self.peer("node-a"), self.way.options("node-v")
        b = Peer(SIZE, *options)
        self.ok(a.ask(f"watch {self.open(a, b.name)} 10000"))
        b.kill()
        fresh = self.restarted(b.name, options)
        # A name in a store may come back at another port: then nobody answers at the old one.
        self.assertEqual(a.ask("wait 15000"), "ready")
        self.assertIn(-int(a.ask("event").split()[2]), (ESTALE, ECONNREFUSED))
        self.move(a, fresh, self.open(a, fresh.name))


class StoredSuite(Suite):
    """Where there is a store."""

    def test_documents_as_its_own_client_reads_them(self):
        peer = self.peer("reader", "offer=4096:8192:3")
        contact = self.way.store.read("mooncake/rpc_meta/reader").rstrip("\n")
        found = json.loads(contact)
        life = found["lw"]["incarnation"]
        self.assertEqual(contact, compact({"ip_or_host_name": "127.0.0.1", "lw": {"incarnation": life}, "rpc_port": found["rpc_port"]}))
        text = self.way.store.read("mooncake/ram/reader").rstrip("\n")
        document = json.loads(text)
        self.assertEqual(text, compact(document))
        self.assertRegex(document.pop("timestamp"), r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}$")
        self.assertGreater(document.pop("tcp_data_port"), 0)
        buffers = [{"addr": peer.addr + 4096, "length": 8192, "name": "reader"}]
        self.assertEqual(document, {"buffers": buffers, "lw": {"incarnation": life}, "name": "reader", "protocol": "tcp",
                                    "tcp_proto_version": 2})  # fmt: skip
        alive = call(found["rpc_port"], frame(PROBE, '{"lw":{}}'))
        self.assertEqual(json.loads(alive[9:]), {"lw": {"incarnation": life}, "status": "success"})

    def test_names_of_all_kinds(self):
        a = self.peer("node-a")
        for name in ("a/b/c", "50%25", "with blank", "d\u00e4m\u00f6n-\u6771", "q?key=x&y#z", "10.0.0.5:15428"):
            with self.subTest(name):
                peer = Peer(SIZE, *self.way.options(urllib.parse.quote(name)))
                self.assertEqual(peer.name, name)
                self.assertTrue(self.way.holds(name))
                self.move(a, peer, self.open(a, name))
                self.assertEqual(peer.end(), 0)
                self.assertIs(self.way.holds(name), False)

    def test_another_cluster_is_not_seen(self):
        a, b = self.peer("node-a", "store_cluster=prod"), self.peer("node-b")
        self.fails(ENOENT, a.ask("open node-b 3000"), "node-b")
        self.assertIn("rpc_port", self.way.store.read("mooncake/prod/rpc_meta/node-a"))
        c = self.peer("node-c", "store_cluster=prod/")
        self.move(c, a, self.open(c, "node-a"))
        self.fails(ENOENT, b.ask("open node-a 3000"))

    def test_two_engines_of_one_name_the_later_one_counts(self):
        a, first = self.peer("node-a"), self.peer("twin")
        second = self.peer("twin")
        self.move(a, second, self.open(a, "twin"))
        self.assertTrue(eventually(lambda: any("another engine has taken the name twin" in line for line in first.log)))
        self.assertEqual(first.end(), 0)
        self.assertTrue(self.way.holds("twin"))
        self.move(a, second, self.open(a, "twin"))

    def test_register_of_one_whose_name_was_taken_fails(self):
        first, second = self.peer("twin2", "offer="), self.peer("twin2")
        self.fails(ESTALE, first.ask(f"register 0 {PART} 3"))
        second.end()
        # The name is free again: the first one has it back.
        self.assertTrue(eventually(lambda: self.way.holds("twin2"), 3 * LEASE))
        self.ok(first.ask(f"register 0 {PART} 3"))

    def test_wrong_documents_are_refused_with_a_reason(self):
        a, refused = self.peer("node-a"), 0
        contact = compact({"ip_or_host_name": "127.0.0.1", "rpc_port": 1})
        segment = {"buffers": [], "name": "odd", "protocol": "tcp", "tcp_data_port": 1, "tcp_proto_version": 2}
        twice = {"addr": 4096, "length": 8192, "name": "odd"}
        contacts = ["[]", "1", "{}", '{"ip_or_host_name":1,"rpc_port":1}', '{"ip_or_host_name":"127.0.0.1","rpc_port":"1"}',
                    '{"ip_or_host_name":"127.0.0.1","rpc_port":70000}', '{"ip_or_host_name":"127.0.0.1","rpc_port":-1}',
                    '{"ip_or_host_name":"127.0.0.1","rpc_port":1.5}', '{"ip_or_host_name":"","rpc_port":1}',
                    '{"ip_or_host_name":"a b:c","rpc_port":1}', contact[:-5], "[" * 5000 + "]" * 5000]  # fmt: skip
        documents = ["[]", "{}", compact(segment)[:-9], "[" * 5000, compact({**segment, "name": "other"}),
                     compact({**segment, "tcp_data_port": 70000}), compact({**segment, "tcp_data_port": "1"}),
                     compact({**segment, "protocol": "pigeon"}), compact({**segment, "buffers": {}}),
                     compact({**segment, "buffers": [{**twice, "addr": -1}]}),
                     compact({**segment, "buffers": [{**twice, "length": 2**70}]}),
                     compact({**segment, "buffers": [twice, twice]})]  # fmt: skip
        for which, texts, other in (("contact", contacts, compact(segment)), ("document", documents, contact)):
            for text in texts:
                with self.subTest(which, text=text[:60]):
                    if self.way.put("odd", *((text, other) if which == "contact" else (other, text))):
                        self.fails(EPROTO, a.ask("open odd 3000"), "odd")
                        refused += 1
        self.assertGreater(refused, 8)
        self.assertTrue(self.way.put("odd", compact({**json.loads(contact), "more": [1, {}]}), compact({**segment, "more": {"a": None}})))
        self.open(a, "odd")
        before = a.state()[2]
        self.assertTrue(self.way.put("odd", contact, compact({**segment, "more": "x" * 1200000})))
        self.open(a, "odd")
        self.assertLess(a.state()[2] - before, 50000)

    def test_restarted_store_has_everything_again(self):
        a, b = self.peer("node-a"), self.peer("node-b")
        stream = self.open(a, "node-b")
        for with_data in (True, False):
            self.way.store.restart(with_data)
            self.assertTrue(eventually(lambda: self.way.holds("node-a") and self.way.holds("node-b"), 3 * LEASE))
            self.move(a, b, self.open(a, "node-b"))
            self.move(a, b, stream)
            self.move(b, a, self.open(b, "node-a"))

    def test_frozen_store_ends_calls_in_time_and_touches_no_stream(self):
        a, b = self.peer("node-a"), self.peer("node-b", "offer=0:65536:3")
        segment = self.open(a, "node-b")
        self.ok(a.ask(f"stream write {segment} 0 {b.addr} 4096 8"))
        self.way.store.freeze()
        try:
            for ask in ("open somebody 700", "open node-a-not 700", f"register {PART} {PART} 3", "purge somebody 700"):
                begin = time.monotonic()
                self.fails(ETIMEDOUT, b.ask(ask))
                self.assertLess(time.monotonic() - begin, 2.5, ask)
        finally:
            self.way.store.thaw()
        completed, failed = map(int, a.ask("stop").split()[1:])
        self.assertEqual(failed, 0)
        self.assertGreater(completed, 1000)
        # What was not announced was not registered; now it is. What the store was asked before it was frozen it may do
        # after that, and undo it: for a moment.
        self.assertTrue(eventually(lambda: not b.ask(f"register {PART} {PART} 3").startswith("error")))
        self.assertTrue(eventually(lambda: a.run("write", segment, 0, b.addr + PART, PART).counts[0] == 1, 3 * LEASE))
        self.move(a, b, segment, PART)

    def test_frozen_store_leaves_streams_their_rate(self):
        a, b = self.peer("node-a", f"offer=0:{PART}:3"), self.peer("node-b")
        self.ok(a.ask(f"stream write {self.open(a, 'node-b')} 0 {b.addr} 4096 8"))
        asks = ("open somebody 700", f"register {PART} {PART} 3", "purge somebody 700")
        plain = frozen = 0.0
        for turn in range(4 * len(asks)):  # what the machine does besides comes to the same for both, if not at once
            ask = asks[turn % len(asks)]
            plain += rate_during(a, lambda: time.sleep(0.7))
            self.way.store.freeze()
            try:
                frozen += rate_during(a, lambda ask=ask: self.fails(ETIMEDOUT, a.ask(ask)))
            finally:
                self.way.store.thaw()
            if turn + 1 >= len(asks) and frozen >= 0.95 * plain:
                break
        self.assertEqual(a.ask("stop").split()[2], "0")
        self.assertGreaterEqual(frozen, 0.95 * plain)

    def test_frozen_store_does_not_hold_an_engine_that_ends(self):
        peer = Peer(SIZE, *self.way.options("ends"))
        self.way.store.freeze()
        try:
            begin = time.monotonic()
            self.assertEqual(peer.end(), 0)
            self.assertLess(time.monotonic() - begin, 6)
        finally:
            self.way.store.thaw()

    def test_store_that_is_not_there_is_an_error_of_open(self):
        with self.assertRaisesRegex(EOFError, "metadata store"):
            url = re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{free_port()}", self.way.store.url)
            Peer(SIZE, f"metadata={url}", "as=x", "address=127.0.0.1", "store_timeout_ms=500")

    def test_20000_buffers_are_one_publication(self):
        count, length, few = 20000, 4096, []
        a, b = self.peer("node-a"), self.peer("many", "offer=", "store_timeout_ms=10000", size=count * length)
        for _ in range(5):
            before = self.way.puts()
            few.append(int(self.ok(b.ask("many 100 4096")).split()[1]) / 100)
            self.assertEqual(self.way.puts() - before, 1)
            b.ask("again")
        most = 2 * sorted(few)[len(few) // 2]
        for _ in range(3):  # a machine that others use can only make it longer
            before = self.way.puts()
            each = int(self.ok(b.ask(f"many {count} {length}")).split()[1]) / count
            self.assertEqual(self.way.puts() - before, 1)
            if each < most:
                break
            b.ask("again")
        self.assertLess(each, most)
        segment = self.open(a, "many")
        self.assertEqual(a.ask(f"ranges {segment}"), f"ranges {count}")
        outcome = a.run("write", segment, 0, b.addr + (count - 1) * length, length)
        self.assertEqual(outcome.counts, (1, 0, 0, 0), outcome)


class LeaseSuite(StoredSuite):
    """Where keys expire."""

    def test_keys_of_a_killed_engine_vanish(self):
        a, b = self.peer("node-a"), Peer(SIZE, *self.way.options("dying"))
        self.open(a, "dying")
        b.kill()
        self.assertTrue(eventually(lambda: self.way.holds("dying") is False, 4 * LEASE))
        self.fails(ENOENT, a.ask("open dying 3000"))

    def test_keys_of_many_engines_killed_at_once_vanish_others_stay(self):
        a, count = self.peer("node-a"), 50
        dying = [Peer(SIZE, *self.way.options(f"dying-{i}")) for i in range(count)]
        segments = [self.open(a, f"dying-{i}") for i in range(count)]
        for peer in dying:
            peer.process.kill()
        for peer in dying:
            peer.kill()
        begin = time.monotonic()
        for segment in segments:
            outcome = a.run("write", segment, 0, dying[0].addr, PART, timeout_ms=1000)
            self.assertEqual(outcome.counts[0], 0, outcome)
            self.assertLess(outcome.ms, 2000)
        self.assertTrue(eventually(lambda: not any(self.way.holds(f"dying-{i}") for i in range(count)), 4 * LEASE))
        self.assertLess(time.monotonic() - begin, 6 * LEASE)
        for i in range(count):
            self.fails(ENOENT, a.ask(f"open dying-{i} 3000"))
        self.assertTrue(self.way.holds("node-a"))

    def test_keys_of_an_engine_that_stood_still_are_back(self):
        a, b = self.peer("node-a"), self.peer("sleeper")
        os.kill(b.process.pid, signal.SIGSTOP)
        try:
            self.assertTrue(eventually(lambda: self.way.holds("sleeper") is False, 4 * LEASE))
        finally:
            os.kill(b.process.pid, signal.SIGCONT)
        self.assertTrue(eventually(lambda: self.way.holds("sleeper"), LEASE))
        self.move(a, b, self.open(a, "sleeper"))


class ByAsking(Suite, Case):
    way_kind = Way

    def test_nul_in_a_note_to_a_foreign_peer_is_refused(self):
        document = {"buffers": [], "name": "x", "protocol": "tcp", "tcp_data_port": 1, "tcp_proto_version": 2}
        other = Handshake(document)
        self.addCleanup(other.close)
        a = self.peer("node-a")
        segment = self.open(a, other.name)
        self.fails(EILSEQ, a.ask(f"notify {segment} a%00b x"), other.name)
        self.fails(EILSEQ, a.ask(f"notify {segment} a %00"), other.name)


class InEtcd(LeaseSuite, Case):
    way_kind = ByEtcd


class InRedis(LeaseSuite, Case):
    way_kind = ByRedis

    def test_refusals_are_errors_of_the_very_call(self):
        a, b = self.peer("node-a"), self.peer("node-b", "offer=")
        cli = self.way.store.cli
        for settings, error in (((("maxmemory", "1"),), ENOSPC), ((("min-replicas-to-write", "1"),), EIO)):
            for name, value in settings:
                cli("CONFIG", "SET", name, value)
            self.fails((error, EROFS), b.ask(f"register 0 {PART} 3"), "metadata store")
            for name, _ in settings:
                cli("CONFIG", "SET", name, "0")
            self.back(a, b)
        cli("REPLICAOF", "127.0.0.1", "1")
        self.fails(EROFS, b.ask(f"register 0 {PART} 3"), "READONLY")
        cli("REPLICAOF", "NO", "ONE")
        self.back(a, b)
        secret = ("redis-cli", "-p", str(self.way.store.port), "-a", "secret")
        cli("CONFIG", "SET", "requirepass", "secret")
        try:
            self.way.store.run(*secret, "CLIENT", "KILL", "TYPE", "normal")
            self.fails(EACCES, b.ask(f"register 0 {PART} 3"), "NOAUTH")
            self.fails(EACCES, a.ask("open node-b 3000"), "NOAUTH")
            self.assertEqual(self.peer("node-c", "store_password=secret").name, "node-c")
        finally:
            self.way.store.run(*secret, "CONFIG", "SET", "requirepass", "")
        self.back(a, b)

    def back(self, a, b):
        """What was refused is not registered, and registers now."""
        self.ok(b.ask(f"register 0 {PART} 3"))
        segment = self.open(a, "node-b")
        self.assertEqual(a.ask(f"ranges {segment}"), "ranges 1")
        self.move(a, b, segment)
        self.ok(b.ask("withdraw 0"))


class InLwmeta(LeaseSuite, Case):
    way_kind = ByLwmeta


class InHttp(StoredSuite, Case):
    """A server of somebody else's, which knows no leases."""

    way_kind = ByHttp

    def test_refusals_are_errors_of_the_very_call(self):
        a, b = self.peer("node-a"), self.peer("node-b", "offer=")
        for what, error in (("500", EIO), ("403", EACCES), ("cut", EPROTO), ("507", ENOSPC), ("405", EROFS)):
            self.way.store.write("behave", what)
            self.fails((error, 104), b.ask(f"register 0 {PART} 3"), "metadata store")
            self.fails((error, 104), a.ask("open node-b 3000"), "node-b")
            self.way.store.write("behave", "")
            self.ok(b.ask(f"register 0 {PART} 3"))
            self.move(a, b, self.open(a, "node-b"))
            self.ok(b.ask("withdraw 0"))

    def test_dead_engine_is_told_and_purged(self):
        a, b = self.peer("node-a"), Peer(SIZE, *self.way.options("corpse"))
        self.fails(EBUSY, a.ask("purge corpse"), "corpse")
        b.kill()
        segment = a.ask("open corpse 3000")
        if not segment.startswith("error"):
            outcome = a.run("write", segment.split()[1], 0, b.addr, PART)
            self.assertIn(outcome.reason, ("unreachable",))
        self.ok(a.ask("purge corpse"))
        self.assertIs(self.way.holds("corpse"), False)
        self.fails(ENOENT, a.ask("purge corpse"))
        self.fails(ENOENT, a.ask("open corpse 3000"))


CLASSES = (ByAsking, InEtcd, InRedis, InLwmeta, InHttp)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        unittest.main(verbosity=1)
    else:
        sys.exit(run_all(__file__, {case.__name__: getattr(case.way_kind, "kind", None) for case in CLASSES}))
