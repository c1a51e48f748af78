# SPDX-License-Identifier: Apache-2.0
"""lwmeta as a process of its own, and requests to it, for the tests beside."""

import ctypes
import http.client
import os
import re
import resource
import select
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.parse

PROGRAM = os.path.join(os.environ["LW_BUILD_DIR"], "lwmeta")
PATIENCE = 20  # seconds that a start, an end or a single answer may take

UPDATED = (200, b"metadata updated")
UNCHANGED = (200, b"metadata unchanged")
RENEWED = (200, b"metadata renewed")
DELETED = (200, b"metadata deleted")
ABSENT = (404, b"metadata not found")
DUPLICATE = (400, b"Duplicate rpc_meta key not allowed")
HELD = (412, b"metadata is held by another owner")


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _die_with_parent():
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def escape(key):
    """As the reference's clients do."""
    return urllib.parse.quote(key, safe="-._~")


def target(key=None, **arguments):
    parts = [] if key is None else [f"key={escape(key)}"]
    parts += [f"{name}={escape(str(value))}" for name, value in arguments.items()]
    return "/metadata" + ("?" + "&".join(parts) if parts else "")


class Client:
    """One connection that is kept."""

    def __init__(self, server):
        self.http = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE)
        self.headers = {}

    def raw(self, method, path, body=None, headers=None, **more):
        self.http.request(method, path, body, {**self.headers, **(headers or {})}, **more)
        answer = self.http.getresponse()
        return answer.status, answer.read(), answer.headers

    def ask(self, method, key=None, body=None, **arguments):
        status, text, _ = self.raw(method, target(key, **arguments), body)
        return status, text

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.close()


class Server:
    def __init__(self, *options, environment=None, file_limit=None, listen=None):
        def before():
            _die_with_parent()
            if file_limit:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

        arguments = [PROGRAM, "--port", "0", *options] + (["--listen", listen] if listen else [])
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, **(environment or {})},
            preexec_fn=before,
        )
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            self.kill()
            raise AssertionError("lwmeta does not say that it is ready")
        self.line = self.process.stdout.readline()
        found = re.fullmatch(r"lwmeta: ready url=http://(\S+):(\d+)/metadata\n", self.line)
        if not found:
            self.process.wait(PATIENCE)
            raise AssertionError(f"lwmeta ended with {self.process.returncode}: {self.said()}")
        self.host, self.port = found[1].strip("[]"), int(found[2])

    def said(self):
        self.errors.seek(0)
        return self.errors.read()

    def client(self):
        return Client(self)

    def ask(self, *arguments, **named):
        with self.client() as client:
            return client.ask(*arguments, **named)

    def raw(self, *arguments, **named):
        with self.client() as client:
            return client.raw(*arguments, **named)

    def connect(self, receive_buffer=None):
        sock = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        sock.settimeout(PATIENCE)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.connect((self.host, self.port))
        return sock

    def metrics(self, headers=None):
        status, text, _ = self.raw("GET", "/metrics", headers=headers)
        assert status == 200, status
        lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self._close()

    def end(self, number=signal.SIGTERM):
        """Its exit status, what it said on stderr, and how long the end took."""
        if self.process.returncode is not None:
            return self.process.returncode, "", 0
        begin = time.monotonic()
        self.process.send_signal(number)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        took = time.monotonic() - begin
        said = self.said()
        self._close()
        return self.process.returncode, said, took

    def _close(self):
        self.process.stdout.close()
        self.errors.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        status, said, _ = self.end()
        if kind is None:
            assert status in (0, -signal.SIGKILL), f"lwmeta ended with {status}: {said}"


class Served(unittest.TestCase):
    """A server for each test, which ends in order and without a word."""

    options = ()

    def setUp(self):
        self.server = Server(*self.options)
        self.client = self.server.client()
        self.ask = self.client.ask

    def tearDown(self):
        self.client.http.close()
        status, said, _ = self.server.end()
        self.assertEqual((status, said), (0, ""))


def refused(*options, environment=None):
    """Runs lwmeta that does not come to serve. Its exit status and stderr."""
    done = subprocess.run(
        [PROGRAM, *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, **(environment or {})},
        preexec_fn=_die_with_parent,
    )
    return done.returncode, done.stderr
