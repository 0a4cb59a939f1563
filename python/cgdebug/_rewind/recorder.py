"""What is kept of the last replays of one graph, so that one of them can be run again.

Of each replay: its inputs, the states of random numbers, and the statistics of what it left, by
which a second run is held against it. If the graph changes state, every now and then a copy of that
state. All of it in memory of the device, so a replay waits for nothing.
"""

from __future__ import annotations

import typing

import numpy
import torch

from .._job import _native
from .._shared import _words
from .memory import Copy, Spans, bytes_at, flat_at
from .rows import ROW_BYTES, RowMaker, Stats, unpack_all
from .touched import Touched

_MOST_LEFT_BYTES = 64 << 20  # read again behind each replay
_MOST_SMALL_STATE = 1 << 20  # kept of each replay, as inputs are
_NAN_WORD = 1  # of layout::DeviceStats


class CannotKeep(Exception):
    """Why nothing is kept, as a sentence."""


class _Slot:
    """One replay that is kept."""

    def __init__(self, inputs: Copy, rows: torch.Tensor):
        self.inputs, self.rows = inputs, rows
        self.replay = 0
        self.random: list[torch.Tensor] = []


class Recorder:
    """replays: how many are kept. Thread: that of the replays. Fails: CannotKeep."""

    def __init__(
        self,
        touched: Touched,
        generators: list[torch.Generator],
        device: int,
        pool: typing.Any,
        replays: int,
        most_bytes: int,
        capture: int,
    ):
        self.touched, self._generators, self._device = touched, generators, device
        self.frozen, self.frozen_at = "", 0  # why nothing more is kept, and since which replay
        self._capture = capture
        self._native: typing.Any = _native.load()
        self._held_before = self._native.trigger_that_held(device)
        living = touched.living(device, pool)
        self._rows = RowMaker(device)
        # Of the largest tensors it would take too long.
        self.left = []
        budget = _MOST_LEFT_BYTES
        for one in sorted(touched.left.values(), key=lambda one: one.extent[1] - one.extent[0]):
            size = one.extent[1] - one.extent[0]
            can = self._rows.can(one.dtype) and one.is_dense
            if can and 0 < size <= budget and living.has(*one.extent):
                budget -= size
                self.left.append(one)
        self._left_rows = self._rows.batch([flat_at(one, device) for one in self.left])
        # With a copy of its own a replay is run again without those before it.
        is_small = touched.state.bytes <= _MOST_SMALL_STATE
        state = Spans() if is_small else touched.state
        room = most_bytes - 2 * state.bytes
        if room < 0:
            raise CannotKeep(
                f"it changes {_mib(state.bytes)} in place, and two copies of that are more "
                f"than the {_mib(most_bytes)} that may be used. More: CGDEBUG_DEVICE_MIB"
            )
        given = Spans([*touched.inputs, *touched.state]) if is_small else touched.inputs
        self.inputs, self.not_kept = _fitting(given, room // (replays + 1))
        lost = self.not_kept.common(touched.hidden).bytes
        if lost:
            raise CannotKeep(
                f"its ops touch {_mib(lost)} beside their arguments, and {replays} copies of that "
                f"are more than the {_mib(most_bytes)} that may be used. More: CGDEBUG_DEVICE_MIB"
            )
        row_bytes = max(len(self.left), 1) * ROW_BYTES
        self._all_rows = self._rows.space(replays * max(len(self.left), 1))
        self._slots = [
            _Slot(Copy(self.inputs, device), rows) for rows in self._all_rows.split(row_bytes)
        ]
        # What was left is looked at some replays later, so that the job waits for nothing.
        self._pinned = torch.zeros(self._all_rows.shape, dtype=torch.uint8, pin_memory=True)
        self._words = self._pinned.numpy().view(numpy.uint64).reshape(replays, -1, 16)
        self._looks_each = max(1, replays // 8)
        self._copied: tuple[int, torch.cuda.Event] | None = None
        self._copies: list[tuple[int, Copy]] = []  # (the replay that was next, copy), oldest first
        self._each = max(1, replays // 2)
        if len(state):
            self._copies = [(0, Copy(state, device)) for _ in range(2)]
        self.bytes: int = sum(one.inputs.bytes for one in self._slots)
        self.bytes += sum(copy.bytes for _, copy in self._copies)
        self._first = 0
        self._offsets = [one.get_offset() for one in generators]
        self._constants = self._constant_rows()

    def _constant_rows(self) -> list[tuple[int, int, torch.Tensor]]:
        """Of what the graph reads and nobody keeps, in the first replay."""
        found = []
        for begin, end in [*self.touched.parameters, *self.not_kept]:
            found.append((begin, end, self._rows.space(1)))
            self._compute_bytes(begin, end, found[-1][2])
        return found

    def _compute_bytes(self, begin: int, end: int, row: torch.Tensor) -> None:
        self._rows.compute(self._rows.batch([bytes_at(begin, end, self._device)]), row)

    def changed_constants(self) -> int:
        """How many bytes of what nobody keeps are not what they were in the first replay."""
        changed = 0
        now = self._rows.space(1)
        for begin, end, before in self._constants:
            self._compute_bytes(begin, end, now)
            (was,), (one,) = unpack_all(before), unpack_all(now)
            if (was.ordered, was.hash) != (one.ordered, one.hash):
                changed += end - begin
        return changed

    def before(self, replay: int) -> None:
        self._look_at_triggers()
        if self.frozen:
            return
        self._first = self._first or replay
        slot = self._slots[replay % len(self._slots)]
        slot.replay = 0  # until all of it is there
        slot.inputs.save()
        slot.random = [one.get_state() for one in self._generators]
        if self._copies and (replay - self._first) % self._each == 0:
            (_, oldest), newest = self._copies
            self._copies[0] = 0, oldest  # until all of it is there
            oldest.save()
            self._copies = [newest, (replay, oldest)]
        slot.replay = replay

    def after(self, replay: int) -> None:
        if replay == self._first and self._offsets == [
            one.get_offset() for one in self._generators
        ]:
            self._generators = []  # it has drawn no random numbers
        if self.frozen or not self.left:
            return
        slot = self._slots[replay % len(self._slots)]
        if slot.replay == replay:
            self._compute_left(slot.rows)
        if replay % self._looks_each == 0:
            self._look()
            self._pinned.copy_(self._all_rows, non_blocking=True)
            self._copied = replay, torch.cuda.Event()
            self._copied[1].record()

    def _look_at_triggers(self) -> None:
        """One that holds ends what is kept, as it stops the rings of probes on the device."""
        if self.frozen:
            return
        held = self._native.trigger_that_held(self._device)
        if held is not None and held != self._held_before:
            _, self.frozen_at, graph, probe = held
            of = "" if graph == self._capture else f" of graph {graph}"
            self.frozen = f"frozen at replay {self.frozen_at}{of}: a trigger of {probe} held"

    def left_now(self) -> torch.Tensor:
        """The rows of what is left there now."""
        rows = self._rows.space(len(self.left))
        self._compute_left(rows)
        return rows

    def _compute_left(self, rows: torch.Tensor) -> None:
        self._rows.compute(self._left_rows, rows)

    def _look(self) -> None:
        """A replay that left a NaN ends what is kept, so that it stays there."""
        if self._copied is None or not self._copied[1].query():
            return
        bad = [
            slot
            for number, slot in enumerate(self._slots)
            if 0 < slot.replay <= self._copied[0] and self._words[number, :, _NAN_WORD].any()
        ]
        if bad:
            first = min(bad, key=lambda slot: slot.replay)
            nan = self._words[first.replay % len(self._slots), :, _NAN_WORD]
            bad_one = self.left[int(nan.argmax())]
            name = bad_one.made or bad_one.row or "what it left"
            self.frozen_at = first.replay
            self.frozen = f"frozen at replay {first.replay}, which left NaN in {name}"

    # --- a replay that is over

    def replays(self) -> tuple[int, int] | None:
        """The first and the last one that can be run again."""
        known = [one.replay for one in self._slots if one.replay]
        if not known:
            return None
        first, last = min(known), max(known)
        if self._copies:
            copied = [replay for replay, _ in self._copies if replay]
            first = max(first, min(copied))
        return first, last

    def restore(self, replay: int) -> int:
        """Puts back the state that there was before `replay` or an earlier one, which is returned.
        Requires: replays() has it."""
        if not self._copies:
            return replay
        at, copy = max(
            (one for one in self._copies if 0 < one[0] <= replay), key=lambda one: one[0]
        )
        copy.restore()
        return at

    def give(self, replay: int) -> None:
        """Puts back what `replay` was given."""
        slot = self._slots[replay % len(self._slots)]
        slot.inputs.restore()
        for generator, state in zip(self._generators, slot.random):
            generator.set_state(state)

    def left_by(self, replay: int) -> list[Stats]:
        return unpack_all(self._slots[replay % len(self._slots)].rows)[: len(self.left)]

    def state_text(self) -> str:
        kept = self.replays()
        text = "nothing yet" if kept is None else f"replays {kept[0]} to {kept[1]}"
        return f"{text}, {_mib(self.bytes)}" + f"; {self.frozen}" * bool(self.frozen)


def room(device: int) -> int:
    """The bytes of the device that may be used, as by rings in its memory."""
    free, total = torch.cuda.mem_get_info(device)
    asked = int(_words.setting("CGDEBUG_DEVICE_MIB") or 0) << 20
    return asked or min(total // 4, free // 2)


def _fitting(spans: Spans, most_bytes: int) -> tuple[Spans, Spans]:
    """The smallest ones that fit together, and the rest."""
    kept, rest = Spans(), Spans()
    for begin, end in sorted(spans, key=lambda run: run[1] - run[0]):
        fits = kept.bytes + end - begin <= most_bytes
        (kept if fits else rest).add(begin, end)
    return kept, rest


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB" if size >= 10 << 20 else f"{size / 2**20:.2g} MiB"
