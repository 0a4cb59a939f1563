"""Sixty things that are typed almost right: cgdebug-cli says what was meant."""

import shlex
import shutil
import subprocess

import pytest
import recording_writer
import torch

import cgdebug
from conftest import find_program, wait_until

# What is typed, in a folder with the recordings a.cgrec and b.cgrec and the program x.py, while a job called near-1 with
# the probes fwd/blocks.0, fwd/blocks.1 and head lives; and what the answer has to say.
NEAR_MISSES = """
run --wach '*' -- python x.py                    | Close: '--watch'
run --watch '*' --fail-onn nan -- python x.py    | Close: '--fail-on'
run --eagr --watch 'op:*' -- python x.py         | Close: '--eager'
run --watch 'ops:*' -- true                      | type module:, graph:, op:, kernel: or fx:
run --watch -- python x.py                       | Type: cgdebug-cli run --watch '*' -- python x.py
run --eager -- true                              | run --watch 'op:*' --eager -- python train.py
run --fail-on nans -- true                       | Type for example: --fail-on nan,inf
run --fail-on compare -- true                    | knows nan, inf, mismatch and replica
run --on nna -- true                             | --on is nan (NaN or Inf)
run --config cgdbug.toml -- true                 | cannot read cgdbug.toml
run -o a.cgrec                                   | Type for example: cgdebug-cli run -- python train.py
run -- 'python x.py'                             | run -- python x.py
run --watch '*' -- pyhton x.py                   | Close: 'python
run --watch '*' -- ./x.py -n 1                   | run --watch '*' -- python ./x.py -n 1
run -- ./nowhere/x                               | Type: ls -l .
chekc                                            | Close: 'check'
rnu -- true                                      | Close: 'run'
help chekc                                       | Close: 'check'
daemon strat                                     | Close: 'start'
record star                                      | Close: 'start'
record stop 999                                  | Type: cgdebug-cli record list
ops dif a.cgrec b.cgrec                          | Type: cgdebug-cli
diff --frist a.cgrec b.cgrec                     | Close: '--first'
config --clfags                                  | Close: '--cflags'
check a.cgerc                                    | Close: 'a.cgrec'
info empty                                       | Type: find empty -name '*.cgrec'
check ./a.cgerc                                  | Close: './a.cgrec'
check a                                          | Close: 'a.cgrec'
diff a.cgrec b.cgerc                             | Close: 'b.cgrec'
report a.cgrec c.cgrec                           | Close: 'a.cgrec', 'b.cgrec'
verify a.safetensors                             | does not exist
where ./a.cgre                                   | Close: './a.cgrec'
check near-2                                     | Close: 'near-1'
freeze naer-1                                    | Close: 'near-1'
probes -s near-2                                 | Close: 'near-1'
check fwd/blocks.0                               | If it is a probe, its job comes first: live fwd/blocks.0
why fwd/blocks.0                                 | If it is a probe, its job comes first: live fwd/blocks.0
why a.cgrec c.cgrec                              | Close: 'a.cgrec', 'b.cgrec'
check a.cgrec 'blokcs.*'                         | Close: 'blocks.0', 'blocks.1'
check a.cgrec block.0                            | Close: 'blocks.0'
info a.cgrec 'blocks.9'                          | Close: 'blocks.0'
stats a.cgrec --sort absmax                      | Close: 'abs_max'
stats a.cgrec --only nans                        | --only is nan, not 'nans'. Close: 'nan'
export a.cgrec --to cvs -o x                     | Close: 'csv'
export a.cgrec -o x.csv                          | --to is required
export near-1 --to csv -o x                      | first type: cgdebug-cli freeze near-1 -o near-1.cgrec
set head --mode of                               | Close: 'off'
show haed -s near-1                              | Close: 'head'
tail 'fwd/blokcs.*' -s near-1                    | Close: 'fwd/blocks.0', 'fwd/blocks.1'
set head --mode off                              | Type the command with -s JOB, or --all-jobs
tail near-1                                      | 'near-1' is a job, not a probe. Type the command with -s
probes near-1                                    | 'near-1' is a job, not a probe. Type the command with -s
ps near-1                                        | Type: cgdebug-cli ps -s near-1
tail a.cgrec                                     | 'a.cgrec' is a file, and tail asks live jobs. Type: cgdebug-cli info a.cgrec
status a.cgrec                                   | 'a.cgrec' is a file, and status asks live jobs. Type: cgdebug-cli info a.cgrec
freeze a.cgrec                                   | 'a.cgrec' is a file, and freeze asks live jobs. Type: cgdebug-cli info a.cgrec
graphs a.cgrec                                   | 'a.cgrec' is a file, and graphs asks live jobs. Type: cgdebug-cli info a.cgrec
show a.cgrec                                     | 'a.cgrec' is a file: which probe of it?
show a.cgrec blocks.0@2                          | Type: cgdebug-cli show 'a.cgrec:blocks.0@2'
show a.cgrec:blocks.O@2                          | Close: 'blocks.0'
show a.cgrec:blocks.0@9                          | it has replays 1..3
show a.cgrec:blocks.0@s2                         | Type for example: cgdebug-cli show a.cgrec:blocks.0@step:2
show a.cgrec:blocks.0@step=2                     | Type for example: cgdebug-cli show a.cgrec:blocks.0@step:2
show a.cgrec:blocks.0@call2                      | Type for example: cgdebug-cli show a.cgrec:blocks.0@call:2
show a.cgrec:blocks.0@firstnan                   | Type for example: cgdebug-cli show a.cgrec:blocks.0@first-nan
show a.cgrec:blocks.0@step:77                    | has no snapshot of step 77
show head --where nonfinite                      | --where is nan, not 'nonfinite'
ops 'a.cgrec@2@g:decode'                         | Type: cgdebug-cli ops 'a.cgrec@g:decode@2'
check a.cgrec --replays 2-3                      | Type for example: --replays 2..3
check a.cgrec --replays step:2                   | one of a step: show PROBE@step:N
check a.cgrec --replays 7..9                     | it has some in 1..3
check a.cgrec --rank 0                           | Close: '--ranks'
query a.cgrec 'select absmax from v_snapshots'   | Close: 'abs_max'
query 'select 1 from v_snapshots' a.cgrec        | Type: cgdebug-cli query a.cgrec 'select 1 from v_snapshots'
tail --lines 5                                   | has no option '--lines'
tail --since yesterday                           | Type: cgdebug-cli tail --help
extract a.cgrec                                  | --output is required
completion zsh                                   | SHELL is bash, not 'zsh'
"""
CASES = [tuple(map(str.strip, line.split(" | "))) for line in NEAR_MISSES.strip().splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("near")
    writer = recording_writer.Writer(str(path / "a.cgrec"))
    session = writer.add_session("0" * 32, "job", -1)
    for name in ("blocks.0", "blocks.1", "head"):
        slot = writer.add_slot(session, name, "float32", (2,))
        for replay in (1, 2, 3):
            writer.append(slot, replay, torch.full((2,), float(replay)).numpy(), step=replay)
    writer.close()
    shutil.copytree(path / "a.cgrec", path / "b.cgrec")
    (path / "x.py").touch()
    (path / "empty").mkdir()
    return path


@pytest.fixture
def near_job(job, cli):
    started = job(
        """
        for name in ("fwd/blocks.0", "fwd/blocks.1", "head"):
            CudaGraphTensorProbe(name, [TensorRecord()], mode="always")(torch.ones(2))
        print("ready")
        sys.stdin.readline()
        """,
        CGDEBUG_RUN_ID="near-1",
    )
    assert started.line() == "ready"
    wait_until(lambda: "head" in cli("probes", "-s", "near-1").stdout, "its probes")
    return started


def test_sixty_near_misses_get_the_right_proposal(cli, near_job, folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert len(CASES) >= 60
    wrong = []
    for typed, expected in CASES:
        answer = cli(*shlex.split(typed))
        said = " ".join((answer.stderr + answer.stdout).split())
        if expected not in said or answer.returncode in (0, 1) or answer.returncode >= 128:
            wrong.append(f"{typed}\n    exit {answer.returncode}: {said}\n    not: {expected}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("command", ["tail", "status", "graphs"])
def test_a_file_where_a_live_job_is_asked_starts_no_daemon(command, folder, tmp_path):
    socket = tmp_path / "daemon.sock"
    answer = subprocess.run(
        [find_program("cgdebug-cli"), "--socket", str(socket), command, "a.cgrec"],
        cwd=folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert f"'a.cgrec' is a file, and {command} asks live jobs" in answer.stderr
    assert answer.returncode == 4 and "daemon started" not in answer.stderr
    assert not socket.exists()


def test_a_watch_of_modules_that_found_nothing_leads_to_a_log_of_its_ops(cli, tmp_path):
    script = tmp_path / "loss.py"
    script.write_text(
        "import torch\nnet = torch.nn.Linear(2, 2)\nloss = net(torch.ones(1, 2)).sum() * 1e38 * 1e38\n"
    )
    told = cli("run", "--watch", "*", "--", "python", str(script)).stderr
    assert "saw non-finite" not in told
    assert f"next:  cgdebug-cli run --watch 'op:*' --eager -- python {script}" in told


def test_steps_of_a_recording_are_those_that_the_job_set(folder):
    assert cgdebug.open(folder / "a.cgrec").steps == [1, 2, 3]
