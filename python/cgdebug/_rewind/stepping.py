"""Runs a replay in pieces, and looks at what each op has written."""

from __future__ import annotations

import collections
import functools
import typing

import torch

from .memory import Spans, tensor_at
from .rows import ROW_BYTES, RowMaker, Stats, unpack, unpack_all
from .steps import Steps
from .times import Times

if typing.TYPE_CHECKING:
    from .._op_log.node_map import Given, NodeMap, Observed, Op
    from .mailbox import Question
    from .steps import Counts
    from .touched import Touched

_NO_STATS = unpack(bytes(ROW_BYTES))
_MAY_BE_UNMAPPED = "it may be in memory that the graph allocates and frees"


class Row(typing.NamedTuple):
    """What an op wrote, or an input of the graph; op: None for that.

    value: a copy, if it was asked for
    us:    for how long the device ran the op, alone; None: that is not known"""

    op: Op | None
    given: Given
    stats: Stats
    value: torch.Tensor | None = None
    us: float | None = None

    @property
    def name(self) -> str:
        """As an op log calls it."""
        if self.op is None:
            return self.given.row
        known = self.op.name if self.given.reads else self.given.row
        return self.given.made or known or self.op.op


class NotSeen(typing.NamedTuple):
    """What an op wrote, or an input, and nobody could look at.

    row:    without statistics
    reason: as a sentence
    place:  so many rows were surely written before it
    """

    row: Row
    reason: str
    place: int


class Stepped(typing.NamedTuple):
    """What was seen of a replay that ran in pieces.

    given:  by id of the op: copies of what it was called with, where they were asked for
    beside: ids of the ops that something else ran beside
    observed: by name of a probe: what it was given, of a replay that is over"""

    rows: list[Row]
    not_seen: list[NotSeen]
    counts: Counts
    given: dict[int, list[torch.Tensor]]
    beside: set[int]
    observed: dict[str, Stats]


class Stepping:
    """One replay. It allocates what it needs, but for values, before it is run.

    Fails: torch.OutOfMemoryError. Thread: that of the replay."""

    def __init__(
        self,
        apart: typing.Any,
        node_map: NodeMap,
        touched: Touched,
        device: int,
        question: Question,
    ):
        self._apart, self._device, self._question = apart, device, question
        self._maker = RowMaker(device)
        self._steps = Steps(apart, node_map)
        self._times = Times(device)
        self._inputs = self._inputs_of(touched)
        made = sum(self._is_row(one) for op in touched.ops for one in op.given)
        self._observed = self._observed_in(node_map) if question.replay is not None else {}
        self._space = self._maker.space(len(self._inputs) + made)
        self._observed_space = self._maker.space(sum(map(len, self._observed.values())))
        self._rows: list[Row] = []
        self._seen_by: list[str] = []  # probes
        self._not_seen: list[NotSeen] = []
        self._given_to: dict[int, list[torch.Tensor]] = {}
        self._error: Exception | None = None

    def run(self, torch_replay: typing.Callable[[], None], with_own: bool) -> Stepped:
        """torch_replay: of the graph, of which nothing but the opaque piece is on. torch prepares
        in it what the pieces take, such as random numbers, unless there is an opaque piece: then
        that takes all of it.

        Fails: what looking at a row has raised; all pieces have run."""
        steps, opaque = self._steps, self._apart.opaque
        if self._inputs:
            self._try(self._look_at_inputs)
        if opaque is None:
            torch_replay()
        stream = torch.cuda.current_stream(self._device).cuda_stream
        for piece in range(len(self._apart.pieces)):
            if self._question.repro:
                self._try(self._copy_given, steps.begins.get(piece, ()))
            launch: typing.Callable[[], None] = torch_replay
            if piece != opaque:
                launch = functools.partial(self._apart.launch, piece, stream, with_own)
            alone = steps.alone.get(piece)
            if alone is None:
                launch()
            else:
                self._times.run(alone, launch)
            self._try(self._look_behind, steps.ends.get(piece, ()))
            if piece in self._observed:
                self._try(self._look_at_observed, self._observed[piece])
        if self._error is not None:
            raise self._error
        stats = unpack_all(self._space)
        us = self._times.us()
        rows = [
            row._replace(stats=one, us=us.get(id(row.op))) for row, one in zip(self._rows, stats)
        ]
        observed = dict(zip(self._seen_by, unpack_all(self._observed_space)))
        return Stepped(rows, self._not_seen, steps.counts, self._given_to, steps.beside, observed)

    def _try(self, look: typing.Callable, *given) -> None:
        """The replay may be the job's: whatever fails in a look, the next piece runs."""
        if self._error is None:
            try:
                look(*given)
            except Exception as error:
                self._error = error

    def _look_at_inputs(self) -> None:
        if not self._steps.has_memory:
            self._look(None, self._inputs)
            return
        for one in self._inputs:
            self._not_seen.append(NotSeen(Row(None, one, _NO_STATS), _MAY_BE_UNMAPPED, 0))

    def _look_behind(self, ops: typing.Iterable[Op]) -> None:
        place = len(self._rows)
        for op in ops:
            seen: list[Given] = []
            for one in op.given:
                if not self._is_row(one):
                    continue
                if reason := self._steps.why_not_seen(op, one):
                    self._not_seen.append(NotSeen(Row(op, one, _NO_STATS), reason, place))
                else:
                    seen.append(one)
            if seen:
                self._look(op, seen)

    def _look_at_observed(self, observed: list[Observed]) -> None:
        tensors = self._tensors_of([one.given for one in observed])
        batch = self._maker.batch(tensors)
        self._maker.compute(batch, self._observed_space, len(self._seen_by))
        self._seen_by += [one.probe for one in observed]

    def _tensors_of(self, given: list[Given]) -> list[torch.Tensor]:
        return [tensor_at(one, self._device).contiguous() for one in given]

    def _look(self, op: Op | None, given: list[Given]) -> None:
        tensors = self._tensors_of(given)
        self._maker.compute(self._maker.batch(tensors), self._space, len(self._rows))
        for one, tensor in zip(given, tensors):
            row = Row(op, one, _NO_STATS)
            keeps = self._question.values and self._question.wants(row.name)
            self._rows.append(row._replace(value=tensor.clone()) if keeps else row)

    def _copy_given(self, ops: typing.Iterable[Op]) -> None:
        for op in ops:
            names = [Row(op, one, _NO_STATS).name for one in op.given if one.writes]
            if op.call is None or id(op) in self._steps.beside:
                continue
            if any(map(self._question.wants, names)):
                self._given_to[id(op)] = [self._copy_of(one) for one in op.call.tensors]

    def _copy_of(self, given: Given) -> torch.Tensor:
        if given.extent[0] < given.extent[1] and given.device == self._device:
            return tensor_at(given, self._device).clone()
        dtype = getattr(torch, given.dtype)
        return torch.empty(given.shape, dtype=dtype, device=torch.device("cuda", self._device))

    def _is_here(self, given: Given) -> bool:
        is_one = given.device == self._device and self._maker.can(given.dtype)
        return is_one and given.extent[0] < given.extent[1]

    def _is_row(self, given: Given) -> bool:
        return given.writes and self._is_here(given)

    def _observed_in(self, node_map: NodeMap) -> dict[int, list[Observed]]:
        """By the piece behind which memory has what a probe was given. Of a probe that was called
        several times it is not known which call is which."""
        times = collections.Counter(one.probe for one in node_map.observed)
        piece_of = self._steps.single
        found: dict[int, list[Observed]] = {}
        for one in node_map.observed:
            pieces = [piece_of.get(node, -1) for node in one.behind]
            is_one = min(pieces, default=-1) >= 0 and times[one.probe] == 1
            if is_one and self._is_here(one.given):
                found.setdefault(max(pieces), []).append(one)
        return found

    def _inputs_of(self, touched: Touched) -> list[Given]:
        """What the graph reads before any op of it has written it, once each."""
        written, found = Spans(), dict[str, "Given"]()
        for op in touched.ops:
            for one in op.given:
                is_input = one.reads and one.row.startswith("in/") and one.row not in found
                if is_input and self._is_here(one) and not written.inside(*one.extent):
                    found[one.row] = one
            for one in op.given:
                if one.writes:
                    written.add(*one.extent)
        return list(found.values())
