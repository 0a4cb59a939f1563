#!/usr/bin/env python3
"""How long the commands take for a job with many op logs: 51 captures of 1,216 rows.

A producer process (rows_bench) writes the op logs on the host lane; one daemon reads them. Each
command runs `--rounds` times, the fastest is shown, with the CPU time that it and the daemon took and
the size of its answer. Memory is that of the daemon without the job's rings. `--old BUILD` adds the
figures of another build, and the ratio.

Needs a build: python3 tools/bench/rows.py --build <build>
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

COMMANDS = {
    "ops": ["ops", "live@-1", "--graph", "bs=7"],
    "ops, newest log": ["ops", "live@-1"],
    "ops --only nan": ["ops", "live@-1", "--only", "nan"],
    "ops --json": ["ops", "live@-1", "--json"],
    "ops diff": ["ops", "diff", "live@g:bs=7@-1", "live@g:bs=8@-1"],
    "check": ["check", "live"],
    "status": ["status"],
    "ps": ["ps"],
    "graphs": ["graphs"],
    "probes": ["probes"],
    "probes --json": ["probes", "--json"],
    "probes, one": ["probes", "fwd/model.layers.3.self_attn/mm_5"],
    "info": ["info", "live"],
    "stats": ["stats", "live"],
    "stats, one": ["stats", "live", "fwd/model.layers.3.self_attn/mm_5"],
    "show": ["show", "fwd/model.layers.3.self_attn/mm_5@g:bs=7@-1"],
    "where": ["where", "live"],
    "tail": ["tail", "-n", "1000"],
    "tail --json": ["tail", "-n", "1000", "--json"],
    "freeze": ["freeze", "-o", "{folder}/{round}.cgrec"],
    "check, recording": ["check", "{folder}/1.cgrec"],
    "ops, recording": ["ops", "{folder}/1.cgrec@-1"],
    "stats, recording": ["stats", "{folder}/1.cgrec"],
    "diff, recordings": ["diff", "{folder}/1.cgrec", "{folder}/1.cgrec"],
    "diff, live": ["diff", "live", "{folder}/1.cgrec"],
    "ranks": ["ranks", "live"],
    "report": ["report", "live", "-o", "{folder}/{round}.html"],
}
PYTHON = {
    "Client.probes": "len(c.probes())",
    "Client.status": "len(c.status().sessions)",
    "Client.get": "c.get('fwd/model.layers.3.self_attn/mm_5', graph_id=7).replay",
}


class Job:
    """The daemon of one build, with a job that has written `replays` replays."""

    def __init__(self, build, options):
        self.build = build
        self.folder = tempfile.TemporaryDirectory(prefix="cgdebug-bench-")
        self.socket = f"{self.folder.name}/d.sock"
        self.daemon = subprocess.Popen(
            [build / "bin/cgdebug-daemon", "--foreground", "--socket", self.socket,
             "--log-file", f"{self.folder.name}/log"]
        )  # fmt: skip
        while not os.path.exists(self.socket):
            time.sleep(0.01)
        self.job = subprocess.Popen(
            [options.producer, self.socket, str(options.logs), str(options.rows),
             str(options.capacity), str(options.replays)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.memory_mib = {}
        for replay in range(1, options.replays + 1):
            self.job.stdout.readline()
            self.sync(replay * options.logs * options.rows)
            self.memory_mib[replay] = self.memory()
            if replay < options.replays:
                self.job.stdin.write("\n")
                self.job.stdin.flush()

    def sync(self, snapshots):
        """Waits until the daemon has read so many snapshots."""
        while True:
            status = json.loads(self.command(["status", "--json"])[1])
            if sum(session["counters"]["consumed"] for session in status["sessions"]) >= snapshots:
                return
            time.sleep(0.1)

    def memory(self):
        for line in pathlib.Path(f"/proc/{self.daemon.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
        return 0

    def daemon_cpu(self):
        stat = pathlib.Path(f"/proc/{self.daemon.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def cpu(self):
        mine = resource.getrusage(resource.RUSAGE_CHILDREN)
        return mine.ru_utime + mine.ru_stime + self.daemon_cpu()

    def command(self, arguments):
        began = time.perf_counter()
        done = subprocess.run(
            [self.build / "bin/cgdebug-cli", "--socket", self.socket, *arguments],
            capture_output=True, text=True,
        )  # fmt: skip
        return time.perf_counter() - began, done.stdout, done.stderr, done.returncode

    def measure(self, name, arguments, rounds):
        best = None
        cpu = 1e9
        for i in range(1, rounds + 1):
            filled = [one.format(folder=self.folder.name, round=i) for one in arguments]
            before = self.cpu()
            took = self.command(filled)
            cpu = min(cpu, self.cpu() - before)
            best = min(best or took, took, key=lambda one: one[0])
        seconds, out, err, code = best
        if code not in (0, 1, 3):
            print(f"{name}: exit {code}: {err.strip()[:200]}", file=sys.stderr)
        return {"ms": 1000 * seconds, "cpu_ms": 1000 * cpu, "kib": len(out) / 1024, "exit": code}

    def python(self, name, expression, rounds):
        script = (
            "import sys, time, cgdebug\n"
            f"c = cgdebug.connect({self.socket!r}, timeout=100)\n"
            "best = 1e9\n"
            f"for _ in range({rounds}):\n"
            "    began = time.perf_counter()\n"
            f"    {expression}\n"
            "    best = min(best, time.perf_counter() - began)\n"
            "print(best)\n"
        )
        environment = dict(os.environ, PYTHONPATH=str(self.build / "python"))
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env=environment
        )
        if done.returncode != 0:
            print(f"{name}: {done.stderr.strip()[-300:]}", file=sys.stderr)
            return {"ms": float("nan"), "cpu_ms": 0, "kib": 0, "exit": done.returncode}
        return {"ms": 1000 * float(done.stdout), "cpu_ms": 0, "kib": 0, "exit": 0}

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.job.kill()
        self.job.wait()
        self.daemon.terminate()
        self.daemon.wait()
        self.folder.cleanup()


def measure(build, options):
    figures = {}
    with Job(build, options) as job:
        wanted = options.only.split(",") if options.only else [*COMMANDS, *PYTHON]
        for name in wanted:
            if name in COMMANDS:
                figures[name] = job.measure(name, COMMANDS[name], options.rounds)
            else:
                figures[name] = job.python(name, PYTHON[name], options.rounds)
        figures["memory_mib"] = job.memory_mib
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--old", type=pathlib.Path, help="another build to compare with")
    for name, default in (
        ("logs", 51),
        ("rows", 1216),
        ("capacity", 4),
        ("replays", 3),
        ("rounds", 3),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", help="names of commands, separated by commas")
    parser.add_argument("--json", type=pathlib.Path, help="where to write the figures")
    options = parser.parse_args()
    options.producer = options.build / "tools/bench/rows_bench"
    new = measure(options.build, options)
    old = measure(options.old, options) if options.old else {}
    print(f"{options.logs} op logs of {options.rows} rows, {options.replays} replays\n")
    print("| command | ms | CPU ms | KiB | exit |" + " old ms | ratio |" * bool(old))
    print("|---|---|---|---|---|" + "---|---|" * bool(old))
    for name, figure in new.items():
        if name == "memory_mib":
            continue
        line = (
            f"| {name} | {figure['ms']:.0f} | {figure['cpu_ms']:.0f} | {figure['kib']:.0f} "
            f"| {figure['exit']} |"
        )
        if old:
            line += f" {old[name]['ms']:.0f} | {old[name]['ms'] / figure['ms']:.1f} |"
        print(line)
    for what, figures in (("", new), ("old ", old)):
        if figures:
            memory = ", ".join(f"{mib:.0f}" for mib in figures["memory_mib"].values())
            print(f"\n{what}MiB of the daemon after each replay: {memory}")
    if options.json:
        options.json.write_text(json.dumps({"new": new, "old": old}, indent=1) + "\n")


if __name__ == "__main__":
    main()
