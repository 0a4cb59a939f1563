"""Watching changes neither whether a program compiles, nor in how many frames, nor how often."""

import collections

import pytest
import torch
import torch._dynamo
from torch import nn

import cgdebug

SIZE = 8


class Attention(nn.Module):
    """Returns what attention layers do: no weights."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(SIZE, SIZE)

    def forward(self, x):
        return self.project(x), None


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.act = Attention(), nn.GELU()

    def forward(self, x):
        y, _ = self.attention(x)
        return x + self.act(y)


class Net(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Breaks(Net):
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            torch._dynamo.graph_break()
        return x


class Branches(Net):
    def forward(self, x):
        for layer in self.layers:
            x = layer(x) if x.sum() > -1e9 else x
        return x


class Returns(nn.Module):
    """A module whose output a test chooses."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x)


class Any:
    """An output of a class that nobody knows."""

    def __init__(self, value):
        self.value = value


@pytest.fixture(autouse=True)
def _clean():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    for one in list(cgdebug.watching._watches):
        one.close()
    torch._dynamo.reset()


def whole(model, watch, **options):
    watch(model)
    compiled = torch.compile(model, backend="eager", **options)
    return [compiled(torch.full((size, SIZE), 0.5)) for size in (2, 3, 5)]


def each_layer(model, watch, **options):
    watch(model)
    for layer in model.layers:
        layer.compile(backend="eager", **options)
    return [model(torch.full((size, SIZE), 0.5)) for size in (2, 3, 5)]


OUTPUTS = {
    "nothing": lambda x: (x + 1, None),
    "scalars": lambda x: (x + 1, 1, 2.5, True, "text", 1j),
    "nested": lambda x: [(x + 1, {"a": None, "b": [x + 2, ()]})],
    "a size and a type": lambda x: (x + 1, x.shape, x.dtype, x.device),
    "an object": lambda x: (x + 1, Any(x + 2)),
    "a named tuple": lambda x: Point(x + 1, None),
}
Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("what", OUTPUTS)
def test_an_output_of_any_kind_is_compiled_as_it_is_alone(what, fullgraph):
    model = nn.Sequential(nn.Linear(SIZE, SIZE), Returns(OUTPUTS[what]))
    watched = cgdebug.watch(model)
    compiled = torch.compile(model, backend="eager", fullgraph=fullgraph)
    compiled(torch.ones(2, SIZE))
    assert not torch._dynamo.utils.counters["graph_break"]
    assert any(name.startswith("fwd/1") for name in watched.explain().seen)


PROGRAMS = {
    "whole": lambda watch: whole(Net(), watch, fullgraph=True),
    "dynamic": lambda watch: whole(Net(), watch, fullgraph=True, dynamic=True),
    "breaks": lambda watch: whole(Breaks(), watch),
    "branches": lambda watch: whole(Branches(), watch),
    "layers": lambda watch: each_layer(Net(), watch, fullgraph=True),
    "dynamic layers": lambda watch: each_layer(Net(), watch, fullgraph=True, dynamic=True),
    "two models": lambda watch: two_models(watch),
    "torch's encoder": lambda watch: whole(encoder(), watch),
}


def two_models(watch):
    first, second = Net(2), Net(3)
    return whole(first, watch) + whole(second, watch)


def encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(SIZE, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def run(program, watch):
    """What it returns, and how often it broke a graph."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(1)  # of dropout
    results = program(watch)
    return results, sum(torch._dynamo.utils.counters["graph_break"].values())


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_watched_program_is_compiled_as_it_is_alone(name):
    alone, breaks = run(PROGRAMS[name], lambda model: None)
    watches = []
    watched, breaks_watched = run(
        PROGRAMS[name],
        lambda model: watches.append(cgdebug.watch(model, inputs=True, params=True, grads=True)),
    )
    assert all(torch.equal(a, b) for a, b in zip(alone, watched, strict=True))
    assert breaks_watched == breaks
    for watch in watches:
        not_seen = watch.explain().not_seen
        # Attention uses the weights of this one, and does not call it.
        assert not [one for one in not_seen if one[:4] == "fwd/" and "out_proj" not in one]


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_training_step_is_compiled_in_as_many_graphs_as_alone(dynamic):
    def step(watch):
        model = Net()
        watch(model)
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=dynamic)
        for size in (2, 3, 5):
            compiled(torch.ones(size, SIZE)).sum().backward()
        return [p.grad for p in model.parameters()], stats["unique_graphs"]

    stats = torch._dynamo.utils.counters["stats"]
    alone, graphs = step(lambda model: None)
    torch._dynamo.reset()
    stats.clear()
    watches = []
    watched, graphs_watched = step(lambda model: watches.append(cgdebug.watch(model, grads=True)))
    assert graphs_watched == graphs
    assert all(torch.equal(a, b) for a, b in zip(alone, watched, strict=True))
    report = watches[0].explain()
    unseen = report.not_seen | report.problems
    assert all("grad" in name and "gradients" in reason for name, reason in unseen.items())


def test_an_exported_program_has_no_probe():
    model = Net()
    cgdebug.watch(model)
    for strict in (False, True):
        program = torch.export.export(model, (torch.ones(2, SIZE),), strict=strict)
        assert "cgdebug" not in program.graph_module.code


def test_a_hook_that_fails_is_said_and_counted_and_the_module_runs_on(monkeypatch, caplog):
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU())
    counted = []
    monkeypatch.setattr(cgdebug._job._native, "not_seen", lambda *what: counted.append(what))
    watch = cgdebug.watch(model, "0", params=True)

    def fail(*_):
        raise KeyError("ours")

    monkeypatch.setattr(cgdebug._watching.hooks, "_observe_now", fail)
    for _ in range(3):
        model(torch.ones(2, SIZE))
    reason = "cgdebug failed: KeyError: 'ours'"
    assert counted == [("fwd/0", reason)] * 3
    assert [one.getMessage() for one in caplog.records].count(f"fwd/0 is not seen: {reason}") == 1
    assert watch.explain().not_seen["fwd/0"] == reason


def test_code_of_aot_eager_calls_a_probe_at_once(monkeypatch):
    """torch's operator for ops with effects would make a token for each of them."""
    model = Net()
    watch = cgdebug.watch(model)
    compiled = torch.compile(model, backend="aot_eager")
    compiled(torch.ones(2, SIZE)).sum().backward()
    dispatched = []
    monkeypatch.setattr(
        torch._higher_order_ops.effects,
        "new_token_tensor",
        lambda: dispatched.append(1) or torch.tensor([]),
    )
    compiled(torch.ones(2, SIZE)).sum().backward()
    assert not dispatched
    slots = [slot for probe in watch.probes.values() for slot in probe.status().slots]
    assert {slot.accepted for slot in slots} == {2}
