# SPDX-License-Identifier: Apache-2.0
"""A segment of one file beside fio's io_uring engine on the same file with the same block and depth, past the page cache,
in interleaved rounds. LW_BENCH_FILE names a file or block device to use, of 512 MiB or more, whose contents are lost; else
a file is made. With --fabric it is a namespace of the kernel's NVMe over TCP target, in the lab's virtual machine."""

import json
import os
import shutil
import sys
import tempfile

import bench
import lab

AREA = 512 << 20  # bytes of the file that both go through, again and again; ours through as much memory
DEPTH = 16  # requests under way, on both sides
OTHERS_BUSY = 0.1  # CPUs; more than that spoils a run

# Of the lab: a disk in memory, offered and connected to.
LAB_MIB = 3072
TARGET = f"""
set -e
source test/lab/nvme.sh
nvme_load
nvme_subsystem nqn.lab:disk "$(nvme_memory_disk {AREA >> 20})"
nvme_port 1 tcp 10.98.0.2 4420 nqn.lab:disk
LW_BENCH_FILE=/dev/$(nvme_namespace "$(nvme_connect transport=tcp traddr=10.98.0.2 host_traddr=10.98.0.1 trsvcid=4420 \\
	nqn=nqn.lab:disk keep_alive_tmo=30 ctrl_loss_tmo=600)")
export LW_BENCH_FILE
"""

# label, operation, block, its bytes
CASES = [
    ("4k_read", "read", "4k", 4096),
    ("4k_write", "write", "4k", 4096),
    ("64k_read", "read", "64k", 65536),
    ("64k_write", "write", "64k", 65536),
    ("1m_read", "read", "1m", 1 << 20),
    ("1m_write", "write", "1m", 1 << 20),
]


def engine(results, what, path, case, seconds):
    label, operation, block, _ = case
    command = [
        bench.program("lwbench"), "initiator", "--target", f"file:{path}", "--op", operation, "--block-size", block,
        "--batch", "1", "--depth", str(DEPTH), "--duration", str(seconds), "--buffer-size", str(AREA),
        "--set", "drivers=nvmeof", "--json", "-",
    ]  # fmt: skip
    row = json.loads(bench.run(command, seconds + 60))["results"][0]
    if row["failed"]:
        raise bench.Failed(f"{row['failed']} requests failed")
    results.add(f"{what}_{label}_gbps", row["gbps"], "GB/s")
    results.add(f"{what}_{label}_p99_us", row["batch_p99_us"], "us")
    results.add(f"{what}_{label}_cpu", row["cpu_s_per_gib"], "CPU-s/GiB")


def fio(results, path, case, seconds, name="fio", more=()):
    label, operation, _, block = case
    command = [
        "fio", "--name=x", f"--filename={path}", f"--size={AREA}",
        "--ioengine=io_uring", "--direct=1", f"--rw={operation}", f"--bs={block}", f"--iodepth={DEPTH}",
        f"--runtime={max(1, round(seconds))}", "--time_based", "--output-format=json", *more,
    ]  # fmt: skip
    text = bench.run(command, seconds + 60)
    job = json.loads(text[text.index("{") :])["jobs"][0]
    side = job[operation]
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
    results.add(f"{name}_{label}_gbps", side["bw_bytes"] / 1e9, "GB/s")
    results.add(f"{name}_{label}_p99_us", side["clat_ns"].get("percentile", {}).get("99.000000", 0) / 1e3, "us")
    results.add(f"{name}_{label}_cpu", cpu / (side["io_bytes"] / (1 << 30)), "CPU-s/GiB")


def more_options(parser):
    parser.add_argument("--fabric", action="store_true", help="NVMe over TCP, in the lab")


def suite():
    options = bench.arguments(__doc__, seconds=1, more=more_options)
    what = "fabric" if options.fabric else "file"
    if options.fabric and "LW_BENCH_FILE" not in os.environ:
        lab.enter(options, LAB_MIB, TARGET)
    results = bench.Results()
    about = bench.machine()
    given = os.environ.get("LW_BENCH_FILE")
    beside = shutil.which("fio") is not None
    if not beside:
        results.note("fio is not installed: the results beside it are left out")
    with tempfile.TemporaryDirectory(dir=os.environ.get("LW_TEST_FOLDER", "/var/tmp")) as folder:
        path = given or os.path.join(folder, "file")
        if not given:
            with open(path, "wb") as file:  # written, not only allocated: else a read need not ask the device
                for _ in range(AREA >> 20):
                    file.write(os.urandom(1 << 20))
                os.fsync(file.fileno())
        for number in range(options.rounds):
            print(f"bench: round {number + 1} of {options.rounds}", file=sys.stderr)
            for case in CASES:
                engine(results, what, path, case, options.seconds)
                if beside:
                    fio(results, path, case, options.seconds)
            if beside:
                fio(results, path, CASES[0], options.seconds, "fio_fixed", ["--fixedbufs=1", "--registerfiles=1"])
                fio(results, path, CASES[4], options.seconds, "fio_fixed", ["--fixedbufs=1", "--registerfiles=1"])
            results.add("others_busy", bench.others_busy(), "CPUs")
    for label, *_ in CASES:
        results.ratio(f"{what}_vs_fio_{label}", f"{what}_{label}_gbps", f"fio_{label}_gbps", "more")
        results.ratio(f"{what}_vs_fio_cpu_{label}", f"{what}_{label}_cpu", f"fio_{label}_cpu", "less")
    for label in ("4k_read", "1m_read"):
        results.ratio(f"fio_fixed_vs_fio_{label}", f"fio_fixed_{label}_gbps", f"fio_{label}_gbps")
    busy = results.median("others_busy")
    if busy > OTHERS_BUSY:
        results.note(f"other programs kept {busy:.1f} CPUs busy: these figures tell little")
    bench.finish("nvmeof", results, about, options)


if __name__ == "__main__":
    bench.main(suite)
