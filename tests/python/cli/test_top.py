"""cgdebug-cli top on a real terminal: tmux plays the terminal and the person."""

import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess

import pytest

from conftest import find_program, socket_option, stop, wait_until

JOB = """
probes = [CudaGraphTensorProbe(name, [TensorRecord(4)], mode="always")
          for name in ("top.attn", "top.mlp", "top.out")]
print(os.getpid())
step = 0
while True:
    step += 1
    cgdebug.step(step)
    for i, one in enumerate(probes):
        x = torch.full((64,), 1.0 + step * i)
        if i == 1 and step == 3:
            x[5] = float("nan")
        one(x)
    time.sleep(0.02)
"""


class Terminal:
    """A tmux server of its own with one shell in it."""

    def __init__(self, columns=80, rows=24, **environment):
        self.name = f"cgdebug-test-{os.getpid()}"
        plain = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        self.environment = {**plain, "LC_ALL": "C.UTF-8", **environment}
        self.tmux("-u", "-f", "/dev/null", "new-session", "-d", f"-x{columns}", f"-y{rows}", "sh")

    def tmux(self, *arguments):
        return subprocess.run(
            ["tmux", "-L", self.name, *arguments],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
            env=self.environment,
        ).stdout

    def text(self, *options):
        return self.tmux("capture-pane", "-p", *options)

    def type(self, *keys):
        self.tmux("send-keys", *keys)

    def top(self, *arguments, before=""):
        words = [find_program("cgdebug-cli"), *socket_option(), "--no-spawn", "top", *arguments]
        self.type(f"clear; stty -a > before; {before} {' '.join(words)}; echo code=$?", "Enter")

    def sees(self, pattern):
        found = [None]

        def look():
            found[0] = re.search(pattern, self.text(), re.MULTILINE)
            return found[0]

        try:
            return wait_until(look, pattern)
        except AssertionError:
            raise AssertionError(f"{pattern} is not in\n{self.text()}") from None

    def is_as_before(self, folder):
        """The line discipline, the cursor and the screen that was there."""
        self.type("stty -a > after", "Enter")
        wait_until(lambda: (folder / "after").exists() and (folder / "after").read_text(), "stty")
        assert (folder / "after").read_text() == (folder / "before").read_text()
        (folder / "after").unlink()
        assert self.tmux("display", "-p", "#{cursor_flag} #{alternate_on}").strip() == "1 0"
        assert "REPLAYS/S" not in self.text()
        return True


@pytest.fixture
def terminal(tmp_path, monkeypatch):
    if shutil.which("tmux") is None:
        if os.environ.get("CGDEBUG_REQUIRE_TMUX") == "1":
            pytest.fail("no tmux here")
        pytest.skip("no tmux here. Type: apt-get install tmux")
    monkeypatch.chdir(tmp_path)
    made = []

    def make(**options):
        made.append(Terminal(**options))
        wait_until(lambda: made[-1].text().strip(), "the shell is ready")
        return made[-1]

    yield make
    for one in made:
        one.tmux("kill-server")


@pytest.fixture
def running(job):
    def start():
        started = job(JOB)
        assert int(started.line()) == started.pid
        return started

    return start


def control_of(client, name):
    return client.probes(name)[0].control


def test_top_filters_sets_a_probe_resizes_and_gives_the_terminal_back(
    daemon, running, terminal, tmp_path
):
    started = running()
    screen = terminal()
    screen.top("-s", str(started.pid))
    screen.sees(r"alive +\d")
    screen.sees("NaN top.mlp @3")
    assert re.search(r"\x1b\[[0-9;]*31m[^\n]*NaN", screen.text("-e")), "NaN is red"
    screen.type("/", "attn", "Enter")
    screen.sees("only attn")
    assert "top.attn" in screen.text()
    assert not re.search(r"^top\.(mlp|out)", screen.text(), re.MULTILINE)

    screen.type("Down", "m")
    screen.sees("top.attn: o off")
    screen.type("o")
    screen.sees("top.attn: off, for 5 minutes")
    with daemon.connect(session=str(started.pid)) as client:
        wait_until(lambda: control_of(client, "top.attn").mode == "off", "the job is told")
        assert not control_of(client, "top.mlp"), "only the probe that was selected"
        screen.sees(r"^top.attn .* off ")
        screen.type("/", *["BSpace"] * 4, "Enter", "M", "s")
        screen.sees("3 probes: stats, for 5 minutes")
        wait_until(lambda: control_of(client, "top.out").mode == "stats", "the job is told")

    screen.type("/", "attn", "Enter", "Down", "Enter")
    screen.sees("^top.attn @")
    screen.sees("elements +64 ")
    screen.sees("cgdebug-cli show -s .* 'top.attn@")
    screen.type("Escape")
    screen.sees("REPLAYS/S")
    for columns, rows in ((200, 50), (40, 10), (80, 24)):
        screen.tmux("resize-window", "-x", str(columns), "-y", str(rows))
        wait_until(lambda rows=rows: len(screen.text().split("\n")) == rows + 1, "the new size")
        screen.sees(r"^q quit.*\n\Z")
        screen.sees("top.attn")
    screen.type("q")
    screen.sees("^code=0")
    assert screen.is_as_before(tmp_path)

    screen.top("-s", str(started.pid))
    screen.sees(r"alive +\d")
    screen.type("C-c")
    screen.sees("^code=130")
    assert screen.is_as_before(tmp_path)


def test_top_says_that_a_job_died_and_that_the_daemon_did(own_daemon, running, terminal, tmp_path):
    daemon = own_daemon()
    started = running()
    screen = terminal(TERM_PROGRAM="none")
    screen.top(before="NO_COLOR=1 LC_ALL=C")
    screen.sees(r"alive +\d")
    shown = screen.text("-e")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", shown), "NO_COLOR"
    assert shown.isascii()
    os.kill(started.pid, signal.SIGKILL)
    screen.sees(r"died \d+s ago")
    screen.sees("died at replay")
    stop(daemon.process.pid)
    screen.sees("the daemon stopped answering .* ago; this is old")
    os.kill(daemon.process.pid, signal.SIGCONT)
    screen.sees("the daemon answers again")
    os.kill(daemon.process.pid, signal.SIGKILL)
    daemon.process.wait()
    screen.sees("the daemon ended .* ago; this is old")
    own_daemon()
    screen.sees("a daemon runs again")
    assert "this is old" not in screen.text()
    screen.type("q")
    screen.sees("^code=0")
    assert screen.is_as_before(tmp_path)


def test_top_without_memory_gives_the_terminal_back(daemon, job, terminal, tmp_path):
    started = job("""
        probes = []
        for calls, line in zip((1, 800), sys.stdin):
            for i in range(calls):
                name = f"top.{calls}.{i}"
                probes.append(CudaGraphTensorProbe(name, [TensorStats()], mode="always"))
                probes[-1](torch.ones(1))
            print("done")
        sys.stdin.read()
    """)
    started.go_on(), started.line()
    screen = terminal()
    screen.top("-s", str(started.pid))
    screen.sees("top.1.0")
    shell = screen.tmux("display", "-p", "#{pane_pid}").strip()
    top = int(pathlib.Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0])
    size = re.search(r"VmSize:\s+(\d+)", pathlib.Path(f"/proc/{top}/status").read_text())
    limit = (int(size[1]) + 256) << 10  # a little, for its stack
    resource.prlimit(top, resource.RLIMIT_AS, (limit, limit))
    started.go_on(), started.line()
    screen.sees("^code=2")
    assert "cgdebug-cli: no memory is left" in screen.text()
    assert screen.is_as_before(tmp_path)


def test_without_a_terminal_top_prints_one_frame(running, cli):
    started = running()
    wait_until(
        lambda: "top.out" in cli("-s", str(started.pid), "probes").stdout, "the daemon knows it"
    )
    shown = cli("-s", str(started.pid), "top", "top.*", "!*.out")
    assert shown.returncode == 0, shown.stderr
    assert "REPLAYS/S" in shown.stdout
    assert "top.mlp" in shown.stdout
    assert "top.out" not in shown.stdout
    assert "\x1b" not in shown.stdout
    frame = json.loads(cli("-s", str(started.pid), "top", "--json").stdout)
    (session,) = frame["sessions"]
    assert frame["seconds"] >= 1
    assert 1 < session["replays_per_s"] < 51
    # Three tensors of 64 float32; the daemon may be a few of them behind.
    assert session["bytes_per_s"] == pytest.approx(session["replays_per_s"] * 768, abs=5 * 768)
    rms = {one["name"]: (one["rms_before"], one["last_stats"]["rms"]) for one in frame["probes"]}
    assert rms["top.attn"] == (1.0, 1.0)
    assert rms["top.out"][0] < rms["top.out"][1]
    assert cli("-s", "nobody", "top").returncode == 4
