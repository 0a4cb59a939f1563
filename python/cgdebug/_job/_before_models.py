"""The eager log of a program that has no model: it begins with the first op.

What a program does before it makes a model, such as its weights and data, is not logged. So the
rows are kept in the job until it is known that it makes none: a module gets a parameter, a buffer
or a part, or is called, or a step is set. Then they are dropped.
"""

from __future__ import annotations

import atexit
import multiprocessing
import threading
import typing

import torch

from . import _aside
from ._fail_soft import guard

if typing.TYPE_CHECKING:
    from collections.abc import Callable

_expected: _Expected | None = None


def expect(scope_of: Callable, follow: Callable) -> None:
    """scope_of: makes the scope of a log; follow: is told the scope when the log is not held any
    more, before the process ends. Does nothing on other threads, and in workers."""
    global _expected
    is_main = threading.current_thread() is threading.main_thread()
    if _expected is None and is_main and multiprocessing.parent_process() is None:
        _expected = _Expected(scope_of, follow)


def end() -> None:
    """The program has a model, or steps: it tells where calls begin."""
    global _expected
    expected, _expected = _expected, None
    if expected is not None:
        expected.drop()
        expected.remove_hooks()


class _Expected:
    def __init__(self, scope_of: Callable, follow: Callable):
        from .._op_log.following import enter_below
        from .._op_log.mode import Mode
        from .._op_log.run_op import run

        class FirstOp(Mode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                _aside.call(expected.begin)
                return run(func, args, kwargs or {})

        expected = self
        self._scope_of, self._follow = scope_of, follow
        self._scope: typing.Any = None
        self._log: typing.Any = None
        self._has_begun = self._is_over = False
        of_modules = torch.nn.modules.module
        self._hooks = [
            register(self._registers)
            for register in (
                of_modules.register_module_parameter_registration_hook,
                of_modules.register_module_buffer_registration_hook,
                of_modules.register_module_module_registration_hook,
            )
        ]
        self._mode = FirstOp()
        enter_below(self._mode)

    def begin(self) -> None:
        if self._has_begun or self._is_over:
            return
        self._has_begun = True
        with guard("the ops of a program without a model"):
            from .._op_log.rows.held import HeldLog

            self._log = HeldLog(self._is_released)
            self._scope = self._scope_of(self._log)
            self._scope.owner = self._scope
            self._scope.open()
            atexit.register(self._process_ends)

    def drop(self) -> None:
        self._is_over = True
        self._leave()
        if self._log is not None and self._log.is_held:
            self._log.drop()
            self._scope.forget()

    def remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _registers(self, *what) -> None:
        """A hook of torch, which must not remove itself."""
        if not self._is_over and not torch.compiler.is_compiling():
            self.drop()

    def _is_released(self) -> None:
        self._is_over = True
        self._leave()
        self._follow(self._scope)

    def _process_ends(self) -> None:
        if self._log.is_held and not self._scope.is_forked:
            self._scope.close()

    def _leave(self) -> None:
        from .._op_log.following import leave

        with guard("the end of a mode"):
            leave(self._mode)
