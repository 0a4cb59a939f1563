"""analyze(): the same questions to many recordings, by any executor, each read where it lies.

a = cgdebug.analyze("/shared/runs/", ["check", "replicas"])
print(a.replicas)                       # as cgdebug-cli ranks
a.to_pandas("check")                    # one row per recording
a.sql("select path from \\"check\\" where found")
"""

from __future__ import annotations

import collections.abc
import concurrent.futures
import dataclasses
import functools
import json
import multiprocessing
import os
import pathlib
import sqlite3
import sys
import typing

from . import _remote, recording
from ._columns import Columns
from ._reader import recording_module
from ._reports import Ranks, Row, rows_of
from .errors import RecordingError

__all__ = ["Analysis", "analyze"]

Rows = list[dict[str, typing.Any]]
Function = typing.Callable[[recording.Recording], "Rows | dict[str, typing.Any] | None"]

# What a task found out about ranks is merged here, in a time that depends little on how many
# recordings it read. So few tasks, but enough that the last one keeps no worker waiting for long.
_TASKS_PER_WORKER = 4
_MOST_PER_TASK = 256
_BAR = 30


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
               dictionaries. A worker must be able to import such a function.
    executor:  anything like concurrent.futures.Executor: Dask's client.get_executor(), MPI's
               MPIPoolExecutor. None: processes of this machine, which are started afresh, so that
               a script needs `if __name__ == "__main__":`.
    probes, replicated, tolerance, bitwise: as for cgdebug-cli ranks
    progress:  True: a bar on stderr; None: if that is a terminal; or called with (done, all)

    A worker that dies costs nothing but time: its recordings are tried once more, each by itself,
    and are in Analysis.failed only if that fails too.

    Fails: RecordingError: there is no recording; ValueError for a bad argument.
    """
    paths = _paths_of(sources)
    names = _names_of(functions)
    if "diff" in names and reference is None:
        raise ValueError("analyze: 'diff' needs reference=, the run to compare with")
    show = _progress_of(progress)
    options = _Options(
        functions=tuple(names.values()),
        probes=tuple(probes),
        replicated=tuple(replicated),
        tolerance=float(tolerance),
        bitwise=bool(bitwise),
        reference={},
        unread=[],
    )
    options.fold()  # a bad glob is an error here, not in every worker
    if "diff" in names:
        references = _paths_of(reference)
        ranks_of, unknown = _run(
            list(dict.fromkeys([*paths, *references])), _ranks_of, executor, None
        )
        known = dict(ranks_of)
        of_reference: dict[tuple[int, ...], list[str]] = {}
        for path in references:
            if path in known:
                of_reference.setdefault(known[path], []).append(path)
        options = dataclasses.replace(
            options,
            reference={
                _remote.hidden(path): of_reference.get(ranks, []) for path, ranks in ranks_of
            },
            unread=[
                f"{_remote.hidden(path)}: {unknown[path]}" for path in references if path in unknown
            ],
        )
    fold = options.fold()

    def merge(results: list[tuple[str, dict]]) -> None:
        # While the workers go on; in which order they finish changes nothing.
        for _, result in results:
            if result["fold"]:
                fold.merge(result["fold"])

    results, failed = _run(paths, functools.partial(_work, options=options), executor, show, merge)
    tables: dict[str, Rows] = {name: [] for name in names}
    fetched: dict[str, _remote.Fetched] = {}
    for path, result in sorted(results, key=lambda item: item[0]):
        path = _remote.hidden(path)
        if _remote.is_url(path):
            fetched[path] = _remote.Fetched(*result["fetched"])
        for name, rows in result["rows"].items():
            tables[name].extend({"path": path, **row} for row in rows)
        if result["failed"]:
            failed[path] = result["failed"]
    failed = {_remote.hidden(path): why for path, why in failed.items()}
    for path, why in failed.items():
        fold.add_unreadable(f"{path}: {why}")
    ranks = None
    if "replicas" in names:
        ranks = Ranks(*fold.finish())
        tables["replicas"] = [
            {key: _cell(value) for key, value in row.items()} for row in ranks.ranks
        ]
    return Analysis([_remote.hidden(path) for path in paths], tables, failed, ranks, fetched)


# --- in a worker ----------------------------------------------------------------------------------


def _work(paths: list[str], *, options: _Options) -> list[tuple[str, dict]]:
    """Everything about some recordings. What fails is a sentence, so that one damaged recording
    costs no other. The last result has what the comparison of ranks keeps of all of them."""
    fold = options.fold()
    results = [(path, _work_on(path, fold, options)) for path in paths]
    if "replicas" in options.functions:
        results[-1][1]["fold"] = fold.encode()
    return results


def _work_on(path: str, fold, options: _Options) -> dict:
    path = _remote.hidden(path)
    result: dict = {"rows": {}, "fold": b"", "failed": ""}
    before = _remote.fetched(path)
    try:
        source = functools.cache(functools.partial(recording.open, path))
        for function in options.functions:
            if function == "replicas":
                fold.add(path)
            elif isinstance(function, str):
                result["rows"][function] = _BUILT_IN[function](source(), path, options)
            else:
                rows = function(source())
                rows = [] if rows is None else [rows] if isinstance(rows, dict) else list(rows)
                result["rows"][function.__name__] = rows
    except Exception as error:
        result["failed"] = f"{type(error).__name__}: {error}"
    after = _remote.fetched(path)
    result["fetched"] = (after.requests - before.requests, after.bytes - before.bytes)
    return result


def _ranks_of(paths: list[str]) -> list[tuple[str, tuple[int, ...]]]:
    return [(path, tuple(recording.open(path).ranks)) for path in paths]


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
    work: collections.abc.Callable[[list[str]], list],
    executor: concurrent.futures.Executor | None,
    show: collections.abc.Callable[[int, int], None] | None,
    merge: collections.abc.Callable[[list], None] = lambda results: None,
) -> tuple[list[tuple[str, typing.Any]], dict[str, str]]:
    """The results by path, and why there is none. Recordings whose worker died are tried again.
    `merge` gets the results of each task when it has ended."""
    done: list[tuple[str, typing.Any]] = []

    def take(results: list) -> None:
        merge(results)
        done.extend(results)

    def tell() -> None:
        if show:
            show(len(done), len(paths))

    own = None
    if executor is None:
        executor = own = _pool(min(len(paths), os.cpu_count() or 1))
    try:
        workers = getattr(executor, "_max_workers", None) or os.cpu_count() or 1
        size = max(1, min(_MOST_PER_TASK, len(paths) // (workers * _TASKS_PER_WORKER)))
        tasks = [paths[at : at + size] for at in range(0, len(paths), size)]
        lost = _submit_all(executor, [(task, work) for task in tasks], take, tell)
        if lost and own is None:
            # Of a cluster, the other workers live on.
            alone = [([path], work) for task, _ in lost for path in task]
            lost = _submit_all(executor, alone, take, tell)
    finally:
        if own is not None:
            own.shutdown(cancel_futures=True)
    again = [path for task, _ in lost for path in task]
    failed: dict[str, str] = {}
    if again and own is None and not _is_broken(executor):
        failed = {path: why for task, why in lost for path in task}
    elif again:
        failed = _retry_here(again, work, take, tell)
    return done, failed


def _is_broken(executor: concurrent.futures.Executor) -> bool:
    """Whether a pool of processes has ended because one of them died: it takes nothing more."""
    try:
        executor.submit(int).cancel()
    except Exception:
        return True
    return False


def _submit_all(executor, tasks, take, tell) -> list[tuple[list[str], str]]:
    """Runs tasks; returns those without a result, each with the reason. After each, `tell` is
    called; what it raises is the caller's: the task is not to be run again."""
    lost: list[tuple[list[str], str]] = []
    futures = {}
    for task, work in tasks:
        try:
            futures[executor.submit(work, task)] = task
        except Exception as error:  # the pool broke, or was shut down
            lost.append((task, _why(error)))
    for future in concurrent.futures.as_completed(futures):
        try:
            take(future.result())
        except Exception as error:
            lost.append((futures[future], _why(error)))
        else:
            tell()
    return lost


def _retry_here(paths: list[str], work, take, tell) -> dict[str, str]:
    """Runs each recording once more in processes of this machine. One that kills its worker breaks
    the pool for the few that run beside it, so these then run alone."""
    width = min(len(paths), os.cpu_count() or 1)
    alone: list[str] = []
    failed: dict[str, str] = {}
    pool = None
    for at in range(0, len(paths), width):
        batch = paths[at : at + width]
        pool = pool or _pool(width)
        lost = _submit_all(pool, [([path], work) for path in batch], take, tell)
        if lost:
            pool.shutdown()
            pool = None
        alone += [path for task, _ in lost for path in task]
    if pool:
        pool.shutdown()
    for path in alone:
        with _pool(1) as single:
            for _, why in _submit_all(single, [([path], work)], take, tell):
                failed[path] = why
    return failed


def _why(error: Exception) -> str:
    return f"its worker died or could not run it: {type(error).__name__}: {error}"


def _pool(workers: int) -> concurrent.futures.ProcessPoolExecutor:
    # A copy of this process would have the threads and locks of torch.
    return concurrent.futures.ProcessPoolExecutor(
        max(workers, 1), mp_context=multiprocessing.get_context("spawn")
    )


# --- arguments ------------------------------------------------------------------------------------


def _paths_of(sources) -> list[str]:
    given = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    paths: dict[str, None] = {}
    for one in [os.fspath(path) for path in given]:
        if _remote.is_url(one):
            behind = recording_module().recordings_behind(_remote.hidden(one.rstrip("/")))
            # A worker may be another process, which has to be told the password.
            paths |= dict.fromkeys(map(_remote.with_password, behind))
            continue
        inside = sorted(map(str, pathlib.Path(one).glob("*.cgrec"))) if os.path.isdir(one) else []
        for path in inside or [one]:
            paths[path] = None
    missing = [path for path in paths if not _remote.is_url(path) and not os.path.exists(path)]
    if missing or not paths:
        raise RecordingError(
            f"analyze: {missing[0]} does not exist" if missing else "analyze: there is no recording"
        )
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
        if not name or name in names or name == "failed":
            raise ValueError(f"analyze: a table cannot be called {name!r}, or is there twice")
        names[name] = function
    return names


def _progress_of(progress) -> collections.abc.Callable[[int, int], None] | None:
    if callable(progress):
        return progress
    if progress is None:
        progress = sys.stderr.isatty()
    return _bar if progress else None


def _bar(done: int, total: int) -> None:
    full = _BAR * done // max(total, 1)
    end = "\n" if done == total else ""
    print(
        f"\r[{'#' * full}{'.' * (_BAR - full)}] {done}/{total} recordings",
        end=end,
        file=sys.stderr,
        flush=True,
    )


def _keys_of(rows: Rows) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _cell(value):
    is_plain = value is None or isinstance(value, (bool, int, float, str))
    return value if is_plain else json.dumps(value)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
