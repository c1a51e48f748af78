# SPDX-License-Identifier: Apache-2.0
"""The engine and a model of the reference's RDMA, each against the other: the queue pair handshake in both roles, what each
side does when the other one does not keep to it, and the bytes behind it. Run in the lab, a class each, by
test_handshake_ours.sh and test_handshake_theirs.sh."""

import json
import mmap
import subprocess
import sys
import unittest

import lanewise
import pyverbs.enums as e
from queue_pairs import QPS, Pair, RdmaReference, Refused
from wire import METADATA, MIB, RANDOM, call, compact, eventually, frame, main

OURS, THEIRS = "rxe0", "rxe1"
SIZES = (1, 7, 4096, 65536, 65537, MIB)
READY_S = 10  # how long an engine waits for the second step


def queue_pairs(device):
    """How many a device has."""
    text = subprocess.run(["rdma", "-j", "resource", "show", "qp", "link", device], capture_output=True, check=True).stdout
    return sum(1 for pair in json.loads(text or "[]") if pair["type"] == "RC")


def known():
    """Whether this build has the driver at all."""
    try:
        lanewise.Engine("127.0.0.1", settings={"drivers": "rdma,nothing"})
    except lanewise.Error as error:
        return "rdma" in str(error).partition("there are ")[2]
    raise AssertionError("a driver called nothing was accepted")


class Both(unittest.TestCase):
    def setUp(self):
        self.before = queue_pairs(OURS)
        self.memory = mmap.mmap(-1, 4 * MIB)
        self.memory[:] = RANDOM.randbytes(4 * MIB)
        self.open()
        self.addCleanup(self.close)
        self.model = RdmaReference(THEIRS, 4 * MIB)
        self.addCleanup(self.finish)

    def open(self):
        settings = {"drivers": "rdma", "rdma_devices": OURS, "timeout_ms": "5000"}
        self.engine = lanewise.Engine("127.0.0.1", settings=settings)
        self.buffer = self.engine.register(self.memory)

    def close(self):
        self.engine.close()
        self.assertEqual(queue_pairs(OURS), self.before)

    def finish(self):
        self.model.stop()
        self.assertEqual(self.model.problems, [])


class WeAsk(Both):
    """Our engine is the initiator."""

    def move(self, peer, times=1):
        """Random transfers both ways, compared."""
        for _ in range(times):
            size = RANDOM.choice(SIZES)
            at, there = (RANDOM.randrange(4 * MIB - size + 1) for _ in range(2))
            remote = self.model.device.memory.buf + there
            if RANDOM.random() < 0.5:
                self.engine.write(peer, self.buffer.addr + at, remote, size)
            else:
                self.model.device.memory.write(RANDOM.randbytes(size), size, there)
                self.engine.read(peer, self.buffer.addr + at, remote, size)
            self.assertEqual(self.model.device.memory.read(size, there), self.memory[at : at + size])

    def fails(self, peer, reasons):
        """One request fails for one of these reasons; its text is returned."""
        with self.assertRaises(lanewise.TransferError) as caught:
            self.engine.write(peer, self.buffer.addr, self.model.device.memory.buf, 4096)
        self.assertIn(caught.exception.reason, reasons, str(caught.exception))
        return str(caught.exception)

    def works_again(self, peer):
        """Whoever was wrong once is no enemy for ever."""
        self.model.spoil = lambda request, reply: reply
        self.assertTrue(eventually(lambda: self.one(peer), 30))
        self.move(peer, 5)

    def one(self, peer):
        try:
            self.move(peer)
            return True
        except lanewise.TransferError:
            return False

    def test_transfers_exact_and_both_steps_came(self):
        with self.engine.open(self.model.name) as peer:
            self.move(peer, 30)
        first, second = self.model.requests[:2]
        self.assertEqual(first["ready_ack"], False)
        self.assertEqual(second, first | {"ready_ack": True})
        self.assertEqual(first["peer_nic_path"], self.model.path)
        self.assertEqual(first["local_nic_path"].partition("#")[0], f"{self.engine.name}@{OURS}")
        self.assertEqual(len(first["qp_num"]), QPS)

    def test_peer_that_knows_no_second_step_is_sent_none(self):
        self.model.tells_ready = False
        with self.engine.open(self.model.name) as peer:
            self.move(peer, 5)
        self.assertFalse(any(request.get("ready_ack") for request in self.model.requests))

    def spoilt(self, spoil, reasons=("protocol", "unreachable")):
        """An engine without connections meets what spoil makes of the replies."""
        self.close()
        self.open()
        self.model.reset()
        self.model.spoil = spoil
        with self.engine.open(self.model.name) as peer:
            text = self.fails(peer, reasons)
            self.works_again(peer)
        return text

    def test_wrong_number_of_queue_pairs(self):
        for numbers in ([], [17], [17, 18, 19], [17] * 300):
            with self.subTest(numbers=len(numbers)):
                self.spoilt(lambda request, reply, numbers=numbers: reply | {"qp_num": numbers})

    def test_wrong_paths(self):
        for change in (
            {"local_nic_path": "127.0.0.1:1@rxe1"},
            {"peer_nic_path": "127.0.0.1:1@rxe0"},
            {"local_nic_path": "", "peer_nic_path": ""},
        ):
            with self.subTest(**change):
                self.spoilt(lambda request, reply, change=change: reply | change)

    def test_refusal_of_the_first_step(self):
        self.spoilt(lambda request, reply: reply | {"qp_num": [], "reply_msg": "no place is left"}, ("unreachable",))

    def test_refusal_of_the_second_step(self):
        def spoil(request, reply):
            return {"reply_msg": "the endpoint is gone"} if request["ready_ack"] else reply

        self.spoilt(spoil, ("unreachable", "protocol", "reset"))

    def test_no_reply(self):
        self.spoilt(lambda request, reply: None, ("unreachable", "reset"))

    def test_documents_that_are_none(self):
        for change in (
            {"qp_num": "17,18"},
            {"qp_num": [-1, 17]},
            {"qp_num": [1 << 32, 17]},
            {"local_gid": "ff:ff"},
            {"local_gid": 5},
            {"ready_ack": "yes"},
            {"reply_msg": ["no"]},
        ):
            with self.subTest(**change):
                self.spoilt(lambda request, reply, change=change: reply | change)

    def test_restart_with_other_numbers(self):
        with self.engine.open(self.model.name) as peer:
            self.move(peer, 5)
            for _ in range(3):
                old = [pair.number for pairs, _ in self.model.pairs.values() for pair in pairs]
                self.model.reset()
                self.works_again(peer)
                new = [pair.number for pairs, _ in self.model.pairs.values() for pair in pairs]
                self.assertNotEqual(old, new)


class TheyAsk(Both):
    """Our engine is the target."""

    def setUp(self):
        super().setUp()
        port = int(self.engine.name.rpartition(":")[2])
        self.descriptor = json.loads(call(port, frame(METADATA, "{}"))[9:])
        self.path = f"{self.engine.name}@{OURS}"
        self.key = self.descriptor["buffers"][0]["rkey"][0]
        self.kept = []
        self.addCleanup(self.drop)

    def drop(self):
        for pair in self.kept:
            pair.close()

    def connect(self, **options):
        pairs = self.model.connect(self.engine.name, OURS, **options)
        self.kept += pairs
        return pairs

    def first_step(self):
        """Queue pairs, and the request that the engine has answered."""
        pairs = [Pair(self.model.device) for _ in range(QPS)]
        self.kept += pairs
        request = self.model.request(self.path, pairs)
        return pairs, request, self.model.ask(self.engine.name, request)

    def check(self, pairs, times=4):
        """Bytes both ways over each queue pair."""
        memory = self.model.device.memory
        for pair in pairs:
            for _ in range(times):
                size = RANDOM.choice(SIZES)
                at, here = (RANDOM.randrange(4 * MIB - size + 1) for _ in range(2))
                if RANDOM.random() < 0.5:
                    memory.write(RANDOM.randbytes(size), size, here)
                    self.assertEqual(pair.write(here, size, self.buffer.addr + at, self.key), e.IBV_WC_SUCCESS)
                else:
                    self.assertEqual(pair.read(here, size, self.buffer.addr + at, self.key), e.IBV_WC_SUCCESS)
                self.assertEqual(memory.read(size, here), self.memory[at : at + size])

    def refused(self, request):
        with self.assertRaises(Refused) as caught:
            self.model.ask(self.engine.name, request)
        return str(caught.exception)

    def test_descriptor(self):
        document = self.descriptor
        self.assertEqual([device["name"] for device in document["devices"]], [OURS])
        self.assertRegex(document["devices"][0]["gid"], r"^([0-9a-f]{2}:){15}[0-9a-f]{2}$")
        buffer = document["buffers"][0]
        self.assertEqual((len(buffer["rkey"]), len(buffer["lkey"])), (1, 1))
        self.assertIn(OURS, [name for row in document["priority_matrix"].values() for part in row for name in part])

    def test_both_steps_bytes_exact(self):
        self.check(self.connect())

    def test_wrong_paths_refused(self):
        for path in (f"{self.engine.name}@rxe7", f"127.0.0.1:1@{OURS}", self.engine.name, OURS, "", "@"):
            with self.subTest(path=path):
                self.assertIn("path", self.refused(self.model.request(path, ()) | {"qp_num": [17, 18]}))
        self.assertEqual(queue_pairs(OURS), self.before)
        self.check(self.connect(), 1)

    def test_wrong_number_of_queue_pairs_refused(self):
        for numbers in ([], [17], [17, 18, 19], [17] * 255, [17] * 5000):
            with self.subTest(numbers=len(numbers)):
                self.refused(self.model.request(self.path, ()) | {"qp_num": numbers})
        self.assertEqual(queue_pairs(OURS), self.before)
        self.check(self.connect(), 1)

    def test_documents_that_are_none_refused(self):
        good = self.model.request(self.path, ()) | {"qp_num": [17, 18]}
        for change in (
            {"qp_num": "17,18"},
            {"qp_num": [-1, 17]},
            {"qp_num": [1.5, 17]},
            {"qp_num": [1 << 32, 17]},
            {"local_gid": "ff:ff"},
            {"local_gid": ""},
            {"local_nic_path": ""},
            {"local_nic_path": "x" * 2000},
            {"local_lid": 70000},
            {"ready_ack": "yes"},
        ):
            with self.subTest(**change):
                self.refused(good | change)
        for text in (b"", b"[]", b"{", b"\xff\xfe", b"[" * 3000, compact(good)[:-5].encode()):
            call(int(self.engine.name.rpartition(":")[2]), frame(0, text))
        self.assertEqual(queue_pairs(OURS), self.before)
        self.check(self.connect(), 1)

    def test_second_step_of_other_numbers_refused(self):
        pairs, request, reply = self.first_step()
        for numbers in ([17, 18], request["qp_num"][::-1], request["qp_num"][:1]):
            self.refused(request | {"ready_ack": True, "qp_num": numbers})
        for pair, number in zip(pairs, reply["qp_num"]):
            pair.join(reply["local_gid"], number)
        self.model.ask(self.engine.name, request | {"ready_ack": True})
        self.check(pairs, 1)

    def test_second_step_without_a_first_refused(self):
        self.refused(self.model.request(self.path, ()) | {"ready_ack": True, "qp_num": [17, 18]})
        self.assertEqual(queue_pairs(OURS), self.before)

    def test_second_step_that_never_comes_gives_the_place_back(self):
        self.first_step()
        self.assertEqual(queue_pairs(OURS), self.before + QPS)
        self.assertTrue(eventually(lambda: queue_pairs(OURS) == self.before, 3 * READY_S))
        self.check(self.connect(), 1)

    def test_restart_with_other_numbers(self):
        """The new queue pairs work; nothing of the old ones arrives any more."""
        old = self.connect()
        self.check(old, 1)
        new = self.connect()
        self.check(new, 1)
        before = self.memory[:4096]
        self.assertNotEqual(old[0].write(0, 4096, self.buffer.addr, self.key), e.IBV_WC_SUCCESS)
        self.assertEqual(self.memory[:4096], before)
        self.check(new, 1)
        self.assertEqual(queue_pairs(OURS), self.before + QPS)

    def test_other_end_dies_and_comes_back_many_times(self):
        for _ in range(20):
            pairs = self.connect()
            self.check(pairs, 1)
            while self.kept:
                self.kept.pop().close()
        self.assertEqual(queue_pairs(OURS), self.before + QPS)

    def test_local_memory_is_out_of_reach(self):
        """Memory that is not offered to peers: neither the keys that they know nor their neighbours open it."""
        private = mmap.mmap(-1, MIB)
        private[:] = RANDOM.randbytes(MIB)
        before = private[:]
        buffer = self.engine.register(private, access=lanewise.ACCESS_LOCAL)
        port = int(self.engine.name.rpartition(":")[2])
        document = json.loads(call(port, frame(METADATA, "{}"))[9:])
        for entry in document["buffers"]:
            if entry["addr"] == buffer.addr:
                self.assertEqual(entry["rkey"], [])
        guesses = [self.key] + [(self.key & ~0xFF) + (step << 8) + RANDOM.randrange(256) for step in (-1, 1, 2)]
        guesses += [(self.key & ~0xFF) + 0x100 + low for low in range(0, 256, 16)]
        for key in guesses:
            pairs = self.connect()
            for move in (pairs[0].write, pairs[1].read):
                self.assertNotEqual(move(0, 4096, buffer.addr, key & 0xFFFFFFFF), e.IBV_WC_SUCCESS)
        self.assertEqual(private[:], before)
        buffer.unregister()
        self.check(self.connect(), 1)

    def test_range_beyond_the_buffer_refused_by_the_device(self):
        for at, size in ((4 * MIB - 100, 4096), (4 * MIB, 1), (-1, 2)):
            pairs = self.connect()
            before = self.memory[:]
            self.assertNotEqual(pairs[0].write(0, size, self.buffer.addr + at, self.key), e.IBV_WC_SUCCESS)
            self.assertEqual(self.memory[:], before)

    def test_unregistered_memory_is_out_of_reach_at_once(self):
        pairs = self.connect()
        self.check(pairs, 1)
        self.buffer.unregister()
        before = self.memory[:]
        self.assertNotEqual(pairs[0].write(0, 4096, self.buffer.addr, self.key), e.IBV_WC_SUCCESS)
        self.assertEqual(self.memory[:], before)


if not known():
    print("this build has no driver rdma")
    sys.exit(77)
main()
