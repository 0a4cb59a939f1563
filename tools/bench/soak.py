#!/usr/bin/env python3
"""Replays at full rate for a while, in every mode, and then counts.

  host         records, statistics and comparisons that the daemon makes, in both lanes
  device       records in device memory, comparisons on the GPU
  triggers     a trigger that holds three times: each time all rings stop and are recorded
  live         a probe that the daemon turns off and on, and to every third replay
  op log       debug_mode() over a few ops
  eager        calls outside of a graph
  part         records of a part of a tensor

For every slot: replays = snapshots written + turned off + passed on the GPU; written = read by the
daemon + counted as lost; none was damaged; what the rings and recordings hold at the end is right;
the memory of the job, the daemon and the GPU does not grow.

Needs a GPU and torch: PYTHONPATH=BUILD/python python3 tools/bench/soak.py --seconds 600
"""

import dataclasses
import functools
import itertools
import os
import pathlib
import statistics
import tempfile
import time

FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="cgdebug-soak-"))
os.environ["CGDEBUG_SOCKET"] = f"{FOLDER}/d.sock"
os.environ["CGDEBUG_DIR"] = str(FOLDER)
os.environ["CGDEBUG"] = "auto"

import graph_bench as bench  # noqa: E402
import torch  # noqa: E402

import cgdebug  # noqa: E402
from cgdebug import TensorCompare, TensorRecord, TensorStats  # noqa: E402

SIZES = (1 << 10, 64 << 10, 1 << 20)  # elements of float32
PERIOD_S = 5.0
ROUND = 20  # replays of a mode before the next one's
WRAP = 1 << 20  # tensors hold the number of the replay modulo this
TRIGGER_TIMES = 3
SETTLE_S = 60


def rss_mib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0


def check_values(snapshot, what):
    expected = float(snapshot.replay_index % WRAP)
    assert bool((snapshot.tensor == expected).all()), f"{what}: {snapshot!r} should be {expected}"


class Mode:
    """A graph whose replays add one to every tensor and show it to probes."""

    lane = "direct"

    def __init__(self, name):
        self.name = name
        self.replays = 0
        self.tensors = [torch.zeros(size, device="cuda") for size in SIZES]
        self.still = torch.zeros(16, device="cuda")
        self.probes = []
        self.make()
        self.graph = self.captured()

    def probe(self, action, **options):
        name = f"{self.name}.{len(self.probes)}"
        options = {"lane": self.lane, **options}
        self.probes.append(cgdebug.CudaGraphTensorProbe(name, [action], **options))
        return self.probes[-1]

    def make(self):
        """Makes the probes of each tensor, self.shown, and those of self.still, self.compared."""
        raise NotImplementedError

    def captured(self):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for tensor, probes in zip(self.tensors, self.shown):
                tensor.add_(1).remainder_(WRAP)
                for probe in probes:
                    probe(tensor)
            self.show_rest()
        return graph

    def show_rest(self):
        """Captured behind the probes of the tensors."""
        for probe in self.compared:
            probe(self.still)

    def run(self):
        for _ in range(ROUND):
            self.graph.replay()
        self.replays += ROUND

    def between(self, client):
        """Called in each period, while the GPU is busy."""

    def slots(self, client):
        for probe in self.probes:
            yield probe.name, lambda name=probe.name: client.probes(name)

    def check(self, client):
        """Returns what all slots together wrote, and so on."""
        torch.cuda.synchronize()
        for probe in self.compared:
            probe.assert_ok(timeout=SETTLE_S)
        for probe in itertools.chain(*self.shown):
            for snapshot in probe.records(synchronize=True):
                check_values(snapshot, probe.name)
        totals = dict.fromkeys(("written", "read", "lost", "off", "passed"), 0)
        for name, find in self.slots(client):
            for slot in settled(name, find, self.replays):
                counters = slot.counters
                assert counters.lost_damaged == 0, f"{name}: damaged payloads: {slot}"
                totals["written"] += counters.produced
                totals["read"] += counters.consumed
                totals["lost"] += counters.lost_overwritten
                totals["off"] += counters.suppressed
                totals["passed"] += counters.passed
        return totals


def settled(name, find, replays):
    """The daemon's own counters, once it has read everything."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        slots = find()
        if slots and all(is_settled(slot.counters, replays) for slot in slots):
            return slots
        assert time.monotonic() < deadline, f"{name}: not settled at {replays} replays: {slots}"
        time.sleep(0.05)


def is_settled(counters, replays):
    return (
        counters.replays == replays
        and counters.produced == counters.consumed + counters.lost_overwritten
        and counters.produced + counters.suppressed + counters.passed == replays
    )


class Host(Mode):
    def make(self):
        self.shown = [(self.probe(TensorRecord(8)), self.probe(TensorStats())) for _ in SIZES]
        self.compared = [self.probe(TensorCompare(torch.zeros(16)))]


class HostCallback(Host):
    lane = "callback"


class Device(Mode):
    def make(self):
        self.shown = [(self.probe(TensorRecord(8, where="device")),) for _ in SIZES]
        self.compared = [
            self.probe(TensorCompare("first")),
            self.probe(TensorCompare(torch.zeros(16, device="cuda"))),
        ]


class Triggers(Mode):
    """In one replay of a period, NaN is added to what the probe with the trigger sees."""

    def make(self):
        self.planted = 0
        self.plant = torch.zeros((), device="cuda")
        self.shown = [(self.probe(TensorRecord(8, where="device")),) for _ in SIZES]
        self.compared = []
        self.armed = self.probe(TensorRecord(8, where="device", on="nan", times=TRIGGER_TIMES))

    def show_rest(self):
        self.sum = self.tensors[0] + self.plant
        self.armed(self.sum)

    def between(self, client):
        if self.planted == TRIGGER_TIMES or len(self.recordings()) < self.planted:
            return  # the rings stand still until the last one is written
        self.plant.fill_(float("nan"))
        self.graph.replay()
        self.plant.fill_(0)
        self.replays += 1
        self.planted += 1

    def recordings(self):
        return sorted(FOLDER.glob("*.cgrec"))

    def check(self, client):
        deadline = time.monotonic() + SETTLE_S
        while len(self.recordings()) < self.planted:
            assert time.monotonic() < deadline, f"{self.recordings()} of {self.planted} stops"
            self.run()  # the rings learn from a replay that they may go on
            torch.cuda.synchronize()
            time.sleep(0.05)
        for directory in self.recordings():
            recording = cgdebug.open(directory)
            while recording.growing:
                assert time.monotonic() < deadline, f"{directory} is not finished"
                time.sleep(0.05)
                recording = cgdebug.open(directory)
            assert recording.complete, recording.missing
            last = max(snapshot.replay_index for snapshot in recording[self.armed.name])
            for probe in self.probes:
                for snapshot in recording[probe.name]:
                    assert snapshot.replay_index <= last, (
                        f"{directory}: behind {last}: {snapshot!r}"
                    )
                    if (probe, snapshot.replay_index) != (self.armed, last):
                        check_values(snapshot, directory)
            assert bool(recording[self.armed.name][last].tensor.isnan().all())
        return super().check(client)


class Live(Mode):
    ORDERS = (
        {"mode": "off"}, {"mode": "full", "every": 3}, {"mode": "stats"}, {"mode": "registered"}
    )  # fmt: skip

    def make(self):
        self.orders = itertools.cycle(self.ORDERS)
        self.shown = [(self.probe(TensorRecord(8)), self.probe(TensorStats())) for _ in SIZES]
        self.compared = []

    def between(self, client):
        client.set(f"{self.name}.*", ttl=None, **next(self.orders))


class OpLog(Mode):
    def make(self):
        self.shown = self.compared = []
        self.mode = cgdebug.debug_mode()

    def captured(self):
        graph = torch.cuda.CUDAGraph()
        with self.mode, torch.cuda.graph(graph):
            self.results = []
            for tensor in self.tensors:
                tensor.add_(1).remainder_(WRAP)
                self.results.append(tensor.mul(2).view(16, -1).t().add(1))
        return graph

    def slots(self, client):
        (log,) = self.mode._scope.logs
        find = functools.partial(client._probes, rows_of={"graph_id": log.graph})
        yield self.name, lambda: [slot for slot in find() if slot.op]

    def check(self, client):
        now = self.replays % WRAP
        log = self.mode.log(0, timeout=SETTLE_S)
        values = {row.stats.max for row in log if row.stats and row.stats.min == row.stats.max}
        assert {now, 2 * now, 2 * now + 1} <= values, f"op log at {now}: {log}"
        return super().check(client)


class Eager(Mode):
    def make(self):
        self.shown = [
            (self.probe(TensorRecord(8), mode="always"), self.probe(TensorStats(), mode="always"))
            for _ in SIZES
        ]
        self.compared = []

    def captured(self):
        return self

    def replay(self):
        for tensor, probes in zip(self.tensors, self.shown):
            tensor.add_(1).remainder_(WRAP)
            for probe in probes:
                probe(tensor)


class Part(Mode):
    def make(self):
        self.shown = [
            (
                self.probe(TensorRecord(8, part="first:1000")),
                self.probe(TensorRecord(8, where="device", part="stride:3")),
            )
            for _ in SIZES
        ]
        self.compared = []


MODES = {
    "host direct": Host, "host callback": HostCallback, "device": Device, "triggers": Triggers,
    "live": Live, "op log": OpLog, "eager": Eager,
}  # fmt: skip
if "part" in {field.name for field in dataclasses.fields(TensorRecord)}:
    MODES["part"] = Part


def main():
    parser = bench.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--only", action="append", choices=MODES, help="one mode; may be repeated")
    options = parser.parse_args()
    modes = [MODES[name](name.replace(" ", "_")) for name in options.only or MODES]
    # Triggers hold and the live control changes at least this often.
    period_s = min(PERIOD_S, options.seconds / (2 * TRIGGER_TIMES + 2))
    history = []
    with cgdebug.connect() as client:
        daemon_pid = client.status().pid
        started = time.monotonic()
        while time.monotonic() - started < options.seconds:
            period = time.monotonic() + period_s
            while time.monotonic() < period:
                for mode in modes:
                    mode.run()
                torch.cuda.synchronize()
            for mode in modes:
                mode.between(client)
            free, total = torch.cuda.mem_get_info()
            history.append((rss_mib(os.getpid()), rss_mib(daemon_pid), (total - free) / 2**20))
        figures = {"machine": bench.machine(), "seconds": options.seconds, "modes": {}}
        rows, failed = [], []
        for mode in modes:
            try:
                totals = mode.check(client)
            except Exception as error:  # what the others say is of use too
                failed.append(f"{mode.name}: {type(error).__name__}: {str(error)[:1500]}")
                continue
            figures["modes"][mode.name] = {"replays": mode.replays, **totals}
            rows.append([mode.name, mode.replays, *totals.values()])
    # Single moments differ by the snapshots under way, so quarters of the time are compared.
    quarter = max(1, len(history) // 4)
    first = [statistics.median(mib) for mib in zip(*history[quarter : 2 * quarter] or history)]
    last = [statistics.median(mib) for mib in zip(*history[-quarter:])]
    figures["memory_mib"] = {"second_quarter": first, "last_quarter": last}
    print(
        f"{options.seconds:.0f} s of replays. Exactly, and none damaged: replays = written + off + "
        "passed, written = read + lost.\n"
    )
    columns = ["mode", "replays", "written", "read", "lost (counted)", "off", "passed on the GPU"]
    print(bench.table(columns, rows))
    print(
        f"\nMiB in the second / the last quarter: job {first[0]:.0f} / {last[0]:.0f}, "
        f"daemon {first[1]:.0f} / {last[1]:.0f}, GPU {first[2]:.0f} / {last[2]:.0f}"
    )
    for problem in failed:
        print(f"FAILED: {problem}")
    bench.report(figures, options.json)
    grew = [end >= begin * 1.05 + 8 for begin, end in zip(first, last)]
    if any(grew):
        print(f"FAILED: memory grows: {history}")
    return 1 if failed or any(grew) else 0


if __name__ == "__main__":
    raise SystemExit(main())
