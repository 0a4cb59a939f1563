"""What snapshots say of kernels of CUDA graphs that torch knows."""

from __future__ import annotations

import collections.abc
import math
import typing

from .._shared._torch_logs import probe_of_mark
from ._columns import Columns
from ._series import Series


def with_snapshots(
    annotations: collections.abc.Mapping[int, typing.Any] | None, reader, all_series: list[Series]
) -> dict[int, list[dict[str, typing.Any]]]:
    """annotations: None: torch's; those of a probe's kernel get one more."""
    if annotations is None:
        from torch.cuda.graph_annotations import get_kernel_annotations

        annotations = get_kernel_annotations()
    held: dict[str, dict[str, typing.Any]] = {}
    named = {}
    for node, given in annotations.items():
        marks = list(given) if isinstance(given, list) else [given]
        for mark in list(marks):
            probe = probe_of_mark(mark)
            if probe is None:
                continue
            if probe not in held:
                members = [one for one in all_series if one.name == probe and one.is_readable]
                held[probe] = _held_by(reader, members)
            marks.append(held[probe])
        named[node] = marks
    return named


def _held_by(reader, members: list[Series]) -> dict[str, typing.Any]:
    """Over all calls and snapshots of a probe. members: its series"""
    rows = [row for series in members for row in Columns(reader, [series]).rows()]
    bad = [row["replay"] for row in rows if row["nonfinite"]]
    sizes = [row["abs_max"] for row in rows if math.isfinite(row["abs_max"])]
    held: dict[str, typing.Any] = {"cgdebug snapshots": len(rows)}
    if sizes:
        held["cgdebug abs_max"] = max(sizes)
    if rows:
        none = f"none in {len(rows)} snapshots"
        held["cgdebug first NaN or Inf"] = f"replay {min(bad)}" if bad else none
    return held
