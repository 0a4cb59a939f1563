"""The documents name what exists: environment variables, files, parts of tools/test."""

import pathlib
import re
import subprocess

import pytest

from conftest import find_program

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not {"build", ".venv", ".git"} & set(path.relative_to(ROOT).parts)
)


def section(text, title):
    """The text under "## title"."""
    return re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.S | re.M).group(1)


def variables_of_the_table():
    names = set()
    table = section((ROOT / "README.md").read_text(encoding="utf-8"), "Environment variables")
    for row in table.splitlines():
        if row.startswith("| `"):
            names.update(re.findall(r"`([A-Z_0-9]+)`", row.split("|")[1]))
    return names


def sources():
    for top in ("libprobe", "daemon", "client", "python", "tests", "tools"):
        for path in (ROOT / top).rglob("*"):
            if path.suffix in {".cpp", ".h", ".cu", ".cuh", ".py"} and path != pathlib.Path(
                __file__
            ):
                yield path, re.compile(r'"([A-Z][A-Z_0-9]+)"')
            elif path.suffix in {".sh", ""} and path.is_file():
                yield path, re.compile(r"\$\{?(CGDEBUG_[A-Z_0-9]+)")


def literals():
    """Names that stand alone in quotes, or after a shell's dollar: how a variable is read."""
    found = {}
    for path, pattern in sources():
        for name in pattern.findall(path.read_text(encoding="utf-8", errors="replace")):
            found.setdefault(name, str(path.relative_to(ROOT)))
    return found


def test_every_variable_that_the_code_reads_is_in_the_table_and_the_other_way_round():
    table, code = variables_of_the_table(), literals()
    own = {name for name in code if name == "CGDEBUG" or name.startswith("CGDEBUG_")}
    assert not {name: code[name] for name in own - table}, "read, and not in README.md's table"
    assert not table - set(code), "in README.md's table, and nothing reads it"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file(document):
    text = document.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", link) and not link.startswith("#"):
            assert (document.parent / link.split("#")[0]).exists(), link


def test_the_files_that_the_architecture_names_are_there():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    names = re.findall(r"`((?:[\w.-]+/)+(?:[\w.-]*))`", text)
    assert len(names) > 40
    roots = [ROOT, *(ROOT / top for top in ("daemon", "daemon/core", "libprobe", "client"))]
    for name in names:
        # `libprobe/ring/segment_view` stands for the header and the source.
        patterns = [name.rstrip("/").replace("NAME", "*"), name + ".*"]
        assert any(list(root.glob(pattern)) for root in roots for pattern in patterns), name


def test_the_parts_of_tools_test_are_those_that_contributing_lists():
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("| Part |")[1]
    listed = set()
    for row in table.splitlines():
        if row.startswith("| `"):
            listed.update(re.findall(r"`(\w+)`", row.split("|")[1]))
        elif listed:
            break
    help_text = subprocess.run(
        [ROOT / "tools/test", "--help"], capture_output=True, text=True, check=True, timeout=300
    ).stdout
    parts = re.search(r"one part: (.*)", help_text).group(1).split()
    assert listed == set(parts)


@pytest.mark.parametrize(
    "document",
    [*(ROOT / "client" / "docs").glob("*.md"), ROOT / "python/cgdebug/skills/SKILL.md"],
    ids=lambda path: path.stem,
)
def test_the_commands_of_a_page_exist_with_their_options(document):
    text = document.read_text(encoding="utf-8")
    helps = {}
    for command, rest in re.findall(r"cgdebug-cli ([a-z]+)([^\n`|]*)", text):
        if command not in helps:
            run = [find_program("cgdebug-cli"), "help", command]
            helps[command] = subprocess.run(run, capture_output=True, text=True, timeout=300)
        told = helps[command]
        assert told.returncode == 0, command
        own = rest.split(" -- ")[0]  # behind it is the job's own command line
        for option in re.findall(r"(?<= )(--?[a-z][a-z-]*)", own):
            assert re.search(rf"(^|[ ,]){option}\b", told.stdout, re.M) or option == "--json", (
                f"{command} {option}"
            )
