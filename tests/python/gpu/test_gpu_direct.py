"""The direct lane: a kernel writes into shared memory; no host node is in the graph."""

import ctypes

import pytest
import torch

from cgdebug import TensorCompare, TensorRecord, TensorStats
from conftest import capture, stop, wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.own_lane]


@pytest.fixture
def direct(probe):
    return lambda *actions, **options: probe(
        *actions, **{"mode": "capture", "lane": "direct", **options}
    )


def replay(graph, times=1):
    for _ in range(times):
        graph.replay()
    torch.cuda.synchronize()


def test_auto_is_direct_where_it_works(graph_probe):
    p = graph_probe(TensorRecord())
    capture(lambda: p(torch.ones(4, device="cuda")), warmup=0)
    (slot,) = p.status().slots
    assert (slot.lane, p.status().lane_note) == ("direct", None)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 63, 1000, 262_145, 4 << 20, (16 << 20) + 3])
def test_every_byte_of_every_size_arrives(direct, count):
    x = torch.zeros(count, dtype=torch.uint8, device="cuda")
    p = direct(TensorRecord(3))
    graph, _ = capture(lambda: p(x), warmup=0)
    expected = []
    for _ in range(5):
        x.random_(0, 256)
        replay(graph)
        expected.append(x.cpu())
    records = p.records()
    assert [r.replay_index for r in records] == [3, 4, 5]
    for record, values in zip(records, expected[2:]):
        assert torch.equal(record.tensor, values)


@pytest.mark.parametrize("offset", [1, 2, 3, 4, 6, 8])
def test_tensors_that_are_not_aligned_arrive_whole(direct, offset):
    x = torch.arange(5000, dtype=torch.int16, device="cuda").view(torch.uint8)[offset:]
    p = direct(TensorRecord(1))
    graph, _ = capture(lambda: p(x), warmup=0)
    replay(graph)
    assert torch.equal(p.records()[-1].tensor, x.cpu())


def test_what_is_written_over_later_in_the_graph_was_staged(direct):
    x = torch.zeros(1 << 20, device="cuda")
    p = direct(TensorRecord(4))

    def step():
        x.add_(1)
        p(x)
        x.fill_(-1)
        x.zero_()

    graph, _ = capture(step, warmup=0)
    replay(graph, 3)
    assert [float(r.tensor.unique()) for r in p.records()] == [1.0, 1.0, 1.0]


def test_periods_are_kept_exactly(direct):
    x = torch.zeros(10, device="cuda")
    p = direct(TensorRecord(16, every=3))
    graph, _ = capture(lambda: p(x.add_(1)), warmup=0)
    replay(graph, 10)
    records = p.records()
    assert [(r.replay_index, r.tensor[0].item()) for r in records] == [
        (1, 1.0), (4, 4.0), (7, 7.0), (10, 10.0)
    ]  # fmt: skip
    (slot,) = p.status().slots
    assert (slot.replays, slot.accepted) == (10, 4)


def test_many_probes_on_forked_streams_all_deliver(direct):
    probes = [direct(TensorRecord(8), name=f"p{i}") for i in range(24)]
    x = torch.arange(24, device="cuda", dtype=torch.float32).repeat_interleave(1000).view(24, 1000)
    side = [torch.cuda.Stream() for _ in range(3)]

    def step():
        main = torch.cuda.current_stream()
        for stream in side:
            stream.wait_stream(main)
        for i, p in enumerate(probes):
            with torch.cuda.stream(side[i % 3]):
                p(x[i] * 2)
        for stream in side:
            main.wait_stream(stream)

    graph, _ = capture(step, warmup=0)
    replay(graph, 20)
    for i, p in enumerate(probes):
        assert [float(r.tensor.unique()) for r in p.records()] == [2.0 * i] * 8


def test_every_leaf_is_done_when_its_replay_is(direct):
    sizes = [
        1,
        4 << 20,
        10,
        100,
        4 << 20,
        16 << 10,
        1,
        1,
        2 << 20,
        5,
    ]  # large ones lie behind small
    tensors = [torch.zeros(size, device="cuda") for size in sizes]
    probes = [direct(TensorRecord(2), name=f"p{i}") for i in range(len(sizes))]

    def step():
        for p, x in zip(probes, tensors):
            p(x.add_(1))

    graph, _ = capture(step, warmup=0)
    for i in range(1, 31):
        replay(graph)
        for p in probes:
            (slot,) = p.status(timeout=0).slots
            assert (slot.replays, slot.accepted) == (i, i)
    for p in probes:
        assert [float(r.tensor.unique()) for r in p.records()] == [29.0, 30.0]


def test_many_small_probes_of_all_types_are_exact_in_every_replay(direct):
    dtypes = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.float16, torch.float64]
    xs = [torch.zeros(1 + 97 * i, dtype=dtypes[i % 6], device="cuda") for i in range(40)]
    probes = [direct(TensorRecord(4, every=1 + i % 3), name=f"p{i}") for i in range(40)]
    statistics = [direct(TensorStats(), name=f"s{i}") for i in range(4)]

    def step():
        for i, (p, x) in enumerate(zip(probes, xs)):
            p(x.add_(1))
            if i % 10 == 0:
                statistics[i // 10](x)

    graph, _ = capture(step, warmup=0)
    replay(graph, 200)
    for i, p in enumerate(probes):
        due = range(1, 201, 1 + i % 3)
        records = p.records()
        assert [r.replay_index for r in records] == list(due)[-4:]
        for r in records:
            assert r.tensor.shape == xs[i].shape and r.tensor.dtype == xs[i].dtype
            assert r.tensor.eq(r.replay_index).all(), (i, r.replay_index)
        (slot,) = p.status(timeout=0).slots
        assert (slot.replays, slot.accepted, slot.waits) == (200, len(due), 0)
    for p in statistics:
        assert p.status(timeout=0).slots[0].accepted == 200


def test_the_graph_holds_no_host_node(direct):
    p = direct(TensorRecord(2))
    x = torch.ones(100, device="cuda")
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        for _ in range(5):
            p(x)
    raw = ctypes.c_void_p(graph.raw_cuda_graph())
    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_size_t()
    assert driver.cuGraphGetNodes(raw, None, ctypes.byref(count)) == 0
    nodes = (ctypes.c_void_p * count.value)()
    assert driver.cuGraphGetNodes(raw, nodes, ctypes.byref(count)) == 0
    types = []
    for node in nodes:
        kind = ctypes.c_int()
        assert driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)) == 0
        types.append(kind.value)
    assert types == [0] * 10, "kernels only: five copies and five leaves"


def test_timestamps_are_those_of_the_host(direct):
    import time

    p = direct(TensorRecord(4))
    graph, _ = capture(lambda: p(torch.ones(4, device="cuda")), warmup=0)
    before = time.time_ns()
    replay(graph, 3)
    after = time.time_ns()
    for record in p.records():
        assert before - 5_000_000 < record.timestamp_ns < after + 5_000_000


def test_steps_are_in_stream_order(direct):
    import cgdebug

    p = direct(TensorRecord(64))
    x = torch.zeros(4, device="cuda")
    graph, _ = capture(lambda: p(x), warmup=0)
    torch.cuda._sleep(50_000_000)
    try:
        for i in range(50):
            cgdebug.step(i)
            graph.replay()
        torch.cuda.synchronize()
        assert [r.step for r in p.records()] == list(range(50))
    finally:
        cgdebug.step(None)


def test_a_closed_probe_goes_quiet_and_its_graph_goes_on(direct):
    x = torch.zeros(4, device="cuda")
    p = direct(TensorRecord(4))
    graph, _ = capture(lambda: p(x.add_(1)), warmup=0)
    replay(graph, 3)
    p.close()
    replay(graph, 50)
    assert x[0].item() == 53


def test_two_devices_lanes_and_probes_share_one_capture(direct, graph_probe):
    a, b = (
        direct(TensorRecord(4), name="a"),
        graph_probe(TensorRecord(4), name="b", lane="callback"),
    )
    x = torch.zeros(4, device="cuda")
    graph, _ = capture(lambda: b(a(x.add_(1)).mul(2)), warmup=0)
    replay(graph, 3)
    assert [r.tensor[0].item() for r in a.records()] == [1, 2, 3]
    assert [r.tensor[0].item() for r in b.records()] == [2, 4, 6]


def test_a_slow_reader_is_waited_for_and_nothing_is_lost(daemon, direct):
    x = torch.zeros(1 << 18, device="cuda")
    p = direct(TensorCompare(torch.zeros(1 << 18)))
    graph, _ = capture(lambda: p(x), warmup=0)
    replay(graph, 200)
    p.assert_ok(timeout=60)
    (slot,) = p.status().slots
    assert (slot.compared, slot.lost, slot.overwrote_unread) == (200, 0, 0)


def test_a_daemon_that_hangs_costs_one_deadline(own_daemon, direct, monkeypatch):
    import signal
    import time

    monkeypatch.setenv("CGDEBUG_WAIT_MS", "300")
    daemon = own_daemon()
    x = torch.zeros(1000, device="cuda")
    p = direct(TensorCompare(torch.zeros(1000)), TensorRecord(4))
    graph, _ = capture(lambda: p(x), warmup=0)
    replay(graph, 3)
    p.assert_ok()
    stop(daemon.process.pid)
    try:
        start = time.monotonic()
        replay(graph, 40)
        took = time.monotonic() - start
        (slot,) = p._status(True).slots
        assert slot.overwrote_unread > 0 and slot.waits >= 1
        assert 0.25 < took < 3, "one deadline, not one per replay"
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    wait_until(lambda: p._status(True).slots[0].consumed == 43, "the daemon goes on")
    (slot,) = p._status(True).slots
    assert slot.accepted == 43 and slot.lost > 0


def test_without_a_daemon_nobody_is_waited_for(without_daemon, direct):
    x = torch.zeros(1000, device="cuda")
    p = direct(TensorCompare(torch.zeros(1000)), TensorRecord(4))
    graph, _ = capture(lambda: p(x), warmup=0)
    replay(graph, 1000)
    (slot,) = p._status(True).slots
    counted = (slot.waits, slot.wait_ns, slot.accepted, slot.overwrote_unread)
    assert counted == (0, 0, 1000, 996)


def test_two_graphs_of_one_probe_have_rings_of_their_own(direct):
    p = direct(TensorRecord(4))
    x = torch.ones(4, device="cuda")
    first, _ = capture(lambda: p(x), warmup=0)
    second, _ = capture(lambda: p(x * 2), warmup=0)
    replay(first)
    replay(second)
    replay(first)
    assert sorted(r.tensor[0].item() for r in p.records()) == [1, 1, 2]
    assert len({s.graph_id for s in p.status().slots}) == 2


def test_statistics_alone_take_128_bytes(daemon, direct):
    p = direct(TensorStats())
    capture(lambda: p(torch.ones(1 << 20, device="cuda")), warmup=0)
    (slot,) = p.status().slots
    assert (slot.payload_bytes, slot.lane) == (128, "direct")


@pytest.mark.parametrize("setting, lane", [("callback", "callback"), ("direct", "direct")])
def test_the_environment_decides_for_auto(monkeypatch, graph_probe, setting, lane):
    monkeypatch.setenv("CGDEBUG_LANE", setting)
    p = graph_probe(TensorRecord())
    capture(lambda: p(torch.ones(4, device="cuda")), warmup=0)
    assert p.status().slots[0].lane == lane
