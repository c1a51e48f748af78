# SPDX-License-Identifier: Apache-2.0
"""RDMA over the lab's wire (soft-RoCE in a virtual machine): the engine beside perftest on the same devices, in
interleaved rounds of one boot. Called on the host it goes into the lab by itself."""

import os
import sys

import bench
import lab
import perftest
from suite_tcp import rows

BUFFER = "16m"
OURS, THEIRS = "rxe0", "rxe1"
PAIRS = ((OURS, THEIRS), ("rxe2", "rxe3"))

# label, block, its bytes, batch, batches under way: perftest has as many requests under way
SIZES = [("64k", "64k", 65536, 16, 4), ("1m", "1m", 1 << 20, 4, 4)]


def target(devices):
    """lwbench target on a peer's devices, for a with block."""
    command = [bench.program("lwbench"), "target", "--buffer-size", BUFFER, "--set", "drivers=rdma"]
    return bench.Server(bench.on(bench.cpus()[0], command + ["--set", f"rdma_devices={devices}"]))


def name_of(server):
    ready = server.wait_line("lwbench: target ready", 60)
    return dict(word.split("=", 1) for word in ready.split() if "=" in word)["name"]


def ours(name, devices, operation, block, batch, depth, seconds):
    """lwbench's row of one case; its application thread drives the engine."""
    command = [
        bench.program("lwbench"), "initiator", "--target", name, "--poll", "caller",
        "--set", "drivers=rdma", "--set", f"rdma_devices={devices}", "--buffer-size", BUFFER, "--op", operation,
        "--block-size", block, "--batch", str(batch), "--depth", str(depth), "--duration", str(seconds), "--json", "-",
    ]  # fmt: skip
    return rows(bench.run(bench.on(bench.cpus()[1], command), seconds + 120))[0][0]


def throughput(results, tests, name, seconds):
    for operation in ("write", "read"):
        for label, block, size, batch, depth in SIZES:
            case = f"{operation}_{label}"
            row = ours(name, OURS, operation, block, batch, depth, seconds)
            results.add(f"rdma_{case}_gbps", row["gbps"], "GB/s")
            for pairs in (1, 2):
                options = ["-s", str(size), "-t", str(batch * depth), "-q", str(pairs)]
                rate = tests.rate(f"ib_{operation}_bw", PAIRS[:1], options, seconds)
                results.add(f"perftest_{case}_q{pairs}_gbps", rate * size / 1e9, "GB/s")


def latency(results, tests, name, seconds):
    for operation in ("write", "read"):
        row = ours(name, OURS, operation, "4k", 1, 1, seconds)
        results.add(f"rdma_{operation}_4k_p50_us", row["batch_p50_us"], "us")
        results.add(f"perftest_{operation}_lat_4k_us", tests.latency(f"ib_{operation}_lat", PAIRS[0], 4096), "us")
    options = ["-s", "4096", "-t", "1"]
    results.add("perftest_write_4k_alone_us", 1e6 / tests.rate("ib_write_bw", PAIRS[:1], options, seconds), "us")


def two_devices(results, tests, seconds):
    label, block, size, batch, depth = SIZES[1]
    with target(",".join(there for _, there in PAIRS)) as server:
        devices = ",".join(here for here, _ in PAIRS)
        row = ours(name_of(server), devices, "write", block, 2 * batch, depth, seconds)
    results.add(f"rdma_2nic_write_{label}_gbps", row["gbps"], "GB/s")
    rate = tests.rate("ib_write_bw", PAIRS, ["-s", str(size), "-t", str(batch * depth)], seconds)
    results.add(f"perftest_2nic_write_{label}_gbps", rate * size / 1e9, "GB/s")


def ratios(results):
    for operation in ("write", "read"):
        for label, *_ in SIZES:
            case = f"{operation}_{label}"
            best = results.best([f"perftest_{case}_q1_gbps", f"perftest_{case}_q2_gbps"])
            results.ratio(f"rdma_vs_perftest_{case}", f"rdma_{case}_gbps", best, "more")
    results.ratio("rdma_lat_ratio_4k", "rdma_read_4k_p50_us", "perftest_read_lat_4k_us", "less")
    results.ratio("rdma_write_lat_ratio_4k", "rdma_write_4k_p50_us", "perftest_write_4k_alone_us", "less")
    results.ratio("rdma_2nic_scaling", "rdma_2nic_write_1m_gbps", "rdma_write_1m_gbps")
    results.ratio("perftest_2nic_scaling", "perftest_2nic_write_1m_gbps", "perftest_write_1m_q1_gbps")
    results.ratio("rdma_2nic_vs_perftest", "rdma_2nic_write_1m_gbps", "perftest_2nic_write_1m_gbps", "more")


def suite():
    options = bench.arguments(__doc__, seconds=1.0)
    if not os.path.exists(f"/sys/class/infiniband/{OURS}"):
        lab.enter(options)
    results = bench.Results()
    about = bench.machine()
    tests = perftest.Perftest()
    with target(THEIRS) as server:
        name = name_of(server)
        for number in range(options.rounds):
            print(f"bench: round {number + 1} of {options.rounds}", file=sys.stderr)
            throughput(results, tests, name, options.seconds)
            latency(results, tests, name, options.seconds)
            two_devices(results, tests, options.seconds)
    ratios(results)
    results.note("soft-RoCE in an emulated machine: ratios of one boot tell something, rates nothing")
    bench.finish("rdma", results, about, options)


if __name__ == "__main__":
    bench.main(suite)
