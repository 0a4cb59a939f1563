"""The snapshots of one probe in eager calls, whatever the shapes of its tensors are."""

from __future__ import annotations

import collections
import functools
import typing

from ..errors import RecordingError
from ..snapshot import TensorSnapshot
from ._columns import Columns
from ._series import Series

if typing.TYPE_CHECKING:
    import numpy


class CallSeries(Series):
    """A series of several `members`, each of one shape. Its replays are calls, and `shape`, `dtype`
    and the like are those of its first member: each snapshot has its own.

    Where members share a call, its iterations are in the order in which they began.
    """

    def __init__(self, members: list[Series]):
        vars(self).update(vars(members[0]))
        vars(self).pop("_keys", None)
        vars(self).pop("_all_columns", None)
        self.members = members

    @property
    def is_readable(self) -> bool:
        return all(one.is_readable for one in self.members)

    @property
    def shapes(self) -> list[tuple]:
        """The shapes of its members, in the order in which they came first."""
        return list(dict.fromkeys(tuple(one.shape) for one in self.members))

    @functools.cached_property
    def _origins(self) -> dict[tuple[int, int], tuple[Series, int]]:
        """Of each snapshot, by call and iteration: the member and the iteration that it has there;
        ascending."""
        of_call = collections.defaultdict(list)
        for member in self.members:
            for replay, iteration in member._keys:
                of_call[replay].append((member, iteration))
        found = {}
        for replay, places in sorted(of_call.items()):
            if len({id(member) for member, _ in places}) > 1:
                places.sort(key=lambda place: place[0]._snapshot(replay, place[1]).serial)
            found.update({(replay, n): place for n, place in enumerate(places)})
        return found

    @functools.cached_property
    def _keys(self) -> list[tuple[int, int]]:
        return list(self._origins)

    def _snapshot(self, replay: int, iteration: int | None = None) -> TensorSnapshot:
        if iteration is None:  # the last one
            iteration = max(n for call, n in self._calls[replay])
        member, own = self._origins[replay, iteration]
        snapshot = member._snapshot(replay, own)
        snapshot.__dict__["iteration"] = iteration
        return snapshot

    @functools.cached_property
    def _calls(self) -> dict[int, list[tuple[int, int]]]:
        calls = collections.defaultdict(list)
        for key in self._keys:
            calls[key[0]].append(key)
        return calls

    def _has(self, replay: int) -> bool:
        return replay in self._calls

    def _readable_columns(self) -> Columns:
        if "_all_columns" not in self.__dict__:
            self._all_columns = _sorted(Columns(self._reader, self.members), self)
        return self._all_columns

    def __repr__(self) -> str:
        calls = self.replays
        span = f"calls {calls[0]}..{calls[-1]}" if calls else "no calls"
        rank = f", rank {self.rank}" if self.rank >= 0 else ""
        shown = [str(list(shape)) for shape in self.shapes]
        more = f" and {len(shown) - 3} other shapes" if len(shown) > 3 else ""
        tensors = ", ".join(shown[:3]) + more
        return f"<{self.label} {self.dtype_name}{tensors}: {len(self)} snapshots, {span}{rank}>"


def _sorted(columns: Columns, series: CallSeries) -> Columns:
    """In the order of the calls, with the iterations of the series."""
    import numpy

    number_of = {
        (id(member), replay, own): place
        for place, ((replay, _), (member, own)) in enumerate(series._origins.items())
    }
    arrays = columns.arrays
    rows = zip(arrays["place"].tolist(), arrays["replay"].tolist(), arrays["iteration"].tolist())
    places = [number_of[id(columns.series[place]), replay, own] for place, replay, own in rows]
    order: numpy.ndarray = numpy.argsort(numpy.asarray(places, "int64"), kind="stable")
    columns.arrays = {name: array[order] for name, array in arrays.items()}
    iterations = [series._keys[places[row]][1] for row in order.tolist()]
    columns.arrays["iteration"] = numpy.asarray(iterations, arrays["iteration"].dtype)
    return columns


def the_one_of(name: str, found: list[Series]) -> Series:
    """Of those that a probe of this name has.

    Fails: RecordingError, which says how to choose."""
    if len(found) == 1:
        return found[0]
    if len({series.rank for series in found}) > 1:
        raise RecordingError(
            f"probe {name!r} is on ranks {sorted({s.rank for s in found})}: choose one, for "
            f"example r.rank({found[0].rank})[{name!r}]"
        )
    jobs = {(series.session, series._uuid) for series in found}
    if len(jobs) > 1:
        labels = {label for label, _ in jobs}
        key = found[0].session if len(labels) == len(jobs) else found[0]._uuid[:8]
        raise RecordingError(
            f"probe {name!r} is of {len(jobs)} jobs: choose one, for "
            f"example r.probe({name!r}, session={key!r})"
        )
    if all(series.counts_calls for series in found):
        return CallSeries(found)
    if len({(series.graph_id, series.invocation) for series in found}) < len(found):
        raise RecordingError(
            f"probe {name!r} has {len(found)} series, one for each shape and call: choose "
            f"one of r.select({name!r})"
        )
    choices = ", ".join(f"graph_id={s.graph_id} invocation={s.invocation}" for s in found)
    raise RecordingError(
        f"probe {name!r} was called {len(found)} times: choose one with "
        f"r.probe({name!r}, graph_id=..., invocation=...): {choices}"
    )
