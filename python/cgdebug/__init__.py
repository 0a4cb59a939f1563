"""See the tensors inside a CUDA graph from outside the process.

    import cgdebug
    probe = cgdebug.CudaGraphTensorProbe("blk3.attn", [cgdebug.TensorRecord(capacity=16)])
    with torch.cuda.graph(graph):
        y = probe(model(x))         # returns the same tensor
    graph.replay()
    probe.records(synchronize=True)

In another terminal: ``cgdebug-cli tail -f``; in another process: ``cgdebug.connect()``.

Importing this package imports neither torch nor the native module; each name loads what it needs
when it is first used.
"""

from __future__ import annotations

import importlib
import os
import typing

from ._version import __version__

_HOMES = {
    "analyzing": ("analyze", "Analysis"),
    "probe": ("CudaGraphTensorProbe", "ProbeStatus", "SlotStatus", "graph_label", "step"),
    "actions": ("TensorPrint", "TensorRecord", "TensorCompare", "TensorStats"),
    "snapshot": ("TensorSnapshot", "Stats"),
    "errors": (
        "TensorDebugError",
        "TensorCompareMismatchError",
        "TensorNotComparedError",
        "FoundError",
        "NotCheckedError",
        "NativeExtensionUnavailableError",
        "DaemonError",
        "RecordingError",
    ),
    "sharding": ("TensorShard", "assemble"),
    "postprocess": ("drain_records", "export_records_to_tensorboard"),
    "watching": ("watch", "Watch", "WatchReport"),
    "_watching.rows": ("rows",),
    "op_log": ("debug_mode", "load_debug_mode", "OpLogDiff", "OpLogView", "OpRow"),
    "_op_log.extras": ("OpCall",),
    "_op_log.audit": ("audit", "Audit"),
    "_op_log.padding": ("valid_rows",),
    "_op_log.regions": ("annotate",),
    "client": ("connect", "Client"),
    "recording": ("open", "why", "Recording"),
    "scalars": ("log_to", "ScalarLog"),
    "_job._graph_memory": ("graph_memory", "GraphMemory", "MemoryBlock", "MemoryPool"),
    "_job._fail_on": ("check",),
    "_job._native": ("native_extension_available", "NativeExtension"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = (
    "actions",
    "analyzing",
    "client",
    "errors",
    "integrations",
    "op_log",
    "postprocess",
    "probe",
    "recording",
    "scalars",
    "sharding",
    "snapshot",
    "tensor_debug",
    "testing",
    "watching",
)

# Not `open`: a star import would hide the built-in one.
__all__ = [name for name in _HOME_OF if name != "open"]
__all__ += ["__version__", "tensor_debug"]


def load_ipython_extension(ipython) -> None:
    """For %load_ext cgdebug: %%cgdebug in front of a cell logs its ops and shows the first NaN."""
    from ._job import _magic

    _magic.load(ipython)


if typing.TYPE_CHECKING:  # "as": what the package exports, for type checkers
    from . import tensor_debug as tensor_debug
    from ._job._fail_on import check as check
    from ._job._graph_memory import GraphMemory as GraphMemory
    from ._job._graph_memory import MemoryBlock as MemoryBlock
    from ._job._graph_memory import MemoryPool as MemoryPool
    from ._job._graph_memory import graph_memory as graph_memory
    from ._job._native import NativeExtension as NativeExtension
    from ._job._native import native_extension_available as native_extension_available
    from ._op_log.audit import Audit as Audit
    from ._op_log.audit import audit as audit
    from ._op_log.extras import OpCall as OpCall
    from ._op_log.padding import valid_rows as valid_rows
    from ._op_log.regions import annotate as annotate
    from ._watching.rows import rows as rows
    from .actions import TensorCompare as TensorCompare
    from .actions import TensorPrint as TensorPrint
    from .actions import TensorRecord as TensorRecord
    from .actions import TensorStats as TensorStats
    from .analyzing import Analysis as Analysis
    from .analyzing import analyze as analyze
    from .client import Client as Client
    from .client import connect as connect
    from .errors import DaemonError as DaemonError
    from .errors import FoundError as FoundError
    from .errors import NativeExtensionUnavailableError as NativeExtensionUnavailableError
    from .errors import NotCheckedError as NotCheckedError
    from .errors import RecordingError as RecordingError
    from .errors import TensorCompareMismatchError as TensorCompareMismatchError
    from .errors import TensorDebugError as TensorDebugError
    from .errors import TensorNotComparedError as TensorNotComparedError
    from .op_log import OpLogDiff as OpLogDiff
    from .op_log import OpLogView as OpLogView
    from .op_log import OpRow as OpRow
    from .op_log import debug_mode as debug_mode
    from .op_log import load_debug_mode as load_debug_mode
    from .postprocess import drain_records as drain_records
    from .postprocess import export_records_to_tensorboard as export_records_to_tensorboard
    from .probe import CudaGraphTensorProbe as CudaGraphTensorProbe
    from .probe import ProbeStatus as ProbeStatus
    from .probe import SlotStatus as SlotStatus
    from .probe import graph_label as graph_label
    from .probe import step as step
    from .recording import Recording as Recording
    from .recording import open as open
    from .recording import why as why
    from .scalars import ScalarLog as ScalarLog
    from .scalars import log_to as log_to
    from .sharding import TensorShard as TensorShard
    from .sharding import assemble as assemble
    from .snapshot import Stats as Stats
    from .snapshot import TensorSnapshot as TensorSnapshot
    from .watching import Watch as Watch
    from .watching import WatchReport as WatchReport
    from .watching import watch as watch


def __getattr__(name: str):
    if name in _HOME_OF:
        try:
            home = importlib.import_module(f"{__name__}.{_HOME_OF[name]}")
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            problem = f"cgdebug.{name} needs torch, which is not installed: pip install torch"
            raise ModuleNotFoundError(problem, name="torch") from None
        value = getattr(home, name)
    elif name in _MODULES:
        value = importlib.import_module(f"{__name__}.{name}")
    elif name == "CudaGraphDebugError":  # as torch-cudagraph-debug 0.2 calls it
        value = importlib.import_module(f"{__name__}.errors").TensorDebugError
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__, *_MODULES, "open"})


if os.environ.get("CGDEBUG_CONFIG"):
    from ._job import _fail_soft
    from ._shared import _words

    with _fail_soft.guard("CGDEBUG_CONFIG"):
        _words.apply_config(os.environ["CGDEBUG_CONFIG"])

if os.environ.get("CGDEBUG_WATCH"):
    from ._job import _auto

    _auto.start()

from ._job import _debug_server  # noqa: E402
from ._job._after_import import call_after_import as _call_after_import  # noqa: E402
from ._shared import _old_name  # noqa: E402

if os.environ.get("CGDEBUG_LAUNCH_BLOCKING") or os.environ.get("CGDEBUG_RACES"):
    from ._job import _apart

    _call_after_import("torch", _apart.install)

if os.environ.get("CGDEBUG_ASK") or os.environ.get("CGDEBUG_REWIND"):
    from . import _rewind

    _call_after_import("torch", _rewind.install)

_debug_server.install()
_old_name.answer()


def _keep_names(compiler) -> None:
    """So that rows of op logs have the modules and lines of code that was compiled before."""
    importlib.import_module(f"{__name__}._op_log.compiled_names").wrap_compiler(compiler)


_call_after_import("torch._inductor.compile_fx", _keep_names)
