"""Rows of collectives between real ranks, eager with gloo: each shows what the ranks made."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

WORLD = """
import json, sys, time
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
import cgdebug

rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
results = {}

def late():
    if rank:
        time.sleep(0.2)

def given():
    return torch.arange(4.0) + rank + 1

def made(count=4):
    return torch.full((count,), float("nan"))

def reduce_scatter():
    result, source = made(2), given()
    late()
    dist.reduce_scatter_tensor(result, source)
    return result

def reduce_scatter_async():
    result, source = made(2), given()
    late()
    work = dist.reduce_scatter_tensor(result, source, async_op=True)
    view = result.view(1, 2)
    work.wait()
    return view

def all_reduce():
    tensor = given()
    late()
    work = dist.all_reduce(tensor, async_op=True)
    view = tensor.view(2, 2)
    work.wait()
    return view

def all_gather():
    parts, source = [made(), made()], given()
    late()
    dist.all_gather(parts, source)
    return torch.stack(parts)

def all_gather_parts():
    result, source = made(8), given()
    late()
    dist.all_gather([*result.split(4)], source)
    return result

def all_gather_async():
    result, source = made(8), given()
    late()
    work = dist.all_gather_into_tensor(result, source, async_op=True)
    views = result.split(4)
    work.wait()
    return torch.cat(views)

def all_to_all():
    result, source = made(), given()
    late()
    dist.all_to_all_single(result, source)
    return result

def broadcast():
    memory = torch.zeros(8)
    memory[4:] = given()
    late()
    dist.broadcast(memory[4:], 1)
    memory[:4].zero_()
    return memory

def overwritten():
    tensor = given()
    late()
    dist.all_reduce(tensor)
    tensor.fill_(6)
    return tensor

def received():
    result, source = made(), given()
    late()
    work = [dist.isend(source, 1 - rank), dist.irecv(result, 1 - rank)]
    shape = torch.empty_like(result)
    [one.wait() for one in work]
    return result

def functional_all_reduce():
    source = given()
    late()
    return functional.all_reduce(source, "sum", dist.group.WORLD).view(2, 2)

def functional_reduce_scatter():
    source = given()
    late()
    return functional.reduce_scatter_tensor(source, "sum", 0, dist.group.WORLD)

with cgdebug.debug_mode(eager=True) as dm:
    for function in (
        reduce_scatter, reduce_scatter_async, all_reduce, all_gather, all_gather_parts,
        all_gather_async, all_to_all, broadcast, overwritten, received, functional_all_reduce, functional_reduce_scatter,
    ):
        dist.barrier()
        results[function.__name__] = float((function() * 1).abs().sum())
log = dm.log()
found = [{"number": row.number, "op": row.op, "l1": row.stats.l1} for row in log.rows]

# As stages of a pipeline do: what was received before a call of the model is read in it.
model = torch.nn.Linear(4, 4)
with cgdebug.debug_mode(model, eager=True) as dm:
    model(given())
    model(received())
received = [row.stats.l1 for row in dm.log().rows if row.op == "c10d.recv_.default"]
gaps = [*log.gaps, *dm.log().gaps]
print(json.dumps({"results": results, "rows": found, "received": received, "gaps": gaps}))
dist.destroy_process_group()
"""


def test_the_row_of_a_collective_shows_its_result(daemon, tmp_path):
    (tmp_path / "world.py").write_text(WORLD)
    jobs = [
        subprocess.Popen(
            [sys.executable, tmp_path / "world.py", tmp_path / "meeting", str(rank)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"CGDEBUG": "1"},
        )
        for rank in range(2)
    ]
    told = [job.communicate(timeout=240)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0]
    for text in told:
        found = json.loads(text.splitlines()[-1])
        rows = [row for row in found["rows"] if "c10d" in row["op"]]
        last = [row for row in found["rows"] if row["op"] == "aten.sum.default"]
        assert len(last) == len(found["results"]), "each collective has rows, in its order"
        for (name, result), total in zip(found["results"].items(), last, strict=True):
            begin = max(
                (one["number"] for one in last if one["number"] < total["number"]), default=0
            )
            made = [row["l1"] for row in rows if begin < row["number"] < total["number"]]
            assert sum(made) == result == total["l1"], f"{name}: {found['rows']}"
        assert found["received"] == [found["results"]["received"]]
        assert not found["gaps"]
