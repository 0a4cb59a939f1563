"""Recordings in other formats, and in the tests of others."""

import csv
import gzip
import importlib
import json
import os
import pathlib
import struct
import subprocess
import sys

import numpy
import pytest

import cgdebug
from cgdebug import testing
from cgdebug.errors import NothingMatchedError, RecordingError
from conftest import find_program
from written_recordings import Writer, write


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a.cgrec", replays=3)


def mixed(tmp_path):
    writer = Writer(tmp_path / "m.cgrec")
    bits = numpy.array([0x3F80, 0x4000], "uint16")
    slot = writer._writer.add_slot(writer._session, "b", "bfloat16", [2])
    writer._writer.append(slot, 1, bits, step=7, timestamp_ns=5_000)
    writer.add("i", 1, numpy.array([[1, 2]], "int64"), step=7, timestamp_ns=6_000)
    return writer.close()


def test_safetensors_hold_every_value_and_come_back(tmp_path, path):
    safetensors = pytest.importorskip("safetensors.numpy")
    r = cgdebug.open(path)
    assert r.export("safetensors", tmp_path / "out") == []
    files = sorted((tmp_path / "out").iterdir())
    assert [f.name for f in files] == [f"replay-00000{n}.safetensors" for n in (1, 2, 3)]
    loaded = safetensors.load_file(files[1])
    numpy.testing.assert_array_equal(loaded["x"], r["x"][2].numpy())
    back = cgdebug.open(tmp_path / "out")
    assert back.replays == [1, 2, 3] and back.probes == ["x", "y"] and back["x"][2].step == 102
    assert r.diff(back, bitwise=True).ok


def test_safetensors_keep_bfloat16_and_load_into_torch(tmp_path):
    torch = pytest.importorskip("torch")
    load_file = pytest.importorskip("safetensors.torch").load_file
    cgdebug.open(mixed(tmp_path)).export("safetensors", tmp_path / "out")
    loaded = load_file(tmp_path / "out" / "replay-000001.safetensors")
    assert loaded["b"].dtype == torch.bfloat16 and loaded["b"].tolist() == [1, 2]


def test_no_tensor_takes_the_place_of_another(tmp_path):
    writer = Writer(tmp_path / "shapes.cgrec")
    for elements in (1, 2, 3):  # eager calls with three shapes
        slot = writer._writer.add_slot(writer._session, "x", "float32", [elements])
        writer._writer.append(slot, 1, numpy.full(elements, elements, "float32"), step=elements)
    for name in ("a/b", "a_b", ".."):
        writer.add(name, 1, numpy.zeros(1, "float32"), step=9)
    r = cgdebug.open(writer.close())
    r.export("npz", tmp_path / "npz")
    with numpy.load(tmp_path / "npz" / "replay-000001.npz") as arrays:
        assert set(arrays) == {"x", "x@float32[2]", "x@float32[3]", "a/b", "a_b", ".."}
        assert arrays["x@float32[3]"].tolist() == [3, 3, 3]
    r.export("npy", tmp_path / "npy" / "inner")
    assert [p.name for p in (tmp_path / "npy").iterdir()] == ["inner"]
    folders = {p.name for p in (tmp_path / "npy" / "inner").iterdir()}
    assert folders == {"x", "x@float32[2]", "x@float32[3]", "a%2Fb", "a_b", "%2E%2E"}
    r.export("safetensors", tmp_path / "st")
    assert cgdebug.open(tmp_path / "st")["a_b"][1].step is None, "it is of several steps"


def test_no_name_of_a_probe_leads_out_of_an_npz(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    names = ("/x", "../../x", "a/../b", "%2Fx", "a/b", "./c", "a\\b")
    for value, name in enumerate(names):
        writer.add(name, 1, numpy.float32([value]))
    cgdebug.open(writer.close()).export("npz", tmp_path / "npz")
    with numpy.load(tmp_path / "npz" / "replay-000001.npz") as arrays:
        assert {arrays[name].item() for name in arrays} == set(range(len(names)))
        assert "a/b" in arrays
        for member in arrays.zip.namelist():
            assert not member.startswith("/") and "\\" not in member
            assert not {".", "..", ""} & set(member.split("/"))


def test_a_probe_may_be_called_as_the_metadata_of_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    writer = Writer(tmp_path / "a.cgrec")
    for value, name in enumerate(("__metadata__", "__metadata__@", "x")):
        writer.add(name, 1, numpy.float32([value]))
    r = cgdebug.open(writer.close())
    r.export("safetensors", tmp_path / "st")
    loaded = safetensors.load_file(tmp_path / "st" / "replay-000001.safetensors")
    assert sorted(one.item() for one in loaded.values()) == [0, 1, 2]
    back = cgdebug.open(tmp_path / "st")
    assert back["__metadata__"][1].numpy().tolist() == [0] and r.diff(back, bitwise=True).ok


@pytest.fixture
def cli():
    environment = os.environ | {"CGDEBUG_PYTHON": sys.executable}
    return lambda *words: subprocess.run(
        [find_program("cgdebug-cli"), *map(str, words)],
        capture_output=True,
        text=True,
        env=environment,
    )


def test_an_export_of_less_than_was_recorded_exits_3_and_its_files_say_so(tmp_path, cli):
    writer = Writer(tmp_path / "gap.cgrec")
    writer.add("x", 1, numpy.float32([1]))
    writer.lose("x", 1, 1)
    writer.add("x", 3, numpy.float32([3]))
    gap = writer.close()
    whole = write(tmp_path / "whole.cgrec", replays=3)
    for source, code in ((gap, 3), (whole, 0)):
        out = tmp_path / f"out{code}"
        assert cli("export", source, "--to", "safetensors", "-o", out).returncode == code
        assert cli("export", source, "--to", "csv", "-o", f"{out}.csv").returncode == code
        assert cli("check", out).returncode == code


def test_a_folder_of_an_export_that_lost_a_file_or_a_rank_is_not_complete(tmp_path, cli):
    folder = tmp_path / "both"
    for rank in (0, 1):
        write(folder / f"r{rank}.cgrec", replays=3, rank=rank)
    out = tmp_path / "out"
    cgdebug.open(folder).export("safetensors", out)
    assert cli("check", out).returncode == 0
    files = sorted(out.iterdir())
    for lost in (files[:1], files[-1:], files[1:2], [f for f in files if "rank-1" in f.name]):
        kept = {file: file.read_bytes() for file in lost}
        for file in lost:
            file.unlink()
        checked = cli("check", out)
        assert checked.returncode == 3 and "not here" in checked.stdout + checked.stderr, lost
        for file, content in kept.items():
            file.write_bytes(content)
    assert cli("check", out).returncode == 0


def test_an_export_says_that_statistics_have_no_place_in_it(tmp_path, cli):
    writer = Writer(tmp_path / "a.cgrec")
    writer.add("x", 1, numpy.float32([1]))
    slot = writer._writer.add_slot(writer._session, "y", "float32", [1])
    writer._writer.append(slot, 1, numpy.float32([numpy.nan]), stats_only=True)
    path = writer.close()
    assert cli("check", path).returncode == 1
    cli("export", path, "--to", "safetensors", "-o", tmp_path / "st")
    checked = cli("check", tmp_path / "st")
    assert checked.returncode == 3 and "only statistics" in checked.stdout + checked.stderr


def test_a_probe_may_be_called_as_an_argument_of_numpy(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    for value, name in enumerate(("file", "allow_pickle", "args")):
        writer.add(name, 1, numpy.float32([value]))
    cgdebug.open(writer.close()).export("npz", tmp_path / "npz")
    with numpy.load(tmp_path / "npz" / "replay-000001.npz") as arrays:
        found = {name: arrays[name].item() for name in arrays}
    assert found == {"file": 0, "allow_pickle": 1, "args": 2}


def test_a_dtype_that_cannot_be_read_is_said_and_is_never_taken_for_another(tmp_path):
    header = {
        "odd": {"dtype": "U64", "shape": [8], "data_offsets": [0, 64]},
        "good": {"dtype": "F32", "shape": [1], "data_offsets": [64, 68]},
    }
    text = json.dumps(header).encode()
    file = tmp_path / "m.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(64) + struct.pack("<f", 3))
    r = cgdebug.open(file)
    for read in (lambda s: s.numpy(), lambda s: s.values(), lambda s: s.dtype, lambda s: s.tensor):
        with pytest.raises(
            ValueError, match="'odd' is of dtype U64, which this version cannot read"
        ):
            read(r["odd"][1])
    for format in ("csv", "npz", "safetensors"):
        assert r.export(format, tmp_path / format) == [
            "not in it: odd, whose dtype U64 this version cannot read"
        ]
    assert r.export("npy", tmp_path / "npy", "good") == []
    with pytest.raises(RecordingError, match="not in it: odd"):
        r.export("npy", tmp_path / "odd", "odd")


def test_damage_is_reported_and_the_rest_is_exported(tmp_path, path):
    segment = next(pathlib.Path(path).glob("segment*"))
    data = bytearray(segment.read_bytes())
    data[data.index(numpy.full(6, 2, "float32").tobytes())] ^= 1  # of x@2
    segment.write_bytes(data)
    r = cgdebug.open(path)
    (remark,) = r.export("npz", tmp_path / "npz")
    assert remark.startswith("not in it: 1 damaged, the first: ") and "is damaged" in remark
    with numpy.load(tmp_path / "npz" / "replay-000002.npz") as arrays:
        assert set(arrays) == {"y"}
    with numpy.load(tmp_path / "npz" / "replay-000003.npz") as arrays:
        assert set(arrays) == {"x", "y"}
    assert (
        importlib.import_module("cgdebug.export").main(
            [path, "--to", "npz", "-o", str(tmp_path / "again")]
        )
        == 3
    )


def test_safetensors_know_what_the_recording_lacked(tmp_path, cli):
    writer = Writer(tmp_path / "a.cgrec")
    writer.add("x", 1, numpy.float32([1]))
    writer.lose("x", 2, after_replay=1)
    cgdebug.open(writer.close()).export("safetensors", tmp_path / "out")
    result = cli("check", tmp_path / "out")
    assert result.returncode == 3, result.stdout
    assert "the recording that was exported is not complete: " in result.stdout


def test_no_probe_takes_the_place_of_a_dtype_in_npz(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    writer.add("b", 1, numpy.uint16([0x3F80]), dtype="bfloat16")
    writer.add("b.dtype", 1, numpy.float32([7]))
    cgdebug.open(writer.close()).export("npz", tmp_path / "npz")
    with numpy.load(tmp_path / "npz" / "replay-000001.npz") as arrays:
        assert arrays["b.dtype"].tolist() == [7] and str(arrays["b@dtype"]) == "bfloat16"


def test_numpy_formats_never_change_a_dtype_silently(tmp_path):
    r = cgdebug.open(mixed(tmp_path))
    r.export("npz", tmp_path / "npz")
    with numpy.load(tmp_path / "npz" / "replay-000001.npz") as arrays:
        assert arrays["b"].tolist() == [0x3F80, 0x4000] and str(arrays["b@dtype"]) == "bfloat16"
        assert arrays["i"].tolist() == [[1, 2]] and "i@dtype" not in arrays
    r.export("npy", tmp_path / "npy", upcast="float32")
    array = numpy.load(tmp_path / "npy" / "b" / "replay-000001.npy")
    assert array.dtype == "float32" and array.tolist() == [1, 2]
    r.export("npy", tmp_path / "bits", "b")
    assert (tmp_path / "bits" / "b" / "replay-000001.dtype").read_text() == "bfloat16\n"


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
def test_no_rank_is_null_as_in_sql(tmp_path, path, format):
    r = cgdebug.open(path)
    r.export(format, tmp_path / "out")
    if format == "csv":
        ranks = {row["rank"] or None for row in csv.DictReader((tmp_path / "out").open())}
    elif format == "jsonl":
        lines = (tmp_path / "out").read_text().splitlines()
        ranks = {json.loads(line)["rank"] for line in lines}
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        ranks = set(parquet.read_table(tmp_path / "out")["rank"].to_pylist())
    assert ranks == {row.rank for row in r.sql("SELECT rank FROM v_snapshots")} == {None}


def test_statistics_as_csv_and_json_lines(tmp_path, path):
    r = cgdebug.open(path)
    r.export("csv", tmp_path / "s.csv", "y")
    rows = list(csv.DictReader((tmp_path / "s.csv").open()))
    assert [row["replay"] for row in rows] == ["1", "2", "3"] and rows[2]["abs_max"] == "3.0"
    r.export("jsonl", tmp_path / "s.jsonl", replays=(2, 2))
    lines = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert [(line["probe"], line["replay"], line["step"]) for line in lines] == [
        ("x", 2, 102),
        ("y", 2, 102),
    ]


def test_perfetto_has_counters_and_marks_nonfinite(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    writer.add("x", 1, numpy.float32([1]), timestamp_ns=1_000)
    writer.add("x", 2, numpy.float32([numpy.nan]), timestamp_ns=2_000)
    cgdebug.open(writer.close()).export("perfetto", tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {"ph": "C", "name": "x abs_max", "pid": 0, "ts": 1.0, "args": {"abs_max": 1.0}} in events
    assert [e["name"] for e in events if e["ph"] == "i"] == ["x: 1 NaN or Inf"]


def test_perfetto_has_a_track_for_each_rank(tmp_path):
    for rank in (0, 1):
        write(tmp_path / f"r{rank}.cgrec", replays=1, rank=rank)
    cgdebug.open(tmp_path).export("perfetto", tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events if event["ph"] == "C"} == {0, 1}


def of_a_part(folder):
    writer = Writer(folder / "p.cgrec")
    slot = writer._writer.add_slot(writer._session, "w", "float32", [8], part="rows:0:8 of [64]")
    writer._writer.append(slot, 1, numpy.ones(8, "float32"), timestamp_ns=1_000)
    writer.add("x", 1, numpy.ones(2, "float32"), timestamp_ns=1_000)
    return cgdebug.open(writer.close())


def test_every_curve_of_a_part_says_which_part_it_is_of(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    r = of_a_part(tmp_path)
    r.export("perfetto", tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    part = "w (part rows:0:8 of [64])"
    assert {e["name"] for e in events if e["ph"] == "C"} == {
        f"{name} {what}" for name in (part, "x") for what in ("abs_max", "mean")
    }
    r.export("tensorboard", tmp_path / "tb")
    written = accumulator.EventAccumulator(str(tmp_path / "tb" / "p"))
    written.Reload()
    tags = written.Tags()
    assert {tag.rpartition("/")[0] for tag in tags["scalars"]} == {part, "x"}
    assert set(tags["histograms"]) == {f"{part}/values", "x/values"}


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """(recording, trace): a job that calls a probe before, within and after a profile."""
    folder = tmp_path_factory.mktemp("profiled")
    job = """
import torch, cgdebug
from torch.profiler import ProfilerActivity, profile
p = cgdebug.CudaGraphTensorProbe("x", [cgdebug.TensorRecord(to="disk")], mode="always")
p(torch.zeros(1))
torch.ones(1).sum().item()
import time; time.sleep(0.05)
with profile(activities=[ProfilerActivity.CPU]) as prof:
    for i in range(3):
        p(torch.full((4,), float("nan") if i == 1 else i + 1.0))
prof.export_chrome_trace("t.json")
time.sleep(0.05)
p(torch.zeros(1))
"""
    environment = {key: value for key, value in os.environ.items() if key != "CGDEBUG"}
    runtime = folder / "run"
    runtime.mkdir(mode=0o700)
    environment.update(CGDEBUG_SOCKET=str(runtime / "d.sock"), CGDEBUG_DIR=str(folder))
    environment["CGDEBUG_DAEMON"] = find_program("cgdebug-daemon")
    command = [find_program("cgdebug-cli"), "run", "-o", "a.cgrec", "--", sys.executable, "-c", job]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    subprocess.run(
        [find_program("cgdebug-cli"), "daemon", "stop", "--force"],
        env=environment,
        capture_output=True,
    )
    assert ran.returncode == 0, ran.stderr
    (folder / "t.json.gz").write_bytes(gzip.compress((folder / "t.json").read_bytes()))
    return folder / "a.cgrec", folder / "t.json"


def test_snapshots_lie_among_the_events_of_torch_where_the_probe_was_called(profiled, tmp_path):
    path, trace = profiled
    torchs = json.loads(trace.read_text())
    remarks = cgdebug.open(path).export("perfetto", tmp_path / "both.json", trace=trace)
    assert remarks == [f"not in it: 2 snapshots of other times or ranks than {trace}"]
    both = json.loads((tmp_path / "both.json").read_text())
    ours = both["traceEvents"][len(torchs["traceEvents"]) :]
    assert {**both, "traceEvents": None} == {**torchs, "traceEvents": None}
    assert both["traceEvents"][: len(torchs["traceEvents"])] == torchs["traceEvents"]
    calls = [one for one in torchs["traceEvents"] if one.get("name") == "cgdebug::observe"]
    marks = [one for one in ours if one.get("cat") == "cgdebug"]
    assert [one["args"]["replay"] for one in marks] == [1, 2, 3]  # of a shape of its own
    # In us. torch converts the ticks of a counter, and such a conversion can be off by some 0.1 us.
    for call, mark in zip(calls, marks, strict=True):
        assert call["ts"] - 1 <= mark["ts"] <= call["ts"] + call["dur"] + 1
    assert [one["args"].get("abs_max") for one in marks] == [1.0, None, 3.0]
    assert [one["name"] for one in ours if one["ph"] == "i" and one["s"] == "p"] == [
        marks[0]["name"] + ": 4 NaN or Inf"
    ]
    taken = {one.get("pid") for one in torchs["traceEvents"]}
    assert not taken & {one["pid"] for one in ours}


def test_a_compressed_trace_is_joined_from_the_command_line(profiled, tmp_path):
    path, trace = profiled
    command = [find_program("cgdebug-cli"), "export", str(path), "--to", "perfetto", "-o"]
    environment = {**os.environ, "CGDEBUG_PYTHON": sys.executable}
    plain = tmp_path / "plain.json"
    packed = tmp_path / "packed.json"
    for output, of in ((plain, trace), (packed, f"{trace}.gz")):
        done = subprocess.run(
            [*command, str(output), "--trace", str(of)],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0 and "2 snapshots of other times" in done.stderr, done.stderr
    marks = [
        [one for one in json.loads(file.read_text())["traceEvents"] if one.get("cat") == "cgdebug"]
        for file in (plain, packed)
    ]
    assert len(marks[0]) == len(marks[1]) == 3


def test_a_trace_of_another_run_or_rank_is_refused(profiled, tmp_path, path):
    recording, trace = profiled
    with pytest.raises(NothingMatchedError, match="are both of the same run?"):
        cgdebug.open(path).export("perfetto", tmp_path / "no.json", trace=trace)
    content = json.loads(trace.read_text())
    writer = Writer(tmp_path / "r1.cgrec", rank=1)
    middle = content["baseTimeNanoseconds"] + int(
        next(e["ts"] for e in content["traceEvents"] if e.get("name") == "cgdebug::observe") * 1000
    )
    writer.add("x", 1, numpy.float32([1]), timestamp_ns=middle)
    rank_1 = cgdebug.open(writer.close())
    rank_1.export("perfetto", tmp_path / "yes.json", trace=trace)
    other = tmp_path / "rank0.json"
    base_us = content["baseTimeNanoseconds"] / 1000
    bare = [
        {**one, "ts": one["ts"] + base_us} for one in content["traceEvents"] if one.get("ph") == "X"
    ]
    other.write_text(json.dumps({"traceEvents": bare}))
    rank_1.export("perfetto", tmp_path / "bare.json", trace=other)
    assert len(json.loads((tmp_path / "bare.json").read_text())["traceEvents"]) > len(bare)
    other.write_text(json.dumps({**content, "distributedInfo": {"rank": 0}}))
    with pytest.raises(NothingMatchedError, match="time and rank"):
        rank_1.export("perfetto", tmp_path / "no.json", trace=other)
    assert not (tmp_path / "no.json").exists()
    for text, says in (
        ("{", "is not a trace of torch.profiler"),
        ("[]", "is not a trace of torch.profiler"),
        ('{"traceEvents": [{"ph": "X"}]}', "is not a trace of torch.profiler"),
        ('{"traceEvents": []}', "its profile is empty"),
    ):
        other.write_text(text)
        with pytest.raises(RecordingError, match=says):
            cgdebug.open(recording).export("perfetto", tmp_path / "no.json", trace=other)
    header = gzip.compress(b"")[:10]
    (tmp_path / "damaged.json.gz").write_bytes(header + b"\xff" * 20)  # no such kind of block
    with pytest.raises(RecordingError, match="is not a trace of torch.profiler"):
        cgdebug.open(recording).export(
            "perfetto", tmp_path / "no.json", trace=tmp_path / "damaged.json.gz"
        )
    with pytest.raises(RecordingError, match="No such file"):
        cgdebug.open(recording).export("perfetto", tmp_path / "no.json", trace="nowhere.json")
    with pytest.raises(ValueError, match="perfetto only"):
        cgdebug.open(recording).export("csv", tmp_path / "no.csv", trace=trace)


def test_annotations_of_kernels_say_what_their_probes_hold(tmp_path):
    """The keys and forms are those of torch.cuda.graph_annotations.get_kernel_annotations()."""
    writer = Writer(tmp_path / "a.cgrec")
    for replay, value in ((1, 2.0), (2, numpy.nan), (3, -5.0)):
        writer.add("x", replay, numpy.float32([value]))
    writer.add("y", 1, numpy.float32([0]))
    of_x, of_y, other = {"name": "cgdebug probe x"}, {"name": "cgdebug probe y"}, {"name": "attn"}
    given = {(1 << 32) | 1: [of_x], (1 << 32) | 2: of_y, (1 << 32) | 3: [other, of_x]}
    named = cgdebug.open(writer.close()).kernel_annotations(given)
    held = {
        "cgdebug snapshots": 3,
        "cgdebug abs_max": 5.0,
        "cgdebug first NaN or Inf": "replay 2",
    }
    assert named[(1 << 32) | 1] == [of_x, held]
    assert named[(1 << 32) | 2][1]["cgdebug first NaN or Inf"] == "none in 1 snapshots"
    assert named[(1 << 32) | 3] == [other, of_x, held]
    assert given[(1 << 32) | 1] == [of_x]


def test_tensorboard_reads_the_scalars(tmp_path, path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    cgdebug.open(path).export("tensorboard", tmp_path / "tb")
    events = accumulator.EventAccumulator(str(tmp_path / "tb" / "a"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("y/abs_max")] == [
        (101, 1),
        (102, 2),
        (103, 3),
    ]


def test_parquet_has_a_row_per_snapshot(tmp_path, path):
    pyarrow = pytest.importorskip("pyarrow.parquet")
    r = cgdebug.open(path)
    r.export("parquet", tmp_path / "s.parquet")
    rows = pyarrow.read_table(tmp_path / "s.parquet").to_pylist()
    assert [(row["probe"], row["replay"], row["step"]) for row in rows] == [
        (probe, replay, 100 + replay) for probe in ("x", "y") for replay in (1, 2, 3)
    ]
    for row in rows:
        stats = r[row["probe"]][row["replay"]].stats
        assert row["abs_max"] == stats.abs_max and row["count"] == stats.count
        assert row["dtype"] == "float32" and row["shape"] == list(r[row["probe"]].shape)


def test_parquet_keeps_what_is_not_finite_and_steps_that_were_not_set(tmp_path):
    pyarrow = pytest.importorskip("pyarrow.parquet")
    writer = Writer(tmp_path / "a.cgrec")
    writer.add("x", 1, numpy.float32([1, numpy.inf]))
    writer.add("x", 2, numpy.float32([numpy.nan, 1]), step=5)
    cgdebug.open(writer.close()).export("parquet", tmp_path / "s.parquet")
    rows = pyarrow.read_table(tmp_path / "s.parquet").to_pylist()
    assert [row["step"] for row in rows] == [None, 5]
    assert [(row["pos_inf"], row["nan"], row["nonfinite"]) for row in rows] == [
        (1, 0, 1),
        (0, 1, 1),
    ]


def test_what_writes_parquet_is_named_when_it_is_missing(tmp_path, path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=f"{sys.executable} -m pip install pyarrow"):
        cgdebug.open(path).export("parquet", tmp_path / "s.parquet")


@pytest.mark.parametrize("format", ["npz", "npy"])
def test_what_writes_arrays_is_named_when_it_is_missing(tmp_path, path, format, monkeypatch):
    r = cgdebug.open(path)
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ImportError, match="-m pip install numpy"):
        r.export(format, tmp_path / "out")


def test_a_python_without_the_package_is_told_what_to_type(tmp_path, path):
    python = tmp_path / "bare-python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    words = [find_program("cgdebug-cli"), "export", path, "--to", "csv", "-o", "-"]
    bare = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CGDEBUG_PYTHON": str(python)},
    )
    assert bare.returncode == 2 and bare.stdout == ""
    assert bare.stderr.startswith("cgdebug: export needs Python with the package cgdebug, and ")
    assert "No module named 'cgdebug'" in bare.stderr and "CGDEBUG_PYTHON=" in bare.stderr
    good = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CGDEBUG_PYTHON": sys.executable},
    )
    assert good.returncode == 0 and len(good.stdout.splitlines()) == 7, good.stderr


def test_losses_of_many_probes_are_one_remark(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    for i in range(11):
        writer.add(f"x{i}", 1, numpy.float32([1]))
        writer.lose(f"x{i}", i + 1, after_replay=1)
    r = cgdebug.open(writer.close())
    (missing,) = r.missing
    assert "lacks 1 to 11 snapshots of each of 11 probes, the first of x0" in missing
    remarks = r.export("csv", tmp_path / "a.csv")
    assert remarks == [f"not in it: {missing}"]


def test_missing_snapshots_are_reported_and_nothing_is_overwritten(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    writer.add("x", 1, numpy.float32([1]), stats_only=True)
    writer.lose("x", 1, after_replay=1)
    r = cgdebug.open(writer.close())
    remarks = r.export("safetensors", tmp_path / "out")
    assert "lacks 1 snapshot of x" in remarks[0] and "1 snapshots, of which only" in remarks[1]
    with pytest.raises(RecordingError, match="add: -f"):
        r.export("safetensors", tmp_path / "out")
    r.export("safetensors", tmp_path / "out", force=True)
    with pytest.raises(RecordingError, match="no probe"):
        r.export("csv", tmp_path / "s.csv", "nothing*")
    with pytest.raises(ValueError, match="no format"):
        r.export("xlsx", tmp_path / "s.xlsx")


def test_module_is_the_command_lines_export(tmp_path, path):
    done = subprocess.run(
        [sys.executable, "-m", "cgdebug.export", path, "--to", "csv", "-o", "-", "--probes", "y"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 4, done.stderr
    failed = subprocess.run(
        [sys.executable, "-m", "cgdebug.export", path + "x", "--to", "csv", "-o", "-"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert failed.returncode == 2 and failed.stderr.startswith("cgdebug: ")


@pytest.mark.parametrize(
    "words, text",
    [
        (["--replays", "7..9"], "no snapshot in replays 7..9, it has some in 1..3. Type for"),
        (["--probes", "nothing*"], "no probe of "),
        (["--ranks", "3"], "no probe of rank 3"),
    ],
)
def test_what_selects_nothing_says_so_and_writes_nothing(tmp_path, path, words, text):
    done = subprocess.run(
        [sys.executable, "-m", "cgdebug.export", path, "--to", "csv", "-o", tmp_path / "s.csv"]
        + words,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4 and text in done.stderr, done.stderr
    assert not (tmp_path / "s.csv").exists()


def test_a_recording_without_a_snapshot_is_told_from_one_without_the_replays(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    writer._writer.add_slot(writer._session, "x", "float32", [2])
    r = cgdebug.open(writer.close())
    with pytest.raises(NothingMatchedError, match="has no snapshot. Type: cgdebug-cli info"):
        r.export("csv", tmp_path / "s.csv")


def test_a_closed_pipe_ends_it_silently(tmp_path):
    path = write(tmp_path / "long.cgrec", replays=2000)
    line = f"{sys.executable} -m cgdebug.export {path} --to jsonl -o - | head -1 >/dev/null"
    done = subprocess.run(
        ["bash", "-c", line + "; exit ${PIPESTATUS[0]}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (141, "")


def test_a_name_too_long_for_a_folder_is_cut_and_stays_its_own(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    names = ["層" * 84 + end for end in ("a", "b")]  # 253 bytes, 757 as in a URL
    for value, name in enumerate(names):
        writer.add(name, 1, numpy.float32([value]))
    cgdebug.open(writer.close()).export("npy", tmp_path / "out")
    found = [numpy.load(file).item() for file in sorted((tmp_path / "out").glob("*/*.npy"))]
    assert sorted(found) == [0, 1]


def two_jobs(path):
    """A recording in which replay 1 of x is 1 in one job and 2 in the other."""
    one = Writer(path)
    one.add("x", 1, numpy.float32([1]))
    other = one._writer.add_session("f" * 32, "other", -1)
    slot = one._writer.add_slot(other, "x", "float32", (1,))
    one._writer.append(slot, 1, numpy.float32([2]))
    return one.close()


def test_two_jobs_come_back_from_safetensors(tmp_path):
    cgdebug.open(two_jobs(tmp_path / "a.cgrec")).export("safetensors", tmp_path / "out")
    back = cgdebug.open(tmp_path / "out")
    values = {job: back.probe("x", session=job)[1].values().item() for job in ("job", "other")}
    assert values == {"job": 1, "other": 2}


def test_two_jobs_are_told_apart_in_statistics(tmp_path):
    r = cgdebug.open(two_jobs(tmp_path / "a.cgrec"))
    r.export("csv", tmp_path / "s.csv")
    rows = list(csv.DictReader((tmp_path / "s.csv").open()))
    assert [(row["session"], row["max"]) for row in rows] == [("job", "1.0"), ("other", "2.0")]
    r.export("perfetto", tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {"job/x mean", "other/x mean"} < {event["name"] for event in events}


def test_assert_recordings_close(tmp_path, path):
    same = write(tmp_path / "b.cgrec", replays=3)
    assert testing.assert_recordings_close(path, same).ok
    other = write(tmp_path / "c.cgrec", replays=3, factor=2)
    with pytest.raises(AssertionError, match="first difference: replay 1, y") as failure:
        testing.assert_recordings_close(path, other)
    assert f"cgdebug-cli diff {path} {other}" in str(failure.value)
    testing.assert_recordings_close(path, other, "x")
    ranks = [
        cgdebug.open(write(tmp_path / name, replays=1, factor=n, rank=0), rank=0)
        for n, name in enumerate(("d.cgrec", "e.cgrec"))
    ]
    with pytest.raises(AssertionError, match="--ranks 0"):
        testing.assert_recordings_close(*ranks)
    with pytest.raises(AssertionError) as failure:
        testing.assert_recordings_close(
            path, other, "y", "!x", rtol=0.25, equal_nan=True, replays=(2, 3), align="step"
        )
    assert str(failure.value).endswith(
        f"diff {path} {other} y '!x' --rtol 0.25 --equal-nan --replays 2..3 --align step"
    )
    with pytest.raises(AssertionError, match="inconclusive"):
        testing.assert_recordings_close(path, write(tmp_path / "d.cgrec", replays=2))


def test_plugin_keeps_the_recording_of_a_failed_test_only(tmp_path, path):
    (tmp_path / "test_it.py").write_text(
        "import shutil\n"
        "def write(to):\n"
        f"    shutil.copytree({str(path)!r}, to)\n"
        "def test_good(cgdebug_recording):\n"
        "    write(cgdebug_recording)\n"
        "def test_bad(cgdebug_recording, tmp_path):\n"
        "    write(cgdebug_recording)\n"
        "    write(tmp_path / 'more' / cgdebug_recording.name)\n"
        "    assert False\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "cgdebug.pytest_plugin", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    (kept,) = (tmp_path / "cgdebug-failed").glob("test_it.py-test_bad-*/test_bad.cgrec")
    kept = kept.relative_to(tmp_path)
    assert f"see: cgdebug-cli check {kept}" in done.stdout, done.stdout
    assert [p.name for p in (tmp_path / "cgdebug-failed").iterdir()] == [kept.parent.name]
    values = cgdebug.open(tmp_path / kept)["x"][1].numpy()
    assert numpy.array_equal(values, cgdebug.open(path)["x"][1].numpy())
    assert cgdebug.open(tmp_path / kept.parent / "more" / kept.name).complete


def test_an_interrupted_export_to_tensorboard_does_not_wait_for_its_thread(tmp_path):
    pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    from cgdebug._read import _tensorboard

    with pytest.raises(KeyboardInterrupt), _tensorboard.Writer(tmp_path) as writer:
        # As an interrupt leaves it that comes between the lock and the code that gives it back.
        writer._file._async_writer._byte_queue.mutex.acquire()
        raise KeyboardInterrupt
