"""Probes in the bodies of conditional nodes of torch's captures, made by hand with the CUDA driver, and
from torch 2.12 on by torch itself."""

import contextlib
import importlib.util
import json

import pytest
import torch

import cgdebug
from cgdebug import TensorCompare, TensorRecord, TensorStats
from cgdebug._job import _apart
from conftest import wait_until

driver = pytest.importorskip("cuda.bindings.driver")
nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
pytestmark = [pytest.mark.gpu, pytest.mark.own_lane]

KERNELS = r"""
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned value);
extern "C" __global__ void enter(unsigned long long handle, const int* left) {
  cudaGraphSetConditional(handle, *left > 0);
}
extern "C" __global__ void count_down(unsigned long long handle, int* left) {
  *left -= 1;
  cudaGraphSetConditional(handle, *left > 0);
}
"""


def done(answer):
    status, *values = answer
    assert int(status) == 0, status
    return values[0] if len(values) == 1 else values


@pytest.fixture(scope="module")
def kernels():
    torch.zeros(1, device="cuda")
    program = done(nvrtc.nvrtcCreateProgram(KERNELS.encode(), b"kernels.cu", 0, None, None))
    done(nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=compute_80"]))
    ptx = b" " * done(nvrtc.nvrtcGetPTXSize(program))
    done(nvrtc.nvrtcGetPTX(program, ptx))
    module = done(driver.cuModuleLoadData(ptx))
    names = ("enter", "count_down")
    return {name: done(driver.cuModuleGetFunction(module, name.encode())) for name in names}


def launch(kernel, handle, left):
    import ctypes

    stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
    values = (int(handle), left.data_ptr())
    arguments = (values, (ctypes.c_uint64, ctypes.c_void_p))
    done(driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0))


def capture_info(stream):
    """Its graph, and the nodes that what comes next depends on."""
    answer = done(driver.cuStreamGetCaptureInfo(driver.CUstream(stream.cuda_stream)))
    _, _, graph, dependencies, *_ = answer
    return graph, dependencies or []


@contextlib.contextmanager
def loop(kernels, left):
    """What is captured inside runs while *left, which it counts down, is not 0."""
    outer = torch.cuda.current_stream()
    graph, _ = capture_info(outer)
    context = done(driver.cuCtxGetCurrent())
    handle = done(
        driver.cuGraphConditionalHandleCreate(
            graph, context, 0, driver.CU_GRAPH_COND_ASSIGN_DEFAULT
        )
    )
    launch(kernels["enter"], handle, left)
    _, before = capture_info(outer)
    params = driver.CUgraphNodeParams()
    params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle = handle
    params.conditional.type = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
    params.conditional.size = 1
    params.conditional.ctx = context
    node = done(driver.cuGraphAddNode(graph, before, None, len(before), params))
    body = params.conditional.phGraph_out[0]
    done(
        driver.cuStreamUpdateCaptureDependencies(
            driver.CUstream(outer.cuda_stream), [node], None, 1, 1
        )
    )
    side = torch.cuda.Stream()
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    stream = driver.CUstream(side.cuda_stream)
    done(driver.cuStreamBeginCaptureToGraph(stream, body, None, None, 0, mode))
    try:
        with torch.cuda.stream(side):
            yield
            launch(kernels["count_down"], handle, left)
    finally:
        done(driver.cuStreamEndCapture(stream))


@pytest.fixture
def captured(kernels):
    """captured(probe) -> run(iterations, value): replays a graph in which a body adds 1 to a tensor
    that holds `value`, and probes it, so many times. Probes `before` see it in front of the body."""
    kept = []

    def make(*probes, before=()):
        x, left = torch.zeros(64, device="cuda"), torch.zeros(1, dtype=torch.int32, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="relaxed"):
            for probe in before:
                probe(x)
            with loop(kernels, left):
                x.add_(1)
                for probe in probes:
                    probe(x)
        kept.append((graph, x, left))

        def run(iterations, value):
            x.fill_(value)
            left.fill_(iterations)
            graph.replay()
            torch.cuda.synchronize()

        return run

    return make


RUNS = [7, 1, 0, 7]
PLACES = [*((1, i) for i in range(7)), (2, 0), *((4, i) for i in range(7))]


def test_records_know_replay_and_iteration(graph_probe, captured):
    probe = graph_probe(TensorRecord(64), lane="direct")
    run = captured(probe)
    for replay, iterations in enumerate(RUNS, 1):
        run(iterations, 100 * replay)
    records = probe.records()
    assert [(one.replay, one.iteration) for one in records] == PLACES
    for one in records:
        assert one.tensor.eq(100 * one.replay + one.iteration + 1).all(), one
    slot = probe.status().slots[0]
    assert (slot.in_body, slot.taken, slot.graph_replays, slot.accepted) == (True, 3, 4, 15)
    assert "taken in 3 of 4 replays" in str(slot)


def test_slots_in_front_of_a_body_and_in_it_count_for_themselves(graph_probe, captured):
    before = [graph_probe(TensorRecord(8), name=f"b{i}", lane="direct") for i in range(10)]
    inside = [graph_probe(TensorRecord(64), name=f"i{i}", lane="direct") for i in range(10)]
    run = captured(*inside, before=before)
    for replay, iterations in enumerate(RUNS, 1):
        run(iterations, 100 * replay)
    for probe in before:
        assert [one.tensor[0].item() for one in probe.records()] == [100, 200, 300, 400]
        assert probe.status().slots[0].accepted == 4
    for probe in inside:
        records = probe.records()
        assert [(one.replay, one.iteration) for one in records] == PLACES
        for one in records:
            assert one.tensor.eq(100 * one.replay + one.iteration + 1).all(), one
        assert probe.status().slots[0].accepted == 15


def test_the_daemon_shows_them_and_nothing_is_lost(graph_probe, captured, cli, daemon):
    name = "looped"
    probe = graph_probe(TensorRecord(64), TensorStats(), name=name, lane="direct")
    run = captured(probe)
    for replay, iterations in enumerate(RUNS, 1):
        run(iterations, 100 * replay)

    def seen():
        lines = cli("tail", "-n", "99", "--json", name).stdout.splitlines()
        events = [json.loads(line) for line in lines]
        return [(e["replay"], e["iteration"]) for e in events if e["event"] == "snapshot"]

    wait_until(lambda: len(seen()) >= len(PLACES), "the daemon has read all iterations")
    assert seen() == PLACES
    assert "taken in 3 of 4 replays" in cli("probes", name).stdout
    assert json.loads(cli("show", f"{name}@4.2", "--json").stdout)["stats"]["max"] == 403


def test_every_iteration_is_compared(graph_probe, captured, daemon):
    expected = torch.full((64,), 5.0)
    probe = graph_probe(TensorCompare(expected), lane="direct")
    run = captured(probe)
    run(1, 4)
    run(0, 4)
    probe.assert_ok()
    run(2, 4)  # the second finds 6
    with pytest.raises(cgdebug.TensorCompareMismatchError, match="replay 3"):
        probe.assert_ok()


def test_the_callback_lane_says_that_the_direct_lane_can(graph_probe, captured):
    probe = graph_probe(TensorRecord(4), lane="callback")
    with pytest.raises(ValueError, match="direct lane works there"):
        captured(probe)


@pytest.mark.skipif(
    importlib.util.find_spec("torch._higher_order_ops.cudagraph_conditional_nodes") is None,
    reason="torch before 2.12 captures no torch.cond",
)
def test_probes_in_the_branches_of_a_cond_that_torch_captures(graph_probe):
    from torch._higher_order_ops import cudagraph_conditional_nodes

    yes, no, after = (
        graph_probe(TensorRecord(16), name=name, lane="direct") for name in ("yes", "no", "after")
    )
    x, graph = torch.ones(64, device="cuda"), torch.cuda.CUDAGraph()
    with (
        torch.cuda.graph(graph, capture_error_mode="relaxed"),
        cudagraph_conditional_nodes.CUDAGraphCaptureControlFlowOpDispatchMode(),
    ):
        (y,) = torch.ops.higher_order.cond(
            x.sum() > 0, lambda x: (yes(x * 2),), lambda x: (no(x - 1),), (x,)
        )
        after(y)
    for value in (1, -1, -2, 3):
        x.fill_(value)
        graph.replay()
    torch.cuda.synchronize()

    def seen(probe):
        return [(one.replay, one.iteration, one.tensor[0].item()) for one in probe.records()]

    assert seen(yes) == [(1, 0, 2), (4, 0, 6)]
    assert seen(no) == [(2, 0, -2), (3, 0, -3)]
    assert [value for _, _, value in seen(after)] == [2, -2, -3, 6]
    assert "taken in 2 of 4 replays" in str(yes.status().slots[0])


def test_a_graph_with_a_conditional_node_is_not_launched_in_pieces(kernels, capsys):
    x, left = torch.zeros(64, device="cuda"), torch.zeros(1, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, capture_error_mode="relaxed"), loop(kernels, left):
        x.add_(1)
    own = _apart._Graph(raw=_apart.plain(torch.cuda.CUDAGraph.raw_cuda_graph))
    for _ in range(2):
        left.fill_(3)
        own.replay(graph, torch.cuda.CUDAGraph.replay)
    torch.cuda.synchronize()
    assert x[0].item() == 6
    told = capsys.readouterr().err
    assert "is launched as a whole" in told and "conditional node" in told, told
