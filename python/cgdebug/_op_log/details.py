"""What a row says beside its name and its statistics: what the op was given, where and in what."""

from __future__ import annotations

import json
import typing

import torch

from .._shared._dtypes import table

if typing.TYPE_CHECKING:
    from .names import Line

_MAX_BYTES = 8191  # layout::kMaxOpDetailsBytes
_MAX_VALUE = 80  # characters of an argument that is no tensor
_MAX_ARGUMENTS = 1500
_MAX_VIEWS = 40
VARIES = "(varies)"  # of what was another thing in an earlier call of the same row
# From what can be missed most easily to what cannot.
_LEAVE_OUT = ("stack", "views", "from", "columns", "code", "args")


class Details:
    """Of one row. What is empty is not known, or there is none.

    arguments: name and text of each argument, in the order of the schema: "#3.t()" for a tensor,
               "1" for a number
    code:      text of the line that calls the op
    stack:     what that was called by, the innermost first
    views:     views that were made since the row before, "#3.t() -> f32[8,4]"
    sources:   of a kernel that a compiler fused: "layers.0.mlp: relu, model.py:12 in forward"
    region:    of annotate(), record_function and NVTX: "step/forward"
    placements: of an op on DTensors: what it was given, and how it was distributed
    columns:   of the user's hooks: text, int, float or bool
    """

    __slots__ = (
        *("arguments", "code", "columns", "placements", "region", "sources", "stack", "views"),
    )

    def __init__(self) -> None:
        self.arguments: list[tuple[str, str]] = []
        self.code = self.region = ""
        self.stack: tuple[str, ...] = ()
        self.views: list[str] = []
        self.sources: tuple[str, ...] = ()
        self.placements = ""
        self.columns: dict[str, typing.Any] = {}

    @classmethod
    def of(cls, line: Line) -> Details:
        """What is known where an op is called."""
        details = cls()
        details.code, details.stack, details.region = line.code, line.frames, line.region
        details.sources = line.sources
        if line.redistributed:
            details.placements = f"redistributes {line.redistributed}"
        return details

    def copy(self) -> Details:
        other = Details()
        for name in Details.__slots__:
            setattr(other, name, getattr(self, name))
        other.views = []
        return other

    def parts(self) -> dict[str, typing.Any]:
        """What is known, by a key for each thing that may vary by itself."""
        found: dict[str, typing.Any] = {f"args.{name}": text for name, text in self.arguments}
        for key in ("code", "region", "placements"):
            found[key] = getattr(self, key)
        for key in ("stack", "views", "sources"):
            found[key] = tuple(getattr(self, key))
        found.update({f"columns.{name}": value for name, value in self.columns.items()})
        return found

    def to_dict(self, varying: typing.Collection[str] = ()) -> dict[str, typing.Any]:
        """varying: keys of parts() that are not the same in every call that has the row."""

        def text(key: str, value):
            return VARIES if key in varying else value

        def texts(key: str, values):
            return [VARIES] if key in varying else list(values)

        arguments = ", ".join(
            f"{name}={text(f'args.{name}', value)}" for name, value in self.arguments
        )
        if len(arguments) > _MAX_ARGUMENTS:
            arguments = arguments[:_MAX_ARGUMENTS] + "..."
        views = list(self.views[:_MAX_VIEWS])
        if len(self.views) > _MAX_VIEWS:
            views.append(f"and {len(self.views) - _MAX_VIEWS} more")
        found = {
            "args": arguments,
            "code": text("code", self.code),
            "stack": texts("stack", self.stack),
            "views": texts("views", views),
            "from": texts("sources", self.sources),
            "region": text("region", self.region),
            "placements": text("placements", self.placements),
            "columns": {
                name: text(f"columns.{name}", value) for name, value in self.columns.items()
            },
        }
        return {key: value for key, value in found.items() if value}

    def to_json(self, varying: typing.Collection[str] = ()) -> str:
        """As layout::OpLogRow::details_bytes; empty without any."""
        found = self.to_dict(varying)
        if not found:
            return ""
        text = _dump(found)
        left_out: list[str] = []
        for key in _LEAVE_OUT:
            if len(text.encode()) <= _MAX_BYTES:
                break
            if found.pop(key, None):
                left_out.append(key)
                text = _dump(found | {"left_out": left_out})
        return text if len(text.encode()) <= _MAX_BYTES else _dump({"left_out": ["all"]})


def _dump(found) -> str:
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"), default=str)
    return text.encode(errors="replace").decode()


def column_of(value: typing.Any) -> typing.Any:
    """A value of a column as it is stored: text, int, float or bool."""
    if isinstance(value, (bool, int, float)):
        return value
    text = str(value)
    return text if len(text) <= _MAX_VALUE * 2 else text[: _MAX_VALUE * 2] + "..."


def text_of(value: typing.Any, tensor_text: typing.Callable[[torch.Tensor], str]) -> str:
    """An argument of an op as people write it."""
    if isinstance(value, torch.Tensor):
        return tensor_text(value)
    if isinstance(value, (list, tuple)):
        shown = [text_of(one, tensor_text) for one in value[:_MAX_VIEWS]]
        more = [f"and {len(value) - _MAX_VIEWS} more"] if len(value) > _MAX_VIEWS else []
        return f"[{', '.join([*shown, *more])}]"
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _MAX_VALUE else text[:_MAX_VALUE] + "..."


def type_of(tensor: torch.Tensor) -> str:
    """ "bf16[8,512]" """
    name = str(tensor.dtype).removeprefix("torch.")
    entry = table().get(name)
    short = getattr(entry, "short", None) or name
    return f"{short}[{','.join(str(size) for size in tensor.shape)}]"
