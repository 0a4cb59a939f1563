"""Rows of captured graphs of other batch sizes are compared by their sketches, on a GPU."""

import subprocess
import sys

import pytest

from conftest import find_program

pytestmark = [pytest.mark.gpu]

# Decodes four requests in a graph of one row, or of six. fault: "scaled", in which the graph of six
# scales a row; "unwatched", in which the warm-up was not watched.
PROGRAM = """
import sys
import torch, cgdebug
rows, fault = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
DIM, STEPS = 256, 6
model = torch.nn.Sequential(*[
    torch.nn.Sequential(torch.nn.LayerNorm(DIM), torch.nn.Linear(DIM, 4 * DIM), torch.nn.GELU(),
                        torch.nn.Linear(4 * DIM, DIM)) for _ in range(4)]).bfloat16().cuda()
tokens = torch.randn(4, STEPS, DIM).bfloat16().cuda()
scale = torch.ones(rows, 1).bfloat16().cuda()
if fault == "scaled":
    model[2].register_forward_hook(lambda module, args, output: output * scale)
x = torch.zeros(rows, DIM).bfloat16().cuda()
requests = torch.full((rows,), -1, device="cuda")
positions = torch.zeros(rows, dtype=torch.int64, device="cuda")

def forward():
    cgdebug.rows(requests, positions)
    model(x)

with torch.no_grad():
    if fault != "unwatched": watch = cgdebug.watch(model, sketches=2)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream): model(x)
    torch.cuda.current_stream().wait_stream(stream)
    if fault == "unwatched": watch = cgdebug.watch(model, sketches=2)
    graph = torch.cuda.CUDAGraph()
    with cgdebug.graph_label("decode"), torch.cuda.graph(graph):
        forward()
    for first in range(0, 4, min(rows, 4)):
        count = min(rows, 4)
        for step in range(STEPS):
            x[:count] = tokens[first : first + count, step]
            requests[:count] = torch.arange(first, first + count, device="cuda")
            positions.fill_(step)
            if fault == "scaled" and rows > 1 and step == 3: scale[1] = 1.5
            graph.replay()
            torch.cuda.synchronize()
"""


@pytest.fixture
def compared(cli, tmp_path):
    """compared(fault of the large graph): exit code and text of diff --by request."""
    script = tmp_path / "decode.py"
    script.write_text(PROGRAM)

    def run(fault):
        paths = []
        for rows, which in ((1, "none"), (6, fault)):
            paths.append(tmp_path / f"{rows}-{which}.cgrec")
            done = cli("run", "-o", paths[-1], "--", sys.executable, script, str(rows), which)
            assert done.returncode == 0, done.stdout + done.stderr
        command = ["diff", *paths, "--by", "request", "--graph", "decode"]
        done = subprocess.run(
            [find_program("cgdebug-cli"), *command], capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.parametrize("fault", ["none", "unwatched"])
def test_graphs_of_two_sizes_have_no_growth(compared, fault):
    code, text = compared(fault)
    assert code == 0, text
    assert "24 tokens of 4 requests" in text


def test_a_row_that_is_scaled_is_named(compared):
    code, text = compared("scaled")
    assert code == 1, text
    assert "first growth of the error: fwd/2, request 1 position 3" in text
