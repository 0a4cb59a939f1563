"""What is known of memory, by the storage that tensors share with their views."""

from __future__ import annotations

import typing

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from . import written

_Value = typing.TypeVar("_Value")


class _Known(typing.Generic[_Value]):
    """Of one piece of memory. Storages that somebody else made of the same memory share it."""

    __slots__ = ("value",)

    def __init__(self, value: _Value | None = None):
        self.value = value


class Memory(typing.Generic[_Value]):
    """A value for each storage, known by the object: an address is used again as soon as its
    storage is gone. The object is not while a weak reference to it is held, which keeps no memory.

    Tensors without plain memory (written.storage_of) have no value."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[StorageWeakRef, _Known[_Value]]] = {}  # by StorageImpl
        self._at: dict[int, int] = {}  # by address: the StorageImpl that came last

    def get(self, tensor: torch.Tensor, default: _Value | None = None) -> _Value | None:
        known = self._find(tensor)
        return default if known is None or known.value is None else known.value

    def peek(self, tensor: torch.Tensor) -> _Value | None:
        """As get(), and remembers nothing of the tensor: of a Memory that several have."""
        address, storage = written.memory_of(tensor)
        if storage is None:
            return None
        found = self._known.get(storage._cdata)
        known = self._living_at(address) if found is None else found[1]
        return None if known is None else known.value

    def set(self, tensor: torch.Tensor, value: _Value | None) -> None:
        known = self._find(tensor)
        if known is not None:
            known.value = value
            return
        _, storage = written.memory_of(tensor)
        if value is not None and storage is not None:
            self._add(storage, _Known(value))

    def pop(self, tensor: torch.Tensor) -> _Value | None:
        value = self.get(tensor)
        self.set(tensor, None)
        return value

    def values(self) -> list[_Value]:
        distinct = {id(known): known.value for _, known in self._known.values()}
        return [value for value in distinct.values() if value is not None]

    def living(self) -> list[tuple[torch.UntypedStorage, _Value]]:
        """Each piece of memory that is there, and its value."""
        found = {}
        for key, (_, known) in self._known.items():
            storage = torch.UntypedStorage._new_with_weak_ptr(key)
            if storage is not None and known.value is not None:
                found[id(known)] = storage, known.value
        return [*found.values()]

    def take_dead(self) -> list[_Value]:
        """The values of memory that nobody has any more, which are forgotten."""
        alive = {id(known) for weak, known in self._known.values() if not weak.expired()}
        dead = {key: known for key, (_, known) in self._known.items() if id(known) not in alive}
        for key in dead:
            del self._known[key]
        self._at = {address: key for address, key in self._at.items() if key in self._known}
        distinct = {id(known): known.value for known in dead.values()}
        return [value for value in distinct.values() if value is not None]

    def _find(self, tensor: torch.Tensor) -> _Known[_Value] | None:
        address, storage = written.memory_of(tensor)
        if storage is None:
            return None
        found = self._known.get(storage._cdata)
        if found is not None:
            return found[1]
        known = self._living_at(address)
        if known is not None:
            self._add(storage, known)
        return known

    def _living_at(self, address: int) -> _Known[_Value] | None:
        """Of a storage that is there and has this memory, as from_numpy() makes several of one
        array."""
        other = self._at.get(address)
        if other is None:
            return None
        storage = torch.UntypedStorage._new_with_weak_ptr(other)
        if storage is None or storage.data_ptr() != address:
            return None
        return self._known[other][1]

    def _add(self, storage: torch.UntypedStorage, known: _Known[_Value]) -> None:
        self._known[storage._cdata] = StorageWeakRef(storage), known
        self._at[storage.data_ptr()] = storage._cdata
