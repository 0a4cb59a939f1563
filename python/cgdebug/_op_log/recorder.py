"""Logs what each op writes, while a capture or an eager scope lasts.

A TorchDispatchMode sees every op, those of backward and of optimizers too. It changes none of them:
after an op it gives what the op wrote to the log. Nothing that goes wrong in it reaches the op.

In a capture the rows of many ops share a launch. Until then the log keeps their tensors, and the
recorder has the rows computed before anything overwrites them: what ops and Triton kernels write is
known, and what others write is found by the nodes that the graph gets between two ops.
"""

from __future__ import annotations

import sys
import threading
import typing

import torch
from torch.utils._mode_utils import no_dispatch

from . import audit, names, padding, written
from .arguments import EMPTY
from .calls import Call, Link
from .collectives import Collectives
from .collectives.waiting import waiting
from .following.kernel_rows import KernelRows
from .rows import OpLog
from .rows.guard import Guard
from .rows.row import UNKNOWN
from .rows.writer import RowWriter
from .steps import Steps
from .written import Kind

if typing.TYPE_CHECKING:
    from collections.abc import Callable


_WITHOUT_ROWS = (Kind.IGNORED, Kind.EMPTY, Kind.UNKNOWN)


class Recorder:
    """Names what ops write, links it to what they read, and gives it to `log`.

    selects, captured: as RowWriter
    has_kernels: whether what Triton kernels write is logged, too

    Thread: any.
    """

    writer_type = RowWriter
    kernels_type = KernelRows

    def __init__(
        self,
        log: OpLog,
        module_names: names.ModuleNames,
        selects: Callable[[str], bool],
        captured: bool,
        has_kernels: bool,
    ):
        self._lock = threading.RLock()
        self.log = log
        self.names = module_names
        self.steps = Steps(log, self._next_run)
        self.writer = self.writer_type(log, module_names, selects, captured, self.steps)
        self._collectives = Collectives(self.writer)
        self.guard = Guard(self.writer, self._collectives, self._lock)
        self.kernels = self.kernels_type(self.writer, self.guard, self._lock, has_kernels)
        self.last_op = LastOp()

    @property
    def is_eager(self) -> bool:
        return not self.writer.captured

    def begin_run(self) -> None:
        with self._lock:
            self.log.begin_run()
            self.writer.begin_run()
            self._collectives.begin_run()
            self.steps.begin_run()

    def take_marks(self, marks: padding.Marks | None) -> None:
        with self._lock:
            self.writer.padding.take(marks)

    def take_marks_inside(self, make: Callable[[], padding.Marks]) -> None:
        """Of a capture, which captures what make() computes."""
        self.guard.begin()
        try:
            with self._lock:
                with no_dispatch(), torch.no_grad():
                    self.writer.padding.take(make())
                self.log.forget_nodes()
        finally:
            self.guard.end()

    def before(self, op, args, kwargs) -> Call | None:
        """Must be followed by after(). None: the op is of no interest."""
        self.guard.begin()
        call = None
        try:
            plan = written.plan_of(op)
            if not waiting.is_empty:
                waiting.goes_on()
            with self._lock:
                if not (self.writer.is_done or self.writer.is_paused):
                    with written.one_look:
                        call = self._before(plan, args, kwargs)
                        if not self.writer.captured:
                            waiting.calls(call, self.log)
                    if self.writer.added.extras.hooks and plan.kind not in _WITHOUT_ROWS:
                        stem = self.writer.counter.peek(call.place, plan.base)
                        self.writer.added.before(op, call, stem)
        except Exception as error:  # the op goes on
            self.writer.note(str(op), error)
            self.guard.flush()
        return call

    def takes_apart(self, op, args, kwargs) -> None:
        """A type of tensors is about to call the ops that `op` is made of, on its parts."""
        try:
            self.writer.arguments.takes_apart(written.plan_of(op), args, kwargs)
        except Exception as error:  # the op goes on
            self.writer.note(str(op), error)

    def after(self, call: Call | None, result, has_failed: bool = False) -> None:
        try:
            if call is not None:
                self.writer.added.stop(call)
            with self._lock:
                if has_failed and call is not None and self.writer.captured:
                    self.last_op.raises(call.plan.name, call.place)
                self.guard.take_nodes()
                if call is not None:
                    with written.one_look:
                        if has_failed:
                            self._add_inputs(call)
                        else:
                            self._after(call, result)
        except Exception as error:  # the job goes on
            self.writer.note(call.plan.name if call else "an op", error)
        finally:
            self.guard.end(call is not None and call.plan.kind in (Kind.C10D, Kind.FUNCTIONAL))

    def end(self) -> None:
        with self._lock:
            self._end_log(is_end=True)
            self.writer.is_done = True
        if not self.writer.captured:
            waiting.end(self.log)

    def next_run(self) -> None:
        """What comes now in an eager log belongs to another call."""
        with self._lock:
            self._next_run()

    def _next_run(self) -> None:
        self._end_log()
        self.begin_run()

    def _end_log(self, is_end: bool = False) -> None:
        self.guard.settle()
        self.writer.padding.end()
        self.log.add_views(self.writer.arguments.take_views())
        self._collectives.end(is_end)
        try:
            self.log.end(self.writer.take_input_ends())
        except Exception as error:
            self.writer.note("the end of the log", error)
            self.log.tell_gaps()

    # --- one op -----------------------------------------------------------------------------------

    def _before(self, plan: written.Plan, args, kwargs) -> Call:
        if plan.kind is Kind.IGNORED:
            return Call(plan, [])
        call = Call(plan, written.arguments_of(plan, args, kwargs), args, kwargs)
        if plan.kind not in _WITHOUT_ROWS:
            call.place = names.current_place(self.names, (*args, *kwargs.values()))
            if self.writer.captured:
                self.last_op.begins(plan.name, call.place)
            else:
                self.steps.follow(call.place)
            for argument in call.arguments:
                for place, tensor in enumerate(argument.tensors):
                    self._read(call, argument, place, tensor)
        self.guard.before(call)
        return call

    def _read(self, call: Call, argument: written.Tensors, place: int, tensor) -> None:
        storage = written.storage_of(tensor)
        if not storage:
            return
        call.storages.add(storage)
        if argument.read and not call.plan.is_view and call.plan.kind is not Kind.WAIT:
            self._collectives.arrived(tensor)
        elif argument.mutated and not argument.read:
            self._collectives.is_overwritten(call, tensor)
        known = UNKNOWN if self.kernels.are_unseen else self.writer.rows.get(tensor)
        if self.writer.holdings is not None:
            self._hold(call, argument, tensor, known)
        if self._is_store(call, argument, tensor, known):
            call.stores.add(storage)
            self.writer.rows.set(tensor, UNKNOWN)
            self.log.note(
                f"{call.plan.name} writes a small part of {argument.name}, which is large: "
                "such a store, as a KV cache is, is not read"
            )
            return
        if not argument.read:
            # What an op overwrites in part is still made of what was there before.
            if not written.fills_storage(tensor) and known != EMPTY:
                call.links.append(Link(argument, place, known or UNKNOWN))
            return
        if known is None and argument.mutated and names.is_compiled_memory(storage):
            known = UNKNOWN  # most likely nobody has written it yet
            self.writer.rows.set(tensor, known)
        is_plain = call.plan.kind is Kind.PLAIN
        if known is None and not argument.mutated and (call.plan.is_exact or not is_plain):
            call.links.append(Link(argument, place, None, tensor))  # see _after
            return
        base = call.plan.base
        if known is None:
            known = self.writer.link(tensor, call.place, base, argument.name)
        elif self._looks_again(call, known):
            known = self.writer.look_again(known, tensor, call.place, base, argument.name)
        if known != EMPTY:
            call.links.append(Link(argument, place, known))

    def _looks_again(self, call: Call, known: int) -> bool:
        """A view reads no memory."""
        is_row = known not in (EMPTY, UNKNOWN)
        return self.writer.looks_again and is_row and not call.plan.is_view

    def _hold(self, call: Call, argument: written.Tensors, tensor, known: int | None) -> None:
        """The graph is given the memory, if the capture has not made it."""
        holdings = typing.cast(audit.Holdings, self.writer.holdings)
        base = call.plan.base
        reader = self.writer.counter.peek(call.place, base)
        if known is None or holdings.has(tensor):
            label = f"in/{reader.removeprefix('fwd/')}.{argument.name}"
            holdings.note(tensor, label, reader, base)

    def _is_store(self, call: Call, argument: written.Tensors, tensor, known: int | None) -> bool:
        """Reading it would take longer than the op. Not what rows of this log have shown so far,
        nor a parameter."""
        is_other = known is None or known == UNKNOWN
        return (
            is_other
            and written.is_store(call.arguments, argument, tensor)
            and not self.names.parameter_at(tensor)
        )

    def _after(self, call: Call, result) -> None:
        plan = call.plan
        if plan.kind is Kind.IGNORED:
            if plan.name.startswith("cgdebug."):
                self.log.drop_nodes()
            return
        outputs = written.returned_by(result)
        self.writer.padding.follow(call, outputs)
        self._note_unseen(tensor for _, tensor in outputs)
        if plan.kind in (Kind.EMPTY, Kind.UNKNOWN):
            for _, tensor in outputs:
                content = EMPTY if plan.kind is Kind.EMPTY else UNKNOWN
                self.writer.rows.set(tensor, content)
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
                self.writer.rows.set(tensor, EMPTY)
            else:
                made.append(("", place, tensor, None))
                if self.writer.holdings is not None:
                    stem = self.writer.counter.peek(call.place, plan.base)
                    self.writer.holdings.note_made(tensor, stem)
        if plan.kind is Kind.WAIT:
            for tensor in written.tensors_in(result):
                self._collectives.arrived(tensor)
            return
        if not changed and not made:
            self.writer.arguments.viewed(call, outputs)
            return
        if plan.kind in (Kind.C10D, Kind.FUNCTIONAL):
            self._collectives.launched(call, [one[2] for one in (*changed, *made)])
            return
        if call.overwritten and self._collectives.landed(call, changed[0][2]):
            return
        self._add_writes(call, result, changed, made, len(outputs))

    def _add_writes(self, call: Call, result, changed, made, outputs: int) -> None:
        """A row for each tensor that the op has changed or made: (name of the argument, place among
        its tensors or among the outputs, tensor, argument).

        outputs: how many it has"""
        plan = call.plan
        for link in call.links:
            if link.row is None:
                link.row = self.writer.link(link.tensor, call.place, plan.base, link.argument.name)
                link.tensor = None
        details = self.writer.arguments.details_of(call)
        stem = self.writer.counter.take(call.place, plan.base)
        if call.told is not None:
            details.columns = self.writer.added.columns(call, stem, result)
            written.one_look.again()
        is_one = len(changed) + len(made) == 1
        lists = {one[0] for one in changed}
        for argument, place, tensor, source in (*changed, *made):
            name = stem
            if not is_one:
                parts = [argument] if argument and (len(lists) > 1 or made) else []
                if source is None or source.is_list or not parts:
                    parts.append(str(place))
                name = ".".join([stem, *parts])
            count = len(source.tensors) if source else outputs
            inputs = call.inputs_of(place, count)
            self.writer.add(name, plan.name, tensor, inputs, call.place, details)

    def _add_inputs(self, call: Call) -> None:
        """What an op was given that raised, such as an index that is out of range."""
        for link in call.links:
            if link.row is None and link.tensor.device.type == "cpu":
                self.writer.link(link.tensor, call.place, call.plan.base, link.argument.name)

    def _note_unseen(self, tensors: typing.Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            if not written.handles_ops(type(tensor)) and (why := written.why_unseen(tensor)):
                self.log.note(why)


class LastOp:
    """Of a capture: what may have broken it."""

    def __init__(self) -> None:
        self._newest: tuple[str, names.Place] | None = None  # that began last
        self._raised = ""  # what CUDA refused to capture

    def begins(self, op: str, place: names.Place) -> None:
        self._newest = op, place

    def raises(self, op: str, place: names.Place) -> None:
        error = sys.exc_info()[1]
        if error is not None and _is_of_cuda(error):
            self._raised = f"{_op_text(op, place)} raised {_error_text(error)}"

    def why_broken(self, error: BaseException) -> str:
        """Of a capture that ends with `error`: the op that broke it, as far as that is known."""
        while error.__context__ is not None:  # what ended the block, before the end of the capture
            error = error.__context__
        if self._raised or self._newest is None:
            return self._raised or _error_text(error)
        return f"the last op before the error was {_op_text(*self._newest)}; {_error_text(error)}"


def _op_text(name: str, place: names.Place) -> str:
    module = f" in {place.module}" if place.module else ""
    return f"{name}{module} at {place.site}"


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _is_of_cuda(error: BaseException) -> bool:
    text = str(error)
    return "CUDA" in text or "captur" in text
