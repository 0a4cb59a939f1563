"""Labels and serials of captured graphs, in both lanes."""

import uuid

import pytest
import torch

import cgdebug
from cgdebug import TensorRecord, TensorStats
from conftest import capture, wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("daemon")]


def filled(graph, x, value):
    x.fill_(value)
    graph.replay()


def test_slots_of_a_replay_share_its_serial_and_replays_ascend(graph_probe):
    p, q = graph_probe(TensorRecord(64), name="p"), graph_probe(TensorRecord(64), name="q")
    x = torch.ones(8, device="cuda")
    first, _ = capture(lambda: (p(x), q(x), p(x)))
    second, _ = capture(lambda: p(x))
    for _ in range(10):
        first.replay()
        second.replay()
    torch.cuda.synchronize()
    of_p, of_q = p.records(synchronize=True), q.records(synchronize=True)
    assert [r.serial for r in of_p] == sorted(r.serial for r in of_p)
    graphs = list(dict.fromkeys(r.graph_id for r in of_p))
    serials = [sorted({r.serial for r in of_p if r.graph_id == graph_id}) for graph_id in graphs]
    assert [len(one) for one in serials] == [10, 10]
    assert [r.serial for r in of_q] == serials[0]
    merged = sorted((serial, graph) for graph, one in enumerate(serials) for serial in one)
    assert [graph for _, graph in merged] == [0, 1] * 10


def test_replays_of_graphs_on_many_streams_have_serials_of_their_own(graph_probe):
    graph_count, replays = 16, 400
    p = graph_probe(TensorRecord(512), name="p")
    x = torch.ones(4, device="cuda")
    graphs = [capture(lambda: p(x))[0] for _ in range(graph_count)]
    streams = [torch.cuda.Stream() for _ in graphs]
    torch.cuda.synchronize()
    for _ in range(replays):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    serials = [r.serial for r in p.records(synchronize=True)]
    assert len(serials) == graph_count * replays
    assert len(set(serials)) == len(serials)


def test_large_and_small_probes_of_a_replay_share_its_serial(graph_probe):
    p = graph_probe(TensorRecord(8), name="p")
    q = graph_probe(TensorRecord(8), name="q")
    s = graph_probe(TensorStats(), name="s")
    large, small = torch.ones(4 << 20, device="cuda"), torch.ones(4, device="cuda")
    graph, _ = capture(lambda: (p(large), q(small), s(small), q(small)))
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    of_p = [r.serial for r in p.records(synchronize=True)]
    of_q = sorted({r.serial for r in q.records(synchronize=True)})
    assert of_p == of_q and len(of_p) == 5


def test_the_first_nan_of_two_graphs_is_the_earlier_one(daemon, graph_probe):
    p = graph_probe(TensorRecord(64), name="v")
    # A label stays that of the graph which had it first, also when that graph is gone.
    tag = uuid.uuid4().hex[:8]
    few, many = f"{tag} bs=8", f"{tag} bs=64"
    small, large = torch.ones(8, device="cuda"), torch.ones(64, device="cuda")
    with cgdebug.graph_label(few):
        often, _ = capture(lambda: p(small))
    cgdebug.graph_label(many)
    seldom, _ = capture(lambda: p(large))
    filled(seldom, large, 1)
    for _ in range(49):
        filled(often, small, 1)
    filled(often, small, float("nan"))
    filled(seldom, large, float("nan"))
    torch.cuda.synchronize()
    p.status()

    def firsts():
        with daemon.connect() as client:
            slots = [one for one in client.probes("v") if one.first_nan and not one.retired]
            return len(slots) == 2 and {one.graph: one.first_nan for one in slots}

    first = wait_until(firsts, "both graphs have shown NaN")
    assert first[few].replay == 50 and first[many].replay == 2
    assert first[few].serial < first[many].serial
    with daemon.connect() as client:
        assert client.get("v", 2, graph_id=p.status().slots[1].graph_id).graph == many


def test_a_label_names_one_graph_and_a_with_block_all_in_it(graph_probe):
    p = graph_probe(TensorRecord(4), name="p")
    x = torch.ones(4, device="cuda")
    cgdebug.graph_label("one")
    capture_of = lambda: capture(lambda: p(x))[0]  # noqa: E731
    graphs = [capture_of(), capture_of()]
    with cgdebug.graph_label("block"):
        graphs += [capture_of(), capture_of()]
    graphs.append(capture_of())
    assert [slot.graph_label for slot in p.status().slots] == ["one", "", "block", "block", ""]


def test_a_label_inside_a_capture_names_that_graph(graph_probe):
    p = graph_probe(TensorRecord(4), name="p")
    x = torch.ones(4, device="cuda")

    def step():
        cgdebug.graph_label("inside")
        p(x)

    graph, _ = capture(step, warmup=0)
    other, _ = capture(lambda: p(x))
    assert [slot.graph_label for slot in p.status().slots] == ["inside", ""]
