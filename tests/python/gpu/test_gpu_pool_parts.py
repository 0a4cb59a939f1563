"""Graphs of one memory pool leave parts of statistics in the same memory, one after another."""

import pytest
import torch

import cgdebug
from cgdebug import TensorStats, _probe
from conftest import own_session, wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.own_lane, pytest.mark.usefixtures("daemon")]

MIB = 1 << 20


@pytest.fixture(autouse=True)
def direct_lane(monkeypatch):
    monkeypatch.setenv("CGDEBUG_LANE", "direct")


def captured(probes, x, pool=None):
    """A graph in which each probe sees what x is then plus its number."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        for number, probe in enumerate(probes):
            probe(x + number)
    return graph


def device_bytes():
    return _probe.session()["device_bytes"]


def sums(daemon, probe, slot):
    with daemon.connect(session=own_session()) as client:
        return client.get(
            probe.name, graph_id=slot.graph_id, invocation=slot.invocation_index
        ).stats.mean


def test_graphs_of_one_pool_that_take_turns_have_the_statistics_of_their_own_tensors(daemon):
    """The larger graph is captured first, last and in between; a graph that is gone leaves its
    place to the next one."""
    pool = torch.cuda.graph_pool_handle()
    inputs = [torch.zeros(size, device="cuda") for size in (MIB, 3000, 2 * MIB, 17, MIB // 2)]
    probes = [
        [cgdebug.CudaGraphTensorProbe(f"turn{g}.{i}", [TensorStats()]) for i in range(4)]
        for g in range(len(inputs))
    ]
    graphs = [captured(group, x, pool) for group, x in zip(probes, inputs, strict=True)]
    for turn in range(1, 40):
        for number, (graph, x) in enumerate(zip(graphs, inputs, strict=True)):
            x.fill_(1000 * turn + 100 * number)
            graph.replay()
        if turn == 20:
            graphs[2].reset()
            torch.cuda.synchronize()
            graphs[2] = captured(probes[2], inputs[2], pool)
        if turn % 5:
            continue
        torch.cuda.synchronize()
        for number, group in enumerate(probes):
            for i, probe in enumerate(group):
                slot = probe.status().slots[-1]
                if turn == 20 and number == 2:
                    continue  # captured, and not replayed yet
                expected = 1000 * turn + 100 * number + i
                wait_until(
                    lambda p=probe, s=slot, e=expected: sums(daemon, p, s) == e,
                    f"turn {turn}: {probe.name} says {expected}",
                )


def test_a_pool_takes_as_much_device_memory_as_its_largest_graph(daemon):
    """Two MiB of float32 leave some hundred KiB of parts a probe."""
    x = torch.ones(2 * MIB // 4, device="cuda")

    def growth(pool, name):
        probes = [cgdebug.CudaGraphTensorProbe(f"{name}{i}", [TensorStats()]) for i in range(8)]
        keep = [captured(probes, x, pool)]
        before = device_bytes()
        keep += [captured(probes, x, pool) for _ in range(10)]
        after = device_bytes()
        for graph in keep:
            graph.replay()
        torch.cuda.synchronize()
        return after - before, keep, probes

    alone, *_keep = growth(None, "alone")
    shared, *_keep_too = growth(torch.cuda.graph_pool_handle(), "shared")
    assert alone > 10 * 8 * 100 * 1024, alone
    assert shared < alone / 10, (shared, alone)


def test_a_pool_is_known_from_its_first_graph_which_named_none(daemon):
    x = torch.ones(2 * MIB // 4, device="cuda")
    probes = [cgdebug.CudaGraphTensorProbe(f"first{i}", [TensorStats()]) for i in range(8)]
    first = captured(probes, x)
    before = device_bytes()
    others = [captured(probes, x, first.pool()) for _ in range(10)]
    assert device_bytes() - before < 10 * 8 * 8 * 1024
    for graph in (first, *others):
        graph.replay()
    torch.cuda.synchronize()


def test_the_memory_of_a_pool_serves_others_when_its_graphs_are_gone(daemon):
    x = torch.ones(2 * MIB // 4, device="cuda")

    def one(number):
        probe = cgdebug.CudaGraphTensorProbe(f"gone{number}", [TensorStats()])
        with probe:
            graph = captured([probe] * 4, x, torch.cuda.graph_pool_handle())
            graph.replay()
            torch.cuda.synchronize()
            graph.reset()

    for number in range(3):
        one(number)
    before = device_bytes()
    for number in range(60):  # more than wait for their end at a time
        one(number)
    assert device_bytes() - before < 60 * 4 * 128 * 1024


def test_status_says_how_much_device_memory_the_probes_take(daemon, cli):
    x = torch.ones(64 * MIB, device="cuda")
    p = cgdebug.CudaGraphTensorProbe("said", [cgdebug.TensorRecord(8, where="device")])
    graph = captured([p], x)
    graph.replay()
    torch.cuda.synchronize()
    assert device_bytes() > 8 * x.nbytes

    def shown():
        with daemon.connect(session=own_session()) as client:
            return [s.device_bytes for s in client.sessions() if s.key == own_session()]

    wait_until(lambda: shown() == [device_bytes()], "status says what the job does")
    gib = device_bytes() / 2**30
    assert f"{gib:.3g} GiB of device memory" in cli("status").stdout
