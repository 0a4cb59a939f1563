"""The memory of a probe is freed when no replay of its graph is left, and not before. The graphs here
belong to Python, which counts their replays; no user object of CUDA tells of their end."""

import contextlib
import ctypes
import gc
import random
import threading
import time

import pytest
import torch

from cgdebug import CudaGraphTensorProbe, TensorRecord
from cgdebug._job import _graphs, _native
from conftest import wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.own_lane]

SETTLED_S = 0.3  # several times what libprobe waits once all replays have finished


def new_probe(name="p", **options):
    return CudaGraphTensorProbe(name, [TensorRecord(**{"capacity": 64, **options})], lane="direct")


def capture(function, graph=None):
    """Like torch.cuda.graph, but waits for nothing."""
    graph = torch.cuda.CUDAGraph() if graph is None else graph
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    gc.disable()  # a dead graph that is collected during a capture breaks the capture
    try:
        with torch.cuda.stream(side):
            graph.capture_begin(pool=None, capture_error_mode="thread_local")
            function()
            graph.capture_end()
    finally:
        gc.enable()
    torch.cuda.current_stream().wait_stream(side)
    return graph


def slots():
    new_probe().close()  # what is over is freed by a later call
    return _native.probe_module().session()["slots"]


def slots_stay(count):
    """Whether that many slots are there for as long as it takes to free what is over."""
    gc.collect()
    until = time.monotonic() + SETTLED_S
    while time.monotonic() < until:
        if slots() != count:
            return False
        time.sleep(0.01)
    return True


def await_slots(most, what):
    gc.collect()
    wait_until(lambda: slots() <= most, what)


@pytest.fixture
def before():
    """Slots that earlier tests left. The pool has memory: no call below has to wait for the GPU."""
    p, x = new_probe(), torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    graph = capture(lambda: p(x))
    graph.replay()
    torch.cuda.synchronize()
    gc.collect()
    held = slots()
    p.close()
    del graph
    await_slots(held - 1, "the warm-up's slot is freed")
    seen = []

    def calm():
        seen.append(slots())
        return len(seen) > 20 and len(set(seen[-20:])) == 1

    wait_until(calm, "nothing of earlier tests is being freed")
    return seen[-1]


@contextlib.contextmanager
def held_stream():
    """Nothing that is enqueued meanwhile on the current stream runs."""
    driver = ctypes.CDLL("libcuda.so.1")
    gate = torch.zeros(1, dtype=torch.int32).pin_memory()
    stream = torch.cuda.Stream()
    overdue = threading.Timer(20, lambda: gate.fill_(2))  # of a call that waits for the stream
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        wait = driver.cuStreamWaitValue32_v2
        handle, word = ctypes.c_void_p(stream.cuda_stream), ctypes.c_uint64(gate.data_ptr())
        assert wait(handle, word, ctypes.c_uint32(1), ctypes.c_uint(0)) == 0
        overdue.start()
        try:
            yield
            assert gate.item() == 0, "a call waited for the stream"
        finally:
            overdue.cancel()
            gate.fill_(1)
            torch.cuda.synchronize()


def launch(exec_handle):
    stream = torch.cuda.current_stream().cuda_stream
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuGraphLaunch(ctypes.c_void_p(exec_handle), ctypes.c_void_p(stream)) == 0


# --- nothing is freed early --------------------------------------------------------------------


@pytest.mark.parametrize("end", ["del", "reset"])
def test_replays_that_are_under_way_keep_the_memory(before, end):
    p, x = new_probe(), torch.zeros(1000, device="cuda")
    graph = capture(lambda: p(x.add_(1)))
    graph.replay()
    torch.cuda.synchronize()
    with held_stream():
        for _ in range(3):
            graph.replay()
        if end == "reset":
            graph.reset()
        graph = None
        p.close()
        assert slots_stay(before + 1)
        # What is captured meanwhile gets other memory.
        other, y = new_probe("other"), torch.zeros(1000, device="cuda")
        second = capture(lambda: other(y.add_(10)))
    assert x[0].item() == 4
    for _ in range(3):
        second.replay()
    torch.cuda.synchronize()
    assert [float(r.tensor.unique()) for r in other.records()] == [10, 20, 30]
    await_slots(before + 1, "the first graph's slot is freed")
    other.close()
    del second
    await_slots(before, "everything is freed")


def test_many_slots_of_one_graph_are_freed_when_the_last_replay_is_over(before):
    probes, x = [new_probe(f"p{k}") for k in range(20)], torch.zeros(1000, device="cuda")
    graph = capture(lambda: [p(x.add_(1)) for p in probes])
    with held_stream():
        for _ in range(3):
            graph.replay()
        probes.pop(3).close()
        graph = None
        assert slots_stay(before + 20)
    assert x[0].item() == 60
    for k, p in enumerate(probes):
        first = k + 1 if k < 3 else k + 2
        assert [float(r.tensor.unique()) for r in p.records()] == [first, first + 20, first + 40]
    for p in probes[::-1]:
        p.close()
    await_slots(before, "every slot is freed")


def test_records_of_replays_that_finish_after_their_graph_are_whole(before):
    p, x = new_probe(), torch.zeros(1000, device="cuda")
    graph = capture(lambda: p(x.add_(1)))
    with held_stream():
        for _ in range(5):
            graph.replay()
        graph = None
        gc.collect()
        assert p.status(timeout=0).slots[0].retired  # its graph is gone
        assert p.records() == []
    assert [float(r.tensor.unique()) for r in p.records()] == [1, 2, 3, 4, 5]
    p.close()
    await_slots(before, "the slot is freed")


def test_an_exec_that_was_launched_past_torch_keeps_its_memory_and_its_values_are_right(before):
    p, x = new_probe(), torch.zeros(1000, device="cuda")
    graph = capture(lambda: p(x.add_(1)))
    handle = graph.raw_cuda_graph_exec()
    graph.replay()
    torch.cuda.synchronize()
    with held_stream():
        for _ in range(3):
            launch(handle)
        graph.replay()
        graph = None
        assert slots_stay(before + 1)
        other, y = new_probe("other"), torch.zeros(1000, device="cuda")
        second = capture(lambda: other(y.add_(10)))
    second.replay()
    torch.cuda.synchronize()
    assert [float(r.tensor.unique()) for r in p.records()] == [1, 2, 3, 4, 5]
    assert [float(r.tensor.unique()) for r in other.records()] == [10]
    p.close()
    other.close()
    del second
    await_slots(before + 1, "the other graph's slot is freed")
    assert slots_stay(before + 1)


def test_a_replay_that_is_missing_in_the_count_keeps_the_memory(before):
    p, x = new_probe(), torch.zeros(1000, device="cuda")
    graph = capture(lambda: p(x.add_(1)))
    graph.replay()
    torch._C._CUDAGraph.replay(graph)  # below what is wrapped
    torch.cuda.synchronize()
    if _graphs._handles:
        pytest.skip("this torch's hooks are below as well")
    assert [float(r.tensor.unique()) for r in p.records()] == [1, 2]
    del graph
    p.close()
    assert slots_stay(before + 1)


def test_a_graph_that_becomes_part_of_another_keeps_its_memory(job):
    nested = job(
        """
        import gc
        from cgdebug._job import _native
        p = CudaGraphTensorProbe("p", [TensorRecord(64)], lane="direct")
        x = torch.zeros(100, device="cuda")
        inner, outer = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(inner):
            p(x.add_(1))
        try:
            with torch.cuda.graph(outer):
                inner.replay()
        except RuntimeError:
            print("refused")
            os._exit(0)
        del inner
        gc.collect()
        for _ in range(3):
            outer.replay()
        torch.cuda.synchronize()
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            p.status()
            time.sleep(0.01)
        outer.replay()
        torch.cuda.synchronize()
        print([float(r.tensor.unique()) for r in p.records()])
        """
    )
    said = nested.line()
    if said == "refused":
        pytest.skip("CUDA does not capture the launch of a graph")
    assert said == "[1.0, 2.0, 3.0, 4.0]"
    nested.finish()


def test_a_graph_that_another_library_captures_keeps_its_memory(job):
    nested = job(
        """
        import ctypes
        import gc
        from cgdebug._job import _native
        cuda = ctypes.CDLL("libcuda.so.1")
        p = CudaGraphTensorProbe("p", [TensorRecord(64)], lane="direct")
        x = torch.zeros(100, device="cuda")
        inner = torch.cuda.CUDAGraph()
        with torch.cuda.graph(inner):
            p(x.add_(1))
        # Whatever captures it, torch does not know.
        stream, outer, runnable = torch.cuda.Stream(), ctypes.c_void_p(), ctypes.c_void_p()
        handle = ctypes.c_void_p(stream.cuda_stream)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            assert cuda.cuStreamBeginCapture_v2(handle, 2) == 0
            try:
                inner.replay()
            except RuntimeError:
                print("refused")
                os._exit(0)
            assert cuda.cuStreamEndCapture(handle, ctypes.byref(outer)) == 0
        flags = ctypes.c_ulonglong(0)
        assert cuda.cuGraphInstantiateWithFlags(ctypes.byref(runnable), outer, flags) == 0
        del inner
        gc.collect()
        assert cuda.cuGraphLaunch(runnable, handle) == 0
        torch.cuda.synchronize()
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            p.status()
            time.sleep(0.01)
        for _ in range(2):
            assert cuda.cuGraphLaunch(runnable, handle) == 0
        torch.cuda.synchronize()
        print([float(r.tensor.unique()) for r in p.records()])
        """
    )
    said = nested.line()
    if said == "refused":
        pytest.skip("CUDA does not capture the launch of a graph")
    assert said == "[1.0, 2.0, 3.0]"
    nested.finish()


# --- everything is freed in the end --------------------------------------------------------------


@pytest.mark.alone
def test_a_thousand_captures_that_end_in_any_order_leave_memory_flat(before):
    order = random.Random(7)
    x = torch.zeros(1000, device="cuda")
    kept, cycles = [], []

    def one(i):
        probes = [new_probe(f"p{k}", capacity=2) for k in range(2)]
        graph = capture(lambda: [p(x.add_(1)) for p in probes])
        for _ in range(order.randrange(3)):
            graph.replay()
        ends = [p.close for p in probes] + [graph.reset]
        order.shuffle(ends)
        for end in ends[: order.randrange(4)]:
            end()
        if i % 3 == 0:
            cycle = [probes, graph]
            cycle.append(cycle)  # only the garbage collector ends these
            cycles.append(cycle)
        elif i % 3 == 1:
            kept.append((probes, graph))
            order.shuffle(kept)
            if len(kept) > 5:
                kept.pop()
        del cycles[:-3]
        if i % 100 == 0:
            gc.collect()

    def settle():
        kept.clear()
        cycles.clear()
        torch.cuda.synchronize()
        await_slots(before, "every slot is freed")

    def used():
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return total - free, _native.probe_module().session()["shm_bytes"]

    for i in range(100):
        one(i)
    settle()
    device_before, shm_before = used()
    for i in range(1000):
        one(i)
        if i % 100 == 0:
            settle()  # as a job that does something else meanwhile
    settle()
    device_after, shm_after = used()
    assert shm_after <= shm_before + (64 << 20)
    assert device_after <= device_before + (32 << 20)


def test_replays_of_several_execs_of_one_capture_add_up(before):
    p, x = new_probe(), torch.zeros(1000, device="cuda")
    graph = capture(lambda: p(x.add_(1)), torch.cuda.CUDAGraph(keep_graph=True))
    for _ in range(3):
        graph.instantiate()
        graph.replay()
        graph.replay()
        torch.cuda.synchronize()
    assert [float(r.tensor.unique()) for r in p.records()] == [1, 2, 3, 4, 5, 6]
    p.close()
    assert slots_stay(before + 1)
    del graph
    await_slots(before, "the slot is freed")


def test_one_object_that_captures_again_after_reset_counts_anew(before):
    graph, x = torch.cuda.CUDAGraph(), torch.zeros(1000, device="cuda")
    for i in range(1, 4):
        p = new_probe()
        capture(lambda p=p: p(x.add_(1)), graph)
        for _ in range(i):
            graph.replay()
        torch.cuda.synchronize()
        assert len(p.records()) == i
        graph.reset()
        p.close()
    await_slots(before, "every slot is freed")


def test_a_replay_that_torch_refuses_is_not_waited_for(before):
    if _graphs._handles:
        pytest.skip("torch's hooks do not tell; the memory is kept")
    p, x = new_probe(), torch.zeros(1000, device="cuda")
    graph, elsewhere = torch.cuda.CUDAGraph(), torch.cuda.Stream()

    def early():
        p(x.add_(1))
        with torch.cuda.stream(elsewhere), pytest.raises(RuntimeError, match="capture"):
            graph.replay()

    capture(early, graph)
    graph.replay()
    torch.cuda.synchronize()
    p.close()
    graph = None
    await_slots(before, "the slot is freed")


def test_replays_of_several_threads_are_all_counted(before):
    p, x = new_probe(), torch.zeros(1000, device="cuda")
    graph, one_at_a_time = capture(lambda: p(x.add_(1))), threading.Lock()

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                with one_at_a_time:
                    graph.replay()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert p.status().slots[0].replays == 200
    p.close()
    graph = None
    await_slots(before, "the slot is freed")


def test_probes_that_are_off_or_closed_during_the_replays_are_freed_as_well(before):
    off, closed = new_probe("off", every=2**31), new_probe("closed")
    x = torch.zeros(1000, device="cuda")

    def step():
        off(x.add_(1))
        closed(x)

    graph = capture(step)
    graph.replay()
    closed.close()
    for _ in range(4):
        graph.replay()
    torch.cuda.synchronize()
    off.close()
    assert slots_stay(before + 2)
    del graph
    await_slots(before, "both slots are freed")


def test_a_capture_that_fails_leaves_nothing(before):
    p, x = new_probe(), torch.zeros(1000, device="cuda")

    def fails():
        p(x.add_(1))
        raise ZeroDivisionError

    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side), pytest.raises(ZeroDivisionError):
        graph.capture_begin(pool=None, capture_error_mode="thread_local")
        try:
            fails()
        finally:
            graph.capture_end()
    p.close()
    del graph
    await_slots(before, "the slot is freed")


@pytest.mark.parametrize("mebibytes", [1, 64])  # large batches have memory beside the page
def test_an_op_log_is_freed_when_the_last_replay_is_over(before, mebibytes):
    x = torch.zeros(mebibytes << 18, device="cuda")
    log = _native.load().NativeOpLog()

    def rows():
        add_row(log, x.add_(1))
        log.flush()
        log.end()

    graph = capture(rows)
    with held_stream():
        for _ in range(3):
            graph.replay()
        graph = None
        log.close()
        assert slots_stay(before + 1)
    await_slots(before, "the page is freed")


@pytest.mark.parametrize("end", ["closed in the capture", "closed behind it"])
def test_a_graph_whose_op_log_was_given_up_replays_as_before(before, end):
    x = torch.zeros(1000, device="cuda")
    log = _native.load().NativeOpLog()

    def rows():
        add_row(log, x.add_(1))
        log.flush()
        if end == "closed in the capture":
            log.close()

    graph = capture(rows)
    log.close()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert x[0].item() == 3
    assert slots_stay(before)
    del graph
    other, y = new_probe("other"), torch.zeros(1000, device="cuda")  # in memory that was given back
    second = capture(lambda: other(y.add_(10)))
    second.replay()
    torch.cuda.synchronize()
    assert [float(r.tensor.unique()) for r in other.records()] == [10]
    other.close()


def add_row(log, tensor):
    log.add(
        "row",
        op="",
        site="",
        data=tensor.data_ptr(),
        dtype="float32",
        shape=list(tensor.shape),
        cuda=tensor.device.index,
        stream=torch.cuda.current_stream().cuda_stream,
        order=[],
    )


def test_a_graph_that_nobody_announced_is_freed_as_well(before):
    p, x = new_probe(), torch.zeros(1000, device="cuda")
    graph = capture(lambda: p(x.add_(1)), torch._C._CUDAGraph())  # as C++ would make one
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert [float(r.tensor.unique()) for r in p.records()] == [1, 2, 3]
    p.close()
    assert slots_stay(before + 1)
    del graph
    await_slots(before, "the slot is freed")


def test_graphed_callables_and_their_backward_are_freed(before):
    p = new_probe()

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x):
            return p(self.linear(x))

    sample = torch.randn(4, 8, device="cuda", requires_grad=True)
    layer = Layer().cuda()
    graphed = torch.cuda.make_graphed_callables(layer, (sample,))
    for _ in range(3):
        graphed(sample.detach().requires_grad_()).sum().backward()
    torch.cuda.synchronize()
    assert [r.replay_index for r in p.records()][-3:] == [1, 2, 3]
    p.close()
    del graphed, layer
    await_slots(before, "every slot is freed")


def test_the_trees_of_reduce_overhead_are_freed(before):
    from torch._inductor.cudagraph_trees import reset_cudagraph_trees

    torch._dynamo.reset()
    p = new_probe()
    compiled = torch.compile(lambda x: p((x * 2).relu()) + 1, mode="reduce-overhead")
    x = torch.randn(1024, device="cuda")
    for _ in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        compiled(x)
    torch.cuda.synchronize()
    assert p.records()
    p.close()
    del compiled
    torch._dynamo.reset()
    reset_cudagraph_trees()
    await_slots(before, "every slot is freed")
