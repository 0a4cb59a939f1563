"""DistributedDataParallel and tensor parallelism in one captured graph a rank, with NCCL inside:
replicas are compared."""

import json
import os
import sys
import time

import pytest

from conftest import ROOT, rank_environment, wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.own_lane]

TRAIN = """
import torch.distributed as dist
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank % torch.cuda.device_count())
dist.init_process_group("nccl", init_method=sys.argv[1], rank=rank, world_size=world)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8)).cuda()
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
flipped_at, steps, way = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
with torch.cuda.stream(side):
    if way == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(
            net, device_ids=[torch.cuda.current_device()]
        )
    elif way == "own-order":
        model = net
    else:
        from torch.distributed.tensor import parallel
        mesh = torch.distributed.device_mesh.init_device_mesh("cuda", (world,), mesh_dim_names=("tp",))
        plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
        model = parallel.parallelize_module(net, mesh, plan)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
w = cgdebug.watch(model, params=True, grads=True)
x = torch.zeros(32, 64, device="cuda")
if way == "own-order":
    x += torch.arange(64, device="cuda").add(100 * rank).sin()
def train():
    optimizer.zero_grad(set_to_none=True)
    if way == "own-order":
        reduce_in_own_order()
    else:
        model(x).square().sum().backward()
    optimizer.step()
def reduce_in_own_order():
    # An all-reduce that is not reproducible: each rank adds the same four parts, its own first.
    halves = [
        torch.autograd.grad(model(half).square().mean(), list(model.parameters()))
        for half in x.chunk(2)
    ]
    for parameter, *parts in zip(model.parameters(), *halves):
        everybody = torch.empty(4, *parameter.shape, device="cuda")
        dist.all_gather_into_tensor(everybody, torch.stack(parts))
        parameter.grad = everybody.roll(-2 * rank, 0)[0]
        for part in everybody.roll(-2 * rank, 0)[1:]:
            parameter.grad = parameter.grad + part
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
torch.manual_seed(0 if way == "tp" else rank)
rows = torch.randn(64, 32, 64).cuda()
for step in range(1, steps + 1):
    cgdebug.step(step)
    x.copy_(rows[step % 64])
    graph.replay()
    if step % 50 == 0 or steps < 1000:
        torch.cuda.synchronize()
    if step < 100 and steps > 1000:  # until the rings know that a recording waits for them
        time.sleep(0.005)
    if rank == 1 and step == flipped_at:
        flipped = net[2].bias.to_local().data if way == "tp" else net[2].weight.data
        flipped.view(torch.int32).view(-1)[5] ^= 1
torch.cuda.synchronize()
print("done")
sys.stdin.readline()
os._exit(0)  # NCCL may wait at exit for a graph that holds its communicator
"""


def train(cli, job, tmp_path, flipped_at, steps=40, way="ddp", options=(), record=(), world=2):
    """What `ranks` says of the live run, and of its recording."""
    path = str(tmp_path / "run.cgrec")
    run = f"nccl-{os.getpid()}-{flipped_at}-{way}-{steps}-{world}"
    arguments = [f"file://{tmp_path}/rendezvous", str(flipped_at), str(steps), way]
    began = time.monotonic()

    def tell(what):
        print(f"{time.monotonic() - began:6.1f} s: {what}", flush=True)

    ranks = [
        job(TRAIN, arguments=arguments, CGDEBUG_RUN_ID=run, **rank_environment(rank, world))
        for rank in range(world)
    ]
    for one in ranks:
        assert one.line() == "ready"
    tell(f"{world} ranks are captured")
    assert cli("record", "start", "-o", path, "-s", run, *record).returncode == 0
    for one in ranks:
        one.go_on()
    for one in ranks:
        assert one.line() == "done"
    tell(f"{steps} replays are done")
    live = cli("--json", "ranks", "-s", run, *options)
    tell("the live run is compared")
    cli("record", "stop", path)
    tell("the recording is closed")
    offline = cli("--json", "ranks", path, *options)
    tell("the recording is compared")
    for one in ranks:
        one.go_on()
        one.finish()
    return live, offline


@pytest.mark.alone
def test_ten_thousand_healthy_replays_raise_no_alarm(cli, daemon, job, tmp_path):
    _, offline = train(cli, job, tmp_path, 0, steps=10_000, record=["--lossless"])
    report = json.loads(offline.stdout)
    assert report["first_difference"] is None and report["unequal"] == 0, offline.stdout
    assert report["compared"] == 8 * 10_000, offline.stdout


@pytest.mark.alone
def test_ranks_that_add_in_different_orders_raise_no_alarm(cli, daemon, job, tmp_path):
    named = ["--replicated", "param/*", "--replicated", "param_grad/*"]
    for said in train(cli, job, tmp_path, 0, steps=40, way="own-order", options=named):
        report = json.loads(said.stdout)
        assert report["first_difference"] is None and report["unequal"] > 0, said.stdout
        # Statistics do not tell how far they are apart.
        assert said.returncode == 3 and report["unknown"] > 0, said.stdout
        assert {row["replicas"] for row in report["ranks"]} <= {"unknown", "same"}, said.stdout


@pytest.mark.alone
def test_a_bit_flipped_on_one_of_two_tensor_parallel_ranks_is_found(cli, daemon, job, tmp_path):
    for said in train(cli, job, tmp_path, 20, way="tp"):
        found = json.loads(said.stdout)["first_difference"]
        assert said.returncode == 1 and found is not None, said.stdout
        assert (found["step"], found["probe"]) == (21, "param/2.bias"), said.stdout


@pytest.mark.alone
@pytest.mark.parametrize("way", ["ddp", "tp"])
def test_the_one_of_four_ranks_whose_bit_was_flipped_is_named(cli, daemon, job, tmp_path, way):
    probe = "param/2.weight" if way == "ddp" else "param/2.bias"
    for said in train(cli, job, tmp_path, 20, way=way, world=4):
        found = json.loads(said.stdout)["first_difference"]
        assert said.returncode == 1 and found is not None, said.stdout
        assert (found["step"], found["probe"]) == (21, probe), said.stdout
        assert found["majority"], said.stdout
        assert [1] in [value["ranks"] for value in found["values"]], said.stdout


@pytest.mark.alone
@pytest.mark.parametrize("flipped_at", [0, 20])
def test_a_bit_flipped_between_two_replays_is_found_live_and_offline(
    cli, daemon, job, tmp_path, flipped_at
):
    live, offline = train(cli, job, tmp_path, flipped_at)
    for said in (live, offline):
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
        # The daemon's memory keeps the last replays.
        assert found["equal_before"] >= (1 if said is live else flipped_at - 1)
        assert [row["replicas"] for row in report["ranks"]] == ["tie", "tie"]


TWO_ON_ONE_GPU = """
rank = int(os.environ["RANK"])
p = CudaGraphTensorProbe("w", [TensorStats()], mode="capture")
shard = f"R of [256] at ({rank}) of ddp=2, from [0], replicas 0,1"
x = torch.zeros(256, device="cuda")
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    x.add_(0.5)
    torch.ops.cgdebug.observe(x, p._site_key, shard)
print("ready")
sys.stdin.readline()
for step in range(1, 10_001):
    cgdebug.step(step)
    graph.replay()
    if step % 50 == 0:
        torch.cuda.synchronize()
    if step < 100:  # until the daemon has told the rings that a recording waits for them
        time.sleep(0.005)
print("done")
sys.stdin.readline()
x.view(torch.int32)[7] ^= rank
cgdebug.step(10_001)
graph.replay()
torch.cuda.synchronize()
print("flipped")
sys.stdin.readline()
"""


def test_the_daemon_tells_within_a_second_what_differs_and_nothing_before(
    cli, daemon, job, tmp_path
):
    run = f"one-gpu-{os.getpid()}"
    ranks = [
        job(
            TWO_ON_ONE_GPU,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE="2",
            LOCAL_WORLD_SIZE="2",
            CGDEBUG_RUN_ID=run,
        )
        for rank in range(2)
    ]

    def all_say(word):
        for one in ranks:
            assert one.line() == word

    def go_on():
        for one in ranks:
            one.go_on()

    all_say("ready")
    path = str(tmp_path / "a.cgrec")
    assert cli("record", "start", "-o", path, "-s", run, "--lossless").returncode == 0
    go_on()
    all_say("done")
    with daemon.connect() as client:

        def counts():
            return [one.replicas for one in client.sessions() if one.run_id == run]

        wait_until(
            lambda: all(one.compared == 10_000 for one in counts()),
            lambda: f"the daemon compares every replay: {counts()}",
        )
        assert not any(one.different + one.close + one.incomplete for one in counts())
        go_on()
        all_say("flipped")
        began = time.monotonic()
        wait_until(lambda: all(one.different == 1 for one in counts()), "the daemon tells")
        assert time.monotonic() - began < 1
    told = cli("tail", "-n", "5", "--only", "mismatch", "-s", run).stdout
    assert "step 10001: f32[256] is not the same on ranks 0,1" in told
    cli("record", "stop", path)
    go_on()
    for one in ranks:
        one.finish()
    found = json.loads(cli("--json", "ranks", path).stdout)["first_difference"]
    assert (found["step"], found["equal_before"]) == (10_001, 10_000)


@pytest.mark.alone
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_example_captures_each_way_to_train_in_parallel(tmp_path, ranks, cli, daemon):
    recording = str(tmp_path / "parallel.cgrec")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    example = str(ROOT / "python" / "examples" / "parallel_training.py")
    done = cli(
        *("run", "-o", recording, "--", sys.executable, *torchrun, example),
        *("--capture", "--share-gpus"),
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    for way in ("ddp", "fsdp2", "tp", "pp", "ep"):
        assert f"{way}: {ranks} ranks, 3 steps as one CUDA graph with NCCL inside" in done.stdout
    rows = 128 // ranks
    parts = ", ".join([f"[{rows}, 64]"] * ranks)
    for way in ("fsdp2", "tp"):
        assert f"{way}/0.weight @3: parts {parts} make [128, 64]" in done.stdout
    assert "RANKS DIFFER" not in done.stdout
    told = cli("--json", "ranks", recording, "--replicated", "ddp/*", "--replicated", "ep/router*")
    report = json.loads(told.stdout)
    assert told.returncode == 0 and report["first_difference"] is None, told.stdout
    assert report["compared"] > 0, told.stdout
