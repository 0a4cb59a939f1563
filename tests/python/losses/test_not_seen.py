"""What was to be seen and nobody saw is in every answer: none exits 0, or says complete or the same.
Each case runs in a /dev/shm of its own, with a daemon of its own."""

import gc
import json
import os
import re
import signal
import subprocess
import sys

import pytest
import torch

import cgdebug
from cgdebug.testing import assert_recordings_close
from conftest import find_program
from op_logs import needs_mode

SETUP = """
import torch, cgdebug
from cgdebug import *
torch.manual_seed(0)
fault = "fault" in __import__("sys").argv  # a NaN where nobody sees it
harm = "harm" in __import__("sys").argv  # what nobody sees

class Last(torch.nn.Module):
    def forward(self, x):
        return x * float("nan") if fault else x + 1

model = torch.nn.Sequential(*[torch.nn.ReLU() for _ in range(39)], Last())
x = torch.ones(512, 512)  # 1 MiB
"""
CHECK = """
try:
    cgdebug.check("nan", timeout=60)
    print("pass")
except FoundError:
    print("found")
except NotCheckedError as error:
    print("not checked", error)
"""
# Runs the commands that it reads as JSON one after the other, and prints what came of them.
DRIVER = """
import json, subprocess, sys
results = {}
for name, command in json.load(sys.stdin):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    results[name] = [done.returncode, done.stdout, done.stderr]
print(json.dumps(results))
"""
MOUNT = 'mount -t tmpfs -o mode=1777,size="$0" t /dev/shm && exec "$@"'
NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--propagation", "private"]


def python_answers(path):
    """Every answer that Python gives: 0 if all of them pass, 5 if some do; else 1 over a NaN, or 3."""
    if not path.exists():
        return [4, "", f"{path} does not exist"]
    with cgdebug.open(path) as r:
        answers = {"complete": r.complete, "check": r.check().ok, "why": r.why().ok}
        answers["diff"] = r.diff(r).ok
        try:
            assert_recordings_close(r, str(path))
            answers["close"] = True
        except (AssertionError, cgdebug.TensorDebugError):
            answers["close"] = False
        passed, found = answers.values(), r.check().to_dict()["found"]
        code = 0 if all(passed) else 5 if any(passed) else 1 if found else 3
        return [code, f"{answers} {r.missing}", ""]


@pytest.fixture
def in_shm():
    """in_shm(size, folder, commands): {name: (code, out, err)}. Those that need the job or the daemon
    run where /dev/shm has that size."""

    def run(size, folder, commands):
        environment = {
            **os.environ,
            "CGDEBUG_SOCKET": str(folder / "d.sock"),
            "CGDEBUG_DAEMON": find_program("cgdebug-daemon"),
            "NO_COLOR": "1",
        }
        for name in ("CGDEBUG", "CGDEBUG_RUN_ID"):
            environment.pop(name, None)
        done = subprocess.run(
            [*NAMESPACES, "sh", "-c", MOUNT, size, sys.executable, "-c", DRIVER],
            input=json.dumps([one for one in commands if one[0] in LIVE]),
            capture_output=True, text=True, env=environment,
        )  # fmt: skip
        if "unshare" in done.stderr or "mount:" in done.stderr:
            pytest.skip("the system lets nobody mount")
        assert done.returncode == 0, done.stderr
        results = json.loads(done.stdout)
        for name, command in commands:
            if name in LIVE:
                continue
            if callable(command):
                results[name] = command()
                continue
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, timeout=120
            )
            results[name] = [done.returncode, done.stdout, done.stderr]
        return results

    return run


def commands_for(job, folder, *arguments, watch=()):
    (folder / "job.py").write_text(SETUP + job + CHECK)
    cli, program = find_program("cgdebug-cli"), [sys.executable, str(folder / "job.py"), *arguments]
    recording, export = str(folder / "a.cgrec"), str(folder / "out")
    frozen = str(folder / "frozen.cgrec")
    return [
        ("run", [cli, "run", *watch, "--fail-on", "nan", "-o", recording, "--", *program]),
        ("live check", [cli, "check"]),
        ("status", [cli, "status", "-a"]),
        ("freeze", [cli, "freeze", "-o", frozen]),
        ("check frozen", [cli, "check", frozen]),
        ("check", [cli, "check", recording]),
        ("check json", [cli, "--json", "check", recording]),
        ("diff", [cli, "diff", recording, recording]),
        ("why", [cli, "why", recording]),
        ("python", lambda: python_answers(folder / "a.cgrec")),
        ("info", [cli, "info", recording]),
        ("info json", [cli, "--json", "info", recording]),
        ("stats", [cli, "stats", recording]),
        ("stats json", [cli, "--json", "stats", recording]),
        ("report", [cli, "report", recording, "-o", str(folder / "a.html")]),
        ("export", [cli, "export", recording, "--to", "safetensors", "-o", export]),
        ("check export", [cli, "check", export]),
        ("ops", [cli, "ops", recording]),
        ("ranks", [cli, "ranks", recording]),
        ("top", [cli, "--json", "top"]),
    ]


LIVE = ("run", "live check", "status", "top", "freeze")
VERDICTS = (
    "run", "live check", "check", "check json", "check frozen", "diff", "why", "python",
    "check export", "ops", "ranks",
)  # fmt: skip


def commands_for_copies(folder):
    cli, recording, copy = find_program("cgdebug-cli"), folder / "a.cgrec", folder / "copy.cgrec"
    return [
        ("extract", [cli, "extract", str(recording), "-o", str(copy)]),
        ("check copy", [cli, "check", str(copy)]),
        ("ops diff", [cli, "ops", "diff", str(recording), str(recording)]),
    ]


STOPPED = """
import glob, os, signal
with cgdebug.connect() as client:
    daemon = client.status().pid
if harm:
    os.kill(daemon, signal.SIGSTOP)
    for task in glob.glob(f"/proc/{daemon}/task/*/stat"):
        while open(task).read().rpartition(")")[2].split()[0] != "T": pass
"""
GO_ON = "if harm: os.kill(daemon, signal.SIGCONT)\n"
# Of each kind: (options of `run`, job, what the answers say where nothing else does harm).
KINDS = {
    # 40 modules, of whose outputs four are kept: 160 MiB.
    "values": (
        (),
        "w = cgdebug.watch(model, values=4)\nfor _ in range(3): model(x)",
        "too small",
    ),
    # A probe raises, and the job goes on.
    "caught": (
        (),
        """
probes = [CudaGraphTensorProbe(f"p{i}", [TensorRecord(capacity=4)], mode="always") for i in range(40)]
for _ in range(3):
    for probe in probes:
        x = x + 1
        try:
            probe(x * float("nan") if fault and probe is probes[-1] else x)
        except Exception:
            pass
""",
        "too small",
    ),
    # Rows of an op log whose calls have as many shapes as there are calls.
    "rows": (
        ("--watch", "op:*", "--eager"),
        """
class Fails(torch.nn.Module):
    is_bad = False
    def forward(self, x): return x * float("nan") if self.is_bad else x
net = torch.nn.Sequential(
    *[one for _ in range(40) for one in (torch.nn.Linear(4, 4), torch.nn.ReLU())], Fails())
with torch.no_grad():
    for n in range(1, 41):
        net[-1].is_bad = fault and n == 37
        net(torch.ones(n, 4))
""",
        "too small",
    ),
    "given up": (
        (),
        "model(x)\n"
        + STOPPED
        + """
for i in range(60):
    with CudaGraphTensorProbe(f"p{i}", [TensorRecord(capacity=1)], mode="always") as probe:
        probe(x * float("nan") if fault and i == 30 else x)
"""
        + GO_ON,
        "given up unread by the job",
    ),
    "cut off": (
        (),
        """
probe = CudaGraphTensorProbe("p", [TensorRecord(capacity=8)], mode="always")
for _ in range(3): probe(x)
cgdebug.check("nan", timeout=60)
"""
        + STOPPED
        + """
for _ in range(3): probe(x * float("nan") if fault else x)
if harm:
    for path in glob.glob("/dev/shm/cgdebug-*.*"): os.truncate(path, 0)
    os.kill(daemon, signal.SIGCONT)
    os._exit(0)
""",
        "shared memory was cut off",
    ),
    "killed": (
        ("--watch", "op:*", "--eager"),
        """
import os, signal
class Dies(torch.nn.Module):
    calls = 0
    def forward(self, x):
        self.calls += 1
        if self.calls < 12: return x
        y = x * float("nan") if fault else x + 1
        if harm: os.kill(os.getpid(), signal.SIGKILL)
        return y
net = torch.nn.Sequential(torch.nn.Linear(4, 4), Dies())
with torch.no_grad():
    for _ in range(20): net(torch.ones(2, 4))
""",
        "of op logs never left the job",
    ),
    "overwritten": (
        (),
        """
probe = CudaGraphTensorProbe("p", [TensorRecord(capacity=2 if harm else 64)], mode="always")
probe(x[:2])
cgdebug.check("nan", timeout=60)
"""
        + STOPPED
        + """
for i in range(40): probe(x[:2] * float("nan") if fault and i == 9 else x[:2] + i)
"""
        + GO_ON,
        "overwritten",
    ),
    "turned off": (
        (),
        """
import time
probe = CudaGraphTensorProbe("p", [TensorRecord(capacity=8)], mode="always")
probe(x[:2])
cgdebug.check("nan", timeout=60)
if harm:
    with cgdebug.connect() as client: client.set("p", mode="off")
    while not probe.status().slots[0].suppressed:
        probe(x[:2])
        time.sleep(0.01)
probe(x[:2] * float("nan") if fault else x[:2])
""",
        "off",
    ),
    "malformed": (
        (),
        """
import os, sys
if harm and "CGDEBUG_WAIT_MS" not in os.environ:
    os.environ["CGDEBUG_WAIT_MS"] = "2s"
    os.execv(sys.executable, [sys.executable, *sys.argv])
probe = CudaGraphTensorProbe("p", [TensorRecord(capacity=8)], mode="always")
probe(x[:2] * float("nan") if fault else x[:2])
""",
        "the job goes on without 1 variable of its environment that is malformed",
    ),
    "full directory": (
        (),
        """
import os, sys
if harm and "CGDEBUG_MAX_SLOTS" not in os.environ:
    os.environ["CGDEBUG_MAX_SLOTS"] = "8"
    os.execv(sys.executable, [sys.executable, *sys.argv])
first = [CudaGraphTensorProbe(f"p{i}", [TensorRecord()], mode="always") for i in range(8)]
for probe in first: probe(x[:2])
net = torch.nn.Sequential(torch.nn.ReLU(), Last())
w = cgdebug.watch(net, values=4)
for _ in range(3): net(x[:2])
""",
        "3 of 11 probes are not watched",
    ),
    "too deep": (
        (),
        """
class Deep(torch.nn.Module):
    def forward(self, x):
        y, text = x * float("nan") if fault else x * 2, "deep"
        for _ in range(12 if harm else 2): y = [y, None]
        for _ in range(12): text = {"text": text}
        return y if torch.compiler.is_compiling() else (y, text)
watches = []
for part in [Deep(), torch.compile(Deep(), backend="eager")]:
    net = torch.nn.Sequential(torch.nn.ReLU(), part)
    watches.append(cgdebug.watch(net, values=4))
    for _ in range(3): net(x[:2])
""",
        "deeper than in 8 containers",
    ),
    "in TorchScript": (
        (),
        """
class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = float("nan") if fault else 2.0
    def forward(self, x): return x * self.factor
class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
    def forward(self, x): return torch.nan_to_num(self.inner(x))
part = torch.jit.script(Outer()) if harm else Outer()
net = torch.nn.Sequential(torch.nn.ReLU(), part)
watch_of_script = cgdebug.watch(net, values=4)
for _ in range(3): net(x[:2])
""",
        "TorchScript runs its code",
    ),
    "dtype in an op log": (
        ("--watch", "op:*", "--eager"),
        """
class Complex(torch.nn.Module):
    def forward(self, x):
        if not harm: return x * 2
        return torch.complex(x, x) * float("nan" if fault else "1")
net = torch.nn.Sequential(torch.nn.Linear(4, 4), Complex())
with torch.no_grad():
    for _ in range(4): net(torch.ones(2, 4))
""",
        "tensors of torch.complex64 are not shown",
    ),
    "thread": (
        ("--watch", "op:*", "--eager"),
        """
import threading
net = torch.nn.Linear(4, 4)
with torch.no_grad():
    for _ in range(4): net(torch.ones(2, 4))
def work():
    if not harm: return
    return torch.ones(2, 4) * float("nan") if fault else torch.ones(2, 4)
thread = threading.Thread(target=work, name="beside")
thread.start()
thread.join()
""",
        "ops on thread 'beside', which does not call the model, are not shown",
    ),
}
# Of /dev/shm; the last one has room for all of them.
SIZES = ("2m", "12m", "64m", "1g")
# Those that only a small one makes, and the sizes that are not.
ROOM = {"values": ("1g",), "caught": ("1g",), "rows": ("64m", "1g"), "given up": ("1g",)}
SHOWS = ("info", "info json", "stats", "stats json")  # which look for nothing
OP_LOGS = ("ops", "ops diff")  # which have nothing to say without one


def expected_code(kind, name, *, harm, fault):
    """What the command exits with; None: it judges nothing. A NaN of the kind "malformed" is seen,
    those of others are not."""
    if name not in (*VERDICTS, *SHOWS, "export", "extract", "check copy", "ops diff"):
        return None
    has_log = bool(KINDS[kind][0])
    # An export has the values, and rows have none.
    if name in OP_LOGS and not has_log or name == "check export" and has_log:
        return 4
    is_seen = fault and kind == "malformed"
    if is_seen and name not in (*SHOWS, "export", "extract"):
        return 1
    if name == "ranks":
        return 3  # of one rank nothing is compared
    if not (harm or has_log) and name in ("why", "python"):
        return 3 if name == "why" else 5  # without an op log not all is looked at
    if name == "run" and kind == "killed" and harm:
        return 137
    return 3 if harm else 0


def answers_of(in_shm, folder, size, kinds, *arguments):
    """Of the jobs of these kinds, one after another in one process."""
    watch = KINDS[kinds[0]][0]
    job = "".join(KINDS[kind][1] for kind in kinds)
    commands = commands_for(job, folder, *arguments, watch=watch)
    return in_shm(size, folder, [*commands, *commands_for_copies(folder)])


def wrong_codes(answers, kind, **of):
    """(name, code, expected code, text) of each command that exits with another code."""
    expected = {name: expected_code(kind, name, **of) for name in answers}
    return [
        (name, code, expected[name], out + err)
        for name, (code, out, err) in answers.items()
        if expected[name] not in (None, code)
    ]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
@needs_mode
def test_no_answer_passes_over_what_never_came(in_shm, tmp_path, kind, size):
    answers = answers_of(in_shm, tmp_path, size, [kind], "harm", "fault")
    if size in ROOM.get(kind, ()):
        for name in ("run", "live check", "check", "check json"):
            assert answers[name][0] == 1, (name, answers[name])
        assert json.loads(answers["check json"][1])["complete"]
        return
    for name, (code, out, err) in answers.items():
        text = out + err
        assert "nothing found in" not in text or "inconclusive" in text.lower(), (name, text)
        assert "nothing is known to be missing" not in text, (name, text)
        assert not text.startswith("same"), (name, text)
        assert code != 0 or name not in (*VERDICTS, *SHOWS), (name, text)
    if answers["check json"][1]:
        assert not json.loads(answers["check json"][1])["complete"]
    if size in ("64m", "1g"):  # a smaller one does other harm, too
        assert wrong_codes(answers, kind, harm=True, fault=True) == []
        for name in ("run", "check", "live check"):
            assert KINDS[kind][2] in answers[name][1] + answers[name][2], (name, answers[name])


@needs_mode
def test_no_answer_passes_over_a_malformed_variable_where_nothing_is_found(in_shm, tmp_path):
    answers = answers_of(in_shm, tmp_path, "64m", ["malformed"], "harm")
    assert wrong_codes(answers, "malformed", harm=True, fault=False) == []
    assert not json.loads(answers["check json"][1])["complete"]


@pytest.mark.parametrize("has_log", [True, False])
@needs_mode
def test_each_answer_passes_over_the_same_jobs_of_which_all_was_seen(in_shm, tmp_path, has_log):
    kinds = [kind for kind in KINDS if bool(KINDS[kind][0]) == has_log]
    answers = answers_of(in_shm, tmp_path, "1g", kinds)
    assert wrong_codes(answers, kinds[0], harm=False, fault=False) == []
    for name in ("run", "check", "live check"):
        text = answers[name][1] + answers[name][2]
        assert not any(KINDS[kind][2] in text for kind in kinds), (name, text)
    assert json.loads(answers["check json"][1])["complete"]


@pytest.mark.parametrize("kind", ["values", "caught"])
def test_what_has_no_room_is_named_with_its_reason_and_what_to_do(in_shm, tmp_path, kind):
    answers = answers_of(in_shm, tmp_path, "12m", [kind], "fault")
    for name in ("run", "check", "live check", "info", "status", "top"):
        text = answers[name][1] + answers[name][2]
        if name == "top":
            text = " ".join(
                ("not watched " * (one["kind"] == 1)) + one["reason"]
                for session in json.loads(answers[name][1])["sessions"]
                for one in session["not_seen"]
            )
        assert "not watched" in text and "too small" in text, (name, text)
    assert "not checked" in answers["run"][1], answers["run"]
    assert "--shm-size" in answers["run"][2], answers["run"]
    recording = cgdebug.open(tmp_path / "a.cgrec")
    assert not recording.complete
    assert any("not watched" in sentence for sentence in recording.missing)


def test_a_dtype_that_no_probe_takes_is_no_pass(in_shm, tmp_path):
    job = """
class Complex(torch.nn.Module):
    def forward(self, x):
        return torch.complex(x, x)
net = torch.nn.Sequential(torch.nn.ReLU(), Complex())
w = cgdebug.watch(net)
for _ in range(3): net(x[:4, :4])
"""
    results = in_shm("1g", tmp_path, commands_for(job, tmp_path))
    for name in VERDICTS:
        # An export has no file where no snapshot came, and there is no op log.
        may_lack = name in ("check export", "ops")
        assert results[name][0] in ((3, 4) if may_lack else (3,)), results[name]
    assert "not checked" in results["run"][1], results["run"]
    assert "2 of 3 probes are not watched, the first fwd/1 (6 calls): " in results["run"][2], (
        results["run"]
    )


class Complex(torch.nn.Module):
    def forward(self, x):
        return torch.complex(x, x)


@pytest.fixture
def recorded(client, cli, tmp_path):
    """recorded(work): what `check` says of the recording of this process during work()."""

    def record(work):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.cgrec"
        with (
            client.record(path, "good"),
            cgdebug.CudaGraphTensorProbe("good", [cgdebug.TensorRecord()], mode="always") as good,
        ):
            for _ in range(3):
                good(torch.ones(2))
                work()
        return cli("check", path)

    return record


def test_a_recording_has_no_account_of_watches_that_were_gone_when_it_began(recorded):
    model = torch.nn.Sequential(torch.nn.ReLU(), Complex())
    watch = cgdebug.watch(model)
    during = recorded(lambda: model(torch.ones(2)))
    assert during.returncode == 3 and "fwd/1" in during.stdout, during.stdout
    alive = recorded(lambda: None)
    assert alive.returncode == 3 and "fwd/1" in alive.stdout, "the watch goes on wanting it"
    watch.close()
    after = recorded(lambda: None)
    # Other tests' captures may be in the account of this process; the place of this watch is not.
    assert "nothing found" in after.stdout and "fwd/1" not in after.stdout, after.stdout


def test_a_watch_that_ended_with_its_model_is_in_no_later_account(recorded):
    models = [torch.nn.Sequential(torch.nn.ReLU(), Complex())]
    cgdebug.watch(models[0])
    assert "fwd/1" in recorded(lambda: models[0](torch.ones(2))).stdout
    models.clear()
    gc.collect()
    assert "fwd/1" not in recorded(lambda: None).stdout


def test_a_watch_that_ends_during_a_recording_stays_in_its_account(recorded):
    model = torch.nn.Sequential(torch.nn.ReLU(), Complex())
    watch = cgdebug.watch(model)

    def work():
        model(torch.ones(2))
        watch.close()

    checked = recorded(work)
    assert checked.returncode == 3 and "fwd/1" in checked.stdout, checked.stdout


def test_a_connection_that_never_greets_is_closed(own_daemon):
    import socket
    import time

    daemon = own_daemon()
    start = time.monotonic()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.settimeout(60)
        silent.connect(daemon.socket)
        assert silent.recv(1) == b""
    assert time.monotonic() - start >= 4


# What befalls the daemon while the job runs; `pid` is the daemon's.
FATES = {
    "killed": "os.kill(pid, signal.SIGKILL)",
    "hung": "os.kill(pid, signal.SIGSTOP)",
}


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("options", [("-o", "a.cgrec"), ("--fail-on", "nan")])
def test_a_run_whose_daemon_is_lost_is_no_success(own_daemon, tmp_path, fate, options):
    daemon = own_daemon()
    (tmp_path / "job.py").write_text(
        "import os, signal, torch\nfrom cgdebug import *\n"
        "p = CudaGraphTensorProbe('x', [TensorRecord()], mode='always')\np(torch.ones(2))\n"
        f"check('nan', timeout=60)\npid = {daemon.process.pid}\n{FATES[fate]}"
    )
    environment = {key: value for key, value in os.environ.items() if key != "CGDEBUG_RUN_ID"}
    try:
        done = subprocess.run(
            [find_program("cgdebug-cli"), "--socket", daemon.socket, "--no-spawn",
             "run", *options, "--", sys.executable, "job.py"],
            capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120,
        )  # fmt: skip
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)
    assert done.returncode == 3, done.stderr
    assert "not connected" not in done.stderr
    if options[0] == "-o":
        assert "cgdebug-cli info" in done.stderr
        assert "the recording has 1 snapshot, and whether the job had more" in done.stderr
        assert "had a probe" not in done.stderr


@pytest.mark.parametrize(("value", "code"), [("float('nan')", 1), ("2.0", 0)])
def test_a_run_whose_daemon_was_replaced_is_judged_by_the_next_one(
    own_daemon, tmp_path, value, code
):
    first = own_daemon()
    (tmp_path / "job.py").write_text(
        "import sys, torch\nfrom cgdebug import *\n"
        "p = CudaGraphTensorProbe('x', [TensorRecord()], mode='always')\np(torch.ones(2))\n"
        f"print(flush=True)\nsys.stdin.readline()\np(torch.full((2,), {value}))\n"
    )
    environment = {key: text for key, text in os.environ.items() if key != "CGDEBUG_RUN_ID"}
    run = subprocess.Popen(
        [find_program("cgdebug-cli"), "--socket", first.socket, "--no-spawn",
         "run", "--fail-on", "nan", "--", sys.executable, "job.py"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert run.stdout.readline() == "\n"
    first.process.kill()
    first.process.wait(60)
    own_daemon()
    said = run.communicate("go on\n", timeout=120)[1]
    assert run.returncode == code, said


def test_a_folder_that_lacks_ranks_is_not_complete(cli, tmp_path):
    code = (
        "import torch\nfrom cgdebug import *\n"
        "p = CudaGraphTensorProbe('x', [TensorRecord()], mode='always')\n"
        "for i in range(4): p(torch.ones(2) + i)\n"
    )
    (tmp_path / "job.py").write_text(code)
    (tmp_path / "runs").mkdir()
    for rank in (0, 1):
        done = cli(
            "run", "-o", str(tmp_path / f"runs/r{rank}.cgrec"), "--",
            sys.executable, str(tmp_path / "job.py"),
            RANK=str(rank), WORLD_SIZE="4", CGDEBUG_RUN_ID=f"four-{tmp_path.name}",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    checked = cli("check", str(tmp_path / "runs"))
    assert checked.returncode == 3, checked.stdout
    assert "ranks 2..3 of 4 are not in here" in checked.stdout
    assert cli("check", str(tmp_path / "runs"), "--ranks", "0,1").returncode == 0
    assert cli("check", str(tmp_path / "runs/r0.cgrec")).returncode == 0


def test_a_daemon_that_sees_another_shm_is_refused_and_not_believed(tmp_path):
    """As of another container that shares /tmp: every job here would be "no probe was seen"."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("CGDEBUG_SOCKET", "CGDEBUG_RUN_ID")
    }
    environment["XDG_RUNTIME_DIR"] = str(tmp_path)
    environment["CGDEBUG_DAEMON"] = find_program("cgdebug-daemon")
    tmp_path.chmod(0o700)
    elsewhere = ["unshare", "--mount", "--propagation", "private", "sh", "-c", MOUNT, "8m"]
    cli = find_program("cgdebug-cli")

    def run(*command):
        return subprocess.run(
            [*elsewhere, *command], env=environment, capture_output=True, text=True, timeout=60
        )

    started = run(cli, "daemon", "start")
    if "unshare" in started.stderr or "mount:" in started.stderr:
        pytest.skip("the system lets nobody mount")
    assert started.returncode == 0, started.stderr
    pid = None
    try:
        for command in (["run", "--", "true"], ["ps"], ["check"]):
            answer = run(cli, *command)
            assert answer.returncode == 4, (command, answer.stdout, answer.stderr)
            assert "belongs to another container" in answer.stderr
            assert "Type: export CGDEBUG_SOCKET=" in answer.stderr
            pid = int(re.search(r"\(pid (\d+)\)", answer.stderr)[1])
        python = run(sys.executable, "-c", "import cgdebug; cgdebug.connect()")
        assert (
            "ConnectionError: the daemon at" in python.stderr
            and "another container" in python.stderr
        )
        chosen = ["--socket", str(tmp_path / "cgdebug" / "daemon.sock")]
        asked = run(cli, *chosen, "ps")
        assert "no job" in asked.stderr, asked  # who names a socket means that daemon
        job = run(cli, *chosen, "run", "--", "true")
        assert job.returncode == 4 and "belongs to another container" in job.stderr, job
    finally:
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
