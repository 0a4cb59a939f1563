"""Two ranks of DistributedDataParallel, one of which has a bad batch: its gradients make every rank
bad in the same call, and every view names the rank, the call and the step where it began."""

import json
import re
import shlex
import sys

import pytest

from op_logs import needs_mode

BAD_STEP, BAD_CALL = 3, 4  # steps count from 0, calls from 1
PLACE = "in/0/addmm_0.mat1"
JOB = f"""
import os, sys, torch
import torch.distributed as dist
from torch import nn
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{{sys.argv[1]}}", rank=rank, world_size=2)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
import cgdebug
for step in range(6):
    cgdebug.step(step)
    x = torch.randn(4, 4)
    if rank == 1 and step == {BAD_STEP}:
        x[2] = float("nan")
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""
LAUNCHER = """
import os, subprocess, sys
ranks = [
    subprocess.Popen(
        [sys.executable, *sys.argv[1:]],
        env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
             "LOCAL_WORLD_SIZE": "2"})
    for rank in (0, 1)
]
sys.exit(max(rank.wait() for rank in ranks))
"""


@pytest.fixture
def world(daemon, cli, tmp_path):
    """(what `run` said, path of the recording, name of the run)"""
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "launch.py").write_text(LAUNCHER)
    path, run = tmp_path / "ranks.cgrec", f"bad-{tmp_path.name}"
    done = cli(
        "run", "--watch", "op:*", "--eager", "-o", path, "--",
        sys.executable, tmp_path / "launch.py", tmp_path / "job.py", tmp_path / "rendezvous",
        CGDEBUG_RUN_ID=run,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr, path, run


@pytest.mark.parametrize("attempt", range(5))
@needs_mode
def test_every_view_names_the_rank_that_was_bad_first(world, cli, attempt):
    said, path, run = world
    assert f"first NaN: {PLACE} in call {BAD_CALL} on rank 1" in said, said

    lines = cli("-s", run, "tail", "-n", "100", "--only", "nan").stdout.splitlines()
    (bad,) = (line for line in lines if line.startswith("r1 ") and f"call {BAD_CALL}/" in line)
    assert f"call {BAD_CALL}/s{BAD_STEP} op log" in bad and f"first #2 {PLACE}: 4 NaN" in bad, bad
    (other,) = (line for line in lines if line.startswith("r0 ") and f"call {BAD_CALL}/" in line)
    assert re.search(r"first #\d+ grad/", other), "rank 0 has it from its gradients on"

    checked = cli("check", path)
    assert checked.returncode == 1, checked.stderr
    title = f"first non-finite: rank 1, call {BAD_CALL} (step {BAD_STEP}), {PLACE}\n"
    assert title in checked.stdout, checked.stdout
    first = json.loads(cli("--json", "check", path).stdout)["first_nonfinite"]
    assert (first["rank"], first["replay"], first["step"]) == (1, BAD_CALL, BAD_STEP), first

    rows = json.loads(cli("--json", "query", path, "select * from v_first_nonfinite").stdout)
    row = rows[0]
    assert (row["probe"], row["rank"]) == (PLACE, 1), row
    assert (row["replay"], row["step"]) == (BAD_CALL, BAD_STEP), row

    compared = json.loads(cli("--json", "ranks", path).stdout)
    assert compared["first_bad"]["rank"] == 1, compared["first_bad"]
    assert compared["first_bad"]["saw"].startswith(f"{PLACE} at step {BAD_STEP}"), compared

    (hint,) = re.findall(r"next:  cgdebug-cli (ops .*)", checked.stdout + checked.stderr)
    ops = json.loads(cli("--json", *shlex.split(hint)).stdout)
    assert (ops["rank"], ops["call"], ops["step"]) == (1, BAD_CALL, BAD_STEP), {**ops, "rows": 0}
    assert ops["first_nan"]["name"] == PLACE, ops["first_nan"]
