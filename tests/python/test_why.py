"""`why` names the cause of a fault in its first sentence (faulty_programs.py)."""

import json
import pathlib

import faulty_programs
import pytest
from serve_programs import Programs

import cgdebug


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    script = pathlib.Path(__file__).parent / "faulty_programs.py"
    server = Programs(script, tmp_path_factory.mktemp("programs"))
    yield server
    server.close()


@pytest.mark.parametrize("name", faulty_programs.EXPECTED)
def test_the_first_sentence_names_the_cause(daemon, cli, programs, tmp_path, name):
    path = tmp_path / "a.cgrec"
    programs.record(path, name)
    causes = cgdebug.why(path)
    kind, level, words = faulty_programs.EXPECTED[name]
    assert causes.first is not None, causes
    assert (causes.first.kind, causes.first.level) == (kind, level), causes
    for word in words:
        assert word in causes.first.text, causes
    done = cli("why", str(path))
    assert done.returncode == (1 if level == "shown" else 3 if causes.not_looked_at else 0)
    assert causes.first.text in done.stdout
    assert json.loads(cli("--json", "why", str(path)).stdout)["findings"][0]["kind"] == kind
