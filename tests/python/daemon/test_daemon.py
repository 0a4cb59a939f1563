"""Jobs, the real daemon, and the verdicts and lines that come back."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest
import torch

import cgdebug
from cgdebug import (
    TensorCompare,
    TensorCompareMismatchError,
    TensorNotComparedError,
    TensorPrint,
    TensorRecord,
)
from cgdebug._job import _native
from conftest import find_program, wait_until


@pytest.fixture(autouse=True)
def _daemon_may_be_asked_again(monkeypatch):
    monkeypatch.setattr(_native, "_daemon_asked_in_pid", 0)
    monkeypatch.setattr(_native, "_daemon_problem", "")


# --- verdicts ---


def test_equal_values_pass(daemon, probe):
    x = torch.randn(100)
    p = probe(TensorCompare(x))
    for _ in range(50):
        p(x)
    p.assert_ok()
    status = p.status()
    assert status.daemon_alive and status.waited and "compare pass, 50 compared" in repr(status)


def test_a_failure_is_named_and_sticky(daemon, probe, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    p = probe(TensorCompare(torch.ones(2, 4)), name="blk3.attn")
    wrong = torch.ones(2, 4)
    wrong[1, 2] = 14.25
    for i in range(20):
        p(wrong if 16 <= i < 19 else torch.ones(2, 4))
    for _ in range(2):
        with pytest.raises(TensorCompareMismatchError) as caught:
            p.assert_ok()
    error = caught.value
    assert isinstance(error, AssertionError)
    assert (error.probe_name, error.replay_index, error.invocation_index) == ("blk3.attn", 17, 0)
    lines = str(error).splitlines()
    assert lines[0] == "probe 'blk3.attn' (rank 0) failed at replay 17 (first of 3)."
    assert "Mismatched elements: 1 / 8" in str(error)
    assert "Greatest absolute difference: 13.25 at index (1, 2)" in str(error)
    assert lines[-1] == f"see: cgdebug-cli show -s {os.getpid()} blk3.attn@17"
    assert p.status()["ok"] is False and p.status().message in str(error)


def test_a_failure_survives_what_passes_later(daemon, probe):
    p = probe(TensorCompare(torch.ones(2)))
    p(torch.zeros(2))
    with pytest.raises(TensorCompareMismatchError):
        p.assert_ok()
    for _ in range(100):
        p(torch.ones(2))
    with pytest.raises(TensorCompareMismatchError, match="failed at replay 1"):
        p.assert_ok()


def test_print_record_and_compare_in_one_probe(daemon, probe):
    p = probe(TensorPrint(max_items=0), TensorRecord(capacity=2), TensorCompare(torch.ones(2)))
    for _ in range(5):
        p(torch.ones(2))
    p.assert_ok()
    assert [r.replay_index for r in p.records()] == [4, 5]


@pytest.mark.parametrize("value", [-(2**63), 2**53, 2**63 - 2])
def test_int64_is_exact_over_its_whole_range(daemon, probe, value):
    p = probe(TensorCompare(torch.tensor([value]), rtol=0, atol=0))
    p(torch.tensor([value]))
    p.assert_ok()
    p(torch.tensor([value + 1]))
    with pytest.raises(TensorCompareMismatchError, match="failed at replay 2"):
        p.assert_ok()


@pytest.mark.parametrize(
    "expected, actual, options, passes",
    [
        ("inf", "inf", {}, True),
        ("inf", "-inf", {"atol": 1e300, "rtol": 1e300}, False),
        ("nan", "nan", {}, False),
        ("nan", "nan", {"equal_nan": True}, True),
        (0.0, -0.0, {"bitwise": True}, False),
    ],
)
def test_special_values(daemon, probe, expected, actual, options, passes):
    p = probe(TensorCompare(torch.tensor([float(expected)]), **options))
    p(torch.tensor([float(actual)]))
    if passes:
        p.assert_ok()
    else:
        with pytest.raises(TensorCompareMismatchError):
            p.assert_ok()


def test_the_first_call_is_what_later_ones_are_compared_with(daemon, probe):
    p = probe(TensorCompare(expected="first"))
    x = torch.randn(64)
    for _ in range(5):
        p(x)
    p.assert_ok()
    (slot,) = p.status().slots
    assert (slot.verdict, slot.compared, slot.accepted, slot.compared_with) == (
        ("pass", 4, 5, "first")
    )
    p(x + 1)
    p(x)
    with pytest.raises(TensorCompareMismatchError, match="at replay 6 .the only one.") as caught:
        p.assert_ok()
    assert "Mismatched elements: 64 / 64" in str(caught.value)


def test_each_shape_has_a_first_call_of_its_own(daemon, probe):
    p = probe(TensorCompare(expected="first"))
    for tensor in (torch.ones(3), torch.zeros(2), torch.zeros(2), torch.ones(3)):
        p(tensor)
    p.assert_ok()
    assert [slot.compared for slot in p.status().slots] == [1, 1]


def test_a_first_call_alone_is_no_pass(daemon, probe):
    p = probe(TensorCompare(expected="first"))
    p(torch.ones(2))
    with pytest.raises(TensorNotComparedError, match="there was no later one"):
        p.assert_ok()


def test_a_first_call_that_was_overwritten_is_no_reference(own_daemon, probe, monkeypatch):
    monkeypatch.setenv("CGDEBUG_WAIT_MS", "0")
    p = probe(TensorCompare(expected="first"), TensorRecord(capacity=2))
    for _ in range(5):
        p(torch.ones(2))
    own_daemon()
    with pytest.raises(TensorNotComparedError, match="first snapshot.*was lost before"):
        p.assert_ok()


def test_the_next_daemon_finds_the_first_call_while_the_ring_has_it(own_daemon, probe):
    p = probe(TensorCompare(expected="first"), TensorRecord(capacity=4))
    daemon = own_daemon()
    p(torch.ones(2))
    assert p.status().slots[0].consumed == 1
    daemon.process.kill()
    daemon.process.wait()
    daemon = own_daemon()
    p(torch.zeros(2))
    with pytest.raises(TensorCompareMismatchError, match="failed at replay 2"):
        p.assert_ok()
    q = probe(TensorCompare(expected="first"), TensorRecord(capacity=2), name="q")
    for _ in range(4):
        q(torch.ones(2))
        assert q.status().waited
    daemon.process.kill()
    daemon.process.wait()
    own_daemon()
    q(torch.ones(2))
    with pytest.raises(TensorNotComparedError, match="the daemon that had its first snapshot"):
        q.assert_ok()


def test_a_probe_is_compared_with_what_another_saw_in_its_last_call(daemon, probe):
    a = probe(TensorRecord(capacity=2), name="a")
    b = probe(TensorCompare(expected=a), name="b")
    for i in range(40):
        a(torch.full((3,), float(i)))
        b(torch.full((3,), float(i)))
    b.assert_ok()
    (slot,) = b.status().slots
    assert (slot.compared, slot.compared_with, slot.compared_on) == (40, "probe", "daemon")
    a(torch.ones(3))
    b(torch.zeros(3))
    b(torch.ones(3))
    with pytest.raises(TensorCompareMismatchError, match="at replay 41 .the only one."):
        b.assert_ok()


def test_a_call_that_the_other_probe_did_not_keep_is_not_compared(daemon, probe):
    a = probe(TensorRecord(every=2), name="a")
    b = probe(TensorCompare(expected=a), name="b")
    for _ in range(2):
        a(torch.ones(3))
        b(torch.ones(3))
    with pytest.raises(TensorNotComparedError, match="has no values of replay 2"):
        b.assert_ok()


def test_what_cannot_be_compared_with_another_probe_says_why(daemon, probe):
    a = probe(TensorRecord(), name="a")
    b = probe(TensorCompare(expected=a), name="b")
    with pytest.raises(ValueError, match=r"'a', which was not called with float32\[3\] before it"):
        b(torch.ones(3))
    with pytest.raises(ValueError, match="goes into a probe of its own"):
        probe(TensorCompare(expected=a), TensorRecord(), name="c")
    off = probe(TensorRecord(enabled=False), name="off")
    with pytest.raises(ValueError, match="is probe 'off', which is off"):
        probe(TensorCompare(expected=off), name="d")
    a.close()
    with pytest.raises(ValueError, match="'a', which is closed"):
        b(torch.ones(3))


# --- daemons that come late, hang or die ---


def test_a_daemon_that_comes_late_still_compares(own_daemon, probe):
    p = probe(TensorCompare(torch.ones(2)), TensorRecord(capacity=64))
    for _ in range(40):
        p(torch.ones(2))
    own_daemon()
    p.assert_ok()
    assert p.status().slots[0].compared == 40


def test_a_killed_daemon_is_replaced_and_loses_nothing(own_daemon, probe):
    p = probe(TensorCompare(torch.ones(2)), TensorRecord(capacity=64))
    first = own_daemon()
    p(torch.ones(2))
    p.assert_ok()
    first.process.kill()
    first.process.wait()
    for _ in range(30):
        p(torch.ones(2))
    with pytest.raises(TensorNotComparedError, match="no daemon is running"):
        p.assert_ok(timeout=0.2)
    own_daemon()
    p.assert_ok()
    p(torch.zeros(2))
    with pytest.raises(TensorCompareMismatchError, match="failed at replay 32"):
        p.assert_ok()


def test_a_hung_daemon_is_an_error_and_never_a_pass(own_daemon, probe, monkeypatch):
    monkeypatch.setenv("CGDEBUG_WAIT_MS", "500")
    p = probe(TensorCompare(torch.ones(2)))
    hung = own_daemon()
    p(torch.ones(2))
    p.assert_ok()
    hung.process.send_signal(signal.SIGSTOP)
    os.waitpid(hung.process.pid, os.WUNTRACED)  # no thread of it runs any more
    try:
        for _ in range(100):
            p(torch.ones(2))
        with pytest.raises(
            TensorNotComparedError, match="did not get through everything within 0.3 s"
        ):
            p.assert_ok(timeout=0.3)
        # One deadline for the lot; one for each call would be 46 s.
        assert p.status(timeout=0).slots[0].wait_ns < 10e9
    finally:
        hung.process.send_signal(signal.SIGCONT)
    with pytest.raises(TensorNotComparedError, match="overwritten .*before the daemon could read"):
        p.assert_ok()


# --- jobs ---

PRINTING = """
    p = CudaGraphTensorProbe("blk.out", [TensorPrint(max_items=2, every=2)], mode="always")
    for i in range(5):
        p(torch.full((3,), float(i)))
"""


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_print_lines_are_in_the_jobs_locale(daemon, job, locale):
    code = """
        p = CudaGraphTensorProbe("blk.out", [TensorPrint()], mode="always")
        p(torch.tensor([0.0, 1.0, 5.0]))
    """
    _, err = job(code, stderr=subprocess.PIPE, LC_ALL=locale).finish()
    (line, *_) = [one for one in err.splitlines() if "[cgdebug]" in one and "@1" in one]
    assert line.isascii() == (locale == "C"), line
    assert ("mean=" if locale == "C" else "μ=") in line, line


def test_print_lines_reach_the_jobs_own_stderr(daemon, job):
    _, err = job(PRINTING, stderr=subprocess.PIPE).finish()
    lines = [line for line in err.splitlines() if "blk.out" in line]
    assert len(lines) == 3 and all(f"@{n}" in line for n, line in zip((1, 3, 5), lines))
    assert "f32[3]" in lines[0]
    assert "lines of TensorPrint" not in err, "all of them are there"


@pytest.mark.parametrize("mode", ["w", "a"])
def test_print_lines_and_the_jobs_own_stand_behind_each_other_in_a_file(
    daemon, job, tmp_path, mode
):
    code = """
    p = CudaGraphTensorProbe("blk.out", [TensorPrint(max_items=2)], mode="always")
    for i in range(20):
        print("job", i, file=sys.stderr, flush=True)
        p(torch.full((3,), float(i)))
        p.status(timeout=60)
    """
    path = tmp_path / "stderr"
    path.write_text("before\n")
    with open(path, mode) as stderr:
        job(code, stderr=stderr).finish()
    lines = path.read_text().splitlines()
    assert (lines[0] == "before") == (mode == "a")
    assert [line for line in lines if line.startswith("job")] == [f"job {i}" for i in range(20)]
    printed = [line for line in lines if "blk.out" in line]
    assert len(printed) == 20 and all(f"@{i + 1}" in one for i, one in enumerate(printed))


def test_print_lines_that_the_terminal_did_not_get_are_in_the_command_it_names(daemon, job, cli):
    more = """
    q = CudaGraphTensorProbe("other", [TensorRecord()], mode="always")
    for i in range(50):
        q(torch.ones(1))
    """
    ours, theirs = socket.socketpair()  # the daemon writes into no socket
    with ours, theirs:
        job(PRINTING + more, stderr=theirs).finish()
        theirs.close()
        said = ours.makefile().read().splitlines()[-1]
    assert "3 lines of TensorPrint, 0 of them in this terminal" in said
    command = said.split("type: cgdebug-cli ")[1].split()
    events = [json.loads(line) for line in cli("--json", *command).stdout.splitlines()]
    assert sum(event["event"] == "print" for event in events) == 3


def test_a_job_starts_its_own_daemon(no_daemon, job):
    one = job(
        """
        p = CudaGraphTensorProbe("p", [TensorCompare(torch.ones(2))], mode="always")
        p(torch.ones(2))
        p.assert_ok(timeout=120)
        print("compared", p.status().daemon_alive)
        """
    )
    assert one.line() == "compared True"
    one.finish()
    with no_daemon() as client:
        assert one.pid in {session.pid for session in client.sessions()}


def test_nothing_is_lost_while_the_daemon_starts(no_daemon, job):
    one = job(
        """
        p = CudaGraphTensorProbe("p", [TensorCompare(torch.ones(2))], mode="always")
        for _ in range(200):
            p(torch.ones(2))
        p.assert_ok(timeout=120)
        print(p.status().slots[0].compared)
        """
    )
    assert one.line() == "200"
    one.finish()


def test_jobs_without_print_or_compare_start_no_daemon(no_daemon, job):
    job("CudaGraphTensorProbe('p', [TensorRecord()], mode='always')(torch.ones(2))").finish()
    with pytest.raises(ConnectionError):
        no_daemon()


def test_a_missing_daemon_program_is_a_warning_and_the_job_goes_on(job):
    one = job(
        PRINTING + "    print('done')\n",
        stderr=subprocess.PIPE,
        CGDEBUG="1",
        CGDEBUG_DAEMON="/nowhere/cgdebug-daemon",
    )
    out, err = one.finish()
    assert out.strip() == "done"
    assert "nothing will be printed or compared" in err and "/nowhere/cgdebug-daemon" in err


def test_values_of_a_killed_job_are_still_served(daemon, job):
    one = job(
        """
        p = CudaGraphTensorProbe("blk.last", [TensorRecord(capacity=4)], mode="always")
        for i in range(1, 8):
            p(torch.full((5,), float(i)))
        from cgdebug import _probe
        print(_probe.session()["uuid"])
        sys.stdin.readline()
        """
    )
    uuid = one.line()
    os.kill(one.pid, signal.SIGKILL)
    one.process.wait()
    with daemon.connect(session=uuid[:8]) as client:
        wait_until(
            lambda: {s.key: s.state for s in client.sessions()}.get(uuid[:8]) == "died", "its end"
        )
        got = client.get("blk.last")
    assert got.replay_index == 7 and got.numpy().tolist() == [7.0] * 5


def test_two_jobs_that_start_at_once_share_one_daemon(no_daemon, job):
    code = """
        p = CudaGraphTensorProbe("p", [TensorCompare(torch.ones(2))], mode="always")
        p(torch.ones(2))
        p.assert_ok(timeout=120)
        print("ok")
        sys.stdin.readline()
    """
    two = [job(code) for _ in range(2)]
    assert [one.line() for one in two] == ["ok", "ok"]
    with no_daemon() as client:
        assert {one.pid for one in two} <= {session.pid for session in client.sessions()}
    for one in two:
        one.go_on()
        one.finish()


def test_importing_the_client_needs_no_torch(daemon):
    code = "import sys, cgdebug; cgdebug.connect().status(); print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == "False"
    assert cgdebug.connect().status().pid == daemon.process.pid


@pytest.mark.parametrize(
    "flag, value, message",
    [
        ("--min-free-disk", "plenty", "neither a size such as 10G nor a part such as 5%"),
        ("--min-free-disk", "100%", "neither a size such as 10G nor a part such as 5%"),
        ("--durability", "always", "--durability"),
        ("--roll-size", "4K", "--roll-size"),
        ("--max-disk", "lots", "--max-disk"),
        ("--max-disk", "1", "the least is 64K"),
        ("--max-message", "0", "the least is 4K"),
        ("--max-message", "1G", "the most is 16M"),
        ("--keep-dead", "99999999d", "the longest is 36500d"),
    ],
)
def test_sizes_and_durations_are_checked(flag, value, message):
    words = [find_program("cgdebug-daemon"), flag, value]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and message in done.stderr, done.stderr


def test_a_socket_is_the_same_one_however_its_path_is_written(without_daemon, tmp_path):
    code = (
        "import cgdebug, torch\n"
        "p = cgdebug.CudaGraphTensorProbe('x', [cgdebug.TensorRecord(1)], mode='always')\n"
        "p(torch.ones(1)); input()"
    )
    place = {"env": {**os.environ, "CGDEBUG_SOCKET": "d.sock", "CGDEBUG": "0"}, "cwd": tmp_path}

    def cli(*words):
        command = [find_program("cgdebug-cli"), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, **place)

    job = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, **place)
    try:
        assert cli("daemon", "start").returncode == 0
        wait_until(lambda: str(job.pid) in cli("ps").stdout, lambda: cli("status").stdout)
    finally:
        job.communicate(b"\n")
        cli("daemon", "stop", "--force")
