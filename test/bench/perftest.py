# SPDX-License-Identifier: Apache-2.0
"""How perftest's programs (ib_write_bw and its like) are run: two processes of this host, one CPU a side."""

import shutil
import threading

import bench

GID = ["-x", "1", "-F"]  # the IPv4 address; no word about the CPU's clock
GUESS = 60  # iterations of the first run, which tells how many a second there are
LIMIT_S = 120


def columns(text):
    """The numbers under the heading that begins with #bytes."""
    lines = text.splitlines()
    for heading, line in zip(lines, lines[1:]):
        if heading.strip().startswith("#bytes"):
            return [float(word) for word in line.split()]
    raise bench.Failed(f"no result in {text[-300:]!r}")


class Perftest:
    def __init__(self):
        if not shutil.which("ib_write_bw"):
            raise bench.Failed("perftest is not installed: ./dev setup --lab")
        self.rates = {}

    def run(self, program, pair, options):
        """The client's numbers."""
        here, there = pair
        target_cpu, initiator_cpu = bench.cpus()
        port = bench.free_port()
        command = [program, "-p", str(port)] + GID + options
        with bench.Server(bench.on(target_cpu, command + ["-d", there])):
            bench.wait_listening(port, 60)
            return columns(bench.run(bench.on(initiator_cpu, command + ["-d", here, "127.0.0.1"]), LIMIT_S))

    def together(self, program, pairs, options):
        """Messages a second over all pairs of devices at once."""
        rates, errors = [], []

        def one(pair):
            try:
                # bytes, iterations, peak, average in Gbit/s, 10^6 messages a second
                rates.append(self.run(program, pair, options + ["--report_gbits"])[3])
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=one, args=(pair,)) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        size = int(options[options.index("-s") + 1])
        return sum(rates) * 1e9 / 8 / size

    def rate(self, program, pairs, options, seconds):
        """Messages a second, measured for about so long."""
        key = (program, len(pairs), *options)
        if key not in self.rates:
            self.rates[key] = self.together(program, pairs, options + ["-n", str(GUESS)])
        count = max(GUESS, int(self.rates[key] * seconds / len(pairs)))
        self.rates[key] = self.together(program, pairs, options + ["-n", str(count)])
        return self.rates[key]

    def latency(self, program, pair, size):
        """Microseconds that are typical: of half a round trip for WRITE, of all of it for READ."""
        return self.run(program, pair, ["-s", str(size), "-n", "1000"])[4]
