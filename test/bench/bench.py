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


def wait_listening(port, limit_s=5):
    """Waits until somebody listens on a port, without connecting to it."""
    end = time.monotonic() + limit_s
    wanted = f":{port:04X}"
    while time.monotonic() < end:
        for path in ("/proc/net/tcp", "/proc/net/tcp6"):
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


class Results:
    """Samples by name; a name's value is the median of its samples."""

    def __init__(self):
        self.samples = {}
        self.units = {}

    def add(self, name, value, unit):
        if value is None:
            return
        self.samples.setdefault(name, []).append(value)
        self.units[name] = unit

    def ratio(self, name, over, under):
        """The quotient of two results round by round, so that what slows both of a round slows neither."""
        for a, b in zip(self.samples.get(over, []), self.samples.get(under, [])):
            if b:
                self.add(name, a / b, "ratio")

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
            for name, values in self.samples.items()
        ]

    def print(self, to):
        print(f"{'result':<34} {'median':>10} {'min':>10} {'max':>10}  {'n':>2}  unit", file=to)
        for result in self.list():
            print(
                f"{result['name']:<34} {result['value']:>10.3f} {result['min']:>10.3f} {result['max']:>10.3f}"
                f"  {result['n']:>2}  {result['unit']}",
                file=to,
            )


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", metavar="FILE", help="write the results there; '-' is standard output")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement (2)")
    options = parser.parse_args()
    if not 1 <= options.rounds <= 100 or not 0.05 <= options.seconds <= 60:
        parser.error("--rounds is 1 to 100, --seconds 0.05 to 60")
    return options


def finish(suite, results, about, options):
    """Prints the table and writes the JSON."""
    to_stdout = options.json == "-"
    results.print(sys.stderr if to_stdout else sys.stdout)
    if not options.json:
        return
    document = {"suite": suite, "machine": about, "results": results.list()}
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
