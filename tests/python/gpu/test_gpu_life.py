"""Probes and graphs end in any order; nothing crashes and nothing leaks."""

import gc
import weakref

import pytest
import torch

from cgdebug import CudaGraphTensorProbe, TensorRecord
from cgdebug._job import _native
from conftest import capture, wait_until

pytestmark = pytest.mark.gpu


def new_probe(name="p", **options):
    return CudaGraphTensorProbe(name, [TensorRecord(**options)])


def graph_of(*probes, size=1000):
    x = torch.zeros(size, device="cuda")

    def step():
        y = x.add_(1)
        for p in probes:
            p(y)
        return y

    graph, y = capture(step, warmup=0)
    return graph, y


def test_probe_closed_before_its_graph():
    p = new_probe()
    graph, y = graph_of(p)
    graph.replay()
    p.close()
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    assert y[0].item() == 11
    del graph
    gc.collect()
    torch.cuda.synchronize()


def test_probe_closed_while_its_graph_replays():
    p = new_probe()
    graph, y = graph_of(p, size=1 << 20)
    for _ in range(100):
        graph.replay()
    p.close()
    for _ in range(100):
        graph.replay()
    torch.cuda.synchronize()
    assert y[0].item() == 200


def test_probe_collected_before_its_graph():
    p = new_probe()
    graph, y = graph_of(p)
    gone = weakref.ref(p)
    del p
    gc.collect()
    assert gone() is None
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    assert y[0].item() == 10


@pytest.mark.parametrize("end", ["del", "reset"])
def test_graph_gone_before_its_probe_leaves_the_records(end):
    p = new_probe()
    graph, _ = graph_of(p)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    if end == "reset":
        graph.reset()
    del graph
    gc.collect()
    torch.cuda.synchronize()
    assert [r.tensor[0].item() for r in p.records()] == [1, 2, 3]
    assert p.status().slots[0].retired
    p.close()


def test_graph_deleted_right_after_its_last_replay():
    p = new_probe()
    graph, _ = graph_of(p, size=1 << 20)
    for _ in range(20):
        graph.replay()
    del graph
    gc.collect()
    assert [r.replay_index for r in p.records(synchronize=True)][-1] == 20
    p.close()


def test_both_collected_in_one_cycle():
    class Holder:
        pass

    holder = Holder()
    holder.self, holder.probe = holder, new_probe()
    holder.graph, holder.out = graph_of(holder.probe)
    holder.graph.replay()
    torch.cuda.synchronize()
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None
    torch.cuda.synchronize()


def test_a_capture_that_fails_after_the_probe_harms_nothing():
    p = new_probe()
    x = torch.zeros(100, device="cuda")
    with pytest.raises(ZeroDivisionError):
        capture(lambda: (p(x), 1 // 0), warmup=0)
    torch.cuda.synchronize()
    graph, _ = graph_of(p)
    graph.replay()
    torch.cuda.synchronize()
    assert [r.tensor[0].item() for r in p.records() if r.replay_index] == [1]
    p.close()


@pytest.mark.alone
def test_graphs_and_probes_that_come_and_go_leave_no_memory_behind():
    def one():
        probes = [new_probe(f"p{i}", capacity=4) for i in range(4)]
        graph, _ = graph_of(*probes, size=1 << 18)
        for _ in range(3):
            graph.replay()
        assert len(probes[3].records(synchronize=True)) == 3
        for p in probes[:2]:
            p.close()

    def slots():
        gc.collect()
        torch.cuda.synchronize()
        new_probe().close()  # what was only flagged is freed by a later call
        return _native.probe_module().session()["slots"]

    def used():
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return total - free, _native.probe_module().session()["shm_bytes"]

    def settle(most):
        # A daemon that reads meanwhile, and the driver's thread that reports a dead graph, take time.
        wait_until(lambda: slots() <= most, f"at most {most} slots are left")

    one()
    most = slots() + 8
    for _ in range(5):
        one()
        settle(most)
    device_before, shm_before = used()
    for _ in range(25):
        one()
        settle(most)
    device_after, shm_after = used()
    assert shm_after <= shm_before + (64 << 20)
    assert device_after <= device_before + (32 << 20)


@pytest.mark.alone
def test_a_capture_takes_memory_that_torch_keeps(monkeypatch):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)  # torch.cuda.graph calls it
    p = new_probe(capacity=2)
    x = torch.zeros(64 << 20, device="cuda")  # 256 MiB
    torch.cuda.synchronize()
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(free - (64 << 20), dtype=torch.uint8, device="cuda")
    del hog  # torch keeps it: less than the staging copy needs is left
    assert torch.cuda.mem_get_info()[0] < 256 << 20
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        p(x)
    others = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(8)]
    for value in (1.0, 2.0):
        x.fill_(value)
        graph.replay()
        for other in others:
            other.fill_(9)
    torch.cuda.synchronize()
    assert [(r.tensor == r.replay_index).all() for r in p.records()] == [True, True]
    del graph
    p.close()
    gc.collect()
    monkeypatch.undo()
    torch.cuda.empty_cache()


def test_keep_graph_instantiated_twice():
    if "keep_graph" not in (torch.cuda.CUDAGraph.__doc__ or ""):
        pytest.skip("this torch has no keep_graph")
    p = new_probe()
    x = torch.zeros(10, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        p(x.add_(1))
    for _ in range(2):
        graph.instantiate()
        graph.replay()
    assert [r.tensor[0].item() for r in p.records(synchronize=True)] == [1, 2]
    p.close()
