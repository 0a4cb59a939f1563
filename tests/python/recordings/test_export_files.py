"""The files that an export makes: their form, and that they are whole or not there."""

import json
import os
import struct
import subprocess
import sys

import numpy
import pytest

import cgdebug
from cgdebug._shared._output_files import replacing
from conftest import find_program
from written_recordings import Writer


def test_the_header_of_safetensors_ends_on_eight_bytes_whatever_the_names(tmp_path):
    for length in range(1, 9):
        writer = Writer(tmp_path / f"{length}.cgrec")
        writer.add("n" * length, 1, numpy.ones(2, "float32"))
        cgdebug.open(writer.close()).export("safetensors", tmp_path / f"out{length}")
        (file,) = (tmp_path / f"out{length}").iterdir()
        (header,) = struct.unpack_from("<Q", file.read_bytes())
        assert header % 8 == 0, length


def test_an_export_that_fails_half_way_leaves_no_file_and_the_one_that_was_there(tmp_path):
    whole = tmp_path / "x.npz"
    for before in (None, b"before"):
        if before is not None:
            whole.write_bytes(before)
        with pytest.raises(OSError, match="no room"), replacing(whole) as file:
            file.write(b"half")
            raise OSError("no room")
        names = [path.name for path in tmp_path.iterdir()]
        assert names == ([] if before is None else ["x.npz"])
    assert whole.read_bytes() == b"before"


def test_probes_of_one_name_are_told_apart_in_what_was_exported(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    for value in (1, 2):
        writer._slots.clear()  # another probe of this name
        for replay in (1, 2):
            writer.add("x", replay, numpy.full(2, value, "float32"))
    cgdebug.open(writer.close()).export("safetensors", tmp_path / "out")
    with cgdebug.open(tmp_path / "out") as exported:
        values = [[one.numpy()[0] for one in series] for series in exported.select("x")]
        assert values == [[1, 1], [2, 2]] and exported.check().ok


def test_an_export_answers_with_json_too(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    writer.add("x", 1, numpy.ones(2, "float32"))
    path = writer.close()

    def export(*words):
        done = subprocess.run(
            [find_program("cgdebug-cli"), "--json", "export", path, "--to", "csv", *words],
            capture_output=True,
            text=True,
            env={**os.environ, "CGDEBUG_PYTHON": sys.executable},
        )
        return done.returncode, done.stdout

    out = str(tmp_path / "out.csv")
    code, text = export("-o", out)
    assert code == 0
    assert json.loads(text) == {
        "schema": 1,
        "output": out,
        "format": "csv",
        "remarks": [],
        "complete": True,
    }
    code, text = export("-o", out)
    answer = json.loads(text)
    assert code == answer["exit_code"] == 2 and "exists" in answer["error"]
    code, text = export("-o", "-")
    assert code == 0 and text.startswith("probe,rank,"), "the export itself"
