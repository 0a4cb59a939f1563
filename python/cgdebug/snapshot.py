"""One tensor as it was at one replay, read from this process's ring or from the daemon."""

from __future__ import annotations

import dataclasses
import typing

from ._shared._dtypes import bits_of, table

if typing.TYPE_CHECKING:
    import numpy
    import torch
    from numpy import ndarray  # inside the class "numpy" is the method

    from .sharding import TensorShard

_REPR_STATS_LIMIT = 1 << 22  # elements; above, repr leaves the statistics out


@dataclasses.dataclass(frozen=True)
class Stats:
    """Statistics of one snapshot. min, max, mean and std are over the finite elements, NaN when
    there is none; std is the population's. `xor_hash` is torch.hash_tensor on a
    CPU: the XOR of the elements, each as a double or an int64, in any order; None where it was not
    computed (`TensorStats(hash=False)`). `ordered_hash` has 32 bits and knows the places of the
    elements, in row-major order: tensors that differ have the same one with a probability of about
    2**-31, unless somebody made them so. Every NaN counts as the same one. None as well where
    an earlier cgdebug recorded it. `saturated`, of int8, float8 but float8_e8m0fnu, and float4: how
    many elements have the largest magnitude of their type (of int8: 127 or -128). What a value was
    before it was quantised nobody knows, so `zero` and `subnormal` are where underflow shows."""

    count: int
    nan: int
    pos_inf: int
    neg_inf: int
    zero: int
    subnormal: int
    min: float
    max: float
    mean: float
    std: float
    abs_max: float
    l1: float
    l2: float
    rms: float
    xor_hash: int | None
    ordered_hash: int | None
    saturated: int | None = None

    @property
    def inf(self) -> int:
        return self.pos_inf + self.neg_inf

    @property
    def nonfinite(self) -> int:
        return self.nan + self.inf


def _not_yet() -> typing.Any:
    """The default of a field that is made when it is first asked for."""
    return None


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class TensorSnapshot:
    """A copy of one probed tensor. It owns its bytes: later replays do not change it.

    probe_name:       also `probe`; `replay` and `invocation` are short for the next ones
    replay_index:     from 1, counted for each captured call
    shape:            a tuple; dtype: a torch.dtype (`dtype_name` needs no torch)
    device:           where the tensor was, "cuda:0" or "cpu"
    tensor:           on the CPU, made when it is first asked for, without a copy
    invocation_index: which call of the probe in its capture, from 0
    iteration:        of a probe in the body of a conditional node: which run of the body in that
                      replay, from 0; else 0
    thread:           of an eager call: the thread that began it, as a number in the process, from 1
                      for the main one; None if the probe counts no calls, or if it is not known
    rank:             of the process, -1 when the job is not distributed
    graph_id:         of the capture, unique in the process; 0 = eager
    graph:            what the graph is called (`cgdebug.graph_label`, or made of its shapes);
                      "" = eager. A probe's own records know only a label that was given
    serial:           when the replay began, ns since the epoch. It sorts the snapshots of several
                      graphs, each of which counts its own replays
    timestamp_ns:     wall clock when the snapshot was committed
    step:             the user's own (`cgdebug.step`), None when none was set
    shard:            of a DTensor: which part of it this rank has (`TensorShard`), else None
    part:             "rows:0:8", "first:4096" or "stride:64" if the probe sees only these elements
                      (`TensorRecord(part=...)`), else "". `shape`, `tensor` and `stats` are then
                      those of the part
    full_shape:       the shape of the whole tensor; without a part the same as `shape`
    stats:            `Stats`, computed when first asked for
    """

    probe_name: str
    replay_index: int
    shape: tuple
    dtype: torch.dtype
    device: str
    tensor: torch.Tensor
    invocation_index: int = 0
    rank: int = -1
    graph_id: int = 0
    graph: str = ""
    serial: int = 0
    timestamp_ns: int = 0
    step: int | None = None
    shard: TensorShard | None = None
    iteration: int = 0
    part: str = ""
    full_shape: tuple = ()
    thread: int | None = None
    stats: Stats = dataclasses.field(default_factory=_not_yet)

    @classmethod
    def from_payload(
        cls, payload, *, dtype: str, stats: Stats | None = None, origin=None, **fields
    ):
        """Makes one from contiguous bytes and torch's name of the dtype; needs no torch. `payload`
        may be None if only the metadata are known; `origin` is what the maker needs to find it
        again."""
        snapshot = cls(dtype=_not_yet(), tensor=_not_yet(), stats=stats or _not_yet(), **fields)
        # Why: __getattr__ fills in absent attributes, so that they cost nothing until they are
        #      used.
        for name in ("dtype", "tensor"):
            del snapshot.__dict__[name]
        snapshot.__dict__.update(_payload=payload, _dtype_name=dtype, _origin=origin)
        return snapshot

    def __post_init__(self):
        if self.stats is None:
            object.__delattr__(self, "stats")
        if not self.part:
            object.__setattr__(self, "full_shape", self.shape)

    def __getattr__(self, name: str):
        makers = {"tensor": self._make_tensor, "dtype": self._make_dtype, "stats": self._make_stats}
        if name not in makers:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = makers[name]()
        self.__dict__[name] = value
        return value

    # The same under their names in tables, SQL and JSON.
    @property
    def probe(self) -> str:
        return self.probe_name

    @property
    def replay(self) -> int:
        return self.replay_index

    @property
    def invocation(self) -> int:
        return self.invocation_index

    def __dir__(self):
        return sorted({*super().__dir__(), "tensor", "dtype", "stats"})  # made when asked for

    @property
    def dtype_name(self) -> str:
        """Torch's name of the dtype, without "torch."."""
        return self.__dict__.get("_dtype_name") or str(self.dtype).replace("torch.", "")

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def numpy_is_bits(self) -> bool:
        """Whether `numpy()` gives bfloat16 as its 16 bits in uint16 and float8 as its 8 bits in
        uint8, because NumPy has no such type and ml_dtypes is not installed."""
        return bits_of(self.dtype_name) is not None and _ml_dtype(self.dtype_name) is None

    def numpy(self) -> ndarray:
        """The values as an array, without a copy. bfloat16 and float8 come as the types of
        ml_dtypes, or as raw bits where it is not installed (see `numpy_is_bits`)."""
        import numpy

        dtype = self._known_dtype()
        if bits := bits_of(dtype):
            dtype = _ml_dtype(dtype) or bits
        return numpy.frombuffer(self._bytes(), dtype=dtype).reshape(self.shape)

    def values(self) -> ndarray:
        """The values as float64, of every dtype; integers beyond 2**53 are rounded. A byte of
        float4_e2m1fn_x2 is two values, of which the lower half is the first: the last dimension is
        twice as long."""
        import numpy

        dtype = self.dtype_name
        if bits_of(dtype) is None:
            return self.numpy().astype(numpy.float64)
        bits = numpy.frombuffer(self._bytes(), dtype=bits_of(dtype))
        shape = self.shape
        if dtype == _FLOAT4:
            shape = (*shape[:-1], 2 * shape[-1]) if shape else (2,)
        return _decode(dtype, bits).astype(numpy.float64).reshape(shape)

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"{array.dtype} cannot become {dtype} without a copy")
            array = array if not self.numpy_is_bits else self.values()
            return array.astype(dtype)
        return array.copy() if copy else array

    def __repr__(self) -> str:
        return f"<{self.describe()}>"

    def _repr_html_(self) -> str:
        from ._read import _notebook

        return _notebook.of_snapshot(self)

    def plot(self, ax=None):
        """Draws the values: a curve, or an image of the last two dimensions, of the slice with the
        first NaN or Inf if there is one. Returns matplotlib's axes: `ax`, or new ones. Needs
        matplotlib."""
        from ._read import _notebook

        return _notebook.plot_snapshot(self, ax)

    def describe(self) -> str:
        """One line: name, replay, type, shape, range; non-finite values are loud."""
        short = table()[self.dtype_name].short if self.dtype_name in table() else self.dtype_name
        parts = [self.probe_name, f"@{self.replay_index}"]
        if self.iteration:
            parts.append(f"iteration {self.iteration}")
        if (self.thread or 1) > 1:
            parts.append(f"thread {self.thread}")
        if self.invocation_index:
            parts.append(f"call {self.invocation_index}")
        parts += [f"{short}[{','.join(map(str, self.shape))}]", self.device]
        if self.shard is not None:
            parts.append(f"shard {self.shard}")
        if self.part:
            parts.append(f"part {self._part_text}")
        if "stats" in self.__dict__ or (self._has_values() and self.numel <= _REPR_STATS_LIMIT):
            parts += _stats_words(self.stats)
        return " ".join(parts)

    @property
    def _part_text(self) -> str:
        return f"{self.part} of [{','.join(map(str, self.full_shape))}]"

    # --- made on demand ---------------------------------------------------------------------------

    def _has_values(self) -> bool:
        return "tensor" in self.__dict__ or self.__dict__.get("_payload") is not None

    def _bytes(self):
        if self.__dict__.get("_payload") is None:
            if "tensor" not in self.__dict__:
                raise LookupError(
                    f"only the statistics of probe {self.probe_name!r} at replay "
                    f"{self.replay_index} are here, see .stats: its action is TensorStats, or it "
                    f"was set to statistics, the daemon's memory limit was reached, or the values "
                    f"stayed on the device"
                )
            import torch

            flat = self.tensor.detach().cpu().contiguous().reshape(-1)
            self.__dict__["_payload"] = flat.view(torch.uint8).numpy()
        return self.__dict__["_payload"]

    def _item_bytes(self) -> int:
        import numpy

        dtype = self._known_dtype()
        return numpy.dtype(bits_of(dtype) or dtype).itemsize

    def _make_tensor(self):
        try:
            import torch
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "snapshot.tensor needs torch: pip install torch. Without it: snapshot.numpy()",
                name="torch",
            ) from None
        payload, dtype = self._bytes(), getattr(torch, self._known_dtype())
        if self.numel == 0:
            return torch.empty(self.shape, dtype=dtype)
        return torch.frombuffer(payload, dtype=dtype).reshape(self.shape)

    def _make_dtype(self):
        import torch

        return getattr(torch, self._known_dtype())

    def _known_dtype(self) -> str:
        """NumPy would take "U32", as safetensors calls uint32, for text."""
        if self.dtype_name not in table():
            raise ValueError(
                f"probe {self.probe_name!r} is of dtype {self.dtype_name}, which this version "
                f"cannot read; there are {', '.join(table())}"
            )
        return self.dtype_name

    def _make_stats(self) -> Stats:
        import numpy

        values = self.values().reshape(-1)
        finite = values[numpy.isfinite(values)]
        has_finite, nan = finite.size > 0, float("nan")
        min_normal = table()[self._known_dtype()].min_normal
        abs_max = float(numpy.abs(finite).max()) if has_finite else nan
        # Squares, and even sums, of doubles that large do not fit in a double.
        wide = finite.astype(numpy.longdouble) if abs_max > 1e150 else finite
        with numpy.errstate(over="ignore"):
            return Stats(
                count=int(values.size),
                nan=int(numpy.isnan(values).sum()),
                pos_inf=int((values == numpy.inf).sum()),
                neg_inf=int((values == -numpy.inf).sum()),
                zero=int((values == 0).sum()),
                subnormal=int(((values != 0) & (numpy.abs(values) < min_normal)).sum()),
                min=float(finite.min()) + 0.0 if has_finite else nan,  # not -0.0
                max=float(finite.max()) + 0.0 if has_finite else nan,
                mean=float(wide.mean()) if has_finite else nan,
                std=float(wide.std()) if has_finite else nan,
                abs_max=abs_max,
                l1=float(numpy.abs(wide).sum()),
                l2=float(numpy.sqrt(numpy.square(wide).sum())),
                rms=float(numpy.sqrt(numpy.square(wide).mean())) if has_finite else nan,
                xor_hash=self._make_hash(values),
                ordered_hash=self._make_ordered_hash(values),
                saturated=(
                    int((numpy.abs(finite) >= _LARGEST[self.dtype_name]).sum())
                    if self.dtype_name in _LARGEST
                    else None
                ),
            )

    def _make_hash(self, values) -> int:
        import numpy

        if self.dtype_name == "bool" or "int" in self.dtype_name:
            bits = self.numpy().reshape(-1).astype(numpy.int64).view(numpy.uint64)
        else:
            bits = values.view(numpy.uint64)
        return int(numpy.bitwise_xor.reduce(bits))

    def _make_ordered_hash(self, values) -> int:
        """As proto/layout/ordered_hash.h defines it."""
        import numpy

        item = self._item_bytes()
        bits = numpy.frombuffer(self._bytes(), dtype=f"<u{item}")
        is_nan = numpy.isnan(values)
        if is_nan.any() and self.dtype_name not in _WITH_ONE_NAN:
            bits = numpy.where(is_nan, bits.dtype.type(2 ** (8 * item - 1) - 1), bits)
        raw = bits.tobytes()
        words = numpy.frombuffer(raw + bytes(-len(raw) % 16), dtype="<u4").reshape(-1, 4)
        weight = numpy.arange(1, len(words) + 1, dtype=numpy.uint64)
        weight *= numpy.uint64(0x9E3779B97F4A7C15)
        weight = (weight ^ weight >> numpy.uint64(32)) * numpy.uint64(0xD6E8FEB86659FD93)
        weight ^= weight >> numpy.uint64(32)
        factors = [0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F]
        terms = words.astype(numpy.uint64) * numpy.array(factors, dtype=numpy.uint64)
        return int((terms.sum(1, dtype=numpy.uint64) * weight).sum(dtype=numpy.uint64)) >> 32


def part_of(text: str, shape: tuple) -> tuple[str, tuple]:
    """A snapshot's `part` and `full_shape`, of "rows:0:8 of [8192,4096]"; an empty text: the tensor
    is whole. Of any other text, `full_shape` is not known and is `shape`."""
    part, found, full = text.partition(" of [")
    sizes = [size for size in full.removesuffix("]").split(",") if size]
    if not found or not all(size.isdecimal() and len(size) < 20 for size in sizes):
        return text, shape  # of a file that somebody else wrote: at least it is not whole
    return part, tuple(map(int, sizes))


def _stats_words(stats: Stats) -> list[str]:
    words = [f"n={stats.count}"]
    if stats.count > stats.nonfinite:
        words.append(f"x∈[{stats.min:.4g}, {stats.max:.4g}] μ={stats.mean:.4g} σ={stats.std:.4g}")
    for count, word in ((stats.nan, "NaN"), (stats.pos_inf, "+Inf"), (stats.neg_inf, "-Inf")):
        if count:
            words.append(f"{count} {word}!")
    return words


_FLOAT4 = "float4_e2m1fn_x2"
# Of the types whose saturated elements are counted (CountsSaturated() in proto/layout/dtype.h).
_LARGEST = {
    "int8": 127,
    "float8_e4m3fn": 448,
    "float8_e5m2": 57344,
    "float8_e4m3fnuz": 240,
    "float8_e5m2fnuz": 57344,
    _FLOAT4: 6,
}
_WITH_ONE_NAN = ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")


def _ml_dtype(name: str):
    try:
        import ml_dtypes
    except ImportError:
        return None
    return getattr(ml_dtypes, name, None)  # an old one lacks some


def _decode(dtype: str, bits: numpy.ndarray) -> numpy.ndarray:
    """The values of a dtype that NumPy does not have."""
    import numpy

    if dtype == "bfloat16":
        return (bits.astype(numpy.uint32) << 16).view(numpy.float32)
    if dtype == "float8_e5m2":
        return (bits.astype(numpy.uint16) << 8).view(numpy.float16)
    if dtype == _FLOAT4:
        values = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], numpy.float32)
        values = numpy.concatenate([values, -values])
        return values[numpy.stack([bits & 0xF, bits >> 4], axis=-1)]
    if dtype == "float8_e8m0fnu":
        words = bits.astype(numpy.uint32) << numpy.uint32(23)
        words[bits == 0] = 0x00400000
        words[bits == 0xFF] = 0x7FC00000
        return words.view(numpy.float32)
    # By their definition: how many bits the mantissa has, and the power of two of its last one.
    width, place = {
        "float8_e4m3fn": (3, -9),
        "float8_e4m3fnuz": (3, -10),
        "float8_e5m2fnuz": (2, -17),
    }[dtype]
    magnitude = bits & 0x7F
    mantissa, exponent = magnitude % (1 << width), magnitude >> width
    significand = numpy.where(exponent == 0, mantissa, mantissa + (1 << width))
    power = numpy.maximum(exponent, 1).astype(numpy.int32) - 1 + place
    value = numpy.ldexp(significand.astype(numpy.float32), power)
    is_nan = bits == 0x80 if dtype.endswith("fnuz") else magnitude == 0x7F
    value = numpy.where(is_nan, numpy.float32("nan"), value)
    return numpy.copysign(value, numpy.where((bits < 0x80) | is_nan & (magnitude == 0), 1, -1))
