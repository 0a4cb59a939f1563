"""TensorRecord(where="device"): the values stay in device memory until somebody asks."""

import gc
import os
import signal

import pytest
import torch

import cgdebug
from cgdebug import CudaGraphTensorProbe, DaemonError, TensorRecord
from conftest import capture, wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.own_lane]

# Five layers of which the i-th is replay + i. In replay `bad` the third is NaN.
LAYERS = """
replays, bad = int(sys.argv[1]), int(sys.argv[2])
x = torch.zeros(3000, device="cuda")
plant = torch.zeros((), device="cuda")
on = lambda i: "nan" if i == 2 and bad else None
probes = [
    CudaGraphTensorProbe(f"layer{i}", [TensorRecord(capacity=8, where="device", on=on(i))])
    for i in range(5)
]
graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    x.add_(1)
    for i, probe in enumerate(probes):
        probe(x + i + plant if i == 2 else x + i)
for replay in range(1, replays + 1):
    plant.fill_(float("nan") if replay == bad else 0)
    graph.replay()
    torch.cuda.synchronize()
    if replay == 20:
        print("replayed")
        sys.stdin.readline()
"""


def firsts(records):
    return [float(record.numpy().reshape(-1)[0]) for record in records]


@pytest.mark.parametrize("shape", [(1,), (33,), (1000, 7), (1 << 20,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_records_are_the_newest_replays_bit_for_bit(graph_probe, shape, dtype):
    p = graph_probe(TensorRecord(capacity=4, where="device"))
    x = torch.zeros(shape, dtype=dtype, device="cuda")
    expected = []
    graph, _ = capture(lambda: p(x), warmup=0)
    for seed in range(9):
        torch.manual_seed(seed)
        x.copy_((torch.rand(shape, device="cuda") * 200).to(dtype))
        graph.replay()
        expected.append(x.cpu())
    records = p.records(synchronize=True)
    assert [record.replay_index for record in records] == [6, 7, 8, 9]
    for record, value in zip(records, expected[-4:]):
        assert torch.equal(record.tensor.view(torch.uint8), value.view(torch.uint8))


def test_check_is_not_content_with_values_that_nobody_has_looked_at(daemon, job):
    running = job(
        """
        def replayed(name, *actions):
            probe = CudaGraphTensorProbe(name, list(actions))
            x = torch.ones(1000, device="cuda")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                probe(x)
            graph.replay()
            return probe, graph, x

        kept = TensorRecord(capacity=2, where="device")
        one = replayed("watched", TensorRecord(capacity=2, where="device", on="nan"))
        two = replayed("shown", kept, TensorStats())
        cgdebug.check()
        three = replayed("unseen", kept)
        cgdebug.check("mismatch")
        try:
            cgdebug.check()
        except cgdebug.NotCheckedError as error:
            print(error)
        """
    )
    said = "nobody has looked at the values of 1 ring in device memory"
    assert said in running.finish()[0]


def test_records_while_replays_run_are_never_torn(graph_probe):
    p = graph_probe(TensorRecord(capacity=64, where="device"))
    x = torch.zeros(1 << 18, device="cuda")
    graph, _ = capture(lambda: p(x.add_(1)), warmup=0)
    seen = 0
    for _ in range(30):
        for _ in range(40):
            graph.replay()
        for record in p.records():
            values = record.tensor
            assert values.min() == values.max() == record.replay_index
            seen += 1
    assert seen


def test_a_period_keeps_its_own_replays(graph_probe):
    p = graph_probe(TensorRecord(capacity=3, every=4, where="device"))
    x = torch.zeros(64, device="cuda")
    graph, _ = capture(lambda: p(x.add_(1)), warmup=0)
    for _ in range(22):
        graph.replay()
    records = p.records(synchronize=True)
    assert firsts(records) == [13.0, 17.0, 21.0]


@pytest.mark.alone
def test_device_memory_is_shown_and_given_back_in_any_order():
    x = torch.zeros(8 << 20, device="cuda")  # 32 MiB
    torch.cuda.synchronize()
    held = []
    for order in ("probe first", "graph first"):
        for _ in range(12):
            p = CudaGraphTensorProbe(f"held {order}", [TensorRecord(capacity=3, where="device")])
            graph, _ = capture(lambda: p(x), warmup=0)  # noqa: B023
            graph.replay()
            torch.cuda.synchronize()
            assert p.status().device_bytes == 4 * x.nbytes
            if order == "probe first":
                p.close()
                del graph
            else:
                del graph
                gc.collect()
                assert len(p.records()) == 1
                p.close()
            gc.collect()
        torch.cuda.synchronize()
        held.append(torch.cuda.mem_get_info()[0])
    assert held[0] - held[1] < 600 << 20, "no more than what is kept for reuse"


@pytest.mark.alone
def test_it_works_beside_an_allocator_that_holds_nearly_all_memory(graph_probe):
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    blocks = int(free * 0.97) >> 28
    cached = [torch.empty(256 << 20, dtype=torch.uint8, device="cuda") for _ in range(blocks)]
    del cached  # torch keeps it
    try:
        p = graph_probe(TensorRecord(capacity=15, where="device"))
        x = torch.zeros(64 << 20, device="cuda")  # 4 GiB of ring
        graph, _ = capture(lambda: p(x.add_(1)), warmup=0)
        for _ in range(20):
            graph.replay()
        assert firsts(p.records(synchronize=True, last=2)) == [19.0, 20.0]
    finally:
        torch.cuda.empty_cache()


def values_of(recording, name):
    return {s.replay_index: float(s.numpy()[0]) for s in recording[name]}


def test_a_trigger_records_what_came_before_it_without_anybody_at_the_keyboard(
    daemon, job, cli, tmp_path
):
    running = job(LAYERS, arguments=["600", "500"], CGDEBUG_DIR=str(tmp_path))
    running.line()
    running.go_on()
    running.finish()
    (directory,) = wait_until(lambda: list(tmp_path.glob("*.cgrec")), "the recording is there")
    wait_until(lambda: "replay 500" in cli("tail").stdout, "tail tells of it")
    recording = cgdebug.open(directory)
    for i in range(5):
        values = values_of(recording, f"layer{i}")
        assert sorted(values) == list(range(493, 501)), f"layer{i}"
        for replay, value in values.items():
            planted = i == 2 and replay == 500
            assert value != value if planted else value == replay + i
    assert recording.complete, recording.missing


def test_show_asks_the_device_of_a_job_that_replays(daemon, job, cli):
    def value(client, name):
        try:
            return client.get(name)
        except DaemonError as error:  # on a busy machine no replay may come while it waits
            assert error.code == "no_snapshot", error
            return None

    running = job(LAYERS, arguments=["100000000", "0"])
    running.line()
    running.go_on()
    with daemon.connect() as client:
        for i in (0, 4):
            snapshot = wait_until(lambda i=i: value(client, f"layer{i}"), "a value came")
            assert (snapshot.numpy() == snapshot.replay_index + i).all()
    wait_until(lambda: cli("show", "layer3").returncode == 0, "it is shown")  # likewise
    assert "device memory" in cli("status").stdout


def test_a_recording_has_the_values_of_the_replays_that_came_in_it(daemon, job, tmp_path):
    running = job(LAYERS, arguments=["100000000", "0"])
    running.line()
    with daemon.connect() as client:
        with client.record(tmp_path / "live.cgrec", probes="layer*") as live:
            running.go_on()
            wait_until(
                lambda: any(r.snapshots > 200 for r in client.recordings()), "it records values"
            )
        recording = cgdebug.open(live.directory)
    seen = 0
    for i in range(5):
        for replay, value in values_of(recording, f"layer{i}").items():
            assert value == replay + i
            seen += 1
    assert seen > 200


def test_the_values_of_a_job_that_was_killed_are_named_as_gone(daemon, job, cli, tmp_path):
    running = job(LAYERS, arguments=["50", "0"])
    running.line()
    os.kill(running.pid, signal.SIGKILL)
    running.process.wait()
    wait_until(lambda: "died" in cli("ps", "-a").stdout, "the daemon sees the death")
    shown = cli("show", "layer1")
    assert shown.returncode != 0
    assert "replays 13 to 20 were on the device of a job that died" in shown.stderr
    frozen = cli("freeze", str(running.pid), "-o", str(tmp_path / "left.cgrec"))
    recording = cgdebug.open(tmp_path / "left.cgrec")
    # Not none at all: while another test's recording starts, the first replays of any job send theirs.
    assert not {s.replay_index for s in recording["layer1"]} & set(range(13, 21))
    assert not recording.complete, frozen.stdout
    assert "left in the memory of the device" in str(recording.missing) + frozen.stdout


def test_a_trigger_in_the_callback_lane_says_that_it_does_nothing(daemon, monkeypatch):
    monkeypatch.setattr(cgdebug.probe, "_told_notes", set())
    record = TensorRecord(capacity=2, where="device", on="nan")
    with CudaGraphTensorProbe("unarmed", [record], lane="callback") as p:
        x = torch.zeros(64, device="cuda")
        with pytest.warns(
            RuntimeWarning, match="'unarmed': its trigger does nothing: the callback"
        ):
            capture(lambda: p(x), warmup=0)
        assert "callback lane has no rings" in p.status(timeout=0).trigger_note


# A model of 160 layers that repeats itself exactly. In replay `bad` one weight of layer 80 is NaN.
MODEL = """
where, replays, bad = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
layers = [torch.randn(32, 32, device="cuda") / 6 for _ in range(160)]
x = torch.randn(4, 32, device="cuda")
plant = torch.zeros((), device="cuda")
record = (
    TensorRecord(capacity=8, where="device", on="nan") if where == "device"
    else TensorRecord(to="disk")
)
probes = [CudaGraphTensorProbe(f"layer{i:03}", [record]) for i in range(160)]
graph = torch.cuda.CUDAGraph()
torch.mm(x, layers[0])
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    x.add_(0.001)
    y = x
    for i, (layer, probe) in enumerate(zip(layers, probes)):
        y = torch.sin(y @ layer + (plant if i == 80 else 0))
        probe(y)
for replay in range(1, replays + 1):
    plant.fill_(float("nan") if replay == bad else 0)
    graph.replay()
torch.cuda.synchronize()
"""


def run_model(job, folder, *arguments):
    folder.mkdir()
    job(MODEL, arguments=list(arguments), CGDEBUG_DIR=str(folder)).finish(timeout=40)
    (directory,) = wait_until(lambda: list(folder.glob("*.cgrec")), "the recording is there")
    return directory


def test_a_trigger_at_160_probes_keeps_what_a_recording_of_everything_has(
    daemon, job, cli, tmp_path
):
    whole = run_model(job, tmp_path / "host", "host", "520", "500")
    kept = run_model(job, tmp_path / "device", "device", "1000", "500")
    wait_until(lambda: "replay 500" in cli("tail").stdout, "tail tells of it")
    kept, whole = cgdebug.open(kept), cgdebug.open(whole)
    assert kept.complete, kept.missing
    for i in range(160):
        name = f"layer{i:03}"
        replays = {s.replay_index: s for s in kept[name]}
        assert sorted(replays) == list(range(493, 501)), name
        for replay, snapshot in replays.items():
            assert snapshot.numpy().tobytes() == whole[name][replay].numpy().tobytes()


def test_a_trigger_set_on_a_live_job_records_once_and_is_over(daemon, job, cli, tmp_path):
    running = job(LAYERS, arguments=["100000000", "0"], CGDEBUG_DIR=str(tmp_path))
    running.line()
    done = cli("set", "layer3", "--on", "changed")
    assert done.returncode == 0, done.stderr
    running.go_on()
    (directory,) = wait_until(lambda: list(tmp_path.glob("*.cgrec")), "the recording is there")
    wait_until(lambda: "held other values than before" in cli("tail").stdout, "tail tells of it")
    recording = cgdebug.open(directory)
    assert recording.complete, recording.missing
    last = {i: max(values_of(recording, f"layer{i}")) for i in range(5)}
    assert len(set(last.values())) == 1, last
    wait_until(lambda: "where it changed" not in cli("probes").stdout, "it is as registered again")
    assert len(list(tmp_path.glob("*.cgrec"))) == 1


COMPARED = """
x = torch.zeros(3000, device="cuda")
expected = torch.full((3000,), 30.0)
from cgdebug import TensorCompare
probes = [
    CudaGraphTensorProbe("kept", [TensorRecord(capacity=200, where="device", on="mismatch")]),
    CudaGraphTensorProbe("compared", [TensorCompare(expected, atol=25.5)]),
]
graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    x.add_(1)
    for probe in probes:
        probe(x)
x.fill_(5)
print("captured")
sys.stdin.readline()
for replay in range(1, 2000):
    graph.replay()
    torch.cuda.synchronize()
    __import__("time").sleep(0.002)
"""


def test_a_failed_comparison_records_the_rings_of_the_job(daemon, job, cli, tmp_path):
    running = job(COMPARED, CGDEBUG_DIR=str(tmp_path))
    running.line()
    running.go_on()
    (directory,) = wait_until(lambda: list(tmp_path.glob("*.cgrec")), "the recording is there")
    said = "'compared' failed its comparison in replay 51"  # |5 + 51 - 30| > 25.5
    wait_until(lambda: said in cli("tail").stdout, "tail tells of it")
    values = values_of(cgdebug.open(directory), "kept")
    assert values[51] == 56
