"""cgdebug-cli ask: what an op of a captured graph made, in a replay that is over or in the next."""

import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import time

import pytest
import torch

from conftest import ROOT, rank_environment, wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.own_lane]
HERE = pathlib.Path(__file__).parent
# Replays until the file is there; each line of standard input is a command before it goes on.
HEAD = """
import os, pathlib, sys
import torch
torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False
import cgdebug
import rewind_programs
from cgdebug._job import _native

def be_read():
    torch.cuda.synchronize()
    if probes := _native.probe_module():
        probes.await_read(60)

def go_on(one, name):
    print("ready", os.getpid(), flush=True)
    while not pathlib.Path(name).exists():
        one()
        torch.cuda.synchronize()

def go_on_when_asked(one, graph, name):  # so that its rows are still kept when the answer comes
    def when_asked():
        if graph._cgdebug_kept._question is not None:
            one()
    go_on(when_asked, name)
"""


class Running:
    def __init__(self, code, directory, **environment):
        self.done = directory / "done"
        program = HEAD + textwrap.dedent(code).replace("DONE", repr(str(self.done)))
        environment.setdefault("CGDEBUG_REWIND", "32")
        environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            env={
                **os.environ,
                **environment,
                "PYTHONPATH": f"{HERE}:{HERE.parent}:{os.environ['PYTHONPATH']}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def await_ready(self):
        words = self.process.stdout.readline().split()
        assert words[:1] == ["ready"], self.process.stderr.read()
        self.pid = words[1]

    def finish(self):
        self.done.touch()
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, err
        return out, err


@pytest.fixture
def running(daemon, tmp_path):
    started = []

    def start(code, is_one_of_many=False, **environment):
        started.append(Running(code, tmp_path, **environment))
        if not is_one_of_many:
            started[-1].await_ready()
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


TRAINING = """
    one = rewind_programs.Training()
    for number in range(1, 46):
        one.replay(bad=number == 37)
        be_read()  # its rows, before later ones take their places
    go_on(one.replay, DONE)
"""


def test_the_op_that_made_the_first_inf_of_a_replay_that_is_over_is_named(running, cli):
    job = running(TRAINING)
    told = cli("ask", f"{job.pid}@37")
    assert told.returncode == 1, (told.stdout, told.stderr)
    assert "have the bits that replay 37 left" in told.stdout
    assert "first Inf: fwd/Model/mul_0" in told.stdout or "first NaN" in told.stdout, told.stdout
    assert "aten.mul.Tensor" in told.stdout and "rewind_programs.py" in told.stdout
    answer = json.loads(cli("--json", "ask", f"{job.pid}@37").stdout)
    assert answer["first_nonfinite"]["op"] == "aten.mul.Tensor", answer["first_nonfinite"]
    whole = json.loads(cli("--json", "ask", f"{job.pid}@36").stdout)
    assert whole["verdict"] == "nothing_found" and len(whole["rows"]) > 100
    job.finish()


def test_what_is_not_kept_is_refused_by_name(running, cli):
    job = running(TRAINING)
    for place, words in (("@3", "replay 3 is not kept"), ("@9999", "replay 9999 is not kept")):
        told = cli("ask", job.pid + place)
        assert told.returncode == 3 and words in told.stderr, (told.stdout, told.stderr)
    told = cli("ask", f"{job.pid}@g:decode@37")
    assert told.returncode == 4 and "no graph 'decode'" in told.stderr, told.stderr
    told = cli("ask", f"{job.pid}@37", "fwd/no_such_row")
    assert told.returncode == 4 and "no row of graph" in told.stderr, told.stderr
    job.finish()


def test_a_job_that_was_asked_goes_on_with_the_bits_of_one_that_was_not(running, cli, tmp_path):
    code = """
        one = rewind_programs.Training()
        for number in range(1, 20):
            one.replay()
        if ASKED:
            count = [0]
            def more():
                count[0] += 1
                one.replay()
            go_on(more, DONE)
            first = count[0]
        else:
            print("ready", os.getpid(), flush=True)
            first = int(sys.argv[1]) if len(sys.argv) > 1 else 0
            first = int(os.environ["FIRST"])
            for _ in range(first):
                one.replay()
        for _ in range(1000):
            one.replay()
        import hashlib
        digest = hashlib.sha256()
        for tensor in one.state():
            digest.update(tensor.reshape(-1).view(torch.uint8).cpu().numpy().tobytes())
        print(first, digest.hexdigest())
    """
    asked = running(code.replace("ASKED", "True"))
    for place in ("@-5", "@-1", ""):
        told = cli("ask", asked.pid + place)
        assert told.returncode == 0, (told.stdout, told.stderr)
    first, digest = asked.finish()[0].split()
    alone = running(code.replace("ASKED", "False"), FIRST=first, CGDEBUG_REWIND="")
    assert alone.finish()[0].split() == [first, digest]


def test_what_the_next_replay_makes_is_what_a_captured_copy_has(running, cli, tmp_path):
    code = """
        import threading
        import torch.nn as nn
        torch.manual_seed(0)
        layer = nn.Linear(16, 16).cuda()
        x = torch.randn(4, 16, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad():
            layer(x)
            with torch.cuda.graph(graph):
                inner = layer(x)
                copy = inner.clone()
                inner.mul_(2)
        def replay():
            x.add_(0.125)
            graph.replay()
        go_on(replay, DONE)
        graph.replay()
        torch.cuda.synchronize()
        torch.save([x.cpu(), copy.cpu()], "x.pt")
    """
    job = running(code, CGDEBUG_REWIND="", CGDEBUG_ASK="1")
    values = tmp_path / "rows.safetensors"
    told = cli("ask", job.pid, "*", "--values", values)
    assert told.returncode == 0, (told.stdout, told.stderr)
    assert "the job's own replay" in told.stdout
    from safetensors.torch import load_file

    rows = load_file(values)
    made = {name: value for name, value in rows.items() if name.startswith("fwd/")}
    before, copy, doubled = made.values()
    assert list(made) == ["fwd/Linear/addmm_0", "fwd/clone_0", "fwd/mul__0"]
    assert torch.equal(before, copy) and torch.equal(doubled, 2 * copy)
    told = cli("ask", f"{job.pid}@-1")
    assert told.returncode == 3 and "run --rewind" in told.stderr, told.stderr
    job.finish()


def test_a_nan_that_was_given_is_said_to_come_from_outside(running, cli):
    code = """
        one = rewind_programs.Inference()
        for number in range(1, 41):
            one.ids.add_(1).remainder_(256)
            one.gain.fill_(float("nan") if number == 30 else 1.0)
            one.graph.replay()
        go_on(one.replay, DONE)
    """
    job = running(code, CGDEBUG_REWIND="128")
    told = cli("ask", f"{job.pid}@30")
    assert told.returncode == 1 and "it came from outside of the graph" in told.stdout, told.stdout
    assert "first NaN: in/Model/mul_0.other" in told.stdout, told.stdout
    job.finish()


def test_inputs_alone_are_kept_of_a_graph_that_changes_nothing(running, cli):
    code = """
        one = rewind_programs.Inference()
        for number in range(1, 101):
            one.replay(bad=number == 90)
        go_on(one.replay, DONE)
    """
    job = running(code, CGDEBUG_REWIND="128")
    told = cli("ask", f"{job.pid}@90")
    assert told.returncode == 1, (told.stdout, told.stderr)
    assert "aten.mul.Tensor" in told.stdout, told.stdout
    job.finish()


def test_a_weight_that_has_changed_is_said(running, cli):
    code = """
        one = rewind_programs.Inference()
        for number in range(1, 20):
            one.replay()
        with torch.no_grad():
            one.model.head.weight.add_(1)
        go_on(one.replay, DONE)
    """
    job = running(code, CGDEBUG_REWIND="4096")  # so many that replay 10 is kept until it is asked
    told = cli("ask", f"{job.pid}@10")
    assert told.returncode == 3 and "have changed since its first replay" in told.stderr, told
    job.finish()


def test_a_kernel_that_is_not_deterministic_is_not_reproduced(running, cli):
    code = """
        torch.use_deterministic_algorithms(False)
        total = torch.zeros(8, device="cuda")
        index = torch.randint(0, 8, (1 << 18,), device="cuda")  # 3 MiB, so that 4096 are kept
        x = torch.randn(1 << 18, device="cuda")
        graph = torch.cuda.CUDAGraph()
        def step():
            total.zero_()
            total.index_add_(0, index, x)
        step()
        with torch.cuda.graph(graph):
            step()
        for _ in range(20):
            x.mul_(1.0001)
            graph.replay()
        go_on(graph.replay, DONE)
    """
    job = running(code, CGDEBUG_REWIND="4096")  # so many that replay 10 is kept until it is asked
    told = cli("ask", f"{job.pid}@10")
    assert told.returncode == 3 and "not reproduced" in told.stderr, (told.stdout, told.stderr)
    job.finish()


def test_probes_do_not_count_a_replay_that_is_run_again(running, cli):
    code = """
        probe = cgdebug.CudaGraphTensorProbe("p", [cgdebug.TensorRecord(capacity=64)])
        x = torch.zeros(16, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = probe(x * 2) + 1
        count = [0]
        def replay():
            x.add_(1)
            graph.replay()
            count[0] += 1
        for _ in range(20):
            replay()
        go_on(replay, DONE)
        torch.cuda.synchronize()
        newest = probe.records()[-1]
        assert newest.tensor[0].item() == 2 * count[0], (newest, count)
        assert newest.replay == count[0], (newest, count)
    """
    job = running(code, CGDEBUG_ASK="1")
    for place in ("@-5", "", "@-2"):
        told = cli("ask", job.pid + place)
        assert told.returncode == 0, (told.stdout, told.stderr)
    job.finish()


def test_memory_stays_as_it_is_over_many_replays(running, cli):
    code = """
        one = rewind_programs.Inference()
        for _ in range(200):
            one.replay()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        for _ in range(3000):
            one.replay()
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == before
        go_on(one.replay, DONE)
    """
    running(code).finish()


def test_a_killed_job_that_is_being_asked_ends_the_question(running, cli):
    job = running(TRAINING)
    asking = subprocess.Popen(
        ["cgdebug-cli", "ask", job.pid, "fwd/*"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    job.process.kill()
    begun = time.monotonic()
    asking.communicate(timeout=60)
    assert asking.returncode in (0, 1, 2, 4) and time.monotonic() - begun < 30


def test_one_op_of_a_replay_that_is_over_is_a_script_of_its_own(running, cli, tmp_path):
    job = running(TRAINING)
    told = cli("repro", f"{job.pid}@37", "fwd/Model/mul_0", "-o", tmp_path / "repro")
    assert told.returncode == 0, (told.stdout, told.stderr)
    done = subprocess.run(
        [sys.executable, tmp_path / "repro" / "repro.py"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "makes the same bits" in done.stdout, done
    assert "elements are not finite" in done.stdout
    told = cli("repro", f"{job.pid}@37", "fwd/*", "-o", tmp_path / "other")
    assert told.returncode == 4 and "one is written" in told.stderr, told.stderr
    listed = cli("ask", job.pid, "--list")
    assert listed.returncode == 0 and "frozen at replay 37, which left NaN" in listed.stdout, (
        listed.stdout
    )
    job.finish()


@pytest.mark.parametrize("watch", ["*", "op:*", "graph:*"])
def test_a_watched_job_is_asked_and_its_rows_count_no_replay_twice(running, cli, watch):
    code = """
        one = rewind_programs.Training()
        for number in range(1, 46):
            one.replay(bad=number == 37)
        go_on(one.replay, DONE)
        one.replay()
        torch.cuda.synchronize()
        print(one.graph._cgdebug_kept.replays)
    """
    job = running(code, CGDEBUG="1", CGDEBUG_WATCH=watch)
    told = cli("ask", f"{job.pid}@37")
    assert told.returncode == 1 and "aten.mul.Tensor" in told.stdout, (told.stdout, told.stderr)
    told = cli("ask", f"{job.pid}@36")
    assert told.returncode == 0, (told.stdout, told.stderr)
    told = cli("ask", job.pid, "fwd/*")
    assert told.returncode == 1, (told.stdout, told.stderr)
    out, _ = job.finish()
    sessions = json.loads(cli("--json", "status", job.pid).stdout)["sessions"]
    assert out.strip() in json.dumps(sessions), (out, sessions)


def test_watch_takes_how_many_replays_are_kept(running, cli):
    code = """
        class Program(rewind_programs.Inference):
            pass
        model = torch.nn.Linear(2, 2)
        cgdebug.watch(model, level="graph", rewind=16)
        one = Program()
        for number in range(1, 20):
            one.replay()
        go_on(one.replay, DONE)
    """
    job = running(code, CGDEBUG_REWIND="", CGDEBUG="1")
    told = cli("ask", f"{job.pid}@-3")
    assert told.returncode == 0 and "tensors have the bits" in told.stdout, told
    job.finish()


def test_why_verifies_its_first_finding_where_the_job_has_kept_the_replay(running, cli):
    job = running(TRAINING, CGDEBUG="1", CGDEBUG_WATCH="op:*")
    told = cli("why", job.pid)
    assert told.returncode == 1, (told.stdout, told.stderr)
    assert "verified: run again" in told.stdout, told.stdout
    first = json.loads(cli("--json", "why", job.pid, "--verify").stdout)["findings"][0]
    assert first["level"] == "verified", first
    job.finish()


def test_why_says_that_a_job_takes_no_questions(running, cli):
    job = running(TRAINING, CGDEBUG="1", CGDEBUG_WATCH="op:*", CGDEBUG_REWIND="")
    told = cli("why", job.pid, "--verify")
    assert told.returncode == 1, (told.stdout, told.stderr)
    assert "not verified: the job takes no questions" in told.stdout, told.stdout
    assert "verified" not in cli("why", job.pid).stdout
    job.finish()


def test_the_how_to_is_right(running, cli):
    page = (ROOT / "client" / "docs" / "already-happened.md").read_text()
    job = running(TRAINING)
    told = cli("ask", f"{job.pid}@37").stdout
    for line in ("  op      aten.mul.Tensor", "  module  Model", "  reads   in/Model/mul_0.other"):
        assert line in page and line in told, (line, told)
    job.finish()


def test_collectives_are_refused_before_anything_is_touched(running, cli):
    code = """
        import torch.distributed as dist
        dist.init_process_group("nccl", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
        x = torch.ones(1 << 12, device="cuda")
        dist.all_reduce(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
            dist.all_reduce(y)
        for _ in range(8):
            graph.replay()
        go_on(graph.replay, DONE)
        torch.cuda.synchronize()
        dist.destroy_process_group()
    """
    job = running(code.replace("127.0.0.1:0", "127.0.0.1:29563"))
    told = cli("ask", f"{job.pid}@5")
    assert told.returncode == 3 and "has a collective" in told.stderr, (told.stdout, told.stderr)
    told = cli("--json", "ask", job.pid)
    names = [row["name"] for row in json.loads(told.stdout)["rows"]]
    assert told.returncode == 0 and "fwd/mul_0" in names, told
    job.finish()


RANKS = """
    import hashlib
    import torch.distributed as dist
    rank, world, limit = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LIMIT"))
    torch.cuda.set_device(rank % torch.cuda.device_count())
    store = dist.FileStore(os.environ["STORE"], world)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=world)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.randn(8, 32, 64, device="cuda")
    x = rows[0].clone()
    def train():
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            train()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        train()
    print("ready", os.getpid(), flush=True)
    count, ends = 0, torch.zeros(1, device="cuda")
    while not ends.item():
        x.copy_(rows[(count + rank) % 8])
        graph.replay()
        count += 1
        ends.fill_(count == limit or not limit and pathlib.Path(DONE).exists())
        dist.broadcast(ends, 0)
    bits = torch.cat([one.detach().flatten() for one in model.parameters()]).cpu().numpy()
    print(count, hashlib.sha256(bits.tobytes()).hexdigest(), flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.alone
def test_a_rank_that_is_asked_goes_on_with_the_bits_of_all(running, cli, tmp_path):
    def ranks(limit, world=2, **environment):
        jobs = [
            running(
                RANKS,
                is_one_of_many=True,
                STORE=str(tmp_path / f"store{limit}"),
                LIMIT=str(limit),
                CGDEBUG_REWIND="",
                **rank_environment(rank, world),
                **environment,
            )
            for rank in range(world)
        ]
        for job in jobs:
            job.await_ready()
        return jobs

    jobs = ranks(0, CGDEBUG_ASK="1")
    for job in [*jobs, *jobs]:
        # torch records an event behind each collective of NCCL.
        told = cli("ask", job.pid)
        assert told.returncode == 0 and " rows, 0 with NaN" in told.stdout, told
    asked = [job.finish()[0].split() for job in jobs]
    alone = [job.finish()[0].split() for job in ranks(int(asked[0][0]))]
    assert asked[0] == asked[1] == alone[0] == alone[1]


SIDE_RANKS = """
    import hashlib
    import torch.distributed as dist
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank % torch.cuda.device_count())
    store = dist.FileStore(os.environ["STORE"], world)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=world)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.randn(8, 32, 64, device="cuda")
    x = rows[0].clone()
    side = torch.cuda.Stream()
    def train():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        beside = x @ x.t()  # while the gradients are on their way
        torch.cuda.current_stream().wait_stream(side)
        optimizer.step()
        return loss.detach(), beside
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        for _ in range(3):
            train()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        loss, beside = train()
    losses = []
    for count in range(40):
        x.copy_(rows[(count + rank) % 8])
        graph.replay()
        losses.append(loss.clone())
    torch.cuda.synchronize()
    print("ready", os.getpid(), flush=True)
    while not pathlib.Path(DONE).exists():
        pass
    results = [*losses, *(one.detach() for one in model.parameters()), beside]
    bits = torch.cat([one.flatten() for one in results]).cpu().numpy()
    print(losses[-1].item() > 0, hashlib.sha256(bits.tobytes()).hexdigest(), flush=True)
    os._exit(0)  # NCCL may wait at exit for a graph that holds its communicator
"""


@pytest.mark.alone
def test_a_rank_in_pieces_and_one_as_a_whole_reduce_on_a_side_stream(running, cli, tmp_path):
    def results(name, *of_ranks):
        jobs = [
            running(
                SIDE_RANKS,
                is_one_of_many=True,
                STORE=str(tmp_path / name),
                CGDEBUG_REWIND="",
                CGDEBUG_RACES="1",
                **rank_environment(rank, len(of_ranks)),
                **environment,
            )
            for rank, environment in enumerate(of_ranks)
        ]
        for job in jobs:
            job.await_ready()
        for job in jobs:
            told = cli("races", job.pid)
            assert told.returncode == 0, (told.stdout, told.stderr)
            assert "no race" in told.stdout, told
        done = [job.finish() for job in jobs]
        (tmp_path / "done").unlink()
        return done

    plain = results("plain", {}, {})
    mixed = results("mixed", {"CGDEBUG_LAUNCH_BLOCKING": "1"}, {})
    assert [out.split()[0] for out, _ in plain] == ["True", "True"]
    assert [out for out, _ in mixed] == [out for out, _ in plain]
    assert "is launched as a whole" not in mixed[0][1], mixed[0][1]


def test_a_callable_that_torch_graphs_is_asked(running, cli):
    code = """
        torch.manual_seed(0)
        model = rewind_programs.Model().cuda()
        ids = torch.zeros(4, 32, dtype=torch.long, device="cuda")
        gain = torch.ones(4, 1, 1, device="cuda")
        model = torch.cuda.make_graphed_callables(model, (ids, gain))
        def step(bad=False):
            model.zero_grad()
            use = torch.full_like(gain, 3e38) if bad else gain
            model(ids.random_(0, 256), use).sum().backward()
        for number in range(1, 20):
            step(number == 15)
        go_on(step, DONE)
    """
    job = running(code)
    listed = json.loads(cli("--json", "ask", job.pid, "--list").stdout)["graphs"]
    assert len(listed) == 2, listed
    told = cli("ask", f"{job.pid}@g:{listed[0]['graph']}@15")
    assert told.returncode == 1 and "aten.mul.Tensor" in told.stdout, (told.stdout, told.stderr)
    job.finish()


ENGINE = """
    one = rewind_programs.Engine()
    DECLARE
    for number in range(1, 41):
        one.replay(bad=number == 30)
    kept = one.cache.clone()
    BEFORE
    go_on(GO_ON, DONE)
    AFTER
"""


def engine(declare="one.declare()", before="", go_on="one.replay", after=""):
    places = {"DECLARE": declare, "BEFORE": before, "GO_ON": go_on, "AFTER": after}
    code = ENGINE
    for word, text in places.items():
        code = code.replace(word, text)
    return code


# It runs the same replay again and again, so that what it appends is in its place.
STANDS = "lambda: one.graph.replay()"
UNCHANGED = "print('cache is', torch.equal(kept.view(torch.int32), one.cache.view(torch.int32)))"


def test_a_replay_of_an_engine_is_run_again_and_its_cache_stays_as_it_is(running, cli):
    job = running(engine(go_on=STANDS, after=UNCHANGED))
    told = cli("ask", f"{job.pid}@25")
    assert told.returncode == 0, (told.stdout, told.stderr)
    assert "have the bits that replay 25 left" in told.stdout
    told = cli("ask", f"{job.pid}@30")
    assert told.returncode == 1 and "first NaN: in/" in told.stdout, (told.stdout, told.stderr)
    assert job.finish()[0].endswith("cache is True\n")


def test_kernels_that_no_op_launched_change_nothing_in_a_second_run(running, cli):
    code = engine(
        before="begun = int(one.counts[1])",
        go_on="lambda: (one.graph.replay(), added.append(1))",
        after=UNCHANGED + "; print(int(one.counts[1]) - begun == len(added))",
    )
    code = code.replace("Engine()", "EngineOfOtherKernels(); added = []")
    job = running(code)
    told = cli("ask", f"{job.pid}@25")
    assert told.returncode == 3, (told.stdout, told.stderr)
    assert "3 were made by no op" in told.stdout and "replay 25 left" in told.stdout
    assert cli("ask", f"{job.pid}@25", "fwd/mul_0").returncode == 0, "that row was seen"
    told = cli("ask", f"{job.pid}@30")
    assert told.returncode == 1 and "first NaN: in/" in told.stdout, (told.stdout, told.stderr)
    assert job.finish()[0].endswith("cache is True\nTrue\n")


def test_graphs_of_an_engine_s_decode_steps_keep_the_last_replays_together(running, cli):
    code = """
        from cgdebug import _rewind, graph_label
        _rewind.keep_of_engine(lambda label: label.startswith("bs="))
        model = torch.nn.Linear(8, 8).cuda().requires_grad_(False)
        graphs, given, left = {}, {}, {}
        for label, size in (("bs=1", 1), ("bs=4", 4), ("prefill", 2)):
            given[label] = torch.zeros(size, 8, device="cuda")
            model(given[label])
            torch.cuda.synchronize()
            with graph_label(label):
                graphs[label] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graphs[label]):
                    left[label] = model(given[label])
        @torch.inference_mode()  # as engines run
        def replay(number=0):
            for label, graph in graphs.items():
                bad = label == "bs=4" and number == 40
                given[label].fill_(float("nan") if bad else number)
                graph.replay()
                torch.cuda.synchronize()
        for number in range(1, 61):
            replay(number)
        go_on(replay, DONE)
    """
    job = running(code, CGDEBUG_REWIND="")
    listed = json.loads(cli("--json", "ask", job.pid, "--list").stdout)["graphs"]
    kept = {one["graph"]: one for one in listed}
    assert sorted(kept) == ["bs=1", "bs=4"] and kept["bs=4"]["frozen_at"] == 40, listed
    assert "frozen at replay 40 of graph bs=4, which left NaN" in kept["bs=1"]["kept"]
    for graph, replay, code, words in (
        ("bs=4", 40, 1, "first NaN: in/"),
        ("bs=4", 39, 0, "have the bits that replay 39 left"),
        ("bs=1", 20, 0, "have the bits that replay 20 left"),
        ("bs=1", 3, 3, "replay 3 is not kept"),
        ("prefill", -1, 4, "no graph 'prefill'"),
    ):
        told = cli("ask", f"{job.pid}@g:{graph}@{replay}")
        assert told.returncode == code and words in told.stdout + told.stderr, told
    assert cli("ask", job.pid, "--go-on").stdout == "replays are kept again\n"
    wait_until(
        lambda: cli("ask", f"{job.pid}@g:bs=1@-1").returncode == 0, "newer replays are kept again"
    )
    assert "frozen" not in cli("ask", job.pid, "--list").stdout
    job.finish()


def test_a_block_of_a_cache_that_somebody_else_has_now_is_told_and_left_alone(running, cli):
    job = running(
        engine(
            before="one.give_away(one.given[0][6]); kept = one.cache.clone()",
            go_on=STANDS,
            after=UNCHANGED,
        )
    )
    told = cli("ask", f"{job.pid}@25")
    assert told.returncode == 3 and "run again, leaves other bits" in told.stderr, told.stderr
    assert "may have given a part of it to another request" in told.stderr
    told = cli("ask", f"{job.pid}@20")  # before the request had that block
    assert told.returncode == 0, (told.stdout, told.stderr)
    assert job.finish()[0].endswith("cache is True\n")


def test_a_cache_that_nobody_declared_is_copied_if_it_is_small_and_else_refused(running, cli):
    job = running(engine(declare="", go_on=STANDS, after=UNCHANGED))
    told = cli("ask", f"{job.pid}@25")
    assert told.returncode == 0, (told.stdout, told.stderr)
    assert job.finish()[0].endswith("cache is True\n")


def test_a_large_cache_that_nobody_declared_is_refused_by_name(running, cli):
    job = running(engine(declare="").replace("Engine()", "Engine(64)"), CGDEBUG_DEVICE_MIB="64")
    told = cli("ask", f"{job.pid}@25")
    assert told.returncode == 3, (told.stdout, told.stderr)
    assert "touch 64 MiB beside their arguments" in told.stderr, told.stderr
    job.finish()


def test_weights_of_compiled_code_are_no_inputs(running, cli):
    job = running(
        """
        import torch._inductor.config
        model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).cuda()
        for weight in model.parameters():
            weight.requires_grad_(False)
        run = torch.compile(model, mode="reduce-overhead")
        x = torch.randn(8, 1024, device="cuda")
        for _ in range(5):
            run(x)
        go_on(lambda: run(x), DONE)
        """
    )
    told = cli("--json", "ask", "--list", job.pid)
    kept = [one["kept"] for one in json.loads(told.stdout)["graphs"]]
    kept = [one for one in kept if one.startswith("replays ")]
    assert kept, told.stdout
    for one in kept:  # 16 MiB of weights, 32 times
        assert float(re.search(r", ([0-9.]+) MiB", one)[1]) < 16, one
    job.finish()


def test_a_job_that_has_ended_is_said_to_have(running, cli):
    job = running(TRAINING)
    job.finish()
    told = cli("ask", job.pid)
    assert told.returncode == 4, (told.stdout, told.stderr)
    assert "has ended" in told.stderr or "there is no process" in told.stderr, told.stderr


def test_generators_that_the_program_registered_stay_where_they_were(running, cli):
    code = """
        generator = torch.Generator("cuda").manual_seed(3)
        x, total = torch.zeros(256, device="cuda"), torch.zeros(256, device="cuda")
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            x.uniform_(generator=generator)
            total.add_(x)
        count, begun = 0, generator.get_offset()
        def replay():
            global count
            graph.replay()
            count += 1
        replay()
        each = generator.get_offset() - begun
        for _ in range(7):
            replay()
        go_on(replay, DONE)
        print(each > 0, generator.get_offset() - begun == each * count)
    """
    job = running(code, CGDEBUG_REWIND="4096")
    for place in ("@4", "@-1", ""):
        told = cli("ask", job.pid + place)
        assert told.returncode == 0, (place, told.stdout, told.stderr)
    assert job.finish()[0].split() == ["True", "True"]


def test_the_census_says_which_graphs_can_be_taken_apart(running, cli, tmp_path):
    code = """
        probe = cgdebug.CudaGraphTensorProbe("p", [cgdebug.TensorRecord(capacity=4)], mode="always")
        x = torch.zeros(16, device="cuda")
        probe(x)  # from here on graphs are counted
        kept, own = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph(keep_graph=True)
        for graph in (kept, own):
            with torch.cuda.graph(graph):
                x.add_(1)
        kept.debug_dump("PATH")
        own.debug_dump("PATH.own")
        own.instantiate()
        go_on(kept.replay, DONE)
    """
    dump = tmp_path / "graph.dot"
    job = running(code.replace("PATH", str(dump)), CGDEBUG_REWIND="", CGDEBUG_ASK="1")
    first = dump.read_text().splitlines()[0]
    assert first == "// cgdebug: it can be taken apart", first
    first = (tmp_path / "graph.dot.own").read_text().splitlines()[0]
    assert "its program keeps it (keep_graph=True)" in first, first
    told = cli("--json", "graphs", job.pid)
    (session,) = json.loads(told.stdout)["sessions"]
    assert [graph["apart"] for graph in session["graphs"]] == [True, None], told.stdout
    shown = cli("graphs", job.pid)
    assert "its program keeps it (keep_graph=True)" in shown.stderr, shown.stderr
    job.finish()


@pytest.mark.parametrize(
    "watch, compared, said",
    [
        ("op:*", "rows_compared", "rows that the replay left in its op log were compared"),
        ("*", "probes_compared", "probes saw in the replay was compared"),
    ],
)
def test_a_past_replay_is_held_against_what_it_left(running, cli, watch, compared, said):
    code = """
        one = rewind_programs.Training()
        for number in range(1, 21):
            one.replay()
            be_read()
        go_on_when_asked(one.replay, one.graph, DONE)
    """
    job = running(code, CGDEBUG="1", CGDEBUG_WATCH=watch)
    told = cli("--json", "ask", f"{job.pid}@-1")
    answer = json.loads(told.stdout)
    assert told.returncode == 0 and answer["replay"] == 20, told
    # Three blocks of three layers each, what is around them, and the blocks.
    assert answer[compared] >= (100 if watch == "op:*" else 15), answer
    assert "hashes" not in answer and "hashes_of_probes" not in answer
    told = cli("ask", f"{job.pid}@-1")
    assert told.returncode == 0, (told.stdout, told.stderr)
    assert said in told.stdout, told.stdout
    job.finish()


def test_a_row_that_differs_is_named_although_the_outputs_do_not(running, cli):
    code = """
        torch.use_deterministic_algorithms(False)
        index = torch.randint(0, 8, (1 << 18,), device="cuda")
        x = torch.randn(1 << 18, device="cuda")
        def step():
            total = torch.zeros(8, device="cuda").index_add_(0, index, x)  # in any order
            return total.mul(0).abs()
        step()
        graph = torch.cuda.CUDAGraph()
        with cgdebug.debug_mode(), torch.cuda.graph(graph):
            result = step()
        for _ in range(8):
            graph.replay()
            be_read()
        go_on_when_asked(graph.replay, graph, DONE)
    """
    job = running(code)
    told = cli("ask", f"{job.pid}@-1")
    assert told.returncode == 3 and "makes other bits than it left in its op log" in told.stderr, (
        told
    )
    assert re.search(r"first in row #\d+ fwd/index_add__0", told.stderr), told.stderr
    job.finish()


def test_a_probe_that_saw_other_bits_is_named_although_the_outputs_do_not_differ(running, cli):
    code = """
        torch.use_deterministic_algorithms(False)
        index = torch.randint(0, 8, (1 << 18,), device="cuda")
        x = torch.randn(1 << 18, device="cuda")
        class Total(torch.nn.Module):
            def forward(self, x):
                return torch.zeros(8, device="cuda").index_add_(0, index, x)  # in any order
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.total = Total()
            def forward(self, x):
                return self.total(x).mul(0).abs()
        model = Model()
        cgdebug.watch(model)
        model(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = model(x)
        for _ in range(8):
            graph.replay()
            be_read()
        go_on_when_asked(graph.replay, graph, DONE)
    """
    job = running(code)
    told = cli("ask", f"{job.pid}@-1")
    assert told.returncode == 3 and "makes other bits than it left in its probes" in told.stderr, (
        told
    )
    assert "first in what probe fwd/total saw" in told.stderr, told.stderr
    job.finish()


def test_a_trigger_keeps_the_replay_in_which_it_held(running, cli):
    code = """
        kept = cgdebug.TensorRecord(capacity=2, where="device", on="nan")
        probe = cgdebug.CudaGraphTensorProbe("root", [kept])
        x = torch.zeros(16, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            inner = x.sqrt()
            probe(inner)
            y = inner.nan_to_num()
            del inner  # nothing that outlives the replay has a NaN
        def replay(value=2.0):
            x.fill_(value)
            graph.replay()
            torch.cuda.synchronize()
        for number in range(1, 21):
            replay(-1.0 if number == 15 else float(number))
        for _ in range(500):
            replay()
        go_on(replay, DONE)
    """
    job = running(code)
    listed = cli("ask", job.pid, "--list")
    assert "frozen at replay 15: a trigger of root held" in listed.stdout, listed.stdout
    assert "frozen at replay 15" in cli("status").stdout
    told = cli("ask", f"{job.pid}@15")
    assert told.returncode == 1 and "first NaN: fwd/sqrt_0" in told.stdout, told
    told = cli("ask", f"{job.pid}@14")
    assert told.returncode == 0, told
    job.finish()


def test_a_comparison_that_fails_keeps_the_replay_in_which_it_failed(running, cli):
    code = """
        import time
        kept = cgdebug.TensorRecord(capacity=2, where="device", on="mismatch")
        ring = cgdebug.CudaGraphTensorProbe("ring", [kept])
        right = torch.full((16,), 2.0, device="cuda")
        compare = cgdebug.CudaGraphTensorProbe("same", [cgdebug.TensorCompare(right)])
        x = torch.zeros(16, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            inner = x.sqrt()
            ring(inner)
            compare(inner)
        def replay(value=4.0):
            x.fill_(value)
            graph.replay()
            torch.cuda.synchronize()
        for number in range(1, 15):
            replay()
        replay(9.0)
        be_read()
        while not graph._cgdebug_kept._recorder.ring.frozen:  # the daemon stops the rings
            replay()
            time.sleep(0.02)
        for _ in range(500):
            replay()
        go_on(replay, DONE)
    """
    job = running(code, CGDEBUG="1", CGDEBUG_REWIND="4096")
    listed = cli("ask", job.pid, "--list")
    assert "frozen at replay 15: a comparison of same failed" in listed.stdout, listed.stdout
    told = cli("--json", "ask", f"{job.pid}@15")
    assert told.returncode == 0, told
    (row,) = [row for row in json.loads(told.stdout)["rows"] if row["name"] == "fwd/sqrt_0"]
    assert (row["min"], row["max"]) == (3, 3), row
    job.finish()


def test_ops_have_the_time_that_the_device_takes_for_them(running, cli):
    code = """
        small, large = (torch.randn(n, n, device="cuda") for n in (16, 8192))
        graph = torch.cuda.CUDAGraph()
        large @ large
        with torch.cuda.graph(graph):
            a = small + 1
            b = large @ large
            c = small * 2
        go_on(graph.replay, DONE)
    """
    job = running(code, CGDEBUG_REWIND="", CGDEBUG_ASK="1")
    cli("ask", job.pid)  # a first launch takes longer, and there may be no time of it
    told = cli("--json", "ask", job.pid, "--slowest", "1")
    answer = json.loads(told.stdout)
    assert [row["name"] for row in answer["slowest"]] == ["fwd/mm_0"], answer["slowest"]
    us = {row["name"]: row["us"] for row in answer["rows"]}
    # 1.1e12 operations take 1 ms or more on every GPU.
    assert us["fwd/mm_0"] > 1000, us
    known = [us[name] for name in ("fwd/add_0", "fwd/mul_0") if us[name] is not None]
    assert all(0 < one < 1000 for one in known), us
    told = cli("ask", job.pid, "fwd/mm_0", "--slowest", "3")
    assert re.search(r"^fwd/mm_0 .* us$", told.stdout, re.M), told.stdout
    assert "each launched alone" in told.stdout, told.stdout
    job.finish()


PARALLEL = """
    x, y = torch.ones(1024, device="cuda"), torch.zeros(1024, device="cuda")
    buffer = torch.zeros(1024, device="cuda")
    side = torch.cuda.Stream()
    def step():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.mul(x, 2, out=buffer)
            torch.add(buffer, 0, out=y)
            torch.mul(x, 7, out=buffer)
        z = x + 1
        torch.cuda.current_stream().wait_stream(side)
        return z
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z = step()
    for _ in range(8):
        graph.replay()
    go_on(graph.replay, DONE)
"""


@pytest.mark.parametrize("place", ["", "@-2"])
def test_a_row_that_an_op_beside_it_overwrites_is_not_seen(running, cli, tmp_path, place):
    job = running(PARALLEL, CGDEBUG_REWIND="4096")
    told = cli("--json", "ask", job.pid + place)
    answer = json.loads(told.stdout)
    assert told.returncode == 3 and answer["verdict"] == "inconclusive", told
    shown = {row["name"]: row["max"] for row in answer["rows"] if row["name"].startswith("fwd/")}
    (hidden,) = answer["not_seen"]["rows"]
    assert hidden["name"] == "fwd/mul_0" and "fwd/mul_1" in hidden["reason"], hidden
    assert shown == {"fwd/add_0": 2.0, "fwd/mul_1": 7.0, "fwd/add_1": 2.0}
    assert answer["not_seen"]["parallel"] == 4 and answer["not_seen"]["of_no_op"] == 0
    told = cli("ask", job.pid + place, "fwd/mul_0")
    assert told.returncode == 3 and "not seen: fwd/mul_0" in told.stdout + told.stderr, told
    told = cli("ask", job.pid + place, "fwd/mul_1")
    assert told.returncode == 0, told
    told = cli("repro", job.pid + place, "fwd/mul_0", "-o", tmp_path / "repro")
    assert told.returncode == 2 and "runs in one launch with other ops" in told.stderr, told
    job.finish()


def test_a_graph_with_a_probe_of_the_callback_lane_says_how_it_can_be_asked(running, cli):
    code = """
        probe = cgdebug.CudaGraphTensorProbe("p", [cgdebug.TensorRecord(capacity=4)])
        x = torch.zeros(16, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = probe(x * 2) + 1
        for _ in range(4):
            graph.replay()
        go_on(graph.replay, DONE)
    """
    job = running(code, CGDEBUG_LANE="callback")
    told = cli("ask", f"{job.pid}@-2")
    assert told.returncode == 3, told
    for text in (told.stderr, cli("ask", job.pid).stdout):
        assert "a host function of a probe in the callback lane" in text, text
        assert "CGDEBUG_LANE=direct" in text, text
    told = cli("ask", job.pid, "fwd/mul_0", "fwd/add_0")
    assert told.returncode == 0 and "in [1, 1]" in told.stdout, told
    job.finish()


@pytest.mark.parametrize("name", ["loop", "child", "random", "memory", "event"])
def test_rows_around_what_cuda_cannot_leave_out_are_seen(running, cli, name):
    code = """
        import opaque_programs
        one = opaque_programs.Program(opaque_programs.NAME)
        start, count = one.save(), [0]
        one.restore(start)
        def more():
            count[0] += 1
            one.replay()
        go_on(more, DONE)
        asked = one.save()
        one.restore(start)
        for _ in range(count[0]):
            one.replay()
        print(all(torch.equal(a, b) for a, b in zip(asked, one.save())))
    """
    job = running(code.replace("NAME", name), CGDEBUG_REWIND="", CGDEBUG_ASK="1")
    for _ in range(3):
        told = cli("--json", "ask", job.pid)
        assert told.returncode in (0, 3), told
        answer = json.loads(told.stdout)
        seen = {row["name"] for row in answer["rows"]}
        assert {"fwd/mul_0", "fwd/add_0"} <= seen, "in front of it, and behind it"
        kind = {"loop": "a conditional node", "memory": "a memory node", "event": ""}
        assert kind.get(name, "a child graph") in answer["not_seen"]["opaque"]
        assert bool(answer["not_seen"]["opaque"]) == (name != "event")
    told = cli("ask", job.pid, "--list")
    assert ("runs in one launch" in told.stdout) == (name != "event"), told
    assert job.finish()[0].split()[-1] == "True"
