"""Recordings of several ranks, jobs and calls, read in Python."""

import json

import numpy
import pytest
import recording_writer

import cgdebug
from cgdebug.errors import RecordingError
from written_recordings import Writer, write


def test_folder_of_ranks(tmp_path):
    write(tmp_path / "r0.cgrec", rank=0)
    write(tmp_path / "r1.cgrec", factor=2, rank=1)
    r = cgdebug.open(tmp_path)
    assert r.ranks == [0, 1]
    with pytest.raises(RecordingError, match=r"r.rank\(0\)\['x'\]"):
        r["x"]
    one = r.rank(1)
    assert one.ranks == [1] and one["y"][2].numpy().tolist() == [2, 4] and one["y"][2].rank == 1
    assert r.check().ok and one.check().ok
    d = r.rank(0).diff(one)
    assert d.verdict == "different" and d.first["probe"] == "y"
    with pytest.raises(RecordingError, match="no probe of rank 7"):
        r.rank(7)


def test_a_folder_tells_which_recordings_cannot_be_read(tmp_path):
    write(tmp_path / "r0.cgrec", rank=0)
    (tmp_path / "r1.cgrec").mkdir()
    r = cgdebug.open(tmp_path)
    assert r.ranks == [0] and r["x"][5].stats.max == 5
    assert not r.complete and not r.check().ok
    for said in (r.missing, r.verify()):
        assert len(said) == 1 and "r1.cgrec" in said[0]


def test_several_calls_of_one_probe_are_told_apart(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    for call in (0, 1):
        writer.add("x", 1, numpy.float32([call]), invocation=call)
    r = cgdebug.open(writer.close())
    with pytest.raises(RecordingError, match="called 2 times"):
        r["x"]
    assert r.probe("x", invocation=1)[1].numpy() == [1]
    assert sorted(r.replay(1)) == ["x", "x#1"]


def test_a_probe_of_several_jobs_is_chosen_by_its_session(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    writer.add("x", 1, numpy.float32([1]))
    other = writer._writer.add_session("f" * 32, "other", -1)
    slot = writer._writer.add_slot(other, "x", "float32", (1,))
    writer._writer.append(slot, 1, numpy.float32([2]))
    r = cgdebug.open(writer.close())
    with pytest.raises(RecordingError, match=r"of 2 jobs: .* r.probe\('x', session='job'\)"):
        r["x"]
    assert [r.probe("x", session=one)[1].numpy()[0] for one in r.sessions] == [1, 2]
    with pytest.raises(KeyError, match="no probe 'x'"):
        r.probe("x", session="nobody")


def test_no_snapshot_of_a_replay_is_left_out(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    for size in (1, 2, 3):
        writer._slots.clear()  # eager calls with another shape are another slot
        writer.add("x", 1, numpy.zeros(size, "float32"))
    r = cgdebug.open(writer.close())
    assert {name: s.shape for name, s in r.replay(1).items()} == {
        "x": (1,),
        "x@float32[2]": (2,),
        "x@float32[3]": (3,),
    }
    with pytest.raises(RecordingError, match=r"3 series.*r\.select\('x'\)"):
        r["x"]
    assert [series.shape for series in r.select("x")] == [(1,), (2,), (3,)]


def test_a_replay_of_several_ranks_is_refused(tmp_path):
    for rank in (0, 1):
        write(tmp_path / f"r{rank}.cgrec", rank=rank)
    r = cgdebug.open(tmp_path)
    with pytest.raises(RecordingError, match=r"r\.rank\(0\)\.replay\(2\)"):
        r.replay(2)
    assert sorted(r.rank(1).replay(2)) == ["x", "y"]


def two_graphs(path):
    """Replays 1 and 2 of x in one graph, 1 to 4 in another; a graph that was never replayed."""
    writer = recording_writer.Writer(str(path))
    session = writer.add_session("0" * 32, "job", -1)
    for graph_id, replays in ((1, 0), (2, 2), (3, 4)):
        slot = writer.add_slot(session, "x", "float32", (1,), graph_id=graph_id)
        for replay in range(1, replays + 1):
            writer.append(slot, replay, numpy.float32([graph_id]), timestamp_ns=replay * 1000)
    writer.close()
    return cgdebug.open(path)


def test_a_name_means_the_same_graph_in_every_replay(tmp_path):
    r = two_graphs(tmp_path / "a.cgrec")
    for replay, names in ((1, {"x": 2, "x@g:1#3": 3}), (4, {"x@g:1#3": 3})):
        assert {name: s.graph_id for name, s in r.replay(replay).items()} == names
    r.export("npy", tmp_path / "npy")
    for name, graph_id in (("x", 2), ("x@g:1#3", 3)):
        files = sorted((tmp_path / "npy" / name).iterdir())
        assert [numpy.load(file).item() for file in files] == [graph_id] * (2 * graph_id - 2)


def test_each_call_of_a_probe_has_its_own_curve(tmp_path):
    two_graphs(tmp_path / "a.cgrec").export("perfetto", tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    curves = {}
    for event in events:
        if event["ph"] == "C" and "mean" in event["args"]:
            curves.setdefault(event["name"], []).append(event["args"]["mean"])
    assert curves == {"x mean": [2, 2], "x@g:1#3 mean": [3, 3, 3, 3]}


def test_processes_of_one_label_are_told_apart_by_their_uuids(tmp_path, cli):
    path = tmp_path / "fork.cgrec"
    writer = Writer(path)
    writer.add("x", 1, numpy.float32([1]))
    child = writer._writer.add_session("c" * 32, "job", -1)
    slot = writer._writer.add_slot(child, "x", "float32", (1,))
    writer._writer.append(slot, 1, numpy.float32([numpy.nan]))
    writer.close()
    assert "max       1\n" in cli("show", f"{path}:x@1", "-s", "00000000").stdout
    assert "NaN       1" in cli("show", f"{path}:x@1", "-s", "cccccccc").stdout
    unclear = cli("show", f"{path}:x@1")
    assert (
        unclear.returncode == 4 and "several jobs. Type for example: -s cccccccc" in unclear.stderr
    )
    assert cli("check", path, "-s", "00000000").returncode == 0
    found = cli("check", path)
    assert found.returncode == 1 and "-s cccccccc" in found.stdout + found.stderr
    r = cgdebug.open(path)
    with pytest.raises(RecordingError, match="of 2 jobs: .*session='00000000'"):
        r["x"]
    assert r.probe("x", session="00000000")[1].numpy() == [1]
    sessions = r.sql("SELECT uuid FROM session ORDER BY uuid")
    assert [row.uuid[:4] for row in sessions] == ["0000", "cccc"]


def test_a_folder_tells_what_it_was_read_without(tmp_path, cli):
    write(tmp_path / "a.cgrec")
    (tmp_path / "more").mkdir()
    write(tmp_path / "more" / "b.cgrec")
    cgdebug.open(tmp_path / "a.cgrec").export("safetensors", tmp_path / "values")
    (tmp_path / "values" / "replay-000001.safetensors").rename(tmp_path / "c.safetensors")
    result = cli("check", tmp_path)
    assert result.returncode == 3 and result.stdout.startswith("inconclusive: ")
    assert "more has recordings of its own" in result.stdout
    assert "c.safetensors: a folder of recordings is read without" in result.stdout
