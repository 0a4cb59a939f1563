"""TensorSnapshot: one tensor that owns its bytes."""

import dataclasses
import itertools
import math
import pickle
import sys

import numpy
import pytest
import torch

from cgdebug import TensorSnapshot

SAMPLES = {
    torch.bool: [True, False, True],
    torch.uint8: [0, 1, 255],
    torch.uint16: [0, 1, 65535],
    torch.int8: [-128, 0, 127],
    torch.int16: [-32768, 0, 32767],
    torch.int32: [-(2**31), 0, 2**31 - 1],
    torch.int64: [-(2**63), 0, 2**63 - 1],
    torch.float16: [-65504.0, 6e-8, float("inf")],
    torch.bfloat16: [-3.0, 1e-40, float("-inf")],
    torch.float32: [-0.0, 1e-45, 3e38],
    torch.float64: [5e-324, -1.0, 1e308],
    torch.float8_e4m3fn: [-448.0, 2**-9, float("nan")],
    torch.float8_e5m2: [-57344.0, 2**-16, float("inf")],
    torch.float8_e4m3fnuz: [-240.0, 2**-10, float("nan")],
    torch.float8_e5m2fnuz: [-57344.0, 2**-17, float("nan")],
    torch.float8_e8m0fnu: [2**-127, 2.0**127, float("nan")],
}
FLOAT8 = [dtype for dtype in SAMPLES if str(dtype).startswith("torch.float8")]
WITHOUT_NUMPY = {torch.bfloat16, *FLOAT8}


def snapshot_of(tensor, **fields):
    payload = bytearray(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    given = {
        "probe_name": "blk.out",
        "replay_index": 4,
        "shape": tuple(tensor.shape),
        "device": "cuda:0",
    }
    return TensorSnapshot.from_payload(payload, dtype=str(tensor.dtype)[6:], **{**given, **fields})


@pytest.mark.parametrize("dtype", SAMPLES, ids=str)
def test_tensor_has_the_payloads_bits(dtype):
    tensor = torch.tensor(SAMPLES[dtype], dtype=dtype).reshape(3, 1)
    snapshot = snapshot_of(tensor)
    assert snapshot.dtype == dtype and snapshot.shape == (3, 1)
    assert snapshot.tensor.dtype == dtype and snapshot.tensor.shape == (3, 1)
    assert torch.equal(snapshot.tensor.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize("dtype", [d for d in SAMPLES if d not in WITHOUT_NUMPY], ids=str)
def test_numpy_has_the_payloads_bits(dtype):
    tensor = torch.tensor(SAMPLES[dtype], dtype=dtype)
    snapshot = snapshot_of(tensor)
    assert not snapshot.numpy_is_bits
    assert snapshot.numpy().tobytes() == tensor.numpy().tobytes()
    assert numpy.asarray(snapshot).dtype == tensor.numpy().dtype


def test_bfloat16_is_bits_without_ml_dtypes(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    snapshot = snapshot_of(torch.tensor([1.0, -2.0], dtype=torch.bfloat16))
    assert snapshot.numpy_is_bits and snapshot.numpy().dtype == numpy.uint16
    assert snapshot.numpy().tolist() == [0x3F80, 0xC000]
    assert snapshot.values().tolist() == [1.0, -2.0]
    assert numpy.asarray(snapshot, dtype="float32").tolist() == [1.0, -2.0]


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_every_float8_is_decoded_as_torch_does(dtype, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    tensor = torch.arange(256, dtype=torch.uint8).view(dtype)
    snapshot = snapshot_of(tensor)
    assert snapshot.numpy_is_bits and snapshot.numpy().tolist() == list(range(256))
    expected = tensor.double().numpy()
    numpy.testing.assert_array_equal(snapshot.values(), expected)
    numpy.testing.assert_array_equal(
        numpy.signbit(snapshot.values()[:127]), numpy.signbit(expected[:127])
    )
    assert (
        snapshot.stats.subnormal
        == ((tensor.double().abs() < torch.finfo(dtype).tiny) & (tensor.double() != 0)).sum()
    )


@pytest.mark.parametrize(
    "dtype", [d for d in SAMPLES if d.itemsize > 1 or d == torch.int8], ids=str
)
def test_hash_is_torchs(dtype):
    if not hasattr(torch, "hash_tensor"):
        pytest.skip("this torch has no hash_tensor")
    tensor = torch.tensor(SAMPLES[dtype], dtype=dtype)
    hashable = tensor.long() if dtype == torch.uint16 else tensor  # torch has none for it
    assert (
        snapshot_of(tensor).stats.xor_hash
        == torch.hash_tensor(hashable).view(torch.int64).item() % 2**64
    )
    assert snapshot_of(tensor[:0]).stats.xor_hash == 0


def test_the_ordered_hash_knows_places_but_no_payload_of_a_nan():
    x = torch.tensor([1.0, 2.0, math.nan, 4.0])
    hashes = {
        snapshot_of(x[list(order)]).stats.ordered_hash for order in itertools.permutations(range(4))
    }
    assert len(hashes) == 24
    other = x.view(torch.int32).clone()
    other[2] = -1
    assert snapshot_of(other.view(torch.float32)).stats.ordered_hash in hashes
    counted = torch.arange(1, 41, dtype=torch.uint8)
    assert snapshot_of(counted).stats.ordered_hash == 0x9EDCCC17  # as ordered_hash_test.cpp


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3), ()])
def test_empty_and_scalar_shapes(shape):
    snapshot = snapshot_of(torch.full(shape, 2.5))
    assert snapshot.tensor.shape == shape and snapshot.numpy().shape == shape
    assert snapshot.numel == math.prod(shape)
    assert f"n={snapshot.numel}" in repr(snapshot)


def test_tensor_is_made_once_and_shares_the_payload():
    snapshot = snapshot_of(torch.zeros(3))
    assert snapshot.tensor is snapshot.tensor
    snapshot.tensor[1] = 7
    assert snapshot.numpy().tolist() == [0, 7, 0]


def test_fields_cannot_be_set():
    snapshot = snapshot_of(torch.zeros(3))
    with pytest.raises(dataclasses.FrozenInstanceError):
        snapshot.replay_index = 5
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = snapshot.nothing


def test_snapshot_can_be_made_of_a_tensor():
    snapshot = TensorSnapshot(
        "p", 1, (2,), torch.bfloat16, "cpu", torch.ones(2, dtype=torch.bfloat16)
    )
    assert snapshot.dtype_name == "bfloat16" and snapshot.values().tolist() == [1, 1]
    assert snapshot.stats.mean == 1 and snapshot.invocation_index == 0
    assert pickle.loads(pickle.dumps(snapshot)).values().tolist() == [1, 1]


def test_stats_count_what_is_not_finite():
    stats = snapshot_of(
        torch.tensor([1.0, -3.0, 0.0, float("nan"), float("inf"), float("-inf")])
    ).stats
    assert (stats.count, stats.nan, stats.pos_inf, stats.neg_inf, stats.zero) == (6, 1, 1, 1, 1)
    assert (stats.min, stats.max, stats.abs_max, stats.l1, stats.nonfinite) == (-3, 1, 3, 4, 3)
    assert stats.mean == pytest.approx(-2 / 3) and stats.l2 == pytest.approx(math.sqrt(10))
    assert stats.rms == pytest.approx(math.sqrt(10 / 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_stats_count_subnormal_numbers_of_the_own_type(dtype):
    tiny = torch.finfo(dtype).tiny
    values = torch.tensor([tiny, -tiny, tiny / 2, -tiny / 4, 0.0], dtype=torch.float64).to(dtype)
    assert snapshot_of(values).stats.subnormal == 2
    assert snapshot_of(torch.tensor([1, 0])).stats.subnormal == 0


def test_stats_of_the_largest_doubles_do_not_overflow():
    large = snapshot_of(torch.tensor([3e200, 4e200], dtype=torch.float64)).stats
    assert large.l2 == pytest.approx(5e200)
    stats = snapshot_of(torch.tensor([1e308, 1e308, -1e308], dtype=torch.float64)).stats
    assert stats.mean == pytest.approx(1e308 / 3) and stats.std == pytest.approx(
        9.428090415820635e307
    )
    assert stats.l2 == pytest.approx(1.7320508075688772e308)
    assert stats.rms == pytest.approx(1e308)


def test_the_least_of_zeros_has_no_sign():
    assert math.copysign(1, snapshot_of(torch.tensor([-0.0, 1.0])).stats.min) == 1


def test_stats_of_nothing_finite_are_nan():
    assert math.isnan(snapshot_of(torch.tensor([float("nan")])).stats.mean)
    assert math.isnan(snapshot_of(torch.empty(0)).stats.min)


def test_repr_is_one_loud_line():
    text = repr(
        snapshot_of(torch.tensor([[1.0, float("nan")], [3.0, float("inf")]]), invocation_index=2)
    )
    assert text == "<blk.out @4 call 2 f32[2,2] cuda:0 n=4 x∈[1, 3] μ=2 σ=1 1 NaN! 1 +Inf!>"


def test_repr_of_a_large_tensor_computes_nothing():
    snapshot = snapshot_of(torch.zeros(1).expand(1), shape=(1 << 23,))
    assert repr(snapshot) == "<blk.out @4 f32[8388608] cuda:0>"


def test_metadata_alone_say_that_the_values_are_gone():
    snapshot = TensorSnapshot.from_payload(
        None, dtype="float32", probe_name="p", replay_index=3, shape=(2,), device="cpu"
    )
    assert repr(snapshot) == "<p @3 f32[2] cpu>"
    with pytest.raises(LookupError, match="only the statistics of probe 'p' at replay 3"):
        _ = snapshot.tensor
