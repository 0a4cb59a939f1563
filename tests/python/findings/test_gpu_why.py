"""`why` names the cause of a fault in a captured graph in its first sentence, and shows none in graphs
that are right (captured_programs.py)."""

import json
import pathlib

import captured_programs
import pytest
from serve_programs import Programs

import cgdebug
from conftest import wait_until
from op_logs import needs_mode

pytestmark = [pytest.mark.gpu, pytest.mark.own_lane, needs_mode]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    script = pathlib.Path(captured_programs.__file__)
    server = Programs(script, tmp_path_factory.mktemp("programs"))
    yield server
    server.close()


@pytest.mark.parametrize("name", captured_programs.EXPECTED)
def test_the_first_sentence_names_the_cause(daemon, cli, programs, tmp_path, name):
    kind, level, words = captured_programs.EXPECTED[name]
    path = tmp_path / "a.cgrec"
    programs.record(path, name)
    causes = cgdebug.why(path)
    first = causes.first
    assert first is not None, causes
    assert first.kind in kind.split() and first.level == level, causes
    assert all(word in first.text for word in words), causes
    done = cli("why", str(path))
    assert done.returncode == (1 if level == "shown" else 3 if causes.not_looked_at else 0)
    assert first.text in done.stdout


@pytest.mark.parametrize("name", captured_programs.CORRECT)
def test_nothing_is_shown_in_a_graph_that_is_right(daemon, cli, programs, tmp_path, name):
    path = tmp_path / "a.cgrec"
    programs.record(path, name)
    causes = cgdebug.why(path)
    assert [one for one in causes if one.level == "shown"] == [], causes
    assert causes.ok or causes.not_looked_at, causes
    assert any("the same while" in one for one in causes.clean), causes
    assert cli("check", str(path)).returncode == 0


JOB = """
    p, x = CudaGraphTensorProbe("p", [TensorStats()]), torch.ones(4, device="cuda")
    good, other = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with graph_label("good"), torch.cuda.graph(good):
        p(x + 1)
    with graph_label(sys.argv[1]), torch.cuda.graph(other):
        if sys.argv[1] == "unused":
            x * 2
    for _ in range(4):
        x.mul_(1.5)
        good.replay()
    torch.cuda.synchronize()
    print("ran")
    sys.stdin.readline()
"""


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("empty", "empty_capture", "recorded no work"),
        ("unused", "unreplayed", "was never replayed"),
    ],
)
def test_a_capture_of_a_live_job_that_does_nothing_is_named(daemon, cli, job, name, kind, words):
    running = job(JOB, arguments=[name])
    assert running.line() == "ran"

    def asked():
        done = cli("--json", "why", str(running.pid))
        document = json.loads(done.stdout) if done.stdout else {}
        return document if document.get("findings") else None

    first = wait_until(asked, "the daemon has seen the graphs")["findings"][0]
    assert (first["kind"], first["level"]) == (kind, "consistent"), first
    assert f"graph {name} {words}" in first["text"]
    assert cli("why", str(running.pid)).returncode == 3  # of a job without an op log
