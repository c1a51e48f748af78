# SPDX-License-Identifier: Apache-2.0
"""TCP on loopback: the engine beside a raw socket pair and iperf3, in interleaved rounds on the same two CPUs."""

import json
import os
import shutil
import sys

import bench

# name, operation, block, batch, batches under way
CASES = [
    ("write_1m", "write", "1m", 4, 4),
    ("read_64k", "read", "64k", 16, 4),
    ("write_4k_b128", "write", "4k", 128, 4),
]
BUFFER = "64m"


def row(text):
    """The one row of lwbench's JSON."""
    document = json.loads(text)
    result = document["results"][0]
    if result["failed"]:
        raise bench.Failed(f"{result['failed']} requests failed: {document['failures']}")
    return result


def shape(case, seconds):
    _, operation, block, batch, depth = case
    return [
        "--op", operation, "--block-size", block, "--batch", str(batch), "--depth", str(depth),
        "--duration", str(seconds), "--buffer-size", BUFFER, "--json", "-",
    ]  # fmt: skip


def engine(results, case, target, seconds, more=(), tag=""):
    _, initiator_cpu = bench.cpus()
    command = [bench.program("lwbench"), "initiator", "--target", target] + shape(case, seconds) + list(more)
    result = row(bench.run(bench.on(initiator_cpu, command), seconds + 60))
    name = f"tcp_{case[0]}{tag}"
    results.add(f"{name}_gbps", result["gbps"], "GB/s")
    results.add(f"{name}_p99_us", result["batch_p99_us"], "us a batch")
    if result["target_cpu_s_per_gib"] is not None:
        both = result["cpu_s_per_gib"] + result["target_cpu_s_per_gib"]
        results.add(f"{name}_cpu", both, "CPU-s/GiB, both sides")


def raw(results, case, seconds):
    command = [bench.program("lwbench"), "raw", "--pin"] + shape(case, seconds)
    result = row(bench.run(bench.on(bench.cpus(), command), seconds + 30))
    name = "raw_" + case[0].removeprefix("write_").removeprefix("read_")
    results.add(f"{name}_gbps", result["gbps"], "GB/s")
    results.add(f"{name}_cpu", result["cpu_s_per_gib"] + result["target_cpu_s_per_gib"], "CPU-s/GiB, both sides")


def iperf3(results, seconds):
    if not shutil.which("iperf3"):
        return
    target_cpu, initiator_cpu = bench.cpus()
    port = str(bench.free_port())
    with bench.Server(bench.on(target_cpu, ["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", port])):
        bench.wait_listening(int(port))
        command = ["iperf3", "-c", "127.0.0.1", "-p", port, "-t", f"{max(1, round(seconds))}", "-l", "1M", "-J"]
        if os.geteuid() == 0 and "cubic" in bench.read_text("/proc/sys/net/ipv4/tcp_available_congestion_control"):
            command += ["-C", "cubic"]  # as the engine does inside one host
        text = bench.run(bench.on(initiator_cpu, command), seconds + 30)
    results.add("iperf3_gbps", json.loads(text)["end"]["sum_received"]["bits_per_second"] / 8e9, "GB/s")


def suite():
    options = bench.arguments(__doc__)
    results = bench.Results()
    about = bench.machine()
    target_cpu, _ = bench.cpus()
    command = bench.on(target_cpu, [bench.program("lwbench"), "target", "--buffer-size", BUFFER])
    with bench.Server(command) as server:
        ready = server.wait_line("lwbench: target ready")
        target = dict(word.split("=", 1) for word in ready.split() if "=" in word)["name"]
        for number in range(options.rounds):
            print(f"bench: round {number + 1} of {options.rounds}", file=sys.stderr)
            for case in CASES:
                engine(results, case, target, options.seconds)
                raw(results, case, options.seconds)
            engine(results, CASES[0], target, options.seconds, ["--poll", "caller"], "_caller")
            iperf3(results, options.seconds)
            results.add("c2c_roundtrip_ns", bench.c2c(), "ns")
    results.ratio("tcp_vs_raw_gbps_1m", "tcp_write_1m_gbps", "raw_1m_gbps")
    results.ratio("tcp_vs_raw_gbps_64k", "tcp_read_64k_gbps", "raw_64k_gbps")
    results.ratio("tcp_vs_raw_gbps_4k_b128", "tcp_write_4k_b128_gbps", "raw_4k_b128_gbps")
    results.ratio("tcp_vs_raw_cpu_1m", "tcp_write_1m_cpu", "raw_1m_cpu")
    results.ratio("tcp_vs_raw_cpu_64k", "tcp_read_64k_cpu", "raw_64k_cpu")
    results.ratio("tcp_vs_iperf3_1m", "tcp_write_1m_gbps", "iperf3_gbps")
    results.ratio("tcp_4k_b128_vs_1m", "tcp_write_4k_b128_gbps", "tcp_write_1m_gbps")
    bench.finish("tcp", results, about, options)


if __name__ == "__main__":
    bench.main(suite)
