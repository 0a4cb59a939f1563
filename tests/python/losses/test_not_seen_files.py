"""Files and ranks that are not here are in every answer, as what nobody saw is (test_not_seen.py)."""

import json
import os
import subprocess
import sys

import pytest
import torch

import cgdebug
from conftest import find_program

PROGRAM = """
import torch
from cgdebug import *
p = CudaGraphTensorProbe('x', [TensorRecord()], mode='always')
for i in range(4): p(torch.ones(2) + i)
"""


def ranks(folder, world, *here):
    """Recordings of these ranks of a run."""
    (folder / "job.py").write_text(PROGRAM)
    source = folder / "runs"
    source.mkdir()
    for rank in here:
        subprocess.run(
            [find_program("cgdebug-cli"), "run", "-o", str(source / f"r{rank}.cgrec"), "--",
             sys.executable, str(folder / "job.py")],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world),
                 "CGDEBUG_RUN_ID": f"of-{folder.name}"},
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
    return source, "ranks 2..3 of 4 are not in here"


def shards(folder, count, *here):
    """Those of a checkpoint of `count`, with an index that names all."""
    safetensors = pytest.importorskip("safetensors.torch")
    source = folder / "checkpoint"
    source.mkdir()
    name = "part-{}.safetensors".format  # tells nothing of the others
    for shard in here:
        safetensors.save_file({f"w{shard}": torch.arange(4.0)}, source / name(shard))
    index = {"weight_map": {f"w{one}": name(one) for one in range(count)}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    return source, "part-2.safetensors is not here"


KINDS = {"ranks": ranks, "shards": shards}


def commands(source, folder):
    return {
        "check": ["check", source],
        "check json": ["--json", "check", source],
        "diff": ["diff", source, source],
        "why": ["why", source],
        "info": ["info", source],
        "info json": ["--json", "info", source],
        "stats": ["stats", source],
        "stats json": ["--json", "stats", source],
        "ranks": ["ranks", source],
        "verify": ["verify", source],
        "export": ["export", source, "--to", "npz", "-o", str(folder / "out")],
        "report": ["report", source, "-o", str(folder / "a.html")],
        "query": ["query", source, "select count(*) from v_snapshots"],
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_whole", [False, True])
def test_no_answer_passes_over_files_that_are_not_here(daemon, cli, tmp_path, kind, is_whole):
    here = range(4) if is_whole else (0, 1)
    source, text = KINDS[kind](tmp_path, 4, *here)
    said = {}
    for name, command in commands(str(source), tmp_path).items():
        done = cli(*command)
        said[name] = (done.returncode, done.stdout + done.stderr)
    for name in ("check", "diff", "info", "stats", "query"):
        assert (text in said[name][1]) == (not is_whole), (name, said[name])
    wrong = {}
    for name in ("check", "check json", "diff", "info", "info json", "stats", "stats json"):
        if said[name][0] != (0 if is_whole else 3):
            wrong[name] = said[name]
    for name in ("why", "ranks", "export"):  # verify answers for the bytes that are here
        if not is_whole and said[name][0] == 0:
            wrong[name] = said[name]
    assert wrong == {}
    assert json.loads(said["check json"][1].partition("\n}")[0] + "\n}")["complete"] == is_whole
    with cgdebug.open(str(source)) as opened:
        assert opened.complete == opened.check().ok == is_whole
        assert any(text in sentence for sentence in opened.missing) == (not is_whole)
