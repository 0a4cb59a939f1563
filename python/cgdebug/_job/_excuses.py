"""Which NaN and Inf in rows of this process's op logs have an excuse: cgdebug-cli knows, and is
asked. An attention that leaves rows out makes NaN that nobody reads; a GradScaler skips steps."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
import typing

from ..__main__ import find_program
from . import _native

_TIMEOUT_S = 60.0
_LEAST_PAUSE_S = 5.0
_PAUSE_SHARE = 20  # of the time that an answer takes


class First(typing.NamedTuple):
    """place: the slot's order, and the serial of the replay. None if it was made between two calls,
    which the daemon does not know"""

    sentence: str
    place: tuple[int, int] | None


class Verdict(typing.NamedTuple):
    """found: by "nan" and "inf", the first that has none
    problem: why there may be others; empty: there are none"""

    found: dict[str, First]
    problem: str


def ask(timeout: float = _TIMEOUT_S) -> Verdict:
    """What the daemon has read by now. Runs cgdebug-cli, and waits for it."""
    program, session = find_program(), _native.probe_module().session()
    if program is None:
        return Verdict({}, "cgdebug-cli, which would tell, is not beside this Python")
    job = session["uuid"][:8]
    try:
        done = subprocess.run(
            [program, "--json", "--no-spawn", "check", job],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
        answer = json.loads(done.stdout)
        found = {
            one["what"].lower(): First(
                _sentence(one["text"], one["count"], job),
                (one["graph_order"], one["serial"]) if one["next_call"] is None else None,
            )
            for one in answer["unexcused"]
        }
        rows = answer["open"]
    except subprocess.TimeoutExpired:
        return Verdict({}, f"cgdebug-cli check {job} did not tell within {timeout:.0f} s")
    except (OSError, ValueError, KeyError) as error:
        return Verdict({}, f"cgdebug-cli check {job} did not tell: {error}")
    problem = f"{rows} times the rows that would tell are not here" if rows else ""
    return Verdict(found, f"{problem}. Type: cgdebug-cli check {job}" if problem else "")


def _sentence(head: str, count: int, job: str) -> str:
    return f"{head}, {count} element{'s' * (count != 1)}. Type: cgdebug-cli check {job}"


class _Asking:
    """Asks beside the job, so that no step waits."""

    def __init__(self):
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._pause_until = 0.0
        self._last: Verdict | None = None

    def last(self) -> Verdict | None:
        """The newest answer; asks for the next one if that is due."""
        with self._lock:
            is_asking = self._thread is not None and self._thread.is_alive()
            if not is_asking and time.monotonic() >= self._pause_until:
                self._thread = threading.Thread(
                    target=self._ask, name="cgdebug-excuses", daemon=True
                )
                self._thread.start()
            return self._last

    def _ask(self) -> None:
        begun = time.monotonic()
        self._last = ask()
        now = time.monotonic()
        self._pause_until = now + max(_LEAST_PAUSE_S, _PAUSE_SHARE * (now - begun))


_asking = _Asking()


def last() -> Verdict | None:
    """What was answered last; None: nothing yet. Thread: any."""
    return _asking.last()


def _forget() -> None:
    """In a child process, which has no thread for it."""
    global _asking
    _asking = _Asking()


os.register_at_fork(after_in_child=_forget)
