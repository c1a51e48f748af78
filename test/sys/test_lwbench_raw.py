# SPDX-License-Identifier: Apache-2.0
"""lwbench's measures beside the engine: two processes on a plain connection, and the engine over the null driver. They
count what was asked for, in a table and as JSON, and wrong arguments are named. Run by test_lwbench_raw.sh."""

import json
import os
import subprocess
import tempfile
import unittest

from wire import RANDOM, main

SIZES = {"1": 1, "100": 100, "4k": 4096, "64k": 65536, "200000": 200000}
PROGRAM = os.path.join(os.environ["LW_BUILD_DIR"], "lwbench")


def lwbench(*arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


class Measures(unittest.TestCase):
    def counts(self, what, op, threads, *more):
        names = RANDOM.sample(sorted(SIZES), 2)
        blocks, batch = [SIZES[name] for name in names], RANDOM.choice((1, 3, 16))
        count = RANDOM.randrange(1, 60)
        arguments = [what, "--op", op, "--batch", str(batch), "--count", str(count),
                     "--block-size", ",".join(names), *more, "--json", "-"]  # fmt: skip
        status, out, err = lwbench(*arguments)
        self.assertEqual(status, 0, err)
        report = json.loads(out)
        self.assertEqual((report["what"], report["failures"]), (what, []))
        self.assertEqual([line["block"] for line in report["results"]], blocks)
        for line in report["results"]:
            requests = -(-count // batch) * batch * threads
            self.assertEqual((line["requests"], line["bytes"], line["failed"]), (requests, requests * line["block"], 0))
            self.assertGreater(line["gbps"], 0)
        for name in names:
            self.assertRegex(err, rf"{op} +{name} ")  # the table

    def test_raw(self):
        for op in ("write", "read"):
            with self.subTest(op=op):
                self.counts("raw", op, 1)
                self.counts("raw", op, 1, "--pin")

    def test_null(self):
        self.counts("null", "write", 2, "--threads", "2", "--buffer-size", "16m")
        self.counts("null", "read", 1, "--buffer-size", "16m")

    def test_report_in_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report")
            status, out, err = lwbench("raw", "--count", "4", "--json", path)
            self.assertEqual(status, 0, err)
            self.assertRegex(out, "raw-write +64k ")
            with open(path, encoding="utf-8") as file:
                self.assertEqual(json.load(file)["what"], "raw")
            status, _, err = lwbench("raw", "--count", "4", "--json", os.path.join(folder, "none", "report"))
            self.assertNotEqual(status, 0)
            self.assertIn("none/report", err)

    def test_wrong_arguments_are_named(self):
        for wrong in (["--op", "move"], ["--block-size", "5x"], ["--block-size", "0"], ["--batch", "0"], ["--count", "-1"],
                      ["--duration", "soon"], ["--target", "x"], ["--surprise"]):  # fmt: skip
            status, _, err = lwbench("raw", *wrong)
            self.assertEqual(status, 2, (wrong, err))
            self.assertIn(wrong[0], err)


if __name__ == "__main__":
    main()
