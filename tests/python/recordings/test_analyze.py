"""analyze(): many recordings by an executor, also when workers are killed."""

import concurrent.futures
import json
import multiprocessing
import os
import pickle
import signal
import threading

import numpy
import pytest

import cgdebug
from cgdebug import _recording, analyzing
from cgdebug.errors import RecordingError
from written_recordings import Writer


def write_run(folder, ranks=4, bad=2):
    """A replica "w" of which `bad` has another value at replay 3, and "y"."""
    for rank in range(ranks):
        writer = Writer(folder / f"r{rank}.cgrec", rank=rank)
        for n in range(1, 5):
            w = [n, 9 if rank == bad and n == 3 else 2 * n]
            writer.add("w", n, numpy.array(w, "float32"), step=n)
            y = numpy.inf if rank == 1 and n == 4 else rank
            writer.add("y", n, numpy.array([y], "float32"), step=n)
        writer.close()
    return str(folder)


def ranks_of(cli, folder):
    said = json.loads(cli("--json", "ranks", folder, "--replicated", "w").stdout)
    assert said.pop("schema") == 1
    return said


@pytest.fixture
def pool():
    with concurrent.futures.ProcessPoolExecutor(
        2, mp_context=multiprocessing.get_context("spawn")
    ) as executor:
        yield executor


def largest(recording):
    return {"largest": float(max(series.stat("max").max() for series in recording.series))}


def die_on_r2(recording):
    if recording.path.endswith("r2.cgrec"):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"pid": os.getpid()}


def fail_on_r2(recording):
    if recording.path.endswith("r2.cgrec"):
        raise ZeroDivisionError("of the function")


def die_once(recording):
    mark = os.path.join(os.path.dirname(recording.path), "died")
    if recording.path.endswith("r2.cgrec") and not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"rank": recording.ranks[0]}


def test_functions_make_tables_and_sql_goes_over_all_of_them(tmp_path, pool):
    folder = write_run(tmp_path)
    seen = []
    a = cgdebug.analyze(
        folder,
        ["check", "stats", "replicas", largest],
        pool,
        replicated=["w"],
        progress=lambda *done: seen.append(done),
    )
    assert a.complete and a.tables == ["check", "stats", "replicas", "largest"]
    assert seen[-1] == (4, 4)
    assert [row["found"] for row in a.table("check")] == [False, True, False, False]
    assert [row["largest"] for row in a.table("largest")][2] == 9
    assert a.replicas.verdict == "found" and not a.replicas.ok
    assert a.replicas.first["minority"] == [2] and a.replicas.first["step"] == 3
    assert a.replicas.ranks[1]["first_nonfinite"]["step"] == 4
    (row,) = a.sql('select path, probe, replay from "check" where found')
    assert row.path.endswith("r1.cgrec") and (row.probe, row.replay) == ("y", 4)
    joined = 'select s.abs_max from stats s join "check" c using (path) where s.probe = ?'
    assert [row.abs_max for row in a.sql(joined, ["w"])] == [8, 8, 9, 8]
    assert a.sql("select count(*) from failed") == [(0,)]


def test_replicas_are_those_of_the_command_line(tmp_path, pool, cli):
    folder = write_run(tmp_path)
    said = ranks_of(cli, folder)
    a = cgdebug.analyze(folder, "replicas", pool, replicated=["w"])
    assert a.replicas.to_dict() == said


def test_replicas_are_those_of_the_command_line_whichever_worker_is_the_first(tmp_path, cli):
    folder = write_run(tmp_path, ranks=3)
    # One process in two recordings that contradict each other: the first path counts.
    os.rename(f"{folder}/r1.cgrec", f"{folder}/z.cgrec")
    again = Writer(tmp_path / "a.cgrec", rank=1)
    again.add("w", 1, numpy.array([7, 7], "float32"), step=1)
    again.close()
    said = ranks_of(cli, folder)
    is_last_done = threading.Event()

    def last_first(recording):
        if recording.path.endswith("z.cgrec"):
            is_last_done.set()
        else:
            assert is_last_done.wait(300)

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        a = cgdebug.analyze(folder, ["replicas", last_first], threads, replicated=["w"])
    assert a.complete and a.replicas.to_dict() == said
    assert a.replicas.first["step"] == 1 and a.replicas.first["minority"] == [1]


def test_a_folder_holds_what_the_command_line_finds_in_it(tmp_path, pool, cli):
    folder = write_run(tmp_path)
    os.rename(f"{folder}/r3.cgrec", f"{folder}/without-an-ending")
    (tmp_path / "empty.cgrec").touch()  # no recording
    for file in (tmp_path / "r0.cgrec").iterdir():
        file.write_bytes(b"nothing")
    said = ranks_of(cli, folder)
    a = cgdebug.analyze(folder, "replicas", pool, replicated=["w"])
    assert [os.path.basename(path) for path in a.paths] == [
        "r0.cgrec",
        "r1.cgrec",
        "r2.cgrec",
        "without-an-ending",
    ]
    assert list(a.failed) == [f"{folder}/r0.cgrec"]
    assert a.replicas.to_dict() == said and any("r0.cgrec" in why for why in a.replicas.missing)


def test_a_function_that_fails_makes_no_rank_missing(tmp_path, pool):
    folder = write_run(tmp_path, bad=9)
    alone = cgdebug.analyze(folder, "replicas", pool, replicated=["w"])
    a = cgdebug.analyze(folder, [fail_on_r2, "replicas"], pool, replicated=["w"])
    assert a.failed == {f"{folder}/r2.cgrec": "ZeroDivisionError: of the function"}
    assert a.replicas.to_dict() == alone.replicas.to_dict() and not a.replicas.missing


class Remembering(concurrent.futures.Executor):
    """Gives the answer that it gave to the same call before, as Dask does."""

    _max_workers = 1

    def __init__(self):
        self.answers = {}

    def submit(self, function, *arguments):
        call = pickle.dumps((function, arguments))
        if call not in self.answers:
            self.answers[call] = concurrent.futures.Future()
            self.answers[call].set_result(function(*arguments))
        return self.answers[call]


def test_a_recording_that_grew_is_read_again(tmp_path):
    executor = Remembering()
    writer = Writer(tmp_path / "r0.cgrec", rank=0)
    for n in (1, 2):
        writer.add("w", n, numpy.array([n], "float32"))
        writer.commit()
        a = cgdebug.analyze(tmp_path, "stats", executor)
        assert [row["snapshots"] for row in a.table("stats")] == [n]


@pytest.fixture(scope="module")
def dask():
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client:
        yield client


def test_dask_gives_the_same_while_a_worker_is_killed(tmp_path, pool, dask):
    folder = write_run(tmp_path, ranks=6)
    alone = cgdebug.analyze(folder, "replicas", pool, replicated=["w"])
    a = cgdebug.analyze(folder, [die_once, "replicas"], dask.get_executor(), replicated=["w"])
    assert a.complete and [row["rank"] for row in a.table("die_once")] == list(range(6))
    assert a.replicas.to_dict() == alone.replicas.to_dict()


def test_a_table_goes_to_pandas_and_parquet(tmp_path, pool):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    a = cgdebug.analyze(write_run(tmp_path), ["stats", "replicas"], pool, replicated=["w"])
    assert a.to_pandas("stats")["nonfinite"].sum() == 1
    written = a.to_parquet(tmp_path / "out")
    assert [os.path.basename(path) for path in written] == ["stats.parquet", "replicas.parquet"]
    assert pandas.read_parquet(written[0]).equals(a.to_pandas("stats"))


def test_a_killed_worker_costs_nothing_if_its_recordings_can_be_read_then(tmp_path):
    folder = write_run(tmp_path, ranks=6)
    a = cgdebug.analyze(folder, [die_once, "replicas"], replicated=["w"])
    assert a.complete, a.failed
    assert [row["rank"] for row in a.table("die_once")] == list(range(6))
    assert a.replicas.first["minority"] == [2]


def test_a_recording_that_kills_each_worker_is_named_and_costs_no_other(tmp_path, pool):
    folder = write_run(tmp_path, ranks=5, bad=9)
    a = cgdebug.analyze(folder, [die_on_r2, "replicas"], pool, replicated=["w"])
    assert list(a.failed) == [f"{folder}/r2.cgrec"] and not a.complete
    assert "its worker died" in a.failed[f"{folder}/r2.cgrec"]
    assert len(a.table("die_on_r2")) == 4
    # Nothing is the same over a recording that was not read.
    assert a.replicas.verdict != "same" and not a.replicas.to_dict()["first_difference"]
    assert any("r2.cgrec" in sentence for sentence in a.replicas.missing)
    assert [row.path for row in a.sql("select path from failed")] == list(a.failed)


def test_a_damaged_recording_fails_alone(tmp_path, pool):
    folder = write_run(tmp_path)
    for file in (tmp_path / "r3.cgrec").iterdir():
        file.write_bytes(b"nothing")
    a = cgdebug.analyze(folder, "check", pool)
    assert list(a.failed) == [f"{folder}/r3.cgrec"] and len(a.table("check")) == 3


def test_diff_takes_the_same_rank_of_the_reference(tmp_path, pool):
    one = write_run(tmp_path / "one")
    other = write_run(tmp_path / "other", bad=0)
    os.rename(f"{other}/r3.cgrec", f"{other}/a.cgrec")
    a = cgdebug.analyze(one, "diff", pool, reference=other)
    verdicts = [row["verdict"] for row in a.table("diff")]
    assert verdicts == ["different", "same", "different", "same"]
    assert a.table("diff")[3]["reference"].endswith("a.cgrec")


def test_diff_says_why_there_is_no_reference_for_a_rank(tmp_path, pool):
    one, other = write_run(tmp_path / "one", ranks=2), write_run(tmp_path / "other", ranks=2)
    for file in (tmp_path / "other" / "r1.cgrec").iterdir():
        file.write_bytes(b"nothing")
    again = Writer(tmp_path / "other" / "again.cgrec", rank=0)
    again.add("w", 1, numpy.zeros(2, "float32"))
    again.close()
    several, damaged = cgdebug.analyze(one, "diff", pool, reference=other).table("diff")
    assert several["verdict"] == damaged["verdict"] == "incomplete"
    assert "several recordings of this rank" in several["text"]
    assert f"{other}/again.cgrec" in several["text"]
    assert "that can be read" in damaged["text"] and "r1.cgrec" in damaged["text"]


def test_what_progress_raises_is_the_callers_and_nothing_is_counted_twice(tmp_path, pool):
    def fail(done, total):
        raise BrokenPipeError("nobody looks")

    with pytest.raises(BrokenPipeError, match="nobody looks"):
        cgdebug.analyze(write_run(tmp_path), "check", pool, progress=fail)


def test_what_cannot_be_analyzed_says_so_at_once(tmp_path):
    with pytest.raises(RecordingError, match="does not exist"):
        cgdebug.analyze(tmp_path / "none")
    folder = write_run(tmp_path)
    with pytest.raises(ValueError, match="no function 'chek': there are check"):
        cgdebug.analyze(folder, "chek")
    with pytest.raises(ValueError, match="needs reference="):
        cgdebug.analyze(folder, "diff")
    with pytest.raises(ValueError, match="cannot be called 'replicas'"):

        def replicas(recording):
            return []

        cgdebug.analyze(folder, replicas)
    with pytest.raises(RecordingError, match="not the state of a comparison"):
        _recording.RankFold([], [], 1e-6, False).merge(b"x")


def test_tables_hold_numbers_of_numpy_and_hashes_of_64_bits():
    found = [analyzing._cell(one) for one in (numpy.int64(3), numpy.float32(0.5), 1 << 63, None)]
    assert found == [3, 0.5, str(1 << 63), None]
    assert analyzing._cell({"n": numpy.int64(3)}) == '{"n": "3"}'
