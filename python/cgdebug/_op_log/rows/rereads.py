"""Memory that an op reads, held against what its row showed.

Between an op that writes and one that reads, something may write the memory that is in no row: a
copy that is still under way, another owner of a block, a write past the end of its neighbour.
"""

from __future__ import annotations

import ctypes
import typing
import zlib

import torch

from .. import written
from ..memory import Memory

OP = "overwritten"  # of the row that shows what is there now
# Each read costs a checksum. What is large, such as a KV cache, would cost too much.
_MOST_BYTES = 4 << 20


class _Shown(typing.NamedTuple):
    row: int
    offset: int  # bytes of the storage
    length: int
    checksum: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class Rereads:
    """Of memory on a CPU. Keeps none. Thread: one at a time."""

    def __init__(self) -> None:
        self._shown: Memory[_Shown] = Memory()

    def shows(self, row: int, tensor: torch.Tensor) -> None:
        """The row has just shown what is in the tensor."""
        _, storage = written.memory_of(tensor)
        length = tensor.nbytes
        if storage is None or not tensor.is_cpu or length > _MOST_BYTES:
            return
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            return
        offset = tensor.storage_offset() * tensor.element_size()
        checksum = _checksum(storage, offset, length)
        shape = tuple(tensor.shape)
        self._shown.set(tensor, _Shown(row, offset, length, checksum, tensor.dtype, shape))

    def changed(self, row: int, tensor: torch.Tensor) -> torch.Tensor | None:
        """What lies where the row showed something, if it is something else now.

        tensor: some of that memory"""
        shown = self._shown.get(tensor)
        if shown is None or shown.row != row:
            return None
        begin = tensor.storage_offset() * tensor.element_size()
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        end = begin + (last + 1) * tensor.element_size()
        storage = tensor.untyped_storage()
        if begin >= shown.offset + shown.length or end <= shown.offset:
            return None
        if storage.nbytes() < shown.offset + shown.length:
            return None
        if _checksum(storage, shown.offset, shown.length) == shown.checksum:
            return None
        whole = torch.empty(0, dtype=shown.dtype)
        return whole.set_(storage, shown.offset // whole.element_size(), shown.shape)


def _checksum(storage: torch.UntypedStorage, offset: int, length: int) -> int:
    memory = (ctypes.c_char * length).from_address(storage.data_ptr() + offset)
    return zlib.crc32(memory)
