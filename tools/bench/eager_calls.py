#!/usr/bin/env python3
"""What a day of eager calls costs: steps of variable length under an op log.

A job calls a model `--steps` times with `--shapes` lengths in turn, each call about 200 rows of an
op log, under a daemon of its own: memory of the job, the daemon and /dev/shm, the time of a step at
step 100 and at the last one, and, while the job lives, how long the commands take, and how much CPU
time they and the daemon. With --record it is recorded, and the commands read the recording as well.

Needs a build and torch, no GPU: python3 tools/bench/eager_calls.py --build <build>
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

JOB = """
import json, os, resource, sys, time
import torch, cgdebug

steps, shapes = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
WIDTH = 16

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
    def forward(self, x):
        h = self.norm(x)
        h = self.up(h) * torch.sigmoid(h) + h.mean() - h.amax()
        return x + self.down(h)

model = torch.nn.Sequential(*[Block() for _ in range(16)])

def own_mib():  # without shared memory
    fields = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return int(fields["RssAnon"].split()[0]) / 1024

def rows_of(log):
    return len(log.log().rows)

times, early = [], None
with cgdebug.debug_mode(model, eager=True) as log, torch.no_grad():
    for n in range(1, steps + 1):
        cgdebug.step(n)
        x = torch.ones(1 + n % shapes, WIDTH)
        start = time.perf_counter()
        model(x)
        times.append(time.perf_counter() - start)
        if n == 100:
            early = own_mib()
    figures = {"job_mib_100": early, "job_mib_last": own_mib(), "times": times}
    print(json.dumps(figures), flush=True)
    sys.stdin.readline()
"""
LIVE = {
    "ops": ["ops", "live"],
    "ops @call": ["ops", "live@call:{last}"],
    "where": ["where", "live"],
    "check": ["check", "live"],
    "top": ["--json", "top"],
    "status": ["status"],
    "probes": ["probes"],
}
RECORDED = {
    "check, recording": ["check", "{recording}"],
    "ops, recording": ["ops", "{recording}"],
    "report, recording": ["report", "{recording}", "-o", "{folder}/report.html"],
}


def memory_mib(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0]) / 1024


def cpu_s(daemon):
    """What the daemon and the commands that have ended took."""
    text = pathlib.Path(f"/proc/{daemon.pid}/stat").read_text(encoding="utf-8")
    fields = text.rpartition(")")[2].split()
    mine = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = int(fields[11]) + int(fields[12])
    return mine.ru_utime + mine.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def median_ms(times):
    return statistics.median(times) * 1e3


class Bench:
    def __init__(self, options):
        self.options = options
        self.build = options.build.resolve()
        self.folder = tempfile.mkdtemp(prefix="cgdebug-bench-")
        self.environment = {
            **os.environ,
            "CGDEBUG_SOCKET": f"{self.folder}/d.sock",
            "PYTHONPATH": str(self.build / "python"),
            "NO_COLOR": "1",
        }
        self.recording = f"{self.folder}/calls.cgrec"

    def cli(self, *words):
        start = time.perf_counter()
        done = subprocess.run(
            [self.build / "bin/cgdebug-cli", "--no-spawn", *words],
            env=self.environment, capture_output=True, text=True, timeout=900,
        )  # fmt: skip
        return time.perf_counter() - start, done

    def run(self):
        daemon = subprocess.Popen(
            [self.build / "bin/cgdebug-daemon", "--foreground"], env=self.environment
        )
        while not os.path.exists(f"{self.folder}/d.sock"):
            time.sleep(0.01)
        try:
            return self.measure(daemon)
        finally:
            daemon.terminate()
            daemon.wait()
            shutil.rmtree(self.folder, ignore_errors=True)

    def measure(self, daemon):
        options = self.options
        used = shutil.disk_usage("/dev/shm").used
        if options.record:
            self.cli("record", "start", "-o", self.recording)
        job = subprocess.Popen(
            [sys.executable, "-c", JOB, str(options.steps), str(options.shapes)],
            env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        figures = json.loads(job.stdout.readline())
        times = figures.pop("times")
        figures["step_ms_100"] = median_ms(times[64:128])
        figures["step_ms_last"] = median_ms(times[-64:])
        figures["step_ratio"] = figures["step_ms_last"] / figures["step_ms_100"]
        figures["daemon_mib"] = memory_mib(daemon.pid)
        figures["shm_mib"] = (shutil.disk_usage("/dev/shm").used - used) / 2**20
        for name, words in LIVE.items():
            words = [word.format(last=options.steps) for word in words]
            before = cpu_s(daemon)
            figures[f"{name} s"] = min(self.cli(*words)[0] for _ in range(options.rounds))
            figures[f"{name}, CPU s"] = (cpu_s(daemon) - before) / options.rounds
        figures["daemon_mib_after"] = memory_mib(daemon.pid)
        job.communicate("\n", timeout=60)
        if options.record:
            self.cli("record", "stop")
            for name, words in RECORDED.items():
                filled = [
                    word.format(recording=self.recording, folder=self.folder) for word in words
                ]
                before = cpu_s(daemon)
                figures[f"{name} s"] = self.cli(*filled)[0]
                figures[f"{name}, CPU s"] = cpu_s(daemon) - before
        return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--shapes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--record", action="store_true")
    figures = Bench(parser.parse_args()).run()
    for name, value in figures.items():
        print(f"{name:20} {value:10.2f}")


if __name__ == "__main__":
    main()
