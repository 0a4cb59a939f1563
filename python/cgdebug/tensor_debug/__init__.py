"""The probe API under the name that torch-cudagraph-debug gives it; see ``cgdebug``."""

from __future__ import annotations

import importlib
import typing

__all__ = [
    "CudaGraphTensorProbe",
    "ProbeStatus",
    "TensorCompare",
    "TensorCompareMismatchError",
    "TensorDebugError",
    "TensorNotComparedError",
    "TensorPrint",
    "TensorRecord",
    "TensorSnapshot",
    "drain_records",
    "export_records_to_tensorboard",
    "native_extension_available",
    "postprocess",
]

if typing.TYPE_CHECKING:
    from .. import (
        CudaGraphTensorProbe,
        ProbeStatus,
        TensorCompare,
        TensorCompareMismatchError,
        TensorDebugError,
        TensorNotComparedError,
        TensorPrint,
        TensorRecord,
        TensorSnapshot,
        drain_records,
        export_records_to_tensorboard,
        native_extension_available,
    )
    from . import postprocess


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "postprocess":
        value = importlib.import_module(f"{__name__}.postprocess")
    else:
        value = getattr(importlib.import_module("cgdebug"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
