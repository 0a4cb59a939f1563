#!/usr/bin/env python3
"""Comparison with torch-cudagraph-debug 0.2.0: the same model and probes, each replay recorded or compared.

A chain of 32 bf16 matmuls, a probe after each. Microseconds added per replay and probe:
  one        a replay with a pause behind it, as in a step that does other work too
  sustained  back-to-back replays
The peer's RecordAction keeps the last replay only; cgdebug keeps the last eight. cgdebug compares
in its daemon, which this script starts; in the sustained case the job waits for the daemon (policy
wait).

Needs a GPU, torch and: pip install --no-build-isolation torch-cudagraph-debug==0.2.0
"""

import os
import statistics
import tempfile
import time

os.environ["CGDEBUG_SOCKET"] = os.path.join(tempfile.mkdtemp(prefix="cgdebug-bench-"), "d.sock")
os.environ["CGDEBUG"] = "auto"

import graph_bench as bench
import torch
from torch_cudagraph_debug import tensor_debug as peer

import cgdebug

COUNT = 32
ROWS = {256 << 10: 128, 4 << 20: 2048}  # of 1024 bf16
WIDTH = 1024


def add_probe(variant, name, tensor, expected, keep):
    if variant == "cgdebug record":
        keep.append(cgdebug.CudaGraphTensorProbe(name, [cgdebug.TensorRecord(capacity=8)]))
    elif variant == "cgdebug record, link":
        keep.append(
            cgdebug.CudaGraphTensorProbe(name, [cgdebug.TensorRecord(capacity=8)], prefer="link")
        )
    elif variant == "cgdebug compare":
        keep.append(cgdebug.CudaGraphTensorProbe(name, [cgdebug.TensorCompare(expected)]))
    elif variant == "peer record":
        keep.append(peer.TensorProbe(name, [peer.RecordAction()]))
    elif variant == "peer check":
        keep.append(peer.TensorProbe(name, [peer.CheckAction(expected)]))
    if variant != "plain":
        keep[-1](tensor)


def one_us(graph, replays=12, pause_s=0.25):
    """The time of a replay that starts after everything before it is done."""
    times = []
    for _ in range(replays):
        time.sleep(pause_s)
        start = time.perf_counter()
        graph.graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def measure(size, rounds, replays):
    torch.manual_seed(0)
    x = torch.randn(ROWS[size], WIDTH, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) / WIDTH**0.5
    expected, y = [], x
    for _ in range(COUNT):
        y = y @ w
        expected.append(y.cpu())
    keep = []

    def body(variant):
        z = x
        for i in range(COUNT):
            z = z @ w
            add_probe(variant, f"{variant} {i} {size}", z, expected[i], keep)

    variants = (
        "plain",
        "peer record",
        "cgdebug record",
        "cgdebug record, link",
        "peer check",
        "cgdebug compare",
    )
    graphs = {v: bench.TimedGraph(lambda v=v: body(v)) for v in variants}
    one = {v: [] for v in variants}
    sustained = {v: [] for v in variants}
    for _ in range(rounds):
        for variant, graph in graphs.items():
            one[variant].append(one_us(graph))
            sustained[variant].append(graph.replay_and_launch_us(replays)[0])
    for probe in keep:
        if isinstance(probe, cgdebug.CudaGraphTensorProbe):
            probe.assert_ok(timeout=120)  # compared, and equal
            lost = sum(slot.lost for slot in probe.status().slots if slot.verdict != "none")
            assert lost == 0, f"{probe.name}: {lost} snapshots were not compared"
    result = {}
    for variant in variants:
        result[variant] = {
            "one_us": (statistics.median(one[variant]) - statistics.median(one["plain"])) / COUNT,
            "sustained_us": (
                statistics.median(sustained[variant]) - statistics.median(sustained["plain"])
            )
            / COUNT,
        }
    return result


def main():
    options = bench.parser(__doc__, rounds=3, replays=20).parse_args()
    figures = {"machine": bench.machine(), "sizes": {}}
    rows = []
    for size in ROWS:
        figures["sizes"][size] = result = measure(size, options.rounds, options.replays)
        name = f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"
        for kind, theirs, ours in (
            ("record", "peer record", "cgdebug record"),
            ('record, prefer="link"', "peer record", "cgdebug record, link"),
            ("compare", "peer check", "cgdebug compare"),
        ):
            cells = []
            for when in ("one_us", "sustained_us"):
                a, b = result[theirs][when], result[ours][when]
                cells += [f"{a:.1f}", f"{b:.1f}", f"{a / b:.1f}" if b > 0 else "-"]
            rows.append([f"{kind}, {name}", *cells])
    print(
        "Microseconds added a probe; torch-cudagraph-debug 0.2.0 / cgdebug, and how many times.\n"
    )
    columns = ["", "one: peer", "cgdebug", "x", "sustained: peer", "cgdebug", "x"]
    print(bench.table(columns, rows))
    bench.report(figures, options.json)


if __name__ == "__main__":
    main()
