"""A training of a framework that is killed in a step keeps all steps before it, under their calls
and steps in every view, and says what never left it."""

import json
import re
import sys
import textwrap

import pytest

import cgdebug
from op_logs import needs_mode

STEPS = 12  # whole ones, from step 0; the job is killed in the next
BAD = 7  # the step whose batch has a NaN
LIGHTNING = """
    import os, signal, torch
    import lightning.pytorch as L
    from torch import nn

    class Dies(nn.Module):
        calls = 0
        def forward(self, x):
            self.calls += 1
            x = x.exp().sin()
            if self.calls == STEPS + 1: os.kill(os.getpid(), signal.SIGKILL)
            return x

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), Dies(), nn.Linear(8, 1))
        def training_step(self, batch, batch_idx):
            return self.net(batch).square().mean()
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    rows = torch.ones(40, 4)
    rows[2 * BAD] = float("nan")
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(rows, batch_size=2))
"""
TRAINER = """
    import os, signal, torch, transformers
    from torch import nn

    class Net(nn.Module):
        calls = 0
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        def forward(self, x, labels=None):
            self.calls += 1
            x = self.net(x).exp().sin()
            if self.calls == STEPS + 1: os.kill(os.getpid(), signal.SIGKILL)
            return {"loss": x.square().mean()}

    rows = [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(40)]
    rows[2 * BAD]["x"] = torch.full((4,), float("nan"))
    class Trainer(transformers.Trainer):
        def _get_train_sampler(self, *args, **options):
            return torch.utils.data.SequentialSampler(rows)
    trainer = Trainer(
        Net(),
        transformers.TrainingArguments(
            "out", max_steps=20, per_device_train_batch_size=2, use_cpu=True, report_to=[],
            save_strategy="no", disable_tqdm=True, logging_nan_inf_filter=False,
        ),
        train_dataset=rows,
    )
    trainer.train()
"""
JOBS = {"lightning": LIGHTNING, "trainer": TRAINER}
LEVELS = {"*": [], "op:*": ["--eager"]}


def job_id(framework, level):
    """Of one job alone: one daemon shows the jobs of all tests."""
    return f"{framework}-{'ops' if level == 'op:*' else 'modules'}"


@pytest.fixture
def fit(daemon, cli, tmp_path, monkeypatch):
    """fit(framework, level): (path of the recording, what `run` said)"""
    monkeypatch.chdir(tmp_path)

    def run(framework, level):
        pytest.importorskip({"lightning": "lightning", "trainer": "transformers"}[framework])
        script, path = tmp_path / "job.py", tmp_path / "job.cgrec"
        head = f"STEPS, BAD = {STEPS}, {BAD}\n"
        script.write_text(head + textwrap.dedent(JOBS[framework]), encoding="utf-8")
        watch = ["--watch", level, *LEVELS[level], "-o", path]
        done = cli(
            "run", *watch, "--", sys.executable, script, CGDEBUG_RUN_ID=job_id(framework, level)
        )
        assert done.returncode == 137, done.stderr
        return path, done.stdout + done.stderr

    return run


def query(cli, path, sql):
    done = cli("--json", "query", path, sql)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("framework", JOBS)
@pytest.mark.parametrize("level", LEVELS)
@needs_mode
def test_a_fit_that_is_killed_keeps_its_steps_and_counts_the_rest(fit, cli, framework, level):
    path, said = fit(framework, level)
    probe = "fwd/net.0" if level == "*" else "fwd/net.0/addmm_0"
    rows = query(
        cli, path, f"select call, step from v_snapshots where probe = '{probe}' order by call"
    )
    calls = {row["step"]: row["call"] for row in rows}
    # The killed step's own rows may be there, if they left; those before it are.
    assert list(calls)[:STEPS] == list(range(STEPS)), rows
    assert sorted(calls.values()) == list(calls.values()), "calls ascend with their steps"

    checked = cli("check", path)
    assert checked.returncode == 1, checked.stdout
    bad = calls[BAD]
    first = json.loads(cli("--json", "check", path).stdout)["first_nonfinite"]
    assert first["step"] == BAD and first["replay"] == bad, first
    assert f"call {bad}" in checked.stdout and f"step {BAD}" in checked.stdout, checked.stdout
    assert f"call {bad}" in said and "NaN" in said, said
    shown = cli("show", f"{path}:{probe}@call:{bad}").stdout
    assert f"call {bad}" in shown and f"step {BAD}" in shown, shown

    with cgdebug.open(path) as recording:
        lost = recording.missing
    if level == "op:*":
        never_sent = re.search(r"(\d+) rows? of op logs never left the job", checked.stdout)
        assert never_sent, checked.stdout
        assert 1 <= int(never_sent[1]) <= 40, "what the killed step did"
        assert never_sent[0] in said, said
        assert any(never_sent[0] in sentence for sentence in lost), lost
        told = cli("-s", job_id(framework, level), "tail", "-n", "1000", "--only", "nan").stdout
        ended = next(line for line in told.splitlines() if " died after " in line)
        assert never_sent[0] in ended, ended
        marks = re.findall(r"\bcall (\d+)/s(\d+)\b", told)
        assert marks and marks[0] == (str(bad), str(BAD)), told
        ops = json.loads(cli("--json", "ops", f"{path}@call:{bad}").stdout)
        assert ops["step"] == BAD and ops["replay"] == bad, {**ops, "rows": 0}
        names = [row["name"] for row in ops["rows"]]
        phases = list(dict.fromkeys(name.split("/")[0] for name in names if "/" in name))
        assert [one for one in phases if one in ("fwd", "bwd", "opt")] == ["fwd", "bwd", "opt"]
        last = json.loads(cli("--json", "ops", f"{path}@call:{calls[STEPS - 1]}").stdout)
        assert [row["name"] for row in last["rows"]][-1].startswith("opt/"), "to its last row"
    else:
        assert not lost, "each snapshot is in shared memory as soon as its module has returned"
        assert f"after {STEPS + 1} calls" in said, said
        assert " died " in cli("info", path).stdout
