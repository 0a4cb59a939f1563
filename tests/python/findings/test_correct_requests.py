"""`why` names no constant, and no memory, of programs that are right (correct_requests.py,
correct_memory.py)."""

import pathlib

import correct_memory
import pytest
from serve_programs import Programs

import cgdebug
from conftest import ROOT

REQUESTS = (
    *("bert_trained", "bert_evaluated", "gpt2_trained", "gpt2_request", "t5_request"),
    *("bart_request", "beams", "beams_of_t5", "static_cache_request", "mamba_request"),
    *("whisper_trained", "clip_trained", "clip_classifies", "clip_keeps_its_classes"),
    *("low_rank_llama",),
)
ASTRAY = {"frozen_input", "unread", "no_gradient", "not_stepped"}
OF_MEMORY = {
    "bad_index",
    "foreign_write",
    "late_read",
    "lost_write",
    "overwritten",
    "padding_leak",
    "zero_weights",
}


@pytest.fixture(scope="module")
def requests(tmp_path_factory):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    script = ROOT / "tests/python/programs/correct_requests.py"
    server = Programs(script, tmp_path_factory.mktemp("programs"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    server = Programs(pathlib.Path(correct_memory.__file__), tmp_path_factory.mktemp("programs"))
    yield server
    server.close()


@pytest.mark.parametrize("name", REQUESTS)
def test_no_cause_is_named_in_a_request_that_is_right(daemon, requests, tmp_path, name):
    path = tmp_path / "a.cgrec"
    requests.record(path, name)
    causes = cgdebug.why(path)
    wrong = [one for one in causes if one.kind in ASTRAY | OF_MEMORY or one.level == "shown"]
    assert wrong == [], causes
    assert len(cgdebug.open(path)) >= 3


@pytest.mark.parametrize("name", correct_memory.PROGRAMS)
def test_no_fault_of_memory_is_named_where_there_is_none(daemon, programs, tmp_path, name):
    path = tmp_path / "a.cgrec"
    programs.record(path, name)
    causes = cgdebug.why(path)
    assert [one for one in causes if one.kind in OF_MEMORY or one.level == "shown"] == [], causes
    if "measured" in name or "kept" in name:
        assert "frozen_input" not in [one.kind for one in causes], causes
