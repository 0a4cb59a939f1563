"""cgdebug.toml: settings of a job in a file, read by `run` and by jobs that CGDEBUG_CONFIG names it to."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
with torch.no_grad():
    net[0].weight.fill_(float("nan"))
net(torch.ones(1, 2))
print("done")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "cgdebug.toml").write_text('watch = ["0", "!1"]  # the layer\nfail_on = "nan"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_run_takes_the_file_of_its_folder_and_says_so(cli, folder):
    ran = cli("run", "--", sys.executable, "train.py")
    assert ran.returncode == 1, ran.stderr
    assert "cgdebug: cgdebug.toml: CGDEBUG_WATCH='0,!1' CGDEBUG_FAIL_ON=nan" in ran.stderr
    assert "first NaN: fwd/0" in ran.stderr and "fwd/1" not in ran.stderr


def test_options_and_variables_come_before_the_file(cli, folder):
    ran = cli("run", "--watch", "1", "--", sys.executable, "train.py", CGDEBUG_FAIL_ON="inf")
    assert ran.returncode == 0, ran.stderr
    assert "first NaN: fwd/1" in ran.stderr and "cgdebug.toml" not in ran.stderr


def test_run_refuses_a_file_that_it_does_not_understand_before_the_job_starts(cli, folder):
    (folder / "other.toml").write_text("watch = '*'\nfail-on = 'nan'\n")
    ran = cli("run", "--config", "other.toml", "--", sys.executable, "train.py")
    assert ran.returncode == 2 and "done" not in ran.stdout
    assert "other.toml:2: there is no key 'fail-on'. Close: 'fail_on'." in ran.stderr


def job(folder, **environment):
    code = "import cgdebug._job._auto, runpy; runpy.run_path('train.py'); print(cgdebug._job._auto.is_wanted())"
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={**os.environ, **environment},
    )


def test_a_job_reads_the_file_that_the_variable_names(cli, folder, client):
    ran = job(folder, CGDEBUG_CONFIG="cgdebug.toml", CGDEBUG_RUN_ID="by-file")
    assert ran.returncode == 0 and ran.stdout == "done\nTrue\n", ran.stderr
    names = {probe.name for probe in client.probes(session="by-file")}
    assert names == {"fwd/0"}


@pytest.mark.parametrize("name", ["broken.toml", "absent.toml"])
def test_a_job_goes_on_without_a_file_that_it_cannot_read(daemon, folder, name):
    (folder / "broken.toml").write_text("watch = [")
    ran = job(folder, CGDEBUG_CONFIG=name)
    assert ran.returncode == 0 and ran.stdout.startswith("done\n"), ran.stderr
    assert ran.stderr.count("cgdebug: CGDEBUG_CONFIG: ") == 1 and name in ran.stderr


def test_an_op_log_of_what_runs_eagerly_is_asked_for_in_the_file(cli, folder):
    (folder / "cgdebug.toml").write_text("watch = 'op:*'\nwatch_eager = true\n")
    ran = cli("run", "--", sys.executable, "train.py")
    assert "CGDEBUG_WATCH_EAGER=1" in ran.stderr and "next:  cgdebug-cli ops" in ran.stderr
