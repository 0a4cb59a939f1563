"""`check` finds nothing in programs that are right (correct_programs.py)."""

import os
import pathlib
import subprocess
import sys

import pytest

import cgdebug

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
PROGRAMS = (
    *("llama", "mistral", "mixtral", "gpt2", "bert", "t5", "vit", "decode"),
    *("checkpointed", "adamw", "experts", "scaler"),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """server(name, watch) runs the program. One process has imported what all of them need."""
    script = pathlib.Path(__file__).parent / "correct_programs.py"
    errors = tmp_path_factory.mktemp("programs") / "errors"
    with errors.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=errors.parent,
            env={name: value for name, value in os.environ.items() if name != "CGDEBUG_RUN_ID"},
        )

    def run(name, watch):
        process.stdin.write(f"{name} {watch}\n")
        process.stdin.flush()
        for line in process.stdout:  # the program may print as well
            if line.strip().lstrip("-").isdigit():
                assert line.strip() == "0", errors.read_text()
                return
        raise AssertionError(errors.read_text())

    yield run
    process.stdin.close()
    process.wait(timeout=60)


@pytest.mark.parametrize("watch", ["*", "op:*"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_check_finds_nothing_in_a_program_that_is_right(daemon, cli, server, tmp_path, name, watch):
    path = tmp_path / "a.cgrec"
    with cgdebug.connect().record(path):
        server(name, watch)
    done = cli("check", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(cgdebug.open(path)) >= 3
