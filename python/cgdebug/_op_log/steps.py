"""Where the calls of an eager log begin and end, by steps: those that the job sets, and those of
its optimizers."""

from __future__ import annotations

import typing

from .._job import _native

if typing.TYPE_CHECKING:
    from collections.abc import Callable

    from . import names


class Steps:
    """next_run: ends the call, and begins the next one

    Thread: as the recorder that has it.
    """

    def __init__(self, log, next_run: Callable[[], None]):
        # Whether a call ends with the step of an optimizer: what is done outside of modules after
        # that, such as loading data, is for the next call and belongs to neither.
        self.ends_with_step = False
        # Whether a call ends where a module goes on after the step of an optimizer.
        self.begins_after_step = False
        # Told before a call that begins because another step was set.
        self.on_step: Callable[[], None] | None = None
        self._log = log
        self._next_run = next_run
        self._step: int | None = None  # that was set when the call began
        self._has_stepped = False

    def begin_run(self) -> None:
        self._has_stepped = False

    def follow(self, place: names.Place) -> None:
        """An op is about to run. What is done outside of modules after another step was set, such
        as making a batch, is of the next call."""
        if place.phase == "fwd" and self._log.rows:
            if not place.module and self.is_of_other_step():
                has_stepped = self._has_stepped and self.ends_with_step
                self._next_run()
                self._has_stepped = has_stepped
                if self.on_step is not None:
                    self.on_step()
            elif place.module and self._has_stepped and self.begins_after_step:
                self._next_run()
        if place.phase == "opt" and self.begins_after_step:
            self._has_stepped = True
        if not self._log.rows:
            self._step = _native.current_step()

    def is_of_other_step(self) -> bool:
        """Whether a call is under way that began before another step was set."""
        return bool(self._log.rows) and self._step != _native.current_step()

    def is_between(self, place: names.Place) -> bool:
        """Whether what was written there is of no call."""
        if not self.ends_with_step:
            return False
        if place.phase != "fwd" or place.module:
            self._has_stepped = place.phase == "opt"
        return self._has_stepped and place.phase == "fwd"
