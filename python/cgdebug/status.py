"""What `probe.status()` returns."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class SlotStatus:
    """One call of a probe in one captured graph, or its eager calls with tensors of one shape.

    graph_id 0 is eager. Of its `replays`, `accepted` were written to the ring. Of those the daemon
    has handled `consumed`, and `lost` were overwritten before it could read them. `verdict` is
    "none" (nothing was compared yet), "pass", "fail" or "error"; a failure is sticky.
    """

    slot: int
    graph_id: int
    graph_label: str
    invocation_index: int
    dtype: str
    shape: tuple
    device: str
    lane: str
    policy: str
    capacity: int
    payload_bytes: int
    replays: int
    accepted: int
    consumed: int
    lost: int
    overwrote_unread: int
    waits: int
    wait_ns: int
    suppressed: int
    retired: bool
    verdict: str
    compared: int
    mismatched: int
    not_compared: int
    first_failed_replay: int
    verdict_text: str
    # It runs any number of times in a replay: it is in the body of a conditional node or, if it is
    # eager, `replays` is the number of the newest call that it ran in.
    in_body: bool = False
    taken: int = 0  # with in_body: the replays of the graph in which the body ran,
    graph_replays: int = 0  # of so many
    site: str = ""  # where the probe was called, "train.py:32 in forward"
    device_bytes: int = 0  # of its ring in device memory; 0: its values are in shared memory
    device_capacity: int = 0  # values that this ring keeps
    compared_with: str = ""  # "expected", "first", "probe"; "" if nothing is compared
    part: str = ""  # "rows:0:8 of [64,512]": it sees only these elements; shape is theirs; "": all
    compared_on: str = ""  # "device", "daemon"; "" if nothing is compared
    skips_unchanged: bool = False  # unchanged values are not sent again
    unchanged: int = 0  # snapshots whose values were not sent again
    unstaged: bool = False  # not copied first: the user promised that it stays as it is (stable)

    @classmethod
    def from_native(cls, slot: dict) -> SlotStatus:
        verdict = slot["verdict"]
        same = {field.name for field in dataclasses.fields(cls)} & slot.keys() - {"verdict"}
        return cls(
            verdict=verdict["state"],
            compared=verdict["compared"],
            mismatched=verdict["mismatched"],
            not_compared=verdict["lost"],
            first_failed_replay=verdict["first_failed_replay"],
            verdict_text=_text_of(slot),
            **{name: slot[name] for name in same},
        )

    def _part_words(self) -> str:
        return f" part {self.part}" if self.part else ""

    def _replays_words(self) -> str:
        if self.in_body and not self.graph_id:
            return f"up to call {self.replays}"
        if self.in_body:
            return f"taken in {self.taken} of {self.graph_replays} replays"
        return f"{self.replays} replays"

    def _kept_words(self) -> str:
        if self.device_bytes:
            return (
                f"{self.device_capacity} kept in {self.device_bytes / 2**20:.1f} MiB of the device"
            )
        return f"{self.capacity} kept"

    def __str__(self) -> str:
        graph = f"graph {self.graph_label or self.graph_id}"
        where = f"{graph} call {self.invocation_index}" if self.graph_id else "eager"
        words = [
            f"{where}: {self.dtype}{list(self.shape)}{self._part_words()} on {self.device}",
            f"{self._replays_words()}, {self.accepted} snapshots, {self._kept_words()}",
        ]
        if self.lost:
            words.append(f"{self.lost} LOST to the daemon")
        if self.suppressed:
            by_trigger = ", or while a trigger held" if self.device_bytes else ""
            words.append(f"{self.suppressed} replays turned off (cgdebug-cli set{by_trigger})")
        if self.skips_unchanged:
            words.append(f"{self.unchanged} unchanged and not sent again")
        if self.unstaged:
            words.append("not staged (stable=True)")
        if self.waits:
            words.append(f"waited {self.waits} times, {self.wait_ns / 1e6:.1f} ms")
        if self.verdict == "fail":
            words.append(
                f"compare FAILED at replay {self.first_failed_replay}, {self.mismatched} of "
                f"{self.compared}"
            )
        elif self.verdict != "none":
            on_device = " on the device" if self.compared_on == "device" else ""
            in_part = " in the part" if self.part else ""
            words.append(f"compare {self.verdict}{in_part}, {self.compared} compared{on_device}")
        if self.retired:
            words.append("its graph is gone")
        return ", ".join(words)


def _text_of(slot: dict) -> str:
    """The daemon's words, or the same words for what the device has found."""
    text: str = slot["verdict"]["text"]
    if text or slot["failure"] is None:
        return text
    from . import _recording

    return _recording.failure_text(slot["dtype"], slot["shape"], slot["failure"])


@dataclasses.dataclass(frozen=True)
class ProbeStatus:
    """A probe's state, at one moment.

    active: False for a probe that is a no-op: its actions are disabled, or CGDEBUG_PROBES leaves it
            out.
    error:  the last capture or set-up that failed, None when none did.
    lane_note: why captures with lane="auto" are not in the direct lane, None when they are.
    trigger_note: why the trigger (`TensorRecord(on=...)`) does nothing in a capture, None when it
            works in all.
    waited: whether everything that prints or compares had reached the daemon.
    """

    name: str
    mode: str
    active: bool = True
    closed: bool = False
    daemon_alive: bool = False
    waited: bool = True
    error: str | None = None
    lane_note: str | None = None
    trigger_note: str | None = None
    slots: tuple[SlotStatus, ...] = ()

    @classmethod
    def from_native(cls, name: str, mode: str, state: dict, waited: bool) -> ProbeStatus:
        slots = tuple(map(SlotStatus.from_native, state["slots"]))
        same = {field.name for field in dataclasses.fields(cls)} & state.keys() - {"slots"}
        return cls(name, mode, waited=waited, slots=slots, **{key: state[key] for key in same})

    @property
    def ok(self) -> bool:
        """Whether no comparison has failed. It does not say that everything was compared: that is
        `probe.assert_ok()`."""
        return self.first_failure is None

    @property
    def first_failure(self) -> SlotStatus | None:
        failed = [slot for slot in self.slots if slot.verdict == "fail"]
        return min(failed, key=lambda slot: slot.first_failed_replay, default=None)

    @property
    def message(self) -> str:
        """The text of the first failed comparison; empty if none failed."""
        return self.first_failure.verdict_text if self.first_failure else ""

    @property
    def replay_index(self) -> int:
        """The replay of the first failed comparison; 0 if none failed."""
        return self.first_failure.first_failed_replay if self.first_failure else 0

    @property
    def invocation_index(self) -> int:
        return self.first_failure.invocation_index if self.first_failure else 0

    @property
    def lane(self) -> str:
        """How tensors leave the graph: "direct" or "callback"; "host" for CPU tensors; "" before
        any."""
        return ", ".join(sorted({slot.lane for slot in self.slots}))

    @property
    def captures(self) -> int:
        """Graphs that contain the probe, or contained it."""
        return len({slot.graph_id for slot in self.slots if slot.graph_id})

    @property
    def replays(self) -> int:
        """How often a tensor passed the probe, over all its slots."""
        return sum(slot.replays for slot in self.slots)

    @property
    def drops(self) -> int:
        """Snapshots that the daemon could not read in time."""
        return sum(slot.lost for slot in self.slots)

    @property
    def bytes(self) -> int:
        """Bytes of shared memory that the snapshots take."""
        return sum(
            slot.payload_bytes * (1 if slot.device_bytes else slot.capacity) for slot in self.slots
        )

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory that snapshots take (`TensorRecord(where="device")`)."""
        return sum(slot.device_bytes for slot in self.slots)

    def __getitem__(self, key: str):
        try:
            return getattr(self, key)
        except AttributeError:
            raise KeyError(key) from None

    def __repr__(self) -> str:
        if not self.active:
            return f"probe {self.name!r}: off"
        words = [self.mode]
        if self.lane:
            words.append(f"lane {self.lane}")
        if self.closed:
            words.append("closed")
        words.append("daemon alive" if self.daemon_alive else "no daemon")
        if not self.waited:
            words.append("the daemon is behind")
        lines = [f"probe {self.name!r}: {', '.join(words)}"]
        lines += [f"  {slot}" for slot in self.slots]
        if not self.slots and not self.closed:
            lines.append(
                "  seen no tensor yet" if self.mode == "always" else "  in no captured graph yet"
            )
        if self.error:
            lines.append(f"  last error: {self.error}")
        return "\n".join(lines)
