"""What a log says of a padded batch: which rows are real, and what lies in the others."""

from __future__ import annotations

import typing

import torch
from torch.utils._mode_utils import no_dispatch

from . import padding
from .rows.native_rows import is_slowest

if typing.TYPE_CHECKING:
    from .calls import Call


class Padding(typing.NamedTuple):
    """What lies in the padding rows of a tensor.

    op:     of its row
    values: they, or the tensor
    tail:   in the tensor: what they are"""

    op: str
    values: torch.Tensor
    tail: padding.Tail | None


class PaddingRows:
    """captured: whether a graph captures the ops

    Thread: as the recorder that has it.
    """

    def __init__(self, log, captured: bool):
        self._log = log
        self._captured = captured
        self._places: padding.RowPlaces | None = None  # of this run; None: without padding
        self._marks: padding.Marks | None = None  # the newest, or those of others
        self._mixes = False  # whether the newest op may have read other rows for a row
        self._is_told_outside = False  # of the capture: a replay has other rows
        marks = padding.newest()
        if marks is not None and marks.is_taken:
            self._marks = marks
        self.take(marks)

    def begin_run(self) -> None:
        if self._places is not None and self._places.is_told:
            self._places = None  # else they were told for what comes now
        self.take(padding.newest())

    def take(self, marks: padding.Marks | None) -> None:
        """Which rows of this run are real. Marks are of one run."""
        if marks is None or marks is self._marks:
            return
        self._marks = marks
        marks.is_taken = True
        if self._captured and not marks.is_captured:
            self._is_told_outside = True
        elif marks.mask is None:
            self._log.note(padding.ON_GPU)
        else:
            with no_dispatch(), torch.no_grad():
                self._places = padding.RowPlaces(marks)

    def end(self) -> None:
        """No more rows are added."""
        if self._is_told_outside and self._places is None:
            self._log.note(padding.IN_GRAPH)

    def follow(self, call: Call, outputs: list[tuple[int, torch.Tensor]]) -> None:
        """The op has run. outputs: with their places"""
        if self._places is not None and self._places.has_padding:
            tensors = [tensor for _, tensor in outputs]
            self._mixes = self._places.follow(call.plan, call.arguments, call.given(), tensors)

    def tell(self, site: str) -> None:
        """In front of the first row of a run: which rows are real."""
        if self._places is not None and not self._places.is_told:
            self._places.is_told = True
            op = padding.MASK_OP
            self._log.add_row(f"in/{op}", op, self._places.mask, (), site)

    def of(self, tensor: torch.Tensor, is_input: bool) -> Padding | None:
        """Of what the newest op wrote, or was given. None: it has none, or its rows are not
        known."""
        if self._places is None or not self._places.has_padding:
            return None
        op = padding.MIXED_OP if self._mixes and not is_input else padding.ROW_OP
        found = self._places.tail_of(tensor)
        if found is not None and is_slowest(tensor, found[1]):
            return Padding(op, tensor, found[0])
        with no_dispatch(), torch.no_grad():
            part = self._places.padding_of(tensor)
        if self._captured:
            self._log.forget_nodes()  # that were captured for it
        return None if part is None else Padding(op, part, None)
