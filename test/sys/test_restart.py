# SPDX-License-Identifier: Apache-2.0
"""A peer that restarts is a new peer: requests through old handles say so and move nothing, a plain open by name reaches
the new one. Run by test_restart.sh."""

import socket
import threading
import time
import unittest

from wire import HELLO, MIB, OTHER_LIFE, RANDOM, Handshake, Peer, connect, header, main, rest

AT = 0x7E9000000000  # of the target's memory, in every life


def free_ports():
    """Two ports side by side that nobody uses."""
    while True:
        low = RANDOM.randrange(18000, 19900)
        try:
            for port in (low, low + 1):
                with socket.create_server(("127.0.0.1", port)):
                    pass
            return low
        except OSError:
            pass


class Restart(unittest.TestCase):
    def setUp(self):
        self.peer = Peer(MIB)
        self.addCleanup(self.peer.end)

    def refused_as_restarted(self, segment, name, count=10):
        for op in ("read", "write"):
            outcome = self.peer.run(op, segment, 0, AT, 4096, count)
            self.assertEqual((outcome.counts, outcome.reason), ((0, count, 0, 0), "restarted"), outcome)
            self.assertIn(name, outcome.text)
            self.assertLess(outcome.ms, 2000)

    def test_descriptor_of_another_life_requests_end_restarted(self):
        target = Peer(MIB, f"at={AT}")
        self.addCleanup(target.end)
        handshake = Handshake()
        self.addCleanup(handshake.close)
        life = target.descriptor["lw"]["incarnation"]
        other = f"{int(life, 16) ^ 1:016x}"
        handshake.document = target.descriptor | {"name": handshake.name, "lw": {"incarnation": other}}
        old = self.peer.open(handshake.name)
        before = target.sum(0, MIB)
        self.refused_as_restarted(old, handshake.name)
        self.assertEqual(target.sum(0, MIB), before)
        # What the name says now is the life that runs: a plain open reaches it.
        handshake.document = target.descriptor | {"name": handshake.name}
        new = self.peer.open(handshake.name)
        self.assertNotEqual(new, old)
        self.peer.ask("fill 0 4096 77")
        self.assertEqual(self.peer.run("write", new, 0, AT, 4096).counts, (1, 0, 0, 0))
        self.assertEqual(target.sum(0, 4096), self.peer.sum(0, 4096))
        self.refused_as_restarted(old, handshake.name)
        # Both handles can be given back, and are stale then.
        for segment in (old, new):
            self.assertEqual(self.peer.ask(f"close {segment}"), "ok")
            self.assertIn("error -9 ", self.peer.ask(f"close {segment}"))

    def test_wrong_life_at_the_data_port_status_2(self):
        target = Peer(MIB)
        self.addCleanup(target.end)
        with connect(target.data_port) as sock:
            sock.sendall(header(0, 1, HELLO))
            self.assertEqual(rest(sock), OTHER_LIFE)

    def test_data_port_of_a_dead_life_unreachable_until_opened_again(self):
        handshake = Handshake()
        self.addCleanup(handshake.close)
        first = Peer(MIB, f"at={AT}")
        handshake.document = first.descriptor | {"name": handshake.name}
        old = self.peer.open(handshake.name)
        self.assertEqual(self.peer.run("write", old, 0, AT, 4096).counts, (1, 0, 0, 0))
        first.kill()
        second = Peer(MIB, f"at={AT}")
        self.addCleanup(second.end)
        handshake.document = second.descriptor | {"name": handshake.name}
        outcome = self.peer.run("read", old, 0, AT, 4096, 10)
        self.assertEqual(outcome.counts, (0, 10, 0, 0), outcome)
        self.assertIn(outcome.reason, ("unreachable", "reset", "restarted"))
        new = self.peer.open(handshake.name)
        self.assertNotEqual(new, old)
        self.assertEqual(self.peer.run("write", new, 0, AT, 4096).counts, (1, 0, 0, 0))

    def test_restart_on_the_same_ports_and_addresses_old_handle_never_served(self):
        low = free_ports()
        options = (f"at={AT}", f"port_min={low}", f"port_max={low + 1}")
        target = Peer(MIB, *options)
        lives = 0
        for number in range(12):
            target.ask(f"fill 0 {MIB} {number}")
            before = target.sum(0, MIB)
            segment = self.peer.open(target.name)
            self.assertEqual(self.peer.run("read", segment, 0, AT, MIB).counts, (1, 0, 0, 0))
            self.assertEqual(self.peer.sum(0, MIB), before)
            old_name, old_port = target.name, target.data_port
            target.kill()
            target = Peer(MIB, *options)
            same = (target.name, target.data_port) == (old_name, old_port)
            before = target.sum(0, MIB)
            outcome = self.peer.run("write", segment, 0, AT, 4096)
            self.assertEqual(outcome.counts, (0, 1, 0, 0), outcome)
            self.assertEqual(target.sum(0, MIB), before)
            if same:
                lives += 1
                self.assertIn(outcome.reason, ("restarted", "reset"), outcome)
                self.refused_as_restarted(segment, target.name)
                if lives == 3:
                    break
        target.end()
        print(f"{lives} restarts on the same two ports", flush=True)

    def test_reads_through_old_handles_while_it_restarts_one_life_or_an_error(self):
        low = free_ports()
        options = (f"at={AT}", f"port_min={low}", f"port_max={low + 1}")
        readers = [(self.peer, {})]  # handle: checksum of a page of its life
        for _ in range(3):
            readers.append((Peer(MIB), {}))
            self.addCleanup(readers[-1][0].end)
        stop = threading.Event()
        outcomes = {"whole": 0, "error": 0}
        wrong = []

        def read_on(reader, handles):
            while not stop.is_set():
                # The newest and some of the old ones.
                for handle in [*list(handles)[-1:], *RANDOM.sample(list(handles), min(len(handles), 4))]:
                    outcome = reader.run("read", handle, 0, AT, 4096, timeout_ms=1000)
                    if outcome.counts[0] == 0:
                        outcomes["error"] += 1
                    elif reader.sum(0, 4096) == handles[handle]:
                        outcomes["whole"] += 1
                    else:
                        wrong.append(outcome)

        lives, threads, target = 25, [], None
        for number in range(lives):
            target = Peer(MIB, *options)
            target.ask(f"fill 0 4096 {number}")
            page = target.sum(0, 4096)
            # While it started, and from now on, they read through the handles that they have.
            stop.set()
            for thread in threads:
                thread.join()
            stop.clear()
            for reader, handles in readers:
                handles[reader.open(target.name)] = page
            threads = [threading.Thread(target=read_on, args=each) for each in readers]
            for thread in threads:
                thread.start()
            time.sleep(RANDOM.random() * 0.1)
            if number < lives - 1:
                target.kill()
        stop.set()
        for thread in threads:
            thread.join()
        target.end()
        print(outcomes, flush=True)
        self.assertEqual(wrong, [])
        self.assertTrue(all(len(handles) == lives for _, handles in readers))
        self.assertGreater(outcomes["whole"], 0)
        self.assertGreater(outcomes["error"], 0)


if __name__ == "__main__":
    main()
