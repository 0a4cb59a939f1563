"""analyze(): the same questions to many recordings, by any executor, each read where it lies.

a = cgdebug.analyze("/shared/runs/", ["check", "replicas"])
print(a.replicas)                       # as cgdebug-cli ranks
a.to_pandas("check")                    # one row per recording
a.sql("select path from \\"check\\" where found")
"""

from __future__ import annotations

import collections.abc
import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import multiprocessing
import os
import signal
import sqlite3
import typing
import uuid

from . import _remote, recording
from ._read._columns import Columns
from ._read._reports import Ranks, Row, rows_of
from ._shared._progress import Progress
from ._shared._reader import recording_module
from .errors import RecordingError

__all__ = ["Analysis", "analyze"]

Rows = list[dict[str, typing.Any]]
Function = typing.Callable[[recording.Recording], "Rows | dict[str, typing.Any] | None"]

# Few, because to merge what a task found about ranks takes the caller about as long as a worker
# needs for a recording; but enough that the last one keeps no worker waiting for long.
_TASKS_PER_WORKER = 8
_MOST_PER_TASK = 256


@dataclasses.dataclass(frozen=True)
class _Options:
    """What travels to the workers, besides paths."""

    functions: tuple[str | Function, ...]
    probes: tuple[str, ...]
    replicated: tuple[str, ...]
    tolerance: float
    bitwise: bool
    reference: dict[str, list[str]]  # by path: what of the reference has the same ranks
    unread: list[str]  # why parts of the reference cannot be read

    def fold(self):
        return recording_module().RankFold(
            list(self.probes), list(self.replicated), self.tolerance, self.bitwise
        )


@dataclasses.dataclass
class _Found:
    """What a task found out about its recordings, by their paths; this travels back."""

    tables: dict[str, Rows]
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    fetched: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    fold: bytes = b""  # what the comparison of ranks keeps of all of them


class Analysis:
    """What `analyze` found: a table for each function, and what could not be analyzed.

    paths:    the recordings that were asked about
    failed:   path -> why it could not be analyzed, for instance because its worker died twice
    replicas: with the function "replicas": the ranks side by side (`Ranks`), else None
    fetched:  path -> requests and bytes, of recordings behind URLs
    """

    def __init__(
        self,
        paths: list[str],
        tables: dict[str, Rows],
        failed: dict[str, str],
        ranks: Ranks | None,
        fetched: dict[str, _remote.Fetched],
    ):
        self.paths = paths
        self.fetched = fetched
        self.failed = failed
        self.replicas = ranks
        self._tables = tables

    @property
    def complete(self) -> bool:
        """Whether every recording was analyzed. What they lack themselves is in the tables."""
        return not self.failed

    @property
    def tables(self) -> list[str]:
        return list(self._tables)

    def table(self, name: str) -> Rows:
        """The rows of one function, by path. Those of "replicas" are one per rank, of all
        recordings."""
        if name not in self._tables:
            raise KeyError(f"no table {name!r}: there are {', '.join(map(repr, self._tables))}")
        return list(self._tables[name])

    def to_pandas(self, name: str):
        """A DataFrame of table(name). Needs pandas."""
        import pandas

        return pandas.DataFrame(self.table(name))

    def to_parquet(self, folder: str | os.PathLike) -> list[str]:
        """Writes NAME.parquet for each table that has a row; returns the paths. Needs pyarrow."""
        import pyarrow
        import pyarrow.parquet

        os.makedirs(folder, exist_ok=True)
        written = []
        for name, rows in self._tables.items():
            if rows:
                path = os.path.join(folder, f"{name}.parquet")
                columns = {key: [_cell(row.get(key)) for row in rows] for key in _keys_of(rows)}
                pyarrow.parquet.write_table(pyarrow.table(columns), path)
                written.append(path)
        return written

    def sql(self, query: str, parameters: collections.abc.Sequence = ()) -> list[Row]:
        """One statement over all tables, which are called as their functions; "failed" has the
        columns path and why."""
        cursor = self._database.execute(query, parameters)
        names = tuple(column[0] for column in cursor.description or ())
        return rows_of((names, cursor.fetchall()))

    @functools.cached_property
    def _database(self) -> sqlite3.Connection:
        database = sqlite3.connect(":memory:")
        failed = [{"path": path, "why": why} for path, why in self.failed.items()]
        for name, rows in {**self._tables, "failed": failed}.items():
            keys = _keys_of(rows) or ["path"]
            quoted = ", ".join(_quoted(key) for key in keys)
            database.execute(f"create table {_quoted(name)} ({quoted})")
            marks = ", ".join("?" * len(keys))
            database.executemany(
                f"insert into {_quoted(name)} values ({marks})",
                ([_cell(row.get(key)) for key in keys] for row in rows),
            )
        return database

    def __repr__(self) -> str:
        failed = f", {len(self.failed)} FAILED" if self.failed else ""
        return f"<analysis of {len(self.paths)} recordings: {', '.join(self._tables)}{failed}>"


def analyze(
    sources: str | os.PathLike | collections.abc.Iterable[str | os.PathLike],
    functions: str | Function | collections.abc.Iterable[str | Function] = ("check",),
    executor: concurrent.futures.Executor | None = None,
    *,
    probes: collections.abc.Sequence[str] = (),
    replicated: collections.abc.Sequence[str] = (),
    tolerance: float = 1e-6,
    bitwise: bool = False,
    reference: str | os.PathLike | None = None,
    progress: bool | collections.abc.Callable[[int, int], None] | None = None,
) -> Analysis:
    """Runs functions over recordings; each is read by the worker that runs them, and only results
    travel.

    sources:   recordings, folders of recordings, URLs of either, or several of these
    functions: "check", "stats", "replicas" (the comparison of ranks), "diff" (against the same rank
               of `reference`), or functions of a Recording that return a row or several, as
               dictionaries
    executor:  anything like concurrent.futures.Executor:
               None: processes of this machine, which are started afresh, so that a script needs
               `if __name__ == "__main__":`. Dask: client.get_executor(). MPI:
               mpi4py.futures.MPIPoolExecutor()
    probes, replicated, tolerance, bitwise: as for cgdebug-cli ranks
    progress:  a line on stderr where that is a terminal, from the second second on; False: none; or
               called with (done, all)

    What is sent: to a worker, the paths of a few recordings (URLs with their passwords), the
    arguments, and functions of yours. Back come rows, and for "replicas" what is kept of the
    replicas: it grows with probes and steps, hardly with recordings. Never tensors. The caller
    merges this while the workers go on, in the order of the paths: the answer is that of
    cgdebug-cli ranks, whichever worker was the fastest.

    What a worker needs: this version of cgdebug, and the recordings under the same paths, as on a
    shared disk, or for URLs fsspec and the credentials. Neither torch nor a GPU nor a daemon. It
    must be able to import a function of yours; Dask alone also sends those of a script or a
    notebook.

    A worker that dies costs nothing but time: its recordings are read once more, one after the
    other on this machine, and are in Analysis.failed only if that fails too.

    Fails: RecordingError: there is no recording; ValueError for a bad argument.
    """
    paths = _paths_of(sources)
    names = _names_of(functions)
    if "diff" in names and reference is None:
        raise ValueError("analyze: 'diff' needs reference=, the run to compare with")
    options = _Options(
        functions=tuple(names.values()),
        probes=tuple(probes),
        replicated=tuple(replicated),
        tolerance=float(tolerance),
        bitwise=bool(bitwise),
        reference={},
        unread=[],
    )
    fold = options.fold()  # a bad glob is an error here, not in every worker
    if "diff" in names:
        options = _with_reference(options, paths, _paths_of(reference), executor)
    tables: dict[str, Rows] = {name: [] for name in names}
    failed: dict[str, str] = {}
    fetched: dict[str, _remote.Fetched] = {}

    def take(found: _Found) -> None:
        for name, rows in found.tables.items():
            tables[name] += rows
        failed.update(found.failed)
        fetched.update({path: _remote.Fetched(*of) for path, of in found.fetched.items()})
        if found.fold:
            fold.merge(found.fold)

    with _shown(progress, len(paths)) as show:
        lost = _run(paths, functools.partial(_work, options=options), executor, show, take)
    for path, why in lost.items():
        path = _remote.hidden(path)
        failed[path] = why
        fold.add_unreadable(f"{path}: {why}")
    ranks = None
    if "replicas" in names:
        ranks = Ranks(*fold.finish())
        tables["replicas"] = [
            {key: _cell(value) for key, value in row.items()} for row in ranks.ranks
        ]
    return Analysis([_remote.hidden(path) for path in paths], tables, failed, ranks, fetched)


def _with_reference(
    options: _Options,
    paths: list[str],
    references: list[str],
    executor: concurrent.futures.Executor | None,
) -> _Options:
    """Each recording is compared with those of `references` that have the same ranks."""
    known: dict[str, tuple[int, ...]] = {}
    unknown = _run([*paths, *references], _ranks_of, executor, None, known.update)
    of_reference: dict[tuple[int, ...], list[str]] = {}
    for path in references:
        if path in known:
            of_reference.setdefault(known[path], []).append(path)
    return dataclasses.replace(
        options,
        reference={
            _remote.hidden(path): of_reference.get(ranks, []) for path, ranks in known.items()
        },
        unread=[
            f"{_remote.hidden(path)}: {unknown[path]}" for path in references if path in unknown
        ],
    )


# --- in a worker ----------------------------------------------------------------------------------


def _work(paths: list[str], *, options: _Options) -> _Found:
    """Everything about some recordings. What fails is a sentence, so that one damaged recording
    costs no other."""
    names = [f if isinstance(f, str) else f.__name__ for f in options.functions]
    found = _Found({name: [] for name in names})
    fold = options.fold()
    for path in map(_remote.hidden, paths):
        before = _remote.fetched(path)
        try:
            for name, rows in _rows_of(path, fold, options):
                found.tables[name] += [{"path": path, **row} for row in rows]
        except Exception as error:
            found.failed[path] = f"{type(error).__name__}: {error}"
        if _remote.is_url(path):
            after = _remote.fetched(path)
            found.fetched[path] = (after.requests - before.requests, after.bytes - before.bytes)
    if "replicas" in names:
        found.fold = fold.encode()
    return found


def _rows_of(path: str, fold, options: _Options) -> collections.abc.Iterator[tuple[str, Rows]]:
    if "replicas" in options.functions:
        # First: what another function makes of the recording is nothing that ranks lack.
        try:
            fold.add(path)
        except Exception as error:
            fold.add_unreadable(str(error))
            raise
    source = functools.cache(functools.partial(recording.open, path))
    for function in options.functions:
        if callable(function):
            rows = function(source())
            rows = [] if rows is None else [rows] if isinstance(rows, dict) else list(rows)
            yield function.__name__, rows
        elif function in _BUILT_IN:
            yield function, _BUILT_IN[function](source(), path, options)


def _ranks_of(paths: list[str]) -> dict[str, tuple[int, ...]]:
    return {path: tuple(recording.open(path).ranks) for path in paths}


def _check(source: recording.Recording, path: str, options: _Options) -> Rows:
    check = source.check(*options.probes)
    first = check.first or {}
    return [
        {
            "ranks": ",".join(map(str, source.ranks)),
            "found": bool(check.to_dict()["found"]),
            "complete": bool(check.to_dict()["complete"]),
            "probe": first.get("probe"),
            "replay": first.get("replay"),
            "step": first.get("step"),
            "findings": len(check.findings),
            "missing": "; ".join(check.missing),
            "text": str(check),
        }
    ]


def _stats(source: recording.Recording, path: str, options: _Options) -> Rows:
    import numpy

    rows = []
    for series in source.select(*options.probes):
        table = Columns(source._reader, [series]).checked().arrays
        count = len(table["replay"])
        row = {
            "probe": series.name,
            "rank": series.rank,
            "session": series.session,
            "graph": series.graph,
            "graph_order": series.graph_order,
            "snapshots": count,
        }
        if count:
            row |= {
                "first_replay": int(table["replay"].min()),
                "last_replay": int(table["replay"].max()),
                # NaN where no element is finite
                "min": float(numpy.fmin.reduce(table["min"])),
                "max": float(numpy.fmax.reduce(table["max"])),
                "abs_max": float(numpy.fmax.reduce(table["abs_max"])),
                "nonfinite": int(table["nonfinite"].sum()),
            }
        rows.append(row)
    return rows


def _diff(source: recording.Recording, path: str, options: _Options) -> Rows:
    references = [_remote.hidden(one) for one in options.reference.get(path, [])]
    if len(references) != 1:
        text = "the reference has no recording of this rank"
        if references:
            text = f"the reference has several recordings of this rank: {', '.join(references)}"
        elif options.unread:
            text += f" that can be read; {'; '.join(options.unread)}"
        return [{"verdict": "incomplete", "text": text}]
    reference = references[0]
    diff = source.diff(reference, *options.probes, bitwise=options.bitwise)
    first = diff.first or {}
    return [
        {
            "reference": reference,
            "verdict": diff.verdict,
            "probe": first.get("probe"),
            "replay": first.get("replay"),
            "missing": "; ".join(diff.missing),
            "text": str(diff),
        }
    ]


_BUILT_IN = {"check": _check, "stats": _stats, "diff": _diff}


# --- running --------------------------------------------------------------------------------------


def _run(
    paths: list[str],
    work: collections.abc.Callable[[list[str]], typing.Any],
    executor: concurrent.futures.Executor | None,
    show: collections.abc.Callable[[int, int], None] | None,
    take: collections.abc.Callable[[typing.Any], None],
) -> dict[str, str]:
    """Calls `take` with the results of `work`, in the order of the paths, while later ones are
    still worked on. Returns why there is no result of a path."""
    paths = sorted(set(paths))
    failed: dict[str, str] = {}
    own = None
    if executor is None:
        executor = own = _pool(min(len(paths), os.cpu_count() or 1))
    try:
        wanted = _TASKS_PER_WORKER * _workers_of(executor)
        size = min(_MOST_PER_TASK, -(-len(paths) // wanted))
        tasks = [paths[at : at + size] for at in range(0, len(paths), size)]
        futures = [_submit(executor, work, task) for task in tasks]
        done = 0
        for task, future in zip(tasks, futures):
            try:
                results = [future.result()]
            except Exception:
                results = _again(task, work, failed)
            for result in results:
                take(result)
            done += len(task)
            if show:
                show(done, len(paths))
    finally:
        if own is not None:
            own.shutdown(cancel_futures=True)
    return failed


def _submit(executor, work, task: list[str]) -> concurrent.futures.Future:
    try:
        return executor.submit(_answer, work, task, uuid.uuid4().hex)
    except Exception as error:  # the pool broke, or was shut down
        future: concurrent.futures.Future = concurrent.futures.Future()
        future.set_exception(error)
        return future


def _again(paths: list[str], work, failed: dict[str, str]) -> list:
    """Runs each recording once more, by itself and in a process of this machine, because its worker
    died or could not run it. Says in `failed` why there is no result of one."""
    results = []
    pool = None
    try:
        for path in paths:
            pool = pool or _pool(1)
            try:
                results.append(pool.submit(work, [path]).result())
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
                failed[path] = f"its worker died or could not run it: {why}"
                pool.shutdown()
                pool = None
    finally:
        if pool:
            pool.shutdown(cancel_futures=True)
    return results


def _workers_of(executor: concurrent.futures.Executor) -> int:
    """As many as it says that it has, which pools of this machine and Dask do."""
    of_dask = getattr(getattr(executor, "_client", None), "nthreads", None)
    if of_dask:
        return sum(of_dask().values()) or 1
    return getattr(executor, "_max_workers", None) or os.cpu_count() or 1


def _answer(work, task: list[str], question: str):
    """`question` is another one each time: Dask gives its last answer, or its last failure, to what
    it was asked before, and a recording may have grown since."""
    return work(task)


def _pool(workers: int) -> concurrent.futures.ProcessPoolExecutor:
    # A copy of this process would have the threads and locks of torch. Ctrl-C ends workers at once.
    return concurrent.futures.ProcessPoolExecutor(
        max(workers, 1),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_DFL),
    )


# --- arguments ------------------------------------------------------------------------------------


def _paths_of(sources) -> list[str]:
    given = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    paths: dict[str, None] = {}
    for one in [os.fspath(path) for path in given]:
        if _remote.is_url(one):
            behind = recording_module().recordings_in(_remote.hidden(one.rstrip("/")))
            # A worker may be another process, which has to be told the password.
            paths |= dict.fromkeys(map(_remote.with_password, behind))
            continue
        if not os.path.exists(one):
            raise RecordingError(f"analyze: {one} does not exist")
        paths |= dict.fromkeys(recording_module().recordings_in(one) or [one])
    if not paths:
        raise RecordingError("analyze: there is no recording")
    return list(paths)


def _names_of(functions) -> dict[str, str | Function]:
    given = [functions] if isinstance(functions, str) or callable(functions) else list(functions)
    names: dict[str, str | Function] = {}
    for function in given:
        name = function if isinstance(function, str) else getattr(function, "__name__", "")
        if isinstance(function, str) and function not in {*_BUILT_IN, "replicas"}:
            built_in = ", ".join(sorted({*_BUILT_IN, "replicas"}))
            raise ValueError(f"analyze: no function {function!r}: there are {built_in}")
        if not isinstance(function, str) and not callable(function):
            raise ValueError(f"analyze: {function!r} is neither a name nor a function")
        is_built_in = callable(function) and name in {*_BUILT_IN, "replicas"}
        if not name or name in names or name == "failed" or is_built_in:
            raise ValueError(f"analyze: a table cannot be called {name!r}, or is there twice")
        names[name] = function
    return names


@contextlib.contextmanager
def _shown(
    progress, count: int
) -> collections.abc.Iterator[collections.abc.Callable[[int, int], None] | None]:
    if callable(progress):
        yield progress
    elif progress is False:
        yield None
    else:
        with Progress("analyze") as line:
            line.begin("recordings read", count)
            yield lambda done, total: line.reach(done)


def _keys_of(rows: Rows) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _cell(value):
    """What SQLite can hold of it: integers of 64 bits, else text."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a scalar of numpy or torch
        value = value.item()
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return str(value)
    is_plain = value is None or isinstance(value, (bool, int, float, str))
    return value if is_plain else json.dumps(value, default=str)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
