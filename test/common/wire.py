# SPDX-License-Identifier: Apache-2.0
"""Bytes of the data port and the handshake port, fakes of both, and the program under test, for the tests beside."""

import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest
import zlib

MIB = 1 << 20
READ1, WRITE1, READ2, WRITE2, HELLO = 0x00, 0x01, 0x80, 0x81, 0x82
OK = bytes.fromhex("000000005654434d")
REFUSED = bytes.fromhex("010000005654434d")
OTHER_LIFE = bytes.fromhex("020000005654434d")
LEAVING = bytes.fromhex("100000005654434d")
CONNECTION, METADATA, NOTIFY, PROBE = range(4)
REASONS = (
    "none local_range remote_range refused unreachable reset protocol restarted timeout canceled segment_closed "
    "unregistered shutdown no_driver fault resources options unauthorized corrupt"
).split()
PATIENCE = 10  # seconds that any single answer may take

_seed = int(os.environ.get("LW_TEST_SEED", time.monotonic_ns() & 0x7FFFFFFF))
RANDOM = random.Random(_seed)


def header(size, addr, op, padding=bytes(7)):
    return struct.pack("<QQB", size, addr, op) + padding


def frame(kind, body):
    text = body if isinstance(body, bytes) else body.encode()
    return struct.pack("<QB", len(text) + 1, kind) + text


def connect(port, receive_buffer=None, host="127.0.0.1"):
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.settimeout(PATIENCE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.connect((host, port))
    return sock


def take(sock, count):
    """Exactly count bytes, or what came before the end."""
    parts = []
    while count > 0:
        part = sock.recv(min(count, MIB))
        if not part:
            break
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def rest(sock):
    """Everything until the end of the stream; a reset counts as one."""
    parts = []
    try:
        while part := sock.recv(MIB):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def reset(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def call(port, data, host="127.0.0.1"):
    """Bytes to a port in a connection of their own, and everything that comes back."""
    with connect(port, host=host) as sock:
        sock.sendall(data)
        return rest(sock)


def eventually(condition, seconds=PATIENCE):
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def compact(document):
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


class Peer:
    """An engine in a process of its own; see test/common/peer.h."""

    def __init__(self, size, *options, prefix=()):
        program = os.path.join(os.environ["LW_BUILD_DIR"], "test/sys/test_two_processes")
        self.process = subprocess.Popen(
            [*prefix, program, "peer", str(size), "drivers=tcp,null", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.log = []
        self.pending = b""
        self.reader = threading.Thread(target=self._read_log, daemon=True)
        self.reader.start()
        word, _, rest_of_it = self.answer().partition(" ")
        assert word == "ready"
        self.name, addr, self.size = rest_of_it.rsplit(" ", 2)
        self.addr = int(addr)
        if not any(option.startswith("metadata=") for option in options):  # else the name is a key in a store
            host, _, port = self.name.rpartition(":")
            self.port = int(port)
            reply = call(self.port, frame(METADATA, "{}"), "::1" if host == "[::1]" else "127.0.0.1")
            self.descriptor = json.loads(reply[9:])
            self.data_port = self.descriptor["tcp_data_port"]

    def _read_log(self):
        for line in self.process.stderr:
            self.log.append(line.decode(errors="replace"))

    def answer(self):
        while b"\n" not in self.pending:
            if not select.select([self.process.stdout], [], [], 2 * PATIENCE)[0]:
                raise TimeoutError("the peer does not answer")
            part = os.read(self.process.stdout.fileno(), 65536)
            if not part:
                self.reader.join(5)
                raise EOFError("the peer is gone: " + "".join(self.log))
            self.pending += part
        line, _, self.pending = self.pending.partition(b"\n")
        return line.decode().strip()

    def tell(self, *lines):
        """Sends lines, each of which will have an answer."""
        self.process.stdin.write("".join(line + "\n" for line in lines).encode())
        self.process.stdin.flush()

    def ask(self, line):
        self.tell(line)
        return self.answer()

    def open(self, name, timeout_ms=0):
        """The segment's handle, or the negative errno value."""
        words = self.ask(f"open {name} {timeout_ms}").split()
        return words[1] if words[0] == "segment" else int(words[1])

    def run(self, op, segment, offset, addr, length, count=1, timeout_ms=5000):
        answer = self.ask(f"run {op} {segment} {offset} {addr} {length} {count} {timeout_ms}")
        words = answer.split(" ", 7)
        if words[0] != "ran":
            raise AssertionError(answer)
        return Outcome(*map(int, words[1:6]), REASONS[int(words[6])], words[7])

    def sum(self, offset, length):
        return int(self.ask(f"sum {offset} {length}").split()[1], 16)

    def state(self):
        """Descriptors, threads, resident KiB, notes, lanes."""
        return list(map(int, self.ask("state").split()[1:]))

    def kill(self):
        self.process.kill()
        self.process.wait()
        self._close()

    def end(self):
        """Ends it in order, and tells its exit status."""
        self.process.stdin.close()
        try:
            status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._close()
        if status != 0:
            sys.stderr.write("".join(self.log))
        return status

    def _close(self):
        self.reader.join(5)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()


class Outcome:
    def __init__(self, completed, failed, canceled, timeout, ms, reason, text):
        self.counts = (completed, failed, canceled, timeout)
        self.ms, self.reason, self.text = ms, reason, text

    def __repr__(self):
        return f"{self.counts} {self.ms} ms {self.reason}: {self.text}"


class Port:
    """A listener on 127.0.0.1 that gives each connection to serve(sock), in a thread of its own."""

    def __init__(self, serve, receive_buffer=None):
        self.serve = serve
        self.listener = socket.socket()
        if receive_buffer:
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(64)
        self.port = self.listener.getsockname()[1]
        self.open = set()
        self.accepted = 0
        self.serving = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            sock.settimeout(2 * PATIENCE)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.accepted += 1
            self.open.add(sock)
            self.serving.append(threading.Thread(target=self._serve, args=(sock,), daemon=True))
            self.serving[-1].start()

    def join(self):
        """Waits until serve has returned for every connection so far."""
        for thread in self.serving:
            thread.join(2 * PATIENCE)

    def _serve(self, sock):
        try:
            self.serve(sock)
        except OSError:
            pass
        finally:
            self.open.discard(sock)
            sock.close()

    def close(self):
        if self.listener.fileno() < 0:
            return
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for sock in list(self.open):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Handshake(Port):
    """A handshake port that answers every metadata request with the document, or with the text."""

    text = None

    def __init__(self, document=None):
        super().__init__(self.answer)
        self.name = f"127.0.0.1:{self.port}"
        self.document = document
        self.requests = []

    def answer(self, sock):
        length, kind = struct.unpack("<QB", take(sock, 9))
        self.requests.append((kind, take(sock, length - 1)))
        text = compact(self.document) + "\n" if self.text is None else self.text
        sock.sendall(frame(METADATA, text))
        sock.shutdown(socket.SHUT_WR)
        sock.recv(1)


class FakeTarget:
    """Memory behind a handshake port and a data port, as the specification has them. Hooks spoil the answers.

    answer(target, number, op, addr, size, sock): True if it dealt with the request, None: as usual, False: close.
    """

    BASE = 0x10000000

    def __init__(self, size=4 * MIB, version=2, incarnation=None, answer=None, spoon=None, receive_buffer=None):
        self.memory = bytearray(size)
        self.headers = []
        self.answer = answer
        self.spoon = spoon  # bytes a send
        self.incarnation = incarnation
        self.lock = threading.Lock()
        self.data = Port(self.serve, receive_buffer)
        self.handshake = Handshake()
        self.name = self.handshake.name
        self.handshake.document = {
            "buffers": [{"addr": self.BASE, "length": size, "name": self.name}],
            "name": self.name,
            "protocol": "tcp",
            "tcp_data_port": self.data.port,
            "timestamp": "2026-01-01 00:00:00.000000",
        }
        if version is not None:
            self.handshake.document["tcp_proto_version"] = version
        if incarnation is not None:
            self.handshake.document["lw"] = {"incarnation": f"{incarnation:016x}"}

    def send(self, sock, data):
        step = self.spoon or len(data)
        for i in range(0, len(data), step):
            sock.sendall(data[i : i + step])

    def serve(self, sock):
        while len(head := take(sock, 24)) == 24:
            size, addr, op = struct.unpack("<QQB", head[:17])
            with self.lock:
                number = len(self.headers)
                self.headers.append(head)
            if op == HELLO:
                if head[17] & 2:
                    take(sock, 32)  # the nonce of a proof, which we can't answer
                self.send(sock, OK if addr == self.incarnation else OTHER_LIFE)
                continue
            verdict = self.answer(self, number, op, addr, size, sock) if self.answer else None
            if verdict is False:
                return
            if verdict is True:
                continue
            at = addr - self.BASE
            if op & 0x7F == 1:
                self.memory[at : at + size] = take(sock, size)
                if op & 0x80:
                    self.send(sock, OK)
            else:
                self.send(sock, (OK if op & 0x80 else b"") + self.memory[at : at + size])

    def close(self):
        self.data.close()
        self.handshake.close()


def crc(data):
    return zlib.crc32(data)


def main():
    print(f"LW_TEST_SEED={_seed}", flush=True)
    unittest.main(module="__main__", verbosity=2)
