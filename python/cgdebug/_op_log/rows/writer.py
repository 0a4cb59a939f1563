"""Gives rows to a log, and knows which row shows what lies in memory."""

from __future__ import annotations

import functools
import typing

import torch
from torch.utils._mode_utils import no_dispatch

from ..._job import _accepted, _native
from .. import audit, names, written
from ..arguments import EMPTY, Arguments
from ..details import Details
from ..extras.added import Added
from ..input_ends import InputEnds
from ..memory import Memory
from ..padding_rows import PaddingRows
from .gaps import ACCOUNT
from .rereads import OP as OVERWRITTEN
from .rereads import Rereads
from .row import UNKNOWN

if typing.TYPE_CHECKING:
    from collections.abc import Callable

    from ..padding import Tail
    from ..steps import Steps
    from . import OpLog


class RowWriter:
    """selects:  whether the rows of a module are wanted; of "" those that are in no module
    captured: whether only what a CUDA graph captures is logged; else only what is not captured
    rows:     of memory: the row that wrote it last, or UNKNOWN, or EMPTY

    Thread: as the recorder that has it.
    """

    def __init__(
        self,
        log: OpLog,
        module_names: names.ModuleNames,
        selects: Callable[[str], bool],
        captured: bool,
        steps: Steps,
    ):
        self.log = log
        self.names = module_names
        self.captured = captured
        self.is_paused = False  # nothing that runs is logged; begin_run() was called before
        self.is_done = False
        self.added = Added(log, captured)
        self.padding = PaddingRows(log, captured)
        self.arguments = Arguments(log, module_names)
        self.holdings: audit.Holdings | None = None  # of a capture
        self.input_ends: InputEnds | None = None  # likewise
        self.looks_again = False  # whether what an op reads is held against its row
        self._steps = steps
        self._is_wanted = functools.cache(selects)
        self._dtypes = frozenset(_accepted.torch_dtypes())
        self._forget()

    def begin_run(self) -> None:
        self._forget()
        self.padding.begin_run()

    def _forget(self) -> None:
        self.counter = names.Counter()
        self.rows: Memory[int] = Memory()
        self._rereads = Rereads()
        self.arguments.begin_run(self.rows)

    def add(
        self,
        name: str,
        op: str,
        tensor,
        inputs,
        place: names.Place,
        details: Details | None = None,
    ) -> int:
        """What was written. Returns the number of its row; UNKNOWN: it has none."""
        if self.is_paused:
            return UNKNOWN
        if self._steps.is_between(place):
            self.rows.set(tensor, None)  # whoever reads it finds it there
            return UNKNOWN
        row = UNKNOWN
        if self.wants(name, tensor, place):
            try:
                self.padding.tell(place.site)
                details = Details.of(place.line) if details is None else details.copy()
                computed: dict[str, torch.Tensor] = {}
                if self.added.extras:
                    computed = self.added.compute(name, tensor, details)
                    written.one_look.again()
                details.views = self.arguments.take_views()
                row = self.log.add_row(
                    name, op, tensor, [one for one in inputs if one != EMPTY], place.site, details
                )
                for stat, value in computed.items():
                    self._add_computed(f"{name}.{stat}", f"stats.{stat}", value, row, place)
                if padding := self.padding.of(tensor, is_input=op == "input"):
                    self._add_computed(
                        f"{name}.padding", padding.op, padding.values, row, place, padding.tail
                    )
            except Exception as error:  # the job goes on
                _native.op_refused()
                self.note(op, error)
        self.rows.set(tensor, row)
        self.arguments.wrote(tensor)
        if self.looks_again and row != UNKNOWN:
            self._rereads.shows(row, tensor)
        return row

    def _add_computed(
        self, name: str, op: str, value, row: int, place: names.Place, tail: Tail | None = None
    ) -> None:
        try:
            self.log.add_row(name, op, value, [row], place.site, tail=tail)
        except Exception as error:  # the job goes on
            self.note(op, error)

    def look_again(self, row: int, tensor, place: names.Place, base: str, argument: str) -> int:
        """The row that shows what is in `tensor` now, where `row` showed what was written."""
        with no_dispatch(), torch.no_grad():
            changed = self._rereads.changed(row, tensor)
        if changed is None:
            return row
        own = self.counter.peek(place, base).removeprefix("fwd/")
        return self.add(f"in/{own}.{argument}", OVERWRITTEN, changed, (row,), place)

    def link(self, tensor, place: names.Place, base: str, argument: str) -> int:
        """The row that shows what is in `tensor`. Makes one if nothing has written it so far."""
        known = self.rows.get(tensor)
        if known is not None:
            return known
        name = self.names.parameter_at(tensor)
        if name and not written.fills_storage(tensor):
            name = ""  # a part of the parameter alone
        own = self.counter.peek(place, base).removeprefix("fwd/")
        stem = name or f"{own}.{argument}"
        details = Details.of(place.line)
        if name and torch.is_grad_enabled() and not tensor.requires_grad:
            details.arguments = [("requires_grad", "False")]  # `why` asks for it
        row = self.add(f"in/{stem}", "input", tensor, (), place, details)
        if self.input_ends is not None and row != UNKNOWN and not name:
            self.input_ends.read(row, tensor)
        return row

    def wants(self, name: str, tensor: torch.Tensor, place: names.Place) -> bool:
        return self._is_wanted(place.module) and self._is_logged(name, tensor)

    def _is_logged(self, name: str, tensor: torch.Tensor) -> bool:
        if tensor.dtype not in self._dtypes or tensor.is_quantized:
            self.log.note(f"tensors of {tensor.dtype} are not shown")
            return False
        if _is_captured(tensor) != self.captured:
            return False
        return _native.is_selected(_accepted.make_name(name))

    def take_input_ends(self) -> list[tuple[int, torch.Tensor]]:
        try:
            return [] if self.input_ends is None else self.input_ends.take(self.rows)
        except Exception as error:
            self.note("inputs at the end of the graph", error)
            return []

    def note(self, op: str, error: Exception) -> None:
        """Something is not logged. There may be no room for a row that says so."""
        text = f"{op}: {str(error).partition(chr(10))[0] or type(error).__name__}"
        self.log.note(text)
        if self.log.graph:
            _native.not_seen(ACCOUNT, text)


def _is_captured(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
