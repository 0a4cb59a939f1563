#!/usr/bin/env python3
"""How fast a recording is written, compared with a plain write() loop, MCAP and safetensors; and
how long it takes to open one of a million snapshots.

    tools/bench/recording.py --build build/release [--directory DIR]

Every figure is a ratio of medians of one run, in which the writers take turns; each ends with
fdatasync(). MCAP (PyPI `mcap`, with its checksums) and safetensors (one file per step) are left out
if they are not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = {"1 KiB": 1 << 10, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "64 MiB": 1 << 26}
SNAPSHOTS = 1_000_000


def driver(arguments, *words) -> dict:
    done = subprocess.run(
        [arguments.driver, *map(str, words)], stdout=subprocess.PIPE, check=True, text=True
    )
    return json.loads(done.stdout)


def write_mcap(path: str, payload: bytes, count: int) -> float:
    from mcap.writer import CompressionType, Writer

    start = time.perf_counter()
    with open(path, "wb") as file:
        writer = Writer(file, compression=CompressionType.NONE)
        writer.start()
        channel = writer.register_channel("x", "application/octet-stream", 0)
        for step in range(count):
            writer.add_message(channel, log_time=step, data=payload, publish_time=step)
        writer.finish()
        file.flush()
        os.fdatasync(file.fileno())
    return time.perf_counter() - start


def write_safetensors(directory: str, payload: bytes, count: int) -> float:
    import numpy
    from safetensors.numpy import save_file

    tensor = numpy.frombuffer(payload, dtype=numpy.uint8)
    os.makedirs(directory)
    start = time.perf_counter()
    for step in range(count):
        path = f"{directory}/{step}.safetensors"
        save_file({"x": tensor}, path)
    # One sync for all files, as in the other writers.
    os.sync()
    return time.perf_counter() - start


def installed(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


def measure(arguments, size: int) -> dict[str, list[float]]:
    count = max(1, min(arguments.bytes // size, 20_000))
    payload = os.urandom(min(size, 1 << 20)) * max(1, size >> 20)
    seconds: dict[str, list[float]] = {}
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
            runs = {
                "raw": lambda: driver(arguments, "raw", f"{folder}/raw", size, count)["seconds"],
                "cgrec": lambda: driver(arguments, "cgrec", f"{folder}/a.cgrec", size, count)[
                    "seconds"
                ],
            }
            if installed("mcap"):
                runs["mcap"] = lambda: write_mcap(f"{folder}/a.mcap", payload, count)
            if installed("safetensors"):
                runs["safetensors"] = lambda: write_safetensors(f"{folder}/st", payload, count)
            for name, run in runs.items():
                seconds.setdefault(name, []).append(run())
                for entry in os.listdir(folder):  # room for the next
                    path = f"{folder}/{entry}"
                    shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    return seconds


def throughput(arguments) -> list[dict]:
    rows = []
    for name, size in SIZES.items():
        seconds = measure(arguments, size)
        median = {writer: statistics.median(values) for writer, values in seconds.items()}
        count = max(1, min(arguments.bytes // size, 20_000))
        row = {"size": name, "raw_mb_s": size * count / median["raw"] / 1e6}
        for peer in ("raw", "mcap", "safetensors"):
            row[f"x_{peer}"] = median[peer] / median["cgrec"] if peer in median else None
        row["spread"] = (max(seconds["cgrec"]) - min(seconds["cgrec"])) / median["cgrec"]
        rows.append(row)
    return rows


def opening(arguments) -> dict:
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        path = f"{folder}/a.cgrec"
        driver(arguments, "cgrec", path, 64, SNAPSHOTS)
        opened = [driver(arguments, "open", path) for _ in range(arguments.rounds)]
    return {
        "snapshots": SNAPSHOTS,
        "milliseconds": statistics.median(one["seconds"] for one in opened) * 1e3,
        "mib": max(one["max_rss_kib"] for one in opened) / 1024,
    }


def print_report(rows: list[dict], opened: dict) -> None:
    print("| size | raw MB/s | x raw | x MCAP | x safetensors | spread |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        ratios = ["-" if row[f"x_{p}"] is None else f"{row[f'x_{p}']:.2f}" for p in PEERS]
        print(
            f"| {row['size']} | {row['raw_mb_s']:.0f} | {' | '.join(ratios)} | {row['spread']:.0%} |"
        )
    print(
        f"\nOpening a recording of {opened['snapshots']} snapshots and reading one value: "
        f"{opened['milliseconds']:.1f} ms, {opened['mib']:.0f} MiB."
    )


PEERS = ("raw", "mcap", "safetensors")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/release", help="where recording_bench lies")
    parser.add_argument("--directory", help="where to write; default: the temporary directory")
    parser.add_argument("--bytes", type=int, default=512 << 20, help="of each writer and size")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()
    arguments.driver = f"{arguments.build}/tools/bench/recording_bench"
    rows = throughput(arguments)
    opened = opening(arguments)
    print_report(rows, opened)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"throughput": rows, "open": opened}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
