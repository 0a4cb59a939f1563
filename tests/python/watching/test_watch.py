"""cgdebug.watch on the CPU: names, what is seen, and that the model does not notice."""

import collections
import contextlib
import copy
import dataclasses
import gc
import pickle
import threading
import types
import weakref

import numpy as np
import pytest
import torch
import torch._dynamo
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import cgdebug
from cgdebug import TensorRecord
from cgdebug._watching import hooks


class Block(nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.attn, self.act, self.drop = nn.Linear(size, size), nn.GELU(), nn.Dropout(0.5)

    def forward(self, x, scale=None):
        y = x + self.drop(self.act(self.attn(x)))
        return y if scale is None else y * scale


class Net(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.unused = nn.Linear(8, 8)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Returns(nn.Module):
    """A module whose output a test chooses."""

    def __init__(self, make):
        super().__init__()
        self.inner = nn.Identity()
        self.make = make

    def forward(self, *args, **kwargs):
        return self.make(*args, **kwargs)


@pytest.fixture(autouse=True)
def _clean():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    for one in list(cgdebug.watching._watches):
        one.close()
    gc.collect()


def hooks_of(model):
    return [
        hook
        for module in model.modules()
        for hooked in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        for _, hook in hooked.items()
    ]


def values(watched, name):
    return [record.tensor for record in watched.probes[name].records()]


FWD = ["fwd/Net"] + [f"fwd/layers.{i}{s}" for i in (0, 1) for s in ("", ".act", ".attn", ".drop")]


# --- names and selection --------------------------------------------------------------------------


def test_every_module_is_a_probe_of_its_name_and_holds_its_output():
    net = Net()
    with cgdebug.watch(net, values=4) as w:
        x = torch.randn(3, 8)
        y = net(x)
        assert sorted(w.probes) == sorted(FWD)
        torch.testing.assert_close(values(w, "fwd/layers.0.attn")[0], net.layers[0].attn(x))
        assert torch.equal(values(w, "fwd/Net")[0], y)


def test_what_a_later_hook_of_the_program_returns_is_the_output():
    net = Net()
    with cgdebug.watch(net, values=4) as w:
        net.layers[0].attn.register_forward_hook(lambda module, args, output: output * 2)
        net.layers[1].attn.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        seen = []
        net.layers[0].attn.register_forward_hook(lambda *call: seen.append(call[2]))
        net(torch.randn(3, 8))
        assert torch.equal(values(w, "fwd/layers.0.attn")[0], seen[0])


def test_so_it_is_in_a_module_that_had_hooks_before():
    net = nn.Sequential(nn.Linear(4, 4))
    net[0].register_forward_hook(lambda *call: None)
    with cgdebug.watch(net, values=4) as w:
        net[0].register_forward_hook(lambda module, args, output: output * 2)
        results = [net(torch.ones(1, 4)) for _ in range(3)]
        assert all(map(torch.equal, values(w, "fwd/0"), results))
        assert not w.explain().not_seen


def test_a_hook_that_comes_in_the_call_of_a_module_that_had_hooks_is_said(job):
    out, _ = job("""
        class Late(torch.nn.Linear):
            def forward(self, x):
                if len(self._forward_hooks) < 3:
                    self.register_forward_hook(lambda module, args, output: output * 2)
                return super().forward(x)
        net = torch.nn.Sequential(Late(4, 4))
        net[0].register_forward_hook(lambda *call: None)
        with cgdebug.watch(net, values=4) as w:
            results = [net(torch.ones(1, 4)) for _ in range(3)]
            try:
                cgdebug.check("nan")
            except NotCheckedError as error:
                print(error)
            seen = [record.tensor for record in w.probes["fwd/0"].records()]
            print([torch.equal(a, b) for a, b in zip(seen, results)])
        """).finish()
    assert "a hook that is new may have changed it" in out
    assert out.endswith("[False, True, True]\n")


def test_a_call_without_values_is_not_seen_unless_somebody_traces_it():
    net, fakes = nn.Sequential(nn.Linear(4, 4)), FakeTensorMode(allow_non_fake_inputs=True)
    with cgdebug.watch(net) as w:
        net(torch.ones(1, 4))
        with fakes:
            net(torch.ones(1, 4))
        assert not w.explain().problems
        net.to("meta")(torch.ones(1, 4, device="meta"))
        assert (
            w.explain().problems["fwd/0"] == "meta tensors are not supported: they have no values"
        )


def test_a_mode_of_the_program_sees_the_ops_of_the_program_alone():
    class Ops(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    def ops():
        net.zero_grad()
        with Ops() as mode:
            net(torch.ones(1, 8)).sum().backward()
        return mode.names

    net = Net()
    expected = ops()
    with cgdebug.watch(net, grads=True, inputs=True, values=2) as w:
        assert ops() == expected
        assert values(w, "fwd/Net") and values(w, "grad/Net")


def test_a_watched_model_is_gone_when_the_program_leaves_it(recwarn):
    gc.collect()
    gc.disable()  # its memory does not wait for the collector
    try:
        for _ in range(3):
            net = Net()
            watched = cgdebug.watch(net)
            net(torch.ones(1, 8))
            layer = weakref.ref(net.layers[0])
            del net
            assert layer() is None
    finally:
        gc.enable()
    assert watched.probes
    assert not [one for one in recwarn if "both alive" in str(one.message)]


def test_a_watch_that_begins_in_a_trace_leaves_it_alone(job):
    job(
        """
        import warnings
        warnings.simplefilter("error", torch.jit.TracerWarning)
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        traced = torch.jit.trace(net, torch.ones(1, 4))
        kinds = {node.kind() for node in traced.inlined_graph.nodes()}
        assert kinds == {"prim::GetAttr", "aten::linear", "aten::relu"}, kinds
        """,
        CGDEBUG_WATCH="*",
    ).finish()


def test_the_output_of_torchscript_is_seen_and_what_lies_in_it_is_said(job):
    out, _ = job("""
        net = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))
        with cgdebug.watch(net, values=4, params=True) as w:
            y = net(torch.ones(1, 4))
            print(torch.equal(w.probes["fwd/RecursiveScriptModule"].records()[0].tensor, y))
            print(sorted(w.explain().not_seen))
        """).finish()
    assert out.splitlines() == ["True", "['fwd/0', 'fwd/1', 'param/0.bias', 'param/0.weight']"]


def test_a_trigger_in_the_environment_keeps_values(daemon, monkeypatch):
    monkeypatch.setenv("CGDEBUG_ON", "nan")
    net = Net()
    with cgdebug.watch(net) as w:
        for _ in range(10):
            net(torch.ones(1, 8))
        assert sorted(w.probes) == sorted(FWD)
        for probe in w.probes.values():
            calls = [r.replay_index for r in probe.records()]
            assert calls == list(range(calls[0], calls[0] + 8)), probe.name


def test_select_takes_globs_and_excludes():
    net = Net()
    with cgdebug.watch(net, "layers.*,!*.drop,!*.act") as w:
        net(torch.ones(1, 8))
        assert sorted(w.probes) == sorted(
            f"fwd/layers.{i}{s}" for i in (0, 1) for s in ("", ".attn")
        )


def test_inputs_parameters_and_gradients_have_names_of_their_own():
    net = Net(1)
    with cgdebug.watch(net, "layers.0.attn*", grads=True, inputs=True, params=True, values=4) as w:
        x = torch.randn(2, 8)
        net(x).sum().backward()
        assert sorted(w.probes) == [
            "fwd/layers.0.attn",
            "grad/layers.0.attn",
            "in/layers.0.attn",
            "param/layers.0.attn.bias",
            "param/layers.0.attn.weight",
        ]
        assert torch.equal(values(w, "in/layers.0.attn")[0], x)
        assert torch.equal(values(w, "param/layers.0.attn.weight")[0], net.layers[0].attn.weight)
        gradient = values(w, "grad/layers.0.attn")[0]
        torch.testing.assert_close(gradient.T @ x, net.layers[0].attn.weight.grad)


def test_several_tensors_are_named_by_place_and_key():
    @dataclasses.dataclass
    class Both:
        hidden: torch.Tensor
        note: str

    one = torch.ones(2)
    made = {
        "a": (one, (one, [one])),
        "b": {"logits": one, 3: one, "k:v": one, "k_v": one},
        "c": Both(one, "text"),
        "d": one,
        "e": types.SimpleNamespace(loc=one, more={"scale": one}, note="text"),  # an own class
        "f": collections.deque([one]),
    }
    net = nn.ModuleDict({name: Returns(lambda value=value: value) for name, value in made.items()})
    with cgdebug.watch(net) as w:
        for module in net.values():
            module()
        assert sorted(w.probes) == [
            "fwd/a/0",
            "fwd/a/1/0",
            "fwd/a/1/1/0",
            "fwd/b/3",
            "fwd/b/k_v",
            "fwd/b/k_v_2",
            "fwd/b/logits",
            "fwd/c/hidden",
            "fwd/d",
            "fwd/e/loc",
            "fwd/e/more/scale",
            "fwd/f/0",
        ]


class Own:
    """A tensor in it is in no usual container."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Holds:
    def __init__(self, state):
        self.state = state


class Slots:
    __slots__ = ("hidden", "missing")

    def __init__(self, hidden):
        self.hidden = hidden


def test_objects_of_own_classes_are_looked_into_wherever_they_are():
    one = torch.ones(2)
    tree = Own(x=one, children=[Own(x=one) for _ in range(3)])
    for child in tree.children:
        child.parent = tree  # without an end
    Named = collections.namedtuple("Named", "state size")
    made = {
        "a": (one, Own(state=one)),
        "b": {"x": one, "rest": [Slots(one), Named(Own(deep=one), one.shape)]},
        "c": (one, collections.deque([Own(state=one)])),
        "d": tree,
        "e": (one, torch.float32, nn.Identity(), print, Own, np.ones(2), iter),
    }
    net = nn.ModuleDict({name: Returns(lambda value=value: value) for name, value in made.items()})
    with cgdebug.watch(net) as w:
        for module in net.values():
            module()
        assert sorted(w.probes) == [
            "fwd/a/0",
            "fwd/a/1/state",
            "fwd/b/rest/0/hidden",
            "fwd/b/rest/1/0/deep",
            "fwd/b/x",
            "fwd/c/0",
            "fwd/c/1/0/state",
            "fwd/d/children/0/x",
            "fwd/d/children/1/x",
            "fwd/d/children/2/x",
            "fwd/d/x",
            "fwd/e/0",
        ]
        assert not w.explain().problems


def test_an_object_that_compiled_code_cannot_look_into_is_said_to_be_missing():
    net = nn.Sequential(nn.Linear(2, 2), Returns(lambda x: (x, Holds(x + 1))))
    with cgdebug.watch(net) as w:
        torch.compile(net, backend="aot_eager", fullgraph=True)(torch.zeros(1, 2))
        report = w.explain()
    assert "fwd/1/0" in report.seen
    assert "object of class Holds" in report.problems["fwd/1"]


def test_an_output_that_is_made_later_is_not_seen_and_one_without_tensors_is():
    made = {"a": lambda: (torch.ones(2) for _ in range(1)), "b": lambda: None, "c": lambda: ["x"]}
    net = nn.ModuleDict({name: Returns(make) for name, make in made.items()})
    with cgdebug.watch(net) as w:
        for module in net.values():
            module()
        report = w.explain()
    assert "made later" in report.not_seen["fwd/a"]
    assert all("no tensor" in report.not_seen[f"fwd/{name}"] for name in "bc"), report


def test_inputs_by_keyword_are_named_by_it():
    net = Net(1)
    with cgdebug.watch(net.layers[0], "Block", inputs=True) as w:
        net.layers[0](torch.ones(1, 8), scale=torch.ones(1))
        assert sorted(w.probes) == ["fwd/Block", "in/Block/0", "in/Block/scale"]


def test_wrappers_do_not_appear_in_names():
    net = Net(1)
    wrapped = torch.compile(nn.DataParallel(net), backend="eager")
    with cgdebug.watch(wrapped, "*attn,Net") as w:
        net(torch.ones(1, 8))
        assert sorted(w.probes) == ["fwd/Net", "fwd/layers.0.attn"]


def test_a_module_under_two_names_has_the_first_and_explain_says_so():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    net.append(net[0])
    with cgdebug.watch(net, values=8) as w:
        net(torch.ones(1, 2))
        assert len(values(w, "fwd/0")) == 2
        assert w.explain().not_watched == {"2": "it is the same module as 0"}


def test_two_models_and_two_watches_keep_their_rows_apart():
    first, second = Net(1), Net(1)
    with cgdebug.watch(first) as a, cgdebug.watch(second) as b, cgdebug.watch(first) as c:
        first(torch.ones(1, 8))
        assert "fwd/layers.0" in a.probes and "fwd/Net_2.layers.0" in c.probes and not b.probes
        second(torch.ones(1, 8))
        assert "fwd/Net.layers.0" in b.probes
        a.close()
        first(torch.ones(1, 8))
        assert {s.accepted for s in c.probes["fwd/Net_2.layers.0"]._status(True).slots} == {2}
    with cgdebug.watch(second) as d:
        second(torch.ones(1, 8))
        assert "fwd/layers.0" in d.probes


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"level": "tensor"}, "level must be .module. or .graph. or .op. or .kernel. or .fx."),
        ({"level": "fx", "params": True}, "level='fx' has no inputs and params"),
        ({"level": "op", "pre": True}, "pre is of level='kernel'"),
        ({"level": "op", "grads": True}, "logs gradients, inputs and parameters by itself"),
        ({"select": "nothing*"}, "no module matches select='nothing*'. The model has: Net, layers"),
        ({"select": "re:("}, r"select='re:\('"),
        ({"select": "layers.*,,head"}, "select='layers.*,,head': empty probe pattern"),
        ({"values": "many"}, "values='GLOBS' are of levels with a log"),
        ({"values": 1.5}, "values must be an integer"),
        ({"grads": "yes"}, "grads must be True or False, not 'yes'"),
    ],
)
def test_bad_arguments_are_refused_and_leave_no_hook(arguments, text):
    net = Net()
    with pytest.raises(ValueError, match=text.replace("*", r"\*") if "re:" not in text else None):
        cgdebug.watch(net, **arguments)
    assert not hooks_of(net) and not list(cgdebug.watching._watches)
    with pytest.raises(TypeError, match="not a function"):
        cgdebug.watch(lambda x: x)


# --- the model does not notice --------------------------------------------------------------------


def train(net, steps=3, watched=contextlib.nullcontext):
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(net.parameters())
    outputs = []
    with watched():
        for _ in range(steps):
            optimizer.zero_grad()
            y = net(torch.randn(4, 8))
            (y * y).sum().backward()
            optimizer.step()
            outputs += [y.detach().clone()]
            outputs += [p.grad.clone() for p in net.parameters() if p.grad is not None]
    return outputs + list(net.state_dict().values())


def test_outputs_gradients_and_weights_are_those_without_watch_bit_for_bit():
    plain, net = Net(), Net()
    expected = train(plain)
    everything = {"grads": True, "inputs": True, "params": True}
    actual = train(net, watched=lambda: cgdebug.watch(net, **everything))
    assert len(actual) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected))


def test_close_takes_every_hook_off():
    net = Net()
    own = net.register_forward_hook(lambda *_: None)
    w = cgdebug.watch(net, grads=True, inputs=True, params=True)
    v = cgdebug.watch(net, "layers.0")
    net(torch.ones(1, 8)).sum().backward()
    v.close()
    w.close()
    w.close()
    assert hooks_of(net) == list(net._forward_hooks.values()) and len(hooks_of(net)) == 1
    own.remove()
    net(torch.ones(1, 8))
    assert "closed" in str(w.explain())


def test_an_exception_in_the_context_closes_it():
    net = Net()
    with pytest.raises(ZeroDivisionError), cgdebug.watch(net):
        net(torch.ones(1, 8))
        raise ZeroDivisionError
    assert not hooks_of(net)


def test_watching_keeps_no_model_alive_and_the_model_keeps_the_watch():
    net = Net()
    w = cgdebug.watch(net, grads=True, inputs=True, params=True)
    net(torch.ones(1, 8)).sum().backward()
    gone = weakref.ref(net)
    del net
    assert gone() is None
    assert "the model is gone" in str(w.explain()) or "a model that is gone" in str(w.explain())
    w.close()

    net = Net()
    kept = weakref.ref(cgdebug.watch(net))
    gc.collect()
    net(torch.ones(1, 8))
    assert kept().probes
    del net
    gc.collect()
    assert kept() is None


def test_copies_and_pickles_of_a_watched_model_are_not_watched():
    net = Net(1)
    with cgdebug.watch(net, grads=True, inputs=True, params=True, values=8) as w:
        twin, other = copy.deepcopy(net), pickle.loads(pickle.dumps(net))
        for one in (net, twin, other):
            one.eval()
            assert torch.equal(one(torch.ones(1, 8)), net.eval()(torch.ones(1, 8)))
        assert len(values(w, "fwd/Net")) == 4


def test_a_failing_forward_and_what_cannot_be_seen_do_not_stop_the_job(caplog):
    def fail(x):
        raise KeyError("own")

    net = nn.ModuleDict(
        {
            "fails": Returns(fail),
            "complex": Returns(lambda x: x.to(torch.complex64)),
            "sparse": Returns(lambda x: x.to_sparse()),
            "text": Returns(lambda x: "text"),
            "many": Returns(lambda x: [x] * 70),
            "mapped": Returns(lambda x: x * 2),
        }
    )
    with cgdebug.watch(net, "*,!*.inner") as w:
        x = torch.ones(2, 2)
        with pytest.raises(KeyError, match="own"):
            net["fails"](x)
        for name in ("complex", "sparse", "text", "many"):
            net[name](x)
        torch.vmap(net["mapped"])(x)
        report = w.explain()
        assert report.not_seen["fwd/fails"].startswith(
            "its module was not called"
        )  # its class has others
        assert "complex64" in report.not_seen["fwd/complex"]
        assert "torch.sparse_coo" in report.not_seen["fwd/sparse"]
        assert report.not_seen["fwd/text"] == "it holds no tensor"
        assert "vmap" in report.not_seen["fwd/mapped"]
        assert "more than 64 tensors" in report.problems["fwd/many"]
        assert len(report.seen) == 64


def test_a_module_that_lets_no_attribute_be_set_is_seen():
    class Frozen(nn.Linear):
        def __setattr__(self, name, value):
            if "bias" in self._parameters:  # it is made
                raise AttributeError(name)
            super().__setattr__(name, value)

    net = nn.Sequential(Frozen(2, 2))
    with cgdebug.watch(net, inputs=True) as w:
        net(torch.ones(1, 2))
        assert {"fwd/0", "in/0"} <= set(w.explain().seen)


def test_explain_names_what_never_ran_and_what_came_later():
    net = Net(1)
    with cgdebug.watch(net, grads=True) as w:
        net(torch.ones(1, 8))
        net.layers.append(Block())
        report = w.explain()
        assert report.not_seen["fwd/unused"] == "its module was never called"
        assert report.not_seen["grad/layers.0.attn"] == "no gradient came"
        assert "was not called since" in report.not_watched["layers.1.attn"]
        assert report.shm_bytes > 0 and report.snapshots == 5
        assert "fwd/unused" in str(report) and "MiB of /dev/shm" in str(report)


@pytest.mark.parametrize("how", ["called", "compiled", "compiled in place"])
def test_what_is_put_into_a_model_later_is_watched_also_past_setattr(how):
    net = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8)))
    x = torch.ones(1, 8)
    with cgdebug.watch(net, "!*.2", grads=True, inputs=True, params=True) as w:
        call = torch.compile(net, backend="eager") if how == "compiled" else net
        if how == "compiled in place":
            net.compile(backend="eager")
        call(x)
        net[1]._modules["0"] = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Identity())
        call(x).sum().backward()
        seen = set(w.explain().seen)
        assert not w.explain().not_watched
    new = {"in/1.0.1", "fwd/1.0.1", "grad/1.0.1", "in/1.0.0", "param/1.0.0.weight"}
    assert new <= seen and "fwd/1.0.2" not in seen


def test_lazy_modules_are_seen_when_their_parameters_exist():
    net = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    with cgdebug.watch(net, params=True, values=2) as w:
        net(torch.ones(2, 5))
        assert values(w, "param/0.weight")[0].shape == (3, 5)
        assert values(w, "fwd/0")[0].shape == (2, 3)


def test_parameters_of_a_list_are_seen_through_the_module_around_it():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scales = nn.ParameterList([torch.full((2,), float(i)) for i in range(2)])

        def forward(self, x):
            return x * self.scales[0] + self.scales[1]

    net = nn.Sequential(Scaled())
    with cgdebug.watch(net, params=True, values=2) as w:
        net(torch.ones(2))
        assert values(w, "param/0.scales.1")[0].tolist() == [1, 1]


def test_a_leaf_output_gets_no_gradient_hook():
    leaf = torch.ones(2, requires_grad=True)
    net = Returns(lambda: leaf)
    with cgdebug.watch(net, "Returns", grads=True) as w:
        for _ in range(3):
            (net() * 2).sum().backward()
        assert not leaf._backward_hooks
        assert "leaf" in w.explain().not_seen["grad/Returns"]


@pytest.mark.parametrize("how", ["called", "compiled"])
def test_gradients_lack_nothing_where_a_parameter_is_handed_on(how):
    class Linear(nn.Linear):
        """As a parallel layer, whose bias is added later."""

        def forward(self, x):
            return nn.functional.linear(x, self.weight), self.bias, None

    net, alone = nn.Sequential(Linear(2, 2)), nn.Sequential(Returns(lambda *_: net[0].bias))
    with cgdebug.watch(net, grads=True) as w, cgdebug.watch(alone, grads=True) as of_alone:
        for model in (net, alone):
            call = torch.compile(model, backend="aot_eager") if how == "compiled" else model
            made = call(torch.ones(1, 2))
            sum(one.sum() for one in made if one is not None).backward()
        assert not w.explain().problems and not w.explain().not_seen
        assert "grad/0/0" in w.explain().seen
        assert "params=True" in of_alone.explain().not_seen["grad/Sequential.0"]
        assert not net[0].bias._backward_hooks


def test_checkpointed_modules_and_threads_are_seen():
    from torch.utils.checkpoint import checkpoint

    net = Net(1)
    with cgdebug.watch(net, grads=True, values=64) as w:
        x = torch.randn(2, 8, requires_grad=True)
        checkpoint(net, x, use_reentrant=False).sum().backward()
        assert len(values(w, "fwd/layers.0.attn")) == 2  # once more, in the backward pass
        assert len(values(w, "grad/layers.0.attn")) == 1

        def call():
            for _ in range(5):
                net(torch.ones(2, 8))

        threads = [threading.Thread(target=call) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert len(values(w, "fwd/layers.0.attn")) == 22


# --- torch.compile --------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_model_compiled_after_watch_is_seen_without_a_graph_break(backend):
    net = Net().eval()
    w = cgdebug.watch(net, grads=True, params=True, inputs=True, values=8)
    compiled = torch.compile(net, backend=backend, fullgraph=True)
    for i in range(1, 4):
        y = compiled(torch.full((2, 8), float(i)))
        y.sum().backward()
        assert torch.equal(values(w, "fwd/Net")[-1], y)
        assert torch.equal(values(w, "fwd/layers.1")[-1], y)
    assert {f"fwd/layers.{i}.attn" for i in (0, 1)} <= w.probes.keys()
    for name in (
        "in/layers.1",
        "fwd/layers.0.act",
        "grad/layers.0.act",
        "param/layers.0.attn.bias",
    ):
        assert len(values(w, name)) == 3, name
    assert not torch._dynamo.utils.counters["graph_break"]
    assert w.explain().not_seen.keys() == {
        f"{kind}/unused{rest}"
        for kind, rest in (
            ("fwd", ""),
            ("grad", ""),
            ("in", ""),
            ("param", ".weight"),
            ("param", ".bias"),
        )
    } | {f"param_grad/{name}" for name, _ in net.named_parameters()}
    w.close()
    assert torch.equal(compiled(torch.ones(2, 8)), net(torch.ones(2, 8))) or backend == "inductor"


def test_a_model_compiled_before_watch_is_not_said_to_be_seen(job):
    # In a process without the tests that call forward(): code that does has the model compiled anew.
    out, _ = job("""
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(8, 8)

            def forward(self, x):
                return self.layer(x) + 1

        net = Net().eval()
        compiled = torch.compile(net, backend="eager", fullgraph=True)
        compiled(torch.ones(1, 8))
        with cgdebug.watch(net) as w:
            compiled(torch.ones(1, 8))
            print(w.explain().not_seen["fwd/layer"])
            torch.compiler.reset()
            compiled(torch.ones(1, 8))
            print("fwd/layer" in w.explain().seen)
        """).finish()
    assert "torch.compiler.reset()" in out and out.endswith("True\n"), out


def test_layers_compiled_one_by_one_are_all_seen():
    net = Net(layers=12).eval()
    with cgdebug.watch(net) as w:
        for layer in net.layers:
            layer.compile(backend="eager", fullgraph=True)
        net(torch.ones(1, 8))
        assert len(w.explain().seen) == 12 * 4 + 1
    assert torch._dynamo.config.recompile_limit == 8


def test_outputs_of_compiled_code_in_containers_are_named_as_in_eager_code():
    @dataclasses.dataclass
    class Both:
        hidden: torch.Tensor
        rest: tuple

    net = nn.Sequential(nn.Linear(2, 2), Returns(lambda x: Both(x, (x + 1, {"k": x + 2}))))

    def run(model):
        with cgdebug.watch(net, "1", values=2) as w:
            model(torch.zeros(1, 2))
            return {name: values(w, name)[0] for name in w.probes}

    eager, compiled = run(net), run(torch.compile(net, backend="aot_eager", fullgraph=True))
    assert eager.keys() == compiled.keys() == {"fwd/1/hidden", "fwd/1/rest/0", "fwd/1/rest/1/k"}
    assert all(torch.equal(eager[name], compiled[name]) for name in eager)


def test_watched_values_are_kept_as_asked():
    net = Net(1)
    with cgdebug.watch(net, "Net", values=TensorRecord(capacity=2)) as w:
        for i in range(5):
            net(torch.full((1, 8), float(i)))
        assert len(w.probes["fwd/Net"].records()) == 2


class _Rotated(nn.Module):
    def __init__(self, rotation):
        super().__init__()
        self.linear, self.rotation = nn.Linear(2, 2), rotation

    def forward(self, x):
        return self.rotation(self.linear(x))


def test_a_module_that_several_layers_have_is_named_by_the_one_that_calls_it():
    rotation = nn.Tanh()
    net = nn.Sequential(*(_Rotated(rotation) for _ in range(3)))
    with cgdebug.watch(net, values=8) as w:
        x = torch.ones(1, 2)
        seen = [x := layer(x) for layer in net]
        for number, one in enumerate(seen):
            (only,) = values(w, f"fwd/{number}.rotation")
            assert torch.equal(torch.as_tensor(only), one.detach())
        assert w.explain().not_watched == {}
        rotation(torch.ones(1, 2))  # nobody's call
        assert len(values(w, "fwd/0.rotation")) == 2


def test_tied_weights_and_a_missing_bias_are_explained_as_what_they_are(daemon):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.e = torch.nn.Embedding(10, 8)
            self.h = torch.nn.Linear(8, 10, bias=False)
            self.h.weight = self.e.weight

        def forward(self, x):
            return self.h(self.e(x))

    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with cgdebug.watch(model, params=True, grads=True) as watched:
        for _ in range(3):
            model(torch.arange(4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        told = str(watched.explain())
    assert "param/h.bias: its module has none" in told
    assert "is the same parameter as param_grad/" in told
    assert "never called" not in told and "no step of an optimizer" not in told


def test_a_parent_that_is_gone_gives_its_name_to_no_other_module(monkeypatch):
    looked = []

    class Looks(hooks.OutputHook):
        def __init__(self, name):
            self.name, self.places = name, []

        def look(self, module, args, output):
            looked.append(self.name)

    parent, later = nn.Identity(), nn.Identity()
    shared = hooks.SharedHook(Looks("first"), [(parent, Looks("parent"))])
    monkeypatch.setattr(hooks, "_caller_of", lambda module: caller)
    caller = parent
    shared.look(None, (), None)
    shared.by_parent[id(later)] = shared.by_parent.pop(id(parent))  # as if it lay there
    caller = later
    shared.look(None, (), None)
    assert looked == ["parent", "first"]
