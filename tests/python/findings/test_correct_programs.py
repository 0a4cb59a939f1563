"""Nothing is found in programs that are right (correct_programs.py)."""

import pytest
from serve_programs import Programs

import cgdebug
from conftest import ROOT

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
PROGRAMS = (
    *("llama", "mistral", "mixtral", "gpt2", "bert", "t5", "vit", "decode"),
    *("checkpointed", "adamw", "experts", "scaler"),
)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    script = ROOT / "tests/python/programs/correct_programs.py"
    server = Programs(script, tmp_path_factory.mktemp("programs"))
    yield server
    server.close()


@pytest.mark.parametrize("watch", ["*", "op:*"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_found_in_a_program_that_is_right(daemon, cli, programs, tmp_path, name, watch):
    path = tmp_path / "a.cgrec"
    programs.record(path, name, watch)
    done = cli("check", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(cgdebug.open(path)) >= 3
    causes = cgdebug.why(path)
    assert [one for one in causes if one.level == "shown"] == [], causes
    assert causes.ok or causes.not_looked_at, causes
    if watch == "op:*":
        assert cli("ops", str(path)).returncode in (0, 3)
