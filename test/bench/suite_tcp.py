# SPDX-License-Identifier: Apache-2.0
"""TCP on loopback: the engine beside raw socket pairs, iperf3 and UCX, in interleaved rounds on the same two CPUs."""

import json
import statistics
import sys

import bench
import peers

BUFFER = "64m"
TCP_ONLY = ["--set", "drivers=tcp"]
OPERATIONS = ("write", "read")

# label, block, its bytes, batch, batches under way
CASES = [
    ("64_b128", "64", 64, 128, 4),
    ("4k_b128", "4k", 4096, 128, 4),
    ("64k", "64k", 65536, 16, 4),
    ("1m", "1m", 1 << 20, 4, 4),
    ("4m", "4m", 4 << 20, 1, 4),
]
RAW_LABELS = ("4k_b128", "64k", "1m", "4m")
HOT_LABELS = ("64k", "1m", "4m")
RAW_WAITS = {"poll": "raw", "spin": "raw_spin", "block": "raw_block"}
GATHER = "64"

MATRIX_BLOCKS = ("64", "4k", "64k", "1m", "4m")
MATRIX_BATCHES = (1, 16, 128)

OTHERS_BUSY = 0.1  # CPUs; more than that spoils a run
FIRST_RUNS = 3  # connections of a round
CHECKSUM = "tcp_checksum"
SECRET = "tcp_secret"


def rows(text):
    """The rows of lwbench's JSON, and all of it."""
    document = json.loads(text)
    for row in document["results"]:
        if row["failed"]:
            raise bench.Failed(f"{row['failed']} requests failed: {document['failures']}")
    return document["results"], document


def shape(operation, blocks, batch, depth, seconds, buffer=BUFFER):
    return [
        "--op", operation, "--block-size", blocks, "--batch", str(batch), "--depth", str(depth),
        "--duration", str(seconds), "--buffer-size", buffer, "--json", "-",
    ]  # fmt: skip


def both_sides(row):
    """CPU seconds a GiB of both processes; None when the target did not tell."""
    if row["cpu_s_per_gib"] is None or row["target_cpu_s_per_gib"] is None:
        return None
    return row["cpu_s_per_gib"] + row["target_cpu_s_per_gib"]


class Target:
    """lwbench target with settings, as long as a with block lasts."""

    def __init__(self, settings=()):
        self.more = TCP_ONLY + [word for setting in settings for word in ("--set", setting)]
        command = [bench.program("lwbench"), "target", "--buffer-size", BUFFER] + self.more
        self.server = bench.Server(bench.on(bench.cpus()[0], command))

    def __enter__(self):
        try:
            ready = self.server.wait_line("lwbench: target ready")
        except BaseException:
            self.server.stop()
            raise
        self.name = dict(word.split("=", 1) for word in ready.split() if "=" in word)["name"]
        return self

    def __exit__(self, *_):
        self.server.stop()

    def initiator(self, arguments, limit_s):
        """One initiator with the same settings."""
        command = [bench.program("lwbench"), "initiator", "--target", self.name] + self.more + arguments
        return rows(bench.run(bench.on(bench.cpus()[1], command), limit_s))


def engine(results, target, operation, case, seconds, more=(), tag="", name=None, buffer=BUFFER):
    label, block, _, batch, depth = case
    arguments = shape(operation, block, batch, depth, seconds, buffer) + list(more)
    row = target.initiator(arguments, seconds + 60)[0][0]
    name = name or f"tcp_{operation}_{label}{tag}"
    results.add(f"{name}_gbps", row["gbps"], "GB/s")
    results.add(f"{name}_p99_us", row["batch_p99_us"], "us a batch")
    results.add(f"{name}_cpu", both_sides(row), "CPU-s/GiB, both sides")


def raw_name(operation, label, wait, gather=False):
    """Writing has the short name: its side of the pair is the engine's WRITE."""
    middle = "" if operation == "write" else "_read"
    return f"{RAW_WAITS[wait]}{'_gather' if gather else ''}{middle}_{label}"


def raw(results, operation, case, wait, seconds, gather=False):
    label, block, _, batch, depth = case
    command = [bench.program("lwbench"), "raw", "--pin", "--wait", wait] + (["--gather", GATHER] if gather else [])
    command += shape(operation, block, batch, depth, seconds)
    row = rows(bench.run(bench.on(bench.cpus(), command), seconds + 60))[0][0]
    name = raw_name(operation, label, wait, gather)
    results.add(f"{name}_gbps", row["gbps"], "GB/s")
    results.add(f"{name}_cpu", both_sides(row), "CPU-s/GiB, both sides")


def matrix(results, target, seconds):
    """Each block with each batch, one batch under way, so that a latency is that of a batch alone."""
    for operation in OPERATIONS:
        for batch in MATRIX_BATCHES:
            arguments = shape(operation, ",".join(MATRIX_BLOCKS), batch, 1, seconds)
            limit_s = 5 * seconds + 60
            for block, row in zip(MATRIX_BLOCKS, target.initiator(arguments, limit_s)[0]):
                name = f"matrix_{operation}_{block}_b{batch}"
                results.add(f"{name}_gbps", row["gbps"], "GB/s")
                results.add(f"{name}_requests", row["requests_per_s"], "requests/s")
                results.add(f"{name}_p50_us", row["batch_p50_us"], "us a batch")
                results.add(f"{name}_p99_us", row["batch_p99_us"], "us a batch")
                results.add(f"{name}_cpu", both_sides(row), "CPU-s/GiB, both sides")


def print_matrix(results, to):
    line = "{:<6} {:>5} {:>6} {:>9} {:>12} {:>11} {:>11} {:>10}"
    print(line.format("op", "block", "batch", "GB/s", "requests/s", "p50 us", "p99 us", "CPU-s/GiB"), file=to)
    for operation in OPERATIONS:
        for block in MATRIX_BLOCKS:
            for batch in MATRIX_BATCHES:
                name = f"matrix_{operation}_{block}_b{batch}"
                digits = {"gbps": 3, "requests": 0, "p50_us": 1, "p99_us": 1, "cpu": 3}
                cells = [
                    f"{results.median(f'{name}_{key}'):.{count}f}" if results.values(f"{name}_{key}") else "-"
                    for key, count in digits.items()
                ]
                print(line.format(operation, block, batch, *cells), file=to)
    print(file=to)


def first(results, targets):
    """Opening each of the targets and a first request, each time by a new process, until the request's end. In turn."""
    arguments = ["--first", "--count", "1"] + shape("write", "4k", 1, 1, 0)
    taken = {name: [] for name in targets}
    for _ in range(FIRST_RUNS):
        for name, target in targets.items():
            document = target.initiator(arguments, 30)[1]
            taken[name].append(document["open_us"] + document["first_us"])
    for name, values in taken.items():
        results.add(name, statistics.median(values), "us")


def known_settings():
    """Names of the engine's settings."""
    return {setting["name"] for setting in json.loads(bench.run([bench.program("lwinfo"), "--config", "--json"], 20))}


def checksum(results, seconds):
    """The same cases with checksums and without, one after the other."""
    with Target() as without, Target([f"{CHECKSUM}=on"]) as with_it:
        for case in CASES:
            if case[0] in ("64k", "1m"):
                engine(results, without, "write", case, seconds, name=f"checksum_off_{case[0]}")
                engine(results, with_it, "write", case, seconds, name=f"checksum_on_{case[0]}")


def auth(results, _):
    with Target() as without, Target([f"{SECRET}=no-secret-but-a-text-of-a-benchmark"]) as with_it:
        first(results, {"auth_off_first_us": without, "auth_on_first_us": with_it})


def one_round(results, target, ucx, costs, seconds):
    """All that is compared with each other stands close together."""
    for case in CASES:
        label, _, size, _, _ = case
        for operation in OPERATIONS:
            engine(results, target, operation, case, seconds)
            if label in RAW_LABELS:
                for wait in RAW_WAITS:
                    raw(results, operation, case, wait, seconds)
            if label == "4k_b128":
                for wait in RAW_WAITS:
                    raw(results, operation, case, wait, seconds, gather=True)
            if operation == "write" and label in HOT_LABELS:
                engine(results, target, operation, case, seconds, tag="_hot", buffer=case[1])
        if label == "1m":
            engine(results, target, "write", case, seconds, ["--poll", "caller"], "_caller")
            peers.iperf3(results, seconds)
        ucx.measure(label.removesuffix("_b128"), size, seconds)
    first(results, {"tcp_first_us": target})
    for name, measure in (("checksum_cost", checksum), ("auth_cost", auth)):
        if name in costs:
            try:
                measure(results, seconds)
            except bench.Failed as error:
                costs.remove(name)
                results.note(f"{name} is left out from here on: {error}")
    results.add("c2c_roundtrip_ns", bench.c2c(), "ns")
    results.add("others_busy", bench.others_busy(), "CPUs")


def worse(results, name, names):
    """Copies the worst of these ratios, for us, under a name."""
    taken = [n for n in names if results.values(n)]
    if taken:
        pick = max if results.better[taken[0]] == "less" else min
        results.copy(name, pick(taken, key=results.median))


def compare_raw(results, label, gather=False):
    """Ours by the raw pair that did best here: the most GB/s, and apart from that the fewest CPU seconds."""
    what = "gather" if gather else "raw"
    for kind, better in (("gbps", "more"), ("cpu", "less")):
        names = []
        for operation in OPERATIONS:
            pairs = [f"{raw_name(operation, label, wait, gather)}_{kind}" for wait in RAW_WAITS]
            best = results.best(pairs, least=better == "less")
            names.append(f"tcp_vs_{what}_{kind}_{operation}_{label}")
            if best:
                results.ratio(names[-1], f"tcp_{operation}_{label}_{kind}", best, better)
        worse(results, f"tcp_vs_{what}_{kind}_{label}", names)


def compare_ucx(results):
    """Our WRITE by the test of UCX that moved most, whatever its kind; our READ by its get. UCX's tests send one block
    again and again: the worst ratio is that of what does the same, where there is such."""
    names = []
    for label, *_ in CASES:
        size = label.removesuffix("_b128")
        best = results.best([f"ucx_{test.removeprefix('ucp_')}_{size}_gbps" for test in peers.UCX_TESTS])
        if not best:
            continue
        like = f"tcp_vs_ucx_{size}"
        results.ratio(like, f"tcp_write_{label}_gbps", best, "more")
        if label in HOT_LABELS:
            like = f"tcp_vs_ucx_hot_{size}"
            results.ratio(like, f"tcp_write_{label}_hot_gbps", best, "more")
        names += [like, f"tcp_vs_ucx_get_{size}"]
        results.ratio(names[-1], f"tcp_read_{label}_gbps", f"ucx_get_{size}_gbps", "more")
    worse(results, "tcp_vs_ucx_min", names)


def compare(results):
    for label in RAW_LABELS:
        compare_raw(results, label)
    compare_raw(results, "4k_b128", gather=True)
    results.ratio("tcp_vs_iperf3_1m", "tcp_write_1m_gbps", "iperf3_gbps", "more")
    results.ratio("tcp_vs_iperf3_hot_1m", "tcp_write_1m_hot_gbps", "iperf3_gbps", "more")
    compare_ucx(results)
    results.ratio("tcp_4k_b128_vs_1m", "tcp_write_4k_b128_gbps", "tcp_write_1m_gbps")
    results.ratio("checksum_cost", "checksum_on_1m_cpu", "checksum_off_1m_cpu")
    results.ratio("checksum_cost_64k", "checksum_on_64k_cpu", "checksum_off_64k_cpu")
    results.ratio("checksum_gbps", "checksum_on_1m_gbps", "checksum_off_1m_gbps")
    results.ratio("checksum_gbps_64k", "checksum_on_64k_gbps", "checksum_off_64k_gbps")
    results.ratio("auth_cost", "auth_on_first_us", "auth_off_first_us")


def options_of_ours(parser):
    parser.add_argument("--matrix-seconds", type=float, default=0.3, help="of each cell of the matrix (0.3); 0: none")


def suite():
    options = bench.arguments(__doc__, seconds=0.4, more=options_of_ours)
    results = bench.Results()
    about = bench.machine()
    settings = known_settings()
    costs = set()
    for name, setting in (("checksum_cost", CHECKSUM), ("auth_cost", SECRET)):
        if setting in settings:
            costs.add(name)
        else:
            results.note(f"this build has no setting {setting}: {name} is left out")
    with Target() as target, peers.Ucx(results) as ucx:
        if options.matrix_seconds > 0:
            matrix(results, target, options.matrix_seconds)
        for number in range(options.rounds):
            print(f"bench: round {number + 1} of {options.rounds}", file=sys.stderr)
            one_round(results, target, ucx, costs, options.seconds)
    compare(results)
    busy = results.median("others_busy")
    if busy > OTHERS_BUSY:
        results.note(f"other programs kept {busy:.1f} CPUs busy: these figures tell little")
    table = (lambda to: print_matrix(results, to)) if options.matrix_seconds > 0 else None
    bench.finish("tcp", results, about, options, hidden="matrix_", table=table)


if __name__ == "__main__":
    bench.main(suite)
