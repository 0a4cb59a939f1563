"""Bytes of device memory by address: which a graph reads and writes, and copies of them."""

from __future__ import annotations

import bisect
import typing

import torch

if typing.TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .._op_log.node_map import Given

_ALIGN = 16
_WORDS = (torch.int64, torch.int32, torch.int16)  # copied faster than bytes
_LAUNCHED = {torch.int64, torch.int32}  # as one kernel


class Spans:
    """Runs of bytes [begin, end) of one device, disjoint and ascending."""

    def __init__(self, runs: Iterable[tuple[int, int]] = ()):
        self._begins: list[int] = []
        self._ends: list[int] = []
        for begin, end in runs:
            self.add(begin, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._begins, self._ends))

    def __len__(self) -> int:
        return len(self._begins)

    @property
    def bytes(self) -> int:
        return sum(end - begin for begin, end in self)

    def add(self, begin: int, end: int) -> None:
        if begin >= end:
            return
        first = bisect.bisect_left(self._ends, begin)
        last = bisect.bisect_right(self._begins, end)
        if first < last:
            begin = min(begin, self._begins[first])
            end = max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def inside(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The parts of [begin, end) that are here."""
        found = []
        place = bisect.bisect_right(self._ends, begin)
        while place < len(self) and self._begins[place] < end:
            found.append((max(begin, self._begins[place]), min(end, self._ends[place])))
            place += 1
        return found

    def outside(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The parts of [begin, end) that are not here."""
        found = []
        for there, behind in self.inside(begin, end):
            if begin < there:
                found.append((begin, there))
            begin = behind
        if begin < end:
            found.append((begin, end))
        return found

    def has(self, begin: int, end: int) -> bool:
        return not self.outside(begin, end)

    def common(self, other: Spans) -> Spans:
        return Spans(part for run in self for part in other.inside(*run))

    def without(self, other: Spans) -> Spans:
        return Spans(part for run in self for part in other.outside(*run))


def bytes_at(begin: int, end: int, device: int) -> torch.Tensor:
    """The memory itself, as words as large as it allows. Requires: begin < end."""

    class _Memory:
        __cuda_array_interface__: typing.ClassVar = {
            "shape": (end - begin,),
            "typestr": "|u1",
            "data": (begin, False),
            "version": 3,
        }

    whole = torch.as_tensor(_Memory(), device=torch.device("cuda", device))
    for dtype in _WORDS:
        if begin % dtype.itemsize == 0 and (end - begin) % dtype.itemsize == 0:
            return whole.view(dtype)
    return whole


def flat_at(given: Given, device: int) -> torch.Tensor:
    """All elements from the first to the last of what an op was given, in the order of memory.
    Requires: its extent is known."""
    begin, end = given.extent
    return bytes_at(begin, end, device).view(torch.uint8).view(getattr(torch, given.dtype))


def tensor_at(given: Given, device: int) -> torch.Tensor:
    """What an op was given, in its memory. Requires: its extent is known."""
    return flat_at(given, device).as_strided(given.shape, given.strides)


def bytes_of(spans: Spans) -> int:
    """Of a copy of them."""
    return sum(map(_aligned, spans))


def _aligned(span: tuple[int, int]) -> int:
    begin, end = span
    return (end - begin + _ALIGN - 1) // _ALIGN * _ALIGN


class Copy:
    """A copy of some memory, in memory of the same device. Fails: torch.OutOfMemoryError.

    memory: where it lies, at least bytes_of(spans); None: in memory of its own"""

    def __init__(self, spans: Spans, device: int, memory: torch.Tensor | None = None):
        self.spans, self.bytes = spans, bytes_of(spans)
        if memory is None:
            where = torch.device("cuda", device)
            memory = torch.empty(self.bytes, dtype=torch.uint8, device=where)
        self._flat = memory
        by_dtype: dict[torch.dtype, tuple[list, list]] = {}
        at = 0
        for begin, end in spans:
            live = bytes_at(begin, end, device)
            lives, kepts = by_dtype.setdefault(live.dtype, ([], []))
            lives.append(live)
            kepts.append(self._flat[at : at + end - begin].view(live.dtype))
            at += _aligned((begin, end))
        if by_dtype.keys() >= _LAUNCHED:
            for mine, others in zip(by_dtype[torch.int32], by_dtype.pop(torch.int64)):
                mine += [one.view(torch.int32) for one in others]
        self._groups = list(by_dtype.values())

    def save(self) -> None:
        for live, kept in self._groups:
            torch._foreach_copy_(kept, live)

    def restore(self) -> None:
        for live, kept in self._groups:
            torch._foreach_copy_(live, kept)
