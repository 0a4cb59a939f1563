"""DTensors: each rank's part, its description, and the parts put together."""

import json
import os

import numpy
import pytest
import recording_writer
import torch

import cgdebug
from cgdebug import TensorShard, TensorSnapshot, assemble
from conftest import wait_until
from written_recordings import Writer

TEXT = "S(0),R of [5,3] at (1,0) of dp=2,tp=2, from [3,0]"


def snapshot(shard, values, **fields):
    values = numpy.ascontiguousarray(values, dtype=numpy.float32)
    given = {"probe_name": "w", "replay_index": 1, "device": "cpu", **fields}
    return TensorSnapshot.from_payload(
        bytearray(values.tobytes()),
        dtype="float32",
        shape=values.shape,
        shard=TensorShard.parse(shard),
        **given,
    )


def parts_of(whole, mesh, placements):
    """One snapshot for each rank of a mesh, cut as the placements say."""
    made = []
    for rank, at in enumerate(numpy.ndindex(*mesh)):
        sizes = ",".join(map(str, mesh))
        shape = ",".join(map(str, whole.shape))
        text = f"{placements} of [{shape}] at ({','.join(map(str, at))}) of {sizes}"
        where = TensorShard.parse(text).indices()
        made.append(snapshot(text, whole[numpy.ix_(*where)], rank=rank))
    return made


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        "S(0) of [8] at (1) of 2",
        "_S(0,2),S(0) of [8,8] at (1,0) of dp=2,tp=2, from [2,0]",
        "P(sum) of [] at (0) of x=2, from []",
        "MaskP(sum,None,0),S(1) of [2,4] at (0,1) of 2,2",
        "R of [8] at (1) of dp=4, from [0], replicas 0..3",
        "S(0),R of [8] at (0,1) of tp=2,dp=3, replicas 1,4,5",
        "R,S(0) of [8] at (1,0) of dp=3,tp=2, from [0], replicas 0..4/2",
    ],
)
def test_a_shard_is_what_its_text_says(text):
    assert str(TensorShard.parse(text)) == text


@pytest.mark.parametrize("ranks", ["0..1048576," * 40 + "5", "0..9000000", "3,1", "0,0"])
def test_ranks_that_no_job_has_are_not_known(ranks):
    shard = TensorShard.parse(f"R of [8] at (1) of dp=4, from [0], replicas {ranks}")
    assert shard is not None and shard.replicas == ()


def test_replicas_whose_ranks_do_not_fit_into_the_text_are_said_to_be_unknown():
    odd = [rank * rank for rank in range(400)]
    shard = TensorShard.replica((4,), odd, 9)
    assert str(shard) == "R of [4] at (3) of replicas=400, from [0], replicas ?"
    assert TensorShard.parse(str(shard)).replicas == ()
    few = TensorShard.replica((4,), [6, 2, 4, 0], 4)
    assert str(few) == "R of [4] at (2) of replicas=4, from [0], replicas 0..6/2"
    assert TensorShard.parse(str(few)).replicas == (0, 2, 4, 6)


@pytest.mark.parametrize("text", ["", "S(0) of [5", TEXT[:-8], "S(0) of [8] at (1) of dp"])
def test_a_text_that_was_cut_is_not_taken_for_a_shard(text):
    assert TensorShard.parse(text) is None


@pytest.mark.parametrize("placements", ["S(0),R", "R,S(1)", "S(0),S(0)", "_S(0,2),S(0)", "R,R"])
def test_the_parts_of_all_ranks_make_the_whole(placements):
    whole = numpy.arange(40, dtype=numpy.float32).reshape(8, 5)
    assert numpy.array_equal(assemble(parts_of(whole, (2, 2), placements)).numpy(), whole)


def test_parts_of_different_sizes_and_none_make_the_whole():
    whole = numpy.arange(5, dtype=numpy.float32)
    parts = parts_of(whole, (4,), "S(0)")
    assert [part.numel for part in parts] == [2, 2, 1, 0]
    assert assemble(parts).numpy().tolist() == [0, 1, 2, 3, 4]


def test_what_cannot_be_put_together_says_why():
    whole = numpy.arange(8, dtype=numpy.float32)
    one, two = parts_of(whole, (2,), "S(0)")
    missing = r"4 of 8 elements are on ranks .* first at \[0\]; missing: \S.*=0; given: .*rank 1"
    with pytest.raises(ValueError, match=missing):
        assemble([two])
    later = snapshot(str(two.shard), two.numpy(), replay_index=2)
    with pytest.raises(ValueError, match="differ in replay_index: 1, 2"):
        assemble([one, later])
    with pytest.raises(ValueError, match="differ in invocation_index: 0, 1"):
        assemble([one, snapshot(str(two.shard), two.numpy(), invocation_index=1)])
    with pytest.raises(ValueError, match="differ in step"):
        assemble([one, snapshot(str(two.shard), two.numpy(), step=3)])
    with pytest.raises(ValueError, match="parts of different tensors"):
        assemble([one, snapshot("S(0) of [9] at (1) of 2", whole[:4])])
    with pytest.raises(ValueError, match="is not part of a DTensor"):
        assemble([snapshot("", whole)])
    with pytest.raises(ValueError, match=r"placed as P\(sum\): its values are terms"):
        assemble([snapshot("P(sum) of [8] at (0) of 2", whole)])
    with pytest.raises(ValueError, match="does not follow from"):
        assemble([snapshot("S(0) of [8] at (0) of 2", whole)])
    same, other = parts_of(whole, (2,), "R")
    assert assemble([same, other]).numpy().tolist() == whole.tolist()
    with pytest.raises(ValueError, match="are replicas and differ"):
        assemble([same, snapshot(str(other.shard), whole + 1, rank=1)])
    with pytest.raises(ValueError, match="no snapshot"):
        assemble([])


RANK = """
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
w = torch.nn.Parameter(distribute_tensor(torch.arange(15.0).reshape(5, 3), mesh, [Shard(0)]))
seen = {}
def probe(name):
    seen[name] = CudaGraphTensorProbe(name, [TensorRecord()], mode="always")
    return seen[name]
eager = probe("eager")
eager.prepare(w)
assert eager(w) is w
compiled = probe("compiled")
@torch.compile(fullgraph=True, backend="aot_eager")
def double(x):
    y = x * 2
    compiled(y)
    return y + 1
double(w)
probe("grad").attach_grad(w)
(w * w).sum().backward()
probe("whole")(distribute_tensor(torch.ones(2), mesh, [Replicate()]))
probe("plain")(torch.ones(2))
for name, one in seen.items():
    (record,) = one.records()
    print(f"{name}: {record.shard} {record.tensor.tolist()}")
# Ends with probes alive and gloo's threads waiting for the interpreter, as jobs do.
"""


def test_a_dtensor_is_probed_as_the_part_of_its_rank(job, tmp_path):
    rendezvous = f"file://{tmp_path}/rendezvous"
    code = RANK.replace(
        '"gloo")',
        f'"gloo", init_method="{rendezvous}", rank=int(os.environ["RANK"]), world_size=2)',
    )
    ranks = [job(code, CGDEBUG="0", RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    said = [dict(line.split(": ", 1) for line in one.finish(120)[0].splitlines()) for one in ranks]
    where = ["of [5,3] at (0) of tp=2, from [0,0]", "of [5,3] at (1) of tp=2, from [3,0]"]
    rows = [
        [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0]],
        [[9.0, 10.0, 11.0], [12.0, 13.0, 14.0]],
    ]
    for rank in range(2):
        doubled = [[2 * value for value in row] for row in rows[rank]]
        assert said[rank]["eager"] == f"S(0) {where[rank]} {rows[rank]}"
        assert said[rank]["compiled"] == said[rank]["grad"] == f"S(0) {where[rank]} {doubled}"
        whole = f"R of [2] at ({rank}) of tp=2, from [0], replicas 0,1"
        assert said[rank]["whole"] == f"{whole} [1.0, 1.0]"
        assert said[rank]["plain"] == "None [1.0, 1.0]"


def test_shards_of_one_local_shape_are_slots_of_their_own(probe):
    p = probe(cgdebug.TensorRecord())
    x = torch.ones(2)
    for shard in ("S(0) of [4] at (0) of 2, from [0]", "", "S(0) of [4] at (0) of 2, from [0]"):
        torch.ops.cgdebug.observe(x, p._site_key, shard)
    assert [(str(one.shard), one.replay_index) for one in p.records()] == [
        ("S(0) of [4] at (0) of 2, from [0]", 1),
        ("None", 1),
        ("S(0) of [4] at (0) of 2, from [0]", 2),
    ]


def test_the_shard_goes_through_daemon_recording_and_tables(cli, daemon, probe, tmp_path):
    p = probe(cgdebug.TensorRecord(), name="blk.w")
    text = "S(0) of [4] at (1) of tp=2, from [2]"
    path = str(tmp_path / "a.cgrec")
    with daemon.connect() as client:
        torch.ops.cgdebug.observe(torch.tensor([3.0, 4.0]), p._site_key, text)
        seen = lambda: [one for one in client.probes() if one.name == "blk.w" and one.replay]  # noqa: E731
        assert [one.shard for one in wait_until(seen, "the daemon reads blk.w")] == [text]
        assert str(client.get("blk.w").shard) == text
    # 3: other tests of this process may have lost snapshots.
    assert cli("freeze", str(os.getpid()), "-o", path).returncode in (0, 3)
    series = cgdebug.open(path)["blk.w"]
    assert str(series.shard) == text == str(series[1].shard)
    assert cgdebug.open(path).sql("select shard from probe where name = 'blk.w'") == [(text,)]
    assert text in cli("info", path).stdout
    for where in ("live:blk.w@1", f"{path}:blk.w@1"):
        shown = cli("show", where)
        assert f"shard {text}" in shown.stdout, shown.stderr
        assert json.loads(cli("--json", "show", where).stdout)["shard"] == text
    found = cli("--json", "query", path, "select shard from probe where name = 'blk.w'").stdout
    assert json.loads(found) == [{"shard": text}]


def test_two_ranks_of_a_recording_are_put_side_by_side(tmp_path):
    for rank in range(2):
        writer = Writer(tmp_path / f"r{rank}.cgrec", rank=rank)
        writer.add("w", 1, numpy.float32([[rank, 1]]))
        writer.close()
    r = cgdebug.open(tmp_path)
    parts = [r.rank(rank)["w"][1] for rank in range(2)]
    given = [
        snapshot(f"S(0) of [2,2] at ({part.rank}) of 2", part.numpy(), rank=part.rank)
        for part in parts
    ]
    assert assemble(given).numpy().tolist() == [[0, 1], [1, 1]]


def write_parts(folder, whole, mesh, placements, ranks, replays=(1, 2)):
    for rank in ranks:
        part = parts_of(whole, mesh, placements)[rank]
        writer = recording_writer.Writer(str(folder / f"r{rank}.cgrec"))
        session = writer.add_session(f"{rank + 1:032x}", f"job/r{rank}", rank)
        text = str(part.shard)
        slot = writer.add_slot(session, "w", "float32", part.shape, shard=text)
        for replay in replays if rank else (*replays, 3):
            writer.append(slot, replay, numpy.ascontiguousarray(part.numpy() * replay))
        writer.close()
    return cgdebug.open(folder)


def test_a_recording_puts_the_parts_of_its_ranks_together(tmp_path):
    whole = numpy.arange(24, dtype=numpy.float32).reshape(6, 4)
    r = write_parts(tmp_path, whole, (2, 2), "S(0),S(1)", range(4))
    assert numpy.array_equal(r.assemble("w", 1).numpy(), whole)
    last = r.assemble("w")  # rank 0 alone has replay 3
    assert last.replay_index == 2 and numpy.array_equal(last.numpy(), 2 * whole)
    with pytest.raises(ValueError, match="18 of 24 .*missing: .*=0 .*=1, .*=1 .*=0, .*=1 .*=1;"):
        r.assemble("w", 3)
    with pytest.raises(ValueError, match="no rank .* has replay 9"):
        r.assemble("w", 9)
    with pytest.raises(KeyError):
        r.assemble("v")


def test_parts_of_ranks_that_a_recording_lacks_are_named(tmp_path):
    whole = numpy.arange(24, dtype=numpy.float32).reshape(6, 4)
    r = write_parts(tmp_path, whole, (3,), "S(0)", [0, 2])
    with pytest.raises(ValueError, match="8 of 24 elements .* missing: .*=1; given: "):
        r.assemble("w")
