"""`why` shows no cause in programs that are right (correct_training.py, random_programs.py). A few of them
run always; all with CGDEBUG_TEST_PROGRAMS=all."""

import os
import pathlib

import correct_numbers
import correct_training
import pytest
import random_programs
from serve_programs import Programs

import cgdebug

FEW = (
    *("gan", "low_rank", "decode_with_a_cache", "mixture_of_experts", "lstm"),
    *("continuous_batching", "missing_values", "mean_teacher", "clamped_half"),
)
NOT_SAID = {"mean_teacher": "no_gradient", "clamped_half": "near_overflow"}
WANTS_ALL = os.environ.get("CGDEBUG_TEST_PROGRAMS") == "all"


@pytest.fixture(scope="module")
def programs_of(tmp_path_factory):
    servers = {}

    def start(script):
        if script not in servers:
            folder = tmp_path_factory.mktemp(script.__name__)
            servers[script] = Programs(pathlib.Path(script.__file__), folder)
        return servers[script]

    yield start
    for server in servers.values():
        server.close()


def causes_of(programs, tmp_path, name):
    """The recording of a program, and its causes, of which none is shown."""
    path = tmp_path / "a.cgrec"
    programs.record(path, name)
    causes = cgdebug.why(path)
    alarms = [one for one in causes if one.level == "shown" or one.kind == "overwritten"]
    assert alarms == [], causes
    assert causes.ok, causes
    return path, causes


@pytest.mark.parametrize("name", correct_training.PROGRAMS if WANTS_ALL else FEW)
def test_no_cause_is_shown_in_a_training_that_is_right(daemon, cli, programs_of, tmp_path, name):
    path, causes = causes_of(programs_of(correct_training), tmp_path, name)
    assert cli("why", str(path)).returncode == 0
    assert cli("check", str(path)).returncode == 0
    assert cli("ops", str(path)).returncode in (0, 3)
    assert NOT_SAID.get(name) not in [one.kind for one in causes], causes
    if name == "continuous_batching":
        assert (causes.first.kind, causes.first.level) == ("masked_row", "consistent")
        assert "it is left out by fwd/Pool/nan_to_num_0" in causes.first.text, causes


@pytest.mark.parametrize("name", correct_numbers.PROGRAMS)
def test_no_cause_is_shown_where_numbers_resemble_faults(daemon, cli, programs_of, tmp_path, name):
    path, _ = causes_of(programs_of(correct_numbers), tmp_path, name)
    assert cli("check", str(path)).returncode == 0


@pytest.mark.parametrize(
    "name", random_programs.PROGRAMS if WANTS_ALL else random_programs.PROGRAMS[:1]
)
def test_random_models_do_not_grow_to_an_overflow(daemon, programs_of, tmp_path, name):
    path = tmp_path / "a.cgrec"
    programs_of(random_programs).record(path, name)
    causes = cgdebug.why(path)
    assert any("grow to an overflow" in text for text in causes.clean), causes
    assert [one for one in causes if one.level == "shown"] == [], causes
