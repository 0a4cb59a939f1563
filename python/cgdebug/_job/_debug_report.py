"""What a rank answers to torch's debug server: what cgdebug-cli says about its probes."""

from __future__ import annotations

import json
import os
import subprocess
import traceback
import typing

from ..__main__ import find_program
from . import _native

_TIMEOUT_S = 20
_COMMANDS = ("check", "where", "status")


def answer(request, response) -> None:
    """An exception here would end in torch's server, which has no place for its text."""
    try:
        response.set_content(json.dumps(report()), "application/json")
        response.set_status(200)
    except Exception:
        response.set_content(traceback.format_exc(), "text/plain")
        response.set_status(500)


def report() -> dict[str, typing.Any]:
    """Asks the daemon alone, so a replay that hangs is no obstacle."""
    module = _native.probe_module()
    session = module and module.session()
    if not session:
        return {"job": "", "sections": [], "text": "no probe of cgdebug in this process"}
    program = find_program()
    if program is None:
        return {"job": "", "sections": [], "text": "cgdebug-cli is not beside this Python"}
    job = session["uuid"][:8]
    sections = [_run(program, command, job) for command in _COMMANDS]
    return {"job": job, "sections": sections, "text": ""}


def _run(program: str, command: str, job: str) -> dict[str, typing.Any]:
    typed = f"cgdebug-cli {command} {job}"
    try:
        done = subprocess.run(
            [program, command, job],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C", "COLUMNS": "120"},
        )
    except subprocess.TimeoutExpired:
        return {"command": typed, "exit_code": 5, "output": f"no answer in {_TIMEOUT_S} s"}
    return {"command": typed, "exit_code": done.returncode, "output": done.stdout}
