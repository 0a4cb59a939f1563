"""Which op that waits for other ranks the program has called, and has not gone on from."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import typing

from .. import written
from ..details import type_of
from ..written import Kind

if typing.TYPE_CHECKING:
    from ..calls import Call

_TOLD_AFTER_S = 1.0
_WAITS = (Kind.C10D, Kind.FUNCTIONAL, Kind.WAIT)


class _Called(typing.NamedTuple):
    at: float  # time.monotonic()
    text: str
    log: object  # in which a row would show that the thread goes on


class Waiting:
    """Of each thread the newest such op, while it calls no other op. After a second the daemon is
    told (layout::IsOpOrder of capture 0), and told again when the thread goes on. So a collective
    that never returns has a name, although it has no row.

    Nothing that goes wrong in it reaches the job. Thread: any."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._called: dict[int, _Called] = {}  # by thread
        self._told: int | None = None  # of which thread the daemon was told
        self._count = 0  # of what it was told
        self._has_thread = False

    @property
    def is_empty(self) -> bool:
        return not self._called

    def calls(self, call: Call, log: object) -> None:
        """This thread is about to call the op, and `log` follows it."""
        if call.plan.kind not in _WAITS:
            return
        with contextlib.suppress(Exception), self._lock:
            self._called[threading.get_ident()] = _Called(time.monotonic(), _text_of(call), log)
            if not self._has_thread:
                threading.Thread(target=self._look, name="cgdebug-waiting", daemon=True).start()
                self._has_thread = True

    def goes_on(self) -> None:
        """This thread calls another op."""
        with contextlib.suppress(Exception), self._lock:
            self._forget(threading.get_ident())

    def end(self, log: object) -> None:
        """The log ends: it does not tell any more when a thread goes on."""
        with contextlib.suppress(Exception), self._lock:
            for thread in [one for one, called in self._called.items() if called.log is log]:
                self._forget(thread)

    def _forget(self, thread: int) -> None:
        self._called.pop(thread, None)
        if self._told == thread:
            self._told = None
            self._tell("passed")

    def _look(self) -> None:
        """The thread of this. It ends when nothing waits."""
        while True:
            time.sleep(_TOLD_AFTER_S / 2)
            with contextlib.suppress(Exception), self._lock:
                if not self._called:
                    self._has_thread = False
                    return
                thread, oldest = min(self._called.items(), key=lambda item: item[1].at)
                if self._told is None and time.monotonic() - oldest.at >= _TOLD_AFTER_S:
                    self._told = thread
                    self._tell("stands", oldest.text)

    def _tell(self, what: str, text: str = "") -> None:
        from ..node_order import notes  # which imports the recorder, too

        self._count += 1
        notes.tell_piece(0, f"{what} {self._count} {text}".rstrip())

    def forget_parent(self) -> None:
        self.__init__()  # type: ignore[misc]


def _text_of(call: Call) -> str:
    """ "c10d.allreduce_ f32[8] (train.py:34 in average)"."""
    tensors = written.tensors_in([one.tensors for one in call.arguments])
    more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
    is_given = tensors and "barrier" not in call.plan.base
    given = f" {type_of(tensors[0])}{more}" if is_given else ""
    site = f" ({call.place.site})" if call.place.site else ""
    return f"{call.plan.name.removesuffix('.default')}{given}{site}"


waiting = Waiting()
os.register_at_fork(after_in_child=waiting.forget_parent)
