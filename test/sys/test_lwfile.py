# SPDX-License-Identifier: Apache-2.0
"""Segments of files over each kind of store: lwfile puts them there and tells of mounts, engines open them by name; also
documents as an operator writes them by hand, and wrong ones. Run by test_lwfile.sh."""

import errno
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import unittest

import lanewise
from stores import ENVIRONMENT, Etcd, Http, Lwmeta, Redis, run_all
from wire import RANDOM

os.environ.update(ENVIRONMENT)  # proxies that nobody answers at
os.environ.update(LW_STORE_TIMEOUT_MS="3000", LW_STORE_LEASE_S="5", LW_ADDRESS="127.0.0.1", LW_STORE_CLUSTER="prod")

LWFILE = os.path.join(os.environ["LW_BUILD_DIR"], "lwfile")
PLAIN = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
SIZES = (300000, 70001)


def sha(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else hashlib.sha256(
            file.read()
        ).hexdigest()


class Case(unittest.TestCase):
    kind = None

    @classmethod
    def setUpClass(cls):
        cls.store = cls.kind()
        cls.addClassCleanup(cls.store.close)
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("LW_TEST_FOLDER", "/var/tmp"))
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.engine = lanewise.Engine("node7", cls.store.url, settings={"drivers": "nvmeof,tcp"})
        cls.addClassCleanup(cls.engine.close)
        cls.memory = bytearray(1 << 20)
        cls.buffer = cls.engine.register(cls.memory)

    def setUp(self):
        self.paths = []
        for number, size in enumerate(SIZES):
            self.paths.append(os.path.join(self.folder, f"{self.id()}-{number}"))
            with open(self.paths[-1], "wb") as file:
                file.write(RANDOM.randbytes(size))

    def lwfile(self, *words, code=0):
        run = subprocess.run([LWFILE, *words, "--metadata", self.store.url], capture_output=True, text=True, env=PLAIN,
                             timeout=30)  # fmt: skip
        self.assertEqual(run.returncode, code, run.stderr)
        return run.stdout if code == 0 else run.stderr

    def moves(self, segment):
        """Writes all of it and reads it back; what is in the files is compared by SHA-256."""
        total = sum(SIZES)
        self.memory[:total] = RANDOM.randbytes(total)
        want, at = [], 0
        for size in SIZES:
            want.append(hashlib.sha256(self.memory[at : at + size]).hexdigest())
            at += size
        self.assertEqual(self.engine.write(segment, self.buffer.addr, 0, total), total)
        self.assertEqual([sha(path) for path in self.paths], want)
        before = bytes(self.memory[:total])
        self.memory[:total] = bytes(total)
        self.assertEqual(self.engine.read(segment, self.buffer.addr, 0, total), total)
        self.assertEqual(bytes(self.memory[:total]), before)

    def fails(self, number, name, *words):
        with self.assertRaises(OSError) as caught:
            self.engine.open(name)
        self.assertEqual(caught.exception.errno, number, caught.exception)
        for word in words:
            self.assertIn(word, str(caught.exception))


class Suite:
    def test_publish_open_mount_withdraw(self):
        for name in ("nvmeof/kv1", "plain-name", "nvmeof/deep/er"):
            with self.subTest(name):
                self.lwfile("publish", name, "--server", "node5", *self.paths)
                self.assertIn("withdraw", self.lwfile("publish", name, *self.paths, code=1))
                self.fails(errno.ENOENT, name, "local_path_map", "node7", self.paths[0])
                there = os.path.join(self.folder, "mounted")
                os.makedirs(there, exist_ok=True)
                for path in self.paths:
                    link = os.path.join(there, os.path.basename(path))
                    if not os.path.lexists(link):
                        os.symlink(path, link)
                self.assertEqual(self.lwfile("mount", name, "--server", "node7", "--from", self.folder, "--to", there),
                                 "2 files\n")  # fmt: skip
                shown = self.lwfile("show", name)
                self.assertIn(f"{self.paths[0]}  {SIZES[0]} bytes\n    node5  {self.paths[0]}\n    node7  {there}/", shown)
                document = json.loads(self.lwfile("show", name, "--json"))
                self.assertEqual((document["name"], document["protocol"]), (name, "nvmeof"))
                with self.engine.open(name) as segment:
                    ranges = segment.ranges()
                    self.assertEqual(ranges, [(0, SIZES[0], 3), (SIZES[0], SIZES[1], 3)])
                    self.moves(segment)
                self.lwfile("unmount", name, "--server", "node7", "--from", self.paths[1])
                self.fails(errno.ENOENT, name, self.paths[1])
                self.lwfile("withdraw", name)
                self.assertIn(name, self.lwfile("withdraw", name, code=1))
                self.fails(errno.ENOENT, name, name)

    def test_document_by_hand(self):
        document = {
            "name": "nvmeof/hand",
            "protocol": "nvmeof",
            "buffers": [
                {"file_path": "/on/the/storage/node", "length": size, "local_path_map": {"other": "/x", "node7": path}}
                for size, path in zip(SIZES, self.paths)
            ],
            "operator": "was here",
        }
        self.store.write("mooncake/prod/nvmeof/hand", json.dumps(document))
        with self.engine.open("nvmeof/hand") as segment:
            self.moves(segment)
        # What is not ours stays when a mount is told.
        self.lwfile("mount", "nvmeof/hand", "--server", "node9", "--from", "/on/the", "--to", "/mnt/")
        kept = json.loads(self.store.read("mooncake/prod/nvmeof/hand"))
        self.assertEqual(kept["operator"], "was here")
        self.assertEqual(kept["buffers"][0]["local_path_map"]["node9"], "/mnt/storage/node")
        with self.engine.open("nvmeof/hand") as segment:
            document["buffers"][1]["local_path_map"]["node7"] = self.paths[1] + "-gone"
            self.store.write("mooncake/prod/nvmeof/hand", json.dumps(document))
            self.moves(segment)  # it has its files
            self.fails(errno.ENOENT, "nvmeof/hand", self.paths[1] + "-gone")
            self.moves(segment)

    def test_read_only_segment(self):
        self.lwfile("publish", "nvmeof/ro", "--server", "node7", "--read-only", *self.paths)
        before = [sha(path) for path in self.paths]
        with self.engine.open("nvmeof/ro") as segment:
            self.assertEqual(segment.ranges()[0], (0, SIZES[0], 1))
            self.engine.read(segment, self.buffer.addr, SIZES[0] - 10, 20)
            with self.assertRaises(lanewise.TransferError) as caught:
                self.engine.write(segment, self.buffer.addr, SIZES[0] + 1, 20)
            self.assertEqual(caught.exception.reason, "remote_range")
            self.assertIn(self.paths[1], str(caught.exception))
        self.assertEqual([sha(path) for path in self.paths], before)

    def test_wrong_documents(self):
        good = {"file_path": "/a", "length": 4096, "local_path_map": {"node7": self.paths[0]}}
        for number, (buffers, word) in enumerate((
            ([], "0 files"),
            ({}, "not a list"),
            (["/a"], "not an object"),
            ([{**good, "length": 0}], "length"),
            ([{**good, "length": -1}], "length"),
            ([{**good, "length": 2**53}], "length"),
            ([{**good, "length": "4096"}], "length"),
            ([{**good, "file_path": 5}], "file_path"),
            ([{**good, "file_path": ""}], "file_path"),
            ([{**good, "local_path_map": []}], "local_path_map"),
            ([{**good, "local_path_map": {"node7": 1}}], "local_path_map"),
            ([{**good, "local_path_map": {"node7": "/" + "x" * 5000}}], "local_path_map"),
            ([good] * 1025, "files"),
        )):  # fmt: skip
            with self.subTest(word=word, number=number):
                name = f"nvmeof/wrong{number}"
                self.store.write(f"mooncake/prod/{name}", json.dumps({"name": name, "protocol": "nvmeof", "buffers": buffers}))
                self.fails(errno.EPROTO, name, name, word)
        self.store.write("mooncake/prod/nvmeof/x", json.dumps({"name": "nvmeof/y", "protocol": "nvmeof", "buffers": [good]}))
        self.fails(errno.EPROTO, "nvmeof/x", "nvmeof/y")
        self.store.write("mooncake/prod/ram/alone", json.dumps({"name": "alone", "protocol": "tcp", "buffers": [],
                                                              "tcp_data_port": 1}))  # fmt: skip
        self.fails(errno.ENOENT, "alone", "alone")

    def test_an_engines_name_is_not_taken(self):
        self.assertIn("node7", self.lwfile("publish", "node7", *self.paths, code=1))
        self.assertIn("node7", self.lwfile("withdraw", "node7", code=1))
        self.assertIn("node7", self.lwfile("mount", "node7", "--server", "x", "--to", "/y", code=1))


class InEtcd(Suite, Case):
    kind = Etcd


class InRedis(Suite, Case):
    kind = Redis


class InLwmeta(Suite, Case):
    kind = Lwmeta

    def test_usage(self):
        run = lambda *words: subprocess.run([LWFILE, *words], capture_output=True, text=True, env=PLAIN, timeout=30)
        self.assertEqual(run("--help").returncode, 0)
        for words in ((), ("show",), ("fly", "x"), ("publish", "x"), ("mount", "x"), ("show", "x", "y"), ("--set", "x")):
            self.assertEqual(run(*words).returncode, 2, words)
        self.assertIn("metadata", run("show", "nvmeof/x").stderr)  # there is no store
        self.assertIn("relative", self.lwfile("publish", "nvmeof/z", "relative", code=1))
        self.assertIn("/nowhere", self.lwfile("publish", "nvmeof/z", "/nowhere", code=1))
        self.lwfile("publish", "nvmeof/z", "/nowhere=4k")
        self.assertEqual(json.loads(self.lwfile("show", "nvmeof/z", "--json"))["buffers"][0]["length"], 4096)


class InHttp(Suite, Case):
    kind = Http


CLASSES = (InEtcd, InRedis, InLwmeta, InHttp)

if __name__ == "__main__":
    if len(sys.argv) > 1:
        unittest.main(verbosity=1)
    else:
        sys.exit(run_all(__file__, {case.__name__: case.kind for case in CLASSES}))
