"""Where the last replays are kept: of one graph, or of all graphs of an engine together."""

from __future__ import annotations

import typing
import weakref

import numpy
import torch

from .._job import _native
from .._shared import _words
from .rows import ROW_BYTES, RowMaker

if typing.TYPE_CHECKING:
    from .recorder import Recorder

_NAN_WORD = 1  # of layout::DeviceStats
_OF_ENGINE = 64  # replays
_MOST_OF_SEVERAL_BYTES = 256 << 20


class Slot:
    """One replay that is kept.

    memory: for what it was given; rows: for statistics of what it left
    number: how many replays of the ring came before it, and 1"""

    def __init__(self) -> None:
        self.memory = self.rows = torch.empty(0)
        self._owner: weakref.ref[Recorder] | None = None
        self.replay = self.number = 0
        self.random: list[torch.Tensor] = []

    @property
    def owner(self) -> Recorder | None:
        """Whose replay it is; None also if that is gone."""
        return None if self._owner is None else self._owner()

    def give_to(self, owner: Recorder, number: int) -> None:
        self._owner, self.replay, self.number = weakref.ref(owner), 0, number


class Ring:
    """The last replays of the graphs that take slots of it. Thread: that of the replays.

    is_of_several: the graphs of an engine, which nobody has asked to keep
    frozen:    why nothing more is kept, as a sentence; frozen_at: since which replay of frozen_by
    Fails: torch.OutOfMemoryError."""

    def __init__(self, device: int, replays: int, is_of_several: bool = False):
        self._device, self.is_of_several = device, is_of_several
        self._slots = [Slot() for _ in range(replays)]
        self._slot_bytes = self._slot_rows = self._taken = 0
        self.frozen, self.frozen_at = "", 0
        self.frozen_by: Recorder | None = None
        self._native: typing.Any = _native.load()
        self._held_before = self._native.trigger_that_held(device)
        # What was left is looked at some replays later, so that the job waits for nothing.
        self._looks_each = max(1, replays // 8)
        self._looked_at = 0  # the number of the newest replay of which it is known what it left
        # How many NaN a replay has left in each place; None: the next one of that graph says what
        # ends nothing, because it was there when replays were kept again.
        self._nans = weakref.WeakKeyDictionary["Recorder", "numpy.ndarray | None"]()
        self._copied: tuple[int, torch.cuda.Event] | None = None

    def __len__(self) -> int:
        return len(self._slots)

    def reserve(self, slot_bytes: int, rows: int, maker: RowMaker) -> None:
        """A replay has so many bytes and rows. What is kept goes if they are more than before."""
        if self.frozen or (slot_bytes <= self._slot_bytes and rows <= self._slot_rows):
            return
        if self.is_of_several and slot_bytes > 0:  # so that a few of them end what is kept
            slot_bytes = 1 << (slot_bytes - 1).bit_length()
        self._slot_bytes = max(slot_bytes, self._slot_bytes)
        self._slot_rows = max(rows, self._slot_rows)
        count, device = len(self), torch.device("cuda", self._device)
        self._slots = [Slot() for _ in range(count)]
        memory = torch.empty(count * self._slot_bytes, dtype=torch.uint8, device=device)
        self._all_rows = maker.space(count * self._slot_rows)
        self._pinned = torch.zeros(self._all_rows.shape, dtype=torch.uint8, pin_memory=True)
        self._words = self._pinned.numpy().view(numpy.uint64).reshape(count, -1, 16)
        self._copied = None
        parts = memory.split(self._slot_bytes) if self._slot_bytes else [memory] * count
        for slot, part, its_rows in zip(
            self._slots, parts, self._all_rows.split(self._slot_rows * ROW_BYTES)
        ):
            slot.memory, slot.rows = part, its_rows

    def take(self, owner: Recorder) -> Slot:
        """For the next replay, in place of the oldest."""
        slot = self._slots[self._taken % len(self)]
        self._taken += 1
        slot.give_to(owner, self._taken)
        return slot

    def kept_of(self, owner: Recorder) -> dict[int, Slot]:
        """By replay."""
        return {one.replay: one for one in self._slots if one.owner is owner and one.replay}

    def bytes_of(self, owner: Recorder) -> int:
        """Of the device, in its slots."""
        return self._slot_bytes * sum(one.owner is owner for one in self._slots)

    def room(self) -> int:
        """The bytes of the device that may be used, as by rings in its memory."""
        asked = int(_words.setting("CGDEBUG_DEVICE_MIB") or 0) << 20
        free, total = torch.cuda.mem_get_info(self._device)
        most = _MOST_OF_SEVERAL_BYTES if self.is_of_several else total // 4
        return asked or min(most, free // 2)

    # --- what ends it

    def look_at_triggers(self, capture: int) -> None:
        """One that holds ends what is kept, as it stops the rings of probes on the device."""
        held = None if self.frozen else self._native.trigger_that_held(self._device)
        if held is not None and held != self._held_before:
            _, replay, graph, probe, is_comparison = held
            what = (
                f"a comparison of {probe} failed" if is_comparison else f"a trigger of {probe} held"
            )
            is_named = self.is_of_several or graph != capture
            of = f" of graph {graph}" * is_named
            self._freeze(replay, None, f"frozen at replay {replay}{of}: {what}")

    def look(self) -> None:
        """A replay that made a NaN ends what is kept, so that it stays there."""
        if self._taken % self._looks_each:
            return
        if self._copied is not None and self._copied[1].query():
            self._find_nan(self._copied[0])
        self._pinned.copy_(self._all_rows, non_blocking=True)
        self._copied = self._taken, torch.cuda.Event()
        self._copied[1].record()

    def _find_nan(self, copied: int) -> None:
        """A NaN that was there before, such as in memory of which this replay has written a part,
        ends nothing."""
        new = [
            (slot, words)
            for slot, words in zip(self._slots, self._words)
            if self._looked_at < slot.number <= copied and slot.replay
        ]
        self._looked_at = max(self._looked_at, copied)
        for slot, words in sorted(new, key=lambda one: one[0].number):
            owner = slot.owner
            if owner is None:
                continue
            nans = words[: len(owner.left), _NAN_WORD].copy()
            before = self._nans.get(owner, numpy.zeros_like(nans))
            self._nans[owner] = nans
            more = nans > (nans if before is None else before)
            if more.any():
                one = owner.left[int(more.argmax())]
                name = one.made or one.row or "what it left"
                of = f" of graph {owner.name}" * self.is_of_several
                why = f"frozen at replay {slot.replay}{of}, which left NaN in {name}"
                self._freeze(slot.replay, owner, why)
                return

    def go_on(self) -> bool:
        """Keeps replays again, whatever has ended it; False: nothing has. Thread: any."""
        was_frozen = bool(self.frozen)
        self._looked_at = self._taken
        self._nans.update(dict.fromkeys(list(self._nans)))
        self._held_before = self._native.trigger_that_held(self._device)
        self.frozen, self.frozen_at, self.frozen_by = "", 0, None
        return was_frozen

    def _freeze(self, replay: int, by: Recorder | None, why: str) -> None:
        self.frozen, self.frozen_at, self.frozen_by = why, replay, by


_of_engine: dict[int, Ring] = {}  # by device


def of_engine(device: int) -> Ring:
    """The one of all its graphs of decode steps."""
    if device not in _of_engine:
        _of_engine[device] = Ring(device, _OF_ENGINE, is_of_several=True)
    return _of_engine[device]
