"""Hugging Face accelerate: under CGDEBUG_WATCH, a program that prepares an optimizer has steps
without an edit. Each step of that optimizer ends one, so the batches of an accumulated gradient
share a step.

A program that sets steps itself, as the Trainer does, keeps its own.
"""

from __future__ import annotations

import functools
import typing
import weakref

from .._job import _auto
from .._job._fail_soft import guard
from ..probe import step

__all__ = ["add_to_accelerators", "add_to_optimizers"]


class _Steps:
    """Of the process: those of the optimizer that was prepared first."""

    def __init__(self) -> None:
        self._optimizer: weakref.ref | None = None
        self._number = 0  # of the step under way

    def prepared(self, optimizer) -> None:
        if self._optimizer is not None and self._optimizer() is not None:
            return
        if _auto.has_set_step(None):
            self._optimizer = weakref.ref(optimizer)
            step(self._number)

    def stepped(self, optimizer) -> None:
        is_ours = self._optimizer is not None and self._optimizer() is optimizer
        if is_ours and optimizer.gradient_state.sync_gradients and _auto.has_set_step(self._number):
            self._number += 1
            step(self._number)

    def end(self) -> None:
        if self._optimizer is not None and _auto.has_set_step(self._number):
            step(None)
        self._optimizer = None


_steps = _Steps()


def add_to_optimizers(optimizer: typing.Any) -> None:
    """optimizer: AcceleratedOptimizer."""
    init, take_step = optimizer.__init__, optimizer.step

    @functools.wraps(init)
    def prepare(self, *args, **kwargs):
        init(self, *args, **kwargs)
        with guard("the steps of accelerate"):
            _steps.prepared(self)

    @functools.wraps(take_step)
    def step_and_count(self, *args, **kwargs):
        done = take_step(self, *args, **kwargs)
        with guard("the steps of accelerate"):
            _steps.stepped(self)
        return done

    optimizer.__init__, optimizer.step = prepare, step_and_count


def add_to_accelerators(accelerator: typing.Any) -> None:
    """accelerator: Accelerator."""
    end_training = accelerator.end_training

    @functools.wraps(end_training)
    def end(self, *args, **kwargs):
        with guard("the end of accelerate's training"):
            _steps.end()
        return end_training(self, *args, **kwargs)

    accelerator.end_training = end
