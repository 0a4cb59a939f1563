"""The catalogue of a recording: SQLite that anything can read."""

from __future__ import annotations

import collections.abc
import pathlib
import sqlite3

from .errors import RecordingError


def query_catalogue(
    path: str, query: str, parameters: collections.abc.Sequence = ()
) -> list[tuple]:
    """Rows as tuples. Nothing can be changed through it. Fails: RecordingError."""
    catalogue = pathlib.Path(path) / "catalogue.sqlite"
    if not catalogue.exists():
        raise RecordingError(
            f"{path} has no catalogue. It is made with: cgdebug-cli query {path} 'select 1'"
        )
    try:
        connection = sqlite3.connect(f"{catalogue.absolute().as_uri()}?mode=ro", uri=True)
        try:
            return connection.execute(query, parameters).fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise RecordingError(f"{catalogue}: {error}. Type: cgdebug-cli query --schema") from error
