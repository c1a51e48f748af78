# SPDX-License-Identifier: Apache-2.0
"""Lists of numbers as the arrays of structures that the library takes, without a Python loop over them.

Both structures are made of 64-bit words, so a member is every fifth (lw_request) or fourth (lw_memory) word.
"""

import struct
import sys
from array import array

_REQUEST_WORDS = 5  # local, segment, offset, length, {timeout_ms, op, priority, reserved}
_REQUEST = struct.Struct("=QQQQIBBH")
_REQUEST_TAIL = struct.Struct("=IBBH")
_MEMORY_WORDS = 4  # addr, length, {access, reserved}, location
_WORD = struct.Struct("=Q")
_NATIVE = "@=<" if sys.byteorder == "little" else "@=>!"


def words(values, name):
    """64-bit numbers from a list, another iterable, or what lies in memory like an array of them (numpy, array)."""
    if isinstance(values, array) and values.typecode == "Q":
        return values
    try:
        if not isinstance(values, (list, tuple)):
            view = _view(values)
            if view is not None:
                return _copy(view)
        return array("Q", values)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} must be a list of integers from 0 to 2^64 - 1: {error}") from None


def _view(values):
    """Its memory, if it consists of 64-bit integers side by side."""
    try:
        view = memoryview(values)
    except TypeError:
        return None
    if view.ndim != 1 or view.itemsize != 8 or not view.c_contiguous or view.format.lstrip(_NATIVE) not in tuple("qQlL"):
        return None
    return view


def _copy(view):
    memory = view.tobytes()
    if view.format[-1] in "ql" and len(memory) > 0 and min(array("q", memory)) < 0:
        raise OverflowError("there is a negative number")
    return array("Q", memory)


def one_request(op, segment, local, offset, length, timeout_ms, priority=0):
    """The bytes of one struct lw_request."""
    try:
        return _REQUEST.pack(local, segment, offset, length, timeout_ms, op, priority, 0)
    except struct.error as error:
        raise TypeError(f"addresses and lengths are integers from 0 to 2^64 - 1: {error}") from None


def requests(op, segment, locals_, offsets, lengths, timeout_ms, priority=0):
    """An array of struct lw_request of three arrays of words that are equally long."""
    count = len(lengths)
    tail = _WORD.unpack(_REQUEST_TAIL.pack(timeout_ms, op, priority, 0))[0]
    out = array("Q", bytes(8 * _REQUEST_WORDS * count))
    out[0::_REQUEST_WORDS] = locals_
    out[1::_REQUEST_WORDS] = array("Q", (segment,)) * count
    out[2::_REQUEST_WORDS] = offsets
    out[3::_REQUEST_WORDS] = lengths
    out[4::_REQUEST_WORDS] = array("Q", (tail,)) * count
    return out


def memories(addresses, lengths, access, location):
    """An array of struct lw_memory; location is the address of a text that outlives it, or 0."""
    count = len(addresses)
    out = array("Q", bytes(8 * _MEMORY_WORDS * count))
    out[0::_MEMORY_WORDS] = addresses
    out[1::_MEMORY_WORDS] = lengths
    out[2::_MEMORY_WORDS] = array("Q", _WORD.unpack(struct.pack("=II", access, 0))) * count
    out[3::_MEMORY_WORDS] = array("Q", (location,)) * count
    return out


def address(values):
    """Where an array lies."""
    return values.buffer_info()[0]
