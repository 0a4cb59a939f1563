"""The HTML report: its numbers, its size, and what a name in it cannot do. test_report_page.py opens
it in a browser."""

import base64
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request

import numpy
import pytest
import recording_writer

import cgdebug
from conftest import find_program


def cli(*arguments, **options):
    return subprocess.run(
        [find_program("cgdebug-cli"), "--no-spawn", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        **options,
    )


def write_recording(
    path, probes, replays, value, shape=(2, 3), dtype="float32", lost=(), names=None
):
    """value(i, replay) is what probe i has; `lost` are pairs (i, replay)."""
    writer = recording_writer.Writer(str(path))
    session = writer.add_session("0" * 32, "job", -1)
    slots = [
        writer.add_slot(session, names[i] if names else f"layers.{i}.out", dtype, shape)
        for i in range(probes)
    ]
    for replay in range(1, replays + 1):
        for i, slot in enumerate(slots):
            if (i, replay) in lost:
                writer.lose(slot, 1, replay - 1)
            else:
                tensor = numpy.empty(shape, dtype)
                tensor[...] = value(i, replay)
                writer.append(slot, replay, tensor)
    writer.close()
    return path


def data_of(html):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    return json.loads(text)


def series(given, columns):
    if given is None:
        return numpy.full(columns, math.nan)
    ((kind, text),) = given.items()
    return numpy.frombuffer(base64.b64decode(text), "<" + kind).astype(float)


def abs_max(strip, columns):
    return numpy.fmax(abs(series(strip["min"], columns)), abs(series(strip["max"], columns)))


def report_of(path, *arguments):
    output = path.with_suffix(".html")
    result = cli("report", path, *arguments, "-o", output, "-f")
    assert result.returncode == 0, result.stderr
    return output.read_text(encoding="utf-8"), result


@pytest.fixture
def varied(tmp_path):
    """Values that a float cannot hold, NaN, Inf, zeros, and a gap."""

    def value(i, replay):
        if (i, replay) == (1, 7):
            return [1, 2, math.nan]
        if (i, replay) == (2, 8):
            return [-math.inf, 0.1, 3]
        return 0 if i == 3 else (replay * 0.1 + i) * (1e300 if i == 4 else 1)

    return write_recording(tmp_path / "a.cgrec", 5, 9, value, dtype="float64", lost={(0, 4)})


def test_numbers_in_a_report_are_those_of_stats(varied):
    data = data_of(report_of(varied)[0])
    told = json.loads(cli("--json", "stats", varied).stdout)["probes"]
    columns = data["axis"]["columns"]
    assert (columns, data["axis"]["replays_per_column"]) == (9, 1)
    assert len(data["probes"]) == len(told) == 5
    for probe, strip, expected in zip(data["probes"], data["strips"], told):
        of_replays = expected.pop("abs_max")
        assert probe["a"]["facts"] == []  # no row of an op log
        assert {name: probe["a"][name] for name in expected} == expected
        there = (series(strip["a"]["state"], columns).astype(int) & 1) == 1
        shown = abs_max(strip["a"], columns)[there]
        # A float has 24 bits; what it cannot hold at all is written as a double.
        assert shown == pytest.approx([float(one) for one in of_replays], rel=2**-24, abs=0)


def test_a_column_of_many_replays_hides_no_nan_no_loss_and_no_maximum(tmp_path):
    rng = numpy.random.default_rng(7)
    values = rng.normal(size=(2, 2501)).astype("float32")
    nan_at = {13, 14, 1200, 2500}
    lost = {(1, replay) for replay in (600, 601, 1999)}

    def value(i, replay):
        return [math.nan if i == 0 and replay in nan_at else 0, values[i, replay - 1]]

    path = write_recording(tmp_path / "long.cgrec", 2, 2501, value, shape=(2,), lost=lost)
    data = data_of(report_of(path)[0])
    per_column, columns = data["axis"]["replays_per_column"], data["axis"]["columns"]
    assert per_column > 1 and per_column * columns >= 2501
    first, second = (one["a"] for one in data["strips"])
    nan = numpy.nan_to_num(series(first["nan"], columns))
    assert nan.sum() == len(nan_at)
    assert set(numpy.flatnonzero(nan)) == {(replay - 1) // per_column for replay in nan_at}
    gaps = numpy.flatnonzero(series(second["state"], columns).astype(int) & 2)
    assert set(gaps) == {(replay - 1) // per_column for _, replay in lost}
    for i, strip in enumerate((first, second)):
        there = [
            0 if (i, replay) in lost else abs(values[i, replay - 1]) for replay in range(1, 2502)
        ]
        worst = [max(there[at : at + per_column]) for at in range(0, 2501, per_column)]
        assert abs_max(strip, columns).tolist() == pytest.approx(worst, rel=1e-7)


def test_a_report_of_200_probes_and_1000_replays_is_under_2_MB(tmp_path):
    writer = recording_writer.Writer(str(tmp_path / "big.cgrec"))
    session = writer.add_session("0" * 32, "job", -1)
    slots = [
        writer.add_slot(session, f"fwd/layers.{i // 8}.part{i % 8}", "float32", (2,))
        for i in range(200)
    ]
    values = numpy.random.default_rng(1).normal(size=(1000, 200, 2)).astype("float32")
    values[700:, 150:, 0] = math.nan
    for replay, row in enumerate(values, 1):
        for slot, one in zip(slots, row):
            writer.append(slot, replay, one, stats_only=True)
    writer.close()
    html, _ = report_of(tmp_path / "big.cgrec")
    assert len(html.encode()) < 2_000_000
    assert data_of(html)["axis"]["columns"] >= 200


EVIL = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>\x1b[31m\x00\x07",
    "a\u202eb{{data}}{{script}}",
    "it's \"quoted\" & 'so' --><!-- on",
]


def test_a_name_ends_no_script_and_is_no_place_of_the_page(tmp_path):
    path = write_recording(tmp_path / "evil.cgrec", 4, 2, lambda i, replay: replay, names=EVIL)
    html, _ = report_of(path)
    data = data_of(html)
    assert [one["a"]["name"] for one in data["probes"]] == EVIL
    assert "<script>alert" not in html and "<img" not in html and "\x1b" not in html
    assert html.count("<script") == 3 and html.count("</script>") == 3


def test_nothing_in_a_report_comes_from_a_network(varied):
    html, _ = report_of(varied)
    assert "default-src 'none'" in html
    assert not re.findall(r"""<(?:script|img|link|iframe)[^>]*(?:src|href)=(?!["']data:)""", html)
    assert "BSD-3-Clause" in html and "Bostock" in html


def test_the_verdict_of_a_report_is_that_of_check(varied):
    html, result = report_of(varied)
    first = cli("check", varied).stdout.splitlines()[0]
    assert first.startswith("first non-finite: replay 7, layers.1.out")
    verdict = data_of(html)["verdict"]
    assert verdict["title"] == "F" + first[1:] == result.stdout.splitlines()[0]
    assert (verdict["kind"], verdict["place"], verdict["replay"]) == ("found", 1, 7)
    assert verdict["text"] == cli("check", varied).stdout.rstrip("\n")


def test_a_gap_makes_the_verdict_inconclusive_and_never_clear(tmp_path):
    path = write_recording(tmp_path / "gap.cgrec", 2, 6, lambda i, replay: replay, lost={(1, 3)})
    verdict = data_of(report_of(path)[0])["verdict"]
    assert verdict["kind"] == "inconclusive" and verdict["missing_count"] == 1
    path = write_recording(tmp_path / "whole.cgrec", 2, 6, lambda i, replay: replay)
    assert data_of(report_of(path)[0])["verdict"]["kind"] == "clear"


def test_a_report_of_two_sources_says_where_they_differ(tmp_path):
    a = write_recording(tmp_path / "a.cgrec", 3, 8, lambda i, replay: i + replay)
    b = write_recording(
        tmp_path / "b.cgrec",
        3,
        8,
        lambda i, replay: i + replay + (0.5 if i == 1 and replay >= 5 else 0),
        lost={(2, 2)},
    )
    data = data_of(report_of(a, b)[0])
    assert data["verdict"]["kind"] == "different"
    assert data["verdict"]["title"].startswith("First difference: replay 5, layers.1.out")
    states = [series(one["difference"]["state"], 8).astype(int).tolist() for one in data["strips"]]
    assert states == [[1] * 8, [1] * 4 + [2] * 4, [1, 0, 1, 1, 1, 1, 1, 1]]
    apart = series(data["strips"][1]["difference"]["max_abs"], 8)
    assert apart[4:].tolist() == [0.5] * 4 and numpy.isnan(apart[:4]).all()
    compared = json.loads(cli("--json", "diff", a, b).stdout)["probes"]
    for one, expected in zip(data["probes"], compared):
        names = ("compared", "different", "not_compared", "first_different", "max_abs", "max_rel")
        assert {n: one["difference"][n] for n in names} == {n: expected[n] for n in names}
    assert series(data["strips"][2]["b"]["state"], 8).astype(int).tolist() == [1, 2] + [1] * 6


def test_a_source_without_probes_has_a_report_that_says_so(tmp_path):
    recording_writer.Writer(str(tmp_path / "empty.cgrec")).close()
    html, _ = report_of(tmp_path / "empty.cgrec")
    data = data_of(html)
    assert data["verdict"]["kind"] == "empty" and data["probes"] == []


def test_report_overwrites_a_file_only_with_force(varied, tmp_path):
    (tmp_path / "mine.html").write_text("mine")
    result = cli("report", varied, "-o", tmp_path / "mine.html")
    assert result.returncode == 2 and "mine.html exists. To overwrite it, add: -f" in result.stderr
    assert (tmp_path / "mine.html").read_text() == "mine"


def test_report_names_its_file_after_the_source(varied, tmp_path):
    result = cli("--json", "report", varied, "layers.[01].*", cwd=tmp_path)
    told = json.loads(result.stdout)
    assert told["path"] == "a.html" and told["bytes"] == (tmp_path / "a.html").stat().st_size
    data = data_of((tmp_path / "a.html").read_text(encoding="utf-8"))
    assert [one["a"]["name"] for one in data["probes"]] == ["layers.0.out", "layers.1.out"]


def test_python_writes_the_same_report_as_the_command_line(varied, tmp_path):
    (tmp_path / "p.html").write_text("older")
    verdict = cgdebug.open(varied).report(tmp_path / "p.html")
    html, result = report_of(varied)
    ours = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert verdict == result.stdout.splitlines()[0]
    assert data_of(ours) == data_of(html)
    cgdebug.open(varied).report(tmp_path / "p.html", "layers.2.*", other=varied, replays=(2, 4))
    data = data_of((tmp_path / "p.html").read_text(encoding="utf-8"))
    assert len(data["sources"]) == 2 and len(data["probes"]) == 1
    assert (data["axis"]["first"], data["axis"]["last"]) == (2, 4)
    recording_writer.Writer(str(tmp_path / "empty.cgrec")).close()
    empty = cgdebug.open(tmp_path / "empty.cgrec")
    cgdebug.open(varied).report(tmp_path / "p.html", other=empty)
    data = data_of((tmp_path / "p.html").read_text(encoding="utf-8"))
    assert data["verdict"]["kind"] == "inconclusive"


def test_the_image_of_a_tensor_keeps_its_only_nan(tmp_path):
    tensor = numpy.ones((3, 100, 500), "float32")
    tensor[2, 57, 311] = math.nan
    path = write_recording(
        tmp_path / "t.cgrec", 1, 1, lambda i, replay: tensor, shape=(3, 100, 500)
    )
    picture = data_of(report_of(path)[0])["probes"][0]["a"]["picture"]
    assert [image["name"] for image in picture["images"]][-1] == "[2, :, :]"
    codes = numpy.frombuffer(base64.b64decode(picture["images"][-1]["u1"]), "u1")
    row, column = 57 // picture["of_height"], 311 // picture["of_width"]
    assert numpy.flatnonzero(codes == 0).tolist() == [row * picture["columns"] + column]
    assert set(codes[codes != 0]) == {255}  # the largest value there is


def served(arguments, cwd):
    """A `report --serve` that runs, and the address that it printed."""
    process = subprocess.Popen(
        [find_program("cgdebug-cli"), "report", *map(str, arguments), "--serve"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
    )
    lines = [process.stdout.readline(), process.stdout.readline()]
    return process, lines[1].strip()


def test_a_served_report_is_the_file_for_who_knows_the_address(varied, tmp_path):
    html, _ = report_of(varied)
    (tmp_path / "here").mkdir()
    process, address = served([varied], tmp_path / "here")
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert answer.read().decode() == html
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
        host = re.fullmatch(r"(http://127\.0\.0\.1:\d+)/[0-9a-f]{32}/report\.html", address)[1]
        for other in (host, f"{host}/report.html", address + "x"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(other, timeout=30)
        # A browser opens connections that it does not use yet.
        idle = socket.create_connection(("127.0.0.1", int(host.rpartition(":")[2])))
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert answer.status == 200
        idle.close()
    finally:
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "ssh -N -L" in told and list((tmp_path / "here").iterdir()) == []


def test_open_starts_the_browser_that_is_set_and_says_what_else_to_type(varied, tmp_path):
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >{tmp_path}/opened\n')
    browser.chmod(0o755)
    opened = cli(
        "report", varied, "--open", cwd=tmp_path, env={**os.environ, "BROWSER": str(browser)}
    )
    assert opened.returncode == 0, opened.stderr
    assert (tmp_path / "opened").read_text().strip() == str(tmp_path / "a.html")
    blind = {**os.environ, "BROWSER": "", "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    without = cli("report", varied, "-f", "--open", cwd=tmp_path, env=blind)
    assert without.returncode == 2 and "Type the command with --serve" in without.stderr
    assert (tmp_path / "a.html").exists()


def test_a_report_of_two_sources_has_a_name_of_its_own(varied, tmp_path):
    shutil.copytree(varied, tmp_path / "b.cgrec")
    assert cli("report", varied, tmp_path / "b.cgrec", cwd=tmp_path).returncode == 0
    assert (tmp_path / "a-b.html").exists() and not (tmp_path / "a.html").exists()


def test_a_report_of_many_rows_has_the_thousand_that_matter_and_says_so(tmp_path):
    def value(i, replay):
        return math.nan if (i, replay) in ((4000, 2), (7000, 2)) else replay + i % 7

    path = write_recording(
        tmp_path / "many.cgrec",
        8000,
        2,
        value,
        shape=(4,),
        names=[f"fwd/layers.{i // 100}.op_{i}" for i in range(8000)],
    )
    html, result = report_of(path)
    assert len(html.encode()) < 3 << 20
    data = data_of(html)
    names = [line["a"]["name"] for line in data["probes"]]
    assert len(names) == 1000 and data["left_out"] == {"lines": 7000, "with_findings": 0}
    assert {"fwd/layers.40.op_4000", "fwd/layers.70.op_7000", "fwd/layers.38.op_3801"} <= set(names)
    assert names == sorted(names, key=lambda name: int(name.rpartition("_")[2])), "graph order"
    assert data["verdict"]["place"] == names.index("fwd/layers.40.op_4000")
    assert "op_4000" in result.stdout


def test_what_is_known_of_the_last_snapshot_is_in_the_page_once(tmp_path):
    writer = recording_writer.Writer(str(tmp_path / "log.cgrec"))
    session = writer.add_session("0" * 32, "job", -1)
    slots = {name: writer.add_slot(session, name, "float32", (2,)) for name in ("bad", "late")}
    for replay, values in ((1, (1, 1)), (2, (2, math.nan)), (3, (math.nan, math.nan))):
        for slot, value in zip(slots.values(), values):
            tensor = numpy.full(2, value, "float32")
            writer.append(slot, replay, tensor, stats_only=True)
    writer.close()
    html, _ = report_of(tmp_path / "log.cgrec")
    bad, late = (line["a"] for line in data_of(html)["probes"])
    assert bad["first_bad"] == "last" and bad["last"]["nan"] == 2
    assert late["first_bad"]["replay"] == "2" and late["last"]["replay"] == "3"


def test_an_op_log_of_fifty_thousand_rows_is_a_page_of_less_than_three_mib(tmp_path):
    writer = recording_writer.Writer(str(tmp_path / "log.cgrec"))
    session = writer.add_session("0" * 32, "job", -1)
    for call in range(1, 101):
        value = math.nan if call > 80 else call
        for i in range(500):
            name = f"bwd/blocks.{i % 24}.attention.projection/native_layer_norm_backward_{i}.1"
            slot = writer.add_slot(
                session, name, "float32", (call, 64), graph_id=0, in_body=True, graph_label=""
            )
            tensor = numpy.full((call, 64), value, "float32")
            writer.append(slot, call, tensor, stats_only=True)
    writer.close()
    html, _ = report_of(tmp_path / "log.cgrec")
    assert len(html.encode()) < 3 << 20
    rows = [line["a"] for line in data_of(html)["probes"]]
    assert len(rows) == 500
    assert {one["replay"] for row in rows for one in row["findings"]} == {81}


def test_a_thousand_probes_with_values_of_which_half_are_not_finite_fit_too(tmp_path):
    random = numpy.random.default_rng(0)

    def value(i, replay):
        values = random.normal(size=(8, 16))
        values[replay % 8] = math.nan if i >= 500 and replay > 20 else 1
        return values

    names = [f"model.layers.{i // 8}.attention.projection_{i % 8}" for i in range(1000)]
    path = write_recording(tmp_path / "r.cgrec", 1000, 30, value, shape=(8, 16), names=names)
    html, _ = report_of(path)
    assert len(html.encode()) < 3 << 20
    assert data_of(html)["axis"]["columns"] == 30


def test_thirty_replays_of_a_thousand_probes_keep_their_columns(tmp_path):
    path = write_recording(
        tmp_path / "wide.cgrec", 1000, 30, lambda i, replay: replay + i % 7, shape=(2,)
    )
    html, _ = report_of(path)
    assert len(html.encode()) < 3 << 20
    axis = data_of(html)["axis"]
    assert (axis["columns"], axis["replays_per_column"]) == (30, 1)
