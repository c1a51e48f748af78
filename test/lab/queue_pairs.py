# SPDX-License-Identifier: Apache-2.0
"""A peer as Mooncake's classic Transfer Engine is one with RDMA, from the description of its protocol: its descriptor, its
side of the queue pair handshake in both roles, and real queue pairs over a device of the lab. Nothing of ours is in it."""

import datetime
import json
import struct
import time

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

from wire import CONNECTION, METADATA, PATIENCE, Port, call, compact, frame, take

GID_INDEX, PORT_NUMBER = 1, 1
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
QPS = 2  # what the reference has by default


class Refused(Exception):
    """The peer's reply has a reply_msg, which is the text."""


def gid_text(gid):
    """A GID as the handshake writes it, from eight groups of four digits."""
    digits = str(gid).replace(":", "")
    return ":".join(digits[i : i + 2] for i in range(0, 32, 2))


def gid_groups(text):
    digits = text.replace(":", "")
    return ":".join(digits[i : i + 4] for i in range(0, 32, 4))


class Device:
    """A device, and memory that peers reach by it."""

    def __init__(self, name, size):
        self.name = name
        self.context = Context(name=name)
        self.pd = PD(self.context)
        self.memory = MR(self.pd, size, ACCESS)
        self.size = size
        self.gid = gid_text(self.context.query_gid(PORT_NUMBER, GID_INDEX))

    def close(self):
        self.memory.close()
        self.pd.close()
        self.context.close()


class Pair:
    """A queue pair in the state INIT."""

    def __init__(self, device):
        self.device = device
        self.cq = CQ(device.context, 64)
        limits = QPCap(max_send_wr=32, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(device.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=limits))
        attributes = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=PORT_NUMBER)
        attributes.qp_access_flags = ACCESS
        self.qp.modify(attributes, e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS)
        self.number = self.qp.qp_num

    def join(self, gid, number):
        """To RTR and RTS, as the reference has the attributes."""
        attributes = QPAttr(qp_state=e.IBV_QPS_RTR)
        attributes.path_mtu = e.IBV_MTU_4096
        attributes.dest_qp_num = number
        attributes.rq_psn = 0
        attributes.max_dest_rd_atomic = 16
        attributes.min_rnr_timer = 12
        route = GlobalRoute(dgid=GID(gid_groups(gid)), sgid_index=GID_INDEX)
        route.hop_limit = 16
        attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=PORT_NUMBER)
        self.qp.modify(
            attributes,
            e.IBV_QP_STATE
            | e.IBV_QP_AV
            | e.IBV_QP_PATH_MTU
            | e.IBV_QP_DEST_QPN
            | e.IBV_QP_RQ_PSN
            | e.IBV_QP_MAX_DEST_RD_ATOMIC
            | e.IBV_QP_MIN_RNR_TIMER,
        )
        attributes = QPAttr(qp_state=e.IBV_QPS_RTS)
        attributes.timeout = 14
        attributes.retry_cnt = 6  # its 7 is for ever with these devices
        attributes.rnr_retry = 7
        attributes.sq_psn = 0
        attributes.max_rd_atomic = 16
        self.qp.modify(
            attributes,
            e.IBV_QP_STATE
            | e.IBV_QP_TIMEOUT
            | e.IBV_QP_RETRY_CNT
            | e.IBV_QP_RNR_RETRY
            | e.IBV_QP_SQ_PSN
            | e.IBV_QP_MAX_QP_RD_ATOMIC,
        )

    def move(self, opcode, at, size, addr, key):
        """One request over our memory from "at" on; how it completed (IBV_WC_SUCCESS, ...)."""
        piece = SGE(self.device.memory.buf + at, size, self.device.memory.lkey)
        request = SendWR(opcode=opcode, num_sge=1, sg=[piece], send_flags=e.IBV_SEND_SIGNALED)
        request.set_wr_rdma(key, addr)
        self.qp.post_send(request)
        until = time.monotonic() + 2 * PATIENCE
        while True:
            count, completions = self.cq.poll(1)
            if count:
                return completions[0].status
            if time.monotonic() > until:
                raise TimeoutError("a request does not complete")

    def write(self, at, size, addr, key):
        return self.move(e.IBV_WR_RDMA_WRITE, at, size, addr, key)

    def read(self, at, size, addr, key):
        return self.move(e.IBV_WR_RDMA_READ, at, size, addr, key)

    def close(self):
        self.qp.close()
        self.cq.close()


class RdmaReference(Port):
    """One engine of the reference's kind with one device. spoil(request, reply) may change the reply to a handshake, or
    return another one; None: the connection ends without a reply."""

    def __init__(self, device_name, size, qps=QPS):
        super().__init__(self.answer)
        self.name = f"127.0.0.1:{self.port}"
        self.device = Device(device_name, size)
        self.path = f"{self.name}@{device_name}"
        self.qps = qps
        self.tells_ready = True  # it knows the second step
        self.spoil = lambda request, reply: reply
        self.pairs = {}  # by the peer's path: its queue pairs, and the numbers of the peer's
        self.ready = {}  # by the peer's path: its second step came
        self.requests, self.problems = [], []
        self.reset()

    def reset(self):
        """All queue pairs go, as in a process that is started again; the next ones have other numbers."""
        for pairs, _ in self.pairs.values():
            for pair in pairs:
                pair.close()
        self.pairs.clear()
        self.ready.clear()

    def stop(self):
        self.close()
        self.join()
        self.reset()
        self.device.close()

    def descriptor(self):
        key = {"lkey": [self.device.memory.lkey], "rkey": [self.device.memory.rkey]}
        return {
            "buffers": [{"addr": self.device.memory.buf, "length": self.device.size, "name": "cpu:0"} | key],
            "devices": [{"gid": self.device.gid, "lid": 0, "name": self.device.name}],
            "name": self.name,
            "priority_matrix": {"cpu:0": [[self.device.name], []]},
            "protocol": "rdma",
            "tcp_data_port": 0,
            "tcp_proto_version": 1,
            "timestamp": datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S.%f"),
        }

    # As the responder

    def answer(self, sock):
        length, kind = struct.unpack("<QB", take(sock, 9))
        body = take(sock, length - 1)
        if kind == METADATA:
            reply = self.descriptor()
        elif kind == CONNECTION:
            request = json.loads(body)
            self.requests.append(request)
            reply = self.spoil(request, self.connection(request))
        else:
            reply = {"status": "success"}
        if reply is not None:
            sock.sendall(frame(kind, compact(reply) + "\n"))

    def words(self, peer_path, numbers, message=""):
        words = {
            "local_gid": self.device.gid,
            "local_lid": 0,
            "local_nic_path": self.path,
            "payload": "",
            "peer_nic_path": peer_path,
            "qp_num": numbers,
            "reply_msg": message,
        }
        return words | ({"ready_ack": False} if self.tells_ready else {})

    def connection(self, request):
        """The reply to a request of either step."""
        peer = request["local_nic_path"]
        if request["peer_nic_path"] != self.path:
            return self.words(peer, [], f"{request['peer_nic_path']} is not {self.path}")
        if request.get("ready_ack"):
            if peer not in self.pairs or self.pairs[peer][1] != request["qp_num"]:
                return self.words(peer, [], "the numbers are not those of the first step")
            self.ready[peer] = True
            return {"reply_msg": ""}
        if len(request["qp_num"]) != self.qps:
            return self.words(peer, [], f"{len(request['qp_num'])} queue pairs, not {self.qps}")
        for pair in self.pairs.pop(peer, ((), ()))[0]:  # it was started again
            pair.close()
        pairs = [Pair(self.device) for _ in range(self.qps)]
        for pair, number in zip(pairs, request["qp_num"]):
            pair.join(request["local_gid"], number)
        self.pairs[peer] = pairs, request["qp_num"]
        return self.words(peer, [pair.number for pair in pairs])

    # As the initiator

    def ask(self, name, request):
        """The reply of an engine to a handshake; Refused if it says why not."""
        back = call(int(name.rpartition(":")[2]), frame(CONNECTION, compact(request) + "\n"))
        if not back:
            raise Refused("no reply")
        reply = json.loads(back[9:])
        if reply["reply_msg"]:
            raise Refused(reply["reply_msg"])
        return reply

    def request(self, peer_path, pairs):
        return self.words(peer_path, [pair.number for pair in pairs])

    def connect(self, name, device, qps=QPS):
        """Queue pairs joined to an engine's, which knows of it."""
        path = f"{name}@{device}"
        pairs = [Pair(self.device) for _ in range(qps)]
        try:
            request = self.request(path, pairs)
            reply = self.ask(name, request)
            if (reply["local_nic_path"], reply["peer_nic_path"]) != (path, self.path):
                raise AssertionError(f"paths of the reply: {reply}")
            for pair, number in zip(pairs, reply["qp_num"]):
                pair.join(reply["local_gid"], number)
            if "ready_ack" in reply:
                self.ask(name, request | {"ready_ack": True})
        except BaseException:
            for pair in pairs:
                pair.close()
            raise
        return pairs
