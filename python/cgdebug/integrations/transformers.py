"""The Trainer of Hugging Face transformers: Trainer(..., callbacks=[CgdebugCallback()])."""

from __future__ import annotations

import transformers

from .. import _auto
from ..probe import step

__all__ = ["CgdebugCallback"]


class CgdebugCallback(transformers.TrainerCallback):
    """Watches the model of a Trainer as CGDEBUG_WATCH asks, and names the step of each snapshot by
    the Trainer's global step. Does nothing without the variable. A failure is printed, because the
    job goes on."""

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        if _auto.is_wanted():
            _auto.start()
            _auto.look_at(model)

    def on_step_begin(self, args, state, control, **kwargs):
        if _auto.is_wanted():
            step(state.global_step)

    def on_train_end(self, args, state, control, **kwargs):
        if _auto.is_wanted():
            step(None)
