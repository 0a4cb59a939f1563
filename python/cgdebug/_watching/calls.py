"""Where calls of watched models begin and end.

What probes see eagerly carries the number of the call it belongs to (libprobe/eager_calls.h): that
of the outermost watched model that runs on the thread, or of what a framework says is one.
"""

from __future__ import annotations

import sys
import threading
import typing
import weakref

import torch

from .._job import _native
from .._job._after_import import constant_in_traces
from . import module_hooks
from .hooks import Hook
from .modules import is_callable


class _Here(threading.local):
    root: int = 0  # the id of the model whose call has begun and, as far as is known, not ended


_here = _Here()
_followed: weakref.WeakKeyDictionary[torch.nn.Module, tuple[int, list]] = (
    weakref.WeakKeyDictionary()
)
_framework_begins = False
at_begin: typing.Callable[[], None] | None = None  # hears of each call


class Follower:
    """Follows the calls of a model until it is removed. Several watches share the hooks.

    Requires: the lock of the watches."""

    def __init__(self, model):
        self._model = weakref.ref(model)
        if not is_callable(model):
            return
        count, handles = _followed.get(model, (0, []))
        if not count:
            handles = [
                module_hooks.register(model, BeginHook(), before=True),
                module_hooks.register(model, EndHook()),
            ]
        _followed[model] = count + 1, handles
        _native.load().set_calls_followed(True)

    def remove(self) -> None:
        model = self._model()
        if model is not None and model in _followed:
            count, handles = _followed.pop(model)
            if count > 1:
                _followed[model] = count - 1, handles
                return
            for handle in handles:
                handle.remove()
        if not _followed:
            _native.load().set_calls_followed(False)


class BeginHook(Hook):
    """Before a call of a watched model."""

    places = []

    def look(self, module, *call):
        if torch.compiler.is_compiling():
            _leave()
        else:
            begin(module)


class EndHook(Hook):
    """After it."""

    places = []

    def look(self, module, *call):
        if not torch.compiler.is_compiling() and _here.root == id(module):
            _here.root = 0
            if not _framework_begins:
                _native.load().end_call()


def begin(model: torch.nn.Module) -> None:
    """A watched model is about to be called."""
    if _framework_begins or torch._C._current_graph_task_id() != -1:  # recomputed in backward
        return
    if _here.root and _is_inside(model):
        return
    _here.root = id(model)
    _native.load().begin_call()
    if at_begin is not None:
        at_begin()


def is_running() -> bool:
    """Whether a call runs on this thread, as far as is known."""
    return _framework_begins or _here.root != 0


def begin_once(model: torch.nn.Module) -> None:
    """It is called, which may have been told already."""
    if _here.root != id(model):
        begin(model)


def begin_by_framework() -> None:
    """A batch begins. From now on calls of models begin nothing."""
    global _framework_begins
    _framework_begins = True
    if _native.probe_module() is not None:
        _native.load().begin_call()
        if at_begin is not None:
            at_begin()


def end_by_framework() -> None:
    global _framework_begins
    _framework_begins = False
    if _native.probe_module() is not None:
        _native.load().end_call()


def _is_inside(model: torch.nn.Module) -> bool:
    """Whether the call that began last is still running around that of `model`. One that raised has
    not told its end."""
    code = torch.nn.Module._call_impl.__code__
    frame: typing.Any = sys._getframe(1)
    is_own = True
    while frame is not None:
        if frame.f_code is code:
            called = frame.f_locals.get("self")
            if id(called) == _here.root and not (is_own and called is model):
                return True
            is_own = False
        frame = frame.f_back
    return False


@constant_in_traces
def _leave() -> None:
    """Compiled code will not tell where its calls begin, unless something around it does."""
    if not _here.root and not _framework_begins:
        _native.load().leave_calls()
