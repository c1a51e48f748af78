# SPDX-License-Identifier: Apache-2.0
"""The engine against bytes that are written down here: as a target of scripted initiators, and as an initiator of
scripted targets. Run by test_wire.sh."""

import json
import signal
import socket
import struct
import time
import unittest

from wire import (
    CONNECTION,
    HELLO,
    METADATA,
    MIB,
    NOTIFY,
    OK,
    OTHER_LIFE,
    PROBE,
    RANDOM,
    READ1,
    READ2,
    REFUSED,
    WRITE1,
    WRITE2,
    FakeTarget,
    Peer,
    call,
    compact,
    connect,
    crc,
    eventually,
    frame,
    header,
    main,
    reset,
    rest,
    take,
)

PROBES = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n\r\n",
    "TLS": bytes.fromhex("16030100ba010000b60303") + bytes(range(180)),
    "SSH": b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n",
}
# The target's memory, in MiB: two adjacent buffers, a hole, one to read, one to write, one of its own, one at the end.
OFFER = ((0, 4, 3), (4, 4, 3), (9, 1, 1), (10, 1, 2), (11, 1, 0), (12, 4, 3))
SIZE = 16 * MIB


class Served(unittest.TestCase):
    """One target for all tests of a class, which must be as it was afterwards."""

    @classmethod
    def setUpClass(cls):
        parts = ",".join(f"{at * MIB}:{length * MIB}:{access}" for at, length, access in OFFER)
        cls.target = Peer(SIZE, f"offer={parts}")
        cls.base = cls.target.addr
        cls.port = cls.target.data_port

    @classmethod
    def tearDownClass(cls):
        status = cls.target.end()
        assert status == 0, f"the target ended with {status}"

    def setUp(self):
        self.assertTrue(eventually(lambda: self.target.state()[4] == 0), "connections of the test before are left")

    def tearDown(self):
        # Whatever happened: the next one is served.
        data = RANDOM.randbytes(100)
        with connect(self.port) as sock:
            sock.sendall(header(100, self.base + 4 * MIB - 50, WRITE2) + data)
            self.assertEqual(take(sock, 8), OK)
            sock.sendall(header(100, self.base + 4 * MIB - 50, READ2))
            self.assertEqual(take(sock, 108), OK + data)


class DataPort(Served):
    def test_v2_write_and_read_exact(self):
        with connect(self.port) as sock:
            for size in (1, 23, 24, 25, 4096, 61440, 65537, MIB + 1, 4 * MIB):
                data = RANDOM.randbytes(size)
                at = RANDOM.randrange(4 * MIB - size + 1)
                sock.sendall(header(size, self.base + at, WRITE2) + data)
                self.assertEqual(take(sock, 8), OK)
                self.assertEqual(self.target.sum(at, size), crc(data))
                sock.sendall(header(size, self.base + at, READ2))
                self.assertEqual(take(sock, 8), OK)
                self.assertEqual(take(sock, size), data)

    def test_v1_write_and_read_exact(self):
        with connect(self.port) as sock:
            for size in (1, 24, 65537, MIB):
                data = RANDOM.randbytes(size)
                sock.sendall(header(size, self.base + 3, WRITE1) + data)
                sock.sendall(header(size, self.base + 3, READ1))
                self.assertEqual(take(sock, size), data)

    def test_padding_of_any_content_is_ignored(self):
        with connect(self.port) as sock:
            sock.sendall(header(5, self.base, WRITE2, b"\xff" * 7) + b"12345" + header(5, self.base, READ2, b"garbage"))
            self.assertEqual(take(sock, 21), OK + OK + b"12345")

    def test_pipelined_versions_mixed_answers_in_order(self):
        with connect(self.port) as sock:
            request, answer = b"", b""
            for i in range(300):
                size = RANDOM.randrange(1, 3000)
                data = RANDOM.randbytes(size)
                at = self.base + RANDOM.randrange(MIB)
                write, read = RANDOM.choice((WRITE1, WRITE2)), RANDOM.choice((READ1, READ2))
                request += header(size, at, write) + data + header(size, at, read)
                answer += (OK if write == WRITE2 else b"") + (OK if read == READ2 else b"") + data
            sock.sendall(request)
            self.assertEqual(take(sock, len(answer)), answer)

    def test_thousands_of_confirmations_none_lost(self):
        with connect(self.port) as sock:
            sock.sendall((header(1, self.base, WRITE2) + b"x") * 5000)
            self.assertEqual(take(sock, 40000), OK * 5000)

    def test_adjacent_buffers_served_as_one_range(self):
        data = RANDOM.randbytes(5000)
        with connect(self.port) as sock:
            sock.sendall(header(5000, self.base + 4 * MIB - 1234, WRITE2) + data)
            sock.sendall(header(5000, self.base + 4 * MIB - 1234, READ2))
            self.assertEqual(take(sock, 5016), OK + OK + data)

    def refusals(self):
        base, top = self.base, 1 << 64
        for op in (READ1, WRITE1, READ2, WRITE2):
            yield op, base, 0
            yield op, base, 1 << 63
            yield op, base, top - 1
            yield op, base, top - base  # ends at 2^64
            yield op, base, top - base + 1
            yield op, base, 8 * MIB + 1  # one past the second buffer
            yield op, base - 1, 1
            yield op, base - 1, 2
            yield op, base + 8 * MIB, 1  # the hole
            yield op, base + 8 * MIB - 1, 2
            yield op, base + 9 * MIB - 1, 2
            yield op, base + 11 * MIB, 1  # its own
            yield op, base + 16 * MIB, 1  # behind the last buffer is nothing
            yield op, base + 16 * MIB - 1, 2
            yield op, 0, 1
            yield op, 8, 4096
            yield op, top - 1, 1
            yield op, top - 1, 2
            if op & 0x7F == 1:
                yield op, base + 9 * MIB, 1  # to read only
            else:
                yield op, base + 10 * MIB, 1  # to write only

    def test_refused_ranges_v2_status_then_close_v1_close(self):
        before = self.target.sum(0, SIZE)
        for op, addr, size in self.refusals():
            with self.subTest(op=hex(op), addr=hex(addr), size=hex(size)), connect(self.port) as sock:
                sock.sendall(header(size, addr, op))
                self.assertEqual(rest(sock), REFUSED if op & 0x80 else b"")
        self.assertEqual(self.target.sum(0, SIZE), before)

    def test_any_headers_near_the_edges_judged_byte_by_byte(self):
        edges = sorted({at * MIB + add for at, length, _ in OFFER for add in (0, length * MIB)} | {0, SIZE})
        sizes = (0, 1, 2, 23, 25, 4096, MIB, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1, (1 << 64) - self.base)
        # What each byte may be used for, and what it is. Buffers side by side are one range.
        rights = {at: access for start, length, access in OFFER for at in range(start, start + length)}
        mirror = bytearray(RANDOM.randbytes(SIZE))
        untouched = {at: self.target.sum(at * MIB, MIB) for at in range(SIZE // MIB) if not rights.get(at, 0) & 2}
        with connect(self.port) as sock:
            for at, access in rights.items():
                here = slice(at * MIB, (at + 1) * MIB)
                if access & 2:
                    sock.sendall(header(MIB, self.base + at * MIB, WRITE2) + mirror[here])
                    self.assertEqual(take(sock, 8), OK)
                elif access & 1:
                    sock.sendall(header(MIB, self.base + at * MIB, READ1))
                    mirror[here] = take(sock, MIB)
        served = 0
        for _ in range(1500):
            op = RANDOM.choice((READ1, WRITE1, READ2, WRITE2, RANDOM.randrange(256)))
            size = RANDOM.choice((RANDOM.choice(sizes) + RANDOM.randrange(-2, 3), RANDOM.randrange(5000))) % (1 << 64)
            at = RANDOM.choice(edges) + RANDOM.choice((0, 0, -1, 1, -size, -size + 1, -size - 1, RANDOM.randrange(-9, 9)))
            if op == HELLO:
                continue
            write, status = op & 0x7F == 1, OK if op & 0x80 else b""
            right = size != 0 and 0 <= at and at + size <= SIZE and all(
                rights.get(i, 0) & (2 if write else 1) for i in range(at // MIB, (at + size - 1) // MIB + 1)
            )
            head = header(size, (self.base + at) % (1 << 64), op, RANDOM.randbytes(7))
            with self.subTest(op=hex(op), at=hex(at), size=hex(size)), connect(self.port) as sock:
                cut = RANDOM.randrange(25)
                sock.sendall(head[:cut])
                sock.sendall(head[cut:])
                if not right:
                    self.assertEqual(rest(sock), REFUSED if status else b"")
                    continue
                served += 1
                if write:
                    data = RANDOM.randbytes(size)
                    mirror[at : at + size] = data
                    sock.sendall(data)
                    # Version 1 confirms nothing, but the target closes when it has everything.
                    sock.shutdown(socket.SHUT_WR)
                    self.assertEqual(rest(sock), status)
                else:
                    self.assertEqual(take(sock, len(status)), status)
                    self.assertTrue(take(sock, size) == mirror[at : at + size], "other bytes")
        print(f"{served} served", flush=True)
        for at in range(SIZE // MIB):
            wanted = untouched.get(at, crc(mirror[at * MIB : (at + 1) * MIB]))
            self.assertEqual(self.target.sum(at * MIB, MIB), wanted)

    def test_refused_write_with_its_body_status_arrives(self):
        for size in (1, 65536, 3 * MIB):
            with connect(self.port) as sock:
                sock.sendall(header(size, self.base + 8 * MIB, WRITE2))
                try:
                    sock.sendall(bytes(size))
                except OSError:
                    pass
                self.assertEqual(rest(sock), REFUSED)

    def test_refusal_in_a_pipeline_nothing_behind_it_is_done(self):
        with connect(self.port) as sock:
            sock.sendall(header(4, self.base + 100, WRITE2) + b"old!" + header(4, self.base + 200, WRITE2) + b"old!")
            self.assertEqual(take(sock, 16), OK + OK)
            sock.sendall(
                header(4, self.base + 100, WRITE2) + b"new!"
                + header(4, self.base + 8 * MIB, WRITE2) + b"bad!"
                + header(4, self.base + 200, WRITE2) + b"new!"
            )
            self.assertEqual(rest(sock), OK + REFUSED)
        with connect(self.port) as sock:
            sock.sendall(header(4, self.base + 100, READ1) + header(4, self.base + 200, READ1))
            self.assertEqual(take(sock, 8), b"new!old!")

    def test_bytes_one_by_one_served(self):
        data = RANDOM.randbytes(40)
        with connect(self.port) as sock:
            for byte in header(40, self.base + 7, WRITE2) + data + header(40, self.base + 7, READ2):
                sock.sendall(bytes((byte,)))
                time.sleep(0.0005)
            self.assertEqual(take(sock, 56), OK + OK + data)

    def test_unknown_operations_served_as_read(self):
        with connect(self.port) as sock:
            sock.sendall(header(6, self.base, WRITE2) + b"hello!")
            self.assertEqual(take(sock, 8), OK)
            for op in (0x02, 0x05, 0x7F):
                sock.sendall(header(6, self.base, op))
                self.assertEqual(take(sock, 6), b"hello!")
                if op | 0x80 != HELLO:
                    sock.sendall(header(6, self.base, op | 0x80))
                    self.assertEqual(take(sock, 14), OK + b"hello!")

    def test_hello_right_and_wrong_incarnation(self):
        life = int(self.target.descriptor["lw"]["incarnation"], 16)
        with connect(self.port) as sock:
            sock.sendall(header(0, life, HELLO) + header(3, self.base, WRITE2) + b"abc")
            self.assertEqual(take(sock, 16), OK + OK)
        with connect(self.port) as sock:
            sock.sendall(header(0, life ^ 1, HELLO) + header(3, self.base, WRITE2) + b"xyz")
            self.assertEqual(rest(sock), OTHER_LIFE)
        with connect(self.port) as sock:
            sock.sendall(header(3, self.base, READ1))
            self.assertEqual(take(sock, 3), b"abc")

    def test_write_that_breaks_off_or_stalls_hurts_itself_alone(self):
        for _ in range(20):
            sock = connect(self.port)
            sock.sendall(header(MIB, self.base, WRITE2) + RANDOM.randbytes(RANDOM.randrange(20000)))
            RANDOM.choice((reset, socket.socket.close))(sock)
        stalled = [connect(self.port) for _ in range(20)]
        for sock in stalled:
            sock.sendall(header(MIB, self.base, WRITE2) + b"0123456789")
        begin = time.monotonic()
        with connect(self.port) as sock:
            sock.sendall(header(4, self.base + 2 * MIB, WRITE2) + b"well")
            self.assertEqual(take(sock, 8), OK)
        self.assertLess(time.monotonic() - begin, 1)
        for sock in stalled:
            sock.close()

    def test_clients_that_never_read_memory_bounded_others_served(self):
        resident = self.target.state()[2]
        deaf = [connect(self.port, 4096) for _ in range(40)]
        for sock in deaf:
            sock.sendall(header(MIB, self.base, READ2) * 200)
        begin = time.monotonic()
        for _ in range(50):
            with connect(self.port) as sock:
                sock.sendall(header(1000, self.base + 12 * MIB, READ2))
                self.assertEqual(len(take(sock, 1008)), 1008)
        self.assertLess(time.monotonic() - begin, 3)
        self.assertLess(self.target.state()[2] - resident, 16 * 1024)
        for sock in deaf:
            sock.close()

    def test_half_closed_client_gets_all_answers(self):
        data = RANDOM.randbytes(4 * MIB)
        with connect(self.port) as sock:
            sock.sendall(header(len(data), self.base + 12 * MIB, WRITE2) + data)
            self.assertEqual(take(sock, 8), OK)
        for op, begin in ((READ1, b""), (READ2, OK)):
            with connect(self.port, 65536) as sock:
                sock.sendall(header(len(data), self.base + 12 * MIB, op) * 2)
                sock.shutdown(socket.SHUT_WR)
                time.sleep(0.05)
                self.assertTrue(rest(sock) == (begin + data) * 2, "cut short, or other bytes")

    def test_half_closed_client_that_is_refused_gets_answers_and_status(self):
        """Both directions were shut down then, which is no reset: what is still on its way out has to come."""
        for size in range(50000, 400000, 12500):  # of one or another a part is in the target's kernel
            with connect(self.port, receive_buffer=16384) as sock:
                sock.sendall(header(size, self.base, READ2) + header(8, self.base + 8 * MIB, READ2))
                sock.shutdown(socket.SHUT_WR)
                time.sleep(0.05)  # the target has said that it has no more
                answers = rest(sock)
            self.assertEqual((len(answers), answers[-8:]), (size + 16, REFUSED))

    def test_broken_off_anywhere_300_times_target_as_before(self):
        before = self.target.state()
        stream = b""
        for size in (1, 100, 5000, 70000):
            stream += header(size, self.base, WRITE2) + bytes(size) + header(size, self.base, READ2)
            stream += header(size, self.base, WRITE1) + bytes(size) + header(size, self.base, READ1)
        for i in range(300):
            sock = connect(self.port)
            sock.sendall(stream[: RANDOM.randrange(len(stream))])
            if i % 3 == 0:
                reset(sock)
                continue
            if i % 3 == 1:
                sock.shutdown(socket.SHUT_WR)
                rest(sock)
            sock.close()
        self.assertTrue(eventually(lambda: self.target.state()[:2] == before[:2]), "descriptors or threads are left")

    def test_sigpipe_is_left_as_the_host_has_it(self):
        for _ in range(100):
            sock = connect(self.port)
            sock.sendall(header(MIB, self.base, READ2) * 5)
            reset(sock)
        with open(f"/proc/{self.target.process.pid}/status", encoding="ascii") as file:
            masks = dict(line.split(":", 1) for line in file)
        for mask in ("SigIgn", "SigCgt"):
            self.assertEqual(int(masks[mask], 16) >> (signal.SIGPIPE - 1) & 1, 0, mask)

    def test_foreign_protocols_closed(self):
        for name, data in PROBES.items():
            with self.subTest(name), connect(self.port) as sock:
                sock.sendall(data)
                self.assertIn(rest(sock), (b"", REFUSED))
        with connect(self.port) as sock:
            sock.sendall(b"*1\r\n$4\r\nPING\r\n")


class Deaf(unittest.TestCase):
    """More clients than a pool of buffers would bear."""

    def test_200_clients_that_never_read_64_mib_each(self):
        target = Peer(64 * MIB, "tcp_max_served=256", "max_lanes=512")
        self.addCleanup(lambda: self.assertEqual(target.end(), 0))
        target.ask(f"fill 0 {64 * MIB} 1")  # its pages are there
        before = target.state()
        # Small buffers: what the kernel may hold for all sockets together is not the question here.
        deaf = [connect(target.data_port, 65536) for _ in range(200)]
        for sock in deaf:
            self.addCleanup(sock.close)
            sock.sendall(header(64 * MIB, target.addr, READ2))
        self.assertTrue(eventually(lambda: target.state()[4] == 200))
        begin = time.monotonic()
        data = RANDOM.randbytes(5000)
        for i in range(50):
            with connect(target.data_port) as sock:
                sock.sendall(header(5000, target.addr + i, WRITE2) + data + header(5000, target.addr + i, READ2))
                self.assertEqual(take(sock, 5016), OK + OK + data)
        self.assertLess(time.monotonic() - begin, 10)
        after = target.state()
        self.assertLess(after[2] - before[2], 16 * 1024)
        self.assertEqual(after[1], before[1])
        # One that reads after all gets everything.
        data = take(deaf[77], 8 + 64 * MIB)
        self.assertEqual((data[:8], len(data)), (OK, 8 + 64 * MIB))
        for sock in deaf:
            RANDOM.choice((reset, socket.socket.close))(sock)
        self.assertTrue(eventually(lambda: target.state()[:2] == before[:2]), "descriptors or threads are left")


class HandshakePort(Served):
    def ask(self, data):
        return call(self.target.port, data)

    def test_probe_answer_exact(self):
        wanted = bytes.fromhex("1600000000000000" "03") + b'{"status":"success"}\n'
        self.assertEqual(self.ask(frame(PROBE, "{}\n")), wanted)
        self.assertEqual(self.ask(frame(PROBE, "{}")), wanted)

    def test_notify_answer_exact_and_note_received(self):
        self.target.state()
        wanted = bytes.fromhex("2400000000000000" "02") + b'{"name":"","notify_msg":"success"}\n'
        self.assertEqual(self.ask(frame(NOTIFY, '{"name":"n","notify_msg":"m"}\n')), wanted)
        self.assertEqual(self.ask(frame(NOTIFY, ' { "notify_msg" : "" , "more" : [1], "name" : "" } ')), wanted)
        self.assertEqual(self.target.state()[3], 2)

    def test_metadata_answer_exact(self):
        reply = self.ask(frame(METADATA, compact(self.target.descriptor) + "\n"))
        length, kind = struct.unpack("<QB", reply[:9])
        self.assertEqual((length, kind), (len(reply) - 8, METADATA))
        text = reply[9:].decode()
        document = json.loads(text)
        self.assertEqual(text, compact(document) + "\n")
        life = document.pop("lw")
        self.assertRegex(life["incarnation"], "^[0-9a-f]{16}$")
        self.assertRegex(document.pop("timestamp"), r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}$")
        offered = [part for part in OFFER if part[2] != 0]
        self.assertEqual(life["access"], [access for _, _, access in offered])
        buffers = [
            {"addr": self.base + at * MIB, "length": length * MIB, "name": self.target.name}
            for at, length, _ in offered
        ]
        self.assertEqual(
            document,
            {
                "buffers": buffers,
                "name": self.target.name,
                "protocol": "tcp",
                "tcp_data_port": self.port,
                "tcp_proto_version": 2,
            },
        )

    EMPTY = (
        b'{"local_gid":"","local_lid":0,"local_nic_path":"","payload":"","peer_nic_path":"","qp_num":[],"reply_msg":""}\n'
    )
    REQUEST = b'{"local_gid":"","local_lid":0,"local_nic_path":"a@b","payload":"","peer_nic_path":"c@d","qp_num":[1,2]}'

    def test_connection_answer_exact(self):
        wanted = struct.pack("<QB", len(self.EMPTY) + 1, CONNECTION) + self.EMPTY
        self.assertEqual(self.ask(frame(CONNECTION, self.REQUEST)), wanted)

    def test_legacy_answer_exact(self):
        wanted = struct.pack("<Q", len(self.EMPTY)) + self.EMPTY
        self.assertEqual(self.ask(struct.pack("<Q", len(self.REQUEST)) + self.REQUEST), wanted)

    def test_bad_frames_closed_without_a_byte(self):
        for name, data in {
            "type 4": b"\x03" + bytes(7) + b"\x04{}",
            "length 0": bytes(8),
            "length 2^63": struct.pack("<QB", 1 << 63, METADATA) + b"{}",
            "length above the limit": struct.pack("<QB", 16777217, METADATA) + b"{}",
            "broken probe": frame(PROBE, '{"a":'),
            "broken note": frame(NOTIFY, '{"name":"x"'),
            "broken connection": frame(CONNECTION, "{{"),
            "broken metadata": frame(METADATA, '{"name":'),
            "broken legacy": struct.pack("<Q", 3) + b"{x}",
        }.items():
            with self.subTest(name):
                self.assertEqual(self.ask(data), b"")

    def test_documents_of_wrong_types_survived(self):
        texts = ("5", "[]", "null", '"x"', '{"name":["x"]}', '{"name":{},"notify_msg":5}', '{"qp_num":["x"]}', "[" * 5000)
        for kind in range(4):
            for text in texts:
                self.ask(frame(kind, text + "\n"))
        self.assertEqual(self.ask(frame(PROBE, "{}"))[8:9], b"\x03")

    def test_bytes_one_by_one_answered(self):
        with connect(self.target.port) as sock:
            for byte in frame(PROBE, "{}\n"):
                sock.sendall(bytes((byte,)))
                time.sleep(0.002)
            self.assertEqual(rest(sock)[9:], b'{"status":"success"}\n')

    def test_two_frames_glued_first_answered(self):
        self.assertEqual(self.ask(frame(PROBE, "{}\n") * 2)[9:], b'{"status":"success"}\n')

    def test_silent_clients_delay_nobody(self):
        silent = [connect(self.target.port) for _ in range(50)]
        for sock in silent[::2]:
            sock.sendall(struct.pack("<QB", 16 * MIB, METADATA)[: RANDOM.randrange(10)])
        begin = time.monotonic()
        for _ in range(20):
            self.ask(frame(PROBE, "{}\n"))
        self.assertLess(time.monotonic() - begin, 1)
        for sock in silent:
            sock.close()

    def test_claimed_length_costs_no_memory(self):
        resident = self.target.state()[2]
        claims = [connect(self.target.port) for _ in range(100)]
        for sock in claims:
            sock.sendall(struct.pack("<QB", 16 * MIB, METADATA) + b'{"buffers":[')
        self.ask(frame(PROBE, "{}\n"))
        self.assertLess(self.target.state()[2] - resident, 8 * 1024)
        for sock in claims:
            sock.close()

    def test_broken_off_anywhere_300_times_target_as_before(self):
        before = self.target.state()
        for i in range(300):
            data = frame(RANDOM.choice((CONNECTION, METADATA, PROBE)), self.REQUEST)
            sock = connect(self.target.port)
            sock.sendall(data[: RANDOM.randrange(len(data) + 1)])
            if i % 3 == 1:
                sock.shutdown(socket.SHUT_WR)
            if i % 3 == 0:
                reset(sock)
            else:
                sock.close()
        self.assertTrue(eventually(lambda: self.target.state()[:2] == before[:2]), "descriptors or threads are left")

    def test_foreign_protocols_closed_and_named_once(self):
        lines = len(self.target.log)
        for _ in range(30):
            for name, data in PROBES.items():
                with self.subTest(name):
                    self.assertEqual(self.ask(data), b"")
        with connect(self.target.port) as sock:
            sock.sendall(b"PING\r\n")
        self.assertLess(len(self.target.log) - lines, 4)


class Initiator(unittest.TestCase):
    """Our initiator and scripted targets."""

    @classmethod
    def setUpClass(cls):
        cls.peer = Peer(8 * MIB)

    @classmethod
    def tearDownClass(cls):
        status = cls.peer.end()
        assert status == 0, f"the initiator ended with {status}"

    def fake(self, **how):
        fake = FakeTarget(**how)
        self.addCleanup(fake.close)
        fake.segment = self.peer.open(fake.name)
        self.assertIsInstance(fake.segment, str)
        return fake

    def move(self, fake, length=100001):
        """WRITE and READ back, exact on both sides."""
        self.peer.ask(f"fill 0 {length} {RANDOM.randrange(1 << 30)}")
        outcome = self.peer.run("write", fake.segment, 0, fake.BASE + 3, length)
        self.assertEqual(outcome.counts, (1, 0, 0, 0), outcome)
        # A WRITE of version 1 is not confirmed.
        self.assertTrue(eventually(lambda: crc(fake.memory[3 : 3 + length]) == self.peer.sum(0, length)))
        outcome = self.peer.run("read", fake.segment, 4 * MIB, fake.BASE + 3, length)
        self.assertEqual(outcome.counts, (1, 0, 0, 0), outcome)
        self.assertEqual(self.peer.sum(4 * MIB, length), self.peer.sum(0, length))

    def check_headers(self, fake, ops):
        self.assertEqual([head[16] for head in fake.headers], ops)
        for head in fake.headers:
            self.assertEqual(head[17:], bytes(7))

    def test_peer_without_version_v1_spoken(self):
        fake = self.fake(version=None)
        self.move(fake)
        self.check_headers(fake, [WRITE1, READ1])

    def test_peer_of_version_1_v1_spoken(self):
        fake = self.fake(version=1)
        self.move(fake)
        self.check_headers(fake, [WRITE1, READ1])

    def test_peer_of_version_2_v2_spoken_without_hello(self):
        fake = self.fake(version=2)
        self.move(fake)
        self.check_headers(fake, [WRITE2, READ2])
        self.assertEqual(fake.headers[0], header(100001, fake.BASE + 3, WRITE2))
        self.assertEqual(fake.data.accepted, 1)

    def test_peer_with_incarnation_greeted_first(self):
        fake = self.fake(incarnation=0x0123456789ABCDEF)
        self.move(fake)
        self.check_headers(fake, [HELLO, WRITE2, READ2])
        token = struct.unpack("<Q", fake.headers[0][:8])[0]
        self.assertNotEqual(token >> 8, 0)
        self.assertEqual(fake.headers[0], header(token, 0x0123456789ABCDEF, HELLO))

    def test_descriptor_with_blanks_and_unknown_fields_taken(self):
        fake = FakeTarget()
        self.addCleanup(fake.close)
        fake.handshake.document |= {"rdma_server_name": "x", "devices": [], "zzz": {"a": [1]}}
        fake.segment = self.peer.open(fake.name)
        self.move(fake)

    def test_metadata_request_carries_own_descriptor(self):
        fake = self.fake()
        kind, body = fake.handshake.requests[0]
        self.assertEqual(kind, METADATA)
        self.assertEqual(json.loads(body)["name"], self.peer.name)

    def test_answers_in_single_bytes_exact(self):
        for version in (1, 2):
            self.move(self.fake(version=version, spoon=1), 3000)

    def test_refusal_in_the_middle_of_a_pipeline_others_complete(self):
        def answer(fake, number, op, addr, size, sock):
            if addr != fake.BASE + 20 * 4096:
                return None
            sock.sendall(REFUSED)
            return False

        for op in ("write", "read"):
            fake = self.fake(answer=answer)
            outcome = self.peer.run(op, fake.segment, 0, fake.BASE, 4096, 64)
            self.assertEqual((outcome.counts, outcome.reason), ((63, 1, 0, 0), "refused"), outcome)
            self.assertIn(fake.name, outcome.text)
            if op == "write":
                fake.memory[20 * 4096 : 21 * 4096] = bytes(4096)
                self.assertEqual(self.peer.run("read", fake.segment, 4 * MIB, fake.BASE, 4096, 20).counts[0], 20)
                self.assertEqual(self.peer.sum(4 * MIB, 20 * 4096), self.peer.sum(0, 20 * 4096))

    def test_refusal_while_a_large_write_is_sent_told_as_refusal(self):
        def answer(fake, number, op, addr, size, sock):
            sock.sendall(REFUSED)
            sock.shutdown(socket.SHUT_WR)
            rest(sock)
            return False

        fake = self.fake(answer=answer)
        outcome = self.peer.run("write", fake.segment, 0, fake.BASE, 4 * MIB)
        self.assertEqual((outcome.counts, outcome.reason), ((0, 1, 0, 0), "refused"), outcome)

    def spoiled(self, answer, reasons, op="write", length=5000, timeout_ms=1000, **how):
        """One request whose answer is spoiled fails for one of the reasons, within the bound."""
        fake = self.fake(answer=answer, **how)
        outcome = self.peer.run(op, fake.segment, 0, fake.BASE, length, timeout_ms=timeout_ms)
        self.assertEqual(outcome.counts[0], 0, outcome)
        self.assertIn(outcome.reason, reasons)
        self.assertLessEqual(outcome.ms, timeout_ms + 1000)
        self.assertIn(fake.name, outcome.text)
        # The segment is not lost for it.
        fake.answer = None
        self.assertEqual(self.peer.run(op, fake.segment, 0, fake.BASE, length).counts, (1, 0, 0, 0))

    def test_wrong_magic_is_a_protocol_error(self):
        def answer(fake, number, op, addr, size, sock):
            if op & 0x7F == 1:
                take(sock, size)
            sock.sendall(bytes.fromhex("00000000deadbeef") + bytes(size))
            return False

        for op in ("write", "read"):
            self.spoiled(answer, ("protocol",), op)

    def test_unknown_status_is_a_protocol_error(self):
        def answer(fake, number, op, addr, size, sock):
            sock.sendall(bytes.fromhex("6300000056544 34d".replace(" ", "")))
            return False

        self.spoiled(answer, ("protocol",), "read")

    def test_confirmation_before_the_last_byte_is_a_protocol_error(self):
        def answer(fake, number, op, addr, size, sock):
            sock.sendall(OK)
            time.sleep(0.3)
            return False

        self.spoiled(answer, ("protocol",), length=4 * MIB, receive_buffer=4096)

    def test_end_of_stream_instead_of_an_answer(self):
        def close(fake, number, op, addr, size, sock):
            if op & 0x7F == 1:
                take(sock, size)
            return False

        def close_in_the_middle(fake, number, op, addr, size, sock):
            sock.sendall(OK + bytes(size // 2))
            return False

        def reset_it(fake, number, op, addr, size, sock):
            reset(sock)
            return False

        for op in ("write", "read"):
            self.spoiled(close, ("reset", "timeout"), op)
            self.spoiled(reset_it, ("reset", "unreachable", "timeout"), op)
        self.spoiled(close_in_the_middle, ("reset", "timeout"), "read")
        self.spoiled(close, ("reset", "timeout"), "read", version=1)

    def test_no_answer_times_out(self):
        def silence(fake, number, op, addr, size, sock):
            rest(sock)
            return False

        for op in ("write", "read"):
            self.spoiled(silence, ("timeout",), op, timeout_ms=400)
        self.spoiled(silence, ("timeout",), "write", 4 * MIB, 400)

    def test_bytes_beyond_an_answer_end_that_connection_alone(self):
        def answer(fake, number, op, addr, size, sock):
            if number != 0:
                return None
            fake.memory[addr - fake.BASE : addr - fake.BASE + size] = take(sock, size)
            sock.sendall(OK + b"surplus")
            return True

        fake = self.fake(answer=answer)
        for i in range(20):
            outcome = self.peer.run("write", fake.segment, 0, fake.BASE, 1000)
            self.assertEqual(outcome.counts, (1, 0, 0, 0), outcome)
        self.assertEqual(self.peer.sum(0, 1000), crc(fake.memory[:1000]))
        self.assertTrue(eventually(lambda: fake.data.accepted >= 2))


if __name__ == "__main__":
    main()
