"""Where a probe is made or called, as in "train.py:32 in forward"."""

from __future__ import annotations

import functools
import linecache
import os
import sys
import threading
import types

_MAX_BYTES = 255
_MAX_CODE = 160  # characters
given = threading.local()  # .text: where the call is that this thread makes, if it is known
OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def of_call() -> str:
    """The line that calls a probe, for the native module, which asks while the call runs. Frames of
    cgdebug and of torch, such as those of a module's call and its hooks, are left out. Empty in
    code that torch.compile made: its lines are not the user's. `given` answers for the thread
    instead where it is set."""
    known = getattr(given, "text", None)
    if known is not None:
        return known
    return text_of(_first_foreign(sys._getframe(1), must_pass_own=True))


def of_caller() -> str:
    """The line outside of cgdebug that made the call."""
    return text_of(_first_foreign(sys._getframe(1)))


def stack(most: int = 4) -> str:
    """The lines outside of cgdebug and torch that led here, the innermost first, as in
    "serve.py:40 in capture < serve.py:12 in main". Cut to what a reader takes."""
    frame: types.FrameType | None = sys._getframe(1)
    lines: list[str] = []
    while len(lines) < most and (frame := _first_foreign(frame)) is not None:
        lines.append(text_of(frame))
        frame = frame.f_back
    return " < ".join(lines)


def callers_of(frame: types.FrameType, most: int) -> tuple[str, ...]:
    """The lines outside of cgdebug and torch that led to the call of `frame`, the innermost first,
    each with its code."""
    found: list[str] = []
    while len(found) < most and (frame := _first_foreign(frame.f_back)) is not None:
        code = code_at(frame.f_code.co_filename, frame.f_lineno)
        found.append(text_of(frame) + (f": {code}" if code else ""))
    return tuple(found)


@functools.lru_cache(maxsize=8192)
def code_at(file: str, line: int) -> str:
    """The text of a line, without what is around it; empty if the file cannot be read."""
    return linecache.getline(file, line).strip()[:_MAX_CODE]


def _first_foreign(frame, must_pass_own: bool = False):
    passed_own = not must_pass_own
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(OWN):
            passed_own = True
        elif not name.startswith(_torch_folder()) and not _is_of_inductor(frame):
            break
        frame = frame.f_back
    return frame if passed_own else None


def _is_of_inductor(frame) -> bool:
    """Whether it runs a file that Inductor wrote."""
    return str(frame.f_globals.get("__name__", "")).startswith("torch._inductor.")


def _torch_folder() -> str:
    torch = sys.modules.get("torch")
    if torch is None or torch.__file__ is None:
        return OWN
    return os.path.dirname(torch.__file__) + os.sep


def is_of_library(file: str) -> bool:
    """Whether it is a file of cgdebug or torch, or none at all."""
    return file.startswith((OWN, _torch_folder())) or is_generated(file)


def is_generated(file: str) -> bool:
    """Whether it is no file, nor a cell of a notebook, whose file may not exist either."""
    return file.startswith("<") and not _cell(file)


def text_of(frame) -> str:
    if frame is None:
        return ""
    return text_at(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def text_at(file: str, line: int, function: str) -> str:
    where = "" if function.startswith("<") else f" in {function}"
    text = f"{_cell(file) or _short(file)}:{line}{where}"
    return text.encode(errors="replace")[-_MAX_BYTES:].decode(errors="ignore")


def _cell(path: str) -> str:
    """In[2], of the code of a notebook's cell, whose file is a name that IPython made up."""
    ipython = sys.modules.get("IPython")
    if ipython is None:
        return ""
    try:
        return ipython.get_ipython().compile.format_code_name(path)[1]
    except Exception:  # no notebook, no cell, or an IPython that does not say it
        return ""


@functools.lru_cache(maxsize=1024)
def _short(path: str) -> str:
    """The path inside the folder that it is imported or run from; otherwise the file's name."""
    folders = [
        folder for folder in (*sys.path, os.path.dirname(os.path.abspath(sys.argv[0]))) if folder
    ]
    inside = [folder for folder in folders if path.startswith(folder.rstrip(os.sep) + os.sep)]
    if not inside:
        return os.path.basename(path)
    return path[len(max(inside, key=len).rstrip(os.sep)) + 1 :]
