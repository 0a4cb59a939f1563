"""Logs what each op writes, while a capture or an eager scope lasts.

A TorchDispatchMode sees every op, those of backward and of optimizers too. It changes none of them:
after an op it gives what the op wrote to the log. Nothing that goes wrong in it reaches the op.

In a capture the rows of many ops share a launch. Until then the log keeps their tensors, and the
recorder has the rows computed before anything overwrites them: what ops and Triton kernels write is
known, and what others write is found by the nodes that the graph gets between two ops.
"""

from __future__ import annotations

import threading
import typing

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from .. import _accepted, _native
from . import names, padding, written
from .details import Details, text_of, type_of
from .extras import Extras, OpCall, Values, raised
from .memory import Memory
from .rows import ACCOUNT, UNKNOWN, Nodes, OpLog
from .written import Kind

if typing.TYPE_CHECKING:
    from collections.abc import Callable

_EMPTY = -1  # nobody has written the memory yet
_SAME_PART = frozenset({"alias", "detach", "lift_fresh"})  # views that a read does not name
_MAX_VIEW_TEXT = 200
_MAX_PARTS = 256  # of one memory, whose views are known


class Recorder:
    """Names what ops write, links it to what they read, and gives it to `log`.

    selects:  whether the rows of a module are wanted; of "" those that are in no module
    captured: whether only what a CUDA graph captures is logged; else only what is not captured
    has_kernels: whether what Triton kernels write is logged, too

    Thread: any.
    """

    def __init__(
        self,
        log: OpLog,
        module_names: names.ModuleNames,
        selects: Callable[[str], bool],
        captured: bool,
        has_kernels: bool,
    ):
        self.log = log
        self.names = module_names
        self.has_kernels = has_kernels
        self.has_pre = False  # whether what kernels are about to overwrite is logged, too
        # Whether a run ends with the step of an optimizer: what is done outside of modules after
        # that, such as loading data, is for the next run and belongs to neither.
        self.ends_with_step = False
        # Whether a call ends where a module goes on after the step of an optimizer.
        self.begins_after_step = False
        self.extras = Extras()
        self.values = Values()
        self.is_done = False
        # Told before a call that begins because another step was set.
        self.on_step: Callable[[], None] | None = None
        self._step: int | None = None  # that was set when the call began
        self._has_stepped = False
        self._selects = selects
        self._selected: dict[str, bool] = {}
        self._captured = captured
        self._counter = names.Counter()
        # The row that wrote it last, or UNKNOWN, or _EMPTY.
        self._rows: Memory[int] = Memory()
        self._views: Memory[dict[tuple, str]] = Memory()  # by part of it: how it was made
        self._new_views: list[str] = []  # since the newest row
        self._apart = ("", "")  # the newest op on DTensors, and what it was given
        self._collectives: Memory[_Collective] = Memory()  # not waited for yet
        self._row_places: padding.RowPlaces | None = None  # of this run; None: without padding
        self._marks: padding.Marks | None = None  # the newest, or those of others
        self._mixes = False  # whether the newest op may have read other rows for a row
        self._dtypes = frozenset(_accepted.torch_dtypes())
        self._inside = 0  # ops and kernels that are running
        self._unseen_code = 0  # calls of code that are running, whose kernels are not seen
        self._sent = 0  # collectives whose kernels have not been seen yet
        self._lock = threading.RLock()
        marks = padding.newest()
        if marks is not None and marks.is_taken:
            self._marks = marks
        self.take_marks(marks)

    def begin_run(self) -> None:
        with self._lock:
            self._counter = names.Counter()
            self._rows = Memory()
            self._views = Memory()
            self._new_views = []
            self._collectives = Memory()
            self._has_stepped = False
            self._row_places = None
            self.log.begin_run()
            self.take_marks(padding.newest())

    def take_marks(self, marks: padding.Marks | None) -> None:
        """Which rows of this run are real. Marks are of one run."""
        with self._lock:
            if marks is None or marks is self._marks:
                return
            self._marks = marks
            marks.is_taken = True
            if self._captured:
                self.log.note(padding.IN_GRAPH)
            else:
                self._row_places = padding.RowPlaces(marks)

    def before(self, op, args, kwargs) -> _Call | None:
        """Must be followed by after(). None: the op is of no interest."""
        self._begin()
        call = None
        try:
            plan = written.plan_of(op)
            with self._lock:
                if not self.is_done:
                    call = self._before(plan, args, kwargs)
                    if self.extras.hooks:
                        self._tell_hooks(op, call)
        except Exception as error:  # the op goes on
            self._note(str(op), error)
            self._flush()
        return call

    def takes_apart(self, op, args, kwargs) -> None:
        """A type of tensors is about to call the ops that `op` is made of, on its parts."""
        try:
            shown = [
                f"{name}={type_of(one)} {names.placements_of(one)}"
                for name, one in self._given(_Call(written.plan_of(op), [], args, kwargs))
                if isinstance(one, torch.Tensor) and names.placements_of(one)
            ]
            self._apart = (written.plan_of(op).name, ", ".join(shown)) if shown else ("", "")
        except Exception as error:  # the op goes on
            self._note(str(op), error)

    def after(self, call: _Call | None, result, has_failed: bool = False) -> None:
        try:
            with self._lock:
                self._take_nodes()
                if call is not None and not has_failed:
                    self._after(call, result)
        except Exception as error:  # the job goes on
            self._note(call.plan.name if call else "an op", error)
        finally:
            self._end(call is not None and call.plan.kind in (Kind.C10D, Kind.FUNCTIONAL))

    def begin_kernel(self) -> None:
        """A kernel that is no op is about to run. Must be followed by will_read() and will_write()
        if they are called, by guard_kernel(), and by wrote() or wrote_unseen()."""
        self._begin()

    def guard_kernel(self, writes: typing.Iterable[torch.Tensor] | None) -> None:
        """Has the pending rows computed that the kernel may overwrite. writes: None if what it
        writes is not known."""
        try:
            with self._lock:
                if (
                    writes is None
                    or not self.log.graph
                    or self.log.has_lost_memory()
                    or any(map(self._is_pending, writes))
                ):
                    self._flush()
        except Exception as error:  # the job goes on
            self._note("a kernel", error)
            self._flush()

    def wrote_unseen(self, tensors: typing.Iterable[torch.Tensor]) -> None:
        """The kernel has written the tensors, and no row shows it."""
        try:
            with self._lock:
                self._take_nodes()
                for tensor in tensors:
                    self._rows.set(tensor, UNKNOWN)
        except Exception as error:  # the job goes on
            self._note("a kernel", error)
        finally:
            self._end()

    @property
    def is_eager(self) -> bool:
        return not self._captured

    def begin_unseen_code(self) -> None:
        """Code is about to run whose kernels nobody tells the recorder of, only its ops. Must be
        followed by end_unseen_code()."""
        with self._lock:
            self._unseen_code += 1

    def end_unseen_code(self, changed, made) -> None:
        """changed: the tensors that it may have written; made: those that it returned."""
        try:
            with self._lock:
                self._unseen_code -= 1
                if self.is_done:
                    return
                self.log.note(
                    "torch.compile: what fused kernels wrote inside of compiled code is not shown"
                )
                place = names.current_place(self.names)
                for tensor in changed:
                    self._rows.set(tensor, UNKNOWN)
                stem = self._counter.take(place, "compiled")
                for number, tensor in enumerate(made):
                    name = stem if len(made) == 1 else f"{stem}.{number}"
                    if written.storage_of(tensor):
                        self._add(name, "inductor.compiled", tensor, [UNKNOWN], place)
        except Exception as error:  # the job goes on
            self._note("compiled code", error)

    def may_be_empty(self, tensors: typing.Iterable[torch.Tensor]) -> None:
        """If no row shows what is in them, nobody may have written it yet."""
        with self._lock:
            for tensor in tensors:
                if self._rows.get(tensor) is None:
                    self._rows.set(tensor, UNKNOWN)

    def is_unknown(self, tensor: torch.Tensor) -> bool:
        """Whether something has written it that no row shows."""
        with self._lock:
            return self._rows.get(tensor) == UNKNOWN

    def will_read(self, place: names.Place, base: str, reads) -> None:
        """A kernel is about to read what it then overwrites. What no row shows yet gets one now.
        reads: as for wrote()."""
        try:
            with self._lock:
                for name, tensor in reads:
                    if written.storage_of(tensor):
                        self._link(tensor, place, base, name)
        except Exception as error:  # the job goes on
            self._note(base, error)

    def will_write(self, place: names.Place, op: str, base: str, writes) -> None:
        """The kernel is about to run. writes: as for wrote(), what it overwrites. An in_out_ptr is
        read too, so somebody has written it, also if no row shows it."""
        try:
            with self._lock:
                stem = self._counter.peek(place, base)
                for name, tensor in writes:
                    known = self._rows.get(tensor)
                    is_filled = known == UNKNOWN and name.startswith("in_out_ptr")
                    if is_filled or known not in (_EMPTY, UNKNOWN):
                        inputs = [] if known is None else [known]
                        self._add(f"{stem}.{name}.pre", op, tensor, inputs, place)
        except Exception as error:  # the job goes on
            self._note(op, error)

    def wrote(self, place: names.Place, op: str, base: str, reads, writes) -> None:
        """The kernel has run. reads, writes: (name of the argument, tensor)."""
        try:
            with self._lock:
                self._take_nodes()
                inputs = [
                    self._link(one, place, base, name)
                    for name, one in reads
                    if written.storage_of(one)
                ]
                stem = self._counter.take(place, base)
                details = Details.of(place.line)
                details.arguments = [(name, self._text_of(one)) for name, one in reads]
                if self.extras.hooks:
                    told = self._told(place, stem, op, None, [one for _, one in reads], {})
                    details.columns = self.extras.columns(told)
                    self._forget_nodes()
                for name, tensor in writes:
                    self._add(f"{stem}.{name}", op, tensor, inputs, place, details)
        except Exception as error:  # the job goes on
            self._note(op, error)
        finally:
            self._end()

    def end(self) -> None:
        with self._lock:
            self._end_log()
            self.is_done = True

    def next_run(self) -> None:
        """What comes now in an eager log belongs to another call."""
        with self._lock:
            self._next_run()

    def _next_run(self) -> None:
        self._end_log()
        self.begin_run()

    def _end_log(self) -> None:
        self._settle()
        self.log.add_views(self._new_views)
        self._new_views = []
        for collective in self._collectives.values():
            self.log.note(f"{collective.op}: nothing read its result, so it was not seen")
        self._collectives = Memory()
        try:
            self.log.end()
        except Exception as error:
            self._note("the end of the log", error)
            self.log.tell_gaps()

    # --- nodes of a capture, and rows that are pending --------------------------------------------

    def _begin(self) -> None:
        """An op or a kernel is about to run."""
        with self._lock:
            if self._inside:
                self._take_nodes()
            elif self._captured and not self.is_done:
                self._find_unseen()
            self._inside += 1

    def _settle(self) -> None:
        """Nothing is pending behind this."""
        with self._lock:
            if self._captured:
                self._find_unseen()
            self._flush()

    def _end(self, is_explained: bool = False) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside or not self.log.graph:
                # What the op around it writes, and when, is not known.
                self._flush()
            else:
                self.log.finish_op(is_explained)

    def _take_nodes(self) -> None:
        if not self._captured or self.is_done:
            return
        try:
            self.log.take_nodes()
        except Exception as error:  # the job goes on
            self._note("the op log", error)

    def _find_unseen(self) -> None:
        try:
            unseen = self.log.take_unseen()
        except Exception as error:  # the job goes on
            self._note("the op log", error)
            return
        if not unseen:
            return
        # The kernels of collectives come to light when somebody waits for them.
        sent = [name for name in unseen if self._sent and "nccl" in name.lower()]
        self.log.count(
            Nodes(explained=len(sent), unseen=tuple(name for name in unseen if name not in sent))
        )

    def _guard(self, call: _Call) -> None:
        """Has the pending rows computed that the op may overwrite."""
        if not self.log.graph:
            self._flush()
        if not self.log.has_pending or call.plan.kind is Kind.IGNORED:
            return
        if (
            not call.plan.is_exact
            or self.log.has_lost_memory()
            or any(
                self._is_pending(tensor)
                for argument in call.arguments
                if argument.mutated
                for tensor in argument.tensors
            )
        ):
            self._flush()

    def _is_pending(self, tensor: torch.Tensor) -> bool:
        storage = written.storage_of(tensor)
        return self.log.is_pending(storage) if storage else tensor.numel() > 0

    # --- one op -----------------------------------------------------------------------------------

    def _before(self, plan: written.Plan, args, kwargs) -> _Call:
        if plan.kind is Kind.IGNORED:
            return _Call(plan, [])
        call = _Call(plan, written.arguments_of(plan, args, kwargs), args, kwargs)
        if plan.kind not in (Kind.EMPTY, Kind.UNKNOWN):
            call.place = names.current_place(self.names, (*args, *kwargs.values()))
            if not self._captured:
                self._follow_steps(call.place)
            for argument in call.arguments:
                for place, tensor in enumerate(argument.tensors):
                    self._read(call, argument, place, tensor)
        self._guard(call)
        return call

    def _tell_hooks(self, op, call: _Call) -> None:
        """Of the users, before the op runs."""
        plan = call.plan
        if plan.kind not in (Kind.IGNORED, Kind.EMPTY, Kind.UNKNOWN):
            stem = self._counter.peek(call.place, plan.base)
            call.told = self._told(call.place, stem, plan.name, op, call.args, dict(call.kwargs))
            self.extras.before(call.told)

    def _told(self, place: names.Place, stem: str, name: str, op, args, kwargs) -> OpCall:
        """For hooks."""
        return OpCall(
            *(stem, name, op, tuple(args), kwargs, place.module, place.phase, place.site),
            captured=self._captured,
        )

    def _follow_steps(self, place: names.Place) -> None:
        """What is done outside of modules after another step was set, such as making a batch, is of
        the next call."""
        is_first = not self.log.rows
        if place.phase == "fwd" and not is_first:
            if not place.module and self.is_of_other_step():
                has_stepped = self._has_stepped and self.ends_with_step
                self._next_run()
                self._has_stepped = has_stepped
                if self.on_step is not None:
                    self.on_step()
            elif place.module and self._has_stepped and self.begins_after_step:
                self._next_run()
        if place.phase == "opt" and self.begins_after_step:
            self._has_stepped = True
        if not self.log.rows:
            self._step = _native.current_step()

    def is_of_other_step(self) -> bool:
        """Whether a call is under way that began before another step was set."""
        return bool(self.log.rows) and self._step != _native.current_step()

    def _read(self, call: _Call, argument: written.Tensors, place: int, tensor) -> None:
        storage = written.storage_of(tensor)
        if not storage:
            return
        call.storages.add(storage)
        if call.plan.kind is not Kind.WAIT:
            self._arrived(tensor)
        known = UNKNOWN if self._unseen_code else self._rows.get(tensor)
        if self._is_store(call, argument, tensor, known):
            call.stores.add(storage)
            self._rows.set(tensor, UNKNOWN)
            self.log.note(
                f"{call.plan.name} writes a small part of {argument.name}, which is large: "
                "such a store, as a KV cache is, is not read"
            )
            return
        if not argument.read:
            # What an op overwrites in part is still made of what was there before.
            if not written.fills_storage(tensor) and known != _EMPTY:
                call.links.append(_Link(argument, place, known or UNKNOWN))
            return
        if known is None and argument.mutated and names.is_compiled_memory(storage):
            known = UNKNOWN  # most likely nobody has written it yet
            self._rows.set(tensor, known)
        is_plain = call.plan.kind is Kind.PLAIN
        if known is None and not argument.mutated and (call.plan.is_exact or not is_plain):
            call.links.append(_Link(argument, place, None, tensor))  # see _after
            return
        if known is None:
            base = call.plan.base
            known = self._link(tensor, call.place, base, argument.name)
        if known != _EMPTY:
            call.links.append(_Link(argument, place, known))

    def _is_store(self, call: _Call, argument: written.Tensors, tensor, known: int | None) -> bool:
        """Reading it would take longer than the op. Not what rows of this log have shown so far,
        nor a parameter."""
        is_other = known is None or known == UNKNOWN
        return (
            is_other
            and written.is_store(call.arguments, argument, tensor)
            and not self.names.parameter_at(tensor)
        )

    def _link(self, tensor, place: names.Place, base: str, argument: str) -> int:
        """The row that shows what is in `tensor`. Makes one if nothing has written it so far."""
        known = self._rows.get(tensor)
        if known is not None:
            return known
        name = self.names.parameter_at(tensor)
        if name and not written.fills_storage(tensor):
            name = ""  # a part of the parameter alone
        own = self._counter.peek(place, base).removeprefix("fwd/")
        stem = name or f"{own}.{argument}"
        return self._add(f"in/{stem}", "input", tensor, (), place)

    def _after(self, call: _Call, result) -> None:
        plan = call.plan
        if plan.kind is Kind.IGNORED:
            if plan.name.startswith("cgdebug."):
                self.log.drop_nodes()
            return
        outputs = written.returned_by(result)
        if self._row_places is not None and self._row_places.has_padding:
            given = written.given(plan, call.args, call.kwargs)
            self._mixes = self._row_places.follow(
                plan, call.arguments, given, [tensor for _, tensor in outputs]
            )
        self._note_unseen(tensor for _, tensor in outputs)
        if plan.kind in (Kind.EMPTY, Kind.UNKNOWN):
            for _, tensor in outputs:
                content = _EMPTY if plan.kind is Kind.EMPTY else UNKNOWN
                self._rows.set(tensor, content)
            return
        self._note_unseen(
            tensor for argument in call.arguments if argument.mutated for tensor in argument.tensors
        )
        changed = [
            (argument.name, place, tensor, argument)
            for argument in call.arguments
            if argument.mutated
            for place, tensor in enumerate(argument.tensors)
            if written.storage_of(tensor) and written.storage_of(tensor) not in call.stores
        ]
        made = []
        for place, tensor in outputs:
            storage = written.storage_of(tensor)
            if not storage or storage in call.storages:  # a view, or an argument
                continue
            if place in plan.unwritten:
                self._rows.set(tensor, _EMPTY)
            else:
                made.append(("", place, tensor, None))
        if plan.kind is Kind.WAIT:
            self._waited(call, result)
            return
        if not changed and not made:
            self._note_views(call, outputs)
            return
        if plan.kind in (Kind.C10D, Kind.FUNCTIONAL):
            self._launched(call, [one[2] for one in (*changed, *made)])
            return
        for link in call.links:
            if link.row is None:
                link.row = self._link(link.tensor, call.place, plan.base, link.argument.name)
                link.tensor = None
        details = self._details_of(call)
        stem = self._counter.take(call.place, plan.base)
        if call.told is not None:
            call.told.name, call.told.result = stem, result
            details.columns = self.extras.columns(call.told)
            self._forget_nodes()
        is_one = len(changed) + len(made) == 1
        lists = {one[0] for one in changed}
        for argument, place, tensor, source in (*changed, *made):
            name = stem
            if not is_one:
                parts = [argument] if argument and (len(lists) > 1 or made) else []
                if source is None or source.is_list or not parts:
                    parts.append(str(place))
                name = ".".join([stem, *parts])
            count = len(source.tensors) if source else len(outputs)
            inputs = call.inputs_of(place, count)
            self._add(name, plan.name, tensor, inputs, call.place, details)

    # --- what a row says beside its statistics ----------------------------------------------------

    def _details_of(self, call: _Call) -> Details:
        details = Details.of(call.place.line)
        if not details.placements and call.plan.name == self._apart[0]:
            details.placements, self._apart = f"on DTensors: {self._apart[1]}", ("", "")
        details.arguments = [
            (name, text_of(value, self._text_of)) for name, value in self._given(call)
        ]
        return details

    @staticmethod
    def _given(call: _Call) -> list[tuple[str, typing.Any]]:
        """The arguments that the op was given: those with their default may be missing."""
        known = call.plan.arguments
        found = [
            (known[place] if place < len(known) else str(place), value)
            for place, value in enumerate(call.args)
        ]
        return found + list(dict(call.kwargs).items())

    def _text_of(self, tensor: torch.Tensor) -> str:
        """ "#3.t()": the row that shows what is in the tensor, and the views that lie between."""
        if not written.storage_of(tensor):
            return type_of(tensor)
        row = self._rows.get(tensor)
        made = (self._views.get(tensor) or {}).get(_part_of(tensor))
        if row == _EMPTY:
            return f"empty {type_of(tensor)}"
        if row is None or row == UNKNOWN or row > len(self.log.rows):  # no row has it
            name = self.names.parameter_at(tensor)
            return f"{name or '?'}{made or ''}" if name or made else f"? {type_of(tensor)}"
        return f"memory of #{row}" if made is None else f"#{row}{made}"

    def _note_views(self, call: _Call, outputs: list[tuple[int, torch.Tensor]]) -> None:
        """The op has made views of memory: the reads of later rows say how."""
        of = {
            written.storage_of(tensor): tensor
            for argument in call.arguments
            for tensor in argument.tensors
        }
        rest = [value for _, value in self._given(call)]
        while rest and any(rest[0] is one for one in of.values()):
            rest.pop(0)
        given = ", ".join(text_of(value, type_of) for value in rest)
        for place, tensor in outputs:
            storage = written.storage_of(tensor)
            if not storage or storage not in of:
                continue
            source = of[storage]
            text = f".{call.plan.base}({given})" + f"[{place}]" * (len(outputs) > 1)
            self._new_views.append(f"{self._text_of(source)}{text} -> {type_of(tensor)}")
            if call.plan.base in _SAME_PART:
                continue
            parts = self._views.get(tensor) or {}
            made = parts.get(_part_of(source), "") + text
            if len(made) <= _MAX_VIEW_TEXT and len(parts) < _MAX_PARTS:
                parts.setdefault(_part_of(tensor), made)
                self._views.set(tensor, parts)

    def _note_unseen(self, tensors: typing.Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            if not written.handles_ops(type(tensor)) and (why := written.why_unseen(tensor)):
                self.log.note(why)

    def _add(
        self,
        name: str,
        op: str,
        tensor,
        inputs,
        place: names.Place,
        details: Details | None = None,
    ) -> int:
        if self.ends_with_step and self._is_between(place):
            self._rows.set(tensor, None)  # whoever reads it finds it there
            return UNKNOWN
        row = UNKNOWN
        if self._is_wanted(place.module) and self._is_logged(name, tensor):
            try:
                self._tell_rows(place)
                details = Details.of(place.line) if details is None else details.copy()
                computed: dict[str, torch.Tensor] = {}
                if self.extras:
                    computed = self._compute(name, tensor, details)
                details.views, self._new_views = self._new_views, []
                row = self.log.add_row(
                    name, op, tensor, [one for one in inputs if one != _EMPTY], place.site, details
                )
                for stat, value in computed.items():
                    self._add_computed(f"{name}.{stat}", f"stats.{stat}", value, row, place)
                self._add_padding(name, tensor, row, place, is_input=op == "input")
            except Exception as error:  # the job goes on
                _native.op_refused()
                self._note(op, error)
        self._rows.set(tensor, row)
        self._views.set(tensor, {_part_of(tensor): ""})
        return row

    # --- what users add ---------------------------------------------------------------------------

    def _compute(self, name: str, tensor, details: Details) -> dict[str, torch.Tensor]:
        """The user's statistics of a row. Why one is not there is one of its columns."""
        computed, problems = self.extras.computed(tensor, self._captured)
        if problems:
            details.columns = {**details.columns, **problems}
        if self.extras.wants_value(name):
            try:
                with no_dispatch():
                    self.values.keep(name, tensor)
            except Exception as error:  # the job goes on
                details.columns = {**details.columns, "value": raised(error)}
        self._forget_nodes()
        return computed

    def _forget_nodes(self) -> None:
        """The nodes that were captured since then are those of the user's functions, and ours."""
        if self._captured and not self.is_done:
            self.log.forget_nodes()

    def _add_computed(self, name: str, op: str, value, row: int, place: names.Place) -> None:
        try:
            self.log.add_row(name, op, value, [row], place.site, Details())
        except Exception as error:  # the job goes on
            self._note(op, error)

    def _tell_rows(self, place: names.Place) -> None:
        """In front of the first row of a run: which rows are real."""
        places = self._row_places
        if places is not None and not places.is_told:
            places.is_told = True
            mask, op = places.mask, padding.MASK_OP
            self.log.add_row(f"in/{op}", op, mask, (), place.site, Details())

    def _add_padding(self, name: str, tensor, row: int, place: names.Place, is_input: bool) -> None:
        """What lies in the padding rows of what was logged as `row`."""
        if self._row_places is None or not self._row_places.has_padding:
            return
        with no_dispatch(), torch.no_grad():
            part = self._row_places.padding_of(tensor)
        if part is None:
            return
        op = padding.MIXED_OP if self._mixes and not is_input else padding.ROW_OP
        self._add_computed(f"{name}.padding", op, part, row, place)

    def _is_between(self, place: names.Place) -> bool:
        if place.phase != "fwd" or place.module:
            self._has_stepped = place.phase == "opt"
        return self._has_stepped and place.phase == "fwd"

    def _is_wanted(self, module: str) -> bool:
        wanted = self._selected.get(module)
        if wanted is None:
            wanted = self._selected[module] = self._selects(module)
        return wanted

    def _is_logged(self, name: str, tensor: torch.Tensor) -> bool:
        if tensor.dtype not in self._dtypes or tensor.is_quantized:
            self.log.note(f"tensors of {tensor.dtype} are not shown")
            return False
        if _is_captured(tensor) != self._captured:
            return False
        return _native.is_selected(_accepted.make_name(name))

    # --- collectives ------------------------------------------------------------------------------

    def _launched(self, call: _Call, tensors: list[torch.Tensor]) -> None:
        """The result is written by another stream, some time before somebody waits for it."""
        stem = self._counter.take(call.place, call.plan.base)
        inputs = [link.row or UNKNOWN for link in call.links]
        self._sent += 1
        for place, tensor in enumerate(tensors):
            name = stem if len(tensors) == 1 else f"{stem}.{place}"
            details = self._details_of(call)
            self._collectives.set(
                tensor, _Collective(name, call.plan.name, inputs, call.place, details)
            )
            self._rows.set(tensor, UNKNOWN)

    def _waited(self, call: _Call, result) -> None:
        for tensor in written.tensors_in(result):
            self._arrived(tensor)

    def _arrived(self, tensor: torch.Tensor) -> None:
        """The result of a collective is there: whoever reads it has waited for it."""
        collective = self._collectives.pop(tensor)
        if collective is not None:
            self._add(
                collective.name,
                collective.op,
                tensor,
                collective.inputs,
                collective.place,
                collective.details,
            )

    def _flush(self) -> None:
        try:
            self.log.flush()
        except Exception as error:  # the job goes on
            self._note("the op log", error)

    def _note(self, op: str, error: Exception) -> None:
        """Something is not logged. There may be no room for a row that says so."""
        text = f"{op}: {str(error).partition(chr(10))[0] or type(error).__name__}"
        self.log.note(text)
        _native.not_seen(ACCOUNT, text)


def _part_of(tensor: torch.Tensor) -> tuple:
    """Which part of its memory a tensor has."""
    return tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype


class _Link:
    """An argument that was read, and the row that shows it. None: it will be known after the op."""

    __slots__ = ("argument", "place", "row", "tensor")

    def __init__(self, argument: written.Tensors, place: int, row: int | None, tensor=None):
        self.argument, self.place, self.row, self.tensor = argument, place, row, tensor


class _Call:
    """One call of an op. Lives as long as the call."""

    __slots__ = (
        "args",
        "arguments",
        "kwargs",
        "links",
        "place",
        "plan",
        "storages",
        "stores",
        "told",
    )

    def __init__(self, plan: written.Plan, arguments: list[written.Tensors], args=(), kwargs=()):
        self.plan, self.arguments = plan, arguments
        self.args, self.kwargs = args, kwargs
        self.told: OpCall | None = None  # what hooks were told
        self.place = names.Place("fwd", "", names.Line())
        self.links: list[_Link] = []
        self.storages: set[int] = set()
        self.stores: set[int] = set()  # of these, those that get no row

    def inputs_of(self, place: int, count: int) -> list[int]:
        """What the output at `place`, of `count` outputs, was made from."""
        return [
            link.row or UNKNOWN
            for link in self.links
            if not (
                self.plan.by_place
                and link.argument.is_list
                and len(link.argument.tensors) == count
                and link.place != place
            )
        ]


class _Collective(typing.NamedTuple):
    name: str
    op: str
    inputs: list[int]
    place: names.Place
    details: Details


def _is_captured(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class OpMode(TorchDispatchMode):
    """While it is entered, a recorder sees every op of this thread, and of the backward passes that
    it starts."""

    supports_higher_order_operators = True

    def __init__(self, recorder: Recorder):
        super().__init__()
        self.recorder = recorder

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # else compiled code runs eagerly, even after this mode has ended

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if _is_tracing():
            return func(*args, **kwargs)
        if any(map(written.handles_ops, types)):
            self.recorder.takes_apart(func, args, kwargs)
            return NotImplemented  # then torch calls the ops that it is made of
        call = self.recorder.before(func, args, kwargs)
        try:
            result = func(*args, **kwargs)
        except BaseException:
            self.recorder.after(call, None, has_failed=True)
            raise
        self.recorder.after(call, result)
        return result


def _is_tracing() -> bool:
    """Whether tensors have no values, because a compiler or DTensor asks what an op would do."""
    keys = torch._C._TorchDispatchModeKey
    return any(
        torch._C._get_dispatch_mode(key) is not None
        for key in (keys.FAKE, keys.FUNCTIONAL, keys.PROXY)
    )


def leave(mode: OpMode) -> None:
    """Takes the mode off this thread, even if modes that were entered later are still there."""
    mode.recorder.is_done = True
    stack = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    if not any(one is mode for one in stack):
        return
    above = []
    while True:
        top = torch.utils._python_dispatch._get_current_dispatch_mode_stack()[-1]
        if top is mode:
            break
        above.append(torch.utils._python_dispatch._pop_mode())
    mode.__exit__(None, None, None)
    for other in reversed(above):
        torch.utils._python_dispatch._push_mode(other)
