"""Turns messages of proto/control.proto, and what a probe of this process kept, into what a caller
sees."""

from __future__ import annotations

import functools
import types
import typing

from ..errors import DaemonError
from ..sharding import TensorShard
from ..snapshot import Stats, TensorSnapshot, part_of


def is_no_row(op: str) -> bool:
    """As layout::IsNoRow: whether what looks like a probe says what an op log does not show, or
    what is known of a graph's nodes or of its memory."""
    return op.startswith(("gap ", "order ", "audit "))


class Answer(types.SimpleNamespace):
    """Part of an answer: the fields of the message in proto/control.proto as attributes."""


class Session(Answer):
    def __repr__(self) -> str:
        return (
            f"<session {self.key} {self.label} pid {self.pid} {self.state}: {self.probe_count} "
            f"probes, replay {self.replay}>"
        )


class Probe(Answer):
    def __repr__(self) -> str:
        call = f" call {self.invocation}" if self.invocation else ""
        return (
            f"<probe {self.name}{call} {self.dtype}{list(self.shape)} on {self.device}, replay "
            f"{self.replay}, {'+'.join(self.actions)}>"
        )


class Event(Answer):
    """Something that `tail` shows besides snapshots."""

    def __str__(self) -> str:
        if self.kind == "loss":
            # A loss without a probe: this client was too slow, and any probe may be affected.
            of = f"{self.probe}: " if self.probe else ""
            before = f" before replay {self.before_replay}" if self.before_replay else ""
            plural = "" if self.count == 1 else "s"
            return f"{of}{self.count} snapshot{plural} lost{before} ({self.cause})"
        if self.kind == "session":
            return f"session {self.session.label} {self.session.state if self.ended else 'began'}"
        return self.text


_CLASSES = {"Session": Session, "ProbeInfo": Probe}


def event(kind: str, fields: Answer) -> Event:
    return Event(kind="session" if kind == "session_change" else kind, **vars(fields))


def checked(response, kind: str):
    """The part of `response` that answers `kind`. Fails: DaemonError."""
    if response.HasField("error"):
        error = response.error
        code = error.DESCRIPTOR.fields_by_name["code"].enum_type.values_by_number.get(error.code)
        raise DaemonError(
            error.message, code.name.lower() if code else "unknown", tuple(error.close)
        )
    if response.WhichOneof("kind") != kind:
        raise DaemonError(
            f"the daemon answered {response.WhichOneof('kind')} to {kind}. Its version may "
            f"be another; type: cgdebug-cli daemon stop",
            "internal",
        )
    return getattr(response, kind)


def plain(message) -> typing.Any:
    """A message as plain Python objects: enums as lower-case names, repeated fields as lists."""
    make, kinds = _kinds(message.DESCRIPTOR)
    fields: dict[str, typing.Any] = {}
    for name, kind, names in kinds:
        value = getattr(message, name)
        if kind == "messages":
            value = [plain(item) for item in value]
        elif kind == "list":
            value = [_name_of(names, item) for item in value] if names else list(value)
        elif kind == "message":
            value = plain(value) if message.HasField(name) else None
        elif kind == "enum":
            value = _name_of(names, value)
        elif kind == "optional" and not message.HasField(name):
            value = None
        fields[name] = value
    return make(**fields)


@functools.cache
def _kinds(descriptor) -> tuple[type, list[tuple[str, str, typing.Any]]]:
    """What to make of a message, and how each field is read: an answer may have 4,096 messages, and
    to ask a descriptor takes longer than to read a field."""
    kinds = []
    for field in descriptor.fields:
        names = field.enum_type.values_by_number if field.enum_type is not None else None
        if _is_repeated(field):
            kind = "messages" if field.message_type is not None else "list"
        elif field.message_type is not None:
            kind = "message"
        elif field.containing_oneof is not None:
            kind = "optional"
        else:
            kind = "value" if names is None else "enum"
        kinds.append((field.name, kind, names))
    return _CLASSES.get(descriptor.name, Answer), kinds


def _name_of(names, number: int) -> str:
    known = names.get(number)
    return known.name.lower() if known else str(number)


def _is_repeated(field) -> bool:
    # The property came with protobuf 6.30, which deprecates the label.
    return (
        field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
    )


def snapshot(fields: Answer, payload: bytearray | None) -> TensorSnapshot:
    stats = fields.stats
    return _made(
        payload,
        stats=stats
        and Stats(**{name: getattr(stats, name) for name in Stats.__dataclass_fields__}),
        probe_name=fields.probe,
        replay_index=fields.replay,
        invocation_index=fields.invocation,
        rank=fields.rank,
        graph=fields.graph,
        step=None if fields.step < 0 else fields.step,
        **{name: getattr(fields, name) for name in _NAMED_ALIKE},
    )


def kept_snapshot(probe: str, rank: int, entry: dict) -> TensorSnapshot:
    """entry: of NativeProbe.records()"""
    return _made(
        entry["payload"],
        origin=(entry["slot"], entry["ordinal"]),
        probe_name=probe,
        replay_index=entry["replay_index"],
        invocation_index=entry["invocation_index"],
        rank=rank,
        graph=entry["graph_label"],
        step=entry["step"],
        **{name: entry[name] for name in _NAMED_ALIKE},
    )


_NAMED_ALIKE = (
    "dtype", "shape", "device", "part", "shard", "graph_id", "iteration", "serial", "thread",
    "timestamp_ns",
)  # fmt: skip


def _made(payload, *, shape, part: str, shard: str, thread: int, **fields) -> TensorSnapshot:
    part, full_shape = part_of(part, tuple(shape))
    return TensorSnapshot.from_payload(
        payload,
        shape=tuple(shape),
        part=part,
        full_shape=full_shape,
        shard=TensorShard.parse(shard),
        thread=thread or None,
        **fields,
    )
