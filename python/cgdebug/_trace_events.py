"""The events of a trace in Chrome's JSON, which Perfetto reads."""

from __future__ import annotations

import math

_STATS = ("abs_max", "mean")


def of(work):
    """The events of an export's rows; each process is named when it first appears."""
    named = set()
    for curve, _, row in work.curves():
        pid = max(row["rank"], 0)
        if pid not in named:
            named.add(pid)
            title = {"name": f"rank {pid}" if row["rank"] >= 0 else "job"}
            yield {"ph": "M", "name": "process_name", "pid": pid, "args": title}
        time_us = row["timestamp_ns"] / 1e3
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
