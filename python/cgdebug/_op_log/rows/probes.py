"""Rows of eager code where a GPU is used: each is a probe of its own."""

from __future__ import annotations

import typing

import torch
from torch.utils._mode_utils import no_dispatch

from ..._job import _native
from ..._shared import _site
from ...actions import TensorStats, enabled_actions, native_options

if typing.TYPE_CHECKING:
    from collections.abc import Callable

    from .row import Row


class RowProbes:
    """note: is told what the log does not show

    Thread: one at a time.
    """

    def __init__(self, note: Callable[[str], None]):
        self._note = note
        self._made: dict[str, tuple[str, typing.Any]] = {}  # by name: with what it was made
        self._options = native_options(enabled_actions([TensorStats()]))

    def observe(self, row: Row, tensor: torch.Tensor) -> None:
        native = self._probe_of(row)
        _site.given.text = row.site
        try:
            with no_dispatch():
                torch.ops.cgdebug.observe(tensor, native.site_key)
        finally:
            _site.given.text = None

    def has(self, slot) -> bool:
        """Whether the slot is of the newest probe of its name."""
        _, native = self._made.get(slot.name, ("", None))
        return native is not None and native.id == slot.probe_id

    def natives(self) -> list[typing.Any]:
        return [native for _, native in self._made.values()]

    def take(self) -> list[typing.Any]:
        """Their native parts, which are now the caller's to close."""
        natives = self.natives()
        self._made.clear()
        return natives

    def _probe_of(self, row: Row):
        text = row.text()
        made_with, native = self._made.get(row.name, ("", None))
        if native is not None and made_with == text:
            return native
        if native is not None:
            native.close()
            self._note(f"{row.name} was made in another way than before: its replays begin again")
        native = _native.load().NativeProbe(
            row.name,
            mode="always",
            copy_non_contiguous=True,
            site=row.site,
            op=text,
            **self._options,
        )
        self._made[row.name] = (text, native)
        return native
