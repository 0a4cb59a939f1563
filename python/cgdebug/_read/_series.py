"""The snapshots of one probe in a recording."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import operator
import typing

from .._shared._dtypes import table
from .._shared._op_details import details_of
from ..sharding import TensorShard
from ..snapshot import Stats, TensorSnapshot, part_of
from ._columns import STATS, Columns, frame_of

if typing.TYPE_CHECKING:
    import numpy


class Series:
    """The snapshots of one call of a probe: a sequence by replay.

    series[1204] is the snapshot of replay 1204, series[-1] the last one, series[100:200:10] those
    of replays 100, 110, ... 190 that are there (see `Recording.gaps` for the missing ones).

    A probe in the body of a conditional node (`in_body`) may have several snapshots of a replay, or
    none. Then series[1204] is the last iteration of replay 1204, and series.at(1204, 2) its third.
    So may an eager one, whose replays are calls: their numbers are those of the process.
    Slices and loops have all of them.
    """

    def __init__(self, reader, path: str, index: int, **slot):
        self._reader, self._path, self._index = reader, path, index
        self.name: str = slot["probe"]
        self.session: str = slot["session"]
        self._uuid: str = slot["uuid"]  # of its session, "" if unknown
        self.device: str = slot["device"]
        self.site: str = slot["site"]
        self.op: str = slot["op"]
        self.details: dict[str, typing.Any] = details_of(slot["details"])  # of a row of an op log
        self.shard = TensorShard.parse(slot["shard"])
        self.part_text: str = slot["part"]  # "rows:0:8 of [8192,4096]"
        self.part, self.full_shape = part_of(slot["part"], slot["shape"])
        self.dtype_name: str = slot["dtype"]
        self.shape: tuple = slot["shape"]
        self.rank: int = slot["rank"]
        self.graph_id: int = slot["graph_id"]
        self.graph: str = slot["graph"]
        self.graph_is_given: bool = slot["graph_is_given"]
        self.invocation: int = slot["invocation"]
        self.in_body: bool = slot["in_body"]
        self.thread: int | None = slot["thread"] or None  # that began its calls
        self.graph_order: int = slot["order"]

    @property
    def probe(self) -> str:
        """The probe's name."""
        return self.name

    @property
    def is_readable(self) -> bool:
        """Whether this version knows its dtype: a .safetensors file may have others."""
        return self.dtype_name in table()

    @property
    def label(self) -> str:
        return self.name if self.invocation == 0 else f"{self.name}#{self.invocation}"

    @property
    def counts_calls(self) -> bool:
        """Whether its replays are eager calls, with the numbers of the process."""
        return self.in_body and not self.graph_id

    def lies_in(self, graph: str | None, shape: tuple[int, ...] | None) -> bool:
        """Whether it lies in the graph with this label or number, and has this shape; None: any."""
        graphs = (self.graph, str(self.graph_id)) if self.graph_id else ("eager",)
        return graph in (None, *graphs) and (shape is None or tuple(shape) == tuple(self.shape))

    def name_beside(self, others: dict[str, Series]) -> str:
        """Its label, extended if one of `others` has the same. Adds itself to `others`."""
        first = others.get(self.label, self)
        name = self.label
        if first.graph_id != self.graph_id:
            name += f"@g:{self.graph or 'eager'}"
        elif first is not self:
            name += f"@{self.dtype_name}{list(self.shape)}"
        if name in others:  # from another job, or captured again
            name += f"@{self.session}"
        while name in others:
            name += f"@{self._index}"
        others[name] = self
        return name

    @property
    def replays(self) -> list[int]:
        """The replay of each snapshot; several may have the same if the probe is `in_body`."""
        return [replay for replay, _ in self._keys]

    @property
    def iterations(self) -> list[int]:
        """The iteration of each snapshot within its replay, from 0."""
        return [iteration for _, iteration in self._keys]

    @functools.cached_property
    def _keys(self) -> list[tuple[int, int]]:
        return self._reader.keys(self._index)

    @property
    def steps(self) -> numpy.ndarray:
        """The user's step of each snapshot, -1 where none was set."""
        return self._columns().arrays["step"]

    def stat(self, name: str) -> numpy.ndarray:
        """One statistic of each snapshot, in the order of `replays`: a number of `Stats`, or inf or
        nonfinite."""
        if name not in STATS:
            raise ValueError(f"no statistic {name!r}; there are {', '.join(STATS)}")
        return self._columns().arrays[name].astype("float64")

    def step(self, step: int) -> TensorSnapshot:
        """The first snapshot of the user's step `step` (`cgdebug.step`)."""
        try:
            step = operator.index(step)
        except TypeError:
            raise TypeError(f"a step is a whole number, not {step!r}") from None
        for key, found in zip(self._keys, self.steps):
            if found == step:
                return self._snapshot(*key)
        raise KeyError(f"probe {self.label!r} has no snapshot of step {step} in {self._path}")

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> collections.abc.Iterator[TensorSnapshot]:
        return (self._snapshot(*key) for key in self._keys)

    @typing.overload
    def __getitem__(self, replay: int) -> TensorSnapshot: ...
    @typing.overload
    def __getitem__(self, replay: slice) -> list[TensorSnapshot]: ...
    def __getitem__(self, replay):
        if isinstance(replay, slice):
            return [self._snapshot(*key) for key in self._wanted(replay)]
        try:
            replay = operator.index(replay)
        except TypeError:
            raise TypeError(
                f"a replay is a number from 1, -1 the last, or a slice, not {replay!r}"
            ) from None
        if replay < 0 and -replay <= len(self):
            return self._snapshot(*self._keys[replay])
        if not 1 <= replay < 1 << 64 or not self._has(replay):
            raise KeyError(self._why_not(replay))
        return self._snapshot(replay)

    def _has(self, replay: int) -> bool:
        return self._reader.has(self._index, replay)

    def at(self, replay: int, iteration: int) -> TensorSnapshot:
        """One iteration of a replay, from 0."""
        if (replay, iteration) not in self._places:
            raise KeyError(f"{self._why_not(replay)} (asked for iteration {iteration})")
        return self._snapshot(replay, iteration)

    @functools.cached_property
    def _places(self) -> set[tuple[int, int]]:
        return set(self._keys)

    def __repr__(self) -> str:
        replays = self.replays
        span = f"replays {replays[0]}..{replays[-1]}" if replays else "no replays"
        rank = f", rank {self.rank}" if self.rank >= 0 else ""
        tensor = f"{self.dtype_name}{list(self.shape)}"
        tensor += f" part {self.part_text}" if self.part else ""
        return f"<{self.label} {tensor}: {len(self)} snapshots, {span}{rank}>"

    def _repr_html_(self) -> str:
        from . import _notebook

        return _notebook.of_series(self)

    def to_pandas(self):
        """One row per snapshot, as `Recording.to_pandas`. Needs pandas."""
        return frame_of(self._columns())

    def plot(self, *stats: str, ax=None):
        """Draws statistics over the replays, "abs_max" and "std" if none is named, with the replays
        that have NaN or Inf marked. Returns matplotlib's axes: `ax`, or new ones. Needs matplotlib.
        """
        from . import _notebook

        return _notebook.plot_series(self, stats or ("abs_max", "std"), ax)

    def _columns(self) -> Columns:
        return self._readable_columns().checked()

    def _readable_columns(self) -> Columns:
        """Without the snapshots that cannot be read."""
        if "_all_columns" not in self.__dict__:
            self._all_columns = Columns(self._reader, [self])
        return self._all_columns

    def _wanted(self, wanted: slice) -> list[tuple[int, int]]:
        for part in (wanted.start, wanted.stop, wanted.step):
            if part is not None:
                operator.index(part)  # nothing but a whole number is a replay
        step = 1 if wanted.step is None else wanted.step
        if step < 1:
            raise ValueError("a slice of replays goes upwards")
        replays = self.replays
        start = replays[0] if wanted.start is None and replays else wanted.start or 1
        stop = replays[-1] + 1 if wanted.stop is None and replays else wanted.stop or 1
        if start < 0 or stop < 0:
            raise ValueError("a slice counts replays, from 1; [-1] is the last snapshot")
        return [key for key in self._keys if key[0] in range(start, stop, step)]

    def _why_not(self, replay: int) -> str:
        replays = self.replays
        if not replays:
            return f"probe {self.label!r} has no snapshot in {self._path}"
        word = "call" if self.counts_calls else "replay"
        where = f"probe {self.label!r} has no {word} {replay} in {self._path}"
        if replay in replays:
            return f"{where} with that iteration"
        if self.in_body and not self.counts_calls and replays[0] <= replay <= replays[-1]:
            return f"{where}: the body of its conditional node did not run, or see .gaps"
        if replays[0] <= replay <= replays[-1]:
            return f"{where}: it was lost or not recorded; see .gaps"
        return f"{where}: it has {replays[0]}..{replays[-1]}"

    def _snapshot(self, replay: int, iteration: int | None = None) -> TensorSnapshot:
        fields = self._reader.get(self._index, replay, iteration)
        return RecordedSnapshot.lazily(self._reader, self, fields)


def names_of(
    members: collections.abc.Iterable[Series],
    group: collections.abc.Callable[[Series], typing.Hashable] = lambda one: one.rank,
) -> dict[Series, str]:
    """A name for each series, unique in its group, whichever of them a replay has."""
    others: dict[typing.Hashable, dict[str, Series]] = {}
    return {one: one.name_beside(others.setdefault(group(one), {})) for one in members}


class DtypeName(str):
    """Torch's name of a dtype. "float32" equals that text and torch.float32, and needs no torch."""

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other if isinstance(other, str) else _without_module(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def _without_module(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


class RecordedSnapshot(TensorSnapshot):
    """A TensorSnapshot whose values lie in a file and are loaded when they are first asked for. Its
    `dtype` is a `DtypeName`; that of `tensor` is torch's."""

    @classmethod
    def lazily(cls, reader, series: Series, fields: dict):
        stats = fields["stats"]
        snapshot = cls.from_payload(
            None,
            dtype=series.dtype_name,
            stats=stats and Stats(**stats),
            origin=(
                reader,
                (series._index, fields["replay"], fields["iteration"]),
                fields["has_values"],
            ),
            probe_name=series.name,
            replay_index=fields["replay"],
            iteration=fields["iteration"],
            shape=series.shape,
            device=series.device,
            invocation_index=series.invocation,
            rank=series.rank,
            graph_id=series.graph_id,
            graph=series.graph,
            serial=fields["serial"],
            timestamp_ns=fields["timestamp_ns"],
            step=None if fields["step"] < 0 else fields["step"],
            shard=series.shard,
            part=series.part,
            full_shape=series.full_shape,
            thread=series.thread,
        )
        snapshot.__dict__["hash"] = fields["hash"]
        return snapshot

    def _make_dtype(self) -> DtypeName:
        return DtypeName(self._known_dtype())

    def _has_values(self) -> bool:
        return "tensor" in self.__dict__ or self.__dict__["_origin"][2]

    def _bytes(self):
        if self.__dict__["_payload"] is None:
            reader, place, has_values = self.__dict__["_origin"]
            if not has_values:
                raise LookupError(
                    f"only the statistics of probe {self.probe_name!r} at replay "
                    f"{self.replay_index} were recorded: see .stats"
                )
            self.__dict__["_payload"] = reader.values(*place)
        return self.__dict__["_payload"]

    def __reduce__(self):
        """Pickled and copied as a snapshot in memory: another process may not have the file."""
        payload = bytearray(self._bytes()) if self._has_values() else None
        made = {"dtype", "tensor", "stats"}
        names = [field.name for field in dataclasses.fields(self) if field.name not in made]
        fields = {name: getattr(self, name) for name in names}
        return _in_memory, (payload, self.dtype_name, self.stats, fields, self.hash)

    def _make_stats(self) -> Stats:
        reader, place, _ = self.__dict__["_origin"]
        return Stats(**reader.statistics(*place))


def _in_memory(payload, dtype: str, stats: Stats, fields: dict, of_bytes: int | None):
    snapshot = TensorSnapshot.from_payload(payload, dtype=dtype, stats=stats, **fields)
    snapshot.__dict__["hash"] = of_bytes
    return snapshot
