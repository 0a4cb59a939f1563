"""The line that long work shows on a terminal, as the commands of cgdebug-cli do."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time

_SILENCE, _PERIOD = 1.0, 0.25  # seconds


class Progress:
    """Within its `with` block, and from the second second on, says how long `what` has taken, how
    far it is, and about how long it will take yet: on a terminal behind stderr, elsewhere nothing.
    """

    def __init__(self, what: str):
        self._what = "".join(one if one.isprintable() else "?" for one in what)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.begin("", 0)

    def begin(self, unit: str, known: int) -> None:
        """`known` things of `unit`, such as "snapshots read", are to come."""
        self._unit, self._known, self._done = unit, known, 0
        self._since = time.monotonic()

    def add(self, count: int) -> None:
        self._done += count

    def reach(self, done: int) -> None:
        self._done = done

    def text(self, start: float, now: float) -> str:
        text = _duration(now - start)
        if self._done:
            text += f", {_grouped(self._done)}"
            if self._done <= self._known:
                text += f" of {_grouped(self._known)}"
            text += f" {self._unit}"
            if self._done < self._known:
                more = (now - self._since) * (self._known - self._done) / self._done
                text += f", about {_duration(more + 0.5)} more"
        return f"{text}  {self._what}"

    def __enter__(self) -> Progress:
        if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self) -> None:
        start = time.monotonic()
        is_shown = False
        while not self._over.wait(_PERIOD):
            now = time.monotonic()
            if now - start < _SILENCE:
                continue
            is_shown = True
            columns = shutil.get_terminal_size().columns
            line = _cut(self.text(start, now), columns - 1)
            print(f"\r\x1b[2K\x1b[2m{line}\x1b[0m\r", end="", file=sys.stderr, flush=True)
        if is_shown:
            print("\x1b[2K", end="", file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{int(seconds)}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


def _grouped(count: int) -> str:
    return f"{count:,}".replace(",", " ")


def _cut(text: str, columns: int) -> str:
    """A wide letter takes two columns."""
    import unicodedata

    for at, letter in enumerate(text):
        columns -= 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if columns < 0:
            return text[:at]
    return text
