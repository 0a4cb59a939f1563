"""What a job that is killed had not sent yet is counted."""

import json
import re
import subprocess
import sys
import textwrap

import pytest
import torch

import cgdebug
from conftest import find_program, wait_until
from op_logs import needs_mode

pytestmark = needs_mode

HEAD = """
    import os, signal, time, torch
    torch.manual_seed(0)
    class Net(torch.nn.Module):
        calls = 0
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)
        def forward(self, x):
            self.calls += 1
            return self.rest(self.layer(x))
"""
IN_CALL_12 = """
        def rest(self, x):
            x = x.exp().sin()
            if self.calls == 12: os.kill(os.getpid(), signal.SIGKILL)
            return x.cos()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)  # exp() of what grows is Inf
    for n in range(20):
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
IN_A_LONG_CALL = """
        def rest(self, x):
            end = time.monotonic() + 2.5
            while time.monotonic() < end:
                x = x.add(1)
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
    Net()(torch.ones(2, 4))
"""

FUNCTIONS = """
    x = torch.ones(4)
    for n in range(100): x = x.sin()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def killed(daemon, cli, tmp_path):
    """killed(job): (path of its recording, what `run` said)"""

    def run(job):
        script, path = tmp_path / "job.py", tmp_path / "job.cgrec"
        script.write_text(textwrap.dedent(HEAD) + textwrap.dedent(job), encoding="utf-8")
        watch = ("--watch", "op:*", "--eager", "--fail-on", "nan", "-o", path)
        done = cli("run", *watch, "--", sys.executable, script, CGDEBUG_RUN_ID="killed")
        assert done.returncode == 137, done.stderr
        return path, done.stderr

    return run


def _never_sent(text):
    found = re.search(r"(\d+) rows? of op logs never left the job", text)
    assert found, text
    return int(found[1])


def test_the_rows_of_the_call_in_which_a_job_is_killed_are_counted(killed, cli):
    path, said = killed(IN_CALL_12)
    checked = cli("check", path)
    assert checked.returncode == 3, checked.stdout
    count = _never_sent(checked.stdout)
    assert 1 <= count <= 10, "what call 12 did before it was killed"
    for command in ("info", "ops"):
        done = cli(command, path)
        assert _never_sent(done.stdout + done.stderr) == count, command
    ended = cli("ops", f"{path}@call:3")
    assert ended.returncode == 0 and "never left" not in ended.stdout + ended.stderr, ended.stderr
    assert _never_sent(said) == count
    sql = "select distinct call from v_snapshots where probe = 'fwd/layer/addmm_0' order by call"
    calls = json.loads(cli("--json", "query", path, sql).stdout)
    assert [row["call"] for row in calls] == list(range(1, 12)), "all before it are there"
    with cgdebug.open(path) as recording:
        assert not recording.complete
        assert any("never left the job" in sentence for sentence in recording.missing)


def test_rows_leave_a_call_that_goes_on_at_least_once_a_second(killed, cli):
    path, _ = killed(IN_A_LONG_CALL)
    with cgdebug.open(path) as recording:
        sent = len([name for name in recording.probes if "/add_" in name])
    never_sent = _never_sent(cli("check", path).stdout)
    assert sent >= 15, "those of the first second, at least"
    assert never_sent < sent
    shown = json.loads(cli("--json", "ops", f"{path}@call:1").stdout)
    numbers = [row["number"] for row in shown["rows"]]
    assert numbers == list(range(1, len(numbers) + 1)), "they are rows of one call"
    assert shown["verdict"] == "inconclusive"


def test_of_a_recording_whose_daemon_was_killed_the_newest_call_may_lack_rows(own_daemon, tmp_path):
    daemon, path, dm = own_daemon(), tmp_path / "a.cgrec", cgdebug.debug_mode(eager=True)
    with daemon.connect() as client:
        client.record(path)
        for _ in range(3):
            with dm:
                torch.ones(2).exp()
        wait_until(lambda: _calls_in(path) == dm.calls, "the recording has every call")
    daemon.process.kill()
    daemon.process.wait(60)
    codes = []
    for call in dm.calls:
        ops = [find_program("cgdebug-cli"), "ops", f"{path}@call:{call}"]
        done = subprocess.run(ops, capture_output=True, text=True)
        codes.append(done.returncode)
        assert ("may have gone on" in done.stderr) == (done.returncode == 3), done.stderr
    assert codes == [0, 0, 3]
    dm.close()


def _calls_in(path):
    if not path.exists():
        return []
    with cgdebug.open(path) as recording:
        return sorted({replay for name in recording.probes for replay in recording[name].replays})


def test_the_rows_of_functions_alone_are_counted_before_they_leave(killed, cli):
    path, said = killed(FUNCTIONS)
    checked = cli("check", path)
    assert checked.returncode == 3, checked.stdout + checked.stderr
    assert 100 <= _never_sent(checked.stdout + checked.stderr) <= 110
    assert _never_sent(said) == _never_sent(checked.stdout + checked.stderr)


def test_what_is_done_before_a_model_is_made_is_not_counted(killed, cli):
    path, _ = killed(
        IN_CALL_12.replace(
            "net = Net()", "for n in range(100): torch.ones(4).sin()\n    net = Net()"
        )
    )
    assert 1 <= _never_sent(cli("check", path).stdout) <= 10
