"""The names of torch-cudagraph-debug 0.2 over the probes of cgdebug: the page
client/docs/torch-cudagraph-debug.md has each beside what it becomes."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import typing

import torch

from .. import actions
from ..errors import TensorCompareMismatchError, TensorDebugError
from ..probe import CudaGraphTensorProbe, _is_capturing
from ..snapshot import TensorSnapshot
from . import _native

if typing.TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

Synchronize = typing.Union[bool, torch.device, "torch.cuda.Stream"]
_MAX_LISTED = 20


class TensorCheckError(TensorCompareMismatchError):
    """A CheckAction found a mismatch."""


class TensorComparisonError(AssertionError):
    """A comparison found a mismatch."""


@dataclasses.dataclass(frozen=True)
class PrintAction:
    """As TensorPrint. `summary` is taken and has no effect: the line always has the statistics."""

    max_items: int = 16
    every: int = 1
    summary: bool = True
    enabled: bool = True


@dataclasses.dataclass(frozen=True)
class RecordAction:
    """As TensorRecord(capacity=1)."""

    enabled: bool = True


@dataclasses.dataclass(frozen=True)
class CheckAction:
    """As TensorCompare. expected: of the first call of the probe in the capture, or a sequence:
    item i is of its i-th call, whatever the calls are named."""

    expected: typing.Any
    rtol: float = 1e-5
    atol: float = 1e-8
    equal_nan: bool = False
    enabled: bool = True

    def of_call(self, order: int) -> actions.TensorCompare | None:
        """None: nothing is expected of the call with this place."""
        is_one = hasattr(self.expected, "dtype")
        expected = [self.expected] if is_one else list(self.expected)
        if order >= len(expected):
            return None
        return actions.TensorCompare(
            expected[order], rtol=self.rtol, atol=self.atol, equal_nan=self.equal_nan
        )


class TensorObservationKey(typing.NamedTuple):
    name: str
    invocation_index: int


@dataclasses.dataclass(frozen=True, eq=False)
class TensorObservation:
    """One tensor. order: its place among the calls of the capture; tensor(): its value, on the
    CPU."""

    name: str
    invocation_index: int
    order: int
    value: torch.Tensor = dataclasses.field(repr=False)
    device: str = "cpu"

    @property
    def key(self) -> TensorObservationKey:
        return TensorObservationKey(self.name, self.invocation_index)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype

    def tensor(self) -> torch.Tensor:
        return self.value


class _Observed:
    """What has observations."""

    observations: tuple[TensorObservation, ...]

    @property
    def by_key(self) -> dict[TensorObservationKey, TensorObservation]:
        return {one.key: one for one in self.observations}

    def observation(self, name: str, invocation_index: int = 0) -> TensorObservation:
        """Fails: KeyError."""
        return self.by_key[TensorObservationKey(name, invocation_index)]


@dataclasses.dataclass(frozen=True, eq=False)
class TensorProbeSnapshot(_Observed):
    """What a probe saw last, of each of its calls."""

    probe_name: str
    replay_index: int
    timestamp: float
    observations: tuple[TensorObservation, ...]

    def observation(self, name: str | None = None, invocation_index: int = 0) -> TensorObservation:
        return super().observation(name or self.probe_name, invocation_index)

    def tensor(self, name: str | None = None, invocation_index: int = 0) -> torch.Tensor:
        return self.observation(name, invocation_index).tensor()


@dataclasses.dataclass(frozen=True)
class TensorCheckStatus:
    """ok: no snapshot that was compared has a mismatch."""

    ok: bool
    message: str
    replay_index: int = 0
    order: int = -1
    name: str | None = None
    invocation_index: int = -1

    @property
    def key(self) -> TensorObservationKey | None:
        return None if self.name is None else TensorObservationKey(self.name, self.invocation_index)


class TensorProbe:
    """A probe whose calls may have names: probe(x, name="layers.0.hidden").

    Each name is a CudaGraphTensorProbe of its own, "PROBE/NAME", so `cgdebug-cli` shows it; the
    name of the probe is that of calls without one. With a CheckAction each call is one, too.

    device: taken and not needed: a probe sees tensors of every device
    """

    def __init__(
        self,
        name: str,
        actions: typing.Sequence[PrintAction | RecordAction | CheckAction],
        *,
        non_contiguous: typing.Literal["error", "copy"] = "error",
        when: typing.Literal["capture", "always"] = "capture",
        device: torch.device | str | int | None = None,
    ):
        if not actions:
            raise ValueError("TensorProbe: actions must not be empty")
        for one in actions:
            if not isinstance(one, (PrintAction, RecordAction, CheckAction)):
                raise TypeError(
                    f"TensorProbe: an action is a PrintAction, a RecordAction or a CheckAction, "
                    f"not a {type(one).__name__}"
                )
        if when not in ("capture", "always"):
            raise ValueError(f"TensorProbe: when must be 'capture' or 'always', not {when!r}")
        self.name = name
        self._actions = [one for one in actions if one.enabled]
        self._options: dict[str, typing.Any] = {"non_contiguous": non_contiguous, "mode": when}
        self._has_checks = any(isinstance(one, CheckAction) for one in self._actions)
        self._parts: dict[TensorObservationKey, CudaGraphTensorProbe] = {}
        self._orders: dict[TensorObservationKey, int] = {}
        self._capture = 0
        self._seen: dict[str, int] = {}  # by name: calls in this capture

    def __call__(self, tensor: torch.Tensor, *, name: str | None = None) -> torch.Tensor:
        capture = _capture_id()
        if not self._actions or (self._options["mode"] == "capture" and not capture):
            return tensor
        name = name or self.name
        if capture != self._capture:
            self._capture, self._seen = capture, {}
        number = self._seen[name] = self._seen.get(name, -1) + 1
        if not capture:
            number = 0  # eager calls are not told apart
        key = TensorObservationKey(name, number)
        order = self._orders.setdefault(key, len(self._orders))
        self._part_of(key, order)(tensor)
        return tensor

    def _part_of(self, key: TensorObservationKey, order: int) -> CudaGraphTensorProbe:
        name = key.name if key.name == self.name else f"{self.name}/{key.name}"
        part = TensorObservationKey(key.name, key.invocation_index if self._has_checks else 0)
        if part not in self._parts:
            if part.invocation_index:
                name += f".{part.invocation_index}"
            self._parts[part] = CudaGraphTensorProbe(name, self._plain(order), **self._options)
        return self._parts[part]

    def _plain(self, order: int) -> list[typing.Any]:
        found: list[typing.Any] = []
        for one in self._actions:
            if isinstance(one, PrintAction):
                found.append(actions.TensorPrint(max_items=one.max_items, every=one.every))
            elif isinstance(one, RecordAction):
                found.append(actions.TensorRecord(capacity=1))
            elif (compare := one.of_call(order)) is not None:
                found.append(compare)
        return found or [actions.TensorStats()]

    @property
    def replay_index(self) -> torch.Tensor | None:
        """How often the graph was replayed so far; None for a probe without enabled actions."""
        if not self._actions:
            return None
        slots = [slot for one in self._parts.values() for slot in one.status().slots]
        return torch.tensor(max((slot.replays for slot in slots if slot.graph_id), default=0))

    def snapshot(self, *, synchronize: Synchronize = True) -> TensorProbeSnapshot:
        """Fails: TensorDebugError without a RecordAction, or if nothing was recorded so far."""
        if not any(isinstance(one, RecordAction) for one in self._actions):
            raise TensorDebugError(f"probe {self.name!r}: snapshot() needs a RecordAction")
        _synchronize(synchronize)
        newest: dict[TensorObservationKey, TensorSnapshot] = {}
        for key, part in self._parts.items():
            for record in part.records():
                number = key.invocation_index if self._has_checks else record.invocation_index
                one = TensorObservationKey(key.name, number)
                if one not in newest or newest[one].serial <= record.serial:
                    newest[one] = record
        if not newest:
            raise TensorDebugError(
                f"probe {self.name!r}: nothing was recorded: replay the graph first"
            )
        observations = [
            TensorObservation(
                *key, self._orders.get(key, len(self._orders)), one.tensor, str(one.device)
            )
            for key, one in newest.items()
        ]
        return TensorProbeSnapshot(
            self.name,
            max(one.replay_index if one.graph_id else 0 for one in newest.values()),
            time.time(),
            tuple(sorted(observations, key=lambda one: one.order)),
        )

    def compare(self, reference, candidate, *, options=None) -> TensorSnapshotComparison:
        return compare_snapshots(reference, candidate, options=options)

    def check_status(self, *, synchronize: Synchronize = True) -> TensorCheckStatus:
        """Not ok also if something was not compared: the message says why."""
        _synchronize(synchronize)
        for key, part in self._parts.items():
            try:
                part.assert_ok()
            except TensorCompareMismatchError as error:
                failed = part.status().first_failure
                number = key.invocation_index if self._has_checks else 0
                return TensorCheckStatus(
                    False,
                    str(error),
                    getattr(failed, "replay_index", 0),
                    self._orders.get(key, -1),
                    key.name,
                    number,
                )
            except TensorDebugError as error:
                return TensorCheckStatus(False, str(error), 0, self._orders.get(key, -1), *key)
        return TensorCheckStatus(True, "")

    def assert_check_ok(self, *, synchronize: Synchronize = True) -> None:
        """Fails: TensorCheckError."""
        status = self.check_status(synchronize=synchronize)
        if not status.ok:
            raise TensorCheckError(status.message)

    def watch_grad(
        self, tensor: torch.Tensor, *, name: str | None = None, strict: bool = False
    ) -> RemovableHandle | None:
        """Fails: RuntimeError with `strict`, if the tensor does not require grad."""
        if not tensor.requires_grad:
            if strict:
                raise RuntimeError(f"probe {self.name!r}: the tensor does not require grad")
            return None

        def look(grad: torch.Tensor) -> None:
            self(grad, name=name)

        return tensor.register_hook(look)

    def close(self, *, synchronize: Synchronize = True) -> None:
        """Safe at any time, also while the graph replays."""
        parts, self._parts = self._parts, {}
        for one in parts.values():
            one.close()

    def __enter__(self) -> TensorProbe:
        return self

    def __exit__(self, *exception) -> None:
        self.close()


# --- comparing ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class TensorComparisonOptions:
    mode: typing.Literal["allclose", "exact"] = "allclose"
    rtol: float = 1e-5
    atol: float = 1e-8
    equal_nan: bool = False
    dtype_policy: typing.Literal["strict", "promote"] = "strict"
    limit: int = _MAX_LISTED


@dataclasses.dataclass(frozen=True)
class TensorObservationComparison:
    """status: "match" or "mismatch"; issue: why not, empty where it matches"""

    key: TensorObservationKey
    status: str
    issue: str = ""


@dataclasses.dataclass(frozen=True)
class TensorSnapshotComparison:
    """In the order of the reference."""

    observations: tuple[TensorObservationComparison, ...]

    @property
    def ok(self) -> bool:
        return bool(self.observations) and self.first_issue is None

    @property
    def status(self) -> str:
        return "match" if self.ok else "mismatch"

    @property
    def first_issue(self) -> TensorObservationComparison | None:
        return next((one for one in self.observations if one.status != "match"), None)

    def assert_ok(self) -> None:
        """Fails: TensorComparisonError."""
        if not self.ok:
            raise TensorComparisonError(self.to_text())

    def to_text(self) -> str:
        if not self.observations:
            return "mismatch: there is nothing to compare"
        bad = [one for one in self.observations if one.status != "match"]
        lines = [f"{self.status}: {len(bad)} of {len(self.observations)} observations differ"]
        lines += [
            f"{one.key.name}#{one.key.invocation_index}: {one.issue}" for one in bad[:_MAX_LISTED]
        ]
        return "\n".join(lines)


TensorPointComparison = TensorSnapshotComparison


def compare_snapshots(
    reference: _Observed,
    candidate: _Observed,
    *,
    options: TensorComparisonOptions | None = None,
) -> TensorSnapshotComparison:
    options = options or TensorComparisonOptions()
    theirs, ours = reference.by_key, candidate.by_key
    found = []
    for key in [*theirs, *(key for key in ours if key not in theirs)]:
        if key not in ours or key not in theirs:
            side = "candidate" if key in theirs else "reference"
            issue = f"the {side} does not have it"
        else:
            issue = _difference(theirs[key].tensor(), ours[key].tensor(), options)
        found.append(TensorObservationComparison(key, "mismatch" if issue else "match", issue))
    return TensorSnapshotComparison(tuple(found))


compare_points = compare_snapshots


def _difference(a: torch.Tensor, b: torch.Tensor, options: TensorComparisonOptions) -> str:
    if a.shape != b.shape:
        return f"shape {list(a.shape)} and {list(b.shape)}"
    if a.dtype != b.dtype:
        if options.dtype_policy == "strict":
            return f"{a.dtype} and {b.dtype}"
        dtype = torch.promote_types(a.dtype, b.dtype)
        a, b = a.to(dtype), b.to(dtype)
    if options.mode == "exact":
        same = a.contiguous().view(torch.uint8).equal(b.contiguous().view(torch.uint8))
        return "" if same or a.numel() == 0 else "the bytes differ"
    close = torch.isclose(a, b, rtol=options.rtol, atol=options.atol, equal_nan=options.equal_nan)
    wrong = int((~close).sum())
    if not wrong:
        return ""
    worst = (a.double() - b.double()).abs()[~close].max().item()
    return f"{wrong} of {a.numel()} elements differ, by {worst:.6g} at most"


# --- several points -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class TensorPoint(_Observed):
    label: str
    replay_index: int | None
    observations: tuple[TensorObservation, ...]
    metadata: dict[str, typing.Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class TensorRun:
    """The points of a recorder, by label or by place."""

    name: str
    execution: str
    complete: bool
    points: tuple[TensorPoint, ...]

    def point(self, ref: str | int | TensorPoint) -> TensorPoint:
        """Fails: KeyError, IndexError."""
        if isinstance(ref, TensorPoint):
            return ref
        if isinstance(ref, int):
            return self.points[ref]
        for one in self.points:
            if one.label == ref:
                return one
        raise KeyError(f"no point is called {ref!r}")

    __getitem__ = point

    def compare(self, reference, candidate, *, options=None) -> TensorPointComparison:
        return compare_points(self.point(reference), self.point(candidate), options=options)


class TensorRecorder:
    """Labelled points of what observe() is given: of an eager run inside record_point(), of a
    captured graph when record_point() is around its replay.

    The points are in memory. `bundle_dir` is refused: a recording keeps values on disk, see
    `cgdebug-cli record`.
    """

    def __init__(
        self,
        *,
        execution: typing.Literal["eager", "cuda_graph"],
        name: str = "run",
        bundle_dir: typing.Any = None,
        device: torch.device | str | int | None = None,
        payload: typing.Literal["full"] = "full",
        non_contiguous: typing.Literal["error", "copy"] = "error",
        synchronize: Synchronize = True,
        **about: typing.Any,
    ):
        if execution not in ("eager", "cuda_graph"):
            raise ValueError(
                f"TensorRecorder: execution must be 'eager' or 'cuda_graph', not {execution!r}"
            )
        if bundle_dir is not None or payload != "full":
            raise ValueError(
                "TensorRecorder: points are kept in memory with their values. To keep them on "
                "disk, leave bundle_dir and payload out and type: cgdebug-cli record -o RUN.cgrec"
            )
        unknown = set(about) - {"rank", "group_id", "world_size", "run_metadata"}
        if unknown:
            raise TypeError(f"TensorRecorder: unexpected argument {min(unknown)!r}")
        self._name, self._execution, self._synchronize = name, execution, synchronize
        self._points: list[TensorPoint] = []
        self._inside: list[TensorObservation] | None = None  # of the point under way
        self._is_done = self._has_failed = False
        self._probe: TensorProbe | None = None
        if execution == "cuda_graph":
            self._probe = TensorProbe(name, [RecordAction()], non_contiguous=non_contiguous)

    def observe(self, name: str, tensor: torch.Tensor, *, payload=None) -> torch.Tensor:
        if self._probe is not None:
            return self._probe(tensor, name=name)
        if self._inside is not None:
            number = sum(one.name == name for one in self._inside)
            value = tensor.detach().cpu().clone()
            self._inside.append(
                TensorObservation(name, number, len(self._inside), value, str(tensor.device))
            )
        return tensor

    def watch_grad(self, name: str, tensor: torch.Tensor, *, payload=None, strict=False):
        """Fails: RuntimeError with `strict`, if the tensor does not require grad."""
        if not tensor.requires_grad:
            if strict:
                raise RuntimeError(f"{name}: the tensor does not require grad")
            return None

        def look(grad: torch.Tensor) -> None:
            self.observe(name, grad)

        return tensor.register_hook(look)

    @contextlib.contextmanager
    def record_point(self, label: str, *, metadata=None, synchronize: Synchronize | None = None):
        """Fails: ValueError: the label is taken; TensorDebugError: the recorder has ended, or
        another point is under way."""
        if self._is_done or self._inside is not None:
            what = "has ended" if self._is_done else "is in a point already"
            raise TensorDebugError(f"the recorder {self._name!r} {what}")
        if not label or any(one.label == label for one in self._points):
            raise ValueError(f"record_point: a label is a text of its own, not {label!r}")
        self._inside = []
        try:
            yield
            wanted = self._synchronize if synchronize is None else synchronize
            replay = None
            observations = tuple(self._inside)
            if self._probe is not None:
                snapshot = self._probe.snapshot(synchronize=wanted)
                observations, replay = snapshot.observations, snapshot.replay_index
            self._points.append(TensorPoint(label, replay, observations, dict(metadata or {})))
        finally:
            self._inside = None

    def snapshot_run(self) -> TensorRun:
        complete = self._is_done and not self._has_failed
        return TensorRun(self._name, self._execution, complete, tuple(self._points))

    def finish(self) -> TensorRun:
        self._is_done = True
        return self.snapshot_run()

    @property
    def result(self) -> TensorRun:
        return self.snapshot_run()

    def close(self, *, synchronize: Synchronize = True) -> None:
        if self._probe is not None:
            self._probe.close()

    def __enter__(self) -> TensorRecorder:
        return self

    def __exit__(self, kind, *exception) -> None:
        self._has_failed = kind is not None
        self.finish()
        self.close()


def _capture_id() -> int:
    """Of the capture under way on the current stream; 0: none."""
    if not _is_capturing():
        return 0
    return _native.load().capture_of(torch.cuda.current_stream().cuda_stream)


def _synchronize(wanted: Synchronize) -> None:
    """Fails: TypeError."""
    if wanted is False:
        return
    if wanted is not True and not isinstance(wanted, (torch.device, torch.cuda.Stream)):
        raise TypeError(
            f"synchronize must be True, False, a torch.cuda.Stream or a torch.device, not "
            f"{wanted!r}"
        )
    if isinstance(wanted, torch.cuda.Stream):
        wanted.synchronize()
    elif torch.cuda.is_initialized():
        torch.cuda.synchronize(None if wanted is True else wanted)
