#!/usr/bin/env python3
"""How long `cgdebug-cli ranks` takes over 64 to 4096 recordings, one per rank, and in how much
memory; whether it names the three planted faults; and how both grow.

    tools/bench/ranks.py --build build/release [--ranks 64,256,1024,4096] [--directory DIR] [--dask] [--s3]

Each recording has 50 probes and 20 replays of statistics. The recordings of 4096 ranks take 2 GB.
--dask: also cgdebug.analyze on a Dask LocalCluster of one worker and of two, alternately; PYTHONPATH
must have the package. --s3: also on an S3 server of this machine (moto): requests and bytes a
recording.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import logging
import math
import multiprocessing
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

PROBES, REPLAYS = 50, 20


def measure(command: list[str]) -> tuple[float, float, int, int, str]:
    """Seconds, those of CPU time, KiB of memory at most, exit code and output."""
    with tempfile.TemporaryFile() as out:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        out.seek(0)
        cpu = usage.ru_utime + usage.ru_stime
        return seconds, cpu, usage.ru_maxrss, os.waitstatus_to_exitcode(status), out.read().decode()


def faults_of(report: dict, ranks: int) -> dict[str, bool]:
    by_rank = {row["rank"]: row for row in report["ranks"]}
    first = report["first_difference"] or {}
    place = (first.get("step"), first.get("minority"))
    return {
        "replica": place == (REPLAYS // 2, [ranks // 3])
        and report["first_bad"]["rank"] == ranks // 3,
        "nan": (by_rank[ranks // 2]["first_nonfinite"] or {}).get("step") == REPLAYS // 2 + 2,
        "missing": by_rank[2 * ranks // 3]["missing"] == 1,
        "no other": sum(row["replicas"] != "same" for row in report["ranks"]) == 2,
    }


def on_dask(folder: str, rounds: int = 3) -> dict[str, float]:
    """Seconds with one worker and with two, the fastest of some rounds, once every worker is warm."""
    import distributed

    import cgdebug

    clusters = {
        count: distributed.LocalCluster(
            n_workers=count, threads_per_worker=1, dashboard_address=None
        )
        for count in (1, 2)
    }
    best: dict[int, float] = {}
    for number in range(rounds + 1):
        for count, cluster in clusters.items():
            with distributed.Client(cluster) as client:
                start = time.perf_counter()
                a = cgdebug.analyze(folder, "replicas", client.get_executor(), progress=False)
                seconds = time.perf_counter() - start
            assert a.complete, a.failed
            if number > 0:
                best[count] = min(best.get(count, seconds), seconds)
    for cluster in clusters.values():
        cluster.close()
    return {"one": best[1], "two": best[2], "ratio": best[1] / best[2]}


def on_s3(folder: str, ranks: int) -> dict[str, float]:
    """Requests and bytes a recording, and seconds, of `replicas` from an S3 server."""
    import fsspec
    from moto.server import ThreadedMotoServer

    import cgdebug

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ.update(
        AWS_ACCESS_KEY_ID="bench",
        AWS_SECRET_ACCESS_KEY="bench",
        FSSPEC_S3_ENDPOINT_URL=f"http://127.0.0.1:{port}",
    )
    fsspec.config.set_conf_env(fsspec.config.conf)
    files = fsspec.filesystem("s3")
    bucket = f"bench-{ranks}"  # moto keeps what an earlier server had
    files.mkdir(bucket)
    files.put(folder.rstrip("/") + "/", f"{bucket}/runs/", recursive=True)
    start = time.perf_counter()
    a = cgdebug.analyze(f"s3://{bucket}/runs", "replicas", progress=False)
    seconds = time.perf_counter() - start
    server.stop()
    assert a.complete, a.failed
    requests = sum(one.requests for one in a.fetched.values()) / ranks
    return {
        "seconds": seconds,
        "requests": requests,
        "bytes": sum(one.bytes for one in a.fetched.values()) / ranks,
        "on disk": sum(path.stat().st_size for path in pathlib.Path(folder).rglob("*.cgd")) / ranks,
    }


def in_child(function, *arguments) -> dict[str, float]:
    """In a process of its own: what a parent has in memory counts for the children it starts."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        return executor.submit(function, *arguments).result()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--build", required=True)
    parser.add_argument("--ranks", default="64,256,1024,4096")
    parser.add_argument("--directory", help="where the recordings go; a folder in /tmp")
    parser.add_argument("--dask", action="store_true")
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--out", help="writes the figures as JSON")
    arguments = parser.parse_args()
    build = pathlib.Path(arguments.build)
    cli = str(build / "bin" / "cgdebug-cli")
    generator = str(build / "tools" / "bench" / "ranks_bench")
    rows = []
    for ranks in map(int, arguments.ranks.split(",")):
        folder = tempfile.mkdtemp(prefix="ranks-", dir=arguments.directory)
        try:
            subprocess.run([generator, folder, str(ranks), str(PROBES), str(REPLAYS)], check=True)
            seconds, cpu, kib, code, out = measure([cli, "--json", "--no-spawn", "ranks", folder])
            faults = faults_of(json.loads(out), ranks)
            more = {}
            if arguments.dask:
                more["dask"] = in_child(on_dask, folder)
            if arguments.s3:
                more["s3"] = in_child(on_s3, folder, ranks)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        rows.append(
            {"ranks": ranks, "seconds": seconds, "cpu_seconds": cpu, "mib": kib / 1024}
            | {"faults": faults}
            | more
        )
        named = "all named" if code == 1 and all(faults.values()) else f"WRONG: {code} {faults}"
        print(
            f"{ranks:5} ranks: {seconds:7.2f} s, {cpu:7.2f} s of CPU, {kib / 1024:6.1f} MiB; "
            f"faults: {named}",
            flush=True,
        )
        for name, figures in more.items():
            print("      ", name, {what: round(value, 2) for what, value in figures.items()})
    if len(rows) > 1:
        first, last = rows[0], rows[-1]
        times = math.log(last["ranks"] / first["ranks"])
        for what in ("seconds", "cpu_seconds", "mib"):
            slope = math.log(last[what] / first[what]) / times
            print(f"{what} grow as ranks ** {slope:.2f}")
    if arguments.out:
        pathlib.Path(arguments.out).write_text(json.dumps(rows, indent=1))
    return 0 if all(all(row["faults"].values()) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
