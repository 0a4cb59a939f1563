"""Which memory a captured graph reads and writes, from what its ops were given."""

from __future__ import annotations

import functools
import math
import typing

import torch

from .memory import Spans

if typing.TYPE_CHECKING:
    from .._op_log.node_map import Given, NodeMap, Op

_MOST_NAMED = 3


class Touched:
    """inputs:     read, and never written; no parameter
    parameters: read, and never written
    state:      read before it is written, or written in part: a second run is another one, unless
                it is put back
    written:    all that is written
    left:       what its last op in each place left there
    hidden:     those of the inputs that ops touch beside their arguments, and may write
    unknown:    sentences: what is not known to have no effect on these
    is_random:  whether random numbers may be drawn
    collective: the first op that waits for other ranks; empty: none is known
    """

    def __init__(self, node_map: NodeMap, device: int):
        self.ops: list[Op] = list({id(op): op for op in node_map.op_of.values()}.values())
        parameters = Spans(node_map.parameters)
        self.written, self.left = Spans(), dict[tuple[int, int], "Given"]()
        read_first = Spans()
        elsewhere: dict[str, None] = {}
        for op in self.ops:
            given = [one for one in op.given if one.extent[0] < one.extent[1]]
            for one in given:
                if one.device != device and (one.writes or math.prod(one.shape) > 1):
                    elsewhere[f"{name_of(op)}, which uses memory that is not of this device"] = None
            given = [one for one in given if one.device == device]
            for one in given:
                is_part = one.writes and not (one.is_whole and one.is_dense)
                if one.reads or is_part:
                    for part in self.written.outside(*one.extent):
                        read_first.add(*part)
            for one in given:
                if one.writes:
                    self.written.add(*one.extent)
                    self.left[one.extent] = one
        self.state = read_first.common(self.written)
        never_written = read_first.without(self.written)
        self.inputs = never_written.without(parameters)
        self.parameters = never_written.common(parameters)
        self.hidden = Spans()
        self.unknown = _inexact(self.ops) + list(elsewhere)
        self.collective = name_of(node_map.collective) if node_map.collective else ""
        self.is_random = any(_may_be_random(op.op) for op in self.ops)

    def add_hidden(self, spans: Spans, unknown: list[str], parameters: Spans) -> None:
        """What ops touch beside their arguments. A replay may write it, too: unless it is a
        parameter, a second run is given it as it was."""
        self.parameters = Spans([*self.parameters, *spans.common(parameters)])
        self.hidden = spans.without(self.parameters).without(self.state)
        self.inputs = Spans([*self.inputs, *self.hidden])
        self.unknown += unknown

    def leave_out(self, spans: Spans) -> None:
        """Somebody else keeps what is in them."""
        self.inputs, self.state = self.inputs.without(spans), self.state.without(spans)
        self.hidden, self.written = self.hidden.without(spans), self.written.without(spans)

    def living(self, device: int, pool: typing.Any) -> Spans:
        """What is written and outlives a replay: all outside of the graph's own memory, and in it
        what somebody holds now."""
        own, held = Spans(), Spans()
        for segment in torch.cuda.memory_snapshot():
            if segment["device"] != device or tuple(segment["segment_pool_id"]) != tuple(pool):
                continue
            at = segment["address"]
            own.add(at, at + segment["total_size"])
            for block in segment["blocks"]:
                if block["state"] != "inactive":
                    held.add(at, at + block["size"])
                at += block["size"]
        outside = self.written.without(own)
        return Spans([*outside, *self.written.common(own).common(held)])


def plain_nodes(node_map: NodeMap | None) -> list[int]:
    """The nodes of which it is sure that they draw no random numbers, and that they change nothing
    of the graph itself: ops of torch cannot."""
    made = node_map.op_of.items() if node_map is not None else ()
    return [node for node, op in made if not _may_be_random(op.op)]


@functools.cache
def _may_be_random(op: str) -> bool:
    """Asked of each node of each graph, of which many have one op."""
    namespace, _, rest = op.partition(".")
    base, _, overload = rest.partition(".")
    if namespace not in ("aten", "prims"):
        return True
    packet = getattr(getattr(torch.ops, namespace), base, None)
    found = getattr(packet, overload or "default", None)
    return found is None or torch.Tag.nondeterministic_seeded in found.tags


def _inexact(ops: list[Op]) -> list[str]:
    inexact = {name_of(op): None for op in ops if not op.is_exact}
    return [f"{name}, which touches memory that nobody tells" for name in inexact]


def name_of(op: Op) -> str:
    return f"{op.name or op.op} ({op.site})" if op.site else op.name or op.op


def listed(texts: list[str]) -> str:
    shown = "; ".join(texts[:_MOST_NAMED])
    more = len(texts) - _MOST_NAMED
    return f"{shown}; and {more} more" if more > 0 else shown
