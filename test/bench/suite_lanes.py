# SPDX-License-Identifier: Apache-2.0
"""Lanes over several links, their healing, classes, and healthy peers beside sick ones, in network namespaces of their
own. Root alone can make these."""

import json
import subprocess
import sys

import bench

CASES = ("share", "cut", "class", "sick")
OTHERS_BUSY = 0.1  # CPUs; more than that spoils a run
SKIPPED = 77

# ratio, over, under
RATIOS = [
    ("lanes_1to4_of_sum", "both_links_gbps", "sum_of_links_gbps"),
    ("fg_p99_under_bulk_ratio", "link_bulk_p99_us", "link_bulk_bound_us"),
    ("fg_p99_under_bulk_ratio_loopback", "loopback_bulk_p99_us", "loopback_bulk_bound_us"),
    ("fg_p99_under_bulk_ratio_shm", "shm_bulk_p99_us", "shm_bulk_bound_us"),
    ("healthy_p99_ratio", "healthy_p99_us", "healthy_alone_p99_us"),
]


def measure(results, case, seconds):
    """Adds what the case found. False: it can't be run here, and a note says why."""
    command = [bench.program("test/bench/lanes"), case, str(seconds), "--json"]
    child = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    if child.returncode == SKIPPED:
        results.note(f"{case} is left out: {child.stdout.strip().splitlines()[-1].removeprefix('skipped: ')}")
        return False
    if child.returncode:
        raise bench.Failed(f"lanes {case}: exit {child.returncode}: {(child.stderr.strip() or child.stdout)[-500:]}")
    found = {item["name"]: item for item in json.loads(child.stdout)}
    for name, item in found.items():
        results.add(name, item["value"], item["unit"])
    if "link_200_gbps" in found:
        results.add("sum_of_links_gbps", found["link_200_gbps"]["value"] + found["link_800_gbps"]["value"], "GB/s")
    for name in ("link", "loopback", "shm"):
        if f"{name}_slice_us" in found:
            bound = 2 * found[f"{name}_idle_p99_us"]["value"] + found[f"{name}_slice_us"]["value"]
            results.add(f"{name}_bulk_bound_us", bound, "us")
    return True


def suite():
    options = bench.arguments(__doc__, seconds=2)
    results = bench.Results()
    about = bench.machine()
    cases = list(CASES)
    for number in range(options.rounds):
        print(f"bench: round {number + 1} of {options.rounds}", file=sys.stderr)
        cases = [case for case in cases if measure(results, case, options.seconds)]
        results.add("c2c_roundtrip_ns", bench.c2c(), "ns")
        results.add("others_busy", bench.others_busy(), "CPUs")
    for name, over, under in RATIOS:
        results.ratio(name, over, under)
    busy = results.median("others_busy")
    if busy > OTHERS_BUSY:
        results.note(f"other programs kept {busy:.1f} CPUs busy: these figures tell little")
    bench.finish("lanes", results, about, options)


if __name__ == "__main__":
    bench.main(suite)
