"""Turns messages of proto/control.proto into what a caller of the client sees."""

from __future__ import annotations

import types
import typing

from .errors import DaemonError
from .sharding import TensorShard
from .snapshot import Stats, TensorSnapshot


def is_op_gap(op: str) -> bool:
    """As layout::IsOpGap: whether what looks like a probe says what an op log does not show."""
    return op.startswith("gap ")


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
    fields: dict[str, typing.Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_repeated(field) and field.message_type is not None:
            fields[field.name] = [plain(item) for item in value]
        elif _is_repeated(field):
            fields[field.name] = [
                _name_of(field, item) if field.enum_type else item for item in value
            ]
        elif field.message_type is not None:
            fields[field.name] = plain(value) if message.HasField(field.name) else None
        elif field.enum_type is not None and field.containing_oneof is None:
            fields[field.name] = _name_of(field, value)
        elif field.containing_oneof is not None and not message.HasField(field.name):
            fields[field.name] = None  # an `optional` field that is not set
        else:
            fields[field.name] = value
    return _CLASSES.get(message.DESCRIPTOR.name, Answer)(**fields)


def _name_of(field, number: int) -> str:
    known = field.enum_type.values_by_number.get(number)
    return known.name.lower() if known else str(number)


def _is_repeated(field) -> bool:
    # The property came with protobuf 6.30, which deprecates the label.
    return (
        field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
    )


def snapshot(fields: Answer, payload: bytearray | None) -> TensorSnapshot:
    stats = fields.stats
    return TensorSnapshot.from_payload(
        payload,
        dtype=fields.dtype,
        stats=stats
        and Stats(**{name: getattr(stats, name) for name in Stats.__dataclass_fields__}),
        probe_name=fields.probe,
        replay_index=fields.replay,
        iteration=fields.iteration,
        shape=tuple(fields.shape),
        device=fields.device,
        invocation_index=fields.invocation,
        rank=fields.rank,
        graph_id=fields.graph_id,
        graph=fields.graph,
        serial=fields.serial,
        timestamp_ns=fields.timestamp_ns,
        step=None if fields.step < 0 else fields.step,
        shard=TensorShard.parse(fields.shard),
    )
