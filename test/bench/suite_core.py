# SPDX-License-Identifier: Apache-2.0
"""The engine's own cost beside the bare ring and a cache line's round trip, in rounds of one run."""

import json
import sys

import bench


def suite():
    options = bench.arguments(__doc__)
    results = bench.Results()
    about = bench.machine()
    for number in range(options.rounds):
        print(f"bench: round {number + 1} of {options.rounds}", file=sys.stderr)
        results.add("c2c_roundtrip_ns", bench.c2c(), "ns")
        for result in json.loads(bench.run([bench.program("test/bench/core"), "--json"], 120)):
            results.add(result["name"], result["value"], result["unit"])
        results.add("c2c_roundtrip_ns", bench.c2c(), "ns")
    bench.finish("core", results, about, options)


if __name__ == "__main__":
    bench.main(suite)
