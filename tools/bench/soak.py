#!/usr/bin/env python3
"""Replays at full rate for a while, in both lanes, and then counts.

For every slot: snapshots written = read by the daemon + counted as lost; none was damaged; what the
ring holds at the end is right; the memory of the job, the daemon and the GPU does not grow.

Needs a GPU and torch: PYTHONPATH=BUILD/python python3 tools/bench/soak.py --seconds 600
"""

import os
import pathlib
import statistics
import tempfile
import time

FOLDER = tempfile.mkdtemp(prefix="cgdebug-soak-")
os.environ["CGDEBUG_SOCKET"] = f"{FOLDER}/d.sock"
os.environ["CGDEBUG"] = "auto"

import graph_bench as bench  # noqa: E402
import torch  # noqa: E402

import cgdebug  # noqa: E402

SIZES = (1 << 10, 64 << 10, 1 << 20)  # elements of float32
PERIOD_S = 5.0


def rss_mib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0


def make(lane):
    """(graph, probes, tensors): each replay adds one to every tensor, then shows it."""
    tensors = [torch.zeros(size, device="cuda") for size in SIZES]
    zero = [torch.zeros(16, device="cuda") for _ in SIZES]
    probes = []
    for i, _ in enumerate(SIZES):
        options = {"lane": lane}
        probes.append(
            (
                cgdebug.CudaGraphTensorProbe(f"{lane}.r{i}", [cgdebug.TensorRecord(8)], **options),
                cgdebug.CudaGraphTensorProbe(f"{lane}.s{i}", [cgdebug.TensorStats()], **options),
                cgdebug.CudaGraphTensorProbe(
                    f"{lane}.c{i}", [cgdebug.TensorCompare(torch.zeros(16))], **options
                ),
            )
        )
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for tensor, still, (record, stats, compare) in zip(tensors, zero, probes):
            tensor.add_(1).remainder_(1 << 20)
            record(tensor)
            stats(tensor)
            compare(still)
    return graph, probes, (tensors, zero)  # the graph holds addresses, not tensors


def check(lane, probes, replays):
    totals = {"written": 0, "read": 0, "lost": 0}
    for record, stats, compare in probes:
        compare.assert_ok(timeout=60)
        for snapshot in record.records(synchronize=True):
            expected = float(snapshot.replay_index % (1 << 20))
            assert bool((snapshot.tensor == expected).all()), f"{snapshot!r} should be {expected}"
        for probe in (record, stats, compare):
            slots = cgdebug_slots(probe, replays)
            for slot in slots:
                totals["written"] += slot.counters.produced
                totals["read"] += slot.counters.consumed
                totals["lost"] += slot.counters.lost_overwritten
                assert slot.counters.lost_damaged == 0, f"{lane}: damaged payloads: {slot}"
                assert slot.counters.replays == replays, f"{slot.counters.replays} != {replays}"
    assert totals["written"] == totals["read"] + totals["lost"], totals
    return totals


def cgdebug_slots(probe, replays):
    """The daemon's own counters, once it has read everything."""
    deadline = time.monotonic() + 60
    with cgdebug.connect() as client:
        while True:
            slots = client.probes(probe.name)
            done = all(
                s.counters.produced == s.counters.consumed + s.counters.lost_overwritten
                and s.counters.replays == replays
                for s in slots
            )
            if done and slots:
                return slots
            assert time.monotonic() < deadline, f"the daemon is not done with {probe.name}: {slots}"
            time.sleep(0.05)


def main():
    parser = bench.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args()
    lanes = {lane: make(lane) for lane in ("direct", "callback")}
    replays = dict.fromkeys(lanes, 0)
    with cgdebug.connect() as client:
        daemon_pid = client.status().pid
    started = time.monotonic()
    history = []
    while time.monotonic() - started < options.seconds:
        period = time.monotonic() + min(PERIOD_S, options.seconds)
        while time.monotonic() < period:
            for lane, (graph, _, _) in lanes.items():
                for _ in range(20):
                    graph.replay()
                replays[lane] += 20
            torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        history.append((rss_mib(os.getpid()), rss_mib(daemon_pid), (total - free) / 2**20))
    figures = {"machine": bench.machine(), "seconds": options.seconds, "lanes": {}}
    rows = []
    for lane, (_, probes, _) in lanes.items():
        totals = check(lane, probes, replays[lane])
        figures["lanes"][lane] = {"replays": replays[lane], **totals}
        rows.append([lane, replays[lane], totals["written"], totals["read"], totals["lost"]])
    # Single moments differ by the snapshots under way, so quarters of the time are compared.
    quarter = max(1, len(history) // 4)
    first = [statistics.median(mib) for mib in zip(*history[quarter : 2 * quarter] or history)]
    last = [statistics.median(mib) for mib in zip(*history[-quarter:])]
    figures["memory_mib"] = {"second_quarter": first, "last_quarter": last}
    print(f"{options.seconds:.0f} s of replays; written = read + lost, exactly; none damaged.\n")
    print(bench.table(["lane", "replays", "written", "read", "lost (counted)"], rows))
    print(
        f"\nMiB in the second / the last quarter: job {first[0]:.0f} / {last[0]:.0f}, "
        f"daemon {first[1]:.0f} / {last[1]:.0f}, GPU {first[2]:.0f} / {last[2]:.0f}"
    )
    assert all(end < begin * 1.05 + 8 for begin, end in zip(first, last)), history
    bench.report(figures, options.json)


if __name__ == "__main__":
    main()
