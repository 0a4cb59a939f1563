"""A rank that waits for others is shown with the op that it waits in, which has no row yet."""

import json
import os
import types

import pytest

from cgdebug._op_log.collectives.waiting import Waiting
from cgdebug._op_log.written import Kind
from conftest import wait_until

# Ranks of call 3 wait in unlike ops, until a line comes; then the one that was missing is called.
WAIT = """
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=2)
model = torch.nn.Linear(4, 4)
log = cgdebug.debug_mode(model, eager=True)
log.__enter__()
for call in range(4):
    y = model(torch.randn(2, 4)).detach()
    if rank == 0 or call != 2:
        dist.all_reduce(y)  # of every rank
    else:
        print("alone")
        sys.stdin.readline()
        dist.all_reduce(y)
    model(y.relu())
print("done")
sys.stdin.readline()
log.__exit__(None, None, None)
print("ended")
sys.stdin.readline()
"""


@pytest.fixture
def ranks(job, tmp_path):
    run = f"waits-{os.getpid()}"
    environment = {"WORLD_SIZE": "2", "CGDEBUG_RUN_ID": run}
    return run, [
        job(WAIT, arguments=[f"file://{tmp_path}/{run}"], RANK=str(rank), **environment)
        for rank in range(2)
    ]


def test_the_collective_that_a_rank_waits_in_is_named_until_it_goes_on(ranks, cli, tmp_path):
    run, (waits, alone) = ranks
    assert alone.line() == "alone"

    def where():
        jobs = json.loads(cli("--json", "where", run).stdout).get("jobs")
        return {one["rank"]: one["waits"] for one in jobs[0]["ranks"]} if jobs else {}

    wait_until(lambda: where().get(0), where)
    told = where()
    assert told[0] == "c10d.allreduce_ f32[2,4]"  # code on standard input has no line
    assert told[1] is None, "it waits for a line, not for a rank"
    assert f"in or after {told[0]}, and no op since" in cli("where", run).stdout
    path = str(tmp_path / "stands.cgrec")
    assert cli("freeze", run, "-o", path).returncode == 0
    assert f"in or after {told[0]}, and no op since" in cli("where", path).stdout
    alone.go_on()
    for one in (waits, alone):
        assert one.line() == "done"
    wait_until(lambda: where().get(0) is None, where)
    for one in (waits, alone):
        one.go_on()
        assert one.line() == "ended"
    assert where() == {0: None, 1: None}


def test_a_log_that_ends_forgets_only_who_waits_in_its_own_ops():
    plan = types.SimpleNamespace(kind=Kind.C10D, base="barrier", name="c10d.barrier.default")
    call = types.SimpleNamespace(plan=plan, arguments=[], place=types.SimpleNamespace(site=""))
    waiting, log, other = Waiting(), object(), object()
    waiting.calls(call, log)
    waiting.end(other)
    assert not waiting.is_empty
    waiting.end(log)
    assert waiting.is_empty
