"""Megatron-Core: under CGDEBUG_WATCH each run of what `get_forward_backward_func()` returns is one
call, with all of its microbatches and with the optimizer's step behind it, without an edit. Each
that trains begins a step.

A program that sets steps itself keeps its own.
"""

from __future__ import annotations

import functools
import typing

from .._job import _auto
from .._job._fail_soft import guard
from ..probe import step

__all__ = ["add_to_schedules"]

_SCHEDULES = (
    "forward_backward_no_pipelining",
    "forward_backward_pipelining_with_interleaving",
    "forward_backward_pipelining_without_interleaving",
)
_step: int | None = None  # that was set here last


def add_to_schedules(schedules: typing.Any) -> None:
    """schedules: the module megatron.core.pipeline_parallel.schedules."""
    for name in _SCHEDULES:
        if (schedule := getattr(schedules, name, None)) is not None:
            setattr(schedules, name, _as_call(schedule))


def _as_call(schedule):
    @functools.wraps(schedule)
    def run_as_call(*args, **kwargs):
        with guard("the steps of Megatron-Core"):
            _begin(kwargs.get("model"), trains=not kwargs.get("forward_only", False))
        try:
            return schedule(*args, **kwargs)
        finally:
            with guard("the steps of Megatron-Core"):
                _auto.end_calls()

    return run_as_call


def _begin(model, trains: bool) -> None:
    global _step
    for chunk in model if isinstance(model, list) else [model]:
        if chunk is not None:
            _auto.look_at(chunk)  # a hook of its first call would come too late for this one
    if trains and _auto.has_set_step(_step):
        _step = 0 if _step is None else _step + 1
        step(_step)
    _auto.begin_call()
