"""tools/fuzz tells whether one of its targets found something."""

import os
import shutil
import subprocess

import pytest

from conftest import ROOT

FUZZ = ROOT / "tools" / "fuzz"


@pytest.fixture
def fuzz(tmp_path):
    """fuzz(good=0, bad=77) runs it with targets that end with these codes."""

    def script(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run(**codes):
        shutil.copytree(FUZZ.parent, tmp_path / "tools")
        for program in ("cmake", "clang++"):
            script(tmp_path / "bin" / program, "exit 0")
        for name, code in codes.items():
            text = f"echo stat::number_of_executed_units: 5\nexit {code}"
            script(tmp_path / "build/asan/tests/fuzz" / name, text)
        environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        command = [tmp_path / "tools/fuzz", "1", *codes]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)

    return run


@pytest.mark.parametrize("count", [1, 2, 6])
def test_it_passes_where_every_target_does(fuzz, count):
    done = fuzz(**{f"target{n}": 0 for n in range(count)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("5 inputs in 1 s, nothing found") == count


@pytest.mark.parametrize("bad", [0, 3, 5])
def test_it_fails_and_names_the_target_that_does(fuzz, bad):
    done = fuzz(**{f"target{n}": 77 * (n == bad) for n in range(6)})
    assert done.returncode == 1
    assert f"cgdebug: target{bad} ended with 77 after 5 inputs" in done.stdout
