# SPDX-License-Identifier: Apache-2.0
"""The exchanges of golden/, byte for byte, with the engine in both roles: a script plays the client and compares what the
engine answers, then plays the server and compares what the engine asks. Run by test_golden.sh."""

import mmap
import random
import socket
import struct
import threading
import time
import unittest

import golden
import lanewise
from reference import Reference, check_text, read_descriptor
from wire import PATIENCE, Port, compact, connect, frame, header, main, rest, take

SIZE = 1 << 20
PATTERN = random.Random(20260821).randbytes(SIZE)  # the same at every place of both memories
BLANK = bytes(byte ^ 0xFF for byte in PATTERN)
BASE = 0x10000000  # where a script's memory would be


class Script:
    """One side of an exchange: the bytes that it sends, and those that it waits for."""

    def __init__(self, test, exchange, base, descriptor):
        self.test, self.exchange, self.base = test, exchange, base
        self.descriptor = descriptor  # the script's own
        self.other = None  # the engine's, as it came
        self.last = 0  # offset of the last header
        self.reads = []  # offsets of reads that were not answered yet

    def value(self, side, piece):
        """The bytes of a piece of a line; None for the engine's descriptor."""
        name, plus, arguments = piece
        if name == "$base":
            self.last = plus
            return struct.pack("<Q", (self.base + plus) % (1 << 64))
        if name == "$data":
            at = self.reads.pop(0) if side == "S" and self.reads else self.last
            return PATTERN[at : at + int(arguments)]
        kind, _, text = arguments.partition(",") if name == "$frame" else ("", "", arguments)
        if text.startswith("$"):
            ours = text == ("$client_descriptor" if self.me == "C" else "$server_descriptor")
            body = self.descriptor if ours else None
        else:
            body = golden._pieces(text, self.exchange.name)[0]
        if body is None:
            return None
        return frame(int(kind, 16), body) if name == "$frame" else struct.pack("<Q", len(body)) + body

    def bytes(self, side, pieces):
        """The line's bytes; None: a frame with the engine's descriptor."""
        out = b""
        for piece in pieces:
            part = piece if isinstance(piece, bytes) else self.value(side, piece)
            if part is None:
                return None
            out += part
        if side == "C" and any(isinstance(piece, tuple) and piece[0] == "$base" for piece in pieces):
            if out[16] & 0x7F != 1:
                self.reads.append(self.last)
        return out

    def expect(self, sock, line):
        if line is None:
            length, kind = struct.unpack("<QB", take(sock, 9))
            self.test.assertEqual(kind, 1)
            text = take(sock, length - 1).decode()
            document = read_descriptor(text)
            check_text(text, document)
            self.other = document
            return
        got = take(sock, len(line))
        if got != line:
            at = next((i for i, (a, b) in enumerate(zip(got, line)) if a != b), min(len(got), len(line)))
            self.test.fail(
                f"{self.exchange.name}: byte {at} of {len(line)}: {got[at:at + 16].hex(' ')} and not "
                f"{line[at:at + 16].hex(' ')}"
            )

    def play(self, sock, side, pieces):
        if pieces == "end":
            if self.me == "C":
                self.test.assertEqual(rest(sock), b"", self.exchange.name)
            else:
                try:
                    sock.shutdown(socket.SHUT_WR)
                except OSError:  # the engine has what it asked for and is gone
                    pass
        elif side == self.me:
            line = self.bytes(side, pieces)
            try:
                sock.sendall(line)
            except (BrokenPipeError, ConnectionResetError):  # refused before it had all: what it said is read
                pass
        else:
            self.expect(sock, self.bytes(side, pieces))


class Client(Script):
    me = "C"


class Server(Script):
    me = "S"


class Golden(unittest.TestCase):
    def setUp(self):
        self.engine = lanewise.Engine("127.0.0.1", settings={"drivers": "tcp,null", "handshake_timeout_ms": 3000})
        self.addCleanup(self.engine.close)
        self.memory = mmap.mmap(-1, SIZE)
        self.memory[:] = PATTERN
        self.buffer = self.engine.register(self.memory)
        self.model = Reference([(BASE, SIZE)])  # for its descriptor
        self.addCleanup(self.model.close)

    def data_port(self):
        return self.model.open(self.engine.name)["tcp_data_port"]

    # The engine serves

    def serve(self, exchange, port):
        stray = mmap.mmap(-1, SIZE)
        base, _, keep = lanewise.engine.memory_of(stray if exchange.outside else self.memory)
        client = Client(self, exchange, base, written(self.model.descriptor()))
        self.blank(exchange)
        with connect(port) as sock:
            for side, pieces in exchange.lines():
                client.play(sock, side, pieces)
            if exchange.name.startswith("data") and exchange.lines()[-1][1] != "end":
                sock.sendall(header(1, self.buffer.addr, 0x80))  # nothing is left over, and it goes on
                self.assertEqual(take(sock, 9), bytes.fromhex("000000005654434d") + self.memory[:1], exchange.name)
        self.assertEqual(self.memory[:], PATTERN, exchange.name)
        self.assertEqual(stray[:], bytes(SIZE), exchange.name)
        del keep

    def blank(self, exchange):
        """What the exchange will write is not there yet."""
        for do, _ in exchange.steps:
            if do and do.startswith("write") and not exchange.outside:
                for at, length in golden.words(do)[1]:
                    self.memory[at : at + length] = BLANK[at : at + length]

    def test_target_on_the_data_port(self):
        port = self.data_port()
        for exchange in golden.load("data"):
            if "target" in exchange.roles:
                with self.subTest(exchange.name):
                    self.serve(exchange, port)

    def test_target_on_the_handshake_port(self):
        for exchange in golden.load("handshake"):
            if "target" in exchange.roles:
                with self.subTest(exchange.name):
                    self.serve(exchange, self.engine.port)
        notes = [(note.name, note.text) for note in self.engine.notes()]
        self.assertEqual(notes, [("agent1", "notification1"), ("", ""), ("a", "b")])

    # The engine asks

    def ask(self, exchange, which):
        model = Reference([(BASE, SIZE)], exchange.version)
        self.addCleanup(model.close)
        opens = which == "handshake" and exchange.steps[0][0] == "open"
        before = [] if opens or which == "data" else [model.serve_handshake]  # what comes before the exchange
        failures, played = [], []
        through, done = threading.Event(), threading.Event()

        def serve(sock):
            if before:
                before.pop()(sock)
                return
            script = Server(self, exchange, BASE, written(model.descriptor()))
            try:
                for side, pieces in exchange.lines():
                    script.play(sock, side, pieces)
                through.set()
                if which == "handshake":
                    begin = time.monotonic()
                    self.assertEqual(rest(sock), b"")  # a server of the reference serves nobody meanwhile
                    self.assertLess(time.monotonic() - begin, 1)
                else:
                    done.wait(2 * PATIENCE)
            except (AssertionError, OSError) as error:
                failures.append(error)
            finally:
                played.append(exchange.name)

        port = Port(serve)
        self.addCleanup(port.close)
        if which == "data":
            model.data.close()
            model.data = port
        name = model.name if which == "data" else f"127.0.0.1:{port.port}"
        try:
            peer = None if opens else self.engine.open(name)
            outcomes = [self.carry_out(do, peer, name) for do, _ in exchange.steps]
            through.wait(PATIENCE)  # a v1 WRITE is over sooner than it has arrived
        finally:
            done.set()
            port.join()
            if failures:
                raise failures[0]
        self.assertEqual(outcomes, [exchange.expect] * len(outcomes), exchange.name)
        # What failed for the connection's sake is asked again on others, with the same bytes.
        self.assertLessEqual(len(played), 1 if exchange.expect is None else 4, "connections")
        self.assertGreater(len(played), 0)
        if peer is not None:
            peer.close()

    def carry_out(self, do, peer, name):
        """None, the errno, or the reason."""
        op, words = golden.words(do)
        try:
            if op == "open":
                self.engine.open(name, 3).close()
            elif op == "probe":
                peer.probe(3)
            elif op == "notify":
                peer.notify(*(words or ("", "")), 3)
            else:
                self.move(op, peer, words)
        except lanewise.TransferError as error:
            return error.reason
        except lanewise.Error as error:
            return error.errno
        return None

    def move(self, op, peer, ranges):
        self.memory[:] = PATTERN
        if op == "read":
            for at, length in ranges:
                self.memory[at : at + length] = BLANK[at : at + length]
        local = [self.buffer.addr + at for at, _ in ranges]
        remote = [BASE + at for at, _ in ranges]
        code = lanewise.READ if op == "read" else lanewise.WRITE
        with self.engine.submit(code, peer, local, remote, [length for _, length in ranges], 3) as batch:
            batch.result()
        self.assertEqual(self.memory[:], PATTERN)

    def test_initiator_on_the_data_port(self):
        for exchange in golden.load("data"):
            if "initiator" in exchange.roles:
                with self.subTest(exchange.name):
                    self.ask(exchange, "data")

    def test_initiator_on_the_handshake_port(self):
        for exchange in golden.load("handshake"):
            if "initiator" in exchange.roles:
                with self.subTest(exchange.name):
                    self.ask(exchange, "handshake")

    def test_frames_say_how_long_they_are(self):
        """The lengths in the file itself."""
        for exchange in golden.load("handshake"):
            for side, pieces in exchange.lines():
                plain = isinstance(pieces, list) and all(isinstance(piece, bytes) for piece in pieces)
                if plain and len(b"".join(pieces)) > 12:
                    line = b"".join(pieces)
                    self.assertEqual(struct.unpack("<Q", line[:8])[0], len(line) - 8, (exchange.name, side))


def written(document):
    return (compact(document) + "\n").encode()


if __name__ == "__main__":
    main()
