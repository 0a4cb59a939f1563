"""Modules whose forward() is called, and not the module: torch runs no hook for that."""

import copy
import gc
import inspect
import json
import pickle
import re
import sys
import textwrap
import threading
import types
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import cgdebug
from cgdebug._watching import direct


class Scale(nn.Module):
    def forward(self, x, by=2.0):
        return x * by


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.scale = nn.Linear(4, 4), Scale()

    def forward(self, x):
        return self.scale.forward(self.lin(x), by=3.0)


class Derived(Part):
    def forward(self, x):
        return super().forward(x) + Part.forward(self, x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = Part(), Derived(), nn.Linear(4, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer.forward(x)
        return self.first.forward(x) + self.second(x)


def by_name(net, x):
    return getattr(net, "for" + "ward")(x)  # no code names it


CALLS = {
    "the module": lambda net, x: net(x),
    "forward": lambda net, x: net.forward(x),
    "forward, which no code names": by_name,
    "compiled": lambda net, x: torch.compile(net, backend="aot_eager", fullgraph=True)(x),
    "forward of compiled": lambda net, x: torch.compile(net, backend="aot_eager").forward(x),
    "compiled forward": lambda net, x: torch.compile(net.forward, backend="aot_eager")(x),
}
ONCE = {"fwd/Net", "fwd/first", "fwd/first.lin", "fwd/first.scale", "fwd/second"}
ONCE |= {"fwd/layers.0", "fwd/layers.1"}


@pytest.fixture(autouse=True)
def _clean():
    torch._dynamo.reset()
    yield
    for one in list(cgdebug.watching._watches):
        one.close()
    gc.collect()


def counts(watched):
    return {
        name: sum(slot.accepted for slot in probe.status().slots)
        for name, probe in watched.probes.items()
    }


@pytest.fixture
def no_code(monkeypatch):
    """Of functions, which would name forward(). Methods of the model are read."""
    monkeypatch.setattr(direct, "_functions_around", lambda *_: ())


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_each_call_of_a_module_or_of_its_forward_is_seen_once(call, request):
    if call is by_name:
        request.getfixturevalue("no_code")
    net, x = Net(), torch.ones(2, 4)
    expected = CALLS["the module"](net, x)
    watched = cgdebug.watch(net)
    for _ in range(3):
        assert torch.equal(call(net, x), expected)
    seen = counts(watched)
    assert {name for name, count in seen.items() if count == 3} == ONCE
    twice = {"fwd/second.lin", "fwd/second.scale"}
    assert {name for name, count in seen.items() if count == 6} == twice
    report = watched.explain()
    assert set(report.not_seen) == {"fwd/head"} and not report.problems


@pytest.mark.parametrize("call", [CALLS["forward"], by_name], ids=["forward", "by name"])
def test_inputs_parameters_and_gradients_come_with_forward_too(call, request):
    if call is by_name:
        request.getfixturevalue("no_code")
    net = Net()
    watched = cgdebug.watch(net, inputs=True, params=True, grads=True, values=4)
    for _ in range(2):
        call(net, torch.ones(2, 4)).sum().backward()
    seen = counts(watched)
    later = 1 if call is by_name else 2  # what comes before forward() is known from the second on
    assert seen["in/Net"] == later and seen["in/first.scale/0"] == 2 == seen["in/layers.0"]
    assert seen["param/layers.1.weight"] == 2 == seen["grad/first.scale"] == seen["grad/Net"]
    record = watched.probes["fwd/first.scale"].records()[0]
    given = watched.probes["in/first.scale/0"].records()[0]
    assert torch.equal(record.tensor, given.tensor * 3.0)


def test_the_model_is_as_before_when_the_watch_is_closed():
    net = Net()
    before = {name: set(vars(module)) for name, module in net.named_modules()}
    watched, other = cgdebug.watch(net), cgdebug.watch(net, "first")
    by_name(net, torch.ones(2, 4))
    watched.close()
    net.first.forward(torch.ones(2, 4))
    assert counts(other)["fwd/Net.first"] == 2
    other.close()
    assert {name: set(vars(module)) for name, module in net.named_modules()} == before


def test_a_correct_program_has_no_method_in_front_of_forward(no_code):
    class Plain(nn.Sequential):
        def forward(self, x):
            return super().forward(x)

        def describe(self):
            return self.forward.__doc__

    net = Plain(nn.Linear(4, 4), nn.ReLU())
    watched = cgdebug.watch(net)
    assert not direct.called_in_code({"Plain": net, "0": net[0], "1": net[1]}, None)
    net(torch.ones(2, 4))
    assert not any(direct.is_in_front_of(module) for module in net.modules())
    assert set(counts(watched).values()) == {1}


class Mean(Scale):
    """As GPyTorch's modules are."""

    def __call__(self, *inputs, **options):
        outputs = self.forward(*inputs, **options)
        return [outputs] if isinstance(outputs, list) else outputs


class Process(Mean):
    def __init__(self):
        super().__init__()
        self.mean, self.scale = Mean(), Scale()

    def forward(self, x, by=2.0):
        return self.mean(x, by=by) + self.scale.forward(*[x], by=by)


def test_a_call_of_the_modules_class_that_gives_all_arguments_to_forward_is_seen():
    net = Process()
    watched = cgdebug.watch(net)
    for _ in range(2):
        net(torch.ones(2), by=3.0)
    assert counts(watched) == {"fwd/Process": 2, "fwd/mean": 2, "fwd/scale": 2}


def test_a_module_that_is_imported_when_it_is_used_is_left_alone(monkeypatch):
    class Lazy(types.ModuleType):  # as SpeechBrain's are
        def __getattr__(self, name):
            raise ImportError(f"{name} of it was asked for")

    monkeypatch.setitem(sys.modules, "lazy_module", Lazy("lazy_module"))
    watched = cgdebug.watch(Net())
    assert not watched.explain().problems


def test_a_forward_that_is_checkpointed_is_seen():
    class Saves(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x):
            return checkpoint(self.lin.forward, x, use_reentrant=False)

    net = Saves()
    watched = cgdebug.watch(net)
    net(torch.ones(2, 4)).sum().backward()
    assert counts(watched) == {"fwd/lin": 1, "fwd/Saves": 1}


def test_copies_pickles_and_saved_models_are_not_watched(tmp_path):
    net, x = Net(), torch.ones(2, 4)
    watched = cgdebug.watch(net)
    expected = net(x)
    torch.save(net, tmp_path / "net.pt")
    for other in (
        copy.deepcopy(net),
        pickle.loads(pickle.dumps(net)),
        torch.load(tmp_path / "net.pt", weights_only=False),
    ):
        assert torch.equal(other(x), expected) and torch.equal(other.forward(x), expected)
    assert counts(watched)["fwd/Net"] == 1
    other = copy.copy(net.first.scale)
    replica = net.first.scale._replicate_for_data_parallel()
    assert other.forward.__self__ is other and replica.forward.__self__ is replica
    assert inspect.signature(net.first.scale.forward) == inspect.signature(other.forward)


def test_a_model_goes_with_its_last_reference(no_code):
    net = Net()
    cgdebug.watch(net)
    net.forward(torch.ones(2, 4))
    gone = weakref.ref(net)
    gc.disable()
    try:
        del net
        assert gone() is None
    finally:
        gc.enable()


def test_a_model_of_a_class_of_torch_is_compiled_as_without_a_watch():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    watched = cgdebug.watch(net)
    graphs = []

    def backend(module, _):
        graphs.append(module)
        return module.forward

    torch.compile(net, backend=backend, fullgraph=True)(torch.ones(1, 2))
    assert len(graphs) == 1
    net.forward(torch.ones(1, 2))
    assert set(counts(watched).values()) == {2}


def test_what_is_made_of_a_model_is_what_it_would_be_without_a_watch():
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x):
            return self.lin.forward(x)

    x = torch.ones(2, 4)
    plain, net = Small(), Small()
    watched = cgdebug.watch(net)
    for make in (
        lambda one: torch.export.export(one, (x,), strict=False).graph,
        lambda one: torch.export.export(one, (x,), strict=True).graph,
        lambda one: torch.jit.trace(one, x).graph,
        lambda one: torch.jit.script(one).inlined_graph,
        lambda one: torch.fx.symbolic_trace(one).graph,
    ):
        assert lines(make(net)) == lines(make(plain))
    before = counts(watched).get("fwd/lin", 0)
    net(x)
    assert counts(watched)["fwd/lin"] == before + 1


def lines(graph):
    text = re.sub(r"___torch_mangle_\d+\.", "", str(graph))
    return [line.partition("#")[0].strip() for line in text.splitlines()]


def test_a_forward_that_raises_and_threads_leave_no_trace_function(no_code):
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x):
            self.lin(x)
            if x.sum() < 0:
                raise ArithmeticError("no")
            return x

    net = Fails()
    watched = cgdebug.watch(net)
    traced = []

    def work():
        with pytest.raises(ArithmeticError):
            by_name(net, -torch.ones(2, 4))
        by_name(net, torch.ones(2, 4))
        traced.append(sys.gettrace())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert traced == [None]
    assert counts(watched) == {"fwd/lin": 2, "fwd/Fails": 1}
    assert not watched.explain().problems


JOB = """
    import sys, torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

        def forward(self, x):
            return self.norm(self.lin(x)) * BY

    net, is_traced = Net(), TRACED
    if is_traced:  # as by a debugger
        sys.settrace(lambda *_: None)
    for _ in range(2):
        CALL
"""


def job(tmp_path, call="net.forward(torch.ones(2, 4))", by="1.0", traced="False"):
    text = textwrap.dedent(JOB).replace("CALL", call).replace("BY", by).replace("TRACED", traced)
    (tmp_path / "job.py").write_text(text)
    return [sys.executable, str(tmp_path / "job.py")]


@pytest.mark.parametrize("by, code", [("1.0", 0), ("float('nan')", 1)])
def test_a_run_sees_the_model_whose_forward_is_called(daemon, cli, tmp_path, monkeypatch, by, code):
    monkeypatch.setenv("CGDEBUG_RUN_ID", tmp_path.name)
    done = cli("run", "--watch", "*", "--fail-on", "nan", "--", *job(tmp_path, by=by))
    assert done.returncode == code, done.stdout + done.stderr
    probes = json.loads(cli("--json", "probes", "-s", tmp_path.name).stdout)["probes"]
    assert {one["name"] for one in probes} == {"fwd/Net", "fwd/lin", "fwd/norm"}


def test_a_run_that_cannot_see_the_first_call_of_forward_is_inconclusive(
    daemon, cli, tmp_path, monkeypatch
):
    monkeypatch.setenv("CGDEBUG_RUN_ID", tmp_path.name)
    done = cli("run", "--watch", "*", "--fail-on", "nan", "--", *job(tmp_path, traced="True"))
    assert done.returncode == 3, done.stdout + done.stderr
    answer = cli("check", tmp_path.name)
    assert answer.returncode == 3
    assert "fwd/Net (1 call): its forward() was called" in answer.stdout
