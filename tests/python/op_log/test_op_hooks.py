"""What users add to the rows of op logs: hooks, statistics, a hash, values, regions."""

import pytest
import torch

import cgdebug
from cgdebug._op_log import regions
from cgdebug._op_log.extras import added
from cgdebug._op_log.rows import writer
from op_logs import make, needs_mode, tokens

pytestmark = needs_mode


def test_a_hook_makes_columns_of_the_op_its_arguments_and_its_module(debug_mode):
    seen = []

    def tag(call):
        seen.append(call)
        return {"device": str(call.args[0].device), "where": call.module or "none"}

    def shape(call):
        return list(call.result.shape)

    model = torch.nn.Linear(3, 5)
    with (dm := debug_mode(model, hooks=[tag, shape])), torch.no_grad():
        model(torch.ones(2, 3))
    row = next(row for row in dm.log() if row.op == "aten.addmm.default")
    assert row.columns == {"device": "cpu", "where": "Linear", "shape": "[2, 5]"}
    call = next(call for call in seen if call.op == "aten.addmm.default")
    assert call.name == row.name and call.func is torch.ops.aten.addmm.default
    assert (call.phase, call.captured, call.site) == ("fwd", False, row.site)


class Both:
    def __init__(self):
        self.order = []

    def before(self, call):
        self.order.append(("before", call.result))
        call.state[self] = float(call.args[0].sum())

    def __call__(self, call):
        self.order.append(("after", float(call.result.sum())))
        return {"was": call.state[self]}

    def after_run(self, log):
        return {"rank": range(len(log)), "norm": [row.stats.l1 for row in log]}


def test_a_hook_may_look_before_after_and_at_the_rows_of_a_run(debug_mode):
    hook = Both()
    with (dm := debug_mode(hooks=hook)):
        torch.ones(3).add_(1)
    row = dm.log()["fwd/add__0"]
    assert row.columns["was"] == 3.0 and row.columns["rank"] == 1
    assert row.columns["norm"] == row.stats.l1 == 6.0
    assert ("before", None) in hook.order and ("after", 6.0) in hook.order


def test_a_hook_that_raises_is_named_in_its_row_and_never_reaches_the_job(debug_mode):
    class Broken:
        def before(self, call):
            raise KeyError("no such thing")

        def __call__(self, call):
            raise ValueError(f"not {call.op}\nmore")

        def after_run(self, log):
            raise RuntimeError("too late")

    with (dm := debug_mode(hooks=[Broken()], stats={"bad": lambda x: 1 / 0})):
        y = torch.ones(3) + 1
    assert y.tolist() == [2, 2, 2]
    log = dm.log()
    assert [row.op for row in log] == ["aten.ones.default", "aten.add.Tensor"]
    for row in log:
        assert row.columns["Broken"] == f"raised ValueError: not {row.op}"
        assert row.columns["bad"] == "raised ZeroDivisionError: division by zero"
    assert "hook Broken: after_run raised RuntimeError: too late" in log.gaps


def test_columns_of_a_run_that_do_not_fit_its_rows_are_a_gap(debug_mode):
    class Short:
        def after_run(self, log):
            return {"x": [1]}

    with (dm := debug_mode(hooks=[Short()])):
        torch.ones(3) + 1
    assert "column 'x' has 1 values for 2 rows" in dm.log().gaps[-1]


def test_statistics_of_the_user_are_rows_in_every_call_and_link_to_theirs(debug_mode):
    model = torch.nn.Identity()
    dm = debug_mode(
        model, stats={"spread": lambda x: x.max() - x.min(), "size": lambda x: x.numel()}
    )
    with dm:
        for factor in (1.0, 3.0):
            model(torch.arange(4.0)) * factor
    for call, expected in zip(dm.calls, (3.0, 9.0)):
        log = dm.log(replay=call)
        row = log["fwd/mul_0.spread"]
        assert (row.op, row.stats.max) == ("stats.spread", expected)
        assert row.inputs == (log["fwd/mul_0"].number,)
        assert log["fwd/mul_0.size"].stats.max == 4


def test_the_ops_of_a_statistic_are_no_rows_and_change_nothing(debug_mode):
    def greedy(x):
        return x.float().exp().log().sum()

    with (dm := debug_mode()):
        torch.ones(3) + 1
    plain = [row.name for row in dm.log()]
    with (dm := debug_mode(stats={"greedy": greedy})):
        torch.ones(3) + 1
    names = [row.name for row in dm.log()]
    assert [name for name in names if not name.endswith(".greedy")] == plain
    assert len(names) == 2 * len(plain)


def test_a_hash_of_the_user_is_exact(debug_mode):
    def checksum(x):
        return int(x.view(torch.int32).long().sum())

    x = torch.rand(5)
    with (dm := debug_mode(hash=checksum)):
        y = x * 2
    row = dm.log()["fwd/mul_0.hash"]
    assert row.dtype == "int64" and row.stats.xor_hash == checksum(y) % 2**64


def memory_of(log):
    return {row.name: tuple(row.columns.values()) for row in log}


def test_the_memory_of_ops_is_a_hook_with_a_name(debug_mode):
    with (dm := debug_mode(hooks=["memory"])):
        x = torch.ones(256)
        y = x.exp()
        y.relu_()
        del x
        y.exp()
    log = dm.log()
    assert list(log[0].columns) == ["kept", "allocated", "peak"]
    assert memory_of(log) == {
        "fwd/ones_0": (1024, 1024, 1024),
        "fwd/exp_0": (1024, 1024, 2048),
        "fwd/relu__0": (0, 0, 2048),
        "fwd/exp_1": (1024, 1024, 2048),  # the first one has gone
    }


def test_the_memory_of_an_op_has_what_it_gave_back_and_not_what_hooks_allocate(debug_mode):
    class Greedy:
        def before(self, call):
            call.state[self] = torch.ones(1 << 20)

        def __call__(self, call):
            torch.ones(1 << 20)

    x, weight = torch.ones(64, 64, 4), torch.ones(64, 64, 3)
    with (dm := debug_mode(hooks=["memory", Greedy()])):
        torch.nn.functional.conv1d(x, weight)
        with pytest.raises(RuntimeError):
            torch.ones(2) @ torch.ones(3)
        x.exp()
    row = dm.log()["fwd/convolution_0"]
    kept, allocated, peak = (row.columns[name] for name in ("kept", "allocated", "peak"))
    assert kept == 64 * 64 * 2 * 4 < allocated < 1 << 20
    assert x.nbytes + weight.nbytes + kept < peak <= x.nbytes + weight.nbytes + allocated
    assert dm.log()["fwd/exp_0"].columns["allocated"] == x.nbytes


def test_beside_a_profiler_the_memory_of_an_op_is_what_it_returned(debug_mode):
    with (dm := debug_mode(hooks=["memory"])):
        with torch.autograd.profiler.profile(use_cpu=True) as profiler:
            torch.ones(10)
        torch.ones(10)
    assert memory_of(dm.log()) == {"fwd/ones_0": (40,), "fwd/ones_1": (40, 40, 40)}
    assert any(event.name == "aten::ones" for event in profiler.function_events)


def test_values_of_chosen_rows_are_kept(debug_mode):
    model = make()
    dm = debug_mode(model, values="fwd/layers.1.attn/_softmax*")
    with dm, torch.no_grad():
        model(tokens())
    row = dm.log()["fwd/layers.1.attn/_softmax_0"]
    kept = dm.records(row.name)
    assert len(kept) == 1 and tuple(kept[0].tensor.shape) == row.shape
    assert kept[0].tensor.abs().sum().item() == pytest.approx(row.stats.l1)
    with pytest.raises(KeyError, match="no values of 'fwd/x' are kept"):
        dm.records("fwd/x")


def test_a_watch_takes_hooks_and_values_where_it_has_a_log():
    model = torch.nn.Linear(2, 2)
    for wrong in (
        {"hooks": [print]},
        {"stats": {"x": torch.sum}},
        {"hash": torch.sum},
        {"values": "fwd/*"},
    ):
        with pytest.raises(ValueError, match="are of levels with a log"):
            cgdebug.watch(model, **wrong)
    with cgdebug.watch(model, level="op", hooks=["memory"], values="fwd/*"):
        pass


@pytest.mark.parametrize(
    "wrong, text",
    [
        ({"hooks": ["speed"]}, "a hook is a function or one of 'memory', not 'speed'"),
        ({"hooks": [3]}, "a hook is a function, not a int"),
        ({"stats": {"a b": abs}}, "the name of a statistic is a word, not 'a b'"),
        ({"stats": {"a": 3}}, "a is a function of a tensor, not a int"),
        ({"values": 3}, "values are globs of row names"),
    ],
)
def test_wrong_hooks_are_refused(wrong, text):
    with pytest.raises((TypeError, ValueError), match=text):
        cgdebug.debug_mode(**wrong)


def test_without_hooks_nothing_of_them_runs(debug_mode, monkeypatch):
    def fail(*_):
        raise AssertionError("it ran")

    for name in ("before", "columns", "compute", "_forget_nodes"):
        monkeypatch.setattr(added.Added, name, fail)
    monkeypatch.setattr(writer.RowWriter, "_add_computed", fail)
    with (dm := debug_mode()):
        torch.ones(3) + 1
    log = dm.log()
    assert len(log) == 2 and log.gaps == []


# --- regions --------------------------------------------------------------------------------------


def regions_of(log):
    return {row.name: row.region for row in log}


def test_regions_of_every_kind_are_named_in_the_rows_inside_them(debug_mode):
    with (dm := debug_mode()):
        x = torch.ones(3)
        with cgdebug.annotate("step"), torch.profiler.record_function("forward"):
            y = x + 1
        y.mul(2)
        decorated(y)
    assert regions_of(dm.log()) == {
        "fwd/ones_0": "",
        "fwd/add_0": "step/forward",
        "fwd/mul_0": "",
        "fwd/neg_0": "decorated",
    }


@cgdebug.annotate("decorated")
def decorated(x):
    return x.neg()


def test_a_region_that_ends_by_an_exception_is_left(debug_mode):
    with (dm := debug_mode()):
        with pytest.raises(ZeroDivisionError), cgdebug.annotate("a"):
            raise ZeroDivisionError
        torch.ones(3)
    assert regions_of(dm.log()) == {"fwd/ones_0": ""}
    with pytest.raises(TypeError, match="a name is a text"):
        cgdebug.annotate(3)


def test_a_region_whose_beginning_nobody_saw_ends_nothing(debug_mode):
    with cgdebug.annotate("outer"):
        regions._pop(regions._NVTX)
        assert regions.current() == "outer"
    assert regions.current() == ""


def test_backward_has_the_region_of_its_forward_pass_unless_it_is_in_one(debug_mode):
    x = torch.ones(3, requires_grad=True)
    with (dm := debug_mode()):
        with cgdebug.annotate("forward"):
            y = x.sin().sum()
        y.backward(retain_graph=True)
        with cgdebug.annotate("backward"):
            y.backward()
    cosines = [row.region for row in dm.log() if row.op == "aten.cos.default"]
    assert cosines == ["forward", "backward"]


def test_compiled_code_with_a_region_is_one_graph():
    def step(x):
        with cgdebug.annotate("inside"):
            return x.sin() + 1

    torch.compiler.reset()
    x = torch.ones(3)
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    assert compiled(x).equal(step(x)) and regions.current() == ""
    torch.compiler.reset()


# --- captures -------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_statistic_is_computed_in_every_replay(debug_mode):
    x = torch.zeros(1000, device="cuda")
    dm = debug_mode(stats={"q": lambda t: t.float().quantile(0.9), "cpu": lambda t: t.sum().item()})
    graph = torch.cuda.CUDAGraph()
    with dm, torch.cuda.graph(graph):
        y = x * 2
    for number in range(50):
        x.copy_(torch.randn(1000, device="cuda"))
        graph.replay()
        log = dm.log()
        assert log["fwd/mul_0.q"].stats.max == y.quantile(0.9).item(), number
    row = log["fwd/mul_0"]
    assert row.columns["cpu"].startswith("raised RuntimeError")  # a capture cannot read it
    assert log.coverage.unseen == () and log.gaps == []


@pytest.mark.gpu
def test_a_triton_kernel_of_the_user_is_a_statistic(debug_mode):
    triton = pytest.importorskip("triton")
    tl = triton.language
    namespace = {"triton": triton, "tl": tl}

    def kernel_source(x, out, n, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        value = tl.load(x + offsets, mask=offsets < n, other=0.0)
        tl.store(out, tl.sum(value * value))

    globals().update(namespace)
    kernel = triton.jit(kernel_source)

    def energy(t):
        out = torch.empty((), device=t.device)
        kernel[(1,)](t.contiguous(), out, t.numel(), BLOCK=triton.next_power_of_2(t.numel()))
        return out

    x = torch.randn(300, device="cuda")
    energy(x)  # compiles
    dm = debug_mode(stats={"energy": energy})
    graph = torch.cuda.CUDAGraph()
    with dm, torch.cuda.graph(graph):
        y = x * 2
    for _ in range(50):
        x.copy_(torch.randn(300, device="cuda"))
        graph.replay()
        assert dm.log()["fwd/mul_0.energy"].stats.max == energy(y).item()


@pytest.mark.gpu
def test_hooks_and_memory_of_a_capture_are_columns_of_its_rows(debug_mode):
    x = torch.ones(1 << 20, device="cuda")
    dm = debug_mode(hooks=["memory", lambda call: call.args[0].sum().item()], values="fwd/mul*")
    graph = torch.cuda.CUDAGraph()
    with dm, torch.cuda.graph(graph), cgdebug.annotate("a"):
        y = x * 2
    graph.replay()
    row = dm.log()["fwd/mul_0"]
    assert row.columns["kept"] == 4 << 20 and row.columns["peak"] >= 4 << 20 and row.region == "a"
    assert row.columns["<lambda>"].startswith("raised RuntimeError")
    assert dm.records("fwd/mul_0", synchronize=True)[-1].tensor.equal(y.cpu())


@pytest.mark.gpu
def test_a_range_of_nvtx_is_a_region(debug_mode):
    with (dm := debug_mode(eager=True)):
        with torch.cuda.nvtx.range("inside"):
            torch.ones(3)
        torch.zeros(3)
    assert set(regions_of(dm.log()).values()) == {"inside", ""}
