"""Fixtures: a private daemon, job processes, graphs. GPU tests are marked `gpu`."""

import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import textwrap
import time

import pytest

# Before any probe: tests that want a daemon ask for one, the others must not start any.
os.environ["CGDEBUG"] = "0"
for name in ("CGDEBUG_PROBES", "CGDEBUG_SOCKET", "CGDEBUG_RUN_ID", "RANK", "WORLD_SIZE"):
    os.environ.pop(name, None)

import torch  # noqa: E402

import cgdebug  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEADLINE_S = 30.0


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available() or os.environ.get("CGDEBUG_REQUIRE_GPU") == "1":
        return
    skip = pytest.mark.skip(reason="needs a CUDA GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


def wait_until(condition, what, deadline_s=DEADLINE_S):
    """The first truthy value of condition()."""
    deadline = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {deadline_s} s: {what}"
        time.sleep(0.01)
    return value


def segments():
    """Names of this user's control files in /dev/shm."""
    return {
        path.name
        for path in pathlib.Path("/dev/shm").glob(f"cgdebug-{os.geteuid()}-*")
        if "." not in path.name
    }


def remove_segments_of(*pids):
    """What a process that was killed, or left by os._exit, keeps for a late daemon."""
    for name in segments():
        control = pathlib.Path("/dev/shm") / name
        try:
            (pid,) = struct.unpack_from("=i", control.read_bytes(), 44)  # SegmentHeader::pid
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
    with torch.cuda.graph(graph, **options):
        result = function()
    return graph, result


@pytest.fixture
def graph_probe(probe):
    """probe(), in mode="capture"."""
    return lambda *actions, **options: probe(*actions, **{"mode": "capture", **options})


class Daemon:
    """cgdebug-daemon in the foreground, on a socket of its own."""

    def __init__(self, folder, *flags):
        self.socket = f"{folder}/daemon.sock"
        self.log_path = f"{folder}/foreground.log"
        self.environment = {
            "CGDEBUG_SOCKET": self.socket,
            "CGDEBUG_DAEMON": find_program("cgdebug-daemon"),
        }
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [find_program("cgdebug-daemon"), "--foreground", "--socket", self.socket, *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(self.accepts, f"the daemon accepts on {self.socket}; its log: {self.log()}")

    def accepts(self):
        assert self.process.poll() is None, f"the daemon exited: {self.log()}"
        try:
            self.connect().close()
        except ConnectionError:
            return False
        return True

    def connect(self, session=None):
        return cgdebug.connect(socket=self.socket, session=session)

    def log(self):
        return pathlib.Path(self.log_path).read_text(encoding="utf-8", errors="replace")

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="session")
def _session_daemon():
    with tempfile.TemporaryDirectory(prefix="cgdebug-test-") as folder:
        daemon = Daemon(folder)
        yield daemon
        daemon.stop()


@pytest.fixture
def daemon(_session_daemon, monkeypatch):
    """A running daemon that this process and the jobs it starts use."""
    for name, value in _session_daemon.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CGDEBUG")
    return _session_daemon


@pytest.fixture
def own_daemon(tmp_path, monkeypatch):
    """Makes daemons that a test may kill: own_daemon(*flags). One at a time."""
    made = []
    folder = tempfile.mkdtemp(prefix="cgdebug-test-")  # tmp_path is too long for a socket

    def make(*flags):
        made.append(Daemon(folder, *flags))
        for name, value in made[-1].environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("CGDEBUG", raising=False)
        return made[-1]

    yield make
    for daemon in made:
        daemon.stop()
    shutil.rmtree(folder)


class Job:
    """A Python process that runs `code`; lines it prints are read with `line()`."""

    def __init__(self, code, stderr=None, **environment):
        header = "import sys, os, time, torch, cgdebug\nfrom cgdebug import *\n"
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", header + textwrap.dedent(code)],
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

    def finish(self, timeout=60):
        """(stdout, stderr) of a job that must end well."""
        out, err = self.process.communicate(timeout=timeout)
        assert self.process.returncode == 0, f"exit code {self.process.returncode}: {out}{err}"
        return out, err


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
