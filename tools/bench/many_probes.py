#!/usr/bin/env python3
"""Many small probes: 212 of 4 KiB in a chain of bf16 matmuls, as in a real network.

Replay time and CPU time of graph.replay(), beside the same graph without probes. `off` is a probe
that records one replay in 2^31: it is in the graph and does nothing.

Needs a GPU and torch: PYTHONPATH=BUILD/python python3 tools/bench/many_probes.py
"""

import graph_bench as bench
import torch

import cgdebug

COUNT, WIDTH = 212, 1024
VARIANTS = {
    "direct": ({"lane": "direct"}, lambda: cgdebug.TensorRecord(capacity=4)),
    "off": ({"lane": "direct"}, lambda: cgdebug.TensorRecord(capacity=4, every=2**31)),
    "TensorStats": ({"lane": "direct"}, lambda: cgdebug.TensorStats()),
    "callback": ({"lane": "callback"}, lambda: cgdebug.TensorRecord(capacity=4)),
}


def main():
    options = bench.parser(__doc__, replays=30).parse_args()
    torch.manual_seed(0)
    x = torch.randn(2, WIDTH, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) / WIDTH**0.5
    probes = []

    def body(variant):
        y = x
        for i in range(COUNT):
            y = y @ w
            if variant != "plain":
                lane, action = VARIANTS[variant]
                probes.append(cgdebug.CudaGraphTensorProbe(f"{variant}{i}", [action()], **lane))
                probes[-1](y)

    body("plain")
    torch.cuda.synchronize()
    graphs = {v: bench.TimedGraph(lambda v=v: body(v)) for v in ("plain", *VARIANTS)}
    samples = bench.interleaved(graphs, options.rounds, options.replays)
    figures = {"machine": bench.machine(), "variants": {}}
    rows = []
    plain = bench.medians(samples["plain"])
    for variant in graphs:
        main_us, replay, launch = bench.medians(samples[variant])
        figures["variants"][variant] = {
            "main_us": main_us,
            "replay_us": replay,
            "launch_us": launch,
            "added_us_a_probe": (replay - plain[1]) / COUNT,
            "replay_ratio": replay / plain[1],
            "launch_ratio": launch / plain[2],
        }
        rows.append(
            [variant, f"{replay:.0f}", f"{replay / plain[1]:.2f}",
             f"{(replay - plain[1]) / COUNT:.2f}", f"{launch:.1f}", f"{launch / plain[2]:.2f}"]
        )  # fmt: skip
    print(f"{COUNT} probes of 4 KiB in a chain of bf16 matmuls.\n")
    print(
        bench.table(
            ["", "replay us", "x plain", "us a probe", "graph.replay() us", "x plain"], rows
        )
    )
    bench.report(figures, options.json)


if __name__ == "__main__":
    main()
