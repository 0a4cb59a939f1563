"""Fixtures: a private daemon, job processes, graphs. GPU tests are marked `gpu`."""

import gc
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import textwrap
import time

import pytest

# Before any probe. Tests that want a daemon ask for one, the others must not start any. Each daemon
# of this session listens on one socket, and reads only what this session starts.
FOLDER = tempfile.mkdtemp(prefix="cgdebug-test-")  # pytest's own folders are too long for a socket
RUN_ID = f"pytest-{os.getpid()}"
# CGDEBUG_TEST_DAEMON=default: tests the user's own daemon, started under another XDG_RUNTIME_DIR
# than its clients, which must find it. Only with a /dev/shm of its own.
IS_DEFAULT = os.environ.get("CGDEBUG_TEST_DAEMON") == "default"
os.environ.update(CGDEBUG="0", CGDEBUG_RUN_ID=RUN_ID)
if IS_DEFAULT:
    os.environ.pop("CGDEBUG_SOCKET", None)
    os.mkdir(f"{FOLDER}/other", mode=0o700)
else:
    os.environ["CGDEBUG_SOCKET"] = f"{FOLDER}/daemon.sock"
for name in ("CGDEBUG_PROBES", "RANK", "WORLD_SIZE"):
    os.environ.pop(name, None)

import torch  # noqa: E402
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack  # noqa: E402

import cgdebug  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0  # only a hang reaches it


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available() or os.environ.get("CGDEBUG_REQUIRE_GPU") == "1":
        return
    skip = pytest.mark.skip(reason="needs a CUDA GPU")
    for item in items:
        if item.get_closest_marker("gpu"):  # its keywords have the names of folders, too
            item.add_marker(skip)


def pytest_runtest_logreport(report):
    """Appends each failure to the file $CGDEBUG_TEST_FAILURES at once: pytest prints them at the
    end, which a run that is killed does not reach. Of pytest-xdist, only the controller does so."""
    path = os.environ.get("CGDEBUG_TEST_FAILURES")
    if not path or not report.failed or "PYTEST_XDIST_WORKER" in os.environ:
        return
    node = getattr(report, "node", None)
    worker = f" on {node.gateway.id}" if node else ""
    now = time.strftime("%H:%M:%S")
    lines = [
        f"==== {now} {report.nodeid}: {report.when} failed after {report.duration:.2f} s{worker}"
    ]
    lines.append(report.longreprtext)
    for title, content in report.sections:
        lines += [f"---- {title}", content]
    with open(path, "a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n\n")


def pytest_generate_tests(metafunc):
    """GPU tests run in each lane, except those that name theirs."""
    marks = metafunc.definition
    if marks.get_closest_marker("gpu") and not marks.get_closest_marker("own_lane"):
        metafunc.parametrize("every_lane", ["direct", "callback"], indirect=True)


@pytest.fixture(autouse=True)
def every_lane(request, monkeypatch):
    lane = getattr(request, "param", None)
    if lane:
        monkeypatch.setenv("CGDEBUG_LANE", lane)
    return lane


def wait_until(condition, what, deadline_s=DEADLINE_S):
    """The first truthy value of condition(). `what` is a text, or a function that returns it."""
    deadline = time.monotonic() + deadline_s
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {deadline_s} s: {what() if callable(what) else what}")
        time.sleep(0.01)
    return value


def stop(pid):
    """Stops a process. A thread that computes goes on for a moment after the signal was sent."""
    os.kill(pid, signal.SIGSTOP)
    tasks = pathlib.Path(f"/proc/{pid}/task")
    wait_until(
        lambda: all(
            (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
            for task in tasks.iterdir()
        ),
        f"every thread of {pid} stands still",
    )


def segments():
    """Names of this user's control files in /dev/shm."""
    return {
        path.name
        for path in pathlib.Path("/dev/shm").glob(f"cgdebug-{os.geteuid()}-*")
        if "." not in path.name
    }


def remove_segments_of(*pids):
    """Removes what a process that was killed, or left by os._exit, keeps for a late daemon."""
    from cgdebug._recording import SEGMENT_PID_OFFSET

    module = sys.modules.get("cgdebug._probe")
    own = (module and module.session()) or {"name": None}
    # Not its own: closing a second descriptor would drop the lock that says this process lives.
    for name in segments() - {own["name"]}:
        control = pathlib.Path("/dev/shm") / name
        try:
            (pid,) = struct.unpack_from("=i", control.read_bytes(), SEGMENT_PID_OFFSET)
        except FileNotFoundError:
            continue
        if pid in pids:
            for file in [control, *control.parent.glob(f"{name}.*")]:
                file.unlink(missing_ok=True)


def find_program(name):
    package = pathlib.Path(cgdebug.__file__).parent
    for candidate in (
        shutil.which(name),
        package.parents[1] / "bin" / name,
        pathlib.Path(sys.executable).parent / name,
    ):
        if candidate and os.access(candidate, os.X_OK):
            return str(candidate)
    pytest.fail(f"{name} is neither on PATH nor beside the package; type: tools/test")
    return None


def capture(function, warmup=1, **options):
    """(graph, result) of `function` captured after warm-up calls on a side stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warmup):
            function()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # A dead graph that is collected during a capture breaks the capture.
    gc.collect()
    gc.disable()
    try:
        with torch.cuda.graph(graph, **options):
            result = function()
    finally:
        gc.enable()
    return graph, result


def side_stream():
    """A stream beside that of captures: torch hands out one stream under several objects."""
    of_captures = torch.cuda.graph(torch.cuda.CUDAGraph()).capture_stream
    while (side := torch.cuda.Stream()) == of_captures:
        pass
    return side


@pytest.fixture
def graph_probe(probe):
    """probe(), in mode="capture"."""
    return lambda *actions, **options: probe(*actions, **{"mode": "capture", **options})


def own_session():
    """The session of this process, as a command takes it."""
    return cgdebug._job._native.probe_module().session()["uuid"][:8]


def socket_option():
    """The --socket option for the programs; empty if they must find the daemon themselves."""
    return [] if IS_DEFAULT else ["--socket", Daemon.socket]


class Daemon:
    """cgdebug-daemon in the foreground."""

    socket = os.environ.get("CGDEBUG_SOCKET", f"{FOLDER}/other/cgdebug/daemon.sock")
    log_path = f"{FOLDER}/foreground.log"

    def __init__(self, *flags):
        program = find_program("cgdebug-daemon")
        where = {"XDG_RUNTIME_DIR": f"{FOLDER}/other"} if IS_DEFAULT else {}
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [program, "--foreground", *socket_option(), *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **where},
            )
        wait_until(
            self.accepts, lambda: f"the daemon accepts on {self.socket}; its log: {self.log()}"
        )

    def accepts(self):
        code = self.process.poll()
        assert code is None, f"the daemon exited with {code}; its log: {self.log()}"
        try:
            with self.connect() as client:
                return client.status().pid == self.process.pid
        except ConnectionError:
            return False

    def connect(self, session=None):
        return cgdebug.connect(socket=None if IS_DEFAULT else self.socket, session=session)

    def log(self):
        return pathlib.Path(self.log_path).read_text(encoding="utf-8", errors="replace")

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


_shared = []  # the session's daemon, while it runs


@pytest.fixture(scope="session", autouse=True)
def _session_folder():
    yield
    for daemon in _shared:
        daemon.stop()
    shutil.rmtree(FOLDER, ignore_errors=True)


def end_daemon():
    """Ends whatever daemon listens on the socket of this session; whether there was one."""
    try:
        with cgdebug.connect(socket=None if IS_DEFAULT else Daemon.socket) as client:
            pid = client.status().pid
    except ConnectionError:
        return False
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not pathlib.Path(f"/proc/{pid}").exists(), f"the daemon {pid} ends")
    return True


@pytest.fixture
def without_daemon(monkeypatch):
    """No daemon runs, and none is started: one that nobody ends would keep the socket, and every
    later test that wants a daemon would fail."""
    monkeypatch.setenv("CGDEBUG", "0")  # the fixture `daemon` may have removed it
    while _shared:
        _shared.pop().stop()
    yield
    assert not end_daemon(), "this test left a daemon behind"


@pytest.fixture
def daemon_allowed(monkeypatch):
    """Probes of this process and of the jobs it starts may start a daemon."""
    monkeypatch.setenv("CGDEBUG_DAEMON", find_program("cgdebug-daemon"))
    monkeypatch.delenv("CGDEBUG")


@pytest.fixture
def daemon(daemon_allowed):
    """A running daemon, shared by tests that do not harm it."""
    if not _shared:
        _shared.append(Daemon())
    with cgdebug.CudaGraphTensorProbe("attach", [cgdebug.TensorRecord(1)], mode="always") as first:
        first(torch.ones(1))
        wait_until(
            lambda: first.status().daemon_alive,
            lambda: (
                "the daemon reads this process. If another one of this user does, type: "
                f"cgdebug-cli daemon stop. The daemon's log: {_shared[0].log()}"
            ),
        )
    return _shared[0]


@pytest.fixture
def client(daemon):
    """Connected, and about this very process."""
    key = own_session()
    with daemon.connect(session=key) as connected:
        wait_until(lambda: key in {s.key for s in connected.sessions()}, "the session is known")
        yield connected


@pytest.fixture
def cli(daemon):
    """cli(*arguments) runs cgdebug-cli against the shared daemon; has returncode, stdout, stderr."""

    def run(*arguments, **environment):
        return subprocess.run(
            [find_program("cgdebug-cli"), *socket_option(), "--no-spawn", *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "NO_COLOR": "1", **environment},
        )

    return run


@pytest.fixture
def own_daemon(without_daemon, daemon_allowed, monkeypatch):
    """Makes daemons that a test may kill, one after the other: own_daemon(*flags). Nobody else
    starts one."""
    monkeypatch.setenv("CGDEBUG_DAEMON", "/bin/true")
    made = []

    def make(*flags):
        made.append(Daemon(*flags))
        return made[-1]

    yield make
    for daemon in made:
        daemon.stop()


@pytest.fixture
def no_daemon(without_daemon, daemon_allowed):
    """No daemon runs; a test may start one, which is ended afterwards."""
    socket = None if IS_DEFAULT else Daemon.socket
    yield lambda: cgdebug.connect(socket=socket)
    end_daemon()


class Job:
    """A Python process that runs `code`; lines it prints are read with `line()`."""

    def __init__(self, code, stderr=None, arguments=(), **environment):
        header = "import sys, os, time, torch, cgdebug\nfrom cgdebug import *\n"
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", header + textwrap.dedent(code), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, **environment},
        )
        self.pid = self.process.pid

    def line(self):
        text = self.process.stdout.readline()
        assert text, f"the job ended with {self.process.wait()} and printed nothing more"
        return text.rstrip("\n")

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def finish(self, timeout=300):
        """(stdout, stderr) of a job that must end well."""
        out, err = self.process.communicate(timeout=timeout)
        assert self.process.returncode == 0, f"exit code {self.process.returncode}: {out}{err}"
        return out, err


def rank_environment(rank, world):
    """Variables of one of `world` ranks that NCCL connects. Ranks without a GPU of their own share
    one: NCCL takes each for a host of its own, and goes through sockets."""
    variables = {"RANK": str(rank), "WORLD_SIZE": str(world)}
    if torch.cuda.device_count() < world:
        variables |= {
            "NCCL_HOSTID": f"rank{rank}",
            "NCCL_NET": "Socket",
            "NCCL_SOCKET_IFNAME": "lo",
        }
    return variables


@pytest.fixture
def job():
    """job(code, **environment) starts a process that is gone when the test ends."""
    started = []

    def start(code, **options):
        started.append(Job(code, **options))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()
    remove_segments_of(*(one.pid for one in started))


@pytest.fixture
def probe():
    """probe(*actions, name=..., ...) makes a probe that acts in eager mode; closed afterwards."""
    made = []

    def make(*actions, name="p", mode="always", **options):
        made.append(cgdebug.CudaGraphTensorProbe(name, list(actions), mode=mode, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def torch_as_before():
    """Neither compiled code of another test, nor a mode that is left on, nor a collector that is
    left off."""
    torch._dynamo.reset()
    yield
    gc.collect()
    assert _get_current_dispatch_mode_stack() == []
    assert gc.isenabled()


@pytest.fixture
def debug_mode(request, daemon):
    """debug_mode(model, ...), closed afterwards; eager in tests that need no GPU."""
    made = []
    eager = not request.node.get_closest_marker("gpu")

    def make_one(model=None, **options):
        made.append(cgdebug.debug_mode(model, **{"eager": eager, **options}))
        return made[-1]

    yield make_one
    for one in made:
        one.close()
    assert _get_current_dispatch_mode_stack() == []
    assert not cgdebug._op_log.scopes._scopes
