"""What the rows of op logs say beside their statistics: arguments, views, lines, code."""

import json
import os

import pytest
import torch

import cgdebug
from cgdebug._op_log.rows import call_details
from op_logs import make, needs_mode, tokens

pytestmark = needs_mode


def arguments(log):
    return {row.name: row.arguments for row in log}


def test_two_calls_that_differ_in_a_number_say_so(debug_mode):
    x = torch.randn(2, 3)
    with (dm := debug_mode()):
        torch.softmax(x, 0)
        torch.softmax(x, 1)
    log = dm.log()
    assert log["fwd/_softmax_0"].arguments == "self=#1, dim=0, half_to_float=False"
    assert log["fwd/_softmax_1"].arguments == "self=#1, dim=1, half_to_float=False"
    assert "dim=1" in str(log)


def test_dtypes_texts_lists_and_numbers_are_arguments(debug_mode):
    x = torch.ones(4)
    with (dm := debug_mode()):
        x.to(torch.float64)
        torch.div(x, 2.5, rounding_mode="floor")
        torch.cat([x, x * 2])
        torch.sum(x, [0], dtype=torch.float16)
    of = arguments(dm.log())
    assert "dtype=float64" in of["fwd/_to_copy_0"]
    assert of["fwd/div_0"] == "self=#1, other=2.5, rounding_mode='floor'"
    assert of["fwd/cat_0"] == "tensors=[#1, #4]"
    assert of["fwd/sum_0"] == "self=#1, dim=[0], dtype=float16"


def test_a_read_names_the_views_between_it_and_the_row(debug_mode):
    with (dm := debug_mode()):
        x = torch.ones(4, 6) * 2
        x.view(6, 4).t().exp()
        x[1:3].neg()
        x.exp()
    of = arguments(dm.log())
    assert of["fwd/exp_0"] == "self=#2.view([6, 4]).t()"
    assert of["fwd/neg_0"] == "self=#2.slice(0, 1, 3)"
    assert of["fwd/exp_1"] == "self=#2"


def test_views_are_told_with_the_row_that_follows_and_those_at_the_end_with_the_last(debug_mode):
    with (dm := debug_mode()):
        x = torch.ones(4, 6) * 2
        x.permute(1, 0).exp()
        x.expand(2, 4, 6)
    log = dm.log()
    assert log["fwd/exp_0"].views[0] == "#2.permute([1, 0]) -> f32[6,4]"
    assert log["fwd/exp_0"].views[1:] == ("after it: #2.expand([2, 4, 6]) -> f32[2,4,6]",)
    assert log["fwd/mul_0"].views == ()


def test_memory_that_a_row_wrote_through_a_view_is_not_said_to_be_the_row(debug_mode):
    with (dm := debug_mode()):
        x = torch.ones(4, 6) * 2
        x[0].add_(1)
        x.exp()
    of = arguments(dm.log())
    assert of["fwd/add__0"] == "self=#2.select(0, 0), other=1"
    assert of["fwd/exp_0"] == "self=memory of #3"


def test_a_parameter_that_is_viewed_before_it_is_read_has_its_name(debug_mode):
    model = torch.nn.Linear(3, 5)
    with (dm := debug_mode(model)), torch.no_grad():
        model(torch.ones(2, 3))
    row = next(row for row in dm.log() if row.op == "aten.addmm.default")
    assert any(view == "weight.t() -> f32[3,5]" for one in dm.log() for view in one.views)
    assert row.arguments.startswith("self=#")


def inner(x):
    return x.exp()


def outer(x):
    return inner(x)


def test_a_row_has_the_text_of_its_line_and_as_many_frames_as_asked_for(debug_mode):
    with (dm := debug_mode(frames=3)):
        outer(torch.ones(2))
    row = dm.log()["fwd/exp_0"]
    assert row.site.endswith("in inner") and row.code == "return x.exp()"
    assert len(row.stack) == 2
    assert row.stack[0].endswith("in outer: return inner(x)")
    assert row.stack[1].endswith("outer(torch.ones(2))")
    with (dm := debug_mode()):
        outer(torch.ones(2))
    assert dm.log()["fwd/exp_0"].stack == ()


def test_frames_come_from_the_environment_too_and_wrong_ones_are_refused(debug_mode, monkeypatch):
    monkeypatch.setenv("CGDEBUG_OP_LOG_FRAMES", "2")
    with (dm := debug_mode()):
        outer(torch.ones(2))
    assert len(dm.log()["fwd/exp_0"].stack) == 1
    for frames in (0, 33, "all", 2.0):
        with pytest.raises(ValueError, match="frames must lie between 1 and 32"):
            cgdebug.debug_mode(frames=frames)
    with pytest.raises(ValueError, match="frames is of levels with a log"):
        cgdebug.watch(torch.nn.Linear(2, 2), frames=2)


def test_every_is_a_whole_number_of_levels_with_a_log_and_eager_runs_are_logged_as_a_whole(
    debug_mode, daemon
):
    for wrong in (0, 1.5, True, "2", 2**32):
        with pytest.raises(ValueError, match="every must be a whole number from 1"):
            debug_mode(every=wrong)
    with pytest.raises(ValueError, match="every is of levels with a log"):
        cgdebug.watch(torch.nn.Linear(2, 2), every=10)
    dm = debug_mode(every=10)
    for number in range(1, 4):
        with dm:
            torch.full((2,), float(number)).add(1)
    assert [dm.log(replay=call)[-1].stats.max for call in dm.calls] == [2, 3, 4]


def test_a_row_of_backward_has_the_line_and_the_code_of_forward(debug_mode):
    x = torch.ones(2, requires_grad=True)
    with (dm := debug_mode()):
        y = x.sin().sum()
        y.backward()
    row = next(row for row in dm.log() if row.op == "aten.cos.default")
    assert row.code == "y = x.sin().sum()"


class Inverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.reciprocal()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return -gradient / (x * x)


def test_a_row_of_an_own_backward_has_its_own_line(debug_mode):
    x = torch.ones(2, requires_grad=True)
    with (dm := debug_mode()):
        Inverse.apply(x).sum().backward()
    lines = {row.op: (row.code, row.site.rpartition(" in ")[2]) for row in dm.log()}
    assert lines["aten.div.Tensor"] == ("return -gradient / (x * x)", "backward")
    assert lines["aten.reciprocal.default"] == ("return x.reciprocal()", "forward")


def test_an_op_that_raises_leaves_rows_of_what_it_was_given(debug_mode, cli, client, tmp_path):
    table, path = torch.nn.Embedding(10, 4), str(tmp_path / "a.cgrec")
    with client.record(path), (dm := debug_mode(table)), pytest.raises(IndexError):
        table(torch.tensor([3, 12]))
    row = dm.log()[-1]
    assert row.name.endswith("embedding_0.indices") and row.stats.max == 12
    # Nobody knows what came of it: the call may go on, and is not called complete.
    where = cli("where", path).stdout
    call = f"call {dm.log().replay}: after {row.name} (#{row.number}, {row.site})"
    assert call in where and "complete" not in where, where


def test_what_varies_from_call_to_call_is_said_to_vary_and_makes_no_page_for_each(
    debug_mode, cli, monkeypatch
):
    monkeypatch.setattr(call_details, "_MAX_EXACT_CALLS", 1)
    model = torch.nn.Identity()
    dm = debug_mode(model)
    calls, x = 4, torch.ones(2)
    with dm:
        for number in range(calls):
            torch.remainder(model(x), number + 0.5)
    newest = dm.log()
    assert newest["fwd/remainder_0"].arguments == f"self=#1, other={calls - 0.5}"
    first = dm.log(replay=dm.calls[0])
    assert first["fwd/remainder_0"].arguments == "self=#1, other=0.5"  # of its own page
    assert dm.log(replay=dm.calls[1])["fwd/remainder_0"].arguments == "self=#1, other=(varies)"
    done = cli("ops", f"{os.getpid()}@call:{dm.calls[-1]}", "--json")
    row = next(row for row in json.loads(done.stdout)["rows"] if row["name"] == "fwd/remainder_0")
    assert row["details"]["args"] == "self=#1, other=(varies)"
    with cgdebug.connect() as client:
        slots = [one for one in client.probes("fwd/remainder_0") if one.op]
    assert len(slots) == 2  # the first call's, and one for all others


def test_the_command_shows_arguments_views_lines_and_the_tree(debug_mode, cli):
    model = make()
    dm = debug_mode(model, frames=2)
    with dm, torch.no_grad():
        model(tokens())
    dm.log()
    source = str(os.getpid())
    plain = cli("ops", source, "--graph", "eager")
    assert "ARGUMENTS" in plain.stdout and "dim=-1, half_to_float=False" in plain.stdout
    views = cli("ops", source, "--graph", "eager", "--views").stdout
    assert ".t() -> f32[8,8]" in views and "aten._softmax.default(self=#" in views
    stack = cli("ops", source, "--graph", "eager", "--stack").stdout
    assert "in forward: scores = (q @ q.transpose(-1, -2)) * self.scale" in stack
    tree = cli("ops", source, "--graph", "eager", "--tree").stdout.splitlines()
    at = tree.index("fwd")
    assert "  layers" in tree and "    0" in tree and "      attn" in tree, tree[at:]
    assert any(line.startswith("        #") and "_softmax_0 = " in line for line in tree)


def test_details_are_in_recordings_sql_and_rows_of_python(debug_mode, cli, tmp_path):
    model, path = make(), str(tmp_path / "a.cgrec")
    with cgdebug.connect().record(path):
        with (dm := debug_mode(model)), torch.no_grad():
            model(tokens())
        dm.log()
    query = (
        "select json_extract(details, '$.args') as args, json_extract(details, '$.code') as code "
        "from probe where name = 'fwd/layers.0.attn/_softmax_0'"
    )
    done = cli("query", path, query, "--json")
    assert done.returncode == 0, done.stderr
    assert "dim=-1, half_to_float=False" in done.stdout and "torch.softmax(scores" in done.stdout
    shown = cli("ops", path, "--stack")
    assert "return self.wo(torch.softmax(scores, -1) @ q)" in shown.stdout
    with cgdebug.open(path) as recording:
        assert "dim=-1" in recording["fwd/layers.0.attn/_softmax_0"].details["args"]


ROW = "fwd/layers.0.attn/_softmax_0"
PARTS = {
    "arguments": "half_to_float=False",
    "code": "torch.softmax(scores",
    "module": "layers.0.attn",
    "stack": "x = x + self.attn(self.norm(x))",
    "region": "stage1",
    "column of a hook": "mine",
    "memory": "allocated",
}


def test_every_view_of_a_recording_says_what_an_op_was_given(debug_mode, cli, tmp_path):
    model, path, page = make(), str(tmp_path / "a.cgrec"), str(tmp_path / "a.html")

    def tag(call):
        return {"tag": "mine"}

    with cgdebug.connect().record(path):
        dm = debug_mode(model, frames=2, hooks=[tag, "memory"])
        with dm, torch.no_grad(), cgdebug.annotate("stage1"):
            model(tokens())
        log = dm.log()
    live = f"{os.getpid()}:{ROW}"
    views = {
        "ops --stack": cli("ops", path, "--stack").stdout,
        "ops --json": cli("ops", path, "--json").stdout,
        "show": cli("show", f"{path}:{ROW}").stdout,
        "show --json": cli("show", f"{path}:{ROW}", "--json").stdout,
        "show of a live job": cli("show", live).stdout,
        "SQL": cli("query", path, f"select * from v_ops where name = '{ROW}'", "--json").stdout,
        "stats --json": cli("stats", path, ROW, "--json").stdout,
        "Python": repr(log[ROW]),
        "a notebook": log._repr_html_(),
    }
    assert cli("report", path, "-o", page).returncode == 0
    with open(page, encoding="utf-8") as file:
        views["report"] = file.read()
    with cgdebug.open(path) as recording:
        views["Python, recorded"] = f"{ROW} {recording[ROW].details}"
    at_a_glance = {"ops": cli("ops", path).stdout, "print(log)": str(log)}
    lacks = [
        (view, part)
        for view, shown in (views | at_a_glance).items()
        for part, text in PARTS.items()
        if text not in shown
        and not (part == "stack" and view in {"a notebook", *at_a_glance})
        and not (part == "module" and view == "a notebook")  # it has the last rows
        and not (part == "code" and view in at_a_glance)
    ]
    assert lacks == []


def test_rows_of_an_op_log_are_a_table_of_sql(debug_mode, cli, tmp_path):
    path = str(tmp_path / "a.cgrec")
    with cgdebug.connect().record(path):
        with (dm := debug_mode(hooks=["memory"])):
            torch.softmax(torch.ones(2, 3), 1)
        dm.log()
    query = (
        "select number, phase, module, op, args, json_extract(columns, '$.kept') as kept "
        "from v_ops order by number"
    )
    rows = json.loads(cli("query", path, query, "--json").stdout)
    assert [list(row.values()) for row in rows] == [
        [1, "fwd", "", "aten.ones.default", rows[0]["args"], 24],
        [2, "fwd", "", "aten._softmax.default", "self=#1, dim=1, half_to_float=False", 24],
    ]


DTENSORS = """
    import json
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    x = distribute_tensor(torch.full((2, 2), 3.0), mesh, [Shard(0)])
    dm = cgdebug.debug_mode(eager=True)
    with dm:
        x.exp()
        x.redistribute(mesh, [Replicate()]).neg()
    print(json.dumps([(row.op, row.placements) for row in dm.log()]))
"""


def test_rows_of_dtensors_have_their_placements_and_redistributions(daemon, job):
    rows = dict(json.loads(job(DTENSORS).line()))
    assert rows["aten.exp.default"] == "on DTensors: self=f32[2,2] S(0)"
    assert rows["aten.neg.default"] == "on DTensors: self=f32[2,2] R"
    gathered = [text for op, text in rows.items() if "all_gather" in op]
    assert gathered == ["redistributes S(0) -> R"] or not gathered, rows


TWO_RANKS = """
    import json
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
    from torch.utils._debug_mode import DebugMode

    dist.init_process_group("gloo", init_method="file://STORE", rank=RANK, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    a = distribute_tensor(torch.arange(16.0).view(4, 4), mesh, [Shard(0)])
    b = distribute_tensor(torch.eye(4), mesh, [Shard(0)])

    def step():
        y = a @ b  # which redistributes b
        y.redistribute(mesh, [Replicate()]).sum()

    with DebugMode() as theirs:
        step()
    with cgdebug.debug_mode(eager=True) as dm:
        step()
    rows = [(row.op, row.placements) for row in dm.log()]
    print(json.dumps([theirs.debug_string(), rows]), flush=True)
    dist.destroy_process_group()
"""


def test_redistributions_of_two_ranks_are_those_that_debug_mode_shows(daemon, job, tmp_path):
    pytest.importorskip("torch.utils._debug_mode")
    script = TWO_RANKS.replace("STORE", str(tmp_path / "store"))
    ranks = [job(script.replace("RANK", str(rank))) for rank in range(2)]
    for rank in ranks:
        theirs, rows = json.loads(rank.line())
        assert theirs.count("trace: S(0)->R") == 2, theirs  # of b, and of y
        gathered = [placements for op, placements in rows if "all_gather" in op]
        assert gathered == ["redistributes S(0) -> R"] * 2, rows
        placed = dict(rows)
        assert placed["aten.mm.default"] == "on DTensors: self=f32[4,4] S(0), mat2=f32[4,4] S(0)"
        assert placed["aten.sum.default"] == "on DTensors: self=f32[4,4] R"


def test_memory_that_an_op_leaves_as_it_was_has_no_row(daemon):
    scores = torch.randn(12, 2, 5).log_softmax(-1).requires_grad_()
    with cgdebug.debug_mode(eager=True) as dm:
        loss = torch.nn.functional.ctc_loss(
            scores, torch.randint(1, 5, (2, 4)), torch.tensor([12, 9]), torch.tensor([4, 3])
        )
        loss.backward()
    rows = [row for row in dm.log().rows if "_ctc_loss" in row.op]
    assert [row.op.split(".")[1] for row in rows] == ["_ctc_loss", "_ctc_loss_backward"]
    assert tuple(rows[0].shape) == (2,)  # one loss for each sequence, and no table of its steps
