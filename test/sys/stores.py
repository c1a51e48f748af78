# SPDX-License-Identifier: Apache-2.0
"""The client program and the servers that test_stores.py puts together."""

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

ENOENT, EIO, EACCES, EINVAL, ENOSPC, EROFS = 2, 5, 13, 22, 28, 30
EPROTO, EMSGSIZE, ETIMEDOUT, ECONNREFUSED, ESTALE = 71, 90, 110, 111, 116
HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(os.environ["LW_BUILD_DIR"], "test/unit/test_store")
PATIENCE = 15  # seconds for whatever has to happen
LWMETA = os.path.join(os.environ["LW_BUILD_DIR"], "lwmeta")
OURS, THEIRS = 0x0123456789ABCDEF, 0xFEDCBA9876543210
LONG_MS, SHORT_MS = 15000, 400
LEASE = 2
# A proxy that nobody answers at: who uses it fails.
ENVIRONMENT = dict(os.environ, http_proxy="http://127.0.0.1:1", https_proxy="http://127.0.0.1:1")
ENVIRONMENT.update(all_proxy="http://127.0.0.1:1", ALL_PROXY="http://127.0.0.1:1", HTTP_PROXY="http://127.0.0.1:1")
# Of servers and their tools: a sanitizer's runtime is preloaded for Python's sake alone, and curl hangs with it.
PLAIN = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def free_port(host="127.0.0.1"):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.bind((host, 0))
        return sock.getsockname()[1]


def eventually(condition, seconds=PATIENCE):
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def missing(kind):
    """What a kind of store needs and is not here."""
    return [need for need in kind.needs if shutil.which(need) is None]


def run_all(script, kinds):
    """A script's classes, {name: kind of store or None}, each in a process of its own (SCRIPT NAME), all at once, since
    they wait for leases and time-outs most of the time. The exit status."""
    left_out = {name: missing(kind) if kind else [] for name, kind in kinds.items()}
    runs = {name: subprocess.Popen([sys.executable, script, name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True)
            for name in kinds if not left_out[name]}  # fmt: skip
    status = 0
    for name, run in runs.items():
        text, _ = run.communicate()
        if run.returncode != 0:
            status = 1
            print(text)
        print(f"{name}: {'failed' if run.returncode else text.strip().splitlines()[-1]}")
    for name, needs in left_out.items():
        if needs:
            print(f"{name} is left out, since there is no {', '.join(needs)}")
    return status


def document(incarnation, text="x"):
    return f'{{"lw":{{"incarnation":"{incarnation:016x}"}},"text":"{text}"}}'


class Answer:
    def __init__(self, line):
        code, took, text = line.rstrip("\n").split(" ", 2)
        self.code = int(code)
        self.error = -self.code
        self.seconds = int(took) / 1000
        self.text = urllib.parse.unquote(text)

    def __repr__(self):
        return f"{self.code} after {self.seconds} s: {self.text}"


class Client:
    """One store in a process of its own; see test/common/store_client.h."""

    def __init__(self, url, incarnation=OURS, lease=0, user="", password="", db=0, max_value=0):
        self.process = subprocess.Popen(
            [PROGRAM, "client"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
        self.incarnation = incarnation
        self.opened = self.ask("open", url, f"{incarnation:x}", lease, user, password, db, max_value)

    def ask(self, *words):
        encoded = (urllib.parse.quote(str(word), safe="") if word != "" else "-" for word in words)
        self.process.stdin.write(" ".join(encoded) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the client ended with {self.process.wait()}")
        return Answer(line)

    def get(self, key, timeout=LONG_MS):
        return self.ask("get", key, timeout)

    def put(self, key, value=None, how="keep", timeout=LONG_MS):
        return self.ask("put", key, document(self.incarnation) if value is None else value, how, timeout)

    def renew(self, key, timeout=LONG_MS):
        return self.ask("renew", key, timeout)

    def remove(self, key, incarnation=None, timeout=LONG_MS):
        return self.ask("remove", key, f"{self.incarnation if incarnation is None else incarnation:x}", timeout)

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(PATIENCE)


class Server:
    """A server process on a free port of the loopback interface. Those who inherit say how it is started and asked."""

    needs = ()
    host = "127.0.0.1"
    keeps_data = True
    expires = True

    def __init__(self, *arguments):
        self.folder = tempfile.mkdtemp(prefix="lanewise-store-")
        self.port = free_port(self.host)
        self.arguments = arguments
        self.process = None
        atexit.register(self.close)  # also when the test is ended from outside
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            self.command(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder,
            env=PLAIN,
        )  # fmt: skip
        if not eventually(self.is_up):
            raise AssertionError(f"{self.command()[0]} does not start")

    def stop(self):
        self.process.kill()
        self.process.wait()

    def restart(self, with_data=True):
        self.stop()
        if not with_data:
            shutil.rmtree(self.folder)
            os.mkdir(self.folder)
        self.start()

    def freeze(self):
        os.kill(self.process.pid, signal.SIGSTOP)
        tasks = f"/proc/{self.process.pid}/task"
        assert eventually(lambda: all(self._state(f"{tasks}/{task}/stat") == "T" for task in os.listdir(tasks)))

    @staticmethod
    def _state(path):
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]

    def thaw(self):
        os.kill(self.process.pid, signal.SIGCONT)

    def close(self):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def where(self):
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def is_up(self):
        try:
            socket.create_connection((self.host, self.port), 1).close()
        except OSError:
            return False
        return True

    def run(self, *command, stdin=None):
        return subprocess.run(command, input=stdin, capture_output=True, timeout=PATIENCE, check=True, env=PLAIN).stdout


class Etcd(Server):
    needs = ("etcd", "etcdctl")

    def command(self):
        own = f"http://{self.where}"
        peers = own.removesuffix(str(self.port)) + str(free_port(self.host))
        return ["etcd", "--data-dir", f"{self.folder}/data", "--log-level", "fatal", "--listen-client-urls", own,
                "--advertise-client-urls", own, "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
                "--initial-cluster", f"default={peers}", *self.arguments]  # fmt: skip

    def is_up(self):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{self.where}/health", timeout=1) as answer:
                return b"true" in answer.read()
        except OSError:
            return False

    @property
    def url(self):
        return f"etcd://{self.where}"

    def ctl(self, *words, stdin=None):
        return self.run("env", "ETCDCTL_API=3", "etcdctl", f"--endpoints={self.where}", *words, stdin=stdin)

    def read(self, key):
        return self.ctl("get", "--print-value-only", "--", key).decode()[:-1]  # etcdctl adds a newline

    def write(self, key, text):
        self.ctl("put", "--", key, stdin=text.encode())


class Redis(Server):
    needs = ("redis-server", "redis-cli")

    def command(self):
        return ["redis-server", "--port", str(self.port), "--bind", self.host, "--dir", self.folder, "--save", "",
                "--appendonly", "yes", "--appendfsync", "always", *self.arguments]  # fmt: skip

    def is_up(self):
        try:
            answer = self.cli("PING")
        except subprocess.CalledProcessError:
            return False
        return answer.startswith((b"PONG", b"NOAUTH"))

    @property
    def url(self):
        return f"redis://{self.where}"

    def cli(self, *words, stdin=None):
        return self.run("redis-cli", "-h", self.host, "-p", str(self.port), *words, stdin=stdin)

    def read(self, key):
        return self.cli("--raw", "GET", key).decode()[:-1]

    def write(self, key, text):
        self.cli("-x", "SET", key, stdin=text.encode())


class Http(Server):
    needs = ("curl",)
    kind = "plain"
    keeps_data = False
    expires = False

    def command(self):
        return [sys.executable, os.path.join(HERE, "http_store.py"), str(self.port), self.kind, self.host]

    @property
    def url(self):
        return f"http://{self.where}/metadata"

    def curl(self, key, *words, stdin=None):
        return self.run("curl", "-sfg", "--noproxy", "*", *words, f"{self.url}?key={urllib.parse.quote(key, safe='')}",
                        stdin=stdin)  # fmt: skip

    def read(self, key):
        return self.curl(key).decode()

    def write(self, key, text):
        self.curl(key, "-X", "PUT", "--data-binary", "@-", stdin=text.encode())


class StrictHttp(Http):
    kind = "strict"


class LeaseHttp(Http):
    kind = "leases"
    expires = True


class Lwmeta(Http):
    needs = (LWMETA, "curl")
    expires = keeps_data = True

    def command(self):
        listen = f"[{self.host}]" if ":" in self.host else self.host
        return [LWMETA, "--listen", listen, "--port", str(self.port), "--file", f"{self.folder}/file", *self.arguments]
