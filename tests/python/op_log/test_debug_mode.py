"""Op logs and the logs of torch's own DebugMode: each is read as the other."""

import contextlib
import dataclasses
import inspect
import json
import math
import re
import subprocess
import sys
import types

import pytest
import torch

import cgdebug
from cgdebug import OpLogView, OpRow, Stats
from cgdebug._job import _graph_dumps
from op_logs import make, needs_mode, ordered_of, tokens, train

torchs_own = pytest.importorskip("torch.utils._debug_mode")
DebugMode = torchs_own.DebugMode
needs_logs = pytest.mark.skipif(
    not hasattr(DebugMode, "check_hash_mismatches"),
    reason="torch before 2.10 does not compare the logs of DebugMode",
)
pytestmark = [needs_mode, needs_logs]
FAULT = "fwd/layers.1.attn/mul_0"
BOTH = ["norm", "hash_tensor"]


def logged_by_torch(model, hash_fn="norm", run=train):
    with DebugMode() as mode, DebugMode.log_tensor_hashes(hash_fn):
        run(model)
    return mode.logs


def wrong():
    model = make()
    model.layers[1].attn.scale = 1.001
    return model


@pytest.fixture
def log_of(debug_mode):
    """log_of(model, run): the op log of an eager run."""

    def run_in(model, run=train):
        with (dm := debug_mode(model)):
            run(model)
        return dm.log()

    return run_in


def stats_of(tensor):
    finite = tensor[torch.isfinite(tensor)].double()
    numbers = dict.fromkeys(("min", "max", "mean", "std", "abs_max", "l2", "rms"), 0.0)
    return Stats(
        count=tensor.numel(),
        nan=int(tensor.isnan().sum()),
        pos_inf=int((tensor == math.inf).sum()),
        neg_inf=int((tensor == -math.inf).sum()),
        zero=0,
        subnormal=0,
        l1=float(finite.abs().sum()),
        xor_hash=torch.hash_tensor(tensor).item(),
        ordered_hash=ordered_of(tensor),
        **numbers,
    )


def row_of(number, name, op, tensor, inputs=()):
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(tensor.shape)
    return OpRow(number, name, op, inputs, True, "", dtype, shape, stats_of(tensor))


@pytest.mark.parametrize("hash_fn", ["norm", "hash_tensor", BOTH], ids=str)
def test_torchs_checker_finds_nothing_in_our_log_of_the_same_run(log_of, hash_fn):
    theirs = logged_by_torch(make(), hash_fn)
    log = log_of(make())
    pair = log.match_debug_mode(theirs)
    assert DebugMode.check_hash_mismatches(pair.theirs, pair.ours) == []
    # Only what the ops found, which DebugMode does not log, and the lists of foreach ops.
    not_inputs = [name for name in pair.left_out if not name.startswith("in/")]
    assert all("_foreach_" in name for name in not_inputs), not_inputs
    assert len(pair.ours) > 60


@pytest.mark.parametrize("hash_fn", ["norm", "hash_tensor", BOTH], ids=str)
def test_torchs_checker_names_the_same_first_op_in_our_log_as_in_its_own(log_of, hash_fn):
    theirs = logged_by_torch(make(), hash_fn)
    expected = DebugMode.check_hash_mismatches(theirs, logged_by_torch(wrong(), hash_fn))
    log = log_of(wrong())
    pair = log.match_debug_mode(theirs)
    actual = DebugMode.check_hash_mismatches(pair.theirs, pair.ours)
    assert actual[0]["call"] == expected[0]["call"] == "aten::mul.Tensor"
    assert actual[0]["hash1"] == expected[0]["hash1"]
    # The hashes do not depend on the order of a sum. Norms do, in their last digits.
    assert actual[0]["hash2"] == pytest.approx(expected[0]["hash2"], rel=1e-12)
    first = next(
        place for place, (a, b) in enumerate(zip(pair.theirs, pair.ours)) if a.log != b.log
    )
    assert pair.ours[first].stack_trace == log[FAULT].site
    diff = log.diff(theirs)
    # Equal norms do not prove that what it read is equal.
    assert (diff.verdict, diff.first) == ("different", "" if hash_fn == "norm" else FAULT)
    assert FAULT in diff.text.splitlines()[1], diff.text


def test_our_diff_with_a_log_of_debug_mode_never_says_same_over_what_it_has_not(log_of):
    log = log_of(make())
    for hash_fn in ("norm", BOTH):
        diff = log.diff(logged_by_torch(make(), hash_fn))
        assert diff.verdict == "inconclusive", diff.text
        assert "inputs and parameters" in diff.text


def test_an_op_that_only_debug_mode_has_is_no_agreement(log_of):
    def more(model):
        train(model)
        torch.ones(3).cos()

    diff = log_of(make()).diff(logged_by_torch(make(), BOTH, more))
    assert diff.verdict == "inconclusive" and "2 rows are only in B" in diff.text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_has_the_norm_that_torch_gives_it(log_of, value):
    def run(_):
        torch.full((3,), value).add(1.0)

    theirs = logged_by_torch(None, "norm", run)
    pair = log_of(None, run).match_debug_mode(theirs)
    ours = [call.log["hash"] for call in pair.ours]
    assert [str(one) for one in ours] == [str(call.log["hash"]) for call in theirs]
    same = DebugMode.check_hash_mismatches(pair.theirs, pair.ours) == []
    assert same != math.isnan(value)  # for torch no NaN equals another one


def test_two_of_our_logs_are_compared_by_torch(log_of):
    right, broken = log_of(make()), log_of(wrong())
    for hash_fn in ("norm", "hash_tensor", BOTH):
        a, b = right.to_debug_mode(hash_fn), broken.to_debug_mode(hash_fn)
        assert DebugMode.check_hash_mismatches(a, right.to_debug_mode(hash_fn)) == []
        assert DebugMode.check_hash_mismatches(a, b)[0]["call"] == "aten::mul.Tensor"
    text = str(a[0])
    assert text.startswith("aten::arange()  ->  t$1: i64[10]  # {"), text
    with pytest.raises(ValueError, match="hash_fn must be one or both of"):
        right.to_debug_mode("sum")


def test_a_tensor_in_several_outputs_is_compared_at_its_place(log_of):
    def run(scale):
        def of(_):
            values, places = (torch.arange(6.0).reshape(2, 3) * scale).max(-1)
            torch._foreach_add([values], [values])
            return places

        return of

    theirs = logged_by_torch(None, "norm", run(1.0))
    pair = log_of(None, run(2.0)).match_debug_mode(theirs)
    found = DebugMode.check_hash_mismatches(pair.theirs, pair.ours)
    named = [(one["call"], one["pytree_path"]) for one in found]
    assert named == [
        ("aten::mul.Tensor", ""),
        ("aten::max.dim", "[0]"),
        ("aten::_foreach_add.List", "[0]"),
    ]


def test_what_is_saved_is_read_back(tmp_path):
    x = torch.tensor([[1.0, math.nan], [2.0, 3.0]])
    rows = [
        row_of(1, "in/exp_0.self", "input", x),
        row_of(2, "fwd/exp_0", "aten.exp.default", x.exp(), (1,)),
        row_of(3, "fwd/max_0.0", "aten.max.dim", x[:, 0].clone(), (2,)),
        row_of(4, "fwd/max_0.1", "aten.max.dim", torch.tensor([1, 0]), (2,)),
        row_of(5, "fwd/fused_0.out_ptr0", "triton.fused.default", x[1].clone(), (3,)),
    ]
    path = tmp_path / "ours.json"
    OpLogView(rows, [], 1, 1).save_debug_mode(path, BOTH)
    data = json.loads(path.read_text())
    assert (data["format"], data["version"]) == ("torch.utils._debug_mode.DebugMode.logs", 1)
    first, second, third = cgdebug.load_debug_mode(path)
    assert (first.name, second.name, third.name) == ("aten::exp", "aten::max.dim", "fused")
    assert math.isnan(first.hash[0]) and first.hash[1] == rows[1].stats.xor_hash
    assert second.hash == ((3.0, rows[2].stats.xor_hash), (1.0, 1))
    assert third.hash == {"out_ptr0": (5.0, rows[4].stats.xor_hash)}
    if hasattr(DebugMode, "load_logs"):
        loaded = DebugMode.load_logs(str(path))
        made = OpLogView(rows, [], 1, 1).to_debug_mode(BOTH)
        assert [str(one) for one in loaded] == [str(one) for one in made]
        assert DebugMode.check_hash_mismatches(loaded[1:], made[1:]) == []


@pytest.mark.skipif(not hasattr(DebugMode, "save_logs"), reason="torch before 2.14 saves no logs")
def test_what_torch_saves_is_read(tmp_path):
    def run(_):
        x = torch.tensor([1.0, math.inf])
        x.exp().max(-1)

    path = str(tmp_path / "theirs.json")
    logs = logged_by_torch(None, BOTH, run)
    DebugMode.save_logs(logs, path)
    read = cgdebug.load_debug_mode(path)
    assert [(one.name, one.hash) for one in read] == [
        (torchs_own._get_call_name(one), (one.log or {}).get("hash")) for one in logs
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is no JSON"),
        ("[]", "was not written by"),
        ('{"format": "torch.utils._debug_mode.DebugMode.logs", "version": 2}', "has version 2"),
        (
            '{"format": "torch.utils._debug_mode.DebugMode.logs", "version": 1, "logs": [{}]}',
            "a call that cannot be read",
        ),
    ],
    ids=["cut", "list", "version", "call"],
)
def test_another_file_is_refused(tmp_path, text, why):
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=why), contextlib.suppress(OSError):
        cgdebug.load_debug_mode(path)


def test_the_hash_of_a_half_with_nan_is_not_compared():
    x = torch.tensor([1.0, math.nan], dtype=torch.float16)
    row = row_of(1, "fwd/exp_0", "aten.exp.default", x)
    view = OpLogView([row], [], 1, 1)
    (call,) = view._calls("hash_tensor")
    call.hash = 1  # as a GPU gives it
    pair = view.match_debug_mode([call])
    assert pair.ours == [] and pair.left_out == ("fwd/exp_0",)


@pytest.mark.parametrize(
    "dtype, good_to", [("bfloat16", 2e-6), ("float16", 2e-6), ("float32", 1e-12)]
)
def test_a_norm_is_as_good_as_the_sums_of_its_dtype(dtype, good_to):
    x = torch.randn(64).to(getattr(torch, dtype))
    theirs = logged_by_torch(None, "norm", lambda _: x.add(1.0))
    row = row_of(1, "fwd/add_0", "aten.add.Tensor", x.add(1.0))
    for error, found in ((good_to / 3, 0), (good_to * 3, 1)):
        stats = dataclasses.replace(row.stats, l1=row.stats.l1 * (1 + error))
        view = OpLogView([dataclasses.replace(row, stats=stats)], [], 1, 1)
        pair = view.match_debug_mode(theirs)
        assert len(DebugMode.check_hash_mismatches(pair.theirs, pair.ours)) == found


def test_a_model_on_another_device_or_with_other_shapes_does_not_pass(log_of):
    def longer(model):
        model(torch.cat([tokens(), tokens()]))

    theirs = logged_by_torch(make(), "norm", longer)
    log = log_of(make(), lambda model: model(tokens()))
    pair = log.match_debug_mode(theirs)
    assert "fwd/head/mm_0" in pair.left_out
    assert log.diff(theirs).verdict != "same"


# --- torch's other tools ----------------------------------------------------------------------------

TOLD_JOB = """
    import types
    from cgdebug._shared import _torch_logs
    from cgdebug._op_log.capture_cost import CaptureCost
    dm = debug_mode(eager=True)
    with dm:
        torch.ones(3, dtype=torch.complex64).real.exp()
    (log,) = dm._scope.logs
    cost = CaptureCost(log.graph, len(log.rows), 7, 0.25)
    _torch_logs.op_log_captured(log, cost)
    probe = CudaGraphTensorProbe("told", [TensorStats()], mode="always")
    probe(torch.ones(2, 3))
    _torch_logs.probes_captured(0)  # as a capture would be told
"""


def test_torch_logs_has_a_line_for_each_capture_and_each_probe_in_it(job, daemon):
    _, quiet = job(TOLD_JOB, stderr=subprocess.PIPE).finish()
    assert "told" not in quiet
    _, text = job(TOLD_JOB, stderr=subprocess.PIPE, TORCH_LOGS="+cgdebug").finish()
    assert "capture 0: 1 row in a graph of 7 nodes; to log them took 250 ms of the capture" in text
    assert "not shown: tensors of torch.complex64 are not shown" in text
    assert "capture 0: probe told, float32[2, 3], host lane" in text


def test_torch_trace_gets_an_artifact_with_the_rows(job, daemon, tmp_path):
    job(TOLD_JOB, stderr=subprocess.PIPE, TORCH_TRACE=str(tmp_path)).finish()
    (path,) = tmp_path.glob("*.log")
    lines = path.read_text().splitlines()
    names = [
        json.loads(line.partition("] ")[2])["artifact"]["name"]
        for line in lines
        if '"artifact"' in line
    ]
    own = [name for name in names if name.startswith("cgdebug_")]  # torch 2.15 has its version
    assert own == ["cgdebug_call_1_rows", "cgdebug_capture_0_rows", "cgdebug_capture_0_probes"]
    payloads = [json.loads(line) for line in lines if line.startswith('\t{"graph_id"')]
    rows, probes = payloads
    assert rows["rows"][-1]["name"] == "fwd/exp_0" and probes["probes"][0]["probe"] == "told"


ALL_TOLD = """
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    watch = cgdebug.watch(model, "0")
    torch.compile(model)(torch.ones(1, 2))
    watch.close()
    inputs = [torch.ones(size, 2) for size in (1, 1, 3)]
    dm = debug_mode(model, eager=True)
    with dm:
        for x in inputs:
            model(x)
"""


def test_watches_compiled_probes_and_eager_logs_are_told_once_for_each_list_of_rows(
    job, daemon, tmp_path
):
    trace = {"TORCH_TRACE": str(tmp_path), "TORCH_LOGS": "+cgdebug"}
    _, text = job(ALL_TOLD, stderr=subprocess.PIPE, **trace).finish()
    assert "watch 1: 0 of Sequential, level module: 1 modules" in text
    assert "compiled graph 1: 1 probes are in it" in text
    (path,) = tmp_path.glob("*.log")
    names = re.findall(r'"name": ?"(cgdebug_[a-z_0-9]+)"', path.read_text())
    assert names[:2] == ["cgdebug_watch_1", "cgdebug_compiled_1_probes"], names
    calls = [name for name in names if name.startswith("cgdebug_call_")]
    assert len(calls) == 2, names  # three calls, the first two with the same rows
    assert '"args": "bias' in path.read_text() or '"args": "self=#' in path.read_text()


def test_kernels_are_marked_only_where_a_capture_asks_for_it(monkeypatch):
    from cgdebug._shared import _torch_logs

    marked = []

    @contextlib.contextmanager
    def mark_kernels(annotation, *, backward=True):
        marked.append((annotation, backward))
        yield

    annotations = types.SimpleNamespace(mark_kernels=mark_kernels, _annotations_enabled=False)
    monkeypatch.setitem(sys.modules, "torch.cuda._graph_annotations", annotations)
    for enabled in (False, True):
        annotations._annotations_enabled = enabled
        with _torch_logs.marked("probe p"):
            pass
    assert marked == [("cgdebug probe p", False)]


DOT = """digraph dot {
subgraph cluster_1 {
label="graph_1" graph[style="dashed"];
"graph_1_node_0"[style="solid" shape="record" label="{KERNEL
| {ID | 0 (topoId: 1) | vectorAdd\\<\\<\\<196,256,0\\>\\>\\>}
| {{node handle | func handle} | {0x000055A1CE06D190 | 0x000055A1CE05DE60}}
| {priority | 0}
}"];

"graph_1_node_1"[style="solid" shape="record" label="{KERNEL
| {ID | 1 (topoId: 0) | Leaf\\<\\<\\<1,512,0\\>\\>\\>}
| {{node handle | func handle} | {0x000055A1CE06D2F0 | 0x000055A1CE05DE90}}
| {priority | 0}
}"];

"graph_1_node_0" -> "graph_1_node_1" [headlabel=0];
}
}
"""


def test_a_dump_of_a_graph_names_the_kernels_of_probes():
    named = _graph_dumps.annotate_dot(DOT, {0x55A1CE06D2F0: "probe a{b} (Leaf)"})
    added = "| {cgdebug | probe a\\{b\\} (Leaf)}\n"
    first, second, rest = named.partition('"graph_1_node_1"[')
    assert named.replace(added, "") == DOT, "nothing else changes"
    assert added not in first and rest.count(added) == 1
    assert rest.index(added) < rest.index('}"];'), "it belongs to the node"
    brief = "digraph dot {}"
    assert _graph_dumps.annotate_dot(brief, {1: "probe a (Leaf)"}) == brief


def test_the_data_of_a_graph_name_the_kernels_of_probes():
    data = {"nodes": [{"index": 0}, {"index": 1}]}
    _graph_dumps.annotate_data(data, {1: "row fwd/mm_0 (OpLogParts)"})
    assert data["nodes"] == [
        {"index": 0, "cgdebug": None},
        {"index": 1, "cgdebug": "row fwd/mm_0 (OpLogParts)"},
    ]


def test_a_dump_is_torchs_own_if_the_graph_cannot_be_looked_at(tmp_path):
    path = tmp_path / "graph.dot"
    graph = object()  # as one that torch does not keep, it gives no handle
    _graph_dumps._named_dump(lambda graph, path: path.write_text(DOT))(graph, path)
    assert path.read_text() == DOT


def test_every_dump_of_torch_is_followed(probe):
    probe(cgdebug.TensorStats())
    module = torch.cuda.graphs
    dump = getattr(module, "_dump_graph_dot", torch.cuda.CUDAGraph.debug_dump)
    assert dump.__wrapped__.__module__.startswith("torch"), dump
    assert list(inspect.signature(dump).parameters)[1] in ("path", "debug_path")


def test_torch_has_the_annotations_that_probes_use():
    annotations = pytest.importorskip("torch.cuda._graph_annotations")
    parameters = inspect.signature(annotations.mark_kernels).parameters
    if "backward" not in parameters:
        pytest.skip("a torch whose annotations are others")
    assert annotations._annotations_enabled is False
    assert next(iter(parameters)) == "annotation"


def test_a_mode_of_the_program_ends_as_it_would_when_the_log_was_opened_inside_it(debug_mode):
    from torch.utils.flop_counter import FlopCounterMode

    model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    log = debug_mode(model)
    with FlopCounterMode(display=False) as flops:
        log.__enter__()
        model(x)
    counted = flops.get_total_flops()
    model(x)
    log.__exit__(None, None, None)
    assert flops.get_total_flops() == counted == 2 * 2 * 4 * 4
    assert [row.op for row in log.log().rows if "addmm" in row.op] == ["aten.addmm.default"]
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []


def test_an_op_that_autograd_runs_under_a_default_device_is_logged(debug_mode):
    """No function mode of torch takes itself off for such an op, as it does for a function."""
    x = torch.ones(2, 4, requires_grad=True)
    with torch.device("cpu"), debug_mode(eager=True) as log:
        made = x.sin()
        gradient = made.grad_fn(torch.ones(2, 4))
    assert torch.equal(gradient, x.detach().cos())
    assert [row.op for row in log.log().rows if "cos" in row.op] == ["aten.cos.default"]


@pytest.mark.parametrize("ends_first", ["log", "mode"])
def test_compiled_code_runs_eagerly_as_long_as_a_mode_of_the_program_wants_it(
    debug_mode, ends_first
):
    from torch.utils.flop_counter import FlopCounterMode

    compiled, runs = [], []

    def backend(graph, _):
        compiled.append(graph)
        return lambda *inputs: runs.append(1) or graph(*inputs)

    torch._dynamo.reset()
    # Code that ran eagerly once stays so, also without a log: each is called once more.
    functions = [torch.compile(eval("lambda x: x.sin()"), backend=backend) for _ in range(3)]

    def runs_compiled(function):
        runs.clear()
        function(torch.ones(2))
        return bool(runs)

    assert all(map(runs_compiled, functions))
    log, flops = debug_mode(), FlopCounterMode(display=False)
    first, second = (log, flops) if ends_first == "log" else (flops, log)
    first.__enter__()
    second.__enter__()
    assert not runs_compiled(functions[0])
    first.__exit__(None, None, None)
    assert runs_compiled(functions[1]) == (ends_first == "mode")
    second.__exit__(None, None, None)
    assert runs_compiled(functions[2])
    assert len(compiled) == 3
