# SPDX-License-Identifier: Apache-2.0
"""Reads the exchanges of golden/: see README.md for the notation."""

import errno
import json
import os
import re
import shlex

HERE = os.path.dirname(os.path.abspath(__file__))
PIECE = re.compile(r'\s+|(?P<hex>[0-9a-f]{2})(?![0-9a-f])|(?P<text>"(?:[^"\\]|\\.)*")|(?P<name>\$\w+)(?P<plus>[+-]\d+)?'
                   r"(?:\((?P<args>(?:\"(?:[^\"\\]|\\.)*\"|[^()\"])*)\))?")  # fmt: skip


class Exchange:
    """One exchange: steps are (do, lines), do what our initiator is told (None: nothing), lines (side, pieces)."""

    def __init__(self, name):
        self.name = name
        self.roles = ("target", "initiator")
        self.version = 2
        self.expect = None
        self.outside = False
        self.steps = []

    def lines(self):
        return [line for _, lines in self.steps for line in lines]


def _pieces(text, where):
    """Hex bytes, texts, ("$name", plus, arguments); or "end" alone."""
    if text.strip() == "end":
        return "end"
    found, at = [], 0
    while at < len(text):
        match = PIECE.match(text, at)
        assert match and match.end() > at, f"{where}: what is {text[at:]!r}?"
        at = match.end()
        if match["hex"]:
            found.append(bytes.fromhex(match["hex"]))
        elif match["text"]:
            found.append(json.loads(match["text"]).encode())
        elif match["name"]:
            found.append((match["name"], int(match["plus"] or 0), match["args"] or ""))
    return found


def load(name):
    """The exchanges of a file."""
    found = []
    with open(os.path.join(HERE, "golden", name), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            word, _, rest = line.partition(" ")
            where = f"{name}:{number}"
            if word == "exchange":
                found.append(Exchange(f"{name}: {rest}"))
            elif word == "roles":
                found[-1].roles = tuple(rest.split())
            elif word == "version":
                found[-1].version = None if rest == "none" else int(rest)
            elif word == "expect":
                found[-1].expect = getattr(errno, rest, rest)
            elif word == "outside":
                found[-1].outside = True
            elif word == "do":
                found[-1].steps.append((rest, []))
            elif word in "CS":
                if not found[-1].steps:
                    found[-1].steps.append((None, []))
                found[-1].steps[-1][1].append((word, _pieces(rest, where)))
            else:
                raise AssertionError(f"{where}: no line begins with {word!r}")
    return found


def words(do):
    """A do's operation and its ranges or texts."""
    op, _, rest = do.partition(" ")
    if op in ("write", "read"):
        return op, [tuple(map(int, part.split())) for part in rest.split(";")]
    return op, shlex.split(rest)
