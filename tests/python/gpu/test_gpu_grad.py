"""Gradients, make_graphed_callables and torch.compile with CUDA graphs."""

import pytest
import torch
import torch._dynamo

from cgdebug import TensorRecord
from conftest import capture

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    yield
    torch._dynamo.reset()


def firsts(p):
    return [r.tensor.flatten()[0].item() for r in p.records(synchronize=True)]


def test_whole_step_forward_backward_and_update(graph_probe):
    hidden, grad, weight_grad = (
        graph_probe(TensorRecord(), name=n) for n in ("h", "h.grad", "w.grad")
    )
    weight = torch.full((4,), 2.0, device="cuda", requires_grad=True)
    x = torch.zeros(4, device="cuda")
    weight_grad.attach_grad(weight)

    def step():
        weight.grad = None
        h = grad.attach_grad(hidden(x * weight))
        (h * h).sum().backward()
        with torch.no_grad():
            weight.sub_(weight.grad * 0)

    graph, _ = capture(step, warmup=3)
    for i in (1.0, 2.0, 3.0):
        x.fill_(i)
        graph.replay()
    assert (
        firsts(hidden) == [2, 4, 6]
        and firsts(grad) == [4, 8, 12]
        and firsts(weight_grad) == [4, 16, 36]
    )


def test_removed_handle_is_not_captured(graph_probe):
    p = graph_probe(TensorRecord())
    weight = torch.ones(4, device="cuda", requires_grad=True)
    _, handle = p.attach_grad(weight, return_handle=True)
    handle.remove()

    def step():
        weight.grad = None
        (weight * 2).sum().backward()

    graph, _ = capture(step)
    graph.replay()
    assert p.records(synchronize=True) == [] and p.status().slots == ()


class Probed(torch.nn.Module):
    def __init__(self, value, grad):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)
        self.value, self.grad = value, grad

    def forward(self, x):
        h = torch.tanh(self.up(x))
        if self.value is not None:
            h = self.grad.attach_grad(self.value(h))
        return self.down(h)


def test_make_graphed_callables_forward_and_backward(graph_probe):
    value = graph_probe(TensorRecord(), name="h")
    grad = graph_probe(TensorRecord(), name="h.grad", non_contiguous="copy")
    probed, plain = Probed(value, grad).cuda(), Probed(None, None).cuda()
    sample = torch.randn(4, 16, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(probed, (sample,))
    reference = torch.cuda.make_graphed_callables(
        plain, (sample.detach().clone().requires_grad_(),)
    )
    for i in range(3):
        x = torch.randn(4, 16, device="cuda", requires_grad=True)
        y = x.detach().clone().requires_grad_()
        out, expected = graphed(x), reference(y)
        assert torch.equal(out, expected)
        (out**2).sum().backward()
        (expected**2).sum().backward()
        assert torch.equal(x.grad, y.grad)
        hidden = torch.tanh(plain.up(x)).detach().requires_grad_()
        (plain.down(hidden) ** 2).sum().backward()
        assert [r.replay_index for r in value.records(synchronize=True)] == list(range(1, i + 2))
        torch.testing.assert_close(value.records()[-1].tensor, hidden.detach().cpu())
        torch.testing.assert_close(grad.records(synchronize=True)[-1].tensor, hidden.grad.cpu())
    assert len(grad.records()) == 3


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_fullgraph_forward_and_gradient(graph_probe, mode):
    captured = mode == "reduce-overhead"
    options = {"mode": "capture" if captured else "always"}
    value = graph_probe(TensorRecord(), name="y", **options)
    grad = graph_probe(TensorRecord(), name="y.grad", **options)
    torch._dynamo.utils.counters.clear()

    def function(x):
        y = grad.attach_grad(value(x * 2))
        return (y * y).sum()

    compiled = torch.compile(function, fullgraph=True, mode=None if mode == "default" else mode)
    for i in range(1, 7):
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.full((256,), float(i), device="cuda", requires_grad=True)
        compiled(x).backward()
        assert x.grad.unique().tolist() == [8 * i]
    # reduce-overhead: the first call warms up outside a capture, the others are replays.
    start = 2 if captured else 1
    assert firsts(value) == [2 * i for i in range(start, 7)]
    assert firsts(grad) == [4 * i for i in range(start, 7)]
    counters = torch._dynamo.utils.counters
    assert counters["inductor"]["cudagraph_skips"] == 0 and not counters["graph_break"]
    if captured:
        assert value.status().captures >= 1 and grad.status().captures >= 1


def test_compiled_inference_in_reduce_overhead(graph_probe):
    torch._dynamo.utils.counters.clear()
    p, q = graph_probe(TensorRecord(), name="p"), graph_probe(TensorRecord(), name="q")

    @torch.compile(fullgraph=True, mode="reduce-overhead")
    def function(x):
        return q(torch.sin(p(x + 1)) * 3) + 1

    outputs = []
    with torch.no_grad():
        for i in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            outputs.append(function(torch.full((1000,), float(i), device="cuda")).clone())
    assert firsts(p) == [2, 3, 4, 5]
    for record, out in zip(q.records(synchronize=True), outputs[1:]):
        assert torch.equal(record.tensor + 1, out.cpu())
    assert torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == 0


def test_compiled_function_captured_by_hand(graph_probe):
    p = graph_probe(TensorRecord())
    compiled = torch.compile(lambda x: p(x * 3) + 1, fullgraph=True)
    x = torch.zeros(64, device="cuda")
    graph, out = capture(lambda: compiled(x), warmup=2)
    for i in (1.0, 2.0):
        x.fill_(i)
        graph.replay()
    assert firsts(p) == [3, 6] and out[0].item() == 7
