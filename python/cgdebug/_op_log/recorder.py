"""Logs what each op writes, while a capture or an eager scope lasts.

A TorchDispatchMode sees every op, those of backward and of optimizers too. It changes none of them:
after an op it gives what the op wrote to the log. Nothing that goes wrong in it reaches the op.

In a capture the rows of many ops share a launch. Until then the log keeps their tensors, and the
recorder has the rows computed before anything overwrites them: what ops and Triton kernels write is
known, and what others write is found by the nodes that the graph gets between two ops.
"""

from __future__ import annotations

import functools
import sys
import threading
import typing

import torch
from torch.utils._mode_utils import no_dispatch

from .._job import _accepted, _native
from . import audit, names, padding, written
from .arguments import EMPTY, Arguments
from .calls import Call, Link, part_of
from .collectives import Collective, Collectives
from .collectives.waiting import waiting
from .details import Details
from .extras.added import Added
from .input_ends import InputEnds
from .memory import Memory
from .padding_rows import PaddingRows
from .rows import OpLog
from .rows.gaps import ACCOUNT
from .rows.row import UNKNOWN, Nodes
from .steps import Steps
from .written import Kind

if typing.TYPE_CHECKING:
    from collections.abc import Callable


_WITHOUT_ROWS = (Kind.IGNORED, Kind.EMPTY, Kind.UNKNOWN)


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
        self.added = Added(log, captured)
        self.steps = Steps(log, self._next_run)
        self.holdings: audit.Holdings | None = None  # of a capture
        self.input_ends: InputEnds | None = None  # likewise
        self.is_done = False
        self._newest: tuple[str, names.Place] | None = None  # of a capture: the op that began last
        self._raised = ""  # likewise: what CUDA refused to capture
        self.is_paused = False  # nothing that runs is logged; begin_run() was called before
        self._is_wanted = functools.cache(selects)  # whether rows of a module are
        self._captured = captured
        self._counter = names.Counter()
        # The row that wrote it last, or UNKNOWN, or EMPTY.
        self._rows: Memory[int] = Memory()
        self._arguments = Arguments(log, module_names)
        self._arguments.begin_run(self._rows)
        self._collectives = Collectives()
        self._padding = PaddingRows(log, captured)
        self._dtypes = frozenset(_accepted.torch_dtypes())
        self._inside = 0  # ops and kernels that are running
        self._unseen_code = 0  # calls of code that are running, whose kernels are not seen
        self._lock = threading.RLock()

    def begin_run(self) -> None:
        with self._lock:
            self._counter = names.Counter()
            self._rows = Memory()
            self._arguments.begin_run(self._rows)
            self._collectives.begin_run()
            self.steps.begin_run()
            self.log.begin_run()
            self._padding.begin_run()

    def take_marks(self, marks: padding.Marks | None) -> None:
        with self._lock:
            self._padding.take(marks)

    def take_marks_inside(self, make: Callable[[], padding.Marks]) -> None:
        """Of a capture, which captures what make() computes."""
        self._begin()
        try:
            with self._lock:
                with no_dispatch(), torch.no_grad():
                    self._padding.take(make())
                self.log.forget_nodes()
        finally:
            self._end()

    def before(self, op, args, kwargs) -> Call | None:
        """Must be followed by after(). None: the op is of no interest."""
        self._begin()
        call = None
        try:
            plan = written.plan_of(op)
            if not waiting.is_empty:
                waiting.goes_on()
            with self._lock:
                if not (self.is_done or self.is_paused):
                    with written.one_look:
                        call = self._before(plan, args, kwargs)
                        if not self._captured:
                            waiting.calls(call, self.log)
                    if self.added.extras.hooks and plan.kind not in _WITHOUT_ROWS:
                        stem = self._counter.peek(call.place, plan.base)
                        self.added.before(op, call, stem)
        except Exception as error:  # the op goes on
            self._note(str(op), error)
            self._flush()
        return call

    def takes_apart(self, op, args, kwargs) -> None:
        """A type of tensors is about to call the ops that `op` is made of, on its parts."""
        try:
            self._arguments.takes_apart(written.plan_of(op), args, kwargs)
        except Exception as error:  # the op goes on
            self._note(str(op), error)

    def after(self, call: Call | None, result, has_failed: bool = False) -> None:
        try:
            if call is not None:
                self.added.stop(call)
            with self._lock:
                if has_failed and call is not None:
                    self._note_raised(call)
                self._take_nodes()
                if call is not None:
                    with written.one_look:
                        if has_failed:
                            self._add_inputs(call)
                        else:
                            self._after(call, result)
        except Exception as error:  # the job goes on
            self._note(call.plan.name if call else "an op", error)
        finally:
            self._end(call is not None and call.plan.kind in (Kind.C10D, Kind.FUNCTIONAL))

    def begin_kernel(self) -> None:
        """A kernel that is no op is about to run. Must be followed by will_read() and will_write()
        if they are called, by guard_kernel(), and by wrote() or wrote_unseen()."""
        self._begin()
        if self.holdings is not None:
            self.holdings.kernels += 1

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
                    if is_filled or known not in (EMPTY, UNKNOWN):
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
                text_of = self._arguments.text_of
                details.arguments = [(name, text_of(one)) for name, one in reads]
                if self.added.extras.hooks:
                    tensors = [one for _, one in reads]
                    details.columns = self.added.columns_of_kernel(place, stem, op, tensors)
                for name, tensor in writes:
                    self._add(f"{stem}.{name}", op, tensor, inputs, place, details)
        except Exception as error:  # the job goes on
            self._note(op, error)
        finally:
            self._end()

    def end(self) -> None:
        with self._lock:
            self._end_log(is_end=True)
            self.is_done = True
        if not self._captured:
            waiting.end(self.log)

    def next_run(self) -> None:
        """What comes now in an eager log belongs to another call."""
        with self._lock:
            self._next_run()

    def _next_run(self) -> None:
        self._end_log()
        self.begin_run()

    def _end_log(self, is_end: bool = False) -> None:
        self._settle()
        self._padding.end()
        self.log.add_views(self._arguments.take_views())
        self._land(self._collectives.take_waited())
        for op in self._collectives.take_unread(is_end):
            self._note_unread(op)
        try:
            self.log.end(self._take_input_ends())
        except Exception as error:
            self._note("the end of the log", error)
            self.log.tell_gaps()

    def _take_input_ends(self) -> list[tuple[int, torch.Tensor]]:
        try:
            return [] if self.input_ends is None else self.input_ends.take(self._rows)
        except Exception as error:
            self._note("inputs at the end of the graph", error)
            return []

    def why_broken(self, error: BaseException) -> str:
        """Of a capture that ends with `error`: the op that broke it, as far as that is known."""
        while error.__context__ is not None:  # what ended the block, before the end of the capture
            error = error.__context__
        if self._raised or self._newest is None:
            return self._raised or _error_text(error)
        return f"the last op before the error was {_op_text(*self._newest)}; {_error_text(error)}"

    def _note_raised(self, call: Call) -> None:
        error = sys.exc_info()[1]
        if self._captured and error is not None and _is_of_cuda(error):
            op = _op_text(call.plan.name, call.place)
            self._raised = f"{op} raised {_error_text(error)}"

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
                if self.input_ends is not None and self.input_ends.is_new:
                    self._flush()

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
        sent = self._collectives.explained(unseen)
        self.log.count(
            Nodes(explained=len(sent), unseen=tuple(name for name in unseen if name not in sent))
        )

    def _guard(self, call: Call) -> None:
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

    def _before(self, plan: written.Plan, args, kwargs) -> Call:
        if plan.kind is Kind.IGNORED:
            return Call(plan, [])
        call = Call(plan, written.arguments_of(plan, args, kwargs), args, kwargs)
        if plan.kind not in _WITHOUT_ROWS:
            call.place = names.current_place(self.names, (*args, *kwargs.values()))
            if self._captured:
                self._newest = plan.name, call.place
            else:
                self.steps.follow(call.place)
            for argument in call.arguments:
                for place, tensor in enumerate(argument.tensors):
                    self._read(call, argument, place, tensor)
        self._guard(call)
        return call

    def _read(self, call: Call, argument: written.Tensors, place: int, tensor) -> None:
        storage = written.storage_of(tensor)
        if not storage:
            return
        call.storages.add(storage)
        if argument.read and not call.plan.is_view and call.plan.kind is not Kind.WAIT:
            self._arrived(tensor)
        elif argument.mutated and not argument.read:
            by_copy = call.plan.base == "copy_"
            overwritten, others = self._collectives.take_overwritten(tensor, by_copy)
            call.overwritten += overwritten
            self._land(others)
        known = UNKNOWN if self._unseen_code else self._rows.get(tensor)
        if self.holdings is not None:
            self._hold(call, argument, tensor, known)
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
            if not written.fills_storage(tensor) and known != EMPTY:
                call.links.append(Link(argument, place, known or UNKNOWN))
            return
        if known is None and argument.mutated and names.is_compiled_memory(storage):
            known = UNKNOWN  # most likely nobody has written it yet
            self._rows.set(tensor, known)
        is_plain = call.plan.kind is Kind.PLAIN
        if known is None and not argument.mutated and (call.plan.is_exact or not is_plain):
            call.links.append(Link(argument, place, None, tensor))  # see _after
            return
        if known is None:
            base = call.plan.base
            known = self._link(tensor, call.place, base, argument.name)
        if known != EMPTY:
            call.links.append(Link(argument, place, known))

    def _hold(self, call: Call, argument: written.Tensors, tensor, known: int | None) -> None:
        """The graph is given the memory, if the capture has not made it."""
        holdings = typing.cast(audit.Holdings, self.holdings)
        base = call.plan.base
        reader = self._counter.peek(call.place, base)
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
        row = self._add(f"in/{stem}", "input", tensor, (), place)
        if self.input_ends is not None and row != UNKNOWN and not name:
            self.input_ends.read(row, tensor)
        return row

    def _after(self, call: Call, result) -> None:
        plan = call.plan
        if plan.kind is Kind.IGNORED:
            if plan.name.startswith("cgdebug."):
                self.log.drop_nodes()
            return
        outputs = written.returned_by(result)
        self._padding.follow(call, outputs)
        self._note_unseen(tensor for _, tensor in outputs)
        if plan.kind in (Kind.EMPTY, Kind.UNKNOWN):
            for _, tensor in outputs:
                content = EMPTY if plan.kind is Kind.EMPTY else UNKNOWN
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
                self._rows.set(tensor, EMPTY)
            else:
                made.append(("", place, tensor, None))
                if self.holdings is not None:
                    self.holdings.note_made(tensor, self._counter.peek(call.place, plan.base))
        if plan.kind is Kind.WAIT:
            self._waited(call, result)
            return
        if not changed and not made:
            self._arguments.viewed(call, outputs)
            return
        if plan.kind in (Kind.C10D, Kind.FUNCTIONAL):
            self._launched(call, [one[2] for one in (*changed, *made)])
            return
        if call.overwritten and self._is_landing(call):
            self._land([(collective, changed[0][2]) for collective in call.overwritten])
            return
        for collective in call.overwritten:
            self._note_unread(collective.op)
        self._add_writes(call, result, changed, made, len(outputs))

    def _add_writes(self, call: Call, result, changed, made, outputs: int) -> None:
        """A row for each tensor that the op has changed or made: (name of the argument, place among
        its tensors or among the outputs, tensor, argument).

        outputs: how many it has"""
        plan = call.plan
        for link in call.links:
            if link.row is None:
                link.row = self._link(link.tensor, call.place, plan.base, link.argument.name)
                link.tensor = None
        details = self._arguments.details_of(call)
        stem = self._counter.take(call.place, plan.base)
        if call.told is not None:
            details.columns = self.added.columns(call, stem, result)
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
            self._add(name, plan.name, tensor, inputs, call.place, details)

    def _add_inputs(self, call: Call) -> None:
        """What an op was given that raised, such as an index that is out of range."""
        for link in call.links:
            if link.row is None and link.tensor.device.type == "cpu":
                self._link(link.tensor, call.place, call.plan.base, link.argument.name)

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
        if self.is_paused:
            return UNKNOWN
        if self.steps.is_between(place):
            self._rows.set(tensor, None)  # whoever reads it finds it there
            return UNKNOWN
        row = UNKNOWN
        if self._is_wanted(place.module) and self._is_logged(name, tensor):
            try:
                self._padding.tell(place.site)
                details = Details.of(place.line) if details is None else details.copy()
                computed: dict[str, torch.Tensor] = {}
                if self.added.extras:
                    computed = self.added.compute(name, tensor, details)
                    written.one_look.again()
                details.views = self._arguments.take_views()
                row = self.log.add_row(
                    name, op, tensor, [one for one in inputs if one != EMPTY], place.site, details
                )
                for stat, value in computed.items():
                    self._add_computed(f"{name}.{stat}", f"stats.{stat}", value, row, place)
                if padding_rows := self._padding.of(tensor, is_input=op == "input"):
                    self._add_computed(f"{name}.padding", *padding_rows, row, place)
            except Exception as error:  # the job goes on
                _native.op_refused()
                self._note(op, error)
        self._rows.set(tensor, row)
        self._arguments.wrote(tensor)
        return row

    def _add_computed(self, name: str, op: str, value, row: int, place: names.Place) -> None:
        try:
            self.log.add_row(name, op, value, [row], place.site)
        except Exception as error:  # the job goes on
            self._note(op, error)

    def _is_logged(self, name: str, tensor: torch.Tensor) -> bool:
        if tensor.dtype not in self._dtypes or tensor.is_quantized:
            self.log.note(f"tensors of {tensor.dtype} are not shown")
            return False
        if _is_captured(tensor) != self._captured:
            return False
        return _native.is_selected(_accepted.make_name(name))

    # --- collectives ------------------------------------------------------------------------------

    def _launched(self, call: Call, tensors: list[torch.Tensor]) -> None:
        """The result is written by another stream, some time before somebody waits for it."""
        stem = self._counter.take(call.place, call.plan.base)
        inputs = [link.row or UNKNOWN for link in call.links]
        is_waited = call.given().get("async_op") is False
        self._collectives.sent()
        for place, tensor in enumerate(tensors):
            name = stem if len(tensors) == 1 else f"{stem}.{place}"
            details = self._arguments.details_of(call)
            one = Collective(
                *(part_of(tensor), is_waited, name, call.plan.name, inputs, call.place, details)
            )
            self._collectives.add(tensor, one)
            self._rows.set(tensor, UNKNOWN)

    def _waited(self, call: Call, result) -> None:
        for tensor in written.tensors_in(result):
            self._arrived(tensor)

    def _arrived(self, tensor: torch.Tensor) -> None:
        """The result of a collective is there: whoever reads it has waited for it."""
        self._land(self._collectives.take(tensor))

    @staticmethod
    def _is_landing(call: Call) -> bool:
        """Whether the op is how a collective that is waited for gives its result, out of memory of
        its own: gloo's reduce_scatter."""
        sources = [link for link in call.links if link.argument.read]
        return call.plan.base == "copy_" and all(link.row is None for link in sources)

    def _land(self, results: list[tuple[Collective, torch.Tensor]]) -> None:
        for one, tensor in results:
            self._add(one.name, one.op, tensor, one.inputs, one.place, one.details)

    def _note_unread(self, op: str) -> None:
        self.log.note(f"{op}: nothing read its result, so it was not seen")

    def _flush(self) -> None:
        if self.input_ends is not None:
            self.input_ends.is_new = False
        try:
            self.log.flush()
        except Exception as error:  # the job goes on
            self._note("the op log", error)

    def _note(self, op: str, error: Exception) -> None:
        """Something is not logged. There may be no room for a row that says so."""
        text = f"{op}: {str(error).partition(chr(10))[0] or type(error).__name__}"
        self.log.note(text)
        if self.log.graph:
            _native.not_seen(ACCOUNT, text)


def _op_text(name: str, place: names.Place) -> str:
    module = f" in {place.module}" if place.module else ""
    return f"{name}{module} at {place.site}"


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _is_of_cuda(error: BaseException) -> bool:
    text = str(error)
    return "CUDA" in text or "captur" in text


def _is_captured(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
