# SPDX-License-Identifier: Apache-2.0
"""lwinfo: what it prints as a table says what its JSON says, settings with their sources; what is wrong ends it with the
status that its help tells, and a sentence; a secret is not shown. Run by test_lwinfo.sh."""

import json
import os
import subprocess
import unittest

from wire import main

PROGRAM = os.path.join(os.environ["LW_BUILD_DIR"], "lwinfo")


def lwinfo(*arguments, out=subprocess.PIPE, **variables):
    done = subprocess.run([PROGRAM, *arguments], stdout=out, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
                          env={**os.environ, "LW_EAL": "off", "LW_ADDRESS": "127.0.0.1", **variables})  # fmt: skip
    return done.returncode, done.stdout, done.stderr


class Info(unittest.TestCase):
    def printed(self, *arguments, **variables):
        status, out, err = lwinfo(*arguments, **variables)
        self.assertEqual(status, 0, err)
        return out

    def test_settings_with_their_sources(self):
        given = {"LW_WORKERS": "2", "LW_TCP_SECRET": "not-to-be-seen"}
        settings = {one["name"]: one for one in json.loads(self.printed("-c", "-j", **given))}
        self.assertEqual((settings["workers"]["value"], settings["workers"]["source"]), (2, "env"))
        self.assertEqual(settings["tcp_lanes"]["source"], "default")
        table = self.printed("--config", **given)
        for name, one in settings.items():
            self.assertRegex(table, rf"(?m)^  {name} +\S.* {one['source']} ")
        self.assertNotIn("not-to-be-seen", table + json.dumps(settings))

    def test_engine_and_drivers(self):
        report = json.loads(self.printed("--json", LW_DRIVERS="tcp,null"))
        on = {driver["name"]: driver["on"] for driver in report["info"]["drivers"]}
        self.assertEqual(on, on | {"tcp": True, "null": True, "shm": False})
        table = self.printed(LW_DRIVERS="tcp,null")
        self.assertRegex(table, r"(?m)^  tcp +on ")
        self.assertRegex(table, r"(?m)^  shm +off  \S")  # and why
        self.assertIn(report["version"], table)

    def test_topology(self):
        devices = json.loads(self.printed("-t", "-j"))["devices"]
        table = self.printed("--topology")
        for device in devices:
            self.assertIn(device["name"], table)

    def test_what_is_wrong(self):
        for wrong in (["--surprise"], ["x"], ["-c", "-t"]):
            status, out, err = lwinfo(*wrong)
            self.assertEqual((status, out), (2, ""), wrong)
            self.assertIn("Usage: lwinfo", err)
        status, _, err = lwinfo(LW_METADATA="nowhere")
        self.assertEqual(status, 1)
        self.assertIn('"nowhere" names no metadata store', err)
        for arguments in ([], ["-c"], ["-t"], ["-j"]):
            with open("/dev/full", "w", encoding="ascii") as full:
                status, _, err = lwinfo(*arguments, out=full)
            self.assertEqual(status, 1, arguments)
            self.assertIn("No space left on device", err)
        self.assertIn("Exit status", self.printed("--help"))


if __name__ == "__main__":
    main()
