"""Collectives that run on a stream of their own, until somebody has waited for their results."""

from __future__ import annotations

import typing

import torch

from .memory import Memory

if typing.TYPE_CHECKING:
    from . import names
    from .details import Details


class Collective(typing.NamedTuple):
    """What the row of a result will say."""

    name: str
    op: str
    inputs: list[int]
    place: names.Place
    details: Details


class Collectives:
    """Those that nobody has waited for yet, by their results."""

    def __init__(self) -> None:
        self._sent = 0  # whose kernels have not been seen yet
        self.begin_run()

    def begin_run(self) -> None:
        self._of: Memory[Collective] = Memory()

    def sent(self) -> None:
        self._sent += 1

    def add(self, result: torch.Tensor, collective: Collective) -> None:
        self._of.set(result, collective)

    def take(self, tensor: torch.Tensor) -> Collective | None:
        """Whoever reads the tensor has waited for it."""
        return self._of.pop(tensor)

    def unread(self) -> list[str]:
        """Their ops."""
        return [one.op for one in self._of.values()]

    def explained(self, kernels: list[str]) -> list[str]:
        """Which of these kernels, that nobody else explains, are theirs: they come to light when
        somebody waits for them."""
        return [name for name in kernels if self._sent and "nccl" in name.lower()]
