"""TensorCompare in captured graphs: the daemon's verdict, asked for by assert_ok()."""

import os

import pytest
import torch

from cgdebug import (
    TensorCompare,
    TensorCompareMismatchError,
    TensorNotComparedError,
    TensorRecord,
    _dtypes,
)
from conftest import capture

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("daemon")]

INT64_MAX = 2**63 - 1


def replayed(p, x, times=1):
    graph, _ = capture(lambda: p(x), warmup=0)
    for _ in range(times):
        graph.replay()
    return graph


def test_equal_values_pass_in_every_replay(graph_probe):
    x = torch.randn(1000)
    p = graph_probe(TensorCompare(x))
    replayed(p, x.cuda(), times=200)
    p.assert_ok()
    (slot,) = p.status().slots
    assert (slot.verdict, slot.compared, slot.mismatched, slot.lost) == ("pass", 200, 0, 0)


def test_a_failure_is_named_and_sticky(graph_probe):
    p = graph_probe(TensorCompare(torch.ones(8)), TensorRecord(), name="blk3.attn")
    x = torch.ones(8, device="cuda")
    graph = replayed(p, x, times=16)
    x[3] = 2
    for _ in range(3):
        graph.replay()
    x.fill_(1)
    graph.replay()
    for _ in range(2):
        with pytest.raises(TensorCompareMismatchError) as caught:
            p.assert_ok()
    error = caught.value
    assert isinstance(error, AssertionError)
    assert (error.probe_name, error.replay_index, error.invocation_index) == ("blk3.attn", 17, 0)
    lines = str(error).splitlines()
    assert lines[0] == "probe 'blk3.attn' failed at replay 17 (first of 3)."
    assert "Mismatched elements: 1 / 8" in str(error) and "Greatest absolute difference: 1" in str(
        error
    )
    assert lines[-1] == f"see: cgdebug-cli show -s {os.getpid()} blk3.attn@17"
    status = p.status()
    assert not status.ok and status.replay_index == 17 and "FAILED at replay 17" in repr(status)


def test_a_failure_is_not_forgotten_with_its_graph(graph_probe):
    p = graph_probe(TensorCompare(torch.ones(8)))
    replayed(p, torch.zeros(8, device="cuda"))
    x = torch.ones(8, device="cuda")
    for _ in range(150):  # more dead graphs than rings are kept of
        replayed(p, x)
    torch.cuda.synchronize()
    assert len(p.status().slots) < 120
    with pytest.raises(TensorCompareMismatchError, match="failed at replay 1"):
        p.assert_ok()
    assert sum(slot.compared for slot in p.status().slots) == 151


def test_a_sequence_has_one_expected_tensor_for_each_call(graph_probe):
    p = graph_probe(TensorCompare([torch.full((4,), float(i)) for i in range(3)]))
    x = torch.zeros(4, device="cuda")
    graph, _ = capture(lambda: [p(x + i) for i in range(3)], warmup=0)
    graph.replay()
    p.assert_ok()
    q = graph_probe(TensorCompare([torch.zeros(4), torch.zeros(4)]), name="q")
    graph, _ = capture(lambda: [q(x + i) for i in range(2)], warmup=0)
    graph.replay()
    with pytest.raises(TensorCompareMismatchError) as caught:
        q.assert_ok()
    assert caught.value.invocation_index == 1


def test_more_calls_than_expected_tensors_is_an_error(graph_probe):
    p, x = graph_probe(TensorCompare([torch.ones(4)])), torch.ones(4, device="cuda")
    with pytest.raises(ValueError, match="invocation 1 has no expected tensor"):
        capture(lambda: (p(x), p(x)), warmup=0)
    torch.cuda.synchronize()


@pytest.mark.parametrize(
    "tensor, text", [(torch.ones(5), r"float32\[5\]"), (torch.ones(4).double(), r"float64\[4\]")]
)
def test_another_shape_or_dtype_is_an_error(graph_probe, tensor, text):
    p, x = graph_probe(TensorCompare(torch.ones(4))), tensor.cuda()
    with pytest.raises(ValueError, match=rf"expects float32\[4\].*the tensor is {text}"):
        capture(lambda: p(x), warmup=0)
    torch.cuda.synchronize()


def verdict(probe, expected, actual, **options):
    """Whether one replay passes."""
    p = probe(TensorCompare(expected, **options))
    replayed(p, actual.cuda())
    try:
        p.assert_ok()
    except TensorCompareMismatchError:
        return False
    return True


@pytest.mark.parametrize(
    "value", [-(2**63), -(2**63) + 1, -(2**53) - 1, 0, 2**53 + 1, INT64_MAX - 1]
)
def test_int64_is_exact_over_its_whole_range(graph_probe, value):
    expected = torch.tensor([value])
    assert verdict(graph_probe, expected, torch.tensor([value]), rtol=0, atol=0)
    assert not verdict(graph_probe, expected, torch.tensor([value + 1]), rtol=0, atol=0)
    assert verdict(graph_probe, expected, torch.tensor([value + 1]), rtol=0, atol=1)


def test_int64_extremes_differ(graph_probe):
    assert not verdict(
        graph_probe, torch.tensor([-(2**63)]), torch.tensor([INT64_MAX]), rtol=0, atol=1e18
    )


@pytest.mark.parametrize(
    "expected, actual, options, passes",
    [
        ("inf", "inf", {}, True),
        ("inf", "-inf", {"atol": 1e300}, False),
        ("inf", 3.4e38, {"rtol": 1.0}, False),
        (1.0, "inf", {"atol": 1e300}, False),
        ("nan", "nan", {}, False),
        ("nan", "nan", {"equal_nan": True}, True),
        ("nan", 1.0, {"equal_nan": True}, False),
        (0.0, -0.0, {"rtol": 0, "atol": 0}, True),
        (0.0, -0.0, {"bitwise": True}, False),
        (1.0, 1.000009, {}, True),
        (1.0, 1.00002, {}, False),
    ],
)
def test_special_values(graph_probe, expected, actual, options, passes):
    pair = (torch.tensor([float(v)]) for v in (expected, actual))
    assert verdict(graph_probe, *pair, **options) is passes


@pytest.mark.parametrize("dtype", _dtypes.table())
def test_every_dtype_is_compared(graph_probe, dtype):
    a, b = (
        torch.tensor([1, 0, 1]).to(getattr(torch, dtype)),
        torch.tensor([1, 1, 1]).to(getattr(torch, dtype)),
    )
    assert verdict(graph_probe, a, a) and not verdict(graph_probe, a, b)


def test_non_contiguous_expected_and_copy_policy(graph_probe):
    x = torch.arange(6.0).reshape(2, 3)
    p = graph_probe(TensorCompare(x.t(), rtol=0, atol=0), non_contiguous="copy")
    y = x.cuda()
    graph, _ = capture(lambda: p(y.t()), warmup=0)
    graph.replay()
    p.assert_ok()


def test_a_captured_but_never_replayed_probe_does_not_pass(graph_probe):
    p = graph_probe(TensorCompare(torch.ones(4)))
    with pytest.raises(TensorNotComparedError, match="seen no tensor yet"):
        p.assert_ok()
    x = torch.ones(4, device="cuda")
    graph, _ = capture(lambda: p(x), warmup=0)
    with pytest.raises(TensorNotComparedError, match="never replayed"):
        p.assert_ok()
    graph.replay()
    p.assert_ok()


def test_graph_gone_before_the_verdict_is_asked_for(graph_probe):
    p = graph_probe(TensorCompare(torch.ones(4)))
    graph = replayed(p, torch.zeros(4, device="cuda"))
    torch.cuda.synchronize()
    del graph
    with pytest.raises(TensorCompareMismatchError):
        p.assert_ok()
