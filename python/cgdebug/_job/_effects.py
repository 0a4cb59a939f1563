"""Keeps probes in compiled code in their order, and makes them cheap where it runs.

A compiler wraps an op with an effect in the operator `with_effects`. Backends that run what
AOTAutograd made as Python, such as "aot_eager", call that operator in each run: torch dispatches it
in Python, which takes ten times as long as the probe. Where there is nothing to dispatch, it calls
the op at once.
"""

from __future__ import annotations

import functools

import torch

from . import _native
from ._after_import import call_after_import

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_ours: frozenset = frozenset()


def _register() -> None:
    """Without this a compiler drops an op that returns nothing, or moves it."""
    from torch._library.effects import EffectType

    global _ours
    namespace = torch.ops.cgdebug
    _ours = frozenset(
        op.default for op in (namespace.observe, namespace.observe_at, namespace.note_at)
    )
    for op in _ours:
        torch.library._register_effectful_op(op, EffectType.ORDERED)
    call_after_import("torch._higher_order_ops.effects", _run_at_once)


def _run_at_once(effects) -> None:
    """Does nothing for a torch that is built differently."""
    operator = getattr(effects, "WithEffects", None)
    if operator is None or hasattr(operator.__call__, "_cgdebug_wraps"):
        return
    modes_of = getattr(torch._C, "_len_torch_dispatch_stack", None)
    transform_of = getattr(torch._C._functorch, "peek_interpreter_stack", None)
    if modes_of is None or transform_of is None:
        return

    def is_plain(tensor) -> bool:
        """Whether no mode, no transform and no subclass has to see an op on it."""
        return type(tensor) in _PLAIN and not modes_of() and transform_of() is None

    dispatch = operator.__call__

    @functools.wraps(dispatch)
    def call(self, token, op, *args, **kwargs):
        if op in _ours and not kwargs and is_plain(args[0]):
            op(*args)
            return token, None
        return dispatch(self, token, op, *args, **kwargs)

    call._cgdebug_wraps = dispatch  # type: ignore[attr-defined]
    operator.__call__ = call


_native.when_op_loads(_register)
