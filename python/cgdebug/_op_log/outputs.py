"""Level "graph": what leaves a capture, or an eager scope, beside what it found.

What leaves is known when the capture ends: memory that was written and that somebody still holds,
such as a result, a tensor that was saved for backward, a parameter that the optimizer changed.
Until then only weak references are kept, so nothing lives longer than it would.
"""

from __future__ import annotations

import typing

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._mode_utils import no_dispatch

from . import names, written
from .recorder import Recorder
from .rows.writer import RowWriter

_FIRST_UNLOGGED = 1 << 32  # numbers of what was written and has no row of its own


class _Written(typing.NamedTuple):
    """What was written last into some memory.

    is_whole: whether it is all that its storage has
    source:   the row that shows it, or its number
    """

    storage: StorageWeakRef
    is_whole: bool
    name: str
    op: str
    place: names.Place
    source: int
    dtype: torch.dtype
    device: torch.device
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def part(self) -> tuple:
        """Which part of the storage it is."""
        return self.dtype, self.offset, self.shape, self.stride

    def tensor(self) -> torch.Tensor | None:
        """None if nobody holds it any more."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None:
            return None
        whole = torch.empty(0, dtype=self.dtype, device=self.device)
        return whole.set_(storage, self.offset, self.shape, self.stride)


class OutputWriter(RowWriter):
    """Also keeps what was written last, of which add_outputs() makes rows "out/layers.3/add_1".

    has_ops: what ops write is logged as well; without it a row of "out/" is linked to the rows of
             "in/" that it was made from
    """

    def __init__(self, *args):
        super().__init__(*args)
        self.has_ops = True
        self._written: dict[int, dict[tuple, _Written]] = {}  # by storage and part
        self._sources: dict[int, frozenset[int]] = {}  # by number: the rows of "in/"
        self._next = _FIRST_UNLOGGED

    def begin_run(self) -> None:
        super().begin_run()
        self._written, self._sources = {}, {}

    def add(self, name: str, op: str, tensor, inputs, place: names.Place, details=None) -> int:
        if op == "input":
            return super().add(name, op, tensor, inputs, place, details)
        if self.has_ops:
            row = super().add(name, op, tensor, inputs, place, details)
        else:
            row, self._next = self._next, self._next + 1
            self._sources[row] = self._rows_behind(inputs)
            self.rows.set(tensor, row)
        if self.wants(name, tensor, place):
            self._wrote_last(name, op, tensor, place, row)
        return row

    def _rows_behind(self, numbers) -> frozenset[int]:
        found: set[int] = set()
        for number in numbers:
            found |= self._sources.get(number, {number})
        return frozenset(found)

    def _wrote_last(self, name: str, op: str, tensor, place: names.Place, row: int) -> None:
        address = written.storage_of(tensor)
        storage = StorageWeakRef(tensor.untyped_storage())
        now = _Written(
            storage,
            written.fills_storage(tensor),
            name,
            op,
            place,
            row,
            tensor.dtype,
            tensor.device,
            tensor.storage_offset(),
            tuple(tensor.shape),
            tuple(tensor.stride()),
        )
        parts = self._written.pop(address, {})  # rows come in the order of the last writes
        if now.is_whole or any(one.storage.cdata != storage.cdata for one in parts.values()):
            parts = {}
        for before in list(parts.values()):
            if before.is_whole and before.dtype == tensor.dtype:
                sources = self._rows_behind([before.source, row])
                if not self.has_ops:
                    self._sources[row] = sources
                now = before._replace(name=name, op=op, place=place, source=row)
        parts.pop(now.part, None)
        parts[now.part] = now
        self._written[address] = parts

    def add_outputs(self) -> None:
        for one in [one for parts in self._written.values() for one in parts.values()]:
            tensor = one.tensor()
            if tensor is None:
                continue
            known = one.is_whole and self.names.parameter_at(tensor)
            inputs = [one.source] if self.has_ops else sorted(self._sources[one.source])
            stem = known or one.name.removeprefix("fwd/")
            super().add(f"out/{stem}", one.op, tensor, inputs, one.place)
        self._written = {}


class OutputRecorder(Recorder):
    """A recorder that also logs what leaves. has_ops: as OutputWriter."""

    writer_type = OutputWriter
    writer: OutputWriter

    def __init__(self, *args, has_ops: bool):
        super().__init__(*args)
        self.writer.has_ops = has_ops

    def _end_log(self, is_end: bool = False) -> None:
        self.guard.settle()  # pending rows hold tensors that nobody else may hold
        try:
            with self._lock, no_dispatch(), torch.no_grad():
                self.guard.flush()  # rows that are not computed yet hold their tensors
                self.writer.add_outputs()
        except Exception as error:  # the job goes on
            self.writer.note("what leaves", error)
        super()._end_log(is_end)
