"""Replicas of real ranks, eager with gloo: DDP says which tensors they are, `ranks` compares them."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch

import cgdebug
from conftest import FOLDER, ROOT, find_program, wait_until

TRAIN = """
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=3)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
if "watched-first" in sys.argv:
    w = cgdebug.watch(net, params=True, grads=True)
model = torch.nn.parallel.DistributedDataParallel(net)
if "watched-first" not in sys.argv:
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


# Each line says a step, whether what is probed is a replica, and its value.
CHECK = """
rank = int(os.environ["RANK"])
shard = f"R of [4] at ({rank}) of ddp=2, from [0], replicas 0,1"
p = CudaGraphTensorProbe("w", [TensorStats()], mode="always")
print("ready")
for line in sys.stdin:
    step, is_replica, value = line.split()
    cgdebug.step(int(step))
    x = torch.full((4,), float(value))
    if is_replica == "yes":
        torch.ops.cgdebug.observe(x, p._site_key, shard)
    else:
        p(x)
    print("probed")
    sys.stdin.readline()
    try:
        cgdebug.check("replica")
        print("same")
    except (cgdebug.FoundError, cgdebug.NotCheckedError) as error:
        print(type(error).__name__, error)
"""


@pytest.fixture
def ranks_of(job, tmp_path):
    """Starts three ranks of a run; each waits twice for go_on()."""

    def start(code, run, *arguments):
        rendezvous = f"file://{tmp_path}/{run}"
        ranks = [
            job(
                code,
                arguments=[rendezvous, *arguments],
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


@pytest.mark.parametrize("order", ["wrapped-first", "watched-first"])
def test_a_flipped_bit_is_named_live_and_offline_with_step_probe_and_rank(
    cli, daemon, ranks_of, tmp_path, order
):
    path = str(tmp_path / "ddp.cgrec")
    run = f"ddp-{os.getpid()}-{order}"
    ranks = ranks_of(TRAIN, run, order)
    assert cli("record", "start", "-o", path, "-s", run).returncode == 0
    for one in ranks:
        one.go_on()
    for one in ranks:
        assert one.line() == "done"
    live = cli("--json", "ranks", "-s", run)
    with daemon.connect() as client:

        def counts():
            of_run = [one for one in client.sessions() if one.run_id == run]
            return [one.replicas for one in sorted(of_run, key=lambda one: one.rank)]

        wait_until(
            lambda: all(one.compared == 64 for one in counts()),
            lambda: f"the daemon compares every replica: {counts()}",
        )
        assert [one.different > 0 for one in counts()] == [False, True, False]
        assert not any(one.incomplete for one in counts())
    tail = cli("--json", "tail", "-n", "10", "--only", "mismatch", "-s", run)
    events = [json.loads(line) for line in tail.stdout.splitlines()]
    (told,) = [event for event in events if not event["event"].startswith("session")]
    assert (told["event"], told["rank"], told["step"]) == ("unequal", 1, 6)
    assert told["probe"] == "param/2.weight"
    assert (
        f"of rank 1 is not what 2 of 3 ranks have. Type: cgdebug-cli ranks -s '{run}'"
        in (told["text"])
    )
    status = cli("status", "-s", run).stdout
    assert "first replica that differs: param/2.weight in call 6 on rank 1, step 6" in status
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


# "w" is a replica of three ranks; that of rank 1 differs from step 100 on.
LAUNCHER = """
import os, subprocess, sys
CODE = '''
import atexit, mmap, os, sys, time
import torch, cgdebug
rank = int(os.environ["RANK"])
steps = memoryview(mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 32)).cast("q")
atexit.register(steps.__setitem__, 3, 1)  # however it ends, the others stop waiting
p = cgdebug.CudaGraphTensorProbe("w", [cgdebug.TensorStats()], mode="always")
shard = f"R of [4] at ({rank}) of ddp=3, from [0], replicas 0..2"
for step in range(1, 10_000):
    steps[rank] = step
    while min(steps[:3]) < step and not steps[3]:  # as a collective would wait
        time.sleep(0.001)
    if steps[3]:
        break
    try:
        cgdebug.step(step)
    except cgdebug.errors.FoundError as error:
        print(f"told in step {step}: {error}", file=sys.stderr)
        steps[3] = 1
        break
    differs = rank == 1 and step >= 100
    w = torch.full((4,), float(step) + differs)
    torch.ops.cgdebug.observe(w, p._site_key, shard)
    time.sleep(0.005)
'''
ranks = [
    subprocess.Popen(
        [sys.executable, "-c", CODE, *sys.argv[1:]],
        env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        | {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"},
    )
    for rank in range(3)
]
sys.exit(max(rank.wait() for rank in ranks))
"""


def test_a_job_is_stopped_by_the_first_replica_that_differs(cli, daemon, tmp_path):
    path = str(tmp_path / "a.cgrec")
    (tmp_path / "steps").write_bytes(bytes(32))
    command = ["run", "--fail-on", "replica", "-o", path, "--", sys.executable, "-c", LAUNCHER]
    found = cli(*command, str(tmp_path / "steps"), CGDEBUG_RUN_ID=f"stopped-{os.getpid()}")
    assert found.returncode == 1, found.stderr
    assert "-- replicas DIFFER: w: step 100: f32[4] of rank 1 is not what 2 of 3 ranks have" in (
        found.stderr
    )
    told = re.findall(
        r"told in step (\d+): first replica that differs: w @100 on rank 1", found.stderr
    )
    assert len(told) == 1 and int(told[0]) > 100, found.stderr
    assert cli("ranks", path).returncode == 1
    # The daemon's finding is in the recording as well, whatever else of it is looked at.
    early = cli("ranks", path, "--replays", "1..99")
    assert early.returncode == 0, early.stdout


def test_ranks_with_different_graphs_raise_no_alarm_and_their_own_probes_are_named(
    cli, daemon, tmp_path
):
    path = str(tmp_path / "ep.cgrec")
    example = str(ROOT / "python" / "examples" / "parallel_training.py")
    environment = {"CUDA_VISIBLE_DEVICES": "", "CGDEBUG_RUN_ID": "ep"}
    done = cli("run", "-o", path, "--", sys.executable, example, "ep", **environment)
    assert done.returncode == 0, done.stderr
    same = cli("ranks", path, "--replicated", "ep/router*")
    assert cli("ranks", "--replicated", "ep/router*", path).stdout == same.stdout
    assert same.returncode == 0, same.stdout
    assert "same: 2 replicas on 2 ranks, 6 comparisons" in same.stdout
    assert "note: on rank 0 only: ep/expert0.0.bias and 1 more probe" in same.stdout
    assert "note: on rank 1 only: ep/expert1.0.bias and 3 more probes" in same.stdout


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


NODE = """
rank = int(os.environ["RANK"])
p = CudaGraphTensorProbe("w", [TensorStats()], mode="always")
shard = f"R of [4] at ({rank}) of ddp=2, from [0], replicas 0,1"
print("ready")
for step in range(1, 21):
    if step in (1, 11):
        sys.stdin.readline()
    cgdebug.step(step)
    w = torch.full((4,), float(step) + (rank == 1 and step > 10))
    torch.ops.cgdebug.observe(w, p._site_key, shard)
    if step in (10, 20):
        print(step)
sys.stdin.readline()
"""


class Node:
    """A machine: a daemon with a runtime directory of its own, and one rank of the job."""

    def __init__(self, job, rank, run, folder):
        home = pathlib.Path(FOLDER) / f"{run}-{rank}"
        home.mkdir(mode=0o700)
        self.socket = str(home / "d.sock")
        where = {"XDG_RUNTIME_DIR": str(home), "CGDEBUG_SOCKET": self.socket}
        self.environment = {**os.environ, **where}
        self.daemon = subprocess.Popen(
            [find_program("cgdebug-daemon"), "--foreground", "--socket", self.socket],
            stderr=subprocess.DEVNULL,
            env=self.environment,
        )
        wait_until(lambda: pathlib.Path(self.socket).exists(), "the daemon listens")
        self.path = str(folder / f"node{rank}.cgrec")
        self.cli("record", "start", "-o", self.path)
        distributed = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
        distributed |= {"LOCAL_WORLD_SIZE": "1", "CGDEBUG_RUN_ID": run}
        self.job = job(NODE, **where, **distributed)
        assert self.job.line() == "ready"

    def cli(self, *arguments):
        command = [find_program("cgdebug-cli"), "--socket", self.socket, "--no-spawn", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment)
        assert done.returncode == 0, done.stderr
        return done.stdout


def test_a_shared_folder_is_followed_into_which_the_daemons_of_two_nodes_record(
    daemon_allowed, job, tmp_path
):
    run = f"nodes-{os.getpid()}"
    nodes = []
    try:
        for rank in range(2):
            nodes.append(Node(job, rank, run, tmp_path))
        follow = subprocess.Popen(
            [find_program("cgdebug-cli"), "--json", "--no-spawn", "ranks", str(tmp_path)]
            + ["--follow", "--interval", "0.1"],
            stdout=subprocess.PIPE,
            text=True,
        )

        def follow_until(is_wanted):
            while line := follow.stdout.readline():
                if is_wanted(report := json.loads(line)):
                    return report
            raise AssertionError(f"it ended with {follow.wait()}")

        for at in (10, 20):
            for node in nodes:
                node.job.go_on()
            for node in nodes:
                assert node.job.line() == str(at)
            report = follow_until(lambda report, at=at: report["compared"] == at)
            assert report["growing"] and len(report["ranks"]) == 2
            found = report["first_difference"]
            assert found is None if at == 10 else (found["step"], found["probe"]) == (11, "w")
        # One daemon has one rank, so it compares nothing and says nothing.
        assert "replicas" not in nodes[1].cli("status")
        for node in nodes:
            node.job.go_on()
            node.job.finish()
            node.cli("record", "stop", node.path)
        assert not follow_until(lambda report: not report["growing"])["growing"]
        assert follow.wait(120) == 1
    finally:
        for node in nodes:
            node.daemon.terminate()
            node.daemon.wait(120)


def checked(ranks, step, values, is_replica="yes"):
    """What `check("replica")` says in each rank after a step in which it has that value; None: it
    does not make the step."""
    taking_part = [(rank, value) for rank, value in zip(ranks, values) if value is not None]
    for rank, value in taking_part:
        rank.process.stdin.write(f"{step} {is_replica} {value}")
        rank.go_on()
        assert rank.line() == "probed"
    for rank, _ in taking_part:
        rank.go_on()
    return [rank.line() for rank, _ in taking_part]


def two_ranks(job, run):
    environment = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "CGDEBUG_RUN_ID": run}
    ranks = [job(CHECK, RANK=str(n), LOCAL_RANK=str(n), **environment) for n in range(2)]
    for rank in ranks:
        assert rank.line() == "ready"
    return ranks


def test_check_says_nothing_of_replicas_only_if_all_were_compared(daemon, job):
    ranks = two_ranks(job, f"check-{os.getpid()}")
    for said in checked(ranks, 1, [1, 1], is_replica="no"):
        assert "NotCheckedError cgdebug.check: no probe of this process has seen a replica" in said
    assert checked(ranks, 2, [2, 2]) == ["same", "same"]
    for said in checked(ranks, 3, [3, 4]):
        assert re.match("FoundError first replica that differs: w @2 on rank .*, step 3", said)


def test_check_says_which_replicas_could_not_be_compared(daemon, job):
    run = f"behind-{os.getpid()}"
    ranks = two_ranks(job, run)
    assert checked(ranks, 1, [1, 1]) == ["same", "same"]
    (said,) = checked(ranks, 2, [2, None])
    assert said == (
        "NotCheckedError cgdebug.check: 1 snapshot of replicas could not be compared with all ranks "
        f"of this machine: a rank lacks them, or is behind. Type: cgdebug-cli ranks -s {run}"
    )


@pytest.mark.parametrize(
    "environment, reason",
    [
        ({}, "this process has no other ranks, so there are no replicas to compare"),
        ({"WORLD_SIZE": "1"}, "this process has no other ranks"),
        ({"WORLD_SIZE": "2"}, "no other rank of run alone has used a probe on this machine"),
    ],
)
def test_check_says_why_a_rank_that_is_alone_has_nothing_to_compare(
    daemon, job, environment, reason
):
    rank = job(CHECK, CGDEBUG_RUN_ID="alone", **{"RANK": "0", **environment})
    assert rank.line() == "ready"
    (said,) = checked([rank], 1, [1])
    assert said.startswith(f"NotCheckedError cgdebug.check: {reason}"), said


TALKS = """
rank = int(os.environ["RANK"])
p = CudaGraphTensorProbe("x", [TensorStats()], mode="always")
print("ready")
sys.stdin.readline()
for _ in range(20 if rank == 1 else 3):
    p(torch.full((4,), float(rank)))
print("done")
sys.stdin.readline()
"""


def test_the_newest_snapshots_are_those_of_the_ranks_that_were_asked_for(ranks_of, cli):
    ranks = ranks_of(TALKS, "talks")
    for one in (ranks[0], ranks[2], ranks[1]):  # rank 1 has the newest ones
        one.go_on()
        assert one.line() == "done"
    arguments = ("tail", "x", "-n", "4", "--session", "talks")

    def shown(*ranks):
        told = cli("--json", *arguments, *ranks)
        lines = [json.loads(line) for line in told.stdout.splitlines()]
        return [line["rank"] for line in lines if line["event"] == "snapshot"]

    wait_until(lambda: len(shown("--ranks", "0,2")) == 4, "four snapshots of ranks 0 and 2")
    assert set(shown("--ranks", "0,2")) == {0, 2}
    assert shown("--ranks", "1") == [1] * 4
    assert shown("--ranks", "0..1") == [1] * 4, "the newest of both"
    for one in ranks:
        one.finish()
