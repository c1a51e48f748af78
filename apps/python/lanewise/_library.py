# SPDX-License-Identifier: Apache-2.0
"""liblanewise: where it is, its structures and functions, and its errors as exceptions.

Functions that may block are called through BLOCKING, which lets other Python threads run meanwhile. Those that never
block are called through QUICK, which keeps the interpreter's lock: giving it away for a microsecond would cost
milliseconds when another thread computes.
"""

import ctypes
import errno
import os
import sys
import time

SONAME = "liblanewise.so.0"
HERE = os.path.dirname(os.path.abspath(__file__))
BATCH_MAX_TASKS = 524288
TIMEOUT_MAX_MS = 86400000

PENDING, COMPLETED, FAILED, CANCELED, TIMEOUT = range(5)
READ, WRITE = 0, 1
ACCESS_LOCAL, ACCESS_READ, ACCESS_WRITE, ACCESS_REMOTE = range(4)
REASONS = (
    "none local_range remote_range refused unreachable reset protocol restarted timeout canceled segment_closed "
    "unregistered shutdown no_driver fault resources options unauthorized corrupt "
    "file_io file_full file_short file_read_only device"
).split()


def reason_name(number):
    """Of a task's reason; a newer library may have more of them."""
    return REASONS[number] if number < len(REASONS) else f"reason {number}"


class Error(OSError):
    """A call that failed: errno is the library's value, the text names the object, the cause and the remedy."""

    def __init__(self, number, text):
        super().__init__(number, text)

    def __str__(self):
        return self.strerror


class Setting(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_char_p)]


class EngineOpts(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_char_p),
        ("config_file", ctypes.c_char_p),
        ("settings", ctypes.POINTER(Setting)),
        ("settings_count", ctypes.c_size_t),
    ]


class Range(ctypes.Structure):
    _fields_ = [
        ("addr", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("access", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class BatchStatus(ctypes.Structure):
    """state is PENDING while a task is, COMPLETED if all are, else FAILED; bytes are those that peers confirmed."""

    _fields_ = [
        ("state", ctypes.c_uint32),
        ("tasks", ctypes.c_uint32),
        ("done", ctypes.c_uint32),
        ("failed", ctypes.c_uint32),
        ("bytes", ctypes.c_uint64),
    ]


class TaskStatus(ctypes.Structure):
    _fields_ = [
        ("state", ctypes.c_uint32),
        ("error", ctypes.c_int32),
        ("reason", ctypes.c_uint32),
        ("lane", ctypes.c_uint32),
        ("bytes", ctypes.c_uint64),
    ]


class Note(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_void_p),  # not c_char_p: the size counts, not the first NUL
        ("name_size", ctypes.c_size_t),
        ("text", ctypes.c_void_p),
        ("text_size", ctypes.c_size_t),
    ]


class EngineStats(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("requests", ctypes.c_uint64),
        ("failed", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("served_bytes", ctypes.c_uint64),
        ("worker_cpu_ns", ctypes.c_uint64),
        ("worker_sleeps", ctypes.c_uint64),
        ("live_batches", ctypes.c_uint32),
        ("live_buffers", ctypes.c_uint32),
        ("live_segments", ctypes.c_uint32),
        ("live_channels", ctypes.c_uint32),
        ("staged_bytes", ctypes.c_uint64),
        ("copy_errors", ctypes.c_uint64),
    ]


_ENGINE = _CHANNEL = _ARRAY = ctypes.c_void_p  # pointers that pass through; arrays by their address
_HANDLE, _U32, _SIZE, _TEXT = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_size_t, ctypes.c_char_p
_TO = ctypes.POINTER

_BLOCKING = {
    "lw_engine_open": [_TO(EngineOpts), _TO(_ENGINE)],
    "lw_engine_close": [_ENGINE],
    "lw_engine_info_json": [_ENGINE, _TO(ctypes.c_void_p)],
    "lw_engine_config_json": [_ENGINE, _TO(ctypes.c_void_p)],
    "lw_topology_json": [_ENGINE, _TO(ctypes.c_void_p)],
    "lw_memory_register": [_ENGINE, _ARRAY, _SIZE, _ARRAY],
    "lw_memory_unregister": [_ENGINE, _ARRAY, _SIZE, _U32],
    "lw_segment_open": [_ENGINE, _TEXT, _U32, _TO(_HANDLE)],
    "lw_segment_open_via": [_ENGINE, _TEXT, _TEXT, _U32, _TO(_HANDLE)],
    "lw_segment_probe": [_ENGINE, _HANDLE, _U32],
    "lw_notify": [_ENGINE, _HANDLE, _TO(Note), _U32],
    "lw_batch_wait": [_ENGINE, _HANDLE, _U32, _TO(BatchStatus)],
}
_QUICK = {
    "lw_channel_self": [_ENGINE, _TO(_CHANNEL)],
    "lw_segment_close": [_ENGINE, _HANDLE],
    "lw_segment_ranges": [_ENGINE, _HANDLE, _TO(Range), _SIZE],
    "lw_note_poll": [_ENGINE, _TO(_TO(Note))],
    "lw_note_free": [_TO(Note)],
    "lw_batch_alloc": [_CHANNEL, _U32, _U32, ctypes.c_void_p, _TO(_HANDLE)],
    "lw_submit": [_CHANNEL, _HANDLE, _ARRAY, _SIZE],
    "lw_batch_status": [_ENGINE, _HANDLE, _TO(BatchStatus)],
    "lw_task_status": [_ENGINE, _HANDLE, _U32, _TO(TaskStatus)],
    "lw_task_reason": [_ENGINE, _HANDLE, _U32, ctypes.c_char_p, _SIZE],
    "lw_batch_cancel": [_ENGINE, _HANDLE],
    "lw_batch_free": [_ENGINE, _HANDLE],
    "lw_stats_engine": [_ENGINE, _TO(EngineStats)],
    "lw_version": [],
    "lw_version_string": [],
    "lw_engine_name": [_ENGINE],
    "lw_engine_address": [_ENGINE],
    "lw_last_error": [],
    "lw_strerror": [ctypes.c_int],
    "lw_reason_string": [ctypes.c_int],
}
_RESULTS = {
    "lw_note_free": None,
    "lw_version": _U32,
    "lw_version_string": _TEXT,
    "lw_engine_name": _TEXT,
    "lw_engine_address": _TEXT,
    "lw_last_error": _TEXT,
    "lw_strerror": _TEXT,
    "lw_reason_string": _TEXT,
}


def _candidates():
    """Where the library may be, best first: beside us, where the system looks, in the build tree that we lie in."""
    yield os.path.join(HERE, SONAME)
    yield SONAME
    build = os.path.normpath(os.path.join(HERE, "..", "..", "..", "build"))
    yield os.path.join(build, "release", SONAME)


def _find():
    """The loaded library's path, and it as functions that let other threads run."""
    named = os.environ.get("LANEWISE_LIBRARY")
    tried = []
    for path in (named,) if named else _candidates():
        if os.path.isabs(path) and not named and not os.path.exists(path):
            tried.append(f"{path}: not there")
            continue
        try:
            return path, ctypes.CDLL(path)
        except OSError as error:
            tried.append(str(error))
    remedy = (
        "LANEWISE_LIBRARY names it" if named else f"install Lanewise, or name the file {SONAME} in LANEWISE_LIBRARY"
    )
    raise ImportError(f"liblanewise can't be loaded ({remedy}): {'; '.join(tried)}")


def _declare(functions, table):
    for name, arguments in table.items():
        function = getattr(functions, name, None)
        if function is None:
            raise ImportError(f"{PATH} has no {name}: it is no liblanewise, or an older one")
        function.argtypes = arguments
        function.restype = _RESULTS.get(name, ctypes.c_int)


if sys.maxsize < 1 << 32:
    raise ImportError("Lanewise needs a 64-bit Python")
PATH, BLOCKING = _find()
QUICK = ctypes.PyDLL(PATH)
_declare(BLOCKING, _BLOCKING)
_declare(QUICK, _QUICK)
VERSION = QUICK.lw_version_string().decode()
if QUICK.lw_version() >> 16 != 0:
    raise ImportError(f"{PATH} is version {VERSION}; this package knows version 0")

_free = ctypes.CDLL(None).free
_free.argtypes = [ctypes.c_void_p]
_free.restype = None


def check(result):
    """The result of a call, unless it says that the call failed: then Error."""
    if result >= 0:
        return result
    text = QUICK.lw_last_error() or QUICK.lw_strerror(result)
    raise Error(-result, text.decode(errors="replace"))


def take_json(function, engine):
    """The text that one of the ..._json functions gives."""
    out = ctypes.c_void_p()
    check(function(engine, ctypes.byref(out)))
    try:
        return ctypes.string_at(out.value).decode()
    finally:
        _free(out)


def milliseconds(seconds):
    """A time limit for a call of the library. None is the library's own; 0 and less is the shortest there is."""
    if seconds is None:
        return 0
    return max(1, min(TIMEOUT_MAX_MS, round(seconds * 1000)))


def patiently(call, until):
    """call(), again and again while the library says that it is full for the moment, until that time of the clock."""
    pause = 0.0001
    while (result := call()) in (-errno.EAGAIN, -errno.ENOBUFS) and time.monotonic() < until:
        time.sleep(pause)  # others run and free what we wait for
        pause = min(2 * pause, 0.01)
    return check(result)
