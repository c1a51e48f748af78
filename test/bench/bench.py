# SPDX-License-Identifier: Apache-2.0
"""What the suites share: programs that are ended by their pid, the machine, medians, the table and the JSON."""

import argparse
import datetime
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.abspath(os.environ.get("LW_BUILD_DIR", os.path.join(HERE, "..", "..", "build", "release")))


class Failed(Exception):
    """A measurement that could not be made; the text says why."""


def program(name):
    """Path of a program of the build tree."""
    path = os.path.join(BUILD, name)
    if not os.access(path, os.X_OK):
        raise Failed(f"{path} is not there; build first, or set LW_BUILD_DIR")
    return path


def cpus():
    """The two CPUs that the sides are bound to: the first and the last we may use. The same one twice on one CPU."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


def on(cpu, command):
    """The command bound to a CPU, or to both CPUs of a pair."""
    names = ",".join(str(c) for c in sorted(set(cpu if isinstance(cpu, tuple) else (cpu,))))
    return ["taskset", "-c", names] + command


def run(command, limit_s):
    """Runs a command to its end and returns its standard output. Ends it by its pid when it takes longer."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        raise Failed(f"{' '.join(command)}: not ready after {limit_s} s") from None
    except BaseException:
        child.kill()
        child.wait()
        raise
    if child.returncode:
        raise Failed(f"{' '.join(command)}: exit {child.returncode}: {(err.strip() or out.strip())[-500:]}")
    return out


class Server:
    """A program that runs beside others, from its start to the end of a with block."""

    def __init__(self, command):
        self.log = tempfile.TemporaryFile(mode="w+")
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.lines = []
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.child.stdout:
            with self.changed:
                self.lines.append(line)
                self.changed.notify_all()
        with self.changed:
            self.lines.append(None)  # its end
            self.changed.notify_all()

    def wait_line(self, start, limit_s=10):
        """The first line of output that starts so."""
        end = time.monotonic() + limit_s
        with self.changed:
            while True:
                for line in self.lines:
                    if line is None:
                        self.log.seek(0)
                        raise Failed(f"{self.child.args[-1]}: ended early: {self.log.read()[-500:]}")
                    if line.startswith(start):
                        return line.strip()
                left = end - time.monotonic()
                if left <= 0:
                    raise Failed(f"no line '{start}' after {limit_s} s")
                self.changed.wait(left)

    def stop(self):
        """Asks it to end; kills it after 5 s."""
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(5)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
        self.reader.join(5)
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def free_port():
    """A TCP port of loopback that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_listening(port, limit_s=5, pid="self"):
    """Waits until somebody listens on a port, without connecting to it. pid: a process whose network is meant."""
    end = time.monotonic() + limit_s
    wanted = f":{port:04X}"
    while time.monotonic() < end:
        for path in (f"/proc/{pid}/net/tcp", f"/proc/{pid}/net/tcp6"):
            try:
                with open(path, encoding="ascii") as table:
                    for line in table:
                        fields = line.split()
                        if fields[1].endswith(wanted) and fields[3] == "0A":
                            return
            except OSError:
                pass
        time.sleep(0.02)
    raise Failed(f"nobody listens on port {port} after {limit_s} s")


def first_line(command):
    """The first line of what a command prints, "" when there is no such command."""
    try:
        return run(command, 5).splitlines()[0]
    except (Failed, OSError, IndexError):
        return ""


def read_text(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def machine():
    """What a reader needs to judge the figures."""
    model = ""
    for line in read_text("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = read_text("/proc/meminfo").split()
    return {
        "cpu": model or platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "pinned": list(cpus()),
        "memory_bytes": int(memory[1]) * 1024 if len(memory) > 1 else 0,
        "kernel": platform.release(),
        "load": list(os.getloadavg()),
        "congestion": read_text("/proc/sys/net/ipv4/tcp_congestion_control"),
        "lwbench": first_line([program("lwbench"), "--version"]),
        "iperf3": first_line(["iperf3", "--version"]) if shutil.which("iperf3") else "",
        "ucx": first_line(["ucx_info", "-v"]) if shutil.which("ucx_info") else "",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def c2c():
    """Nanoseconds of a cache line's round trip between our two CPUs; None when there is but one CPU."""
    first, last = cpus()
    if first == last:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(BUILD, "test", "bench", "c2c")
        if not os.access(path, os.X_OK):
            path = os.path.join(folder, "c2c")
            source = os.path.join(HERE, "c2c.c")
            run([os.environ.get("CC", "cc"), "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-pthread", "-o", path, source], 60)
        return float(run([path, str(first), str(last)], 10))


def others_busy(seconds=0.25):
    """How many CPUs are busy while we do nothing."""

    def busy_s():
        fields = [int(word) for word in read_text("/proc/stat").split("\n", 1)[0].split()[1:9]]
        return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")  # without idle and waiting

    before, begin = busy_s(), time.monotonic()
    time.sleep(seconds)
    return (busy_s() - before) / (time.monotonic() - begin)


class Results:
    """Samples by name, one a round, None where it could not be taken; a name's value is their median."""

    def __init__(self):
        self.samples = {}
        self.units = {}
        self.better = {}  # ratios that compare us with others: which values are ours to wish for, "more" or "less"
        self.beside = {}  # ratios: what ours was divided by
        self.notes = []  # what was left out, and why

    def add(self, name, value, unit):
        self.samples.setdefault(name, []).append(value)
        self.units[name] = unit

    def ratio(self, name, over, under, better=None):
        """The quotient of two results round by round, so that what slows both of a round slows neither. True when
        there was something to divide."""
        for a, b in zip(self.samples.get(over, []), self.samples.get(under, [])):
            if a is not None and b:
                self.add(name, a / b, "ratio")
        if not self.values(name):
            return False
        self.beside[name] = under
        if better:
            self.better[name] = better
        return True

    def values(self, name):
        """The samples that were taken."""
        return [value for value in self.samples.get(name, []) if value is not None]

    def median(self, name):
        return statistics.median(self.values(name))

    def best(self, names, least=False):
        """The one of these results with the highest median, or the least; None when none of them was taken."""
        taken = [name for name in names if self.values(name)]
        return (min if least else max)(taken, key=self.median) if taken else None

    def copy(self, name, source):
        """The same samples under another name."""
        for table in (self.samples, self.units, self.better, self.beside):
            if source in table:
                table[name] = table[source]

    def note(self, text):
        """Tells once that something was left out."""
        if text not in self.notes:
            self.notes.append(text)
            print(f"bench: {text}", file=sys.stderr)

    def losses(self):
        """Names of the ratios on the wrong side of 1."""
        return [n for n, way in self.better.items() if (self.median(n) > 1 if way == "less" else self.median(n) < 1)]

    def list(self):
        return [
            {
                "name": name,
                "value": statistics.median(values),
                "unit": self.units[name],
                "n": len(values),
                "min": min(values),
                "max": max(values),
            }
            for name, values in ((name, self.values(name)) for name in self.samples)
            if values
        ]

    def print(self, to, hidden=""):
        """The table, without names that begin with hidden, and the losses after it."""
        row = "{:<34} {:>10} {:>10} {:>10}  {:>2}  {}"
        print(row.format("result", "median", "min", "max", "n", "unit"), file=to)
        for result in self.list():
            if hidden and result["name"].startswith(hidden):
                continue
            numbers = [f"{result[key]:.3f}" for key in ("value", "min", "max")]
            print(row.format(result["name"], *numbers, result["n"], result["unit"]), file=to)
        if self.better:
            print(f"\nwe lose: {len(self.losses())} of {len(self.better)} ratios are on the wrong side of 1", file=to)
        for name in self.losses():
            print(f"  {name:<34} {self.median(name):>8.3f}  beside {self.beside[name]}", file=to)
        for note in self.notes:
            print(f"note: {note}", file=to)


def arguments(description, seconds=2.0, more=None):
    """The options of a suite; more adds its own to the parser."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", metavar="FILE", help="write the results there; '-' is standard output")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (5)")
    parser.add_argument("--seconds", type=float, default=seconds, help=f"of each measurement ({seconds:g})")
    if more:
        more(parser)
    options = parser.parse_args()
    if not 1 <= options.rounds <= 100 or not 0.05 <= options.seconds <= 60:
        parser.error("--rounds is 1 to 100, --seconds 0.05 to 60")
    return options


def finish(suite, results, about, options, hidden="", table=None):
    """Prints the table and writes the JSON. hidden: the names that table, a function of a file, prints instead."""
    to_stdout = options.json == "-"
    to = sys.stderr if to_stdout else sys.stdout
    if table:
        table(to)
    results.print(to, hidden)
    if not options.json:
        return
    document = {"suite": suite, "machine": about, "notes": results.notes, "results": results.list()}
    if to_stdout:
        print(json.dumps(document))
        return
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")


def main(suite):
    """Calls a suite's function. Exit 0; 1 when a measurement could not be made."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        suite()
    except Failed as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
