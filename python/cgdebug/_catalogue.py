"""A recording as SQL tables: those of `cgdebug-cli query --schema`."""

from __future__ import annotations

import collections.abc
import sqlite3
import typing

from ._columns import NUMBERS, STORED_COUNTS, Columns
from .errors import RecordingError

if typing.TYPE_CHECKING:
    from ._series import Series


_SNAPSHOT: tuple[str, ...] = ("probe", "replay", "step", "serial", "timestamp_ns", "hash")
_SNAPSHOT += (*STORED_COUNTS, *NUMBERS)
_SNAPSHOT += ("first_nonfinite", "xor_hash")


class Row(tuple):
    """A tuple whose columns are attributes too; what is no name of Python's is row["max(x)"]."""

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


def make_database(reader, series: list[Series]) -> sqlite3.Connection:
    """In memory; nothing can be changed through it. `series`: all, in the reader's order."""
    from ._native import recording_module

    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.executescript(recording_module().DATABASE_SCHEMA)

    def insert(table, *values, replace=False):
        verb = "INSERT OR REPLACE" if replace else "INSERT"
        values_list = ",".join("?" * len(values))
        database.execute(f"{verb} INTO {table} VALUES ({values_list})", values)

    sessions: dict[tuple, int] = {}
    for index, slot in enumerate(reader.slots()):
        label, rank = slot["session"], slot["rank"]
        session = sessions.setdefault((label, rank), len(sessions) + 1)
        insert("run", session, label, rank, None, None, replace=True)
        insert("session", session, session, None, label, rank, *[None] * 4, replace=True)
        insert(
            "probe",
            index,
            session,
            slot["probe"],
            slot["site"],
            slot["device"],
            slot["dtype"],
            str(list(slot["shape"])),
            slot["payload_bytes"],
            slot["graph_id"],
            slot["invocation"],
            slot["order"],
            slot["every"],
            slot["shard"],
            slot["graph"] or None,
            slot["graph"] if slot["graph_is_given"] else None,
        )
    columns = Columns(reader, series, unread=True)
    values = [
        columns.arrays["slot"].tolist() if name == "probe" else columns.column(name)
        for name in _SNAPSHOT
    ]
    numbers = range(1, len(columns) + 1)
    database.executemany(
        f"INSERT INTO snapshot (number, {', '.join(_SNAPSHOT)}) VALUES (?{',?' * len(_SNAPSHOT)})",
        zip(numbers, *values),
    )
    for row, *comparison in columns.comparisons:
        insert("comparison", row + 1, *comparison)
    for gap in reader.gaps():
        losses = (gap["slot"], gap["cause"], gap["count"], None, None)
        insert("loss", None, *losses, gap["after_replay"], gap["before_replay"], None)
    database.commit()
    database.execute("PRAGMA query_only = ON")
    database.set_authorizer(_authorize)
    return database


def _authorize(action, name, value, *_) -> int:
    """A query that attaches a file makes it where there is none, whatever `query_only` says; and
    none may set that back."""
    unlocks = action == sqlite3.SQLITE_PRAGMA and name == "query_only" and value is not None
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_ATTACH or unlocks else sqlite3.SQLITE_OK


def query(
    database: sqlite3.Connection, sql: str, parameters: collections.abc.Sequence
) -> list[Row]:
    try:
        cursor = database.execute(sql, parameters)
        row = _row_class(column[0] for column in cursor.description or ())
        return [row(values) for values in cursor]
    except (sqlite3.Error, sqlite3.Warning) as error:  # a second statement was a warning once
        raise RecordingError(f"{error}. Type: cgdebug-cli query --schema") from error
