# SPDX-License-Identifier: Apache-2.0
"""The engine and a model of the reference's in one metadata store: each finds the other by its name, and moves bytes. Run by
test_reference_stores.sh."""

import json
import mmap
import os
import sys
import unittest

import lanewise
from reference import Rejected, Stored, read_contact
from stores import ENVIRONMENT, Lwmeta, StrictHttp, eventually, run_all
from wire import MIB, PROBE, RANDOM

os.environ.update(ENVIRONMENT)  # proxies that nobody answers at

BASE, LATER = 0x10000000, 0x30000000
NAMES = ("node5", "a/b", "10.0.0.9:15000", "r\u00f6mer %&=?#+")


class Case(unittest.TestCase):
    kind = None
    cluster = ""

    @classmethod
    def setUpClass(cls):
        cls.store = cls.kind()
        cls.addClassCleanup(cls.store.close)

    def setUp(self):
        self.memory = mmap.mmap(-1, MIB)
        self.memory[:] = RANDOM.randbytes(MIB)

    def ours(self, name="ours"):
        settings = {"drivers": "tcp,null", "address": "127.0.0.1", "store_cluster": self.cluster, "store_lease_s": 2}
        engine = lanewise.Engine(name, self.store.url, settings)
        self.addCleanup(engine.close)
        return engine, engine.register(self.memory)

    def theirs(self, name, **more):
        model = Stored(self.store.url, name, [(BASE, MIB)], cluster=self.cluster, **more)
        model.memory[BASE][:] = RANDOM.randbytes(MIB)
        return model

    def end(self, model):
        model.close()
        self.assertEqual(model.problems, [])

    def both_ways(self, engine, buffer, model):
        with engine.open(model.name) as peer:
            engine.write(peer, buffer.addr + 100, BASE + 5, 300000)
            self.assertTrue(eventually(lambda: model.place(BASE + 5, 300000) == self.memory[100:300100]))
            engine.read(peer, buffer.addr + 400000, BASE + 500000, 70000)
            self.assertEqual(self.memory[400000:470000], bytes(model.place(BASE + 500000, 70000)))
        document = model.open(engine.name)
        self.assertIn((buffer.addr, MIB), [(b["addr"], b["length"]) for b in document["buffers"]])
        model.transfer(document, True, BASE + 7, buffer.addr + 11, 200000)
        self.assertEqual(self.memory[11:200011], bytes(model.place(BASE + 7, 200000)))
        model.transfer(document, False, BASE, buffer.addr + 600000, 65537)
        self.assertEqual(bytes(model.place(BASE, 65537)), self.memory[600000:665537])


class Suite:
    def test_names_of_all_kinds_both_ways(self):
        for i, name in enumerate(NAMES):
            with self.subTest(name):
                engine, buffer = self.ours(NAMES[i - 1] + "!")
                model = self.theirs(name, version=(2, 1, None, 2)[i], host=("127.0.0.1", "localhost")[i % 2])
                self.both_ways(engine, buffer, model)
                self.end(model)
                engine.close()

    def test_documents(self):
        """Theirs stay byte for byte what they are, and ours has nothing that a reader of theirs stumbles over."""
        engine, buffer = self.ours()
        model = self.theirs("node5")
        before = self.store.read(model.segment_key("node5"))
        self.assertNotIn('"lw"', before + self.store.read(model.contact_key("node5")))
        self.both_ways(engine, buffer, model)
        self.assertEqual(self.store.read(model.segment_key("node5")), before)
        self.assertEqual(self.store.read(model.contact_key("node5")), model.contact)
        document = model.open("ours")
        known = "buffers name protocol tcp_data_port tcp_proto_version timestamp lw".split()
        self.assertEqual(set(document) - set(known), set())
        self.assertEqual((document["protocol"], document["tcp_proto_version"]), ("tcp", 2))
        self.assertEqual([b["name"] for b in document["buffers"]], ["ours"])
        contact = model.ask("GET", model.contact_key("ours"))
        self.assertEqual(read_contact(contact), ("127.0.0.1", engine.port))
        self.assertEqual(set(json.loads(contact)), {"ip_or_host_name", "rpc_port", "lw"})
        with engine.register(bytearray(4096), access=lanewise.ACCESS_LOCAL):
            self.assertEqual(len(model.open("ours")["buffers"]), 1)
        buffer.unregister()
        self.assertEqual(model.open("ours")["buffers"], [])
        engine.close()
        for key in (model.contact_key("ours"), model.segment_key("ours")):
            with self.assertRaises(Rejected):
                model.ask("GET", key)
        self.end(model)

    def test_notes_and_probes_both_ways(self):
        engine, _ = self.ours()
        model = self.theirs("node5")
        with engine.open("node5") as peer:
            peer.probe()
            peer.notify("agent1", 'quotes " and \\ and \u20ac')
        self.assertEqual(model.notes, [("agent1", 'quotes " and \\ and \u20ac')])
        self.assertIn((PROBE, "{}\n"), model.requests)
        model.notify("ours", "agent2", "notification \u20ac")
        self.assertEqual([(n.name, n.text) for n in engine.notes()], [("agent2", "notification \u20ac")])
        self.assertEqual(model.handshake("ours", PROBE, {}), '{"status":"success"}\n')
        self.end(model)

    def test_memory_that_it_registers_later_and_takes_back(self):
        engine, buffer = self.ours()
        model = self.theirs("node5")
        with engine.open("node5") as peer:
            engine.read(peer, buffer.addr, BASE, 1000)
            model.memory[LATER] = bytearray(RANDOM.randbytes(4096))
            model.publish()
            engine.read(peer, buffer.addr, LATER, 4096)
            self.assertEqual(self.memory[:4096], bytes(model.memory[LATER]))
            del model.memory[LATER]
            model.publish()
            with self.assertRaises(lanewise.TransferError) as caught:
                engine.read(peer, buffer.addr, LATER, 4096)
            self.assertIn(caught.exception.reason, ("refused", "remote_range"))
            engine.read(peer, buffer.addr, BASE, 1000)
        self.end(model)

    def test_one_that_starts_again_in_order(self):
        engine, buffer = self.ours()
        model = self.theirs("node5")
        peer = engine.open("node5")
        engine.read(peer, buffer.addr, BASE, 1000)
        self.end(model)
        with self.assertRaises(lanewise.Error):
            engine.open("node5")
        again = self.theirs("node5")
        self.both_ways(engine, buffer, again)
        self.assertNotEqual(again.data.port, model.data.port)
        peer.close()
        self.end(again)

    def test_name_of_a_dead_one_is_ours_now(self):
        """What it offered does not survive in our document, unlike in that of its own next life."""
        model = self.theirs("node5")
        model.die()
        engine, buffer = self.ours("node5")
        other = self.theirs("node6")
        self.assertEqual([b["addr"] for b in other.open("node5")["buffers"]], [buffer.addr])
        self.assertEqual(other.find("node5"), ("127.0.0.1", engine.port))
        self.both_ways(engine, buffer, other)
        self.end(other)

    def test_documents_that_do_not_fit_together_are_refused(self):
        engine, _ = self.ours()
        model = self.theirs("node5")
        text = self.store.read(model.segment_key("node5"))
        for wrong in (text.replace('"node5"', '"node4"'), text[:-2], "null", text.replace('"tcp"', '"pigeon"')):
            model.ask("PUT", model.segment_key("node5"), wrong)
            with self.assertRaises(lanewise.Error) as caught:
                engine.open("node5")
            self.assertIn("node5", str(caught.exception))
        model.publish()
        engine.open("node5").close()
        model.ask("DELETE", model.contact_key("node5"))
        with self.assertRaises(lanewise.Error):
            engine.open("node5")
        model.ask("PUT", model.contact_key("node5"), model.contact)
        self.end(model)


class InCluster:
    """The same below mooncake/prod/, and apart from what is beside."""

    cluster = "prod"

    def test_clusters_are_apart(self):
        engine, _ = self.ours()
        self.assertIn('"rpc_port"', self.store.read("mooncake/prod/rpc_meta/ours"))
        outside = Stored(self.store.url, "node5", [(BASE, MIB)])
        with self.assertRaises(lanewise.Error):
            engine.open("node5")
        with self.assertRaises(Rejected):
            outside.open("ours")
        self.end(outside)


class InLwmeta(Suite, Case):
    kind = Lwmeta


class InStrictHttp(Suite, Case):
    kind = StrictHttp


class ClusterInLwmeta(InCluster, Suite, Case):
    kind = Lwmeta


class ClusterWithSlashInStrictHttp(InCluster, Suite, Case):
    kind = StrictHttp
    cluster = "prod/"


CLASSES = (InLwmeta, InStrictHttp, ClusterInLwmeta, ClusterWithSlashInStrictHttp)

if __name__ == "__main__":
    if len(sys.argv) > 1:
        unittest.main(verbosity=1)
    else:
        sys.exit(run_all(__file__, {case.__name__: case.kind for case in CLASSES}))
