"""What is kept of the last replays of one graph, so that one of them can be run again.

Of each replay: its inputs, the states of random numbers, and the statistics of what it left, by
which a second run is held against it. If the graph changes state, every now and then a copy of that
state. All of it in memory of the device, so a replay waits for nothing.
"""

from __future__ import annotations

import typing
import weakref

import torch

from .memory import Copy, Spans, bytes_at, bytes_of, flat_at
from .ring import Ring, Slot
from .rows import RowMaker, Stats, unpack_all

if typing.TYPE_CHECKING:
    from .touched import Touched

_MOST_LEFT_BYTES = 64 << 20  # read again behind each replay
_MOST_SMALL_STATE = 1 << 20  # kept of each replay, as inputs are


class CannotKeep(Exception):
    """Why nothing is kept, as a sentence."""


class Recorder:
    """Of one graph. name: what messages call it; ring: where its replays are kept
    Thread: that of the replays. Fails: CannotKeep, torch.OutOfMemoryError."""

    def __init__(
        self,
        touched: Touched,
        generators: list[torch.Generator],
        device: int,
        pool: typing.Any,
        ring: Ring,
        capture: int,
        name: str,
    ):
        self.touched, self._generators, self._device = touched, generators, device
        self._capture, self.name, self.ring = capture, name, ring
        replays, most_bytes = len(ring), ring.room()
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
        ring.reserve(bytes_of(self.inputs), max(len(self.left), 1), self._rows)
        self._inputs_in = weakref.WeakKeyDictionary[Slot, Copy]()
        self._slot: Slot | None = None  # of the newest replay
        self._copies: list[tuple[int, Copy]] = []  # (the replay that was next, copy), oldest first
        self._each = max(1, replays // 2)
        if len(state):
            self._copies = [(0, Copy(state, device)) for _ in range(2)]
        self._first = 0
        self._offsets = [one.get_offset() for one in generators]
        # What the graph reads and nobody keeps.
        self._constant_spans = [*touched.parameters, *self.not_kept]
        self._constants = self._constant_rows()  # in the first replay

    @property
    def bytes(self) -> int:
        """Of the device."""
        return self.ring.bytes_of(self) + sum(copy.bytes for _, copy in self._copies)

    def _constant_rows(self) -> torch.Tensor:
        spans = self._constant_spans
        rows = self._rows.space(len(spans))
        if spans:
            batch = self._rows.batch([bytes_at(begin, end, self._device) for begin, end in spans])
            self._rows.compute(batch, rows)
        return rows

    def changed_constants(self) -> int:
        """How many bytes of what nobody keeps are not what they were in the first replay."""
        changed = 0
        then, again = unpack_all(self._constants), unpack_all(self._constant_rows())
        for (begin, end), was, now in zip(self._constant_spans, then, again):
            if (was.ordered, was.hash) != (now.ordered, now.hash):
                changed += end - begin
        return changed

    def before(self, replay: int) -> None:
        self._slot = None
        self.ring.look_at_triggers(self._capture)
        if self.ring.frozen:
            return
        self._first = self._first or replay
        slot = self.ring.take(self)
        self._copy_in(slot).save()
        slot.random = [one.get_state() for one in self._generators]
        if self._copies and (replay - self._first) % self._each == 0:
            (_, oldest), newest = self._copies
            self._copies[0] = 0, oldest  # until all of it is there
            oldest.save()
            self._copies = [newest, (replay, oldest)]
        slot.replay, self._slot = replay, slot

    def _copy_in(self, slot: Slot) -> Copy:
        if slot not in self._inputs_in:
            with torch.inference_mode(False):  # it is restored in any mode
                self._inputs_in[slot] = Copy(self.inputs, self._device, slot.memory)
        return self._inputs_in[slot]

    def after(self, replay: int) -> None:
        if replay == self._first and self._offsets == [
            one.get_offset() for one in self._generators
        ]:
            self._generators = []  # it has drawn no random numbers
        if self._slot is not None and self.left:
            self._compute_left(self._slot.rows)
            self.ring.look()

    def left_now(self) -> torch.Tensor:
        """The rows of what is left there now."""
        rows = self._rows.space(len(self.left))
        self._compute_left(rows)
        return rows

    def _compute_left(self, rows: torch.Tensor) -> None:
        self._rows.compute(self._left_rows, rows)

    # --- a replay that is over

    def replays(self) -> tuple[int, int] | None:
        """The first and the last one that can be run again."""
        known = self.ring.kept_of(self)
        if not known:
            return None
        first = last = max(known)
        while first - 1 in known:  # none was kept for a while if something had ended that
            first -= 1
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
        slot = self.ring.kept_of(self)[replay]
        self._copy_in(slot).restore()
        for generator, state in zip(self._generators, slot.random):
            generator.set_state(state)

    def left_by(self, replay: int) -> list[Stats]:
        return unpack_all(self.ring.kept_of(self)[replay].rows)[: len(self.left)]

    def state_text(self) -> str:
        kept = self.replays()
        text = "nothing yet" if kept is None else f"replays {kept[0]} to {kept[1]}"
        frozen = self.ring.frozen
        return f"{text}, {_mib(self.bytes)}" + f"; {frozen}" * bool(frozen)

    @property
    def frozen_at(self) -> int:
        """The replay of this graph because of which nothing more is kept; 0: none of it."""
        return self.ring.frozen_at if self.ring.frozen_by in (None, self) else 0


def _fitting(spans: Spans, most_bytes: int) -> tuple[Spans, Spans]:
    """The smallest ones that fit together, and the rest."""
    kept, rest = Spans(), Spans()
    for begin, end in sorted(spans, key=lambda run: run[1] - run[0]):
        fits = kept.bytes + end - begin <= most_bytes
        (kept if fits else rest).add(begin, end)
    return kept, rest


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB" if size >= 10 << 20 else f"{size / 2**20:.2g} MiB"
