"""Op logs as the logs of torch's DebugMode, and back: its calls, its JSON, and its hashes.

DebugMode logs every call of an op, views among them. An op log has only what was written, and also
what was read without having been written. So the two are matched, by the names of the ops in their
order and by the types of their results. What only one of them has is not compared.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import os
import re
import typing

import torch

from .._shared._dtypes import table
from ..snapshot import Stats

if typing.TYPE_CHECKING:
    from ..op_log import OpRow

FORMAT = "torch.utils._debug_mode.DebugMode.logs"
VERSION = 1
HASHES = ("norm", "hash_tensor")
# A norm is a sum in another order. Torch adds up integers as float32. For a row, the GPU adds up
# floats of 16 and 8 bits as float32.
_NORM_TOLERANCE = 1e-12
_INTEGER_NORM_TOLERANCE = 1e-7
_SHORT_NORM_TOLERANCE = 2e-6
_VIEWS = frozenset({"aten::_unsafe_view"})  # that their schemas do not tell
_TENSOR = re.compile(r"\bd?t(?:\$\d+)?: ([a-z][a-z\d]*)\[([\d, ]*)\]")


@dataclasses.dataclass
class Call:
    """One entry of a DebugMode log. hash: of what it returned, None for what is no tensor; for a
    Triton kernel by the names of its arguments."""

    kind: str  # "op", "triton_kernel", or another one, which is not compared
    name: str  # "aten::add.Tensor"; of a kernel its own
    depth: int = 1
    hash: typing.Any = None
    args_str: str = ""
    kwargs_str: str = ""
    output_str: str | None = None
    stack: str | None = None


class Group(typing.NamedTuple):
    """The rows of one call, by what comes after its name: "" where there is one row."""

    kind: str
    name: str
    rows: dict[str, OpRow]


class Leaf(typing.NamedTuple):
    """A tensor that a call of a DebugMode log wrote, and a row that shows it."""

    call: Call
    row: OpRow
    norm: float | None  # as DebugMode has it
    xor_hash: int | None
    where: tuple  # in `call.hash`


# --- rows to calls --------------------------------------------------------------------------------


def groups_of(rows: typing.Iterable[OpRow]) -> list[Group]:
    """Rows of one call come one after the other, and their names begin with the same number. What
    a capture or a kernel found, and what left, are no calls."""
    groups: list[Group] = []
    last = None
    for row in rows:
        is_before = row.op.startswith("triton.") and row.op.endswith(".pre")
        if row.op == "input" or row.name.startswith("out/") or is_before:
            last = None
            continue
        head, slash, own = row.name.rpartition("/")
        match = None if head == "grad" else re.match(r"(.*?_\d+)(?:\.(.+))?$", own)
        stem, part = (match[1], match[2] or "") if match else (own, "")
        key = (head, stem, row.op)
        if key != last or part in groups[-1].rows or not part:
            kind = "triton_kernel" if row.op.startswith("triton.") else "op"
            groups.append(Group(kind, torch_name(row.op), {}))
            last = key
        groups[-1].rows[part] = row
    return groups


def torch_name(op: str) -> str:
    """ "aten.mm.default" as DebugMode has it."""
    space, _, rest = op.partition(".")
    base, _, overload = rest.rpartition(".")
    if space == "triton":
        return base
    if space == "higher_order":
        return rest
    return f"{space}::{base}" + (f".{overload}" if overload != "default" else "")


def calls_of(rows: typing.Sequence[OpRow], hashes: typing.Sequence[str]) -> list[Call]:
    by_number = {row.number: row for row in rows}
    calls = []
    for group in groups_of(rows):
        values = {part: _hash_as(row, hashes) for part, row in group.rows.items()}
        first = next(iter(group.rows.values()))
        read = [_text_of(by_number[number]) for number in first.inputs if number in by_number]
        written = [_text_of(row) for row in group.rows.values()]
        call = Call(group.kind, group.name, stack=first.site or None)
        if group.kind == "triton_kernel":
            call.hash = values
            call.kwargs_str = ", ".join(
                f"{part}={_text_of(row)}" for part, row in group.rows.items()
            )
        else:
            call.hash = next(iter(values.values())) if len(values) == 1 else tuple(values.values())
            call.args_str = ", ".join(read)
            call.output_str = "  ->  " + (written[0] if len(written) == 1 else str(tuple(written)))
        calls.append(call)
    return calls


def _hash_as(row: OpRow, hashes: typing.Sequence[str]):
    if row.stats is None:
        return None
    both = tuple(norm_of(row.stats) if one == "norm" else row.stats.xor_hash for one in hashes)
    return both[0] if len(both) == 1 else both


def norm_of(stats: Stats) -> float:
    """As torch's norm_hash_fn: the sum of the magnitudes of all elements, also the non-finite."""
    if stats.nan:
        return math.nan
    return math.inf if stats.inf else stats.l1


def _text_of(row: OpRow) -> str:
    shape = ", ".join(map(str, row.shape))
    return f"t${row.number}: {_short_names().get(row.dtype, row.dtype)}[{shape}]"


def _short_names() -> dict[str, str]:
    from torch.utils._dtype_abbrs import dtype_abbrs

    return {str(dtype).removeprefix("torch."): short for dtype, short in dtype_abbrs.items()}


def types_in(text: str | None) -> list[tuple[str, tuple[int, ...]]]:
    """The types of the tensors in a text of DebugMode's."""
    names = {short: name for name, short in _short_names().items()}
    return [
        (names.get(match[1], match[1]), tuple(int(size) for size in match[2].split(",") if size))
        for match in _TENSOR.finditer(text or "")
    ]


# --- torch's objects and JSON ---------------------------------------------------------------------


def _torchs_own():
    try:
        from torch.utils import _debug_mode

        return _debug_mode._OpCall, _debug_mode._TritonKernelCall, _debug_mode._AnnotateCall
    except (ImportError, AttributeError):
        raise RuntimeError(
            f"torch {torch.__version__} has no DebugMode with logs that can be made: "
            f"save_debug_mode() writes its JSON"
        ) from None


def to_torch(call: Call):
    op_call, triton_call, annotate_call = _torchs_own()
    if call.kind == "triton_kernel":
        made = triton_call(call.name, {}, call.depth)
        made.kwargs_str = call.kwargs_str
        made.post_hashes = call.hash
    elif call.kind == "op":
        made = op_call(_op_called(call.name), (), {}, call.depth)
        made.args_str, made.kwargs_str = call.args_str, call.kwargs_str
        made.log = None if call.hash is None else {"hash": call.hash}
    else:
        made = annotate_call(call.name, call.kind, call.depth)
    made.output_str = call.output_str
    if call.stack:
        made.stack_trace = call.stack
    return made


def _op_called(name: str):
    """The op itself if this process has it: torch prints it better."""
    space, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, space), base), overload or "default")
    except (AttributeError, RuntimeError):
        return name


def from_torch(call) -> Call:
    if isinstance(call, Call):
        return call
    kind = type(call).__name__
    if kind == "_OpCall":
        op = call.op
        name = op.__qualname__ if isinstance(op, torch._ops.OpOverload) else str(op)
        log = getattr(call, "log", None) or {}
        return Call(
            "op",
            name,
            call.call_depth,
            log.get("hash"),
            call.args_str or "",
            call.kwargs_str or "",
            getattr(call, "output_str", None),
            getattr(call, "stack_trace", None),
        )
    if kind == "_TritonKernelCall":
        return Call(
            "triton_kernel",
            call.kernel_name,
            call.call_depth,
            call.post_hashes,
            kwargs_str=call.kwargs_str or "",
        )
    if kind == "_AnnotateCall":
        return Call(call.header, str(call.tag), call.call_depth)
    return Call("other", str(call), getattr(call, "call_depth", 0))


def save(calls: typing.Iterable[Call], path) -> None:
    data = {"format": FORMAT, "version": VERSION, "logs": [_to_json(call) for call in calls]}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file, allow_nan=False)
        file.write("\n")


def load(path) -> list[Call]:
    """Fails: OSError; ValueError: it is no such file."""
    with open(path, encoding="utf-8") as file:
        try:
            data = json.load(file)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)} is no JSON: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"{os.fspath(path)} was not written by DebugMode.save_logs()")
    if data.get("version") != VERSION:
        raise ValueError(
            f"{os.fspath(path)} has version {data.get('version')!r} of DebugMode's logs, and "
            f"{VERSION} is read"
        )
    try:
        return [_from_json(one) for one in data["logs"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{os.fspath(path)} has a call that cannot be read: {error!r}") from None


def _to_json(call: Call) -> dict[str, typing.Any]:
    data = {
        "call_depth": call.depth,
        "log": None,
        "output_str": call.output_str,
        "stack_trace": call.stack,
        "fwd_stack_trace": None,
    }
    if call.kind == "triton_kernel":
        hashes = None if call.hash is None else _value_to_json(call.hash)
        return data | {
            "type": "triton_kernel",
            "kernel_name": call.name,
            "kwargs_str": call.kwargs_str,
            "pre_hashes": None,
            "post_hashes": hashes,
        }
    if call.kind == "op":
        log = None if call.hash is None else _value_to_json({"hash": call.hash})
        return data | {
            "type": "op",
            "op_name": call.name,
            "args_str": call.args_str,
            "kwargs_str": call.kwargs_str,
            "log": log,
        }
    return data | {"type": "annotate", "tag": call.name, "header": call.kind}


def _from_json(data: dict[str, typing.Any]) -> Call:
    depth, kind = int(data["call_depth"]), data["type"]
    stack, output = data.get("stack_trace"), data.get("output_str")
    if kind == "op":
        log = _value_from_json(data["log"]) if data.get("log") else {}
        args, kwargs = str(data["args_str"]), str(data["kwargs_str"])
        name = str(data["op_name"])
        return Call("op", name, depth, log.get("hash"), args, kwargs, output, stack)
    if kind == "triton_kernel":
        hashes = data.get("post_hashes")
        value = _value_from_json(hashes) if hashes else None
        name, kwargs = str(data["kernel_name"]), str(data["kwargs_str"])
        return Call(kind, name, depth, value, "", kwargs, output, stack)
    if kind == "annotate":
        return Call(str(data["header"]), str(data["tag"]), depth)
    return Call("other", str(kind), depth)


def _value_to_json(value) -> dict[str, typing.Any]:
    if isinstance(value, float) and not math.isfinite(value):
        return {"type": "nonfinite_float", "value": str(value)}  # "nan", "inf", "-inf"
    if isinstance(value, (tuple, list)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {"type": kind, "items": [_value_to_json(one) for one in value]}
    if isinstance(value, dict):
        return {
            "type": "dict",
            "items": [[key, _value_to_json(one)] for key, one in value.items()],
        }
    return {"type": "scalar", "value": value}


def _value_from_json(data):
    kind = data["type"]
    if kind == "nonfinite_float":
        return float(data["value"])
    if kind in ("tuple", "list"):
        return (tuple if kind == "tuple" else list)(map(_value_from_json, data["items"]))
    if kind == "dict":
        return {key: _value_from_json(one) for key, one in data["items"]}
    return data["value"]


# --- matching -------------------------------------------------------------------------------------


def match(rows: typing.Sequence[OpRow], calls: typing.Sequence[Call]) -> list[Leaf]:
    """Every tensor that both have, in the order of `calls`."""
    groups = groups_of(rows)
    known = {(group.kind, group.name) for group in groups}
    candidates = [call for call in calls if (call.kind, call.name) in known]
    matcher = difflib.SequenceMatcher(
        None,
        [(call.kind, call.name) for call in candidates],
        [(group.kind, group.name) for group in groups],
        autojunk=False,
    )
    found = []
    for block in matcher.get_matching_blocks():
        for place in range(block.size):
            call, group = candidates[block.a + place], groups[block.b + place]
            found += _leaves(call, group)
    return found


def _leaves(call: Call, group: Group) -> list[Leaf]:
    hashes = _flat(call.hash)
    is_kernel = call.kind == "triton_kernel"
    types = [] if is_kernel else types_in(call.output_str)
    found = []
    for place, (where, value) in enumerate(hashes):
        row = group.rows.get(where[0] if is_kernel and where else str(place))
        if row is None and place == 0:
            row = group.rows.get("")
        if row is None or value is None:
            continue
        if len(types) == len(hashes) and types[place] != (row.dtype, row.shape):
            continue
        found.append(Leaf(call, row, *_split(value), where))
    return found


def _split(value) -> tuple[float | None, int | None]:
    """(norm, hash): DebugMode logs one of them or both."""
    parts = value if isinstance(value, tuple) else (value,)
    norm = next((one for one in parts if isinstance(one, float)), None)
    return norm, next((one for one in parts if isinstance(one, int)), None)


def _flat(tree, where: tuple = ()) -> list[tuple[tuple, typing.Any]]:
    """The hashes in it and their places. Several hashes of one tensor are one entry."""
    if isinstance(tree, dict):
        return [one for key, value in tree.items() for one in _flat(value, (*where, key))]
    if isinstance(tree, (tuple, list)) and not _is_pair(tree):
        return [one for n, value in enumerate(tree) for one in _flat(value, (*where, n))]
    return [(where, tuple(tree) if isinstance(tree, list) else tree)]


def _is_pair(tree) -> bool:
    return sorted(type(one).__name__ for one in tree) == ["float", "int"]


def judge(leaf: Leaf) -> tuple[float | None, int | None]:
    """(norm, hash) of the row, to be compared with those of DebugMode; None for what cannot be.
    A norm that differs only because it was summed up in another order is DebugMode's own."""
    stats = leaf.row.stats
    if stats is None:
        return None, None
    norm, xor_hash = None, None
    if leaf.norm is not None:
        norm = norm_of(stats)
        if math.isclose(norm, leaf.norm, rel_tol=_norm_tolerance(leaf.row.dtype)):
            norm = leaf.norm
    if leaf.xor_hash is not None:
        xor_hash = stats.xor_hash
        # On a GPU torch changes the bits of a NaN when it makes a double of a half.
        if stats.nan and leaf.row.dtype == "float16" and xor_hash != leaf.xor_hash:
            xor_hash = None
    return norm, xor_hash


def is_comparable(leaf: Leaf) -> bool:
    return any(one is not None for one in judge(leaf))


def _norm_tolerance(name: str) -> float:
    if name not in table():
        return _NORM_TOLERANCE
    dtype = getattr(torch, name)
    if not dtype.is_floating_point:
        return _INTEGER_NORM_TOLERANCE
    return _SHORT_NORM_TOLERANCE if dtype.itemsize <= 2 else _NORM_TOLERANCE


def is_view(call: Call) -> bool:
    """Whether the call returns what it was given, as another view."""
    op = _op_called(call.name)
    schema = getattr(op, "_schema", None)
    if schema is None or call.name in _VIEWS:
        return call.name in _VIEWS
    alias = [one.alias_info for one in schema.returns]
    return bool(alias) and all(one is not None and not one.is_write for one in alias)


def matched(leaves: typing.Sequence[Leaf]) -> tuple[list[Call], list[Call]]:
    """(theirs, ours): what both have, so that torch can compare it call by call."""
    theirs: list[Call] = []
    ours: list[Call] = []
    at: dict[int, int] = {}
    for leaf in leaves:
        norm, xor_hash = judge(leaf)
        has_norm, has_hash = norm is not None, xor_hash is not None
        if not has_norm and not has_hash:
            continue
        if id(leaf.call) not in at:
            at[id(leaf.call)] = len(theirs)
            empty = _emptied(leaf.call.hash)
            theirs.append(dataclasses.replace(leaf.call, hash=empty))
            ours.append(dataclasses.replace(leaf.call, hash=empty, stack=leaf.row.site or None))
        place = at[id(leaf.call)]
        their_value = _value(leaf.norm if has_norm else None, leaf.xor_hash if has_hash else None)
        theirs[place].hash = _with(theirs[place].hash, leaf.where, their_value)
        ours[place].hash = _with(ours[place].hash, leaf.where, _value(norm, xor_hash))
    for calls in (theirs, ours):
        for call in calls:
            if call.kind == "triton_kernel":
                call.hash = {key: one for key, one in call.hash.items() if one is not None}
    return theirs, ours


def _value(norm: float | None, xor_hash: int | None):
    known = tuple(one for one in (norm, xor_hash) if one is not None)
    return known[0] if len(known) == 1 else known


def _emptied(tree):
    if isinstance(tree, dict):
        return {key: _emptied(one) for key, one in tree.items()}
    if isinstance(tree, (tuple, list)) and not _is_pair(tree):
        return tuple(map(_emptied, tree))
    return None


def _with(tree, where: tuple, value):
    if not where:
        return value
    if isinstance(tree, dict):
        return {**tree, where[0]: _with(tree[where[0]], where[1:], value)}
    return (*tree[: where[0]], _with(tree[where[0]], where[1:], value), *tree[where[0] + 1 :])


# --- as rows --------------------------------------------------------------------------------------


def stats_of(norm: float | None, xor_hash: int | None, shape: typing.Sequence[int]) -> Stats:
    """Statistics that differ where the norm or the hash does: all else is 0."""
    is_nan, is_inf = norm is not None and math.isnan(norm), norm is not None and math.isinf(norm)
    return Stats(
        count=math.prod(shape),
        nan=int(is_nan),
        pos_inf=int(is_inf),
        neg_inf=0,
        zero=0,
        subnormal=0,
        min=0.0,
        max=0.0,
        mean=0.0,
        std=0.0,
        abs_max=0.0,
        l2=0.0,
        rms=0.0,
        l1=0.0 if norm is None or is_nan or is_inf else norm,
        xor_hash=xor_hash,
        ordered_hash=0,  # DebugMode knows no order of the elements
    )


def unmatched(calls: typing.Iterable[Call], leaves: typing.Iterable[Leaf]):
    """(call, dtype, shape) of the tensors that only DebugMode has. Views are left out."""
    known = {(id(leaf.call), leaf.where) for leaf in leaves}
    for call in calls:
        if call.kind not in ("op", "triton_kernel") or is_view(call):
            continue
        is_kernel = call.kind == "triton_kernel"
        types = types_in(call.kwargs_str if is_kernel else call.output_str)
        hashes = _flat(call.hash)
        if len(types) != len(hashes):
            continue
        for (where, value), (dtype, shape) in zip(hashes, types):
            if value is not None and (id(call), where) not in known:
                yield call, dtype, shape
