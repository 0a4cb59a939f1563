"""What `cgdebug-cli doctor` asks Python: a JSON object a line, with name, level, text, fix."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import platform
import sys
import urllib.request


def _python() -> dict:
    from . import __version__

    text = f"{platform.python_version()} ({sys.executable}), cgdebug {__version__}"
    return {"name": "python", "level": "OK", "text": text, "fix": ""}


def _package(name: str, module: str, needed_for: str, is_needed: bool = True) -> dict:
    try:
        found = importlib.import_module(module)
    except Exception as error:  # a package that is there and does not load
        missing = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        why = "not installed" if missing else f"does not load: {type(error).__name__}: {error}"
        return {
            "name": name,
            "level": "WARN" if is_needed else "OK",
            "text": f"{why.splitlines()[0]}; {needed_for} it",
            "fix": f"pip install {name}" if is_needed else "",
        }
    version = getattr(found, "__version__", "no version")
    return {"name": name, "level": "OK", "text": str(version), "fix": ""}


def _op() -> dict:
    from ._job import _native

    loaded = _native.native_extension_available()
    if loaded:
        return {"name": "torch op", "level": "OK", "text": "loads", "fix": ""}
    return {"name": "torch op", "level": "FAIL", "text": loaded.problem, "fix": loaded.fix}


def _gpu() -> dict:
    import torch

    check = {"name": "torch and GPU", "level": "OK", "fix": ""}
    if torch.version.cuda is None:
        return check | {"text": "this torch is built without CUDA: probes see eager tensors only"}
    try:
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    except Exception as error:
        reason = str(error).partition("\n")[0]
        return check | {"level": "WARN", "text": f"CUDA {torch.version.cuda}, no GPU: {reason}"}
    return check | {"text": f"CUDA {torch.version.cuda}, {', '.join(names) or 'no GPU here'}"}


def _metrics() -> dict:
    check = {"name": "metrics", "level": "OK", "fix": ""}
    where = os.environ.get("CGDEBUG_METRICS_LISTEN")
    if not where:
        return check | {"text": "none; CGDEBUG_METRICS_LISTEN=HOST:PORT asks for them"}
    if where.endswith(":0"):
        return check | {"text": f"{where}: cgdebug-cli daemon logs names the port"}
    try:
        with urllib.request.urlopen(f"http://{where}/metrics", timeout=3) as answer:
            is_ours = b"cgdebug_" in answer.read()
        why = "something else answers there"
    except (OSError, ValueError) as error:
        is_ours, why = False, str(error)
    if is_ours:
        return check | {"text": f"http://{where}/metrics"}
    text = f"none at {where}: {why}. No daemon runs, or it could not use this port"
    return check | {"level": "WARN", "text": text, "fix": "cgdebug-cli daemon logs"}


def _completion() -> dict:
    check = {"name": "completion", "level": "OK", "fix": ""}
    for folder in (sys.prefix, pathlib.Path("~/.local").expanduser(), "/usr/local", "/usr"):
        script = pathlib.Path(folder, "share/bash-completion/completions/cgdebug-cli")
        if script.exists():
            return check | {"text": f"bash: {script}"}
    fix = "source <(cgdebug-cli completion bash)"
    return check | {"level": "WARN", "text": "no script for bash is installed", "fix": fix}


def main() -> None:
    checks = [
        _metrics(),
        _completion(),
        _python(),
        _package("numpy", "numpy", "recordings and values need"),
        _package("protobuf", "google.protobuf", "cgdebug.connect() needs"),
        _package("torch", "torch", "probes and watches need"),
    ]
    if checks[-1]["level"] == "OK":
        checks += [_op(), _gpu()]
    for check in checks:
        print(json.dumps(check), flush=True)


if __name__ == "__main__":
    main()
