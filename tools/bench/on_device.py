#!/usr/bin/env python3
"""What probes cost whose values stay on the device, with the goal and the bound of each figure.

The parts are those of the other scripts: a training step of a Llama (op_log.py), statistics of one
tensor beside a copy of it (stats_cost.py), a chain of small kernels (many_probes.py), records and
comparisons beside torch-cudagraph-debug, if it is installed (peer_tcd.py). The variants of a part
take turns, in another order each round. A daemon reads meanwhile.

`goal` is what the figure should be, `bound` what no probe can beat: the copies alone, or the time
the bytes take to read. --quick has fewer rounds and sizes.

Needs a GPU, torch and transformers: PYTHONPATH=BUILD/python python3 tools/bench/on_device.py
"""

import importlib.util
import os
import statistics
import sys
import time

import peer_tcd  # first: it asks for a daemon of its own

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as op_log.py, which is loaded late

import graph_bench as bench
import many_probes
import stats_cost
import torch
import torch.nn.attention

MIB = 1 << 20
LLAMA = {
    "copies": "a copy of each output",
    "device": "record the outputs, device",
    "modules": "TensorStats of the outputs",
    "grads": "TensorStats, gradients too",
    "armed": "record, device, armed",
}
GOALS = {"device": 1.8, "modules": 1.1, "grads": 2.0}  # ms
HBM_BYTES_PER_MS = 4.3e9
PEER_SIZES = {4 << 10: 32, 64 << 10: 32, 256 << 10: 32, MIB: 32, 4 * MIB: 32, 16 * MIB: 8}
QUICK_PEER_SIZES = (4 << 10, 256 << 10, 4 * MIB, 16 * MIB)
DTYPES = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float32)


def verdict(value, goal):
    return "" if goal is None else "met" if value <= goal else f"{value / goal:.2f} x"


class Table:
    def __init__(self):
        self.rows = []
        self.figures = {}

    def add(self, what, value, unit, goal=None, bound=None):
        self.figures[what] = {"value": value, "unit": unit, "goal": goal, "bound": bound}
        shown = ["" if each is None else f"{each:.3g}" for each in (goal, bound)]
        self.rows.append([what, f"{value:.3g} {unit}", *shown, verdict(value, goal)])


def llama(table, options):
    import op_log

    words = op_log.parser().parse_args([])
    with torch.nn.attention.sdpa_kernel(op_log.ATTENTION):
        variants = {name: op_log.Variant(name, words) for name in ("plain", *LLAMA)}
    times = {name: [] for name in variants}
    rounds, replays = (8, 8) if options.quick else (15, 10)
    for order in bench.shuffled(variants, rounds):
        for name in order:
            times[name].append(variants[name].replay(replays))
    added = {
        name: statistics.median(a - b for a, b in zip(times[name], times["plain"]))
        for name in LLAMA
    }
    copies = variants["copies"].copies.values()
    nbytes = sum(copy.nbytes for copy in copies)
    print(
        f"Llama: a step of {statistics.median(times['plain']):.2f} ms, {len(copies)} outputs of "
        f"{nbytes / 1e9:.2f} GB; probes that saw a tensor: "
        + ", ".join(f"{name} {variants[name].rows()}" for name in LLAMA if name != "copies")
    )
    read = nbytes / HBM_BYTES_PER_MS
    bounds = {
        "device": added["copies"],
        "modules": read,
        "grads": 2 * read,
        "armed": added["copies"],
    }
    for name, what in LLAMA.items():
        table.add(what, added[name], "ms", GOALS.get(name), bounds.get(name))
    table.add("armed / record, device", added["armed"] / added["device"], "x", 1.0)


def statistics_of_one(table, options):
    words = bench.parser("").parse_args([])
    words.rounds, words.replays = (5, 7) if options.quick else (9, 9)
    for dtype in DTYPES:
        for mib in (4, 16, 64, 256):
            copy, stats = stats_cost.measure(dtype, mib << 10, words)
            what = f"{str(dtype).removeprefix('torch.')} statistics of {mib} MiB / its copy"
            table.add(what, stats / copy, "x", 0.8, 0.5)


def small(table, options):
    words = bench.parser("").parse_args([])
    words.rounds, words.replays = (5, 20) if options.quick else (15, 30)
    goals = {"direct": 1.12, "off": 1.05, "TensorStats": 1.15}
    names = {"direct": "4 KiB probe", "off": "off", "TensorStats": "stats"}
    variants = [f"{name}{kind}" for kind in ("", ", stable") for name in goals]
    chain = many_probes.measure(*many_probes.CHAINS["2 x 1024"], words, variants)
    for variant in variants:
        name, _, kind = variant.partition(",")
        is_staged = not kind
        bound = chain["kernel"]["replay_ratio"] if is_staged else 1
        what = f"212 matmuls 2 x 1024, {names[name]}{'' if is_staged else ', stable'} / plain"
        table.add(what, chain[variant]["replay_ratio"], "x", goals[name], bound)


def beside_peer(table, options):
    has_peer = importlib.util.find_spec("torch_cudagraph_debug") is not None
    if not has_peer:
        print("torch-cudagraph-debug is not installed: no comparison with it")
    rounds, replays = (3, 6) if options.quick else (7, 12)
    for size in QUICK_PEER_SIZES if options.quick else PEER_SIZES:
        variants = ["cgdebug record", "cgdebug compare, device"]
        if has_peer:
            variants.append("peer record")
        if has_peer and size in (256 << 10, 4 * MIB):
            variants.append("peer check")
        measured = peer_tcd.measure(
            max(1, size // 2 // peer_tcd.WIDTH), rounds, replays, variants, PEER_SIZES[size], 0
        )
        us = {name: figures["sustained_us"] for name, figures in measured.items()}
        name = f"{size >> 10} KiB" if size < MIB else f"{size >> 20} MiB"
        goals = {256 << 10: 3, 4 * MIB: 10}
        read = 2 * size / HBM_BYTES_PER_MS * 1e3
        table.add(f"compare {name} on the device", us["cgdebug compare, device"], "us",
                  goals.get(size), read)  # fmt: skip
        table.add(f"record {name} to the host", us["cgdebug record"], "us",
                  80 if size == 4 * MIB else None, size / options.link_bytes_per_us)  # fmt: skip
        if has_peer:
            table.add(f"record {name} against the peer's {us['peer record']:.3g} us",
                      us["cgdebug record"] / us["peer record"], "x", 0.5)  # fmt: skip
        if "peer check" in us:
            table.add(f"compare {name} against the peer's {us['peer check']:.0f} us",
                      us["cgdebug compare, device"] / us["peer check"], "x",
                      0.01 if size == 4 * MIB else None)  # fmt: skip


PARTS = {
    "llama": llama, "small": small, "peer": beside_peer, "statistics": statistics_of_one
}  # fmt: skip


def main():
    parser = bench.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and sizes")
    parser.add_argument("--only", action="append", choices=PARTS, help="one part; may be repeated")
    options = parser.parse_args()
    options.link_bytes_per_us = bench.d2h_gb_s() * 1e3
    table, failed = Table(), []
    for name in options.only or PARTS:
        began = time.monotonic()
        try:
            PARTS[name](table, options)
        except Exception as error:  # the other parts still have figures
            failed.append(name)
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
        torch.cuda.empty_cache()
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
    print()
    print(bench.table(["", "added", "goal", "bound", "of the goal"], table.rows))
    bench.report({"machine": bench.machine(), "figures": table.figures}, options.json)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
