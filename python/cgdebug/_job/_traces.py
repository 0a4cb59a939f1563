"""torch.jit.trace takes every tensor and number of its thread for a part of what it makes."""

from __future__ import annotations

import contextlib

import torch


@contextlib.contextmanager
def outside_of_traces():
    """What is made or asked here is no part of it."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)
