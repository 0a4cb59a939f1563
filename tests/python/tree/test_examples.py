"""Every program under python/examples runs and says what to type next."""

import os
import subprocess
import sys

import pytest

from conftest import ROOT

EXAMPLES = sorted((ROOT / "python" / "examples").glob("*.py"))
EXPECTED = {
    "custom_consumer": "units dead in all 24 replays: [0, ",
    "gradient_patterns": "both views of first.weight.grad agree",
    "parallel_training": "fsdp2/0.weight @3: parts [64, 64], [64, 64] make [128, 64]",
    "tensorboard_export": "20 records, the last one: <walk @20 f32[256]",
    "transformer_block": "step 6: <block.out @6 f32[2,8,32]",
}


def run(path, tmp_path, *arguments, **environment):
    finished = subprocess.run(
        [sys.executable, path, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "CGDEBUG": "0", **environment},
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_each_example_has_a_test():
    assert [path.stem for path in EXAMPLES] == sorted(EXPECTED)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_on_the_cpu(path, tmp_path):
    out = run(path, tmp_path, CUDA_VISIBLE_DEVICES="")
    assert EXPECTED[path.stem] in out and "cuda" not in out
    assert "next:" in out.splitlines()[-1]


@pytest.mark.gpu
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_in_a_cuda_graph(path, tmp_path):
    out = run(path, tmp_path)
    assert EXPECTED[path.stem] in out
    assert "next:" in out.splitlines()[-1]
    assert "cuda:0" in out or path.stem in ("custom_consumer", "parallel_training")


def test_transformer_block_with_probes_off_records_nothing(tmp_path):
    out = run(
        ROOT / "python" / "examples" / "transformer_block.py",
        tmp_path,
        "--off",
        CUDA_VISIBLE_DEVICES="",
    )
    assert "block.attn" not in out and "every probe is off" in out
