"""Inputs of a capture that are looked at again where the graph ends.

Nothing of the graph writes them, so they are then what they were. If they are not, something else
changed them while the replay ran: some of its ops may have read the old values, others the new
ones.
"""

from __future__ import annotations

import typing

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._mode_utils import no_dispatch

if typing.TYPE_CHECKING:
    from .memory import Memory

OP = "input.end"  # ops::IsInputEnd
# They are read twice, and each may need a launch of its own. What is large, such as a KV cache, and
# what has a name in a model, such as weights, would cost too much.
_MOST = 32
_MOST_BYTES = 4 << 20


class _Input(typing.NamedTuple):
    storage: StorageWeakRef
    dtype: torch.dtype
    device: torch.device
    offset: int
    shape: tuple[int, ...]

    def tensor(self) -> torch.Tensor | None:
        """None if nobody holds it any more."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None or not storage.nbytes():
            return None
        whole = torch.empty(0, dtype=self.dtype, device=self.device)
        return whole.set_(storage, self.offset, self.shape)


class InputEnds:
    """Keeps no memory. Thread: one at a time.

    is_new: the row of an input is not computed yet, and should be as soon as its op has run
    """

    def __init__(self) -> None:
        self.is_new = False
        self._inputs: dict[int, _Input] = {}  # by the number of its row

    def read(self, row: int, tensor: torch.Tensor) -> None:
        """An op of the capture reads the input, and `row` shows it."""
        if (
            len(self._inputs) >= _MOST
            or tensor.nbytes > _MOST_BYTES
            or not tensor.is_contiguous()
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            return
        self.is_new = True
        self._inputs[row] = _Input(
            StorageWeakRef(tensor.untyped_storage()),
            tensor.dtype,
            tensor.device,
            tensor.storage_offset(),
            tuple(tensor.shape),
        )

    def take(self, rows: Memory[int]) -> list[tuple[int, torch.Tensor]]:
        """Those that nothing has written and that somebody still holds, by row.

        rows: for each piece of memory, the row that wrote it last"""
        inputs, self._inputs = self._inputs, {}
        found = []
        with no_dispatch(), torch.no_grad():
            for row, one in inputs.items():
                tensor = one.tensor()
                if tensor is not None and rows.get(tensor) == row:
                    found.append((row, tensor))
        return found
