"""Several devices in one process."""

import pytest
import torch

import cgdebug
from cgdebug import TensorCompare, TensorRecord, TensorStats
from conftest import capture, wait_until

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs"),
]


def capture_on(index, function):
    """torch's own capture stream lies on the device of the first capture."""
    return capture(function, warmup=0, stream=torch.cuda.Stream(device=index))[0]


def test_each_device_shows_its_own_values(graph_probe, every_lane):
    graphs = []
    for index in (0, 1):
        with torch.cuda.device(index):
            x = torch.zeros(1 << 20, device=f"cuda:{index}")
            probes = [graph_probe(TensorRecord(3), name=f"d{index}.{i}") for i in range(4)]

            def step(x=x, probes=probes, index=index):
                for p in probes:
                    p(x.add_(1 + index))

            graphs.append((index, x, probes, capture_on(index, step)))
    for _ in range(5):
        for index, _, _, graph in graphs:
            with torch.cuda.device(index):
                graph.replay()
    for index, _, probes, _ in graphs:
        torch.cuda.synchronize(index)
        for i, p in enumerate(probes):
            (slot,) = p.status(timeout=0).slots
            assert (slot.replays, slot.device, slot.lane) == (5, f"cuda:{index}", every_lane)
            expected = [(1 + index) * (4 * replay + i + 1) for replay in (2, 3, 4)]
            assert [float(r.tensor.unique()) for r in p.records()] == expected


def test_one_capture_spans_both_devices(graph_probe):
    x = [torch.zeros(5000, device=f"cuda:{index}") for index in (0, 1)]
    probes = [graph_probe(TensorRecord(4), name=f"d{index}") for index in (0, 1)]
    stats = [graph_probe(TensorStats(), name=f"s{index}") for index in (0, 1)]
    side = torch.cuda.Stream(device=1)

    def step():
        main = torch.cuda.current_stream()
        probes[0](x[0].add_(1))
        stats[0](x[0])
        side.wait_event(main.record_event())
        with torch.cuda.stream(side):
            probes[1](x[1].add_(2))
            stats[1](x[1])
            done = side.record_event()
        main.wait_event(done)
        probes[0](x[0].add_(1))

    graph, _ = capture(step, warmup=0)
    for _ in range(6):
        graph.replay()
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    first, second = sorted(probes[0].status(timeout=0).slots, key=lambda slot: slot.slot)
    assert (first.replays, second.replays) == (6, 6)
    values = [float(r.tensor.unique()) for r in probes[1].records()]
    assert values == [6.0, 8.0, 10.0, 12.0]
    assert [slot.accepted for p in stats for slot in p.status(timeout=0).slots] == [6, 6]


def test_a_comparison_waits_for_the_daemon_on_both_devices(graph_probe, daemon):
    graphs = []
    for index in (0, 1):
        with torch.cuda.device(index):
            x = torch.ones(1000, device=f"cuda:{index}")
            p = graph_probe(TensorCompare(torch.ones(1000)), name=f"d{index}")
            graphs.append((index, p, x, capture_on(index, lambda p=p, x=x: p(x))))
    for _ in range(200):
        for index, _, _, graph in graphs:
            with torch.cuda.device(index):
                graph.replay()
    for index, p, _, _ in graphs:
        torch.cuda.synchronize(index)
        p.assert_ok(timeout=30)
        (slot,) = p.status(timeout=30).slots
        assert (slot.compared, slot.lost) == (200, 0)


def test_a_job_of_one_device_gets_no_context_on_another(job):
    """Half a GiB each. Also by threads that never used a GPU."""
    out, _ = job(
        """
        import ctypes, threading
        torch.cuda.set_device(1)
        p = CudaGraphTensorProbe("p", [TensorRecord(2)])
        x = torch.zeros(1000, device="cuda:1")
        p.prepare(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            p(x)
        graph.replay()
        torch.cuda.synchronize()

        def elsewhere():
            q = CudaGraphTensorProbe("q", [TensorRecord(2)])
            q.prepare(torch.empty(600 << 20, dtype=torch.uint8, device="cuda:1"))
            q.close()  # more than is kept for reuse: it is freed in this thread

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        flags, active = ctypes.c_uint(), ctypes.c_int()
        driver = ctypes.CDLL("libcuda.so.1")
        assert driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0
        print("contexts on device 0:", active.value)
        """
    ).finish()
    assert "contexts on device 0: 0" in out


TWO_RINGS = """
x = [torch.zeros(3000, device=f"cuda:{i}") for i in (0, 1)]
plant = torch.zeros((), device="cuda:1")
graphs = []
for i in (0, 1):
    with torch.cuda.device(i):
        kept = TensorRecord(capacity=8, where="device", on="nan" if i else None)
        probe = CudaGraphTensorProbe(f"device{i}", [kept])
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream(device=i)):
            probe(x[i].add_(1) + (plant if i else 0))
        graphs.append((probe, graph))
print("captured", flush=True)
sys.stdin.readline()
for replay in range(1, 1_000_000):
    plant.fill_(float("nan") if replay == 50 else 0)
    for i, (_, graph) in enumerate(graphs):
        with torch.cuda.device(i):
            graph.replay()
            torch.cuda.synchronize()
    time.sleep(0.001)
"""


@pytest.mark.own_lane  # the callback lane has no rings
def test_rings_of_both_devices_stop_each_at_its_own_replay_and_go_on(daemon, job, cli, tmp_path):
    running = job(TWO_RINGS, CGDEBUG_DIR=str(tmp_path), CGDEBUG_LANE="direct")
    assert running.line() == "captured"
    running.go_on()
    said = "probe 'device1' held NaN or Inf in replay 50, the rings of cuda:0 stopped at replay "
    wait_until(lambda: said in cli("tail").stdout, "tail tells of both", deadline_s=10)
    (directory,) = tmp_path.glob("*.cgrec")
    recording = cgdebug.open(directory)
    assert recording.complete, recording.missing
    replays = {i: sorted(s.replay_index for s in recording[f"device{i}"]) for i in (0, 1)}
    assert replays[1] == list(range(43, 51))
    assert len(replays[0]) == 8 and replays[0][-1] >= 49
    with daemon.connect() as client:

        def goes_on(i):
            newest = client.get(f"device{i}")
            return newest is not None and newest.replay_index > replays[i][-1]

        for i in (0, 1):
            wait_until(lambda i=i: goes_on(i), f"the rings of cuda:{i} go on", deadline_s=10)


ON_THE_OTHER_DEVICE = """
probe = CudaGraphTensorProbe("late", [TensorStats()])
graph = torch.cuda.CUDAGraph()
with torch.cuda.device(1):
    x = torch.ones(100, device="cuda:1")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream(device=1)):
        torch.cuda._sleep(1_000_000_000)
        probe(x.mul_(float("nan")))
    graph.replay()
torch.cuda.set_device(0)
try:
    cgdebug.check()
except cgdebug.FoundError as error:
    print("found", error.kind)
"""


def test_check_waits_for_every_device(daemon, job):
    assert job(ON_THE_OTHER_DEVICE).finish()[0] == "found nan\n"
