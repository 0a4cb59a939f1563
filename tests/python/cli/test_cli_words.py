"""What cgdebug-cli says is true of what was asked, and says what to type next."""

import json
import os
import shlex
import subprocess

import numpy
import pytest
import recording_writer
import torch

import cgdebug
from conftest import find_program, own_session, wait_until

PID = str(os.getpid())


@pytest.fixture
def recording(tmp_path):
    """x of replays 1, 2 and 4: the 3rd was lost; NaN in none. x.stats has no values."""
    writer = recording_writer.Writer(str(tmp_path / "a.cgrec"))
    session = writer.add_session("0" * 32, "job", -1)
    slot = writer.add_slot(session, "x", "float32", (2, 2))
    for replay in (1, 2, 4):
        writer.append(slot, replay, numpy.full((2, 2), replay, "float32"), step=100 + replay)
    writer.lose(slot, 1, 2)
    writer.close()
    return str(tmp_path / "a.cgrec")


def wait_for(cli, name, replay):
    wait_until(
        lambda: cli("show", "-s", PID, f"{name}@{replay}").returncode == 0, f"{name}@{replay}"
    )


def test_each_eager_shape_keeps_its_own_values_in_a_live_source(cli, probe):
    p = probe(cgdebug.TensorRecord(), name="shapes")
    for size in (1, 2, 3, 3):
        p(torch.full((size,), float(size)))
    wait_for(cli, "shapes", 2)
    probes = json.loads(cli("stats", PID, "shapes", "--json").stdout)["probes"]
    assert [(one["shape"], one["snapshots"], one["max"]) for one in probes] == [
        ([1], 1, 1.0),
        ([2], 1, 2.0),
        ([3], 2, 3.0),
    ]
    checked = json.loads(cli("check", PID, "shapes", "--replays", "1..2", "--json").stdout)
    assert not checked["found"] and checked["missing"] == []


@pytest.mark.parametrize(
    "what, text",
    [
        ("x@3", "has no replay 3: it was lost or not recorded"),
        ("x@9", "has no replay 9: it has replays 1..4"),
        ("x@-9", "has only 3 snapshots"),
        ("x@first-nan", "has no NaN or Inf in its replays 1..4"),
        ("x@step:7", "has no snapshot of step 7"),
    ],
)
def test_show_says_why_a_recording_lacks_what_was_asked_for(cli, recording, what, text):
    result = cli("show", f"{recording}:{what}")
    assert result.returncode == 4 and text in result.stderr


def lacking(path, count, is_rank):
    """Probes of which each lost a snapshot, of one process or of one rank each."""
    writer = recording_writer.Writer(path)
    session = None
    for number in range(count):
        if session is None or is_rank:
            session = writer.add_session(f"{number:032x}", "job", number if is_rank else -1)
        slot = writer.add_slot(session, f"x{number}", "float32", (1,))
        writer.append(slot, 1, numpy.float32([number]))
        writer.lose(slot, 1, 1)
    writer.close()
    return path


def test_what_many_probes_lack_is_one_sentence(cli, tmp_path):
    path = lacking(str(tmp_path / "a.cgrec"), 14, is_rank=False)
    (said,) = json.loads(cli("--json", "check", path).stdout)["missing"]
    assert "lacks 1 snapshot of each of 14 probes, the first of x0 before replay 3" in said
    checked = cli("check", path)
    assert checked.returncode == 3
    assert sum(line.startswith("missing: ") for line in checked.stdout.splitlines()) == 1
    path = lacking(str(tmp_path / "b.cgrec"), 3, is_rank=False)
    assert len(json.loads(cli("--json", "check", path).stdout)["missing"]) == 3


def test_what_many_ranks_lack_fills_no_screen(cli, tmp_path):
    path = lacking(str(tmp_path / "a.cgrec"), 14, is_rank=True)
    count = len(json.loads(cli("--json", "check", path).stdout)["missing"])
    lines = cli("check", path).stdout.splitlines()
    assert count >= 14 and f"  and {count - 10} more like these" in lines
    assert sum(line.startswith("missing: ") for line in lines) == 10
    lines = cli("check", path, "--max-rows", "20").stdout.splitlines()
    assert sum(line.startswith("missing: ") for line in lines) == count


def test_a_call_is_shown_by_the_name_it_is_listed_under(cli, tmp_path):
    path = str(tmp_path / "a.cgrec")
    writer = recording_writer.Writer(path)
    for rank in (0, 1):
        session = writer.add_session(f"{rank:032x}", f"job/r{rank}", rank)
        for call in (0, 1):
            slot = writer.add_slot(session, "x", "float32", (1,), invocation=call)
            writer.append(slot, 1, numpy.float32([numpy.nan if call and rank else call]))
    writer.close()
    for call, name in enumerate(("x", "x#1")):
        shown = json.loads(cli("show", "--ranks", "0", f"{path}:{name}@1", "--json").stdout)
        assert shown["values"] == [call] and shown["invocation"] == call
    hint = cli("check", path).stderr.split("next:  cgdebug-cli ")[1].split()
    assert hint == ["show", f"'{path}:x#1@1'", "--ranks", "1", "--where", "nan"]


def test_show_of_a_file_without_a_probe_says_how_to_see_its_probes(cli, recording):
    result = cli("show", recording)
    assert result.returncode == 2
    assert f"which probe of it? Type: cgdebug-cli info {recording}" in result.stderr


@pytest.mark.parametrize("slice", ["[::2]", "[...]", "[7]"])
def test_show_says_how_a_slice_is_written(cli, recording, slice):
    result = cli("show", f"{recording}:x@1{slice}")
    assert result.returncode == 2 and "write an index such as 0 or -1" in result.stderr


def test_show_of_a_file_of_tensors_makes_up_no_time(cli, recording, tmp_path):
    cgdebug.open(recording).export("safetensors", tmp_path / "out", replays=(1, 1))
    shown = cli("show", f"{tmp_path}/out/replay-000001.safetensors:x@1").stdout
    assert "on file" in shown and "1970" not in shown and "eager" not in shown


def test_show_does_not_promise_values_of_statistics(cli, probe, tmp_path):
    probe(cgdebug.TensorStats(), name="words.stats")(torch.ones(2))
    wait_for(cli, "words.stats", 1)
    result = cli("show", "-s", PID, "words.stats", "-o", str(tmp_path / "x.npy"))
    assert result.returncode == 4
    assert "TensorStats" in result.stderr and "Use TensorRecord" in result.stderr


@pytest.mark.parametrize("probed", ["words.two", "words[2]"])
def test_show_says_that_another_job_has_such_a_probe(cli, probe, job, probed):
    probe(cgdebug.TensorRecord(), name=probed)(torch.ones(1))
    wait_for(cli, probed, 1)
    other = job(f"""
        cgdebug.step(5)
        CudaGraphTensorProbe("{probed}", [TensorRecord()], mode="always")(torch.full((1,), 7.0))
        print("ready")
        input()
    """)
    assert other.line() == "ready"
    wait_until(lambda: cli("show", "-s", str(other.pid), probed).returncode == 0, "the other")
    for name in (probed, probed + "@1", probed + "@step:5"):
        for options in ([], ["--graph", "eager", "--shape", "1"]):
            shown = cli("show", name, *options)
            assert "[7]" in shown.stdout
            note, hint = shown.stderr.rstrip("\n").split(" Another one: cgdebug-cli ")
            assert note == f"2 sessions have a probe '{probed}'; this is of pid {other.pid}."
            assert shlex.split(hint) == ["show", "-s", own_session(), name, *options]
    mine = cli("show", "-s", own_session(), probed)
    assert "[1]" in mine.stdout and mine.stderr == ""


def test_status_names_the_session_whose_tensor_it_means(cli, probe):
    probe(cgdebug.TensorRecord(), name="words.nan")(torch.tensor([float("nan")]))
    wait_for(cli, "words.nan", 1)
    session = json.loads(cli("status", PID, "--json").stdout)["sessions"][0]
    assert f"cgdebug-cli show -s {session['key']} " in cli("status", PID).stdout


def test_json_of_status_has_the_lanes_too(cli, probe):
    probe(cgdebug.TensorRecord(), name="words.lanes")(torch.ones(1))
    wait_for(cli, "words.lanes", 1)
    session = json.loads(cli("status", PID, "--json").stdout)["sessions"][0]
    assert session["lanes"][0]["lane"] == "host" and session["lanes"][0]["slots"] >= 1


@pytest.mark.parametrize("command", [["status"], ["tail"], ["probes"], ["ps", "-a"]])
def test_ranks_that_no_job_has_match_nothing(cli, probe, command):
    probe(cgdebug.TensorRecord(), name="words.rank")(torch.ones(1))
    wait_for(cli, "words.rank", 1)
    result = cli(*command, "--ranks", "77")
    assert result.returncode == 4 and "Type: cgdebug-cli ps -a" in result.stderr


@pytest.mark.parametrize("number", ["-1", "1.5", "x", "99999999999999999999999"])
@pytest.mark.parametrize(
    "command",
    [
        ["show", "x", "--topk"],
        ["show", "x", "--values"],
        ["tail", "-n"],
        ["check", "live", "--frames"],
        ["set", "x", "--mode", "off", "--count"],
    ],
)
def test_words_that_are_not_numbers_are_refused_with_a_sentence(cli, command, number):
    result = cli(*command, number)
    assert result.returncode == 2
    assert f"'{number}' is not a whole number from " in result.stderr
    assert f"Type: cgdebug-cli {command[0]} --help" in result.stderr


def test_diff_of_an_unknown_name_matches_nothing(cli, recording):
    result = cli("diff", recording, recording, "nope*")
    assert result.returncode == 4 and "no probe matches 'nope*'" in result.stderr


def test_diff_of_nan_with_itself_names_the_option(cli, tmp_path):
    path = str(tmp_path / "a.cgrec")
    writer = recording_writer.Writer(path)
    slot = writer.add_slot(writer.add_session("0" * 32, "job", -1), "x", "float32", (2,))
    writer.append(slot, 1, numpy.float32([1, numpy.nan]))
    writer.close()
    result = cli("diff", path, path)
    assert result.returncode == 1 and "--equal-nan takes that for equal" in result.stdout
    assert cli("diff", path, path, "--equal-nan").returncode == 0


@pytest.fixture
def rounded(tmp_path):
    """Statistics of two runs: one rounds differently in all three probes, and is wrong in the last."""
    paths = []
    for name, factor in (("a", 1), ("b", 1 + 1e-6)):
        writer = recording_writer.Writer(str(tmp_path / f"{name}.cgrec"))
        session = writer.add_session("0" * 32, "job", -1)
        for i, probe in enumerate(("fwd/0", "fwd/1", "fwd/2")):
            values = numpy.arange(1, 9, dtype="float32") * factor
            if name == "b" and i == 2:
                values[3] = 9
            slot = writer.add_slot(session, probe, "float32", (8,))
            writer.append(slot, 1, values, stats_only=True)
        writer.close()
        paths.append(str(tmp_path / f"{name}.cgrec"))
    return paths


def test_diff_of_statistics_says_how_to_look_beyond_rounding(cli, rounded):
    first = cli("diff", "--first", *rounded)
    assert first.returncode == 1 and "fwd/0 (probe 1 of 3)" in first.stdout
    assert "cgdebug-cli ops diff A.cgrec B.cgrec" in first.stderr
    (line,) = [line for line in first.stderr.splitlines() if "next:" in line]
    words = shlex.split(line.partition("cgdebug-cli ")[2])
    assert words[-2:] == ["--rtol", "1e-3"]
    beyond = subprocess.run([find_program("cgdebug-cli"), *words], capture_output=True, text=True)
    assert beyond.returncode == 1 and "fwd/2 (probe 3 of 3)" in beyond.stdout
    assert "next:" not in beyond.stderr
    assert "next:" not in cli("diff", *rounded, "--bitwise").stderr
    assert "next:" not in cli("diff", *rounded, "fwd/2").stderr


def test_help_says_the_whole_command_and_what_its_words_mean(cli):
    assert "Usage: cgdebug-cli record start [OPTIONS]\n" in cli("record", "start", "--help").stdout
    assert "TENSOR   " in cli("show", "--help").stdout
    assert "[SOURCE:]PROBE[{SHAPE}][@g:GRAPH][@REPLAY[SLICE]]" in cli("show", "--help").stdout


def test_help_of_an_unknown_command_names_the_near_ones(cli):
    result = cli("stauts", "--help")
    assert result.returncode == 2 and "no command 'stauts'. Close: 'status'" in result.stderr


def test_a_query_without_sql_says_what_is_missing(cli, recording):
    result = cli("query", recording)
    assert result.returncode == 2 and "Type: cgdebug-cli query --examples" in result.stderr
    rows = json.loads(cli("query", recording, "SELECT 1e999 AS a, -1e999 AS b", "--json").stdout)
    assert rows == [{"a": "Infinity", "b": "-Infinity"}]


def test_an_unknown_session_is_not_taken_for_a_file(cli):
    result = cli("check", "nobody")
    assert result.returncode == 4
    assert "no session 'nobody' and no file of this name. Type: cgdebug-cli ps -a" in result.stderr
    result = cli("check", "-s", "nobody")
    assert result.stderr == "cgdebug: no session 'nobody'. Type: cgdebug-cli ps -a\n"


def test_set_needs_a_job_that_is_alive(cli, job):
    one = job(
        """
        p = CudaGraphTensorProbe("words.dead", [TensorRecord()], mode="always")
        p(torch.ones(1))
        print("made")
        sys.stdin.readline()
        """
    )
    one.line()
    session = str(one.pid)
    wait_until(lambda: cli("show", "-s", session, "words.dead").returncode == 0, "it is read")
    one.go_on()
    one.finish()
    wait_until(lambda: "exited" in cli("ps", "-a", "-s", session).stdout, "the daemon sees it end")
    result = cli("set", "-s", session, "words.dead", "--mode", "off")
    assert result.returncode == 4 and "while its job is alive, and none is" in result.stderr
