"""What a program has set for its thread and must not meet us: torch.jit.trace, which takes every
tensor and number for a part of what it makes, and modes that see each function of torch that is
called, such as that of torch.set_default_device()."""

from __future__ import annotations

import contextlib

import torch


def is_needed() -> bool:
    return torch._C._get_tracing_state() is not None or torch._C._is_torch_function_mode_enabled()


@contextlib.contextmanager
def aside():
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)
    try:
        with torch._C.DisableTorchFunction():
            yield
    finally:
        torch._C._set_tracing_state(state)
