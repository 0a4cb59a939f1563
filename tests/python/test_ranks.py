"""Replicas of real ranks, eager with gloo: DDP says which tensors they are, `ranks` compares them."""

import json
import os

import pytest
import torch

import cgdebug

TRAIN = """
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=3)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
model = torch.nn.parallel.DistributedDataParallel(net)
w = cgdebug.watch(model, params=True, grads=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("ready")
sys.stdin.readline()
torch.manual_seed(rank)
for step in range(1, 9):
    cgdebug.step(step)
    optimizer.zero_grad()
    model(torch.randn(16, 4)).square().sum().backward()
    optimizer.step()
    if rank == 1 and step == 5:
        net[2].weight.data.view(torch.int32)[0, 3] ^= 1
print("done")
sys.stdin.readline()
"""


@pytest.fixture
def ranks_of(job, tmp_path):
    """Starts three ranks of a run; each waits twice for go_on()."""

    def start(code, run):
        rendezvous = f"file://{tmp_path}/{run}"
        ranks = [
            job(
                code,
                arguments=[rendezvous],
                RANK=str(rank),
                WORLD_SIZE="3",
                CGDEBUG_RUN_ID=run,
            )
            for rank in range(3)
        ]
        for one in ranks:
            assert one.line() == "ready"
        return ranks

    return start


def test_a_flipped_bit_is_named_live_and_offline_with_step_probe_and_rank(
    cli, daemon, ranks_of, tmp_path
):
    path = str(tmp_path / "ddp.cgrec")
    run = f"ddp-{os.getpid()}"
    ranks = ranks_of(TRAIN, run)
    assert cli("record", "start", "-o", path, "-s", run).returncode == 0
    for one in ranks:
        one.go_on()
    for one in ranks:
        assert one.line() == "done"
    live = cli("--json", "ranks", "-s", run)
    cli("record", "stop", path)
    for one in ranks:
        one.go_on()
        one.finish()
    offline = cli("--json", "ranks", path)
    for said in (live, offline):
        assert said.returncode == 1, said.stderr
        report = json.loads(said.stdout)
        found = report["first_difference"]
        assert (found["step"], found["probe"], found["minority"]) == (6, "param/2.weight", [1])
        assert report["first_bad"]["rank"] == 1
        assert found["equal_before"] == 5
        # Four parameters and their reduced gradients, in three ranks; the outputs are no replicas.
        assert report["replicas"] == 8
        assert report["compared"] == 64
        assert [row["replicas"] for row in report["ranks"]] == ["same", "different", "same"]
    text = cli("ranks", path).stdout
    assert "first bad: rank 1: param/2.weight at step 6: differs from the other ranks" in text
    assert "rank 1 does not have what 2 of 3 ranks have" in text


def test_watch_says_which_parameters_are_replicas_only_under_ddp(tmp_path):
    net = torch.nn.Linear(2, 2)
    with cgdebug.watch(net, params=True, grads=True, values=2) as w:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        (grad,) = w.probes["param_grad/weight"].records()
        assert grad.tensor.tolist() == [[1.0, 1.0], [1.0, 1.0]]
        assert grad.shard is None
        assert w.probes["param_grad/weight"].name not in w.explain().not_seen
        step = "no step of an optimizer with a gradient of it came"
        assert "param_grad/bias" in w.probes and step not in w.explain().not_seen.values()
    optimizer.step()  # after close() the hook is gone
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/one", rank=0, world_size=1
    )
    try:
        model = torch.nn.parallel.DistributedDataParallel(net)
        with cgdebug.watch(model, params=True, values=2) as w:
            model(torch.ones(1, 2))
            (weight,) = w.probes["param/weight"].records()
            assert weight.shard is None  # one rank has no replica
    finally:
        torch.distributed.destroy_process_group()
