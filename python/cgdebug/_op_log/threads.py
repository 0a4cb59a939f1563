"""Ops on threads that no eager log follows, because they do not call the model, are said.

Torch's modes are of one thread. So each thread that starts while such a log is open gets a mode of
its own, which counts until the thread is followed."""

from __future__ import annotations

import threading
import time
import typing

from torch.utils._python_dispatch import TorchDispatchMode

if typing.TYPE_CHECKING:
    from collections.abc import Callable

# The ops before a thread's first call of the model make its batch: they are said if no call came
# for so long.
_PATIENCE_S = 1.0
_MOST_NAMES = 8  # a pool may start threads for ever

_watchers: list[Watcher] = []  # of open logs
_lock = threading.Lock()
_is_wrapped = False


class Watcher:
    """is_followed: whether a log follows the thread that asks
    tell:        is told once of each thread whose ops are not shown, in a sentence"""

    def __init__(self, is_followed: Callable[[], bool], tell: Callable[[str], None]):
        self.is_followed = is_followed
        self.tell = tell
        self._told: set[str] = set()

    def say(self, name: str) -> None:
        with _lock:
            if len(self._told) < _MOST_NAMES:
                self._told.add(name)
            is_named = name in self._told
        which = f"thread {name!r}, which does" if is_named else "more threads, which do"
        self.tell(f"ops on {which} not call the model, are not shown")

    def open(self) -> None:
        _wrap()
        with _lock:
            _watchers.append(self)

    def close(self) -> None:
        with _lock:
            if self in _watchers:
                _watchers.remove(self)


class _Unfollowed(TorchDispatchMode):
    """Stays until the thread ends."""

    supports_higher_order_operators = True

    def __init__(self, watcher: Watcher, thread: str):
        super().__init__()
        self._watcher: Watcher | None = watcher
        self._thread = thread  # its name: at its end, Python knows no thread any more
        self._began: float | None = None  # its first op

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self._watcher is not None:
            now = time.monotonic()
            if self._began is None:
                self._began = now
            if now - self._began > _PATIENCE_S:
                self.say()
        return func(*args, **(kwargs or {}))

    def say(self) -> None:
        """Says what is not shown, unless the thread is followed by now."""
        watcher, self._watcher = self._watcher, None
        if watcher is None or self._began is None or watcher not in _watchers:
            return
        if not watcher.is_followed():
            watcher.say(self._thread)


def _wrap() -> None:
    """Stays for good: without a log it does nothing."""
    global _is_wrapped
    with _lock:
        if _is_wrapped:
            return
        _is_wrapped = True
    inner: typing.Any = getattr(threading.Thread, "_bootstrap_inner", None)
    if inner is None:
        return

    def bootstrap_inner(self):
        watchers = list(_watchers)
        if not watchers:
            return inner(self)
        # The log that was opened last is the one that rows go to.
        mode = _Unfollowed(watchers[-1], self.name)
        mode.__enter__()
        try:
            return inner(self)
        finally:
            mode.say()

    threading.Thread._bootstrap_inner = bootstrap_inner  # type: ignore[attr-defined]
