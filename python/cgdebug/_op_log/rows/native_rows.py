"""Rows on their way into a native log (libprobe/op_log.h): what each shows of its tensor, and which
of them are not computed yet."""

from __future__ import annotations

import contextlib
import typing

import torch
from torch.utils._mode_utils import no_dispatch

from ..._shared import _torch_logs
from .pending import Pending

if typing.TYPE_CHECKING:
    from ..padding import Tail
    from .row import Row

_MAX_DIMENSIONS = 4  # kMaxOpLogDimensions


class NativeRows:
    """copies: rows whose tensor had to be copied first, because it has gaps

    Thread: one at a time."""

    def __init__(self, native: typing.Any, of_graph: bool):
        self._native, self._of_graph = native, of_graph
        self.pending = Pending()
        self.copies = 0

    def add(self, row: Row, tensor: torch.Tensor, details: str, tail: Tail | None) -> None:
        """tail: what of the tensor the row shows; its dimension is the slowest in memory

        Fails: ValueError, RuntimeError: the tensor cannot be seen, or there is no room."""
        if not self._of_graph and tensor.is_cpu and _is_dense(tensor):  # as most are: costs no op
            dense = tensor
            waiting = self._add_dense(row, dense, None, details, tail)
        else:
            with no_dispatch(), torch.no_grad(), self._marked(row):
                dense = tensor.detach().resolve_conj().resolve_neg()
                order = None
                if not dense.is_contiguous():
                    order = _order_of(dense) if dense.is_cuda else None
                    if order is None:
                        dense = dense.contiguous()
                        self.copies += 1
                waiting = self._add_dense(row, dense, order, details, tail)
        if waiting <= 1:  # those before are computed
            self.pending.clear()
        if waiting:
            self.pending.add(row.name, dense.untyped_storage())
            if tail is not None:
                self.pending.add(row.name, tail.start.untyped_storage())

    def _add_dense(
        self, row: Row, dense: torch.Tensor, order, details: str, tail: Tail | None
    ) -> int:
        return self._native.add(
            row.name,
            op=row.text(),
            site=row.site,
            data=dense.data_ptr(),
            dtype=row.dtype,
            shape=list(row.shape),
            cuda=dense.device.index if dense.is_cuda else None,
            stream=torch.cuda.current_stream(dense.device).cuda_stream if dense.is_cuda else 0,
            order=order or [],
            details=details,
            tail_start=0 if tail is None else tail.start.data_ptr(),
            tail_rows=0 if tail is None else tail.rows,
        )

    def flush(self) -> None:
        """Computes those that are pending. Fails: RuntimeError: rows of this capture are lost."""
        if not self.pending.memory:
            return
        try:
            with self._marked():
                self._native.flush()
        finally:
            self.pending.clear()

    def take_unseen(self, stream: int) -> list[str]:
        """As OpLog.take_unseen."""
        try:
            with self._marked():
                return self._native.take_unseen(stream)
        finally:
            if self.pending.memory and not self._native.pending():
                self.pending.clear()

    def _marked(self, row: Row | None = None) -> contextlib.AbstractContextManager:
        """For kernels of rows: of those that are pending, and of this one."""
        names = []
        if self._of_graph and _torch_logs.asks_for_marks():
            names = self.pending.rows() + ([row.name] if row else [])
        if not names:
            return contextlib.nullcontext()
        text = f"row {names[0]}" if len(names) == 1 else f"rows {names[0]} to {names[-1]}"
        return _torch_logs.marked(text)


def _is_dense(tensor: torch.Tensor) -> bool:
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return is_plain and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


def is_slowest(tensor: torch.Tensor, dim: int) -> bool:
    """Whether the dimension changes slowest in memory, in a tensor that needs no copy."""
    if not tensor.numel():
        return False
    slowest = tensor.stride(dim)
    others = (n for n, size in enumerate(tensor.shape) if n != dim and size != 1)
    return all(tensor.stride(n) < slowest for n in others) and (
        tensor.is_contiguous() or _order_of(tensor) is not None
    )


def _order_of(tensor: torch.Tensor) -> list[tuple[int, int]] | None:
    """The dimensions of a tensor without gaps, from the one that changes fastest in memory: size,
    and stride if the tensor were contiguous. None if it has gaps, or if that is too long."""
    dimensions = []
    usual = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride())):
        if size != 1:
            dimensions.append((stride, size, usual))
        usual *= size
    order: list[tuple[int, int]] = []
    expected = 1
    for stride, size, usual in sorted(dimensions):
        if stride != expected:
            return None
        expected *= size
        if order and usual == order[-1][0] * order[-1][1]:  # one dimension with the one before
            order[-1] = (order[-1][0] * size, order[-1][1])
        else:
            order.append((size, usual))
    return order if len(order) <= _MAX_DIMENSIONS and expected < 1 << 32 else None
