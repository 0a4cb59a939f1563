"""What op logs do not show, and how others hear of it."""

from __future__ import annotations

import collections
import contextlib
import threading
import typing

from ..._job import _native
from .. import padding

MAX_CALLS = 1 << 16  # whose numbers are known
_MAX_GAPS = 64  # different ones
_MORE_GAPS = "more is not shown, for reasons that found no room here"
# What the account of the process calls what logs lack: what no gap row tells, and what one does.
ACCOUNT = "op log"
TOLD_ACCOUNT = "op log rows"  # kToldByGapRows in client/source/source.cpp


class GapRows:
    """Tells the daemon what op logs do not show, as rows that hold no tensor (layout::IsOpGap).

    of: the number of a capture, "eager", or "job"

    Nothing that goes wrong in it reaches the job. Thread: any."""

    def __init__(self, of: int | str):
        self._of = of
        self._lock = threading.RLock()
        self._told: set[str] = set()
        self._native: typing.Any = None

    def tell(self, gaps: typing.Iterable[str]) -> None:
        """Each gap is told once."""
        with self._lock:
            new = [gap for gap in dict.fromkeys(gaps) if gap not in self._told]
            if not new:
                return
            self._told.update(new)
            try:
                if self._native is None:
                    self._native = _native.load().NativeOpLog()
                for gap in new:
                    add_note(self._native, "ops/gap", f"gap {self._of} {gap}")
                self._native.end()
            except Exception:  # there is no room for a row
                for gap in new:
                    _native.not_seen(ACCOUNT, gap)

    def wait(self, timeout: float) -> bool:
        with self._lock:
            native = self._native
        return native is None or native.wait_consumed(timeout)

    def close(self) -> None:
        with self._lock:
            if self._native is not None:
                self._native.close()


def add_note(native, name: str, text: str) -> None:
    """A row that has no tensor, only a text."""
    native.add(
        name,
        op=text,
        site="",
        data=0,
        dtype="uint8",
        shape=[0],
        cuda=None,
        stream=0,
    )


class Gaps:
    """What one log does not show, and why: counted, and told to the readers of other processes.

    graph: of the log; 0 of an eager one

    Thread: any.
    """

    def __init__(self, graph: int):
        self.counts: collections.Counter[str] = collections.Counter()
        self._graph = graph
        self._lock = threading.RLock()
        self._new: collections.Counter[str] = collections.Counter()  # not told yet
        # Told beside the rows of the run that ends.
        self._beside: collections.Counter[str] = collections.Counter()
        # By call: those that a row of the call tells. The others are of a call that nobody knows.
        self._of_calls: collections.OrderedDict[int, collections.Counter[str]] = (
            collections.OrderedDict()
        )
        self._others: collections.Counter[str] = collections.Counter()
        self._rows = GapRows(graph or "eager")

    def note(self, gap: str) -> None:
        with self._lock:
            if gap not in self.counts and len(self.counts) >= _MAX_GAPS:
                gap = _MORE_GAPS
            self.counts[gap] += 1
            self._new[gap] += 1
        # Of padding that is not known all rows are there.
        if not self._graph and gap != padding.ON_GPU:
            _native.not_seen(TOLD_ACCOUNT, gap)

    def of(self, call: int) -> collections.Counter[str]:
        with self._lock:
            gaps = self._of_calls.get(call, collections.Counter()) + self._others
            return gaps if call else gaps + self._new

    def tell_beside(self, native) -> None:
        """Adds them to the rows of an eager run: readers know then that they are of this run."""
        with self._lock, contextlib.suppress(Exception):  # rows must be ended; tell() tries again
            for gap in list(self._new):
                add_note(native, "ops/gap", f"gap log {gap}")
                self._beside[gap] = self._new.pop(gap)

    def end_run(self, call: int) -> None:
        """What tell_beside() told is of this call; 0: of one that nobody knows."""
        with self._lock:
            told, self._beside = self._beside, collections.Counter()
            if not call:
                self._others.update(told)
                return
            self._of_calls[call] = told
            while len(self._of_calls) > MAX_CALLS:
                self._of_calls.popitem(last=False)

    def tell(self) -> None:
        """Shows what no row of a call has told."""
        with self._lock:
            self._rows.tell(self._new)
            self._others.update(self._new)
            self._new.clear()

    def wait(self, timeout: float) -> bool:
        return self._rows.wait(timeout)

    def close(self) -> None:
        self._rows.close()
