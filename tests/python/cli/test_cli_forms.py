"""What cgdebug-cli looks like: 80 columns, LANG=C, and how it ends."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
import torch

import cgdebug
from conftest import find_program, wait_until

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
GLYPHS = re.compile("[^\x00-\x7f]")
LONG = "model.layers.11.self_attention.output_projection.weight"


def on_terminal(daemon, *arguments, columns=80, **environment):
    """What a terminal of so many columns gets of stdout and stderr, as lines without colours."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    terminal = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PAGER": "cat"}
    env = {**os.environ, **terminal, **environment}
    env.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [find_program("cgdebug-cli"), "--socket", daemon.socket, "--no-spawn", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
        env=env,
    )
    os.close(slave)
    out, deadline = b"", time.monotonic() + 120
    while time.monotonic() < deadline:
        if not select.select([master], [], [], 1)[0]:
            continue
        try:
            part = os.read(master, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        out += part
    os.close(master)
    process.wait(120)
    return ESCAPE.sub("", out.decode()).replace("\r\n", "\n").splitlines()


@pytest.fixture
def watched(cli, daemon, probe, tmp_path):
    """A recording of probes with long names, several shapes, a NaN, and numbers that must not be cut."""
    made = [
        probe(cgdebug.TensorRecord(), name=name)
        for name in (LONG, "blk0.attn", "blk1.mlp/down.proj")
    ]
    for number in range(6):
        for index, one in enumerate(made):
            x = torch.linspace(-1, 1, 512).reshape(8, 64) * (index + 1)
            if number == 4 and index == 1:
                x[0, 3] = float("nan")
            one(x)
    label = str(os.getpid())  # earlier tests of this process left their rows in it too
    wait_until(
        lambda: all(cli("show", "-s", label, f"{one.name}@6").returncode == 0 for one in made),
        "the daemon reads all",
    )
    path = str(tmp_path / "a.cgrec")
    assert cli("freeze", label, "-o", path).returncode == 0
    return path


def commands(path):
    pid = str(os.getpid())
    return [
        ["ps", "-a"],
        ["status"],
        ["probes"],
        ["probes", path],
        ["tail", "-n", "50", "--prefix"],
        ["tail", "-n", "50", "--prefix", "-t"],
        ["show", f"{path}:{LONG}@2"],
        ["info", path],
        ["stats", path],
        ["check", path],
        ["check", pid],
        ["diff", path, path, "--stat"],
        ["record", "list"],
        [
            "query",
            path,
            "select probe, replay, min, max, mean, std, l1, l2 from v_snapshots limit 5",
        ],
        ["verify", path],
        ["doctor"],
        ["--help"],
        ["help", "run"],
        ["daemon", "start", "--help"],
    ]


def test_no_command_is_wider_than_the_terminal(watched, daemon):
    wide = {}
    for words in commands(watched):
        for line in on_terminal(daemon, *words):
            # A single word, such as a path or a line of an error, cannot be broken.
            if len(line) > 80 and len(line.split()) > 1 and max(map(len, line.split())) < 60:
                wide.setdefault(" ".join(words), []).append(line)
    assert wide == {}


def test_a_row_of_a_table_is_one_line_and_keeps_its_numbers(watched, daemon):
    lines = on_terminal(daemon, "probes", watched)
    rows = [line for line in lines if "1..6" in line]
    names = [row.split()[0] for row in rows[:3]]
    assert names[0].startswith("…") and LONG.endswith(names[0][1:]) and len(names[0]) > 20
    assert names[1:] == ["blk0.attn", "blk1.mlp/down.proj"]
    assert all(" 6 " in row and row.endswith("0") for row in rows), rows
    assert any(line == "left out for want of room: LAST; --json has them" for line in lines)
    narrow = on_terminal(daemon, "probes", watched, columns=50)
    assert any("left out for want of room" in line for line in narrow)
    assert LONG in " ".join(on_terminal(daemon, "probes", watched, columns=300))


def test_a_row_of_two_jobs_is_one_line_on_a_narrow_terminal(daemon, job):
    code = """
        actions = [cgdebug.TensorRecord()]
        one = cgdebug.CudaGraphTensorProbe("blk0.attention.output", actions, mode="always")
        one(torch.ones(4)); print("seen"); input()
    """
    jobs = [job(code), job(code)]
    assert [one.line() for one in jobs] == ["seen", "seen"]

    def rows():
        lines = on_terminal(daemon, "probes", columns=60)
        return lines if sum("output" in line for line in lines) == 2 else None

    wait_until(rows, "the daemon sees both")
    lines = rows()
    assert lines[0].startswith("SESSION") and max(map(len, lines)) <= 60
    assert not any(line.startswith("    ") for line in lines[:3]), lines
    left_out = " ".join(lines).partition("left out for want of room:")[2]
    assert " GRAPH " in left_out.partition(";")[0]


def test_without_a_terminal_nothing_is_cut(watched, cli):
    out = cli("probes", watched).stdout
    assert LONG in out and "left out" not in out and "…" not in out


@pytest.mark.parametrize("columns", [80, 60])
def test_a_row_of_ps_is_one_line(daemon, probe, columns):
    one = probe(cgdebug.TensorRecord(), name="one")
    one(torch.ones(4))
    wait_until(
        lambda: any(str(os.getpid()) in line for line in on_terminal(daemon, "ps")), "it is there"
    )
    lines = on_terminal(daemon, "ps", columns=columns)
    row = next(n for n, line in enumerate(lines) if str(os.getpid()) in line)
    assert max(map(len, lines)) <= columns
    assert not any(line.startswith("    ") for line in lines[: row + 2]), lines  # notes may wrap
    assert lines[0].startswith("KEY") and "LOST" in lines[0]


PARENT = """
import ctypes, subprocess, sys
name, command = sys.argv[1], sys.argv[2:]
assert ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0) == 0  # PR_SET_NAME
sys.stdout.write(subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout)
"""


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize("shell", [False, True], ids=["alone", "shell"])
def test_under_watch_rows_have_its_width_and_in_another_pipe_their_own(
    watched, daemon, columns, shell
):
    plain = [find_program("cgdebug-cli"), "--socket", daemon.socket, "probes", watched]
    # As watch runs a line, with more behind it.
    words = ["sh", "-c", f"{' '.join(plain)}; true"] if shell else plain

    def lines_under(name, *command):
        done = subprocess.run(
            [sys.executable, "-c", PARENT, name, *command],
            env={**os.environ, "COLUMNS": str(columns), "LANG": "C.UTF-8"},
            capture_output=True,
            text=True,
        )
        return done.stdout.splitlines()

    assert max(map(len, lines_under("watch", *words))) <= columns
    assert any(LONG in line for line in lines_under("other", *words))
    through = lines_under("watch", "sh", "-c", f"{' '.join(plain)} | cat")
    assert any(LONG in line for line in through), "another program reads it"


def test_info_has_no_escape_spelled_out(watched, daemon):
    text = "\n".join(on_terminal(daemon, "--color", "always", "info", watched))
    assert r"\x1b" not in text and "nothing is known to be missing" in text


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LANG": "C", "LC_ALL": ""}])
def test_the_c_locale_gets_ascii(watched, cli, locale):
    for words in commands(watched):
        found = cli(*words, **locale)
        text = found.stdout + found.stderr
        assert not GLYPHS.search(text), (words, GLYPHS.findall(text))
    stats = cli("probes", "-v", watched, **locale).stdout
    assert " in [" in stats and "mean=" in stats


def test_utf8_has_its_glyphs(watched, cli):
    assert GLYPHS.search(cli("probes", "-v", watched, LC_ALL="C.UTF-8").stdout)


def test_the_c_locale_leaves_a_foreign_name_as_it_is(cli, probe):
    p = probe(cgdebug.TensorRecord(), name="层.μσ")
    p(torch.ones(2))
    wait_until(lambda: "层.μσ" in cli("probes", LC_ALL="C").stdout, "the daemon reads it")


def test_nan_has_no_sign(cli, probe, tmp_path):
    p = probe(cgdebug.TensorRecord(), name="signed")
    p(torch.tensor([-float("nan")]).view(torch.int32).bitwise_or(-(2**31)).view(torch.float32))
    assert str(p.records()[0].tensor.view(torch.int32).item()).startswith("-")
    wait_until(lambda: cli("show", "signed@1").returncode == 0, "the daemon reads it")
    for words in (["show", "signed"], ["probes", "signed"], ["tail", "-n", "5", "signed"]):
        out = cli(*words).stdout
        assert "nan" in out and "-nan" not in out
    shown = cli("show", "signed").stdout
    assert all(re.search(rf"{name} +nan", shown) for name in ("L1", "L2", "RMS"))


def test_a_view_that_a_signal_ends_exits_with_128_and_its_number(daemon, probe):
    probe(cgdebug.TensorRecord(), name="followed")(torch.ones(1))
    for number in (signal.SIGINT, signal.SIGTERM):
        process = subprocess.Popen(
            [find_program("cgdebug-cli"), "--socket", daemon.socket, "tail", "-f", "-n", "1000"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout.readline()  # it follows now
        process.send_signal(number)
        assert process.wait(120) == 128 + number
        process.stdout.close()


def test_the_age_of_a_dead_job_goes_on(cli, job):
    made = job("CudaGraphTensorProbe('aged', [TensorRecord()], mode='always')(torch.ones(1))")
    made.finish()

    def age():
        pid = str(made.pid)
        rows = [line.split() for line in cli("-s", pid, "ps", "-a").stdout.splitlines()]
        ages = [row[5] for row in rows if row[2:3] == [pid] and row[5].endswith("s")]
        return int(ages[0][:-1]) if ages else 0

    wait_until(lambda: age() >= 2, "two seconds since it started")


def test_a_word_that_is_not_a_number_is_named(cli):
    found = cli("diff", "a", "b", "--rtol", "abc")
    assert found.returncode == 2 and "--rtol 'abc' is not a number" in found.stderr


def test_help_knows_every_command_and_its_verbs(cli):
    assert cli("help", "check").stdout == cli("check", "--help").stdout
    assert "start" in cli("help", "daemon").stdout
    assert "cgdebug-cli daemon start" in cli("help", "daemon", "start").stdout
    assert cli("help").stdout == cli("--help").stdout
    variables = cli("--json", "help", "variables")
    assert {"CGDEBUG_ON", "NO_COLOR"} <= set(
        ", ".join(row["names"] for row in json.loads(variables.stdout)["variables"]).split(", ")
    )
    assert "CGDEBUG_ON (job)\n    default trigger" in cli("help", "variables").stdout
    wrong = cli("help", "chekc")
    assert wrong.returncode == 2 and "Close: 'check'" in wrong.stderr
    page = cli("help", "--man").stdout
    assert page.startswith(".TH CGDEBUG") and ".SS daemon start" in page and ".SS check" in page
    assert ".SH ENVIRONMENT" in page and "CGDEBUG_ON" in page


def test_daemon_start_lists_and_hands_on_the_options_of_the_daemon(own_daemon, tmp_path):
    program, socket = find_program("cgdebug-cli"), str(tmp_path / "d.sock")
    env = {**os.environ, "CGDEBUG_DAEMON": find_program("cgdebug-daemon")}

    def run(*words):
        words = [program, "--socket", socket, *words]
        return subprocess.run(words, capture_output=True, text=True, timeout=300, env=env)

    listed = run("daemon", "start", "--help").stdout
    assert "--idle-timeout DURATION" in listed and "--min-free-disk" in listed
    started = run("daemon", "start", "--idle-timeout", "70s", "--json")
    assert started.returncode == 0, started.stderr
    pid = json.loads(started.stdout)["pid"]
    with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
        assert "--idle-timeout\00070s" in file.read()
    again = run("daemon", "start", "--idle-timeout", "80s")
    assert again.returncode == 2 and "keeps its options" in again.stderr
    assert run("daemon", "stop").returncode == 0
    wrong = run("daemon", "start", "--nonsense")
    assert wrong.returncode != 0 and "--nonsense" in wrong.stderr


def test_python_m_cgdebug_is_the_command_line():
    import sys

    words = [sys.executable, "-m", "cgdebug", "--version"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == (
        f"cgdebug-cli {cgdebug.__version__}\n"
    )


def test_a_recording_is_called_cgrec_whatever_was_typed(cli, daemon, probe, tmp_path):
    p = probe(cgdebug.TensorRecord(), name="named")
    p(torch.ones(1))
    wait_until(lambda: cli("show", "named@1").returncode == 0, "the daemon reads it")
    assert cli("freeze", "-o", str(tmp_path / "one")).returncode == 0
    with daemon.connect() as client:
        client.freeze(tmp_path / "two")
    assert (
        cli("extract", str(tmp_path / "one.cgrec"), "-o", str(tmp_path / "three/")).returncode == 0
    )
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["one.cgrec", "three.cgrec", "two.cgrec"]


def test_a_slice_of_the_newest_needs_no_replay(cli, probe):
    p = probe(cgdebug.TensorRecord(), name="blk[0]")
    p(torch.arange(12.0).reshape(3, 4))
    wait_until(lambda: cli("show", "blk[0]@1").returncode == 0, "the daemon reads it")
    assert "[3,4]" in cli("show", "blk[0]").stdout  # a name may end in brackets
    shown = json.loads(cli("show", "blk[0][-2:,:2]", "--json").stdout)
    assert shown["shape"] == [2, 2] and shown["values"] == [4, 5, 8, 9]
    wrong = cli("show", "nosuch[0]")
    assert wrong.returncode == 4 and "nosuch" in wrong.stderr


def test_a_recording_is_overwritten_with_force_and_only_then(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = "import torch, cgdebug; cgdebug.CudaGraphTensorProbe('forced', [cgdebug.TensorRecord()], mode='always')(torch.ones(2))"
    run = ["run", "-o", "a.cgrec"]
    job = ["--", sys.executable, "-c", script]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    for words, code in (
        ([*run, *job], 0),
        ([*run, *job], 2),
        ([*run, "-f", *job], 0),
        (["run", "-f", "-o", "other", *job], 2),
    ):
        done = cli(*words)
        assert done.returncode == code, (words, done.stderr)
        if code == 0:
            assert "next:  cgdebug-cli check a.cgrec\n" in done.stderr, "as one would type it"
            assert done.stderr.count("next:") == 1
        elif "-f" not in words:
            assert "-f of cgdebug-cli run" in done.stderr, "what removes it first"
    assert (tmp_path / "other" / "file").read_text() == "mine"


def test_jobs_are_forgotten_when_prune_returns(own_daemon, tmp_path):
    daemon = own_daemon()
    program = [find_program("cgdebug-cli"), "--socket", daemon.socket, "--no-spawn"]
    job = "import torch, cgdebug; cgdebug.CudaGraphTensorProbe('dead', [cgdebug.TensorRecord()], mode='always')(torch.ones(2))"
    env = {**os.environ, "CGDEBUG_SOCKET": str(daemon.socket)}

    def ask(*words):
        return subprocess.run([*program, *words], capture_output=True, text=True, timeout=60)

    for _ in range(3):
        subprocess.run([sys.executable, "-c", job], env=env, check=True, timeout=120)
        wait_until(lambda: "exited" in ask("ps", "-a").stdout, "the end of the job")
        assert ask("ps", "--prune").returncode == 0
        left = json.loads(ask("ps", "-a", "--json").stdout)["sessions"]
        assert [one for one in left if one["state"] != "alive"] == []
