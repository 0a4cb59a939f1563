"""Writes a recording in other formats; see `cgdebug.export`."""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import pathlib
import shlex
import sys

from .._shared._output_files import replacing, text_file
from .._shared._progress import Progress
from .._shared._replays import MAX_REPLAY, replay_range
from ..errors import NothingMatchedError, RecordingError
from . import _export_values, _trace_events
from ._columns import Columns
from ._series import names_of

MAX_TENSORBOARD_TAGS = 200
_MAX_MISSING = 8  # sentences about losses
_TENSORBOARD_STATS = ("abs_max", "mean", "std", "nonfinite")


def export(
    recording,
    format: str,
    output: str | os.PathLike,
    *probes: str,
    replays: tuple[int, int] | None = None,
    graph: str | None = None,
    shape: tuple[int, ...] | None = None,
    upcast: str | None = None,
    force: bool = False,
    trace: str | os.PathLike | None = None,
) -> list[str]:
    """Writes `recording` as "safetensors", "npz", "npy" (a folder of values), "jsonl", "csv",
    "parquet", "tensorboard" or "perfetto" (statistics). Returns remarks about what the result
    lacks.

    graph:  only the graph with this label; "eager": calls outside graphs. shape: only this shape.
    upcast: "float32" for bfloat16 and float8 in the NumPy formats, which have neither; without it
    their bits go out as uint16 and uint8 beside an entry NAME@dtype.

    trace: for "perfetto", a file of torch.profiler's export_chrome_trace, in which the snapshots of
    its time and its rank are then marked.

    TensorBoard's files go into a folder of the recording's name below `output`, so that several
    recordings can go to the same place.

    Fails: RecordingError; ImportError when the library that writes the format is missing.
    """
    return export_work(
        recording, format, output, probes, replays, upcast, force, graph, shape, trace
    ).remarks


def export_work(
    recording,
    format,
    output,
    probes,
    replays,
    upcast,
    force,
    graph=None,
    shape=None,
    trace=None,
    progress: Progress | None = None,
) -> _Work:
    if format not in WRITERS:
        raise ValueError(f"no format {format!r}; there are {', '.join(WRITERS)}")
    if upcast not in (None, "float32") or (upcast and format not in ("npz", "npy")):
        raise ValueError('upcast is "float32", for npz and npy')
    if trace is not None and format != "perfetto":
        raise ValueError("a trace of torch is joined in perfetto only")
    is_stdout = str(output) == "-"
    if is_stdout and format not in ("jsonl", "csv", "perfetto"):
        raise ValueError(f"{format} cannot be written to stdout")
    target = pathlib.Path(output) if is_stdout else _target_of(recording, format, output, force)
    first, last = replay_range(replays)
    selected = [one for one in recording._selection.matching(probes) if one.lies_in(graph, shape)]
    if not selected:
        raise NothingMatchedError(
            f"no probe of {recording.path} matches {' '.join(probes) or '*'}. "
            f"Type: cgdebug-cli info {shlex.quote(recording.path)}"
        )
    unreadable = [series for series in selected if not series.is_readable]
    selected = [series for series in selected if series.is_readable]
    work = _Work(recording, selected, first, last, upcast, progress or Progress("export"))
    work.trace = _trace_events.TorchTrace(trace) if trace is not None else None
    work.remarks = [
        f"not in it: {one.label}, whose dtype {one.dtype_name} this version cannot read"
        for one in unreadable
    ]
    if unreadable and not selected:
        raise RecordingError(work.remarks[0])
    if not any(map(work.keys, selected)):
        raise NothingMatchedError(_why_nothing(recording.path, selected, first, last))
    WRITERS[format](work, target, is_stdout)
    missing = recording.missing
    work.lacks_some = bool(missing or unreadable or work.damaged)
    work.remarks = _what_it_lacks(work, missing) + work.remarks
    return work


def _target_of(recording, format: str, output: str | os.PathLike, force: bool) -> pathlib.Path:
    """Fails: RecordingError: something is there."""
    target = pathlib.Path(output)
    if format == "tensorboard":
        target /= pathlib.Path(os.path.abspath(recording.path)).stem
    is_taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
    if is_taken and not force:
        raise RecordingError(f"{target} exists. To write there anyway, add: -f")
    return target


def _what_it_lacks(work: _Work, missing: list[str]) -> list[str]:
    remarks = [f"not in it: {sentence}" for sentence in missing[:_MAX_MISSING]]
    if len(missing) > _MAX_MISSING:
        remarks.append(
            f"and {len(missing) - _MAX_MISSING} more like these. "
            f"Type: cgdebug-cli info --json {shlex.quote(work.recording.path)}"
        )
    if work.without_values:
        remarks.append(
            f"not in it: {work.without_values} snapshots, of which only statistics were recorded"
        )
    if work.damaged:
        remarks.append(f"not in it: {len(work.damaged)} damaged, the first: {work.damaged[0]}")
    return remarks


def _why_nothing(path: str, selected, first: int, last: int) -> str:
    replays = sorted({replay for series in selected for replay in series.replays})
    if not replays:
        return f"{path} has no snapshot. Type: cgdebug-cli info {shlex.quote(path)}"
    end = "" if last == MAX_REPLAY else last
    return (
        f"{path} has no snapshot in replays {first}..{end}, it has some in {replays[0]}.."
        f"{replays[-1]}. Type for example: --replays {replays[0]}..{replays[-1]}"
    )


class _Work:
    """What is exported, and what could not be."""

    def __init__(self, recording, series, first, last, upcast, progress):
        self.recording, self.series, self.upcast = recording, series, upcast
        self.progress = progress
        self.first, self.last = first, last
        self.has_jobs = len({(one.rank, one.session) for one in series}) > len(
            {one.rank for one in series}
        )
        self.without_values = 0
        self.damaged: list[str] = []
        self.lacks_some = False  # of what was asked for
        self.remarks: list[str] = []
        self.trace: _trace_events.TorchTrace | None = None
        self.outside = 0  # snapshots of other times or ranks than the trace

    def keys(self, series) -> list[tuple[int, int]]:
        return [key for key in series._keys if self.first <= key[0] <= self.last]

    def _with_replays(self):
        return [series for series in self.series if self.keys(series)]

    def read(self, series, key, load):
        """The snapshot, and what `load` makes of it; None where it is damaged."""
        try:
            snapshot = series._snapshot(*key)
            return snapshot, load(snapshot)
        except RecordingError as error:
            self.damaged.append(str(error))
            return None

    def replays_with_values(self) -> dict[int, list[int]]:
        """By rank: the replays that `by_replay` gives, in order."""
        places = {(one.rank, key[0]) for one in self.series for key in self.keys(one)}
        replays: dict[int, list[int]] = {}
        for rank, replay in sorted(places):
            replays.setdefault(rank, []).append(replay)
        return replays

    def missing_so_far(self) -> list[str]:
        """What is not in the files up to here, in sentences."""
        missing = self.recording.missing + [f"damaged: {one}" for one in self.damaged]
        if self.without_values:
            missing.append("some snapshots, of which only statistics were recorded")
        return missing + self.remarks

    def by_replay(self):
        """(rank, replay, {name: (series, snapshot)}) in order, for snapshots that have values. The
        names of iterations of a conditional body end in "@i:" and their number."""
        places: dict[tuple[int, int], list] = {}
        for series in self.series:
            for key in self.keys(series):
                places.setdefault((series.rank, key[0]), []).append((series, key))
        names = names_of(self._with_replays())
        self.progress.begin("snapshots written", sum(map(len, places.values())))
        for (rank, replay), members in sorted(places.items()):
            tensors = {}
            for series, key in members:
                found = self.read(series, key, lambda one: one._has_values() and one._bytes())
                if found is None:
                    continue
                if not found[0]._has_values():
                    self.without_values += 1
                    continue
                has_several = series.in_body and (series.graph_id or key[1])
                iteration = f"@i:{key[1]}" if has_several else ""
                tensors[names[series] + iteration] = (series, found[0])
            yield rank, replay, tensors
            self.progress.add(len(members))

    def columns(self, series=None) -> Columns:
        """Statistics of all series, or of one."""
        wanted = self.series if series is None else [series]
        if series is None:
            self.progress.begin("snapshots read", sum(len(self.keys(one)) for one in wanted))
        on_read = self.progress.add if series is None else _nothing
        columns = Columns(self.recording._reader, wanted, self.first, self.last, on_read)
        self.damaged += columns.errors
        return columns

    def rows(self):
        """Statistics, one dictionary per snapshot."""
        columns = self.columns()
        self.progress.begin("snapshots written", len(columns))
        for row in columns.rows():
            if row["rank"] < 0:
                row["rank"] = None
            yield row
            self.progress.add(1)

    def curves(self):
        """(name of its curve, series, row) of every snapshot. Each call of a probe has a curve of
        its own, also where several jobs have probes of the same name. The name says which part of
        the tensor it is of."""
        names = names_of(self._with_replays(), lambda one: (one.rank, one.session))
        self.progress.begin("snapshots written", sum(len(self.keys(one)) for one in names))
        for series, name in names.items():
            curve = f"{series.session}/{name}" if self.has_jobs else name
            if series.part_text:
                curve += f" (part {series.part_text})"
            for row in self.columns(series).rows():
                yield curve, series, row
                self.progress.add(1)


def file_name(rank: int, replay: int) -> str:
    return (f"rank-{rank}-" if rank >= 0 else "") + f"replay-{replay:06d}"


# --- values ---------------------------------------------------------------------------------------


def _write_safetensors(work, target, is_stdout):
    target.mkdir(parents=True, exist_ok=True)
    before: dict[int, int] = {}  # by rank
    replays = work.replays_with_values()
    ranks = sorted(replays)
    for rank, replay, tensors in work.by_replay():
        path = target / f"{file_name(rank, replay)}.safetensors"
        missing = work.missing_so_far()
        replays[rank].remove(replay)
        after = replays[rank][0] if replays[rank] else 0
        about = {"missing": missing, "before": before.get(rank, 0), "after": after, "ranks": ranks}
        with replacing(path) as file:
            _export_values.write_safetensors(file, rank, replay, tensors, about)
        before[rank] = replay


def _write_npz(work, target, is_stdout):
    numpy = _library("numpy", "npz")
    target.mkdir(parents=True, exist_ok=True)
    for rank, replay, tensors in work.by_replay():
        arrays = {}
        for name, (series, snapshot) in tensors.items():
            array, dtype = _export_values.array_of(snapshot, work.upcast)
            arrays[name] = array
            if dtype:
                arrays[f"{name}@dtype"] = numpy.array(dtype)
            if series.part_text:
                arrays[f"{name}@part"] = numpy.array(series.part_text)
        with replacing(target / f"{file_name(rank, replay)}.npz") as file:
            _export_values.write_npz(file, arrays)


def _write_npy(work, target, is_stdout):
    numpy = _library("numpy", "npy")
    for rank, replay, tensors in work.by_replay():
        for name, (series, snapshot) in tensors.items():
            array, dtype = _export_values.array_of(snapshot, work.upcast)
            folder = target / _export_values.folder_name(name)
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(folder / f"{file_name(rank, replay)}.npy") as file:
                numpy.save(file, array)
            if dtype:
                (folder / f"{file_name(rank, replay)}.dtype").write_text(f"{dtype}\n")
            if series.part_text:
                (folder / f"{file_name(rank, replay)}.part").write_text(f"{series.part_text}\n")


# --- statistics -----------------------------------------------------------------------------------


def _write_jsonl(work, target, is_stdout):
    with text_file(target, is_stdout) as file:
        for row in work.rows():
            file.write(json.dumps({name: _json_value(row[name]) for name in row}) + "\n")


def _write_csv(work, target, is_stdout):
    with text_file(target, is_stdout) as file:
        writer = None
        for row in work.rows():
            row["shape"] = "x".join(map(str, row["shape"]))
            if writer is None:
                writer = csv.DictWriter(file, list(row))
                writer.writeheader()
            writer.writerow(row)


def _write_parquet(work, target, is_stdout):
    _library("pyarrow", "parquet")
    import pyarrow.parquet

    with replacing(target) as file:
        table = work.columns().arrow()
        place = table.schema.get_field_index("rank")
        ranks = table.column(place).to_numpy()
        table = table.set_column(place, "rank", pyarrow.array(ranks, mask=ranks < 0))
        pyarrow.parquet.write_table(table, file)


def _write_tensorboard(work, target, is_stdout):
    """Curves of statistics, and histograms of the finite values where values were recorded."""
    numpy = _library("numpy", "tensorboard")
    _library("tensorboard", "tensorboard")
    from . import _tensorboard

    limit = MAX_TENSORBOARD_TAGS // (len(_TENSORBOARD_STATS) + 1)
    if len(work.series) > limit:
        work.remarks.append(
            f"not in it: {len(work.series) - limit} of {len(work.series)} probes; TensorBoard gets "
            f"{MAX_TENSORBOARD_TAGS} tags at most. Choose with: --probes GLOB"
        )
        work.series = work.series[:limit]
    with _tensorboard.Writer(target) as writer:
        for curve, series, row in work.curves():
            tag = curve if row["rank"] < 0 else f"rank{row['rank']}/{curve}"
            step = row["replay"] if row["step"] is None else row["step"]
            time = row["timestamp_ns"] / 1e9
            for name in _TENSORBOARD_STATS:
                writer.add_scalar(f"{tag}/{name}", row[name], step, time)
            key = (row["replay"], row["iteration"])
            found = work.read(series, key, lambda one: one._has_values() and one.values())
            if found is None or not found[0]._has_values():
                continue
            finite = found[1][numpy.isfinite(found[1])]
            if finite.size:
                writer.add_histogram(f"{tag}/values", finite, step, time)


def _write_perfetto(work, target, is_stdout):
    """Chrome's JSON: one counter track per statistic, grouped by rank, and an instant event for
    each snapshot with NaN or Inf. Among the events of torch, also a mark for each snapshot."""
    trace = work.trace
    if trace is not None and not any(trace.covers(row) for _, _, row in work.curves()):
        raise NothingMatchedError(
            f"no snapshot of {work.recording.path} is of the time and rank of {trace.path}: are "
            "both of the same run?"
        )
    with text_file(target, is_stdout) as file:
        head = {"displayTimeUnit": "ns"}
        if trace is not None:
            head = {name: of for name, of in trace.content.items() if name != "traceEvents"}
        file.write(json.dumps({**head, "traceEvents": []})[:-2] + "\n")
        separator = ""
        for event in itertools.chain(
            trace.content["traceEvents"] if trace is not None else (),
            _trace_events.of(work, trace),
        ):
            file.write(separator + json.dumps(event))
            separator = ",\n"
        file.write("\n]}\n")
    if trace is not None and work.outside:
        work.remarks.append(
            f"not in it: {work.outside} snapshots of other times or ranks than {trace.path}"
        )


WRITERS = {
    "safetensors": _write_safetensors,
    "npz": _write_npz,
    "npy": _write_npy,
    "jsonl": _write_jsonl,
    "csv": _write_csv,
    "parquet": _write_parquet,
    "tensorboard": _write_tensorboard,
    "perfetto": _write_perfetto,
}


# --- helpers --------------------------------------------------------------------------------------


def _nothing(count: int) -> None:
    pass


def _json_value(value):
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _library(name: str, format: str):
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"--to {format} is written by {name}, which {sys.executable} does not have. "
            f"Type: {shlex.quote(sys.executable)} -m pip install {name}   or name another Python: "
            "CGDEBUG_PYTHON=/path/to/python"
        ) from error
