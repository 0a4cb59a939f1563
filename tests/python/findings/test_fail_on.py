"""`cgdebug.check()`, `cgdebug.step()` and `cgdebug-cli run --fail-on`: what was found stops the job."""

import os
import re
import subprocess
import sys
import textwrap
import uuid

import pytest

import cgdebug

HEADER = "import sys, time, torch, cgdebug\nfrom cgdebug import *\n"

# Probe `second` shows NaN at step 3, `third` in the same replay.
STEPS = """
probes = [CudaGraphTensorProbe(n, [TensorStats()], mode="always") for n in ("first", "second", "third")]
for n in range(1, 1000):
    cgdebug.step(n)
    x = torch.ones(2, 3, 4)
    probes[0](x)
    if n >= 3:
        x[1, 0, 2] = float("nan")
    probes[1](x)
    probes[2](x)
    time.sleep(0.01)
print("it ran to its end")
"""
SENTENCE = (
    r"first NaN: second @3(?: on rank \d+)?, 1 element, first non-finite at \[1, 0, 2\], step 3, "
    r"probed at [^.]*:\d+[^.]*\. Type: cgdebug-cli show -s \w+ 'second@3'(?! --where)"
)


def run_job(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", HEADER + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
    )


def test_the_step_after_a_nan_raises_and_says_where_it_was(daemon):
    run = run_job(STEPS, CGDEBUG_FAIL_ON="nan")
    assert run.returncode == 1
    assert re.search("FoundError: " + SENTENCE, run.stderr), run.stderr
    assert "its end" not in run.stdout


def test_no_step_raises_for_what_nobody_asked_for(daemon):
    code = STEPS.replace("1000", "20")
    for environment in ({}, {"CGDEBUG_FAIL_ON": "inf,mismatch"}):
        run = run_job(code, **environment)
        assert run.returncode == 0, run.stderr
        assert "its end" in run.stdout


def test_run_fails_with_the_sentence_that_the_job_raised(cli, monkeypatch):
    monkeypatch.delenv("CGDEBUG_RUN_ID")
    run = cli("run", "--no-live", "--fail-on", "nan", "--", sys.executable, "-c", HEADER + STEPS)
    assert run.returncode == 1
    said = re.findall(SENTENCE, run.stderr)
    assert len(said) == 2 and said[0] == said[1], run.stderr


def test_run_fails_if_the_job_never_asks(cli, monkeypatch):
    monkeypatch.delenv("CGDEBUG_RUN_ID")
    code = HEADER + STEPS.replace("cgdebug.step(n)", "").replace("1000", "10")
    run = cli("run", "--no-live", "--fail-on", "nan", "--", sys.executable, "-c", code)
    assert "its end" in run.stdout
    assert run.returncode == 1
    assert re.search(SENTENCE.replace(", step 3", ""), run.stderr), run.stderr


def test_the_path_of_a_recording_is_answered_with_what_reads_it():
    with pytest.raises(ValueError, match=r"Type: cgdebug\.open\('a\.cgrec'\)\.check\(\)"):
        cgdebug.check("a.cgrec")


def test_check_finds_rows_of_op_logs(daemon):
    run = run_job(
        """
        with cgdebug.debug_mode(torch.nn.Linear(3, 3), eager=True):
            x = torch.zeros(4)
            y = torch.log(x - 1)
        try:
            cgdebug.check()
        except cgdebug.FoundError as error:
            print(error.kind, error)
        """
    )
    assert re.match(
        r"nan first NaN: \S*log_0 in call 1.*, 4 elements, first non-finite at \[0\]", run.stdout
    ), run.stdout + run.stderr
    assert re.search(r"Type: cgdebug-cli ops '\w+@call:1'", run.stdout)


ATTENTION = """
class Attention(torch.nn.Module):
    def forward(self, x, bias):
        hidden = torch.arange(len(x)) > torch.arange(len(x))[:, None]
        scores = (x @ x.T).masked_fill(hidden, -torch.inf) + bias
        return scores.softmax(-1) @ x

model = Attention()
for n in range(1, 6):
    model(torch.ones(2 + n % 3, 4), torch.zeros(()))
"""


@pytest.mark.parametrize(
    "edit, found",
    [
        (("", ""), None),
        (("+ bias", "+ torch.log(bias * 0)"), r"\S*log_0"),
        (("torch.zeros(())", "torch.zeros(()).fill_(float('inf'))"), r"in/\S+"),
    ],
)
def test_a_mask_is_no_finding_and_an_inf_beside_it_is_one(daemon, cli, monkeypatch, edit, found):
    run_id = f"masks-{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv("CGDEBUG_RUN_ID", run_id)
    job = (sys.executable, "-c", HEADER + ATTENTION.replace(*edit))
    run = cli("run", "--watch", "op:*", "--eager", "--fail-on", "inf", "--", *job)
    status = cli("status", run_id).stdout  # the daemon knows jobs of other tests, too
    masks = r"masked_fill_0[^\n]*masks?\?"
    assert re.search(masks, run.stderr), run.stderr
    assert re.search(masks, status), status
    if found is None:
        assert run.returncode == 0, run.stderr
        assert "first Inf" not in run.stderr + status and "with NaN or Inf" not in run.stderr
        assert "none saw NaN or Inf" in status
    else:
        assert run.returncode == 1, run.stderr
        assert len(re.findall(f"first Inf: {found} in call 1, 1 element", run.stderr)) == 2
        assert re.search(f"first Inf: {found}", status), status


def test_check_finds_a_failed_comparison(daemon):
    run = run_job(
        """
        p = CudaGraphTensorProbe("c", [TensorCompare(torch.zeros(4))], mode="always")
        p(torch.zeros(4))
        cgdebug.check("nan,inf,mismatch")
        p(torch.ones(4))
        cgdebug.check("nan,inf")
        try:
            cgdebug.check("mismatch")
        except AssertionError as error:
            print(error.kind, error)
        """
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("mismatch first failed comparison: c @2, "), run.stdout
    assert "Type: cgdebug-cli tail --only mismatch -s " in run.stdout


def test_check_says_nothing_only_if_everything_was_read(daemon):
    clean = """
    p = CudaGraphTensorProbe("p", [TensorStats()], mode="always")
    for _ in range(5):
        p(torch.ones(4))
    cgdebug.check(timeout=120)
    """
    assert run_job(clean).returncode == 0
    alone = run_job(clean.replace("120", "2"), CGDEBUG="0", CGDEBUG_SOCKET="/nonexistent/d.sock")
    assert "NotCheckedError: cgdebug.check: no daemon has read everything" in alone.stderr
    lossy = clean.replace("TensorStats()", "TensorRecord(capacity=2)").replace(
        "    for _ in range(5):", "    for _ in range(30000):"
    )
    lost = run_job(lossy)
    assert "NotCheckedError" in lost.stderr and "lost" in lost.stderr, lost.stderr
    assert "no probe of this process" in run_job("cgdebug.check()").stderr


def test_check_knows_what_a_closed_probe_lost(daemon):
    run = run_job(
        """
        p = CudaGraphTensorProbe("p", [TensorRecord(capacity=2)], mode="always")
        for _ in range(30000):
            p(torch.ones(4))
        try:
            cgdebug.check()
        except cgdebug.NotCheckedError:
            p.close()
        q = CudaGraphTensorProbe("q", [TensorStats()], mode="always")
        q(torch.ones(4))
        cgdebug.check()
        """
    )
    assert "NotCheckedError" in run.stderr and "lost" in run.stderr, run.stderr


# Everything here is seen whole, and closed.
WHOLE = """
import gc
ON = "nan,inf,mismatch"
x = torch.ones(4, 4)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
def seen(name, action, x=x, calls=1):
    with CudaGraphTensorProbe(name, [action], mode="always") as probe:
        for _ in range(calls): probe(x)
    cgdebug.check(ON)
seen("stats", TensorStats())
seen("compare", TensorCompare(x))
seen("record", TensorRecord(capacity=2, every=10), calls=12)
for n in range(1, 70): seen("shapes", TensorRecord(capacity=2), torch.ones(n))
CudaGraphTensorProbe("never", [TensorCompare(x)], mode="always").close()
watch = cgdebug.watch(model, params=True, grads=True)
model(x).sum().backward()
watch.close()
del watch
with cgdebug.debug_mode(model, eager=True): model(x)
gc.collect()
cgdebug.check(ON)
"""


def test_what_was_whole_and_is_closed_leaves_nothing_behind_for_a_later_check(daemon):
    run = run_job(WHOLE + "seen('last', TensorStats())\nprint('pass')")
    assert run.returncode == 0 and run.stdout == "pass\n", run.stderr


REFUSED = {
    "watch": "watch = cgdebug.watch(bad)\nbad(x)\nwatch.close()\ndel watch",
    "op log": "with cgdebug.debug_mode(bad, eager=True): bad(x)",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_was_refused_is_told_by_each_later_check_also_when_it_is_closed(daemon, kind):
    refused = """
import torch, cgdebug, gc
class Complex(torch.nn.Module):
    def forward(self, x): return torch.complex(x, x)
bad = torch.nn.Sequential(torch.nn.ReLU(), Complex())
x = torch.ones(4, 4)
"""
    asks = """
del bad
gc.collect()
with CudaGraphTensorProbe("last", [TensorStats()], mode="always") as probe: probe(x)
for _ in range(2):
    try:
        cgdebug.check()
        print("pass")
    except cgdebug.NotCheckedError as error:
        print(error)
"""
    run = run_job(refused + REFUSED[kind] + asks)
    told = run.stdout.splitlines()
    assert len(told) == 2 and told[0] == told[1] and "complex" in told[0], run.stdout + run.stderr


def test_check_is_not_content_with_a_probe_that_was_turned_down(daemon):
    run = run_job(
        """
        p = CudaGraphTensorProbe("down", [TensorCompare(torch.zeros(4))], mode="always")
        def turn(mode, is_done):
            with cgdebug.connect() as client:
                client.set("down", mode=mode)
            while not is_done(p.status().slots[0]):
                p(torch.zeros(4))
                time.sleep(0.01)
        p(torch.zeros(4))
        cgdebug.check("nan,mismatch")
        turn("stats", lambda slot: slot.not_compared)
        cgdebug.check("nan")
        try:
            cgdebug.check("mismatch")
        except cgdebug.NotCheckedError as error:
            print(error)
        turn("off", lambda slot: slot.suppressed)
        try:
            cgdebug.check("nan")
        except cgdebug.NotCheckedError as error:
            print(error)
        """
    )
    assert run.returncode == 0, run.stderr
    compared, turned_off = run.stdout.splitlines()
    assert "could not compare everything" in compared
    assert "of probes wrote nothing, because a probe was turned off" in turned_off


def test_check_does_not_wait_for_a_daemon_that_was_stopped_while_it_wrote(daemon):
    run = run_job(
        """
        import os, struct
        from cgdebug import _probe
        p = CudaGraphTensorProbe("p", [TensorStats()], mode="always")
        p(torch.ones(4))
        cgdebug.check()
        # Left open: closing it would drop the lock that says that this process lives.
        control = os.open("/dev/shm/" + _probe.session()["name"], os.O_RDWR)
        os.pwrite(control, struct.pack("=Q", 1), 12288)  # FindingText::version
        try:
            cgdebug.check()
        except cgdebug.FoundError as error:
            print(error)
        """
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("something was found, but the daemon"), run.stdout


def test_run_hands_on_what_rings_in_device_memory_wait_for(cli, monkeypatch):
    monkeypatch.delenv("CGDEBUG_RUN_ID")
    code = "import os; print(os.environ['CGDEBUG_ON'])"
    run = cli("run", "--no-live", "--on", "absmax>1e4", "--", sys.executable, "-c", code)
    assert run.stdout == "absmax>1e4\n"
    wrong = cli("run", "--on", "loss", "--", sys.executable, "-c", code)
    assert wrong.returncode == 2 and "--on is nan (NaN or Inf), inf" in wrong.stderr


def test_an_unknown_word_is_refused():
    with pytest.raises(ValueError, match="cgdebug.check: on knows"):
        cgdebug.check(on="nan,loss")
    with pytest.raises(ValueError, match="a text such as"):
        cgdebug.check(on=["nan"])


# Rows of an op log with NaN or Inf, as correct programs have them, and as a broken one has.
ROWS = """
def attention(x):  # of rows of which some see nothing
    return torch.nan_to_num(torch.full_like(x, -torch.inf).softmax(-1)) + x

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, x):
        return attention(self.linear(x))

model = Model()
def call(x): model(x)
"""
SCALED = """
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
def call(x):
    with torch.autocast("cpu", torch.float16):
        loss = model(x.repeat(4, 8)).float().square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
# program, what its calls get, calls, exit code of --fail-on nan,inf
EXCUSED = {
    "left out": (ROWS, "torch.ones(4, 4)", 4, 0),
    "skipped": (SCALED, "torch.ones(4, 4)", 12, 0),
    "left out, and then not": (ROWS, "torch.full((4, 4), torch.nan if n == 3 else 1.0)", 4, 1),
    "more than are kept": (ROWS, "torch.ones(4, 4)", 40, 3),
}


@pytest.mark.parametrize("name", EXCUSED)
def test_run_knows_the_excuses_that_check_knows(cli, monkeypatch, tmp_path, name):
    monkeypatch.delenv("CGDEBUG_RUN_ID")
    program, x, calls, code = EXCUSED[name]
    job = HEADER + program + f"for n in range(1, {calls} + 1): call({x})\n"
    watch = ("--watch", "op:*", "--eager", "--fail-on", "nan,inf")
    run = cli("run", *watch, "--", sys.executable, "-c", job)
    assert run.returncode == code, run.stderr
    first = r"--fail-on: first NaN: \S*full_0 between call 2 and 3, 16 elements"
    assert bool(re.search(first, run.stderr)) == (code == 1), run.stderr
    if code != 1:
        assert "first NaN" not in run.stderr.partition("job exited")[2]
    if code == 0:
        assert "Each has an excuse. Type: cgdebug-cli check" in run.stderr
    if code == 3:
        assert "Keep all: cgdebug-cli run -o DIR.cgrec" in run.stderr
        path = str(tmp_path / "a.cgrec")
        kept = cli("run", *watch, "-o", path, "--", sys.executable, "-c", job)
        assert kept.returncode == 0 and "Each has an excuse" in kept.stderr, kept.stderr
        assert cli("check", path).returncode == 0


@pytest.mark.parametrize("name", EXCUSED)
def test_check_and_step_know_the_excuses_that_check_of_the_command_line_knows(daemon, name):
    program, x, calls, code = EXCUSED[name]
    asks = f"""
with cgdebug.debug_mode(model, eager=True):
    for n in range(1, {calls} + 1):
        cgdebug.step(n)
        call({x})
try:
    cgdebug.check("nan,inf")
    print("nothing found")
except cgdebug.FoundError as error:
    print(error)
except cgdebug.NotCheckedError as error:
    print("not checked:", error)
import os
from cgdebug._job import _excuses
os.environ["CGDEBUG_FAIL_ON"] = "nan,inf"  # not before: each answer is of all calls
deadline = time.monotonic() + 60
while _excuses.last() is None and time.monotonic() < deadline:
    time.sleep(0.01)
cgdebug.step(1000)
print("its end")
"""
    run = run_job(program + asks)
    told = {
        0: "nothing found",
        1: r"first NaN: \S*full_0 in call 3, 16 elements.*Type: cgdebug-cli \S+ ",
        3: r"not checked: .* \d+ times the rows that would tell are not here",
    }
    assert re.match(told[code], run.stdout), run.stdout + run.stderr
    if code == 1:
        assert re.search(r"FoundError: first NaN: \S*full_0 in call 3", run.stderr), run.stderr
    else:
        assert run.returncode == 0 and "its end" in run.stdout, run.stderr


@pytest.mark.parametrize("count, words", [(1, "1 element."), (2, "2 elements.")])
def test_a_finding_of_one_element_is_in_the_singular(count, words):
    from cgdebug._job import _excuses

    assert f", {words} Type: cgdebug-cli check j" in _excuses._sentence("first NaN: x", count, "j")
