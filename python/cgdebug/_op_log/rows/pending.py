"""The rows of a capture that are not computed yet."""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    import torch


class _Memory(typing.NamedTuple):
    """The memory of a tensor whose row is pending, or was a moment ago."""

    storage: torch.UntypedStorage
    bytes: int
    row: str


class Pending:
    """Keeps the memory of their tensors alive. Thread: one at a time."""

    def __init__(self) -> None:
        self.memory: list[_Memory] = []
        self._addresses: set[int] = set()

    def add(self, row: str, storage: torch.UntypedStorage) -> None:
        self.memory.append(_Memory(storage, storage.nbytes(), row))
        self._addresses.add(storage.data_ptr())

    def has(self, storage: int) -> bool:
        """Whether a row shows what is in the memory of that storage."""
        return storage in self._addresses

    def has_lost_memory(self) -> bool:
        """Whether a row's tensor has given its memory back, as resize_(0) of a storage does. The
        next op may be given that memory."""
        return any(one.storage.nbytes() != one.bytes for one in self.memory)

    def rows(self) -> list[str]:
        return [one.row for one in self.memory]

    def clear(self) -> None:
        """Requires: none of them is pending. While one is, all are kept: which of them are pending
        is not known, because each stream has a batch of its own."""
        self.memory.clear()
        self._addresses.clear()
