"""Runs an op that a mode was given as torch does without the mode."""

from __future__ import annotations

import contextlib
import functools

import torch

_REFUSED = "Expected a value of type 'Tensor'"


def run(func, args, kwargs):
    try:
        if _is_made_of_ops(func) and torch._C._functorch.peek_interpreter_stack() is None:
            with _as_called():
                return func(*args, **kwargs)
        return func(*args, **kwargs)
    except RuntimeError as error:
        # Torch gives a mode the constants of TorchScript as numbers, also to ops that want a tensor
        # and then refuse them.
        if _REFUSED not in str(error):
            raise
        tensors = [
            torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
            if isinstance(value, (int, float)) and str(argument.type) == "Tensor"
            else value
            for value, argument in zip(args, func._schema.arguments)
        ]
    return func(*tensors, **kwargs)


@functools.lru_cache(maxsize=4096)
def _is_made_of_ops(func) -> bool:
    """Whether it calls other ops. In inference mode a mode is given it whole, where autograd would
    have taken it apart."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


@contextlib.contextmanager
def _as_called():
    """Inside of a mode torch leaves out what had its turn before it. The ops that such an op calls
    need it: autocast, and whether a view of a weight requires a gradient, which decides between
    kernels."""
    with torch.overrides.enable_reentrant_dispatch():
        left_out = torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), left_out):
        yield
