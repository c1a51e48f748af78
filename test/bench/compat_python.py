# SPDX-License-Identifier: Apache-2.0
"""What a batch costs through the Python package in Mooncake's place, beside the same batch from C. measure() is called by
the suite; as a program it is one of the two Python processes: "target" or "writer SESSION ADDRESS SECONDS"."""

import json
import os
import statistics
import sys
import time

import bench

BLOCKS, BLOCK = 256, 65536
WINDOWS = 4  # batches that go to different memory, so that they don't stay in the cache
SIZE = WINDOWS * BLOCKS * BLOCK
PACKAGE = os.path.join(bench.HERE, "..", "..", "apps", "python")


def _python(*arguments):
    library = os.path.join(bench.BUILD, "liblanewise.so.0")
    variables = [f"LANEWISE_LIBRARY={library}", f"PYTHONPATH={os.path.abspath(PACKAGE)}", "LW_DRIVERS=tcp,null"]
    return ["env", *variables, sys.executable, "-B", os.path.abspath(__file__), *map(str, arguments)]


def measure(results, seconds):
    """One round: python_batch_write_us_256x64k (a call, two processes over TCP), python_batch_us_256 (a call that moves
    nothing: what Python and the lists cost), c_batch_write_us_256x64k (lwbench), and how they compare."""
    target_cpu, initiator_cpu = bench.cpus()
    with bench.Server(bench.on(target_cpu, _python("target"))) as target:
        session, addr = target.wait_line("ready ").split()[1:]
        writer = _python("writer", session, addr, seconds)
        for name, value in json.loads(bench.run(bench.on(initiator_cpu, writer), seconds + 60)).items():
            results.add(name, value, "us")
        command = [bench.program("lwbench"), "target", "--buffer-size", str(SIZE), "--set", "drivers=tcp"]
    with bench.Server(bench.on(target_cpu, command)) as target:
        ready = dict(word.split("=", 1) for word in target.wait_line("lwbench: target ready").split() if "=" in word)
        command = [bench.program("lwbench"), "initiator", "--target", ready["name"], "--set", "drivers=tcp"]
        command += ["--buffer-size", str(SIZE), "--block-size", str(BLOCK), "--batch", str(BLOCKS), "--depth", "1"]
        command += ["--duration", str(seconds), "--json", "-"]
        row = json.loads(bench.run(bench.on(initiator_cpu, command), seconds + 60))["results"][0]
        if row["failed"]:
            raise bench.Failed(f"{row['failed']} of lwbench's requests failed")
        results.add("c_batch_write_us_256x64k", row["batch_p50_us"], "us")


def ratios(results):
    """After the last round."""
    results.ratio("python_vs_c_batch_write", "python_batch_write_us_256x64k", "c_batch_write_us_256x64k", "less")


def _target():
    from lanewise.mooncake.engine import TransferEngine

    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
        sys.exit(engine.last_error())
    addr = engine.allocate_managed_buffer(SIZE)
    print("ready", engine.get_session_id(), addr, flush=True)
    while True:
        time.sleep(3600)


def _calls(engine, session, windows, lengths, seconds):
    """Median microseconds of a call."""
    took = []
    end = time.monotonic() + seconds
    while len(took) < 3 or time.monotonic() < end:
        local, remote = windows[len(took) % len(windows)]
        begin = time.perf_counter()
        result = engine.batch_transfer_sync_write(session, local, remote, lengths)
        took.append((time.perf_counter() - begin) * 1e6)
        if result != 0:
            sys.exit(engine.last_error())
    return statistics.median(took)


def _writer(session, addr, seconds):
    from lanewise.mooncake.engine import TransferEngine

    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
        sys.exit(engine.last_error())
    own = engine.allocate_managed_buffer(SIZE)
    windows = [
        [[base + (w * BLOCKS + i) * BLOCK for i in range(BLOCKS)] for base in (own, addr)] for w in range(WINDOWS)
    ]
    lengths = [BLOCK] * BLOCKS
    _calls(engine, session, windows, lengths, 0)  # connects, and touches the memory
    _calls(engine, "null://", windows, lengths, 0)
    print(
        json.dumps(
            {
                "python_batch_write_us_256x64k": _calls(engine, session, windows, lengths, seconds),
                "python_batch_us_256": _calls(engine, "null://", windows, lengths, seconds / 4),
            }
        )
    )


if __name__ == "__main__":
    if sys.argv[1] == "target":
        _target()
    else:
        _writer(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
