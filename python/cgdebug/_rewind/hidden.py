"""Memory that the kernels of an op are given beside its arguments, such as the block tables and the
caches of an engine.
"""

from __future__ import annotations

import bisect
import typing

import torch

from .memory import Spans
from .touched import name_of

if typing.TYPE_CHECKING:
    from .._op_log.node_map import NodeMap, Op


class Hidden(typing.NamedTuple):
    """spans:   memory that a replay may read and write, whole blocks of torch's allocator
    unknown: sentences: what is not known of it
    """

    spans: Spans
    unknown: list[str]


class Block(typing.NamedTuple):
    begin: int
    end: int
    pool: tuple
    is_held: bool


def blocks_of(device: int) -> list[Block]:
    """Those of torch's allocator, ascending."""
    found = []
    for segment in torch.cuda.memory_snapshot():
        at, pool = segment["address"], tuple(segment["segment_pool_id"])
        for block in segment["blocks"] if segment["device"] == device else ():
            end = at + block["size"]
            found.append(Block(at, end, pool, block["state"] != "inactive"))
            at = end
    return sorted(found)


def hidden_of(
    node_map: NodeMap,
    apart: typing.Any,
    pool: typing.Any,
    blocks: typing.Callable[[], list[Block]],
) -> Hidden:
    """apart: the graph in pieces
    pool:  what nobody holds in it is the graph's own, and gone when its replay is over
    blocks: called if there is an op that may touch more than its arguments"""
    spans, unknown = Spans(), dict[str, None]()
    suspects = {handle: op for handle, op in node_map.op_of.items() if op.may_touch_more}
    known: list[Block] | None = None
    for place, node in enumerate(apart.nodes if suspects else ()):
        op = suspects.get(node["handle"])
        if op is None or node["is_own"]:
            continue
        known = blocks() if known is None else known
        pointers = apart.pointers(place)
        if pointers is None:
            unknown[f"{name_of(op)}, of whose kernel CUDA does not tell the arguments"] = None
        for address, _, _, is_host in pointers or ():
            if _is_given(op, address):
                continue
            block = None if is_host else _block_at(known, address)
            if block is not None and block.is_held:
                spans.add(block.begin, block.end)
            elif block is None or block.pool != tuple(pool):
                what = "memory of the host" if is_host else "memory that torch does not know"
                unknown[f"{name_of(op)}, which is given {what} beside its arguments"] = None
    return Hidden(spans, list(unknown))


def _is_given(op: Op, address: int) -> bool:
    return any(one.extent[0] <= address < one.extent[1] for one in op.given)


def _block_at(blocks: list[Block], address: int) -> Block | None:
    place = bisect.bisect_right(blocks, address, key=lambda one: one.begin) - 1
    return blocks[place] if place >= 0 and address < blocks[place].end else None
