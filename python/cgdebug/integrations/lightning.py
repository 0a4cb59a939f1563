"""Lightning: its entry points call these functions for every Trainer."""

from __future__ import annotations

import importlib
import typing

from .._job import _auto
from .._job._fail_soft import entry, guard

__all__ = ["callbacks", "pytorch_lightning_callbacks"]


@entry("Lightning", otherwise=list)
def callbacks() -> list[typing.Any]:
    """The callback for a Trainer of `lightning.pytorch`; none without CGDEBUG_WATCH."""
    return _callbacks("lightning.pytorch")


@entry("Lightning", otherwise=list)
def pytorch_lightning_callbacks() -> list[typing.Any]:
    """The callback for a Trainer of `pytorch_lightning`; none without CGDEBUG_WATCH."""
    return _callbacks("pytorch_lightning")


def _callbacks(package: str) -> list[typing.Any]:
    if not _auto.is_wanted():
        return []
    base: typing.Any = importlib.import_module(package).Callback
    from ..probe import step

    class CgdebugCallback(base):
        """Watches the LightningModule, and names the step of each snapshot by the global step. Each
        batch is a call."""

        def setup(self, trainer, pl_module, stage):
            with guard("the model of Lightning"):
                _auto.start()
                _auto.look_at(pl_module)

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            with guard("the steps of Lightning"):
                step(trainer.global_step)
                _auto.begin_call()

        def on_validation_batch_start(self, *args, **kwargs):
            _begin_call()

        def on_test_batch_start(self, *args, **kwargs):
            _begin_call()

        def on_predict_batch_start(self, *args, **kwargs):
            _begin_call()

        def on_validation_end(self, trainer, pl_module):
            _end_calls(trainer)

        def on_test_end(self, trainer, pl_module):
            _end_calls(trainer)

        def on_predict_end(self, trainer, pl_module):
            _end_calls(trainer)

        def on_train_end(self, trainer, pl_module):
            _end_fit()

        def on_exception(self, trainer, pl_module, exception):
            _end_fit()

    return [CgdebugCallback()]


def _end_fit() -> None:
    from ..probe import step

    with guard("the end of Lightning's run"):
        step(None)
        _auto.end_calls()


def _end_calls(trainer) -> None:
    """A validation inside of fit() goes on with its next batch."""
    with guard("the end of Lightning's run"):
        if trainer.state.fn != "fit":
            _auto.end_calls()


def _begin_call() -> None:
    with guard("the batches of Lightning"):
        _auto.begin_call()
