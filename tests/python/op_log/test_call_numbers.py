"""What runs eagerly belongs to a call, which has one number in every view."""

import json
import re
import sys
import textwrap

import pytest
import torch
from torch import nn

import cgdebug
from op_logs import needs_mode

STEPS = """
    import torch, cgdebug
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 4)
    cgdebug.step(0)
    for n in range(6):
        x = torch.randn(2, 4)
        if n == 3: x[0, 0] = float("nan")
        net(x)
        cgdebug.step(n + 1)
"""
# A shape of its own in each of 64 calls, and a NaN in call 41.
SHAPES = """
    import torch
    torch.manual_seed(0)
    class Fails(torch.nn.Module):
        is_bad = False
        def forward(self, x): return x * float("nan") if self.is_bad else x
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), Fails(), torch.nn.Linear(4, 1))
    for n in range(1, 65):
        x = torch.ones(2 + n % 16, 4)
        net[1].is_bad = n == 41
        y = net(x)
        if n % 3 == 0: y.exp()
"""
LEVELS = {"*": [], "op:*": ["--eager"]}


@pytest.fixture
def record(daemon, cli, tmp_path):
    """record(job, level, *options): (path of the recording, how `run` ended)"""

    def run(job, level, *options):
        script = tmp_path / "job.py"
        script.write_text(textwrap.dedent(job), encoding="utf-8")
        path = tmp_path / "job.cgrec"
        watch = ["--watch", level, *LEVELS[level]]
        done = cli("run", *watch, *options, "-o", path, "--", sys.executable, script)
        return path, done

    return run


def query(cli, path, sql):
    done = cli("--json", "query", path, sql)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def probe_of(level):
    return "fwd/Linear" if level == "*" else "fwd/Linear/addmm_0"


@pytest.mark.parametrize("level", LEVELS)
@needs_mode
def test_a_call_has_the_step_that_was_set_when_it_began(record, cli, level):
    path, done = record(STEPS, level)
    assert done.returncode == 0, done.stderr
    probe = probe_of(level)
    sql = f"select replay, call, step, nan from v_snapshots where probe = '{probe}' order by serial"
    rows = [(row["replay"], row["call"], row["step"], row["nan"]) for row in query(cli, path, sql)]
    assert [row[:3] for row in rows] == [(n + 1, n + 1, n) for n in range(6)]
    assert [row[3] > 0 for row in rows] == [n == 3 for n in range(6)]
    assert re.search(r"first non-finite: call 4 \(step 3\)", cli("check", path).stdout)
    assert "step 3" in cli("show", f"{path}:{probe}@step:3").stdout
    with cgdebug.open(path) as recording:
        series = recording.select(probe)  # one for each set of rows that the log had
        assert sorted(n for one in series for n in one.replays) == [1, 2, 3, 4, 5, 6]


@needs_mode
def test_the_rows_of_a_call_are_shown_with_its_step(record, cli):
    path, _ = record(STEPS, "op:*")
    log = json.loads(cli("--json", "ops", f"{path}@call:4").stdout)
    assert (log["call"], log["step"], log["other_logs"]) == (4, 3, [])
    assert log["first_nan"]["name"].endswith("index_put__0") or log["first_nan"]["name"]


@pytest.mark.parametrize("level", LEVELS)
@needs_mode
def test_every_view_names_the_call_whatever_the_shapes_are(record, cli, level):
    path, done = record(SHAPES, level, "--fail-on", "nan")
    assert done.returncode == 1
    assert "after 41 calls" in done.stderr or "after 64 calls" in done.stderr
    assert " in call 41" in done.stderr
    assert re.search(r"first non-finite: call 41\b", cli("check", path).stdout)
    if level == "op:*":
        log = cli("--json", "ops", f"{path}@call:41")
        assert log.returncode == 1, log.stderr
        assert json.loads(log.stdout)["call"] == 41
        assert json.loads(log.stdout)["other_logs"] == []
        hint = re.search(r"cgdebug-cli ops (\S+)", done.stderr).group(1)
        assert hint.strip("'").endswith("@call:41")
    else:
        done = cli("show", f"{path}:fwd/2@call:41")
        assert done.returncode == 0, done.stderr
        assert "call 41" in done.stdout


@needs_mode
def test_the_rows_of_calls_of_other_shapes_are_one_log(record, cli):
    path, _ = record(SHAPES, "op:*")
    newest = json.loads(cli("--json", "ops", path).stdout)
    assert (newest["call"], newest["other_logs"]) == (64, [])
    assert json.loads(cli("--json", "ops", f"{path}@-2").stdout)["call"] == 63
    rows = {
        call: len(json.loads(cli("--json", "ops", f"{path}@{call}").stdout)["rows"])
        for call in (40, 42)
    }
    assert rows[42] == rows[40] + 1, "every third call has another op"
    gone = cli("ops", f"{path}@call:65")
    assert gone.returncode != 0
    assert "has no call 65" in gone.stderr and "it keeps 1..64" in gone.stderr


@needs_mode
def test_equal_runs_of_calls_with_other_rows_are_the_same(record, cli, tmp_path):
    path, _ = record(SHAPES, "op:*")
    again = tmp_path / "again.cgrec"
    path.rename(again)
    path, _ = record(SHAPES, "op:*")
    done = cli("ops", "diff", path, again)
    assert done.returncode == 0, done.stdout
    assert "64 replays" in done.stdout or "64 calls" in done.stdout


@needs_mode
def test_what_a_call_does_not_show_is_told_of_that_call_alone(record, cli):
    path, _ = record(
        """
        import torch
        class Odd(torch.nn.Module):
            calls = 0
            def forward(self, x):
                self.calls += 1
                return torch.complex(x, x).real if self.calls in (2, 4) else x
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), Odd())
        with torch.no_grad():
            for _ in range(5): net(torch.ones(2, 4))
        """,
        "op:*",
    )
    gap = "tensors of torch.complex64 are not shown"
    for call in range(1, 6):
        log = json.loads(cli("--json", "ops", f"{path}@call:{call}").stdout)
        check = json.loads(cli("--json", "check", path, "--replays", str(call)).stdout)
        assert (gap in log["missing"]) == (call in (2, 4)), (call, log["missing"])
        assert (f"not logged: {gap}" in check["missing"]) == (call in (2, 4)), check["missing"]
    assert cli("check", path).returncode == 3


@needs_mode
def test_calls_of_two_threads_have_numbers_of_their_own(record, cli):
    path, done = record(
        """
        import threading, torch
        net = torch.nn.Linear(4, 4)
        net(torch.ones(2, 4))
        turn = threading.Barrier(2)
        def work(bad):
            for n in range(8):
                x = torch.ones(3, 4)
                if bad and n == 5: x = x / 0 * 0
                turn.wait()
                net(x)
        threads = [threading.Thread(target=work, args=(bad,)) for bad in (False, True)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        """,
        "*",
    )
    assert done.returncode == 0, done.stderr
    rows = query(cli, path, "select replay, nan from v_snapshots where probe = 'fwd/Linear'")
    numbers = sorted(row["replay"] for row in rows)
    assert numbers == list(range(1, 18)), "each of the 17 calls has a number"
    bad = [row["replay"] for row in rows if row["nan"] > 0]
    assert len(bad) == 1
    assert f"first non-finite: call {bad[0]}" in cli("check", path).stdout


def test_a_module_that_runs_twice_in_a_call_has_iterations(daemon):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(self.inner(x))

    net = Twice()
    watch = cgdebug.watch(net, values=8)
    first = None
    for _ in range(2):
        net(torch.ones(2, 4))
    records = watch.probes["fwd/inner"].records()
    first = records[0].replay_index
    assert [(one.replay_index - first, one.iteration) for one in records] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    watch.close()


def test_gradients_belong_to_the_call_of_their_forward(daemon):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    watch = cgdebug.watch(net, grads=True, values=8)
    for rows in (2, 3):
        net(torch.ones(rows, 4)).sum().backward()
    numbers = {
        name: [one.replay_index for one in probe.records()] for name, probe in watch.probes.items()
    }
    assert len(set(map(tuple, numbers.values()))) == 1, numbers
    watch.close()


def test_a_module_that_is_called_by_itself_has_the_step_that_was_set(daemon):
    """As the encoder by generate(), and a head behind the replay of a graph."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.head(x)

    model = Model()
    with cgdebug.watch(model, grads=True, values=16) as watch:
        for step in (10, 20):
            cgdebug.step(step)
            model(model.encoder(torch.ones(2, 4))).sum().backward()
            cgdebug.step(step + 1)
            model.head(torch.ones(2, 4))
        cgdebug.step(None)
        seen = {
            name: [(one.replay_index, one.step) for one in probe.records()]
            for name, probe in watch.probes.items()
        }
    first = seen["fwd/Model"][0][0]
    seen = {name: [(call - first, step) for call, step in all_] for name, all_ in seen.items()}
    assert seen["fwd/encoder"] == seen["grad/encoder"] == [(0, 10), (2, 20)]
    assert seen["fwd/head"] == [(0, 10), (1, 11), (2, 20), (3, 21)]
    assert seen["fwd/Model"] == [(0, 10), (2, 20)]


def test_a_probe_beside_the_model_counts_its_own_calls(daemon):
    net = nn.Linear(4, 4)
    watch = cgdebug.watch(net, values=8)
    probe = cgdebug.CudaGraphTensorProbe("batch", [cgdebug.TensorRecord(capacity=8)], mode="always")
    for _ in range(3):
        net(probe(torch.ones(2, 4)))
    assert [one.replay_index for one in probe.records()] == [1, 2, 3]
    probe.close()
    watch.close()


def test_a_probe_of_a_job_with_steps_has_the_call_around_it(daemon):
    net = nn.Linear(4, 4)
    probes = {
        name: cgdebug.CudaGraphTensorProbe(name, [cgdebug.TensorRecord(8)], mode="always")
        for name in ("batch", "loss")
    }
    with cgdebug.watch(net, values=8) as watch:
        for n in range(3):
            cgdebug.step(n)
            x = probes["batch"](torch.ones(2 + n, 4))
            for _ in range(2):  # micro-batches
                probes["loss"](net(x).sum()).backward()
        records = watch.probes["fwd/Linear"].records()
    first = records[0].replay_index
    found = {
        name: [(one.replay_index - first, one.iteration, one.step) for one in probe.records()]
        for name, probe in probes.items()
    }
    cgdebug.step(None)
    assert found["loss"] == [(2 * n + k, 0, n) for n in range(3) for k in range(2)]
    assert found["batch"] == [(2 * n, 0, n) for n in range(3)], "of the call that it is made for"
    for probe in probes.values():
        probe(torch.ones(2))
        assert probe.records()[-1].replay_index == 1, "nobody tells of calls any longer"
        probe.close()


@needs_mode
def test_a_log_of_this_process_shows_any_of_its_calls(daemon):
    net = nn.Linear(4, 4)
    log = cgdebug.debug_mode(net, eager=True)
    with log:
        for rows in (2, 3, 2):
            net(torch.ones(rows, 4))
    assert len(log.calls) == 3
    views = [log.log(replay=call) for call in log.calls]
    shapes = [view["fwd/Linear/addmm_0"].shape for view in views]
    assert shapes == [(2, 4), (3, 4), (2, 4)]
    assert log.log().replay == log.calls[-1] and log.log(replay=-3).replay == log.calls[0]
    assert str(views[0]).startswith(f"call {log.calls[0]}: ")
    with pytest.raises(KeyError, match="is none of this log"):
        log.log(replay=log.calls[-1] + 1000)
    log.close()


@pytest.mark.parametrize("level", LEVELS)
@needs_mode
def test_a_probe_of_eager_calls_is_one_series_whatever_the_shapes_are(record, level):
    path, done = record(SHAPES, level)
    assert done.returncode == 0, done.stderr
    with cgdebug.open(path) as recording:
        name = "fwd/0" if level == "*" else "fwd/0/addmm_0"
        series = recording[name]
        assert series.replays == list(range(1, 65)) and len(series) == 64
        assert [series[n].shape[0] for n in (1, 20, 64)] == [3, 6, 2]
        assert [one.shape[0] for one in series[30:33]] == [16, 17, 2]
        assert series[-1].replay_index == 64
        assert series.stat("abs_max").tolist() == [one.stats.abs_max for one in series]
        bad = recording["fwd/1" if level == "*" else "fwd/1/mul_0"]
        found = [replay for replay, nan in zip(bad.replays, bad.stat("nan")) if nan]
        assert found == [41]
        assert series.to_pandas()["replay"].tolist() == series.replays
        assert "calls 1..64" in repr(series) and "call 65" in _message(lambda: series[65])


def _message(wrong):
    with pytest.raises(KeyError) as raised:
        wrong()
    return str(raised.value)


TWO_SHAPES = """
    import torch, cgdebug
    class Several(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.ReLU()
        def forward(self, n):
            return [self.inner(torch.full((rows,), float(10 * n + rows))) for rows in (2, 3, 2)]
    net = Several()
    watch = cgdebug.watch(net, values=8)
    for n in (1, 2): net(n)
"""


def test_tensors_of_several_shapes_in_one_call_are_iterations_in_their_order(cli, tmp_path):
    path, script = tmp_path / "job.cgrec", tmp_path / "job.py"
    script.write_text(textwrap.dedent(TWO_SHAPES), encoding="utf-8")
    done = cli("run", "-o", path, "--", sys.executable, script)
    assert done.returncode == 0, done.stderr
    with cgdebug.open(path) as recording:
        series = recording["fwd/inner"]
        assert list(zip(series.replays, series.iterations)) == [
            (call, n) for call in (1, 2) for n in range(3)
        ]
        values = [float(one.tensor[0]) for one in series]
        assert values == [12, 13, 12, 22, 23, 22]
        assert series.stat("max").tolist() == values
        assert float(series.at(2, 1).tensor[0]) == 23 and series.at(2, 1).iteration == 1


RANK = """
    import os, torch
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    for n in range(1, 6):
        x = torch.ones(n, 4)
        if n == 3 and os.environ["RANK"] == "1": x[0] = float("nan")
        net(x)
"""


def test_ranks_says_call_of_what_runs_eagerly(cli, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "job.py").write_text(textwrap.dedent(RANK), encoding="utf-8")
    for rank in ("0", "1"):
        done = cli(
            "run", "--watch", "*", "-o", str(tmp_path / f"runs/r{rank}.cgrec"), "--",
            sys.executable, str(tmp_path / "job.py"),
            RANK=rank, WORLD_SIZE="2", CGDEBUG_RUN_ID=f"two-{tmp_path.name}",
        )  # fmt: skip
        assert done.returncode in (0, 1), done.stderr
    shown = cli("ranks", str(tmp_path / "runs"))
    assert "first bad: rank 1" in shown.stdout and "call 3" in shown.stdout, shown.stdout
    assert " CALL " in shown.stdout and "@call:3" in shown.stdout
    assert "replay" not in shown.stdout.lower(), shown.stdout
    first = json.loads(cli("--json", "ranks", str(tmp_path / "runs")).stdout)["ranks"][1]
    assert first["first_nonfinite"]["call"] == 3


BATCHES = """
    import torch
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    for n in range(1, 7):
        x = torch.full((2, 4), float(n)) / 2
        if n == 4: x = x * float("nan")
        y = net(x)
"""


@needs_mode
def test_data_that_is_made_after_a_call_is_shown_between_it_and_the_next(record, cli):
    path, done = record(BATCHES, "op:*", "--fail-on", "nan")
    assert done.returncode == 1, done.stderr
    between = "fwd/mul_0 between call 3 and 4"
    assert f"first NaN: {between}, 8 elements" in done.stderr
    assert f"--fail-on: first NaN: {between}, 8 elements" in done.stderr
    assert "first non-finite: between call 3 and 4, fwd/mul_0" in cli("check", path).stdout
    assert "fwd/mul_0 made 8 NaN between call 3 and 4" in cli("why", path).stdout
    ops = cli("ops", f"{path}@call:3")
    assert re.search(r"first non-finite: #\d+ fwd/mul_0, 8 NaN, between call 3 and 4", ops.stdout)
    assert "were made between call 3 and 4" in ops.stderr
    assert "the first NaN of this log is between call 3 and 4" in cli("ops", path).stderr
    check = json.loads(cli("--json", "check", path).stdout)
    assert check["first_nonfinite"]["replay"] == 3
    assert check["first_nonfinite"]["next_call"] == 4
    assert [one["next_call"] for one in check["unexcused"]] == [4]
    assert json.loads(cli("--json", "ops", f"{path}@call:3").stdout)["between"]["next_call"] == 4


NOT_BETWEEN = {
    "what is made after the model and read together with its output": """
        for n in range(1, 7):
            y = net(torch.full((2, 4), float(n)))
            target = torch.zeros(2, 1)
            if n == 3: target = target / 0
            loss = (y - target).sum()
    """,
    "what a step was set for": """
        for n in range(1, 7):
            cgdebug.step(n)
            x = torch.full((2, 4), float(n))
            if n == 3: x = x * float("nan")
            y = net(x)
    """,
    "what comes last, when no other call has begun": """
        for n in range(1, 4):
            net(torch.full((2, 4), float(n)))
        torch.zeros(2) / 0
    """,
    "what the model makes": """
        torch.nn.init.constant_(net.weight, 1e20)
        for n in range(1, 7):
            net(torch.full((2, 4), float(n) if n != 3 else 1e20))
            torch.ones(2)
    """,
    "what is made of its output": """
        for n in range(1, 7):
            y = net(torch.full((2, 4), float(n)))
            if n == 3: y = y * float("nan")
            torch.ones(2)
    """,
}


@pytest.mark.parametrize("kind", NOT_BETWEEN)
@needs_mode
def test_what_a_call_needs_is_shown_in_that_call(record, cli, kind):
    head = "import torch, cgdebug\ntorch.manual_seed(0)\nnet = torch.nn.Linear(4, 1)\n"
    path, done = record(head + textwrap.dedent(NOT_BETWEEN[kind]), "op:*")
    assert done.returncode == 0, done.stderr
    check = cli("check", path).stdout
    assert re.search(r"first non-finite: call 3\b", check), check
    assert "between" not in check + done.stderr
