"""Recordings read offline: no daemon, no GPU, no torch; NumPy is all that is needed.

r = cgdebug.open("runs/a.cgrec")        # a folder of ranks and .safetensors files too
r.probes; r.replays; r.ranks; r.gaps; r.complete
s = r["blk3.attn"][1204]                # TensorSnapshot; values are loaded when first asked for
r["blk3.attn"].stat("abs_max")          # one number per replay
d = r.diff("runs/b.cgrec"); assert d.ok, d
"""

from __future__ import annotations

import collections.abc
import dataclasses
import itertools
import os
import sys
import typing
import warnings

from . import _remote
from ._read._columns import Columns, frame_of
from ._read._reports import (
    Cause,
    Causes,
    Check,
    Diff,
    Row,
    diff_of,
    rows_of,
    write_report,
)  # fmt: skip
from ._read._selection import Selection, check_is_name
from ._read._series import RecordedSnapshot, Series
from ._remote import Fetched
from ._shared._answers import is_no_row
from ._shared._replays import replay_range
from .errors import NothingMatchedError
from .snapshot import TensorSnapshot

__all__ = [
    "open", "why", "Recording", "Series", "RecordedSnapshot", "Gap", "Diff", "Check", "Cause",
    "Causes", "Fetched",
]  # fmt: skip


def open(path: str | os.PathLike, *, rank: int | None = None) -> Recording:
    """Opens a recording, a folder of recordings (one per rank), a .safetensors file or a folder of
    those. Works while it is being written, and on one that was cut off anywhere.

    A recording, or a folder of them, may be a URL that fsspec knows: "s3://bucket/runs/a.cgrec",
    also gs://, hf://, memory://. Its catalogue is fetched now and snapshots when they are asked
    for. fsspec's own settings say who you are, for instance AWS_PROFILE or FSSPEC_S3_ENDPOINT_URL.

    Fails: RecordingError.
    """
    return Recording(os.fspath(path), rank=rank)


def why(source: Recording | str | os.PathLike) -> Causes:
    """What went wrong in a recording, or in what `open()` takes: the causes, each with the rows
    that show it. Of a live job: `cgdebug-cli why`.

    Fails: RecordingError.
    """
    return _opened(source).why()


@dataclasses.dataclass(frozen=True)
class Gap:
    """Snapshots of one probe that are missing."""

    probe: str
    rank: int
    count: int
    after_replay: int
    before_replay: int
    cause: str


class Recording:
    """The recorded tensors of one or more jobs. Reading is lazy; several threads may read."""

    def __init__(self, path: str, *, rank: int | None = None):
        self._path, self._rank = _remote.hidden(path) if _remote.is_url(path) else path, rank
        self._slots: list[Series] = []  # for the repr if it cannot be opened
        self.refresh()

    def refresh(self) -> Recording:
        """Looks again at a recording that is still being written. Returns itself."""
        from ._shared._reader import recording_module

        self._reader = recording_module().Reader(self._path, self._rank)
        self._missing: list[str] | None = None
        self._all = [
            Series(self._reader, self._path, index, **slot)
            for index, slot in enumerate(self._reader.slots())
        ]
        self._slots = sorted(
            (series for series in self._all if not is_no_row(series.op)),
            key=lambda series: (series.graph_order, series.rank),
        )
        if self._rank is not None and not self._slots:
            raise NothingMatchedError(f"{self._path} has no probe of rank {self._rank}")
        self._selection = Selection(self._reader, self._path, self._slots)
        return self

    # --- what is in it ----------------------------------------------------------------------------

    @property
    def path(self) -> str:
        return self._path

    @property
    def probes(self) -> list[str]:
        """Names of the probes, in graph order."""
        return list(self._selection.names)

    @property
    def series(self) -> list[Series]:
        """One entry per call of a probe in a captured graph, and per rank, in graph order."""
        return list(self._slots)

    @property
    def replays(self) -> list[int]:
        """Every replay that any probe has, ascending."""
        return sorted({replay for series in self._slots for replay in series.replays})

    @property
    def steps(self) -> list[int]:
        """Every step of `cgdebug.step()` that any snapshot is of, ascending."""
        steps = {int(step) for series in self._slots for step in series.steps}
        return sorted(step for step in steps if step >= 0)

    @property
    def ranks(self) -> list[int]:
        """[-1] if the job was not distributed."""
        return sorted({series.rank for series in self._slots})

    @property
    def sessions(self) -> list[str]:
        return self._reader.describe()["sessions"]

    @property
    def gaps(self) -> list[Gap]:
        """Losses by probe, as far as they are known."""
        gaps = []
        for gap in self._reader.gaps():
            series = self._all[gap.pop("slot")]
            gaps.append(Gap(probe=series.name, rank=series.rank, **gap))
        return gaps

    @property
    def missing(self) -> list[str]:
        """Why it is not `complete`, in sentences."""
        if self._missing is None:
            self._missing = self._reader.missing()
        return list(self._missing)

    @property
    def complete(self) -> bool:
        """Whether it has everything it was to record: no loss, no damage, a proper end."""
        return not self.missing

    @property
    def fetched(self) -> Fetched:
        """The requests and bytes that it took so far in this process, if it lies behind a URL."""
        return _remote.fetched(self._path)

    @property
    def growing(self) -> bool:
        """Whether it is still being written. See `refresh`."""
        return self._reader.describe()["is_growing"]

    def rank(self, rank: int) -> Recording:
        """The same recording with one rank's probes."""
        return Recording(self._path, rank=rank)

    def probe(
        self,
        name: str,
        *,
        graph_id: int | None = None,
        invocation: int | None = None,
        session: str | None = None,
    ) -> Series:
        """One call of a probe in a graph; or all that it saw in eager calls, whatever the shapes.
        The arguments choose among several captures, calls or jobs (`sessions`). Where processes of
        one label are together, as after a fork, the first digits of a uuid tell them apart."""
        return self._selection.probe(name, graph_id, invocation, session)

    def select(self, *patterns: str) -> list[Series]:
        """By glob ("blk*", "re:...", "!..." excludes), in graph order. A glob means the whole name,
        as on the command line: "*blk*" for what lies inside. None that matches is a warning, which
        has the names that are close, and the list is empty."""
        found = self._selection.matching(patterns)
        if not found:
            warnings.warn(self._selection.why_no_match(patterns), stacklevel=_level_of_caller())
        return found

    def replay(self, replay: int) -> dict[str, TensorSnapshot]:
        """Every probe's snapshot of one replay, by name: "name#1" for a second call, "name@g:LABEL"
        for another graph, "name@float32[8, 512]" for eager calls with another shape."""
        return self._selection.of_replay(replay)

    def assemble(self, name: str, replay: int | None = None) -> TensorSnapshot:
        """The whole tensor whose parts the ranks have, such as a parameter under FSDP or tensor
        parallelism: `cgdebug.assemble` of every rank's snapshot of one replay, by default of the
        last that all of them have.

        Fails: ValueError: it has no such parts, or some are missing, which it names.
        """
        from .sharding import assemble

        return assemble(self._selection.parts_of(name, replay))

    def __getitem__(self, name: str) -> Series:
        check_is_name(name)
        return self.probe(name)

    def __contains__(self, name: object) -> bool:
        return name in self._selection.names

    def __iter__(self) -> collections.abc.Iterator[str]:
        return iter(self.probes)

    def __len__(self) -> int:
        return len(self.probes)

    def __repr__(self) -> str:
        if not self._slots:
            return f"<recording {self._path}: no probes>"
        replays = self.replays
        span = f"replays {replays[0]}..{replays[-1]}" if replays else "no replays"
        state = "growing" if self.growing else "complete" if self.complete else "NOT complete"
        return f"<recording {self._path}: {len(self)} probes, {span}, {state}>"

    def _repr_html_(self) -> str:
        from ._read import _notebook

        return _notebook.of_recording(self)

    # --- what it says -----------------------------------------------------------------------------

    def check(
        self,
        *probes: str,
        replays: tuple[int, int] | None = None,
        frames: int = 21,
        trust_hashes: bool = False,
    ) -> Check:
        """The first NaN or Inf and what led to it, near overflow, stale and never-written tensors.
        Values are read and checked against their hashes, unless `trust_hashes` is set."""
        first, last = replay_range(replays)
        if isinstance(frames, bool) or not isinstance(frames, int) or frames < 1:
            raise ValueError(f"check: frames must be a whole number of at least 1, not {frames!r}")
        return Check(*self._reader.check(list(probes), first, last, frames, trust_hashes))

    def why(self) -> Causes:
        """What went wrong: `cgdebug.why()`."""
        return Causes(*self._reader.why())

    def diff(
        self,
        other: Recording | str | os.PathLike,
        *probes: str,
        rtol: float | None = None,
        atol: float | None = None,
        equal_nan: bool = False,
        bitwise: bool = False,
        first: bool = False,
        by: str = "name",
        align: str = "replay",
        names: dict[str, str] | None = None,
        replays: tuple[int, int] | None = None,
        trust_hashes: bool = False,
    ) -> Diff:
        """Compares this recording with `other`.

        rtol, atol:   if left out, those of torch.testing.assert_close for the dtype
        first:        ignore what comes after the replay of the first difference
        by, align:    pair probes by "name" or "order", and snapshots by "replay" or "step"
        names:        from a probe's name here to its name in `other`
        trust_hashes: where the recorded hashes are equal, do not read the values; damage to them is
                      then not seen
        """
        how = {
            "rtol": None if rtol is None else float(rtol),
            "atol": None if atol is None else float(atol),
            "equal_nan": equal_nan,
            "bitwise": bitwise,
            "first": first,
            "trust_hashes": trust_hashes,
            "by": by,
            "align": align,
            "names": names or {},
        }
        return diff_of(self._reader, _opened(other)._reader, probes, replays, how)

    def report(
        self,
        path: str | os.PathLike,
        *probes: str,
        other: Recording | str | os.PathLike | None = None,
        replays: tuple[int, int] | None = None,
    ) -> str:
        """Writes one HTML file with pictures of this recording, or of this and `other` side by
        side: `cgdebug-cli report`. An older file is replaced. Returns the verdict, a sentence."""
        with_other = None if other is None else _opened(other)._reader
        return write_report(self._reader, with_other, path, probes, replays)

    def verify(self) -> list[str]:
        """Reads every byte, which `complete` does not. Returns one sentence for each damaged place;
        an empty list means that nothing is damaged."""
        return self._reader.verify()

    def sql(self, query: str, parameters: collections.abc.Sequence = ()) -> list[Row]:
        """A read-only query; rows are tuples whose columns are attributes too. The tables are those
        of `cgdebug-cli query --schema`.

        For a single recording they are its catalogue, which the first query brings up to date. They
        are made in memory if the catalogue cannot be written, a snapshot cannot be read, there are
        several recordings, or the source is of another kind. Then columns that only a catalogue has
        are NULL: ordinals, places in the files, marks, and of sessions all but the uuid, the label
        and the rank. A snapshot that cannot be read is a row of NULLs.
        """
        return rows_of(self._reader.query(query, parameters))

    def to_pandas(self, *probes: str):
        """One row per snapshot: names, replay, step, time, every statistic and the hashes. Needs
        pandas."""
        return frame_of(self._columns(*probes))

    def plot(self, *probes: str, stat: str = "abs_max", ax=None):
        """Draws one statistic of the probes that the patterns select, of all if none is given, over
        the replays. Returns matplotlib's axes: `ax`, or new ones. Needs matplotlib."""
        from ._read import _notebook

        return _notebook.plot_recording(self.select(*probes or ("*",)), stat, ax)

    def table(self, *probes: str) -> dict[str, list]:
        """The columns of `to_pandas` as lists."""
        return self._columns(*probes).lists()

    def kernel_annotations(
        self, annotations: collections.abc.Mapping[int, typing.Any] | None = None
    ) -> dict[int, list[dict[str, typing.Any]]]:
        """What torch knows of the kernels of CUDA graphs, and for those of probes also what their
        snapshots hold:

            prof.export_chrome_trace(path, cuda_graph_annotations=recording.kernel_annotations())

        annotations: as torch.cuda.graph_annotations.get_kernel_annotations() gives them, which is
        what None takes. Torch records them (2.14 and later) where a capture has
        enable_annotations=True.
        """
        from ._read._kernel_annotations import with_snapshots

        return with_snapshots(annotations, self._reader, self._all)

    def export(self, format: str, output: str | os.PathLike, *probes: str, **options):
        """Writes it in another format; see `cgdebug.export`. Returns remarks about what the result
        lacks: [] if it has all."""
        from ._read._export import export

        return export(self, format, output, *probes, **options)

    def close(self) -> None:
        """Does nothing, for symmetry with other files. Values that are in use stay valid."""

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    # --- inside -----------------------------------------------------------------------------------

    def _columns(self, *probes: str) -> Columns:
        return Columns(self._reader, self.select(*probes)).checked()


def _opened(source: Recording | str | os.PathLike) -> Recording:
    return source if isinstance(source, Recording) else open(source)


def _level_of_caller() -> int:
    """For a warning: of the code around this package."""
    frame: typing.Any = sys._getframe(1)
    for level in itertools.count(1):
        if frame is None or not frame.f_globals.get("__name__", "").startswith("cgdebug."):
            return level
        frame = frame.f_back
    raise AssertionError
