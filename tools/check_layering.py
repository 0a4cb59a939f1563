#!/usr/bin/env python3
"""Checks the source tree against its layering: who may include whom, and a few habits.

Every include arrow points upstream along the data path. Prints a line for each finding and exits 1
on any. A long file is only pointed out. Another tree may be given as the only argument.
"""

import ast
import collections
import re
import sys
from pathlib import Path

ROOT = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
TEXT_SUFFIXES = {".py", ".pyi", ".sh", ".cmake", ".proto", ".txt", ".md", ""}
TOPS = ("proto", "libprobe", "daemon", "client", "python", "tests", "tools")
# Above this length, ask whether a file holds two things. Never cut a class in two for it; tests and
# schemas are exempt.
MANY_LINES = 400
# A folder with more has rooms that nobody has made yet.
MOST_FILES = 25

LAYOUT = ["proto/layout"]
ROOMS = ("answers", "base", "endpoint", "numerics", "ops", "recording", "replicas", "wire", "words")
CORE = [f"daemon/core/{room}" for room in ROOMS]
STAGE = LAYOUT + CORE + ["proto", "libprobe/ring", "daemon/model", "daemon/pipeline", "daemon/log"]
# The rooms of a probe's CUDA, in order: each may include those before it.
CAPTURE = ["libprobe/include", "libprobe/capture"] + [
    f"libprobe/capture/{room}" for room in ("kernels", "graph", "memory", "lane")
]
# Folder -> folders of ours that it may include, besides itself and what lies below it; the longest
# prefix wins. "proto" is the generated control.pb.h.
ALLOWED = {
    "proto/layout": [],
    "libprobe/launch": [],
    "libprobe/ring": LAYOUT,
    "libprobe/torch": LAYOUT + ["libprobe", "libprobe/include"],
    # One implementation of statistics, for the daemon and for tensors on the job's CPU; and of what
    # users type.
    "libprobe": LAYOUT
    + CAPTURE
    + ["libprobe/apart", "libprobe/launch", "libprobe/ring", "libprobe/slots"]
    + ["daemon/core/numerics", "daemon/core/words"],
    "libprobe/include": LAYOUT,
    "libprobe/apart": LAYOUT + CAPTURE[:4],
    "libprobe/capture": LAYOUT + CAPTURE[:1],
    "libprobe/capture/kernels": LAYOUT,
    "libprobe/capture/graph": LAYOUT + CAPTURE[:3] + ["libprobe/ring"],
    "libprobe/capture/memory": LAYOUT + CAPTURE[:4] + ["libprobe/ring"],
    "libprobe/capture/lane": LAYOUT + CAPTURE[:5] + ["libprobe/apart", "libprobe/ring"],
    "libprobe/slots": LAYOUT + CAPTURE + ["libprobe/ring", "daemon/core/words"],
    "daemon/core/answers": LAYOUT
    + ["daemon/core/base", "daemon/core/numerics", "daemon/core/ops", "daemon/core/recording"],
    "daemon/core/base": LAYOUT,
    "daemon/core/numerics": LAYOUT + ["daemon/core/base"],
    "daemon/core/options": ["daemon/core/base"],
    "daemon/core/recording": LAYOUT + ["daemon/core/base", "daemon/core/numerics"],
    "daemon/core/ops": LAYOUT + ["daemon/core/numerics"],
    "daemon/core/replicas": LAYOUT + ["daemon/core/numerics"],
    "daemon/core/endpoint": ["daemon/core/base", "libprobe/launch"],
    "daemon/core/wire": ["proto", "daemon/core/base", "daemon/core/endpoint"],
    "daemon/core/words": LAYOUT + ["daemon/core/base"],
    "daemon/log": ["daemon/core/base"],
    "daemon/model": LAYOUT
    + ["daemon/core/answers", "daemon/core/base", "daemon/core/numerics", "daemon/core/recording"]
    + ["libprobe/ring"],
    "daemon/pipeline": LAYOUT
    + ["daemon/core/base", "daemon/core/numerics", "libprobe/ring", "daemon/model"],
    "daemon/record": STAGE,
    "daemon/ingest": STAGE + ["daemon/record"],
    "daemon/sinks": STAGE + ["daemon/record"],
    "daemon/serve": STAGE + ["daemon/record"],
    "daemon/metrics": STAGE + ["daemon/record"],
    "daemon": STAGE
    + ["daemon/core/options", "daemon/record", "daemon/ingest", "daemon/sinks", "daemon/serve"]
    + ["daemon/metrics"],
    "client/source": LAYOUT
    + ["daemon/core/answers", "daemon/core/base", "daemon/core/numerics", "daemon/core/recording"],
    "client/analysis": LAYOUT
    + ["daemon/core/base", "daemon/core/numerics", "daemon/core/ops", "daemon/core/replicas"]
    + ["client/source"],
    "client/report": LAYOUT
    + ["daemon/core/base", "daemon/core/numerics", "daemon/core/ops", "daemon/core/replicas"]
    + ["client/source", "client/analysis"],
    "client": LAYOUT
    + CORE
    + ["daemon/core/options", "proto", "client/source", "client/analysis", "client/report"],
    "python/src": LAYOUT
    + [
        "libprobe",
        "libprobe/apart",
        "libprobe/capture",
        "libprobe/capture/graph",
        "libprobe/capture/lane",
        "libprobe/include",
        "libprobe/slots",
        "daemon/core/base",
        "daemon/core/endpoint",
        "daemon/core/numerics",
        "daemon/core/ops",
        "daemon/core/recording",
        "daemon/core/words",
        "client/source",
        "client/analysis",
        "client/report",
    ],
    "tools": LAYOUT + CORE + ["libprobe/ring"],
    "proto": [],
    "tests": [],  # and everything else
}

# Third-party header -> the only folders, besides tests, that may include it; "!" in front excludes
# one.
HOMES = {
    r"(torch|ATen|c10)/": ["libprobe/torch"],
    r"cuda": ["libprobe", "!libprobe/ring", "tools/bench"],
    r"google/protobuf/": ["daemon/core/wire", "daemon/serve", "client"],
    r"(fmt|spdlog)/": ["daemon", "client"],
    r"boost/asio": ["daemon/core/wire", "daemon/serve", "daemon", "client"],
    r"boost/beast": ["daemon/metrics", "client/cli"],
    r"prometheus/": ["daemon/metrics"],
    r"CLI/": ["daemon", "client/cli"],
    r"nlohmann/": ["client"],
    r"pybind11/": ["python/src", "tests/support/recording"],
    r"sqlite3": ["daemon/core/recording", "client/source"],
    r"xxhash": ["daemon/core/recording"],
    r"(gtest|gmock)/": [],
}
# The daemon's messages stop at client/live: the rest of client/ takes its structs, and the models of
# client/source. Views show, and ask nobody.
WIRE = re.compile(r"(proto/control\.pb|cgdebug/messages|client/live/messages)\.h$")
WIRE_FILES = ("client/include/", "client/live/")
CLIENT = re.compile(r"cgdebug/client\.h$")
VIEWS = "client/cli/views"
# Where the modules of python/cgdebug run: in the job, which has torch; in a reader of recordings, which
# may have neither torch nor a daemon; in a client of the daemon; or in all of them. When it is
# imported, a module loads only its own room and the rooms named here.
PYTHON = "python/cgdebug"
PYTHON_ROOMS = {
    "shared": "_remote _shared _version errors sharding snapshot status",
    "reader": "_read analyzing export postprocess recording tensor_debug testing",
    "live": "_wire client",
    "job": (
        "_at_start _doctor _job _op_log _rewind _watching "
        "actions integrations op_log probe pytest_plugin scalars watching"
    ),
    "door": "__init__ __main__",  # what starts the others
}
PYTHON_LOADS = {
    "shared": (),
    "reader": ("shared",),
    "live": ("shared",),
    "job": ("shared", "live", "door"),
    "door": ("shared", "job"),
}
# A namespace has the name of its folder, or of one above it: daemon/core/recording/files is in
# cgdebug::recording. These folders and files have another; "" is cgdebug itself.
NAMESPACES = {
    "client/analysis/json_number.h": "",
    "daemon": "",
    "daemon/core/base": "",
    "daemon/core/endpoint": "wire",
    "daemon/core/endpoint/daemon_mark": "",
    "daemon/core/endpoint/runtime_dir": "",
    "daemon/core/options": "",
    "daemon/log": "",
    "daemon/model": "pipeline",
    "daemon/record": "pipeline",
    "daemon/record/freeze": "pipeline",
    "libprobe": "",
    "libprobe/capture/graph/counted_graph.h": "",
    "libprobe/include/cgdebug": "",
    "libprobe/slots": "",
    "libprobe/slots/store": "",
    "libprobe/torch": "torch_op",
}
NAMESPACE = re.compile(r"^namespace cgdebug(?:::(\w+))?[\w:]* \{")
ATOMIC_FILES = (
    "libprobe/ring/",
    "libprobe/capture/",
    "libprobe/slots/current_step.",
    "libprobe/probe_table.",
    "daemon/ingest/",
    "client/cli/interrupt.",
    "tests/",
)
ATOMIC = re.compile(r"\bstd::atomic(_ref|_flag|_bool|_int)?\b|\b__atomic_\w+|\b__sync_\w+")
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
MARK = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def under(folder, prefix):
    return folder == prefix or folder.startswith(prefix + "/")


def rule_of(folder):
    matching = [prefix for prefix in ALLOWED if under(folder, prefix)]
    return max(matching, key=len) if matching else None


def owner_of(include):
    """The folder of ours that an include path names, or None for third-party headers."""
    if include.startswith("proto/") and include.endswith(".pb.h"):
        return "proto"
    if include == "cgdebug/probe.h":
        return "libprobe/include"
    if include == "cgdebug/client.h":
        return "client"
    parent = str(Path(include).parent)
    return parent if parent.split("/")[0] in TOPS else None


def may_include(rule, owner):
    target = rule_of(owner)
    return rule in ("tests", target) or target in ALLOWED[rule]


def at_home(folder, homes):
    return any(under(folder, home) for home in homes) and not any(
        under(folder, home[1:]) for home in homes if home.startswith("!")
    )


def check_source(path, relative, lines, findings):
    folder = str(Path(relative).parent)
    rule = rule_of(folder)
    for number, line in enumerate(lines, 1):
        where = f"{relative}:{number}"
        if ATOMIC.search(line) and not relative.startswith(ATOMIC_FILES):
            previous = lines[number - 2] if number > 1 else ""
            if "Atomic:" not in line and "Atomic:" not in previous:
                findings.append(
                    f"{where}: no atomics here; if one must be, a comment 'Atomic: ...' says why"
                )
        match = INCLUDE.match(line)
        if not match or rule is None:
            continue
        include = match.group(2)
        owner = owner_of(include)
        if owner is not None and not may_include(rule, owner):
            allowed = ", ".join(ALLOWED[rule]) or "the standard library only"
            findings.append(f"{where}: {rule} may not include {include}; it may include {allowed}")
        if owner is None and (path.parent / include).exists():
            findings.append(
                f'{where}: write "{folder}/{include}": includes start at the repository root'
            )
        if under(folder, "client") and WIRE.search(include) and not relative.startswith(WIRE_FILES):
            findings.append(
                f"{where}: {include} stops at client/live; take a struct of client/live"
            )
        if under(folder, VIEWS) and under(owner or "", "client/cli") and not under(owner, VIEWS):
            findings.append(
                f"{where}: a view is shown by others of client/cli; it may not include {include}"
            )
        if under(folder, VIEWS) and CLIENT.search(include):
            findings.append(f"{where}: a view takes what it shows; it does not ask with {include}")
        for pattern, homes in HOMES.items():
            if rule != "tests" and re.match(pattern, include) and not at_home(folder, homes):
                findings.append(
                    f"{where}: only {', '.join(homes) or 'tests'} may include {include}"
                )


def check_namespace(relative, lines, findings):
    """A file may open others besides, for what it declares of them."""
    opened = {match.group(1) or "" for line in lines if (match := NAMESPACE.match(line))}
    path = Path(relative)
    places = (relative, str(path.with_suffix("")), str(path.parent))
    named = [NAMESPACES[place] for place in places if place in NAMESPACES]
    wanted = named[:1] or path.parent.parts
    if opened and opened.isdisjoint(wanted):
        findings.append(
            f"{relative}: namespace cgdebug::{min(opened)} does not have the name of its folder; "
            "NAMESPACES of tools/check_layering.py names the exceptions"
        )


def python_room(module):
    """The room of a module of python/cgdebug, by the first part of its name."""
    first = module.split(".")[0]
    return next((room for room, names in PYTHON_ROOMS.items() if first in names.split()), None)


def loads(path, relative):
    """(line, module of ours or package of others) that the module imports when it is imported."""
    package = list(Path(relative).relative_to(PYTHON).parent.parts)
    pending = list(ast.parse(path.read_text(encoding="utf-8")).body)
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] + (node.module or "").split(".")
            for alias in node.names if base == [""] else node.names[:1]:
                yield node.lineno, ".".join([*filter(None, base), alias.name][:1])
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            pending += [] if is_for_types else list(ast.iter_child_nodes(node))


def check_python(path, relative, findings):
    own = python_room(Path(relative).relative_to(PYTHON).with_suffix("").parts[0])
    if own is None:
        findings.append(f"{relative}: PYTHON_ROOMS of tools/check_layering.py names no room for it")
        return
    if own not in ("shared", "reader", "live"):
        findings += [
            f"{relative}:{number}: a handler of a signal that comes while its thread has this lock "
            "waits for itself. Use threading.RLock"
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            if "threading.Lock(" in line
        ]
    for line, name in loads(path, relative):
        room = python_room(name) if name not in ("torch", "numpy") else None
        if room not in (None, own, *PYTHON_LOADS[own]):
            findings.append(f"{relative}:{line}: room {own} may not load {name}, of room {room}")
        if own in ("shared", "reader", "live") and name.split(".")[0] == "torch":
            findings.append(f"{relative}:{line}: room {own} may not load torch when it is imported")


def check_folders(findings):
    counts = collections.Counter(path.parent for path in source_files())
    findings += [
        f"{folder.relative_to(ROOT)}: {count} files; at most {MOST_FILES} may lie in a folder"
        for folder, count in sorted(counts.items())
        if count > MOST_FILES
    ]


def source_files():
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def main():
    findings, notes, count = [], [], 0
    for path in source_files():
        is_source = path.suffix in SUFFIXES
        if not is_source and path.suffix not in TEXT_SUFFIXES:
            continue
        relative = str(path.relative_to(ROOT))
        lines = path.read_text(encoding="utf-8").splitlines()
        count += 1
        if is_source and len(lines) > MANY_LINES and not relative.startswith("tests/"):
            notes.append(f"note: {relative} has {len(lines)} lines: does it hold two things?")
        if relative != "tools/check_layering.py":
            findings += [
                f"{relative}:{number}: unfinished mark"
                for number, line in enumerate(lines, 1)
                if MARK.search(line)
            ]
        if path.suffix == ".py" and under(relative, PYTHON):
            check_python(path, relative, findings)
        if is_source:
            check_source(path, relative, lines, findings)
            if not relative.startswith(("tests/", "tools/")):
                check_namespace(relative, lines, findings)
    check_folders(findings)
    print(
        "\n".join(findings + notes + [f"check_layering: {count} files, {len(findings)} findings"])
    )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
