"""Which snapshot came first, when each graph and shape counts its own replays: every command and
API names the same one, live and recorded. And how to choose one of several graphs or shapes."""

import json

import pytest

import cgdebug
from conftest import Job, remove_segments_of, wait_until

# [8] goes bad at its replay 50, [64] later, at its replay 2.
TWO_SHAPES = """
    p = CudaGraphTensorProbe("v", [TensorRecord(capacity=64)], mode="always")
    p(torch.ones(64))
    for i in range(50):
        p(torch.full((8,), float("nan")) if i == 49 else torch.ones(8))
    p(torch.full((64,), float("nan")))
"""


@pytest.fixture(scope="module")
def started():
    """The job that the tests look at and leave alone, once `live` has started it."""
    jobs = []
    yield jobs
    for one in jobs:
        one.process.kill()
        one.process.communicate()
    remove_segments_of(*(one.pid for one in jobs))


@pytest.fixture
def live(started, cli, daemon):
    """cli, of a job of two shapes that is alive and all read."""
    if not started:
        started.append(Job(TWO_SHAPES + "    print('ready')\n    sys.stdin.readline()\n"))
        assert started[0].line() == "ready"
    process = started[0]

    def consumed():
        with daemon.connect() as client:
            return [
                s
                for s in client.status().sessions
                if s.pid == process.pid and s.counters.consumed == 52
            ]

    wait_until(consumed, "the daemon has read all of the job")
    return lambda *arguments: cli("-s", str(process.pid), *arguments)


@pytest.fixture
def recorded(live, tmp_path):
    path = tmp_path / "a.cgrec"
    result = live("freeze", "-o", str(path))
    assert result.returncode == 0, result.stderr
    return str(path)


def test_status_names_the_first_by_time(live):
    result = live("status")
    assert "first NaN: v{8} @50, 8 elements" in result.stdout, result.stdout
    assert "'v{8}@50'" in result.stdout
    (session,) = json.loads(live("--json", "status").stdout)["sessions"]
    first = session["first_nan"]
    assert (first["replay"], first["shape"], first["graph_id"]) == (50, [8], 0)


def test_what_status_says_to_type_works(live):
    assert "[8]" in live("show", "v{8}@50", "--where", "nan").stdout


@pytest.mark.parametrize("where", ["live", "recorded"])
def test_check_names_the_first_by_time(where, live, cli, request):
    if where == "live":
        result, report = live("check"), json.loads(live("--json", "check").stdout)
    else:
        path = request.getfixturevalue("recorded")
        result, report = cli("check", path), json.loads(cli("--json", "check", path).stdout)
    assert result.returncode == 1, result.stderr
    assert "first non-finite: replay 50, v{8}" in result.stdout, result.stdout
    assert "non-finite: v{64}" in result.stdout
    first = report["first_nonfinite"]
    assert (first["replay"], first["shape"]) == (50, [8])
    assert {tuple(finding["shape"]) for finding in report["findings"]} >= {(8,), (64,)}


@pytest.mark.parametrize("where", ["live", "recorded"])
def test_show_first_nan_is_the_first_by_time(where, live, cli, request):
    if where == "live":
        result = live("--json", "show", "v@first-nan")
    else:
        result = cli("--json", "show", request.getfixturevalue("recorded") + ":v@first-nan")
    shown = json.loads(result.stdout)
    assert (shown["replay"], shown["shape"]) == (50, [8])


def test_sql_names_the_first_by_time(recorded, cli):
    query = "SELECT replay, shape FROM v_first_nonfinite"
    assert cgdebug.open(recorded).sql(query) == [(50, "[8]"), (2, "[64]")]
    lines = cli("query", recorded, query, "--format", "csv").stdout.splitlines()
    assert lines[1].startswith("50,"), lines


def test_python_names_the_first_by_time(recorded, live, daemon):
    check = cgdebug.open(recorded).check()
    assert "first non-finite: replay 50, v{8}" in str(check)
    series = {s.shape: s for s in cgdebug.open(recorded).select("v")}
    assert series[8,][50].serial < series[64,][2].serial
    assert series[64,][1].serial < series[8,][1].serial


def test_lines_of_tail_are_told_apart_and_can_be_put_in_order(live):
    events = [
        json.loads(line)
        for line in live("--json", "tail", "-n", "100", "--only", "nan").stdout.splitlines()
    ]
    events = [event for event in events if event["event"] == "snapshot"]
    assert events == sorted(events, key=lambda event: event["serial"])
    assert [event["shape"] for event in events] == [[8], [64]]
    assert events[0]["slot"] != events[1]["slot"]


def test_run_names_the_first_by_time(cli, monkeypatch):
    import sys
    import textwrap

    monkeypatch.delenv("CGDEBUG_RUN_ID")
    code = "import torch\nfrom cgdebug import *\n" + textwrap.dedent(TWO_SHAPES)
    result = cli("run", "--no-live", "--", sys.executable, "-c", code)
    assert "first NaN: v{8} @50" in result.stderr, result.stderr
    assert "'v{8}@50' --where nan" in result.stderr


@pytest.mark.parametrize("where", ["live", "recorded"])
def test_a_replay_that_several_shapes_have_is_not_guessed(where, live, cli, request):
    source = "" if where == "live" else request.getfixturevalue("recorded") + ":"
    run = live if where == "live" else cli
    result = run("show", source + "v@2")
    assert result.returncode == 4
    assert "2 shapes have @2" in result.stderr, result.stderr
    assert "v{64}@2" in result.stderr
    for words in ([source + "v{64}@2"], [source + "v@2", "--shape", "64"]):
        shown = json.loads(run("--json", "show", *words).stdout)
        assert (shown["replay"], shown["shape"]) == (2, [64])
    assert run("show", source + "v{7}@2").returncode == 4


def test_a_shape_selects_what_is_checked_and_listed(recorded, cli):
    result = cli("check", recorded, "--shape", "64")
    assert "first non-finite: replay 2, v{64}" in result.stdout
    probes = json.loads(cli("--json", "probes", recorded, "--shape", "64").stdout)["probes"]
    assert [probe["shape"] for probe in probes] == [[64]]
    assert cli("check", recorded, "--graph", "bs=8").returncode == 4
    assert cli("check", recorded, "--shape", "eight").returncode == 2


def graphs(path, batches, *, bad=(), replays=2, given=True):
    """A recording of one probe captured once for each batch size."""
    import numpy
    import recording_writer

    writer = recording_writer.Writer(str(path))
    session = writer.add_session("0" * 31 + "1", "job", -1)
    serial = 0
    slots = {}
    for number, batch in enumerate(batches, 1):
        slots[batch] = writer.add_slot(
            session,
            "x",
            "float32",
            (batch,),
            graph_id=number,
            graph_label=f"bs={batch}" if given else "",
        )
    for replay in range(1, replays + 1):
        for batch in batches:
            serial += 1
            value = numpy.full(batch, numpy.nan if batch in bad else batch, numpy.float32)
            writer.append(slots[batch], replay, value, serial=serial)
    writer.close()
    return str(path)


@pytest.mark.parametrize("given", [True, False])
def test_two_recordings_pair_graphs_by_name_and_not_by_number(tmp_path, cli, given):
    a = graphs(tmp_path / "a.cgrec", [8, 16, 64], given=given)
    b = graphs(tmp_path / "b.cgrec", [64, 8, 16], given=given)
    assert cli("diff", a, b).returncode == 0
    c = graphs(tmp_path / "c.cgrec", [8, 32, 64], given=given)
    result = cli("diff", a, c)
    assert result.returncode == 3
    assert "@g:" in result.stdout, result.stdout


def test_a_graph_is_selected_by_its_label(tmp_path, cli):
    a = graphs(tmp_path / "a.cgrec", [8, 16])
    shown = json.loads(cli("--json", "show", f"{a}:x@g:bs=16@2").stdout)
    assert (shown["graph"], shown["shape"], shown["replay"]) == ("bs=16", [16], 2)
    shown = json.loads(cli("--json", "show", f"{a}:x@2", "--graph", "bs=8").stdout)
    assert shown["graph"] == "bs=8"
    assert "2 graphs have @2" in cli("show", f"{a}:x@2").stderr


RECORDED = """
    probe = CudaGraphTensorProbe("v", [TensorRecord(capacity=64)], mode="always")
    probe(torch.ones(8))
    print("ready")
    sys.stdin.readline()
    for i in range(3):
        probe(torch.ones(8))
        probe(torch.ones(64))
    print("done")
    sys.stdin.readline()
"""


@pytest.mark.parametrize("how", ["cli", "python"])
def test_a_recording_takes_the_shape_that_was_asked_for(how, job, cli, daemon, tmp_path):
    process = job(RECORDED)
    assert process.line() == "ready"
    path = str(tmp_path / "a.cgrec")
    if how == "cli":
        started = cli("-s", str(process.pid), "record", "start", "-o", path, "--shape", "64")
        assert started.returncode == 0, started.stderr
        process.go_on()
        assert process.line() == "done"
        assert cli("record", "stop", path).returncode == 0
    else:
        with (
            daemon.connect(process.pid) as client,
            client.record(path, shape=(64,), graph="eager"),
        ):
            process.go_on()
            assert process.line() == "done"
    (series,) = cgdebug.open(path).select("v")
    assert (series.shape, list(series.replays)) == ((64,), [1, 2, 3])


def test_an_invalid_graph_or_shape_is_refused_before_a_recording_starts(cli, tmp_path):
    path = str(tmp_path / "a.cgrec")
    assert cli("record", "start", "-o", path, "--shape", "eight").returncode == 2
    assert not (tmp_path / "a.cgrec").exists()


def test_findings_of_51_graphs_are_one_line(tmp_path, cli):
    a = graphs(tmp_path / "a.cgrec", range(1, 52), bad=range(1, 52))
    lines = [s for s in cli("check", a).stdout.splitlines() if s.startswith("non-finite:")]
    assert len(lines) == 1, lines
    assert "bs=1" in lines[0] and "50 more" in lines[0]


def test_a_recorded_probe_of_51_graphs_is_one_line(tmp_path, cli):
    a = graphs(tmp_path / "a.cgrec", range(1, 52), bad=(16, 17, 40))
    for command in ("probes", "info", "stats"):
        lines = [s for s in cli(command, a).stdout.splitlines() if s.startswith("x")]
        assert len(lines) == 1, lines
        assert "51 graphs" in lines[0], lines
        assert "51 shapes" in lines[0], lines
        assert "3 saw NaN or Inf, first bs=16 @1  -v: each" in lines[0], lines
        for opened, count in ((["-v"], 51), (["--graph", "bs=16"], 1)):
            whole = [s for s in cli(command, *opened, a).stdout.splitlines() if s.startswith("x")]
            assert len(whole) == count, (command, opened, whole)
        if command != "info":
            assert len(json.loads(cli("--json", command, a).stdout)["probes"]) == 51


def test_a_live_probe_of_many_shapes_is_one_line(job, cli, daemon):
    process = job(
        """
        probe = CudaGraphTensorProbe("x", [TensorRecord(capacity=4)], mode="always")
        for size in range(1, 52):
            probe(torch.full((size,), float("nan") if size in (16, 17, 40) else 1.0))
        print("ready")
        sys.stdin.readline()
        """
    )
    assert process.line() == "ready"

    def consumed():
        with daemon.connect() as client:
            sessions = [s for s in client.status().sessions if s.pid == process.pid]
            return sessions and sessions[0].counters.consumed == 51

    wait_until(consumed, "the daemon has read all of the job")
    arguments = ["-s", str(process.pid), "probes"]
    lines = [s for s in cli(*arguments).stdout.splitlines() if s.startswith("x")]
    assert len(lines) == 1, lines
    assert "51 shapes" in lines[0], lines
    assert "3 saw NaN or Inf, first {16} @1  -v: each" in lines[0], lines
    for opened, count in ((["-v"], 51), (["--shape", "16"], 1)):
        whole = [s for s in cli(*arguments, *opened).stdout.splitlines() if s.startswith("x")]
        assert len(whole) == count, whole


def test_the_catalogue_names_graphs(tmp_path, cli):
    a = graphs(tmp_path / "a.cgrec", [8, 16], given=False)
    query = "SELECT DISTINCT graph FROM v_snapshots ORDER BY serial"
    assert cgdebug.open(a).sql(query) == [("8",), ("16",)]
    out = cli("query", a, query, "--format", "csv").stdout.split()
    assert out[1:] == ["8", "16"], out


def test_labels_that_cannot_be_selected_are_refused():
    for label in ("", "a@b", "a#2", "x" * 64, None):
        with pytest.raises(ValueError):
            cgdebug.graph_label(label)
