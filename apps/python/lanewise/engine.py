# SPDX-License-Identifier: Apache-2.0
"""Engines, their memory, peers and transfers.

Every method may be called from any thread. Times are in seconds; a timeout of None is the library's own.
"""

import ctypes
import errno
import json
import time
import weakref
from array import array

from . import _arrays
from . import _library as lib
from ._library import Error

_WAIT_SLICE_MS = 250  # how long a wait stays in the library before Python sees to its signals
_CANCEL_S = 5  # a cancel takes effect within 1 s; this is for a machine that is very busy
_REASON_BYTES = 512


class TransferError(Error):
    """Requests that did not complete. reason is the first one's (a name of lanewise.REASONS), task its number, failed
    how many there were."""

    def __init__(self, number, text, reason, task, failed):
        super().__init__(number, text)
        self.reason, self.task, self.failed = reason, task, failed


class Note:
    """A message between engines: two texts. Bytes that are no UTF-8 come as surrogates and go out as they came."""

    __slots__ = ("name", "text")

    def __init__(self, name="", text=""):
        self.name, self.text = name, text

    def __repr__(self):
        return f"Note({self.name!r}, {self.text!r})"


class Buffer:
    """Registered memory. Leaving its with block, unregister() or the engine's end takes it back; until then the engine
    keeps the object alive, also if nobody else does."""

    def __init__(self, engine, handle, addr, length):
        self.engine, self.handle, self.addr, self.length = engine, handle, addr, length

    def unregister(self, timeout=None):
        """Afterwards nobody touches the memory."""
        if self.handle is not None:
            self.engine.unregister_handles((self.handle,), timeout)
            self.handle = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.unregister()


class Segment:
    """A peer's memory. Leaving its with block or close() ends what is under way to it."""

    def __init__(self, engine, handle, name):
        self.engine, self.handle, self.name = engine, handle, name

    def ranges(self):
        """What the peer offers, as (addr, length, access), in the order of addresses."""
        have = 64
        while True:
            out = (lib.Range * have)()
            count = lib.check(lib.QUICK.lw_segment_ranges(self.engine.handle, self.handle, out, have))
            if count <= have:
                return [(r.addr, r.length, r.access) for r in out[:count]]
            have = count

    def probe(self, timeout=None):
        """Error unless the peer answers."""
        lib.check(lib.BLOCKING.lw_segment_probe(self.engine.handle, self.handle, lib.milliseconds(timeout)))

    def notify(self, name, text, timeout=None):
        """Hands the peer a note; returns when it has it."""
        name, text = (value.encode(errors="surrogateescape") for value in (name, text))
        note = lib.Note(
            ctypes.cast(ctypes.c_char_p(name), ctypes.c_void_p),
            len(name),
            ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p),
            len(text),
        )
        lib.check(
            lib.BLOCKING.lw_notify(self.engine.handle, self.handle, ctypes.byref(note), lib.milliseconds(timeout))
        )

    def close(self):
        if self.handle is not None:
            handle, self.handle = self.handle, None
            lib.check(lib.QUICK.lw_segment_close(self.engine.handle, handle))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Batch:
    """Requests under way. Give it back with free() or a with block, which waits for the end and cancels on the way out
    of an exception. A batch that is just dropped is canceled."""

    def __init__(self, engine, handle, count):
        self.engine, self.handle, self.count = engine, handle, count

    def status(self):
        out = lib.BatchStatus()
        lib.check(lib.QUICK.lw_batch_status(self.engine.handle, self.handle, ctypes.byref(out)))
        return out

    def wait(self, timeout=None):
        """Waits until every request has ended; each has a deadline of its own, so None ends too. The status, whatever
        became of them; TimeoutError when the time is over sooner, and they go on."""
        until = None if timeout is None else time.monotonic() + timeout
        out = lib.BatchStatus()
        while True:
            left = _WAIT_SLICE_MS if until is None else min(_WAIT_SLICE_MS, round((until - time.monotonic()) * 1000))
            result = lib.BLOCKING.lw_batch_wait(self.engine.handle, self.handle, max(0, left), ctypes.byref(out))
            if result != -errno.ETIMEDOUT:
                lib.check(result)
                return out
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(errno.ETIMEDOUT, f"{out.tasks - out.done} requests were not done after {timeout} s")

    def result(self, timeout=None):
        """As wait, but TransferError unless all completed. The bytes moved."""
        status = self.wait(timeout)
        if status.state != lib.COMPLETED:
            raise self.error()
        return status.bytes

    def failed(self):
        """Numbers of the requests that ended otherwise than completed, with their reasons: {number: name}."""
        out = lib.TaskStatus()
        found = {}
        for task in range(self.count):
            lib.check(lib.QUICK.lw_task_status(self.engine.handle, self.handle, task, ctypes.byref(out)))
            if out.state not in (lib.PENDING, lib.COMPLETED):
                found[task] = lib.reason_name(out.reason)
        return found

    def error(self):
        """The TransferError of the first request that failed."""
        failed = self.failed()
        if not failed:
            return TransferError(errno.EIO, "the requests are not done", "none", 0, 0)
        task = next(iter(failed))
        out = lib.TaskStatus()
        lib.check(lib.QUICK.lw_task_status(self.engine.handle, self.handle, task, ctypes.byref(out)))
        text = ctypes.create_string_buffer(_REASON_BYTES)
        lib.check(lib.QUICK.lw_task_reason(self.engine.handle, self.handle, task, text, _REASON_BYTES))
        more = f" (request {task}, and {len(failed) - 1} others)" if len(failed) > 1 else ""
        return TransferError(-out.error, text.value.decode(errors="replace") + more, failed[task], task, len(failed))

    def cancel(self):
        """Asks for the end: at most a second later nothing touches the memory."""
        lib.patiently(
            lambda: lib.QUICK.lw_batch_cancel(self.engine.handle, self.handle), time.monotonic() + _CANCEL_S
        )

    def free(self):
        """Gives it back, canceled first if something is under way."""
        if self.handle is None:
            return
        result = lib.QUICK.lw_batch_free(self.engine.handle, self.handle)
        if result == -errno.EBUSY:
            self.cancel()
            self.wait(_CANCEL_S)
            result = lib.QUICK.lw_batch_free(self.engine.handle, self.handle)
        self.handle = None
        lib.check(result)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.result()
        finally:
            self.free()

    def __del__(self):
        # Without waiting: what is under way is freed by the next submit.
        handle, engine = getattr(self, "handle", None), getattr(self, "engine", None)
        if handle is not None and lib.QUICK.lw_batch_free(engine.handle, handle) == -errno.EBUSY:
            lib.QUICK.lw_batch_cancel(engine.handle, handle)
            engine.dropped.append(handle)


def _close(handle):
    lib.BLOCKING.lw_engine_close(handle)


class Engine:
    """One engine, which peers open by its name. Leaving its with block, close(), or the end of the program ends it.

    name: "host" or "host:port", the address that peers reach; the port is chosen anew. metadata: how peers are found;
    with the URL of a store the name is a key there, and any text. address: "host:port" of the own handshake port.
    settings: {name: value} as `lwinfo --config` lists them.
    """

    def __init__(self, name=None, metadata=None, settings=None, config_file=None):
        def text(value):
            return None if value is None else str(value).encode()

        def value(given):
            return text({True: "on", False: "off"}[given] if isinstance(given, bool) else given)

        settings = settings or {}
        array_ = (lib.Setting * max(1, len(settings)))(*((text(n), value(v)) for n, v in settings.items()))
        opts = lib.EngineOpts(
            ctypes.sizeof(lib.EngineOpts), text(name), text(metadata), text(config_file), array_, len(settings)
        )
        out = ctypes.c_void_p()
        lib.check(lib.BLOCKING.lw_engine_open(ctypes.byref(opts), ctypes.byref(out)))
        self.handle = out.value
        self._kept = {}  # what lies in registered memory, by handle: peers may write there
        self.dropped = []  # batches that nobody holds any more, and that had not ended
        self._end = weakref.finalize(self, _close, self.handle)
        self.name = lib.QUICK.lw_engine_name(self.handle).decode()
        self.address = lib.QUICK.lw_engine_address(self.handle).decode()
        self.port = int(self.address.rpartition(":")[2])

    def close(self):
        """Ends it; whatever is under way fails. Calls of other threads get errors."""
        self._end()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # Memory

    def register(self, memory, length=None, access=lib.ACCESS_REMOTE, location=None):
        """Memory that transfers may touch: an address and a length, or an object that lies in memory and can be written
        (bytearray, mmap, numpy array, torch tensor)."""
        addr, length, keep = memory_of(memory, length)
        handle = self.register_words(
            _arrays.words((addr,), "memory"), _arrays.words((length,), "length"), access, location
        )[0]
        self._kept[handle] = keep
        return Buffer(self, handle, addr, length)

    def register_words(self, addresses, lengths, access=lib.ACCESS_REMOTE, location=None):
        """All or none. The handles, as an array of words."""
        place = ctypes.create_string_buffer(location.encode()) if location else None
        list_ = _arrays.memories(addresses, lengths, access, ctypes.addressof(place) if place else 0)
        handles = array("Q", bytes(8 * len(addresses)))
        lib.check(
            lib.BLOCKING.lw_memory_register(
                self.handle, _arrays.address(list_), len(addresses), _arrays.address(handles)
            )
        )
        return handles

    def unregister_handles(self, handles, timeout=None):
        """Each is tried, the first error is raised."""
        list_ = array("Q", handles)
        lib.check(
            lib.BLOCKING.lw_memory_unregister(
                self.handle, _arrays.address(list_), len(list_), lib.milliseconds(timeout)
            )
        )
        for handle in list_:
            self._kept.pop(handle, None)

    # Peers

    def open(self, name, timeout=None, via=None):
        """The memory of the engine of that name, asked of it anew each time. via: the driver that is to carry what goes
        there, "tcp" for example; None: the best."""
        out = ctypes.c_uint64()
        wait = lib.milliseconds(timeout)
        if via is None:
            error = lib.BLOCKING.lw_segment_open(self.handle, name.encode(), wait, ctypes.byref(out))
        else:
            error = lib.BLOCKING.lw_segment_open_via(self.handle, name.encode(), via.encode(), wait, ctypes.byref(out))
        lib.check(error)
        return Segment(self, out.value, name)

    def notes(self):
        """The notes that came since the last call."""
        found = []
        note = ctypes.POINTER(lib.Note)()
        while lib.check(lib.QUICK.lw_note_poll(self.handle, ctypes.byref(note))):
            try:
                both = [
                    ctypes.string_at(at, size).decode(errors="surrogateescape")
                    for at, size in (
                        (note.contents.name, note.contents.name_size),
                        (note.contents.text, note.contents.text_size),
                    )
                ]
            finally:
                lib.QUICK.lw_note_free(note)
            found.append(Note(*both))
        return found

    # Transfers

    def submit(self, op, segment, local, offsets, lengths, timeout=None, bulk=False):
        """Hands requests over, one for each number of the three lists, and returns the Batch. op is READ or WRITE,
        timeout each request's own. Waits only when the engine's rings are full, at most as long as a request may."""
        local, offsets, lengths = (
            _arrays.words(values, name) for values, name in ((local, "local"), (offsets, "offsets"), (lengths, "lengths"))
        )
        if not len(local) == len(offsets) == len(lengths):
            raise ValueError(f"{len(local)} local addresses, {len(offsets)} offsets and {len(lengths)} lengths")
        list_ = _arrays.requests(
            op, segment.handle, local, offsets, lengths, 0 if timeout is None else lib.milliseconds(timeout), bulk
        )
        return self.submit_packed(_arrays.address(list_), len(lengths), timeout)

    def submit_packed(self, list_, count, timeout=None):
        """As submit, of an array of struct lw_request: its address, or its bytes."""
        until = time.monotonic() + (30 if timeout is None else timeout)
        channel, out = ctypes.c_void_p(), ctypes.c_uint64()
        lib.check(lib.QUICK.lw_channel_self(self.handle, ctypes.byref(channel)))
        if count > lib.BATCH_MAX_TASKS:
            raise ValueError(f"{count} requests in one batch; it takes {lib.BATCH_MAX_TASKS}")

        def alloc():
            if self.dropped:
                self._free_dropped()
            return lib.QUICK.lw_batch_alloc(channel, count, 0, None, ctypes.byref(out))

        lib.patiently(alloc, until)
        batch = Batch(self, out.value, count)
        lib.patiently(lambda: lib.QUICK.lw_submit(channel, batch.handle, list_, count), until)
        return batch

    def _free_dropped(self):
        for _ in range(len(self.dropped)):
            handle = self.dropped.pop(0)
            if lib.QUICK.lw_batch_free(self.handle, handle) == -errno.EBUSY:
                self.dropped.append(handle)

    def write(self, segment, local, offset, length, timeout=None):
        """Local memory to the peer's; returns when it is there."""
        return self._move(lib.WRITE, segment, local, offset, length, timeout)

    def read(self, segment, local, offset, length, timeout=None):
        """The peer's memory to local memory."""
        return self._move(lib.READ, segment, local, offset, length, timeout)

    def _move(self, op, segment, local, offset, length, timeout):
        with self.submit(op, segment, (local,), (offset,), (length,), timeout) as batch:
            return batch.result()

    # What it tells of itself

    def info(self):
        """What the engine found on this host."""
        return json.loads(lib.take_json(lib.BLOCKING.lw_engine_info_json, self.handle))

    def config(self):
        """The effective settings, by name."""
        return {s["name"]: s for s in json.loads(lib.take_json(lib.BLOCKING.lw_engine_config_json, self.handle))}

    def topology(self):
        """NICs, GPUs, NUMA nodes, and which NICs serve which memory."""
        return json.loads(lib.take_json(lib.BLOCKING.lw_topology_json, self.handle))

    def stats(self):
        """Counters, by name."""
        out = lib.EngineStats(size=ctypes.sizeof(lib.EngineStats))
        lib.check(lib.QUICK.lw_stats_engine(self.handle, ctypes.byref(out)))
        return {name: getattr(out, name) for name, _ in lib.EngineStats._fields_[1:]}


def memory_of(memory, length=None):
    """Address, length, and what keeps it there, of an address or an object that lies in memory."""
    if isinstance(memory, int):
        if length is None:
            raise TypeError("an address needs a length")
        return memory, length, None
    if hasattr(memory, "data_ptr"):  # a torch tensor
        if not memory.is_contiguous():
            raise ValueError("the tensor does not lie in one piece; register its .contiguous() copy")
        addr, have, keep = memory.data_ptr(), memory.numel() * memory.element_size(), memory
    else:
        view = memoryview(memory)
        if view.readonly:
            raise ValueError("the object can't be written; use a bytearray, mmap or a writable array")
        have = view.nbytes
        keep = (ctypes.c_char * have).from_buffer(memory)
        addr = ctypes.addressof(keep)
    if length is not None and not 0 < length <= have:
        raise ValueError(f"the object has {have} bytes, not {length}")
    return addr, have if length is None else length, keep
