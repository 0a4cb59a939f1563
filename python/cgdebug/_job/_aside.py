"""What a program has set for its thread and must not meet us: torch.jit.trace, which takes every
tensor and number for a part of what it makes, and modes that see each function of torch that is
called, such as that of torch.set_default_device()."""

from __future__ import annotations

import contextlib

import torch


def call(function, *arguments, **options):
    """The function's result. The program meets nothing of what it does."""
    if torch._C._get_tracing_state() is None and not torch._C._is_torch_function_mode_enabled():
        return function(*arguments, **options)
    with _aside():
        return function(*arguments, **options)


@contextlib.contextmanager
def _aside():
    with torch._C.DisableTorchFunction():
        state = torch._C._get_tracing_state()
        if state is None:
            # Nor may it be set to None below the autograd of an op: torch fails.
            yield
            return
        torch._C._set_tracing_state(None)
        try:
            yield
        finally:
            torch._C._set_tracing_state(state)
