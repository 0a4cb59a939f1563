"""The regions that a thread is in: of cgdebug.annotate(), torch.profiler.record_function, NVTX."""

from __future__ import annotations

import contextlib
import functools
import threading
import typing

import torch

_ANNOTATE, _RECORD, _NVTX = "annotate", "record_function", "nvtx"


class _Thread(threading.local):
    def __init__(self):
        self.regions: list[tuple[str, str]] = []  # who entered it, its name


_thread = _Thread()
_is_followed = False


class annotate(contextlib.ContextDecorator):
    """Names a part of a program in the rows of op logs that are made inside it, as a context
    manager or as a decorator:

        with cgdebug.annotate("sampling"):
            tokens = sample(logits)          # row.region == "sampling"

    Regions that lie in others are "step/sampling". Rows of a backward pass have the region of their
    forward pass, unless another is entered around it. In code that torch.compile makes it does
    nothing.

    Thread: the one that enters it. Fails: TypeError for a name that is no text.
    """

    def __init__(self, name: str):
        if not isinstance(name, str) or not name:
            raise TypeError(f"cgdebug.annotate: a name is a text, not {name!r}")
        self.name = name

    def __enter__(self) -> annotate:
        if not torch.compiler.is_compiling():
            _push(_ANNOTATE, self.name)
        return self

    def __exit__(self, *exception) -> None:
        if not torch.compiler.is_compiling():
            _pop(_ANNOTATE)


def current() -> str:
    """ "step/forward"; empty: in none."""
    return "/".join(name for _, name in _thread.regions)


def follow() -> None:
    """From now on record_function and NVTX are seen. Stays for good; what is open is not seen."""
    global _is_followed
    if _is_followed:
        return
    _is_followed = True
    kind = torch.autograd.profiler.record_function
    _wrap(kind, "__enter__", lambda self: _push(_RECORD, self.name))
    _wrap(kind, "__exit__", lambda *_: _pop(_RECORD))
    nvtx = torch.cuda.nvtx
    _wrap(nvtx, "range_push", lambda message, *_: _push(_NVTX, message))
    _wrap(nvtx, "range_pop", lambda: _pop(_NVTX))


def _wrap(owner: typing.Any, name: str, tell: typing.Callable) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args, **kwargs):
        result = original(*args, **kwargs)
        if not torch.compiler.is_compiling():
            with contextlib.suppress(Exception):  # the job goes on
                tell(*args, **kwargs)
        return result

    setattr(owner, name, call)


def _push(owner: str, name: typing.Any) -> None:
    _thread.regions.append((owner, str(name)))


def _pop(owner: str) -> None:
    """Leaves the innermost region of that owner, if it was seen to be entered."""
    regions = _thread.regions
    for place in range(len(regions) - 1, -1, -1):
        if regions[place][0] == owner:
            del regions[place]
            return
