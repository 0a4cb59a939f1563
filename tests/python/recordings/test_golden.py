"""The recordings in tests/data: what they hold and what cgdebug-cli says of them stays the same."""

import importlib.util
import json
import shutil

import pytest

from conftest import ROOT

DATA = ROOT / "tests" / "data"
NAMES = sorted(path.stem for path in DATA.glob("*.json"))

_spec = importlib.util.spec_from_file_location("make_golden", DATA / "make.py")
make_golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_golden)


@pytest.fixture
def golden(tmp_path, request):
    """A copy, because readers may put a catalogue beside a recording."""
    shutil.copytree(DATA / f"{request.param}.cgrec", tmp_path / f"{request.param}.cgrec")
    expected = json.loads((DATA / f"{request.param}.json").read_text(encoding="utf-8"))
    return tmp_path / f"{request.param}.cgrec", expected


def test_every_kind_of_recording_is_here():
    assert sorted(make.__name__ for make in make_golden.RECORDINGS) == NAMES


@pytest.mark.parametrize("golden", NAMES, indirect=True)
def test_python_reads_what_was_written(golden):
    path, expected = golden
    found = json.loads(json.dumps(make_golden.contents(path)))
    assert found == expected["recording"]


@pytest.mark.parametrize("golden", NAMES, indirect=True)
def test_the_command_line_says_the_same(golden):
    path, expected = golden
    for word, answer in make_golden.ask(path).items():
        assert answer == expected[word], word
