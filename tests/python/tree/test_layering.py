"""tools/check_layering.py finds what it should find."""

import ast
import graphlib
import subprocess
import sys

import pytest

from conftest import ROOT

CHECK = ROOT / "tools" / "check_layering.py"


def run(tree, path, text):
    file = tree / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")
    return subprocess.run(
        [sys.executable, CHECK, tree], capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("client/a.cpp", '#include "libprobe/ring/segment/segment_view.h"'),
        ("client/a.cpp", '#include "daemon/serve/handlers.h"'),
        ("client/cli/commands/jobs/show.cpp", '#include "proto/control.pb.h"'),
        ("client/cli/views/tensor/tensor_report.h", '#include "cgdebug/client.h"'),
        ("daemon/core/base/a.cpp", "std::atomic<int> count;"),
        ("daemon/core/numerics/a.cpp", '#include "daemon/model/snapshot.h"'),
        ("daemon/sinks/a.cpp", '#include "daemon/ingest/ingest_loop.h"'),
        ("daemon/core/wire/a.cpp", "// TO" + "DO: later"),
        ("libprobe/a.cpp", '#include "daemon/core/base/result.h"'),
        ("libprobe/a.cpp", "#include <fmt/core.h>"),
        ("libprobe/capture/a.cpp", "#include <torch/library.h>"),
        ("libprobe/capture/kernels/a.cuh", '#include "libprobe/capture/graph/capture_nodes.h"'),
        ("libprobe/capture/lane/a.cpp", '#include "libprobe/slots/slot_maker.h"'),
        ("libprobe/ring/a.h", '#include "libprobe/probe_table.h"'),
        ("libprobe/ring/a.h", "#include <cuda_runtime_api.h>"),
        ("proto/layout/a.h", '#include "daemon/core/base/result.h"'),
        ("daemon/sinks/a.h", "namespace cgdebug::ingest {"),
        ("daemon/sinks/a.h", "namespace cgdebug {"),
        ("daemon/record/a.h", "namespace cgdebug::record {"),
        ("python/src/a.cpp", '#include "libprobe/ring/segment/segment_view.h"'),
        ("python/cgdebug/recording.py", "from ._job import _native"),
        ("python/cgdebug/_read/a.py", "from .._job._native import load"),
        ("python/cgdebug/recording.py", "from ._op_log.rows import Row"),
        ("python/cgdebug/client.py", "if True:\n    import torch"),
        ("python/cgdebug/errors.py", "from .snapshot import Stats\nfrom .probe import step"),
        ("python/cgdebug/unheard_of.py", "import os"),
        ("python/cgdebug/_job/a.py", "import threading\nlock = threading.Lock()"),
    ],
)
def test_a_violation_is_found_and_named(tmp_path, path, text):
    result = run(tmp_path, path, text)
    assert result.returncode == 1
    assert result.stdout.startswith(path), result.stdout + result.stderr


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("client/cli/a.cpp", '#include "daemon/core/wire/frame.h"\n#include <CLI/CLI.hpp>'),
        ("client/live/a.cpp", '#include "proto/control.pb.h"\n#include "cgdebug/client.h"'),
        ("daemon/core/base/a.h", "// Atomic: set by a signal handler.\nstd::atomic<int> count;"),
        (
            "daemon/ingest/a.cpp",
            '#include "libprobe/ring/segment/segment_view.h"\n#include "proto/control.pb.h"',
        ),
        ("daemon/main.cpp", '#include "daemon/serve/control_server.h"\n#include <spdlog/spdlog.h>'),
        (
            "libprobe/capture/lane/a.cpp",
            '#include "libprobe/ring/slot_ring_writer.h"\n#include <cuda_runtime_api.h>',
        ),
        ("libprobe/torch/a.cpp", '#include <torch/library.h>\n#include "cgdebug/probe.h"'),
        ("client/analysis/check/a.h", "namespace cgdebug::analysis {"),
        ("client/cli/a.h", "namespace cgdebug::source {\n}\nnamespace cgdebug::cli::a {"),
        (
            "tests/unit/a_test.cpp",
            '#include "daemon/ingest/ingest_loop.h"\n#include <gtest/gtest.h>',
        ),
    ],
)
def test_what_the_layers_allow_is_not_a_finding(tmp_path, path, text):
    result = run(tmp_path, path, text)
    assert (result.returncode, result.stdout.count("\n")) == (0, 1), result.stdout


@pytest.mark.parametrize(
    ("path", "is_told"), [("daemon/serve/a.cpp", True), ("tests/unit/a_test.cpp", False)]
)
def test_a_long_file_is_pointed_out_and_no_finding(tmp_path, path, is_told):
    result = run(tmp_path, path, "x\n" * 400)
    assert result.returncode == 0
    assert (f"note: {path} has 401 lines" in result.stdout) == is_told, result.stdout


def test_a_folder_of_more_than_25_files_is_found(tmp_path):
    (tmp_path / "tools").mkdir()
    for number in range(25):
        (tmp_path / f"tools/{number}.md").touch()
    assert run(tmp_path, "tools/a/b.md", "").returncode == 0
    result = run(tmp_path, "tools/a.md", "")
    assert result.returncode == 1 and "tools: 26 files" in result.stdout


PACKAGE = ROOT / "python" / "cgdebug"
ROOMS = (".", "_job", "_read", "_shared")  # no two of their modules have one name


def imports_of(node):
    """The names that it imports from its own package when it runs, even inside functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.ImportFrom) and child.level > 0:
            base = (child.module or ".").split(".")[-1]
            yield from (one.name for one in child.names) if base in ("", *ROOMS) else [base]
        yield from imports_of(child)


def test_no_module_of_the_package_imports_itself_by_way_of_others():
    files = [path for room in ROOMS for path in (PACKAGE / room).glob("*.py")]
    modules = {path.stem: path for path in files if path.stem != "__init__"}
    assert len(modules) == len(files) - len(ROOMS)
    graph = {
        name: set(imports_of(ast.parse(path.read_text()))) & modules.keys()
        for name, path in modules.items()
    }
    assert "_columns" in graph["_series"]
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
