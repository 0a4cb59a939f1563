"""The probe API under the names that torch-cudagraph-debug gives it: those of its version 0.1,
which are those of ``cgdebug``, and those of 0.2."""

from __future__ import annotations

import importlib
import typing

__all__ = [
    "CheckAction",
    "CudaGraphTensorProbe",
    "PrintAction",
    "ProbeStatus",
    "RecordAction",
    "TensorCheckError",
    "TensorCheckStatus",
    "TensorCompare",
    "TensorCompareMismatchError",
    "TensorComparisonError",
    "TensorComparisonOptions",
    "TensorDebugError",
    "TensorNotComparedError",
    "TensorObservation",
    "TensorObservationComparison",
    "TensorObservationKey",
    "TensorPoint",
    "TensorPointComparison",
    "TensorPrint",
    "TensorProbe",
    "TensorProbeSnapshot",
    "TensorRecord",
    "TensorRecorder",
    "TensorRun",
    "TensorSnapshot",
    "TensorSnapshotComparison",
    "compare_points",
    "compare_snapshots",
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
    from .._job._tensor_probe import (
        CheckAction,
        PrintAction,
        RecordAction,
        TensorCheckError,
        TensorCheckStatus,
        TensorComparisonError,
        TensorComparisonOptions,
        TensorObservation,
        TensorObservationComparison,
        TensorObservationKey,
        TensorPoint,
        TensorPointComparison,
        TensorProbe,
        TensorProbeSnapshot,
        TensorRecorder,
        TensorRun,
        TensorSnapshotComparison,
        compare_points,
        compare_snapshots,
    )
    from . import postprocess


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: typing.Any = None
    if name == "postprocess":
        value = importlib.import_module(f"{__name__}.postprocess")
    else:
        value = getattr(importlib.import_module("cgdebug"), name, None)
        if value is None:  # of version 0.2
            value = getattr(importlib.import_module("cgdebug._job._tensor_probe"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
