"""Where the calls of an eager op log begin, and the phases of their rows."""

import json
import sys
import textwrap
import threading

import pytest
import torch
from torch import nn

import cgdebug
from op_logs import needs_mode

pytestmark = needs_mode


@pytest.fixture
def calls(monkeypatch):
    """calls() has, for each call so far, (thread, names of its rows, the step when it began)."""
    from cgdebug._job import _native
    from cgdebug._op_log.rows import OpLog

    seen = []
    add_row = OpLog.add_row

    def add_and_note(self, name, *args, **kwargs):
        if not self.rows:
            seen.append((threading.current_thread().name, [], _native.current_step()))
            self.of_test = seen[-1][1]
        self.of_test.append(name)
        return add_row(self, name, *args, **kwargs)

    monkeypatch.setattr(OpLog, "add_row", add_and_note)
    yield lambda: seen
    cgdebug.step(None)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))


def test_each_step_of_a_loop_inside_debug_mode_is_a_call(daemon, calls):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with cgdebug.debug_mode(eager=True):
        for _ in range(3):
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(calls()) == 3
    assert all(names.count("fwd/0/addmm_0") == 1 for _, names, _ in calls())


def test_each_call_of_a_model_without_an_optimizer_is_a_call(daemon, calls):
    net = model()
    with cgdebug.debug_mode(eager=True):
        for length in (2, 3, 4):
            net(torch.ones(length, 4))
    assert [names.count("fwd/0/addmm_0") for _, names, _ in calls()] == [1, 1, 1]


def test_what_is_made_after_a_step_was_set_is_of_that_step(daemon, calls):
    net = model()
    with cgdebug.debug_mode(eager=True):
        for n in range(3):
            cgdebug.step(n)
            x = torch.zeros(2, 4).exp()
            for _ in range(2):
                net(x)
    assert [step for _, _, step in calls()] == [0, 0, 1, 1, 2, 2]
    assert [("fwd/exp_0" in names) for _, names, _ in calls()] == [True, False] * 3


def test_forward_in_the_closure_of_an_optimizer_is_fwd(daemon, calls):
    net = model()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = net(torch.ones(2, 4)).square().mean()
        loss.backward()
        return loss

    with cgdebug.debug_mode(net, eager=True):
        optimizer.step(closure)
    names = [name for _, of_call, _ in calls() for name in of_call]
    assert {"fwd/0/addmm_0", "fwd/mean_0", "bwd/0/mm_0", "opt/add__0"} <= set(names)
    assert not [name for name in names if name.startswith("opt/0")]


def test_clipping_of_gradients_is_a_phase_of_its_own(daemon, calls):
    net = model()
    with cgdebug.debug_mode(eager=True):
        net(torch.ones(2, 4)).sum().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    names = calls()[0][1]
    assert "clip/_foreach_norm_0.0" in names
    assert not [name for name in names if name.startswith("fwd/_foreach")]


JOB = """
    import threading
    import torch
    from torch import nn
"""


@pytest.fixture
def eager_rows(daemon, cli, tmp_path):
    """eager_rows(job): how many rows of each name `run --watch 'op:*' --eager` recorded of it."""

    def record(job):
        script = tmp_path / "job.py"
        script.write_text(textwrap.dedent(JOB) + textwrap.dedent(job), encoding="utf-8")
        path = tmp_path / "job.cgrec"
        options = ["--watch", "op:*", "--eager", "-o", path, "--", sys.executable, script]
        done = cli("run", *options)
        assert done.returncode == 0, done.stderr
        sql = "select probe, count(*) as rows from v_snapshots group by probe"
        done = cli("--json", "query", path, sql)
        assert done.returncode == 0, done.stderr
        return {row["probe"]: row["rows"] for row in json.loads(done.stdout)}

    return record


def test_each_thread_that_calls_the_model_is_logged(eager_rows):
    rows = eager_rows(
        """
        net = nn.Linear(4, 4)
        net(torch.ones(2, 4))
        def work():
            for _ in range(3):
                net(torch.ones(2, 4)).tan()
        for _ in range(2):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        """
    )
    assert rows["fwd/tan_0"] == 6
    assert rows["fwd/Linear/addmm_0"] == 7


THREADS = """
    import multiprocessing, queue, sys, threading, torch
    which = sys.argv[-1]
    net, todo, done = torch.nn.Linear(4, 4), queue.Queue(), queue.Queue()
    def prepare():
        (torch.zeros(2, 4) / 0).sum()
    def serve():
        net(torch.ones(2, 4)).tan()
    def goes_on():
        while work := todo.get(): done.put(work())
    if "early" in which:
        threading.Thread(target=goes_on, name="prepare", daemon=True).start()
    net(torch.ones(2, 4))
    work = [serve, prepare][which.endswith("prepare")]
    if "early" in which:
        todo.put(work)
        done.get()
    else:
        kind = multiprocessing.get_context("fork").Process if "fork" in which else threading.Thread
        one = kind(target=work, name=work.__name__)
        one.start()
        one.join()
"""
# Who does what in the job, and what `check` exits with. What is prepared in a process of its own is a
# batch, as a worker of a DataLoader makes it.
ELSEWHERE = {
    "thread serve": 0,
    "thread prepare": 3,
    "early thread serve": 0,
    "early thread prepare": 3,
    "fork serve": 3,
    "fork prepare": 0,
}


@pytest.mark.parametrize("which", ELSEWHERE)
def test_ops_elsewhere_that_are_not_shown_are_said_to_be_missing(daemon, cli, tmp_path, which):
    (tmp_path / "job.py").write_text(textwrap.dedent(THREADS), encoding="utf-8")
    path, job = tmp_path / "a.cgrec", [sys.executable, tmp_path / "job.py", which]
    done = cli("run", "--watch", "op:*", "--eager", "-o", path, "--", *job)
    assert done.returncode in (0, ELSEWHERE[which]), done.stderr
    checked = cli("check", path)
    assert checked.returncode == ELSEWHERE[which], checked.stdout
    sentence = "a process that was forked" if "fork" in which else "ops on thread 'prepare'"
    assert (sentence in checked.stdout) == (checked.returncode == 3), checked.stdout


def test_a_model_without_parameters_is_logged(eager_rows):
    rows = eager_rows(
        """
        class Frozen(nn.Module):
            def forward(self, x):
                return x.tan()
        net = Frozen()
        for _ in range(3):
            net(torch.ones(2))
        """
    )
    assert rows["fwd/Frozen/tan_0"] == 3


def test_a_program_of_functions_alone_is_one_call(eager_rows):
    rows = eager_rows(
        """
        w = torch.ones(3, requires_grad=True)
        for _ in range(4):
            (w * 2).sum().backward()
        """
    )
    assert {name for name in rows if name.startswith("fwd/mul_")} == {
        f"fwd/mul_{n}" for n in range(4)
    }
    assert set(rows.values()) == {1}
    assert rows["fwd/ones_0"] == 1 and any(name.startswith("bwd/") for name in rows)


def test_a_program_of_functions_that_do_much_is_logged_whole(eager_rows):
    rows = eager_rows("x = torch.zeros(2)\nfor _ in range(1500): x = x + 1")
    assert len([name for name in rows if name.startswith("fwd/add_")]) == 1500


@pytest.mark.parametrize("ends", ["raise SystemExit(0)", "os.fork() or os._exit(0)"])
def test_a_program_of_functions_is_logged_however_it_ends(eager_rows, ends):
    assert eager_rows(f"import os\nx = torch.ones(2).tan()\n{ends}")["fwd/tan_0"] == 1


@pytest.mark.parametrize("begins", ["net(x)", "cgdebug.step(0); net(x)"])
def test_what_is_done_before_a_model_is_made_is_in_no_call(eager_rows, begins):
    rows = eager_rows(
        f"""
        import cgdebug
        x = torch.ones(2, 4) / 0 * 0
        net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        nn.init.ones_(net[0].weight)
        x = torch.ones(2, 4).tan()
        for _ in range(3):
            {begins}
        """
    )
    assert rows["fwd/0/addmm_0"] == 3
    assert not {"fwd/div_0", "fwd/fill__0", "fwd/tan_0"} & set(rows), rows


def test_what_is_done_before_a_step_is_set_is_in_no_call(eager_rows):
    rows = eager_rows(
        """
        import cgdebug
        x = torch.ones(2).tan()
        for n in range(3):
            cgdebug.step(n)
            x.exp()
        """
    )
    assert rows["fwd/exp_0"] == 3 and "fwd/tan_0" not in rows


def test_a_live_log_says_of_each_call_what_its_recording_says(daemon, cli, job, tmp_path):
    """Also of older calls, of which not all rows are kept, and of rows that came before with the
    same shape in a call that was not the last one."""
    running = job("""
        torch.manual_seed(0)  # all of it is finite
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        with cgdebug.debug_mode(net, eager=True), torch.no_grad():
            for n in range(1, 201):
                y = net(torch.full((1 + n % 3, 4), float(n)))
                if n % 3 == 0: y.exp()
            print("ready", flush=True)
            sys.stdin.readline()
    """)
    assert running.line() == "ready"
    key = str(running.pid)
    frozen = str(tmp_path / "frozen.cgrec")
    assert cli("freeze", key, "-o", frozen).returncode == 3  # older calls are not kept
    kept = 0
    for call in (200, 199, 198, 196, 190, 100, 1):
        live, recorded = (cli("--json", "ops", f"{source}@call:{call}") for source in (key, frozen))
        assert live.returncode == recorded.returncode, (call, live, recorded)
        live, recorded = json.loads(live.stdout), json.loads(recorded.stdout)
        if "rows" not in live:
            continue
        assert live["rows"] == recorded["rows"] and live["rows"]
        assert (live["between"], live["lost"]) == (recorded["between"], recorded["lost"])
        kept += 1
    assert kept >= 4
