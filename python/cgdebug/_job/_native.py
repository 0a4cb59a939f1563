"""Loads the native parts when a probe first needs them, and says clearly why they do not load."""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import os
import pathlib
import sys
import threading
import time
import types
import typing
import warnings
from multiprocessing import util

from .._shared import _site, _words
from .._shared._reader import INSTALL, recording_module
from .._version import OP_TORCH
from ..errors import NativeExtensionUnavailableError
from . import _graphs

OP_LIBRARY = pathlib.Path(__file__).parents[1] / "lib" / "libcgdebug_torch.so"
_FINISH_TIMEOUT_S = 2.0
_NEWER_TORCH = f"pip install 'torch>={OP_TORCH}'"

# A handler of a signal may come while its thread has the lock.
_lock = threading.RLock()
_is_loading = False
_op_loaded = False
_when_op_loads: list[typing.Callable[[], None]] = []
_op_library = None
_ops: typing.Any = None  # kept: when it goes, torch forgets what it has registered
_dtensor_known = False
_step: int | None = None
_graph_label = ("", False)  # text, scoped: until the native module is loaded
_handed_over = False  # whether the native module has been given both
# The process whose exit waits for the daemon: a forked child has its own segment.
_finish_in_pid = 0
_daemon_asked_in_pid = 0
_daemon_problem = ""  # why start_daemon() failed, empty when it did not


@dataclasses.dataclass(frozen=True)
class NativeExtension:
    """Truthy when probes work here; otherwise `reason` says why not and what to type."""

    available: bool
    reason: str = ""
    problem: str = ""  # of `reason`, what it says before `fix`, which says what to type
    fix: str = ""

    def __bool__(self) -> bool:
        return self.available

    def __str__(self) -> str:
        return "available" if self.available else self.reason


def native_extension_available() -> NativeExtension:
    """Whether the native module and the torch op library load in this process. Imports torch."""
    try:
        load()
    except NativeExtensionUnavailableError as error:
        return NativeExtension(False, str(error), error.problem, error.fix)
    return NativeExtension(True)


def load():
    """The native module, with the torch op registered.

    Fails: NativeExtensionUnavailableError; also in a signal's handler that has interrupted the
    first call.
    """
    global _is_loading
    with _lock:
        if _is_loading:
            raise NativeExtensionUnavailableError(
                "cgdebug is being loaded by what this handler interrupts.", "Call it again later"
            )
        _is_loading = not _op_loaded
        try:
            probe = _load_module()
            _load_op()
            _graphs.watch(probe)
        finally:
            _is_loading = False
        return probe


def know_dtensor() -> None:
    """Makes the ops see a DTensor's local part. Called again and again, because DTensor may be
    imported after the ops were loaded, and this does not import it. A compiler calls it while it
    traces."""
    global _dtensor_known
    distributed = sys.modules.get("torch.distributed.tensor")
    if _dtensor_known or distributed is None:
        return
    import torch

    for op in ("cgdebug::observe", "cgdebug::observe_at", "cgdebug::prepare"):
        torch.library.register_torch_dispatch(op, distributed.DTensor, _observe_dtensor)
    _dtensor_known = True


def is_selected(name: str) -> bool:
    """Whether CGDEBUG_PROBES leaves this probe switched on: globs as everywhere, with commas
    between them. Unset or empty means every probe."""
    patterns = _words.setting("CGDEBUG_PROBES")
    return not patterns or recording_module().is_selected(name, patterns)


def probe_module():
    """The native module when a probe has loaded it, else None."""
    return sys.modules.get("cgdebug._probe")


def current_step() -> int | None:
    """As set_step() was told."""
    return _step


def set_step(step: int | None, stream: int | None) -> None:
    """Remembers the step until the native module is loaded. `stream`: the cudaStream_t that replays
    are launched on."""
    global _step
    _step = step
    if probe_module() is not None:
        probe_module().set_step(step, stream)


def graph_label() -> str:
    """What a graph whose capture begins now is called."""
    label, scoped = set_graph_label("", False)
    set_graph_label(label, scoped)
    return label


def set_graph_label(label: str, scoped: bool) -> tuple[str, bool]:
    """Remembers the label until the native module is loaded; returns what was set before."""
    global _graph_label
    if probe_module() is not None:
        return probe_module().set_graph_label(label, scoped)
    before, _graph_label = _graph_label, (label, scoped)
    return before


def start_daemon() -> None:
    """Starts the daemon once per process, unless CGDEBUG=0. A failure is a warning, because the job
    goes on; `assert_ok` and `status` then say that nothing was compared."""
    global _daemon_asked_in_pid, _daemon_problem
    if _words.setting("CGDEBUG") == "0":
        return
    with _lock:
        if _daemon_asked_in_pid == os.getpid():
            return
        _daemon_asked_in_pid = os.getpid()
    try:
        probe_module().start_daemon()
        _daemon_problem = ""
    except RuntimeError as error:
        _daemon_problem = str(error)
        warnings.warn(
            f"cgdebug: nothing will be printed or compared: {error}", RuntimeWarning, stacklevel=4
        )


def not_seen(name: str, reason: str) -> None:
    """Counts a call of the place `name` that nobody looks at, so that no verdict takes it for
    checked. Never raises."""
    probe = probe_module()
    if probe is not None:
        probe.count_refused(name, reason, is_capturing())


def not_wanted(name: str) -> None:
    """Nobody wants to look at that place any longer. Never raises."""
    probe = probe_module()
    if probe is not None:
        probe.not_wanted(name)


def is_capturing() -> bool:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and cuda.is_initialized() and cuda.is_current_stream_capturing()


def daemon_problem() -> str:
    """Why this process has started no daemon, or "". Another may run nevertheless."""
    if _words.setting("CGDEBUG") == "0":
        return "CGDEBUG=0 keeps the daemon from being started"
    return _daemon_problem


def finish_at_exit() -> None:
    """At exit, waits a while for the daemon to print and compare the rest, and says how to see
    it."""
    global _finish_in_pid
    if _finish_in_pid == 0:
        atexit.register(_finish)
        util.register_after_fork(_finish, _finish_in_worker)
    _finish_in_pid = os.getpid()


def _finish_in_worker(_) -> None:
    """A worker of multiprocessing, such as a DataLoader's, ends without atexit, and would leave the
    segment of its probes behind."""
    util.Finalize(None, lambda: probe_module().finish(_FINISH_TIMEOUT_S), exitpriority=0)


def _finish() -> None:
    if _finish_in_pid != os.getpid():
        return
    _wait_for_gpu(_FINISH_TIMEOUT_S)
    last_line = probe_module().finish(_FINISH_TIMEOUT_S)
    if last_line and sys.stderr is not None:
        print(last_line, file=sys.stderr)


def _wait_for_gpu(timeout_s: float) -> None:
    """Lets replays print that were launched but not waited for. Polls, because synchronizing a hung
    GPU never returns."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    deadline = time.monotonic() + timeout_s
    try:
        streams = {torch.cuda.current_stream(), torch.cuda.default_stream()}
        while time.monotonic() < deadline and not all(stream.query() for stream in streams):
            time.sleep(0.001)
    except RuntimeError:  # a broken context; torch says so itself
        pass


def _load_module():
    global _handed_over
    try:
        from .. import _probe
    except ImportError as error:
        raise NativeExtensionUnavailableError(
            f"cgdebug's native module does not load: {error}.", INSTALL
        ) from error
    if not _handed_over:
        _handed_over = True
        _probe.set_site_provider(_site.of_call)
        if _step is not None:
            _probe.set_step(_step, None)
        if _graph_label[0]:
            _probe.set_graph_label(*_graph_label)
    return _probe


def _load_op() -> None:
    global _op_loaded, _op_library
    if _op_loaded:
        return
    try:
        import torch
    except ImportError as error:
        raise NativeExtensionUnavailableError(
            f"probes need torch, which does not import: {error}.", "pip install torch"
        ) from error
    if not OP_LIBRARY.exists():
        raise NativeExtensionUnavailableError(
            f"cgdebug was built without its torch op: {OP_LIBRARY} is missing.", INSTALL
        )
    try:
        _check_torch(torch.__version__)
        torch.ops.load_library(str(OP_LIBRARY))
    except OSError as error:
        raise NativeExtensionUnavailableError(
            f"cgdebug's torch op does not load into torch {torch.__version__}: {error}.",
            _NEWER_TORCH,
        ) from error
    _op_library = ctypes.CDLL(str(OP_LIBRARY))
    _complete_ops()
    _leave_out_of_branches()
    _op_loaded = True
    for action in _when_op_loads:
        action()


def _check_torch(version: str) -> None:
    """Fails: OSError if this torch is too old. Some of the op's functions may be there
    nevertheless, and the library then loads and fails later."""
    have, wanted = (
        tuple(int(part) for part in text.split(".")[:2]) for text in (version, OP_TORCH)
    )
    if have < wanted:
        raise OSError(f"cgdebug needs torch {OP_TORCH} or later")


def op_refused() -> bool:
    """Whether the last failure of the op on this thread was the caller's mistake."""
    return _op_library is not None and bool(_op_library.cgdebug_op_refused())


def op_library() -> ctypes.CDLL:
    """Requires: load()."""
    return typing.cast(ctypes.CDLL, _op_library)


def when_op_loads(action: typing.Callable[[], None]) -> None:
    """Calls action() once: now if the op was loaded, else when it is."""
    _when_op_loads.append(action)
    if _op_loaded:
        action()


def take_notes(take_note: typing.Callable[[typing.Any, str], None]) -> None:
    """What the op `note_at` does: says why compiled code does not look at a tensor; `tag` names the
    place. Requires: load()."""
    for key in ("CPU", "CUDA"):
        _ops.impl("note_at", take_note, key)


def _complete_ops() -> None:
    """A probe is not part of the gradient: autograd has nothing to do for it."""
    global _ops
    import torch

    _ops = torch.library.Library("cgdebug", "FRAGMENT")
    _ops.define("note_at(Tensor tag, str problem) -> ()")
    _ops.impl("note_at", lambda tag, problem: None, "Meta")
    for op in ("observe", "observe_at", "note_at", "prepare"):
        _ops.impl(op, torch.library.fallthrough_kernel, "Autograd")


def _leave_out_of_branches() -> None:
    """When AOTAutograd traces a body of torch.cond or of a loop, torch loses the op's effect: it
    drops the op without a word, or fails to compile. So the op is left out there, with a warning.
    What runs eagerly keeps it."""
    import torch
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    for op in ("observe", "observe_at", "note_at"):
        torch.library.register_torch_dispatch(
            f"cgdebug::{op}", FunctionalTensorMode, _observe_functional
        )


# What of torch has bodies in which it keeps no probes.
WITH_BODIES = ("cond", "switch", "while_loop", "map", "scan", "associative_scan")
OF_REGIONS = "invoke_subgraph"
_TRACES_BODIES = {
    **{f"torch._higher_order_ops.{name}": f"torch.{name}" for name in WITH_BODIES},
    f"torch._higher_order_ops.{OF_REGIONS}": "torch.compiler.nested_compile_region",
}


def _observe_functional(mode, op, classes, args=(), kwargs=None):
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        branch = _TRACES_BODIES.get(frame.f_globals.get("__name__", ""))
        if branch is not None:
            probe = args[1].partition(":")[2] if op.name() == "cgdebug::observe" else ""
            name = f"probe {probe!r}" if probe else "a probe"
            why = f"it lies in a body of {branch}, where torch keeps no probes"
            not_seen(probe or name, why)
            warnings.warn(
                f"cgdebug: {name} sees nothing in compiled code: {why}. Call it on what goes "
                "into the body or comes out of it",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        frame = frame.f_back
    return mode.__torch_dispatch__(op, classes, args, kwargs or {})


def _observe_dtensor(_, op, types, args, kwargs) -> None:
    from ..sharding import TensorShard

    tensor = args[0]
    place = args[1:2]
    if op.name() == "cgdebug::observe_at":  # the dispatcher leaves out a path that is the default
        place += args[2:3] or ("",)
    shard = TensorShard.of(tensor)
    if shard is not None:  # else this rank has no part of it
        op(tensor._local_tensor, *place, str(shard))
