#!/usr/bin/env python3
"""What the statistics of one tensor cost, against a copy of it on the device.

A graph of 20 probes with TensorStats, or of 20 copies, of tensors in the same memory. Each begins 16
bytes behind the one before, because one kernel would serve all probes of the same tensor. Kernels of
statistics in a row overlap, and copies do not; leaf_cost.py has probes between kernels of a job. Sizes
from 256 KiB to 256 MiB, dtypes of 4, 2 and 1 bytes.

Needs a GPU and torch: PYTHONPATH=BUILD/python python3 tools/bench/stats_cost.py
"""

import graph_bench as bench
import torch

import cgdebug

COUNT = 20
KIB = (256, 1024, 4096, 16384, 65536, 262144)
DTYPES = (
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
    torch.int8,
)
# torch converts nothing to these: their bits are those of float8_e4m3fn.
ONLY_VIEWS = (torch.float8_e8m0fnu, torch.float4_e2m1fn_x2)


def measure(dtype, kib, options):
    """us a copy, us a probe."""
    count = (kib << 10) // dtype.itemsize
    step = 16 // dtype.itemsize
    normal = torch.randn(count + COUNT * step, device="cuda", dtype=torch.bfloat16)
    if dtype in ONLY_VIEWS:
        memory = normal.to(torch.float8_e4m3fn).view(dtype)
    else:
        memory = (normal * 32 if dtype is torch.int8 else normal).to(dtype)
    tensors = [memory[i * step :][:count] for i in range(COUNT)]
    parts = [x.view(torch.uint8) if dtype in ONLY_VIEWS else x for x in tensors]
    copy = torch.empty_like(parts[0])
    probes = [
        cgdebug.CudaGraphTensorProbe(f"{dtype} {kib} {i}", [cgdebug.TensorStats()], lane="direct")
        for i in range(COUNT)
    ]

    def copies():
        for x in parts:
            copy.copy_(x)

    def looks():
        for p, x in zip(probes, tensors):
            p(x)

    graphs = {"copy": bench.TimedGraph(copies), "stats": bench.TimedGraph(looks)}
    samples = bench.interleaved(graphs, options.rounds, options.replays)
    figures = [bench.medians(samples[name])[0] / COUNT for name in graphs]
    for p in probes:
        p.close()
    return figures


def main():
    options = bench.parser(__doc__, rounds=3, replays=9).parse_args()
    figures = {"machine": bench.machine(), "us": {}}
    rows = []
    for dtype in DTYPES:
        for kib in KIB:
            copy, stats = measure(dtype, kib, options)
            name = str(dtype).removeprefix("torch.")
            figures["us"][f"{name} {kib} KiB"] = {"copy": copy, "stats": stats}
            ratio = f"{stats / copy:.2f}"
            rows.append([name, f"{kib} KiB", f"{copy:.2f}", f"{stats:.2f}", ratio])
    print(bench.table(["dtype", "size", "us a copy", "us a TensorStats", "ratio"], rows))
    bench.report(figures, options.json)


if __name__ == "__main__":
    main()
