"""What an op log has beside the rows of ops: the arguments that debug_mode() and watch() share."""

from __future__ import annotations

import dataclasses
import typing

from .._shared import _words
from .extras import Extras

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LEVELS = ("graph", "op", "kernel")
_MAX_FRAMES = 32  # as IsNumber of CGDEBUG_OP_LOG_FRAMES says


@dataclasses.dataclass(frozen=True)
class LogOptions:
    """As debug_mode() explains them."""

    level: str = "op"
    pre: bool = False
    frames: int | None = None
    hooks: typing.Any = None
    hash: Callable | None = None
    stats: Mapping[str, Callable] | None = None
    values: str | None = None
    every: int | None = None

    def check(self, caller: str) -> Extras:
        """What users add to the rows.

        Fails: TypeError, ValueError, which begin with `caller`."""
        if self.pre not in (True, False):
            raise ValueError(f"{caller}: pre must be True or False, not {self.pre!r}")
        if self.pre and self.level != "kernel":
            raise ValueError(f"{caller}: pre is of level='kernel', and the level is {self.level!r}")
        frames = self.frames
        if frames is not None and (type(frames) is not int or not 1 <= frames <= _MAX_FRAMES):
            raise ValueError(
                f"{caller}: frames must lie between 1 and {_MAX_FRAMES}, not {frames!r}"
            )
        if self.every is not None and (type(self.every) is not int or not 1 <= self.every < 2**32):
            raise ValueError(f"{caller}: every must be a whole number from 1, not {self.every!r}")
        return Extras.of(caller, self.hooks, self.hash, self.stats, self.values)

    def lines(self) -> int:
        """How many lines of the stack a row has."""
        return self.frames or int(_words.setting("CGDEBUG_OP_LOG_FRAMES") or 1)

    def replays(self) -> int:
        """Each so many replays of a captured graph have rows."""
        return self.every or int(_words.setting("CGDEBUG_OP_LOG_EVERY") or 1)
