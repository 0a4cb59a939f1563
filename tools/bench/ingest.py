#!/usr/bin/env python3
"""How fast the daemon reads: throughput, latency from commit to credit, and its cost when idle.

A producer process (ingest_bench) writes on the host lane. The credit moves after every sink has
seen a snapshot, so the time until then is the latency from commit to sink.
  throughput   the writer waits for room: nothing is lost, the daemon is the limit
  busy         paced; p50 and p99 of the last slot of each replay
  at rest      454 slots with statistics of one captured graph, 340 replays a second, beside slots
               that never run: what is lost, and how much of a core the daemon takes
  idle         CPU of the daemon while a job is alive and silent

Needs a build: python3 tools/bench/ingest.py --build <build>
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time

KIB, MIB = 1 << 10, 1 << 20
# slots, bytes, capacity, replays per second (0 = as fast as possible)
THROUGHPUT = [(64, 4 * KIB, 64, 0), (20, MIB, 4, 0), (8, 16 * MIB, 3, 0)]
BUSY = [(1, 4 * KIB, 64, 1000), (64, 4 * KIB, 64, 100), (212, 4 * KIB, 16, 50), (8, MIB, 8, 20)]

# How many slots are at rest.
AT_REST = [0, 5_200, 52_000]
WATCHED = (454, 64 * KIB, 22, 340)  # as in BUSY; of one graph


class Daemon:
    def __init__(self, build, workers):
        self.folder = tempfile.TemporaryDirectory(prefix="cgdebug-bench-")
        self.socket = f"{self.folder.name}/d.sock"
        self.process = subprocess.Popen(
            [build / "bin/cgdebug-daemon", "--foreground", "--socket", self.socket,
             "--workers", str(workers), "--max-memory", "256M", "--log-file", f"{self.folder.name}/log"]
        )  # fmt: skip
        while not os.path.exists(self.socket):
            time.sleep(0.01)

    def cpu_seconds(self):
        fields = (
            pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        )
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def switches(self):
        total = 0
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            for line in (task / "status").read_text().splitlines():
                if "ctxt_switches" in line:
                    total += int(line.split()[1])
        return total

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()


def bench(build, daemon, slots, size, capacity, rate, seconds, *at_rest):
    numbers = [slots, size, capacity, seconds, rate, *at_rest]
    words = [build / "tools/bench/ingest_bench", daemon.socket, *map(str, numbers)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as job:
        json.loads(job.stdout.readline())  # everything is found
        cpu, begun = daemon.cpu_seconds(), time.monotonic()
        figures = json.loads(job.stdout.readline())
        share = (daemon.cpu_seconds() - cpu) / (time.monotonic() - begun)
    assert job.returncode == 0
    return figures | {"cpu_percent": round(100 * share, 1)}


def case(build, workers, slots, size, capacity, rate, seconds, *at_rest):
    with Daemon(build, workers) as daemon:
        figures = bench(build, daemon, slots, size, capacity, rate, seconds, *at_rest)
    row = {"workers": workers, "slots": slots, "kib": size // KIB, "replays_per_s": rate}
    return row | ({"at_rest": at_rest[0]} if at_rest else {}) | figures


def idle(build, workers, seconds):
    with Daemon(build, workers) as daemon:
        job = subprocess.Popen(
            [build / "tools/bench/ingest_bench", daemon.socket, "64", "4096", "4",
             str(seconds + 4), "0.05"], stdout=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(3)  # quiet for more than a second
        cpu, switches = daemon.cpu_seconds(), daemon.switches()
        time.sleep(seconds)
        cpu, switches = daemon.cpu_seconds() - cpu, daemon.switches() - switches
        job.kill()
        job.wait()
    return {
        "cpu_percent": round(100 * cpu / seconds, 2),
        "wakeups_per_s": round(switches / seconds),
    }


def print_table(rows):
    columns = list(dict.fromkeys(key for row in rows for key in row))
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(str(row.get(column, "")) for column in columns) + " |")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--workers", default="0,1,2")
    parser.add_argument("--json", type=pathlib.Path, help="where to write the figures")
    arguments = parser.parse_args()
    workers = [int(count) for count in arguments.workers.split(",")]
    result = {
        "cores": os.cpu_count(),
        "throughput": [
            case(arguments.build, count, *config, arguments.seconds)
            for config in THROUGHPUT
            for count in workers
        ],
        "busy": [case(arguments.build, workers[-1], *config, arguments.seconds) for config in BUSY],
        "at_rest": [
            case(arguments.build, workers[-1], *WATCHED, arguments.seconds, count)
            for count in AT_REST
        ],
        "idle": idle(arguments.build, workers[-1], 5),
    }
    print_table(result["throughput"])
    print_table(result["busy"])
    print_table(result["at_rest"])
    print_table([result["idle"]])
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
