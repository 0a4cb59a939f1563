"""The census of CUDA graphs on a GPU: it lists exactly the graphs that exist."""

import gc
import json
import os
import uuid

import pytest
import torch

from cgdebug import TensorRecord, graph_label
from conftest import capture, wait_until

pytestmark = pytest.mark.gpu


def graphs_of_this_process(daemon):
    with daemon.connect() as client:
        wait_until(
            lambda: any(one.pid == os.getpid() for one in client.sessions()), "the daemon sees us"
        )
        (told,) = client.graphs(session=os.getpid())
    return told


def live(daemon):
    return [one for one in graphs_of_this_process(daemon).graphs if one.state == "live"]


@pytest.fixture
def fresh(daemon, graph_probe):
    """A probe, and the graphs that earlier tests left."""
    probe = graph_probe(TensorRecord())
    torch.cuda.synchronize()
    gc.collect()
    return probe, {one.order for one in live(daemon)} if _has_session(daemon) else set()


def _has_session(daemon):
    with daemon.connect() as client:
        return any(one.pid == os.getpid() for one in client.sessions())


def test_graphs_captured_by_torch_cuda_graph_are_known_to_their_end(daemon, fresh):
    probe, before = fresh
    x = torch.ones(8, device="cuda")
    # A label stays that of the graph which had it first, also when that graph is gone.
    label = f"{uuid.uuid4().hex[:8]} bs=8"
    with graph_label(label):
        graph, _ = capture(lambda: probe(x * 2) + 1)
    plain, _ = capture(lambda: x * 3)
    for _ in range(7):
        graph.replay()
    torch.cuda.synchronize()
    with_probe, without = [one for one in live(daemon) if one.order not in before]
    assert (with_probe.graph, with_probe.probes, with_probe.replays) == (label, 1, 7)
    assert with_probe.probe_bytes == 32 and with_probe.nodes > without.nodes >= 1
    assert (without.probes, without.replays) == (0, 0)
    assert "conftest.py" in with_probe.stack and "test_gpu_graphs.py" in with_probe.stack
    assert tuple(with_probe.pool) == tuple(graph.pool())
    plain.reset()
    del graph
    gc.collect()
    assert not [one for one in live(daemon) if one.order not in before]


def test_an_empty_capture_has_no_node(daemon, fresh):
    _, before = fresh
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pass
    (one,) = [one for one in live(daemon) if one.order not in before]
    assert one.nodes == 0


def test_a_capture_that_fails_is_listed_as_failed(daemon, job):
    # In a process of its own: torch's generator of random numbers stays as the capture left it.
    failing = job(
        """
        p = CudaGraphTensorProbe("p", [TensorRecord()])
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                torch.cuda.synchronize()
        except RuntimeError:
            print("failed")
        sys.stdin.readline()
        """
    )
    assert failing.line() == "failed"

    def told():
        with daemon.connect() as client:
            known = any(one.pid == failing.pid for one in client.sessions())
            return known and client.graphs(session=failing.pid)

    (graphs,) = wait_until(told, "the daemon sees the job")
    assert graphs.failed == 1


def test_make_graphed_callables_lists_a_graph_for_each_direction(daemon, fresh):
    probe, before = fresh

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x):
            return probe(self.linear(x))

    layers = tuple(Layer().cuda() for _ in range(2))
    sample = torch.randn(4, 8, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(layers, ((sample,), (sample,)))
    for _ in range(3):
        graphed[1](graphed[0](sample.detach().requires_grad_())).sum().backward()
    torch.cuda.synchronize()
    new = [one for one in live(daemon) if one.order not in before]
    assert [one.replays for one in new] == [3, 3, 3, 3]
    assert sorted(one.probes for one in new) == [0, 0, 1, 1]


def test_reduce_overhead_s_trees_are_listed(daemon, fresh):
    _, before = fresh
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x * 2).relu() + 1, mode="reduce-overhead")
    x = torch.randn(1024, device="cuda")
    for _ in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        compiled(x)
    torch.cuda.synchronize()
    new = [one for one in live(daemon) if one.order not in before]
    # The trees also capture an empty graph, once, to keep their memory pool.
    (one,) = [one for one in new if one.nodes != 0]
    assert one.replays >= 3
    assert [one.replays for one in new if one.nodes == 0] in ([], [0])
    torch._dynamo.reset()


def test_a_graph_captured_again_after_reset_is_a_new_one(daemon, fresh):
    probe, before = fresh
    x = torch.ones(4, device="cuda")
    captures = graphs_of_this_process(daemon).captures if _has_session(daemon) else 0
    seen = []
    for _ in range(6):
        graph, _ = capture(lambda: probe(x + 1))
        graph.replay()
        torch.cuda.synchronize()
        graph.reset()
        seen.append(graphs_of_this_process(daemon).graphs[-1])
    assert graphs_of_this_process(daemon).captures == captures + 6
    assert [(one.state, one.replays) for one in seen] == [("gone", 1)] * 6
    # The same line captures in both lanes, so both tests count together.
    assert [one.alike - seen[0].alike for one in seen] == list(range(6))
    assert [one.alike - one.alike_gone for one in seen] == [1] * 6
    assert not [one for one in live(daemon) if one.order not in before]


DUMP = """
    import json, re
    path = sys.argv[1]
    stats = CudaGraphTensorProbe("dump.stats", [TensorStats()])
    values = CudaGraphTensorProbe("dump.values", [TensorRecord(2)])
    large = CudaGraphTensorProbe("dump.large", [TensorStats()])
    part = CudaGraphTensorProbe("dump.part", [TensorRecord(2, part="stride:4")])
    kept = CudaGraphTensorProbe("dump.kept", [TensorRecord(2, where="device", part="stride:4")])
    x = torch.ones(1000, device="cuda")
    z = torch.ones(1 << 21, dtype=torch.bfloat16, device="cuda")
    (x * 2).exp()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with (dm := cgdebug.debug_mode()), torch.cuda.graph(graph):
        y = x * 2
        stats(y), values(y), large(z), part(y), kept(y)
        y.exp()
    graph.debug_dump(path)
    text = open(path).read()
    found = re.findall(r"\\| \\{cgdebug \\| (.*?) \\((\\w+)\\)\\}", text)
    nodes = len(re.findall(r'label="\\{', text))
    data = None
    if hasattr(graph, "get_graph_data"):
        graph.instantiate()
        data = [node["cgdebug"] for node in graph.get_graph_data()["nodes"]]
    first = text.partition("\\n")[0]
    print(json.dumps({"found": found, "nodes": nodes, "data": data, "first": first}))
"""


@pytest.mark.own_lane
def test_dumps_name_the_kernels_of_probes_and_of_rows(daemon, job, tmp_path):
    told = json.loads(job(DUMP, arguments=[str(tmp_path / "graph.dot")]).line())
    print(told)
    found = [tuple(one) for one in told["found"]]
    assert {("probe dump.stats", "Stats"), ("probe dump.stats", "StatsLeaf")} <= set(found), told
    assert {("probe dump.values", "Stage"), ("probe dump.values", "Leaf")} <= set(found), told
    assert ("probe dump.large", "TensorCoreStats") in found, told
    assert {("probe dump.part", "Gather"), ("probe dump.kept", "DeviceGather")} <= set(found), told
    rows = [name for name, kernel in found if kernel == "OpLogParts"]  # one or more batches
    for name in ("in/mul_0.self", "fwd/exp_0", "end/mul_0.self"):
        assert any(name in row for row in rows), (name, told)
    assert told["first"].startswith("// cgdebug: it is not taken apart: nobody asked"), told
    assert len(found) == told["nodes"] - 2, "the two kernels of the job have no name"
    if told["data"] is not None:
        assert None in told["data"] and "probe dump.stats (Stats)" in told["data"]
