# SPDX-License-Identifier: Apache-2.0
"""Descriptors of segments in every form that the protocol allows, and in some that it doesn't, as our engine reads them;
and ours, as the reference reads it. Run by test_documents.sh."""

import errno
import json
import mmap
import unittest

import lanewise
from reference import Reference, check_text, read_descriptor
from wire import METADATA, MIB, RANDOM, Handshake, call, compact, frame, main

BASE = 0x10000000

BUFFER = '{"addr":%d,"length":1048576,"name":"NAME"}' % BASE
RDMA_BUFFER = '{"addr":%d,"length":1048576,"lkey":[1],"name":"cpu:0","protocol":"rdma","rkey":[2]}' % BASE
TCP_BUFFER = '{"addr":%d,"length":1048576,"name":"NAME","protocol":"tcp"}' % BASE
DEVICES = '"devices":[{"gid":"00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:05","lid":0,"name":"mlx5_0"}]'
MATRIX = '"priority_matrix":{"cpu:0":[["mlx5_0"],[]]}'
TIME = '"timestamp":"2026-08-21 10:41:04.123456"'

# What is written, and the operation byte of a READ to such a peer.
TAKEN = {
    "as it is written": (
        '{"buffers":[%s],"name":"NAME","protocol":"tcp","tcp_data_port":PORT,"tcp_proto_version":2,%s}\n' % (BUFFER, TIME),
        0x80,
    ),
    "without the newline": (
        '{"buffers":[%s],"name":"NAME","protocol":"tcp","tcp_data_port":PORT,"tcp_proto_version":2,%s}' % (BUFFER, TIME),
        0x80,
    ),
    "keys in another order, with blanks": (
        ' {\t"tcp_proto_version" : 2 ,\r\n "protocol":"tcp", "name":"NAME",\n"buffers" : [ %s ] , "tcp_data_port" : PORT }  \n'
        % BUFFER.replace(",", " , "),
        0x80,
    ),
    "no version": ('{"buffers":[%s],"name":"NAME","protocol":"tcp","tcp_data_port":PORT}' % BUFFER, 0x00),
    "version 1": (
        '{"buffers":[%s],"name":"NAME","protocol":"tcp","tcp_data_port":PORT,"tcp_proto_version":1}' % BUFFER,
        0x00,
    ),
    "a version to come": (
        '{"buffers":[%s],"name":"NAME","protocol":"tcp","tcp_data_port":PORT,"tcp_proto_version":7}' % BUFFER,
        0x80,
    ),
    "keys that nobody knows, at every level": (
        '{"a":null,"buffers":[{"addr":%d,"b":[{}],"length":1048576,"lkey":[],"name":"NAME","rkey":[1,2]}],"c":{"d":[1.5,'
        'true]},"name":"NAME","protocol":"tcp","rdma_server_name":"10.0.0.5:12001","tcp_data_port":PORT,'
        '"tcp_proto_version":2,"zz":"\\u20ac"}' % BASE,
        0x80,
    ),
    "another name than the one that was asked": (
        '{"buffers":[%s],"name":"203.0.113.9:15000","protocol":"tcp","tcp_data_port":PORT,"tcp_proto_version":2}' % BUFFER,
        0x80,
    ),
    "several protocols, rdma first": (
        '{"buffers":[%s,%s],%s,"name":"NAME",%s,"protocol":["rdma","tcp"],"tcp_data_port":PORT,"tcp_proto_version":2}'
        % (RDMA_BUFFER, TCP_BUFFER, DEVICES, MATRIX),
        0x80,
    ),
    "several protocols, tcp first": (
        '{"buffers":[%s,%s],%s,"name":"NAME",%s,"protocol":["tcp","rdma"],"tcp_data_port":PORT,"tcp_proto_version":2}'
        % (TCP_BUFFER, RDMA_BUFFER, DEVICES, MATRIX),
        0x80,
    ),
    "a list of one protocol": (
        '{"buffers":[%s],"name":"NAME","protocol":["tcp"],"tcp_data_port":PORT,"tcp_proto_version":2}' % TCP_BUFFER,
        0x80,
    ),
    "many buffers, not in order": (
        '{"buffers":[%s],"name":"NAME","protocol":"tcp","tcp_data_port":PORT,"tcp_proto_version":2}'
        % ",".join([BUFFER] + ['{"addr":%d,"length":4096,"name":"NAME"}' % (BASE * (i + 2)) for i in range(3000, 0, -1)]),
        0x80,
    ),
}

# Without those, and with others in their place.
RDMA = {
    "buffers": [{"addr": BASE, "length": MIB, "lkey": [1], "name": "cpu:0", "rkey": [2]}],
    "devices": [{"gid": "00:" * 15 + "01", "lid": 0, "name": "mlx5_0"}],
    "name": "NAME",
    "priority_matrix": {"cpu:0": [["mlx5_0"], []]},
    "protocol": "rdma",
    "tcp_data_port": 0,
    "tcp_proto_version": 1,
}
SHARED = {"addr": BASE, "length": MIB, "name": "cuda:0", "shm_name": "A0" * 64}
OTHERS = {
    "rdma": RDMA,
    "nvlink": {"buffers": [SHARED], "name": "NAME", "protocol": "nvlink", "tcp_data_port": 0, "tcp_proto_version": 1},
    "cxl": {
        "buffers": [{"length": MIB, "name": "NAME", "offset": 4096}],
        "cxl_base_addr": BASE,
        "cxl_name": "/dev/dax0.0",
        "name": "NAME",
        "protocol": "cxl",
        "tcp_data_port": 0,
        "tcp_proto_version": 1,
    },
}

GOOD = {
    "buffers": [{"addr": BASE, "length": MIB, "name": "NAME"}],
    "name": "NAME",
    "protocol": "tcp",
    "tcp_data_port": 1,
    "tcp_proto_version": 2,
}
REFUSED = {
    "no protocol": {"protocol": None},
    "an unknown protocol": {"protocol": "carrier-pigeon"},
    "a buffer at address 0": {"buffers": [{"addr": 0, "length": 1, "name": "x"}]},
    "a buffer of no length": {"buffers": [{"addr": 1, "length": 0, "name": "x"}]},
    "a buffer without a length": {"buffers": [{"addr": 1, "name": "x"}]},
    "a buffer that wraps around": {"buffers": [{"addr": (1 << 64) - 4096, "length": 8192, "name": "x"}]},
    "a negative address": {"buffers": [{"addr": -1, "length": 1, "name": "x"}]},
    "an address that is a text": {"buffers": [{"addr": "4096", "length": 1, "name": "x"}]},
    "an address that is a fraction": {"buffers": [{"addr": 4096.5, "length": 1, "name": "x"}]},
    "buffers that are no list": {"buffers": {}},
    "a port above 65535": {"tcp_data_port": 65536},
    "a negative port": {"tcp_data_port": -1},
    "a port that is a text": {"tcp_data_port": "80"},
    "a version that is a text": {"tcp_proto_version": "2"},
    "a version of 0": {"tcp_proto_version": 0},
}
TEXTS = ("", "\n", "null\n", "5\n", "[]\n", '"x"\n', "{}\n", '{"buffers":[', "{" * 2000, "\xff\xfe")


class Documents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.engine = lanewise.Engine("127.0.0.1", settings={"drivers": "tcp,null"})
        cls.memory = mmap.mmap(-1, MIB)
        cls.buffer = cls.engine.register(cls.memory)

    @classmethod
    def tearDownClass(cls):
        cls.engine.close()

    def port(self, text):
        """A handshake port that answers so."""
        port = Handshake()
        self.addCleanup(port.close)
        port.text = text.replace("NAME", port.name)
        return port

    def test_every_form_that_is_allowed_is_taken_and_works(self):
        for name, (text, op) in TAKEN.items():
            with self.subTest(name):
                peer = Reference([(BASE, MIB)], version=2 if op else 1)
                self.addCleanup(peer.close)
                peer.memory[BASE][:] = data = RANDOM.randbytes(MIB)
                port = self.port(text.replace("PORT", str(peer.data.port)))
                heads = []
                serve = peer.data.serve
                peer.data.serve = lambda sock, serve=serve, heads=heads: (heads.append(sock.recv(17, 2)), serve(sock))
                with self.engine.open(port.name) as segment:
                    self.assertIn((BASE, MIB, lanewise.ACCESS_REMOTE), segment.ranges())
                    self.engine.read(segment, self.buffer.addr, BASE, MIB)
                self.assertEqual(self.memory[:], data)
                self.assertEqual(heads[0][16], op)

    def test_empty_segment_is_opened(self):
        port = self.port('{"buffers":[],"name":"NAME","protocol":"tcp","tcp_data_port":9,"tcp_proto_version":2}')
        with self.engine.open(port.name) as segment:
            self.assertEqual(segment.ranges(), [])

    def test_segments_that_need_another_driver_are_refused_by_name(self):
        for name, document in OTHERS.items():
            with self.subTest(name):
                port = self.port(compact(document))
                with self.assertRaises(lanewise.Error) as caught:
                    self.engine.open(port.name)
                self.assertEqual(caught.exception.errno, errno.ENOTSUP, caught.exception)
                self.assertIn(name, str(caught.exception))

    def test_what_is_not_allowed_is_refused(self):
        self.engine.open(self.port(compact(GOOD)).name).close()
        for name, change in REFUSED.items():
            with self.subTest(name):
                document = {key: value for key, value in (GOOD | change).items() if value is not None}
                self.refused(compact(document))
        for text in TEXTS:
            with self.subTest(text[:20]):
                self.refused(text)

    def refused(self, text):
        port = self.port(text)
        with self.assertRaises(lanewise.Error) as caught:
            self.engine.open(port.name)
        self.assertEqual(caught.exception.errno, errno.EPROTO, caught.exception)
        self.assertIn(port.name, str(caught.exception))

    def test_ours_is_read_by_the_reference(self):
        """Whatever is registered: nothing that a reader rejects, nothing offered that is not."""
        with lanewise.Engine("127.0.0.1", settings={"drivers": "tcp,null"}) as engine:
            buffers = []
            for access in (0, 1, 2, 3, 0, 3):
                document = self.descriptor_of(engine)
                offered = [(b["addr"], b["length"]) for b in document["buffers"]]
                self.assertEqual(offered, sorted((b.addr, b.length) for b, a in buffers if a != 0))
                self.assertEqual({b["name"] for b in document["buffers"]} - {engine.name}, set())
                self.assertEqual((document["name"], document["protocol"]), (engine.name, "tcp"))
                buffers.append((engine.register(bytearray(5000), access=access), access))
            known = set(GOOD) | {"timestamp", "lw"}
            self.assertEqual(set(document) - known, set())

    def descriptor_of(self, engine):
        text = call(engine.port, frame(METADATA, "null\n"))[9:].decode()
        document = read_descriptor(text)
        check_text(text, document)
        return json.loads(text)


if __name__ == "__main__":
    main()
