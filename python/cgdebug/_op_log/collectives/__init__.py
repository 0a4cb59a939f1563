"""Collectives that run on a stream of their own, until somebody reads their results."""

from __future__ import annotations

import itertools
import typing

import torch
from torch.utils._mode_utils import no_dispatch

from ..calls import part_of
from ..memory import Memory
from ..rows import UNKNOWN

if typing.TYPE_CHECKING:
    from .. import names
    from ..calls import Call
    from ..details import Details
    from ..rows.writer import RowWriter


class Collective(typing.NamedTuple):
    """What the row of a result will say.

    part:      which part of its memory the result is
    is_waited: whether the call that launched it also waits for it
    """

    part: tuple
    is_waited: bool
    name: str
    op: str
    inputs: list[int]
    place: names.Place
    details: Details


class Collectives:
    """Those whose results nobody has read yet, by their memory, which several may share. A result
    gets its row when somebody reads it.

    Thread: as the recorder that has it.
    """

    def __init__(self, writer: RowWriter) -> None:
        self._writer = writer
        self._sent = 0  # whose kernels have not been seen yet
        self._of: Memory[list[Collective]] = Memory()

    def begin_run(self) -> None:
        """Results that are still there may be read in this run, which has no row of what they were
        made from."""
        for one in itertools.chain.from_iterable(self._of.values()):
            one.inputs[:] = [UNKNOWN]

    def launched(self, call: Call, tensors: list[torch.Tensor]) -> None:
        """The result is written by another stream, some time before somebody waits for it."""
        writer = self._writer
        stem = writer.counter.take(call.place, call.plan.base)
        inputs = [link.row or UNKNOWN for link in call.links]
        is_waited = call.given().get("async_op") is False
        self._sent += 1
        for place, tensor in enumerate(tensors):
            name = stem if len(tensors) == 1 else f"{stem}.{place}"
            details = writer.arguments.details_of(call)
            one = Collective(
                *(part_of(tensor), is_waited, name, call.plan.name, inputs, call.place, details)
            )
            known = self._of.get(tensor)
            if known is None:
                self._of.set(tensor, [one])
            else:
                known.append(one)
            writer.rows.set(tensor, UNKNOWN)

    def arrived(self, tensor: torch.Tensor) -> None:
        """Whoever reads the tensor has waited for the results in its memory."""
        storage = tensor.untyped_storage()
        for one in self._of.pop(tensor) or ():
            self._land(one, _part(storage, one.part))

    def is_overwritten(self, call: Call, tensor: torch.Tensor) -> None:
        """By the op that is about to run. To wait for a result may mean to copy it: see landed().
        Others in its memory that were waited for are still read."""
        known = self._of.pop(tensor)
        if known is None:
            return
        part, by_copy = part_of(tensor), call.plan.base == "copy_"
        same = [one for one in known if one.part == part and (by_copy or not one.is_waited)]
        others = [one for one in known if one not in same and one.is_waited]
        self._of.set(tensor, [one for one in known if one not in (*same, *others)] or None)
        call.overwritten += same
        storage = tensor.untyped_storage()
        for one in others:
            self._land(one, _part(storage, one.part))

    def landed(self, call: Call, tensor: torch.Tensor) -> bool:
        """Whether the op, which has overwritten the tensor, is how a collective that is waited for
        gives its result, out of memory of its own: gloo's reduce_scatter. Else nothing has read the
        results."""
        sources = [link for link in call.links if link.argument.read]
        is_it = call.plan.base == "copy_" and all(link.row is None for link in sources)
        for one in call.overwritten:
            if is_it:
                self._land(one, tensor)
            else:
                self._note_unread(one)
        return is_it

    def end(self, is_end: bool) -> None:
        """Of the run. Those that were waited for, and whose memory is still there, get their rows.
        is_end: nobody can read the others any more."""
        for one, result in self._take_waited():
            self._land(one, result)
        unread = self._of.take_dead()
        if is_end:
            unread += self._of.values()
            self._of = Memory()
        for one in itertools.chain.from_iterable(unread):
            self._note_unread(one)

    def _take_waited(self) -> list[tuple[Collective, torch.Tensor]]:
        found = []
        for storage, known in self._of.living():
            waited = [one for one in known if one.is_waited]
            known[:] = [one for one in known if not one.is_waited]
            found += [(one, _part(storage, one.part)) for one in waited]
        return found

    def _land(self, one: Collective, result: torch.Tensor) -> None:
        self._writer.add(one.name, one.op, result, one.inputs, one.place, one.details)

    def _note_unread(self, one: Collective) -> None:
        self._writer.log.note(f"{one.op}: nothing read its result, so it was not seen")

    def explained(self, kernels: list[str]) -> list[str]:
        """Which of these kernels, that nobody else explains, are theirs: they come to light when
        somebody waits for them."""
        return [name for name in kernels if self._sent and "nccl" in name.lower()]


def _part(storage: torch.UntypedStorage, part: tuple) -> torch.Tensor:
    """A part of the memory, as part_of() tells it."""
    offset, shape, stride, dtype = part
    with no_dispatch(), torch.no_grad():
        tensor = torch.empty(0, dtype=dtype, device=storage.device)
        return tensor.set_(storage, offset, shape, stride)
