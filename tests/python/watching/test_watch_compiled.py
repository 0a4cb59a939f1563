"""Layers that are alike share the code that torch.compile makes for them, watched or not."""

import contextlib
import copy
import gc
import itertools
import json
import pickle
import subprocess
import sys

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

import cgdebug
from cgdebug import CudaGraphTensorProbe, TensorRecord


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    for one in list(cgdebug.watching._watches):
        one.close()
    assert torch._dynamo.config.skip_nnmodule_hook_guards


class Layer(nn.Module):
    def __init__(self, has_break=False, probe=None):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.has_break, self.probe = has_break, probe

    def forward(self, x):
        x = x + self.down(torch.relu(self.up(x)))
        if self.probe is not None:
            x = self.probe(x)
        if self.has_break:
            torch._dynamo.graph_break()
        return x * 1.5


class Net(nn.Module):
    """Another number in `depth`: code of its own."""

    def __init__(self, depth, has_break=False):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(has_break) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def compile_layers(net, **options):
    for layer in net.layers:
        layer.compile(**options)
    return net


def compile_whole(net, **options):
    return torch.compile(net, **options)


def shape_of(size):
    return torch.linspace(-1, 1, size * 4).reshape(size, 4).requires_grad_()


def frames(net, compiled, sizes, backend):
    """Runs the model and returns how often torch compiled."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    counter = CompileCounterWithBackend(backend)
    model = compiled(net, counter)
    for size in sizes:
        model(shape_of(size)).sum().backward()
    counters = torch._dynamo.utils.counters
    return counter.frame_count, dict(counters["frames"]), len(counters["graph_break"])


def expected(net, sizes):
    """By name: the outputs of every module, eager, and their gradients."""
    outputs, gradients = {}, {}

    def keep(name):
        def hook(module, args, output):
            outputs.setdefault(name, []).append(output.detach())
            output.register_hook(
                lambda grad, name=name: gradients.setdefault(name, []).append(grad)
            )

        return hook

    handles = [
        module.register_forward_hook(keep(name)) for name, module in net.named_modules() if name
    ]
    for size in sizes:
        net(shape_of(size)).sum().backward()
    for handle in handles:
        handle.remove()
    return outputs, gradients


def assert_seen(watch, kind, wanted):
    for name, tensors in wanted.items():
        if name == "layers":
            continue
        got = [record.tensor for record in watch.probes[f"{kind}/{name}"].records()]
        assert len(got) == len(tensors), name
        for one, other in zip(got, tensors):
            torch.testing.assert_close(one, other)


KINDS = {
    "12 layers": (12, False, compile_layers, {}, [2]),
    "24 layers": (24, False, compile_layers, {"fullgraph": True}, [2]),
    "24 layers, sizes": (24, False, compile_layers, {}, [2, 3, 5]),
    "12 layers, dynamic": (12, False, compile_layers, {"dynamic": True}, [2, 3]),
    "a break in each of 12 layers": (12, True, compile_whole, {}, [2]),
    "12 layers with a break": (12, True, compile_layers, {}, [2]),
    "whole": (3, False, compile_whole, {"dynamic": True, "fullgraph": True}, [2, 3]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_watched_layers_share_compiled_code_and_are_seen_by_their_own_names(kind):
    depth, has_break, compiled, options, sizes = KINDS[kind]

    def run(net):
        return frames(net, lambda net, c: compiled(net, backend=c, **options), sizes, "aot_eager")

    alone = run(Net(depth, has_break))
    plain = Net(depth, has_break)
    with cgdebug.watch(net := Net(depth, has_break), values=8) as w:
        assert run(net) == alone
        outputs, _ = expected(plain, sizes)
        assert_seen(w, "fwd", outputs)
        assert not w.explain().not_seen and not w.explain().problems


@pytest.mark.parametrize("options", [{"inputs": True}, {"params": True}, {"grads": True}])
def test_inputs_parameters_and_gradients_of_shared_code_have_their_own_names(options):
    net, plain = Net(10), Net(10)

    def run(net):
        return frames(net, lambda net, c: compile_layers(net, backend=c), [2], "aot_eager")

    alone = run(Net(10))
    outputs, gradients = expected(plain, [2])
    with cgdebug.watch(net, values=8, **options) as w:
        assert run(net) == alone
        if "inputs" in options:
            outputs = {f"layers.{i + 1}": outputs[f"layers.{i}"] for i in range(9)}
            assert_seen(w, "in", outputs)
        elif "params" in options:
            weights = {name: [one.detach()] for name, one in net.named_parameters()}
            assert_seen(w, "param", weights)
        else:
            assert_seen(w, "grad", gradients)


def test_inductor_shares_code_of_watched_layers():
    net, plain = Net(10), Net(10)
    with cgdebug.watch(net, values=8, grads=True) as w:
        frames(net, lambda net, c: compile_layers(net, backend=c), [2], "inductor")
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
        outputs, gradients = expected(plain, [2])
        assert_seen(w, "fwd", outputs)
        assert_seen(w, "grad", gradients)


def test_probes_in_layers_that_are_alike_share_compiled_code():
    alone = frames(Net(12), lambda net, c: compile_layers(net, backend=c), [2, 2], "aot_eager")
    with contextlib.ExitStack() as stack:
        net, plain = Net(12), Net(12)
        for number, layer in enumerate(net.layers):
            layer.probe = stack.enter_context(
                CudaGraphTensorProbe(f"p{number}", [TensorRecord(capacity=4)], mode="always")
            )

        def compiled(net, counter):
            return compile_layers(net, backend=counter, fullgraph=True)

        probed = frames(net, compiled, [2, 2], "aot_eager")
        assert probed[0] == alone[0]
        outputs, _ = expected(plain, [2])
        for number, layer in enumerate(net.layers):
            for record in layer.probe.records():
                # The probe lies before the last multiplication of the layer.
                torch.testing.assert_close(record.tensor * 1.5, outputs[f"layers.{number}"][0])
            assert len(layer.probe.records()) == 2


def test_two_models_of_one_class_share_code_and_keep_their_names():
    policy, reference = Net(2), Net(2)
    with torch.no_grad():
        reference.layers[0].up.weight.mul_(2)
    counter = CompileCounterWithBackend("eager")
    seen = []
    with (
        cgdebug.watch(policy, values=4) as first,
        cgdebug.watch(reference, values=4) as second,
    ):
        for net in (policy, reference):
            seen.append(torch.compile(net, backend=counter)(shape_of(2)))
        (of_policy,) = first.probes["fwd/Net"].records()
        (of_reference,) = second.probes["fwd/Net.Net"].records()
        assert torch.equal(of_policy.tensor, seen[0].detach())
        assert torch.equal(of_reference.tensor, seen[1].detach())
        assert not torch.equal(*seen)
        assert counter.frame_count == 1


def test_code_of_what_is_not_watched_is_not_run_for_what_is():
    net = Net(4)
    with cgdebug.watch(net, "layers.2*", values=4) as w:
        compile_layers(net, backend="eager")(shape_of(2))
        assert w.explain().seen == ("fwd/layers.2", "fwd/layers.2.up", "fwd/layers.2.down")
    other, watched = Net(2), Net(2)
    with cgdebug.watch(watched) as w:
        for one in (other, watched):
            torch.compile(one, backend="eager")(shape_of(2))
        assert len(w.explain().seen) == 7


def test_backward_below_a_graph_break_is_compiled_while_a_watch_looks_for_new_modules():
    net = Net(2)
    with cgdebug.watch(net) as w:

        @torch.compile(backend="aot_eager")
        def step(x):
            loss = net(x).sum()
            loss.backward()
            return loss

        step(shape_of(3))
        assert "fwd/layers.1" in w.explain().seen


class Region(nn.Module):
    """Layers of it share the graph of their body."""

    def __init__(self, act):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), act)

    @torch.compiler.nested_compile_region
    def forward(self, x):
        return self.inner(x)


def test_regions_of_compiled_code_keep_their_gradients_and_are_told_as_not_seen():
    def gradients(net):
        torch._dynamo.reset()
        torch.compile(net, backend="aot_eager", fullgraph=True)(shape_of(3)).sum().backward()
        return [parameter.grad for parameter in net.parameters()]

    net = nn.Sequential(Region(nn.ReLU()), Region(nn.ReLU()))
    alone = gradients(copy.deepcopy(net))
    with cgdebug.watch(net) as w:
        assert all(map(torch.equal, gradients(net), alone))
        report = w.explain()
    assert set(report.seen) == {"fwd/0", "fwd/1", "fwd/Sequential"}
    assert len(report.not_seen) == 6
    assert all("nested_compile_region" in why for why in report.not_seen.values())


def test_compiled_code_of_vmap_runs_as_alone_and_is_told_as_not_seen(job):
    started = job(
        """
        from torch.func import grad, vmap

        net, x = torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.ones(5, 4)
        alone = vmap(grad(lambda x: net(x).sum()))(x)
        w = cgdebug.watch(net)
        for call in (vmap(net), vmap(grad(lambda x: net(x).sum()))):
            made = torch.compile(lambda x: call(x), backend="aot_eager")(x)
        print(torch.equal(made, alone), "torch.vmap" in w.explain().not_seen["fwd/0"])
        """
    )
    assert started.line() == "True True"
    started.finish()


def test_what_compiled_branches_lose_is_told_to_the_verdict(job):
    started = job(
        """
        from torch import nn

        class Branches(nn.Module):
            def __init__(self):
                super().__init__()
                self.yes, self.no = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x):
                return torch.cond(x.sum() > 0, lambda x: self.yes(x), lambda x: self.no(x), (x,))

        net = Branches()
        w = cgdebug.watch(net)
        torch.compile(net, backend="aot_eager")(torch.ones(1, 4))
        try:
            cgdebug.check("nan")
        except NotCheckedError as error:
            print("not watched, the first fwd/" in str(error) and "body of torch.cond" in str(error))
        """
    )
    assert started.line() == "True"
    started.finish()


def test_a_second_watch_sees_code_that_was_compiled_under_the_first():
    net = Net(3)
    counter = CompileCounterWithBackend("eager")
    compile_layers(net, backend=counter)
    for _ in range(3):
        with cgdebug.watch(net, values=4) as w:
            net(shape_of(2))
            assert len(w.explain().seen) == 10
    assert counter.frame_count == 1


class _Odd(nn.Module):
    def forward(self, x):
        return None, {"k": (x * 2, 3)}, torch.complex(x, x)


class _Nothing(nn.Module):
    def forward(self, x):
        return 5


class _Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.odd, self.nothing = _Odd(), _Nothing()

    def forward(self, x):
        return self.odd(x)[1]["k"][0] + self.nothing(x)


def test_what_cannot_be_seen_in_shared_code_is_told_of_every_layer():
    net = nn.Sequential(*(_Both() for _ in range(3)))
    counter = CompileCounterWithBackend("aot_eager")
    with cgdebug.watch(net) as w:
        for layer in net:
            layer.compile(backend=counter, fullgraph=True)
        net(shape_of(2))
        report = w.explain()
    assert counter.frame_count == 1
    for number in range(3):
        assert "complex64" in report.problems[f"fwd/{number}.odd"]
        assert "it holds no tensor" in report.not_seen[f"fwd/{number}.nothing"]
    assert "fwd/2.odd/1/k/0" in report.seen


def test_checkpointed_layers_in_compiled_code_are_seen_by_their_own_names():
    class Saving(Net):
        def forward(self, x):
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return x

    net, plain = Saving(3), Net(3)
    outputs, _ = expected(plain, [2])
    with cgdebug.watch(net, values=4) as w:
        torch.compile(net, backend="aot_eager", fullgraph=True)(shape_of(2)).sum().backward()
        assert_seen(w, "fwd", outputs)


def test_dimensions_that_are_marked_dynamic_stay_so_and_modes_compile_as_alone():
    def run(net):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("eager")
        compile_layers(net, backend=counter, fullgraph=True)
        for size in (4, 6):
            x = shape_of(size).detach()
            torch._dynamo.mark_dynamic(x, 0)
            net(x)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                net(shape_of(4).detach())
        return counter.frame_count

    alone = run(Net(10))
    net = Net(10)
    with torch.inference_mode():
        watch = cgdebug.watch(net)
    with watch as w:
        assert run(net) == alone
        assert len(w.explain().seen) == 31


def test_a_compiled_module_of_torchs_own_class_is_said_to_keep_running_without_probes(job):
    # In a process without the tests that call forward(): code that does has the module compiled anew.
    out, _ = job("""
        net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        compiled = torch.compile(net, backend="eager")
        compiled(torch.ones(1, 2))
        with cgdebug.watch(net) as w:
            compiled(torch.ones(1, 2))
            print(w.explain().not_seen["fwd/1"])
        """).finish()
    assert "torch.compiler.reset()" in out


def test_a_watch_that_ends_with_its_model_leaves_dynamo_as_it_was():
    gc.collect()
    torch.compile(nn.Linear(2, 2), backend="eager")(torch.ones(1, 2))
    assert torch._dynamo.config.skip_nnmodule_hook_guards, "another test left a watch"
    cgdebug.watch(nn.Linear(2, 2))
    gc.collect()
    assert torch._dynamo.config.skip_nnmodule_hook_guards


def test_tags_are_no_part_of_the_model():
    net, plain = Net(2), Net(2)
    with cgdebug.watch(net, params=True, grads=True):
        assert net.state_dict().keys() == plain.state_dict().keys()
        assert len(list(net.buffers())) == 0
        exported = torch.export.export(net, (shape_of(2).detach(),))
        assert not [node for node in exported.graph.nodes if "cgdebug" in str(node.target)]
        assert len(exported.graph_signature.user_inputs) == 1


WATCHED_JOB = """
    import json
    from torch._dynamo.utils import counters
    if EXTRA:
        other = torch.nn.Linear(2, 2)
        cgdebug.watch(other)
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x).relu()

    torch.manual_seed(0)
    layers = torch.nn.ModuleList(Layer() for _ in range(3)).to(DEVICE)
    watch = cgdebug.watch(layers, values=4)
    x = torch.ones(2, 4, requires_grad=True, device=DEVICE)
    for layer in layers:
        layer.compile(fullgraph=True)
        x = layer(x)
    synchronize = DEVICE == "cuda"
    values = {
        name: p.records(synchronize=synchronize)[-1].tensor.tolist()
        for name, p in watch.probes.items()
    }
    print("ANSWER", json.dumps([dict(counters["inductor"]), values]))
"""


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.own_lane])]
)
def test_the_next_process_takes_the_code_of_watched_layers_from_torchs_caches(
    job, tmp_path, device
):
    answers = []
    for extra in (False, True):
        code = WATCHED_JOB.replace("EXTRA", str(extra)).replace("DEVICE", repr(device))
        out, _ = job(code, TORCHINDUCTOR_CACHE_DIR=str(tmp_path)).finish(timeout=300)
        answers.append(json.loads(next(x for x in out.splitlines() if x[:7] == "ANSWER ")[7:]))
    (cold, values), (warm, same_values) = answers
    misses = cold["fxgraph_cache_miss"]
    assert warm["fxgraph_cache_hit"] == misses and "fxgraph_cache_miss" not in warm
    assert misses == 1 and values == same_values and len(values) == 6
    assert len({str(values[f"fwd/{i}.linear"]) for i in range(3)}) == 3


def test_names_of_layers_are_right_in_any_order_of_calls():
    net = Net(4)
    compile_layers(net, backend="eager")
    with cgdebug.watch(net, "layers.?", values=32) as w:
        calls = list(itertools.permutations(range(4)))
        for number, order in enumerate(calls):
            for index in order:
                net.layers[index](torch.full((1, 4), number + index / 8))
        for index in range(4):
            with torch.no_grad():
                wanted = [Layer.forward(net.layers[index], torch.full((1, 4), n + index / 8))
                          for n in range(len(calls))]  # fmt: skip
            got = [record.tensor for record in w.probes[f"fwd/layers.{index}"].records()]
            torch.testing.assert_close(got, wanted)


SAVES = """
import subprocess, sys, torch, cgdebug
torch._dynamo.config.enable_aot_compile = True

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.probe = cgdebug.CudaGraphTensorProbe("mine", [cgdebug.TensorStats()], mode="always")

    def forward(self, x):
        return self.probe(self.linear(x)).relu()

torch.manual_seed(0)
model, x, path = Net(), torch.ones(2, 8), sys.argv[1]
with torch.no_grad():
    if len(sys.argv) == 2:
        compiled = torch.compile(model.forward, fullgraph=True, backend="inductor")
        made = compiled.aot_compile(((x,), {}))
        made.save_compiled_function(path)
        done = subprocess.run([sys.executable, __file__, path, "loads"], capture_output=True, text=True)
        print(done.stdout, done.stderr[-2000:])
    else:
        with open(path, "rb") as file:
            made = torch.compiler.load_compiled_function(file)
        assert model.probe.status().replays == 0
        assert torch.equal(made(model, x), model.linear(x).relu())
        print("seen", model.probe.status(timeout=5).replays)
"""


@pytest.mark.skipif(
    not hasattr(torch._dynamo.config, "enable_aot_compile"), reason="torch 2.10 has no aot_compile"
)
def test_code_compiled_ahead_of_time_keeps_a_probe_of_the_program(tmp_path):
    script = tmp_path / "saves.py"
    script.write_text(SAVES)
    command = [sys.executable, str(script), str(tmp_path / "code")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert "seen 1" in done.stdout, done.stdout + done.stderr


def test_a_copy_of_a_probe_is_the_live_one_of_its_name_or_sees_nothing(probe):
    p = probe(cgdebug.TensorStats(), name="copied")
    assert copy.deepcopy(p) is p
    kept = pickle.dumps(p)
    assert pickle.loads(kept) is p
    p.close()
    gone = pickle.loads(kept)
    x = torch.ones(2)
    assert gone(x) is x and gone.status().replays == 0
    compiled = torch.compile(lambda x: gone(x) + 1, backend="eager")
    assert torch.equal(compiled(x), x + 1)


def test_the_line_of_a_probe_in_code_of_inductor_is_that_of_the_call():
    net = Net(1)
    with cgdebug.watch(net) as w:
        torch.compile(net)(shape_of(2))
        sites = {slot.site for probe in w.probes.values() for slot in probe.status().slots}
        assert sites and all("test_watch_compiled.py" in site for site in sites), sites
