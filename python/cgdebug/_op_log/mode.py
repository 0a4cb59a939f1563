"""What the modes of op logs have in common."""

from __future__ import annotations

import functools

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .._job._after_import import call_after_import


class Mode(TorchDispatchMode):
    """Dynamo compiles nothing of what it does. Torch sees to that by importing Dynamo at the first
    op: that takes as long as the rest of torch, and keeps the frames of that moment, and so the
    model that runs, until Python's collector comes. Here it waits until somebody else imports it.
    """

    supports_higher_order_operators = True

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        call_after_import("torch._dynamo", functools.partial(_make_no_frame_of, cls))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # else compiled code runs eagerly, even after this mode has ended


def _make_no_frame_of(cls: type[Mode], _dynamo) -> None:
    dispatch = cls.__dict__["__torch_dispatch__"]
    cls.__torch_dispatch__ = torch._disable_dynamo(dispatch, recursive=True)
