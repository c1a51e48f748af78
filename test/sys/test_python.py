# SPDX-License-Identifier: Apache-2.0
"""The Python package in Mooncake's place: the calls that connectors of inference engines make, between two processes,
with every byte compared; many threads; what goes wrong. Run by test_python.sh."""

import ctypes
import gc
import os
import signal
import socket
import threading
import time
import unittest

from lanewise.mooncake.engine import TransferEngine, TransferNotify, TransferOpcode
from python_side import Memory, Side
from wire import RANDOM, FakeTarget, Port, main, rest

try:
    import numpy
except ImportError:
    numpy = None

LAYERS, LAYER = 24, 1 << 20
BLOCK = 16384
BLOCKS = LAYER // BLOCK


class Pair(unittest.TestCase):
    """A prefill side here, a decode side in another process."""

    @classmethod
    def setUpClass(cls):
        cls.side = Side(LAYERS, LAYER)
        cls.memory = Memory(LAYERS, LAYER)
        cls.engine = TransferEngine()
        assert cls.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0, cls.engine.last_error()

    @classmethod
    def tearDownClass(cls):
        cls.engine.close()
        assert cls.side.end() == 0

    def refill(self):
        for layer in self.memory.maps:
            layer[:] = RANDOM.randbytes(LAYER)

    def blocks(self, layers, count):
        """count random pairs of blocks in each of the layers: local addresses, remote ones, lengths, and places."""
        local, remote, places = [], [], []
        for layer in layers:
            here, there = RANDOM.sample(range(BLOCKS), count), RANDOM.sample(range(BLOCKS), count)
            for i, k in zip(here, there):
                local.append(self.memory.addresses[layer] + i * BLOCK)
                remote.append(self.side.layers[layer] + k * BLOCK)
                places.append((layer, i * BLOCK, k * BLOCK))
        return local, remote, [BLOCK] * len(local), places

    def same(self, places):
        theirs = self.side.ask("crcs", [(layer, there, BLOCK) for layer, _, there in places])
        self.assertEqual(theirs, [self.memory.crc(layer, here, BLOCK) for layer, here, _ in places])


class Connectors(Pair):
    def setUp(self):
        self.refill()

    def test_register_all_layers_then_write_blocks_of_all_in_one_call(self):
        """vLLM's connector: one registration of all layers, one call a group of requests."""
        self.assertEqual(self.engine.batch_register_memory(self.memory.addresses, [LAYER] * LAYERS), 0)
        try:
            for _ in range(10):
                local, remote, lengths, places = self.blocks(range(LAYERS), 20)
                result = self.engine.batch_transfer_sync_write(self.side.session, local, remote, lengths)
                self.assertEqual(result, 0, self.engine.last_error())
                self.same(places)
                self.refill()
        finally:
            self.assertEqual(self.engine.batch_unregister_memory(self.memory.addresses), 0)

    def test_register_layer_by_layer_probe_write_and_auxiliary_data(self):
        """SGLang's: each layer alone, a probe of the session, blocks, then auxiliary data and a message with it."""
        for at in self.memory.addresses:
            self.assertEqual(self.engine.register_memory(at, LAYER), 0)
        self.assertEqual(self.engine.send_probe(self.side.session), 0)
        for layer in range(LAYERS):
            local, remote, lengths, places = self.blocks([layer], BLOCKS)
            self.assertEqual(
                self.engine.batch_transfer_sync(self.side.session, local, remote, lengths, TransferOpcode.WRITE), 0
            )
            self.same(places)
        aux, there = self.memory.addresses[0], self.side.layers[1]
        self.assertEqual(self.engine.transfer_sync_write(self.side.session, aux, there, 333), 0)
        self.assertEqual(self.side.ask("crc", 1, 0, 333), self.memory.crc(0, 0, 333))
        note = TransferNotify("room 7", "done: \u00e9")
        self.assertEqual(
            self.engine.transfer_sync(self.side.session, aux, there, 100, TransferOpcode.WRITE, notify=note), 0
        )
        self.assertEqual(self.side.ask("notes"), [["room 7", "done: \u00e9"]])
        for at in self.memory.addresses:
            self.assertEqual(self.engine.unregister_memory(at), 0)

    def registered(self):
        self.assertEqual(self.engine.batch_register_memory(self.memory.addresses, [LAYER] * LAYERS, location="cpu:0"), 0)
        self.addCleanup(lambda: self.engine.batch_unregister_memory(self.memory.addresses))

    def test_read_gives_the_peers_bytes(self):
        self.registered()
        self.assertEqual(self.side.ask("fill", 3, 0x5A), 0)
        local, remote, lengths, _ = self.blocks([3], 7)
        self.assertEqual(self.engine.batch_transfer_sync_read(self.side.session, local, remote, lengths), 0)
        for at in local:
            self.assertEqual(self.engine.read_bytes_from_buffer(at, BLOCK), b"\x5a" * BLOCK)
        self.assertEqual(self.engine.transfer_sync_read(self.side.session, local[0] + 1, remote[0], 1), 0)

    def test_asynchronous_batches_settled_together(self):
        self.registered()
        numbers, all_places = [], []
        for layer in range(0, LAYERS, 2):
            local, remote, lengths, places = self.blocks([layer, layer + 1], 10)
            number = self.engine.batch_transfer_async_write(self.side.session, local, remote, lengths)
            self.assertGreater(number, 0, self.engine.last_error())
            numbers.append(number)
            all_places += places
        self.assertEqual(len(set(numbers)), len(numbers))
        self.assertEqual(self.engine.get_batch_transfer_status(numbers), 0)
        self.same(all_places)
        self.assertEqual(self.engine.get_batch_transfer_status([]), 0)
        self.assertEqual(self.engine.get_batch_transfer_status(numbers), -1)  # they are settled

    def test_submitted_write_checked_until_it_is_done(self):
        self.registered()
        number = self.engine.transfer_submit_write(
            self.side.session, self.memory.addresses[2], self.side.layers[2], LAYER
        )
        self.assertGreater(number, 0)
        until = time.monotonic() + 20
        while (verdict := self.engine.transfer_check_status(number)) == 0:
            self.assertLess(time.monotonic(), until)
        self.assertEqual(verdict, 1)
        self.assertEqual(self.side.ask("crc", 2, 0, LAYER), self.memory.crc(2, 0, LAYER))
        self.assertEqual(self.engine.transfer_check_status(number), -1)

    def test_memory_that_the_peer_registers_later_is_reached(self):
        self.registered()
        self.assertEqual(
            self.engine.transfer_sync_write(self.side.session, self.memory.addresses[0], self.side.layers[0], 10), 0
        )
        for how in ("sync", "async"):
            at = self.side.ask("another", LAYER)
            local = self.memory.addresses[0]
            if how == "sync":
                # With one that was known: only what failed is repeated.
                result = self.engine.batch_transfer_sync_write(
                    self.side.session, [local, local], [self.side.layers[0], at], [5000, 5000]
                )
                self.assertEqual(result, 0, self.engine.last_error())
            else:
                number = self.engine.batch_transfer_async_write(self.side.session, [local], [at], [5000])
                self.assertEqual(self.engine.get_batch_transfer_status([number]), 0)
            self.assertEqual(self.side.ask("another_crc", 5000), self.memory.crc(0, 0, 5000))

    def test_lists_of_any_kind_taken(self):
        self.registered()
        kinds = [tuple, iter, lambda words: (ctypes.c_uint64 * len(words))(*words)]
        if numpy is not None:
            kinds += [
                numpy.array,
                lambda words: numpy.array(words, dtype=numpy.uint64),
                lambda words: numpy.repeat(numpy.array(words), 2)[::2],
            ]
        for kind in kinds:
            local, remote, lengths, places = self.blocks([0, 5], 9)
            result = self.engine.batch_transfer_sync_write(self.side.session, kind(local), kind(remote), kind(lengths))
            self.assertEqual(result, 0, self.engine.last_error())
            self.same(places)
        self.assertEqual(self.engine.batch_transfer_sync_write(self.side.session, [], [], []), 0)

    def test_managed_buffers(self):
        at = self.engine.allocate_managed_buffer(100000)
        self.assertGreater(at, 0)
        self.assertEqual(self.engine.write_bytes_to_buffer(at, b"abcdef", 6), 0)
        self.assertEqual(self.engine.write_bytes_to_buffer(at, b"abcdef", 7), -1)
        self.assertEqual(self.engine.transfer_sync_write(self.side.session, at, self.side.layers[4], 100000), 0)
        self.assertEqual(self.engine.free_managed_buffer(at, 100000), 0)
        self.assertEqual(self.engine.free_managed_buffer(at, 100000), -1)
        self.assertEqual(self.engine.transfer_sync_write(self.side.session, at, self.side.layers[4], 10), -1)

    def test_first_address_and_topology(self):
        self.assertEqual(self.engine.get_first_buffer_address(self.side.session), min(self.side.layers))
        self.assertIn(self.engine.get_local_topology()[0], "{n")
        self.assertEqual(self.engine.get_local_topology("no-such-hca"), "null")

    def test_eight_threads_each_its_own_blocks(self):
        self.registered()
        rounds, wrong, places = 25, [], []

        def work(share):
            for _ in range(rounds):
                local, remote, lengths, these = share
                if self.engine.batch_transfer_sync_write(self.side.session, local, remote, lengths) != 0:
                    wrong.append(self.engine.last_error())
                number = self.engine.batch_transfer_async_write(self.side.session, local, remote, lengths)
                if self.engine.get_batch_transfer_status([number]) != 0:
                    wrong.append(self.engine.last_error())
                if self.engine.send_probe(self.side.session) != 0:
                    wrong.append(self.engine.last_error())
            places.extend(these)

        threads = [
            threading.Thread(target=work, args=(self.blocks(range(i, LAYERS, 8), 16),)) for i in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertEqual(len(places), LAYERS * 16)
        self.same(places)
        self.assertEqual(self.engine._engine.stats()["live_batches"], 0)


class IPv6(unittest.TestCase):
    def test_session_in_brackets(self):
        try:
            with socket.create_server(("::1", 0), family=socket.AF_INET6):
                pass
        except OSError as error:
            self.skipTest(f"this host has no ::1: {error}")
        here, there = TransferEngine(), TransferEngine()
        for engine, name in ((here, "::1"), (there, "[::1]:12345")):
            self.assertEqual(engine.initialize(name, "P2PHANDSHAKE", "tcp", ""), 0, engine.last_error())
            self.assertEqual(engine.get_session_id(), f"[::1]:{engine.get_rpc_port()}")
        local, remote = here.allocate_managed_buffer(4096), there.allocate_managed_buffer(4096)
        here.write_bytes_to_buffer(local, b"hello", 5)
        session = f"[::1]:{there.get_rpc_port()}"
        self.assertEqual(here.send_probe(session), 0, here.last_error())
        self.assertEqual(here.transfer_sync_write(session, local, remote, 5), 0, here.last_error())
        self.assertEqual(there.read_bytes_from_buffer(remote, 5), b"hello")
        here.close()
        there.close()


class Failures(Pair):
    """Nothing here ends the process, each call says what is wrong, and the engine goes on afterwards."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        assert cls.engine.batch_register_memory(cls.memory.addresses, [LAYER] * LAYERS) == 0

    def tearDown(self):
        engine = self.engine
        self.assertEqual(engine.transfer_sync_write(self.side.session, self.memory.addresses[1], self.side.layers[1], 9), 0)
        gc.collect()
        self.assertEqual(engine._engine.stats()["live_batches"], 0)

    def fails(self, result, *words, code=-1):
        self.assertEqual(result, code)
        for word in words:
            self.assertIn(word, self.engine.last_error())

    def test_sessions_that_lead_nowhere(self):
        at = self.memory.addresses[0]
        with socket.create_server(("127.0.0.1", 0)) as gone:
            nobody = f"127.0.0.1:{gone.getsockname()[1]}"
        self.fails(self.engine.transfer_sync_write(nobody, at, 4096, 10), nobody)
        self.fails(self.engine.send_probe(nobody), nobody, code=-102)
        self.assertEqual(self.engine.batch_transfer_async_write(nobody, [at], [4096], [10]), 0)
        self.assertEqual(self.engine.transfer_submit_write(nobody, at, 4096, 10), -1)
        self.assertEqual(self.engine.get_first_buffer_address(nobody), 0)
        for name in ("", "127.0.0.1:99999999", "[::1", "no such host", "a" * 1000):
            self.fails(self.engine.transfer_sync_write(name, at, 4096, 10), name[:100])

    def test_memory_that_is_not_registered(self):
        here, there = self.memory.addresses[0], self.side.layers[0]
        stray = ctypes.create_string_buffer(100)
        self.fails(self.engine.transfer_sync_write(self.side.session, ctypes.addressof(stray), there, 100), "local")
        self.fails(self.engine.transfer_sync_write(self.side.session, here, 4096, 100), "peer", "offered")
        self.fails(self.engine.transfer_sync_read(self.side.session, here, there, LAYER * LAYERS * 2))
        number = self.engine.transfer_submit_write(self.side.session, here, 4096, 100)
        while (verdict := self.engine.transfer_check_status(number)) == 0:
            pass
        self.assertEqual(verdict, -1)

    def test_one_bad_block_fails_the_call_and_is_named(self):
        local, remote, lengths, _ = self.blocks([0], 20)
        remote[13] = 4096
        self.fails(self.engine.batch_transfer_sync_write(self.side.session, local, remote, lengths), "0x1000")
        numbers = [self.engine.batch_transfer_async_write(self.side.session, local, remote, lengths) for _ in range(3)]
        self.assertEqual(self.engine.get_batch_transfer_status(numbers), -1)

    def test_memory_that_the_peer_took_back(self):
        local, there = self.memory.addresses[0], self.side.layers[LAYERS - 1]
        self.assertEqual(self.engine.transfer_sync_write(self.side.session, local, there, 100), 0)
        self.assertEqual(self.side.ask("unregister", LAYERS - 1), 0)
        self.fails(self.engine.transfer_sync_write(self.side.session, local, there, 100), self.side.session)

    def test_registration(self):
        at = self.memory.addresses[0]
        self.fails(self.engine.register_memory(at, LAYER), "overlap", code=-7)
        self.fails(self.engine.register_memory(at + 100, 1), "overlap", code=-7)
        stray = Memory(2, 8192)
        self.fails(self.engine.register_memory(stray.addresses[0], 0))
        self.fails(self.engine.batch_register_memory(stray.addresses + [at], [8192] * 3), code=-7)
        self.fails(self.engine.batch_register_memory(stray.addresses, [8192]))
        self.fails(self.engine.unregister_memory(stray.addresses[0]), f"0x{stray.addresses[0]:x}", code=-3)
        self.fails(self.engine.register_memory(stray.addresses[0], 8192, "x" * 64), "location")
        # None of it left something behind.
        self.assertEqual(self.engine.batch_register_memory(stray.addresses, [8192] * 2), 0)
        self.fails(self.engine.batch_unregister_memory([stray.addresses[0], 1, stray.addresses[1]]), code=-3)
        self.fails(self.engine.unregister_memory(stray.addresses[1]), code=-3)
        self.assertEqual(self.engine.batch_register_memory([], []), 0)
        self.assertEqual(self.engine.batch_unregister_memory([]), 0)

    def test_arguments_of_the_wrong_kind(self):
        at, session = self.memory.addresses[0], self.side.session
        for buffers, remote, lengths in (
            ([-1], [at], [1]),
            ([at], [1 << 64], [1]),
            ([at], ["x"], [1]),
            ([at], [at], [1.5]),
            (5, [at], [1]),
        ):
            with self.assertRaises(TypeError):
                self.engine.batch_transfer_sync_write(session, buffers, remote, lengths)
        with self.assertRaises(TypeError):
            self.engine.transfer_sync_write(session, None, at, 1)
        self.fails(self.engine.batch_transfer_sync_write(session, [at, at], [at], [1]), "2 local addresses")
        if numpy is not None:
            with self.assertRaises(TypeError):
                self.engine.batch_transfer_sync_write(session, numpy.array([-5]), numpy.array([at]), numpy.array([1]))

    def test_numbers_nobody_gave(self):
        for number in (0, 1, -1, 1 << 63, (1 << 64) - 1):
            self.fails(self.engine.transfer_check_status(number), str(number))
            self.fails(self.engine.get_batch_transfer_status([number]), str(number))

    def test_engine_that_is_not_initialized(self):
        engine = TransferEngine()
        self.assertEqual(engine.transfer_sync_write(self.side.session, 1, 1, 1), -1)
        self.assertIn("initialized", engine.last_error())
        self.assertEqual(engine.register_memory(4096, 4096), -1)
        self.assertEqual(engine.unregister_memory(4096), -1)
        self.assertEqual((engine.get_rpc_port(), engine.send_probe("x"), engine.get_notifies()), (-1, -1, []))
        self.assertEqual(engine.initialize("127.0.0.1", "carrier-pigeon://loft", "tcp", ""), -1)
        self.assertIn("carrier-pigeon", engine.last_error())
        self.assertEqual(engine.initialize("203.0.113.7", "P2PHANDSHAKE", "tcp", ""), -1)
        self.assertIn("203.0.113.7", engine.last_error())
        self.assertEqual(engine.initialize("127.0.0.1:5", "P2PHANDSHAKE", "xgmi", ""), -1)
        self.assertEqual(engine.initialize_ext("127.0.0.1:5", "P2PHANDSHAKE", "tcp", "", "etcd"), 0)
        self.assertNotEqual(engine.get_rpc_port(), 5)
        engine.close()

    def test_peer_killed_while_eight_threads_write(self):
        side = Side(1, 8 * LAYER)
        count, failed, begin = [0], [], threading.Event()

        def work(i):
            local = [self.memory.addresses[i] + n * BLOCK for n in range(BLOCKS)]
            remote = [side.layers[0] + i * LAYER + n * BLOCK for n in range(BLOCKS)]
            while self.engine.batch_transfer_sync_write(side.session, local, remote, [BLOCK] * BLOCKS) == 0:
                count[0] += 1
                if count[0] > 30:
                    begin.set()
            failed.append(self.engine.last_error())

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        self.assertTrue(begin.wait(30))
        side.kill()
        for thread in threads:
            thread.join(30)
            self.assertFalse(thread.is_alive())
        self.assertEqual(len(failed), 8)
        for text in failed:
            self.assertIn(side.session, text)
        self.assertLess(self.engine.send_probe(side.session), 0)

    def silent(self):
        """A peer that takes everything and confirms nothing."""
        fake = FakeTarget(size=LAYER)
        fake.data.serve = rest
        self.addCleanup(fake.close)
        return fake

    def test_other_threads_run_while_a_call_waits(self):
        fake = self.silent()
        waiting = threading.Thread(
            target=self.engine._engine.submit(
                TransferOpcode.WRITE, self.engine._peer(fake.name), [self.memory.addresses[0]], [fake.BASE], [100], 1.5
            ).wait
        )
        hanging = Port(lambda sock: (time.sleep(1.5), sock.close()))
        self.addCleanup(hanging.close)
        opening = threading.Thread(target=self.engine.send_probe, args=(f"127.0.0.1:{hanging.port}",))
        for thread in (waiting, opening):
            steps = 0
            begin = time.monotonic()
            thread.start()
            while thread.is_alive():
                steps += 1
                time.sleep(0.01)
            self.assertGreater(time.monotonic() - begin, 1)
            self.assertGreater(steps, 20)

    def test_signal_handler_runs_in_a_waiting_call_and_its_exception_ends_it(self):
        fake = self.silent()

        class Enough(Exception):
            pass

        def stop(*_):
            raise Enough

        before = signal.signal(signal.SIGALRM, stop)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        begin = time.monotonic()
        with self.assertRaises(Enough):
            self.engine.transfer_sync_write(fake.name, self.memory.addresses[0], fake.BASE, 100)
        self.assertLess(time.monotonic() - begin, 5)

    def test_forked_child_gets_errors_and_leaves_the_parent_alone(self):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                result = self.engine.transfer_sync_write(
                    self.side.session, self.memory.addresses[0], self.side.layers[0], 9
                )
                self.engine.close()
                status = 0 if result == -1 else 2
            finally:
                os._exit(status)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)


if __name__ == "__main__":
    main()
