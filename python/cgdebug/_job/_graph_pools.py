"""The memory pools in which graphs were captured: what lies in them, for an audit
(_op_log/audit.py)."""

from __future__ import annotations

import collections
import contextlib
import typing

import torch

from ._graph_memory import MemoryBlock, MemoryPool, pools_of

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Names = Callable[[int, int], list[str]]  # of what overlaps so many bytes at an address

_MAX_KEEPERS = 6  # lines of a pool

# By pool and address: the row of an op log that was computed there last.
_rows: dict[tuple[int, int], dict[int, str]] = {}


def pool_of(graph: torch.cuda.CUDAGraph | None) -> tuple[int, int] | None:
    """None: the graph is gone, or was reset."""
    if graph is not None:
        with contextlib.suppress(Exception):
            return tuple(graph.pool())
    return None


def note_rows(graph: torch.cuda.CUDAGraph | None, rows: Iterable[tuple[int, str]]) -> None:
    """A capture has ended: address and name of what its ops made, in their order."""
    pool = pool_of(graph)
    if pool is not None:
        _rows.setdefault(pool, {}).update(rows)


class GraphPools:
    """As they are when it is asked first.

    While a graph of such a pool lives, nobody but a later capture into that pool gets its memory:
    code that torch.compile made is given buffers that it has freed, and graphs of one pool are
    given what those before them have left."""

    def __init__(self):
        self._segments: dict[tuple[int, int], list[dict]] = {}

    def has(self, address: int, size: int, graph: torch.cuda.CUDAGraph | None) -> bool:
        pool = pool_of(graph)
        return pool is not None and any(
            one["address"] <= address and address + size <= one["address"] + one["total_size"]
            for one in self._of(pool)
        )

    def notes_of(self, graph: torch.cuda.CUDAGraph | None, names: Names) -> list[tuple[str, str]]:
        """(kind, text) of the notes that tell what the graph's pool holds (layout::IsOpAudit)."""
        pool = pool_of(graph)
        if pool is None:
            return []
        rows = _rows.get(pool, {})
        return [
            note for one in pools_of(self._of(pool)) for note in self._notes_of(one, rows, names)
        ]

    def _notes_of(self, pool: MemoryPool, rows: dict[int, str], names: Names):
        numbers = (*pool.id, pool.device, pool.bytes, pool.segments, pool.held, pool.waiting)
        yield "pool", " ".join(map(str, numbers))
        if len(pool.reserved) > 1:
            for stream, total in sorted(pool.reserved.items(), key=lambda item: -item[1]):
                yield "stream", f"{total} {stream:#x}"
        kept: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
        for block in pool.keepers:
            entry = kept[_text_of(block, rows, names)]
            entry[0] += block.bytes
            entry[1] += 1
        ordered = sorted(kept.items(), key=lambda item: -item[1][0])
        for text, (total, blocks) in ordered[:_MAX_KEEPERS]:
            yield "keeps", f"{total} {blocks} {text}"
        left_out = [entry for _, entry in ordered[_MAX_KEEPERS:]]
        if left_out:
            yield "more", f"{sum(one[0] for one in left_out)} {sum(one[1] for one in left_out)}"

    def _of(self, pool: tuple[int, int]) -> list[dict]:
        if pool not in self._segments:
            try:
                segments = torch.cuda.memory_snapshot(pool, include_traces=False)
            except TypeError:  # an older torch
                segments = torch.cuda.memory_snapshot()
            self._segments[pool] = [one for one in segments if _is_of(one, pool)]
        return self._segments[pool]


def _is_of(segment: dict, pool: tuple[int, int]) -> bool:
    return tuple(segment["segment_pool_id"]) == pool


def _text_of(block: MemoryBlock, rows: dict[int, str], names: Names) -> str:
    """Who keeps it; empty: nobody knows."""
    found = names(block.address, block.bytes)
    if not found and block.address in rows:
        found = [f"where {rows[block.address]} was computed"]
    return ", ".join([*found[:2], *block.stack[:1]])
