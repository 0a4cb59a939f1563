"""TensorCompare in captured graphs: the daemon's verdict, asked for by assert_ok()."""

import math
import os

import numpy as np
import pytest
import torch
from all_dtypes import CONVERTED

from cgdebug import (
    TensorCompare,
    TensorCompareMismatchError,
    TensorNotComparedError,
    TensorRecord,
    TensorStats,
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


@pytest.mark.parametrize("dtype", CONVERTED)
def test_every_dtype_is_compared(graph_probe, dtype):
    a, b = (
        torch.tensor([1, 0, 1]).to(getattr(torch, dtype)),
        torch.tensor([1, 1, 1]).to(getattr(torch, dtype)),
    )
    assert verdict(graph_probe, a, a) and not verdict(graph_probe, a, b)


def test_the_values_of_float4_are_compared(graph_probe):
    a, b = (
        torch.tensor(bits, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
        for bits in ([0x21, 0x43], [0x21, 0x53])
    )
    assert verdict(graph_probe, a, a) and not verdict(graph_probe, a, b)
    assert verdict(graph_probe, a, b, rtol=0, atol=1)


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


# --- expected on the GPU ---------------------------------------------------------------------------


def only_slot(p):
    (slot,) = p.status().slots
    return slot


@pytest.mark.own_lane
@pytest.mark.parametrize("dtype", CONVERTED)
def test_a_replay_that_matches_on_the_gpu_sends_nothing(graph_probe, dtype):
    for count, offset in ((5, 0), (1003, 1), (300_001, 0)):
        x = torch.arange(count + offset, device="cuda").remainder(2).to(getattr(torch, dtype))
        x = x[offset:]
        p = graph_probe(TensorCompare(x.clone()), name=f"{dtype} {count} {offset}", lane="direct")
        graph = replayed(p, x, times=20)
        p.assert_ok()
        slot = only_slot(p)
        assert (slot.verdict, slot.compared, slot.accepted, slot.lost) == ("pass", 20, 0, 0)
        assert (slot.replays, slot.suppressed, slot.compared_on) == (20, 0, "device")
        x[-1] = 1 - x[-1].float()
        graph.replay()
        with pytest.raises(
            TensorCompareMismatchError, match="at replay 21 .the only one."
        ) as error:
            p.assert_ok()
        assert f"Mismatched elements: 1 / {count}" in str(error.value)
        x[-1] = 1 - x[-1].float()
        graph.replay()
        torch.cuda.synchronize()
        slot = only_slot(p)
        assert (slot.verdict, slot.compared, slot.mismatched, slot.accepted) == ("fail", 22, 1, 1)


@pytest.mark.own_lane
def test_a_probe_with_another_action_is_compared_by_the_daemon(graph_probe):
    x = torch.ones(8, device="cuda")
    p = graph_probe(TensorCompare(x), TensorRecord(), lane="direct")
    replayed(p, x, times=3)
    p.assert_ok()
    slot = only_slot(p)
    assert (slot.compared_on, slot.compared, slot.accepted) == ("daemon", 3, 3)


def test_expected_on_the_gpu_works_in_every_lane(graph_probe, every_lane):
    x = torch.ones(8, device="cuda")
    p = graph_probe(TensorCompare(x.clone()))
    graph = replayed(p, x, times=3)
    p.assert_ok()
    assert only_slot(p).compared == 3
    x[2] = 7
    graph.replay()
    with pytest.raises(TensorCompareMismatchError, match="at replay 4"):
        p.assert_ok()


# --- expected="first" ----------------------------------------------------------------------------


def test_the_first_replay_is_what_later_ones_are_compared_with(graph_probe):
    p = graph_probe(TensorCompare(expected="first"))
    x = torch.randn(1000, device="cuda")
    graph = replayed(p, x, times=20)
    p.assert_ok()
    assert (only_slot(p).verdict, only_slot(p).compared) == ("pass", 19)
    x[7] += 1
    graph.replay()
    with pytest.raises(TensorCompareMismatchError, match="at replay 21 .the only one.") as caught:
        p.assert_ok()
    assert "Mismatched elements: 1 / 1000" in str(caught.value)


@pytest.mark.own_lane
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8", "int64", "float8_e4m3fn"])
def test_the_gpu_keeps_the_first_replay_and_sends_no_other_that_matches(graph_probe, dtype):
    for count, offset in ((1, 0), (1003, 1), (300_001, 0)):
        x = torch.arange(count + offset, device="cuda").remainder(2).to(getattr(torch, dtype))
        x = x[offset:]
        p = graph_probe(
            TensorCompare(expected="first"), name=f"{dtype} {count} {offset}", lane="direct"
        )
        graph = replayed(p, x, times=20)
        p.assert_ok()
        slot = only_slot(p)
        assert (slot.verdict, slot.compared, slot.accepted) == ("pass", 19, 1)
        assert (slot.compared_on, slot.compared_with) == ("device", "first")
        x[-1] = 1 - x[-1].float()
        graph.replay()
        with pytest.raises(TensorCompareMismatchError, match="at replay 21") as error:
            p.assert_ok()
        if count > 1:
            assert f"Mismatched elements: 1 / {count}" in str(error.value)
        x[-1] = 1 - x[-1].float()
        graph.replay()
        torch.cuda.synchronize()
        slot = only_slot(p)
        assert (slot.verdict, slot.compared, slot.mismatched, slot.accepted) == ("fail", 21, 1, 2)


def test_each_graph_has_a_first_replay_of_its_own(graph_probe):
    p = graph_probe(TensorCompare(expected="first"))
    ones, zeros = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
    graphs = [replayed(p, x, times=3) for x in (ones, zeros)]
    p.assert_ok()
    assert [slot.compared for slot in p.status().slots] == [2, 2]
    zeros.fill_(1)
    graphs[1].replay()
    with pytest.raises(TensorCompareMismatchError, match="at replay 4"):
        p.assert_ok()


def test_a_first_replay_alone_is_no_pass(graph_probe):
    p = graph_probe(TensorCompare(expected="first"))
    replayed(p, torch.ones(8, device="cuda"))
    with pytest.raises(TensorNotComparedError, match="there was no later one"):
        p.assert_ok()


# --- expected=PROBE --------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [TensorRecord(capacity=2), TensorStats(every=1000)])
def test_a_probe_is_compared_with_another_of_the_same_replay(graph_probe, every_lane, other):
    a = graph_probe(other, name="a")
    b = graph_probe(TensorCompare(expected=a), name="b")
    x = torch.randn(50_000, device="cuda")
    off = torch.zeros(1, device="cuda")
    scratch = torch.empty_like(x)

    def look():
        for i in range(2):
            scratch.copy_(x + i)
            a(scratch)
            scratch.mul_(2)  # in place: the reference is what probe a saw
            scratch.div_(2)
            scratch[7] += off[0]
            b(scratch)
            scratch.zero_()

    graph, _ = capture(look, warmup=0)
    for _ in range(30):
        x.normal_()
        graph.replay()
    if every_lane == "direct" or isinstance(other, TensorRecord):
        b.assert_ok()
        assert [slot.compared for slot in b.status().slots] == [30, 30]
        where = "device" if every_lane == "direct" else "daemon"
        assert {slot.compared_on for slot in b.status().slots} == {where}
        off.fill_(5)
        graph.replay()
        with pytest.raises(TensorCompareMismatchError, match="at replay 31") as caught:
            b.assert_ok()
        assert "Mismatched elements: 1 / 50000" in str(caught.value)
        assert "at index (7,)" in str(caught.value)
    else:  # it kept one replay
        with pytest.raises(TensorNotComparedError, match="has no values of replay"):
            b.assert_ok()


@pytest.mark.own_lane
def test_a_probe_on_another_stream_is_waited_for(graph_probe):
    a = graph_probe(TensorRecord(), name="a", lane="direct")
    b = graph_probe(TensorCompare(expected=a), name="b", lane="direct")
    x = torch.randn(8_000_000, device="cuda")
    side = torch.cuda.Stream()

    def look():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x.sin().cos().sin()
            a(y)
        z = x * 1
        b(z.sin().cos().sin())
        torch.cuda.current_stream().wait_stream(side)

    graph, _ = capture(look, warmup=0)
    for _ in range(20):
        x.normal_()
        graph.replay()
    b.assert_ok()


@pytest.mark.own_lane
def test_what_cannot_be_compared_with_another_probe_says_why(graph_probe):
    a = graph_probe(TensorRecord(), name="a", lane="direct")
    b = graph_probe(TensorCompare(expected=a), name="b", lane="direct")
    x = torch.ones(4, device="cuda")
    with pytest.raises(ValueError, match="'a', which was not called before it in this graph .call"):
        capture(lambda: (b(x), a(x)), warmup=0)
    torch.cuda.synchronize()
    with pytest.raises(ValueError, match=r"'a', which saw float32\[4\] there: .* is float32\[2\]"):
        capture(lambda: (a(x), b(x[:2])), warmup=0)
    torch.cuda.synchronize()
    c = graph_probe(TensorCompare(expected=a), name="c", lane="callback")
    with pytest.raises(ValueError, match="give both the same lane"):
        capture(lambda: (a(x), c(x)), warmup=0)
    torch.cuda.synchronize()


PAIRS = 4096


def pairs(dtype):
    """Bits of expected and actual elements: near each other, and special ones."""
    size = dtype.itemsize
    info = np.dtype(f"u{size}")
    generator = np.random.default_rng(3)
    bits = 8 * size
    expected = generator.integers(0, 2**bits, PAIRS, dtype=info, endpoint=False)
    near = generator.choice([0, 1, 2, 3, 5, 2 ** (bits // 4)], PAIRS).astype(info)
    actual = np.where(generator.random(PAIRS) < 0.5, expected + near, expected - near)
    if dtype.is_floating_point:
        wide = torch.tensor([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, 2.0**-140, 1e-4, 300.0])
        special = wide.to(dtype).view(getattr(torch, f"int{bits}")).numpy().view(info)
        smallest = np.array([1, 2, 3], dtype=info)  # subnormal
        special = np.concatenate([special, smallest, smallest | info.type(1 << (bits - 1))])
        crossed = np.array([(a, b) for a in special for b in special], dtype=info)
        expected[: len(crossed)], actual[: len(crossed)] = crossed.T
        expected[-12:] = torch.ones(12).to(dtype).view(torch.uint8).numpy().view(info)
        actual[-12:] = expected[-12:] + np.arange(12, dtype=info)  # about the tolerance
    as_tensor = lambda a: torch.from_numpy(a.astype(info).view(np.uint8)).view(dtype)  # noqa: E731
    if dtype == torch.bool:
        expected, actual = expected % 2, actual % 2
    return as_tensor(expected), as_tensor(actual)


TOLERANCES = [
    {},
    {"rtol": 0, "atol": 0, "equal_nan": True},
    {"rtol": 1e-6, "atol": 1e-40},
    {"rtol": 0.016, "atol": 3.0},
    {"rtol": 1.0, "atol": 1e300, "equal_nan": True},
    {"bitwise": True},
]


@pytest.mark.own_lane
@pytest.mark.parametrize("dtype", CONVERTED)
def test_the_gpu_and_the_daemon_find_the_same(graph_probe, dtype):
    """In all of 4096 pairs, and in each of 16 parts of them."""
    torch_dtype = getattr(torch, dtype)
    expected, actual = pairs(torch_dtype)
    parts = [slice(None), *(slice(i, i + 256) for i in range(0, PAIRS, 256))]
    looked_at = [actual.view(torch.uint8).cuda().view(torch_dtype)[part] for part in parts]
    on_gpu, by_daemon = [], []
    for options in TOLERANCES:
        wanted = [expected[part].clone() for part in parts]
        on = [item.view(torch.uint8).cuda().view(torch_dtype) for item in wanted]
        for of, to in ((on, on_gpu), (wanted, by_daemon)):
            name = f"{len(on_gpu)} {len(by_daemon)}"
            to.append(graph_probe(TensorCompare(of, **options), name=name, lane="direct"))

    def look():
        for x in looked_at:
            for p in (*on_gpu, *by_daemon):
                p(x)

    graph, _ = capture(look, warmup=0)
    graph.replay()
    torch.cuda.synchronize()
    alone = [p._status(True).slots for p in on_gpu]  # what the GPU says, whatever the daemon does
    for options, gpu_slots, daemon_probe in zip(TOLERANCES, alone, by_daemon):
        daemon_slots = daemon_probe.status().slots
        assert {slot.compared_on for slot in gpu_slots} == {"device"}
        assert {slot.compared_on for slot in daemon_slots} == {"daemon"}
        for part, gpu, daemon in zip(parts, gpu_slots, daemon_slots):
            where = (options, part)
            assert (gpu.verdict, gpu.compared) == (daemon.verdict, 1), where
            assert gpu.mismatched == daemon.mismatched, where
            assert gpu.verdict_text == daemon.verdict_text, where
            assert gpu.accepted == (daemon.verdict == "fail"), where


@pytest.mark.own_lane
@pytest.mark.parametrize("count", [1, 1003, 3_000_001])
def test_a_failure_on_the_gpu_needs_no_daemon(without_daemon, graph_probe, count):
    expected = torch.randn(count, device="cuda")
    p = graph_probe(TensorCompare(expected), lane="direct")
    x = expected.clone()
    graph = replayed(p, x, times=3)
    p.assert_ok()
    x[count // 2] += 1
    x[count - 1] += 3
    graph.replay()
    x.copy_(expected)
    graph.replay()
    with pytest.raises(TensorCompareMismatchError, match="at replay 4 .the only one.") as caught:
        p.assert_ok()
    places = len({count // 2, count - 1})
    assert f"Mismatched elements: {places} / {count}" in str(caught.value)
    assert f"at index ({count - 1},) (up to 1e-08 allowed)" in str(caught.value)
    assert (only_slot(p).compared, only_slot(p).mismatched) == (5, 1)
