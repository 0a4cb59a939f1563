"""The ordered hash of TensorStats on a CPU, over dtypes, shapes and layouts: equal tensors have the
same one however they lie in memory, and the same elements in other places have another. (The pairs
by which collisions are counted are in tests/unit/proto/ordered_hash_test.cpp.)"""

import pytest
import torch

import cgdebug
from cgdebug import TensorStats
from op_logs import ordered_of

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
]
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SHAPES = [(2,), (3,), (16,), (17,), (1000,), (2, 2), (3, 5), (8, 8), (33, 7)]
SHAPES += [(2, 3, 4), (4, 5, 8, 6), (1, 1, 64)]


def tensor(dtype, shape):
    """Elements of any bits but NaN, of which not all are the same."""
    count = torch.Size(shape).numel()
    if dtype == torch.bool:
        x = torch.arange(count) % 3 == 0
    elif dtype.is_floating_point:
        x = torch.randn(count).mul(4).to(dtype)
        x.view(torch.uint8)[0] ^= 1
    else:
        x = torch.randint(-(2**62), 2**62, (count,)).to(dtype)
    return x.reshape(shape)


def layouts(x):
    """The same tensor, as it lies elsewhere."""
    yield x
    order = list(range(x.dim()))[::-1]
    yield x.permute(order).contiguous().permute(order)
    wide = torch.zeros(3 * x.numel() + 1, dtype=x.dtype)
    yield wide[1 : 1 + x.numel()].view(x.shape).copy_(x)
    yield wide.as_strided((x.numel(),), (3,), 1).copy_(x.reshape(-1)) if x.dim() == 1 else x


def others(x):
    """The same elements in other places, or with other signs."""
    bits = x.view(INTEGERS[x.dtype.itemsize])  # not every op has every dtype
    flat = bits.reshape(-1)
    for dim in range(x.dim()):
        yield bits.index_select(dim, torch.randperm(x.shape[dim])).view(x.dtype)
        yield bits.flip(dim).view(x.dtype)
    yield bits.transpose(0, -1).reshape(x.shape).view(x.dtype)
    for _ in range(4):
        pair = torch.randint(len(flat), (2,))
        swapped = flat.clone()
        swapped[pair] = flat[pair.flip(0)]
        yield swapped.reshape(x.shape).view(x.dtype)
    if x.dtype.is_floating_point:
        signs = flat.clone().view(torch.uint8)
        for i in torch.randint(len(flat), (2,)).tolist():
            signs[(i + 1) * x.dtype.itemsize - 1] ^= 0x80
        yield signs.view(x.dtype).reshape(x.shape)


def bytes_of(x):
    return bytes(x.contiguous().reshape(-1).view(torch.uint8).tolist())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_ordered_hash_knows_places_and_no_layout(daemon, probe, tmp_path, dtype):
    torch.manual_seed(1)
    seen = []
    with cgdebug.connect().record(tmp_path / "a.cgrec"):
        for place, shape in enumerate(SHAPES):
            p = probe(TensorStats(), name=f"{dtype}.{place}", non_contiguous="copy")
            x = tensor(dtype, shape)
            for one in (*layouts(x), *others(x)):
                p(one)
                seen.append((p.name, x, one))
    recording = cgdebug.open(tmp_path / "a.cgrec")
    calls = {}
    for name, x, one in seen:
        calls[name] = calls.get(name, 0) + 1
        stats = recording[name][calls[name]].stats
        assert stats.ordered_hash == ordered_of(one), (name, one.stride())
        is_same = bytes_of(one) == bytes_of(x)
        assert (stats.ordered_hash == ordered_of(x)) == is_same, (name, calls[name])
