"""TensorStats of eager calls on a GPU: the kernels of graphs compute them, and 128 bytes leave it."""

import math

import pytest
import torch
from test_gpu_stats import FLOATS, FLOATS8, INTEGERS, check

from cgdebug import TensorStats

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("daemon")]


def looked_at(p, x, daemon):
    """The statistics of an eager call, as a client gets them."""
    p(x)
    torch.cuda.synchronize()
    assert p.status().waited, "the daemon has seen it"
    with daemon.connect() as client:
        return client.get(p.name)


@pytest.mark.parametrize("count", [0, 1, 1000, (1 << 20) + 5])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_statistics_of_floating_tensors(daemon, probe, dtype, count):
    x = (torch.randn(count, device="cuda", dtype=torch.float64) * 3 + 1).to(dtype)
    if count > 4:
        x[1], x[2], x[3] = 0, math.inf, -math.inf
        x[count // 2] = math.nan
    check(looked_at(probe(TensorStats(), name=f"{dtype}{count}"), x, daemon).stats, x)


@pytest.mark.parametrize("dtype", FLOATS8, ids=str)
def test_statistics_of_eight_bit_floats(daemon, probe, dtype):
    x = torch.arange(256, dtype=torch.uint8, device="cuda").repeat(41).view(dtype)
    check(looked_at(probe(TensorStats(), name=str(dtype)), x, daemon).stats, x)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_statistics_of_integers(daemon, probe, dtype):
    x = torch.arange(120, device="cuda").repeat(9).to(dtype)
    check(looked_at(probe(TensorStats(), name=str(dtype)), x, daemon).stats, x)


@pytest.mark.parametrize("mebi", [1, 3, 12])  # the largest is added on the tensor cores
def test_an_eager_call_and_a_replay_say_the_same(daemon, probe, mebi):
    x = torch.randn(mebi << 20, device="cuda", dtype=torch.bfloat16)
    eager = looked_at(probe(TensorStats(), name="eager"), x, daemon).stats
    p = probe(TensorStats(), name="graph")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        p(x)
    graph.replay()
    torch.cuda.synchronize()
    assert p.status().waited
    with daemon.connect() as client:
        check_equal(client.get("graph").stats, eager)


def check_equal(a, b):
    """But for how sums were made: those of bfloat16 are good to 2e-6."""
    for name in ("mean", "std", "l1", "l2"):
        assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-5, abs=1e-5), name
    for name in ("count", "nan", "zero", "min", "max", "xor_hash", "ordered_hash"):
        assert getattr(a, name) == getattr(b, name), name


def test_each_call_shows_its_own_tensor_in_stream_order(daemon, probe):
    p = probe(TensorStats(), name="order")
    x = torch.zeros(1 << 20, device="cuda")
    for i in range(1, 11):
        x.fill_(i)
        p(x)
    x.fill_(-1)
    torch.cuda.synchronize()
    assert p.status().waited
    with daemon.connect() as client:
        for i in range(1, 11):
            stats = client.get("order", replay=i).stats
            assert (stats.min, stats.max, stats.l1) == (i, i, i << 20)


@pytest.mark.own_lane
def test_128_bytes_leave_the_gpu_and_none_of_its_values(probe):
    p = probe(TensorStats())
    p(torch.ones(16 << 20, device="cuda"))
    (slot,) = p.status().slots
    assert slot.lane == "direct"
    assert slot.payload_bytes == 128


def test_many_shapes_on_two_streams_lose_nothing_uncounted(daemon, probe):
    p = probe(TensorStats(), name="shapes")
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(2):
        for n in range(1, 101):
            with torch.cuda.stream(streams[n % 2]):
                p(torch.full((n,), float(n), device="cuda"))
    torch.cuda.synchronize()
    status = p.status()
    assert status.waited
    assert {slot.shape for slot in status.slots} >= {(n,) for n in range(80, 101)}
    assert sum(slot.lost for slot in status.slots) == 0
    with daemon.connect() as client:
        stats = client.get("shapes").stats
        assert stats.min == stats.max == stats.count == 100


def test_a_closed_probe_leaves_queued_calls_alone(daemon, probe):
    x = torch.ones(4 << 20, device="cuda")
    for i in range(50):
        p = probe(TensorStats(), name=f"closed{i}")
        for _ in range(20):
            p(x)
        p.close()
    torch.cuda.synchronize()
    check(looked_at(probe(TensorStats(), name="after"), x, daemon).stats, x)
