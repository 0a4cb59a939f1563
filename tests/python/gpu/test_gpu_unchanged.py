"""Tensors that are not sent again because they did not change, and tensors that are not staged."""

import random

import pytest
import torch

import cgdebug
from cgdebug import TensorCompare, TensorRecord, TensorStats
from conftest import capture, own_session, wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.own_lane]

SIZES = [64 << 10, (64 << 10) + 3, (1 << 20) + 8, (3 << 20) + 1]


@pytest.fixture
def skipping(graph_probe):
    def make(capacity=3, **options):
        return graph_probe(TensorRecord(capacity, unchanged="skip"), lane="direct", **options)

    return make


def replay(graph, times=1):
    for _ in range(times):
        graph.replay()
    torch.cuda.synchronize()


def unchanged(probe):
    (slot,) = probe.status(timeout=0).slots
    assert slot.skips_unchanged
    return slot.unchanged


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_each_replay_has_its_value_whether_it_was_sent_or_not(skipping, size, capacity):
    source = random.Random(size + capacity)
    x = torch.zeros(size, dtype=torch.uint8, device="cuda")
    p = skipping(capacity)
    graph, _ = capture(lambda: p(x), warmup=0)
    shown, same = [], 0
    for turn in range(24):
        before = x.clone()
        if source.random() < 0.5:
            x[source.randrange(size)] ^= 1 << source.randrange(8)
        same += turn > 0 and torch.equal(before, x)
        replay(graph)
        shown.append(x.cpu())
        records = p.records()
        assert [r.replay_index for r in records] == list(
            range(max(1, turn + 2 - capacity), turn + 2)
        )
        for record in records:
            assert torch.equal(record.tensor, shown[record.replay_index - 1])
    assert 0 < unchanged(p) == same < 23


def test_every_small_difference_is_sent(skipping):
    rows, columns = 256, 128
    x = torch.randn(rows, columns, device="cuda")
    x[0, 0] = 0.0
    p = skipping(2)
    graph, _ = capture(lambda: p(x), warmup=0)
    replay(graph, 2)
    assert unchanged(p) == 1

    def negate():
        x.neg_()

    def negate_the_zero():
        x[0, 0] = -x[0, 0]

    def exchange_two_elements():
        x[3, 4], x[3, 5] = x[3, 5].clone(), x[3, 4].clone()

    def exchange_two_rows():
        x[[7, 200]] = x[[200, 7]]

    def reverse():
        x.copy_(x.flip(0))

    def transpose_a_block():
        x[:128, :128] = x[:128, :128].t().clone()

    def flip_the_lowest_bit():
        x.view(torch.int32)[255, 127] ^= 1

    def move_a_unit_from_one_to_another():  # the sum stays the same
        x.view(torch.int32)[1, 1] += 1
        x.view(torch.int32)[1, 3] -= 1

    changes = [
        negate, negate_the_zero, exchange_two_elements, exchange_two_rows, reverse,
        transpose_a_block, flip_the_lowest_bit, move_a_unit_from_one_to_another,
    ]  # fmt: skip
    for count, change in enumerate(changes, 1):
        change()
        replay(graph)
        bits = p.records()[-1].tensor.view(torch.int32)
        assert torch.equal(bits, x.cpu().view(torch.int32)), change.__name__
        assert unchanged(p) == count, change.__name__
        replay(graph)
        assert unchanged(p) == count + 1


def test_replays_that_are_launched_without_a_pause_have_their_values(skipping):
    x = torch.zeros(1 << 20, device="cuda")
    count = torch.zeros(1, dtype=torch.int32, device="cuda")
    p = skipping(64)

    def step():
        count.add_(1)
        x.fill_(0).add_(count // 3)  # another value in every third replay
        p(x)
        x.fill_(-1)  # what is staged stays

    graph, _ = capture(step, warmup=0)
    replay(graph, 300)
    records = p.records()
    assert [r.replay_index for r in records] == list(range(237, 301))
    for record in records:
        assert record.tensor.unique().tolist() == [record.replay_index // 3]
    assert unchanged(p) == 300 - 101


def test_small_tensors_and_the_callback_lane_send_every_value(graph_probe):
    small = torch.ones(1000, device="cuda")
    large = torch.ones(1 << 20, device="cuda")
    record = TensorRecord(2, unchanged="skip")
    one = graph_probe(record, name="small", lane="direct")
    other = graph_probe(record, name="callback", lane="callback")
    graph, _ = capture(lambda: (one(small), other(large)), warmup=0)
    replay(graph, 5)
    for p, x in (one, small), (other, large):
        (slot,) = p.status(timeout=0).slots
        assert (slot.skips_unchanged, slot.unchanged) == (False, 0)
        assert [torch.equal(r.tensor, x.cpu()) for r in p.records()] == [True, True]


def test_many_probes_of_one_graph_skip_by_themselves(skipping):
    tensors = [torch.zeros(32 << 10, device="cuda") for _ in range(12)]
    probes = [skipping(4, name=f"p{i}") for i in range(len(tensors))]

    def step():
        for i, (p, x) in enumerate(zip(probes, tensors)):
            if i % 3 == 0:
                x.add_(1)
            p(x)

    graph, _ = capture(step, warmup=0)
    replay(graph, 50)
    for i, p in enumerate(probes):
        values = [r.tensor.unique().tolist() for r in p.records()]
        changes = i % 3 == 0
        assert values == ([[47.0], [48.0], [49.0], [50.0]] if changes else [[0.0]] * 4)
        assert unchanged(p) == (0 if changes else 49)


def test_a_recording_has_every_value_from_its_first_replay_on(daemon, graph_probe, tmp_path):
    x = torch.zeros(100_000, device="cuda")
    count = torch.zeros(1, dtype=torch.int32, device="cuda")
    p = graph_probe(TensorRecord(16, unchanged="skip"), lane="direct", name="slow")

    def step():
        count.add_(1)
        p(x.fill_(0).add_(count // 10))

    graph, _ = capture(step, warmup=0)
    replay(graph, 25)  # before it: the value of replay 20 is not sent again
    key = own_session()
    with daemon.connect(session=key) as client:
        wait_until(lambda: key in {s.key for s in client.sessions()}, "the session is known")
        where = tmp_path / "slow.cgrec"
        with client.record(where, probes=p.name, lossless=True) as live:
            for _ in range(100):
                graph.replay()
            torch.cuda.synchronize()
        recording = cgdebug.open(live.directory)
        values = {s.replay_index: float(s.numpy()[0]) for s in recording[p.name]}
        assert recording.complete, recording.missing
    assert values == {n: float(n // 10) for n in range(26, 126)}
    assert unchanged(p) == 125 - 13


def test_a_stable_tensor_is_not_staged_and_its_values_are_right(graph_probe):
    x = torch.zeros(3 << 20, device="cuda")
    p = graph_probe(TensorRecord(4), lane="direct", name="weight", stable=True)
    s = graph_probe(TensorStats(), lane="direct", name="statistics", stable=True)
    out = torch.zeros_like(x)

    def step():
        x.add_(1)
        s(p(x))
        out.copy_(x)

    graph, _ = capture(step, warmup=0)
    replay(graph, 30)
    assert [r.tensor.unique().tolist() for r in p.records()] == [[27.0], [28.0], [29.0], [30.0]]
    for probe in p, s:
        (slot,) = probe.status(timeout=0).slots
        assert slot.unstaged and "not staged" in str(slot)
        assert slot.accepted == 30


def test_a_stable_tensor_that_does_not_change_is_neither_staged_nor_sent(skipping):
    x = torch.randn(1 << 20, device="cuda")
    p = skipping(2, stable=True)
    graph, _ = capture(lambda: p(x), warmup=0)
    replay(graph, 20)
    x.add_(1)
    replay(graph, 2)
    assert [torch.equal(r.tensor, x.cpu()) for r in p.records()] == [True, True]
    assert unchanged(p) == 20


def test_what_the_leaf_cannot_read_itself_is_staged_although_it_is_stable(graph_probe):
    base = torch.arange(40_000, device="cuda", dtype=torch.int32).view(200, 200)
    views = {
        "offset": base.view(-1)[1:],
        "odd": base.view(torch.uint8).view(-1)[: 160_000 - 5],
        "packed": base[:, :100],
    }
    probes = {
        name: graph_probe(
            TensorRecord(2), name=name, lane="direct", stable=True, non_contiguous="copy"
        )
        for name in views
    }
    compared = graph_probe(TensorCompare("first"), name="compared", lane="direct", stable=True)
    some = TensorRecord(2, part="stride:4")
    strided = graph_probe(some, name="strided", lane="direct", stable=True)

    def step():
        for name, view in views.items():
            probes[name](view)
        compared(base)
        strided(base)

    graph, _ = capture(step, warmup=0)
    replay(graph, 3)
    for name, view in views.items():
        (slot,) = probes[name].status(timeout=0).slots
        assert not slot.unstaged, name
        assert torch.equal(probes[name].records()[-1].tensor, view.cpu()), name
    (slot,) = compared.status(timeout=0).slots
    assert (slot.unstaged, slot.compared_on) == (False, "device")
    compared.assert_ok()
    (slot,) = strided.status(timeout=0).slots
    assert not slot.unstaged
    assert torch.equal(strided.records()[-1].tensor, base.flatten()[::4].cpu())
