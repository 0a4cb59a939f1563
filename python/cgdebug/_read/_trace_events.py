"""The events of a trace in Chrome's JSON, which Perfetto reads, alone or among those of torch."""

from __future__ import annotations

import gzip
import json
import math
import os
import typing
import zlib

from ..errors import RecordingError

_STATS = ("abs_max", "mean")
_ALL_STATS = (*_STATS, "min", "max", "std", "nonfinite")
# No process has such a number, and Kineto gives the GPUs those from 0 on.
_BESIDE_TORCH = 2_000_000_000
# What a replay sends arrives after its last kernel.
_MARGIN_NS = 1_000_000
_NO_TRACE = (ValueError, KeyError, TypeError, AttributeError, EOFError, zlib.error, RecursionError)


class TorchTrace:
    """A file of torch.profiler's export_chrome_trace, also a compressed one.

    Fails: RecordingError for anything else.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = os.fspath(path)
        opener: typing.Any = gzip.open if self.path.endswith(".gz") else open
        try:
            with opener(self.path, "rt", encoding="utf-8") as file:
                self.content = json.load(file)
            events = [one for one in self.content["traceEvents"] if one.get("ph") == "X"]
            times = [float(one["ts"]) for one in events]
            ends = [float(one["ts"]) + float(one.get("dur", 0)) for one in events]
            self.base_ns = int(self.content.get("baseTimeNanoseconds", 0))
            self.rank = self.content.get("distributedInfo", {}).get("rank")
        except OSError as error:
            raise RecordingError(f"{self.path}: {error.strerror or error}") from error
        except _NO_TRACE as error:
            raise RecordingError(
                f"{self.path} is not a trace of torch.profiler: {error!r}. One is written by "
                "prof.export_chrome_trace(PATH)"
            ) from error
        if not times:
            raise RecordingError(f"{self.path} has no event of a duration: its profile is empty")
        self.first_ns = self.base_ns + int(min(times) * 1000) - _MARGIN_NS
        self.last_ns = self.base_ns + int(max(ends) * 1000) + _MARGIN_NS

    def covers(self, row) -> bool:
        is_its_rank = self.rank is None or row["rank"] < 0 or row["rank"] == self.rank
        return is_its_rank and self.first_ns <= row["timestamp_ns"] <= self.last_ns


def of(work, trace: TorchTrace | None = None):
    """The events of an export's rows; each process is named when it first appears. With a trace,
    those of its time and rank, on its clock."""
    named = set()
    base_ns = trace.base_ns if trace else 0
    for curve, _, row in work.curves():
        if trace and not trace.covers(row):
            work.outside += 1
            continue
        pid = max(row["rank"], 0) + (_BESIDE_TORCH if trace else 0)
        if pid not in named:
            named.add(pid)
            title = f"rank {row['rank']}" if row["rank"] >= 0 else "job"
            name = f"cgdebug, {title}" if trace else title
            yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        time_us = (row["timestamp_ns"] - base_ns) / 1e3
        if trace:
            yield _mark(curve, row, pid, time_us)
        for name in _STATS:
            if math.isfinite(row[name]):
                track = f"{curve} {name}"
                yield {
                    "ph": "C",
                    "name": track,
                    "pid": pid,
                    "ts": time_us,
                    "args": {name: row[name]},
                }
        if row["nonfinite"]:
            yield {
                "ph": "i",
                "s": "p",
                "name": f"{curve}: {row['nonfinite']} NaN or Inf",
                "pid": pid,
                "tid": 0,
                "ts": time_us,
                "args": {"replay": row["replay"], "step": row["step"]},
            }


def _mark(curve: str, row, pid: int, time_us: float) -> dict:
    """A snapshot between the kernels and calls of its replay."""
    stats = {name: row[name] for name in _ALL_STATS if math.isfinite(row[name])}
    return {
        "ph": "i",
        "s": "t",
        "cat": "cgdebug",
        "name": curve,
        "pid": pid,
        "tid": 1,
        "ts": time_us,
        "args": {"replay": row["replay"], "step": row["step"], **stats},
    }
