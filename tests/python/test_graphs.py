"""The census of CUDA graphs without a GPU: a job that announces captures, the daemon and clients."""

import inspect
import json
import os
import time

import pytest
import torch

from cgdebug import TensorRecord, _graphs
from conftest import Job, wait_until

CAPTURES = """
    from cgdebug import _native
    p = CudaGraphTensorProbe("p", [TensorRecord()], mode="always")
    p(torch.ones(1))
    n = _native.probe_module()
    graph_label("bs=8")
    first, word = n.graph_begin(101, "serve.py:40 in capture < serve.py:12 in main")
    n.graph_end(first, 17, False)
    n.graph_pool(first, 0, 3)
    for _ in range(5):
        n.graph_counters()[word] += 1
    never, _ = n.graph_begin(102, "serve.py:50 in capture")
    n.graph_end(never, None, False)
    empty, _ = n.graph_begin(103, "serve.py:60 in capture")
    n.graph_end(empty, 0, False)
    broken, _ = n.graph_begin(104, "serve.py:70 in capture")
    n.graph_end(broken, None, True)
    for i in range(6):
        again, word = n.graph_begin(200 + i, "serve.py:80 in step")
        n.graph_end(again, 3, False)
        n.graph_counters()[word] += 1
        if i < 5:
            n.graph_gone(again)
    n.graph_counters()[0] += 2
    print("captured")
    sys.stdin.readline()
"""


@pytest.fixture
def captured(daemon, job):
    one = job(CAPTURES)
    assert one.line() == "captured"
    wait_until(
        lambda: any(s.pid == one.pid for s in daemon.connect().sessions()), "the daemon sees it"
    )
    return one


def test_the_client_knows_every_graph_from_its_capture_to_its_end(daemon, captured):
    (job,) = daemon.connect().graphs(session=captured.pid)
    assert (job.captures, job.gone, job.failed, job.empty) == (10, 5, 1, 1)
    assert (job.unlisted, job.unlisted_replays) == (0, 2)
    first, never, empty, broken = job.graphs[:4]
    assert (first.state, first.graph, first.nodes, first.replays) == ("live", "bs=8", 17, 5)
    assert first.pool == [0, 3] and first.graph_id == 101 and first.order == 1
    assert first.stack == "serve.py:40 in capture < serve.py:12 in main"
    assert first.begun_ns <= first.ended_ns <= time.time_ns()
    assert (never.graph, never.nodes, never.replays) == ("", None, 0)  # unknown is not 0
    assert (empty.nodes, broken.state) == (0, "failed")
    again = job.graphs[4:]
    assert [graph.state for graph in again] == ["gone"] * 5 + ["live"]
    assert (again[-1].alike, again[-1].alike_gone, again[-1].replays) == (6, 5, 1)


def test_the_command_lists_the_graphs_and_says_what_looks_wrong(cli, captured):
    shown = cli("graphs", str(captured.pid))
    assert shown.returncode == 0, shown.stderr
    assert "10 captures, 4 there now, 5 gone, 1 failed" in shown.stdout
    (row,) = [line for line in shown.stdout.splitlines() if "bs=8" in line]
    assert row.split()[:5] == ["1", "bs=8", "live", "17", "5"]
    assert "serve.py:40 in capture" in row and "serve.py:12" not in row
    (row,) = [line for line in shown.stdout.splitlines() if "capture 2 " in line]
    assert "unknown" in row
    hints = shown.stderr
    assert "never replayed" in hints and "--only unreplayed" in hints
    assert "1 graph is empty" in hints and "serve.py:60 in capture" in hints
    assert "1 capture ended with an error" in hints
    assert "serve.py:80 in step has captured 6 times, 5 of them" in hints
    assert "2 replays were of graphs that are not listed" in hints
    for line in hints.splitlines():
        assert "ype: cgdebug-cli" in line
    only = cli("graphs", str(captured.pid), "--only", "empty").stdout
    assert "capture 3" in only and "bs=8" not in only


def test_the_command_s_json_has_the_same_facts(cli, daemon, captured):
    shown = json.loads(cli("graphs", str(captured.pid), "--json").stdout)
    (told,) = daemon.connect().graphs(session=captured.pid)
    (session,) = shown["sessions"]
    assert session["captures"] == told.captures
    for by_command, by_client in zip(session["graphs"], told.graphs, strict=True):
        for name in ("order", "graph", "state", "nodes", "replays", "stack", "alike_gone"):
            assert by_command[name] == getattr(by_client, name)


def test_what_is_known_of_graphs_outlives_their_job(daemon, captured):
    captured.process.kill()
    captured.process.wait()

    def ended():
        (session,) = [s for s in daemon.connect().sessions() if s.pid == captured.pid]
        return session.state != "alive"

    wait_until(ended, "the session has ended")
    (job,) = daemon.connect().graphs(session=captured.pid)
    assert job.captures == 10 and job.graphs[0].replays == 5


def test_entries_of_graphs_that_are_gone_are_used_again(daemon, job):
    many: Job = job(
        """
        from cgdebug import _native
        p = CudaGraphTensorProbe("p", [TensorRecord()], mode="always")
        p(torch.ones(1))
        n = _native.probe_module()
        kept, word = n.graph_begin(1, "kept")
        n.graph_end(kept, 1, False)
        for i in range(5000):
            order, counter = n.graph_begin(2 + i, "again")
            n.graph_end(order, 1, False)
            n.graph_gone(order)
        n.graph_counters()[word] += 1
        print("done")
        sys.stdin.readline()
        """
    )
    assert many.line() == "done"
    wait_until(
        lambda: any(s.pid == many.pid for s in daemon.connect().sessions()), "the daemon sees it"
    )
    (told,) = daemon.connect().graphs(session=many.pid)
    assert (told.captures, told.gone, told.unlisted) == (5001, 5000, 0)
    assert len(told.graphs) == 4096
    assert (told.graphs[0].stack, told.graphs[0].replays) == ("kept", 1)
    assert told.graphs[-1].order == 5001 and told.graphs[-1].alike_gone == 4999


def test_a_job_without_captures_has_no_graphs(cli, daemon, probe):
    probe(TensorRecord())(torch.ones(1))
    answer = cli("graphs", str(os.getpid()))
    assert answer.returncode != 0 and "Type: cgdebug-cli" in answer.stderr


class FakeNative:
    """What the hooks call, without a capture."""

    def __init__(self):
        self.calls, self.words = [], [0] * 8

    def capture_of(self, stream):
        return 7

    def graph_begin(self, capture, stack):
        self.calls.append(("begin", capture, stack))
        return 3, 5

    def graph_counters(self):
        return self.words

    def __getattr__(self, name):
        return lambda *args, **kwargs: self.calls.append((name, *args, *kwargs.values()))


class FakeGraph:
    """torch.cuda.CUDAGraph needs a GPU; this has its methods, as torch 2.11 writes them."""

    def capture_begin(self, pool=None, capture_error_mode="global"):
        self.options = (pool, capture_error_mode)

    def capture_end(self):
        pass

    def replay(self):
        pass

    def reset(self):
        pass

    def pool(self):
        return (0, 9)


@pytest.fixture
def watched(monkeypatch):
    native = FakeNative()
    for name, value in (("_native", native), ("_counters", [0]), ("_counters_pid", 0)):
        monkeypatch.setattr(_graphs, name, value)
    monkeypatch.setattr(_graphs, "_current_stream", lambda: 1)
    graph_class = type("Graph", (FakeGraph,), {"_cgdebug_counter": 0, "_cgdebug_order": 0})
    _graphs._wrap(graph_class)
    return native, graph_class


def test_wrapped_methods_tell_of_a_graph_from_capture_to_end(watched):
    native, graph_class = watched
    graph = graph_class()
    graph.replay()  # was captured before
    graph.capture_begin((1, 2), capture_error_mode="relaxed")
    assert graph.options == ((1, 2), "relaxed")
    graph.capture_end()
    for _ in range(3):
        graph.replay()
    assert native.words[5] == 3
    assert [call[0] for call in native.calls] == ["begin", "graph_nodes", "graph_end", "graph_pool"]
    assert "test_graphs.py" in native.calls[0][2]
    assert native.calls[3] == ("graph_pool", 3, 0, 9)
    graph.reset()
    assert native.calls[4] == ("graph_gone", 3)
    graph.capture_begin()
    del graph
    assert native.calls[-1] == ("graph_gone", 3)


def test_a_capture_that_ends_with_an_error_is_reported_as_failed(watched):
    native, _ = watched

    class Broken(FakeGraph):
        _cgdebug_counter = _cgdebug_order = 0

        def capture_end(self):
            raise RuntimeError("operation failed due to a previous error during capture")

    _graphs._wrap(Broken)
    graph = Broken()
    graph.capture_begin()
    with pytest.raises(RuntimeError, match="previous error"):
        graph.capture_end()
    assert native.calls[-1] == ("graph_end", 3, None, True)


def test_counting_a_replay_costs_next_to_nothing(watched):
    _, graph_class = watched
    graph = graph_class()
    graph.capture_begin()

    def best(function):
        times = []
        for _ in range(20):
            began = time.perf_counter_ns()
            for _ in range(10_000):
                function()
            times.append((time.perf_counter_ns() - began) / 10_000)
        return min(times)

    plain = FakeGraph()
    assert best(graph.replay) - best(plain.replay) < 500  # ns; below 200 on an idle machine


@pytest.mark.skipif(
    not hasattr(torch.cuda.graphs, "register_graph_replay_start_hook"),
    reason="torch before 2.14 has no hooks",
)
def test_torch_has_the_hooks_that_the_census_uses():
    for name in _graphs._HOOKS:
        hook = getattr(torch.cuda.graphs, name)
        assert list(inspect.signature(hook).parameters) == ["fn"]
        handle = hook(lambda graph: None)
        handle.remove()
    assert _graphs._hooks_of_torch() is not None


def test_the_census_follows_this_torch(probe):
    probe(TensorRecord())
    assert _graphs._watched is torch.cuda.CUDAGraph
    hooks = _graphs._hooks_of_torch()
    assert bool(_graphs._handles) == (hooks is not None)
    for method in ("capture_begin", "capture_end", "replay", "reset"):
        wrapped = hasattr(getattr(torch.cuda.CUDAGraph, method), "__wrapped__")
        assert wrapped == (hooks is None or method == "reset")
