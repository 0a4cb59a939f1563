#!/usr/bin/env python3
"""What probes add to the CPU time of graph.replay().

One graph of 212 small kernels, and a step of 80 graphs of 8 kernels each, as piecewise captures make
them:
  plain          torch alone: no probes, and nobody counts
  as many nodes  torch alone, with as many kernels as the probed graph has nodes
  counted        no probes, but cgdebug counts the replays
  probed         a direct probe behind each kernel, counted
  user object    such probes in graphs that nobody announced; a user object of CUDA tells their end
The driver pays for each node of what it launches, so `as many nodes` is what any way of adding these
nodes costs, and what `probed` is to be compared with.

Each step is launched while the GPU is idle, and while it is busy: then the step queues behind
another replay of itself, as in a job that waits for its GPU. Each is launched on a stream of its own
and on the default stream, where a launch of any graph takes up to twice as long. The variants take
turns, when they are captured and when they are measured, and each round has another order: where a
graph lies in memory and what ran before it change a figure by up to a half. Torch 2.14 and later
call hooks, which cannot be left out: there nothing is plain, and `as many nodes` is counted.

Needs a GPU and torch: PYTHONPATH=BUILD/python python3 tools/bench/launch_cost.py
"""

import statistics
import time

import graph_bench as bench
import torch

import cgdebug
from cgdebug._job import _native

VARIANTS = ("plain", "as many nodes", "counted", "probed", "user object")
UNCOUNTED = ("plain", "as many nodes", "user object")  # launched by torch's own method
CASES = {"212 probes in one graph": (1, 212), "80 graphs of 8 probes": (80, 8)}
STATES = ("idle", "busy")
SHOWN = 1024  # elements
AHEAD_CYCLES = 2_000_000  # of a kernel that keeps the GPU busy until the launches are timed


def own(method):
    """Torch's method, where cgdebug has wrapped it."""
    return getattr(method, "__wrapped__", method)


def capture(variant, kernels, x, probes):
    """The graph, and how many nodes it has."""
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
        nodes = _native.probe_module().graph_nodes(stream=side.cuda_stream)
        graph.capture_end()
    torch.cuda.synchronize()
    return graph, nodes


def capture_steps(graph_count, kernels, variants, x, probes):
    """{variant: its graphs}, {variant: the nodes of one}."""
    steps, nodes = {variant: [] for variant in variants}, {}
    for _ in range(graph_count):
        for variant in sorted(variants, key=lambda one: one == "as many nodes"):  # last
            count = nodes["probed"] if variant == "as many nodes" else kernels
            graph, nodes[variant] = capture(variant, count, x, probes)
            steps[variant].append(graph)
    return steps, nodes


def step_us(variant, graphs, state):
    """CPU time in replay(), of one step."""
    replay = torch.cuda.CUDAGraph.replay
    if variant in UNCOUNTED:
        replay = own(replay)
    if state == "busy":
        torch.cuda._sleep(AHEAD_CYCLES)
        for graph in graphs:
            replay(graph)
    began = time.perf_counter()
    for graph in graphs:
        replay(graph)
    taken = (time.perf_counter() - began) * 1e6
    torch.cuda.synchronize()
    return taken


def measure(graph_count, kernels, variants, options):
    x = torch.ones(SHOWN, device="cuda")
    probes = []
    steps, nodes = capture_steps(graph_count, kernels, variants, x, probes)
    for variant, graphs in steps.items():
        for _ in range(10):
            step_us(variant, graphs, "idle")
    streams = {"own": torch.cuda.Stream(), "default": torch.cuda.default_stream()}
    samples = {
        (stream, state, variant): []
        for stream in streams
        for state in STATES
        for variant in variants
    }
    for order in bench.shuffled(list(samples), options.rounds):
        for stream, state, variant in order:
            with torch.cuda.stream(streams[stream]):
                step_us(variant, steps[variant], state)  # into the caches
                taken = [step_us(variant, steps[variant], state) for _ in range(options.replays)]
            samples[stream, state, variant].append(statistics.median(taken))
    figures = {}
    for (stream, state, variant), taken in samples.items():
        base = samples[stream, state, variants[0]]
        median = statistics.median(taken)
        figures[f"{variant}, {stream} stream, {state}"] = {
            "nodes": nodes[variant] * graph_count,
            "step_us": median,
            "us_a_graph": median / graph_count,
            "ratio": median / statistics.median(base),
            "paired_ratio": bench.paired_ratio(taken, base),
        }
    for probe in probes:
        probe.close()
    return figures


def node_ns(figures, plain, stream, state):
    """What one more node costs, in graphs without probes."""
    many = figures[f"as many nodes, {stream} stream, {state}"]
    few = figures[f"{plain}, {stream} stream, {state}"]
    return (many["step_us"] - few["step_us"]) * 1e3 / (many["nodes"] - few["nodes"])


def main():
    options = bench.parser(__doc__, rounds=20, replays=30).parse_args()
    cgdebug.CudaGraphTensorProbe("load", [cgdebug.TensorRecord()]).close()
    variants = VARIANTS
    if own(torch.cuda.CUDAGraph.replay) is torch.cuda.CUDAGraph.replay:  # from torch 2.14 on
        variants = ("counted", "as many nodes", "probed")
    figures = {"machine": bench.machine(), "cases": {}}
    rows, nodes = [], []
    for case, (graph_count, kernels) in CASES.items():
        figures["cases"][case] = measured = measure(graph_count, kernels, variants, options)
        for variant, f in measured.items():
            rows.append(
                [case, variant, f["nodes"], f"{f['step_us']:.1f}", f"{f['us_a_graph']:.2f}",
                 f"{f['ratio']:.2f}", f"{f['paired_ratio']:.2f}"]
            )  # fmt: skip
        nodes += [
            f"{case}, own stream, GPU {state}: "
            f"{node_ns(measured, variants[0], 'own', state):.1f} ns for each node more"
            for state in STATES
        ]
    print("CPU time of graph.replay() in a step.\n")
    columns = ["", "", "nodes", "us a step", "us a graph", "x the first", "x the first, in pairs"]
    print(bench.table(columns, rows))
    print("\n" + "\n".join(nodes))
    bench.report(figures, options.json)


if __name__ == "__main__":
    main()
