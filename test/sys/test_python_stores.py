# SPDX-License-Identifier: Apache-2.0
"""The Python package over each kind of metadata store: sessions that are names, both directions, messages, probes, peers
that start again, stores that refuse or are gone. Run by test_python_stores.sh."""

import os
import sys
import unittest

import lanewise
from lanewise.mooncake.engine import TransferEngine, TransferNotify, TransferOpcode
from python_side import Memory, Side
from stores import ENVIRONMENT, Etcd, Http, Lwmeta, Redis, StrictHttp, eventually, run_all
from wire import RANDOM

os.environ.update(ENVIRONMENT)  # proxies that nobody answers at
os.environ.update(MC_TCP_BIND_ADDRESS="127.0.0.1", LW_STORE_TIMEOUT_MS="1000", LW_STORE_LEASE_S="2",
                  LW_HANDSHAKE_TIMEOUT_MS="2000", MC_TRANSFER_TIMEOUT="5")  # fmt: skip

LAYERS, LAYER = 4, 1 << 18
NAMES = ("decode-0", "a/b", "10.0.0.5:15428", 'x "y" %2F&=?#', "n\u00f6de")
METADATA = -200


class Case(unittest.TestCase):
    kind = None

    @classmethod
    def setUpClass(cls):
        cls.store = cls.kind()
        cls.addClassCleanup(cls.store.close)
        cls.memory = Memory(LAYERS, LAYER)
        cls.engine = TransferEngine()
        assert cls.engine.initialize("prefill-0", cls.store.url, "tcp", "") == 0, cls.engine.last_error()
        cls.addClassCleanup(cls.engine.close)
        assert cls.engine.batch_register_memory(cls.memory.addresses, [LAYER] * LAYERS) == 0, cls.engine.last_error()

    def side(self, name):
        side = Side(LAYERS, LAYER, self.store.url, name)
        self.addCleanup(lambda: side.process.poll() is None and self.assertEqual(side.end(), 0))
        return side

    def ok(self, result):
        self.assertEqual(result, 0, self.engine.last_error())

    def fails(self, code, result, *words):
        self.assertEqual(result, code, self.engine.last_error())
        for word in words:
            self.assertIn(word, self.engine.last_error())

    def write(self, side):
        """A layer of random bytes, compared. The call's result."""
        self.memory.maps[0][:] = RANDOM.randbytes(LAYER)
        result = self.engine.transfer_sync_write(side.session, self.memory.addresses[0], side.layers[1], LAYER)
        if result == 0:
            self.assertEqual(side.ask("crc", 1, 0, LAYER), self.memory.crc(0, 0, LAYER))
        return result

    def reached(self, side):
        """Though it may be another life than the one that was known: then one call fails, and says so."""
        if self.write(side) != 0:
            self.assertIn(side.session, self.engine.last_error())
            self.ok(self.write(side))


class Suite:
    def test_name_and_port_of_ones_own(self):
        self.assertEqual(self.engine.get_session_id(), "prefill-0")
        contact = self.store.read("mooncake/rpc_meta/prefill-0")
        self.assertIn(f'"rpc_port":{self.engine.get_rpc_port()}', contact)
        self.assertIn('"ip_or_host_name":"127.0.0.1"', contact)

    def test_sessions_that_are_names(self):
        for name in NAMES:
            with self.subTest(name):
                side = self.side(name)
                self.ok(self.write(side))
                self.ok(side.ask("fill", 2, 0x5A))
                self.ok(self.engine.batch_transfer_sync_read(name, self.memory.addresses[2:], side.layers[2:], [LAYER] * 2))
                self.assertEqual(self.memory.maps[2][:], b"\x5a" * LAYER)
                # The other way, by our name.
                self.ok(side.ask("fill", 0, 0x33))
                self.assertEqual(side.ask("write", "prefill-0", 0, self.memory.addresses[3], LAYER), [0, ""])
                self.assertEqual(self.memory.maps[3][:], b"\x33" * LAYER)
                number = self.engine.transfer_submit_write(name, self.memory.addresses[0], side.layers[0], LAYER)
                self.assertGreater(number, 0)
                self.ok(self.engine.get_batch_transfer_status([number]))
                self.assertEqual(side.ask("crc", 0, 0, LAYER), self.memory.crc(0, 0, LAYER))
                self.assertEqual(self.engine.get_first_buffer_address(name), min(side.layers))

    def test_messages_and_probes(self):
        side = self.side("listener")
        self.ok(self.engine.send_probe("listener"))
        note = TransferNotify("room 7", "done: \u00e9")
        self.ok(self.engine.transfer_sync(
            "listener", self.memory.addresses[0], side.layers[0], 100, TransferOpcode.WRITE, notify=note))  # fmt: skip
        self.assertEqual(side.ask("notes"), [["room 7", "done: \u00e9"]])
        self.fails(-3, self.engine.send_probe("nobody-here"), "nobody-here")
        self.fails(-1, self.engine.transfer_sync_write("nobody-here", self.memory.addresses[0], 4096, 1), "nobody-here")

    def test_memory_that_the_peer_registers_later_is_reached(self):
        side = self.side("late")
        self.ok(self.write(side))
        at = side.ask("another", LAYER)
        self.ok(self.engine.transfer_sync_write("late", self.memory.addresses[0], at, 5000))
        self.assertEqual(side.ask("another_crc", 5000), self.memory.crc(0, 0, 5000))

    def test_peer_that_starts_again_under_its_name(self):
        for how in ("kill", "end"):
            side = self.side("phoenix")
            self.reached(side)
            for _ in range(2):
                getattr(side, how)()
                side = self.side("phoenix")
                self.reached(side)
                self.ok(self.engine.send_probe("phoenix"))
            side.end()
            self.assertLess(self.engine.send_probe("phoenix"), 0)
            side = self.side("phoenix")
            self.ok(self.engine.send_probe("phoenix"))  # without a transfer that would find the other life
            self.ok(self.write(side))
            side.end()

    def refused(self):
        stray = Memory(2, 8192)
        self.fails(METADATA, self.engine.register_memory(stray.addresses[0], 8192), "metadata store")
        self.fails(METADATA, self.engine.batch_register_memory(stray.addresses, [8192] * 2), "metadata store")
        self.fails(-3, self.engine.unregister_memory(stray.addresses[0]))
        self.fails(-1, self.engine.transfer_sync_write("never-seen", self.memory.addresses[0], 4096, 1), "never-seen")
        other = TransferEngine()
        self.assertEqual(other.initialize("late-comer", self.store.url, "tcp", ""), -1)
        self.assertIn("metadata store", other.last_error())
        self.assertEqual(self.engine.allocate_managed_buffer(4096), 0)
        self.fails(METADATA, self.engine.unregister_memory(self.memory.addresses[1]), "metadata store")
        self.fails(-3, self.engine.unregister_memory(self.memory.addresses[1]))

    def back(self):
        """The store is well: the engine goes on by itself."""
        self.assertTrue(
            eventually(lambda: self.engine.register_memory(self.memory.addresses[1], LAYER) == 0), self.engine.last_error()
        )
        side = self.side("after-all")
        self.reached(side)
        side.end()

    def test_store_that_is_gone(self):
        side = self.side("neighbour")
        self.ok(self.write(side))
        self.store.stop()
        try:
            self.refused()
            self.ok(self.write(side))  # a peer that is known goes on
        finally:
            self.store.start()
        self.back()

    def test_own_interface(self):
        with lanewise.Engine("own", self.store.url, settings={"drivers": "tcp,null"}) as engine:
            self.assertEqual(engine.name, "own")
            self.assertEqual(engine.address, f"127.0.0.1:{engine.port}")
            with engine.register(bytearray(4096)) as buffer, engine.open("prefill-0") as peer:
                engine.write(peer, buffer.addr, self.memory.addresses[0], 4096)
                self.assertEqual(self.memory.maps[0][:4096], bytes(4096))
        with self.assertRaises(lanewise.Error):
            lanewise.Engine("two\nlines", self.store.url)


class Refusing(Suite):
    """Those of test/sys/http_store.py, which do as they are told."""

    def test_store_that_refuses(self):
        for what in ("507", "403", "500", "405", "413"):
            self.store.write("behave", what)
            try:
                self.refused()
            finally:
                self.store.write("behave", "")
            self.back()


class InEtcd(Suite, Case):
    kind = Etcd

    def test_schemes_that_are_left_out(self):
        """A server without a scheme is etcd, or what metadata_type says."""
        server = self.store.url.partition("://")[2]
        for arguments in ((server, "tcp", ""), (server, "tcp", "", "etcd")):
            engine = TransferEngine()
            start = engine.initialize if len(arguments) == 3 else engine.initialize_ext
            self.assertEqual(start("bare", *arguments), 0, engine.last_error())
            self.ok(self.engine.send_probe("bare"))
            engine.close()


class InRedis(Suite, Case):
    kind = Redis

    def test_scheme_that_is_left_out(self):
        engine = TransferEngine()
        server = self.store.url.partition("://")[2]
        self.assertEqual(engine.initialize_ext("bare", server, "tcp", "", "redis"), 0, engine.last_error())
        self.ok(self.engine.send_probe("bare"))
        engine.close()


class InLwmeta(Suite, Case):
    kind = Lwmeta


class InHttp(Refusing, Case):
    kind = Http


class InStrictHttp(Refusing, Case):
    kind = StrictHttp


CLASSES = (InEtcd, InRedis, InLwmeta, InHttp, InStrictHttp)

if __name__ == "__main__":
    if len(sys.argv) > 1:
        unittest.main(verbosity=1)
    else:
        sys.exit(run_all(__file__, {case.__name__: case.kind for case in CLASSES}))
