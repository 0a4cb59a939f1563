"""A NaN in one batch has the same call, step and phase in every view, whatever the program is."""

import json
import re
import sys
import textwrap

import pytest

from op_logs import needs_mode

BAD = 3  # the step whose batch has a NaN, from 0
HEAD = f"""
import warnings
warnings.simplefilter("ignore")
import torch, cgdebug
from torch import nn
torch.manual_seed(0)
class Batches(torch.utils.data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, n):
        if n == 6: raise IndexError
        return torch.full((2, 4), float("nan") if n == {BAD} else n + 1.0)
class Last(nn.Module):
    factor = 1.0
    def forward(self, x): return x.exp() * self.factor
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2), Last())
def train(batches, step):
    for n, x in enumerate(batches):
        cgdebug.step(n)
        step(x)
"""
PROGRAMS = {
    # Each of its steps calls the model several times.
    "lbfgs": """
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.01, max_iter=3, tolerance_change=0)
def step(x):
    def closure():
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss
    optimizer.step(closure)
train(Batches(), step)
""",
    "workers": """
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
def step(x):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
train(torch.utils.data.DataLoader(Batches(), batch_size=None, num_workers=2), step)
""",
    # It refuses a batch with a NaN.
    "quantized": f"""
net = torch.ao.quantization.quantize_dynamic(net, {{nn.Linear}})
def step(n):
    net[3].factor = float("nan") if n == {BAD} else 1.0
    net(torch.ones(2, 4))
with torch.no_grad(): train(range(6), step)
""",
}
LEVELS = {"*": [], "op:*": ["--eager"]}


@pytest.fixture(params=[(kind, level) for kind in PROGRAMS for level in LEVELS], ids="-".join)
def recorded(request, daemon, cli, tmp_path):
    """(kind, level, what `run` said, path of the recording, name of the run)"""
    kind, level = request.param
    path, run = tmp_path / "a.cgrec", f"view-{tmp_path.name}"
    (tmp_path / "job.py").write_text(textwrap.dedent(HEAD + PROGRAMS[kind]))
    watch = ("--watch", level, *LEVELS[level])
    job = (sys.executable, tmp_path / "job.py")
    done = cli("run", *watch, "-o", path, "--", *job, CGDEBUG_RUN_ID=run)
    return kind, level, done.stdout + done.stderr, path, run


@needs_mode
def test_a_nan_has_its_call_its_step_and_its_phase_in_every_view(recorded, cli):
    kind, level, said, path, run = recorded

    def query(sql):
        done = cli("--json", "query", path, sql)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    # Tanh is a module that is called once in each call of the model.
    probe = "fwd/1" if level == "*" else "fwd/1/tanh_0"
    rows = query(f"select call, step, thread, nan from v_snapshots where probe = '{probe}'")
    of_step = {n: [row for row in rows if row["step"] == n] for n in range(6)}
    assert all(of_step.values()), "each step has a call"
    assert all(len(each) > 1 for each in of_step.values()) == (kind == "lbfgs"), rows
    assert {row["thread"] for row in rows} == {1}
    call = min(row["call"] for row in of_step[BAD])

    found = json.loads(cli("--json", "check", path).stdout)["first_nonfinite"]
    assert (found["replay"], found["step"], found["thread"]) == (call, BAD, 1), found
    place = found["probe"]
    assert place.partition("/")[0] in ("fwd", "in"), place
    assert f"first non-finite: call {call} (step {BAD}), {place}\n" in cli("check", path).stdout
    assert f"first NaN: {place} in call {call}, " in said, said

    first = query("select probe, replay, step from v_first_nonfinite where nan > 0")[0]
    assert (first["probe"], first["replay"], first["step"]) == (place, call, BAD)

    shown = cli("show", f"{path}:{place}@call:{call}")
    assert f"call {call}" in shown.stdout and f"step {BAD}" in shown.stdout, shown.stdout

    told = cli("-s", run, "tail", "-n", "1000", "--only", "nan").stdout
    marks = re.findall(r"\bcall (\d+)/s(\d+)\b", told)
    assert marks and marks[0] == (str(call), str(BAD)), told

    bad = json.loads(cli("--json", "ranks", path).stdout)["ranks"][0]["first_nonfinite"]
    assert (bad["probe"], bad["call"]) == (place, call), bad

    if level == "op:*":
        log = json.loads(cli("--json", "ops", f"{path}@call:{call}").stdout)
        assert (log["call"], log["step"], log["first_nan"]["name"]) == (call, BAD, place)
        phases = {row["name"].partition("/")[0] for row in log["rows"]}
        assert "fwd" in phases and ("bwd" in phases) == (kind != "quantized"), phases
    else:
        assert cli("ops", path).returncode == 4, "there is no op log"
