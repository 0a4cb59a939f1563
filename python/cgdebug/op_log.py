"""debug_mode(): every op of every replay, with what it computed."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
import typing
import weakref

import torch

from ._job import _native
from ._op_log import torch_debug_mode
from ._op_log.extras import after_run
from ._op_log.options import LEVELS, LogOptions
from ._op_log.rows import OpLog
from ._op_log.rows.row import UNKNOWN, Coverage
from ._op_log.scopes import Scope
from ._shared._answers import is_no_row
from ._shared._op_details import details_of
from ._shared._reader import recording_module
from .errors import DaemonError
from .snapshot import Stats, TensorSnapshot

__all__ = [
    "DebugModePair",
    "OpLogDiff",
    "OpLogView",
    "OpRow",
    "debug_mode",
    "load_debug_mode",
]

_TIMEOUT_S = 10.0
_MAX_MASKS = 5  # that a text names


class debug_mode:
    """Logs every tensor that an op writes, in every replay of what is captured inside:

        with cgdebug.debug_mode(model) as dm:
            with torch.cuda.graph(graph): loss = step(x)
        graph.replay()
        print(dm.log())                      # or in a terminal: cgdebug-cli ops

    model: names the modules of rows, as in "fwd/layers.3.attn/mm_0". Without it the modules that
           are called are named, the first outermost one without its class in front.
    level: "op", or "kernel": also what Triton kernels write, those of torch.compile among them; or
           "graph": only what a capture found, "in/layers.3.weight", and what leaves it: results,
           what is kept for backward, parameters that were changed, "out/head/mm_0".
    pre:   of level "kernel": also what a kernel is about to overwrite, "....in_out_ptr0.pre".
    frames: how many lines of the stack a row has, the one that calls the op included: 1 to 32. By
           default $CGDEBUG_OP_LOG_FRAMES, or 1.
    hooks: functions that are called after each op with an OpCall; a value that one returns, or a
           dict of values, are columns of the op's rows. In a capture they are called once, and
           must not read values of tensors. An object may also have before(call), and
           after_run(log), which log() calls: it returns columns by name, a value for each row.
           "memory": bytes that each op kept and allocated, and the peak.
    stats: by name: functions of the tensor of a row that return a tensor. It has a row of its own,
           "ROW.NAME", in each replay: what the function launches is captured with the op. Outside
           of captures a function may return a number.
    hash:  the same, as stats={"hash": function}
    values: globs of row names, "fwd/layers.3.*": the values of these rows are kept, see records()
    every: in captured graphs, the rows of replays 1, 1 + every, ... of each: the others cost next
           to nothing. By default $CGDEBUG_OP_LOG_EVERY, or 1. What runs eagerly is logged as a
           whole.
    eager: also what runs eagerly on this thread, on the CPU too, to compare a graph with. To log
           another run under the same names, enter the same object again.

    Captures of torch.cuda.graph, make_graphed_callables, of torch.compile and of engines are seen,
    with their backward passes and optimizers. Compiled code runs as before: there level "op" has
    the ops that are called between its fused kernels. Neither results nor code change. What a
    thread captures that has entered a debug_mode itself is in the log of that one alone.

    The log of a capture lasts as long as its graph; that of eager runs as long as this object.

    Fails: TypeError, ValueError for a bad argument; NativeExtensionUnavailableError. What cannot be
           logged later is in the log's `gaps`, not an error.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        level: str = "op",
        eager: bool = False,
        *,
        pre: bool = False,
        frames: int | None = None,
        hooks: typing.Any = None,
        hash: typing.Callable | None = None,
        stats: typing.Mapping[str, typing.Callable] | None = None,
        values: str | None = None,
        every: int | None = None,
    ):
        if model is not None and not isinstance(model, torch.nn.Module):
            raise TypeError(
                f"debug_mode: model is a torch.nn.Module or None, not a {type(model).__name__}"
            )
        if level not in LEVELS:
            raise ValueError(
                f"debug_mode: level must be {' or '.join(map(repr, LEVELS))}, not {level!r}"
            )
        if eager not in (True, False):
            raise ValueError(f"debug_mode: eager must be True or False, not {eager!r}")
        options = LogOptions(level, pre, frames, hooks, hash, stats, values, every)
        self._scope = Scope(model, "*", options, options.check("debug_mode"), eager=bool(eager))
        self._is_entered, self._is_eager = False, eager
        if eager:
            end = weakref.finalize(self, self._scope.forget)
            end.atexit = False

    def __enter__(self) -> debug_mode:
        if self._is_entered:
            raise RuntimeError("debug_mode: it is entered already; make another one to nest them")
        self._scope.open()
        self._is_entered = True
        return self

    def __exit__(self, *exception) -> None:
        self._is_entered = False
        self._scope.close()

    def log(self, graph: int = 0, replay: int = -1, *, timeout: float = _TIMEOUT_S) -> OpLogView:
        """As `read_log`. Then the hooks that have after_run() are given it."""
        log = read_log(self._scope.logs, graph, replay, timeout)
        after_run(self._scope.extras.hooks, log)
        return log

    def records(self, row: str, *, synchronize: bool = False) -> list[TensorSnapshot]:
        """The newest values of a row that `values` selects, oldest first. Waits for the GPU with
        `synchronize`. `cgdebug-cli show` calls them ROW.value.

        Fails: KeyError: no row of that name has been kept."""
        return records_of(self._scope, row, synchronize)

    @property
    def calls(self) -> list[int]:
        """The numbers of the calls in the eager log, oldest first."""
        return sorted(call for log in self._scope.logs for call in log.calls)

    @property
    def logs(self) -> int:
        """How many logs there are: one for each capture, and one for eager runs."""
        return len(self._scope.logs)

    def close(self) -> None:
        """Ends the logs. Graphs replay on without them."""
        self._scope.forget()

    def __repr__(self) -> str:
        missing = not self._is_eager and not self._scope.logs
        hint = " of captures; eager=True logs what runs eagerly" if missing else ""
        return f"<cgdebug.debug_mode: {len(self._scope.logs)} logs{hint}>"


@dataclasses.dataclass(frozen=True)
class OpRow:
    """One tensor that an op wrote.

    number: place in the log, from 1
    inputs: numbers of the rows that the op read
    is_covered: whether rows show all that the op read
    stats:  of this replay; None if they are lost
    arguments: "self=#3.t(), dim=1": a tensor by the row that shows it and the views between
    code:   text of the line `site`
    stack:  what that line was called by, the innermost first (debug_mode's `frames`)
    views:  that were made since the row before: "#3.t() -> f32[8,4]"
    sources: of a kernel that torch.compile made: its ops, "layers.0.mlp/relu model.py:7"
    region: of cgdebug.annotate(), torch.profiler.record_function and NVTX: "step/forward"
    placements: of an op on DTensors: how they are distributed, and what is redistributed
    columns: of hooks

    Of an eager call that is not one of the newest sixteen, what was not the same in every call is
    "(varies)".
    """

    number: int
    name: str
    op: str
    inputs: tuple[int, ...]
    is_covered: bool
    site: str
    dtype: str
    shape: tuple[int, ...]
    stats: Stats | None
    arguments: str = ""
    code: str = ""
    stack: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    region: str = ""
    placements: str = ""
    columns: typing.Mapping[str, typing.Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        what = "lost" if self.stats is None else _stats_text(self.stats)
        read = " ".join(f"#{number}" for number in self.inputs) + " ?" * (not self.is_covered)
        tensor = f"{self.dtype}{list(self.shape)}"
        read += f"  ({self.arguments})" * bool(self.arguments)
        more = "".join(f"  {name} {value}" for name, value in self.columns.items())
        more += f"  in {self.region}" * bool(self.region)
        more += f"  {self.placements}" * bool(self.placements)
        return (
            f"#{self.number:<4} {self.name:<44} {tensor:<22} {what}  <- {read}  {self.site}{more}"
        )


@dataclasses.dataclass(frozen=True)
class OpLogDiff:
    """What differs between two op logs.

    verdict: "same", "different" or "inconclusive"
    first:   the name of the first row that differs although its inputs agree; empty without one
    text:    all of it, for people
    """

    verdict: str
    first: str
    text: str

    def __str__(self) -> str:
        return self.text


class DebugModePair(typing.NamedTuple):
    """What a log of torch's DebugMode and an op log both have, as logs that
    DebugMode.check_hash_mismatches() compares.

    left_out: names of the rows that DebugMode has not, or that cannot be compared with what it has
    """

    theirs: list
    ours: list
    left_out: tuple[str, ...]


class OpLogView:
    """The rows of one replay, in the order of the ops. A sequence.

    gaps:     what is not shown, and why
    coverage: which kernels of the graph the rows explain; None for eager runs
    is_call:  `replay` is the number of an eager call
    """

    def __init__(
        self,
        rows: list[OpRow],
        gaps: list[str],
        graph: int,
        replay: int,
        coverage: Coverage | None = None,
        is_call: bool = False,
    ):
        self.is_call = is_call
        self.rows = rows
        self.gaps = gaps
        self.coverage = coverage
        self.graph = graph
        self.replay = replay

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self):
        return iter(self.rows)

    def __getitem__(self, key: int | str) -> OpRow:
        """A row by its place, from 0, or by its name."""
        if isinstance(key, str):
            for row in self.rows:
                if row.name == key:
                    return row
            raise KeyError(f"no row is called {key!r}")
        return self.rows[key]

    @property
    def masks(self) -> list[OpRow]:
        """The rows that may hold -Inf on purpose, as the mask of attention does: they have no NaN
        and no +Inf. Whether they are masks nobody can tell."""
        bad = self._nonfinite()
        if not bad:
            return []
        log = {"gaps": [], "unseen": [], "rows": _plain_rows(bad)}
        numbers = set(recording_module().masks_of_ops(log))
        return [row for row in bad if row.number in numbers]

    @property
    def first_nonfinite(self) -> OpRow | None:
        """The first row with a NaN or an Inf, except for those in `masks`."""
        masks = {row.number for row in self.masks}
        return next((row for row in self._nonfinite() if row.number not in masks), None)

    def _nonfinite(self) -> list[OpRow]:
        return [row for row in self.rows if row.stats and _is_nonfinite(row.stats)]

    @property
    def first_nan(self) -> OpRow | None:
        """The first row with a NaN."""
        return next((row for row in self.rows if row.stats and row.stats.nan), None)

    def diff(self, other: OpLogView | typing.Sequence[typing.Any]) -> OpLogDiff:
        """What differs from `other`, the reference, and where that begins. The reference may be a
        log of torch's DebugMode that was made under DebugMode.log_tensor_hashes(): then hashes and
        norms are compared, and inputs and parameters are not."""
        if isinstance(other, OpLogView):
            a, b = _plain(self), _plain(other)
        else:
            a, b = _beside_debug_mode(self, list(map(torch_debug_mode.from_torch, other)))
        verdict, first, text = recording_module().diff_ops(a, b)
        return OpLogDiff(verdict, first, text)

    def to_debug_mode(self, hash_fn: str | typing.Sequence[str] = "norm") -> list:
        """The rows as a log of torch's DebugMode, one call for each op that wrote something.

        hash_fn: "norm", "hash_tensor", or a list of both, as DebugMode.log_tensor_hashes() has it

        For two op logs of the same ops. DebugMode also logs views: to compare with its own log take
        match_debug_mode().

        Fails: ValueError; RuntimeError if torch has no DebugMode."""
        return [torch_debug_mode.to_torch(one) for one in self._calls(hash_fn)]

    def match_debug_mode(self, logs: typing.Sequence[typing.Any]) -> DebugModePair:
        """Both logs cut down to what both have:

            with DebugMode() as eager, DebugMode.log_tensor_hashes(): model(x)
            pair = log.match_debug_mode(eager.logs)
            DebugMode.check_hash_mismatches(pair.theirs, pair.ours)

        A norm that differs from torch's by less than 1e-12 of it counts as equal, because its terms
        are added up in another order; for floats of 16 and 8 bits by less than 2e-6 (TensorStats).

        Fails: RuntimeError if torch has no DebugMode."""
        leaves = torch_debug_mode.match(self.rows, list(map(torch_debug_mode.from_torch, logs)))
        theirs, ours = torch_debug_mode.matched(leaves)
        compared = {leaf.row.name for leaf in leaves if torch_debug_mode.is_comparable(leaf)}
        return DebugModePair(
            [torch_debug_mode.to_torch(one) for one in theirs],
            [torch_debug_mode.to_torch(one) for one in ours],
            tuple(row.name for row in self.rows if row.name not in compared),
        )

    def save_debug_mode(self, path, hash_fn: str | typing.Sequence[str] = "norm") -> None:
        """Writes to_debug_mode() as JSON that DebugMode.load_logs() of torch 2.14 and later reads.
        Needs no such torch.

        Fails: OSError, ValueError."""
        torch_debug_mode.save(self._calls(hash_fn), path)

    def _calls(self, hash_fn: str | typing.Sequence[str]) -> list[torch_debug_mode.Call]:
        hashes = [hash_fn] if isinstance(hash_fn, str) else list(hash_fn)
        if not hashes or not set(hashes) <= set(torch_debug_mode.HASHES):
            raise ValueError(
                f"hash_fn must be one or both of "
                f"{', '.join(map(repr, torch_debug_mode.HASHES))}, not {hash_fn!r}"
            )
        return torch_debug_mode.calls_of(self.rows, hashes)

    def __str__(self) -> str:
        lines = [f"{self._title()}: {len(self.rows)} rows"]
        if self.coverage is not None:
            lines[0] += f", {self.coverage}"
        first, nan = self.first_nonfinite, self.first_nan
        for row in self.rows:
            mark = "  <-- first NaN" if row is nan else "  <-- first non-finite" * (row is first)
            lines.append(f"{row}{mark}")
        masks = self.masks
        if masks:
            named = ", ".join(f"#{row.number} {row.name}" for row in masks[:_MAX_MASKS])
            more = len(masks) - _MAX_MASKS
            lines.append(
                f"constant -Inf, and nothing else that is not finite (a mask?): {named}"
                + f" and {more} more" * (more > 0)
            )
        if self.coverage is not None:
            lines += self.coverage.lines()
        return "\n".join([*lines, *(f"not shown: {gap}" for gap in self.gaps)])

    def _repr_html_(self) -> str:
        from ._read import _notebook

        return _notebook.of_op_log(self)

    def __repr__(self) -> str:
        return f"<op log, {self._title()}: {len(self.rows)} rows>"

    def _title(self) -> str:
        if self.is_call:
            return f"call {self.replay}"
        return f"{f'graph {self.graph}' if self.graph else 'eager'}, replay {self.replay}"


def load_debug_mode(path) -> list:
    """A log that DebugMode.save_logs() or OpLogView.save_debug_mode() wrote, for OpLogView.diff()
    and match_debug_mode(). Needs no torch that writes such files. Its calls are none of torch's
    own: for DebugMode.check_hash_mismatches() read the file with DebugMode.load_logs().

    Fails: OSError; ValueError: it is no such file."""
    return torch_debug_mode.load(path)


def records_of(scope: Scope, row: str, synchronize: bool) -> list[TensorSnapshot]:
    """Fails: KeyError."""
    kept = scope.values
    if row not in kept:
        names = ", ".join(itertools.islice(kept, _MAX_MASKS)) or "none"
        raise KeyError(f"records: no values of {row!r} are kept; those that are: {names}")
    return kept[row].records(synchronize=synchronize)


def read_log(logs: list[OpLog], graph: int, replay: int, timeout: float) -> OpLogView:
    """What one replay of one graph wrote, as the daemon has read it. Waits for the GPU.

    graph:  which of the logs, in the order of capture: from 0, -1 the last
    replay: from 1; of an eager log the number of the call; -1 is the last one

    Fails: IndexError without such a log; KeyError without such a replay; ConnectionError without a
           daemon."""
    from . import client

    if not logs:
        raise IndexError("log: nothing has been captured, and nothing was logged eagerly")
    if not -len(logs) <= graph < len(logs):
        raise IndexError(f"log: there are {len(logs)} logs, and {graph} is none of them")
    log = logs[graph]
    gaps = _gaps_of(log, 0)
    if not log.rows and replay == -1:  # a run of which nothing can be shown
        return OpLogView([], gaps, log.graph, 0, log.coverage)
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    deadline = time.monotonic() + timeout
    try:
        connection = client.connect(timeout=max(timeout, 1.0))
    except ConnectionError as error:
        problem = _native.daemon_problem() or error
        raise ConnectionError(f"log: the daemon reads op logs, and {problem}") from error
    with connection:
        is_read = _wait_until_read(log, deadline)
        session = _native.probe_module().session()["uuid"]
        if log.calls:
            call, rows = _rows_of_call(connection, session, log, replay, deadline)
            return OpLogView(rows, _gaps_of(log, call), 0, call, is_call=True)
        replay, rows = _rows_of_replay(connection, session, log, replay, deadline)
    if replay < 1 or (rows and all(row.stats is None for row in rows)):
        if not is_read:
            raise KeyError(
                f"log: the daemon has not read this graph within {timeout:g} s. "
                f"Type: cgdebug-cli status"
            )
        raise KeyError(f"log: the daemon has no replay {replay} of this graph")
    return OpLogView(rows, gaps, log.graph, replay, log.coverage)


def _gaps_of(log: OpLog, call: int) -> list[str]:
    return [f"{gap}{f' ({n} times)' * (n > 1)}" for gap, n in log.gaps_of(call).items()]


def _wait_until_read(log: OpLog, deadline: float) -> bool:
    """Whether the daemon has read every row in time."""
    # A daemon that was not started by this process may not have found it yet.
    while not (is_read := log.wait(max(deadline - time.monotonic(), 0))):
        if time.monotonic() >= deadline:
            break
        time.sleep(0.01)
    return is_read


def _rows_of_replay(
    connection, session: str, log: OpLog, replay: int, deadline: float
) -> tuple[int, list[OpRow]]:
    """The number of the replay that `replay` means, and its rows."""
    slots = _slots_of(connection, session, log, deadline)
    if replay < 0:
        newest = max((slot.replay for slot in slots.values()), default=0)
        newest -= max(newest - 1, 0) % log.every
        replay = newest + (1 + replay) * log.every
    if replay > 0 and (replay - 1) % log.every:
        raise KeyError(
            f"log: replay {replay} has no rows: with every={log.every} replays 1, {1 + log.every}, "
            "... have"
        )
    found = _stats_at(connection, slots, replay)
    rows = [
        OpRow(
            row.number,
            row.name,
            row.op,
            tuple(number for number in row.inputs if number != UNKNOWN),
            UNKNOWN not in row.inputs,
            row.site,
            row.dtype,
            row.shape,
            found.get(row.name),
            **_told(row.details.to_dict()),
        )
        for row in log.rows
    ]
    return replay, rows


def _rows_of_call(
    connection, session: str, log: OpLog, replay: int, deadline: float
) -> tuple[int, list[OpRow]]:
    """The number of the call that `replay` means, and its rows."""
    known = list(log.calls)
    if replay not in known and not -len(known) <= replay < 0:
        raise KeyError(f"log: call {replay} is none of this log: it has {_ranges(known)}")
    call = replay if replay > 0 else known[replay]
    expected = len(log.rows) if call == known[-1] else 1
    while True:
        slots = {
            slot.slot: slot
            for slot in connection._probes(session=session, rows_of={"graph_id": 0})
            if slot.op and slot.in_body and not is_no_row(slot.op)
        }
        found = {}
        if slots:
            key = next(iter(slots.values())).session
            with contextlib.suppress(DaemonError):  # a slot that has gone meanwhile
                found = _history(connection, key, slots, call)
        if len(found) >= expected or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    if not found:
        raise KeyError(f"log: the daemon does not have call {call}: cgdebug-cli status")
    rows = [_row_of(slots[slot], stats, log, call) for slot, stats in found.items()]
    return call, sorted(rows, key=lambda row: row.number)


def _told(details: typing.Mapping[str, typing.Any]) -> dict[str, typing.Any]:
    """Fields of OpRow, of what Details.to_dict() says."""
    return {
        "arguments": str(details.get("args", "")),
        "code": str(details.get("code", "")),
        "stack": tuple(details.get("stack", ())),
        "views": tuple(details.get("views", ())),
        "sources": tuple(details.get("from", ())),
        "region": str(details.get("region", "")),
        "placements": str(details.get("placements", "")),
        "columns": dict(details.get("columns", {})),
    }


def _row_of(slot, stats: Stats, log: OpLog, call: int) -> OpRow:
    """slot.op: as layout::SlotRegistration::op, of an eager call."""
    number, op, *words = slot.op.split(" ")
    exact = log.details_of(call, int(number))
    inputs = tuple(int(word) for word in words if word.isdigit())
    return OpRow(
        int(number),
        slot.name,
        op,
        inputs,
        len(inputs) == len(words),
        slot.site,
        slot.dtype,
        tuple(slot.shape),
        stats,
        **_told(details_of(slot.details) if exact is None else exact.to_dict()),
    )


def _ranges(numbers: list[int]) -> str:
    """ "1..4, 7" of ascending numbers."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    texts = [f"{a}..{b}" if a != b else str(a) for a, b in parts]
    return ", ".join(texts[-8:])


def _slots_of(connection, session: str, log: OpLog, deadline: float) -> dict[str, typing.Any]:
    """By name: the slots of the rows that are open now. Other eager logs, and other runs of this
    one, may have rows of the same names."""
    wanted = {row.name for row in log.rows}
    while True:
        found: dict[str, typing.Any] = {}
        for slot in connection._probes(session=session, rows_of={"graph_id": log.graph}):
            if slot.name not in wanted or not slot.op or slot.retired:
                continue
            known = found.get(slot.name)
            if known is None or log.likeness(slot) >= log.likeness(known):
                found[slot.name] = slot
        if len(found) == len(wanted) or time.monotonic() > deadline:
            return found
        time.sleep(0.01)


def _stats_at(connection, slots, replay: int) -> dict[str, Stats]:
    """By name: what the daemon has of that replay."""
    found = {}
    names = {}
    for name, slot in slots.items():
        if slot.replay == replay and slot.last_stats is not None:
            found[name] = _plain_stats(slot.last_stats)
        else:
            names[slot.slot] = name
    if not names:
        return found
    session = next(iter(slots.values())).session
    for slot, stats in _history(connection, session, names, replay).items():
        found[names[slot]] = stats
    return found


def _history(connection, session: str, slots, replay: int) -> dict[int, Stats]:
    """By slot, of those that are in `slots`: the statistics of that replay."""
    found = {}
    fields = {"session": session, "slot": min(slots), "first": replay, "last": replay}
    while True:
        reply = connection._ask("history", last_slot=max(slots), **fields)
        for entry in reply.entries:
            if entry.slot in slots and entry.stats is not None:
                found[entry.slot] = _plain_stats(entry.stats)
        if not reply.more or not reply.entries:
            return found
        last = reply.entries[-1]
        fields.update(slot=last.slot, first_ordinal=last.ordinal + 1)


def _plain_stats(stats) -> Stats:
    return Stats(**{name: getattr(stats, name) for name in Stats.__dataclass_fields__})


def _plain(view: OpLogView) -> dict[str, typing.Any]:
    """As `diff_ops` of the native module takes it."""
    return {
        "gaps": view.gaps,
        "unseen": [
            (after, before, len(names), ", ".join(dict.fromkeys(names)))
            for after, before, names in (view.coverage.unseen if view.coverage else ())
        ],
        "rows": _plain_rows(view.rows),
    }


def _plain_rows(rows: typing.Iterable[OpRow]) -> list[dict[str, typing.Any]]:
    return [
        {
            "number": row.number,
            "name": row.name,
            "op": row.op,
            "inputs": row.inputs,
            "is_covered": row.is_covered,
            "site": row.site,
            "dtype": row.dtype,
            "shape": row.shape,
            "stats": row.stats and dataclasses.asdict(row.stats),
        }
        for row in rows
    ]


def _beside_debug_mode(view: OpLogView, calls: list[torch_debug_mode.Call]):
    """Both logs as `diff_ops` takes them, with no other numbers than the norms and the hashes."""
    leaves = torch_debug_mode.match(view.rows, calls)
    inputs = {row.number for row in view.rows if row.op == "input"}
    ours = _plain(view)
    a = {
        row["number"]: row | {"stats": None} for row in ours["rows"] if row["number"] not in inputs
    }
    b = []
    for row in a.values():
        row["inputs"] = tuple(number for number in row["inputs"] if number not in inputs)
    for leaf in leaves:
        norm, xor_hash = torch_debug_mode.judge(leaf)
        if norm is None and xor_hash is None:
            continue
        shape, row = leaf.row.shape, a[leaf.row.number]
        their_norm = None if norm is None else leaf.norm
        their_hash = None if xor_hash is None else leaf.xor_hash
        row["stats"] = dataclasses.asdict(torch_debug_mode.stats_of(norm, xor_hash, shape))
        stats = torch_debug_mode.stats_of(their_norm, their_hash, shape)
        b.append(row | {"stats": dataclasses.asdict(stats)})
    for number, (call, dtype, shape) in enumerate(torch_debug_mode.unmatched(calls, leaves), 1):
        b.append(
            {
                "number": len(view.rows) + number,
                "name": f"debug_mode/{call.name}_{number}",
                "op": call.name,
                "inputs": (),
                "is_covered": False,
                "site": call.stack or "",
                "dtype": dtype,
                "shape": shape,
                "stats": None,
            }
        )
    b.sort(key=lambda row: row["number"])
    gaps = list(view.gaps)
    if inputs:
        gaps.append("a log of DebugMode has no rows of what the ops found: inputs and parameters")
    ours |= {"gaps": gaps, "rows": list(a.values())}
    return ours, {"gaps": [], "unseen": [], "rows": b}


def _is_nonfinite(stats: Stats) -> bool:
    return stats.nan + stats.pos_inf + stats.neg_inf > 0


def _stats_text(stats: Stats) -> str:
    hash_text = "" if stats.xor_hash is None else f"  hash {stats.xor_hash:016x}"
    bad = ""
    if _is_nonfinite(stats):
        bad = f"  {stats.nan} NaN, {stats.pos_inf + stats.neg_inf} Inf"
    return f"l1 {stats.l1:.6g}{hash_text}  |x| {stats.abs_max:.4g}{bad}"
