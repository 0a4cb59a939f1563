"""TensorRecord(part=...) on the GPU: only the elements of the part are copied."""

import pytest
import torch

from cgdebug import TensorCompare, TensorRecord
from conftest import capture

pytestmark = [pytest.mark.gpu, pytest.mark.own_lane]

PARTS = {
    "rows:1:3": lambda x: x[1:3],
    "rows:5:99": lambda x: x[5:99],
    "first:10": lambda x: x.flatten()[:10],
    "first:9999": lambda x: x.flatten()[:9999],
    "stride:3": lambda x: x.flatten()[::3],
    "stride:64": lambda x: x.flatten()[::64],
    "stride:99999": lambda x: x.flatten()[::99999],
}
DTYPES = [torch.bool, torch.float8_e5m2, torch.bfloat16, torch.float32, torch.float64]
LANES = [("direct", "host"), ("direct", "device"), ("callback", "host")]


def values(dtype, seed, shape=(7, 33, 5)):
    torch.manual_seed(seed)
    x = (torch.rand(shape, device="cuda") * 200 - 100).to(torch.float32)
    return (x > 0) if dtype == torch.bool else x.to(dtype)


def bits(tensor):
    # One element counts as contiguous whatever its stride, and view() refuses the stride.
    return tensor.cpu().clone(memory_format=torch.contiguous_format).view(torch.uint8).tolist()


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("lane, where", LANES)
def test_a_graph_sends_the_elements_of_the_part_bit_for_bit(probe, lane, where, part):
    for dtype in DTYPES:
        p = probe(
            TensorRecord(4, where=where, part=part), mode="capture", lane=lane, name=f"p{dtype}"
        )
        x = values(dtype, 0)
        graph, _ = capture(lambda p=p, x=x: p(x), warmup=0)
        wanted = []
        for seed in range(3):
            x.copy_(values(dtype, seed))
            graph.replay()
            wanted.append(PARTS[part](x.cpu()))
        records = p.records(synchronize=True)
        assert [record.replay for record in records] == [1, 2, 3]
        for record, want in zip(records, wanted):
            assert bits(record.tensor) == bits(want), dtype
            assert record.shape == tuple(want.shape)
            assert (record.part, record.full_shape) == (part, (7, 33, 5))
        [slot] = p.status().slots
        assert slot.payload_bytes == wanted[0].numel() * x.element_size()
        p.close()


@pytest.mark.parametrize("part", PARTS)
def test_an_eager_call_sends_the_elements_of_the_part(probe, part):
    p = probe(TensorRecord(4, part=part))
    x = values(torch.bfloat16, 1)
    p(x)
    [record] = p.records(synchronize=True)
    assert bits(record.tensor) == bits(PARTS[part](x))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("lane", ["direct", "callback"])
def test_a_tensor_that_is_not_contiguous_has_the_elements_of_its_own_order(probe, lane, part):
    p = probe(TensorRecord(4, part=part), mode="capture", lane=lane, non_contiguous="copy")
    x = values(torch.float32, 2, (5, 33, 7))
    graph, _ = capture(lambda: p(x.permute(2, 1, 0)), warmup=0)
    graph.replay()
    [record] = p.records(synchronize=True)
    assert bits(record.tensor) == bits(PARTS[part](x.permute(2, 1, 0)))


@pytest.mark.parametrize("part", ["rows:1:3", "first:10", "stride:3"])
@pytest.mark.parametrize("expects_whole", [True, False])
def test_a_comparison_sees_the_part_and_nothing_else(daemon, probe, part, expects_whole):
    x = values(torch.float32, 3)
    expected = x.clone() if expects_whole else PARTS[part](x).clone()
    p = probe(TensorCompare(expected, part=part), mode="capture")
    graph, _ = capture(lambda: p(x), warmup=0)
    graph.replay()
    p.assert_ok()
    x[6, 32, 4] += 1  # outside of the parts
    graph.replay()
    p.assert_ok()
    x[1, 0, 0] += 1  # element 165: in rows 1:3 and a multiple of 3
    x[0, 0, 0] += 1
    graph.replay()
    with pytest.raises(AssertionError):
        p.assert_ok()
