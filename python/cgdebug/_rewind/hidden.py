"""Memory that kernels are given beside the arguments of their op, such as the block tables and the
caches of an engine, or that are no op's, such as those that an extension launches by itself.

Where a kernel finds a pointer is not known, so all are taken that its arguments hold, and those in
small memory to which they point: a table of pointers.
"""

from __future__ import annotations

import bisect
import functools
import typing

import torch

from .memory import Spans, bytes_at
from .touched import name_of

if typing.TYPE_CHECKING:
    from .._op_log.node_map import NodeMap, Op


_MOST_TABLE_BYTES = 64 << 10
_ALIGN = 16  # of what a table points to; two small integers side by side seldom look like that


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


def look(node_map: NodeMap, apart: typing.Any, pool: typing.Any, device: int) -> Hidden:
    """hidden_of() what a graph of this device has now."""
    blocks = functools.cache(lambda: blocks_of(device))
    return hidden_of(node_map, apart, pool, blocks, lambda table: words_in(blocks(), table, device))


def hidden_of(
    node_map: NodeMap,
    apart: typing.Any,
    pool: typing.Any,
    blocks: typing.Callable[[], list[Block]],
    words: typing.Callable[[Block], list[int]],
) -> Hidden:
    """apart: the graph in pieces
    pool:   what nobody holds in it is the graph's own, and gone when its replay is over
    blocks: called if there is a node that may touch more than the arguments of its op, more than
            once
    words:  what may be an address in a block that may be a table; most is none, so nothing follows
            from one that leads to no memory"""
    spans, unknown, tables = Spans(), dict[str, None](), set[Block]()
    for place, node in enumerate(apart.nodes):
        op = node_map.op_of.get(node["handle"])
        if node["is_own"] or (op is not None and not op.may_touch_more):
            continue
        who = name_of(op) if op is not None else _no_op(node_map.behind.get(node["handle"]))
        pointers = apart.pointers(place)
        if pointers is None:
            unknown[f"{who}, of whose kernel CUDA does not tell the arguments"] = None
        for address, _, _, is_host in pointers or ():
            block = None if is_host else _block_at(blocks(), address)
            if block is not None and block.end - block.begin <= _MOST_TABLE_BYTES:
                tables.add(block)
            if op is not None and _is_given(op, address):
                continue
            if block is not None and block.is_held:
                spans.add(block.begin, block.end)
            elif block is None or block.pool != tuple(pool):
                what = "memory of the host" if is_host else "memory that torch does not know"
                what += " beside its arguments" * (op is not None)
                unknown[f"{who}, which is given {what}"] = None
    for address in (word for table in tables for word in words(table)):
        block = _block_at(blocks(), address)
        if block is not None and block.is_held:
            spans.add(block.begin, block.end)
    return Hidden(spans, list(unknown))


def words_in(blocks: list[Block], table: Block, device: int) -> list[int]:
    """The words of a block that may be addresses of memory that torch's allocator has."""
    words = bytes_at(table.begin, table.end, device).view(torch.int64)
    low, high = blocks[0].begin, blocks[-1].end
    return words[(words >= low) & (words < high) & (words % _ALIGN == 0)].unique().tolist()


def _no_op(before: Op | None) -> str:
    return "a node that no op made" + (f", launched behind {name_of(before)}" if before else "")


def _is_given(op: Op, address: int) -> bool:
    return any(one.extent[0] <= address < one.extent[1] for one in op.given)


def _block_at(blocks: list[Block], address: int) -> Block | None:
    place = bisect.bisect_right(blocks, address, key=lambda one: one.begin) - 1
    return blocks[place] if place >= 0 and address < blocks[place].end else None
