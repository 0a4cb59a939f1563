"""Memory to which an engine's graphs append, such as its KV cache: too large to be copied. What a
replay has read of it is still there, unless the engine gave that part to somebody else: then a
second run leaves other bits. What a second run writes there is put aside before it.
"""

from __future__ import annotations

import typing
import weakref

import torch

from .._op_log.node_map import extent_of
from .memory import Spans

if typing.TYPE_CHECKING:
    from .touched import Touched


class Cache(typing.NamedTuple):
    """tensor:     weakly
    dim:        by which the engine gives parts of it away
    slots:      int64 on the device, contiguous; where a replay writes that reads them, or as many
                of them as it reads; negative: nowhere
    slots_each: so many are in one part
    """

    tensor: weakref.ref[torch.Tensor]
    dim: int
    slots: torch.Tensor
    slots_each: int

    @property
    def extent(self) -> tuple[int, int]:
        """(0, 0): it is gone"""
        tensor = self.tensor()
        return (0, 0) if tensor is None else extent_of(tensor)


class CannotPutAside(Exception):
    """Why, as a sentence."""


_NOT_KNOWN = "which part of the engine's cache it writes is not known"
_caches: list[Cache] = []


def declare(
    tensors: typing.Iterable[torch.Tensor], dim: int, slots: torch.Tensor, slots_each: int
) -> None:
    """From here on, these tensors are caches, see Cache. What was said of them before is over."""
    new = {id(one): one for one in tensors}
    living = [(one, one.tensor()) for one in _caches]
    _caches[:] = [one for one, it in living if it is not None and id(it) not in new]
    _caches.extend(Cache(weakref.ref(one), dim, slots, slots_each) for one in new.values())


def of_device(device: int) -> list[Cache]:
    living = [(one, one.tensor()) for one in _caches]
    return [one for one, it in living if it is not None and it.get_device() == device]


def spans_of(caches: typing.Iterable[Cache]) -> Spans:
    return Spans(one.extent for one in caches)


def put_aside(
    caches: typing.Iterable[Cache], touched: Touched, given: Spans
) -> typing.Callable[[], None]:
    """Copies what a replay will write of them that has been given its inputs, `given`; returns what
    puts it back. Fails: CannotPutAside, torch.OutOfMemoryError."""
    kept: list[tuple[torch.Tensor, int, torch.Tensor, torch.Tensor]] = []
    parts: dict[int, torch.Tensor] = {}  # by the address of the slots
    for one in caches:
        tensor = one.tensor()
        if tensor is None:
            raise CannotPutAside(_NOT_KNOWN)
        if one.slots.data_ptr() not in parts:
            slots = _read(one.slots, touched, given)
            parts[one.slots.data_ptr()] = torch.unique(slots[slots >= 0] // one.slots_each)
        written = parts[one.slots.data_ptr()]
        if written.numel():
            as_bytes = tensor.view(torch.uint8)
            kept.append((as_bytes, one.dim, written, as_bytes.index_select(one.dim, written)))

    def put_back() -> None:
        for tensor, dim, written, before in kept:
            tensor.index_copy_(dim, written, before)

    return put_back


def _read(slots: torch.Tensor, touched: Touched, given: Spans) -> torch.Tensor:
    """Those that the replay reads. A graph of a small batch reads the first ones."""
    begin, end = extent_of(slots)
    read = touched.inputs.inside(begin, end)
    is_given = bool(read) and all(given.has(*run) for run in read)
    if not is_given or touched.written.inside(begin, end):
        raise CannotPutAside(_NOT_KNOWN)
    each = slots.element_size()
    flat = slots.view(-1)
    return torch.cat(
        [flat[(low - begin) // each : -((begin - high) // each)] for low, high in read]
    )
