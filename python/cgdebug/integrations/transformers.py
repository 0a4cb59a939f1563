"""The Trainer of Hugging Face transformers: under CGDEBUG_WATCH each has a CgdebugCallback, which
Trainer(..., callbacks=[CgdebugCallback()]) gives it in a program that imports cgdebug itself."""

from __future__ import annotations

import functools
import typing

import transformers

from .._job import _auto
from .._job._fail_soft import guard
from ..probe import step

__all__ = ["CgdebugCallback", "add_to_trainers"]


class CgdebugCallback(transformers.TrainerCallback):
    """Watches the model of a Trainer as CGDEBUG_WATCH asks, and names the step of each snapshot by
    the Trainer's global step. Does nothing without the variable. A failure is printed, because the
    job goes on."""

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        if _auto.is_wanted():
            with guard("the model of the Trainer"):
                _auto.start()
                _auto.look_at(model)

    def on_step_begin(self, args, state, control, **kwargs):
        if _auto.is_wanted():
            with guard("the steps of the Trainer"):
                step(state.global_step)

    def on_train_end(self, args, state, control, **kwargs):
        if _auto.is_wanted():
            step(None)


def add_to_trainers(trainer: typing.Any) -> None:
    """Each Trainer that is made from now on has the callback."""
    init = trainer.__init__

    @functools.wraps(init)
    def init_with_callback(self, *args, **kwargs):
        _auto.has_trainer = True
        init(self, *args, **kwargs)
        if not any(isinstance(one, CgdebugCallback) for one in self.callback_handler.callbacks):
            self.add_callback(CgdebugCallback())

    trainer.__init__ = init_with_callback
