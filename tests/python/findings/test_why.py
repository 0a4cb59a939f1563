"""`why` names the cause of a fault in its first sentence: of faults of each kind (faulty_programs.py),
and of what people reported (the other scripts)."""

import json
import pathlib

import faulty_numbers
import faulty_programs
import pytest
import reported_memory
import reported_programs
import reported_ranks
import reported_serving
import reported_training
from serve_programs import Programs

import cgdebug

SCRIPTS = (
    faulty_programs,
    faulty_numbers,
    reported_programs,
    reported_serving,
    reported_training,
    reported_ranks,
    reported_memory,
)


@pytest.fixture(scope="module", params=SCRIPTS, ids=lambda script: script.__name__)
def programs(request, tmp_path_factory):
    server = Programs(pathlib.Path(request.param.__file__), tmp_path_factory.mktemp("programs"))
    server.expected = request.param.EXPECTED
    server.right = getattr(request.param, "RIGHT", ())
    yield server
    server.close()


def test_the_first_sentence_names_the_cause(daemon, cli, programs, tmp_path):
    wrong = []
    for name, (kind, level, words) in programs.expected.items():
        path = tmp_path / f"{name}.cgrec"
        programs.record(path, name)
        causes = cgdebug.why(path)
        first = causes.first
        if (
            first is None
            or first.kind not in kind.split()
            or first.level != level
            or not all(word in first.text for word in words)
        ):
            wrong.append((name, str(causes)))
            continue
        done = cli("why", str(path))
        assert done.returncode == (1 if level == "shown" else 3 if causes.not_looked_at else 0)
        assert first.text in done.stdout
    assert not wrong, "\n".join(f"{name}:\n{text}\n" for name, text in wrong)
    document = json.loads(cli("--json", "why", str(path)).stdout)
    assert document["findings"][0]["kind"] in kind.split()
    assert document["findings"][0]["evidence"]


def test_what_is_put_right_has_no_cause(daemon, cli, programs, tmp_path):
    for name in programs.right:
        path = tmp_path / f"{name}.cgrec"
        programs.record(path, name)
        causes = cgdebug.why(path)
        assert causes.first is None, f"{name}:\n{causes}"
        assert cli("why", str(path)).returncode == (3 if causes.not_looked_at else 0)
