"""graph_memory(): what the memory of CUDA graphs is used for, as torch's own allocator says it."""

from __future__ import annotations

import collections
import dataclasses
import functools
import operator
import typing

import torch

__all__ = ["GraphMemory", "MemoryBlock", "MemoryPool", "graph_memory"]

_COMMON = (0, 0)  # the pool of what no graph and no torch.cuda.MemPool has
_HELD = "active_allocated"
_INACTIVE = "inactive"
_MAX_SHOWN = 5  # lines of a pool, and blocks, that a text has


@dataclasses.dataclass(frozen=True)
class MemoryBlock:
    """Memory that somebody asked for.

    pool:      as CUDAGraph.pool() says it; (0, 0): of no graph; None: not known any more
    bytes:     that it takes; `requested` of them were asked for
    is_held:   whether it is in use; if not, it was freed, and may wait for a stream
    tensors:   names of those that lie in it
    stack:     of who asked for it, the innermost first: "model.py:12 in forward"
    begin_us:  when it was asked for; end_us: from when on it could be used again; None: not known,
               or not yet
    freed_by:  stack of who freed it
    """

    pool: tuple[int, int] | None
    device: int
    stream: int
    address: int
    bytes: int
    requested: int
    is_held: bool
    tensors: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()
    begin_us: int | None = None
    end_us: int | None = None
    freed_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = ", ".join(self.tensors) or (self.stack[0] if self.stack else "no stack is known")
        return f"{_amount(self.bytes)} at {self.address:#x}: {what}"


@dataclasses.dataclass(frozen=True)
class MemoryPool:
    """The memory of one pool on one device.

    graph:    names of the graphs that have it; empty: none was given
    reserved: bytes that were taken from the device, by stream
    segments: in how many pieces
    blocks:   what is held or waits for a stream, the largest first
    """

    id: tuple[int, int]
    device: int
    graph: str
    reserved: dict[int, int]
    segments: int
    blocks: tuple[MemoryBlock, ...]

    @property
    def is_common(self) -> bool:
        """Whether it is the pool of all that is in no graph."""
        return self.id == _COMMON

    @property
    def bytes(self) -> int:
        """All that were taken from the device."""
        return sum(self.reserved.values())

    @property
    def held(self) -> int:
        """Bytes in use."""
        return sum(block.bytes for block in self.keepers)

    @property
    def waiting(self) -> int:
        """Bytes that were freed and wait for a stream to be done with them."""
        return sum(block.bytes for block in self.blocks if not block.is_held)

    @property
    def free(self) -> int:
        return self.bytes - self.held - self.waiting

    @property
    def keepers(self) -> tuple[MemoryBlock, ...]:
        """What keeps the pool alive, beside its graphs: a segment goes back to the device when
        nothing in it is held."""
        return tuple(block for block in self.blocks if block.is_held)

    def by_stack(self) -> list[tuple[str, int, int]]:
        """(line, bytes, blocks) of what is held, the most bytes first; "": no stack is known."""
        found: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
        for block in self.keepers:
            entry = found[block.stack[0] if block.stack else ""]
            entry[0] += block.bytes
            entry[1] += 1
        ordered = sorted(found.items(), key=lambda item: -item[1][0])
        return [(line, total, count) for line, (total, count) in ordered]

    def __str__(self) -> str:
        name = "no graph" if self.is_common else self.graph or f"pool {self.id}"
        lines = [
            f"{name}, cuda:{self.device}: {_amount(self.bytes)} in {self.segments} segment"
            f"{'s' * (self.segments != 1)}, {_amount(self.held)} held, {_amount(self.free)} free"
            + f", {_amount(self.waiting)} wait for a stream"
            * (self.waiting > 0)
        ]
        stacks = self.by_stack()
        for line, total, count in stacks[:_MAX_SHOWN]:
            blocks = f"{count} block{'s' * (count != 1)}"
            lines.append(f"  {_amount(total)} in {blocks}: {line or 'no stack is known'}")
        if len(stacks) > _MAX_SHOWN:
            lines.append(f"  and from {len(stacks) - _MAX_SHOWN} more lines")
        named = [block for block in self.keepers if block.tensors]
        lines += [f"  held by {block}" for block in named[:_MAX_SHOWN]]
        if len(named) > _MAX_SHOWN:
            lines.append(f"  and by {len(named) - _MAX_SHOWN} more with a name")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class GraphMemory:
    """What graph_memory() returns; str() is for people.

    pools:     those of graphs, the largest first, then what is in none
    lifetimes: blocks that were asked for while torch kept a history, the oldest first
    gaps:      what is not known, and why
    """

    pools: tuple[MemoryPool, ...]
    lifetimes: tuple[MemoryBlock, ...]
    gaps: tuple[str, ...]

    def pool(self, id: tuple[int, int] | str, device: int | None = None) -> MemoryPool:
        """By its id, as CUDAGraph.pool() says it, or by the name of its graph.

        Fails: KeyError."""
        for pool in self.pools:
            is_it = id == pool.id or (bool(id) and id in (pool.graph, *pool.graph.split(", ")))
            if is_it and device in (None, pool.device):
                return pool
        known = "; ".join(pool.graph or str(pool.id) for pool in self.pools) or "none"
        raise KeyError(f"graph_memory: no memory of {id!r}; there is: {known}")

    def __str__(self) -> str:
        lines = [str(pool) for pool in self.pools] or ["no memory was taken from a device"]
        return "\n".join([*lines, *(f"not known: {gap}" for gap in self.gaps)])


def graph_memory(
    snapshot: typing.Mapping[str, typing.Any] | None = None,
    *,
    tensors: typing.Mapping[str, torch.Tensor | int] | None = None,
    graphs: typing.Mapping[str, typing.Any] | None = None,
) -> GraphMemory:
    """Bytes and blocks by pool, stream, stack and lifetime, and what keeps a graph's pool alive:

        torch.cuda.memory._record_memory_history()     # before the capture
        ...
        named = dict(model.named_parameters())
        print(cgdebug.graph_memory(tensors=named, graphs={"decode": graph}))

    snapshot: what torch.cuda.memory._snapshot() returned, in this process or in the one that dumped
              it. None: it is taken now
    tensors:  names of tensors, or of addresses, that blocks are called by
    graphs:   names of graphs, or of their pools as CUDAGraph.pool() says them

    What torch's caching allocator does not give out is not in it: what graphs themselves take, or
    libraries.

    Fails: ValueError: it is no such snapshot; TypeError: what `tensors` or `graphs` names has no
    memory; RuntimeError: there is no GPU to take one of."""
    if snapshot is None:
        if not torch.cuda.is_available():
            raise RuntimeError("graph_memory: there is no GPU. Give it a snapshot that was dumped")
        snapshot = typing.cast(dict, torch.cuda.memory._snapshot())
    places = [_address_of(name, one) for name, one in (tensors or {}).items()]
    pools = [(name, _pool_of(name, one)) for name, one in (graphs or {}).items()]
    try:
        return _Reader(snapshot, places, pools).read()
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            "graph_memory: a snapshot is what torch.cuda.memory._snapshot() returns, and this is "
            f"none: {error!r}"
        ) from error


def pools_of(segments: typing.Iterable[dict]) -> list[MemoryPool]:
    """Of the segments of a snapshot, without names."""
    return list(_Reader({"segments": list(segments)}, [], []).read().pools)


@dataclasses.dataclass
class _Segment:
    device: int
    pool: tuple[int, int]
    stream: int
    begin: int
    end: int
    blocks: list[dict]


@dataclasses.dataclass
class _Life:
    """Of what was asked for."""

    begin: dict  # entry of the history
    pool: tuple[int, int] | None
    is_held: bool = True
    end_us: int | None = None
    freed_by: tuple[str, ...] = ()


class _Reader:
    def __init__(
        self,
        snapshot,
        names: list[tuple[str, int | None, int]],
        graphs: list[tuple[str, tuple[int, int]]],
    ):
        self._gaps: list[str] = []
        self._segments = [_segment_of(one) for one in snapshot["segments"]]
        self._traces = [list(one) for one in snapshot.get("device_traces", ())]
        self._names = names
        self._graphs: dict[tuple[int, int], list[str]] = collections.defaultdict(list)
        for name, pool in graphs:
            self._graphs[pool].append(name)

    def read(self) -> GraphMemory:
        lifetimes = [
            block
            for device, trace in enumerate(self._traces)
            for block in self._live(device, trace)
        ]
        lifetimes.sort(key=lambda block: block.begin_us or 0)
        # Of an address that was given out several times the last one holds.
        begun = {(block.device, block.address): block for block in lifetimes if block.is_held}
        pools = self._pools(begun)
        if not any(self._traces):
            self._gaps.append(
                "stacks and lifetimes: torch kept no history. Before the capture type "
                "torch.cuda.memory._record_memory_history()"
            )
        else:
            held = [block for pool in pools for block in pool.keepers if not block.stack]
            if held:
                total = _amount(sum(block.bytes for block in held))
                self._gaps.append(
                    f"the stacks of {total} that are held: the history began later, has "
                    "overwritten them, or was asked for no stacks of Python; or torch alone "
                    "asked for the memory"
                )
        self._look_for_names(pools)
        return GraphMemory(tuple(pools), tuple(lifetimes), tuple(self._gaps))

    def _pools(self, begun: dict[tuple[int, int], MemoryBlock]) -> list[MemoryPool]:
        parts: dict[tuple[int, tuple[int, int]], list[_Segment]] = collections.defaultdict(list)
        for segment in self._segments:
            parts[segment.device, segment.pool].append(segment)
        pools = []
        for (device, pool), segments in parts.items():
            reserved: collections.Counter[int] = collections.Counter()
            for one in segments:
                reserved[one.stream] += one.end - one.begin
            blocks = [block for one in segments for block in self._blocks(one, begun)]
            blocks.sort(key=lambda block: -block.bytes)
            pools.append(
                MemoryPool(
                    pool,
                    device,
                    ", ".join(self._graphs.get(pool, ())),
                    dict(reserved),
                    len(segments),
                    tuple(blocks),
                )
            )
        return sorted(pools, key=lambda pool: (pool.is_common, -pool.bytes))

    def _blocks(self, segment: _Segment, begun) -> typing.Iterator[MemoryBlock]:
        address = segment.begin
        for one in segment.blocks:
            address = one.get("address", address)
            size, begin = one["size"], address
            address += size
            if one["state"] == _INACTIVE:
                continue
            known = begun.get((segment.device, begin))
            yield MemoryBlock(
                pool=segment.pool,
                device=segment.device,
                stream=segment.stream,
                address=begin,
                bytes=size,
                requested=one.get("requested_size", size),
                is_held=one["state"] == _HELD,
                tensors=tuple(
                    name
                    for name, device, place in self._names
                    if begin <= place < begin + size and device in (None, segment.device)
                ),
                stack=_stack_of(one) or (known.stack if known else ()),
                begin_us=known.begin_us if known else None,
            )

    def _live(self, device: int, trace: list[dict]) -> list[MemoryBlock]:
        """Of one device: what was asked for, with its end."""
        lives: list[_Life] = []
        by_address: dict[int, _Life] = {}
        unbegun = 0
        for entry in trace:
            action, address = entry["action"], entry.get("addr", 0)
            life = by_address.get(address)
            if action == "alloc":
                by_address[address] = _Life(entry, self._pool_at(device, address))
                lives.append(by_address[address])
            elif action == "free_requested" and life is not None:
                life.freed_by = _stack_of(entry)
                life.is_held = False
            elif action == "free_completed":
                unbegun += life is None
                if life is not None:
                    life.is_held, life.end_us = False, entry.get("time_us")
                    del by_address[address]
            elif action in ("segment_alloc", "segment_map"):
                for one in lives:  # the memory was of another segment, of which pool nobody says
                    if address <= one.begin["addr"] < address + entry["size"]:
                        one.pool = None
        if unbegun:
            self._gaps.append(
                f"cuda:{device}: who had asked for what was freed {unbegun} times: the history "
                f"began after that, or has overwritten it"
            )
        return [
            MemoryBlock(
                pool=one.pool,
                device=device,
                stream=one.begin.get("stream", 0),
                address=one.begin["addr"],
                bytes=one.begin["size"],
                requested=one.begin["size"],
                is_held=one.is_held,
                stack=_stack_of(one.begin),
                begin_us=one.begin.get("time_us"),
                end_us=one.end_us,
                freed_by=one.freed_by,
            )
            for one in lives
        ]

    def _pool_at(self, device: int, address) -> tuple[int, int] | None:
        for segment in self._segments:
            if segment.device == device and segment.begin <= address < segment.end:
                return segment.pool
        return None

    def _has(self, device: int | None, address: int) -> bool:
        return any(
            one.begin <= address < one.end and device in (None, one.device)
            for one in self._segments
        )

    def _look_for_names(self, pools: list[MemoryPool]) -> None:
        found = {name for pool in pools for block in pool.blocks for name in block.tensors}
        lost = [one for one in self._names if one[0] not in found]
        freed = [name for name, device, place in lost if self._has(device, place)]
        elsewhere = [name for name, _, _ in lost if name not in freed]
        if freed:
            self._gaps.append(f"what these hold: their memory was freed: {_listed(freed)}")
        if elsewhere:
            gap = f"where these are, in no memory of the allocator: {_listed(elsewhere)}"
            self._gaps.append(gap)
        there = {pool.id for pool in pools}
        gone = [name for pool, names in self._graphs.items() if pool not in there for name in names]
        if gone:
            self._gaps.append(f"the memory of these graphs, whose pools have none: {_listed(gone)}")


def _segment_of(segment) -> _Segment:
    begin = segment["address"]
    return _Segment(
        segment.get("device", 0),
        tuple(segment["segment_pool_id"]),
        segment["stream"],
        begin,
        begin + segment["total_size"],
        list(segment["blocks"]),
    )


def _address_of(name: str, of: torch.Tensor | int) -> tuple[str, int | None, int]:
    if isinstance(of, torch.Tensor):
        of = getattr(of, "_local_tensor", of)  # of a DTensor
        return name, of.device.index if of.is_cuda else -1, of.data_ptr()
    try:
        return name, None, operator.index(of)
    except TypeError:
        kind = type(of).__name__
        raise TypeError(f"graph_memory: {name!r} is a {kind}, no tensor and no address") from None


def _pool_of(name: str, of) -> tuple[int, int]:
    if not isinstance(of, (tuple, list)):
        if not hasattr(of, "pool"):
            kind = type(of).__name__
            raise TypeError(f"graph_memory: {name!r} is a {kind}, no CUDAGraph and no pool of one")
        of = of.pool()
    first, second = of
    return first, second


def _stack_of(entry) -> tuple[str, ...]:
    return tuple(
        f"{frame['filename']}:{frame['line']} in {frame['name']}"
        for frame in entry.get("frames") or ()
        if not _is_of_torch(frame["filename"])
    )


@functools.cache
def _is_of_torch(path: str) -> bool:
    """Or of no file of Python: frames of C++ may be there, too."""
    return not path.endswith(".py") or "/torch/" in path


def _amount(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"


def _listed(names: list[str]) -> str:
    more = len(names) - _MAX_SHOWN
    return ", ".join(names[:_MAX_SHOWN]) + f" and {more} more" * (more > 0)
