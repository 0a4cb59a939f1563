#!/usr/bin/env python3
"""What probes add to the CPU time of graph.replay().

One graph of 212 small kernels, and a step of 80 graphs of 8 kernels each, as piecewise captures make
them:
  plain         torch alone: no probes, and nobody counts
  counted       no probes, but cgdebug counts the replays
  probed        a direct probe behind each kernel, counted
  user object   such probes in graphs that nobody announced; a user object of CUDA tells their end
Each is launched on a stream of its own and on the default stream, where a launch of any graph takes
up to twice as long. The variants take turns, when they are captured and when they are measured, and
each round has another order: where a graph lies in memory and what ran before it change a figure by
up to a half. Torch 2.14
and later call hooks, which cannot be left out: there only `counted` and `probed` are compared.

Needs a GPU and torch: PYTHONPATH=BUILD/python python3 tools/bench/launch_cost.py
"""

import statistics
import time

import graph_bench as bench
import torch

import cgdebug

VARIANTS = ("plain", "counted", "probed", "user object")
CASES = {"212 probes in one graph": (1, 212), "80 graphs of 8 probes": (80, 8)}
SHOWN = 1024  # elements


def own(method):
    """Torch's method, where cgdebug has wrapped it."""
    return getattr(method, "__wrapped__", method)


def capture(variant, kernels, x, probes):
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    begin = torch.cuda.CUDAGraph.capture_begin
    with torch.cuda.stream(side):
        (own(begin) if variant == "user object" else begin)(
            graph, capture_error_mode="thread_local"
        )
        for _ in range(kernels):
            x.mul_(1)
            if variant in ("probed", "user object"):
                probe = cgdebug.CudaGraphTensorProbe(
                    f"p{len(probes)}", [cgdebug.TensorRecord(capacity=4)], lane="direct"
                )
                probe(x)
                probes.append(probe)
        graph.capture_end()
    torch.cuda.synchronize()
    return graph


def step_us(variant, graphs):
    """CPU time in replay(), of one step. The GPU is idle when it begins."""
    replay = torch.cuda.CUDAGraph.replay
    if variant in ("plain", "user object"):
        replay = own(replay)
    began = time.perf_counter()
    for graph in graphs:
        replay(graph)
    taken = (time.perf_counter() - began) * 1e6
    torch.cuda.synchronize()
    return taken


def measure(graph_count, kernels, variants, options):
    x = torch.ones(SHOWN, device="cuda")
    probes = []
    steps = {variant: [] for variant in variants}
    for _ in range(graph_count):
        for variant, graphs in steps.items():
            graphs.append(capture(variant, kernels, x, probes))
    for variant, graphs in steps.items():
        for _ in range(10):
            step_us(variant, graphs)
    streams = {"own": torch.cuda.Stream(), "default": torch.cuda.default_stream()}
    samples = {(stream, variant): [] for stream in streams for variant in variants}
    for order in bench.shuffled(list(samples), options.rounds):
        for stream, variant in order:
            with torch.cuda.stream(streams[stream]):
                step_us(variant, steps[variant])  # into the caches
                taken = [step_us(variant, steps[variant]) for _ in range(options.replays)]
            samples[stream, variant].append(statistics.median(taken))
    figures = {}
    for (stream, variant), taken in samples.items():
        base = samples[stream, variants[0]]
        median = statistics.median(taken)
        figures[f"{variant}, {stream} stream"] = {
            "step_us": median,
            "us_a_graph": median / graph_count,
            "ratio": median / statistics.median(base),
            "paired_ratio": bench.paired_ratio(taken, base),
        }
    for probe in probes:
        probe.close()
    return figures


def main():
    options = bench.parser(__doc__, rounds=20, replays=50).parse_args()
    cgdebug.CudaGraphTensorProbe("load", [cgdebug.TensorRecord()]).close()
    variants = VARIANTS
    if own(torch.cuda.CUDAGraph.replay) is torch.cuda.CUDAGraph.replay:  # from torch 2.14 on
        variants = ("counted", "probed")
    figures = {"machine": bench.machine(), "cases": {}}
    rows = []
    for case, (graph_count, kernels) in CASES.items():
        figures["cases"][case] = measured = measure(graph_count, kernels, variants, options)
        for variant, f in measured.items():
            rows.append(
                [case, variant, f"{f['step_us']:.1f}", f"{f['us_a_graph']:.2f}",
                 f"{f['ratio']:.2f}", f"{f['paired_ratio']:.2f}"]
            )  # fmt: skip
    print("CPU time of graph.replay() in a step.\n")
    columns = ["", "", "us a step", "us a graph", "x the first", "x the first, in pairs"]
    print(bench.table(columns, rows))
    bench.report(figures, options.json)


if __name__ == "__main__":
    main()
