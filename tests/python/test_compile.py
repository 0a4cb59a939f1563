"""Probes under torch.compile(fullgraph=True) on the CPU."""

import gc

import pytest
import torch
import torch._dynamo

from cgdebug import CudaGraphTensorProbe, TensorRecord

BACKENDS = ["eager", "aot_eager", "inductor"]


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def values(p):
    return [record.tensor.flatten()[0].item() for record in p.records()]


@pytest.mark.parametrize("backend", BACKENDS)
def test_forward_and_gradient_are_seen_once_a_call(probe, backend):
    forward, gradient = probe(TensorRecord(), name="f"), probe(TensorRecord(), name="g")

    def step(x):
        y = gradient.attach_grad(forward(x * 2))
        return (y * y).sum()

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    for i in range(1, 4):
        x = torch.full((3,), float(i), requires_grad=True)
        compiled(x).backward()
        assert x.grad.tolist() == [8 * i] * 3
    assert values(forward) == [2, 4, 6] and values(gradient) == [4, 8, 12]
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_probe_of_the_gradient_alone_is_not_dropped(probe, backend):
    gradient = probe(TensorRecord())
    compiled = torch.compile(
        lambda x: (gradient.attach_grad(x * 2) ** 2).sum(), fullgraph=True, backend=backend
    )
    for i in range(1, 3):
        compiled(torch.full((3,), float(i), requires_grad=True)).backward()
    assert values(gradient) == [4, 8]


def test_two_probes_keep_their_order_and_count(probe):
    first, second = probe(TensorRecord(), name="a"), probe(TensorRecord(), name="b")

    @torch.compile(fullgraph=True)
    def step(x):
        second(x + 2)
        first(x + 1)
        return second(x + 3).sum()

    step(torch.zeros(2))
    assert values(first) == [1] and values(second) == [2, 3]
    stamps = [
        r.timestamp_ns for r in (second.records()[0], first.records()[0], second.records()[1])
    ]
    assert stamps == sorted(stamps)


def test_nothing_is_recompiled_from_call_to_call(probe):
    p = probe(TensorRecord(capacity=32))
    compiled = torch.compile(lambda x: p(x) + 1, fullgraph=True, backend="eager")
    for i in range(20):
        compiled(torch.full((2,), float(i)))
    assert values(p) == list(range(20))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_disabled_and_capture_only_probes_compile_to_nothing_visible():
    off = CudaGraphTensorProbe("off", [TensorRecord(enabled=False)])
    waiting = CudaGraphTensorProbe("waiting", [TensorRecord()])
    compiled = torch.compile(lambda x: waiting(off(x)) + 1, fullgraph=True)
    assert compiled(torch.zeros(2)).tolist() == [1, 1]
    assert off.records() == waiting.records() == []
    waiting.close()


def test_compiled_code_outlives_its_probe():
    def make():
        p = CudaGraphTensorProbe("gone", [TensorRecord()], mode="always")
        return torch.compile(
            lambda x: torch.ops.cgdebug.observe(x, p._site_key) or x + 1, backend="eager"
        ), p

    compiled, p = make()
    assert compiled(torch.zeros(2)).tolist() == [1, 1]
    p.close()
    del p
    gc.collect()
    assert compiled(torch.zeros(2)).tolist() == [1, 1]


def test_dynamic_shapes_are_recorded_as_they_are(probe):
    p = probe(TensorRecord())
    compiled = torch.compile(lambda x: p(x) * 2, fullgraph=True, dynamic=True, backend="eager")
    for size in (3, 4, 5):
        compiled(torch.ones(size))
    assert sorted(r.shape for r in p.records()) == [(3,), (4,), (5,)]
