"""Which series of a recording are meant: by name, pattern or replay."""

from __future__ import annotations

import collections.abc
import operator

from .._shared._replays import MAX_REPLAY
from ..errors import RecordingError
from ..snapshot import TensorSnapshot
from ._call_series import the_one_of
from ._series import Series, names_of


class Selection:
    """series: of the probes, in graph order. path: of the recording, for messages"""

    def __init__(self, reader, path: str, series: list[Series]):
        self._reader, self._path, self._series = reader, path, series
        self.names = list(dict.fromkeys(one.name for one in series))

    def matching(self, patterns: collections.abc.Sequence[str]) -> list[Series]:
        wanted = set(self._reader.select(list(patterns)))
        return [one for one in self._series if one._index in wanted]

    def why_no_match(self, patterns: collections.abc.Sequence[str]) -> str:
        from .._shared import _words

        shown = " or ".join(map(repr, patterns))
        close = _words.close_to(",".join(patterns), self.names)
        return f"no probe matches {shown} in {self._path} ({len(self.names)} probes).{close}"

    def probe(
        self, name: str, graph_id: int | None, invocation: int | None, session: str | None
    ) -> Series:
        """Fails: KeyError; RecordingError: there are several."""
        found = [
            one
            for one in self._named(name)
            if graph_id in (None, one.graph_id)
            and invocation in (None, one.invocation)
            and (session is None or _is_of_job(one, session))
        ]
        if not found:
            raise KeyError(self._why_no_probe(name))
        return the_one_of(name, found)

    def _named(self, name: str) -> list[Series]:
        return [one for one in self._series if one.name == name]

    def _why_no_probe(self, name: str) -> str:
        text = f"no probe {name!r} in {self._path}."
        if not set(name) & set("*?[") and not name.startswith(("re:", "!")):
            from .._shared import _words

            return text + (_words.close_to(name, self.names) or f" It has {len(self.names)} probes")
        count = len({one.name for one in self.matching([name])})
        return f"{text} {count} match it as a pattern" + f": r.select({name!r})" * (count > 0)

    def of_replay(self, replay: int) -> dict[str, TensorSnapshot]:
        """Fails: ValueError; RecordingError: it is of several ranks."""
        ranks = sorted({one.rank for one in self._series})
        if len(ranks) > 1:
            raise RecordingError(
                f"{self._path} is of ranks {ranks}: choose one, for example "
                f"r.rank({ranks[0]}).replay({replay})"
            )
        if not 1 <= operator.index(replay) <= MAX_REPLAY:
            raise ValueError(f"replays count from 1, not {replay}; the last is r.replays[-1]")
        names = names_of(one for one in self._series if one.replays)
        return {
            name: one[replay] for one, name in names.items() if self._reader.has(one._index, replay)
        }

    def parts_of(self, name: str, replay: int | None) -> list[TensorSnapshot]:
        """Each rank's, of one replay; None: of the last that all of them have.
        Fails: KeyError, ValueError; RecordingError: a rank has several."""
        series = self._named(name)
        if not series:
            raise KeyError(self._why_no_probe(name))
        ranks = [one.rank for one in series]
        if len(set(ranks)) < len(ranks):
            raise RecordingError(
                f"probe {name!r} has several series on rank "
                f"{next(rank for rank in ranks if ranks.count(rank) > 1)}: choose, for example "
                f"cgdebug.assemble(series[replay] for series in r.select({name!r}) if ...)"
            )
        if replay is None:
            common = set.intersection(*(set(one.replays) for one in series))
            if not common:
                raise ValueError(f"assemble: no replay of {name!r} is there on every rank {ranks}")
            replay = max(common)
        parts = [one[replay] for one in series if self._reader.has(one._index, replay)]
        if not parts:
            raise ValueError(f"assemble: no rank of {ranks} has replay {replay} of {name!r}")
        return parts


def check_is_name(name: object) -> None:
    """name: in the brackets behind a recording. Fails: TypeError."""
    if isinstance(name, str):
        return
    names = name if isinstance(name, tuple) else ("layers.0.*",)
    raise TypeError(
        f"recording[{name!r}]: give the name of one probe; several: "
        f"recording.select({', '.join(map(repr, names))})"
    )


def _is_of_job(series: Series, job: str) -> bool:
    is_uuid = len(job) >= 4 and series._uuid.startswith(job)
    return job == series.session or is_uuid
