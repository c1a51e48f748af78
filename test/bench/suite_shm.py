# SPDX-License-Identifier: Apache-2.0
"""Another process of the host without sockets: the engine beside plain loops of memcpy and process_vm_writev, beside UCX
and beside its own TCP, in interleaved rounds on the same two CPUs."""

import os
import shutil
import sys

import bench

COLD = 64 << 20  # bytes cycled through: more than the caches hold
OTHERS_BUSY = 0.1  # CPUs; more than that spoils a run
IOVS = 16  # blocks that UCX's CMA takes in one call
UCX_GUESS_S = 0.1

# name, what, to which memory, block, batch, bytes cycled through, more
CASES = [
    ("shm_1m", "engine", "any", 1 << 20, 4, COLD),
    ("cma_loop_1m", "loop", "any", 1 << 20, 1, COLD),
    ("shm_scatter4k", "engine", "any", 4096, 128, COLD),
    ("cma_gather_scatter4k", "loop", "any", 4096, 128, COLD),
    ("cma_loop_scatter4k", "loop", "any", 4096, 1, COLD),
    ("shm_scatter4k_hot", "engine", "any", 4096, IOVS, 2 * 4096 * IOVS),
    ("shm_scatter4k_hot_caller", "caller", "any", 4096, IOVS, 2 * 4096 * IOVS),
    ("shm_joined4k_hot", "engine", "any", 4096, IOVS, 2 * 4096 * IOVS, "joined"),
    ("shm_joined4k_hot_caller", "caller", "any", 4096, IOVS, 2 * 4096 * IOVS, "joined"),
    ("cma_gather_scatter4k_hot", "loop", "any", 4096, IOVS, 2 * 4096 * IOVS),
    ("shm_alloc_1m", "engine", "mapped", 1 << 20, 4, COLD),
    ("memcpy_1m", "loop", "mapped", 1 << 20, 1, COLD),
    ("shm_4k_b128", "engine", "mapped", 4096, 128, COLD),
    ("memcpy_4k", "loop", "mapped", 4096, 128, COLD),
    ("shm_64k_hot", "engine", "mapped", 65536, 16, 65536),
    ("shm_64k_hot_caller", "caller", "mapped", 65536, 16, 65536),
    ("tcp_1m", "tcp", "any", 1 << 20, 4, COLD),
]

# name, environment, options, blocks. Those of cma_scatter4k lie apart in the initiator's memory and together in the
# target's, as UCX does it.
UCX = [
    ("ucx_cma_scatter4k", {}, ["-d", "memory", "-x", "cma", "-t", "put_bw", "-D", "zcopy", "-i", "8192"], [4096] * IOVS),
    ("ucx_cma_4k", {}, ["-d", "memory", "-x", "cma", "-t", "put_bw", "-D", "zcopy"], [4096]),
    ("ucx_sm_64k", {"UCX_TLS": "sm"}, ["-t", "ucp_put_bw"], [65536]),
]

# ratio, ours, the other's, kind, better
RATIOS = [
    ("shm_vs_cma_loop_1m", "shm_1m", "cma_loop_1m", "gbps", "more"),
    ("shm_vs_cma_loop_scatter4k", "shm_scatter4k", "cma_loop_scatter4k", "gbps", "more"),
    ("shm_vs_cma_gather_scatter4k", "shm_scatter4k", "cma_gather_scatter4k", "gbps", "more"),
    ("shm_alloc_vs_memcpy_1m", "shm_alloc_1m", "memcpy_1m", "gbps", "more"),
    ("shm_alloc_vs_memcpy_4k", "shm_4k_b128", "memcpy_4k", "gbps", "more"),
    ("shm_vs_ucx_cma_scatter4k", "shm_joined4k_hot", "ucx_cma_scatter4k", "gbps", "more"),
    ("shm_vs_ucx_cma_scatter4k_caller", "shm_joined4k_hot_caller", "ucx_cma_scatter4k", "gbps", "more"),
    ("shm_vs_cma_gather_scatter4k_hot_caller", "shm_scatter4k_hot_caller", "cma_gather_scatter4k_hot", "gbps", "more"),
    ("shm_vs_ucx_cma_4k", "shm_scatter4k_hot", "ucx_cma_4k", "gbps", "more"),
    ("shm_vs_ucx_sm_64k", "shm_64k_hot", "ucx_sm_64k", "gbps", "more"),
    ("shm_vs_ucx_sm_64k_caller", "shm_64k_hot_caller", "ucx_sm_64k", "gbps", "more"),
    ("shm_vs_tcp_1m", "shm_1m", "tcp_1m", "gbps", "more"),
    ("shm_vs_tcp_cpu_1m", "shm_1m", "tcp_1m", "cpu", "less"),
]


def measure(results, case, seconds):
    name, what, memory, block, batch, area, *more = case
    program = bench.program(os.path.join("test", "bench", "shm"))
    text = bench.run([program, what, memory, str(block), str(batch), str(area), str(seconds), *more], seconds + 60)
    gbps, cpu = map(float, text.split())
    results.add(f"{name}_gbps", gbps, "GB/s")
    results.add(f"{name}_cpu", cpu, "CPU-s/GiB, both sides")


class Ucx:
    """ucx_perftest between two processes; a test that fails is left out from then on."""

    def __init__(self, results):
        self.results = results
        self.rates = {}
        self.off = set()
        if not shutil.which("ucx_perftest"):
            results.note("ucx_perftest is not installed (package ucx-utils): the results beside UCX are left out")
            self.off = {name for name, *_ in UCX}

    def run(self, environment, options, sizes, count):
        """Seconds an iteration."""
        target_cpu, initiator_cpu = bench.cpus()
        port = str(bench.free_port())
        base = ["env"] + [f"{key}={value}" for key, value in environment.items()]
        with bench.Server(base + bench.on(target_cpu, ["ucx_perftest", "-p", port])):
            bench.wait_listening(int(port))
            command = ["ucx_perftest", "127.0.0.1", "-p", port, "-s", ",".join(map(str, sizes)), "-n", str(count)]
            text = bench.run(base + bench.on(initiator_cpu, command + options + ["-f", "-v"]), 60)
        return float(text.splitlines()[-1].split(",")[3]) / 1e6

    def measure(self, name, environment, options, sizes, seconds):
        if name in self.off:
            return
        try:
            if name not in self.rates:
                guess = int(UCX_GUESS_S * 2e9 / sum(sizes)) + 1
                self.rates[name] = 1 / self.run(environment, options, sizes, guess)
            took_s = self.run(environment, options, sizes, int(seconds * self.rates[name]) + 4)
        except (bench.Failed, OSError, ValueError, IndexError) as error:
            self.results.note(f"{name} is left out from here on: {error}")
            self.off.add(name)
            return
        self.rates[name] = 1 / took_s
        self.results.add(f"{name}_gbps", sum(sizes) / took_s / 1e9, "GB/s")


def suite():
    options = bench.arguments(__doc__, seconds=0.4)
    results = bench.Results()
    about = bench.machine()
    ucx = Ucx(results)
    for number in range(options.rounds):
        print(f"bench: round {number + 1} of {options.rounds}", file=sys.stderr)
        for case in CASES:
            measure(results, case, options.seconds)
        for test in UCX:
            ucx.measure(*test, options.seconds)
        results.add("c2c_roundtrip_ns", bench.c2c(), "ns")
        results.add("others_busy", bench.others_busy(), "CPUs")
    for name, ours, others, kind, better in RATIOS:
        results.ratio(name, f"{ours}_{kind}", f"{others}_{kind}", better)
    busy = results.median("others_busy")
    if busy > OTHERS_BUSY:
        results.note(f"other programs kept {busy:.1f} CPUs busy: these figures tell little")
    bench.finish("shm", results, about, options)


if __name__ == "__main__":
    bench.main(suite)
