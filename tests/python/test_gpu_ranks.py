"""DistributedDataParallel and tensor parallelism in one captured graph a rank, with NCCL inside:
replicas are compared."""

import json
import os

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.own_lane]

TRAIN = """
import torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", init_method=sys.argv[1], rank=rank, world_size=2)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8)).cuda()
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
flipped_at, steps, way = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
with torch.cuda.stream(side):
    if way == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(net, device_ids=[rank])
    else:
        from torch.distributed.tensor import parallel
        mesh = torch.distributed.device_mesh.init_device_mesh("cuda", (2,), mesh_dim_names=("tp",))
        plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
        model = parallel.parallelize_module(net, mesh, plan)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
w = cgdebug.watch(model, params=True, grads=True)
x = torch.zeros(32, 64, device="cuda")
def train():
    optimizer.zero_grad(set_to_none=True)
    model(x).square().sum().backward()
    optimizer.step()
with torch.cuda.stream(side):
    for _ in range(11):
        train()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    train()
torch.cuda.synchronize()
print("ready")
sys.stdin.readline()
torch.manual_seed(rank if way == "ddp" else 0)
rows = torch.randn(64, 32, 64).cuda()
for step in range(1, steps + 1):
    cgdebug.step(step)
    x.copy_(rows[step % 64])
    graph.replay()
    if step % 50 == 0 or steps < 1000:
        torch.cuda.synchronize()
    if rank == 1 and step == flipped_at:
        flipped = net[2].weight.data if way == "ddp" else net[2].bias.to_local().data
        flipped.view(torch.int32).view(-1)[5] ^= 1
torch.cuda.synchronize()
print("done")
sys.stdin.readline()
os._exit(0)  # NCCL may wait at exit for a graph that holds its communicator
"""


needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def train(cli, job, tmp_path, flipped_at, steps=40, way="ddp"):
    """What `ranks` says of the live run, and of its recording."""
    path, run = str(tmp_path / "run.cgrec"), f"nccl-{os.getpid()}-{flipped_at}-{way}-{steps}"
    arguments = [f"file://{tmp_path}/rendezvous", str(flipped_at), str(steps), way]
    ranks = [
        job(TRAIN, arguments=arguments, RANK=str(rank), WORLD_SIZE="2", CGDEBUG_RUN_ID=run)
        for rank in range(2)
    ]
    for one in ranks:
        assert one.line() == "ready"
    assert cli("record", "start", "-o", path, "-s", run).returncode == 0
    for one in ranks:
        one.go_on()
    for one in ranks:
        assert one.line() == "done"
    live = cli("--json", "ranks", "-s", run)
    cli("record", "stop", path)
    offline = cli("--json", "ranks", path)
    for one in ranks:
        one.go_on()
        one.finish()
    return live, offline


@needs_two
def test_ten_thousand_healthy_replays_raise_no_alarm(cli, daemon, job, tmp_path):
    _, offline = train(cli, job, tmp_path, 0, steps=10_000)
    report = json.loads(offline.stdout)
    assert report["first_difference"] is None and report["unequal"] == 0, offline.stdout
    assert report["compared"] >= 8 * 9000, offline.stdout


@needs_two
def test_a_bit_flipped_on_one_of_two_tensor_parallel_ranks_is_found(cli, daemon, job, tmp_path):
    for said in train(cli, job, tmp_path, 20, way="tp"):
        found = json.loads(said.stdout)["first_difference"]
        assert said.returncode == 1 and found is not None, said.stdout
        assert (found["step"], found["probe"]) == (21, "param/2.bias"), said.stdout


@needs_two
@pytest.mark.parametrize("flipped_at", [0, 20])
def test_a_bit_flipped_between_two_replays_is_found_live_and_offline(
    cli, daemon, job, tmp_path, flipped_at
):
    for said in train(cli, job, tmp_path, flipped_at):
        report = json.loads(said.stdout)
        assert report["replicas"] >= 8, said.stdout
        found = report["first_difference"]
        if flipped_at == 0:
            assert found is None and report["unequal"] == 0, said.stdout
            continue
        assert said.returncode == 1
        assert (found["step"], found["probe"]) == (flipped_at + 1, "param/2.weight"), said.stdout
        # Of two ranks, none is the majority.
        assert not found["majority"]
        assert [value["ranks"] for value in found["values"]] == [[0], [1]]
        assert found["equal_before"] >= flipped_at - 1
        assert [row["replicas"] for row in report["ranks"]] == ["tie", "tie"]
