"""Probes in the bodies of conditional nodes: a replay has any number of iterations, or none."""

import json

import numpy
import pytest
import recording_writer

import cgdebug


def append(writer, slot, replay, value, serial, iteration=0):
    values = numpy.full(2, value, "float32")
    writer.append(slot, replay, values, serial=serial, iteration=iteration)


def write(path, *, iterations=(7, 0, 1), change=None, lose=0):
    """Records "before", "x" in a body, and "after", in replays 1, 2, ...: `iterations` of each.
    `change`: (iteration, value) of "x" in replay 1 from which on it and "after" hold that value."""
    writer = recording_writer.Writer(str(path))
    session = writer.add_session("ab" * 16, "job")
    before = writer.add_slot(session, "before", "float32", [2])
    x = writer.add_slot(session, "x", "float32", [2], in_body=True)
    after = writer.add_slot(session, "after", "float32", [2])
    serial = 0
    for replay, runs in enumerate(iterations, 1):
        serial += 1
        value = float(replay)

        append(writer, before, replay, value, serial)
        for iteration in range(runs):
            if iteration > 0:
                serial += 1
            value = replay + iteration / 16
            if change and replay == 1 and iteration >= change[0]:
                value = change[1]
            append(writer, x, replay, value, serial, iteration)
        if lose and replay == 1:
            writer.lose(x, lose, 0)
        append(writer, after, replay, value, serial)
    writer.close()
    return path


@pytest.fixture
def recorded(tmp_path):
    return cgdebug.open(write(tmp_path / "a.cgrec"))


def test_a_series_has_every_iteration_and_a_replay_number_means_the_last(recorded):
    series = recorded["x"]
    assert series.in_body and not recorded["before"].in_body
    assert series.replays == [1] * 7 + [3]
    assert series.iterations == [*range(7), 0]
    assert (series[1].replay, series[1].iteration) == (1, 6)
    assert [one.iteration for one in series] == [*range(7), 0]
    assert series.at(1, 3).numpy()[0] == 1 + 3 / 16
    assert series.at(1, 3).stats.max == 1 + 3 / 16
    assert [one.iteration for one in series[1:3]] == [*range(7)]
    assert series[-1].replay == 3
    with pytest.raises(KeyError, match="body of its conditional node did not run"):
        series[2]
    with pytest.raises(KeyError, match="iteration 7"):
        series.at(1, 7)


def test_a_replay_in_which_the_body_did_not_run_is_complete(recorded, cli):
    assert recorded.complete, recorded.missing
    result = cli("check", recorded.path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "complete" in result.stdout


def test_what_is_lost_among_the_iterations_is_missing(tmp_path, cli):
    path = write(tmp_path / "a.cgrec", lose=2)
    assert not cgdebug.open(path).complete
    result = cli("check", path)
    assert result.returncode == 3
    assert "lacks 2 snapshots of x" in result.stdout


def test_selectors_name_an_iteration(recorded, cli):
    assert "1.1875" in cli("show", f"{recorded.path}:x@1.3").stdout
    assert json.loads(cli("show", f"{recorded.path}:x@1", "--json").stdout)["iteration"] == 6
    assert "no iteration 7" in cli("show", f"{recorded.path}:x@1.7").stderr
    assert "did not run" in cli("show", f"{recorded.path}:x@2").stderr


def test_a_diff_pairs_replay_and_iteration_and_names_the_first_as_they_ran(tmp_path, cli):
    a = write(tmp_path / "a.cgrec")
    b = write(tmp_path / "b.cgrec", change=(4, 100.0))
    same = cli("diff", a, write(tmp_path / "c.cgrec"))
    assert same.returncode == 0, same.stdout
    result = cli("diff", a, b)
    assert result.returncode == 1
    assert "first difference: replay 1, x, iteration 4" in result.stdout
    first = json.loads(cli("diff", a, b, "--json").stdout)["first"]
    assert (first["replay"], first["iteration"]) == (1, 4)
    fewer = cli("diff", a, write(tmp_path / "d.cgrec", iterations=(6, 0, 1)))
    assert fewer.returncode != 0
    assert "x" in fewer.stdout


def test_check_names_the_iteration_that_was_bad_first(tmp_path, cli):
    path = write(tmp_path / "a.cgrec", change=(4, float("nan")))
    result = cli("check", path)
    assert result.returncode == 1
    assert "first non-finite: replay 1, iteration 4, x " in result.stdout
    assert "x @1.3" in result.stdout, "what led to it"
    assert '"iteration":4' in cli("check", path, "--json").stdout.replace(" ", "")
    shown = json.loads(cli("show", f"{path}:x@first-nan", "--json").stdout)
    assert (shown["replay"], shown["iteration"]) == (1, 4)


def test_tables_and_sql_have_the_iteration(recorded):
    rows = recorded.sql("select replay, iteration from v_snapshots where probe = 'x'")
    assert [tuple(row) for row in rows] == [*((1, i) for i in range(7)), (3, 0)]
    assert recorded.table("x")["iteration"] == [*range(7), 0]


def test_the_first_bad_iteration_is_in_sql(tmp_path):
    recording = cgdebug.open(write(tmp_path / "a.cgrec", change=(4, float("nan"))))
    first = recording.sql("select probe, replay, iteration from v_first_nonfinite")[0]
    assert tuple(first) == ("x", 1, 4)


def test_exports_keep_every_iteration(recorded, tmp_path):
    recorded.export("npz", tmp_path / "out")
    arrays = numpy.load(tmp_path / "out" / "replay-000001.npz")
    assert [arrays[f"x@i:{i}"][0] for i in range(7)] == [1 + i / 16 for i in range(7)]
    assert "before" in arrays


def test_extracts_keep_every_iteration(recorded, tmp_path, cli):
    out = tmp_path / "small.cgrec"
    assert cli("extract", recorded.path, "--replays", "1..1", "-o", out).returncode == 0
    small = cgdebug.open(out)
    assert small["x"].iterations == [*range(7)]
    assert small["x"].in_body
    assert small.complete, small.missing
