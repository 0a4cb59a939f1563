"""graph_memory(): of snapshots in the format that torch documents, made up here; and of a real one."""

import pytest
import torch

import cgdebug

KIB, MIB = 2**10, 2**20


def frames(line, name="forward"):
    return [
        {"filename": "/opt/torch/nn/modules/module.py", "line": 1, "name": "_call_impl"},
        {"filename": "model.py", "line": line, "name": name},
        {"filename": "train.py", "line": 7, "name": "main"},
    ]


def block(size, state="active_allocated", line=None, requested=None):
    return {
        "size": size,
        "requested_size": requested or size,
        "state": state,
        "frames": frames(line) if line else [],
    }


def segment(address, pool, stream, blocks, device=0):
    return {
        "device": device,
        "address": address,
        "total_size": sum(one["size"] for one in blocks),
        "stream": stream,
        "segment_type": "large",
        "segment_pool_id": pool,
        "blocks": blocks,
    }


def entry(action, address, size, time_us, line=None):
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 5,
        "time_us": time_us,
        "frames": frames(line) if line else [],
    }


@pytest.fixture
def made_up():
    """Synthetic: no GPU made it. As torch.cuda.memory._snapshot() documents its result."""
    return {
        "segments": [
            segment(0x1000000, (0, 0), 0, [block(2 * MIB, line=3), block(4 * MIB, "inactive")]),
            segment(
                0x8000000,
                (1, 0),
                5,
                [
                    block(MIB, line=12, requested=MIB - 100),
                    block(MIB, line=12),
                    block(512 * KIB, "active_pending_free", line=14),
                    block(512 * KIB, "inactive"),
                ],
            ),
            segment(0x9000000, (1, 0), 6, [block(MIB, line=20)]),
        ],
        "device_traces": [
            [
                entry("free_completed", 0x8300000, 64, 5),  # it began before the history
                entry("segment_alloc", 0x8000000, 3 * MIB, 10),
                entry("alloc", 0x8000000, MIB, 11, line=12),
                entry("alloc", 0x8100000, MIB, 12, line=30),
                entry("free_requested", 0x8100000, MIB, 13, line=31),
                entry("free_completed", 0x8100000, MIB, 14),
                entry("alloc", 0x8100000, MIB, 15, line=12),
                entry("alloc", 0x8200000, 512 * KIB, 16, line=14),
                entry("free_requested", 0x8200000, 512 * KIB, 17, line=15),
            ]
        ],
    }


def test_bytes_and_blocks_are_told_by_pool_stream_and_stack(made_up):
    memory = cgdebug.graph_memory(made_up, graphs={"decode": (1, 0)})
    graph, common = memory.pools  # the pools of graphs come first
    assert (graph.id, graph.graph, graph.is_common) == ((1, 0), "decode", False)
    assert (graph.bytes, graph.held, graph.waiting, graph.free) == (
        *(4 * MIB, 3 * MIB, 512 * KIB),
        512 * KIB,
    )
    assert graph.reserved == {5: 3 * MIB, 6: MIB} and graph.segments == 2
    assert graph.by_stack() == [
        ("model.py:12 in forward", 2 * MIB, 2),
        ("model.py:20 in forward", MIB, 1),
    ]
    assert {one.requested for one in graph.keepers} == {MIB, MIB - 100}
    assert common.is_common and (common.held, common.free) == (2 * MIB, 4 * MIB)
    assert memory.pool("decode") is memory.pool((1, 0)) is graph
    with pytest.raises(KeyError, match=r"no memory of 'prefill'; there is: decode; \(0, 0\)"):
        memory.pool("prefill")


def test_lifetimes_have_their_ends_and_who_freed(made_up):
    memory = cgdebug.graph_memory(made_up)
    found = [(one.address, one.begin_us, one.end_us, one.is_held) for one in memory.lifetimes]
    assert found == [
        (0x8000000, 11, None, True),
        (0x8100000, 12, 14, False),
        (0x8100000, 15, None, True),
        (0x8200000, 16, None, False),
    ]
    assert memory.lifetimes[1].freed_by[0] == "model.py:31 in forward"
    assert {one.pool for one in memory.lifetimes} == {(1, 0)}
    began = {one.address: one.begin_us for one in memory.pool((1, 0)).blocks}
    assert began == {0x8000000: 11, 0x8100000: 15, 0x8200000: None, 0x9000000: None}


def test_a_tensor_that_keeps_a_pool_alive_is_named(made_up):
    memory = cgdebug.graph_memory(made_up, tensors={"logits": 0x8100040, "gone": 0x7})
    held = {one.tensors: one.address for one in memory.pool((1, 0)).keepers if one.tensors}
    assert held == {("logits",): 0x8100000}
    assert "held by 1 MiB at 0x8100000: logits" in str(memory)
    assert any("in no memory of the allocator: gone" in gap for gap in memory.gaps)


def test_a_tensor_whose_memory_was_freed_is_not_said_to_be_elsewhere(made_up):
    gaps = cgdebug.graph_memory(made_up, tensors={"freed": 0x8280000, "gone": 0x7}).gaps
    assert any("their memory was freed: freed" in gap for gap in gaps), gaps
    assert any("in no memory of the allocator: gone" in gap for gap in gaps), gaps


def test_a_stack_that_is_not_there_may_have_been_overwritten(made_up):
    made_up["segments"][2]["blocks"][0]["frames"] = []
    gaps = cgdebug.graph_memory(made_up).gaps
    assert any("the stacks of 1 MiB" in gap and "has overwritten them" in gap for gap in gaps)


@pytest.mark.parametrize("wrong", [{"tensors": {"x": "y"}}, {"graphs": {"x": 3}}])
def test_what_has_no_memory_is_refused_as_that(made_up, wrong):
    with pytest.raises(TypeError, match=r"graph_memory: 'x' is a (str|int), no "):
        cgdebug.graph_memory(made_up, **wrong)


def test_what_is_not_known_is_said(made_up):
    gaps = cgdebug.graph_memory(made_up, graphs={"old": (7, 0)}).gaps
    assert any("what was freed 1 times" in gap for gap in gaps), gaps
    assert any("whose pools have none: old" in gap for gap in gaps), gaps
    made_up["device_traces"] = [[]]
    (gap,) = cgdebug.graph_memory(made_up).gaps
    assert "_record_memory_history()" in gap


def test_memory_that_was_given_back_to_the_device_is_of_no_known_pool(made_up):
    made_up["device_traces"][0].insert(5, entry("segment_alloc", 0x8000000, 3 * MIB, 13))
    pools = [one.pool for one in cgdebug.graph_memory(made_up).lifetimes]
    assert pools == [None, None, (1, 0), (1, 0)]


@pytest.mark.parametrize("wrong", [{}, {"segments": [{}]}, {"segments": 5}, []])
def test_what_is_no_snapshot_is_refused(wrong):
    with pytest.raises(ValueError, match=r"graph_memory: a snapshot is what torch.cuda"):
        cgdebug.graph_memory(wrong)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_there_is_no_snapshot_of_now():
    with pytest.raises(RuntimeError, match="there is no GPU"):
        cgdebug.graph_memory()


@pytest.mark.gpu
@pytest.mark.own_lane
def test_the_pool_of_a_real_graph_has_its_bytes_and_what_keeps_it():
    torch.cuda.memory._record_memory_history()
    try:
        graph, x = torch.cuda.CUDAGraph(), torch.ones(MIB, device="cuda")
        with torch.cuda.graph(graph):
            y = x * 2
        memory = cgdebug.graph_memory(tensors={"y": y, "x": x}, graphs={"decode": graph})
    finally:
        torch.cuda.memory._record_memory_history(None)
    pool = memory.pool("decode")
    (kept,) = [one for one in pool.keepers if one.tensors]
    assert kept.tensors == ("y",) and kept.requested == y.nbytes and kept.begin_us
    assert any("test_graph_memory.py" in line for line in kept.stack)
    assert pool.bytes >= pool.held >= y.nbytes
    assert any("x" in one.tensors for one in memory.pool((0, 0)).keepers)
