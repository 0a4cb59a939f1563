"""What users type means the same in C++ (words_test), in Python and to cgdebug-cli: words.tsv."""

import os
import re
import subprocess
import sys

import pytest

import cgdebug
from cgdebug import _recording
from cgdebug._job import _accepted, _fail_on, _native
from cgdebug._shared import _words
from conftest import ROOT, find_program

TABLE = ROOT / "tests" / "data" / "words.tsv"


def rows(*kinds):
    """(kind, word, meaning) of the table."""
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        kind, word, meaning = line.split("\t")
        if kind.startswith(kinds):
            raw = word.encode().decode("unicode_escape") if "\\x" in word else None
            yield kind, word if raw is None else raw.encode("latin-1").decode(), meaning


def python_meaning(kind, word):
    try:
        if kind == "condition":
            return "{} {:g}".format(*_words.condition(word, "on"))
        if kind == "finding_kinds":
            return " ".join(_words.finding_kinds(word, "on"))
        if kind == "watched":
            return " ".join(_words.watched(word, "watch"))
        if kind == "probe_name":
            return _accepted.check_name(word) or "ok"
        return "refused" if _recording.setting_problem(kind.split()[1], word) else "ok"
    except ValueError:
        return "refused"


def test_python_reads_each_word_as_the_table_says():
    read = [(kind, word, python_meaning(kind, word)) for kind, word, _ in rows("")]
    assert read == list(rows(""))
    assert len(read) > 200


OPTIONS = {"condition": "--on", "finding_kinds": "--fail-on", "watched": "--watch"}


def is_refused(kind, word, folder):
    """Whether `cgdebug-cli run` refuses the word. Of no job: the daemon cannot start."""
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("CGDEBUG")},
        "CGDEBUG_SOCKET": f"{folder}/{'x' * 200}",
    }
    options = [f"{OPTIONS[kind]}={word}"] if kind in OPTIONS else []
    if kind not in OPTIONS:
        environment[kind.split()[1]] = word
    command = [find_program("cgdebug-cli"), "run", *options, "--", sys.executable, "-c", "1/0"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 2 and "ZeroDivision" not in run.stderr, run.stderr
    named = options[0].partition("=")[0] if options else kind.split()[1]
    is_named = re.search(rf"^cgdebug(-cli)?: {named}\b", run.stderr, re.M) is not None
    assert is_named or "socket" in run.stderr, run.stderr
    return is_named


def test_run_refuses_before_the_job_starts_what_the_job_would_refuse(tmp_path):
    # `run` sets CGDEBUG itself.
    wanted = [row for row in rows(*OPTIONS, "setting") if row[0] != "setting CGDEBUG"]
    refused = [(kind, word) for kind, word, _ in wanted if is_refused(kind, word, tmp_path)]
    assert refused == [(kind, word) for kind, word, meaning in wanted if meaning == "refused"]


JOB = """
import os, torch, cgdebug
probe = cgdebug.CudaGraphTensorProbe("x", [cgdebug.TensorRecord(where="auto")], mode="always")
probe(torch.ones(2))
probe(torch.ones(2))
cgdebug.step(1)
from cgdebug._job import _native
print(_native.probe_module().not_seen())
"""

MALFORMED = {
    "CGDEBUG": "no",
    "CGDEBUG_DEVICE_MIB": "1G",
    "CGDEBUG_FAIL_ON": "loss",
    "CGDEBUG_LANE": "Direct",
    "CGDEBUG_LOSSLESS": "yes",
    "CGDEBUG_ON": "loss",
    "CGDEBUG_OP_LOG_BATCH": "one",
    "CGDEBUG_OP_LOG_EVERY": "0",
    "CGDEBUG_OP_LOG_FRAMES": "all",
    "CGDEBUG_OP_LOG_MIB": "1G",
    "CGDEBUG_PROBES": "re:(",
    "CGDEBUG_WAIT_MS": "2s",
    "CGDEBUG_WATCH": "ops:*",
    "CGDEBUG_WATCH_EAGER": "true",
}


def test_a_malformed_variable_in_a_job_is_one_line_and_an_entry_of_the_account(tmp_path):
    without_daemon = {"CGDEBUG_DAEMON": "/bin/false", "CGDEBUG_SOCKET": f"{tmp_path}/none/d.sock"}
    environment = {**os.environ, **without_daemon, **MALFORMED}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", JOB], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    for name, text in MALFORMED.items():
        lines = [line for line in run.stderr.splitlines() if line.startswith(f"cgdebug: {name} ")]
        lines += [line for line in run.stderr.splitlines() if line.startswith(f"cgdebug: {name}:")]
        assert len(lines) == 1 and "goes on as without it" in lines[0], (name, text, run.stderr)
    assert f"without {len(MALFORMED)} variables of its environment" in run.stdout, run.stdout
    assert "the first: CGDEBUG" in run.stdout, run.stdout


def test_doctor_names_variables_that_are_malformed_or_unknown(cli, monkeypatch):
    monkeypatch.setenv("CGDEBUG_LANE", "Direct")
    monkeypatch.setenv("CGDEBUG_" + "PROBS", "a")
    checked = cli("doctor")
    assert checked.returncode == 1
    assert "CGDEBUG_LANE is direct or callback, not 'Direct'" in checked.stdout
    assert "fix: unset CGDEBUG_LANE" in checked.stdout
    assert "nothing reads CGDEBUG_PROBS. Close: 'CGDEBUG_PROBES'" in checked.stdout


@pytest.mark.parametrize("on", ["loss", "absmax>0x10", 3])
def test_an_unknown_condition_of_an_action_is_an_exception(on):
    with pytest.raises(ValueError, match="TensorRecord: on must be"):
        cgdebug.TensorRecord(where="device", on=on)


def test_what_a_probe_judges_by_is_read_again_after_the_variable_changes(monkeypatch):
    monkeypatch.setenv("CGDEBUG_FAIL_ON", "inf")
    assert _fail_on.wanted() == ["inf"]
    monkeypatch.setenv("CGDEBUG_FAIL_ON", "nan,inf")
    assert _fail_on.wanted() == ["nan", "inf"]
    monkeypatch.delenv("CGDEBUG_FAIL_ON")
    assert _fail_on.wanted() == [] and _native.is_selected("x")


TOML = (
    "",
    "watch = 'blk*'",
    'watch = ["blk*", "!blk3"]  # comment',
    "watch = [\n  'a',  # one\n\n  \"b\",\n]\nfail_on = 'nan,inf'\n",
    "watch_eager = true\r\nwait_ms = 500\r\n",
    'dir = "a \\" \\\\ # b"\n# end',
    "on = 'absmax>1e4'\nlossless = false",
    "op_log_mib = 0",
    "probes = []",
    # refused
    "watch = blk",
    "watch = 'a' 'b'",
    "watch = 'a\nb'",
    "watch = ['a' 'b']",
    "watch = ['a',, 'b']",
    "watch = [, 'a']",
    "watch 'a'",
    "= 'a'",
    "watch = 'a'\nwatch = 'b'",
    "[section]\nwatch = 'a'",
    "watch = '''a'''",
    'watch = "\\u0041"',
    "wait_ms = 007",
    "wait_ms = 1_0",
    "wait_ms = 1.5",
    "watch = {a = 1}",
    "watch.x = 'a'",
    "watch = 'a\x01'",
)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is in Python 3.11 and later")
@pytest.mark.parametrize("text", TOML)
def test_a_file_of_settings_is_refused_or_means_what_toml_says(text, tmp_path):
    import tomllib

    path = tmp_path / "a.toml"
    path.write_bytes(text.encode())
    try:
        read = dict(_recording.read_config(str(path)))
    except ValueError as error:
        assert str(error).startswith(f"{path}:"), error
        return

    def as_variable(value):
        if isinstance(value, list):
            return ",".join(value)
        return str(int(value)) if isinstance(value, (bool, int)) else value

    meant = {f"CGDEBUG_{key.upper()}": as_variable(v) for key, v in tomllib.loads(text).items()}
    assert read == meant


def test_most_of_these_files_are_read(tmp_path):
    path = tmp_path / "a.toml"
    for text in TOML[:7]:
        path.write_bytes(text.encode())
        _recording.read_config(str(path))
