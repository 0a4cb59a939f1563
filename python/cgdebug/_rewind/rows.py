"""Statistics of tensors on a GPU, computed at once: the same as a row of an op log has."""

from __future__ import annotations

import math
import struct
import typing

import torch

from .._job import _native
from .._shared._dtypes import table

ROW_BYTES = 128
_FIELDS = struct.Struct("<6Q7d3Q")  # layout::DeviceStats
_HAS_NONFINITE = 1 << 1


class Stats(typing.NamedTuple):
    """hash: xor of the elements, as torch.hash_tensor; ordered: knows their places, too
    min, max, mean: of the finite elements; NaN if there is none"""

    elements: int
    nan: int
    pos_inf: int
    neg_inf: int
    zero: int
    min: float
    max: float
    mean: float
    hash: int
    ordered: int
    first_nonfinite: int | None

    @property
    def is_finite(self) -> bool:
        return not (self.nan or self.pos_inf or self.neg_inf)


def unpack(data: bytes) -> Stats:
    count, nan, pos_inf, neg_inf, zero, _, low, high, shift, total, _, _, _, xor, first, flags = (
        _FIELDS.unpack(data)
    )
    finite = count - nan - pos_inf - neg_inf
    mean = shift + total / finite if finite else math.nan
    return Stats(
        elements=count,
        nan=nan,
        pos_inf=pos_inf,
        neg_inf=neg_inf,
        zero=zero,
        min=low if finite else math.nan,
        max=high if finite else math.nan,
        mean=mean,
        hash=xor,
        ordered=flags >> 32,
        first_nonfinite=first if flags & _HAS_NONFINITE else None,
    )


class RowMaker:
    """Computes rows of one device, on one stream at a time. Fails: torch.OutOfMemoryError."""

    def __init__(self, device: int):
        self._device = device
        self._native: typing.Any = _native.load()
        self._where = torch.device("cuda", device)
        self._scratch = torch.zeros(
            self._native.row_scratch_bytes, dtype=torch.uint8, device=self._where
        )
        self._numbers = {name: dtype.number for name, dtype in table().items()}

    def can(self, dtype: str) -> bool:
        return dtype in self._numbers

    def space(self, rows: int) -> torch.Tensor:
        return torch.zeros(rows * ROW_BYTES, dtype=torch.uint8, device=self._where)

    def batch(self, tensors: list[torch.Tensor]) -> typing.Any:
        """What compute() takes, for several times. Requires: they have dtypes that it can, and are
        contiguous."""
        return self._native.RowBatch(
            [
                (one.data_ptr(), self._numbers[str(one.dtype).removeprefix("torch.")], one.numel())
                for one in tensors
            ]
        )

    def compute(self, batch: typing.Any, rows: torch.Tensor, first: int = 0) -> None:
        """The rows of its tensors, from number `first` on."""
        stream = torch.cuda.current_stream(self._device).cuda_stream
        batch.compute(
            rows.data_ptr() + first * ROW_BYTES, self._scratch.data_ptr(), self._device, stream
        )


def unpack_all(rows: torch.Tensor) -> list[Stats]:
    """Waits until they are there."""
    data = rows.cpu().numpy().tobytes()
    return [unpack(data[at : at + ROW_BYTES]) for at in range(0, len(data), ROW_BYTES)]
