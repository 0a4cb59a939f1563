"""Commands on a terminal: the pager of long output, and Ctrl-C."""

import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios

import numpy
import pytest
import recording_writer
import torch

import cgdebug
from conftest import ROOT, find_program, wait_until

DATA = ROOT / "tests" / "data"
MARK = "sed s/^/|/"


class OnTerminal:
    """A command with a terminal of its own as stdin, stdout and stderr."""

    def __init__(self, *words, rows=24, columns=60, cwd=None, **environment):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        plain = {key: value for key, value in os.environ.items() if key not in ("LESS", "PAGER")}
        self.process = subprocess.Popen(
            [find_program("cgdebug-cli"), *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            cwd=cwd,
            preexec_fn=self._own_terminal,
            env={**plain, "TERM": "xterm", "LC_ALL": "C.UTF-8", **environment},
        )
        os.close(slave)
        self.shown = ""

    @staticmethod
    def _own_terminal():
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # what starts the tests may ignore it

    def reads(self, until=None):
        with contextlib.suppress(OSError):  # EIO: everybody has closed the terminal
            while until is None or until not in self.shown:
                assert select.select([self.master], [], [], 60)[0], self.shown
                self.shown += os.read(self.master, 65536).decode()
        return self.shown

    def ends(self):
        self.reads()
        os.close(self.master)
        return self.process.wait(timeout=60)


def run_ops():
    words = [find_program("cgdebug-cli"), "ops", str(os.getpid())]
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def test_text_on_a_terminal_goes_through_the_pager():
    one = OnTerminal("help", "run", PAGER=MARK)
    assert one.ends() == 0
    lines = one.shown.replace("\r", "").splitlines()
    assert len(lines) > 10
    assert all(line.startswith("|") for line in lines)
    assert max(map(len, lines)) <= 1 + 60, "the terminal's width"


def test_notes_keep_their_place_in_it_and_the_exit_code_is_the_commands():
    words = ["check", str(DATA / "statistics.cgrec")]
    plain = subprocess.run([find_program("cgdebug-cli"), *words], capture_output=True)
    one = OnTerminal(*words, PAGER=MARK)
    assert one.ends() == plain.returncode
    assert all(line.startswith("|") for line in one.shown.replace("\r", "").splitlines())


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        ((), {"PAGER": ""}),
        ((), {"PAGER": "cat"}),
        ((), {"PAGER": "no-such-program"}),
        ((), {"PAGER": MARK, "TERM": "dumb"}),
        (("--no-pager",), {"PAGER": MARK}),
    ],
)
def test_without_a_pager_the_text_is_whole(words, environment):
    one = OnTerminal(*words, "help", "run", **environment)
    assert one.ends() == 0
    assert "\n|" not in one.shown
    assert "Examples:" in one.shown


def test_text_into_a_pipe_is_not_paged():
    shown = subprocess.run(
        [find_program("cgdebug-cli"), "help", "run"],
        capture_output=True,
        text=True,
        env={**os.environ, "PAGER": MARK, "TERM": "xterm"},
    )
    assert shown.returncode == 0
    assert not shown.stdout.startswith("|")


def test_ops_on_a_terminal_has_the_answer_first_and_the_rows_around_it(daemon):
    with cgdebug.debug_mode(torch.nn.Linear(3, 3), eager=True):
        x = torch.ones(3)
        for n in range(70):
            x = torch.log(x * 0 - 1) if n == 50 else x + 1
    wait_until(lambda: "log_0" in run_ops().stdout, "the log")

    def shown(*words):
        one = OnTerminal("ops", str(os.getpid()), *words, columns=200, PAGER="cat")
        assert one.ends() == 1
        return one.shown.replace("\r", "").splitlines()

    lines = shown()
    (answer,) = [n for n, line in enumerate(lines) if "first non-finite: #" in line]
    assert answer < 3, lines[:5]

    def rows_of(lines):
        return [line for line in lines if re.match(r"\W*\d+  \S", line)]

    rows = rows_of(lines)
    assert len(rows) == 40 and "log_0" in rows[20], lines
    assert any("All of them: --all" in line for line in lines[answer:]), lines
    every = run_ops().stdout.splitlines()
    assert len(rows_of(every)) == len(rows_of(shown("--all"))) > 70
    assert "first non-finite: #" in "".join(every[-3:])


def test_an_error_without_text_starts_no_pager():
    one = OnTerminal("check", "no-such.cgrec", PAGER=MARK)
    assert one.ends() != 0
    assert "cgdebug:" in one.shown
    assert not one.shown.startswith("|")


@pytest.mark.skipif(shutil.which("less") is None, reason="no less here")
def test_less_waits_only_if_the_text_is_longer_than_the_screen():
    short = OnTerminal("help", "run", rows=500)
    assert short.ends() == 0
    long = OnTerminal("help", "run", rows=5)
    long.reads(until="\r\n:")
    os.write(long.master, b"q")
    assert long.ends() in (0, -13), "13: it was closed before it had all"


def test_a_command_that_takes_long_says_what_it_does_and_ctrl_c_ends_it(tmp_path):
    path = shutil.copytree(DATA / "statistics.cgrec", tmp_path / "a.cgrec")  # a query adds a file
    forever = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    one = OnTerminal("query", str(path), forever, columns=200)
    shown = one.reads(until="\x1b[0m")
    assert re.search(r"\x1b\[2m1[^\n]*s(, 15 snapshots read)?  query ", shown), shown
    os.write(one.master, b"\x03")
    assert one.ends() in (130, -2)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Enough for some seconds of work."""
    path = tmp_path_factory.mktemp("large") / "a.cgrec"
    writer = recording_writer.Writer(str(path))
    session = writer.add_session("0" * 32, "job", -1)
    slots = [writer.add_slot(session, f"p{i}", "float32", [4]) for i in range(100)]
    values = numpy.ones(4, "float32")
    for replay in range(1, 2501):
        for slot in slots:
            writer.append(slot, replay, values, stats_only=True)
    writer.close()
    return path


@pytest.mark.parametrize("to", ["csv", "tensorboard"])
def test_an_export_says_how_far_it_is_and_ctrl_c_leaves_no_half_a_file(large, tmp_path, to):
    words = ["export", str(large), "--to", to, "-o", "out"]
    one = OnTerminal(*words, columns=200, cwd=tmp_path, CGDEBUG_PYTHON=sys.executable)
    shown = one.reads(until="snapshots written, about")
    assert re.search(r"\x1b\[2m\d+s, [\d ]+ of [\d ]+ snapshots written, about", shown), shown
    os.write(one.master, b"\x03")
    assert one.ends() == 130
    assert "Traceback" not in one.shown
    if to == "csv":
        assert not list(tmp_path.iterdir())
    else:
        assert "cgdebug: stopped; out has a part of it" in one.shown


def test_a_copy_says_how_far_it_is_and_ctrl_c_leaves_nothing(large, tmp_path):
    one = OnTerminal("extract", str(large), "-o", "out.cgrec", columns=200, cwd=tmp_path)
    wait_until(lambda: (tmp_path / "out.cgrec").exists(), "the copy has begun")
    os.write(one.master, b"\x03")
    assert one.ends() == 130
    assert not list(tmp_path.iterdir())


COUNTS_INTERRUPTS = """
import os, signal
cli, interrupts = os.getppid(), []
signal.signal(signal.SIGINT, lambda *_: interrupts.append(1))
signal.signal(signal.SIGUSR1, lambda *_: os._exit(10 + len(interrupts)))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
if os.fork() == 0:  # of the terminal's foreground, as the command line is
    signal.sigwait({signal.SIGINT})
    os.kill(cli, signal.SIGUSR1)
    os._exit(0)
os.setpgid(0, 0)  # out of it: the terminal sends this process nothing
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_run_passes_no_ctrl_c_on_that_the_terminal_sends_the_job_itself(daemon):
    run = ["--socket", daemon.socket, "run", "--no-live", "--"]
    one = OnTerminal(*run, sys.executable, "-c", COUNTS_INTERRUPTS)
    one.reads(until="ready")
    os.write(one.master, b"\x03")
    assert one.ends() == 10
