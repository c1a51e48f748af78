# SPDX-License-Identifier: Apache-2.0
"""What Mooncake's interfaces, in C and in Python, cost on top of the engine's own, in rounds of one run."""

import json
import sys

import bench
import compat_python


def c_interface(results):
    """The C header: a batch submitted and polled task by task, beside the same through the engine's own calls."""
    for result in json.loads(bench.run([bench.program("test/bench/compat"), "--json"], 120)):
        results.add(result["name"], result["value"], result["unit"])


def suite():
    options = bench.arguments(__doc__)
    results = bench.Results()
    about = bench.machine()
    for number in range(options.rounds):
        print(f"bench: round {number + 1} of {options.rounds}", file=sys.stderr)
        c_interface(results)
        compat_python.measure(results, options.seconds)
    compat_python.ratios(results)
    bench.finish("compat", results, about, options)


if __name__ == "__main__":
    bench.main(suite)
