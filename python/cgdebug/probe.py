"""CudaGraphTensorProbe: shows a tensor of a captured graph outside the process."""

from __future__ import annotations

import sys
import typing
import warnings
import weakref

import torch

from . import actions as _actions
from ._job import _accepted, _fail_on, _fail_soft, _native, _tags
from ._job import _verdict as verdict
from ._shared import _site, _torch_logs
from ._shared._answers import kept_snapshot
from .errors import FoundError, NotCheckedError, TensorNotComparedError
from .snapshot import TensorSnapshot
from .status import ProbeStatus, SlotStatus

if typing.TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

__all__ = ["CudaGraphTensorProbe", "ProbeStatus", "SlotStatus", "graph_label", "step"]

_MAX_STEP = 2**63 - 1
_MAX_LAST = 2**31 - 1  # more than any ring has
_MAX_GRAPH_LABEL_BYTES = 63
_VERDICT_TIMEOUT_S = 10.0


class CudaGraphTensorProbe:
    """Looks at every tensor that passes `probe(tensor)` and returns that same tensor object.

    name:           what the tensor is called everywhere; at most 255 bytes of UTF-8 without line
                    ends and * ? @ # : { }, which selectors use, nor with a ! in front. Two probes
                    that live at the same time should not share one.
    actions:        any of TensorPrint, TensorRecord, TensorCompare, TensorStats, one of each at
                    most. If none is enabled, the probe does nothing and the native module is never
                    loaded.
    mode:           "capture" acts in calls that are being captured into a CUDA graph and touches
                    nothing in others, such as warm-ups; "always" acts in eager calls too, on CUDA
                    and CPU. On CUDA the first of these, and any that needs more pinned memory than
                    is reserved, may wait for the GPU: make the first one before a stream waits
                    for something that this thread does only later.
    non_contiguous: "error" refuses such tensors, "copy" packs them first.
    lane:           how snapshots leave a graph. "direct": a kernel on a side branch writes them
                    into shared memory; launching the graph costs the CPU a few microseconds
                    whatever the number of probes.
                    "callback": the copy engine and a host callback, which works everywhere. "auto"
                    is direct where the device and the limits allow it; `status().lane_note` says
                    why not.
    stable:         True promises that from `probe(tensor)` on nothing writes the tensor's memory
                    until the replay of the graph ends, and nothing on another stream does, either.
                    That holds for parameters, buffers and inputs that the graph only reads, if they
                    live as long as the graph. In the direct lane such a tensor is not copied first,
                    so that the probe takes next to no time of the kernels of the job; `status()`
                    says "not staged". If the promise is broken, the values shown are wrong, and
                    nothing can tell. An activation is no such tensor: the graph uses its memory
                    again.
    enabled:        False is the same as disabling every action.

    One probe may be called many times in a capture (`invocation_index` tells the calls apart) and
    used in several captures. Of a DTensor it sees this rank's part, which `TensorSnapshot.shard`
    describes and `cgdebug.assemble` puts together with the others. Probe and graphs may be closed
    or garbage-collected in any order; a graph whose probe is gone replays without it. A copy, also
    one that was pickled, is the live probe of that name; if there is none, it sees nothing.
    Dtypes: bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64,
    float8_e4m3fn, float8_e5m2, uint16, float8_e4m3fnuz, float8_e5m2fnuz, float8_e8m0fnu,
    float4_e2m1fn_x2.
    An element of float4_e2m1fn_x2 is a byte of two values: shapes count bytes, as torch's do, and
    statistics and comparisons count values.

    CGDEBUG_PROBES="blk3.*,!*.grad" switches off the probes it does not name; CGDEBUG=0 starts no
    daemon.

    Thread: from any thread; calls of one probe from one thread at a time.
    Fails:  ValueError for a bad argument; NativeExtensionUnavailableError; RuntimeError when shared
            memory cannot be set up. A call raises for a tensor that cannot be probed.
    """

    def __init__(
        self,
        name: str,
        actions: typing.Iterable[_actions.Action],
        mode: typing.Literal["capture", "always"] = "capture",
        non_contiguous: typing.Literal["error", "copy"] = "error",
        *,
        lane: typing.Literal["auto", "callback", "direct"] = "auto",
        stable: bool = False,
        enabled: bool = True,
    ):
        # Set first: close() must work after a constructor that raised.
        self._native: typing.Any = None  # a _probe.NativeProbe when active
        _accepted.check_name(name)
        _check_choice("mode", mode, ("capture", "always"))
        _check_choice("non_contiguous", non_contiguous, ("error", "copy"))
        _check_choice("lane", lane, ("auto", "callback", "direct"))
        _check_choice("stable", stable, (True, False))
        _check_choice("enabled", enabled, (True, False))
        self._name = name
        self._mode = mode
        self._actions = _actions.enabled_actions(actions)
        self._active = bool(enabled and self._actions and _native.is_selected(name))
        self._capture_only = mode == "capture"
        self._site_key = ""
        self._is_armed = False
        if self._active:
            self._site = _site.of_caller()
            self._warn_of_twin()
            self._create_native(
                copy_non_contiguous=non_contiguous == "copy",
                site=self._site,
                lane=lane,
                stable=bool(stable),
            )
            _live[name] = self

    def _warn_of_twin(self) -> None:
        twin = living(self._name)
        if twin is not None:
            warnings.warn(
                f"cgdebug: two probes that are both alive are called {self._name!r} ({twin._site} "
                f"and {self._site}): they are shown as calls of one. Give each a name of its own, "
                f"or close() the first",
                RuntimeWarning,
                stacklevel=3,
            )

    def _warn_of_trigger(self) -> None:
        """In the first capture, and once for all probes of which the same is true."""
        self._is_armed = False
        note = self._native.status()["trigger_note"]
        if note is None or note in _told_notes:
            return
        _told_notes.add(note)
        warnings.warn(f"cgdebug: probe {self._name!r}: {note}", RuntimeWarning, stacklevel=3)

    def _create_native(self, **options) -> None:
        module = _native.load()
        self._native = module.NativeProbe(
            self._name,
            mode=self._mode,
            **options,
            **_actions.native_options(self._actions),
        )
        self._site_key = self._native.site_key
        self._make_tag()
        self._is_armed = _actions.is_armed(self._actions)
        _native.finish_at_exit()
        if _actions.needs_daemon(self._actions):
            _native.start_daemon()

    def _make_tag(self) -> None:
        """For compiled code that calls this probe."""
        self._tag = _tags.Tag(self)

    def __reduce__(self):
        return _called, (self._name, self._mode, self._active)

    @property
    def name(self) -> str:
        return self._name

    # --- looking at tensors -----------------------------------------------------------------------

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        # Dynamo traces this: no side effect here but the op.
        if not self._active:
            return tensor
        if torch.compiler.is_compiling():
            if _tags.needs_name():
                torch.ops.cgdebug.observe(tensor, self._site_key)
            else:
                _tags.observe(tensor, self._tag, "")
            return tensor
        if self._capture_only and not _is_capturing():
            return tensor
        self._run(torch.ops.cgdebug.observe, tensor)
        if self._is_armed and _is_capturing():
            self._warn_of_trigger()
        return tensor

    def _run(self, op, tensor: torch.Tensor) -> None:
        _accepted.check_tensor(self._name, tensor)
        if type(tensor) is not torch.Tensor:
            _native.know_dtensor()
        try:
            with _torch_logs.marked(f"probe {self._name}"):
                op(tensor, self._site_key)
        except RuntimeError as error:
            refusal = _accepted.refusal_of(self._name, tensor, error)
            if refusal is None:
                raise
            raise refusal from None

    def attach_grad(self, tensor: torch.Tensor, strict: bool = False, return_handle: bool = False):
        """Looks at the gradient of `tensor` when backward computes it; the gradient is not changed.

        A tensor that does not require grad is left alone, or with `strict` raises RuntimeError.
        Returns `tensor`, or with `return_handle` (tensor, handle): `handle.remove()` ends it, and
        handle is None when nothing was attached.
        """
        handle: RemovableHandle | None = None
        if self._active:
            if tensor.requires_grad:
                handle = tensor.register_hook(self._look_at_grad)
            elif strict:
                raise RuntimeError(
                    f"probe {self._name!r}: the tensor does not require grad, so no "
                    f"gradient will pass; call requires_grad_() or use strict=False"
                )
        return (tensor, handle) if return_handle else tensor

    def _look_at_grad(self, grad: torch.Tensor) -> None:
        if torch.compiler.is_compiling():
            self(grad)
            return
        try:
            self(grad)
        except (FoundError, NotCheckedError):
            raise
        except Exception as error:  # backward goes on
            _fail_soft.say_once(f"{self._name} (a gradient)", str(error))
            self.note(str(error))

    def prepare(self, tensor: torch.Tensor) -> None:
        """Allocates for one later capture of a tensor like this, so that the capture does not."""
        if self._native is None:
            return
        self._run(torch.ops.cgdebug.prepare, tensor)

    def sight_of(self, _path: str) -> tuple[str, str]:
        return self._site_key, ""

    def note(self, problem: str) -> None:
        _native.not_seen(self._name, problem)

    # --- reading ----------------------------------------------------------------------------------

    def records(
        self, *, synchronize: bool = False, last: int | None = None
    ) -> list[TensorSnapshot]:
        """The newest snapshots that TensorRecord kept, oldest first; empty without a TensorRecord.

        Reads the process's own shared memory: no daemon is needed. Replays that are still running
        are not included unless `synchronize` waits for them. `last` limits the number.
        """
        if last is not None:
            last = _actions.whole_number("records: last", last)
            if last < 0:
                raise ValueError(f"records: last must be at least 0 or None, not {last}")
            last = min(last, _MAX_LAST)
        if self._native is None or "record" not in self._actions:
            return []
        if synchronize:
            _wait_for_gpu(self._native, f"probe {self._name!r}: records(synchronize=True)")
        entries = self._native.records(-1 if last is None else last)
        return [kept_snapshot(self._name, verdict.rank(), entry) for entry in entries]

    def clear_records(self) -> None:
        """Forgets the snapshots kept so far; later replays are kept as before."""
        if self._native is not None:
            self._native.clear_records(None)

    def _clear_up_to(self, records: list[TensorSnapshot]) -> None:
        upto: dict[int, int] = {}
        for slot, ordinal in (record._origin for record in records):
            upto[slot] = max(ordinal, upto.get(slot, 0))
        self._native.clear_records(upto)

    # --- judging ----------------------------------------------------------------------------------

    def status(self, *, timeout: float = _VERDICT_TIMEOUT_S) -> ProbeStatus:
        """Returns the state. Before that it waits, at most `timeout` seconds and not during a
        capture, until the daemon has seen everything that prints or compares."""
        if self._native is None:
            return ProbeStatus(self._name, self._mode, active=False)
        waited = True
        if not _is_capturing() and _actions.needs_daemon(self._actions):
            waited = self._native.wait_consumed(float(timeout))
        return self._status(waited)

    def _status(self, waited: bool) -> ProbeStatus:
        return ProbeStatus.from_native(self._name, self._mode, self._native.status(), waited)

    def assert_ok(self, *, timeout: float = _VERDICT_TIMEOUT_S) -> None:
        """Passes only when every snapshot so far was compared and matched.

        Waits for the GPU and then, at most `timeout` seconds, for the daemon, unless the GPU has
        compared everything. A probe without an enabled TensorCompare passes.

        Fails: TensorCompareMismatchError (an AssertionError): a snapshot did not match.
               TensorNotComparedError: something was not compared, or nothing was; the text says
                                       why.
        """
        if self._native is None or "compare" not in self._actions:
            return
        _wait_for_gpu(self._native, f"probe {self._name!r}: assert_ok()")
        status = self._status(True)
        if any(slot.compared_on == "daemon" for slot in status.slots):
            status = self._status(self._native.wait_consumed(float(timeout)))
        consumed = status.waited
        failed = status.first_failure
        if failed is not None:
            raise verdict.mismatch_error(status, failed)
        problem = verdict.why_not_compared(status, consumed, timeout, _native.daemon_problem())
        if problem:
            raise TensorNotComparedError(
                f"probe {self._name!r}{verdict.rank_words()} was not compared: {problem}"
            )

    # --- life -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stops looking. Safe at any time, also while graphs that contain the probe replay: they
        still work, and the memory is freed with the last of them. Its records are gone."""
        if self._native is not None:
            self._native.close()
            if _live.get(self._name) is self:
                del _live[self._name]

    def __enter__(self) -> CudaGraphTensorProbe:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "off" if self._native is None else self._mode
        return f"CudaGraphTensorProbe({self._name!r}, {list(self._actions.values())!r}, {state})"


_live: weakref.WeakValueDictionary[str, CudaGraphTensorProbe] = weakref.WeakValueDictionary()


def living(name: str) -> CudaGraphTensorProbe | None:
    """The probe of this name that was made last, if it is there."""
    return _live.get(name)


_told_notes: set[str] = set()  # why triggers do nothing


def _called(name: str, mode: str, active: bool) -> CudaGraphTensorProbe:
    """The live probe of that name, or one that sees nothing."""
    probe = _live.get(name)
    if probe is not None:
        return probe
    probe = CudaGraphTensorProbe(name, [], mode=typing.cast(typing.Any, mode))
    if active and _native.native_extension_available():
        # As a guard of compiled code that was saved with an active one expects it.
        probe._active = True
        probe._site_key = f"0:{name}"  # that no probe has
        probe._make_tag()
    return probe


def step(number: int | None) -> None:
    """Names the training step that later snapshots belong to, for every probe of the process; None
    ends it. Takes any integer, also of NumPy or in a tensor on the CPU. On a GPU the number takes
    effect in the order of the current stream: replays that were launched before keep theirs,
    however far the program runs ahead.

    With $CGDEBUG_FAIL_ON (`cgdebug-cli run --fail-on` sets it) it raises `FoundError` if the daemon
    has found that by now: as `check()`, but without waiting. Whether a NaN in a row of an op log
    has an excuse is asked beside the job, every 5 seconds at most."""
    if number is not None:
        number = _actions.whole_number("cgdebug.step: the step", number)
        if not 0 <= number <= _MAX_STEP:
            raise ValueError(
                f"cgdebug.step: the step must lie between 0 and {_MAX_STEP}, not {number}"
            )
    on_gpu = torch.cuda.is_initialized() and not _is_capturing()
    _native.set_step(number, torch.cuda.current_stream().cuda_stream if on_gpu else None)
    for name in ("_op_log.audit", "_job._auto"):
        if (module := sys.modules.get(f"cgdebug.{name}")) is not None:
            module.step_is_set()
    if kinds := _fail_on.wanted():
        _fail_on.raise_if_found(kinds)


class graph_label:
    """Names a CUDA graph, for every place where one is shown: `cgdebug.graph_label("bs=8")`.

    As a call, it names the graph that is being captured, from its next probe on, or else the next
    one. As a context manager, it names every graph that is captured inside:

        with cgdebug.graph_label("bs=8"):
            with torch.cuda.graph(graph): ...

    A graph without a label is called by the shapes of its tensors. Graphs with the same label are
    numbered: "bs=8", "bs=8#2". It holds for the whole process, since backward passes are captured
    in other threads.

    Fails: ValueError for a label that is empty, longer than 63 bytes, or has '@', '#' or a zero.
    """

    def __init__(self, label: str):
        if not isinstance(label, str) or not label or set("@#\0") & set(label):
            raise ValueError(
                f"cgdebug.graph_label: a label is a text without '@' and '#', not {label!r}"
            )
        if len(label.encode(errors="replace")) > _MAX_GRAPH_LABEL_BYTES:
            raise ValueError(
                f"cgdebug.graph_label: a label has at most {_MAX_GRAPH_LABEL_BYTES} bytes, not "
                f"{label!r}"
            )
        self.label = label
        self._before = _native.set_graph_label(label, False)

    def __enter__(self) -> graph_label:
        _native.set_graph_label(self.label, True)
        return self

    def __exit__(self, *_) -> None:
        _native.set_graph_label(*self._before)


def _is_capturing() -> bool:
    # Why the first test: the second needs a driver, which a CUDA build of torch may lack.
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _wait_for_gpu(native, what: str) -> None:
    if not torch.cuda.is_initialized():
        return
    if _is_capturing():
        raise RuntimeError(
            f"{what} waits for the GPU, which a capture forbids; call it after the capture"
        )
    for device in {slot["device"] for slot in native.status()["slots"]} - {"cpu"}:
        torch.cuda.synchronize(device)


def _check_choice(what: str, value, choices: tuple) -> None:
    if value not in choices:
        words = " or ".join(repr(choice) for choice in choices)
        raise ValueError(f"{what} must be {words}, not {value!r}")
