"""Ops on threads that no eager log follows, because they do not call the model, are said.

Torch's modes are of one thread. So each thread that starts while such a log is open, or may be
opened, gets a mode of its own, which counts until the thread is followed."""

from __future__ import annotations

import threading
import time
import typing
import weakref

from .mode import Mode
from .run_op import run

if typing.TYPE_CHECKING:
    from collections.abc import Callable

# The ops before a thread's first call of the model make its batch: they are said if no call came
# for so long.
_PATIENCE_S = 1.0
_MOST_NAMES = 8  # a pool may start threads for ever

_watchers: list[Watcher] = []  # of open logs
_lock = threading.RLock()
_is_wrapped = False
_is_expected = False


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
        for mode in list(_begun):
            mode.end(self)  # of a thread that goes on
        with _lock:
            if self in _watchers:
                _watchers.remove(self)


def expect() -> None:
    """Such a log may be opened: threads that start from now on are known then."""
    global _is_expected
    _is_expected = True
    _wrap()


class _Unfollowed(Mode):
    """Stays until Python's part of the thread ends. Torch would drop it later, with the
    interpreter's lock: that ends a job whose interpreter ends meanwhile."""

    def __init__(self, thread: str):
        super().__init__()
        self._thread = thread  # its name: at its end, Python knows no thread any more
        # The log that was opened last, which is the one that rows go to, at the first op.
        self._watcher: Watcher | None = None
        self._began = 0.0
        self._is_done = False  # it is followed, or that it is not has been said

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not self._is_done:
            self._look()
        return run(func, args, kwargs or {})

    def _look(self) -> None:
        now = time.monotonic()
        if self._watcher not in _watchers:
            with _lock:
                self._watcher = _watchers[-1] if _watchers else None
            self._began = now
            if self._watcher is not None:
                _begun.add(self)
        elif self._watcher.is_followed():
            self._is_done = True
        elif now - self._began > _PATIENCE_S:
            self.end(self._watcher)

    def end(self, watcher: Watcher) -> None:
        """Says what is not shown, if an op ran while `watcher` was there, unless the thread is
        followed by then."""
        if self._is_done or self._watcher is not watcher or watcher not in _watchers:
            return
        self._is_done = True
        watcher.say(self._thread)

    def end_thread(self) -> None:
        if self._watcher is not None and not self._watcher.is_followed():
            self.end(self._watcher)
        from .following import leave

        leave(self)


_begun: weakref.WeakSet[_Unfollowed] = weakref.WeakSet()  # that saw an op while a log was open


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
        if not (_watchers or _is_expected):
            return inner(self)
        mode = _Unfollowed(self.name)
        mode.__enter__()
        try:
            return inner(self)
        finally:
            mode.end_thread()

    threading.Thread._bootstrap_inner = bootstrap_inner  # type: ignore[attr-defined]
