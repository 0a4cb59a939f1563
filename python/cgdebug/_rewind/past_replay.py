"""A replay that is over, run again from what was kept of it, and held against what it left."""

from __future__ import annotations

import contextlib
import typing

import torch

from . import caches
from .memory import Copy, Spans
from .rows import unpack_all

if typing.TYPE_CHECKING:
    from .recorder import Recorder
    from .stepping import Stepped, Stepping


class Refused(Exception):
    """Why there is no answer, as a sentence."""


class NotReproduced(Refused):
    """The replay that was run again is not the same one."""


def number_of(asked: int, newest: int, recorder: Recorder) -> int:
    """asked: below 0, counted from the end. Fails: Refused: it is not kept or cannot be run."""
    if asked < 0:
        asked += newest + 1
    kept = recorder.replays()
    if kept is None or not kept[0] <= asked <= kept[1]:
        raise Refused(f"replay {asked} is not kept: there is {recorder.state_text()}")
    if changed := recorder.changed_constants():
        raise Refused(
            f"{changed} bytes that it reads and that are not kept, such as weights, have changed "
            f"since its first replay"
        )
    return asked


@contextlib.contextmanager
def put_aside(
    recorder: Recorder, device: int, pool: typing.Any, generators: list[torch.Generator]
) -> typing.Iterator[None]:
    """Behind it the job's state is as it was. Fails: Refused."""
    touched = recorder.touched
    try:
        living = touched.living(device, pool)
        now = Copy(Spans([*living, *touched.state, *recorder.inputs]), device)
    except torch.OutOfMemoryError:
        raise Refused("the device has no memory to put the job's state aside") from None
    torch.cuda.synchronize(device)  # other streams may still write what is put aside
    now.save()
    random = [one.get_state() for one in generators]
    try:
        yield
    finally:
        now.restore()
        for one, state in zip(generators, random):
            one.set_state(state)
        torch.cuda.current_stream(device).synchronize()


class SecondRun(typing.NamedTuple):
    """launch: the graph, as torch does
    left_out: what does nothing in a launch meanwhile: our nodes (True), or all nodes
    caches: of an engine, of which the graph writes a part
    """

    recorder: Recorder
    stepping: Stepping
    launch: typing.Callable[[], None]
    left_out: typing.Callable[[bool], contextlib.AbstractContextManager[None]]
    caches: list[caches.Cache]

    def run(self, asked: int) -> tuple[Stepped, str]:
        """By what it is verified, as a sentence. Fails: Refused. Requires: put_aside()."""
        held = list[tuple[int, torch.Tensor]]()
        first = self.recorder.restore(asked)
        with contextlib.ExitStack() as written:
            with self.left_out(True):
                for replay in range(first, asked):
                    self._give(replay, written)
                    self.launch()
                    held.append((replay, self.recorder.left_now()))
            self._give(asked, written)
            with self.left_out(False):
                stepped = self.stepping.run(self.launch, with_own=False)
            held.append((asked, self.recorder.left_now()))
        for replay, left in held:
            self._compare(replay, left)
        left_count = len(self.recorder.left)
        if not left_count:
            raise NotReproduced("the graph leaves nothing by which a second run could be verified")
        verified = f"{left_count} tensors have the bits that replay {asked} left in them"
        if first < asked:
            verified += f", as have those of the {asked - first} replays before it, from {first} on"
        return stepped, verified

    def _give(self, replay: int, written: contextlib.ExitStack) -> None:
        self.recorder.give(replay)
        recorder = self.recorder
        written.callback(caches.put_aside(self.caches, recorder.touched, recorder.inputs))

    def _compare(self, replay: int, left: torch.Tensor) -> None:
        """left: the rows of what this run left. Fails: NotReproduced."""
        then, again = self.recorder.left_by(replay), unpack_all(left)
        for one, was, now in zip(self.recorder.left, then, again):
            if (was.ordered, was.hash) != (now.ordered, now.hash):
                what = f"{one.made or one.row or 'memory'} {one.dtype}{list(one.shape)}"
                why = (
                    ". It reads a cache of the engine, which may have given a part of it to "
                    "another request"
                )
                raise NotReproduced(
                    f"replay {replay}, run again, leaves other bits in {what}"
                    + why * bool(self.caches)
                )
