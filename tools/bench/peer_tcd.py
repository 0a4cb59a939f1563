#!/usr/bin/env python3
"""Comparison with torch-cudagraph-debug 0.2.0: the same model and probes, each replay recorded or compared.

A chain of 32 bf16 matmuls, a probe after each. Microseconds added per replay and probe:
  one        a replay with a pause behind it, as in a step that does other work too
  sustained  back-to-back replays
The peer's RecordAction keeps the last replay only; cgdebug keeps the last eight. With an expected
tensor on the CPU cgdebug compares in its daemon, which this script starts; in the sustained case the
job waits for the daemon (policy wait).

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

import cgdebug

COUNT = 32
ROWS = {256 << 10: 128, 4 << 20: 2048}  # of 1024 bf16
WIDTH = 1024


def own(name, action, **options):
    return cgdebug.CudaGraphTensorProbe(name, [action], **options)


def theirs(name, action):
    from torch_cudagraph_debug import tensor_debug

    return tensor_debug.TensorProbe(name, [getattr(tensor_debug, action[0])(*action[1:])])


# variant: the probe of a tensor of which `expected` is a copy on the device
VARIANTS = {
    "peer record": lambda name, _: theirs(name, ("RecordAction",)),
    "cgdebug record": lambda name, _: own(name, cgdebug.TensorRecord(capacity=8)),
    "peer check": lambda name, expected: theirs(name, ("CheckAction", expected.cpu())),
    "cgdebug compare": lambda name, expected: own(name, cgdebug.TensorCompare(expected.cpu())),
    "cgdebug compare, device": lambda name, expected: own(name, cgdebug.TensorCompare(expected)),
}


def one_us(graph, replays, pause_s=0.25):
    """The time of a replay that starts after everything before it is done."""
    times = []
    for _ in range(replays):
        time.sleep(pause_s)
        start = time.perf_counter()
        graph.graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times) if times else float("nan")


def measure(row_count, rounds, replays, variants=VARIANTS, count=COUNT, one_replays=12):
    """{variant: us added a probe}; with `one_replays` of 0 only of sustained replays."""
    torch.manual_seed(0)
    x = torch.randn(row_count, WIDTH, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) / WIDTH**0.5
    expected, y = [], x
    for _ in range(count):
        y = y @ w
        expected.append(y)
    made = {
        v: [VARIANTS[v](f"{v} {i} {row_count}", expected[i]) for i in range(count)]
        for v in variants
    }
    keep = [probe for probes in made.values() for probe in probes]

    def body(variant):
        z = x
        for i in range(count):
            z = z @ w
            if variant != "plain":
                made[variant][i](z)

    graphs = {v: bench.TimedGraph(lambda v=v: body(v)) for v in ("plain", *variants)}
    one = {v: [] for v in graphs}
    sustained = {v: [] for v in graphs}
    for order in bench.shuffled(graphs, rounds):
        for variant in order:
            one[variant].append(one_us(graphs[variant], one_replays))
            sustained[variant].append(graphs[variant].replay_and_launch_us(replays)[0])
    for probe in keep:
        if isinstance(probe, cgdebug.CudaGraphTensorProbe):
            probe.assert_ok(timeout=120)  # compared, and equal
            lost = sum(slot.lost for slot in probe.status().slots if slot.verdict != "none")
            assert lost == 0, f"{probe.name}: {lost} snapshots were not compared"
    result = {}
    for variant in graphs:
        result[variant] = {
            "one_us": (statistics.median(one[variant]) - statistics.median(one["plain"])) / count,
            "sustained_us": (
                statistics.median(sustained[variant]) - statistics.median(sustained["plain"])
            )
            / count,
        }
    del graphs
    for probe in keep:
        if isinstance(probe, cgdebug.CudaGraphTensorProbe):
            probe.close()
    return result


def main():
    options = bench.parser(__doc__, rounds=3, replays=20).parse_args()
    figures = {"machine": bench.machine(), "sizes": {}}
    rows = []
    for size in ROWS:
        figures["sizes"][size] = result = measure(ROWS[size], options.rounds, options.replays)
        name = f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"
        for kind, theirs, ours in (
            ("record", "peer record", "cgdebug record"),
            ("compare", "peer check", "cgdebug compare"),
            ("compare on the device", "peer check", "cgdebug compare, device"),
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
