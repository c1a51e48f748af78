# SPDX-License-Identifier: Apache-2.0
"""Other people's programs over TCP on loopback, one CPU a side: iperf3 and ucx_perftest."""

import json
import os
import shutil

import bench

# Inside one host cubic is faster than the bbr that some systems preset, and the engine asks for it. UCX has no setting
# for it; a network of its own whose routes name cubic gives it the same.
OWN_NETWORK = """
ip link set lo up
for to in 127.0.0.1 127.0.0.0/8; do
    ip route replace local $to dev lo table local proto kernel scope host src 127.0.0.1 congctl cubic || exit
done
echo ready
exec sleep 2147483647
"""

UCX_TESTS = ("ucp_am_bw", "ucp_put_bw", "ucp_get")
FIRST_GUESS_S = 0.1  # how long the run takes that finds out how many iterations a measurement needs


def cubic_allowed():
    """Whether we may choose it for a socket that is not ours."""
    return os.geteuid() == 0 and "cubic" in bench.read_text("/proc/sys/net/ipv4/tcp_available_congestion_control")


def iperf3(results, seconds):
    """One stream of 1 MiB a call from a buffer that stays in the cache."""
    if not shutil.which("iperf3"):
        results.note("iperf3 is not installed: its results are left out")
        return
    target_cpu, initiator_cpu = bench.cpus()
    port = str(bench.free_port())
    with bench.Server(bench.on(target_cpu, ["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", port])):
        bench.wait_listening(int(port))
        command = ["iperf3", "-c", "127.0.0.1", "-p", port, "-t", f"{max(1, round(seconds))}", "-l", "1M", "-J"]
        if cubic_allowed():
            command += ["-C", "cubic"]  # as the engine does inside one host
        text = bench.run(bench.on(initiator_cpu, command), seconds + 30)
    results.add("iperf3_gbps", json.loads(text)["end"]["sum_received"]["bits_per_second"] / 8e9, "GB/s")


class Ucx:
    """ucx_perftest, as long as a with block lasts."""

    def __init__(self, results):
        self.results = results
        self.network = None
        self.inside = []  # command that enters the network
        self.rates = {}  # iterations a second of each test
        self.off = not shutil.which("ucx_perftest")
        if self.off:
            results.note("ucx_perftest is not installed (package ucx-utils): the results beside UCX are left out")

    def __enter__(self):
        if self.off:
            return self
        try:
            if not cubic_allowed():
                raise bench.Failed("only root may choose it")
            self.network = bench.Server(["unshare", "--net", "sh", "-c", OWN_NETWORK])
            self.network.wait_line("ready")
            self.inside = ["nsenter", f"--net=/proc/{self.network.child.pid}/ns/net"]
        except (bench.Failed, OSError) as error:
            self.results.note(f"UCX runs with the system's congestion control, the engine with cubic: {error}")
        return self

    def __exit__(self, *_):
        if self.network:
            self.network.stop()

    def run(self, test, size, count):
        """Seconds an iteration."""
        target_cpu, initiator_cpu = bench.cpus()
        port = str(bench.free_port())
        base = self.inside + ["env", "UCX_TLS=tcp", "UCX_NET_DEVICES=lo"]
        with bench.Server(base + bench.on(target_cpu, ["ucx_perftest", "-p", port])) as server:
            bench.wait_listening(int(port), pid=server.child.pid)
            command = ["ucx_perftest", "127.0.0.1", "-p", port, "-t", test, "-s", str(size), "-n", str(count)]
            command += ["-w", str(max(4, count // 20)), "-f", "-v"]
            text = bench.run(base + bench.on(initiator_cpu, command), 60)
        # iterations, median, average and overall microseconds an iteration, ...
        return float(text.splitlines()[-1].split(",")[3]) / 1e6

    def measure(self, label, size, seconds):
        """All tests with messages of size bytes."""
        for test in () if self.off else UCX_TESTS:
            try:
                if (test, size) not in self.rates:
                    fast = 1e5 if size <= 4096 else 2e9 / size
                    guess = int(FIRST_GUESS_S * (fast if test != "ucp_get" else 400)) + 1
                    self.rates[test, size] = 1 / self.run(test, size, guess)
                took_s = self.run(test, size, int(seconds * self.rates[test, size]) + 4)
            except (bench.Failed, OSError, ValueError, IndexError) as error:
                self.results.note(f"UCX is left out from here on: {error}")
                self.off = True
                return
            self.rates[test, size] = 1 / took_s
            self.results.add(f"ucx_{test.removeprefix('ucp_')}_{label}_gbps", size / took_s / 1e9, "GB/s")
