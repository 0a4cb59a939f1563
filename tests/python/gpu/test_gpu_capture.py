"""Probes inside captured CUDA graphs: what arrives is what the graph computed."""

import threading

import pytest
import torch
from all_dtypes import NAMES, made_of

import cgdebug
from cgdebug import TensorCompare, TensorRecord, drain_records
from conftest import capture

pytestmark = pytest.mark.gpu


def values(p, **options):
    return [r.tensor.flatten()[0].item() for r in p.records(synchronize=True, **options)]


def counting(p, size=4096, dtype=torch.float32):
    """Returns a graph in which x grows by one and is probed, and x."""
    x = torch.zeros(size, device="cuda", dtype=dtype)

    def step():
        x.add_(1)
        return p(x)

    graph, _ = capture(step)
    x.zero_()
    return graph, x


def test_warm_up_leaves_nothing_and_replays_are_seen(graph_probe):
    p = graph_probe(TensorRecord(), name="blk.out")
    graph, _ = counting(p)
    assert p.records(synchronize=True) == []
    for _ in range(3):
        graph.replay()
    records = p.records(synchronize=True)
    assert [(r.replay_index, r.tensor.unique().tolist()) for r in records] == [
        (1, [1]),
        (2, [2]),
        (3, [3]),
    ]
    first = records[0]
    assert (first.probe_name, first.shape, first.device) == ("blk.out", (4096,), "cuda:0")
    assert first.graph_id > 0 and first.invocation_index == 0 and first.tensor.device.type == "cpu"


def test_probe_returns_the_same_object_inside_a_capture(graph_probe):
    p, x = graph_probe(TensorRecord()), torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert p(x) is x


@pytest.mark.parametrize("capacity, size", [(16, 1024), (64, 1 << 16), (3, 1 << 20)])
def test_the_last_of_1000_replays_without_a_synchronize_are_exact(graph_probe, capacity, size):
    p = graph_probe(TensorRecord(capacity=capacity))
    pattern = torch.randn(size, device="cuda")
    x = torch.zeros(size, device="cuda")

    def step():
        x.add_(1)
        return p(x * pattern)

    graph, _ = capture(step)
    x.zero_()
    for _ in range(1000):
        graph.replay()
    records = p.records(synchronize=True)
    assert [r.replay_index for r in records] == list(range(1001 - capacity, 1001))
    for record in records:
        expected = (torch.full_like(x, record.replay_index) * pattern).cpu()
        assert torch.equal(record.tensor.view(torch.int32), expected.view(torch.int32))


def test_a_value_overwritten_right_after_the_probe_is_the_one_before(graph_probe):
    p = graph_probe(TensorRecord())
    x = torch.zeros(1 << 20, device="cuda")

    def step():
        x.fill_(1)
        p(x)
        x.fill_(2)
        p(x)
        x.fill_(3)

    graph, _ = capture(step)
    for _ in range(5):
        graph.replay()
    records = p.records(synchronize=True)
    assert len(records) == 10
    for record in records:
        assert (record.tensor == record.invocation_index + 1).all()


def test_memory_of_a_temporary_may_be_reused_by_the_graph(graph_probe):
    p = graph_probe(TensorRecord(capacity=64))
    x = torch.zeros(1 << 16, device="cuda")

    def step():
        for i in range(8):
            p(x + i)  # each result gets the block that the one before gave back
        x.add_(8)

    graph, _ = capture(step)
    x.zero_()
    for _ in range(8):
        graph.replay()
    for record in p.records(synchronize=True):
        assert (record.tensor == 8 * (record.replay_index - 1) + record.invocation_index).all()


def test_outputs_are_bit_identical_with_and_without_probes(graph_probe):
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)]).cuda()
    x = torch.randn(64, 256, device="cuda")
    inputs = [torch.randn(64, 256, device="cuda") for _ in range(5)]

    def run(look):
        def step():
            y = x
            for layer in layers:
                y = look(torch.relu(layer(y)))
            return y

        with torch.no_grad():
            graph, y = capture(step)
        outputs = []
        for value in inputs:
            x.copy_(value)
            graph.replay()
            outputs.append(y.clone())
        torch.cuda.synchronize()
        return outputs

    plain = run(lambda y: y)
    p = graph_probe(TensorRecord(capacity=5))
    probed = run(p)
    assert all(torch.equal(a, b) for a, b in zip(plain, probed))
    last = [r for r in p.records(synchronize=True) if r.invocation_index == 5]
    assert [torch.equal(r.tensor, y.cpu()) for r, y in zip(last, plain)] == [True] * 5


@pytest.mark.parametrize("dtype", NAMES)
def test_every_dtype_arrives_bit_for_bit(graph_probe, dtype):
    p = graph_probe(TensorRecord())
    x = made_of(torch.randint(-(2**62), 2**62, (129, 3)), dtype).cuda()
    graph, _ = capture(lambda: p(x))
    graph.replay()
    (record,) = p.records(synchronize=True)
    assert record.dtype == x.dtype and torch.equal(
        record.tensor.view(torch.uint8), x.cpu().view(torch.uint8)
    )


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1,) * 16])
def test_unusual_shapes_arrive(graph_probe, shape):
    p = graph_probe(TensorRecord())
    x = torch.full(shape, 2.0, device="cuda")
    graph, _ = capture(lambda: p(x))
    graph.replay()
    graph.replay()
    assert [r.shape for r in p.records(synchronize=True)] == [shape, shape]
    assert (p.records()[1].tensor == 2).all()


def test_many_calls_in_one_capture_are_told_apart(graph_probe):
    p = graph_probe(TensorRecord(capacity=2))
    x = torch.zeros(16, device="cuda")
    graph, _ = capture(lambda: [p(x + i) for i in range(50)])
    for i in range(3):
        x.fill_(100 * i)
        graph.replay()
    records = p.records(synchronize=True)
    found = {(r.replay_index, r.invocation_index): r.tensor[0].item() for r in records}
    assert found == {(n, i): 100 * (n - 1) + i for n in (2, 3) for i in range(50)}
    assert len({r.graph_id for r in records}) == 1


def test_calls_in_one_capture_may_differ_in_shape_and_dtype(graph_probe):
    p = graph_probe(TensorRecord())
    a, b = torch.ones(3, device="cuda"), torch.ones(2, 2, device="cuda", dtype=torch.int64)
    graph, _ = capture(lambda: (p(a), p(b)))
    graph.replay()
    assert [(r.shape, r.dtype) for r in p.records(synchronize=True)] == [
        ((3,), a.dtype),
        ((2, 2), b.dtype),
    ]


def test_one_probe_in_several_captures(graph_probe):
    p = graph_probe(TensorRecord())
    graphs = []
    for size in (4, 8, 4):
        x = torch.zeros(size, device="cuda")
        graph, _ = capture(lambda x=x: p(x.add_(1)))
        x.zero_()
        graphs.append((graph, x))
    for graph in (graphs[0], graphs[1], graphs[0], graphs[2]):
        graph[0].replay()
    records = p.records(synchronize=True)
    ids = sorted({r.graph_id for r in records})
    found = sorted(
        (ids.index(r.graph_id), r.shape, r.replay_index, r.tensor[0].item()) for r in records
    )
    assert found == [(0, (4,), 1, 1), (0, (4,), 2, 2), (1, (8,), 1, 1), (2, (4,), 1, 1)]
    assert p.status().captures == 3


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_every_capture_error_mode(graph_probe, mode):
    p = graph_probe(TensorRecord())
    x = torch.zeros(1000, device="cuda")
    graph, _ = capture(lambda: p(x.add_(1)), warmup=0, capture_error_mode=mode)
    for _ in range(2):
        graph.replay()
    assert values(p) == [1, 2]


def test_fork_and_join_over_side_streams(graph_probe):
    main, left, right = (
        graph_probe(TensorRecord(), name=name) for name in ("main", "left", "right")
    )
    x = torch.zeros(4096, device="cuda")
    first, second = torch.cuda.Stream(), torch.cuda.Stream()

    def step():
        x.add_(1)
        current = torch.cuda.current_stream()
        first.wait_stream(current)
        second.wait_stream(current)
        with torch.cuda.stream(first):
            a = left(x * 2)
        with torch.cuda.stream(second):
            b = right(x * 3)
        current.wait_stream(first)
        current.wait_stream(second)
        return main(a + b)

    graph, out = capture(step)
    x.zero_()
    for _ in range(20):
        graph.replay()
    assert values(main, last=3) == [90, 95, 100] and out[0].item() == 100
    assert values(left, last=3) == [36, 38, 40] and values(right, last=3) == [54, 57, 60]


def test_a_side_stream_that_ends_with_a_probe_needs_no_further_join(graph_probe):
    p = graph_probe(TensorRecord())
    x, side = torch.zeros(64, device="cuda"), torch.cuda.Stream()

    def step():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = p(x + 7)
        torch.cuda.current_stream().wait_stream(side)
        return y

    graph, _ = capture(step)
    graph.replay()
    assert values(p) == [7]


def test_non_contiguous_is_refused_by_default(graph_probe):
    p, x = graph_probe(TensorRecord()), torch.ones(4, 6, device="cuda")
    with pytest.raises(ValueError, match='not contiguous.*non_contiguous="copy"'):
        capture(lambda: p(x.t()))
    torch.cuda.synchronize()
    graph, _ = capture(lambda: p(x))
    graph.replay()
    assert len(p.records(synchronize=True)) == 1 and "not contiguous" in (
        p.status().error or "not contiguous"
    )


def test_non_contiguous_copy_packs(graph_probe):
    p = graph_probe(TensorRecord(), non_contiguous="copy")
    x = torch.arange(24.0, device="cuda").reshape(4, 6)
    graph, y = capture(lambda: p(x.t()))
    assert y.shape == (6, 4) and not y.is_contiguous()
    graph.replay()
    x.mul_(2)
    graph.replay()
    first, second = p.records(synchronize=True)
    assert torch.equal(first.tensor, torch.arange(24.0).reshape(4, 6).t())
    assert torch.equal(second.tensor, first.tensor * 2)


def test_unsupported_dtype_breaks_only_that_capture(graph_probe):
    p = graph_probe(TensorRecord())
    with pytest.raises(ValueError, match="not supported"):
        capture(lambda: p(torch.ones(2, dtype=torch.complex64, device="cuda")), warmup=0)
    torch.cuda.synchronize()
    graph, _ = counting(p)
    graph.replay()
    assert values(p) == [1]


def test_prepared_probe_captures_the_same(graph_probe):
    p, x = graph_probe(TensorRecord()), torch.ones(1 << 18, device="cuda")
    p.prepare(x)
    p.prepare(x)
    graph, _ = capture(lambda: (p(x), p(x)))
    graph.replay()
    assert [r.invocation_index for r in p.records(synchronize=True)] == [0, 1]


def test_step_is_read_at_replay(graph_probe):
    p = graph_probe(TensorRecord())
    graph, _ = counting(p)
    for number in (10, 11):
        cgdebug.step(number)
        graph.replay()
        torch.cuda.synchronize()
    cgdebug.step(None)
    graph.replay()
    assert [r.step for r in p.records(synchronize=True)] == [10, 11, None]


def test_record_keeps_every_nth_replay(graph_probe):
    p = graph_probe(TensorRecord(capacity=4, every=5))
    graph, _ = counting(p)
    for _ in range(23):
        graph.replay()
    assert [(r.replay_index, r.tensor[0].item()) for r in p.records(synchronize=True)] == [
        (6, 6),
        (11, 11),
        (16, 16),
        (21, 21),
    ]


def test_drain_between_replays_misses_none(graph_probe):
    p, seen = graph_probe(TensorRecord(capacity=8)), []
    graph, _ = counting(p)
    for _ in range(10):
        for _ in range(8):
            graph.replay()
        drain_records(p, seen.append)
    assert [r.tensor[0].item() for r in seen] == list(range(1, 81)) and p.records() == []


def test_mode_always_sees_eager_calls_and_replays(graph_probe):
    p = graph_probe(TensorRecord(), mode="always")
    x = torch.zeros(100, device="cuda")
    for _ in range(3):
        p(x.add_(1))
    graph, _ = capture(lambda: p(x.add_(1)), warmup=0)
    graph.replay()
    records = p.records(synchronize=True)
    assert [(r.graph_id > 0, r.tensor[0].item()) for r in records] == [
        (False, 1),
        (False, 2),
        (False, 3),
        (True, 4),
    ]


def test_reading_during_a_capture_is_refused_or_harmless(graph_probe):
    p, x = graph_probe(TensorRecord(), TensorCompare(torch.ones(4))), torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        p(x)
        assert p.records() == [] and p.status().captures == 1
        for call in (lambda: p.records(synchronize=True), p.assert_ok):
            with pytest.raises(RuntimeError, match="after the capture"):
                call()
    graph.replay()
    assert values(p) == [1]


def test_graphs_captured_by_several_threads(graph_probe):
    probes = {n: graph_probe(TensorRecord(), name=f"t{n}") for n in (1, 2, 3)}

    def work(number, p):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x = torch.zeros(1000, device="cuda")
            stream.synchronize()
            with lock:  # torch's allocator takes one capture at a time; replays run together
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    p(x.add_(number))
            for _ in range(50):
                graph.replay()
            stream.synchronize()

    lock = threading.Lock()
    threads = [threading.Thread(target=work, args=item) for item in probes.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Read at the end: no thread may wait for the device while another captures.
    assert {n: values(p, last=2) for n, p in probes.items()} == {
        n: [49 * n, 50 * n] for n in probes
    }


@pytest.mark.usefixtures("daemon")
def test_threads_that_capture_at_once_have_each_their_probe_and_their_log(graph_probe):
    """Each captures between the beginning and the end of the other's capture."""
    probes = {n: graph_probe(TensorRecord(), name=f"at_once{n}") for n in (1, 2)}
    both_capture, both_are_done = threading.Barrier(2, timeout=60), threading.Barrier(2, timeout=60)
    graphs, logs, inputs, failures = {}, {}, {}, []

    def work(number, p):
        stream = torch.cuda.Stream()
        graph, x = torch.cuda.CUDAGraph(), inputs[number]
        try:
            with torch.cuda.stream(stream), cgdebug.debug_mode() as log:
                graph.capture_begin(capture_error_mode="thread_local")
                both_capture.wait()
                y = p(x * number)
                y.add_(number)
                both_are_done.wait()
                graph.capture_end()
        except BaseException as error:
            failures.append(error)
            both_capture.abort()
            both_are_done.abort()
            raise
        graphs[number], logs[number] = graph, (log, y)

    for number in probes:
        inputs[number] = torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=item) for item in probes.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for turn in (1, 2):
        for number, graph in graphs.items():
            inputs[number].fill_(turn * 10)
            graph.replay()
        torch.cuda.synchronize()
        for number, p in probes.items():
            assert values(p, last=1) == [turn * 10 * number]
            log, _ = logs[number]
            assert [row.op for row in log.log()] == ["input", "aten.mul.Tensor", "aten.add_.Tensor"]
            assert log.log()[-1].stats.mean == turn * 10 * number + number
