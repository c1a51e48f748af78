#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the tests ran of lib, meta, drivers and apps: coverage.py BUILD [--raise]. One line a folder, one for all. Below
the floor in the file beside: status 1. With --raise the floor becomes what was measured, where that is more; it is never
lowered."""

import json
import math
import os
import subprocess
import sys

FLOOR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "floor")
NAMES = {"line": "lines", "branch": "branches"}
SLACK = 0.5  # per cent: what depends on timing runs now and then


def measure(build):
    command = ["gcovr", "--root", ".", "--json-summary", "-", "--exclude-throw-branches", "--gcov-ignore-parse-errors"]
    for folder in ("lib", "meta", "drivers", "apps"):
        command += ["--filter", f"{folder}/"]
    out = subprocess.run([*command, build], stdout=subprocess.PIPE, check=True).stdout
    return json.loads(out)["files"]


def share(files, what):
    total = sum(file[f"{what}_total"] for file in files)
    return 100 * sum(file[f"{what}_covered"] for file in files) / total if total else 100.0


def show(name, files):
    print(f"{name:20} {len(files):4} files  {share(files, 'line'):5.1f} % of lines  {share(files, 'branch'):5.1f} % of branches")


def read_floor():
    with open(FLOOR, encoding="ascii") as file:
        lines = [line.split() for line in file if not line.startswith("#")]
    return {what: float(value) for what, value in lines}


def write_floor(floor):
    with open(FLOOR, "w", encoding="ascii") as file:
        file.write("# Per cent that the tests run at least (./dev coverage). It only rises: ./dev coverage --raise.\n")
        for what, value in floor.items():
            file.write(f"{what} {value:.1f}\n")


def main():
    files = measure(sys.argv[1])
    folders = sorted({os.path.dirname(file["filename"]) for file in files})
    for folder in folders:
        show(folder, [file for file in files if os.path.dirname(file["filename"]) == folder])
    show("all", files)
    for file in sorted(files, key=lambda file: file["line_covered"] - file["line_total"])[:10]:
        print(f"not run: {file['line_total'] - file['line_covered']:5} lines of {file['filename']}")
    floor, status = read_floor(), 0
    for what in floor:
        here = share(files, what)
        if here < floor[what]:
            print(f"coverage: {here:.1f} % of {NAMES[what]}, below the floor of {floor[what]:.1f} %")
            status = 1
        elif here > floor[what] + 2 * SLACK and "--raise" not in sys.argv:
            print(f"coverage: {here:.1f} % of {NAMES[what]}; the floor of {floor[what]:.1f} % can be raised (--raise)")
        if "--raise" in sys.argv:
            floor[what] = max(floor[what], math.floor(10 * (here - SLACK)) / 10)
    if "--raise" in sys.argv:
        write_floor(floor)
    return status


sys.exit(main())
