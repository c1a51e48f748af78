# SPDX-License-Identifier: Apache-2.0
"""Two processes of one host without sockets: when they reach each other's memory, when they must not, what the log says,
and what becomes of transfers when one of them dies. Run by test_shm.sh."""

import os
import shutil
import subprocess
import time
import unittest

from wire import MIB, RANDOM, Handshake, Peer, eventually, main

SHM = ("drivers=shm,tcp", "shm_peers=on", "log_level=warning")
AREA = 4 * MIB
IN_NAMESPACE = ("unshare", "--fork", "--kill-child", "--pid", "--mount-proc")


def is_root():
    return os.geteuid() == 0


class Shm(unittest.TestCase):
    def start(self, *options, prefix=()):
        peer = Peer(AREA, *SHM, *options, prefix=prefix)
        self.addCleanup(lambda: peer.process.poll() is None and peer.end())
        return peer

    def drivers(self, peer):
        return tuple(map(int, peer.ask("drivers").split()[1:]))

    def exact(self, mover, target, segment):
        """Writes and reads back at odd offsets; all sums agree."""
        for length in (1, 4095, 4096, 65537, MIB + 3):
            here, there, back = (RANDOM.randrange(MIB - 3 - 1) for _ in range(3))
            mover.ask(f"fill {here} {length} {RANDOM.randrange(1 << 30)}")
            outcome = mover.run("write", segment, here, target.addr + there, length)
            self.assertEqual(outcome.counts, (1, 0, 0, 0), outcome)
            self.assertEqual(target.sum(there, length), mover.sum(here, length))
            outcome = mover.run("read", segment, 2 * MIB + back, target.addr + there, length)
            self.assertEqual(outcome.counts, (1, 0, 0, 0), outcome)
            self.assertEqual(mover.sum(2 * MIB + back, length), target.sum(there, length))
        mover.ask(f"fill 0 {500 * 1001} 5")
        outcome = mover.run("write", segment, 0, target.addr + 7, 1001, 500)
        self.assertEqual(outcome.counts, (500, 0, 0, 0), outcome)
        self.assertEqual(target.sum(7, 500 * 1001), mover.sum(0, 500 * 1001))

    def reaches(self, mover, target, shm):
        """Bytes are exact, and go the way that is expected; the reasons that the log gives."""
        segment = mover.open(target.name)
        self.exact(mover, target, segment)
        by_shm, by_tcp = self.drivers(mover)
        self.assertEqual((by_shm > 0, by_tcp > 0), (shm, not shm))
        self.assertEqual(mover.open(target.name), segment)  # again: nothing new to tell
        time.sleep(0.05)
        return [line for line in mover.log if "is not reached by shm" in line]

    def test_same_user_by_the_kernel(self):
        self.assertEqual(self.reaches(self.start(), self.start(), True), [])

    def test_same_user_to_mapped_memory(self):
        target = self.start("alloc=1")
        mover = self.start("alloc=1")
        self.assertEqual(self.reaches(mover, target, True), [])
        with open(f"/proc/{mover.process.pid}/maps", encoding="ascii") as maps:
            lines = [line for line in maps if "memfd:lanewise (deleted)" in line]
        self.assertEqual(len(lines), 2)  # its own and the target's

    def test_switched_off_by_either_side(self):
        self.assertEqual(self.reaches(self.start("shm_peers=off"), self.start(), False), [])
        self.assertEqual(self.reaches(self.start(), self.start("shm_peers=off"), False), [])

    def test_order_of_drivers_is_the_settings(self):
        self.assertEqual(self.reaches(self.start("drivers=tcp,shm"), self.start(), False), [])

    def one_reason(self, lines, *words):
        self.assertEqual(len(lines), 1, lines)
        for word in words:
            self.assertIn(word, lines[0])

    def test_another_user_falls_back(self):
        if not is_root():
            self.skipTest("only root can become another user")
        lines = self.reaches(self.start("uid=4321"), self.start(), False)
        self.one_reason(lines, "Permission denied", "another user")

    def test_sandbox_falls_back(self):
        # It shows nothing and reaches nobody, and says so when it begins.
        mover = self.start("deny=1")
        self.assertEqual(self.reaches(mover, self.start(), False), [])
        self.one_reason(mover.log, "driver shm reaches no other process: process_vm_readv is not allowed here")
        self.assertEqual(self.reaches(self.start(), mover, False), [])

    def test_another_pid_namespace_falls_back(self):
        if not is_root() or subprocess.run([*IN_NAMESPACE, "true"], check=False).returncode != 0:
            self.skipTest("no PID namespaces here")
        target = self.start(prefix=IN_NAMESPACE)
        self.one_reason(self.reaches(self.start(), target, False), "another PID namespace")
        self.one_reason(self.reaches(self.start(prefix=IN_NAMESPACE), target, False), "another PID namespace")

    def lying(self, target, **changes):
        """A handshake that tells the target's descriptor with other words about its memory."""
        handshake = Handshake()
        self.addCleanup(handshake.close)
        ours = dict(target.descriptor["lw"])
        ours["shm"] = ours["shm"] | changes
        handshake.document = target.descriptor | {"name": handshake.name, "lw": ours}
        return handshake

    def test_recycled_pid_is_not_believed(self):
        """The number in the descriptor is another process' now: one that has such a door too, and one that has not."""
        target, other = self.start(), self.start()
        before = other.sum(0, AREA)
        for pid, words in ((other.process.pid, "another nonce"), (os.getpid(), ""), (2**22 - 1, "gone"), (1, "")):
            mover = self.start()
            handshake = self.lying(target, pid=pid)
            segment = mover.open(handshake.name)
            self.exact(mover, target, segment)
            self.assertEqual(self.drivers(mover)[0], 0)
            lines = [line for line in mover.log if "is not reached by shm" in line]
            self.one_reason(lines, words)
        self.assertEqual(other.sum(0, AREA), before)

    def test_wrong_descriptor_or_nonce_is_not_believed(self):
        target = self.start()
        for changes in ({"fd": 0}, {"fd": 99999}, {"nonce": "0" * 32}, {"fd": 1}):
            mover = self.start()
            segment = mover.open(self.lying(target, **changes).name)
            self.exact(mover, target, segment)
            self.assertEqual(self.drivers(mover)[0], 0, changes)

    def test_ranges_that_are_not_offered_stay_out_of_reach(self):
        """A descriptor that offers more than the process does; the door decides."""
        target = self.start(f"offer=0:{MIB}:3,{2 * MIB}:{MIB}:1")
        handshake = self.lying(target)
        document = handshake.document
        document["buffers"] = [dict(buffer) for buffer in document["buffers"]]
        document["buffers"][0]["length"] = 2 * MIB
        document["lw"]["access"] = [3, 3]
        mover = self.start()
        segment = mover.open(handshake.name)
        before = target.sum(0, AREA)
        for offset in (MIB, MIB - 1, 2 * MIB):
            outcome = mover.run("write", segment, 0, target.addr + offset, 4096)
            self.assertEqual((outcome.counts, outcome.reason), ((0, 1, 0, 0), "refused"), outcome)
        self.assertEqual(target.sum(0, AREA), before)
        self.assertEqual(mover.run("write", segment, 0, target.addr, 4096).counts, (1, 0, 0, 0))
        self.assertEqual(self.drivers(mover)[1], 0)

    def test_withdrawn_buffer_refused_others_go_on(self):
        target = self.start(f"offer=0:{MIB}:3,{MIB}:{MIB}:3")
        mover = self.start()
        segment = mover.open(target.name)
        self.assertEqual(mover.run("write", segment, 0, target.addr, 4096).counts, (1, 0, 0, 0))
        self.assertEqual(target.ask("withdraw 0"), "ok")
        outcome = mover.run("write", segment, 0, target.addr, 4096)
        self.assertEqual((outcome.counts, outcome.reason), ((0, 1, 0, 0), "refused"), outcome)
        self.assertEqual(mover.run("write", segment, 0, target.addr + MIB, 4096).counts, (1, 0, 0, 0))

    def test_target_killed_in_mid_transfer(self):
        for memory in ((), ("alloc=1",)):
            mover, healthy = self.start(), self.start()
            calm = mover.state()
            for _ in range(5):
                target = self.start(*memory)
                segment = mover.open(target.name)
                self.assertEqual(mover.ask(f"stream write {segment} 0 {target.addr} 262144 8"), "ok")
                time.sleep(RANDOM.random() / 20)
                target.kill()
                self.assertEqual(mover.ask("stop").split()[0], "streamed")
                outcome = mover.run("write", segment, 0, target.addr, 4096)
                self.assertEqual(outcome.counts, (0, 1, 0, 0), outcome)
                self.assertLess(outcome.ms, 3000)
                self.assertEqual(mover.ask(f"close {segment}"), "ok")
            self.exact(mover, healthy, mover.open(healthy.name))
            self.assertTrue(eventually(lambda: mover.state()[0] <= calm[0] + 3), (calm, mover.state()))

    def test_initiator_killed_in_mid_transfer(self):
        """The target can unregister at once, and goes on with others."""
        target = self.start(f"offer=0:{MIB}:3,{MIB}:{MIB}:3")
        for _ in range(5):
            mover = self.start()
            segment = mover.open(target.name)
            self.assertEqual(mover.ask(f"stream write {segment} 0 {target.addr} 262144 4"), "ok")
            time.sleep(RANDOM.random() / 20)
            mover.kill()
        begin = time.monotonic()
        self.assertEqual(target.ask("withdraw 0"), "ok")
        self.assertLess(time.monotonic() - begin, 2)
        mover = self.start()
        segment = mover.open(target.name)
        self.assertEqual(mover.run("write", segment, 0, target.addr + MIB, 4096).counts, (1, 0, 0, 0))

    def test_restarted_peer_is_a_new_one(self):
        target, mover = self.start(), self.start()
        old = mover.open(target.name)
        self.assertEqual(mover.run("write", old, 0, target.addr, 4096).counts, (1, 0, 0, 0))
        word, name, addr, _ = target.ask("again").split()
        self.assertEqual(word, "ready")
        before = target.sum(0, AREA)
        mover.ask("fill 0 4096 99")
        outcome = mover.run("write", old, 0, int(addr), 4096)
        self.assertEqual(outcome.counts, (0, 1, 0, 0), outcome)
        self.assertEqual(target.sum(0, AREA), before)
        new = mover.open(name)
        self.assertNotEqual(new, old)
        self.assertEqual(mover.run("write", new, 0, int(addr), 4096).counts, (1, 0, 0, 0))
        self.assertEqual(target.sum(0, 4096), mover.sum(0, 4096))

    def test_frozen_initiator_holds_unregister_up_no_longer_than_asked(self):
        """It may be inside; then the call says so, and works when it is gone."""
        target = self.start(f"offer=0:{MIB}:3,{MIB}:{MIB}:3")
        mover = self.start()
        segment = mover.open(target.name)
        self.assertEqual(mover.ask(f"stream write {segment} 0 {target.addr} 262144 4"), "ok")
        time.sleep(0.05)
        mover.process.send_signal(19)
        begin = time.monotonic()
        answer = target.ask("withdraw 0")
        self.assertLess(time.monotonic() - begin, 8)
        if answer != "ok":
            self.assertIn("is inside the engine's memory", answer)
        mover.kill()
        begin = time.monotonic()
        self.assertEqual(target.ask(f"withdraw {MIB}"), "ok")
        self.assertLess(time.monotonic() - begin, 2)


if __name__ == "__main__":
    if not shutil.which("unshare"):
        print("skipped in part: unshare is not there")
    main()
