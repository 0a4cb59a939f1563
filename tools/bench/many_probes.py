#!/usr/bin/env python3
"""Many small probes: 212 of 4 KiB in a chain of bf16 matmuls, as in a real network.

Two chains: kernels of about 5 us, of whose result the probe sees one row, and the smallest kernels,
where a probe takes almost as long as what it looks at. Replay time and CPU time of graph.replay(),
compared with the same graph without probes. `off` is a probe that records one replay in 2^31: it is
in the graph and does nothing. `kernel` is no probe but the smallest kernel of torch: what any kernel
among those of the job takes. `stable` probes add none there; the job keeps their tensors.

Needs a GPU and torch: PYTHONPATH=BUILD/python python3 tools/bench/many_probes.py
"""

import graph_bench as bench
import torch

import cgdebug

COUNT = 212
CHAINS = {"64 x 2048": (64, 2048), "2 x 1024": (2, 1024)}  # rows, width
SHOWN = 2048  # elements
DIRECT = {"lane": "direct"}
STABLE = {"lane": "direct", "stable": True}
ACTIONS = {
    "direct": lambda: cgdebug.TensorRecord(capacity=4),
    "off": lambda: cgdebug.TensorRecord(capacity=4, every=2**31),
    "TensorStats": cgdebug.TensorStats,
}
VARIANTS = {
    **{name: (DIRECT, action) for name, action in ACTIONS.items()},
    **{f"{name}, stable": (STABLE, action) for name, action in ACTIONS.items()},
    "callback": ({"lane": "callback"}, ACTIONS["direct"]),
}


def columns(samples, variant, index):
    return [[sample[index] for sample in samples[one]] for one in (variant, "plain")]


def measure(rows, width, options, variants=VARIANTS):
    torch.manual_seed(0)
    x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(width, width, device="cuda", dtype=torch.bfloat16) / width**0.5
    probes, kept = [], []

    def body(variant):
        y = x
        for i in range(COUNT):
            y = y @ w
            kept.append(y)
            if variant == "kernel":
                torch.neg(y.view(-1)[:1])
            elif variant != "plain":
                lane, action = VARIANTS[variant]
                probes.append(cgdebug.CudaGraphTensorProbe(f"{variant}{i}", [action()], **lane))
                probes[-1](y.view(-1)[:SHOWN])

    body("plain")
    torch.cuda.synchronize()
    graphs = {v: bench.TimedGraph(lambda v=v: body(v)) for v in ("plain", "kernel", *variants)}
    samples = bench.interleaved(graphs, options.rounds, options.replays)
    plain = bench.medians(samples["plain"])
    figures = {}
    for variant in graphs:
        main_us, replay, launch = bench.medians(samples[variant])
        figures[variant] = {
            "main_us": main_us,
            "replay_us": replay,
            "launch_us": launch,
            "added_us_a_probe": (replay - plain[1]) / COUNT,
            "replay_ratio": bench.paired_ratio(*columns(samples, variant, 1)),
            "launch_ratio": bench.paired_ratio(*columns(samples, variant, 2)),
        }
    return figures


def main():
    options = bench.parser(__doc__, replays=30).parse_args()
    figures = {"machine": bench.machine(), "chains": {}}
    rows = []
    for name, (count, width) in CHAINS.items():
        figures["chains"][name] = chain = measure(count, width, options)
        for variant, f in chain.items():
            rows.append(
                [name, variant, f"{f['replay_us']:.0f}", f"{f['replay_ratio']:.2f}",
                 f"{f['added_us_a_probe']:.2f}", f"{f['launch_us']:.1f}", f"{f['launch_ratio']:.2f}"]
            )  # fmt: skip
    print(f"{COUNT} probes of 4 KiB in a chain of bf16 matmuls.\n")
    columns = [
        "rows x width",
        "",
        "replay us",
        "x plain",
        "us a probe",
        "graph.replay() us",
        "x plain",
    ]
    print(bench.table(columns, rows))
    bench.report(figures, options.json)


if __name__ == "__main__":
    main()
