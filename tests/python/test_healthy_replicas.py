"""`ranks` raises no alarm over distributed trainings that are right (healthy_replicas.py)."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import cgdebug

PROGRAMS = (
    *("ddp_sgd", "ddp_adamw_accumulated", "ddp_autocast", "ddp_bfloat16"),
    *("ddp_batchnorm_clipped", "ddp_transformer", "replicate", "fsdp", "hsdp_bfloat16"),
    *("tensor_parallel", "sequence_parallel"),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """server(name, run) trains on two ranks. One process has imported torch for all of them."""
    script = pathlib.Path(__file__).parent / "healthy_replicas.py"
    folder = tmp_path_factory.mktemp("ranks")
    with (folder / "errors").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
        )

    def run(name, run_id):
        process.stdin.write(f"{name} file://{folder}/{run_id} {run_id}\n")
        process.stdin.flush()
        assert process.stdout.readline().strip() == "0", (folder / "errors").read_text()

    yield run
    process.stdin.close()
    process.wait(timeout=60)


@pytest.mark.parametrize("name", PROGRAMS)
def test_ranks_finds_nothing_in_a_training_that_is_right(daemon, cli, server, tmp_path, name):
    path = str(tmp_path / "a.cgrec")
    with cgdebug.connect().record(path):
        server(name, f"healthy-{name}-{os.getpid()}")
    done = cli("--json", "ranks", path)
    report = json.loads(done.stdout)
    print(name, done.returncode, report["verdict"], report.get("compared"))
    assert done.returncode in (0, 3), json.dumps(report, indent=1)
    # Where all parameters are parts, there is nothing to compare.
    assert report["compared"] > 0 or name == "fsdp", report
