"""Follows what a thread runs, for a recorder: ops, Triton kernels, compiled code, modules."""

from __future__ import annotations

import contextlib
import gc
import typing

import torch

from ..._job import _accepted, _aside
from .. import names, written
from ..mode import Mode
from ..run_op import run
from . import compiled_code, triton_kernels

if typing.TYPE_CHECKING:
    from collections.abc import Callable

    from ..recorder import Recorder


class Followed:
    """From here on, until end(), the recorder is told of all that this thread runs, and of the
    backward passes that it starts.

    modules:   is told which modules run
    begins:    is told of a module that is about to be called and is in no other one
    is_beside: another thread's Followed has the hooks of modules and tells of Triton kernels

    end() takes nothing off this thread if another one calls it, as when this one has ended.
    """

    def __init__(
        self,
        recorder: Recorder,
        modules: names.ModuleNames,
        begins: Callable[[torch.nn.Module], None] | None = None,
        is_beside: bool = False,
    ):
        mode = OpMode(recorder)
        self.hooks: names.ModuleHooks | None = None
        self._undo = contextlib.ExitStack()  # the last is undone first
        self._undo.callback(recorder.end)
        try:
            if not is_beside:
                self.hooks = names.ModuleHooks(modules, begins)
                self._undo.callback(self.hooks.remove)
                self._undo.callback(triton_kernels.unfollow, recorder)
                triton_kernels.follow(recorder)
            self._undo.callback(leave, mode)
            self._undo.callback(compiled_code.unfollow, recorder)
            compiled_code.follow(recorder)
            enter_below(mode)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Ends what the recorder logs. Does nothing the second time."""
        self._undo.close()


class CollectorStopped:
    """Until end() nothing is collected: a dead graph that is collected while another one is
    captured ends that capture."""

    def __init__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def end(self) -> None:
        """Does nothing the second time."""
        was_enabled, self._was_enabled = self._was_enabled, False
        if was_enabled:
            gc.enable()


class OpMode(Mode):
    """While it is entered, a recorder sees every op of this thread, and of the backward passes that
    it starts."""

    def __init__(self, recorder: Recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if _accepted.is_tracing():
            return func(*args, **kwargs)
        if any(map(written.handles_ops, types)):
            self.recorder.takes_apart(func, args, kwargs)
            return NotImplemented  # then torch calls the ops that it is made of
        call = _aside.call(self.recorder.before, func, args, kwargs)
        try:
            result = run(func, args, kwargs)
        except BaseException:
            _aside.call(self.recorder.after, call, None, has_failed=True)
            raise
        _aside.call(self.recorder.after, call, result)
        return result


def enter_below(mode: Mode) -> None:
    """Enters it below the modes of the program: one that ends takes the topmost mode off the
    thread, whichever that is."""
    modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    above = [one for one in modes if getattr(one, "_mode_key", None) is None]
    for _ in above:
        torch.utils._python_dispatch._pop_mode()
    try:
        mode.__enter__()
    finally:
        for one in above:
            torch.utils._python_dispatch._push_mode(one)


def leave(mode: Mode) -> None:
    """Takes the mode off this thread, even if modes that were entered later are still there."""
    if isinstance(mode, OpMode):
        mode.recorder.writer.is_done = True
    stack = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    if not any(one is mode for one in stack):
        return
    above = []
    while True:
        top = torch.utils._python_dispatch._get_current_dispatch_mode_stack()[-1]
        if top is mode:
            break
        above.append(torch.utils._python_dispatch._pop_mode())
    mode.__exit__(None, None, None)
    for other in reversed(above):
        torch.utils._python_dispatch._push_mode(other)
    _heed_those_that_stay()


def _heed_those_that_stay() -> None:
    """A mode that ends gives back what it found when it was entered: whether compiled code runs
    eagerly, because a mode wants to see each of its ops. Since then others may have begun or
    ended."""
    torch_modes = torch.utils._python_dispatch
    flag = "_is_in_any_mode_without_ignore_compile_internals"
    if not hasattr(torch_modes, flag):
        return
    stay = torch_modes._get_current_dispatch_mode_stack()
    is_eager = any(not one.ignore_compile_internals() for one in stay)
    setattr(torch_modes, flag, is_eager)
    if hasattr(torch_modes, "set_is_in_mode_without_ignore_compile_internals"):
        torch_modes.set_is_in_mode_without_ignore_compile_internals(is_eager)
