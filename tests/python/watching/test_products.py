"""What a program makes of a watched model is what it makes of the model alone: exported programs,
scripts, copies, files."""

import collections
import copy
import pickle
import subprocess
import sys
import types

import pytest
import torch
from torch import nn
from torch.ao.quantization import quantize_fx

import cgdebug
from cgdebug._watching import module_hooks


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.act, self.down = nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


@pytest.fixture(autouse=True)
def _clean():
    torch._dynamo.reset()
    yield
    for one in list(cgdebug.watching._watches):
        one.close()


@pytest.fixture
def watched():
    """A model that has run, with every kind of hook."""
    net = Net().eval()
    cgdebug.watch(net, inputs=True, params=True, grads=True)
    net(X)
    return net


X = torch.arange(16.0).reshape(2, 8)


def without_cgdebug(code, *arguments):
    header = f"import sys; sys.modules['cgdebug'] = None; sys.path.append({sys.path[0]!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", header + code, *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_scripted_model_has_no_hook_and_the_model_is_watched_on(watched):
    expected = watched(X)
    scripted = torch.jit.script(watched)
    assert torch.equal(scripted(X), expected)
    assert not scripted._forward_hooks and not scripted._forward_pre_hooks
    assert module_hooks.Hooks in {type(m._forward_hooks) for m in watched.modules()}
    (watch,) = cgdebug.watching._watches
    before = watch.explain().snapshots
    watched(X)
    assert watch.explain().snapshots > before


def test_a_script_a_trace_and_an_exported_program_load_without_cgdebug(watched, tmp_path):
    torch.jit.script(watched).save(tmp_path / "script.pt")
    torch.jit.trace(watched, X).save(tmp_path / "trace.pt")
    for strict in (False, True):
        program = torch.export.export(watched, (X,), strict=strict)
        assert "cgdebug" not in str(program)
        assert "cgdebug" not in str(program.run_decompositions())
        torch.export.save(program, tmp_path / f"strict_{strict}.pt2")
    out = without_cgdebug(
        """
import pathlib, torch
folder, x = pathlib.Path(sys.argv[1]), torch.arange(16.0).reshape(2, 8)
run = [torch.jit.load(folder / name) for name in ("script.pt", "trace.pt")]
run += [torch.export.load(folder / f"strict_{s}.pt2").module() for s in (False, True)]
print([one(x).sum().item() for one in run])
""",
        tmp_path,
    )
    assert out.strip() == str([watched(X).sum().item()] * 4)


def test_copies_and_files_of_a_model_have_no_hook(watched, tmp_path):
    torch.save({"up": watched.up, "state": watched.state_dict()}, tmp_path / "model.pt")
    twins = [copy.deepcopy(watched), pickle.loads(pickle.dumps(watched))]
    for twin in twins:
        for module in twin.modules():
            for name in ("_forward_hooks", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"):
                assert not getattr(module, name) and len(getattr(module, name)) == 0
        assert torch.equal(torch.jit.script(twin)(X), watched(X))
    without_cgdebug(
        """
import torch
kept = torch.load(sys.argv[1], weights_only=False)
assert len(kept["up"]._forward_hooks) == 0 and len(kept["state"]) == 4
kept["up"].register_forward_pre_hook(lambda module, args: None)
kept["up"](torch.ones(1, 8))
""",
        tmp_path / "model.pt",
    )


def test_hooks_of_the_program_stay_its_own():
    def double(module, args, output):
        return output * 2

    before, after = Net().eval(), Net().eval()
    plain = before(X) * 2
    early = before.register_forward_hook(double)
    watches = [cgdebug.watch(before), cgdebug.watch(after)]
    late = after.register_forward_hook(double)
    for net in (before, after):
        assert torch.equal(net(X), plain)
        assert list(net._forward_hooks.values())[-1:] == [double] or net is before
        assert torch.equal(copy.deepcopy(net)(X), plain)
    early.remove()
    late.remove()
    for net, watch in zip((before, after), watches):
        assert torch.equal(net(X) * 2, plain)
        watch.close()
        assert not list(net._forward_hooks.items())


@pytest.mark.parametrize("way", ["clear", "another dict", "each"])
def test_a_program_that_takes_all_hooks_off_a_model_leaves_it_watched(way):
    net = Net().eval()
    with cgdebug.watch(net) as watch:
        net(X)
        before = {name: seen_of(watch, name) for name in watch.probes}
        net.up.register_forward_hook(lambda module, args, output: output * 2)
        for module in net.modules():
            if way == "clear":
                module._forward_hooks.clear()
            elif way == "another dict":
                module._forward_hooks = collections.OrderedDict()
            else:
                for number in list(module._forward_hooks):
                    del module._forward_hooks[number]
        plain = net(X)
        net(X)
        assert [seen_of(watch, name) - count for name, count in before.items()] == [2] * 4
        assert torch.equal(plain, net(X))
    assert not any(list(module._forward_hooks.items()) for module in net.modules())


def seen_of(watch, name):
    (slot,) = watch.probes[name].status().slots
    return slot.replays


def test_the_fused_kernels_of_transformer_layers_run_as_without_watch():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    net = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        expected = net(x)
        with cgdebug.watch(net) as watch:
            assert torch.equal(net(x), expected)
            report = watch.explain()
        assert {"fwd/layers.0", "fwd/layers.1"} <= {*report.seen}
        assert "fwd/layers.0.linear1" in report.not_seen


@pytest.mark.parametrize("how", ["dynamic", "fx", "static"])
def test_quantization_makes_the_model_that_it_makes_without_watch(how):
    def quantize(net):
        if how == "dynamic":
            return torch.ao.quantization.quantize_dynamic(net, {nn.Linear})(X)
        if how == "fx":
            mapping = torch.ao.quantization.get_default_qconfig_mapping("x86")
            ready = quantize_fx.prepare_fx(net, mapping, (X,))
            ready(X)
            return quantize_fx.convert_fx(ready)(X)
        net = nn.Sequential(torch.ao.quantization.QuantStub(), net.up, net.act)
        cgdebug.watch(net, inputs=True) if is_watched else None
        torch.ao.quantization.fuse_modules(net, ["1", "2"], inplace=True)
        net.qconfig = torch.ao.quantization.get_default_qconfig("x86")
        ready = torch.ao.quantization.prepare(net)
        ready(X)
        return torch.ao.quantization.convert(ready)(X).int_repr()

    is_watched = False
    expected = quantize(Net().eval())
    is_watched, net = True, Net().eval()
    cgdebug.watch(net, inputs=True, params=True)
    assert torch.equal(quantize(net), expected)


# As torch and TransformerEngine have it.
GRAPHED = """
def make_graphed_callables(func):
    if not (len(func._forward_hooks) == 0 and len(func._forward_pre_hooks) == 0):
        raise AssertionError("Modules must not have hooks registered")
    func(X)

    def make_graphed_forward(func, graph_training_state, graphed, orig_fwd):
        def new_fwd(*user_args, **user_kwargs):
            if func.training == graph_training_state:
                return graphed(*user_args, **user_kwargs)
            return orig_fwd(*user_args, **user_kwargs)

        return new_fwd

    func.forward = make_graphed_forward(func, func.training, lambda x: X * 3, func.forward)
    return func
"""


def test_graphed_callables_take_a_watched_model_whose_hooks_then_leave_replays_alone(watched):
    torchs = types.ModuleType("torchs")
    torchs.X = X
    exec(GRAPHED, vars(torchs))
    (watch,) = cgdebug.watching._watches

    def calls(name="fwd/Net"):
        return watch.probes[name].status().slots[0].replays

    before = calls()
    graphed = torchs.make_graphed_callables(watched)
    assert calls() == before + 1  # the capture
    assert torch.equal(graphed(X), X * 3) and calls() == before + 1
    graphed.train()(X)
    assert calls() == before + 2
    with pytest.raises(AssertionError, match="must not have hooks"):
        handle = watched.up.register_forward_hook(lambda *_: None)
        torchs.make_graphed_callables(watched.up)
    handle.remove()
