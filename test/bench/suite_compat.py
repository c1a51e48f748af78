# SPDX-License-Identifier: Apache-2.0
"""What Mooncake's interfaces cost on top of the engine's own, in rounds of one run."""

import json
import sys

import bench


def c_interface(results):
    """The C header: a batch submitted and polled task by task, beside the same through the engine's own calls."""
    for result in json.loads(bench.run([bench.program("test/bench/compat"), "--json"], 120)):
        results.add(result["name"], result["value"], result["unit"])


# Each adds the figures of one round.
PARTS = (c_interface,)


def suite():
    options = bench.arguments(__doc__)
    results = bench.Results()
    about = bench.machine()
    for number in range(options.rounds):
        print(f"bench: round {number + 1} of {options.rounds}", file=sys.stderr)
        for part in PARTS:
            part(results)
    bench.finish("compat", results, about, options)


if __name__ == "__main__":
    bench.main(suite)
