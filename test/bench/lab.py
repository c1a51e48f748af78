# SPDX-License-Identifier: Apache-2.0
"""Suites that are measured in the lab's virtual machine (test/lab)."""

import os
import sys

import bench

LAB = os.path.join(bench.HERE, "..", "lab", "lab.sh")
MOST_S = 3000


def enter(options, memory_mib=1536, prepare=":"):
    """Becomes the same command in the lab, after some lines of shell there; its exit status is ours."""
    command = ["bash", LAB, "-t", str(MOST_S), "-m", str(memory_mib)]
    if options.json and options.json != "-":
        command += ["-w", os.path.dirname(os.path.abspath(options.json))]
    script = prepare + '\nexec "$@"'
    os.execvp("bash", command + ["bash", "-c", script, "bash", sys.executable, "-B"] + sys.argv)
