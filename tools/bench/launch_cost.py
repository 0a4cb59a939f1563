#!/usr/bin/env python3
"""What probes add to the CPU time of graph.replay().

One graph of 212 small kernels, and a step of 80 graphs of 8 kernels each, as piecewise captures make
them; without probes, with a direct probe behind each kernel, and with such probes in graphs that
nobody announced, whose end a user object of CUDA tells. The variants take turns within one run.

Needs a GPU and torch: PYTHONPATH=BUILD/python python3 tools/bench/launch_cost.py
"""

import statistics
import time

import graph_bench as bench
import torch

import cgdebug

VARIANTS = ("plain", "probed", "user object")
CASES = {"212 probes in one graph": (1, 212), "80 graphs of 8 probes": (80, 8)}
SHOWN = 1024  # elements


def capture(variant, kernels, x, probes):
    # torch.cuda.CUDAGraph is what cgdebug follows; of its base class it knows nothing.
    graph = torch._C._CUDAGraph() if variant == "user object" else torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        graph.capture_begin(pool=None, capture_error_mode="thread_local")
        for _ in range(kernels):
            x.mul_(1)
            if variant != "plain":
                probe = cgdebug.CudaGraphTensorProbe(
                    f"p{len(probes)}", [cgdebug.TensorRecord(capacity=4)], lane="direct"
                )
                probe(x)
                probes.append(probe)
        graph.capture_end()
    torch.cuda.synchronize()
    return graph


def step_us(graphs):
    """CPU time in replay(), of one step. The GPU is idle when it begins."""
    began = time.perf_counter()
    for graph in graphs:
        graph.replay()
    taken = (time.perf_counter() - began) * 1e6
    torch.cuda.synchronize()
    return taken


def measure(graph_count, kernels, options):
    x = torch.ones(SHOWN, device="cuda")
    probes = []
    steps = {
        variant: [capture(variant, kernels, x, probes) for _ in range(graph_count)]
        for variant in VARIANTS
    }
    for graphs in steps.values():
        for _ in range(10):
            step_us(graphs)
    samples = {variant: [] for variant in VARIANTS}
    for _ in range(options.rounds):
        for variant, graphs in steps.items():
            samples[variant].append(
                statistics.median(step_us(graphs) for _ in range(options.replays))
            )
    plain = statistics.median(samples["plain"])
    figures = {}
    for variant, taken in samples.items():
        median = statistics.median(taken)
        figures[variant] = {
            "step_us": median,
            "us_a_graph": median / graph_count,
            "ratio": median / plain,
            # Of neighbouring samples, so that a clock that changes its speed changes both.
            "paired_ratio": statistics.median(
                one / other for one, other in zip(taken, samples["plain"])
            ),
        }
    for probe in probes:
        probe.close()
    return figures


def main():
    options = bench.parser(__doc__, rounds=20, replays=50).parse_args()
    figures = {"machine": bench.machine(), "cases": {}}
    rows = []
    for case, (graph_count, kernels) in CASES.items():
        figures["cases"][case] = measured = measure(graph_count, kernels, options)
        for variant, f in measured.items():
            rows.append(
                [case, variant, f"{f['step_us']:.1f}", f"{f['us_a_graph']:.2f}",
                 f"{f['ratio']:.2f}", f"{f['paired_ratio']:.2f}"]
            )  # fmt: skip
    print("CPU time of graph.replay() in a step.\n")
    columns = ["", "", "us a step", "us a graph", "x plain", "x plain, in pairs"]
    print(bench.table(columns, rows))
    bench.report(figures, options.json)


if __name__ == "__main__":
    main()
