# SPDX-License-Identifier: Apache-2.0
"""A peer as Mooncake's classic Transfer Engine is one on the wire, from the description of its protocol: what its readers
refuse, its handshake daemon, its TCP server, its TCP client. Nothing of ours is in it."""

import datetime
import json
import re
import socket
import struct
import threading
import urllib.error
import urllib.parse
import urllib.request

from wire import METADATA, NOTIFY, OK, PROBE, REFUSED, Port, compact, connect, frame, header, take

PROTOCOLS = (
    "rdma efa cxi barex ub tcp nccl ascend nvlink nvlink_intra hip maca musa ubshmem sunrise_link cxl nvmeof"
).split()
NO_QUEUE_PAIRS = {
    "local_gid": "",
    "local_lid": 0,
    "local_nic_path": "",
    "payload": "",
    "peer_nic_path": "",
    "qp_num": [],
    "reply_msg": "",
}
UINT64, UINT16 = (1 << 64) - 1, (1 << 16) - 1
STATUS_S = 30  # how long it waits for a status
HANDSHAKE_S = 60


class Rejected(Exception):
    """A document or an answer that the reference would not take; the text says why."""


def _is(value, kind, name):
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Rejected(f"{name} is {value!r}")
    return value


def _whole(value, most, name):
    if not 0 <= _is(value, int, name) <= most:
        raise Rejected(f"{name} is {value}")
    return value


def read_descriptor(text):
    """The document of a segment, as a build without several protocols reads it."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise Rejected(str(error)) from None
    _is(document, dict, "the document")
    if document.get("protocol") not in PROTOCOLS:
        raise Rejected(f"protocol is {document.get('protocol')!r}")
    if _is(document.get("name"), str, "name") == "":
        raise Rejected("name is empty")
    _whole(document.get("tcp_data_port"), UINT16, "tcp_data_port")
    _whole(document.get("tcp_proto_version", 1), UINT16, "tcp_proto_version")
    for buffer in _is(document.get("buffers"), list, "buffers"):
        if _is(_is(buffer, dict, "a buffer").get("name"), str, "a buffer's name") == "":
            raise Rejected("a buffer's name is empty")
        if document["protocol"] == "tcp":
            addr, length = (_whole(buffer.get(key), UINT64, key) for key in ("addr", "length"))
            if addr == 0 or length == 0:
                raise Rejected(f"a buffer has address {addr} and length {length}")
    return document


def read_contact(text):
    """Where the handshake daemon of a name is: host and port."""
    try:
        document = _is(json.loads(text), dict, "rpc_meta")
    except ValueError as error:
        raise Rejected(str(error)) from None
    return _is(document.get("ip_or_host_name"), str, "ip_or_host_name"), _whole(document.get("rpc_port"), UINT16, "rpc_port")


def check_text(text, document, end="\n"):
    """Its writers' form: compact, keys sorted, one newline at the end."""
    # It reads letters beyond ASCII as they are, and writes them escaped.
    if text not in (compact(document) + end, json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + end):
        raise Rejected(f"this is not how it is written: {text!r}")
    stamp = document.get("timestamp", "")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}", stamp):
        raise Rejected(f"timestamp is {stamp!r}")


def covers(ranges, addr, size):
    """Inside one registered buffer, and no buffer wraps around."""
    return size > 0 and any(start <= addr and addr + size <= start + length for start, length in ranges)


class Reference:
    """One engine of the reference's kind, with memory at addresses of its own making."""

    def __init__(self, ranges, version=2):
        """ranges: (addr, length) of its registered buffers."""
        self.memory = {addr: bytearray(length) for addr, length in ranges}
        self.version = version
        self.notes, self.requests, self.problems = [], [], []
        self.data = Port(self._serve_data)
        self.daemon = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.name = f"127.0.0.1:{self.daemon.getsockname()[1]}"
        self.thread = threading.Thread(target=self._daemon, daemon=True)
        self.thread.start()

    def close(self):
        self.daemon.shutdown(socket.SHUT_RDWR)
        self.thread.join(10)
        self.daemon.close()
        self.data.close()

    def descriptor(self):
        document = {
            "buffers": [{"addr": at, "length": len(m), "name": self.name} for at, m in self.memory.items()],
            "name": self.name,
            "protocol": "tcp",
            "tcp_data_port": self.data.port,
            "timestamp": datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S.%f"),
        }
        return document | ({} if self.version is None else {"tcp_proto_version": self.version})

    def ranges(self):
        return [(at, len(memory)) for at, memory in self.memory.items()]

    def place(self, addr, size):
        """A view of memory that covers() said yes to."""
        for at, memory in self.memory.items():
            if at <= addr and addr + size <= at + len(memory):
                return memoryview(memory)[addr - at : addr - at + size]
        raise KeyError(addr)

    # The handshake daemon: one thread, one client after the other

    def _daemon(self):
        while True:
            try:
                sock, _ = self.daemon.accept()
            except OSError:
                return
            with sock:
                self.serve_handshake(sock)

    def serve_handshake(self, sock):
        """One connection, to its end."""
        sock.settimeout(5)
        try:
            self._handshake(sock)
        except OSError as error:
            self.problems.append(f"handshake: {error}")

    def _handshake(self, sock):
        length, kind = struct.unpack("<QB", take(sock, 9))
        if not 1 < length <= 1 << 20:
            self.problems.append(f"a frame of {length} bytes")
            return
        body = take(sock, length - 1).decode()
        try:
            reply = self._reply(kind, body)
        except Rejected as error:
            self.problems.append(f"request of type {kind}: {error}")
            return
        sock.sendall(frame(kind, compact(reply) + "\n"))
        try:
            sock.shutdown(socket.SHUT_WR)
            if sock.recv(1):
                self.problems.append("bytes behind the request")
        except TimeoutError:
            self.problems.append("the client kept its connection, and all others waited")
        except OSError:
            pass  # it has the reply and is gone already, with a reset

    def _reply(self, kind, body):
        self.requests.append((kind, body))
        if not body.endswith("\n"):
            raise Rejected(f"no newline: {body!r}")
        if kind == METADATA:
            return self._describe(body)
        request = _is(json.loads(body), dict, "the request")
        if kind == NOTIFY:
            self.notes.append((_is(request["name"], str, "name"), _is(request["notify_msg"], str, "notify_msg")))
            return {"name": "", "notify_msg": "success"}
        if kind == PROBE:
            return {"status": "success"}
        for key, like in NO_QUEUE_PAIRS.items():
            _is(request.get(key, like), type(like), key)
        return NO_QUEUE_PAIRS

    def _describe(self, body):
        document = read_descriptor(body)
        check_text(body, document)
        return self.descriptor()

    # The data port: one request after the other

    def _serve_data(self, sock):
        while len(head := take(sock, 24)) == 24:
            size, addr, op = struct.unpack("<QQB", head[:17])
            v2 = op & 0x80 != 0 and self.version != 1
            if not covers(self.ranges(), addr, size):
                if v2:
                    sock.sendall(REFUSED)
                return
            place = self.place(addr, size)
            if op & 0x7F == 1 and (v2 or op & 0x80 == 0):
                for at in range(0, size, 65536):  # what it moves at a time
                    piece = take(sock, min(65536, size - at))
                    place[at : at + len(piece)] = piece
                if v2:
                    sock.sendall(OK)
            else:
                if v2:
                    sock.sendall(OK)
                for at in range(0, size, 65536):
                    sock.sendall(place[at : at + 65536])

    # The client

    def handshake(self, name, kind, document):
        """The reply to a request of a connection of its own."""
        with connect(self.find(name)[1]) as sock:
            sock.settimeout(HANDSHAKE_S)
            sock.sendall(frame(kind, compact(document) + "\n"))
            length, back = struct.unpack("<QB", take(sock, 9))
            if back != kind:
                raise Rejected(f"a reply of type {back} to type {kind}")
            return take(sock, length - 1).decode()

    def find(self, name):
        """Host and port of a name's handshake daemon."""
        host, _, port = name.rpartition(":")
        return host, int(port)

    def open(self, name):
        """Its descriptor, as it came, checked."""
        text = self.handshake(name, METADATA, self.descriptor())
        document = read_descriptor(text)
        check_text(text, document)
        return document

    def notify(self, name, note, text):
        reply = json.loads(self.handshake(name, NOTIFY, {"name": note, "notify_msg": text}))
        if not reply.get("notify_msg"):
            raise Rejected("the note was refused")

    def transfer(self, peer, write, own, addr, size, sock=None, version=None):
        """One request; a connection of its own unless it is given one. Rejected when the peer refuses."""
        version = version or (2 if peer.get("tcp_proto_version", 1) >= 2 else 1)
        with sock and _Kept(sock) or connect(peer["tcp_data_port"]) as lane:
            lane.settimeout(STATUS_S)
            lane.sendall(header(size, addr, (0x80 if version == 2 else 0) | write))
            if write:
                lane.sendall(self.place(own, size))
            if version == 2:
                status = take(lane, 8)
                if status != OK:
                    raise Rejected(f"status {status.hex()}")
            if not write:
                data = take(lane, size)
                if len(data) != size:
                    raise Rejected(f"{len(data)} bytes of {size}")
                self.place(own, size)[:] = data


class Stored(Reference):
    """One that has its name in an HTTP store, with the reference's client: no lease, no owner, no second try."""

    def __init__(self, url, name, ranges, version=2, cluster="", host="127.0.0.1"):
        super().__init__(ranges, version)
        self.url, self.host, self.port = url, host, int(self.name.rpartition(":")[2])
        self.name = name
        self.prefix = "mooncake/" + (cluster if cluster.endswith("/") or not cluster else cluster + "/")
        self.contact = compact({"ip_or_host_name": host, "rpc_port": self.port})
        self.ask("PUT", self.contact_key(name), self.contact)
        self.publish()

    def die(self):
        """Without a word to the store."""
        super().close()

    def close(self):
        super().close()
        self.ask("DELETE", self.segment_key(self.name))
        self.ask("DELETE", self.contact_key(self.name))

    def contact_key(self, name):
        return f"{self.prefix}rpc_meta/{name}"

    def segment_key(self, name):
        return f"{self.prefix}{name}" if "/" in name else f"{self.prefix}ram/{name}"

    def ask(self, method, key, text=None):
        """What the store answers. Rejected: any status but 200."""
        request = urllib.request.Request(
            f"{self.url}?key={urllib.parse.quote(key, safe='-._~')}", text.encode() if text is not None else None, method=method
        )
        if text is not None:
            request.add_header("Content-Type", "application/json")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=3) as answer:
                body = answer.read().decode()
                if answer.status != 200:
                    raise Rejected(f"status {answer.status} to {method} of {key}")
                return body
        except urllib.error.HTTPError as error:
            raise Rejected(f"status {error.code} to {method} of {key}") from None

    def publish(self):
        """At the start, and whenever its memory changes."""
        self.ask("PUT", self.segment_key(self.name), compact(self.descriptor()))

    def _describe(self, body):
        self.problems.append(f"asked for its descriptor, which it has in the store: {body}")
        return None

    def find(self, name):
        return read_contact(self.ask("GET", self.contact_key(name)))

    def open(self, name):
        text = self.ask("GET", self.segment_key(name))
        document = read_descriptor(text)
        check_text(text, document, text[len(text.rstrip("\n")) :][:1])
        if document["name"] != name:
            raise Rejected(f"the segment of {name} is called {document['name']}")
        return document


class _Kept:
    """A connection that outlives the block."""

    def __init__(self, sock):
        self.sock = sock

    def __enter__(self):
        return self.sock

    def __exit__(self, *_):
        pass
