"""Recordings read in Python, without daemon and without torch."""

import copy
import json
import os
import pathlib
import pickle
import subprocess
import sys
import threading

import numpy
import pytest
import recording_writer
from all_dtypes import CONVERTED

import cgdebug
from cgdebug.errors import RecordingError
from written_recordings import Writer, write


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a.cgrec")


def test_what_was_written_is_read(path):
    r = cgdebug.open(path)
    assert r.probes == ["x", "y"] and list(r) == ["x", "y"] and "x" in r and len(r) == 2
    assert r.replays == [1, 2, 3, 4, 5] and r.ranks == [-1] and r.sessions == ["job"]
    assert r.gaps == [] and r.complete and r.missing == [] and not r.growing
    s = r["x"][3]
    assert (s.probe_name, s.replay_index, s.shape, s.step) == ("x", 3, (2, 3), 103)
    assert s.dtype_name == "float32" and s.stats.max == 3 and s.hash is not None
    numpy.testing.assert_array_equal(s.numpy(), numpy.full((2, 3), 3, "float32"))
    assert "x @3" in repr(s) and "5 snapshots" in repr(r["x"]) and "complete" in repr(r)


def test_series_is_indexed_by_replay(path):
    x = cgdebug.open(path)["x"]
    assert x[-1].replay_index == 5 and x[-5].replay_index == 1
    assert [s.replay_index for s in x[2:5]] == [2, 3, 4]
    assert [s.replay_index for s in x[1:6:2]] == [1, 3, 5]
    assert [s.replay_index for s in x[:]] == [1, 2, 3, 4, 5] == [s.replay_index for s in x]
    assert x.step(104).replay_index == 4
    assert x.stat("abs_max").tolist() == [1, 2, 3, 4, 5] == x.stat("max").tolist()
    for bad in (0, 6, -6):
        with pytest.raises(KeyError, match="it has 1..5"):
            x[bad]
    with pytest.raises(KeyError, match="step 7"):
        x.step(7)
    with pytest.raises(ValueError, match="there are count, .*abs_max"):
        x.stat("median")


def test_unknown_names_get_the_nearest(path):
    with pytest.raises(KeyError, match="'x'"):
        cgdebug.open(path)["xx"]
    with pytest.raises(RecordingError, match="does not exist"):
        cgdebug.open(path + "x")


@pytest.mark.parametrize("elements", [4, 100_000])
def test_values_can_be_changed_and_the_file_does_not_change(tmp_path, elements):
    writer = Writer(tmp_path / "a.cgrec")
    writer.add("x", 1, numpy.arange(elements, dtype="float32"))
    path = writer.close()
    segment = next(pathlib.Path(path).glob("segment*"))
    before = segment.read_bytes()
    r = cgdebug.open(path)
    array = r["x"][1].numpy()
    array[:] = 7
    assert r["x"][1].numpy()[1] == 1
    assert segment.read_bytes() == before and r.verify() == []
    del r
    assert array[0] == 7  # the values outlive the recording


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_snapshots_go_to_other_processes_as_copies(path, copied):
    snapshot = cgdebug.open(path)["x"][3]
    other = copied(snapshot)
    numpy.testing.assert_array_equal(other.numpy(), snapshot.numpy())
    assert (other.probe_name, other.replay_index, other.step) == ("x", 3, 103)
    assert other.hash == snapshot.hash is not None
    assert other.stats == snapshot.stats


@pytest.mark.parametrize("dtype", CONVERTED)
def test_every_dtype_comes_back_in_numpy_and_torch_without_a_warning(tmp_path, dtype, recwarn):
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([0, 1, 1, 0]).to(getattr(torch, dtype))
    writer = Writer(tmp_path / "a.cgrec")
    raw = tensor.view(torch.uint8).numpy()
    slot = writer._writer.add_slot(writer._session, "x", dtype, [4])
    writer._writer.append(slot, 1, raw)
    s = cgdebug.open(writer.close())["x"][1]
    assert torch.equal(s.tensor, tensor) and s.tensor.dtype == tensor.dtype == s.dtype
    assert s.values().tolist() == tensor.double().tolist()
    assert not [w for w in recwarn if "writable" in str(w.message)]


def test_empty_and_scalar_tensors(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    writer.add("empty", 1, numpy.zeros((0, 3), "float32"))
    writer.add("scalar", 1, numpy.float32(3.5).reshape(()))
    r = cgdebug.open(writer.close())
    assert r["empty"][1].numpy().shape == (0, 3)
    assert r["scalar"][1].numpy() == 3.5


def test_losses_are_gaps_and_make_it_incomplete(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    for n in (1, 4):
        writer.add("x", n, numpy.float32([n]))
        if n == 1:
            writer.lose("x", 2, after_replay=1)
    r = cgdebug.open(writer.close())
    assert [(g.probe, g.count, g.after_replay) for g in r.gaps] == [("x", 2, 1)]
    assert not r.complete and "lacks 2 snapshots of x" in r.missing[0]
    with pytest.raises(KeyError, match="lost or not recorded"):
        r["x"][2]
    assert not r.check().ok and not r.diff(r).ok and r.diff(r).verdict == "incomplete"


def test_recording_still_being_written(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    writer.add("x", 1, numpy.float32([1]))
    writer.commit()
    r = cgdebug.open(writer.path)
    assert r.growing and not r.complete and r["x"].replays == [1]
    assert r.sql("SELECT count(*) FROM snapshot") == [(1,)]
    writer.add("x", 2, numpy.float32([2]))
    writer.commit()
    assert r["x"].replays == [1] and r.refresh()["x"].replays == [1, 2]
    assert r.sql("SELECT count(*) FROM snapshot") == [(2,)]
    writer.close()
    assert not r.refresh().growing and r.complete


def test_cut_off_anywhere_the_longest_valid_prefix_is_read(tmp_path):
    path = pathlib.Path(write(tmp_path / "a.cgrec"))
    segment = next(path.glob("segment*"))
    whole = segment.read_bytes()
    seen = set()
    for size in range(0, len(whole), 64):
        segment.write_bytes(whole[:size])
        try:
            r = cgdebug.open(path)
        except RecordingError:
            continue
        assert not r.complete
        for series in r.series:
            for s in series:
                values = s.numpy()
                assert values.flat[0] == s.replay_index
        seen.add(len(r.replays))
    assert {0, 1, 2, 3, 4, 5} <= seen


def test_what_cannot_be_opened_has_a_repr():
    class Seen(cgdebug.Recording):
        def __init__(self, path):
            try:
                super().__init__(path)
            except RecordingError:
                self.was_refused = True

    seen = Seen("nowhere.cgrec")
    assert seen.was_refused and repr(seen) == "<recording nowhere.cgrec: no probes>"


def test_stats_only_snapshots_say_so(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    writer.add("x", 1, numpy.float32([1, 2]), stats_only=True)
    s = cgdebug.open(writer.close())["x"][1]
    assert s.stats.max == 2
    with pytest.raises(LookupError, match="only the statistics"):
        s.numpy()


@pytest.mark.parametrize("replay", ["1", 1.0, None])
def test_an_invalid_replay_is_refused_with_a_sentence(path, replay):
    with pytest.raises(TypeError, match="a replay is a number from 1"):
        cgdebug.open(path)["x"][replay]


@pytest.mark.parametrize("replays", [(-5, 2), (5, 2), 5, ("a", "b"), (1, 2, 3)])
def test_bad_ranges_are_refused_in_words(path, replays):
    r = cgdebug.open(path)
    with pytest.raises(ValueError, match=r"replays is \(first, last\)"):
        r.check(replays=replays)
    with pytest.raises(ValueError, match=r"replays is \(first, last\)"):
        r.diff(r, replays=replays)


def test_diff_is_ok_only_when_everything_was_compared(tmp_path, path):
    same = cgdebug.open(path).diff(path)
    assert same.ok and same.first is None and str(same).startswith("same: 10 snapshots")
    other = write(tmp_path / "b.cgrec", factor=1.5)
    d = cgdebug.open(path).diff(other)
    assert not d.ok and d.first["probe"] == "y" and d.first["replay"] == 1
    assert "first difference: replay 1, y" in str(d) and d.to_dict()["different"] == 5
    assert cgdebug.open(path).diff(other, "x").ok
    assert cgdebug.open(path).diff(other, rtol=1.0, atol=10.0).ok
    shorter = cgdebug.open(path).diff(write(tmp_path / "c.cgrec", replays=3))
    assert shorter.verdict == "incomplete" and not shorter.ok
    assert cgdebug.open(path).diff(str(tmp_path / "c.cgrec"), replays=(1, 3)).ok
    with pytest.raises(AssertionError, match="first difference"):
        assert d.ok, d


def test_check_names_the_first_nonfinite(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    for n in (1, 2, 3):
        writer.add("x", n, numpy.float32([n]))
        writer.add("y", n, numpy.float32([numpy.inf if n == 3 else n * 10.0]), step=n)
    c = cgdebug.open(writer.close()).check()
    assert not c.ok and (c.first["probe"], c.first["replay"], c.first["step"]) == ("y", 3, 3)
    assert "first non-finite: replay 3" in str(c) and c.findings[0]["kind"] == "nonfinite"


def test_a_table_has_a_row_per_snapshot(path):
    table = cgdebug.open(path).table("y")
    assert table["replay"] == [1, 2, 3, 4, 5] and table["step"][0] == 101
    assert {len(column) for column in table.values()} == {5}
    pytest.importorskip("pandas")
    frame = cgdebug.open(path).to_pandas("y")
    assert list(frame["replay"]) == [1, 2, 3, 4, 5] and set(frame["probe"]) == {"y"}
    assert frame.set_index("replay")["abs_max"].to_dict() == {n: float(n) for n in range(1, 6)}
    assert frame["step"].max() == 105 and frame["dtype"].iloc[0] == "float32"
    assert frame.groupby("probe")["count"].sum()["y"] == 10


def test_a_series_alone_goes_to_pandas_too(path):
    recording = cgdebug.open(path)
    assert recording["y"].to_pandas().equals(recording.to_pandas("y"))


def test_two_names_in_brackets_lead_to_select(path):
    with pytest.raises(TypeError, match=r"several: recording.select\('y', 'z'\)"):
        cgdebug.open(path)["y", "z"]


def test_sql_names_what_is_close_to_a_name_that_it_does_not_know(path):
    recording = cgdebug.open(path)
    with pytest.raises(RecordingError, match=r"no such column: pid") as refused:
        recording.sql("SELECT pid FROM v_snapshots")
    assert "'pid'" not in str(refused.value), "it is what was typed"
    with pytest.raises(RecordingError, match=r"no such column: absmax\. Close: 'abs_max'\. Type"):
        recording.sql("SELECT absmax FROM v_snapshots")
    with pytest.raises(RecordingError, match=r"no such table: v_snapshot\. Close: 'v_snapshots'"):
        recording.sql("SELECT 1 FROM v_snapshot")


def test_sql_answers_and_changes_nothing(path):
    r = cgdebug.open(path)
    assert r.sql("SELECT replay, abs_max FROM v_snapshots WHERE probe = ? AND replay > 3", "y") == [
        (4, 4.0),
        (5, 5.0),
    ]
    assert r.sql("SELECT count(*) FROM v_first_nonfinite") == [(0,)]
    assert r.sql("SELECT step, hash IS NULL FROM snapshot LIMIT 1") == [(101, 0)]
    other = pathlib.Path(path).with_name("other.db")
    attach = f"ATTACH '{other}' AS other"
    two, unlock = "SELECT 1; SELECT 2", "PRAGMA query_only = OFF"
    for bad in (unlock, "DELETE FROM snapshot", "SELECT nothing FROM nowhere", attach, two):
        with pytest.raises(RecordingError, match="query --schema"):
            r.sql(bad)
    assert not other.exists()
    assert r.sql("SELECT count(*) FROM snapshot") == [(10,)]


def test_globs_mean_the_same_wherever_they_are_written(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    for name in ("a0", "a1", "a^", "b*"):
        writer.add(name, 1, numpy.float32([1]))
    r = cgdebug.open(writer.close())
    for glob in ("a[^0]", "a[!0]", r"b\*", "re:^a[0-9]$", "a[0", "!a*"):
        names = [series.name for series in r.select(glob)]
        assert len(names) == r.check(glob).to_dict()["probes"], glob
        assert names == sorted(set(r.table(glob)["probe"])), glob
    assert [series.name for series in r.select("a[^0]")] == ["a1", "a^"]
    with pytest.raises(RecordingError, match="bad regular expression"):
        r.select("re:(")


@pytest.mark.parametrize("how", ["select", "table", "to_pandas"])
def test_a_glob_that_matches_nothing_is_answered_with_the_names_that_are_close(tmp_path, how):
    writer = Writer(tmp_path / "a.cgrec")
    for name in ("fwd/blocks.0", "fwd/blocks.1", "fwd/head"):
        writer.add(name, 1, numpy.float32([1]))
    r = cgdebug.open(writer.close())
    with pytest.warns(UserWarning) as caught:
        found = getattr(r, how)("blocks*")
    assert len(found) == 0 or not len(found["probe"])
    (warning,) = caught
    assert warning.filename == __file__
    text = str(warning.message)
    assert "no probe matches 'blocks*'" in text and "(3 probes)" in text
    assert "'fwd/blocks.0'" in text and "'fwd/blocks.1'" in text and "head" not in text
    assert [one.name for one in r.select("*blocks*")] == ["fwd/blocks.0", "fwd/blocks.1"]


def test_threads_may_read_at_once(path):
    r, wrong = cgdebug.open(path), []

    def read():
        for n in list(range(1, 6)) * 20:
            if r["x"][n].numpy()[0, 0] != n or r["y"].stat("max")[n - 1] != n:
                wrong.append(n)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_threads_may_compare_two_recordings_both_ways(tmp_path, path):
    code = (
        "import sys, threading, cgdebug\n"
        "a, b = map(cgdebug.open, sys.argv[1:])\n"
        "def hold(one, other):\n"
        "    for _ in range(200):\n"
        "        assert one.diff(other).ok\n"
        "threads = [threading.Thread(target=hold, args=pair) for pair in ((a, b), (b, a)) * 2]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
    )
    other = write(tmp_path / "b.cgrec")
    subprocess.run(
        [sys.executable, "-c", code, path, other], check=True, timeout=300, env=os.environ
    )


def test_needs_neither_torch_nor_protobuf(path):
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'google', 'pandas', 'ml_dtypes'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "import cgdebug\n"
        f"r = cgdebug.open({path!r})\n"
        "assert r['x'][2].numpy()[0, 0] == 2 and r.check().ok and r.diff(r).ok\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'google', 'numpy'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "['numpy']"


def test_safetensors_are_sources_too(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    for n in (1, 2):
        safetensors.save_file({"x": numpy.float32([n, 2])}, tmp_path / f"step_{n}.safetensors")
    r = cgdebug.open(tmp_path)
    assert r["x"].replays == [1, 2] and r["x"].stat("min").tolist() == [1, 2]
    assert r["x"][1].numpy().tolist() == [1, 2] and r["x"][1].stats.count == 2
    assert r.diff(tmp_path).ok


def test_sql_has_the_aggregates_that_people_type(tmp_path):
    writer = recording_writer.Writer(str(tmp_path / "a.cgrec"))
    session = writer.add_session("0" * 32, "job", -1)
    slot = writer.add_slot(session, "x", "float32", (2,))
    for replay, value in enumerate((1, 2, 3, 10), 1):
        writer.append(slot, replay, numpy.full((2,), value, "float32"))
    writer.close()
    r = cgdebug.open(tmp_path / "a.cgrec")
    (row,) = r.sql("SELECT median(abs_max) AS middle, stddev(abs_max) AS spread FROM v_snapshots")
    assert row["middle"] == 2.5 and row["spread"] == pytest.approx(numpy.std([1, 2, 3, 10], ddof=1))
    (row,) = r.sql(
        "SELECT median(abs_max) AS m, stddev(abs_max) AS s FROM v_snapshots WHERE replay = 4"
    )
    assert (row["m"], row["s"]) == (10, None)
    (row,) = r.sql("SELECT median(abs_max) AS m FROM v_snapshots WHERE replay > 4")
    assert row["m"] is None


def test_the_index_of_a_checkpoint_stands_for_its_folder(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    names = {
        f"model-0000{i}-of-00002.safetensors": {f"w{i}": numpy.ones(2, "float32")} for i in (1, 2)
    }
    for name, tensors in names.items():
        safetensors.save_file(tensors, tmp_path / name)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w1": [*names][0], "w2": [*names][1]}}))
    assert sorted(cgdebug.open(index).probes) == ["w1", "w2"]
