"""A call is of the thread that began it, which has a number in every view."""

import json
import os
import sys
import textwrap
import threading

import pytest
import torch

import cgdebug
from conftest import wait_until
from op_logs import needs_mode

# Thread 2 calls with twos and thread 3 with threes, which make rows of 8 and 12. What thread 3 has in
# its fifth call has a NaN.
THREADS = """
    import threading, torch
    net = torch.nn.Linear(4, 4)
    torch.nn.init.ones_(net.weight)
    torch.nn.init.zeros_(net.bias)
    net(torch.ones(2, 4))
    turn, has_called = threading.Barrier(2), threading.Event()
    def work(number):
        for n in range(8):
            x = torch.full((2, 4), float(number))
            if number == 3 and n == 5: x = x / 0 * 0
            if n == 0 and number == 3: has_called.wait()
            net(x)
            if n == 0: has_called.set()
            turn.wait()
    threads = [threading.Thread(target=work, args=(number,)) for number in (2, 3)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    net(torch.ones(2, 4))
"""
LEVELS = {"*": ("fwd/Linear", []), "op:*": ("fwd/Linear/addmm_0", ["--eager"])}


@pytest.fixture
def record(daemon, cli, tmp_path):
    def run(level):
        script, path = tmp_path / "job.py", tmp_path / "job.cgrec"
        script.write_text(textwrap.dedent(THREADS), encoding="utf-8")
        watch = ["--watch", level, *LEVELS[level][1], "--fail-on", "nan"]
        return path, cli("run", *watch, "-o", path, "--", sys.executable, script)

    return run


@pytest.mark.parametrize("level", LEVELS)
@needs_mode
def test_each_view_says_which_thread_began_a_call(record, cli, level):
    path, done = record(level)
    probe = LEVELS[level][0]
    assert done.returncode == 1 and ", thread 3" in done.stderr, done.stderr

    sql = f"select call, thread, max, nan from v_snapshots where probe = '{probe}' order by call"
    rows = json.loads(cli("--json", "query", path, sql).stdout)
    assert len(rows) == 18
    bad = [row for row in rows if row["nan"]]
    assert [row["thread"] for row in bad] == [3]
    assert {(row["thread"], row["max"]) for row in rows if not row["nan"]} == {
        (1, 4.0), (2, 8.0), (3, 12.0),
    }  # fmt: skip

    first = json.loads(cli("--json", "check", path).stdout)["first_nonfinite"]
    call = first["replay"]
    assert first["thread"] == 3
    line = cli("check", path).stdout.splitlines()[0]
    assert line.startswith("first non-finite: ") and ", thread 3, " in line
    if level == "op:*":
        ops = f"{path}@call:{call}"
        assert f"call {call}, thread 3: " in cli("ops", ops).stdout
        assert json.loads(cli("--json", "ops", ops).stdout)["thread"] == 3
        assert "thread" not in cli("ops", f"{path}@call:1").stdout, "the main one is not named"
        sql = f"select distinct thread from v_ops where name = '{probe}' order by thread"
        assert json.loads(cli("--json", "query", path, sql).stdout) == [
            {"thread": 1}, {"thread": 2}, {"thread": 3},
        ]  # fmt: skip
    else:
        assert call == bad[0]["call"]
        assert ", thread 3" in cli("show", f"{path}:{probe}@call:{call}").stdout
        shown = json.loads(cli("--json", "show", f"{path}:{probe}@call:{call}").stdout)
        assert shown["thread"] == 3
        assert "thread" not in cli("show", f"{path}:{probe}@call:1").stdout
    with cgdebug.open(path) as recording:
        series = recording.probe(probe)
        assert [one.thread for one in series] == [row["thread"] for row in rows]
        assert {one.thread for one in recording.select(probe)} == {1, 2, 3}
        assert sorted(recording.table(probe)["thread"]) == sorted(row["thread"] for row in rows)


@needs_mode
def test_a_thread_that_has_ended_leaves_no_mode_to_torch(tmp_path, cli, daemon):
    """Torch drops it when the thread's own memory goes, maybe while the interpreter ends: that
    ends the job."""
    script = tmp_path / "job.py"
    script.write_text(
        textwrap.dedent("""
        import threading, torch
        from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
        net, here, left = torch.nn.Linear(4, 4), threading.local(), []
        net(torch.ones(2, 4))
        class AtTheEnd:
            def __del__(self): left.append(_get_current_dispatch_mode_stack())
        def work(run):
            run(torch.ones(2, 4))
            here.last = AtTheEnd()
        for run in (torch.sin, net):
            thread = threading.Thread(target=work, args=(run,))
            thread.start()
            thread.join()
        print(left)
        """),
        encoding="utf-8",
    )
    done = cli("run", "--watch", "op:*", "--eager", "--", sys.executable, script)
    # 3: ops of the first thread, which does not call the model, are not shown.
    assert (done.returncode, done.stdout) == (3, "[[], []]\n"), done.stderr


def test_of_a_live_job_too(daemon, cli, client):
    net = torch.nn.Linear(4, 4)
    watch = cgdebug.watch(net, values=8)
    net(torch.ones(2, 4))
    thread = threading.Thread(target=net, args=(torch.ones(2, 4),))
    thread.start()
    thread.join()
    probe = watch.probes["fwd/Linear"]
    assert [one.thread for one in probe.records()] == [1, 2]
    call, me = probe.records()[-1].replay_index, str(os.getpid())

    def told():
        events = client.tail("fwd/Linear", last=2, session=me)
        return [one for one in events if isinstance(one, cgdebug.TensorSnapshot)]

    wait_until(lambda: [one.replay_index for one in told()] == [call - 1, call], "two snapshots")
    assert [one.thread for one in told()] == [1, 2]
    assert client.get("fwd/Linear", call, session=me).thread == 2
    tail = ("-s", me, "tail", "-n", "2", "fwd/Linear")
    lines = cli(*tail).stdout.splitlines()
    assert [f"call {call}/t2 " in line for line in lines] == [False, True], lines
    lines = map(json.loads, cli("--json", *tail).stdout.splitlines())
    assert [line["thread"] for line in lines] == [1, 2]
    assert ", thread 2" in cli("-s", me, "show", f"fwd/Linear@call:{call}").stdout
    watch.close()


def test_a_probe_that_counts_its_own_uses_is_of_no_thread(daemon, client):
    probe = cgdebug.CudaGraphTensorProbe("alone", [cgdebug.TensorRecord()], mode="always")
    thread = threading.Thread(target=probe, args=(torch.ones(2),))
    thread.start()
    thread.join()
    assert probe.records()[0].thread is None
    probe.close()
