"""The rows of what writes memory and is no op: Triton kernels, and compiled code nobody sees."""

from __future__ import annotations

import typing

import torch

from .. import names, written
from ..arguments import EMPTY
from ..details import Details
from ..rows.row import UNKNOWN

if typing.TYPE_CHECKING:
    import threading

    from ..rows.guard import Guard
    from ..rows.writer import RowWriter


class KernelRows:
    """has_rows: whether what Triton kernels write is logged, too
    has_pre:  whether what kernels are about to overwrite is logged, too

    Thread: any.
    """

    def __init__(self, writer: RowWriter, guard: Guard, lock: threading.RLock, has_rows: bool):
        self.has_rows = has_rows
        self.has_pre = False
        self._writer = writer
        self._guard = guard
        self._lock = lock
        self._unseen_code = 0  # calls of code that are running, whose kernels are not seen

    def begin(self) -> None:
        """A kernel is about to run. Must be followed by will_read() and will_write() if they are
        called, by guard(), and by wrote() or wrote_unseen()."""
        self._guard.begin()
        if self._writer.holdings is not None:
            self._writer.holdings.kernels += 1

    def guard(self, writes: typing.Iterable[torch.Tensor] | None) -> None:
        """Has the pending rows computed that the kernel may overwrite. writes: None if what it
        writes is not known."""
        try:
            with self._lock:
                is_eager = not self._writer.log.graph
                if writes is None or is_eager or self._guard.may_overwrite(writes):
                    self._guard.flush()
        except Exception as error:  # the job goes on
            self._writer.note("a kernel", error)
            self._guard.flush()

    def wrote_unseen(self, tensors: typing.Iterable[torch.Tensor]) -> None:
        """The kernel has written the tensors, and no row shows it."""
        try:
            with self._lock:
                self._guard.take_nodes()
                for tensor in tensors:
                    self._writer.rows.set(tensor, UNKNOWN)
        except Exception as error:  # the job goes on
            self._writer.note("a kernel", error)
        finally:
            self._guard.end()

    def may_be_empty(self, tensors: typing.Iterable[torch.Tensor]) -> None:
        """If no row shows what is in them, nobody may have written it yet."""
        with self._lock:
            for tensor in tensors:
                if self._writer.rows.get(tensor) is None:
                    self._writer.rows.set(tensor, UNKNOWN)

    def is_unknown(self, tensor: torch.Tensor) -> bool:
        """Whether something has written it that no row shows."""
        with self._lock:
            return self._writer.rows.get(tensor) == UNKNOWN

    def will_read(self, place: names.Place, base: str, reads) -> None:
        """A kernel is about to read what it then overwrites. What no row shows yet gets one now.
        reads: as for wrote()."""
        try:
            with self._lock:
                for name, tensor in reads:
                    if written.storage_of(tensor):
                        self._writer.link(tensor, place, base, name)
        except Exception as error:  # the job goes on
            self._writer.note(base, error)

    def will_write(self, place: names.Place, op: str, base: str, writes) -> None:
        """The kernel is about to run. writes: as for wrote(), what it overwrites. An in_out_ptr is
        read too, so somebody has written it, also if no row shows it."""
        try:
            with self._lock:
                stem = self._writer.counter.peek(place, base)
                for name, tensor in writes:
                    known = self._writer.rows.get(tensor)
                    is_filled = known == UNKNOWN and name.startswith("in_out_ptr")
                    if is_filled or known not in (EMPTY, UNKNOWN):
                        inputs = [] if known is None else [known]
                        self._writer.add(f"{stem}.{name}.pre", op, tensor, inputs, place)
        except Exception as error:  # the job goes on
            self._writer.note(op, error)

    def wrote(self, place: names.Place, op: str, base: str, reads, writes) -> None:
        """The kernel has run. reads, writes: (name of the argument, tensor)."""
        writer = self._writer
        try:
            with self._lock:
                self._guard.take_nodes()
                inputs = [
                    writer.link(one, place, base, name)
                    for name, one in reads
                    if written.storage_of(one)
                ]
                stem = writer.counter.take(place, base)
                details = Details.of(place.line)
                details.arguments = [(name, writer.arguments.text_of(one)) for name, one in reads]
                if writer.added.extras.hooks:
                    tensors = [one for _, one in reads]
                    details.columns = writer.added.columns_of_kernel(place, stem, op, tensors)
                for name, tensor in writes:
                    writer.add(f"{stem}.{name}", op, tensor, inputs, place, details)
        except Exception as error:  # the job goes on
            writer.note(op, error)
        finally:
            self._guard.end()

    @property
    def are_unseen(self) -> bool:
        """Whether code is running whose kernels nobody tells the recorder of, only its ops."""
        return self._unseen_code > 0

    def begin_unseen(self) -> None:
        """Such code is about to run. Must be followed by end_unseen()."""
        with self._lock:
            self._unseen_code += 1

    def end_unseen(self, changed, made) -> None:
        """changed: the tensors that it may have written; made: those that it returned."""
        writer = self._writer
        try:
            with self._lock:
                self._unseen_code -= 1
                if writer.is_done:
                    return
                writer.log.note(
                    "torch.compile: what fused kernels wrote inside of compiled code is not shown"
                )
                place = names.current_place(writer.names)
                for tensor in changed:
                    writer.rows.set(tensor, UNKNOWN)
                stem = writer.counter.take(place, "compiled")
                for number, tensor in enumerate(made):
                    name = stem if len(made) == 1 else f"{stem}.{number}"
                    if written.storage_of(tensor):
                        writer.add(name, "inductor.compiled", tensor, [UNKNOWN], place)
        except Exception as error:  # the job goes on
            writer.note("compiled code", error)
