"""`cgdebug-cli run` and recordings that wait for a job: what they record, and what they say."""

import fcntl
import json
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import sys
import termios

import pytest

import cgdebug
from conftest import find_program, wait_until

RUNS = int(os.environ.get("CGDEBUG_TEST_RUNS", "2"))

STEPS = 20
PROBES = [f"p{i}" for i in range(5)]
JOB = """
import torch
from cgdebug import *
torch.manual_seed(0)
probes = [CudaGraphTensorProbe(f"p{i}", [TensorRecord(capacity=4)], mode="always") for i in range(5)]
for step in range(20):
    x = torch.randn(64, 64)
    for probe in probes:
        x = probe(x + 1)
"""


@pytest.fixture(autouse=True)
def own_run(monkeypatch):
    """Each `run` gets its own run id, not the one that conftest gives all tests."""
    monkeypatch.delenv("CGDEBUG_RUN_ID")


@pytest.fixture
def job_file(tmp_path):
    """job_file(code) is the path of a program."""

    def write(code, name="job.py"):
        path = tmp_path / name
        path.write_text(code)
        return str(path)

    return write


def state_of(pid):
    """The state of a process, as in ps; None if there is no such process."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def test_a_job_that_ends_before_the_daemon_looks_is_seen(cli, daemon, job_file):
    """The daemon is stopped from before the first call of a probe until the job has ended."""
    stop = f"os.kill({daemon.process.pid}, signal.SIGSTOP)"
    path = job_file(f"import os, signal\nprint(os.getpid(), flush=True)\n{stop}\n" + JOB)
    command = [find_program("cgdebug-cli"), "--socket", daemon.socket, "--no-spawn"]
    run = subprocess.Popen(
        [*command, "--json", "run", "--no-live", "--", sys.executable, path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        pid = run.stdout.readline().strip()
        wait_until(lambda: state_of(pid) in (None, "Z"), "the job ends")
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)
    summary = json.loads(run.communicate(timeout=300)[1].splitlines()[-1])
    assert len(summary["sessions"]) == 1, summary
    assert summary["complete"] is True
    assert summary["snapshots"] + summary["lost"] == STEPS * len(PROBES), summary


def test_recorded_jobs_lose_nothing_and_are_the_same(cli, job_file, tmp_path):
    path = job_file(JOB)
    recordings = [str(tmp_path / f"{number}.cgrec") for number in range(RUNS)]
    for one in recordings:
        run = cli("run", "-o", one, "--", sys.executable, path)
        assert run.returncode == 0, run.stderr
        recording = cgdebug.open(one)
        assert recording.complete, recording.missing
        for name in PROBES:
            assert list(recording[name].replays) == list(range(1, STEPS + 1)), run.stderr
        checked = cli("check", one)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    for other in recordings[1:]:
        compared = cli("diff", recordings[0], other)
        assert compared.returncode == 0, compared.stdout + compared.stderr


def test_a_recording_that_waits_for_a_job_has_all_of_it(cli, job_file, tmp_path):
    directory = str(tmp_path / "a.cgrec")
    started = cli("record", "start", "-o", directory, "--probes", "p?")
    assert started.returncode == 0, started.stderr
    # Not started by `run`: nothing in its environment says that it is recorded.
    environment = {**os.environ, "CGDEBUG": "1"}
    subprocess.run([sys.executable, job_file(JOB)], check=True, env=environment)
    wait_until(lambda: '"active": true' not in cli("--json", "record", "list").stdout, "it ends")
    recording = cgdebug.open(directory)
    assert recording.complete, recording.missing
    assert {name: len(recording[name]) for name in PROBES} == dict.fromkeys(PROBES, STEPS)


def test_every_of_an_action_leaves_nothing_out_of_a_recorded_run(cli, job_file, tmp_path):
    path = job_file(JOB.replace("TensorRecord(capacity=4)", "TensorPrint(every=5)"))
    directory = str(tmp_path / "a.cgrec")
    run = cli("run", "-o", directory, "--", sys.executable, path)
    assert run.returncode == 0, run.stderr
    recording = cgdebug.open(directory)
    assert {name: len(recording[name]) for name in PROBES} == dict.fromkeys(PROBES, STEPS)
    assert "EVERY" not in cli("info", directory).stdout
    printed = cli("tail", "--last", "1000", "-s", recording.sessions[0]).stdout
    assert printed.count("\n     [") <= STEPS, "printed each fifth call, as the action says"


def test_info_shows_what_a_lossy_recording_leaves_out(cli, job_file, tmp_path):
    path = job_file(JOB.replace("TensorRecord(capacity=4)", "TensorPrint(every=5)"))
    directory = str(tmp_path / "a.cgrec")
    run = cli("run", "--lossy", "-o", directory, "--", sys.executable, path)
    assert run.returncode == 0, run.stderr
    assert list(cgdebug.open(directory)["p0"].replays) in ([1, 6, 11, 16], [6, 11, 16])
    info = cli("info", directory).stdout
    assert "EVERY" in info, info
    probes = json.loads(cli("--json", "info", directory).stdout)["probes"]
    assert {probe["every"] for probe in probes} == {5}


def test_a_recording_says_that_its_job_died(cli, job_file, tmp_path):
    path = job_file(JOB + "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    directory = str(tmp_path / "a.cgrec")
    run = cli("run", "-o", directory, "--", sys.executable, path)
    assert run.returncode == 128 + 9, run.stderr
    recording = cgdebug.open(directory)
    assert {name: len(recording[name]) for name in PROBES} == dict.fromkeys(PROBES, STEPS)
    assert "  died" in cli("info", directory).stdout


def test_a_repaired_recording_blames_no_daemon(cli, job_file, tmp_path):
    directory = tmp_path / "a.cgrec"
    run = cli("run", "-o", str(directory), "--", sys.executable, job_file(JOB))
    assert run.returncode == 0, run.stderr
    (segment,) = directory.glob("segment-*")
    os.truncate(segment, segment.stat().st_size - 100)
    assert "or it was cut off" in cli("info", str(directory)).stdout
    repaired = cli("repair", str(directory))
    info = cli("info", str(tmp_path / "a.repaired.cgrec")).stdout
    assert "copied from a recording without its end" in info, repaired.stderr + info


def test_a_recording_that_cannot_begin_keeps_the_job_from_starting(cli, tmp_path):
    marker = tmp_path / "started"
    run = cli("run", "-o", str(tmp_path / "a.cgrec"), "--min-free-disk", "900T", "--", "touch",
              str(marker))  # fmt: skip
    assert run.returncode == 2 and "--min-free-disk 0" in run.stderr, run.stderr
    assert not marker.exists()


def test_a_recording_that_ended_early_is_exit_3(cli, job_file, tmp_path):
    run = cli("run", "-o", str(tmp_path / "a.cgrec"), "--max-size", "64K", "--", sys.executable,
              job_file(JOB))  # fmt: skip
    assert run.returncode == 3 and "size limit reached" in run.stderr, run.stderr
    assert "64 KiB were allowed: --max-size" in run.stderr


def test_a_glob_that_matched_nothing_is_exit_4_and_names_what_there_is(cli, job_file, tmp_path):
    run = cli("run", "-o", str(tmp_path / "a.cgrec"), "--record", "zzz*", "--", sys.executable,
              job_file(JOB))  # fmt: skip
    assert run.returncode == 4, run.stderr
    assert "no probe matches --record 'zzz*'. The job has: p0, p1, p2, p3, p4." in run.stderr


NAN_JOB = """
import torch
from cgdebug import *
a = CudaGraphTensorProbe("a", [TensorPrint()], mode="always")
b = CudaGraphTensorProbe("b", [TensorRecord()], mode="always")
for step in range(20):
    x = torch.full([4], float("nan") if step >= 10 else float(step))
    a(x)
    b(x)
"""


def test_where_a_job_that_ended_was_last_is_known(cli):
    code = """
import torch
from cgdebug import CudaGraphTensorProbe, TensorStats
probe = CudaGraphTensorProbe("last", [TensorStats()], mode="always")
for n in range(3):
    probe(torch.ones(2))
"""
    run = cli("run", "--", sys.executable, "-c", code).stderr.split("cgdebug: run ")[1].split()[0]
    (rank,) = json.loads(cli("--json", "where", run).stdout)["jobs"][0]["ranks"]
    assert rank["place"] == "eager" and rank["after"]["name"] == "last" and rank["replay"] == 3


@pytest.mark.parametrize("option", ["--watch", "--record"])
def test_the_options_behind_a_glob_are_those_of_the_job(cli, tmp_path, option):
    job = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "--lr", "0.1"]
    done = cli("run", option, "*", "--", *job, CGDEBUG_DIR=str(tmp_path))
    assert "['--lr', '0.1']" in done.stdout, done.stderr


def test_run_writes_only_findings_into_a_pipe(cli, job_file, tmp_path):
    # Recorded, so that nothing is lost, which would be a finding as well.
    run = cli("run", "-o", str(tmp_path / "a.cgrec"), "--", sys.executable, job_file(NAN_JOB))
    assert run.returncode == 0, run.stderr
    ours = [line for line in run.stderr.splitlines() if line.startswith("@")]
    # What TensorPrint wrote about `a` is there already.
    assert [line.split()[:2] for line in ours] == [["@11", "b"]], run.stderr
    assert "first NaN: a @11, 4 elements" in run.stderr


def test_run_tail_streams_each_snapshot_once_and_in_order(cli, job_file, tmp_path):
    run = cli("run", "--tail", "-o", str(tmp_path / "a.cgrec"), "--", sys.executable,
              job_file(NAN_JOB))  # fmt: skip
    lines = [line for line in run.stderr.splitlines() if line.startswith(("@", "[cgdebug] @"))]
    ours = [tuple(line.split()[:2]) for line in lines if line.startswith("@")]
    # What TensorPrint wrote is there already, written by the daemon.
    assert ours == [(f"@{n}", "b") for n in range(1, 21)], run.stderr
    assert sum(line.startswith("[cgdebug]") for line in lines) == 20, run.stderr


def test_on_a_terminal_run_keeps_one_status_line_and_gives_the_row_back(daemon, job_file, tmp_path):
    # The job waits until the line says what it found, so that it has time to.
    seen = tmp_path / "seen"
    wait = f"import os, time\nwhile not os.path.exists({str(seen)!r}):\n    time.sleep(0.01)\n"
    path = job_file(NAN_JOB + wait)
    command = [find_program("cgdebug-cli"), "--socket", daemon.socket, "run", "-o",
               str(tmp_path / "a.cgrec"), "--", sys.executable]  # fmt: skip
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = subprocess.Popen([*command, path], stdin=child, stdout=child, stderr=child,
                               env={**os.environ, "TERM": "xterm"})  # fmt: skip
    os.close(child)
    out = b""
    try:
        while chunk := os.read(parent, 65536):
            out += chunk
            if b"replays/s" in out and b"first NaN: a @11" in out:
                seen.touch()
    except OSError:  # the other end is closed
        pass
    finally:
        seen.touch()
        os.close(parent)
    assert process.wait(120) == 0, out
    text = out.decode()
    assert "\x1b[1;23r" in text and "replays/s" in text and "first NaN: a @11" in text, text
    assert text.rindex("\x1b[r") > text.rindex("replays/s"), text
    assert text.rindex("job exited 0") > text.rindex("\x1b[r"), text


RANK_JOB = """
import os, sys, torch
from cgdebug import *
probe = CudaGraphTensorProbe("x", [TensorRecord()], mode="always")
probe(torch.ones(1))
os.write(1, b"ready\\n")  # in one call, because both ranks write into one pipe
sys.stdin.readline()
"""
LAUNCHER = """
import os, subprocess, sys
ranks = [subprocess.Popen([sys.executable, sys.argv[1]], stdin=subprocess.PIPE,
                          env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)})
         for rank in (0, 1)]
sys.stdin.readline()
for rank in ranks:
    rank.communicate(b"x")
"""


@pytest.fixture
def launch(job_file):
    """launch() starts two ranks as torchrun does, without a run id, and waits until they probe."""
    started = []

    def start(**environment):
        script = job_file(RANK_JOB, name="ranked.py")
        launcher = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, script],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
                 "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none",
                 **environment},
        )  # fmt: skip
        started.append(launcher)
        assert [launcher.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        return launcher

    yield start
    for launcher in started:
        launcher.communicate("\n")


def ranked_runs(cli):
    found = {}
    for session in json.loads(cli("ps", "--json").stdout)["sessions"]:
        if session["command"].endswith("ranked.py"):
            found.setdefault(session["run_id"], []).append(session["rank"])
    return {run: sorted(ranks) for run, ranks in found.items()}


def test_each_step_of_a_slurm_allocation_is_a_run_of_its_own(cli, launch):
    for step in ("3", "4"):
        launch(TORCHELASTIC_RUN_ID="", SLURM_JOB_ID="77", SLURM_STEP_ID=step)
    wanted = {"77.3": [0, 1], "77.4": [0, 1]}
    wait_until(lambda: ranked_runs(cli) == wanted, "two runs")


def test_a_run_may_be_called_what_torchrun_calls_none(cli, job_file):
    script = job_file(
        """
import torch
from cgdebug import *
CudaGraphTensorProbe("p", [TensorRecord(capacity=4)], mode="always")(torch.ones(4))
"""
    )
    done = cli("run", "--", sys.executable, script, CGDEBUG_RUN_ID="none")
    assert done.returncode == 0 and "1 snapshot read, 0 lost" in done.stdout + done.stderr, done


def test_ranks_of_one_launch_are_one_run_and_those_of_another_are_not(cli, launch):
    def runs():
        return ranked_runs(cli)

    launch()
    wait_until(lambda: list(runs().values()) == [[0, 1]], "one run")
    (run,) = runs()
    assert run.startswith("ranked-")
    assert f"session  {run}  ranks 0..1 of 2 alive  " in cli("status").stdout
    checked = cli("check", run)
    assert "ranks 0..1 of 2" in checked.stdout, checked.stdout + checked.stderr
    launch()
    wait_until(lambda: [sorted(ranks) for ranks in runs().values()] == [[0, 1]] * 2, "two runs")
    launch(WORLD_SIZE="4")
    assert "ranks 0..1 of 4 alive; ranks 2..3 run on other machines" in cli("status").stdout


@pytest.mark.gpu
def test_a_recorded_graph_waits_for_room_in_every_replay(cli, job_file, tmp_path, every_lane):
    path = job_file("""
import torch
from cgdebug import *
probes = [CudaGraphTensorProbe(f"p{i}", [TensorPrint(every=5)]) for i in range(3)]
x = torch.zeros(1 << 18, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    x += 1
    for probe in probes:
        probe(x)
for replay in range(200):
    graph.replay()
torch.cuda.synchronize()
""")
    directory = str(tmp_path / "a.cgrec")
    run = cli("run", "-o", directory, "--", sys.executable, path)
    assert run.returncode == 0, run.stderr
    recording = cgdebug.open(directory)
    assert recording.complete, recording.missing
    for i in range(3):
        values = [snapshot.stats.max for snapshot in recording[f"p{i}"]]
        assert values == list(range(1, 201))


# Its child probes on until it is killed.
OUTLIVED = """
import os, sys, time, torch
from cgdebug import *
p = CudaGraphTensorProbe("p", [TensorRecord(capacity=64)], mode="always")
p(torch.ones(4))
if os.fork() == 0:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2): os.dup2(null, stream)
    while True:
        p(torch.ones(4))
        time.sleep(0.005)
"""


def test_a_run_ends_although_a_process_of_its_job_goes_on_and_says_so(cli, job_file, tmp_path):
    script, path = job_file(OUTLIVED, name="outlived.py"), str(tmp_path / "a.cgrec")
    command = ["run", "--fail-on", "nan", "-o", path, "--", sys.executable, script]
    run = cli(*command, CGDEBUG_RUN_ID=f"outlived-{tmp_path.name}")
    said = re.search(r"1 process of the job goes on after it \(pid (\d+)\)", run.stderr)
    assert said, run.stderr
    os.kill(int(said[1]), signal.SIGKILL)
    assert run.returncode == 3, run.stderr
    assert "job ended" not in cli("info", path).stdout.splitlines()[0]
