"""All that torch's DebugMode offers, and what shows it here, eagerly on a CPU.

OPTIONS and METHODS name each thing once. A torch that offers more fails the test that enumerates
them, until it is answered here and in client/docs/op-log.md.
"""

import inspect

import pytest
import torch
from torch import nn

from op_logs import make, needs_mode, tokens

torch_debug_mode = pytest.importorskip("torch.utils._debug_mode")
DebugMode = torch_debug_mode.DebugMode
pytestmark = needs_mode


def theirs_of(function, **options):
    with DebugMode(**options) as mode:
        function()
    return mode.debug_string()


def softmax():
    return nn.functional.softmax(torch.ones(2, 3), 1)


def softmax_row(debug_mode, **options):
    with (dm := debug_mode(**options)):
        softmax()
    return dm.log()["fwd/_softmax_0"]


def record_torchfunction(debug_mode):
    """The function that the program calls stands in the code of the row's line."""
    assert "torch.nn.functional.softmax(" in theirs_of(softmax, record_torchfunction=True)
    assert softmax_row(debug_mode).code == "return nn.functional.softmax(torch.ones(2, 3), 1)"


def record_faketensor(debug_mode):
    """Fake tensors hold no values: they have no rows."""

    def fake():
        with torch._subclasses.FakeTensorMode():
            torch.ones(2) + 1

    assert "aten::add" in theirs_of(fake, record_faketensor=True)
    with (dm := debug_mode()):
        fake()
        torch.ones(3)
    assert [row.shape for row in dm.log()] == [(3,)]


def record_realtensor(debug_mode):
    assert "aten::_softmax" in theirs_of(softmax)
    assert softmax_row(debug_mode).op == "aten._softmax.default"


def record_tensor_attributes(debug_mode):
    """A hook makes a column of any attribute."""
    x = torch.ones(2, requires_grad=True)
    shown = theirs_of(lambda: x * 2, record_tensor_attributes=["requires_grad"])
    assert "requires_grad=True" in shown

    def attributes(call):
        return {"requires_grad": call.args[0].requires_grad}

    with (dm := debug_mode(hooks=[attributes])):
        x * 2
    assert dm.log()["fwd/mul_0"].columns == {"requires_grad": True}


def record_nn_module(debug_mode):
    model = make(1)
    shown = theirs_of(lambda: model(tokens()), record_nn_module=True)
    assert "layers.0.attn.wo" in shown
    with (dm := debug_mode(model)):
        model(tokens())
    assert any(row.name.startswith("fwd/layers.0.attn.wo/") for row in dm.log())


def store_original_args(debug_mode):
    """The tensors of rows are kept, not only what describes them."""
    with DebugMode(store_original_args=True) as mode:
        softmax()
    original = next(one for one in mode.logs if "_softmax" in str(one)).args[0]
    with (dm := debug_mode(values="fwd/ones_0")):
        softmax()
    assert torch.equal(dm.records("fwd/ones_0")[0].tensor, original)


def record_stack_trace(debug_mode):
    shown = theirs_of(softmax, record_stack_trace=True)
    assert "in softmax, code: return nn.functional.softmax" in shown
    row = softmax_row(debug_mode, frames=3)
    assert row.site.endswith("in softmax") and len(row.stack) == 2


def record_output(debug_mode):
    assert "->  t: f32[2, 3]" in theirs_of(softmax)
    row = softmax_row(debug_mode)
    assert (row.dtype, row.shape) == ("float32", (2, 3))


def record_ids(debug_mode):
    """Numbers of rows are what their numbers of tensors are."""
    assert "aten::_softmax(t$0: f32[2, 3], 1, False)" in theirs_of(softmax, record_ids=True)
    assert softmax_row(debug_mode).arguments == "self=#1, dim=1, half_to_float=False"


def record_profiler_context(debug_mode):
    def region():
        with torch.profiler.record_function("stage"):
            softmax()

    assert "[record function] stage" in theirs_of(region)
    with (dm := debug_mode()):
        region()
    assert {row.region for row in dm.log()} == {"stage"}


def record_localtensor(debug_mode):
    """LocalTensor plays several ranks in one process: the op on each rank's part is a row."""
    local = pytest.importorskip("torch.distributed._local_tensor")
    x = local.LocalTensor({0: torch.ones(2), 1: torch.full((2,), 2.0)})
    assert "aten::add" in theirs_of(lambda: x + 1)
    with (dm := debug_mode()):
        x + 1
    assert [row.stats.max for row in dm.log() if row.op == "aten.add.Tensor"] == [2.0, 3.0]


def run_compile_with_interpreter(debug_mode):
    """Compiled code runs compiled, and its rows have their module and line."""
    torch._dynamo.reset()
    model = make(1)
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        compiled(tokens())
        with (dm := debug_mode(model)):
            compiled(tokens())
    row = next(row for row in dm.log() if row.op == "aten._softmax.default")
    assert row.name.startswith("fwd/layers.0.attn/") and row.site.endswith("in forward")
    torch._dynamo.reset()


OPTIONS = (
    record_torchfunction,
    record_faketensor,
    record_realtensor,
    record_tensor_attributes,
    record_nn_module,
    store_original_args,
    record_stack_trace,
    record_output,
    record_ids,
    record_profiler_context,
    record_localtensor,
    run_compile_with_interpreter,
)


def debug_string(debug_mode):
    with (dm := debug_mode()):
        softmax()
    assert "_softmax_0" in str(dm.log())


def logs(debug_mode):
    with (dm := debug_mode()):
        softmax()
    assert [row.op for row in dm.log()] == ["aten.ones.default", "aten._softmax.default"]


def dispatch_hooks(debug_mode):
    """record_hook, log_hook and pre_log_hook: a hook, and its before()."""

    def log_hook(func, types, args, kwargs, result):
        return {"sum": float(result.sum())}

    with DebugMode() as mode, DebugMode.dispatch_hooks(log_hook=log_hook):
        softmax()
    assert "'sum': 2.0" in mode.debug_string()

    class Hook:
        def before(self, call):
            call.state[self] = float(call.args[0].sum()) if call.name != "fwd/ones_0" else 0.0

        def __call__(self, call):
            return {"was": call.state[self], "sum": float(call.result.sum())}

    assert softmax_row(debug_mode, hooks=[Hook()]).columns == {"was": 6.0, "sum": 2.0}


def record_outputs(debug_mode):
    with DebugMode() as mode, DebugMode.record_outputs():
        softmax()
    theirs = next(one for one in mode.logs if "_softmax" in str(one)).record["output"]
    with (dm := debug_mode(values="fwd/*")):
        softmax()
    assert torch.equal(dm.records("fwd/_softmax_0")[0].tensor, theirs)


def log_tensor_hashes(debug_mode):
    """Both of its hashes, always; those of inputs are in the rows that show them."""
    x = torch.randn(2, 3)
    with DebugMode() as mode, DebugMode.log_tensor_hashes(["norm", "hash_tensor"], True):
        torch.softmax(x, 1)
    theirs = next(one for one in mode.logs if "_softmax" in str(one)).log
    with (dm := debug_mode()):
        torch.softmax(x, 1)
    log = dm.log()
    norm, xor_hash = theirs["hash"]
    stats = log["fwd/_softmax_0"].stats
    assert stats.l1 == pytest.approx(norm, rel=1e-12) and stats.xor_hash == xor_hash
    input_norm, input_xor = theirs["input_hash"][0][0]
    read = log["in/_softmax_0.self"].stats
    assert read.l1 == pytest.approx(input_norm, rel=1e-12) and read.xor_hash == input_xor


def check_hash_mismatches(debug_mode):
    found = []
    for factor in (1.0, 2.0):
        with (dm := debug_mode()):
            torch.ones(3) * factor
        found.append(dm.log())
    assert found[0].diff(found[1]).first == "fwd/mul_0"
    theirs = DebugMode.check_hash_mismatches(
        found[0].to_debug_mode(), found[1].to_debug_mode(), compare_inputs=False
    )
    assert [one["call"] for one in theirs] == ["aten::mul.Tensor"]


METHODS = (
    debug_string,
    logs,
    dispatch_hooks,
    record_outputs,
    log_tensor_hashes,
    check_hash_mismatches,
)
# How DebugMode does it, for its own code: placements of DTensors have a test of their own in
# test_op_details.py, with two ranks.
INTERNAL = {
    "ignore_compile_internals",
    "is_infra_mode",
    "module_tracker_setup",
    "record_output_placements",
    "record_redistribute_calls",
    "record_triton_kernel",
    "reset",
    "set_fx_stack_trace",
}
LATER = {"save_logs", "load_logs"}  # torch 2.14: OpLogView.save_debug_mode, load_debug_mode


def test_each_thing_that_debug_mode_offers_is_answered_here():
    options = list(inspect.signature(DebugMode.__init__).parameters)[1:]
    assert set(options) <= {one.__name__ for one in OPTIONS}, options
    methods = {name for name in vars(DebugMode) if not name.startswith("_")}
    assert methods - INTERNAL - LATER <= {one.__name__ for one in METHODS}, methods


@pytest.mark.parametrize("check", [*OPTIONS, *METHODS], ids=lambda check: check.__name__)
def test_what_debug_mode_shows_is_shown_here(debug_mode, check):
    is_option = check in OPTIONS
    offers = inspect.signature(DebugMode.__init__).parameters if is_option else vars(DebugMode)
    if check.__name__ not in offers:
        pytest.skip("this torch has it not")
    check(debug_mode)
