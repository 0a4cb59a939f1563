"""Tells recorders when code of Inductor runs: its fused kernels are no ops, so no dispatch mode
sees them. Those that run on a GPU are seen by triton_kernels, if rows of kernels are wanted.

The calls of such code are wrapped for good when the first recorder comes. Without a recorder they
only call the original.
"""

from __future__ import annotations

import functools
import threading
import typing

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ..._job._after_import import call_after_import

if typing.TYPE_CHECKING:
    from ..recorder import Recorder

_MODULE = "torch._inductor.output_code"
_recorders: list[tuple[Recorder, int]] = []  # and the thread that each follows
_wrapped = False


def follow(recorder: Recorder) -> None:
    global _wrapped
    _recorders.append((recorder, threading.get_ident()))
    if not _wrapped:
        _wrapped = True
        call_after_import(_MODULE, _wrap)


def unfollow(recorder: Recorder) -> None:
    _recorders[:] = [one for one in _recorders if one[0] is not recorder]


def _wrap(module) -> None:
    for name in ("CompiledFxGraph", "CompiledAOTI"):
        kind = getattr(module, name, None)
        if kind is not None:
            kind.__call__ = functools.wraps(kind.__call__)(_logged(kind.__call__))


def _logged(call):
    def logged_call(self, inputs):
        # Only an eager log: in a capture the nodes of the graph tell what no row shows.
        recorders = [
            one
            for one, thread in _recorders
            if one.is_eager and _is_unseen(self, one) and _is_followed_here(one, thread)
        ]
        if not recorders:
            return call(self, inputs)
        changed = _changed_by(self, inputs)  # before the code takes its inputs
        for recorder in recorders:
            recorder.kernels.begin_unseen()
        result = None
        try:
            result = call(self, inputs)
            return result
        finally:
            made = [one for one in _pytree.tree_leaves(result) if isinstance(one, torch.Tensor)]
            for recorder in recorders:
                recorder.kernels.end_unseen(changed, made)

    return logged_call


def _is_followed_here(recorder: Recorder, thread: int) -> bool:
    """Whether what this thread runs is the recorder's: a thread of autograd has the modes of the
    one that began the backward pass."""
    if thread == threading.get_ident():
        return True
    modes = _get_current_dispatch_mode_stack()
    return any(getattr(mode, "recorder", None) is recorder for mode in modes)


def _is_unseen(code, recorder: Recorder) -> bool:
    """Whether it may run kernels that nobody tells the recorder of."""
    return not recorder.kernels.has_rows or set(getattr(code, "device_types", ("cpu",))) != {"cuda"}


def _changed_by(code, inputs) -> list[torch.Tensor]:
    """All inputs, if it does not say which."""
    places = getattr(code, "mutated_input_idxs", range(len(inputs)))
    return [inputs[place] for place in places if isinstance(inputs[place], torch.Tensor)]
