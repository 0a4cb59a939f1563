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
    from ..details import Details


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


_Results = list[tuple[Collective, torch.Tensor]]


class Collectives:
    """Those whose results nobody has read yet, by their memory, which several may share."""

    def __init__(self) -> None:
        self._sent = 0  # whose kernels have not been seen yet
        self._of: Memory[list[Collective]] = Memory()

    def begin_run(self) -> None:
        """Results that are still there may be read in this run, which has no row of what they were
        made from."""
        for one in itertools.chain.from_iterable(self._of.values()):
            one.inputs[:] = [UNKNOWN]

    def sent(self) -> None:
        self._sent += 1

    def add(self, result: torch.Tensor, collective: Collective) -> None:
        known = self._of.get(result)
        if known is None:
            self._of.set(result, [collective])
        else:
            known.append(collective)

    def take(self, tensor: torch.Tensor) -> _Results:
        """Of those that share memory with the tensor. Whoever reads it has waited for them."""
        storage = tensor.untyped_storage()
        return [(one, _part(storage, one.part)) for one in self._of.pop(tensor) or ()]

    def take_overwritten(
        self, tensor: torch.Tensor, by_copy: bool
    ) -> tuple[list[Collective], _Results]:
        """Those whose results are this tensor, and others in its memory that were waited for. To
        wait may mean to copy the result."""
        known = self._of.pop(tensor)
        if known is None:
            return [], []
        part = part_of(tensor)
        same = [one for one in known if one.part == part and (by_copy or not one.is_waited)]
        others = [one for one in known if one not in same and one.is_waited]
        self._of.set(tensor, [one for one in known if one not in (*same, *others)] or None)
        return same, [(one, _part(tensor.untyped_storage(), one.part)) for one in others]

    def take_waited(self) -> _Results:
        """Those that were waited for, and whose memory is still there."""
        found: _Results = []
        for storage, known in self._of.living():
            waited = [one for one in known if one.is_waited]
            known[:] = [one for one in known if not one.is_waited]
            found += [(one, _part(storage, one.part)) for one in waited]
        return found

    def take_unread(self, is_end: bool) -> list[str]:
        """The ops of those whose results nobody can read any more. is_end: of all of them."""
        unread = self._of.take_dead()
        if is_end:
            unread += self._of.values()
            self._of = Memory()
        return [one.op for one in itertools.chain.from_iterable(unread)]

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
