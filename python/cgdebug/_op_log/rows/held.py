"""Rows of what a program does before it makes a model, until it is known that it makes none."""

from __future__ import annotations

import collections
import contextlib
import typing

from torch.utils._mode_utils import no_dispatch

from ..._job import _native
from . import OpLog
from .row import Row

if typing.TYPE_CHECKING:
    from collections.abc import Callable

    import torch

_MOST_ROWS = 1024  # a page
_MOST_BYTES = 64 << 20


class HeldLog(OpLog):
    """Keeps its rows, with copies of their tensors, until release(), end() or drop(). When it has
    many it releases itself, and then calls on_release(). If the job is killed meanwhile, its
    account has them: nobody knows whether they were to be logged."""

    def __init__(self, on_release: Callable[[], None]) -> None:
        super().__init__(graph=0)
        self._on_release = on_release
        self._held: list[tuple[Row, torch.Tensor]] | None = []
        self._held_gaps: collections.Counter[str] = collections.Counter()
        self._bytes = 0

    @property
    def is_held(self) -> bool:
        return self._held is not None

    def release(self) -> None:
        """Logs the rows: the program has no model, or does much before it makes one."""
        with self._lock:
            held, self._held = self._held, None
            for row, tensor in held or ():
                super()._log(row, tensor)
                _native.load().let_go_of_held_rows(1)
            for gap, times in self._held_gaps.items():
                for _ in range(times):
                    super().note(gap)

    def drop(self) -> None:
        """Forgets the rows: the program has made a model."""
        with self._lock:
            if self._held is not None:
                _native.load().let_go_of_held_rows(len(self._held))
                self._held = None
                self._held_gaps.clear()
                self.rows = []
                self.close()

    def note(self, gap: str) -> None:
        with self._lock:
            if self.is_held:
                self._held_gaps[gap] += 1
            else:
                super().note(gap)

    def end(self, input_ends: typing.Iterable[tuple[int, torch.Tensor]] = ()) -> None:
        with self._lock:
            if self.is_held:
                self.release()
            super().end(input_ends)

    def _log(self, row: Row, tensor, tail=None) -> None:
        if self._held is None:
            super()._log(row, tensor, tail)
            return
        with no_dispatch(), contextlib.suppress(Exception):
            tensor = tensor.detach().clone()
        self._held.append((row, tensor))
        _native.load().count_held_row()
        self._bytes += tensor.numel() * tensor.element_size()
        if len(self._held) > _MOST_ROWS or self._bytes > _MOST_BYTES:
            self.release()
            self._on_release()

    def _amend(self) -> None:
        if self._held is None:
            super()._amend()
        elif self._held:
            self._held[-1] = (self.rows[-1], self._held[-1][1])
