"""Importing cgdebug: what it gives and what it leaves alone."""

import importlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest

import cgdebug
from conftest import ROOT, find_program

FIXED_NAMES = [
    "CudaGraphTensorProbe",
    "TensorPrint",
    "TensorRecord",
    "TensorCompare",
    "TensorSnapshot",
    "TensorCompareMismatchError",
    "drain_records",
    "export_records_to_tensorboard",
]


def run_python(code):
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_the_probe_library_stays_when_somebody_closes_it():
    """Graphs hold functions and kernels of it."""
    cgdebug.CudaGraphTensorProbe("p", [cgdebug.TensorRecord()]).close()
    maps = pathlib.Path("/proc/self/maps").read_text()
    library = re.search(r"/\S*libcgdebug_probe\.so\S*", maps).group()
    loaded = run_python(
        "import ctypes, _ctypes\n"
        f"library = ctypes.CDLL({str(library)!r})\n"
        "_ctypes.dlclose(library._handle)\n"
        "print('libcgdebug_probe' in open('/proc/self/maps').read())"
    )
    assert loaded.strip() == "True"


def test_import_loads_neither_torch_nor_the_native_module_nor_numpy():
    loaded = run_python(
        "import sys, cgdebug, cgdebug.tensor_debug\n"
        "print({'torch', 'numpy', 'google.protobuf', 'cgdebug._probe'} & set(sys.modules))"
    )
    assert loaded.strip() == "set()"


def test_client_errors_and_actions_load_without_torch():
    loaded = run_python(
        "import sys, cgdebug\n"
        "cgdebug.TensorRecord(); cgdebug.TensorCompareMismatchError; cgdebug.Client\n"
        "print('torch' in sys.modules)"
    )
    assert loaded.strip() == "False"


def test_without_torch_what_needs_it_says_what_to_install():
    said = run_python(
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "import cgdebug\n"
        "for name in ('CudaGraphTensorProbe', 'watch', 'step', 'debug_mode', 'graph_memory'):\n"
        "    try: getattr(cgdebug, name)\n"
        "    except ModuleNotFoundError as error: print(error)\n"
    )
    lines = said.splitlines()
    assert len(lines) == 5
    assert lines[1] == "cgdebug.watch needs torch, which is not installed: pip install torch"


def test_a_job_that_compiles_nothing_does_not_import_the_compiler():
    loaded = run_python(
        "import sys, torch, cgdebug\n"
        "probe = cgdebug.CudaGraphTensorProbe('p', [cgdebug.TensorRecord()], mode='always')\n"
        "probe(torch.ones(1))\n"
        "model = torch.nn.Linear(2, 2)\n"
        "with cgdebug.watch(model):\n"
        "    model(torch.ones(2))\n"
        "print('torch._dynamo' in sys.modules)"
    )
    assert loaded.strip() == "False"


@pytest.mark.parametrize("name", FIXED_NAMES)
def test_fixed_names_are_reachable_in_both_places(name):
    tensor_debug = importlib.import_module("cgdebug.tensor_debug")
    assert getattr(cgdebug, name) is getattr(tensor_debug, name)
    assert name in dir(cgdebug) and name in dir(tensor_debug)


def test_postprocess_functions_are_reachable_under_tensor_debug():
    from cgdebug.tensor_debug.postprocess import drain_records, export_records_to_tensorboard

    assert drain_records is cgdebug.drain_records
    assert export_records_to_tensorboard is cgdebug.export_records_to_tensorboard
    assert cgdebug.tensor_debug.postprocess.drain_records is drain_records


def test_a_star_import_leaves_the_built_in_open_alone():
    assert "open" not in cgdebug.__all__ and "open" in dir(cgdebug)
    assert callable(cgdebug.open)


def test_every_public_name_exists():
    for name in cgdebug.__all__:
        assert getattr(cgdebug, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = cgdebug.nothing


def test_version_is_the_one_of_the_build():
    from cgdebug import _probe

    cmake = (ROOT / "CMakeLists.txt").read_text()
    declared = re.search(r"^project\(cgdebug VERSION (\S+)", cmake, re.MULTILINE)[1]
    assert cgdebug.__version__ == declared == _probe.version()


def test_types_ship():
    package = pathlib.Path(cgdebug.__file__).parent
    assert (package / "py.typed").exists() and (package / "_probe.pyi").exists()


def test_native_extension_is_available_here():
    answer = cgdebug.native_extension_available()
    assert answer, answer.reason
    assert str(answer) == "available"


def test_unavailable_native_extension_says_why(monkeypatch):
    from cgdebug._job import _native

    monkeypatch.setattr(_native, "_op_loaded", False)
    monkeypatch.setattr(_native, "OP_LIBRARY", pathlib.Path("/nowhere/libcgdebug_torch.so"))
    answer = cgdebug.native_extension_available()
    assert not answer
    assert (
        "/nowhere/libcgdebug_torch.so is missing" in answer.reason
        and "pip install" in answer.reason
    )


def test_a_torch_that_is_too_old_is_named(monkeypatch):
    import torch

    from cgdebug._job import _native

    monkeypatch.setattr(_native, "_op_loaded", False)
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu124")
    answer = cgdebug.native_extension_available()
    assert not answer
    assert (
        f"into torch 2.5.1+cu124: cgdebug needs torch {_native.OP_TORCH} or later" in answer.reason
    )
    assert "pip install 'torch>=" in answer.reason
    assert answer.reason == f"{answer.problem} Type: {answer.fix}"
    assert answer.fix.startswith("pip install "), "a command, which doctor shows as one"


def test_disabled_probe_never_loads_the_native_module():
    code = """
import sys, torch, cgdebug
from cgdebug import *
x = torch.ones(3, requires_grad=True)
probes = [CudaGraphTensorProbe("off", [TensorRecord(enabled=False), TensorPrint(enabled=False),
                                       TensorCompare(None, enabled=False)], mode="always"),
          CudaGraphTensorProbe("off", [], mode="always"),
          CudaGraphTensorProbe("off", [TensorRecord()], mode="always", enabled=False)]
cgdebug.step(7)
for probe in probes:
    with probe:
        assert probe(x) is x and probe(3) == 3
        assert probe.attach_grad(x) is x and probe.attach_grad(x, return_handle=True) == (x, None)
        probe.prepare(x); probe.clear_records(); probe.assert_ok()
        assert probe.records() == probe.records(synchronize=True) == []
        assert drain_records(probe, print) == []
        assert probe.status().ok and "off" in repr(probe.status())
assert "cgdebug._probe" not in sys.modules and not hasattr(torch.ops.cgdebug, "observe")
print("clean")
"""
    assert run_python(code).strip() == "clean"


def test_environment_switches_probes_off(monkeypatch):
    from cgdebug._job._native import is_selected

    assert is_selected("blk0.attn")
    for patterns, wanted in [
        ("blk*", True),
        ("mlp*", False),
        ("mlp*, blk0.?ttn", True),
        ("!blk0*", False),
        ("blk*,!*.attn", False),
        ("!mlp*", True),
        ("re:k[0-9]\\.", True),
        ("re:^k", False),
        ("", True),
        (" , ", True),
    ]:
        monkeypatch.setenv("CGDEBUG_PROBES", patterns)
        assert is_selected("blk0.attn") is wanted, patterns
        assert (
            cgdebug.CudaGraphTensorProbe("blk0.attn", [cgdebug.TensorRecord()]).status().active
            is wanted
        )
    monkeypatch.setenv("CGDEBUG_PROBES", "a[0]")
    assert is_selected("a[0]") and is_selected("a0")
    # The globs are those of every other place: "^" negates, a backslash takes the next one literally.
    for patterns, wanted in [("a[^0]", "a1"), ("a[!0]", "a1"), (r"a\*", "a*"), (r"re:^a\d$", "a0")]:
        monkeypatch.setenv("CGDEBUG_PROBES", patterns)
        assert [name for name in ("a0", "a1", "a*") if is_selected(name)][:1] == [wanted], patterns
    assert os.environ["CGDEBUG"] == "0"


@pytest.fixture
def environment(tmp_path):
    """The folder of the programs of a virtual environment that has cgdebug, and is not activated."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    site = sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)})
    needed = (pathlib.Path(cgdebug.__file__).parents[1], sysconfig.get_path("purelib"))
    pathlib.Path(site, "cgdebug.pth").write_text("\n".join(map(str, needed)))
    shutil.copy(find_program("cgdebug-cli"), venv / "bin")
    return venv / "bin"


def from_outside(*words, folder, path="/usr/bin:/bin"):
    """As a service or another user types it: nothing of an environment is on its paths."""
    return subprocess.run(
        list(map(str, words)),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={"PATH": path, "HOME": str(folder)},
    )


@pytest.mark.parametrize("by", ["path", "link"])
def test_the_command_line_of_an_environment_uses_its_own_python(environment, tmp_path, by):
    program = environment / "cgdebug-cli"
    if by == "link":  # as pipx and uv make one
        (tmp_path / "cgdebug-cli").symlink_to(program)
        program = tmp_path / "cgdebug-cli"
    shutil.copytree(ROOT / "tests/data/statistics.cgrec", tmp_path / "a.cgrec")
    done = from_outside(program, "export", "a.cgrec", "--to", "csv", "-o", "a.csv", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.csv").stat().st_size > 0
    checks = from_outside(program, "doctor", "--json", folder=tmp_path).stdout
    assert str(environment / "python3") in checks or str(environment / "python") in checks, checks


def test_a_command_line_without_any_python_says_what_it_asked_for(tmp_path):
    shutil.copy(find_program("cgdebug-cli"), tmp_path)
    shutil.copytree(ROOT / "tests/data/statistics.cgrec", tmp_path / "a.cgrec")
    words = ["export", "a.cgrec", "--to", "csv", "-o", "a.csv"]
    done = from_outside(tmp_path / "cgdebug-cli", *words, folder=tmp_path, path=str(tmp_path))
    assert done.returncode == 2 and "python3" in done.stderr, done.stderr
    assert not (tmp_path / "a.csv").exists()
