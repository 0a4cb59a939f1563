"""Which part of a distributed tensor (DTensor) a snapshot is, and how parts are put together."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import itertools
import re
import typing

from .snapshot import TensorSnapshot

if typing.TYPE_CHECKING:
    import numpy

_TEXT = re.compile(
    r"(?P<placements>\S*) of \[(?P<shape>[\d,]*)\] at \((?P<at>[\d,]*)\) of (?P<mesh>\S*)"
    r"(, from \[(?P<offset>[\d,]*)\])?(, replicas (?P<replicas>[\d,./?]+))?"
)
_SHARD = re.compile(r"S\((\d+)\)|_S\((\d+),(\d+)\)")
_MAX_RANKS = 1 << 20
_MAX_NAMED = 8
_MAX_TEXT_BYTES = 511  # kMaxShardBytes in proto/layout/ring_layout.h


@dataclasses.dataclass(frozen=True)
class TensorShard:
    """Which part of a DTensor one rank has.

    placements: torch's short form, one for each dimension of the mesh: "S(0)", "R", "P(sum)"
    shape:      of the whole tensor
    coordinate: of the rank in the mesh
    mesh:       (name, size) of each dimension of the mesh; the name is empty when it has none
    offset:     in the whole tensor, of the first element; None when the part is not one block of it
    replicas:   the ranks of the job that have this same part, this one among them; empty when it is
                the only one, or when they are not known
    """

    placements: tuple[str, ...]
    shape: tuple[int, ...]
    coordinate: tuple[int, ...]
    mesh: tuple[tuple[str, int], ...]
    offset: tuple[int, ...] | None
    replicas: tuple[int, ...] = ()

    @classmethod
    def of(cls, tensor) -> TensorShard | None:
        """The shard of a DTensor; None on a rank that is not in its mesh."""
        mesh = tensor.device_mesh
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            return None
        sizes = [mesh.size(dim) for dim in range(mesh.ndim)]
        names = mesh.mesh_dim_names or [""] * mesh.ndim
        shard = cls(
            placements=tuple(re.sub(r"\s", "", str(one)) for one in tensor.placements),
            shape=tuple(tensor.shape),
            coordinate=tuple(coordinate),
            mesh=tuple(
                (re.sub(r"[\s,=]", "_", str(name)), size)
                for name, size in zip(names, sizes, strict=True)
            ),
            offset=None,
            replicas=_replicas_of(mesh, tuple(map(str, tensor.placements))),
        )
        return dataclasses.replace(
            shard, offset=shard._find_offset(tuple(tensor._local_tensor.shape))
        )

    @classmethod
    def replica(
        cls, shape: collections.abc.Iterable[int], ranks: collections.abc.Sequence[int], rank: int
    ) -> TensorShard:
        """Of a tensor that all `ranks` of the job have alike, such as a parameter under
        DistributedDataParallel."""
        shape = tuple(shape)
        return cls(
            placements=("R",),
            shape=shape,
            coordinate=(sorted(ranks).index(rank),),
            mesh=(("replicas", len(ranks)),),
            offset=(0,) * len(shape),
            replicas=tuple(sorted(ranks)) if len(ranks) > 1 else (),
        )

    @classmethod
    def parse(cls, text: str) -> TensorShard | None:
        """The inverse of str(); None when the text is empty or was cut."""
        found = _TEXT.fullmatch(text)
        if found is None:
            return None
        mesh = []
        for dimension in filter(None, found["mesh"].split(",")):
            name, _, size = dimension.rpartition("=")
            if not size.isdecimal():
                return None
            mesh.append((name, int(size)))
        return cls(
            placements=tuple(re.findall(r"(?:[^,(]|\([^)]*\))+", found["placements"])),
            shape=_numbers(found["shape"]),
            coordinate=_numbers(found["at"]),
            mesh=tuple(mesh),
            offset=None if found["offset"] is None else _numbers(found["offset"]),
            replicas=_parse_ranks(found["replicas"] or ""),
        )

    def __str__(self) -> str:
        """The text kept with the probe: "S(0),R of [8,4] at (1,0) of dp=2,tp=2, from [4,0]"."""
        mesh = ",".join(f"{name}={size}" if name else str(size) for name, size in self.mesh)
        text = (
            f"{','.join(self.placements)} of [{_joined(self.shape)}] "
            f"at ({_joined(self.coordinate)})"
            f" of {mesh}"
        )
        if self.offset is not None:
            text = f"{text}, from [{_joined(self.offset)}]"
        if not self.replicas:
            return text
        whole = f"{text}, replicas {_ranks_text(self.replicas)}"
        # "?": which ranks these are does not fit in.
        return whole if len(whole.encode()) < _MAX_TEXT_BYTES else f"{text}, replicas ?"

    @property
    def is_partial(self) -> bool:
        """Whether its values have yet to be reduced over the ranks, as in P(sum)."""
        return any(one != "R" and _SHARD.fullmatch(one) is None for one in self.placements)

    def indices(self) -> list[numpy.ndarray]:
        """For each dimension of the whole tensor, which of its indices this part has, in order."""
        import numpy

        parts = [numpy.arange(size) for size in self.shape]
        for placement, (_, size), at in zip(
            self.placements, self.mesh, self.coordinate, strict=True
        ):
            found = _SHARD.fullmatch(placement)
            if found is None:
                continue
            dim = int(found[1] or found[2])
            # A strided shard takes its share of each part that the placements after it will make.
            split = _chunks(parts[dim], int(found[3] or 1))
            parts[dim] = numpy.concatenate([_chunk(part, size, at) for part in split])
        return parts

    def _find_offset(self, local_shape: tuple[int, ...]) -> tuple[int, ...] | None:
        parts = self.indices()
        # DTensor.from_local() takes parts of any size, and does not check where the others end.
        if tuple(len(part) for part in parts) != local_shape:
            return None
        if any(len(part) and part[-1] - part[0] + 1 != len(part) for part in parts):
            return None
        return tuple(
            int(part[0]) if len(part) else size
            for part, size in zip(parts, self.shape, strict=True)
        )


# What the parts of a tensor have in common, besides their placement.
_SAME = ("probe_name", "invocation_index", "replay_index", "iteration", "step", "dtype_name")


def assemble(snapshots: collections.abc.Iterable[TensorSnapshot]) -> TensorSnapshot:
    """The whole tensor of which these snapshots, one per rank, are the parts:

        r = cgdebug.open("runs/")            # one recording per rank
        whole = cgdebug.assemble(series[12] for series in r.select("blk3.w"))

    Parts that several ranks have (placement "R") must agree bit for bit.

    Fails: ValueError: a snapshot is not part of a DTensor, or holds terms of a sum ("P(sum)"); the
           snapshots are of different tensors, replays or steps; a part is missing; replicas differ.
    """
    parts = list(snapshots)
    if not parts:
        raise ValueError("assemble: there is no snapshot to put together")
    first = parts[0]
    names = [f"{part.probe_name}@{part.replay_index} of rank {part.rank}" for part in parts]
    shards = _shards_of(parts, names)
    return TensorSnapshot.from_payload(
        _put_together(parts, shards, names),
        dtype=first.dtype_name,
        probe_name=first.probe_name,
        replay_index=first.replay_index,
        shape=shards[0].shape,
        device=first.device,
        invocation_index=first.invocation_index,
        step=first.step,
        timestamp_ns=max(part.timestamp_ns for part in parts),
    )


def _shards_of(parts: list[TensorSnapshot], names: list[str]) -> list[TensorShard]:
    """Fails: ValueError: they are not parts of one tensor."""
    first = parts[0]
    shards: list[TensorShard] = []
    for part, name in zip(parts, names, strict=True):
        if part.shard is None:
            raise ValueError(f"assemble: {name} is not part of a DTensor: its `shard` is None")
        if part.shard.is_partial:
            raise ValueError(
                f"assemble: {name} is placed as {','.join(part.shard.placements)}: its values are "
                f"terms of the whole tensor's. Add or reduce those of the ranks yourself"
            )
        for what in _SAME:
            if getattr(part, what) != getattr(first, what):
                raise ValueError(
                    f"assemble: {names[0]} and {name} differ in {what}: "
                    f"{getattr(first, what)!r}, {getattr(part, what)!r}"
                )
        shards.append(part.shard)
        whole = (part.shard.shape, part.shard.mesh, part.shard.placements)
        if whole != (shards[0].shape, shards[0].mesh, shards[0].placements):
            raise ValueError(
                f"assemble: {names[0]} and {name} are parts of different tensors: "
                f"{first.shard} and {part.shard}"
            )
        if part.part:
            raise ValueError(
                f"assemble: {name} has only part {part.part} of the tensor on its rank: record the "
                f"whole tensor"
            )
    return shards


def _put_together(
    parts: list[TensorSnapshot], shards: list[TensorShard], names: list[str]
) -> bytearray:
    """The bytes of the whole tensor.

    Fails: ValueError: an element is missing, or has two values."""
    import numpy

    shape, item = shards[0].shape, parts[0]._item_bytes()
    values = numpy.zeros((*shape, item), numpy.uint8)
    owner = numpy.full(shape, -1, numpy.int32)
    for number, (part, shard, name) in enumerate(zip(parts, shards, names, strict=True)):
        where = shard.indices()
        if tuple(map(len, where)) != tuple(part.shape):
            raise ValueError(
                f"assemble: {name} has shape {list(part.shape)}, which does not follow from {shard}"
            )
        at = numpy.ix_(*where) if where else ()
        own = numpy.frombuffer(part._bytes(), numpy.uint8).reshape((*part.shape, item))
        known = owner[at] >= 0
        if (known & (values[at] != own).any(axis=-1)).any():
            other = names[int(owner[at][known].min())]
            raise ValueError(f"assemble: {other} and {name} are replicas and differ")
        values[at] = own
        owner[at] = number
    missing = numpy.argwhere(owner < 0)
    if len(missing):
        raise ValueError(
            f"assemble: {len(missing)} of {owner.size} elements are on ranks that were not given, "
            f"the first at {missing[0].tolist()}; missing: {_missing_parts(shards)}; "
            f"given: {', '.join(names)}"
        )
    return bytearray(values.tobytes())


def _missing_parts(shards: list[TensorShard]) -> str:
    """The places in the mesh of the parts that no shard is, as "tp=1, tp=3"."""
    mesh = shards[0].mesh
    # Ranks that differ in other dimensions have the same part.
    split = [dim for dim, one in enumerate(shards[0].placements) if one != "R"]
    given = {tuple(shard.coordinate[dim] for dim in split) for shard in shards}
    places = itertools.product(*(range(mesh[dim][1]) for dim in split))
    missing = list(itertools.islice((at for at in places if at not in given), _MAX_NAMED + 1))
    axes = [mesh[dim][0] or f"dimension {dim}" for dim in split]
    texts = [
        " ".join(f"{axis}={at}" for axis, at in zip(axes, place, strict=True))
        for place in missing[:_MAX_NAMED]
    ]
    return ", ".join(texts) + (", ..." if len(missing) > _MAX_NAMED else "")


def _chunks(indices: numpy.ndarray, count: int) -> list[numpy.ndarray]:
    return [_chunk(indices, count, at) for at in range(count)]


def _chunk(indices: numpy.ndarray, count: int, at: int) -> numpy.ndarray:
    """As torch.chunk: all of one size except the last ones."""
    size = -(-len(indices) // count)
    return indices[at * size : (at + 1) * size]


@functools.lru_cache(maxsize=64)
def _replicas_of(mesh, placements: tuple[str, ...]) -> tuple[int, ...]:
    """The ranks of the job that have the same part as this one: those that differ from it only in
    dimensions of the mesh over which the tensor is replicated."""
    at = tuple(
        slice(None) if placement == "R" else here
        for placement, here in zip(placements, mesh.get_coordinate(), strict=True)
    )
    ranks = mesh.mesh[at].flatten().tolist()
    return tuple(sorted(ranks)) if len(ranks) > 1 else ()


def _ranks_text(ranks: collections.abc.Sequence[int]) -> str:
    """ "0..7", "0..6/2" for every second one, "0,3,5"."""
    parts = []
    at = 0
    while at < len(ranks):
        end = at + 1
        every = ranks[end] - ranks[at] if end < len(ranks) else 0
        while end < len(ranks) and ranks[end] - ranks[end - 1] == every:
            end += 1
        if end - at < 3:  # a run of two is no shorter
            parts.append(str(ranks[at]))
            at += 1
            continue
        parts.append(f"{ranks[at]}..{ranks[end - 1]}" + (f"/{every}" if every > 1 else ""))
        at = end
    return ",".join(parts)


def _parse_ranks(text: str) -> tuple[int, ...]:
    ranks: list[int] = []
    for part in filter(None, text.split(",")):
        found = re.fullmatch(r"(\d+)(?:\.\.(\d+)(?:/(\d+))?)?", part)
        if found is None or int(found[3] or 1) < 1:
            return ()
        first, last = int(found[1]), int(found[2] or found[1])
        if last > _MAX_RANKS or (ranks and first <= ranks[-1]):
            return ()
        ranks.extend(range(first, last + 1, int(found[3] or 1)))
    return tuple(ranks)


def _joined(numbers: collections.abc.Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)
