"""`cgdebug-cli where` of graphs whose replays do not end."""

import ctypes
import json

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import cgdebug
from cgdebug import TensorStats
from conftest import capture, own_session, rank_environment, wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.own_lane]
needs_mode = pytest.mark.skipif(
    not hasattr(TorchDispatchMode, "ignore_compile_internals"),
    reason="torch before 2.9 has no mode that leaves compiled code alone",
)


class Gate:
    """A node of a graph that waits on the host until it is let through: no Python runs in it."""

    def __init__(self, passes):
        self._libc = ctypes.CDLL(None)
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._semaphore = ctypes.create_string_buffer(64)
        assert self._libc.sem_init(self._semaphore, 0, passes) == 0

    def stand_here(self):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        wait = ctypes.cast(self._libc.sem_wait, ctypes.c_void_p)
        assert self._driver.cuLaunchHostFunc(stream, wait, self._semaphore) == 0

    def let_through(self):
        assert self._libc.sem_post(self._semaphore) == 0


@pytest.fixture
def gate():
    made = Gate(passes=2)  # the warm-up and the first replay
    yield made
    for _ in range(4):
        made.let_through()
    torch.cuda.synchronize()


@pytest.fixture
def place(cli):
    """place(): where this process stands."""

    def ask(kind=None):
        told = cli("where", own_session(), "--json")
        assert told.returncode in (0, 3), told.stderr
        here = json.loads(told.stdout)["jobs"][0]["ranks"][0]
        return here if kind in (None, here["place"]) else None

    return ask


@needs_mode
@pytest.mark.parametrize("batch", [1, 64])
def test_the_rows_around_an_op_that_hangs_are_named(daemon, place, gate, monkeypatch, batch):
    monkeypatch.setenv("CGDEBUG_OP_LOG_BATCH", str(batch))
    x = torch.ones(64, device="cuda")

    def step():
        y = x * 2 + 1
        gate.stand_here()
        return y.relu().sum()

    dm = cgdebug.debug_mode()
    try:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        label = f"hang.{batch}"
        with dm, cgdebug.graph_label(label), torch.cuda.graph(graph):
            step()
        graph.replay()
        torch.cuda.synchronize()
        done = wait_until(lambda: place("finished"), "the first replay is over")
        assert (done["graph"], done["replay"], done["of"]) == (label, 1, "rows")
        names = [row.name for row in dm.log()]
        (relu,) = [i for i, name in enumerate(names) if "relu" in name]
        graph.replay()  # hangs
        if batch == 1:
            here = wait_until(lambda: place("inside"), "it stands in the graph")
            assert here["after"]["name"] == names[relu - 1]
            assert here["before"]["name"] == names[relu]
            assert here["before_last"] is None
            assert here["moved_ns"] > done["moved_ns"]
        else:
            here = wait_until(
                lambda: place("launched") or place("inside"), "it stands in the graph"
            )
            last = (here["before_last"] or here["before"])["number"]
            assert here["before"]["number"] <= relu + 1 <= last
        assert here["replay"] == 2
        gate.let_through()
        torch.cuda.synchronize()
        wait_until(lambda: place("finished"), "the second replay is over")
    finally:
        gate.let_through()
        torch.cuda.synchronize()
        dm.close()


def test_the_probes_around_a_kernel_that_hangs_are_named(daemon, place, graph_probe, gate):
    a, b = graph_probe(TensorStats(), name="w/a"), graph_probe(TensorStats(), name="w/b")
    x = torch.ones(64, device="cuda")

    def step():
        y = a(x * 2)
        gate.stand_here()
        return b(y + 1)

    with cgdebug.graph_label("probes"):
        graph, _ = capture(step)
    graph.replay()
    torch.cuda.synchronize()
    graph.replay()  # hangs
    here = wait_until(lambda: place("inside"), "it stands between the probes")
    assert (here["graph"], here["replay"]) == ("probes", 2)
    assert (here["after"]["name"], here["before"]["name"]) == ("w/a", "w/b")
    gate.let_through()  # before the graph is deleted
    torch.cuda.synchronize()


RANK = """
    import ctypes
    libc, driver = ctypes.CDLL(None), ctypes.CDLL("libcuda.so.1")
    semaphore = ctypes.create_string_buffer(64)
    libc.sem_init(semaphore, 0, 0)
    x = torch.ones(64, device="cuda")
    graphs = {}
    probes = {n: CudaGraphTensorProbe(n, [TensorStats()]) for n in ("a.in", "a.out", "b.in", "b.out")}
    for name in "ab":
        graphs[name] = torch.cuda.CUDAGraph()
        with graph_label(name), torch.cuda.graph(graphs[name]):
            y = probes[name + ".in"](x * 2)
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            wait = ctypes.cast(libc.sem_wait, ctypes.c_void_p)
            assert driver.cuLaunchHostFunc(stream, wait, semaphore) == 0
            y = probes[name + ".out"](y + 1)
    graphs[sys.argv[1]].replay()
    print("hangs")
    sys.stdin.readline()
    os._exit(0)
"""


def test_ranks_that_hang_in_different_graphs_are_put_side_by_side_and_stay_when_killed(
    daemon, cli, job
):
    run = {"CGDEBUG_RUN_ID": "hung-ranks", "WORLD_SIZE": "2"}
    ranks = [job(RANK, arguments=[graph], RANK=str(rank), **run) for rank, graph in enumerate("ab")]
    for rank in ranks:
        assert rank.line() == "hangs"

    def inside():
        told = json.loads(cli("where", "hung-ranks", "--json").stdout)["jobs"][0]["ranks"]
        return told if all(one["place"] == "inside" for one in told) else None

    told = wait_until(inside, "both stand in a graph")
    for rank, graph in zip(told, "ab", strict=True):
        assert (rank["graph"], rank["replay"]) == (graph, 1)
        assert (rank["after"]["name"], rank["before"]["name"]) == (f"{graph}.in", f"{graph}.out")
    assert [rank["odd"] for rank in told].count(True) == 1
    ranks[1].process.kill()
    ranks[1].process.wait()
    wait_until(
        lambda: "rank 1  died" in cli("where", "hung-ranks").stdout, "the daemon saw its death"
    )
    assert "graph b, replay 1: after b.in, before b.out" in cli("where", "hung-ranks").stdout


# Each rank waits in another collective, each of a group of its own: neither ever ends.
DEADLOCK = """
    import torch.distributed as dist
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank % torch.cuda.device_count())
    store = dist.FileStore(sys.argv[1], 2)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=2)
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    x = torch.ones(1024, device="cuda")

    def step(first, second):
        y = x * 2
        dist.all_reduce(y, group=groups[first])
        z = y + 1
        dist.all_reduce(z, group=groups[second])
        return z.relu()

    step(0, 1)
    torch.cuda.synchronize()
    dm = cgdebug.debug_mode()
    graph = torch.cuda.CUDAGraph()
    with dm, graph_label("step"), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step(rank, 1 - rank)
    assert dm.logs == 1
    graph.replay()
    print("hangs")
    sys.stdin.readline()
    os._exit(0)
"""


@needs_mode
@pytest.mark.alone
def test_two_ranks_that_wait_for_each_other_are_named_with_the_rows_they_stand_at(
    daemon, cli, job, tmp_path
):
    run = {"CGDEBUG_RUN_ID": "deadlock", "CGDEBUG_OP_LOG_BATCH": "1"}
    store = str(tmp_path / "store")
    ranks = [
        job(DEADLOCK, arguments=[store], **rank_environment(rank, 2), **run) for rank in range(2)
    ]
    for rank in ranks:
        assert rank.line() == "hangs"

    def inside():
        told = json.loads(cli("where", "deadlock", "--json").stdout)["jobs"][0]["ranks"]
        return told if len(told) == 2 and all(one["place"] == "inside" for one in told) else None

    for rank in wait_until(inside, "both stand in their graph"):
        assert (rank["graph"], rank["replay"]) == ("step", 1)
        assert rank["after"]["name"] == "fwd/mul_0"
        assert rank["before"]["name"] == "fwd/c10d.allreduce__0"
