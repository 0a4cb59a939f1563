"""The documents name what exists: environment variables, files, parts of tools/test."""

import functools
import pathlib
import re
import subprocess
import sys

import pytest

from conftest import ROOT, find_program

DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not {"build", ".venv", ".git"} & set(path.relative_to(ROOT).parts)
)


def variables_of_the_tables():
    """Those of the manual, and those of tests/README.md."""
    names = set()
    for document in ("client/docs/variables.md", "tests/README.md"):
        for row in (ROOT / document).read_text(encoding="utf-8").splitlines():
            if row.startswith("| `"):
                names.update(re.findall(r"`([A-Z][A-Z_0-9]+)`", row.split("|")[1]))
    return names


def sources():
    for top in ("libprobe", "daemon", "client", "python", "tests", "tools"):
        for path in (ROOT / top).rglob("*"):
            if path.match("words/settings.cpp"):
                continue  # the table itself
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


def test_every_variable_that_the_code_reads_is_in_a_table_and_the_other_way_round():
    table, code = variables_of_the_tables(), literals()
    own = {name for name in code if name == "CGDEBUG" or re.match("CGDEBUG_.", name)}
    assert not {name: code[name] for name in own - table}, "read, and in no table"
    assert not table - set(code), "in a table, and nothing reads it"


def anchors_of(document):
    """The anchors that GitHub makes of a document's headings."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.S | re.M)
    found = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.M):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 0
        while (name := anchor + (f"-{number}" if number else "")) in found:
            number += 1
        found.add(name)
    return found


def links_of(document):
    """(what is written, file, anchor) of each link that leads to a file of the tree."""
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", link):
            name, _, anchor = link.partition("#")
            yield link, (document.parent / name).resolve() if name else document, anchor


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_every_anchor_to_a_heading(document):
    for link, path, anchor in links_of(document):
        assert path.exists(), link
        assert not anchor or anchor in anchors_of(path), link


def test_the_readme_has_at_most_1000_words():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1000


@pytest.mark.parametrize("start", ["README.md", "client/docs/README.md"])
def test_every_page_of_the_manual_is_one_click_away(start):
    linked = {path for _, path, _ in links_of(ROOT / start)}
    pages = {path.resolve() for path in (ROOT / "client/docs").glob("*.md")}
    assert not pages - linked - {(ROOT / start).resolve()}


def test_the_reference_pages_are_those_that_the_code_makes():
    command = [sys.executable, ROOT / "tools/manual", "--check", "--cli"]
    done = subprocess.run(
        [*command, find_program("cgdebug-cli")], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_files_that_the_architecture_names_are_there():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    names = re.findall(r"`((?:[\w.-]+/)+(?:[\w.-]*))`", text)
    assert len(names) > 40
    roots = [ROOT, *(ROOT / top for top in ("daemon", "daemon/core", "libprobe", "client"))]
    for name in names:
        # `libprobe/ring/segment/segment_view` stands for the header and the source.
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


REFERENCE = {"commands.md", "python.md", "variables.md"}  # made from the code


@pytest.mark.parametrize(
    "document",
    [
        ROOT / "README.md",
        *(path for path in (ROOT / "client/docs").glob("*.md") if path.name not in REFERENCE),
        ROOT / "python/cgdebug/skills/SKILL.md",
    ],
    ids=lambda path: path.stem,
)
def test_the_commands_of_a_page_exist_with_their_options(document):
    @functools.cache
    def help_of(*words):
        command = [find_program("cgdebug-cli"), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        return done.stdout if done.returncode == 0 else ""

    text = document.read_text(encoding="utf-8")
    for command, rest in re.findall(r"cgdebug-cli ([a-z]+)([^\n`|]*)", text):
        assert help_of("help", command), command
        verb = re.match(r" ([a-z]+)", rest)
        known = help_of("--help") + help_of("help", command)
        known += help_of("help", command, verb[1]) if verb else ""
        own = rest.split(" -- ")[0]  # behind it is the job's own command line
        for option in re.findall(r"(?<= )(--?[a-z][a-z-]*)", own):
            assert re.search(rf"(^|[ ,]){option}\b", known, re.M), f"{command} {option}"


def test_the_readme_says_how_many_reported_faults_are_named():
    page = (ROOT / "client/docs/reported-faults.md").read_text()
    table = re.search(r"^\| Report \| Fault \| Says \|\n.*\n((?:\|.*\n)+)", page, re.M)[1]
    says = [line.split("|")[3].strip() for line in table.splitlines()]
    named = sum(not one.startswith("nothing") for one in says)
    readme = (ROOT / "README.md").read_text()
    assert f"Of [{len(says)} faults built" in readme and f"`why` names {named} in" in readme
