# SPDX-License-Identifier: Apache-2.0
"""The Python interface of Mooncake's classic Transfer Engine, on Lanewise.

Names, arguments and results are those that its documentation and its connectors know: calls return 0 or a negative
number, and why one failed is logged (logger "lanewise") and told by last_error(). Where we differ stands in README.md.
"""

import ctypes
import enum
import errno
import json
import logging
import mmap
import os
import threading
import time
from array import array

from .. import _arrays
from .. import _library as lib
from ..engine import Engine

LOG = logging.getLogger("lanewise")

SUPPORT_EFA = SUPPORT_HIP = SUPPORT_MNNVL = SUPPORT_INTRA_NVLINK = SUPPORT_CUDA = False

P2P = "P2PHANDSHAKE"
_BYTES_A_MS = 1000000  # a transfer may take its time limit, and a millisecond more for so many bytes
_MARGIN_S = 5  # the engine ends each request by its deadline; this is for one that doesn't
_CODES = {  # errno to the reference's error.h
    errno.EEXIST: -7,
    errno.EBADF: -3,
    errno.ENOENT: -3,
    errno.ENOMEM: -302,
    errno.ENOSPC: -302,
    errno.EHOSTUNREACH: -101,
    errno.ECONNREFUSED: -102,
    errno.ETIMEDOUT: -102,
    errno.ECONNRESET: -102,
    errno.EPROTO: -103,
}
_METADATA = -200
_STORE_ERRORS = (  # how a metadata store fails, of calls that have nobody else to ask
    errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ECONNREFUSED, errno.ETIMEDOUT, errno.ECONNRESET, errno.EPROTO, errno.EACCES,
    errno.EIO, errno.ENOSPC, errno.EROFS, errno.EMSGSIZE, errno.EMFILE, errno.ESTALE,
)  # fmt: skip


class TransferOpcode(enum.IntEnum):
    Read = READ = 0
    Write = WRITE = 1


Read, Write = TransferOpcode.Read, TransferOpcode.Write


class TransferNotify:
    """A message to send when a transfer is done, or one that came."""

    __slots__ = ("name", "msg")

    def __init__(self, name="", msg=""):
        self.name, self.msg = name, msg

    def __repr__(self):
        return f"TransferNotify({self.name!r}, {self.msg!r})"


class _Log:
    """Failures in the log: of each kind one line a second, with the number of those that were left out."""

    def __init__(self):
        self.lock = threading.Lock()
        self.kinds = {}  # what failed: when it was last told, how many since

    def __call__(self, kind, text):
        now = time.monotonic()
        with self.lock:
            told, left_out = self.kinds.get(kind, (None, 0))
            if told is not None and now - told < 1:
                self.kinds[kind] = (told, left_out + 1)
                return
            self.kinds[kind] = (now, 0)
        LOG.warning("%s: %s%s", kind, text, f" ({left_out} more since the last line)" if left_out else "")


class TransferEngine:
    """May be used by many threads at once; calls that wait let other Python threads run."""

    def __init__(self):
        self._engine = None
        self._stored = False  # names of peers are keys in a metadata store, and not their addresses
        self._lock = threading.Lock()  # of the three tables; nothing waits under it
        self._peers = {}  # open segments by the name that the caller gave
        self._stale = set()  # names of those whose offer has to be asked anew
        self._buffers = {}  # handles of registered buffers by their address
        self._batches = {}  # batches of asynchronous calls, by their number
        self._managed = {}  # our own memory, by its address
        self._tell = _Log()
        self._last = threading.local()
        self._limit_ms = _limit_ms()

    # Start

    def initialize(self, local_hostname, metadata_server, protocol, device_name):
        """metadata_server is "P2PHANDSHAKE" or the URL of a store, without a scheme etcd; local_hostname "host" or
        "host:port" (the port is chosen anew: get_rpc_port), with a store the name that peers find there. Which ways are used is chosen by what both sides
        have, so protocol decides nothing. device_name: HCAs that may be used, separated by commas; "": all. 0 or -1."""
        return self._initialize(local_hostname, _url("etcd", metadata_server), protocol, device_name)

    def initialize_ext(self, local_hostname, metadata_server, protocol, device_name, metadata_type):
        """As initialize; metadata_type is the scheme of a metadata_server that has none."""
        return self._initialize(local_hostname, _url(metadata_type, metadata_server), protocol, device_name)

    def _initialize(self, local_hostname, metadata, protocol, device_name):
        if protocol == "xgmi":
            return self._fail("initialize", ValueError('the protocol "xgmi" is called "hip" here'))
        self.close()
        try:
            settings = {}
            if device_name:
                matrix = self._topology(device_name)
                if matrix == "null":
                    self._tell("initialize", f'no HCA of this host is called "{device_name}"; tcp is used')
                else:
                    settings["topology"] = matrix
            self._engine = Engine(local_hostname, metadata, settings)
            self._stored = metadata != P2P
        except (OSError, ValueError, TypeError) as error:
            return self._fail("initialize", error)
        return 0

    def close(self):
        """Ends the engine, as the end of the object does. Not in the reference."""
        engine, self._engine = self._engine, None
        with self._lock:
            for table in (self._peers, self._stale, self._buffers, self._batches):
                table.clear()
        if engine is not None:
            engine.close()
        self._managed.clear()

    def __del__(self):
        self.close()

    def get_rpc_port(self):
        """The port of the own handshake, with P2PHANDSHAKE that of the name that peers use. -1 before initialize."""
        return self._engine.port if self._engine else -1

    def get_session_id(self):
        """The name that peers give as target_hostname: "host:port", with a store local_hostname. Not in the
        reference."""
        return self._engine.name if self._engine else ""

    def last_error(self):
        """Why the last call of this thread that failed did so. Not in the reference."""
        return getattr(self._last, "text", "")

    def get_engine(self):
        raise NotImplementedError("Lanewise has no object that Mooncake's store could take over")

    get_engine_ptr = get_engine

    # Memory

    def register_memory(self, buffer_addr, capacity, location="*"):
        """0; -7 it overlaps registered memory; -200 the metadata store does not take it; -1 or another negative
        number."""
        return self.batch_register_memory((buffer_addr,), (capacity,), location)

    def unregister_memory(self, buffer_addr):
        """By the address that was registered. 0; -3 nothing is registered there; -200 it was taken back, but the metadata
        store shows it still; another negative number."""
        return self.batch_unregister_memory((buffer_addr,))

    def batch_register_memory(self, buffer_addresses, capacities, location="*"):
        """All or none, else as register_memory. An empty list is 0."""
        try:
            addresses = _arrays.words(buffer_addresses, "buffer_addresses")
            lengths = _arrays.words(capacities, "capacities")
            if len(addresses) != len(lengths):
                raise ValueError(f"{len(addresses)} addresses and {len(lengths)} capacities")
            engine = self._ready()
            if not addresses:
                return 0
            handles = engine.register_words(addresses, lengths, lib.ACCESS_REMOTE, location)
        except (OSError, ValueError) as error:
            return self._fail("register_memory", error, code=self._memory_code(error, len(addresses)))
        with self._lock:
            self._buffers.update(zip(addresses, handles))
        return 0

    def batch_unregister_memory(self, buffer_addresses):
        """Each is tried; the first error is returned. Afterwards nobody touches the memory."""
        addresses = _arrays.words(buffer_addresses, "buffer_addresses")
        result = 0
        with self._lock:
            handles = {at: self._buffers.pop(at) for at in addresses if at in self._buffers}
        try:
            engine = self._ready()
            if len(handles) < len(addresses):
                unknown = next((at for at in addresses if at not in handles), addresses[0])
                raise lib.Error(errno.ENOENT, f"no memory is registered at 0x{unknown:x}")
        except OSError as error:
            result = self._fail("unregister_memory", error, code=_code(error))
        try:
            if handles:
                engine.unregister_handles(handles.values())
        except OSError as error:
            if error.errno == errno.EBUSY:  # still in use: may be tried again
                with self._lock:
                    self._buffers.update(handles)
            result = result or self._fail("unregister_memory", error, code=self._memory_code(error, 0))
        return result

    def _memory_code(self, error, count):
        """As _code, of memory that a store has to be told of: count more buffers, for which the engine may lack room."""
        number = getattr(error, "errno", None)
        if not self._stored or number not in _STORE_ERRORS:
            return _code(error)
        if number == errno.ENOSPC and count:
            most = int(self._engine.config()["max_buffers"]["value"])
            if self._engine.stats()["live_buffers"] + count > most:
                return _code(error)
        return _METADATA

    def allocate_managed_buffer(self, length):
        """Registered memory of ours; its address, 0 when that failed. It ends with the engine at the latest."""
        try:
            memory = mmap.mmap(-1, max(1, length), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            addr = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        except (OSError, ValueError, OverflowError) as error:
            self._fail("allocate_managed_buffer", error)
            return 0
        if self.register_memory(addr, max(1, length)) != 0:
            return 0
        self._managed[addr] = memory
        return addr

    def free_managed_buffer(self, buffer_addr, length):  # pylint: disable=unused-argument
        """0; -1 it is none of ours."""
        if buffer_addr not in self._managed:
            return self._fail("free_managed_buffer", ValueError(f"0x{buffer_addr:x} was not allocated here"))
        result = self.unregister_memory(buffer_addr)
        if result == 0:
            del self._managed[buffer_addr]
        return result

    def write_bytes_to_buffer(self, dest_address, src_ptr, length):
        """Copies the first length bytes of a bytes object or a text to an address. 0; -1 there are fewer."""
        data = src_ptr.encode() if isinstance(src_ptr, str) else src_ptr
        if length > len(data):
            return self._fail("write_bytes_to_buffer", ValueError(f"{length} bytes of {len(data)}"))
        ctypes.memmove(dest_address, bytes(data), length)
        return 0

    def read_bytes_from_buffer(self, source_address, length):
        return ctypes.string_at(source_address, length)

    # Transfers that are waited for

    def transfer_sync_write(self, target_hostname, buffer, peer_buffer_address, length, transport_hint=""):
        """Local memory to the peer's. 0 it is there; a negative number."""
        return self.transfer_sync(target_hostname, buffer, peer_buffer_address, length, TransferOpcode.WRITE)

    def transfer_sync_read(self, target_hostname, buffer, peer_buffer_address, length, transport_hint=""):
        """The peer's memory to local memory. 0; a negative number."""
        return self.transfer_sync(target_hostname, buffer, peer_buffer_address, length, TransferOpcode.READ)

    def transfer_sync(
        self, target_hostname, buffer, peer_buffer_address, length, opcode, notify=None, transport_hint=""
    ):
        """Either; then hands the peer the notify. 0 both are done; a negative number."""
        return self.batch_transfer_sync(
            target_hostname, (buffer,), (peer_buffer_address,), (length,), opcode, notify, transport_hint
        )

    def batch_transfer_sync_write(
        self, target_hostname, buffers, peer_buffer_addresses, lengths, transport_hint=""
    ):
        """As transfer_sync_write, many at once. The lists are equally long; an array of 64-bit integers is quicker."""
        return self.batch_transfer_sync(
            target_hostname, buffers, peer_buffer_addresses, lengths, TransferOpcode.WRITE
        )

    def batch_transfer_sync_read(self, target_hostname, buffers, peer_buffer_addresses, lengths, transport_hint=""):
        """As transfer_sync_read, many at once."""
        return self.batch_transfer_sync(
            target_hostname, buffers, peer_buffer_addresses, lengths, TransferOpcode.READ
        )

    def batch_transfer_sync(
        self, target_hostname, buffers, peer_buffer_addresses, lengths, opcode, notify=None, transport_hint=""
    ):
        """As transfer_sync, many at once. transport_hint is not used."""
        buffers, offsets, lengths = _three(buffers, peer_buffer_addresses, lengths)
        try:
            engine = self._ready()
            peer = self._peer(target_hostname)
            for first in range(0, max(1, len(lengths)), lib.BATCH_MAX_TASKS // 4):
                part = slice(first, first + lib.BATCH_MAX_TASKS // 4)
                self._run(engine, target_hostname, peer, int(opcode), buffers[part], offsets[part], lengths[part])
            if notify is not None:
                peer.notify(notify.name, notify.msg)
        except (OSError, ValueError) as error:
            return self._fail("transfer", error, target_hostname)
        return 0

    def _run(self, engine, name, peer, op, buffers, offsets, lengths):
        """One batch, to its end."""
        limit_ms = self._limit_of(lengths)
        with _Waited(engine.submit(op, peer, buffers, offsets, lengths, limit_ms / 1000)) as batch:
            if batch.wait(limit_ms / 1000 + _MARGIN_S).state == lib.COMPLETED:
                return
            self._doubt(name, batch.failed().values())
            raise batch.error()

    # Transfers that are not

    def transfer_submit_write(self, target_hostname, buffer, peer_buffer_address, length, transport_hint=""):
        """A number for transfer_check_status; -1."""
        number = self.batch_transfer_async(
            target_hostname, (buffer,), (peer_buffer_address,), (length,), TransferOpcode.WRITE
        )
        return number or -1

    def transfer_check_status(self, batch_id):
        """1 done, 0 not yet, -1 failed, -2 its time was over; after 1 and less than 0 the number is void."""
        try:
            batch = self._batches[batch_id]
            status = batch.status()
            if status.done < status.tasks:
                return 0
        except (OSError, KeyError) as error:
            return self._fail("transfer_check_status", error if isinstance(error, OSError) else _unknown(batch_id))
        return self._settle(batch_id)

    def batch_transfer_async_write(
        self, target_hostname, buffers, peer_buffer_addresses, lengths, transport_hint=""
    ):
        """A number for get_batch_transfer_status; 0 when nothing was begun."""
        return self.batch_transfer_async(
            target_hostname, buffers, peer_buffer_addresses, lengths, TransferOpcode.WRITE
        )

    def batch_transfer_async_read(self, target_hostname, buffers, peer_buffer_addresses, lengths, transport_hint=""):
        """A number for get_batch_transfer_status; 0 when nothing was begun."""
        return self.batch_transfer_async(
            target_hostname, buffers, peer_buffer_addresses, lengths, TransferOpcode.READ
        )

    def batch_transfer_async(
        self, target_hostname, buffers, peer_buffer_addresses, lengths, opcode, transport_hint=""
    ):
        """A number for get_batch_transfer_status; 0 when nothing was begun."""
        buffers, offsets, lengths = _three(buffers, peer_buffer_addresses, lengths)
        try:
            limit_ms = self._limit_of(lengths)
            batch = self._ready().submit(
                int(opcode), self._peer(target_hostname), buffers, offsets, lengths, limit_ms / 1000
            )
        except (OSError, ValueError) as error:
            self._fail("transfer", error, target_hostname)
            return 0
        batch.target, batch.limit_s = target_hostname, limit_ms / 1000
        with self._lock:
            self._batches[batch.handle] = batch
        return batch.handle

    def get_batch_transfer_status(self, batch_ids):
        """Waits for all of them. 0 all are done; -1 one failed or its time was over, and what was left is canceled. The
        numbers are void afterwards."""
        result = 0
        for number in dict.fromkeys(batch_ids):
            with self._lock:
                batch = self._batches.get(number)
            if batch is None:
                result = self._fail("get_batch_transfer_status", _unknown(number))
                continue
            try:
                if result == 0:
                    batch.wait(batch.limit_s + _MARGIN_S)
                else:
                    batch.cancel()
                    batch.wait(_MARGIN_S)
            except OSError as error:
                result = self._fail("transfer", error, batch.target)
            result = -1 if self._settle(number, quiet=result != 0) != 1 else result
        return result

    def _settle(self, number, quiet=False):
        """Gives a batch back that has ended: 1 done, -1 failed, -2 its time was over."""
        with self._lock:
            batch = self._batches.pop(number, None)
        if batch is None:
            return -1
        result = 1
        try:
            with _Waited(batch):
                if batch.status().state != lib.COMPLETED:
                    failed = batch.failed().values()
                    self._doubt(batch.target, failed)
                    result = -2 if "timeout" in failed else -1
                    raise batch.error()
        except OSError as error:
            result = min(result, -1)
            if not quiet:
                self._fail("transfer", error, batch.target)
        return result

    # Peers

    def get_first_buffer_address(self, segment_name):
        """The lowest address that the peer offers; 0 when it offers nothing or can't be asked."""
        try:
            with self._ready().open(segment_name) as peer:
                ranges = peer.ranges()
        except (OSError, ValueError) as error:
            self._fail("get_first_buffer_address", error, segment_name)
            return 0
        return ranges[0][0] if ranges else 0

    def send_probe(self, peer_server_name):
        """0 the peer answers; a negative number."""
        try:
            self._ready()
            peer = self._peer(peer_server_name)
            try:
                peer.probe()
            except OSError:
                if not self._stored:
                    raise
                with self._lock:
                    self._stale.add(peer_server_name)
                again = self._peer(peer_server_name)
                if again is peer:
                    raise
                again.probe()  # it was started again, and is somewhere else now
        except (OSError, ValueError) as error:
            return self._fail("send_probe", error, peer_server_name, _code(error))
        return 0

    def get_notifies(self):
        """What came since the last call."""
        try:
            return [TransferNotify(note.name, note.text) for note in self._ready().notes()]
        except OSError as error:
            self._fail("get_notifies", error)
            return []

    def get_local_topology(self, device_name=None):
        """Which HCAs serve which memory, as JSON: {"cpu:0": [[preferred], [others]], ...}; of the named ones alone if
        there is a device_name. "null" when there are none."""
        try:
            return self._topology(device_name)
        except OSError as error:
            self._fail("get_local_topology", error)
            return "null"

    def warmup_efa_segment(self, segment_name):  # pylint: disable=unused-argument
        """Nothing is to do without EFA: 0."""
        return 0

    def release_remote_segment(self, target_hostname):
        """Forgets a peer. How many mappings of its GPU memory that released: none."""
        try:
            self._forget(target_hostname)
        except OSError as error:
            self._fail("release_remote_segment", error, target_hostname)
        return 0

    # Ours

    def _ready(self):
        if self._engine is None:
            raise lib.Error(errno.EINVAL, "the engine was not initialized, or closed")
        return self._engine

    def _peer(self, name):
        """The peer's segment, opened if it is not yet, or asked anew what it offers if that proved stale. Threads that
        do so at once wait for nobody but the peer. A store that does not answer is no reason to give up a peer that is
        known."""
        peer = self._peers.get(name)
        if peer is not None and name not in self._stale:
            return peer
        try:
            opened = self._ready().open(name)
        except OSError as error:
            if peer is None or not self._stored:
                raise
            self._tell("transfer", error)
            return peer
        with self._lock:
            self._stale.discard(name)
            before = self._peers.get(name)
            # The same handle: opened holds a second reference to what is open already.
            same = before is not None and before.handle == opened.handle
            if not same:
                self._peers[name] = opened
        if before is None:
            return opened
        (opened if same else before).close()
        return before if same else opened

    def _doubt(self, name, reasons):
        """Requests to it failed so: the next call asks anew where it is and what it offers, if that may have changed. In
        a store the peer's next life has another address."""
        again = ("restarted", "unreachable", "reset") if self._stored else ("restarted",)
        if any(reason in again for reason in reasons):
            with self._lock:
                self._stale.add(name)

    def _forget(self, name):
        """The next call opens the peer anew; what is under way to it ends."""
        with self._lock:
            peer = self._peers.pop(name, None)
        if peer is not None:
            peer.close()

    def _limit_of(self, lengths):
        return min(lib.TIMEOUT_MAX_MS, self._limit_ms + sum(lengths) // _BYTES_A_MS)

    def _topology(self, device_name):
        matrix = json.loads(lib.take_json(lib.BLOCKING.lw_topology_json, None))["matrix"]
        if matrix and device_name:
            wanted = {name.strip() for name in device_name.split(",")}
            matrix = {
                place: [[name for name in names if name in wanted] for names in both] for place, both in matrix.items()
            }
            if not any(names for both in matrix.values() for names in both):
                matrix = None
        return json.dumps(matrix, sort_keys=True, separators=(",", ":"))

    def _fail(self, what, error, name="", code=-1):
        text = f"{name}: {error}" if name and name not in str(error) else str(error)
        self._last.text = text
        self._tell(what, text)
        return code


class _Waited:
    """A batch that is over, or canceled, when the block is left."""

    def __init__(self, batch):
        self.batch = batch

    def __enter__(self):
        return self.batch

    def __exit__(self, *_):
        self.batch.free()


def _limit_ms():
    """How long a transfer may take, without what its length adds: MC_TRANSFER_TIMEOUT seconds, at least 5; else 30."""
    text = os.environ.get("MC_TRANSFER_TIMEOUT")
    if text is None:
        return 30000
    try:
        return max(5, min(86400, int(text))) * 1000
    except ValueError:
        LOG.warning('MC_TRANSFER_TIMEOUT is "%s" and not a number of seconds; 30 are taken', text)
        return 30000


def _code(error):
    """The reference's number for what went wrong."""
    return _CODES.get(getattr(error, "errno", None), -1)


def _url(scheme, server):
    return server if server == P2P or "://" in server else f"{scheme}://{server}"


def _three(buffers, offsets, lengths):
    return (
        _arrays.words(buffers, "buffers"),
        _arrays.words(offsets, "peer_buffer_addresses"),
        _arrays.words(lengths, "lengths"),
    )


def _unknown(number):
    return lib.Error(errno.EBADF, f"there is no transfer of the number {number}, or it was settled")
