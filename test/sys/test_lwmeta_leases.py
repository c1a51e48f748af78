# SPDX-License-Identifier: Apache-2.0
"""The metadata server's leases and owners: an entry goes with its lease, and only its owner changes it. Run by
test_lwmeta_leases.sh."""

import threading
import time

from meta import ABSENT, DELETED, HELD, RENEWED, UPDATED, Served, target
from wire import eventually, main


class Leases(Served):
    def left(self, key):
        return float(self.client.raw("GET", target(key))[2]["Lanewise-Lease"])

    def test_an_entry_goes_with_its_lease(self):
        begin = time.monotonic()
        self.assertEqual(self.ask("PUT", "for ever", b"x"), UPDATED)
        self.assertEqual(self.ask("PUT", "k", b"x", ttl=1), UPDATED)
        granted = time.monotonic()
        while True:
            asked = time.monotonic()
            answer = self.ask("GET", "k")
            if answer == ABSENT:
                break
            self.assertEqual(answer, (200, b"x"))
            self.assertLess(asked - granted, 5)
        self.assertGreaterEqual(time.monotonic() - begin, 1)
        metrics = self.server.metrics()
        self.assertEqual(metrics["lwmeta_leases_expired_total"], 1)
        self.assertEqual((metrics["lwmeta_leases"], metrics["lwmeta_keys"]), (0, 1))
        for method in ("POST", "DELETE"):
            self.assertEqual(self.ask(method, "k"), ABSENT)
        self.assertEqual(self.ask("GET", "for ever"), (200, b"x"))

    def test_renewed_it_stays(self):
        self.ask("PUT", "posted", b"x", ttl=2)
        self.ask("PUT", "put", b"x", ttl=2)
        begin = time.monotonic()
        while time.monotonic() - begin < 2.6:
            self.assertEqual(self.ask("POST", "posted"), RENEWED)
            self.assertEqual(self.ask("PUT", "put", b"y", ttl=2), UPDATED)
            self.assertTrue(0.5 < self.left("posted") <= 2)
            time.sleep(0.2)
        self.assertEqual(self.ask("GET", "posted"), (200, b"x"))
        self.assertTrue(eventually(lambda: self.ask("GET", "posted") == ABSENT == self.ask("GET", "put")))

    def test_a_change_of_the_lease(self):
        self.assertEqual(self.client.raw("PUT", target("k", ttl="90.25"), b"x")[2]["Lanewise-Lease"], "90.250")
        self.assertTrue(85 < self.left("k") <= 90.25)
        self.assertEqual(self.client.raw("POST", target("k", ttl=31536000))[2]["Lanewise-Lease"], "31536000.000")
        self.assertGreater(self.left("k"), 31535990)
        self.assertEqual(self.ask("POST", "k", ttl="0.1"), RENEWED)
        self.assertTrue(eventually(lambda: self.ask("GET", "k") == ABSENT))
        self.ask("PUT", "k", b"x", ttl=0.3)
        self.ask("PUT", "k", b"y")  # without a lease from here on
        self.assertIsNone(self.client.raw("POST", target("k"))[2]["Lanewise-Lease"])
        time.sleep(0.7)
        self.assertEqual(self.ask("GET", "k"), (200, b"y"))

    def test_bad_leases(self):
        for ttl in ("", "0", "0.05", "-1", "1s", "nan", "inf", "1e3", "0x10", "1.2.3", ".", "31536001", "9" * 99):
            self.assertEqual(self.ask("PUT", "k", b"x", ttl=ttl)[0], 400, ttl)
        self.assertEqual(self.ask("GET", "k"), ABSENT)
        self.ask("PUT", "k", b"x", ttl=60)
        self.assertEqual(self.ask("POST", "k", b"x"), (400, b"a renewal has no body"))

    def test_many_end_together(self):
        for i in range(2000):
            self.ask("PUT", f"k{i}", b"x", ttl=1 + i % 7 / 10)
        self.assertTrue(eventually(lambda: self.server.metrics()["lwmeta_keys"] == 0))
        metrics = self.server.metrics()
        self.assertEqual((metrics["lwmeta_leases_expired_total"], metrics["lwmeta_bytes"]), (2000, 0))

    def test_no_lease_ends_while_the_server_stands(self):
        self.ask("PUT", "k", b"x", ttl=2.5)
        self.server.stop()
        time.sleep(3.5)
        self.server.go_on()
        self.assertEqual(self.ask("GET", "k"), (200, b"x"))
        self.assertEqual(self.ask("POST", "k"), RENEWED)


class Owners(Served):
    def test_an_entry_is_changed_by_its_owner_alone(self):
        self.assertEqual(self.ask("PUT", "k", b"1", owner="a1"), UPDATED)
        for owner in ({}, {"owner": "a2"}, {"owner": ""}, {"owner": "a"}, {"owner": "a11"}):
            self.assertEqual(self.ask("PUT", "k", b"2", **owner), HELD)
            self.assertEqual(self.ask("POST", "k", ttl=1, **owner), HELD)
            self.assertEqual(self.ask("DELETE", "k", **owner), HELD)
        status, body, headers = self.client.raw("GET", target("k"))
        self.assertEqual((status, body, headers["Lanewise-Owner"]), (200, b"1", "a1"))
        self.assertIsNone(headers["Lanewise-Lease"])
        self.assertEqual(self.ask("PUT", "k", b"2", owner="a1"), UPDATED)
        self.assertEqual(self.ask("POST", "k", owner="a1"), RENEWED)
        self.assertEqual(self.ask("DELETE", "k", owner="a1"), DELETED)

    def test_a_successor_takes_over(self):
        self.ask("PUT", "k", b"old", owner="old")
        self.assertEqual(self.ask("PUT", "k", b"new", owner="new", match="other"), HELD)
        self.assertEqual(self.ask("PUT", "k", b"new", owner="new", match=""), HELD)
        self.assertEqual(self.ask("PUT", "k", b"new", owner="new", match="old"), UPDATED)
        self.assertEqual(self.ask("DELETE", "k", owner="old"), HELD)  # the one before ends late
        self.assertEqual(self.ask("POST", "k", owner="old"), HELD)
        self.assertEqual(self.ask("GET", "k"), (200, b"new"))
        self.assertEqual(self.ask("DELETE", "k", match="*"), DELETED)
        self.assertEqual(self.ask("PUT", "k", b"x", owner="o", match="gone"), UPDATED)
        self.assertEqual(self.ask("PUT", "k", b"y", match="*"), UPDATED)  # nobody's from here on
        self.assertEqual(self.ask("DELETE", "k", match="o"), HELD)
        self.assertEqual(self.ask("PUT", "k", b"z", owner="p"), UPDATED)
        self.assertEqual(self.ask("DELETE", "k"), HELD)

    def test_one_of_many_gets_it(self):
        for match in ({}, {"match": ""}, {"match": "before"}):
            self.ask("DELETE", "k", match="*")
            if match.get("match"):
                self.ask("PUT", "k", b"x", owner="before")
            answers, gate = [], threading.Barrier(16)

            def put(owner, arguments, to, start):
                start.wait()
                to.append(self.server.ask("PUT", "k", owner.encode(), owner=owner, **arguments))

            threads = [threading.Thread(target=put, args=(f"o{i}", match, answers, gate)) for i in range(16)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(sorted(answers), [UPDATED] + [HELD] * 15)

    def test_bad_owners(self):
        for name in ("owner", "match"):
            for value in ("a b", "a\n", "ü", "x" * 65, "a*", "**", "a/b"):
                self.assertEqual(self.ask("PUT", "k", b"x", **{name: value})[0], 400, value)
        self.assertEqual(self.ask("PUT", "k", b"x", owner="*")[0], 400)
        self.assertEqual(self.ask("PUT", "k", b"x", owner="A-z.0_9:" + "x" * 56), UPDATED)


if __name__ == "__main__":
    main()
