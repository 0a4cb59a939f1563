"""The daemon's statistics and comparisons equal torch's, on random tensors of every dtype."""

import ctypes
import math
import pathlib

import pytest
import torch
from all_dtypes import CONVERTED

import cgdebug
from conftest import ROOT

# The build tree that the package runs from, or the one that it was installed from.
TREES = (pathlib.Path(cgdebug.__file__).parents[2], ROOT / "build" / "release")
LIBRARIES = [tree / "tools/bench/libcgdebug_bench_numerics.so" for tree in TREES]
LIBRARY = next((library for library in LIBRARIES if library.exists()), None)
if LIBRARY is None:
    pytest.skip("no build tree with the numerics library", allow_module_level=True)
LIB = ctypes.CDLL(LIBRARY)
FLOAT8 = tuple(name for name in CONVERTED if name.startswith("float8"))


class Stats(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_double) for name in ("min", "max", "mean", "std", "abs_max", "l1", "l2")),
        *(
            (name, ctypes.c_uint64)
            for name in (
                "nan",
                "pos_inf",
                "neg_inf",
                "zero",
                "subnormal",
                "first_nonfinite",
                "hash",
            )  # fmt: skip
        ),
        ("histogram", ctypes.c_uint64 * 8),
    ]


class Comparison(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_uint64)
            for name in ("mismatched", "first", "max_abs_index", "max_rel_index")
        ),
        ("max_abs", ctypes.c_double),
        ("max_rel", ctypes.c_double),
    ]


def random_tensor(dtype, count, generator, nonfinite=False):
    torch_dtype = getattr(torch, dtype)
    if dtype == "bool":
        return torch.rand(count, generator=generator) > 0.3
    if "int" in dtype:
        info = torch.iinfo(torch_dtype)
        return torch.randint(info.min, info.max, (count,), dtype=torch_dtype, generator=generator)
    tensor = torch.randn(count, dtype=torch.float64, generator=generator) * 3
    tensor[::11] = 0
    if nonfinite:
        tensor[5::101] = math.nan
        if dtype != "float8_e4m3fn":
            tensor[17::101] = math.inf
            tensor[29::101] = -math.inf
    return tensor.to(torch_dtype)


def stats_of(dtype, tensor):
    out = Stats()
    LIB.CgdComputeStats(
        dtype.encode(), ctypes.c_void_p(tensor.data_ptr()), ctypes.c_uint64(tensor.numel()),
        ctypes.byref(out),
    )  # fmt: skip
    return out


@pytest.mark.parametrize("nonfinite", [False, True])
@pytest.mark.parametrize("count", [1, 63, 4096, 100_003])
@pytest.mark.parametrize("dtype", CONVERTED)
def test_statistics_are_torchs(dtype, count, nonfinite):
    generator = torch.Generator().manual_seed(count)
    tensor = random_tensor(dtype, count, generator, nonfinite)
    wide = tensor.double()
    finite = wide[wide.isfinite()]
    got = stats_of(dtype, tensor)
    assert got.nan == wide.isnan().sum() and got.zero == (wide == 0).sum()
    assert got.pos_inf == wide.isposinf().sum() and got.neg_inf == wide.isneginf().sum()
    assert sum(got.histogram) == finite.numel()
    bad = (~wide.isfinite()).nonzero().flatten()
    assert got.first_nonfinite == (int(bad[0]) if bad.numel() else 2**64 - 1)
    # Torch gives the NaN of these some payload, which the bits do not have.
    has_one_nan = dtype.endswith(("fnuz", "fnu")) and got.nan
    if hasattr(torch, "hash_tensor") and not has_one_nan:
        hashed = wide if dtype in FLOAT8 else tensor.long() if dtype == "uint16" else tensor
        assert got.hash == torch.hash_tensor(hashed).view(torch.int64).item() % 2**64
    if not finite.numel():
        return
    assert (got.min, got.max) == (finite.min(), finite.max())
    assert got.abs_max == finite.abs().max()
    close = 2e-6 if tensor.is_floating_point() and tensor.itemsize <= 2 else 1e-12
    scale = got.abs_max or 1.0
    assert got.mean == pytest.approx(float(finite.mean()), rel=0, abs=close * scale)
    assert got.std == pytest.approx(float(finite.std(correction=0)), rel=0, abs=close * scale)
    assert got.l1 == pytest.approx(float(finite.abs().sum()), rel=close)
    assert got.l2 == pytest.approx(float(finite.norm(2)), rel=close)
    if got.min < got.max and dtype != "int64":  # int64 bins are exact, torch's are of doubles
        edges = [got.min + (got.max - got.min) * bin / 8 for bin in range(1, 8)]
        above = [int((finite >= edge).sum()) for edge in edges]
        assert list(got.histogram) == [
            high - low for high, low in zip([finite.numel(), *above], [*above, 0], strict=True)
        ]


@pytest.mark.parametrize("equal_nan", [False, True])
@pytest.mark.parametrize("rtol, atol", [(0.0, 0.0), (1e-3, 1e-5), (0.1, 2.0)])
@pytest.mark.parametrize("dtype", CONVERTED)
def test_verdicts_are_torchs(dtype, rtol, atol, equal_nan):
    generator = torch.Generator().manual_seed(7)
    expected = random_tensor(dtype, 50_001, generator, nonfinite=True)
    other = random_tensor(dtype, 50_001, generator, nonfinite=True)
    few = torch.rand(50_001, generator=generator) < 0.01
    actual = expected.clone()
    raw = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[actual.itemsize]
    actual.view(raw)[few] = other.view(raw)[few]
    got = Comparison()
    assert (
        LIB.CgdCompare(
            dtype.encode(), ctypes.c_void_p(actual.data_ptr()), ctypes.c_void_p(expected.data_ptr()),
            ctypes.c_uint64(actual.numel()), ctypes.c_double(rtol), ctypes.c_double(atol),
            int(equal_nan), ctypes.byref(got),
        )
        == 0
    )  # fmt: skip
    if dtype == "int64" and rtol:
        pytest.skip("torch rounds int64 to doubles")
    # As doubles, which hold every other dtype exactly: torch's own types round the tolerance.
    wide = (actual, expected) if dtype == "int64" else (actual.double(), expected.double())
    wrong = ~torch.isclose(*wide, rtol=rtol, atol=atol, equal_nan=equal_nan)
    assert got.mismatched == wrong.sum()
    if got.mismatched:
        assert got.first == int(wrong.nonzero()[0])
        difference = (wide[0] - wide[1]).abs()[wrong]
        if dtype != "int64" and not difference.isnan().any() and dtype != "float32":
            assert got.max_abs == difference.max()
