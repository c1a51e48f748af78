# SPDX-License-Identifier: Apache-2.0
"""lwbench with the command line of the reference's benchmark and validator: its flags in every form, its lines, its exit
status. Run by test_lwbench_flags.sh."""

import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from stores import ENVIRONMENT, Lwmeta, missing
from wire import MIB, FakeTarget, main

PROGRAM = os.path.join(os.environ["LW_BUILD_DIR"], "lwbench")
SMALL = ["--block_size=4096", "--batch_size=8", "--threads=2", "--buffer_size=1048576", "--duration=1"]
LAST = re.compile(r"Test completed: duration (\d+\.\d\d), batch count (\d+), throughput (\d+\.?\d*) (\w+)/s$", re.M)
PREFIX = re.compile(r"^[IWE]\d{8} \d\d:\d\d:\d\d\.\d{6} +\d+ \S+:\d+\] \S")
UNITS = {"GiB": 2**30, "Gb": 1e9 / 8, "MB": 1e6, "Kb": 1e3 / 8}


def lwbench(*arguments, program=PROGRAM, **more):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=40, check=False, **more)
    return done.returncode, done.stdout, done.stderr


class Target:
    """A target of that command line, which prints where it listens."""

    def __init__(self, *arguments, program=PROGRAM, how="P2P handshake", env=None):
        self.process = subprocess.Popen(
            [program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )
        self.lines = []
        found = threading.Event()
        self.name = None

        def read():
            for line in self.process.stderr:
                self.lines.append(line)
                match = re.search(rf"Transfer Engine RPC using {how}, listening on (\S+)$", line)
                if match:
                    self.name = match[1]
                    found.set()

        self.reader = threading.Thread(target=read, daemon=True)
        self.reader.start()
        if not found.wait(20):
            self.process.kill()
            raise TimeoutError("".join(self.lines))

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        try:
            return self.process.wait(20)
        finally:
            self.process.kill()
            self.reader.join(5)
            self.process.stdout.close()
            self.process.stderr.close()


class Flags(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.target = Target("--mode=target", "--local_server_name=127.0.0.1:12345", "--protocol=tcp", *SMALL)

    @classmethod
    def tearDownClass(cls):
        assert cls.target.end() == 0

    def last(self, text):
        found = LAST.findall(text)
        self.assertEqual(len(found), 1, text)
        duration, batches, rate, unit = found[0]
        return float(duration), int(batches), float(rate), unit

    def test_line_of_the_target(self):
        self.assertRegex(self.target.name, r"^127\.0\.0\.1:\d+$")
        for line in self.target.lines:
            self.assertRegex(line, PREFIX)

    def test_every_form_of_a_flag(self):
        name = self.target.name
        forms = (
            [f"--segment_id={name}", "--operation=write", "--protocol=tcp"],
            ["--segment_id", name, "--operation", "write", "--protocol", "tcp"],
            [f"-segment_id={name}", "-operation=write", "-protocol=tcp", "-noauto_discovery"],
            ["-segment_id", name, "-operation", "write", "-protocol", "tcp", "--auto_discovery"],
            ["--mode=initiator", "--segment-id", name, "--operation=read", "--metadata_server=P2PHANDSHAKE"]
            + ["--device_name=mlx5_2", "--nouse_vram", "--init_mem=false", "--gpu_id=0", "--backend=classic"],
        )
        for form in forms:
            with self.subTest(form):
                status, _, err = lwbench("--local_server_name=127.0.0.1", *form, *SMALL)
                self.assertEqual(status, 0, err)
                for i in range(2):
                    self.assertEqual(err.count(f"Worker {i} stopped!"), 1)
                duration, batches, rate, unit = self.last(err)
                self.assertEqual(unit, "GB")
                self.assertGreater(batches, 0)
                self.assertAlmostEqual(duration, 1, delta=0.5)
                self.assertAlmostEqual(rate, batches * 8 * 4096 / duration / 1e9, delta=0.011)
                for line in err.splitlines():
                    if "Worker" in line or "Test" in line:
                        self.assertRegex(line, PREFIX)

    def test_units_and_precision(self):
        for unit in ("GiB", "Gb", "MB", "Kb"):
            status, _, err = lwbench(
                f"--segment_id={self.target.name}", f"--report_unit={unit}", "--report_precision=5", *SMALL
            )
            duration, batches, rate, named = self.last(err)
            self.assertEqual((status, named), (0, unit))
            self.assertAlmostEqual(rate / (batches * 8 * 4096 / duration / UNITS[unit]), 1, delta=0.02)
        status, _, err = lwbench(f"--segment_id={self.target.name}", "--report_unit=Mb", "--report_precision=0", *SMALL)
        self.assertEqual(status, 0)
        self.assertRegex(err, r"throughput \d+ Mb/s\n")
        status, _, err = lwbench(f"--segment_id={self.target.name}", "--report_unit=furlong", *SMALL)
        self.assertEqual((status, self.last(err)[3]), (0, "GB"))
        self.assertIn("--report_unit 'furlong' is unknown", err)

    def test_buffer_that_is_too_small_is_raised(self):
        more = ["--block_size=1000", "--batch_size=16", "--threads=3", "--buffer_size=4096", "--duration=1"]
        status, _, err = lwbench(f"--segment_id={self.target.name}", "--validate", *more)
        self.assertEqual(status, 0, err)
        self.assertIn("--buffer_size is raised", err)

    def test_mistakes_end_with_1_and_a_sentence(self):
        name = f"--segment_id={self.target.name}"
        for arguments, words in (
            (["--mode=listener"], "--mode is"),
            (["--operation=erase", name], "--operation is"),
            (["--protocol=pigeon", name], "--protocol 'pigeon'"),
            ([], None),
            (["--mode=initiator"], "--segment_id is missing"),
            (["--segment_id"], "needs a value"),
            (["--blocksize=1", name], "unknown flag '--blocksize=1'"),
            (["--noblock_size", name], "unknown flag '--noblock_size'"),
            (["--block_size=64k", name], "flag --block_size can't be '64k'"),
            (["--block_size=-1", name], "flag --block_size can't be '-1'"),
            (["--block_size=0", name], "above 0"),
            (["--threads=99999", name], "at most"),
            (["--auto_discovery=perhaps", name], "flag --auto_discovery can't be 'perhaps'"),
            ([name, "more"], "what is 'more'"),
            ([name, "--block_size=18446744073709551615"], "too large"),
            (["--segment_id=127.0.0.1:1", *SMALL], "127.0.0.1:1"),
            (["--mode=target", "--metadata_server=carrier-pigeon://loft", *SMALL], "carrier-pigeon"),
        ):
            with self.subTest(arguments):
                status, out, err = lwbench(*arguments)
                if words is None:  # no flags at all is the usage of lwbench
                    self.assertEqual(status, 2)
                    continue
                self.assertEqual((status, out), (1, ""))
                self.assertIn(words, err)

    def test_own_command_line_is_as_it_was(self):
        self.assertEqual(lwbench("--help")[0], 0)
        self.assertIn("--segment_id=NAME", lwbench("--help")[1])
        self.assertEqual(lwbench("--version")[0], 0)
        self.assertEqual(lwbench("initiator")[0], 2)
        status, out, err = lwbench("initiator", "--target", self.target.name, "--count", "8", "--buffer-size", "1m")
        self.assertEqual((status, LAST.findall(out + err)), (0, []))

    def test_class_of_own_command_line(self):
        run = ["initiator", "--target", self.target.name, "--count", "8", "--buffer-size", "1m", "--priority"]
        self.assertEqual(lwbench(*run, "bulk")[0], 0)
        self.assertEqual(lwbench(*run, "foreground")[0], 0)
        status, _, err = lwbench(*run, "urgent")
        self.assertEqual(status, 2)
        self.assertIn("--priority can't be 'urgent'", err)

    def test_names_of_the_reference(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("transfer_engine_bench", "transfer_engine_validator"):
                link = os.path.join(folder, name)
                os.symlink(PROGRAM, link)
                status, _, err = lwbench(f"--segment_id={self.target.name}", *SMALL, program=link)
                self.assertEqual(status, 0, err)
                passed = err.count("stopped! Data validation passed")
                self.assertEqual(passed, 2 if name.endswith("validator") else 0)
                status, _, err = lwbench(program=link)
                self.assertEqual(status, 1)
                self.assertIn("--segment_id is missing", err)

    def test_validator_passes(self):
        status, out, err = lwbench(f"--segment_id={self.target.name}", "--validate", *SMALL)
        self.assertEqual(status, 0, err)
        self.assertEqual(err.count("stopped! Data validation passed"), 2)
        # A batch is written and read: the table's rate, over its time in transfers, counts both.
        duration, batches, rate, _ = self.last(err)
        self.assertAlmostEqual(rate, batches * 8 * 4096 / duration / 1e9, delta=0.011)
        both_gbps = float(re.search(r"^validate +.*", out, re.M)[0].split()[5])
        self.assertGreater(both_gbps, 1.9 * (rate - 0.005))

    def test_validator_finds_a_wrong_byte(self):
        def answer(fake, number, op, addr, size, sock):
            if op & 0x7F == 1 or number < 200:
                return None
            at = addr - fake.BASE
            data = bytearray(fake.memory[at : at + size])
            data[size // 2] ^= 1
            sock.sendall(bytes.fromhex("000000005654434d") + data)
            return True

        fake = FakeTarget(size=MIB, answer=answer)
        self.addCleanup(fake.close)
        status, _, err = lwbench(f"--segment_id={fake.name}", "--validate", *SMALL)
        self.assertEqual(status, 1)
        self.assertIn("Detect data integrity problem", err)
        self.assertNotIn("validation passed", err)

    def test_target_that_dies_fails_the_run(self):
        target = Target("--mode=target", "--local_server_name=127.0.0.1", *SMALL)
        process = subprocess.Popen(
            [PROGRAM, f"--segment_id={target.name}", *SMALL[:-1], "--duration=30"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            with self.assertRaises(subprocess.TimeoutExpired):
                process.wait(1)
            begin = time.monotonic()
            self.assertEqual(target.end(signal.SIGKILL), -signal.SIGKILL)
            _, err = process.communicate(timeout=30)
            self.assertLess(time.monotonic() - begin, 15)  # at the first failure, not after the duration
        finally:
            process.kill()
        self.assertEqual(process.returncode, 1)
        self.assertIn("requests failed", err)

    def test_interrupt_ends_a_target_in_order(self):
        target = Target("--mode=target", "--local_server_name=127.0.0.1", *SMALL)
        self.assertEqual(target.end(signal.SIGINT), 0)


@unittest.skipIf(missing(Lwmeta), f"there is no {' and no '.join(missing(Lwmeta))}")
class InAStore(unittest.TestCase):
    """Names in a metadata store."""

    ENV = dict(ENVIRONMENT, MC_TCP_BIND_ADDRESS="127.0.0.1", LW_STORE_TIMEOUT_MS="2000")

    @classmethod
    def setUpClass(cls):
        cls.store = Lwmeta()
        cls.addClassCleanup(cls.store.close)
        cls.server = f"--metadata_server={cls.store.url}"
        cls.setting = f"metadata={cls.store.url}"

    def test_flags_of_the_reference(self):
        target = Target("--mode=target", "--local_server_name=node5", self.server, *SMALL, how="new RPC mapping", env=self.ENV)
        try:
            # The address, as the reference prints it, which the store has, too.
            port = target.name.removeprefix("127.0.0.1:")
            self.assertIn(f'"rpc_port":{port}', self.store.read("mooncake/rpc_meta/node5"))
            for more in (["--operation=write"], ["--operation=read"], ["--validate"], ["--local_server_name=a/b"]):
                status, _, err = lwbench("--segment_id=node5", self.server, *more, *SMALL, env=self.ENV)
                self.assertEqual(status, 0, err)
                self.assertEqual(len(LAST.findall(err)), 1, err)
            status, _, err = lwbench("--segment_id=node6", self.server, *SMALL, env=self.ENV)
            self.assertEqual(status, 1)
            self.assertIn('knows no "node6"', err)
            status, _, err = lwbench(f"--segment_id={target.name}", self.server, *SMALL, env=self.ENV)
            self.assertEqual(status, 1, "an address is no name in a store")
        finally:
            self.assertEqual(target.end(), 0)
        status, _, err = lwbench("--segment_id=node5", self.server, *SMALL, env=self.ENV)
        self.assertEqual(status, 1)
        status, _, err = lwbench("--segment_id=node5", "--metadata_server=http://127.0.0.1:1/metadata", *SMALL, env=self.ENV)
        self.assertEqual(status, 1)
        self.assertIn("http://127.0.0.1:1/metadata", err)

    def test_own_command_line(self):
        """With and without a name; both sides lie on this host, so an address alone is no name."""
        small = ["--buffer-size", "1m", "--set", self.setting, "--set", "drivers=tcp"]  # by shm nobody serves
        for named in ([], ["--listen", "node7"]):
            target = subprocess.Popen([PROGRAM, "target", *small, *named], stdout=subprocess.PIPE, text=True, env=self.ENV)
            try:
                name = re.fullmatch(r"lwbench: target ready name=(\S+) addr=\S+ size=1048576\n", target.stdout.readline())[1]
                self.assertRegex(name, "^node7$" if named else r"^127\.0\.0\.1:\d+$")
                for more in ([], ["--validate"], ["--listen", "node8"]):
                    status, out, err = lwbench("initiator", "--target", name, "--count", "800", "--block-size", "16k", *small, *more, env=self.ENV)
                    self.assertEqual(status, 0, err)
                    self.assertIn("write" if more != ["--validate"] else "validate", out)
                status, _, err = lwbench("initiator", "--target", "nobody", "--count", "800", "--block-size", "16k", *small, env=self.ENV)
                self.assertNotEqual(status, 0)
                self.assertIn('knows no "nobody"', err)
            finally:
                target.terminate()
                served, _ = target.communicate(timeout=20)
            self.assertEqual(target.returncode, 0)
            self.assertNotIn("served 0.000 GiB", served)


if __name__ == "__main__":
    main()
