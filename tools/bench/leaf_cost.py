#!/usr/bin/env python3
"""What a probe costs the compute path, beside the obvious ways to write one.

20 spin kernels of 50 us in a captured graph, a probe after every second one. Per variant:
  main    time added to the end of the compute path, per probe (external events in the graph)
  replay  time added to back-to-back replays, per probe
  launch  CPU time of one graph launch
Variants are interleaved over `--rounds` rounds; medians, and the spread of main over the rounds.

Needs a GPU, torch, and a build: PYTHONPATH=<build>/python python3 tools/bench/leaf_cost.py --build <build>
"""
import argparse
import ctypes
import json
import os
import statistics
import time

os.environ.setdefault("CGDEBUG", "0")  # the probe library alone: no daemon reads meanwhile

import torch  # noqa: E402

import cgdebug  # noqa: E402

KERNELS, PROBES = 20, 10
SIZES = (4 << 10, 1 << 20, 4 << 20, 16 << 20)
PEERS = ("inline_d2d", "inline_empty_callback", "inline_copying_callback")
PROBE_LANES = {"direct": {"lane": "direct"}, "direct_link": {"lane": "direct", "prefer": "link"}, "callback": {"lane": "callback"}, "stats": {"lane": "direct"}}
VARIANTS = ("plain", *PEERS, *PROBE_LANES)


class Graph:
    """One captured variant, and how to time it."""

    def __init__(self, variant, tensors, peers, cycles):
        self.probes = []
        self.graph = torch.cuda.CUDAGraph()
        self.start = torch.cuda.Event(enable_timing=True, external=True)
        self.end = torch.cuda.Event(enable_timing=True, external=True)
        with torch.cuda.graph(self.graph):
            self.start.record()
            for i in range(KERNELS):
                torch.cuda._sleep(cycles)
                if i % 2 == 0:
                    self.observe(variant, tensors[i // 2], i // 2, peers)
            self.end.record()
        for _ in range(3):
            self.graph.replay()
        torch.cuda.synchronize()

    def observe(self, variant, tensor, index, peers):
        if variant in PROBE_LANES:
            action = cgdebug.TensorStats() if variant == "stats" else cgdebug.TensorRecord(capacity=4)
            self.probes.append(cgdebug.CudaGraphTensorProbe(f"p{index}", [action], **PROBE_LANES[variant]))
            self.probes[-1](tensor)
        elif variant != "plain":
            stream = torch.cuda.current_stream().cuda_stream
            getattr(peers, f"peer_{variant}")(
                ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes), ctypes.c_void_p(stream)
            )

    def main_us(self, replays):
        times = []
        for _ in range(replays):
            self.graph.replay()
            torch.cuda.synchronize()
            times.append(self.start.elapsed_time(self.end) * 1e3)
        return statistics.median(times)

    def replay_and_launch_us(self, replays):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        launches = []
        before.record()
        for _ in range(replays):
            started = time.perf_counter()
            self.graph.replay()
            launches.append((time.perf_counter() - started) * 1e6)
        after.record()
        torch.cuda.synchronize()
        return before.elapsed_time(after) * 1e3 / replays, statistics.median(launches)


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


def measure(size, peers, cycles, rounds, replays):
    tensors = [torch.full((size // 4,), float(i), device="cuda") for i in range(PROBES)]
    graphs = {variant: Graph(variant, tensors, peers, cycles) for variant in VARIANTS}
    samples = {variant: [] for variant in VARIANTS}
    for _ in range(rounds):
        for variant, graph in graphs.items():
            samples[variant].append((graph.main_us(replays), *graph.replay_and_launch_us(replays)))
    for variant in PROBE_LANES.keys() - {"stats"}:
        for index, probe in enumerate(graphs[variant].probes):
            value = probe.records(synchronize=True, last=1)[0].tensor
            assert bool((value == float(index)).all()), f"{variant}: probe {index} delivered wrong values"
    plain = [statistics.median(column) for column in zip(*samples["plain"])]
    result = {}
    for variant in VARIANTS:
        main, replay, launch = (statistics.median(column) for column in zip(*samples[variant]))
        spread = [(sample[0] - base[0]) / PROBES for sample, base in zip(samples[variant], samples["plain"])]
        result[variant] = {
            "main_us": (main - plain[0]) / PROBES,
            "main_spread_us": [min(spread), max(spread)],
            "replay_us": (replay - plain[1]) / PROBES,
            "launch_us": launch,
        }
    del graphs
    peers.peer_free()
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", required=True, help="build folder, for libcgdebug_bench_peers.so")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--replays", type=int, default=15)
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    peers = ctypes.CDLL(os.path.join(options.build, "tools", "bench", "libcgdebug_bench_peers.so"))
    cycles = spin_cycles()
    report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "sizes": {}}
    print(f"{report['device']}, torch {torch.__version__}: us added per probe, main / replay (launch of the graph)")
    for size in SIZES:
        result = measure(size, peers, cycles, options.rounds, options.replays)
        report["sizes"][size] = result
        bound = 1.1 * result["inline_d2d"]["main_us"] + 0.5
        print(f"--- {size >> 10} KiB: direct {result['direct']['main_us']:.2f}, 1.1 x inline D2D + 0.5 us = {bound:.2f}")
        for variant, row in result.items():
            low, high = row["main_spread_us"]
            print(
                f"{variant:26s} {row['main_us']:9.2f} [{low:.2f} .. {high:.2f}] / {row['replay_us']:9.2f}"
                f"   ({row['launch_us']:.1f})"
            )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
