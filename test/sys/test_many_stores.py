# SPDX-License-Identifier: Apache-2.0
"""Engines of one process, two in each kind of metadata store and under the same names in all of them, and two that ask each
other: each reaches those of its own store, and a store that stands still or is gone touches its own engines alone. Run by
test_many_stores.sh."""

import os
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

import lanewise
from stores import ENVIRONMENT, ETIMEDOUT, Etcd, Http, Lwmeta, Redis, eventually, missing
from wire import RANDOM

os.environ.update(ENVIRONMENT)  # proxies that nobody answers at

KINDS = [kind for kind in (Etcd, Redis, Lwmeta, Http) if not missing(kind)]
SIZE = 1 << 16
LEASE = 2
SETTINGS = {"drivers": "tcp", "address": "127.0.0.1", "store_timeout_ms": 700, "store_lease_s": LEASE, "eal": False}
QUICK_S = 3  # a call that waits for no store; a busy machine is slow, a frozen store takes longer with each call


class Member:
    """An engine that offers bytes that no other has."""

    def __init__(self, name, url):
        self.engine = lanewise.Engine(name, metadata=url, settings=SETTINGS)
        self.content = RANDOM.randbytes(SIZE)
        self.offered = self.engine.register(bytearray(self.content))
        self.memory = bytearray(SIZE)
        self.local = self.engine.register(self.memory, access=lanewise.ACCESS_LOCAL)

        self.thread = ThreadPoolExecutor(1)  # one thread may use eight engines at most

    def read(self, segment):
        self.memory[:] = bytes(SIZE)
        at = segment.ranges()[0][0]
        self.thread.submit(self.engine.read, segment, self.local.addr, at, SIZE).result()
        return bytes(self.memory)

    def close(self):
        self.thread.shutdown()
        self.engine.close()


class ManyStores(unittest.TestCase):
    def setUp(self):
        self.stores = {kind: kind() for kind in KINDS}
        self.members = {}
        for kind, store in self.stores.items():
            self.addCleanup(store.close)
            self.members[kind] = [self.member(name, store.url) for name in ("node-a", "node-b")]
        self.members[None] = [self.member("127.0.0.1", "P2PHANDSHAKE") for _ in range(2)]

    def member(self, name, url):
        member = Member(name, url)
        self.addCleanup(member.close)
        return member

    def check(self, kind):
        """Both reach each other, by their names, and nobody else."""
        for here, there in (self.members[kind], self.members[kind][::-1]):
            with here.engine.open(there.engine.name, 5) as segment:
                self.assertEqual(here.read(segment), there.content, kind)

    def others(self, kind):
        return [other for other in self.members if other is not kind]

    def test_each_finds_those_of_its_own_store(self):
        for kind in self.members:
            self.check(kind)

    def test_store_that_stands_still_holds_its_own_alone(self):
        for kind, store in self.stores.items():
            known = self.members[kind][0].engine.open("node-b", 5)
            store.freeze()
            try:
                with self.assertRaises(lanewise.Error) as caught:
                    self.members[kind][0].engine.open("node-nobody", 1)
                self.assertEqual(caught.exception.errno, ETIMEDOUT)
                for other in self.others(kind):
                    begin = time.monotonic()
                    self.check(other)
                    self.assertLess(time.monotonic() - begin, QUICK_S, f"{other} beside {kind}")
                self.assertEqual(self.members[kind][0].read(known), self.members[kind][1].content)
            finally:
                store.thaw()
            known.close()
            self.assertTrue(eventually(lambda: self.reached(kind)), kind)

    def reached(self, kind):
        try:
            self.check(kind)
        except lanewise.Error:
            return False
        return True

    def test_store_that_is_gone_and_engines_that_end_touch_no_others(self):
        for kind, store in self.stores.items():
            store.stop()
            for other in self.others(kind):
                if other is None or self.stores[other].process.poll() is None:
                    self.check(other)
        for kind in list(self.stores)[:2]:
            for member in self.members[kind]:
                member.close()
        self.check(None)


if __name__ == "__main__":
    for kind in (Etcd, Redis, Lwmeta, Http):
        if missing(kind):
            print(f"{kind.__name__} is left out, since there is no {', '.join(missing(kind))}", flush=True)
    unittest.main(verbosity=2)
