"""What a release is made of: one version, notes, extras; and the steps of the Dockerfile and of the conda
recipe, which run here without docker and conda."""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest

import cgdebug
from conftest import ROOT

PACKAGING = ROOT / "tools" / "packaging"


def release(*arguments):
    return subprocess.run(
        [ROOT / "tools" / "release", *arguments], capture_output=True, text=True, timeout=60
    )


def test_the_version_is_said_in_one_place():
    version = release("--version").stdout.strip()
    assert version == cgdebug.__version__
    assert "version" in (ROOT / "pyproject.toml").read_text().partition("dynamic = ")[2][:20]
    for file in (
        "python/cgdebug/__init__.py",
        "tools/packaging/Dockerfile",
        "tools/packaging/recipe.yaml",
    ):
        assert version not in (ROOT / file).read_text(), file


def test_the_notes_are_the_section_of_the_changelog():
    notes = release("--notes").stdout
    assert notes.strip() and notes.strip() in (ROOT / "CHANGELOG.md").read_text()
    assert "\n## " not in notes
    assert release("--publish").returncode == 2


def extras():
    text = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")[2]
    return {
        name: re.findall(r'"([^"]+)"', packages)
        for name, packages in re.findall(r"^(\w+) = \[(.*)\]", text.partition("\n\n")[0], re.M)
    }


def test_the_extra_all_is_every_extra_of_users():
    every = extras()
    (all_of,) = re.findall(r"cgdebug\[(.*)\]", " ".join(every["all"]))
    assert set(all_of.split(",")) == set(every) - {"all", "test"}


# What the package imports only where it is needed, by the extra that brings it.
IMPORTED = {"pandas": "pandas", "pyarrow": "pandas", "fsspec": "remote", "matplotlib": "plot"}


def test_what_the_package_imports_when_needed_is_in_an_extra():
    every = extras()
    sources = [path.read_text() for path in (ROOT / "python/cgdebug").rglob("*.py")]
    for module, extra in IMPORTED.items():
        assert any(re.search(rf"^\s+(import|from) {module}\b", text, re.M) for text in sources), (
            module
        )
        assert any(package.startswith(module) for package in every[extra]), module


@pytest.fixture(scope="module")
def wheel():
    wheels = sorted((ROOT / "build" / "release" / "wheel").glob("cgdebug-*.whl"))
    tag = f"-cp{sys.version_info[0]}{sys.version_info[1]}-"
    wheels = [path for path in wheels if tag in path.name]
    if not wheels:
        pytest.skip("no wheel of this tree. Type: tools/test --only python")
    return wheels[-1]


def test_the_wheel_has_what_starts_the_package_for_a_variable(wheel):
    with zipfile.ZipFile(wheel) as files:
        assert files.read("cgdebug.pth") == (ROOT / "python" / "cgdebug.pth").read_bytes()


@pytest.fixture(scope="module")
def root(wheel, tmp_path_factory):
    """An empty environment; packages that the wheel needs are those of this one."""
    path = tmp_path_factory.mktemp("root")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path / "venv"], check=True)
    shutil.copy(wheel, path)
    site = pathlib.Path(sysconfig.get_path("purelib"))
    (path / "site").mkdir()
    for pattern in ("numpy", "numpy.libs", "numpy-*", "google", "protobuf-*", "pip", "pip-*"):
        for found in site.glob(pattern):
            (path / "site" / found.name).symlink_to(found)
    return path


def run(root, line, **variables):
    """A line of a shell, as root of a container would run it: nothing of this tree is on its paths."""
    environment = {
        "PATH": f"{root}/venv/bin:/usr/bin:/bin",
        "HOME": str(root),
        "PYTHONPATH": f"{root}/site",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_PREFIX": f"{root}/venv",
        **variables,
    }
    pip = f'pip() {{ {root}/venv/bin/python -m pip "$@"; }}; '
    return subprocess.run(
        ["bash", "-ec", pip + line],
        capture_output=True,
        text=True,
        cwd=root,
        env=environment,
        timeout=300,
    )


def instructions():
    text = re.sub(r"^#.*\n", "", (PACKAGING / "Dockerfile").read_text(), flags=re.M).replace(
        "\\\n", " "
    )
    return [tuple(line.split(" ", 1)) for line in text.strip().splitlines()]


def test_the_steps_of_the_dockerfile_give_a_daemon_and_a_command_line(root, wheel):
    steps = instructions()
    assert [name for name, _ in steps if name not in ("COPY", "RUN", "ENV")] == [
        "FROM",
        "ENTRYPOINT",
        "CMD",
    ]
    variables, in_root = {}, lambda text: re.sub(r"(?<![\w/])/(tmp|run)/", rf"{root}/\1/", text)
    (root / "tmp").mkdir(exist_ok=True)
    for name, rest in steps:
        if name == "COPY":
            pattern, to = rest.split()
            assert wheel.match(pattern.replace("cp312", "cp3*")), "the wheel of the image's Python"
            shutil.copy(wheel, in_root(to))
        elif name == "RUN":
            done = run(root, in_root(rest))
            assert done.returncode == 0, f"{rest}: {done.stdout}{done.stderr}"
        elif name == "ENV":
            variable, _, text = rest.partition("=")
            variables[variable] = in_root(text)
    entry = json.loads(dict(steps)["ENTRYPOINT"]) + json.loads(dict(steps)["CMD"])
    program = run(root, f"command -v {entry[0]} cgdebug-daemon", **variables).stdout.split()
    assert program == [f"{root}/venv/bin/cgdebug-cli", f"{root}/venv/bin/cgdebug-daemon"]
    started = run(root, "cgdebug-cli daemon start && cgdebug-cli ps -a --json", **variables)
    try:
        assert '"sessions"' in started.stdout, started.stderr
        assert os.path.exists(variables["CGDEBUG_SOCKET"])
        checks = json.loads(run(root, " ".join([*entry, "--json"]), **variables).stdout)["checks"]
        assert [one for one in checks if one["level"] == "FAIL"] == []
    finally:
        assert run(root, "cgdebug-cli daemon stop", **variables).returncode == 0


@pytest.mark.skipif(not importlib.util.find_spec("yaml"), reason="reads the recipe with PyYAML")
def test_the_script_and_the_tests_of_the_conda_recipe_run(root):
    import yaml

    recipe = yaml.safe_load((PACKAGING / "recipe.yaml").read_text())
    assert recipe["requirements"]["run"][1:] == ["numpy >=1.26", "protobuf >=4.21"]
    needed = (ROOT / "pyproject.toml").read_text()
    assert 'dependencies = ["numpy>=1.26", "protobuf>=4.21"]' in needed
    for line in recipe["build"]["script"]:
        done = run(root, line)
        assert done.returncode == 0, f"{line}: {done.stderr}"
    for test in recipe["tests"]:
        lines = [f"python -c 'import {name}'" for name in test.get("python", {}).get("imports", [])]
        for line in lines + test.get("script", []):
            done = run(root, line)
            # What doctor finds is of this machine, not of the package.
            right = (0, 1) if "doctor" in line else (0,)
            assert done.returncode in right, f"{line}: {done.stdout}{done.stderr}"
