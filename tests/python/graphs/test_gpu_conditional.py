"""Probes in the bodies of conditional nodes of torch's captures, made by hand with the CUDA driver, and
from torch 2.12 on by torch itself."""

import importlib.util
import json

import pytest
import torch

import cgdebug
from cgdebug import TensorCompare, TensorRecord, TensorStats
from cgdebug._job import _apart
from conftest import wait_until

pytest.importorskip("cuda.bindings.driver")
pytest.importorskip("cuda.bindings.nvrtc")
captured_loop = pytest.importorskip("captured_loop")
pytestmark = [pytest.mark.gpu, pytest.mark.own_lane]


@pytest.fixture(scope="module")
def kernels():
    return captured_loop.load_kernels()


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
            with captured_loop.loop(kernels, left):
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


def test_blocking_launches_a_loop_as_one_and_the_rest_in_pieces(kernels, capsys):
    x, left = torch.zeros(64, device="cuda"), torch.zeros(1, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        with captured_loop.loop(kernels, left):
            x.add_(1)
        y = x * 2
        y.add_(1)
    raw, exec_of = (getattr(torch.cuda.CUDAGraph, f"raw_cuda_graph{end}") for end in ("", "_exec"))
    own = _apart._Graph(_apart.plain(raw), _apart.plain(exec_of))
    own.capture = 1
    for replay in (1, 2):
        left.fill_(3)
        own.replay(graph, torch.cuda.CUDAGraph.replay)
        torch.cuda.synchronize()
        assert (x[0].item(), y[0].item()) == (3 * replay, 6 * replay + 1)
    kinds = [[own._pieces.nodes[node]["kind"] for node in piece] for piece in own._pieces.pieces]
    assert kinds == [["kernel", "conditional_node"], ["kernel"], ["kernel"]]
    own.leave_whole(graph, "somebody launches it")
    left.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    assert y[0].item() == 19
    assert "is launched as a whole" in capsys.readouterr().err
