# SPDX-License-Identifier: Apache-2.0
"""Engines and stores of each kind where there is no IPv4 at all. Run by test_ipv6_only.sh, in a network of its own."""

import socket
import sys
import unittest

import test_directory as directory
from stores import run_all

HOST = "::1"


def there(way_kind):
    """The same way between engines, with everything on IPv6."""

    class Way(way_kind):
        if hasattr(way_kind, "kind"):
            kind = type("On6", (way_kind.kind,), {"host": HOST})

        def options(self, name, address=HOST):
            return super().options(name, address)

    return Way


class Case(directory.Case):
    def peer(self, name, *options, **more):
        return super().peer(name, *options, address=HOST, **more)

    restarted = directory.Suite.restarted
    test_open_by_name_reaches_the_peer = directory.Suite.test_open_by_name_reaches_the_peer
    test_buffers_registered_late_are_found = directory.Suite.test_buffers_registered_late_are_found
    test_notes_arrive_once_in_order_byte_by_byte = directory.Suite.test_notes_arrive_once_in_order_byte_by_byte
    test_peer_that_restarts_is_found_by_a_plain_open = directory.Suite.test_peer_that_restarts_is_found_by_a_plain_open

    def test_there_is_no_ipv4(self):
        with self.assertRaises(OSError), socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))

    def test_address_that_is_announced_is_the_other_family(self):
        a = self.peer("node-a")
        if self.way.store:
            self.assertIn(f'"ip_or_host_name":"{HOST}"', self.way.store.read("mooncake/rpc_meta/node-a"))
        else:
            self.assertRegex(a.name, r"^\[::1\]:\d+$")


class ByAsking(Case):
    way_kind = there(directory.Way)


class InEtcd(Case):
    way_kind = there(directory.ByEtcd)


class InRedis(Case):
    way_kind = there(directory.ByRedis)


class InLwmeta(Case):
    way_kind = there(directory.ByLwmeta)


class InHttp(Case):
    way_kind = there(directory.ByHttp)


del Case
CLASSES = (ByAsking, InEtcd, InRedis, InLwmeta, InHttp)

if __name__ == "__main__":
    if len(sys.argv) > 1:
        unittest.main(verbosity=1)
    else:
        sys.exit(run_all(__file__, {case.__name__: getattr(case.way_kind, "kind", None) for case in CLASSES}))
