"""Op logs on the CPU: every op of an eager run by name, and what the modes leave behind."""

import copy
import gc
import itertools
import json
import os
import re
import shlex
import threading
import types
import weakref

import numpy
import pytest
import torch
import torch._dynamo
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import cgdebug
from cgdebug._op_log import following, scopes, written
from cgdebug._op_log.following import triton_kernels
from conftest import own_session
from op_logs import SIZE, check_names, make, needs_mode, tokens, train

pytestmark = needs_mode


def test_a_daemon_that_the_job_may_not_start_is_read_from(debug_mode, monkeypatch):
    monkeypatch.setenv("CGDEBUG", "0")
    dm = debug_mode(make())
    with dm:
        torch.ones(2) + 1
    assert [row.op for row in dm.log()]
    monkeypatch.setenv("CGDEBUG_SOCKET", "/nonexistent/daemon.sock")
    with pytest.raises(ConnectionError, match="CGDEBUG=0 keeps the daemon from being started"):
        dm.log()


def test_an_eager_step_is_logged_with_its_backward_and_its_optimizer(debug_mode):
    model = make()
    dm = debug_mode(model)
    with dm:
        train(model)
    log = dm.log()
    check_names(
        log,
        "fwd/embed/embedding_0",
        "fwd/layers.0.attn/bmm_0",
        "fwd/layers.1.attn/_softmax_0",
        "fwd/layers.1.gate/mm_0",
        "bwd/layers.0.attn.wq/mm_0",
        "in/layers.1.up.weight",
    )
    # Each row is what the op computed.
    q = model.layers[0].attn
    row = log["fwd/layers.0.attn/_softmax_0"]
    assert (row.dtype, row.shape) == ("float32", (2, 5, 5))
    assert row.stats.l1 == pytest.approx(10.0)  # each row of a softmax sums to 1
    assert "op_logs.py" in row.site and row.site.endswith("in forward")
    assert log["bwd/layers.0.attn/_softmax_backward_data_0"].site == row.site
    assert [log.rows[number - 1].name for number in row.inputs] == ["fwd/layers.0.attn/mul_0"]
    assert q.wq.weight.grad is None


def test_the_statistics_of_rows_are_those_of_the_tensors(debug_mode):
    x = torch.randn(5, 7)
    with (dm := debug_mode()):
        y = x.exp()
        z = torch.cat([y, x])
        z.mul_(2)
    log = dm.log()
    assert [row.name for row in log] == ["in/exp_0.self", "fwd/exp_0", "fwd/cat_0", "fwd/mul__0"]
    assert [row.inputs for row in log] == [(), (1,), (2, 1), (3,)]
    for row, value in zip(log, (x, y, torch.cat([y, x]), z)):
        assert row.stats.xor_hash == torch.hash_tensor(value).item()
        assert row.stats.abs_max == value.abs().max().item()


def test_views_and_memory_that_nobody_has_written_are_no_rows(debug_mode):
    x = torch.ones(4, 4)
    with (dm := debug_mode()):
        view = x.t()[1:].detach()
        memory = torch.empty(3, 4)
        memory.copy_(view)
        torch.zeros_like(x)
    log = dm.log()
    assert [row.op for row in log] == ["input", "aten.copy_.default", "aten.zeros_like.default"]
    assert log[1].inputs == (1,) and log[2].inputs == ()


def test_ops_that_change_only_the_shape_are_no_rows(debug_mode):
    x = torch.ones(3, 4)
    with (dm := debug_mode()):
        x.t_().unsqueeze_(0)
        x.exp()
    assert [row.name for row in dm.log()] == ["in/exp_0.self", "fwd/exp_0"]


def test_backward_of_a_checkpointed_layer_has_its_module(debug_mode):
    from torch.utils.checkpoint import checkpoint

    model, x = make(), torch.randn(2, 5, SIZE, requires_grad=True)
    with (dm := debug_mode(model)):
        checkpoint(model.layers[0], x, use_reentrant=False).sum().backward()
    names = [row.name for row in dm.log()]
    assert "bwd/layers.0.attn.wq/addmm_0" in names  # the forward pass again
    assert "bwd/layers.0.attn.wq/mm_0" in names, names


def test_lists_are_linked_one_by_one(debug_mode):
    a, b = [torch.ones(2), torch.ones(3)], [torch.full((2,), 2.0), torch.full((3,), 3.0)]
    with (dm := debug_mode()):
        torch._foreach_add_(a, b)
    log = dm.log()
    rows = [row for row in log if row.op != "input"]
    assert [row.name for row in rows] == ["fwd/_foreach_add__0.0", "fwd/_foreach_add__0.1"]
    assert [[log.rows[n - 1].stats.max for n in row.inputs] for row in rows] == [[1, 2], [1, 3]]


def test_the_first_nan_is_named_and_the_command_says_what_it_read(debug_mode, cli):
    model = make()
    with torch.no_grad():
        model.layers[1].attn.wo.weight[0, 0] = torch.inf
    with (dm := debug_mode(model)):
        model(tokens())
    assert dm.log().first_nonfinite.name == "in/layers.1.attn.wo.weight"
    done = cli("ops", str(os.getpid()), "--only", "nan")
    assert done.returncode == 1, done.stderr
    assert cli("ops", str(os.getpid()), "--exit-zero").returncode == 0
    assert "first non-finite: #" in done.stdout and "in/layers.1.attn.wo.weight" in done.stdout
    answer = json.loads(cli("ops", str(os.getpid()), "--json").stdout)
    assert answer["first_nonfinite"]["name"] == "in/layers.1.attn.wo.weight"
    assert answer["lost"] == 0 and answer["missing"] == []


def test_the_first_nan_is_named_beside_the_inf_of_a_mask(debug_mode, cli):
    hidden = torch.tensor([[True, True], [False, True]])
    with (dm := debug_mode()):
        scores = torch.ones(2, 2).masked_fill(hidden, -torch.inf)
        scores.softmax(-1) + 1
    log = dm.log()
    assert [row.name for row in log.masks] == ["fwd/masked_fill_0"]
    assert log.first_nonfinite is log.first_nan
    assert log.first_nan.name == "fwd/_softmax_0" and "<-- first NaN" in str(log)
    text = cli("ops", str(os.getpid())).stdout
    number = log.first_nan.number
    assert f"first non-finite: #{number} fwd/_softmax_0, 2 NaN" in text
    (masks,) = [line for line in text.splitlines() if "(a mask?)" in line]
    assert "fwd/masked_fill_0" in masks, "it is not hidden"
    assert masks in str(log).splitlines(), "Python says the same"
    assert "what aten._softmax.default read has Inf, and no NaN" in text
    answer = json.loads(cli("ops", str(os.getpid()), "--json").stdout)
    assert answer["first_nan"] == {"number": number, "name": "fwd/_softmax_0"}
    assert answer["first_nonfinite"]["number"] == number and len(answer["masks"]) == 1


def test_python_and_the_command_name_no_mask_as_the_first_nonfinite(debug_mode, cli):
    with (dm := debug_mode()):
        mask = torch.full((3, 3), -torch.inf).triu(1)
        (torch.ones(3, 3) + mask).softmax(-1)
    log = dm.log()
    answer = json.loads(cli("ops", str(os.getpid()), "--json").stdout)
    assert log.first_nonfinite is None and answer["first_nonfinite"] is None
    assert [row.number for row in log.masks] == answer["masks"] != []
    assert "first non-finite" not in str(log)


def test_a_row_that_makes_inf_of_finite_inputs_is_named_as_its_origin(debug_mode, cli):
    with (dm := debug_mode()):
        torch.full((3,), 1e30).mul(1e30)
    assert dm.log().first_nonfinite.name == "fwd/mul_0"
    text = cli("ops", str(os.getpid())).stdout
    assert "#2 fwd/mul_0, 3 +Inf" in text and "what aten.mul.Tensor read is finite: #1" in text


def test_a_diff_names_the_op_that_differs_while_its_inputs_agree(debug_mode, cli, tmp_path):
    right, wrong = make(), make()
    wrong.layers[1].attn.scale = 1.001
    path = [str(tmp_path / "right.cgrec"), str(tmp_path / "wrong.cgrec")]
    logs = []
    for model, where in zip((right, wrong), path):
        with cgdebug.connect().record(where):
            with (dm := debug_mode(model)):
                train(model)
            logs.append(dm.log())
        dm.close()
    diff = logs[1].diff(logs[0])
    assert (diff.verdict, diff.first) == ("different", "fwd/layers.1.attn/mul_0")
    assert logs[0].diff(logs[0]).verdict == "same"
    found = cli("ops", "diff", path[1], path[0])
    assert found.returncode == 1, found.stdout + found.stderr
    assert "first divergence: #" in found.stdout and "fwd/layers.1.attn/mul_0" in found.stdout
    assert cli("ops", "diff", path[0], path[0]).returncode == 0
    assert cli("ops", "diff", "--exit-zero", path[1], path[0]).returncode == 0
    answer = json.loads(cli("ops", "diff", "--json", path[1], path[0]).stdout)
    assert answer["first_divergence"]["name"] == "fwd/layers.1.attn/mul_0"


def test_a_diff_over_rows_that_only_one_has_is_inconclusive(debug_mode, cli, tmp_path):
    logs, path = [], str(tmp_path / "both.cgrec")
    with cgdebug.connect().record(path):
        for extra in (False, True):
            with (dm := debug_mode()):
                torch.ones(4).exp()
                if extra:
                    torch.zeros(3).cos()
            logs.append(dm.log())
    diff = logs[0].diff(logs[1])
    assert diff.verdict == "inconclusive" and "2 rows are only in B" in diff.text
    done = cli("ops", "diff", *(f"{path}@call:{log.replay}" for log in logs))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "2 rows are only in B" in done.stdout
    both = cli("ops", "diff", path, path)
    assert both.returncode == 0, both.stdout + both.stderr
    assert "same: " in both.stdout and " rows compared in 2 replays" in both.stdout
    assert cli("ops", "diff", f"{path}@-1", f"{path}@-1").returncode == 0
    assert cli("ops", "diff", f"{path}@g:eager", f"{path}@g:eager").returncode == 0


def test_a_diff_of_two_runs_stops_at_the_first_call_that_differs(debug_mode, cli, tmp_path):
    paths = [str(tmp_path / f"{name}.cgrec") for name in ("right", "wrong", "permuted")]
    torch.manual_seed(5)
    calls = [torch.randn(4, 6) for _ in range(4)]
    for path in paths:
        with cgdebug.connect().record(path):
            dm = debug_mode()
            for number, x in enumerate(calls):
                with dm:
                    y = x * 2
                    y = y * (1.0001 if path == paths[1] and number >= 2 else 1)
                    y = y.roll(1 if path == paths[2] else 0, 0)
                    y.exp()
            dm.log()
            dm.close()
    same = cli("ops", "diff", paths[0], paths[0])
    assert same.returncode == 0 and " in 4 replays, 0 differ" in same.stdout, same.stdout
    wrong = cli("ops", "diff", paths[1], paths[0])
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert re.search(r"in call \d+ \(A\) against call \d+ \(B\)", wrong.stdout), wrong.stdout
    assert "the 2 before it" in wrong.stdout
    answer = json.loads(cli("--json", "ops", "diff", paths[1], paths[0]).stdout)
    assert (answer["replays_compared"], answer["replays_in_common"]) == (3, 4)
    permuted = cli("ops", "diff", paths[2], paths[0])
    assert permuted.returncode == 1, "the same elements in another order"


def test_what_was_not_compared_before_the_call_that_differs_is_said(debug_mode, cli, tmp_path):
    """A buffer that one run alone updates differs as an input of the next call."""
    paths = [str(tmp_path / f"{name}.cgrec") for name in ("right", "wrong")]
    for path in paths:
        state = torch.ones(4)
        with cgdebug.connect().record(path):
            dm = debug_mode()
            for number in range(4):
                with dm:
                    (state * 2).exp()
                    if path == paths[1] and number == 1:
                        state.add_(1)
            dm.log()
            dm.close()
    found = cli("ops", "diff", *paths)
    assert found.returncode == 1, found.stdout + found.stderr
    assert re.search(r"in call \d+ \(A\)", found.stdout), found.stdout
    assert "what was compared of the 2 before it agrees" in found.stdout
    assert re.search(r"not compared before: call \d+: .*only in B: #\d+ \S*add__?0", found.stdout)
    assert "what wrote it may be among what was not compared" in found.stdout


def run_adam(net):
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(3):
        yield
        optimizer.zero_grad()
        net(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()


def run_accumulated(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for number in range(6):
        yield
        net(torch.randn(4, 6)).square().mean().backward()
        if number % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()


def run_evaluated(net):
    for number in range(6):
        yield
        net.train(number % 3 != 2)
        net(torch.randn(4 + number % 2, 6)).square().mean().backward()


@pytest.mark.parametrize("run", [run_adam, run_accumulated, run_evaluated])
def test_two_equal_seeded_runs_are_the_same(debug_mode, cli, tmp_path, run):
    paths = [str(tmp_path / f"{name}.cgrec") for name in "ab"]
    for path in paths:
        torch.manual_seed(3)
        net = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.ReLU()
        )
        with cgdebug.connect().record(path):
            dm = debug_mode(net)
            calls = run(net)
            is_on = next(calls, "over") != "over"
            while is_on:
                with dm:
                    is_on = next(calls, "over") != "over"
            dm.log()
            dm.close()
    done = cli("ops", "diff", *paths)
    assert done.returncode == 0 and "same: " in done.stdout, done.stdout + done.stderr


def test_the_line_of_an_eager_run_shows_that_run_whatever_came_later(debug_mode, cli):
    calls = []
    for op in (torch.exp, torch.cos):
        with (dm := debug_mode()):
            op(torch.ones(4))
        calls.append(dm.log().replay)  # it has been read
    said = cli("tail", "-n", "999", "-s", own_session()).stdout
    commands = [re.search(rf"cgdebug-cli (ops .*@call:{call}')", said)[1] for call in calls]
    shown = [cli(*shlex.split(command)).stdout for command in commands]
    assert ["exp_0" in shown[0], "cos_0" in shown[0]] == [True, False], said
    assert ["exp_0" in shown[1], "cos_0" in shown[1]] == [False, True], said


def test_a_later_replay_names_the_one_in_which_its_nan_began(debug_mode, cli, tmp_path):
    weight, scale = torch.ones(2), torch.ones(2)
    path = str(tmp_path / "nan.cgrec")
    dm = debug_mode()
    with cgdebug.connect().record(path, "*"):
        for value in (1.0, 0.0, 1.0):
            scale.fill_(value)
            with dm:
                weight.mul_(scale).div_(scale)
        dm.log()  # it has been read
    began = dm.calls[1]
    job = own_session()
    for words in ([path], ["-s", job, path]):  # the job has calls of other tests, too
        done = cli("ops", *words)
        assert "in/" in done.stdout.split("first non-finite: ")[1], "that of before"
        command = re.search(
            rf"the first NaN .* call {began}. Type: cgdebug-cli (ops .*)", done.stderr
        )
        assert command, done.stderr
        assert all(word in shlex.split(command[1]) for word in words[:-1])
        shown = cli(*shlex.split(command[1]))
        assert f"call {began}:" in shown.stdout and "Type:" not in shown.stderr
        assert json.loads(cli("--json", "ops", *words).stdout)["nan_since"] == began
    # Of the job, other tests have left findings too.
    hint = re.search(r"next:  cgdebug-cli (ops .*)", cli("check", path).stderr)
    assert hint and f"call {began}:" in cli(*shlex.split(hint[1])).stdout


def test_another_run_under_the_same_names_is_another_call(debug_mode):
    model = make()
    dm = debug_mode(model)
    for _ in range(2):
        with dm:
            train(model)
    first, second = (dm.log(replay=call) for call in dm.calls)
    assert [row.name for row in first] == [row.name for row in second]
    name = "in/head.weight"
    assert first[name].stats.xor_hash != second[name].stats.xor_hash
    assert first["fwd/embed/embedding_0"].stats and second.replay == dm.calls[1]


def test_ops_of_nothing_says_what_to_write(cli, tmp_path, probe):
    path = str(tmp_path / "no_ops.cgrec")
    with cgdebug.connect().record(path, "no_op"):
        probe(cgdebug.TensorStats(), name="no_op")(torch.ones(2))
    done = cli("ops", path)
    assert done.returncode == 4 and "debug_mode" in done.stderr, done.stdout
    assert cli("ops", f"{path}@x").returncode == 2


# --- what it leaves behind ------------------------------------------------------------------------


def test_compiled_code_runs_compiled_without_recompilation_and_stays_so(debug_mode):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    calls, model = [], make()

    def backend(graph, inputs):
        from torch._dynamo.backends.debugging import aot_eager

        compiled = aot_eager(graph, inputs)

        def run(*args):
            calls.append(1)
            return compiled(*args)

        return run

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    expected = compiled(tokens())
    frames = torch._dynamo.utils.counters["frames"].copy()
    with (dm := debug_mode(model)), torch._dynamo.config.patch(error_on_recompile=True):
        actual = compiled(tokens())
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled(tokens())
    assert len(calls) == 3
    assert torch._dynamo.utils.counters["frames"] == frames
    assert torch.equal(actual, expected)
    names = [row.name for row in dm.log()]
    assert sum("mm_" in name for name in names) >= 9, names


def test_the_graph_that_a_compiler_makes_of_a_function_is_no_module(debug_mode):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.sin().cos(), backend="aot_eager")
    with (dm := debug_mode()):
        compiled(torch.ones(3))
    assert "fwd/cos_0" in [row.name for row in dm.log()]


def test_bits_are_those_without_the_log(debug_mode):
    plain, logged = make(), make()
    losses = [train(plain) for _ in range(3)]
    dm = debug_mode(logged)
    for expected in losses:
        with dm:
            assert torch.equal(train(logged), expected)
    for a, b in zip(plain.parameters(), logged.parameters()):
        assert torch.equal(a, b)


def test_an_exception_in_the_scope_leaves_nothing(debug_mode):
    with pytest.raises(ZeroDivisionError), debug_mode():
        torch.ones(2).exp()
        raise ZeroDivisionError
    assert _get_current_dispatch_mode_stack() == []
    assert not torch.nn.modules.module._global_forward_hooks


def test_a_mode_that_somebody_left_entered_stays_when_ours_goes(debug_mode):
    class Other(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    other = Other()
    with debug_mode():
        other.__enter__()
    try:
        assert _get_current_dispatch_mode_stack() == [other]
    finally:
        other.__exit__(None, None, None)


def test_nested_scopes_log_both(debug_mode):
    outer, inner = debug_mode(), debug_mode()
    with outer:
        torch.ones(2).exp()
        with inner:
            torch.ones(3).sin()
    assert "fwd/sin_0" in [row.name for row in inner.log()]
    assert {"fwd/exp_0", "fwd/sin_0"} <= {row.name for row in outer.log()}


def test_another_thread_is_not_logged_but_the_backward_that_a_scope_starts_is(debug_mode):
    x = torch.ones(3, requires_grad=True)
    with (dm := debug_mode()):
        thread = threading.Thread(target=lambda: torch.ones(4).tan())
        thread.start()
        thread.join()
        x.exp().sum().backward()
    names = [row.name for row in dm.log()]
    assert "fwd/tan_0" not in names and "bwd/mul_0" in names


def test_no_tensor_outlives_its_op(debug_mode):
    with debug_mode():
        x = torch.ones(1000)
        y = x.exp()
        seen = weakref.ref(y)
        del y
        assert seen() is None


def test_what_cannot_be_seen_is_a_gap_and_no_error(debug_mode):
    with (dm := debug_mode()):
        z = torch.ones(2, dtype=torch.complex64)
        z.real.exp()
    log = dm.log()
    assert any("complex64" in gap for gap in log.gaps)
    assert log["fwd/exp_0"].is_covered is False


def test_what_a_log_does_not_show_reaches_the_commands_live_and_recorded(debug_mode, cli, tmp_path):
    whole, path = str(tmp_path / "whole.cgrec"), str(tmp_path / "gap.cgrec")
    for where, dtype in ((whole, torch.float64), (path, torch.complex64)):
        # What is not shown belongs to a recording of some rows, too.
        with cgdebug.connect().record(where, "fwd/*"):
            with (dm := debug_mode()):
                torch.ones(2, dtype=torch.float32).exp()
                torch.zeros(3, dtype=dtype)
            log = dm.log()
        if where == whole:
            dm.close()
    (gap,) = log.gaps
    for source in (f"{os.getpid()}@-1", path):  # calls of other tests have NaN
        shown = cli("ops", source)
        assert shown.returncode == 3, shown.stdout + shown.stderr
        assert "inconclusive: no NaN or Inf in what is shown" in shown.stdout
        assert gap in shown.stderr
        answer = cli("ops", source, "--json")
        assert answer.returncode == 3 and gap in json.loads(answer.stdout)["missing"]
    same = cli("ops", "diff", path, path)
    assert same.returncode == 3 and f"not compared: A: {gap}" in same.stdout
    checked = cli("check", path)
    assert checked.returncode == 3 and f"missing: not logged: {gap}" in checked.stdout
    with cgdebug.open(path) as recording:
        assert not recording.complete and f"not logged: {gap}" in recording.missing
        assert set(recording.probes) == {"fwd/ones_0", "fwd/exp_0"}
    listed = cli("probes", path).stdout + cli("probes", "-s", str(os.getpid())).stdout
    assert "ops/gap" not in listed
    part = str(tmp_path / "part.cgrec")
    # The account of the process has it too, whatever is taken of the recording.
    assert cli("extract", path, "-o", part, "--probes", "fwd/exp_0").returncode == 3
    assert gap in cli("ops", part).stderr
    assert cli("ops", whole).returncode == 0 and cli("check", whole).returncode == 0


def test_a_gap_of_one_run_is_none_of_another(debug_mode, cli, tmp_path):
    path = str(tmp_path / "two.cgrec")
    dm = debug_mode()
    calls = []
    with cgdebug.connect().record(path):
        for dtype in (torch.complex64, torch.float32):
            with dm:
                torch.ones(2).exp()
                torch.zeros(3, dtype=dtype)
            calls.append(dm.log().replay)
            dm = debug_mode()
    shown = [json.loads(cli("--json", "ops", f"{path}@call:{call}").stdout) for call in calls]
    gap = "tensors of torch.complex64 are not shown"
    assert [one["missing"] for one in shown] == [[gap], []]
    assert [one["verdict"] for one in shown] == ["inconclusive", "nothing"]
    checked = [cli("check", path, "--replays", str(call)) for call in calls]
    assert [one.returncode for one in checked] == [3, 0], checked
    checked = cli("check", path)
    assert checked.returncode == 3 and checked.stdout.count(gap) == 1, checked.stdout
    assert f"missing: not logged: {gap}" in checked.stdout
    with cgdebug.open(path) as recording:
        assert [one for one in recording.missing if gap in one] == [f"not logged: {gap}"]


def test_a_live_log_of_a_call_has_the_gaps_of_this_call(debug_mode):
    dm = debug_mode()
    gap = "tensors of torch.complex64 are not shown"
    for dtypes in ((), (torch.complex64,), (torch.complex64,) * 2, ()):
        with dm:
            torch.ones(2).exp()
            for dtype in dtypes:
                torch.zeros(3, dtype=dtype)
    assert [dm.log(replay=call).gaps for call in dm.calls] == [[], [gap], [f"{gap} (2 times)"], []]


def test_a_call_without_any_row_leaves_its_gap_with_the_log(debug_mode):
    dm = debug_mode()
    with dm:
        torch.ones(2).exp()
    with dm:
        torch.zeros(3, dtype=torch.complex64)
    gap = ["tensors of torch.complex64 are not shown"]
    assert dm.log().gaps == dm.log(replay=dm.calls[0]).gaps == gap, "nobody knows which call"


def test_the_values_of_a_log_are_its_own_whatever_other_logs_have_rows_of_these_names(debug_mode):
    first, second = debug_mode(), debug_mode()
    for dm, value in ((first, 1.0), (second, 2.0)):
        with dm:
            torch.full((3,), value).exp()
    assert [log["fwd/full_0"].stats.max for log in (first.log(), second.log())] == [1.0, 2.0]
    assert first.log().diff(second.log()).verdict == "different"


def test_the_values_of_a_run_are_its_own_if_the_run_before_had_other_rows(debug_mode):
    dm = debug_mode()
    for size, value in ((3, 1.0), (2, 2.0), (3, 4.0)):
        with dm:
            torch.full((size,), value).exp()
        row = dm.log()["fwd/full_0"]
        assert (row.shape, row.stats.count, row.stats.max) == ((size,), size, value)


def test_a_store_of_which_an_op_writes_a_small_part_is_a_gap_and_no_row(debug_mode, monkeypatch):
    monkeypatch.setattr(written, "_STORE_BYTES", 1024)
    cache, index, keys = torch.zeros(1000, 4), torch.tensor([1, 2]), torch.ones(2, 4)

    class Net(torch.nn.Module):
        def forward(self, x):
            cache.index_copy_(0, index, keys * x)
            return torch.zeros(1000, 4).index_copy_(0, index, keys).sum() + cache.sum()

    net = Net()
    dm = debug_mode(net, eager=True)
    with dm:
        net(torch.ones(4))
    log = dm.log()
    large = [row.name for row in log if row.shape == (1000, 4)]
    assert large == ["fwd/Net/zeros_0", "fwd/Net/index_copy__0"], "what the log has seen made"
    assert [
        gap for gap in log.gaps if "aten.index_copy_.default writes a small part of self" in gap
    ]


def test_an_error_of_an_op_is_its_own(debug_mode):
    with debug_mode(), pytest.raises(RuntimeError, match="mat1 and mat2"):
        torch.ones(2, 3) @ torch.ones(2, 3)


def test_a_copy_of_the_model_under_the_same_names(debug_mode):
    model = make()
    logs = []
    for one in (model, copy.deepcopy(model)):
        with (dm := debug_mode(one)):
            one(tokens())
        logs.append(dm.log())
    assert logs[0].diff(logs[1]).verdict == "same"


def test_del_in_any_order(debug_mode):
    model = make()
    dm = cgdebug.debug_mode(model, eager=True)
    with dm:
        model(tokens())
    del model
    gc.collect()
    assert len(dm.log())
    del dm
    gc.collect()
    assert _get_current_dispatch_mode_stack() == []


@pytest.mark.parametrize(
    "wrong",
    [{"model": 1}, {"level": "tensor"}, {"eager": "no"}, {"pre": True}, {"pre": 2}],
    ids=lambda one: next(iter(one)),
)
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises((TypeError, ValueError), match="debug_mode"):
        cgdebug.debug_mode(**wrong)


def test_every_c10d_op_that_writes_is_in_the_table():
    torch.distributed.is_available() or pytest.skip("torch has no torch.distributed")
    from cgdebug._op_log.written import _C10D_RESULTS

    names = [
        name.removeprefix("c10d::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("c10d::")
    ]
    writers = {name.partition(".")[0] for name in names}
    writers -= {"barrier", "monitored_barrier_", "send", "check_for_nan"}
    assert writers == set(_C10D_RESULTS) - ({"gather_into_tensor_"} - writers)


def test_the_mode_lets_compiled_code_run_compiled():
    assert following.OpMode.ignore_compile_internals()
    assert following.OpMode.supports_higher_order_operators


# --- distributed ----------------------------------------------------------------------------------

ONE_RANK = """
    import json
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dm = cgdebug.debug_mode(eager=True)
    with dm:
        {body}
    log = dm.log()
    rows = [(row.name, row.op, list(row.inputs), row.stats.max) for row in log]
    print(json.dumps({{"rows": rows, "gaps": log.gaps}}))
"""


@pytest.fixture
def log_of(daemon, job):
    """The log of `body`, run with one rank."""
    return lambda body: json.loads(job(ONE_RANK.format(body=body)).line())


def test_a_collective_is_seen_when_somebody_reads_its_result(log_of):
    log = log_of("x = torch.ones(3); work = dist.all_reduce(x, async_op=True); work.wait(); x + 1")
    rows = [row[:3] for row in log["rows"]]
    assert rows == [
        ["fwd/ones_0", "aten.ones.default", []],
        ["fwd/c10d.allreduce__0", "c10d.allreduce_.default", [1]],
        ["fwd/add_0", "aten.add.Tensor", [2]],
    ]


def test_a_collective_whose_result_nobody_reads_is_a_gap(log_of):
    log = log_of("x = torch.ones(3); dist.all_reduce(x, async_op=True)")
    assert [row[0] for row in log["rows"]] == ["fwd/ones_0"]
    assert any("nothing read its result" in gap for gap in log["gaps"])


def test_a_collective_that_was_waited_for_is_a_row_though_nobody_reads_it(log_of):
    log = log_of("x = torch.ones(3); dist.all_reduce(x)")
    assert [row[0] for row in log["rows"]] == ["fwd/ones_0", "fwd/c10d.allreduce__0"]
    assert log["gaps"] == []


def test_a_functional_collective_is_seen_when_it_is_waited_for(log_of):
    log = log_of("functional.all_reduce(torch.ones(3), 'sum', dist.group.WORLD) + 1")
    names = [row[0] for row in log["rows"]]
    assert any("all_reduce" in name for name in names), names
    assert not any("wait_tensor" in name for name in names), names
    assert names[-1] == "fwd/add_0" and log["gaps"] == []


def test_the_op_on_the_local_part_of_a_dtensor_is_a_row(log_of):
    log = log_of(
        "mesh = init_device_mesh('cpu', (1,)); "
        "DTensor.from_local(torch.full((2, 2), 3.0), mesh, [Shard(0)]).exp()"
    )
    names = [row[0] for row in log["rows"]]
    assert names.count("fwd/exp_0") == 1 and log["gaps"] == [], log


def test_batch_norm_writes_its_statistics_in_training_alone(debug_mode):
    model, x, written = torch.nn.BatchNorm1d(3), torch.randn(4, 3), []
    for is_training in (True, False):
        model.train(is_training)
        with torch.no_grad(), (dm := debug_mode(model)):
            model(x)
        names = [row.name for row in dm.log() if row.op == "aten.native_batch_norm.default"]
        written.append([name for name in names if ".running_" in name])
    assert [len(names) for names in written] == [2, 0], written


# --- level "graph" ----------------------------------------------------------------------------------


def test_level_graph_has_what_a_run_found_and_what_leaves_it_linked_to_what_it_is_made_of(
    debug_mode,
):
    model = make()
    with torch.no_grad(), (dm := debug_mode(model, level="graph")):
        x = model.embed(tokens())
        y = model.layers[0].attn(x)
        kept = y.exp()[1:]
        y.mul_(2)
    log = dm.log()
    names = [row.name for row in log]
    assert all(name.startswith(("in/", "out/")) for name in names), names
    assert {"in/embed.weight", "in/layers.0.attn.wq.bias"} <= set(names)
    assert names.count("in/embed.weight") == 1
    outputs = {row.name: row for row in log if row.name.startswith("out/")}
    assert list(outputs) == ["out/embed/embedding_0", "out/exp_0", "out/mul__0"]
    for row, value in zip(outputs.values(), (x, kept._base, y)):
        assert row.stats.xor_hash == torch.hash_tensor(value).item()
    read = {log.rows[number - 1].name for number in outputs["out/embed/embedding_0"].inputs}
    assert "in/embed.weight" in read and "in/layers.0.attn.wq.weight" not in read
    read = {log.rows[number - 1].name for number in outputs["out/exp_0"].inputs}
    assert {"in/embed.weight", "in/layers.0.attn.wq.weight"} <= read
    assert all(row.is_covered for row in log) and log.gaps == []


def test_level_graph_names_the_parameters_that_a_step_changes(debug_mode):
    model = make()
    with (dm := debug_mode(model, level="graph")):
        loss = train(model)
    log = dm.log()
    outputs = [row for row in log if row.name.startswith("out/")]
    assert {f"out/{name}" for name, _ in model.named_parameters()} <= {row.name for row in outputs}
    assert log["out/head.weight"].stats.xor_hash == torch.hash_tensor(model.head.weight).item()
    assert log["in/head.weight"].stats.xor_hash != log["out/head.weight"].stats.xor_hash
    assert torch.hash_tensor(loss).item() in {row.stats.xor_hash for row in outputs}


def test_level_graph_shows_each_part_that_was_written_and_a_whole_once(debug_mode):
    cache = torch.zeros(4)
    with torch.no_grad(), (dm := debug_mode(level="graph")):
        cache[:2].mul_(torch.nan)
        cache[2:].add_(2)
        cache[2:].add_(1)
        y = torch.ones(4)
        y[:2].mul_(5)
        y[3:].mul_(7)
    outputs = [row for row in dm.log() if row.name.startswith("out/")]
    assert [row.shape for row in outputs] == [(2,), (2,), (4,)]
    assert outputs[0].stats.nan == 2 and outputs[1].stats.max == 3
    assert outputs[2].stats.xor_hash == torch.hash_tensor(y).item()


def test_level_graph_shows_memory_that_was_used_again(debug_mode):
    with torch.no_grad(), (dm := debug_mode(level="graph")):
        seen = set()
        for value in range(1, 201):
            y = torch.full((1000,), float(value))
            if y.data_ptr() in seen:
                break
            seen.add(y.data_ptr())
            del y
        else:
            pytest.skip("the allocator gave out no memory twice")
    log = dm.log()
    outputs = [row for row in log if row.name.startswith("out/")]
    assert [row.stats.max for row in outputs] == [value] and log.gaps == []


def test_level_graph_keeps_nothing_alive(debug_mode):
    with debug_mode(level="graph"):
        x = torch.ones(1000)
        y = x.exp()
        seen = weakref.ref(y.untyped_storage())
        del y
        assert seen() is None


def test_a_stale_input_is_named_by_a_diff_of_level_graph(debug_mode):
    model, logs = make(), []
    for ids in (tokens(), tokens() + 1):
        with torch.no_grad(), (dm := debug_mode(model, level="graph")):
            y = model(ids)  # noqa: F841
        logs.append(dm.log())
    diff = logs[1].diff(logs[0])
    assert diff.first.startswith("in/embed/embedding_0."), diff.text


def test_a_finer_level_of_another_scope_comes_beside_level_graph(debug_mode):
    outer, inner = debug_mode(level="graph"), debug_mode(level="op")
    with outer, inner:
        y = torch.ones(3).sin()  # noqa: F841
    assert [row.name for row in outer.log()] == ["out/sin_0"]
    assert [row.name for row in inner.log()] == ["fwd/ones_0", "fwd/sin_0"]


# --- together, in threads, and left in disorder -----------------------------------------------------


class Counted:
    """A function compiled by a backend that counts its calls."""

    def __init__(self):
        torch._dynamo.reset()
        self.calls = 0
        self.function = torch.compile(lambda x: x.sin() + 1, backend=self._compile, fullgraph=True)

    def _compile(self, graph, inputs):
        def run(*args):
            self.calls += 1
            return graph(*args)

        return run

    def is_still_compiled(self):
        before = self.calls
        with torch._dynamo.config.patch(error_on_recompile=True):
            self.function(torch.ones(3))
        return self.calls == before + 1


def test_modes_and_watches_left_by_an_exception_leave_compiled_code_compiled(debug_mode):
    counted, model = Counted(), make()
    counted.function(torch.ones(3))
    w = cgdebug.watch(model, level="op")
    with pytest.raises(ZeroDivisionError), debug_mode(model), debug_mode(level="graph"):
        counted.function(torch.ones(3))
        model.layers[0](torch.ones(2, 5, SIZE))
        raise ZeroDivisionError
    assert _get_current_dispatch_mode_stack() == []
    assert counted.is_still_compiled()
    w.close()
    assert counted.is_still_compiled()


def test_an_exception_in_a_module_does_not_name_what_comes_after_it(debug_mode):
    model = make()
    model.layers[1].attn.forward = lambda x: 1 // 0
    with (dm := debug_mode(model)):
        with pytest.raises(ZeroDivisionError):
            model(tokens())
        torch.ones(3).cos()
    assert "fwd/cos_0" in [row.name for row in dm.log()]


def test_two_models_in_two_threads_have_logs_of_their_own(debug_mode):
    models, stacks = [make(), make()], []
    modes = [debug_mode(model) for model in models]
    meet = threading.Barrier(2)

    def run(place):
        with modes[place]:
            meet.wait()
            for _ in range(place + 1):
                models[place](tokens())
            meet.wait()
        stacks.append(_get_current_dispatch_mode_stack())

    threads = [threading.Thread(target=run, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stacks == [[], []]
    for place, dm in enumerate(modes):
        names = [row.name for row in dm.log()]
        assert names.count("fwd/head/mm_0") == 1 and "fwd/head/mm_1" not in names
        assert len(dm.calls) == place + 1, "whichever of the two logs was there first"


@pytest.mark.parametrize("order", list(itertools.permutations(["model", "mode", "watch"])), ids=str)
def test_what_is_deleted_in_any_order_leaves_nothing(daemon, order):
    counted = Counted()
    counted.function(torch.ones(3))
    kept = {"model": make()}
    kept["mode"] = cgdebug.debug_mode(kept["model"], eager=True)
    kept["watch"] = cgdebug.watch(kept["model"], level="op")
    with kept["mode"]:
        kept["model"](tokens())
    for name in order:
        del kept[name]
        gc.collect()
        assert _get_current_dispatch_mode_stack() == []
        assert counted.is_still_compiled()
    assert not scopes._scopes


def test_a_collective_is_not_seen_before_it_is_waited_for(log_of):
    log = log_of(
        "x = torch.ones(3); work = dist.all_reduce(x, async_op=True); y = torch.ones(2); "
        "y.add_(1); work.wait(); x + 1"
    )
    names = [row[0] for row in log["rows"]]
    assert names == ["fwd/ones_0", "fwd/ones_1", "fwd/add__0", "fwd/c10d.allreduce__0", "fwd/add_0"]


# --- Triton kernels, here functions that stand where Inductor calls them ----------------------------


def launch(kernel, signature, mutated, *tensors, custom=False):
    """Calls `kernel` as Inductor's compiled code does."""

    def triton_poi_0():
        pass

    tuner = types.SimpleNamespace(
        triton_meta={"signature": dict.fromkeys(signature)},
        mutated_arg_names=mutated,
        fn=triton_poi_0,
        custom_kernel=custom,
    )
    triton_kernels._run_of_inductor(lambda tuner, *args, **_: kernel(*args))(tuner, *tensors)


def add_one(x, out):
    out.numpy()[:] = x.numpy() + 1  # no op


def test_what_a_kernel_reads_and_overwrites_is_shown_as_it_was_before(debug_mode):
    x = torch.ones(4)
    with (dm := debug_mode(level="kernel")):
        launch(add_one, ["in_ptr0", "out_ptr1"], ["in_ptr0"], x, x)
    log = dm.log()
    found = [(row.name, row.stats.max, row.inputs) for row in log]
    assert found[0] == ("in/triton_poi_0_0.in_ptr0", 1.0, ())
    assert ("fwd/triton_poi_0_0.out_ptr1", 2.0, (1,)) in found, found


@pytest.mark.parametrize("pre", [False, True])
def test_the_kernel_of_a_user_that_writes_a_part_is_linked_to_what_was_there(debug_mode, pre):
    def break_padding(x):
        x.numpy()[3:] = float("nan")

    with (dm := debug_mode(level="kernel", pre=pre)):
        y = torch.ones(5) * 3
        launch(break_padding, ["x"], ["x"], y, custom=True)
    log = dm.log()
    after = log["fwd/triton_poi_0_0.x"]
    assert log.first_nan is after and after.stats.nan == 2
    (before,) = (log.rows[number - 1] for number in after.inputs)
    assert before.name == ("fwd/triton_poi_0_0.x.pre" if pre else "fwd/mul_0")
    assert (before.stats.nan, before.stats.max) == (0, 3)


def test_what_goes_wrong_around_a_kernel_is_noted_and_does_not_reach_it(debug_mode, monkeypatch):
    def fail(*_):
        raise OSError("no place")

    x = torch.ones(4)
    with (dm := debug_mode(level="kernel")):
        with monkeypatch.context() as patch:
            patch.setattr("cgdebug._op_log.names.current_place", fail)
            launch(add_one, ["in_ptr0", "out_ptr1"], ["in_ptr0"], x, x)
        x.exp()
    log = dm.log()
    assert x.max() == 2, "the kernel ran"
    assert any("no place" in gap for gap in log.gaps), log.gaps
    assert not log["fwd/exp_0"].is_covered, "what the kernel wrote has no row"


def give_up(function, arguments, _):
    """As torch's own function does where it cannot read a kernel."""
    from torch._higher_order_ops import triton_kernel_wrap

    triton_kernel_wrap.log.warning("Encountered an exception in identify_mutated_tensors, ...")
    return list(arguments)


def test_a_kernel_is_not_said_to_write_what_torch_does_not_know_that_it_writes(
    debug_mode, monkeypatch, caplog
):
    from torch._higher_order_ops import triton_kernel_wrap

    monkeypatch.setattr(triton_kernel_wrap, "identify_mutated_tensors", give_up)
    with (dm := debug_mode(level="kernel")):
        x, y = torch.ones(4), torch.zeros(4)
        launch(add_one, ["x", "y"], [], x, y, custom=True)
        y + 1
    log = dm.log()
    assert [row.name for row in log] == ["fwd/ones_0", "fwd/zeros_0", "fwd/add_0"]
    assert not log["fwd/add_0"].is_covered
    assert (
        "triton_poi_0: torch cannot tell which arguments it writes, so it has no rows" in log.gaps
    )
    assert "identify_mutated_tensors" not in caplog.text


def test_what_is_known_of_a_kernel_goes_with_it(debug_mode, monkeypatch):
    from torch._higher_order_ops import triton_kernel_wrap

    monkeypatch.setattr(
        triton_kernel_wrap, "identify_mutated_tensors", lambda *_: [frozenset(["y"])]
    )
    with debug_mode(level="kernel"):
        launch(add_one, ["x", "y"], [], torch.ones(4), torch.zeros(4), custom=True)
    gc.collect()
    assert not triton_kernels._written


def test_what_a_kernel_changes_in_place_has_a_row_before_and_after(debug_mode, monkeypatch):
    from torch._higher_order_ops import triton_kernel_wrap

    monkeypatch.setattr(triton_kernel_wrap, "identify_mutated_tensors", give_up)

    def double(x):
        x.numpy()[:] *= 2

    with (dm := debug_mode(level="kernel")):
        x = torch.ones(4)
        launch(double, ["x"], [], x, custom=True)  # no row shows what is in x now
        launch(double, ["in_out_ptr0"], ["in_out_ptr0"], x)
    rows = {row.name: row for row in dm.log()}
    before = rows["fwd/triton_poi_0_0.in_out_ptr0.pre"]
    after = rows["fwd/triton_poi_0_0.in_out_ptr0"]
    assert (before.stats.max, after.stats.max) == (2, 4)
    assert before.number in after.inputs and not before.is_covered


def test_memory_that_only_a_kernel_fills_is_not_read(debug_mode):
    with (dm := debug_mode(level="kernel", pre=True)):
        x, out = torch.ones(4), torch.empty(4)
        launch(add_one, ["x", "out"], ["out"], x, out, custom=True)
    names = [row.name for row in dm.log()]
    assert names == ["fwd/ones_0", "fwd/triton_poi_0_0.out"]


def test_memory_of_compiled_code_that_nobody_may_have_written_is_no_row(debug_mode):
    garbage = torch.full((4,), float("nan"))  # what compiled code allocates is no op
    with (dm := debug_mode(level="kernel", pre=True)):
        x = torch.ones(4)
        launch(add_one, ["x", "out"], ["out"], x, garbage, custom=True)
    log = dm.log()
    assert [row.name for row in log] == ["fwd/ones_0", "fwd/triton_poi_0_0.out"]
    assert log.first_nan is None and log[1].inputs == (1,) and not log[1].is_covered


def test_level_graph_has_a_parameter_as_it_was_before_a_kernel_changed_it(debug_mode):
    layer = torch.nn.Linear(2, 2)
    weight = layer.weight.detach()
    before = torch.hash_tensor(weight).item()
    with (dm := debug_mode(layer, level="graph")):
        launch(add_one, ["in_ptr0", "out_ptr1"], ["in_ptr0"], weight, weight)
    log = dm.log()
    assert log["in/weight"].stats.xor_hash == before
    assert log["out/weight"].stats.xor_hash == torch.hash_tensor(weight).item() != before
    assert log["out/weight"].inputs == (log["in/weight"].number,)


TWO_HALVES = """
import gc, types
from cgdebug._op_log import scopes
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

class Graph:
    def capture_begin(self):
        pass

    def capture_end_pre(self):
        pass

    def capture_end(self):
        self.capture_end_pre()

stream = types.SimpleNamespace(cuda_stream=0)
torch.cuda.CUDAGraph = Graph
torch.cuda.current_stream = lambda *_: stream
cgdebug._job._native.load().capture_of = lambda _: 7
with cgdebug.debug_mode():
    for end in ("capture_end_pre", "capture_end"):
        graph = Graph()
        graph.capture_begin()
        assert len(_get_current_dispatch_mode_stack()) == 1 and not gc.isenabled()
        getattr(graph, end)()
        assert not _get_current_dispatch_mode_stack() and gc.isenabled()
"""


def test_a_capture_whose_end_has_two_halves_leaves_no_mode_and_a_collector_that_runs(job):
    job(TWO_HALVES).finish()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_has_no_plain_memory_is_a_gap_in_our_words(debug_mode):
    x = torch.ones(2, 3)
    for run, gap in (
        (lambda: x.to_sparse() * torch.nan, "tensors of torch.sparse_coo are not shown"),
        (lambda: torch.nested.nested_tensor([x, x]) + 1, "nested tensors are not shown"),
    ):
        with (dm := debug_mode()):
            run()
        assert [one for one in dm.log().gaps if one.startswith(gap)], dm.log().gaps
        assert "issue" not in str(dm.log())


def test_a_run_of_which_nothing_can_be_shown_is_an_empty_log_with_its_gaps(debug_mode):
    with (dm := debug_mode()):
        torch.ones(3, device="meta") + 1
        torch.empty(3)
    assert len(dm.log()) == 0 and dm.log().gaps == [] and dm.log().first_nan is None
    with (dm := debug_mode()):
        torch.ones(2, dtype=torch.complex64)
    assert len(dm.log()) == 0 and dm.log().gaps == ["tensors of torch.complex64 are not shown"]


def test_memory_that_is_used_again_does_not_inherit_the_row_of_what_was_there(debug_mode):
    with (dm := debug_mode()):
        used, kept = set(), []
        for _ in range(1000):
            used.add(torch.ones(2).sum().untyped_storage().data_ptr())
            made = torch.tensor(5.0)  # no op that writes it
            if made.untyped_storage().data_ptr() in used:
                break
            kept.append(made)
        else:
            pytest.skip("no memory was used again")
        made + 1
    log = dm.log()
    (added,) = log["fwd/add_0"].inputs
    assert log.rows[added - 1].name == "in/add_0.self" and log.rows[added - 1].stats.max == 5


def test_a_row_that_read_a_thousand_others_has_all_links(debug_mode):
    """As the norm of all gradients, when they are clipped."""
    x = torch.ones(2)
    with (dm := debug_mode()):
        torch.stack([x + n for n in range(1000)])
    row = dm.log()["fwd/stack_0"]
    assert row.is_covered and list(row.inputs) == list(range(2, 1002))


def test_equal_runs_have_equal_rows_and_links(debug_mode):
    def train():
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        adam = torch.optim.Adam(net.parameters(), lr=0.1)
        for _ in range(3):
            adam.zero_grad()
            net(torch.randn(8, 4)).square().mean().backward()
            adam.step()

    logs = []
    for _ in range(3):
        with (dm := debug_mode()):
            train()
        logs.append([(row.name, row.inputs, row.is_covered) for row in dm.log()])
    assert logs[0] == logs[1] == logs[2]


def test_two_storages_of_one_memory_are_one(debug_mode):
    array = numpy.ones(4, dtype=numpy.float32)
    a, b = torch.from_numpy(array), torch.from_numpy(array)
    with (dm := debug_mode()):
        a.add_(1)
        b.mul_(2)
        a + 1
    log = dm.log()
    assert log["fwd/mul__0"].inputs == (log["fwd/add__0"].number,)
    assert log["fwd/add_0"].inputs == (log["fwd/mul__0"].number,)


def test_compiled_code_is_a_gap_and_its_result_a_row(debug_mode, cli, tmp_path):
    @torch.compile
    def nan(x):
        return torch.log(x - 5).relu() + torch.sin(x)

    nan(torch.ones(8))
    for level in ("op", "kernel"):
        with (dm := debug_mode(level=level)):
            y = nan(torch.ones(8)) + 1
        log = dm.log()
        assert torch.isnan(y).all() and log.first_nonfinite.name == "fwd/compiled_0"
        assert not log["fwd/compiled_0"].is_covered
        assert log["fwd/add_0"].inputs == (log["fwd/compiled_0"].number,)
        assert "what fused kernels wrote inside of compiled code is not shown" in log.gaps[0]

    @torch.compile
    def hidden(x):
        return torch.log(x - 5).isnan().sum()

    path = str(tmp_path / "a.cgrec")
    with cgdebug.connect().record(path), (dm := debug_mode()):
        hidden(torch.ones(8))
    assert dm.log().first_nonfinite is None and dm.log().gaps
    assert cli("ops", path).returncode == 3 and cli("check", path).returncode == 3
