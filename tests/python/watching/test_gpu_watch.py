"""cgdebug.watch of models in CUDA graphs."""

import gc
import uuid

import pytest
import torch
import torch._dynamo
from torch import nn

import cgdebug
from conftest import capture, own_session

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _clean():
    yield
    for one in list(cgdebug.watching._watches):
        one.close()
    torch._dynamo.reset()
    gc.collect()


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(size), nn.Linear(size, 3 * size)
        self.out, self.up, self.down = (
            nn.Linear(size, size),
            nn.Linear(size, 4 * size),
            nn.Linear(4 * size, size),
        )

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (4, -1)).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, dim=-1)
        )
        h = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(x)))


class Transformer(nn.Module):
    def __init__(self, blocks=4, size=64):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Block(size) for _ in range(blocks))
        self.head = nn.Linear(size, 16)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def make():
    return Transformer().cuda().eval()


def inputs(count=5):
    torch.manual_seed(1)
    return [torch.randn(2, 32, 64, device="cuda") for _ in range(count)]


def replays(model):
    """Outputs of a graph that is replayed with each of inputs()."""
    static = torch.zeros(2, 32, 64, device="cuda")
    with torch.no_grad():
        graph, out = capture(lambda: model(static))
    outputs = []
    for x in inputs():
        static.copy_(x)
        graph.replay()
        outputs.append(out.clone())
    torch.cuda.synchronize()
    return graph, static, outputs


def captured(w, name):
    """The records of `name` that replays made."""
    return [r for r in w.probes[name].records(synchronize=True) if r.graph_id]


def test_every_replay_of_a_captured_transformer_is_seen_and_its_bits_are_those_without_watch():
    plain, model = make(), make()
    _, _, expected = replays(plain)
    w = cgdebug.watch(model, values=8)
    graph, _, actual = replays(model)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected))
    for name in ("fwd/Transformer", "fwd/head"):
        records = captured(w, name)
        assert [r.replay_index for r in records] == list(range(1, 6))
        assert all(torch.equal(r.tensor, out.cpu()) for r, out in zip(records, expected))
    for name in ("norm", "qkv", "out", "up", "down"):
        for i in range(4):
            assert len(captured(w, f"fwd/layers.{i}.{name}")) == 5
    report = w.explain()
    assert not report.not_seen and report.lost == 0
    assert len(report.seen) == 4 * 6 + 2
    w.close()
    graph.replay()
    torch.cuda.synchronize()


def test_a_nan_planted_between_replays_is_named_by_its_layer(cli):
    model = make()
    w = cgdebug.watch(model)
    label = uuid.uuid4().hex[:8]  # other tests of this process use the same names
    with cgdebug.graph_label(label):
        graph, static, _ = replays(model)
    with torch.no_grad():
        model.layers[2].up.weight[3, 5] = float("nan")
    graph.replay()
    torch.cuda.synchronize()
    for probe in w.probes.values():
        assert probe._native.wait_consumed(10.0)
    key = own_session()
    checked = cli("check", key, "--graph", label)
    assert checked.returncode == 1, checked.stdout + checked.stderr
    first = next(line for line in checked.stdout.splitlines() if "fwd/" in line)
    assert "fwd/layers.2.up" in first and "replay 6" in first, checked.stdout
    w.close()


def test_a_whole_step_with_gradients_is_seen_and_ends_in_the_same_weights():
    def run(watched):
        model = Transformer().cuda()
        w = cgdebug.watch(model, grads=True, params=True, values=4) if watched else None
        optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
        static = torch.zeros(2, 32, 64, device="cuda")

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = model(static).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        graph, loss = capture(step, warmup=3)
        losses = []
        for x in inputs():
            static.copy_(x)
            graph.replay()
            losses.append(loss.clone())
        torch.cuda.synchronize()
        return w, losses + [p.detach().clone() for p in model.parameters()], graph, model

    _, expected, *_ = run(False)
    w, actual, _graph, _model = run(True)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected))
    for name in ("fwd/layers.3.down", "grad/layers.0.norm", "param/layers.1.qkv.weight"):
        assert len(captured(w, name)) == 4
    w.close()


def test_make_graphed_callables_takes_a_watched_model():
    model, plain = Transformer().cuda(), Transformer().cuda()
    x = inputs(1)[0].requires_grad_()
    w = cgdebug.watch(model, grads=True, inputs=True, params=True, values=4)
    hooks = dict(model._forward_hooks)
    graphed = torch.cuda.make_graphed_callables(model, (x,))
    reference = torch.cuda.make_graphed_callables(plain, (x.detach().clone().requires_grad_(),))
    assert dict(model._forward_hooks) == hooks
    for _ in range(3):
        out, expected = graphed(x), reference(x.detach().clone().requires_grad_())
        out.square().sum().backward()
        expected.square().sum().backward()
    torch.cuda.synchronize()
    assert torch.equal(out, expected)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters()))
    for name in ("fwd/Transformer", "in/Transformer", "fwd/layers.2.up", "grad/layers.2.up"):
        assert [r.replay_index for r in captured(w, name)] == [1, 2, 3], name
    assert torch.equal(captured(w, "fwd/Transformer")[-1].tensor, out.detach().cpu())
    w.close()
    assert not model._forward_hooks and not model._forward_pre_hooks


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_models_are_seen_without_a_graph_break_or_a_skipped_graph(mode):
    torch._dynamo.utils.counters.clear()
    model = make()
    w = cgdebug.watch(model, values=8)
    compiled = torch.compile(model, fullgraph=True, mode=None if mode == "default" else mode)
    outputs = []
    with torch.no_grad():
        for x in inputs():
            torch.compiler.cudagraph_mark_step_begin()
            outputs.append(compiled(x).clone())
    torch.cuda.synchronize()
    for name in ("fwd/head", "fwd/Transformer"):
        records = w.probes[name].records(synchronize=True)
        assert len(records) == 5
        assert all(torch.equal(r.tensor, out.cpu()) for r, out in zip(records, outputs))
    counters = torch._dynamo.utils.counters
    assert not counters["graph_break"] and counters["inductor"]["cudagraph_skips"] == 0
    if mode == "reduce-overhead":
        assert w.probes["fwd/layers.1.up"].status().captures >= 1
    assert not w.explain().not_seen
    w.close()


def test_eager_calls_are_seen_too():
    model = make()
    with cgdebug.watch(model, values=8) as w, torch.no_grad():
        outputs = [model(x) for x in inputs()]
        records = w.probes["fwd/Transformer"].records(synchronize=True)
        assert all(torch.equal(r.tensor, out.cpu()) for r, out in zip(records, outputs))
        assert len(records) == 5


def test_a_watch_and_its_graph_may_go_in_any_order():
    for order in ("wgm", "gmw", "mwg", "mgw"):
        model = make()
        w = cgdebug.watch(model)
        graph, static, _ = replays(model)
        held = {"w": w, "g": graph, "m": model}
        del w, graph, model
        for one in order:
            del held[one]
            gc.collect()
            if "g" in held:
                held["g"].replay()
            torch.cuda.synchronize()
