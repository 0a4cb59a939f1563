#!/usr/bin/env python3
"""Small messages from one process to another, on the same two cores: a slot's ring, a Unix socket
and, if its Python package is installed, iceoryx2 (including the interpreter's share).

Both sides poll. `messages_per_s`: the writer waits only when the reader is 1000 behind; `p50_ns`, `p99_ns`:
one message every 50 us, from before it is written to when the reader has copied it out. Rounds are
interleaved; medians over them.

Needs a build: python3 tools/bench/ring.py --build <build>
"""

import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys

KINDS = ["ring", "socket"]
if importlib.util.find_spec("iceoryx2"):
    KINDS.append("iceoryx2")
SIZES = (64, 1024, 4096)


def measure(build, kind, size, seconds):
    program = [build / "tools/bench/ring_bench", kind]
    if kind == "iceoryx2":
        program = [sys.executable, pathlib.Path(__file__).parent / "drivers/iceoryx2_bench.py"]
    output = subprocess.run(
        [*program, str(size), str(seconds)],
        check=True, capture_output=True, text=True, env=os.environ | {"CGDEBUG": "0"},
    )  # fmt: skip
    return json.loads(output.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path, help="where to write the figures")
    arguments = parser.parse_args()
    rows = []
    for size in SIZES:
        rounds = {kind: [] for kind in KINDS}
        for _ in range(arguments.rounds):
            for kind in KINDS:
                rounds[kind].append(measure(arguments.build, kind, size, arguments.seconds))
        medians = {
            kind: {key: statistics.median(one[key] for one in all_) for key in all_[0]}
            for kind, all_ in rounds.items()
        }
        for kind in KINDS:
            row = {"bytes": size, "kind": kind} | medians[kind]
            row["x_socket"] = round(row["messages_per_s"] / medians["socket"]["messages_per_s"], 1)
            rows.append(row)
    print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(str(value) for value in row.values()) + " |")
    if arguments.json:
        arguments.json.write_text(json.dumps({"small_messages": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
