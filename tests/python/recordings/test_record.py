"""Recording from Python: Client.record, Client.freeze, TensorRecord(to="disk")."""

import os
import shutil
import sqlite3
import subprocess
import sys
import threading

import numpy
import pytest
import recording_writer
import torch

import cgdebug
from cgdebug import DaemonError, TensorCompare, TensorRecord, TensorStats
from conftest import find_program, wait_until

JOB = """
import torch, cgdebug
p = cgdebug.CudaGraphTensorProbe("x", [cgdebug.TensorRecord(2, to="disk")], mode="always")
for step in range(50):
    p(torch.full((8,), float(step)))
assert p.status().replays == 50, p.status()
"""


def values(recording, name):
    return [float(numpy.asarray(s.numpy()).reshape(-1)[0]) for s in recording[name]]


def newest(client, name):
    """The replay of a probe that the daemon has; 0 before the first."""
    try:
        return client.get(name).replay_index
    except DaemonError:
        return 0


def wait_for(client, p, replay):
    wait_until(lambda: newest(client, p.name) == replay, f"{p.name}@{replay} has been read")


def test_what_is_recorded_in_a_with_block_is_what_was_probed(client, probe, tmp_path):
    p = probe(TensorRecord(64), name="recorded")
    p(torch.zeros(4))
    wait_for(client, p, 1)
    with client.record(tmp_path / "a.cgrec", probes=p.name) as live:
        for step in range(1, 21):
            p(torch.full((4,), float(step)))
        wait_for(client, p, 21)
    assert live.refresh().snapshots == 20 and live.refresh().lost == 0
    recording = cgdebug.open(live.directory)
    assert values(recording, p.name) == [float(step) for step in range(1, 21)]
    assert recording.complete


def test_a_with_block_has_exactly_its_calls_however_far_the_daemon_is(client, probe, tmp_path):
    p = probe(TensorRecord(256), name="exact")
    for turn in range(5):
        p(torch.full((4,), -1.0))  # before it, by rule and not by chance
        with client.record(tmp_path / f"{turn}.cgrec", probes=p.name) as live:
            for step in range(100):
                p(torch.full((4,), float(step)))
        p(torch.full((4,), -2.0))
        recording = cgdebug.open(live.directory)
        assert values(recording, p.name) == [float(step) for step in range(100)]
        assert recording.complete, recording.missing


def test_right_after_its_job_a_recording_is_whole(no_daemon, job, tmp_path):
    job(JOB, CGDEBUG_DIR=str(tmp_path)).finish()
    (recording,) = tmp_path.glob("*.cgrec")
    result = subprocess.run(
        [find_program("cgdebug-cli"), "check", recording], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert cgdebug.open(recording).complete


def test_right_after_its_end_a_job_is_known_to_have_ended(cli, job):
    code = """
    p = CudaGraphTensorProbe("x", [TensorRecord(64)], mode="always")
    for step in range(20):
        p(torch.full((8,), float(step)))
    """
    ended = job(code, CGDEBUG_RUN_ID="has-just-ended")
    ended.finish()
    result = cli("-s", str(ended.pid), "check")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("job has-just-ended ("), result.stdout
    assert f" has exited (pid {ended.pid}, " in result.stdout
    assert "nothing found in 20 snapshots\n" in result.stdout


def test_two_recordings_of_statistics_are_compared(client, probe, tmp_path):
    p = probe(TensorStats(), name="hashed")
    p(torch.zeros(4))
    paths = []
    for name, last in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        replay = p.status().replays
        wait_for(client, p, replay)
        with client.record(tmp_path / f"{name}.cgrec", probes=p.name) as live:
            for step in range(3):
                cgdebug.step(step)
                p(torch.tensor([float(step), -1.0, 3.0, last if step == 2 else 1.0]))
            wait_for(client, p, replay + 3)
        paths.append(live.directory)
    a = cgdebug.open(paths[0])
    assert [s.stats.xor_hash is not None for s in a[p.name]] == [True] * 3
    same = a.diff(paths[1], align="step")
    assert same.ok and "same by hash and statistics; values were not recorded" in str(same)
    other = a.diff(paths[2], align="step")
    assert other.verdict == "different" and other.first["step"] == 2
    assert {"mean", "l1", "xor_hash"} <= set(other.first["statistics"])


def test_a_recording_ends_with_its_replays(client, probe, tmp_path):
    p = probe(TensorRecord(64), name="three")
    p(torch.zeros(4))
    wait_for(client, p, 1)
    live = client.record(tmp_path / "a.cgrec", probes=[p.name], replays=3)
    for step in range(1, 11):
        p(torch.full((4,), float(step)))
    assert live.wait(timeout=120)
    assert live.stop().state == "complete"
    assert values(cgdebug.open(live.directory), p.name) == [1.0, 2.0, 3.0]


def test_freeze_writes_what_is_left(client, probe, tmp_path):
    p = probe(TensorRecord(4), name="frozen")
    for step in range(10):
        p(torch.full((4,), float(step)))
    wait_until(lambda: newest(client, "frozen") == 10, "the last one is kept")
    frozen = client.freeze(tmp_path / "f.cgrec", probes=p.name, last=2)
    assert frozen.snapshots == 2
    assert values(cgdebug.open(tmp_path / "f.cgrec"), p.name) == [8.0, 9.0]


def test_freeze_takes_as_long_as_it_takes(daemon, client, probe, tmp_path):
    p = probe(TensorRecord(4), name="slowly")
    p(torch.ones(4))
    wait_for(client, p, 1)
    begun = recording_writer.Writer(str(tmp_path / "begun.cgrec"))
    shutil.copytree(tmp_path / "begun.cgrec", tmp_path / "f.cgrec")
    begun.close()
    catalogue = sqlite3.connect(
        tmp_path / "f.cgrec/catalogue.sqlite", isolation_level=None, check_same_thread=False
    )
    catalogue.execute("begin exclusive")  # the daemon waits for it
    with cgdebug.connect(daemon.socket, session=os.getpid(), timeout=2) as impatient:
        threading.Timer(3.0, catalogue.close).start()
        assert impatient.freeze(tmp_path / "f.cgrec", probes=p.name).snapshots == 1


def test_how_a_recording_is_written_can_be_chosen(client, probe, tmp_path):
    p = probe(TensorRecord(64), name="rolled")
    p(torch.zeros(65536))
    wait_for(client, p, 1)
    with client.record(
        tmp_path / "a.cgrec", probes=p.name, roll_bytes=1 << 20, durability="each"
    ) as live:
        for step in range(1, 9):
            p(torch.full((65536,), float(step)))  # 256 KiB
        wait_for(client, p, 9)
        state = live.refresh()
        assert state.snapshots == state.durable_snapshots == 8
    assert len(list((tmp_path / "a.cgrec").glob("segment-*"))) >= 2
    assert values(cgdebug.open(live.directory), p.name) == [float(step) for step in range(1, 9)]
    with pytest.raises(ValueError, match="none, interval, each, not 'always'"):
        client.record(tmp_path / "b.cgrec", durability="always")


def test_what_was_compared_says_so_in_the_recording(daemon, client, probe, tmp_path):
    p = probe(TensorRecord(4), TensorCompare(torch.zeros(3)), name="compared")
    with client.record(tmp_path / "a.cgrec", probes=p.name) as live:
        for value in (0.0, 0.0, 2.0):
            p(torch.tensor([0.0, value, 0.0]))
        wait_for(client, p, 3)
    asked = "SELECT replay, mismatched, count, max_abs FROM v_comparisons ORDER BY replay"
    own = cgdebug.open(live.directory)
    assert own.sql(asked) == [(1, 0, 3, None), (2, 0, 3, None), (3, 1, 3, 2.0)]


def test_a_directory_that_holds_something_else_is_refused(client, tmp_path):
    mine = tmp_path / "mine.cgrec"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    with pytest.raises(DaemonError, match="a directory of its own"):
        client.record(mine)


def test_a_probe_records_to_disk_without_losing_one(daemon, tmp_path):
    env = {**os.environ, "CGDEBUG_SOCKET": daemon.socket, "CGDEBUG_DIR": "out"}
    subprocess.run([sys.executable, "-c", JOB], check=True, cwd=tmp_path, env=env, timeout=300)
    found = list((tmp_path / "out").glob("*.cgrec"))
    assert len(found) == 1
    wait_until(lambda: cgdebug.open(found[0]).complete, "the recording is closed")
    assert values(cgdebug.open(found[0]), "x") == [float(step) for step in range(50)]
    # The daemon makes it after it has closed the last segment.
    wait_until((found[0] / "catalogue.sqlite").exists, "the catalogue is there")


def test_a_job_that_no_daemon_saw_alive_is_recorded_in_the_daemons_folder(
    own_daemon, job, tmp_path, monkeypatch
):
    gone = job(
        f"""
        os.chdir({str(tmp_path)!r})
        os.environ["CGDEBUG_DIR"] = "out"
        p = CudaGraphTensorProbe("x", [TensorRecord(4, to="disk")], mode="always")
        for step in range(10):
            p(torch.full((8,), float(step)))
        print("probed")
        sys.stdin.readline()
        """
    )
    assert gone.line() == "probed"
    gone.process.kill()
    gone.process.wait()
    # The path that a dead job asked for is not trusted: any process may have written it.
    monkeypatch.setenv("CGDEBUG_DIR", str(tmp_path / "daemons"))
    own_daemon()
    found = wait_until(lambda: list((tmp_path / "daemons").glob("*.cgrec")), "it is recorded")
    wait_until(lambda: not cgdebug.open(found[0]).growing, "the recording is closed")
    recording = cgdebug.open(found[0])
    assert values(recording, "x") == [6.0, 7.0, 8.0, 9.0]
    assert not recording.complete and [gap.count for gap in recording.gaps] == [6]


def test_where_a_record_goes_is_checked():
    with pytest.raises(ValueError, match='"ring" or "disk"'):
        TensorRecord(to="tape")
