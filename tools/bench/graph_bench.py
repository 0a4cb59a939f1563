"""What the GPU benchmarks share: timed graphs, interleaved rounds, tables."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import time

os.environ.setdefault("CGDEBUG", "0")  # only the probe library: no daemon reads meanwhile

import torch


class TimedGraph:
    """A captured graph, and how long it takes."""

    def __init__(self, body):
        self.graph = torch.cuda.CUDAGraph()
        self.start = torch.cuda.Event(enable_timing=True, external=True)
        self.end = torch.cuda.Event(enable_timing=True, external=True)
        with torch.cuda.graph(self.graph):
            self.start.record()
            body()
            self.end.record()
        for _ in range(3):
            self.graph.replay()
        torch.cuda.synchronize()

    def main_us(self, replays):
        """From the first to the last kernel of the compute path."""
        times = []
        for _ in range(replays):
            self.graph.replay()
            torch.cuda.synchronize()
            times.append(self.start.elapsed_time(self.end) * 1e3)
        return statistics.median(times)

    def replay_and_launch_us(self, replays):
        """The time of one of many back-to-back replays, and the CPU's time in graph.replay()."""
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

    def sample(self, replays):
        return (self.main_us(replays), *self.replay_and_launch_us(replays))


def shuffled(variants, rounds):
    """The order of the variants in each round. It differs, because what was measured just before a
    variant changes its figure: it leaves caches and clocks as it likes."""
    order, source = list(variants), random.Random(0)
    for _ in range(rounds):
        source.shuffle(order)
        yield list(order)


def interleaved(graphs, rounds, replays):
    """{variant: [(main, replay, launch), ...]}, one sample of each variant per round."""
    samples = {variant: [] for variant in graphs}
    for order in shuffled(graphs, rounds):
        for variant in order:
            samples[variant].append(graphs[variant].sample(replays))
    return samples


def paired_ratio(samples, base):
    """The median ratio of samples of the same round: if the clock changes, it changes both."""
    return statistics.median(one / other for one, other in zip(samples, base))


def medians(samples):
    return [statistics.median(column) for column in zip(*samples)]


def d2h_gb_s():
    """The copy engine's rate into pinned memory, over 256 MiB."""
    source = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    target = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    times = []
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source, non_blocking=True)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return source.numel() / statistics.median(times) / 1e6


def machine():
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
    }


def table(columns, rows):
    """Markdown."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def parser(description, **defaults):
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    result.add_argument("--rounds", type=int, default=defaults.get("rounds", 5))
    result.add_argument("--replays", type=int, default=defaults.get("replays", 15))
    result.add_argument("--json", help="write the figures to this file")
    return result


def report(figures, path):
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)
