"""`cgdebug-cli run` and recordings that wait for a job: what they record, and what they say."""

import json
import os
import subprocess
import sys
import time

import pytest
from conftest import find_program, wait_until

import cgdebug

# 20 of them take a minute; what fails once in 20 runs fails in CI soon enough.
RUNS = int(os.environ.get("CGDEBUG_TEST_RUNS", "3"))

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
    """Each `run` is a run of its own, not the one that conftest makes of all tests."""
    monkeypatch.delenv("CGDEBUG_RUN_ID")


@pytest.fixture
def job_file(tmp_path):
    """job_file(code) is the path of a program."""

    def write(code, name="job.py"):
        path = tmp_path / name
        path.write_text(code)
        return str(path)

    return write


def run_job(path, **environment):
    """Seconds that the program takes without a daemon to talk to."""
    start = time.monotonic()
    subprocess.run([sys.executable, path], check=True, env={**os.environ, **environment})
    return time.monotonic() - start


def test_a_recorded_job_loses_nothing_and_hardly_takes_longer(cli, job_file, tmp_path):
    path = job_file(JOB)
    run_job(path, CGDEBUG="0")  # reads torch from the disk
    recordings, seconds, plain_seconds = [], [], []
    for i in range(RUNS):
        plain_seconds.append(run_job(path, CGDEBUG="0"))
        recordings.append(str(tmp_path / f"{i}.cgrec"))
        start = time.monotonic()
        run = cli("run", "-o", recordings[-1], "--", sys.executable, path)
        seconds.append(time.monotonic() - start)
        assert run.returncode == 0, run.stderr
        recording = cgdebug.open(recordings[-1])
        assert recording.complete, recording.missing
        for name in PROBES:
            assert list(recording[name].replays) == list(range(1, STEPS + 1)), run.stderr
        checked = cli("check", recordings[-1])
        assert checked.returncode == 0, checked.stdout + checked.stderr
    for other in recordings[1:]:
        compared = cli("diff", recordings[0], other)
        assert compared.returncode == 0, compared.stdout + compared.stderr
    assert min(seconds) <= 1.3 * min(plain_seconds), (seconds, plain_seconds)


def test_a_recording_that_waits_for_a_job_has_all_of_it(cli, job_file, tmp_path):
    directory = str(tmp_path / "a.cgrec")
    started = cli("record", "start", "-o", directory, "--probes", "p?")
    assert started.returncode == 0, started.stderr
    # Not started by `run`: nothing in its environment says that it is recorded.
    run_job(job_file(JOB), CGDEBUG="1")
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
