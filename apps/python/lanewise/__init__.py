# SPDX-License-Identifier: Apache-2.0
"""Lanewise, a transfer engine: moves bytes between registered memory of processes and hosts. See README.md beside."""

from ._library import ACCESS_LOCAL, ACCESS_READ, ACCESS_REMOTE, ACCESS_WRITE, COMPLETED, READ, REASONS, WRITE, Error
from ._library import VERSION as __version__
from .engine import Batch, Buffer, Engine, Note, Segment, TransferError

__all__ = [
    "ACCESS_LOCAL",
    "ACCESS_READ",
    "ACCESS_REMOTE",
    "ACCESS_WRITE",
    "Batch",
    "Buffer",
    "COMPLETED",
    "Engine",
    "Error",
    "Note",
    "READ",
    "REASONS",
    "Segment",
    "TransferError",
    "WRITE",
    "__version__",
]
