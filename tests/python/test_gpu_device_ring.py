"""TensorRecord(where="device"): the values stay in device memory until somebody asks."""

import gc

import pytest
import torch

from cgdebug import CudaGraphTensorProbe, TensorRecord
from conftest import capture

pytestmark = [pytest.mark.gpu, pytest.mark.own_lane, pytest.mark.usefixtures("without_daemon")]


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


def test_records_while_replays_run_are_never_torn(graph_probe):
    p = graph_probe(TensorRecord(capacity=2, where="device"))
    x = torch.zeros(1 << 20, device="cuda")
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


def test_device_memory_is_shown_and_given_back_in_any_order():
    x = torch.zeros(8 << 20, device="cuda")  # 32 MiB
    torch.cuda.synchronize()
    held = []
    for order in ("probe first", "graph first"):
        for _ in range(12):
            p = CudaGraphTensorProbe(f"held {order}", [TensorRecord(capacity=3, where="device")])
            graph, _ = capture(lambda: p(x), warmup=0)
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
