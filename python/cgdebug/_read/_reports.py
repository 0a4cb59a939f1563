"""What the native module found: reports, and rows of SQL."""

from __future__ import annotations

import collections.abc
import json
import os
import pathlib
import typing

from .._shared._replays import replay_range


class _Report:
    """What the native module found: text for people, a dictionary for programs."""

    def __init__(self, document: str, text: str):
        self._document = json.loads(document)
        self._text = text

    def to_dict(self) -> dict:
        """The same as `cgdebug-cli --json`."""
        return self._document

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()}: {self._text}>"


class Diff(_Report):
    """What `cgdebug-cli diff` says. `to_dict()` is its JSON, str() its text."""

    def _repr_html_(self) -> str:
        from . import _notebook

        return _notebook.of_report(self, self.verdict, self.ok)

    @property
    def ok(self) -> bool:
        """Whether all that was recorded is the same. `verdict` tells whether that was all of each
        tensor."""
        return self._document["verdict"] in ("same", "same_in_part")

    @property
    def verdict(self) -> str:
        """One of "same", "same_in_part" (of some tensors both have only the same part,
        `TensorRecord(part=...)`), "different" and "incomplete". The last means that no difference
        was seen, but something is missing."""
        return self._document["verdict"]

    @property
    def first(self) -> dict | None:
        """The first difference, in the order of replays and then of the graph."""
        return self._document["first"]

    @property
    def missing(self) -> list[str]:
        """What was not compared, in sentences."""
        return self._document["missing"]


def diff_of(
    reader,
    other,
    probes: collections.abc.Iterable[str],
    replays: tuple[int, int] | None,
    how: dict[str, typing.Any],
) -> Diff:
    """reader, other: of recordings. how: the options of Recording.diff"""
    from .._shared._reader import recording_module

    if how["by"] not in ("name", "order") or how["align"] not in ("replay", "step"):
        raise ValueError("by is 'name' or 'order', align is 'replay' or 'step'")
    first, last = replay_range(replays)
    which = {"probes": list(probes), "first_replay": first, "last_replay": last}
    return Diff(*recording_module().diff(reader, other, {**which, **how}))


class _Search(_Report):
    """One that finds something, finds nothing, or could not look at all of it."""

    _NOTHING: typing.ClassVar[str]  # what it says of nothing found

    def _repr_html_(self) -> str:
        from . import _notebook

        found, complete = self._document["found"], self._document["complete"]
        verdict = "found" if found else self._NOTHING if complete else "inconclusive"
        return _notebook.of_report(self, verdict, complete and not found)


class Check(_Search):
    """What `cgdebug-cli check` says. `to_dict()` is its JSON, str() its text."""

    _NOTHING = "nothing found"

    @property
    def ok(self) -> bool:
        """Whether nothing was found, and nothing to look at is missing."""
        return self._document["complete"] and not self._document["found"]

    @property
    def first(self) -> dict | None:
        """The first snapshot with NaN or Inf."""
        return self._document["first_nonfinite"]

    @property
    def findings(self) -> list[dict]:
        """All that was found, in the order of the text."""
        return self._document["findings"]

    @property
    def missing(self) -> list[str]:
        """What was not looked at, in sentences."""
        return self._document["missing"]


class Causes(_Search):
    """What went wrong, the cause to look at first in front: `cgdebug-cli why`."""

    _NOTHING = "no cause shown"

    @property
    def ok(self) -> bool:
        """Whether no cause is shown, and all was looked at."""
        return self._document["complete"] and not self._document["found"]

    @property
    def first(self) -> Cause | None:
        return self[0] if len(self) else None

    @property
    def clean(self) -> list[str]:
        """What was looked at, and nothing found, in sentences."""
        return self._document["clean"]

    @property
    def not_looked_at(self) -> list[str]:
        """What was not looked at, and why, in sentences."""
        return self._document["not_looked_at"]

    @property
    def not_asked_for(self) -> list[str]:
        """What needs more than was recorded, and how to ask for it, in sentences. It does not make
        the answer incomplete."""
        return self._document["not_asked_for"]

    def __len__(self) -> int:
        return len(self._document["findings"])

    def __getitem__(self, index: int) -> Cause:
        return Cause(self._document["findings"][index])

    def __iter__(self) -> collections.abc.Iterator[Cause]:
        return map(Cause, self._document["findings"])

    def __bool__(self) -> bool:
        return True


class Cause:
    """One cause. `kind`: "overflow"; `level`: "shown" follows from recorded bits, "consistent" is a
    pattern that may be meant (`cgdebug-cli why` has "verified", too: a second run shows it);
    `text`: a sentence; `place`: the row; `rows`: the rows that show it, each with what it shows;
    `refute`: what would show that it is none; `next`: the command that shows the place."""

    def __init__(self, document: dict):
        self.kind: str = document["kind"]
        self.level: str = document["level"]
        self.text: str = document["text"]
        self.place: dict = document["place"]
        self.rows: list[dict] = [
            {**one["row"], "text": one["text"]} for one in document["evidence"]
        ]
        self.follows: int = document["follows"]
        self.folded: list[Cause] = [Cause(one) for one in document["folded"]]
        self.refute: str = document["refute"]
        self.next: str = document["next"]

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<cause, {self.level}: {self.kind}: {self.text}>"


class Ranks(_Report):
    """What `cgdebug-cli ranks` says: the ranks side by side, and where replicas begin to differ."""

    @property
    def ok(self) -> bool:
        """Whether replicas were compared, none differs, no rank saw NaN or Inf, and no snapshot or
        rank is missing."""
        return self._document["verdict"] in ("same", "close")

    @property
    def verdict(self) -> str:
        """One of "same", "close" (within the tolerance, but not bitwise), "found" and
        "incomplete"."""
        return self._document["verdict"]

    @property
    def first(self) -> dict | None:
        """The first replica that differs."""
        return self._document["first_difference"]

    @property
    def ranks(self) -> list[dict]:
        """One row for each rank."""
        return self._document["ranks"]

    @property
    def missing(self) -> list[str]:
        """The snapshots and ranks that were not compared, in sentences."""
        return self._document["missing"]


class Row(tuple):
    """A tuple whose columns are attributes too. A column whose name Python cannot spell is
    row["max(x)"]."""

    __slots__ = ()
    _fields: tuple[str, ...] = ()

    def __getattr__(self, name: str):
        try:
            return self[type(self)._fields.index(name)]
        except ValueError:
            raise AttributeError(
                f"no column {name!r}; there are {', '.join(self._fields)}"
            ) from None

    def __getitem__(self, key):
        return getattr(self, key) if isinstance(key, str) else super().__getitem__(key)

    def _asdict(self) -> dict:
        return dict(zip(self._fields, self))

    def __dir__(self):
        return sorted({*super().__dir__(), *self._fields})

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"

    def __reduce__(self):
        return _make_row, (self._fields, tuple(self))


def _row_class(names: collections.abc.Iterable[str]) -> type[Row]:
    return type("Row", (Row,), {"__slots__": (), "_fields": tuple(names)})


def _make_row(names, values) -> Row:
    return _row_class(names)(values)


def rows_of(answer: tuple[tuple[str, ...], list[tuple]]) -> list[Row]:
    """What the native module answers to a query."""
    names, rows = answer
    row = _row_class(names)
    return [row(values) for values in rows]


def write_report(
    reader,
    other,
    path: str | os.PathLike,
    probes: collections.abc.Iterable[str],
    replays: tuple[int, int] | None,
) -> str:
    """reader, other: of recordings; None: of this one alone. Returns the verdict."""
    from .._shared._output_files import replacing
    from .._shared._reader import recording_module

    html, verdict = recording_module().report(reader, other, list(probes), *replay_range(replays))
    with replacing(pathlib.Path(path)) as file:
        file.write(html.encode())
    return verdict
