# SPDX-License-Identifier: Apache-2.0
"""A small HTTP metadata server that behaves as those people run: http_store.py PORT KIND ADDRESS.

plain   overwrites, and answers 200 to DELETE whatever was there
strict  refuses to overwrite a key with "rpc_meta" in it, and answers 404 to DELETE of what is not there
leases  knows the parameters ttl, owner and match, and POST, as lwmeta does

A key "status/N" is answered with N, and its body is then the word "told". PUT of a number to the key "behave" has the
same effect for all other keys; "cut": an answer ends in the middle; "": as usual. GET of "puts" tells how many PUTs of other keys there were.
"""

import http.server
import socket
import sys
import threading
import time
import urllib.parse

KIND = sys.argv[2]
LOCK = threading.Lock()
BEHAVE = {"now": b"", "puts": 0}
VALUES = {}  # key: (bytes, owner, end of its lease)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def reply(self, status, body=b"", lease=None):
        self.send_response(status)
        if lease is not None:
            self.send_header("Lanewise-Lease", f"{lease - time.monotonic():.1f}")
        self.send_header("Content-Type", "application/json; charset=utf-8")
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        if status in (301, 302, 307):
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()
        if status != 204:
            self.wfile.write(body)

    def log_message(self, *args):
        pass

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        key = query.get("key", "")
        if url.path not in ("/metadata", "/deep/er/"):
            return self.reply(404, b"wrong path")
        if not key:
            return self.reply(400, b"no key")
        if key == "behave":
            BEHAVE["now"] = body
            return self.reply(200)
        if key == "puts":
            return self.reply(200, str(BEHAVE["puts"]).encode())
        BEHAVE["puts"] += self.command == "PUT"
        if BEHAVE["now"] == b"cut":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
            self.close_connection = True
            return None
        if BEHAVE["now"]:
            return self.reply(int(BEHAVE["now"]), b"told")
        if "status/" in key:
            return self.reply(int(key.rpartition("status/")[2]), b"told")
        with LOCK:
            return self.reply(*self.act(key, query, body))

    def act(self, key, query, body):
        value, owner, end = VALUES.get(key, (None, None, None))
        if end is not None and time.monotonic() > end:
            del VALUES[key]
            value = owner = None
        if self.command == "GET":
            return (404, b"metadata not found") if value is None else (200, value, end)
        if KIND == "leases" and value is not None:
            match = query.get("match", owner if owner == query.get("owner") or owner is None else None)
            if match not in ("*", owner or ""):
                return 412, b"metadata is held by another owner"
        if self.command == "POST":
            if value is None:
                return 404, b"metadata not found"
            VALUES[key] = (value, owner, self.end_of_lease(query))
            return 200, b"metadata renewed", VALUES[key][2]
        if self.command == "DELETE":
            if value is None and KIND != "plain":
                return 404, b"metadata not found"
            VALUES.pop(key, None)
            return 200, b"metadata deleted"
        if KIND == "strict" and value is not None and "rpc_meta" in key:
            return 400, b"Duplicate rpc_meta key not allowed"
        VALUES[key] = (body, query.get("owner"), self.end_of_lease(query))
        return 200, b"metadata updated", VALUES[key][2]

    def end_of_lease(self, query):
        return time.monotonic() + int(query["ttl"]) if KIND == "leases" and "ttl" in query else None

    do_GET = do_PUT = do_DELETE = handle_any
    if KIND == "leases":
        do_POST = handle_any


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
    address_family = socket.AF_INET6 if ":" in sys.argv[3] else socket.AF_INET


Server((sys.argv[3], int(sys.argv[1])), Handler).serve_forever()
