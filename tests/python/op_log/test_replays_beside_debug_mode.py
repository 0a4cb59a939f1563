"""All that torch's DebugMode offers, and what shows it here in a replay of a captured graph.

REPLAYS has a check for each thing that test_beside_debug_mode.py shows of eager runs, under the same
name; NO_MEANING has those that no replay can have.
"""

import inspect

import pytest
import test_beside_debug_mode as eager
import torch
from torch import nn

from op_logs import capture_in, make, needs_mode, tokens

pytestmark = [needs_mode]
REPLAYS = {}
NO_MEANING = {
    "record_faketensor": "nothing is captured of what runs on fake tensors",
    "record_localtensor": "its parts are tensors of one process that plays the ranks",
}


def replays(check):
    REPLAYS[check.__name__] = check
    return check


def softmax():
    return nn.functional.softmax(torch.ones(2, 3, device="cuda"), 1)


def log_of(dm, function=softmax, replays=2):
    graph, _ = capture_in(dm, function)
    for _ in range(replays):
        graph.replay()
    return dm.log()


def softmax_row(debug_mode, **options):
    return log_of(debug_mode(**options))["fwd/_softmax_0"]


@replays
def record_torchfunction(debug_mode):
    row = softmax_row(debug_mode)
    assert row.code == 'return nn.functional.softmax(torch.ones(2, 3, device="cuda"), 1)'


@replays
def record_realtensor(debug_mode):
    row = softmax_row(debug_mode)
    assert row.op == "aten._softmax.default" and row.stats.max == pytest.approx(1 / 3)


@replays
def record_tensor_attributes(debug_mode):
    x = torch.ones(2, device="cuda", requires_grad=True)

    def attributes(call):
        return {"requires_grad": call.args[0].requires_grad}

    row = log_of(debug_mode(hooks=[attributes]), lambda: x * 2)["fwd/mul_0"]
    assert row.columns == {"requires_grad": True}


@replays
def record_nn_module(debug_mode):
    model, ids = make(1).cuda(), tokens().cuda()
    with torch.no_grad():
        log = log_of(debug_mode(model), lambda: model(ids))
    assert any(row.name.startswith("fwd/layers.0.attn.wo/") for row in log)


@replays
def store_original_args(debug_mode):
    """The values of each replay, not only what describes them."""
    x = torch.zeros(4, device="cuda")
    dm = debug_mode(values="fwd/*")
    graph, _ = capture_in(dm, lambda: x + 1)
    for value in (1.0, 2.0):
        x.fill_(value)
        graph.replay()
        kept = dm.records("fwd/add_0", synchronize=True)[-1]
        assert kept.tensor.tolist() == [value + 1] * 4


@replays
def record_stack_trace(debug_mode):
    row = softmax_row(debug_mode, frames=3)
    assert row.site.endswith("in softmax") and len(row.stack) == 2


@replays
def record_output(debug_mode):
    row = softmax_row(debug_mode)
    assert (row.dtype, row.shape) == ("float32", (2, 3))


@replays
def record_ids(debug_mode):
    assert softmax_row(debug_mode).arguments == "self=#1, dim=1, half_to_float=False"


@replays
def record_profiler_context(debug_mode):
    def region():
        with torch.profiler.record_function("stage"):
            softmax()

    assert {row.region for row in log_of(debug_mode(), region)} == {"stage"}


@replays
def run_compile_with_interpreter(debug_mode):
    """Compiled code runs compiled, and its rows have their module and line."""
    torch._dynamo.reset()
    model, ids = make(1).cuda(), tokens().cuda()
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        compiled(ids)
        log = log_of(debug_mode(model), lambda: compiled(ids))
    row = next(row for row in log if row.op == "aten._softmax.default")
    assert row.name.startswith("fwd/layers.0.attn/") and row.site.endswith("in forward")
    torch._dynamo.reset()


@replays
def debug_string(debug_mode):
    log = log_of(debug_mode())
    assert "_softmax_0" in str(log) and log.replay == 2


@replays
def logs(debug_mode):
    ops = [row.op for row in log_of(debug_mode())]
    assert ops[-1] == "aten._softmax.default" and len(ops) == 2


@replays
def dispatch_hooks(debug_mode):
    """Hooks are called once, at the capture; what they return is a column of each replay."""
    called = []

    class Hook:
        def before(self, call):
            called.append(call.name)

        def __call__(self, call):
            return {"elements": call.result.numel()}

    row = softmax_row(debug_mode, hooks=[Hook()])
    assert row.columns == {"elements": 6}
    assert called.count("fwd/_softmax_0") == 1


@replays
def record_outputs(debug_mode):
    dm = debug_mode(values="fwd/_softmax_0")
    graph, out = capture_in(dm, softmax)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(dm.records("fwd/_softmax_0", synchronize=True)[0].tensor, out.cpu())


@replays
def log_tensor_hashes(debug_mode):
    """Those of DebugMode for the same values, in each replay."""
    x = torch.zeros(2, 3, device="cuda")
    dm = debug_mode()
    graph, _ = capture_in(dm, lambda: torch.softmax(x, 1))
    for seed in range(2):
        torch.manual_seed(seed)
        x.normal_()
        graph.replay()
        log = dm.log()
        hashes = eager.DebugMode.log_tensor_hashes(["norm", "hash_tensor"], True)
        with eager.DebugMode() as mode, hashes:
            torch.softmax(x, 1)
        theirs = next(one for one in mode.logs if "_softmax" in str(one)).log
        norm, xor_hash = theirs["hash"]
        stats = log["fwd/_softmax_0"].stats
        assert stats.l1 == pytest.approx(norm, rel=1e-6) and stats.xor_hash == xor_hash
        input_norm, input_xor = theirs["input_hash"][0][0]
        read = log["in/_softmax_0.self"].stats
        assert read.l1 == pytest.approx(input_norm, rel=1e-6) and read.xor_hash == input_xor


@replays
def check_hash_mismatches(debug_mode):
    """Two replays, by our comparison and by torch's."""
    x = torch.ones(3, device="cuda")
    dm = debug_mode()
    graph, _ = capture_in(dm, lambda: torch.ones(3, device="cuda") * x)
    found = []
    for factor in (1.0, 2.0):
        x.fill_(factor)
        graph.replay()
        found.append(dm.log())
    assert found[0].diff(found[0]).verdict == "same"
    difference = found[0].diff(found[1])
    assert difference.verdict == "different"
    theirs = eager.DebugMode.check_hash_mismatches(
        found[0].to_debug_mode(), found[1].to_debug_mode(), compare_inputs=False
    )
    assert [one["call"] for one in theirs] == ["aten::mul.Tensor"]


def test_each_thing_that_is_shown_of_eager_runs_is_shown_of_replays_or_has_no_meaning_there():
    shown = {one.__name__ for one in (*eager.OPTIONS, *eager.METHODS)}
    assert shown == REPLAYS.keys() | NO_MEANING.keys()
    assert not REPLAYS.keys() & NO_MEANING.keys()


def test_the_table_of_the_manual_has_a_line_for_each_option():
    """Under the name that DebugMode gives it, or as what it shows by default."""
    from conftest import ROOT

    table = (ROOT / "client/docs/op-log.md").read_text().partition("## Beside DebugMode")[2]
    by_default = {"record_realtensor", "record_output", "record_profiler_context"}
    options = {one.__name__ for one in eager.OPTIONS} - by_default
    assert {one for one in options if one not in table} == set()
    assert {"arguments and outputs with dtype and shape", "`record_function` in the log"} <= {
        line.split("|")[1].strip() for line in table.splitlines() if line.count("|") == 4
    }


@pytest.mark.gpu
@pytest.mark.own_lane
@pytest.mark.usefixtures("torch_as_before")
@pytest.mark.parametrize("name", REPLAYS)
def test_what_debug_mode_shows_is_shown_of_replays(debug_mode, name):
    check = next(one for one in (*eager.OPTIONS, *eager.METHODS) if one.__name__ == name)
    is_option = check in eager.OPTIONS
    offers = (
        inspect.signature(eager.DebugMode.__init__).parameters
        if is_option
        else vars(eager.DebugMode)
    )
    if name not in offers:
        pytest.skip("this torch has it not")
    REPLAYS[name](debug_mode)
