"""A recording as SQL tables: those of `cgdebug-cli query --schema`."""

from __future__ import annotations

import collections.abc
import sqlite3

from .errors import RecordingError


def make_database(reader) -> sqlite3.Connection:
    """In memory; nothing can be changed through it."""
    from ._native import recording_module

    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.executescript(recording_module().DATABASE_SCHEMA)

    def insert(table, *values, replace=False):
        verb = "INSERT OR REPLACE" if replace else "INSERT"
        values_list = ",".join("?" * len(values))
        return database.execute(f"{verb} INTO {table} VALUES ({values_list})", values).lastrowid

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
        for row, comparison in reader.rows(index):
            number = insert("snapshot", *row)
            if comparison is not None:
                insert("comparison", number, *comparison)
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
) -> list[tuple]:
    try:
        return database.execute(sql, parameters).fetchall()
    except (sqlite3.Error, sqlite3.Warning) as error:  # a second statement was a warning once
        raise RecordingError(f"{error}. Type: cgdebug-cli query --schema") from error
