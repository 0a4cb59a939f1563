"""TensorStats: what a GPU says about a tensor is what torch says about its values."""

import math

import numpy as np
import pytest
import torch

import cgdebug
from cgdebug import DaemonError, TensorRecord, TensorStats
from conftest import capture, own_session, wait_until
from op_logs import ordered_of

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("daemon")]

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SHORT_FLOATS8 = [torch.float8_e4m3fn, torch.float8_e5m2]  # which are added in float
FLOATS8 = [*SHORT_FLOATS8, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]
INTEGERS = [torch.uint8, torch.uint16, torch.int8, torch.int16, torch.int32, torch.int64]
SIZES = [0, 1, 7, 8, 1000, 4097, (1 << 20) + 5]


def looked_at(p, x, daemon, replays=1):
    """The statistics of `x` after a replay, as a client gets them."""
    graph, _ = capture(lambda: p(x), warmup=0)
    for _ in range(replays):
        graph.replay()
    torch.cuda.synchronize()
    p.status()
    with daemon.connect() as client:
        return client.get(p.name, graph_id=p.status().slots[-1].graph_id)


def same(a, b, rel=1e-12):
    return (math.isnan(a) and math.isnan(b)) or a == b or math.isclose(a, b, rel_tol=rel)


def check(stats, x, is_small=False):
    # Small floats are summed in float, a few at a time.
    rel = 2e-6 if x.dtype.itemsize < 4 or is_small else 1e-9
    wide = x.cpu().to(torch.float64).reshape(-1)
    finite = wide[torch.isfinite(wide)]
    nan = float("nan")
    assert stats.count == wide.numel()
    assert stats.nan == int(wide.isnan().sum())
    assert stats.pos_inf == int((wide == math.inf).sum())
    assert stats.neg_inf == int((wide == -math.inf).sum())
    assert stats.zero == int((wide == 0).sum())
    empty = finite.numel() == 0
    assert same(stats.min, nan if empty else finite.min().item())
    assert same(stats.max, nan if empty else finite.max().item())
    assert same(stats.abs_max, nan if empty else finite.abs().max().item())
    if empty:
        assert math.isnan(stats.mean)
    else:  # of a sum, relative to what was added
        bound = rel * finite.abs().mean().item()
        assert abs(stats.mean - finite.mean().item()) <= bound
    assert same(stats.std, nan if empty else finite.std(correction=0).item(), rel)
    assert same(stats.l1, finite.abs().sum().item(), rel)
    assert same(stats.l2, finite.square().sum().sqrt().item(), rel)
    assert same(stats.rms, nan if empty else finite.square().mean().sqrt().item(), rel)


def shapes_of(dtype):
    """Tensors of many shapes, which lie in memory in many ways."""
    torch.manual_seed(4)
    wide = torch.randn(1 << 21, device="cuda") * 40
    whole = wide.to(dtype)
    for count in (0, 1, 3, 16, 1000, 4097, 300_001, (1 << 21) - 9):
        for offset in (0, 1, 3):
            yield whole[offset : offset + count]
    yield whole[: 1 << 18 : 2]
    yield whole[:60_000].reshape(200, 300).t()
    yield whole[:48_000].reshape(4, 50, 8, 30).transpose(1, 2)
    if dtype.is_floating_point:
        wide[1 :: 1 << 19] = math.nan
        wide[2 :: 1 << 18] = 0
        wide[5 :: 1 << 18] = -math.inf
        yield wide.to(dtype)
        yield (-wide).to(dtype)[3:300_000]


@pytest.mark.parametrize("dtype", [*FLOATS, *FLOATS8, *INTEGERS, torch.bool], ids=str)
def test_the_ordered_hash_is_that_of_the_values(daemon, graph_probe, dtype):
    for i, x in enumerate(shapes_of(dtype)):
        p = graph_probe(TensorStats(), name=f"{dtype}.{i}", non_contiguous="copy")
        stats = looked_at(p, x, daemon).stats
        assert stats.ordered_hash == ordered_of(x), (tuple(x.shape), x.stride())
        p.close()


def test_neighbours_of_large_integers_have_their_spread(daemon, graph_probe):
    x = 2**60 + torch.arange(5, device="cuda", dtype=torch.int64)
    stats = looked_at(graph_probe(TensorStats(), name="large"), x, daemon).stats
    assert math.isclose(stats.std, math.sqrt(2), rel_tol=1e-12)


def test_statistics_whose_squares_leave_the_range_are_not_known(daemon, graph_probe):
    x = torch.tensor([0, torch.finfo(torch.float64).min], device="cuda", dtype=torch.float64)
    stats = looked_at(graph_probe(TensorStats(), name="mask"), x, daemon).stats
    assert stats.min == x[1].item() and stats.max == 0
    assert not any(math.isinf(one) for one in (stats.mean, stats.std, stats.l2, stats.rms))


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_statistics_of_floating_tensors(daemon, graph_probe, dtype, count):
    x = (torch.randn(count, device="cuda", dtype=torch.float64) * 3 + 1).to(dtype)
    if count > 4:
        x[1], x[2], x[3] = 0, math.inf, -math.inf
        x[count // 2] = math.nan
        x[4] = torch.finfo(dtype).tiny / 4
    snapshot = looked_at(graph_probe(TensorStats(), name=f"{dtype}{count}"), x, daemon)
    check(snapshot.stats, x)


@pytest.mark.parametrize("dtype", FLOATS8, ids=str)
def test_statistics_of_eight_bit_floats(daemon, graph_probe, dtype):
    x = torch.arange(256, dtype=torch.uint8, device="cuda").repeat(41).view(dtype)
    snapshot = looked_at(graph_probe(TensorStats(), name=str(dtype)), x, daemon)
    check(snapshot.stats, x)
    wide = x.cpu().double().abs()
    assert snapshot.stats.subnormal == int(((wide < torch.finfo(dtype).tiny) & (wide != 0)).sum())
    saturated = int((wide == torch.finfo(dtype).max).sum())
    assert snapshot.stats.saturated == (None if dtype is torch.float8_e8m0fnu else saturated)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("count", [0, 1, 15, 4097, (1 << 20) + 5])
def test_statistics_of_float4_are_of_the_two_values_in_each_byte(
    daemon, graph_probe, count, offset
):
    torch.manual_seed(2)
    bits = torch.randint(0, 256, (count + offset,), dtype=torch.uint8)[offset:]
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat([magnitudes, -magnitudes])
    wide = values[torch.stack([bits & 15, bits >> 4], dim=1).long()].reshape(-1)
    x = bits.cuda().view(torch.float4_e2m1fn_x2)
    stats = looked_at(graph_probe(TensorStats(), name=f"f4 {count} {offset}"), x, daemon).stats
    check(stats, wide, is_small=True)
    assert stats.subnormal == int((wide.abs() == 0.5).sum())
    assert stats.saturated == int((wide.abs() == 6).sum())
    assert stats.xor_hash == xor_of(wide)
    assert stats.ordered_hash == ordered_of(bits)


@pytest.mark.parametrize("dtype", [torch.int8, *SHORT_FLOATS8], ids=str)
@pytest.mark.parametrize("count", [1000, 300_001, (4 << 20) + 3])
def test_the_elements_that_are_saturated_are_counted(daemon, graph_probe, dtype, count):
    torch.manual_seed(3)
    largest = 127 if dtype is torch.int8 else torch.finfo(dtype).max
    x = torch.randn(count, device="cuda").clamp(-2, 2).mul(largest / 4).to(dtype)
    x[7::1001] = largest
    x[8::5003] = -largest
    stats = looked_at(graph_probe(TensorStats(), name=f"{dtype} {count}"), x, daemon).stats
    check(stats, x)
    assert stats.saturated == int((x.double().abs() >= largest).sum()) > 0


# Up to 256 KiB the leaf computes them alone, and with several blocks from 16 KiB on.
@pytest.mark.parametrize("kib", [0, 1, 16, 17, 200, 256, 257])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.float8_e4m3fn, torch.int64, torch.bool], ids=str)
def test_statistics_of_stable_tensors(daemon, graph_probe, dtype, kib):
    count = (kib << 10) // dtype.itemsize + (kib % 2) * 3
    x = (torch.randn(count, device="cuda", dtype=torch.float64) * 3 + 1).to(dtype)
    if count and dtype in FLOATS:
        x[1], x[2], x[-1] = 0, -math.inf, math.nan
        x[4] = torch.finfo(dtype).tiny / 4
    p = graph_probe(TensorStats(), name=f"{dtype}{kib}", lane="direct", stable=True)
    snapshot = looked_at(p, x, daemon, replays=3)
    check(snapshot.stats, x)
    assert snapshot.replay == 3
    (slot,) = p.status().slots
    assert (slot.unstaged, slot.accepted) == (True, 3)


def test_a_stable_tensor_has_the_statistics_and_the_hash_of_a_staged_one(daemon, graph_probe):
    x = torch.randn(50_000, device="cuda", dtype=torch.bfloat16)
    probes = [
        graph_probe(TensorStats(), name=f"stable{stable}", lane="direct", stable=stable)
        for stable in (False, True)
    ]
    graph, _ = capture(lambda: [p(x) for p in probes], warmup=0)
    graph.replay()
    torch.cuda.synchronize()
    for p in probes:
        p.status()
    with daemon.connect() as client:
        staged, stable = (client.get(p.name).stats for p in probes)
    assert staged.xor_hash == stable.xor_hash != 0
    assert (staged.min, staged.max, staged.zero) == (stable.min, stable.max, stable.zero)
    assert math.isclose(staged.l2, stable.l2, rel_tol=1e-6)


def newest(daemon, probes):
    """The replay of the newest snapshot of each probe, and what it says."""
    torch.cuda.synchronize()
    for p in probes:
        p.status()
    with daemon.connect() as client:
        return [
            (snapshot.replay, snapshot.stats) for snapshot in (client.get(p.name) for p in probes)
        ]


def means(daemon, probes):
    return [(replay, stats.mean) for replay, stats in newest(daemon, probes)]


def test_probes_that_see_one_tensor_in_a_row_each_have_its_statistics(daemon, graph_probe):
    x = torch.zeros(200_001, device="cuda")
    names = ["first", "view", "again", "written", "bits"]
    probes = first, view, again, written, bits = [graph_probe(TensorStats(), name=n) for n in names]

    def step():
        first(x)
        view(x.view(3, -1))
        again(x)
        written(x.mul_(2))
        bits(x.view(torch.int32))

    graph, _ = capture(step, warmup=0)
    for replay in range(1, 4):
        x.copy_(torch.randn_like(x))
        x[replay] = math.nan
        before = x.clone()
        graph.replay()
        found = newest(daemon, probes)
        assert [number for number, _ in found] == [replay] * 5
        for _, stats in found[:3]:
            check(stats, before)
        check(found[3][1], before * 2)
        check(found[4][1], (before * 2).view(torch.int32))


@pytest.mark.parametrize("closed", range(3))
def test_a_closed_probe_takes_nothing_from_others_that_see_its_tensor(daemon, graph_probe, closed):
    x = torch.zeros(5000, device="cuda")
    probes = [graph_probe(TensorStats(), name=f"p{i}") for i in range(3)]
    graph, _ = capture(lambda: [x.add_(1), *(p(x) for p in probes)], warmup=0)
    x.zero_()
    graph.replay()
    torch.cuda.synchronize()
    probes.pop(closed).close()
    for replay in range(2, 6):
        graph.replay()
        assert means(daemon, probes) == [(replay, replay)] * 2


def test_each_probe_of_one_tensor_keeps_its_own_period(daemon, graph_probe):
    x = torch.zeros(5000, device="cuda")
    periods = [3, 1, 2]
    probes = [graph_probe(TensorStats(every=n), name=f"each {n}") for n in periods]
    graph, _ = capture(lambda: [x.add_(1), *(p(x) for p in probes)], warmup=0)
    x.zero_()
    for replay in range(1, 13):
        graph.replay()
        due = [(replay - 1) // n * n + 1 for n in periods]
        assert means(daemon, probes) == [(each, each) for each in due]


@pytest.mark.parametrize("turned_off", [["one"], ["two"], ["one", "two"], ["one", "three"]])
def test_a_probe_that_is_off_takes_nothing_from_others_that_see_its_tensor(
    daemon, graph_probe, turned_off
):
    x = torch.zeros(5000, device="cuda")
    names = ["one", "two", "three"]
    probes = [graph_probe(TensorStats(), name=name) for name in names]
    graph, _ = capture(lambda: [x.add_(1), *(p(x) for p in probes)], warmup=0)
    x.zero_()
    replays = 0

    def off_now():
        nonlocal replays
        graph.replay()
        replays += 1
        found = means(daemon, probes)
        assert all(mean == replay for replay, mean in found)
        return [name for name, (replay, _) in zip(names, found) if replay != replays]

    assert off_now() == []
    for mode, off in (("off", turned_off), ("registered", [])):
        with daemon.connect() as client:
            client.set(*turned_off, mode=mode, session=own_session())
        wait_until(lambda off=off: off_now() == off, f"{turned_off} are {mode}")
        for _ in range(3):
            assert off_now() == off


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_statistics_of_integer_tensors(daemon, graph_probe, dtype, count):
    limit = min(torch.iinfo(dtype).max, 1 << 40)
    x = torch.randint(max(torch.iinfo(dtype).min, -limit), limit, (count,), device="cuda").to(dtype)
    snapshot = looked_at(graph_probe(TensorStats(), name=f"{dtype}{count}"), x, daemon)
    check(snapshot.stats, x)


def test_unsigned_integers_above_the_signed_range_keep_their_value(daemon, graph_probe):
    x = torch.full((70_001,), 40_000, device="cuda").to(torch.uint16)
    stats = looked_at(graph_probe(TensorStats(), name="u16"), x, daemon).stats
    assert (stats.min, stats.max, stats.mean, stats.std) == (40_000, 40_000, 40_000, 0)
    assert stats.xor_hash == 40_000


def test_statistics_of_booleans(daemon, graph_probe):
    x = torch.rand(5000, device="cuda") > 0.3
    check(looked_at(graph_probe(TensorStats(), name="bool"), x, daemon).stats, x)


@pytest.mark.parametrize("offset", [1, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, *FLOATS8, torch.int8], ids=str)
def test_statistics_of_tensors_that_are_not_aligned(daemon, graph_probe, dtype, offset):
    whole = (torch.randn(10_000, device="cuda") * 20).to(dtype)
    for count in (3, 5_000):
        x = whole[offset : offset + count]
        p = graph_probe(TensorStats(), name=f"{dtype} from {offset}, {count}")
        stats = looked_at(p, x, daemon).stats
        check(stats, x)
        assert stats.xor_hash == xor_of(x)


def xor_of(x):
    """XOR of the elements widened to 64 bits."""
    wide = x.cpu().to(torch.float64 if x.dtype.is_floating_point else torch.int64)
    return int(np.bitwise_xor.reduce(wide.numpy().view(np.uint64)))


def every_pattern(dtype):
    bits = 8 * dtype.itemsize
    x = torch.arange(1 << bits).to(torch.uint16 if bits == 16 else torch.uint8).view(dtype)
    return x.repeat(5) if bits == 16 else x.repeat(1001)


def finite_in_disorder(dtype):
    x = every_pattern(dtype)
    x = x[x.float().isfinite()]
    return x[torch.randperm(x.numel())]


VALUES = {
    "every pattern": every_pattern,
    "every finite pattern, in disorder": finite_in_disorder,
    "an outlier first": lambda dtype: torch.cat([torch.tensor([400.0]), torch.randn(100_000)]).to(
        dtype
    ),
    "outliers everywhere": lambda dtype: (
        torch.randn(100_000) * torch.where(torch.arange(100_000) % 37 == 0, 100, 1)
    ).to(dtype),
    "a large mean": lambda dtype: (300 + torch.randn(100_000)).to(dtype),
    "one value": lambda dtype: torch.full((100_003,), 0.3).to(dtype),
    "tiny": lambda dtype: (torch.randn(100_000) * 1e-30).to(dtype),
    "huge": lambda dtype: (torch.randn(100_000) * torch.finfo(dtype).max / 6).to(dtype),
    "half zeros": lambda dtype: torch.randn(100_001).relu().to(dtype),
    "zeros": lambda dtype: torch.zeros(77_777).to(dtype),
    "minus zeros": lambda dtype: torch.full((77_777,), -0.0).to(dtype),
}


def check_short_floats(stats, x):
    dtype = x.dtype
    wide = x.cpu().to(torch.float64)
    finite = wide[wide.isfinite()]
    assert (stats.nan, stats.zero) == (int(wide.isnan().sum()), int((wide == 0).sum()))
    assert stats.pos_inf + stats.neg_inf == int(wide.isinf().sum())
    smallest = torch.finfo(dtype).smallest_normal
    assert stats.subnormal == int(((finite != 0) & (finite.abs() < smallest)).sum())
    assert (stats.min, stats.max) == (finite.min().item(), finite.max().item())
    largest = finite.abs().max().item()
    assert abs(stats.mean - finite.mean().item()) <= 2e-6 * largest
    assert abs(stats.std - finite.std(correction=0).item()) <= 2e-6 * largest
    assert math.isclose(stats.l1, finite.abs().sum().item(), rel_tol=2e-6)
    assert math.isclose(stats.l2, finite.square().sum().sqrt().item(), rel_tol=2e-6)
    if dtype not in FLOATS8 or stats.nan == 0:  # torch does not keep the bits of their NaN
        assert stats.xor_hash == xor_of(x)


@pytest.mark.own_lane
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, *SHORT_FLOATS8], ids=str)
def test_statistics_of_short_floats_are_good_to_2e_6(daemon, graph_probe, dtype, values):
    torch.manual_seed(0)
    x = VALUES[values](dtype).cuda()
    p = graph_probe(TensorStats(), name=f"{dtype} {values}", lane="direct")
    check_short_floats(looked_at(p, x, daemon).stats, x)


def of_each_size(dtype):
    """Blocks of numbers whose sizes differ by many powers of two."""
    scale = 2.0 ** torch.randint(-120, 60, (1300, 1))
    return (torch.randn(1300, 1024) * scale).to(dtype).reshape(-1)


def with_rare_values(dtype):
    x = torch.randn(1_500_000).to(dtype)
    x[70_000::300_000] = math.inf
    x[90_000::400_000] = -math.inf
    x[123_456] = math.nan
    x[5::65_536] = torch.finfo(dtype).tiny / 4
    return x


def around_two(dtype):
    """Sums of 256 squares need 25 bits, and what would be cut off has the same sign each time."""
    x = torch.full((1 << 20,), 2.0)
    rows = x.view(-1, 2048)
    rows[:, 0:256:32] = 1.9921875
    rows[:, 256:512:32] = 2.015625
    return torch.cat([x, torch.full((8,), 2.0)]).to(dtype)


LARGE = {
    "around two": around_two,
    **{name: lambda dtype, of=of: of(dtype).repeat(30)[:1_400_003] for name, of in VALUES.items()},
    "each size": of_each_size,
    "rare values": with_rare_values,
    "tiny, but for a few": lambda dtype: torch.where(
        torch.arange(1_300_000) % 100_000 == 7, 1.0, torch.randn(1_300_000) * 1e-25
    ).to(dtype),
    "64 MiB": lambda dtype: torch.randn(1 << 25).to(dtype),
}


# From 2 MiB on the sums are made on the tensor cores.
@pytest.mark.own_lane
@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("values", LARGE)
def test_statistics_of_large_bfloat16_tensors_are_good_to_2e_6(daemon, graph_probe, values, offset):
    torch.manual_seed(0)
    x = LARGE[values](torch.bfloat16).cuda()[offset:]
    assert x.nbytes >= 2 << 20
    p = graph_probe(TensorStats(), name=f"large {values} from {offset}", lane="direct")
    check_short_floats(looked_at(p, x, daemon, replays=2).stats, x)


@pytest.mark.own_lane
@pytest.mark.parametrize("values", ["outliers everywhere", "half zeros", "64 MiB"])
def test_a_ring_with_a_trigger_keeps_large_bfloat16_tensors(daemon, graph_probe, values):
    torch.manual_seed(0)
    x = LARGE[values](torch.bfloat16).cuda()
    trigger = f"absmax>{1.01 * x.abs().max().item()}"
    record = TensorRecord(capacity=4, where="device", on=trigger)
    p = graph_probe(record, name=f"kept {values}", lane="direct")
    graph, _ = capture(lambda: p(x), warmup=0)

    def three_replays():  # rings that another test stopped may stand still at first
        for _ in range(3):
            graph.replay()
        kept = p.records(synchronize=True)
        return kept if len(kept) >= 3 else None

    for record in wait_until(three_replays, "it keeps replays"):
        assert torch.equal(record.tensor.cpu().view(torch.int16), x.cpu().view(torch.int16))


def test_a_large_mean_does_not_drown_the_deviation(daemon, graph_probe):
    x = 1e8 + torch.rand(100_000, device="cuda", dtype=torch.float64)
    snapshot = looked_at(graph_probe(TensorStats(), name="mean"), x, daemon)
    around_zero = x.cpu() - x[0].cpu()  # torch itself is good to 1e-9 only around 1e8
    assert math.isclose(snapshot.stats.std, around_zero.std(correction=0).item(), rel_tol=1e-9)


@pytest.mark.own_lane
def test_values_do_not_leave_the_gpu(daemon, graph_probe):
    x = torch.ones(1000, device="cuda")
    snapshot = looked_at(graph_probe(TensorStats(), name="kept", lane="direct"), x, daemon)
    with pytest.raises(LookupError, match="only the statistics"):
        snapshot.tensor  # noqa: B018


def test_statistics_come_between_the_recorded_replays(daemon, graph_probe):
    x = torch.zeros(1000, device="cuda")
    p = graph_probe(TensorStats(), TensorRecord(16, every=4), name="mixed")
    graph, _ = capture(lambda: p(x.add_(1)), warmup=0)
    for _ in range(8):
        graph.replay()
    torch.cuda.synchronize()
    assert [r.replay_index for r in p.records()] == [1, 5]
    wait_until(lambda: p._status(True).slots[0].consumed == 8, "all eight were looked at")
    with daemon.connect() as client:
        assert client.get("mixed", replay=7).stats.max == 7
        assert client.get("mixed", replay=5).tensor[0] == 5


@pytest.mark.own_lane
def test_more_elements_than_32_bits_count(daemon, graph_probe):
    x = torch.ones((1 << 32) + 3, dtype=torch.int8, device="cuda")
    x[-1] = -5
    p = graph_probe(TensorStats(), name="huge", lane="direct")
    snapshot = looked_at(p, x, daemon)
    assert (snapshot.stats.count, snapshot.stats.min) == ((1 << 32) + 3, -5)
    assert snapshot.stats.l1 == (1 << 32) + 2 + 5


def recorded(client, p, call, path):
    """A recording of steps 1 to 3 of `p`, which `call` makes; step 0 comes before it."""

    def newest():
        try:
            return client.get(p.name).step
        except DaemonError:
            return None

    for step in range(4):
        cgdebug.step(step)
        call(step)
        torch.cuda.synchronize()
        wait_until(lambda step=step: newest() == step, f"step {step} of {p.name} has been read")
        if step == 0:
            live = client.record(path, probes=p.name)
    live.stop()
    return cgdebug.open(live.directory)


@pytest.mark.parametrize("dtype", [*FLOATS, *FLOATS8, *INTEGERS, torch.bool], ids=str)
def test_a_run_on_the_gpu_and_one_on_the_cpu_are_the_same(
    daemon, graph_probe, probe, tmp_path, dtype
):
    generator = torch.Generator().manual_seed(1)
    steps = [torch.randn(100_003, generator=generator, dtype=torch.float64) * 50 for _ in range(4)]
    steps = [x if dtype.is_signed else x.abs() for x in steps]
    steps = [x.to(torch.float32).to(dtype) for x in steps]
    steps[2].view(-1)[:2] = torch.zeros(2).to(dtype)
    if dtype in FLOATS:
        steps[2][3], steps[2][4], steps[2][5] = math.inf, -math.inf, -0.0
    on_gpu = graph_probe(TensorStats(), name=f"gpu {dtype}")
    x = steps[0].cuda()
    graph, _ = capture(lambda: on_gpu(x), warmup=0)

    def replay(step):
        x.copy_(steps[step])
        graph.replay()

    on_cpu = probe(TensorStats(), name=f"cpu {dtype}", mode="always")
    key = own_session()
    with daemon.connect(session=key) as client:
        wait_until(lambda: key in {s.key for s in client.sessions()}, "the session is known")
        of_gpu = recorded(client, on_gpu, replay, tmp_path / "gpu.cgrec")
        of_cpu = recorded(client, on_cpu, lambda step: on_cpu(steps[step]), tmp_path / "cpu.cgrec")
    diff = of_gpu.diff(of_cpu, align="step", names={on_gpu.name: on_cpu.name})
    assert diff.ok, diff
    assert diff.to_dict()["equal"]["statistics"] == 3
