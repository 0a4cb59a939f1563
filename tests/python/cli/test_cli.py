"""cgdebug-cli with the real daemon and real jobs."""

import json
import os
import signal
import sys
import textwrap

import numpy as np
import pytest
import torch
from all_dtypes import NAMES, made_of

import cgdebug
from conftest import remove_segments_of, wait_until

HEADER = "import os, sys, time, torch\nfrom cgdebug import *\n"


def script(code):
    return [sys.executable, "-c", HEADER + textwrap.dedent(code)]


def summary_of(result):
    return json.loads(result.stderr.strip().splitlines()[-1])


def test_run_passes_the_exit_code_and_sums_up(cli):
    result = cli(
        "run",
        "--",
        *script(
            """
            probe = CudaGraphTensorProbe("blk3.mlp", [TensorPrint()], mode="always")
            for _ in range(5):
                probe(torch.ones(4))
            print("from the job")
            sys.exit(7)
            """
        ),
        CGDEBUG_RUN_ID="pytest-" + str(os.getpid()),
    )
    assert result.returncode == 7
    assert result.stdout == "from the job\n"
    assert "@5 blk3.mlp" in result.stderr
    assert "job exited 7 after 5 replays. 5 snapshots read, 0 lost." in result.stderr
    assert "next:  cgdebug-cli " in result.stderr


@pytest.mark.parametrize(
    "fail_on, value, code",
    [("nan", "nan", 1), ("inf", "nan", 0), ("nan,inf", "inf", 1), ("nan,inf,mismatch", "1", 0)],
)
def test_run_fails_on_what_was_asked_for_only(cli, fail_on, value, code):
    result = cli(
        "run",
        "--no-live",
        "--json",
        "--fail-on",
        fail_on,
        "--",
        *script(
            f"""
            probe = CudaGraphTensorProbe("x", [TensorCompare(torch.full((4,), float("{value}")),
                                                             equal_nan=True)], mode="always")
            for _ in range(3):
                probe(torch.full((4,), float("{value}")))
            probe.assert_ok()
            """
        ),
    )
    assert result.returncode == code, result.stderr
    summary = summary_of(result)
    assert summary["complete"] and summary["snapshots"] == 3
    assert summary["nonfinite_probes"] == (0 if value == "1" else 1)


def test_run_of_a_job_that_is_killed(cli):
    result = cli(
        "run",
        "--no-live",
        "--json",
        "--",
        *script(
            """
            probe = CudaGraphTensorProbe("x", [TensorCompare(torch.ones(4))], mode="always")
            probe(torch.ones(4))
            probe.assert_ok()
            print(os.getpid(), flush=True)
            os.kill(os.getpid(), 9)
            """
        ),
    )
    remove_segments_of(int(result.stdout))
    assert result.returncode == 128 + signal.SIGKILL
    summary = summary_of(result)
    assert summary["job_signal"] == signal.SIGKILL
    assert summary["sessions"][0]["state"] == "died"


def test_show_writes_what_the_probe_saw(cli, probe, tmp_path):
    x = torch.randn(3, 5)
    p = probe(cgdebug.TensorRecord(capacity=8), name="cli.show")
    p(x)
    p(-x)
    session = str(os.getpid())
    wait_until(
        lambda: cli("show", "-s", session, "cli.show@2").returncode == 0, "the daemon has read both"
    )
    path = tmp_path / "x.npy"
    assert cli("show", "-s", session, "cli.show@1", "-o", str(path)).returncode == 0
    np.testing.assert_array_equal(np.load(path), x.numpy())
    raw = tmp_path / "x.bin"
    assert cli("show", f"{session}:cli.show@-1", "-o", str(raw)).returncode == 0
    assert raw.read_bytes() == (-x).numpy().tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_npy_of_every_dtype(cli, probe, tmp_path, name):
    dtype = getattr(torch, name)
    x = made_of((torch.arange(6) % 2 == 0), name).reshape(2, 3)
    probe(cgdebug.TensorRecord(), name=f"cli.npy.{name}")(x)
    path = tmp_path / "x.npy"
    arguments = ["show", "-s", str(os.getpid()), f"cli.npy.{name}", "-f", "-o", str(path)]
    wait_until(lambda: cli(*arguments).returncode == 0, "the daemon has read it")
    loaded = np.load(path)
    assert loaded.shape == (2, 3)
    if dtype == torch.bfloat16:
        assert "bfloat16" in cli(*arguments).stderr
        loaded = (loaded.astype("uint32") << 16).view("float32")
        np.testing.assert_array_equal(loaded, x.float().numpy())
    elif dtype.itemsize == 1 and dtype.is_floating_point:
        assert name in cli(*arguments).stderr
        assert torch.equal(torch.from_numpy(loaded), x.view(torch.uint8))
    else:
        np.testing.assert_array_equal(loaded, x.numpy())


def test_json_of_a_tensor_names_its_nan(cli, probe):
    p = probe(cgdebug.TensorRecord(), name="cli.nan")
    p(torch.tensor([1.0, float("nan"), float("-inf")]))
    arguments = ["show", "-s", str(os.getpid()), "cli.nan", "--json"]
    wait_until(lambda: cli(*arguments).returncode == 0, "the daemon has read it")
    shown = json.loads(cli(*arguments).stdout)
    assert shown["values"] == [1.0, "NaN", "-Infinity"]
    assert shown["stats"]["first_nonfinite"] == {"index": 1, "value": "NaN"}


JOB = """
import torch
from cgdebug import CudaGraphTensorProbe, TensorPrint, TensorRecord

out = CudaGraphTensorProbe("blk0.out", [TensorRecord(64)], mode="always")
loss = CudaGraphTensorProbe("loss", [TensorPrint()], mode="always")
for step in range(1, 21):
    out(torch.full((65536,), float(step)))  # 256 KiB
    loss(torch.ones(1))
"""


def test_run_records_the_probes_that_were_asked_for(cli, tmp_path):
    job = tmp_path / "job.py"
    job.write_text(JOB)
    directory = tmp_path / "a.cgrec"
    how = ["--roll-size", "2M", "--durability", "each", "--max-size", "1G"]
    result = cli(
        *["run", "-o", str(directory), "--record", "blk*", *how, "--", sys.executable, str(job)],
        CGDEBUG_RUN_ID=f"records-{os.getpid()}",  # not that of this process, which has probes
        CGDEBUG_WAIT_MS="60000",  # a disk may take long to keep each snapshot
    )
    assert result.returncode == 0, result.stderr
    assert f"{directory}: 20 snapshots of 1 probe" in result.stderr
    recording = cgdebug.open(directory)
    assert recording.complete and recording.probes == ["blk0.out"]
    assert [s.replay_index for s in recording["blk0.out"]] == list(range(1, 21))
    for snapshot in recording["blk0.out"]:
        np.testing.assert_array_equal(
            snapshot.numpy(), np.full(65536, snapshot.replay_index, "float32")
        )
    assert len(list(directory.glob("segment-*"))) >= 3


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["run", "--durability", "each", "--", "true"], "Add: -o DIR.cgrec"),
        (["record", "start", "--durability", "always"], "--durability"),
        (["record", "start", "--roll-size", "4K"], "--roll-size: '4K' is too little"),
        (["record", "start", "--max-size", "lots"], "--max-size"),
        (["record", "start", "--max-size", "0"], "the least is 64K"),
        (["record", "start", "--duration", "-1s"], "'-1s' is not a duration"),
        (["record", "start", "--duration", "0"], "the shortest is 1ms"),
        (["record", "start", "--count", "1.5"], "'1.5' is not a whole number from 1 on"),
        (["freeze", "--last", "-1"], "'-1' is not a whole number from 1 on"),
    ],
)
def test_how_to_record_is_checked(cli, tmp_path, arguments, message):
    result = cli(*arguments, CGDEBUG_DIR=str(tmp_path))
    assert result.returncode == 2 and message in result.stderr, result.stderr
    assert not list(tmp_path.iterdir())
