"""What we do inside of a framework never stops it, in whatever way it differs from what we know."""

from __future__ import annotations

import contextlib
import functools
import sys
import typing

from ..errors import FoundError, NotCheckedError

_told: set[str] = set()  # what has failed and was printed


@contextlib.contextmanager
def guard(what: str) -> typing.Iterator[None]:
    """An exception of what runs in it costs one printed line, and is counted as `what` not seen.
    Those that the job asked for pass."""
    try:
        yield
    except (FoundError, NotCheckedError):
        raise
    except Exception as error:
        tell(what, f"{type(error).__name__}: {error}".partition("\n")[0])


def entry(what: str, otherwise: typing.Callable[[], typing.Any] = lambda: None):
    """For what a framework calls by itself: it returns otherwise() in place of an exception."""

    def make(function):
        @functools.wraps(function)
        def soft(*args, **kwargs):
            with guard(what):
                return function(*args, **kwargs)
            return otherwise()

        return soft

    return make


def tell(what: str, problem: str) -> None:
    """Prints the problem, once for each `what`, and counts it."""
    say_once(what, problem)
    with contextlib.suppress(Exception):
        from . import _native

        _native.not_seen(what, problem)


def reason_of(error: Exception) -> str:
    """Its first line."""
    return str(error).partition("\n")[0] or type(error).__name__


def say_once(what: str, problem: str) -> None:
    """Prints the problem of `what`, if it is its first. It is not counted."""
    is_new = what not in _told
    _told.add(what)
    if is_new:
        say(f"{what}: {problem}. The job goes on without")


def say(text: str) -> None:
    """Prints a line of ours, if the job has where to."""
    with contextlib.suppress(Exception):
        if sys.stderr is not None:
            print(f"cgdebug: {text}", file=sys.stderr)


def wrap(
    owner: typing.Any,
    name: str,
    what: str,
    before: typing.Callable[..., typing.Any] | None = None,
    after: typing.Callable[..., object] | None = None,
) -> None:
    """From here on the method `name` of the class `owner` first calls before(...) and then
    after(...), both with what it is called with. The method runs inside the context manager that
    `before` returns, if it returns one. Its arguments, result and exceptions stay its own."""
    method = getattr(owner, name, None)
    if not callable(method):
        tell(what, f"{getattr(owner, '__qualname__', owner)} has no {name}()")
        return

    @functools.wraps(method)
    def wrapped(*args, **kwargs):
        scope = None
        if before is not None:
            with guard(what):
                scope = before(*args, **kwargs)
        with contextlib.nullcontext() if scope is None else _Soft(what, scope):
            result = method(*args, **kwargs)
        if after is not None:
            with guard(what):
                after(*args, **kwargs)
        return result

    setattr(owner, name, wrapped)


class _Soft:
    """A context manager as it is, but for its own exceptions: the body's do not reach it."""

    def __init__(self, what: str, scope: typing.Any):
        self._what, self._scope = what, scope

    def __enter__(self) -> None:
        with guard(self._what):
            self._scope.__enter__()
            return
        self._scope = None

    def __exit__(self, *error) -> None:
        if self._scope is not None:
            with guard(self._what):
                self._scope.__exit__(None, None, None)
