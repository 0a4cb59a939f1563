"""`why A B` says where two runs begin to differ, and `run` proposes it."""

import re
import sys

import pytest

# Called with what is added, and with how many rows a call has.
PROGRAM = """
import sys
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x) + float(sys.argv[1])

torch.manual_seed(0)
model = Model()
with torch.no_grad():
    for _ in range(3):
        model(torch.ones(2, 4))
"""


@pytest.fixture
def run(cli, tmp_path):
    """run(level, value) runs the program; what it said, and the key of the job."""
    script = tmp_path / "two.py"
    script.write_text(PROGRAM)

    def start(level, value):
        eager = ["--eager"] if level == "op:*" else []
        words = ["run", "--watch", level, *eager, "--", sys.executable, str(script), value]
        done = cli(*words, CGDEBUG="1", CGDEBUG_RUN_ID="")
        assert done.returncode == 0, done.stderr
        return done.stderr, re.search(r"probes -s (\S+)", done.stderr)[1]

    return start


@pytest.mark.parametrize(
    ("level", "first"), [("op:*", r"first divergence: #\d+ fwd/Model/add_0"), ("*", "fwd/Model")]
)
def test_run_proposes_to_compare_two_runs_and_why_says_where_they_part(cli, run, level, first):
    said, right = run(level, "1")
    assert "cgdebug-cli why" not in said, "there is no other one"
    said, wrong = run(level, "2")
    assert f"cgdebug-cli why {right} {wrong}" in said
    found = cli("why", right, wrong)
    assert found.returncode == 1 and re.search(first, found.stdout), found.stdout
    said, again = run(level, "1")
    same = cli("why", right, again)
    assert same.returncode == 0, same.stdout
    other = "*" if level == "op:*" else "op:*"
    _, elsewhere = run(other, "1")
    assert cli("why", right, elsewhere).returncode == 3, "not all of it was compared"
