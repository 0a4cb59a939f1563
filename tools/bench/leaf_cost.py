#!/usr/bin/env python3
"""What a probe costs the compute path, compared with the obvious ways to write one.

20 spin kernels of 50 us in a captured graph, a probe after every second one. Microseconds per probe:
  main    added to the end of the compute path (external events in the graph)
  replay  added to back-to-back replays
  launch  CPU time of one graph.replay()
Variants take turns over `--rounds` rounds; medians. `link` is the time the bytes of a probe take
through the copy engine, measured in the same run.

Needs a GPU, torch, and a build: PYTHONPATH=BUILD/python python3 tools/bench/leaf_cost.py --build BUILD
"""

import ctypes
import os

import graph_bench as bench
import torch

import cgdebug

KERNELS, PROBES = 20, 10
SIZES = (4 << 10, 1 << 20, 4 << 20, 16 << 20)
PEERS = ("inline_d2d", "inline_empty_callback", "inline_copying_callback")
PROBE_OPTIONS = {
    "direct": {"lane": "direct"},
    "callback": {"lane": "callback"},
    "TensorStats": {"lane": "direct"},
}
VARIANTS = ("plain", *PEERS, *PROBE_OPTIONS)


def spin_cycles():
    """Cycles of torch's spin kernel that last 50 us."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1_000_000)
    torch.cuda.synchronize()
    start.record()
    torch.cuda._sleep(10_000_000)
    end.record()
    torch.cuda.synchronize()
    return int(10_000_000 * 50 / (start.elapsed_time(end) * 1e3))


def observe(variant, tensor, index, peers, probes):
    if variant in PROBE_OPTIONS:
        stats = variant == "TensorStats"
        action = cgdebug.TensorStats() if stats else cgdebug.TensorRecord(capacity=4)
        probe = cgdebug.CudaGraphTensorProbe(f"p{index}", [action], **PROBE_OPTIONS[variant])
        probes.setdefault(variant, []).append(probe)
        probe(tensor)
    elif variant != "plain":
        stream = torch.cuda.current_stream().cuda_stream
        getattr(peers, f"peer_{variant}")(
            ctypes.c_void_p(tensor.data_ptr()),
            ctypes.c_size_t(tensor.nbytes),
            ctypes.c_void_p(stream),
        )


def measure(size, peers, cycles, rounds, replays):
    tensors = [torch.full((size // 4,), float(i), device="cuda") for i in range(PROBES)]
    probes = {}

    def body(variant):
        for i in range(KERNELS):
            torch.cuda._sleep(cycles)
            if i % 2 == 0:
                observe(variant, tensors[i // 2], i // 2, peers, probes)

    graphs = {variant: bench.TimedGraph(lambda v=variant: body(v)) for variant in VARIANTS}
    samples = bench.interleaved(graphs, rounds, replays)
    for variant in PROBE_OPTIONS.keys() - {"TensorStats"}:
        for index, probe in enumerate(probes[variant]):
            value = probe.records(synchronize=True, last=1)[0].tensor
            assert bool((value == float(index)).all()), f"{variant}: probe {index} is wrong"
    plain = bench.medians(samples["plain"])
    result = {"plain": {"main_us": plain[0], "replay_us": plain[1], "launch_us": plain[2]}}
    for variant in VARIANTS[1:]:
        main, replay, launch = bench.medians(samples[variant])
        spread = sorted((s[0] - p[0]) / PROBES for s, p in zip(samples[variant], samples["plain"]))
        result[variant] = {
            "main_us": (main - plain[0]) / PROBES,
            "main_spread_us": [spread[0], spread[-1]],
            "replay_us": (replay - plain[1]) / PROBES,
            "replay_total_us": replay,
            "launch_us": launch,
        }
    del graphs
    peers.peer_free()
    return result


def main():
    parser = bench.parser(__doc__)
    parser.add_argument("--build", required=True, help="where libcgdebug_bench_peers.so lies")
    options = parser.parse_args()
    library = os.path.join(options.build, "tools", "bench", "libcgdebug_bench_peers.so")
    peers = ctypes.CDLL(library)
    cycles = spin_cycles()
    link = bench.d2h_gb_s()
    figures = {"machine": bench.machine(), "d2h_gb_s": link, "sizes": {}}
    for size in SIZES:
        figures["sizes"][size] = measure(size, peers, cycles, options.rounds, options.replays)
    names = [f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB" for size in SIZES]
    rows = [["link", *(f"{size / link / 1e3:.1f}" for size in SIZES)]]
    for variant in VARIANTS[1:]:
        cells = [figures["sizes"][size][variant] for size in SIZES]
        rows.append([variant, *(f"{c['main_us']:.2f} / {c['replay_us']:.2f}" for c in cells)])
    rows.append(
        ["launch, plain / direct"]
        + [
            f"{figures['sizes'][s]['plain']['launch_us']:.1f} / "
            f"{figures['sizes'][s]['direct']['launch_us']:.1f}"
            for s in SIZES
        ]
    )
    print(
        f"Microseconds added per probe, compute path / back-to-back replays; link {link:.1f} GB/s.\n"
    )
    print(bench.table(["", *names], rows))
    bench.report(figures, options.json)


if __name__ == "__main__":
    main()
