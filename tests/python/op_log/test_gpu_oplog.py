"""Rows of op logs in captured graphs: the numbers of single probes, in a fraction of their memory."""

import gc
import json

import pytest
import torch
from all_dtypes import FLOAT4, NAMES, made_of

import cgdebug
from cgdebug import TensorStats
from cgdebug._op_log.rows.native_rows import _order_of
from conftest import capture, own_session

pytestmark = [pytest.mark.gpu, pytest.mark.own_lane, pytest.mark.usefixtures("daemon")]


class Log:
    """Keeps what waits for its batch, as the caller of a native log has to."""

    def __init__(self):
        self.native = cgdebug._job._native.load().NativeOpLog()
        self.kept = []

    def add(self, name, tensor, op="", site=""):
        order = [] if tensor.is_contiguous() else _order_of(tensor)
        waiting = self.native.add(
            name,
            op=op,
            site=site,
            data=tensor.data_ptr(),
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=list(tensor.shape),
            cuda=tensor.device.index,
            stream=torch.cuda.current_stream(tensor.device).cuda_stream,
            order=order,
        )
        if waiting <= 1:
            self.kept.clear()
        self.kept.append(tensor)

    def flush(self):
        self.native.flush()
        self.kept.clear()


@pytest.fixture
def op_log():
    made = []

    def make():
        made.append(Log())
        return made[-1]

    yield make
    for log in made:
        log.native.close()


def replayed(log, run, replays=1):
    """(graph, result) of run() and the end of its log, captured and replayed until all is read."""

    def ended():
        result = run()
        log.native.end()
        return result

    graph, result = capture(ended, warmup=0)
    for _ in range(replays):
        graph.replay()
    all_read(log)
    return graph, result


def all_read(log):
    torch.cuda.synchronize()
    assert log.native.wait_consumed(30.0)


def connected(daemon):
    return daemon.connect(session=own_session())


def tensors_of(name):
    """Many sizes, some unaligned. The sums are exact, in whatever order numbers are added."""
    dtype = getattr(torch, name)
    torch.manual_seed(1)
    for count in (0, 1, 7, 33, 4096, 100_003, 3 << 20):
        whole = torch.randint(0, 2 if dtype == torch.bool else 5, (count + 1,), device="cuda")
        for x in (whole[:count], whole[1:]):
            yield made_of(x, name)
    if dtype.is_floating_point and name != FLOAT4:
        x = torch.ones(5000, device="cuda").to(dtype)
        x[77] = float("nan")
        x[4000] = float("nan" if dtype == torch.float8_e4m3fn else "inf")
        yield x
        yield x[1:]


@pytest.mark.parametrize("name", NAMES)
def test_rows_have_the_numbers_of_single_probes_bit_for_bit(daemon, op_log, probe, name):
    log = op_log()
    tensors = list(tensors_of(name))
    singles = [
        probe(TensorStats(), name=f"one/{name}/{i}", mode="capture") for i in range(len(tensors))
    ]

    def run():
        for i, x in enumerate(tensors):
            singles[i](x)
            log.add(f"row/{name}/{i}", x)

    graph, _ = replayed(log, run, replays=2)
    assert all(one.status().waited for one in singles)
    with connected(daemon) as client:
        for i in range(len(tensors)):
            row, one = client.get(f"row/{name}/{i}"), client.get(f"one/{name}/{i}")
            assert row.replay_index == one.replay_index == 2
            assert str(row.stats) == str(one.stats), i


@pytest.mark.parametrize(
    "shape, order",
    [
        ((300, 500), (1, 0)),
        ((304, 512), (1, 0)),  # vectors of 16 bytes lie in one row
        ((3, 50, 7, 8), (0, 2, 1, 3)),
        ((4, 128, 16, 64), (0, 2, 1, 3)),  # the heads of attention
        ((5, 4, 30, 6), (3, 1, 0, 2)),
    ],
)
def test_a_tensor_that_lies_in_another_order_is_read_where_it_is(cli, op_log, shape, order):
    log = op_log()
    torch.manual_seed(1)
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16).permute(order)
    places = [x.numel() // 3, x.numel() // 2, x.numel() - 1]
    for place in places:  # the first in memory is another one
        x[torch.unravel_index(torch.tensor(place), x.shape)] = float("nan")
    kept = x.clone(memory_format=torch.contiguous_format)
    graph, _ = replayed(log, lambda: (log.add("lies/so", x), log.add("lies/usually", kept)))
    so, usually = (
        json.loads(cli("show", "-s", own_session(), f"lies/{name}", "--json").stdout)["stats"]
        for name in ("so", "usually")
    )
    assert so["first_nonfinite"] == usually["first_nonfinite"]
    assert so["first_nonfinite"]["index"] == places[0] and so["nan"] == 3
    assert so["xor_hash"] == usually["xor_hash"]
    assert so["ordered_hash"] == usually["ordered_hash"]


@pytest.mark.parametrize("shape", [(30, 9), (32, 64), (48, 6, 16)])
def test_the_hash_of_places_is_that_of_the_usual_order_for_each_dtype(cli, op_log, shape):
    log = op_log()
    torch.manual_seed(2)
    dtypes = [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.float32]
    dtypes += [torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
    pairs = {}
    for dtype in dtypes:
        x = (torch.randn(shape, device="cuda") * 4).to(dtype).transpose(0, -1)
        usual = torch.empty(x.shape, dtype=dtype, device="cuda").copy_(x)
        pairs[str(dtype).removeprefix("torch.")] = x, usual

    def run():
        for name, (x, usual) in pairs.items():
            log.add(f"{name}/so", x)
            log.add(f"{name}/usually", usual)

    replayed(log, run)
    for name in pairs:
        so, usually = (
            json.loads(cli("show", "-s", own_session(), f"{name}/{how}", "--json").stdout)["stats"]
            for how in ("so", "usually")
        )
        assert so["ordered_hash"] == usually["ordered_hash"], name
        assert so["xor_hash"] == usually["xor_hash"], name


def test_a_thousand_rows_of_each_replay(daemon, op_log, cli):
    log = op_log()
    x = torch.zeros(64, 2048, device="cuda", dtype=torch.bfloat16)

    def run():
        y = x
        for i in range(1000):
            y = y + 1 if i % 2 == 0 else torch.relu(y)
            log.add(f"many/{i}", y, op=f"{i + 1} aten.add.Tensor {i}", site="net.py:1")
        log.native.end()
        return y

    torch.cuda.synchronize()
    free, _ = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved()
    graph, _ = capture(run, warmup=0)
    taken = free - torch.cuda.mem_get_info()[0] - (torch.cuda.memory_reserved() - reserved)
    print(f"1,000 rows: {taken / 2**20:.1f} MiB of the device beside the job's own")
    for replay in range(1, 4):
        x.fill_(float(replay))
        graph.replay()
    all_read(log)
    with connected(daemon) as client:
        for i in (0, 63, 64, 639, 640, 999):
            for replay in (1, 3):
                snapshot = client.get(f"many/{i}", replay=replay)
                expected = torch.tensor(float(replay), dtype=torch.bfloat16)
                for _ in range(i // 2 + 1):
                    expected = expected + 1
                assert snapshot.stats.min == snapshot.stats.max == expected.item()
        (row,) = client.probes("many/999")
        assert (row.counters.replays, row.lane, row.site) == (3, "direct", "net.py:1")
    x.fill_(float("nan"))
    graph.replay()
    all_read(log)
    checked = cli("check", own_session(), "many/*")
    assert checked.returncode == 1, checked.stdout + checked.stderr
    first = next(line for line in checked.stdout.splitlines() if "many/" in line)
    assert "many/0 " in first.replace("\t", " ") and "replay 4" in first, checked.stdout


def test_fifty_one_captures_of_1216_rows_take_less_than_17_mib(op_log):
    x = torch.zeros(16, device="cuda")
    logs, graphs = [], []
    torch.cuda.synchronize()
    gc.collect()
    free, _ = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved()
    for _ in range(51):
        log = op_log()

        def run(log=log):
            for i in range(1216):
                log.add(f"bucket/{i}", x)
            log.native.end()

        graph, _ = capture(run, warmup=0)
        logs.append(log)
        graphs.append(graph)
    torch.cuda.synchronize()
    own = torch.cuda.memory_reserved() - reserved
    for graph in graphs:
        graph.replay()
    torch.cuda.synchronize()
    taken = free - torch.cuda.mem_get_info()[0] - own
    pages = sum(log.native.counters()["device_bytes"] for log in logs) / 2**20
    print(
        f"51 x 1,216 rows: {pages:.1f} MiB of pages; {taken / 2**20:.1f} MiB with what CUDA keeps"
    )
    assert 51 * 1216 * 128 / 2**20 < pages < 17
    assert all(log.native.wait_consumed(30.0) for log in logs)


def test_a_tensor_is_seen_as_it_was_when_its_batch_was_flushed(daemon, op_log):
    log = op_log()
    x = torch.zeros(1000, device="cuda")

    def run():
        x.fill_(1)
        log.add("hazard/before", x)
        log.flush()
        x.fill_(2)
        log.add("hazard/after", x)

    graph, _ = replayed(log, run)
    with connected(daemon) as client:
        assert client.get("hazard/before").stats.max == 1
        assert client.get("hazard/after").stats.max == 2


def test_streams_of_a_capture_have_pages_of_their_own(daemon, op_log):
    log = op_log()
    x = torch.ones(1 << 20, device="cuda")
    side = torch.cuda.Stream()

    def run():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 3
            log.add("streams/side", y)
        z = x * 2
        log.add("streams/main", z)
        log.flush()
        torch.cuda.current_stream().wait_stream(side)
        return y, z

    graph, _ = replayed(log, run, replays=5)
    with connected(daemon) as client:
        assert client.get("streams/side", replay=5).stats.max == 3
        assert client.get("streams/main", replay=5).stats.max == 2


def test_a_capture_that_fails_leaves_nothing_behind_and_the_next_one_works(daemon, op_log):
    log = op_log()
    x = torch.ones(8, device="cuda")
    with pytest.raises(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        log.add("failed/row", x)
        torch.cuda.synchronize()
    log.kept.clear()
    graph, _ = replayed(log, lambda: log.add("again/row", x))
    with connected(daemon) as client:
        assert client.get("again/row").replay_index == 1
        with pytest.raises(cgdebug.DaemonError, match="no probe matches 'failed/row'"):
            client.get("failed/row")


def test_a_log_that_is_not_ended_in_its_capture_says_so(op_log):
    log = op_log()
    x = torch.ones(8, device="cuda")
    capture(lambda: log.add("late/row", x), warmup=0)
    with pytest.raises(ValueError, match="the capture ended before its op log: 1 rows"):
        log.native.end()


def test_the_graph_of_a_closed_log_goes_on(op_log):
    log = op_log()
    x = torch.ones(8, device="cuda")

    def run():
        log.add("closed/row", x)
        return x + 1

    graph, y = replayed(log, run)
    log.native.close()
    x.fill_(5)
    graph.replay()
    torch.cuda.synchronize()
    assert y.max() == 6
