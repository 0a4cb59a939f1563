"""Many snapshots at once: tables, SQL, and that a thing has one name everywhere."""

import contextlib
import csv
import json
import os
import pathlib
import pickle
import sqlite3
import subprocess
import sys

import numpy
import pytest

import cgdebug
from cgdebug._read import _columns
from cgdebug.errors import RecordingError
from conftest import find_program
from written_recordings import Writer, write


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a.cgrec")


class Counting:
    """Passes on what a native reader is asked, and counts it."""

    def __init__(self, reader):
        self._reader, self.calls = reader, []

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append(name)
            return getattr(self._reader, name)(*arguments)

        return call


def many(path, probes=30, replays=4):
    writer = Writer(path)
    for replay in range(1, replays + 1):
        for probe in range(probes):
            values = numpy.float32([probe, replay, -1])
            writer.add(f"p{probe:02}", replay, values, step=replay, timestamp_ns=replay)
    return writer.close()


@pytest.mark.parametrize("what", ["table", "to_pandas", "parquet", "csv", "jsonl", "sql"])
def test_every_snapshot_is_read_once_however_many_probes_there_are(tmp_path, what):
    r = cgdebug.open(many(tmp_path / "a.cgrec"))
    r._reader = Counting(r._reader)
    if what == "sql":
        assert r.sql("SELECT count(*), max(replay) FROM v_snapshots") == [(120, 4)]
    elif what in ("table", "to_pandas"):
        if what == "to_pandas":
            pytest.importorskip("pandas")
        assert len(getattr(r, what)()["probe"]) == 120
    else:
        pytest.importorskip("pyarrow") if what == "parquet" else None
        r.export(what, tmp_path / "out")
    assert r._reader.calls.count("query" if what == "sql" else "columns") == 1
    assert len(r._reader.calls) <= 5, r._reader.calls


def test_a_table_says_what_each_snapshot_says(tmp_path):
    r = cgdebug.open(many(tmp_path / "a.cgrec", probes=3))
    table = r.table("p0[12]")
    assert len(table["probe"]) == 8
    for row in range(8):
        series = r[table["probe"][row]]
        snapshot = series[table["replay"][row]]
        for name in ("replay", "probe", "invocation", "rank", "graph_id", "step", "timestamp_ns"):
            assert table[name][row] == getattr(snapshot, name), name
        for name in _columns.STATS:
            assert table[name][row] == getattr(snapshot.stats, name), name
        for name in ("site", "graph_order", "shape", "device", "graph", "session"):
            assert table[name][row] == getattr(series, name), name
        assert table["hash"][row] == f"{snapshot.hash:016x}"
        assert table["xor_hash"][row] == f"{snapshot.stats.xor_hash:016x}"


def test_a_thing_has_one_name_everywhere(tmp_path, path):
    r = cgdebug.open(path)
    names = set(_columns.NAMES)
    assert set(r.table()) == names
    r.export("csv", tmp_path / "s.csv")
    assert set(next(csv.reader((tmp_path / "s.csv").open()))) == names
    r.export("jsonl", tmp_path / "s.jsonl")
    assert set(json.loads((tmp_path / "s.jsonl").read_text().splitlines()[0])) == names
    assert names <= set(r.sql("SELECT * FROM v_snapshots")[0]._fields)
    show = [find_program("cgdebug-cli"), "--json", "show", f"{path}:x@2"]
    shown = json.loads(subprocess.run(show, capture_output=True, text=True, check=True).stdout)
    assert {"probe", "replay", "invocation", "rank", "graph_id", "step", "dtype"} <= set(shown)
    assert {*_columns.NUMBERS, "count", "nan", "inf", "nonfinite", "xor_hash"} <= set(
        shown["stats"]
    )
    info = [find_program("cgdebug-cli"), "--json", "info", path]
    said = json.loads(subprocess.run(info, capture_output=True, text=True, check=True).stdout)
    assert {"probe", "graph_id", "graph_order", "invocation", "site"} <= set(said["probes"][0])
    snapshot = r["x"][2]
    for name in ("probe", "replay", "invocation", "tensor", "dtype", "stats"):
        assert name in dir(snapshot)
    assert (snapshot.probe, snapshot.replay, snapshot.invocation) == ("x", 2, 0)
    assert (snapshot.probe_name, snapshot.replay_index, snapshot.invocation_index) == ("x", 2, 0)


def test_parquet_and_pandas_have_the_same_columns(tmp_path, path):
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow.parquet")
    r = cgdebug.open(path)
    r.export("parquet", tmp_path / "s.parquet", replays=(2, 4))
    table = pyarrow.read_table(tmp_path / "s.parquet")
    assert set(table.column_names) == set(_columns.NAMES) == set(r.to_pandas().columns)
    rows = table.sort_by([("replay", "ascending"), ("graph_order", "ascending")]).to_pylist()
    assert [(row["replay"], row["probe"]) for row in rows] == [
        (replay, probe) for replay in (2, 3, 4) for probe in ("x", "y")
    ]
    frame = r.to_pandas("y")
    assert isinstance(frame, pandas.DataFrame) and frame["max"].tolist() == [1, 2, 3, 4, 5]


def test_a_snapshot_that_cannot_be_read_is_null_in_sql_and_an_error_in_a_table(tmp_path):
    path = many(tmp_path / "a.cgrec", probes=2)
    segment = next(pathlib.Path(path).glob("segment*"))
    data = bytearray(segment.read_bytes())
    at = data.index(numpy.float32([1, 3, -1]).tobytes())  # of p01@3
    data[at - 150] ^= 1  # in the record's head or what is known of it
    segment.write_bytes(data)
    r = cgdebug.open(path)
    with pytest.raises(RecordingError, match="replay 3 of probe 'p01' cannot be read"):
        r.table()
    assert r.sql("SELECT replay, max FROM snapshot WHERE max IS NULL") == [(3, None)]
    remarks = r.export("csv", tmp_path / "s.csv")
    assert any("1 damaged, the first: " in remark for remark in remarks)
    assert len((tmp_path / "s.csv").read_text().splitlines()) == 8


def test_rows_of_sql_have_the_names_of_their_columns(path):
    r = cgdebug.open(path)
    (row,) = r.sql("SELECT probe, max(abs_max) AS top, count(*) FROM v_snapshots WHERE probe = 'y'")
    assert row == ("y", 5.0, 5) and isinstance(row, tuple)
    assert (row.probe, row.top, row["top"], row["count(*)"], row[2]) == ("y", 5.0, 5.0, 5, 5)
    assert repr(row) == "Row(probe='y', top=5.0, count(*)=5)" and "top" in dir(row)
    assert pickle.loads(pickle.dumps(row)).top == 5
    with pytest.raises(AttributeError, match="no column 'step'; there are probe, top"):
        row.step  # noqa: B018
    pandas = pytest.importorskip("pandas")
    assert list(pandas.DataFrame(r.sql("SELECT probe, replay FROM v_snapshots"))) == [
        "probe",
        "replay",
    ]


def test_sql_of_a_recording_is_its_catalogue(tmp_path):
    path = many(tmp_path / "a.cgrec", probes=2)
    r = cgdebug.open(path)
    rows = r.sql("SELECT count(DISTINCT ordinal), count(segment), count(*) FROM snapshot")
    assert rows == [(4, 8, 8)]
    with contextlib.closing(sqlite3.connect(f"{path}/catalogue.sqlite")) as catalogue:
        for table in ("run", "session", "probe", "snapshot", "loss", "mark"):
            query = f"SELECT * FROM {table}"
            assert r.sql(query) == catalogue.execute(query).fetchall(), table


def test_a_comparison_stands_with_its_own_snapshot_in_sql(tmp_path):
    for rank in (0, 1):
        writer = Writer(tmp_path / f"{rank}.cgrec", rank=rank)
        for replay in (1, 2, 3):
            values = numpy.float32([replay, 0])
            writer.add("x", replay, values, mismatched=replay - 1, max_abs=replay, max_rel=0.5)
            writer.add("plain", replay, values)
            if replay != 2:
                writer.add("some", replay, values, mismatched=10 + replay)
        writer.close()
    asked = (
        "SELECT rank, probe, replay, mismatched, max_abs, max_rel FROM v_comparisons "
        "ORDER BY rank, probe DESC, replay"
    )

    def rows(rank):
        passed = [(rank, "x", 1, 0, None, None)]
        failed = [(rank, "x", replay, replay - 1, float(replay), 0.5) for replay in (2, 3)]
        return (
            passed + failed + [(rank, "some", replay, 10 + replay, 0.0, 0.0) for replay in (1, 3)]
        )

    assert cgdebug.open(tmp_path / "0.cgrec").sql(asked) == rows(0)  # its catalogue
    assert cgdebug.open(tmp_path).sql(asked) == rows(0) + rows(1)  # made in memory


def test_sql_takes_and_gives_every_type(path):
    r = cgdebug.open(path)
    values = (None, 2**63 - 1, -(2**63), 0.5, "text, blk.µ", b"\0bytes", numpy.int64(7), True)
    query = f"SELECT {', '.join('?' * len(values))}"
    (row,) = r.sql(query, values)
    assert row == values and [type(value) for value in row[3:6]] == [float, str, bytes]
    with pytest.raises(RecordingError, match="has 2 parameters, and 1 value was given"):
        r.sql("SELECT ?, ?", [1])
    with pytest.raises(TypeError, match="number, str, bytes or None, not \\[\\]"):
        r.sql("SELECT ?", [[]])
    with pytest.raises(OverflowError):
        r.sql("SELECT ?", [2**63])


@pytest.mark.parametrize("statement", ["BEGIN IMMEDIATE", "BEGIN", "SAVEPOINT a", "VACUUM"])
def test_sql_keeps_nobody_from_the_catalogue(path, statement):
    r = cgdebug.open(path)
    with pytest.raises(RecordingError, match="query --schema"):
        r.sql(statement)
    assert r.sql("PRAGMA table_info(probe)")[0].name == "id"


def test_a_pattern_is_told_to_be_one(path):
    r = cgdebug.open(path)
    with pytest.raises(KeyError, match=r"2 match it as a pattern: r.select\('\*'\)"):
        r["*"]
    with pytest.raises(KeyError, match="Close: 'x'|It has 2 probes"):
        r["xx"]


@pytest.mark.parametrize("step", [1.5, "101", None])
def test_an_invalid_step_is_refused_with_a_sentence(path, step):
    series = cgdebug.open(path)["x"]
    with pytest.raises(TypeError, match="a step is a whole number, not"):
        series.step(step)
    assert series.step(numpy.int64(103)).replay == 3


def test_the_dtype_of_a_recorded_snapshot_needs_no_torch(path):
    code = (
        "import sys, numpy, cgdebug\n"
        f"q = cgdebug.open({path!r})['x'][1]\n"
        "assert q.dtype == 'float32' == q.dtype_name and str(q.dtype) == 'float32'\n"
        "assert q.dtype == numpy.dtype('float32') and q.dtype != 'float64'\n"
        "assert numpy.zeros(2, q.dtype).dtype == q.dtype\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    torch = pytest.importorskip("torch")
    q = cgdebug.open(path)["x"][1]
    assert q.dtype == torch.float32 and torch.float32 == q.dtype and q.dtype != torch.float64
    assert q.tensor.dtype is torch.float32


def test_an_export_of_what_is_damaged_exits_3(tmp_path, path):
    def run(format, output):
        words = [find_program("cgdebug-cli"), "export", path, "--to", format, "-o", output]
        environment = {**os.environ, "CGDEBUG_PYTHON": sys.executable}
        return subprocess.run(words, capture_output=True, text=True, check=False, env=environment)

    assert run("npz", tmp_path / "good").returncode == 0
    segment = next(pathlib.Path(path).glob("segment*"))
    data = bytearray(segment.read_bytes())
    data[data.index(numpy.full(6, 2, "float32").tobytes())] ^= 1  # of x@2
    segment.write_bytes(data)
    for format in ("npz", "npy", "safetensors"):
        done = run(format, tmp_path / format)
        assert done.returncode == 3 and "1 damaged" in done.stderr, done.stderr
    assert run("csv", tmp_path / "s.csv").returncode == 0, "the statistics are whole"


def test_tensorboard_has_histograms_tells_recordings_apart_and_needs_no_torch(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    values = numpy.float32([-3, 0, 0, 1, numpy.nan])
    for name, factor in (("good", 1), ("bad", 2)):
        writer = Writer(tmp_path / f"{name}.cgrec")
        writer.add("x", 1, values * numpy.float32(factor), step=7)
        writer.add("x", 2, values, stats_only=True)
        path = writer.close()
        code = (
            "import sys, cgdebug\n"
            f"cgdebug.open({path!r}).export('tensorboard', {str(tmp_path / 'tb')!r})\n"
            "assert 'torch' not in sys.modules\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
    assert sorted(folder.name for folder in (tmp_path / "tb").iterdir()) == ["bad", "good"]
    for name, factor in (("good", 1), ("bad", 2)):
        events = accumulator.EventAccumulator(str(tmp_path / "tb" / name))
        events.Reload()
        assert [e.value for e in events.Scalars("x/abs_max")] == [3 * factor, 3]
        (histogram,) = events.Histograms("x/values")
        found = histogram.histogram_value
        assert histogram.step == 7 and found.num == 4 and sum(found.bucket) == 4
        assert (found.min, found.max) == (-3 * factor, factor)


def test_step_0_and_the_first_element_are_numbers(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    writer.add("x", 1, numpy.float32([numpy.nan, 1]), step=0)
    writer.add("x", 2, numpy.float32([1, 1]))
    table = cgdebug.open(writer.close()).table()
    assert table["step"] == [0, None] and table["first_nonfinite"] == [0, None]


def test_sql_tells_between_which_replays_snapshots_were_lost(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    writer.add("x", 1, numpy.float32([1]))
    writer.lose("x", 2, after_replay=1)
    writer.add("x", 4, numpy.float32([4]))
    r = cgdebug.open(writer.close())
    assert r.sql('SELECT "count", after_replay, before_replay FROM loss') == [(2, 1, 4)]
