#!/usr/bin/env python3
"""What `TensorRecord(unchanged="skip")` and `stable=True` cost and save.

A captured graph of spin kernels of 50 us, a probe behind each. The tensors change in each replay or
never. Microseconds a probe, added to the same graph without probes:
  main    to the end of the compute path
  replay  to back-to-back replays
Variants take turns over `--rounds` rounds; medians. The values are checked afterwards.

Needs a GPU, torch, and a build: PYTHONPATH=BUILD/python python3 tools/bench/unchanged_cost.py
"""

import graph_bench as bench
import torch
from leaf_cost import spin_cycles

import cgdebug

PROBES = {256 << 10: 10, 4 << 20: 10, 64 << 20: 3}
VARIANTS = {
    "send": {},
    "skip": {"unchanged": "skip"},
    "send, stable": {"stable": True},
    "skip, stable": {"unchanged": "skip", "stable": True},
}


def make_probe(name, options):
    record = cgdebug.TensorRecord(capacity=3, unchanged=options.get("unchanged", "send"))
    stable = options.get("stable", False)
    return cgdebug.CudaGraphTensorProbe(name, [record], lane="direct", stable=stable)


def check(probe, index, changes):
    for record in probe.records(synchronize=True):
        value = record.replay_index if changes else index
        wrong = record.tensor != float(value)
        assert not bool(wrong.any()), f"{probe.name}: replay {record.replay_index} is wrong"


def measure(size, changes, cycles, rounds, replays):
    graphs, probes, keep = {}, {"plain": []}, []
    for variant in ("plain", *VARIANTS):
        tensors = [
            torch.full((size // 4,), 0.0 if changes else float(i), device="cuda")
            for i in range(PROBES[size])
        ]
        if variant != "plain":
            probes[variant] = [
                make_probe(f"{variant} {i}", VARIANTS[variant]) for i in range(len(tensors))
            ]
        keep.append(tensors)
        graphs[variant] = bench.TimedGraph(
            lambda t=tensors, p=probes[variant]: step(t, p, changes, cycles)
        )
    samples = bench.interleaved(graphs, rounds, replays)
    for made in probes.values():
        for index, probe in enumerate(made):
            check(probe, index, changes)
    plain = bench.medians(samples["plain"])
    result = {}
    for variant in VARIANTS:
        made = probes[variant]
        main, replay, _ = bench.medians(samples[variant])
        result[variant] = ((main - plain[0]) / len(made), (replay - plain[1]) / len(made))
    return result


def step(tensors, probes, changes, cycles):
    for i, x in enumerate(tensors):
        torch.cuda._sleep(cycles)
        if changes:
            x.add_(1)
        if probes:
            probes[i](x)


def main():
    arguments = bench.parser(__doc__, rounds=3, replays=10)
    options = arguments.parse_args()
    cycles = spin_cycles()
    rows, figures = [], {"d2h_gb_s": bench.d2h_gb_s()}
    for size in PROBES:
        for changes in (True, False):
            result = measure(size, changes, cycles, options.rounds, options.replays)
            name = f"{size >> 10} KiB, {'changes' if changes else 'never changes'}"
            figures[name] = result
            rows.append([name, *(f"{m:.1f} / {r:.1f}" for m, r in result.values())])
    print(bench.table(["main / replay, us a probe", *VARIANTS], rows))
    bench.report(figures, options.json)


if __name__ == "__main__":
    main()
