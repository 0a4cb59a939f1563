"""Puts a page of cgdebug into torch's debug server (torch.distributed.debug)."""

from __future__ import annotations

import ctypes
import functools

from ._after_import import call_after_import

ENDPOINT = "cgdebug"


def install() -> None:
    """From now on `start_debug_server` has a page of cgdebug, and this rank answers it. Imports no
    torch."""
    call_after_import("torch.distributed.debug._handlers", _answer_requests)
    call_after_import("torch.distributed.debug._debug_handlers", _add_page)


def _answer_requests(module) -> None:
    register = getattr(module, "_register_handler", None)
    if register is not None:
        from ._debug_report import answer

        register(ENDPOINT, answer)
        # torch drops its handlers after the interpreter has ended, and aborts if that frees one.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(answer))


def _add_page(module) -> None:
    default = getattr(module, "default_handlers", None)
    if default is None:
        return

    @functools.wraps(default)
    def default_handlers():
        from ..integrations.torch_debug import Handler

        return [*default(), Handler()]

    module.default_handlers = default_handlers
