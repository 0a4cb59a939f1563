"""CGDEBUG_RACES: which ops of a captured graph touch the same bytes with no path between them.

It looks at the graph while it is captured, and runs nothing. What it finds does not depend on luck:
two nodes are in order if a path of the graph leads from one to the other, and only then.
"""

from __future__ import annotations

import threading
import typing

import torch

from .._job import _native
from .node_map import Given, NodeMap, Op
from .rows.gaps import add_note

_MAX_TEXT_BYTES = 470  # of a note; kMaxOpBytes, less what comes before it
_MAX_NOTES = 32  # of a graph and a kind
_MAX_RUNS = 1 << 18  # of bytes of one tensor


class Order(typing.NamedTuple):
    """What is known of the order of one graph.

    nodes:     how many it has, without ours
    unordered: of these, how many are not in order with all others
    unknown:   of these, those of which it is not known which bytes they touch: sentences
    races:     sentences
    possible:  likewise, where it is not known which bytes of a tensor they touch
    """

    nodes: int
    unordered: int
    unknown: list[str]
    races: list[str]
    possible: list[str]


def order_of(node_map: NodeMap, stream: int) -> Order:
    """Requires: `stream` still captures the graph that the map is of, and nothing will be added.

    Fails: RuntimeError."""
    native = _native.load()
    nodes, unordered, _ = native.order_of_capture(stream, [])
    accesses: list[tuple[int, int, int, bool]] = []
    what: list[tuple[Op, Given]] = []
    for node in unordered:
        op = node_map.op_of.get(node)
        if op is None:
            continue
        for one in op.given:
            for does, writes in ((one.reads, False), (one.writes, True)):
                if does and one.extent[0] < one.extent[1]:
                    accesses.append((node, *one.extent, writes))
                    what.append((op, one))
    pairs = native.order_of_capture(stream, accesses)[2] if accesses else []
    unknown = [
        _unknown_text(node, node_map)
        for node in unordered
        if (known := node_map.op_of.get(node)) is None or not known.is_exact or known.may_touch_more
    ]
    races: dict[tuple, str] = {}
    possible: dict[tuple, str] = {}
    for first, second in pairs:
        (op, one), (other_op, other) = what[first], what[second]
        key = (id(op), id(other_op))
        if op is other_op or key in races:
            continue
        share = share_bytes(one, other)
        if share is False:
            continue
        text = _race_text((op, one, accesses[first][3]), (other_op, other, accesses[second][3]))
        (possible if share is None else races).setdefault(key, text)
    for key in races:
        possible.pop(key, None)
    return Order(nodes, len(unordered), unknown, [*races.values()], [*possible.values()])


def share_bytes(one: Given, other: Given) -> bool | None:
    """Whether both ops touch a byte; None: that is not known. Requires: the extents share one."""
    is_known = one.is_whole and other.is_whole
    if one.is_dense and other.is_dense:
        return True if is_known else None
    runs, others = _runs_of(one), _runs_of(other)
    if runs is None or others is None:
        return None
    begins, ends = runs
    # The first run of `one` that ends behind the begin of each run of `other`.
    place = torch.searchsorted(ends, others[0], right=True)
    is_there = place < len(begins)
    place = place.clamp(max=len(begins) - 1)
    if not (is_there & (begins[place] < others[1])).any():
        return False
    return True if is_known else None


def _runs_of(one: Given) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The bytes of a tensor as runs: first bytes, and those behind the last; ascending."""
    size = one.item_bytes
    dimensions = sorted(
        (stride, count) for count, stride in zip(one.shape, one.strides) if count > 1
    )
    run = 1  # elements that lie together
    while dimensions and dimensions[0][0] == run:
        run *= dimensions.pop(0)[1]
    begins = torch.zeros(1, dtype=torch.int64)
    for stride, count in dimensions:
        if len(begins) * count > _MAX_RUNS:
            return None
        begins = (begins[None] + torch.arange(count)[:, None] * stride).flatten()
    begins = torch.unique(begins) * size + one.extent[0]  # sorted
    return begins, begins + run * size


def _op_text(op: Op) -> str:
    text = f"{op.op} {op.name}".rstrip()
    return f"{text} ({op.site})" if op.site else text


def _race_text(first, second) -> str:
    """Each: op, what it was given, and whether it writes it."""
    (op, one, writes), (other_op, other, other_writes) = first, second
    if not writes:
        (op, one, writes), (other_op, other, other_writes) = second, first
    does = "writes" if other_writes else "reads"
    tensor = f"{other.row or other.argument or one.row} {other.dtype}{list(other.shape)}"
    text = f"{_op_text(op)} writes {tensor}, which {_op_text(other_op)} {does}"
    return _cut(text)


def _unknown_text(node: int, node_map: NodeMap) -> str:
    op = node_map.op_of.get(node)
    if op is not None:
        verb = "touches" if not op.is_exact else "may touch"
        return _cut(f"{_op_text(op)} {verb} bytes that nobody tells")
    before = node_map.behind.get(node)
    behind = f" behind {_op_text(before)}" if before else ""
    return _cut(f"a node that no op made was launched{behind}")


def _cut(text: str) -> str:
    cut = text.encode(errors="replace")[:_MAX_TEXT_BYTES].decode(errors="ignore")
    return cut if len(cut) == len(text) else cut + " ..."


class OrderNotes:
    """Tells the daemon what is known of the order of graphs (layout::IsOpOrder).

    Nothing that goes wrong in it reaches the job. Thread: any."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._native: typing.Any = None

    def tell(self, capture: int, order: Order) -> None:
        unknown = list(dict.fromkeys(order.unknown))
        of_kinds = {"race": order.races, "possible": order.possible, "missing": unknown}
        kept = [f"{kind} {text}" for kind, texts in of_kinds.items() for text in texts[:_MAX_NOTES]]
        looked = f"looked {order.nodes} {order.unordered} {len(order.unknown)}"
        self._add(capture, [looked, *kept])

    def tell_missing(self, capture: int, why: str) -> None:
        self._add(capture, [f"missing {_cut(why)}"])

    def tell_broken(self, capture: int, text: str) -> None:
        """A capture ended with an error."""
        self._add(capture, [f"broke {_cut(text)}"])

    def tell_piece(self, capture: int, text: str) -> None:
        """Of a graph that is launched in pieces: "stands ...", "passed", "failed ..."."""
        self._add(capture, [_cut(text)])

    def _add(self, capture: int, texts: list[str]) -> None:
        with self._lock:
            if self._native is None:
                self._native = _native.load().NativeOpLog()
                _native.finish_at_exit()
                _native.start_daemon()
            for text in texts:
                add_note(self._native, "ops/order", f"order {capture} {text}")
            self._native.end()


notes = OrderNotes()
