"""What users add to the rows of an op log: hooks, which make columns; statistics and a hash of
their own; values of chosen rows.

Nothing here runs where none is set. What a user's function raises is named in the row's columns,
and never reaches the job.
"""

from __future__ import annotations

import contextlib
import dataclasses
import typing
import warnings

import torch

from ..._job import _native
from ..._watching.modules import is_selected
from ...actions import TensorRecord
from .. import written
from .memory_columns import MemoryColumns

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ...op_log import OpLogView
    from ...probe import CudaGraphTensorProbe

_RESERVED = frozenset({"value"})
HASH = "hash"


@dataclasses.dataclass
class OpCall:
    """One call of an op, for hooks.

    name:     "fwd/layers.3.attn/mm_0", of its rows
    op:       "aten.mm.default", "triton.KERNEL.default"
    func:     the op of torch; None for a Triton kernel
    args, kwargs: what it was given
    result:   what it returned; None before
    module:   path of the module that runs; empty: none
    phase:    "fwd", "bwd", "opt", "clip", "scaler"
    site:     "train.py:12 in forward"
    captured: whether a CUDA graph captures it: then values of tensors cannot be read, and each
              replay has what the hook returned in the capture
    state:    of the hook's own, from before() to the call itself
    """

    name: str
    op: str
    func: typing.Any
    args: tuple
    kwargs: dict[str, typing.Any]
    module: str
    phase: str
    site: str
    captured: bool
    result: typing.Any = None
    state: dict[typing.Any, typing.Any] = dataclasses.field(default_factory=dict)


_NAMED = {"memory": MemoryColumns}


class Extras:
    """hooks: called after each op with its OpCall; what they return, a value or a dict of values,
              are columns. An object may also have before(call) and after_run(log).
    stats:    by name: functions of a tensor that return a tensor, or outside of captures a number
    values:   globs of row names, whose tensors are kept
    """

    def __init__(
        self,
        hooks: Sequence[typing.Any] = (),
        stats: Mapping[str, Callable] | None = None,
        values: str | None = None,
    ):
        made = [_NAMED[one]() if isinstance(one, str) else one for one in hooks]
        # What the others allocate before the op is no memory of the op.
        self.hooks = tuple(sorted(made, key=lambda one: isinstance(one, MemoryColumns)))
        self.stats = dict(stats or {})
        self.values = values

    @classmethod
    def of(cls, caller: str, hooks, hash, stats, values) -> Extras:
        """Fails: TypeError, ValueError, which begin with `caller`."""
        hooks = [hooks] if callable(hooks) or isinstance(hooks, str) else list(hooks or ())
        for one in hooks:
            if isinstance(one, str) and one not in _NAMED:
                raise ValueError(
                    f"{caller}: a hook is a function or one of {', '.join(map(repr, _NAMED))}, "
                    f"not {one!r}"
                )
            if not isinstance(one, str) and not callable(one) and not hasattr(one, "after_run"):
                raise TypeError(f"{caller}: a hook is a function, not a {type(one).__name__}")
        stats = dict(stats or {})
        if hash is not None:
            stats = {HASH: hash, **stats}
        for name, one in stats.items():
            if not isinstance(name, str) or not name.isidentifier() or name in _RESERVED:
                raise ValueError(f"{caller}: the name of a statistic is a word, not {name!r}")
            if not callable(one):
                raise TypeError(
                    f"{caller}: {name} is a function of a tensor, not a {type(one).__name__}"
                )
        if values is not None and (not isinstance(values, str) or not values):
            raise ValueError(
                f"{caller}: values are globs of row names, as in 'fwd/layers.3.*', not {values!r}"
            )
        return cls(hooks, stats, values)

    @classmethod
    def joined(cls, all_of_them: Sequence[Extras]) -> Extras:
        """For a log that several want."""
        joined, hooks = cls(), list[typing.Any]()
        for one in all_of_them:
            hooks += [hook for hook in one.hooks if hook not in hooks]
            joined.stats |= one.stats
            if one.values:
                joined.values = f"{joined.values},{one.values}" if joined.values else one.values
        joined.hooks = cls(hooks).hooks
        return joined

    def __bool__(self) -> bool:
        return bool(self.hooks or self.stats or self.values)

    def before(self, call: OpCall) -> None:
        for hook in self.hooks:
            before = getattr(hook, "before", None)
            if before is None:
                continue
            try:
                with _careful(call.captured):
                    before(call)
            except Exception as error:  # the op goes on
                call.state.setdefault("problems", {})[name_of(hook)] = raised(error)

    def stop(self, call: OpCall) -> None:
        """The op that before() was told of has run, or failed."""
        for hook in self.hooks:
            if isinstance(hook, MemoryColumns) and hook in call.state:
                hook.stop(call)

    def columns(self, call: OpCall) -> dict[str, typing.Any]:
        """What the hooks say of a call that has run."""
        found: dict[str, typing.Any] = dict(call.state.get("problems", {}))
        for hook in self.hooks:
            if not callable(hook):
                continue
            name = name_of(hook)
            try:
                with _careful(call.captured):
                    value = hook(call)
            except Exception as error:  # the job goes on
                found[name] = raised(error)
                continue
            if isinstance(value, dict):
                found.update({str(key): _plain(one) for key, one in value.items()})
            elif value is not None:
                found[name] = _plain(value)
        return found

    def computed(
        self, tensor: torch.Tensor, captured: bool
    ) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """The user's statistics of a tensor, and by name why one is not there."""
        found: dict[str, torch.Tensor] = {}
        problems: dict[str, str] = {}
        for name, function in self.stats.items():
            try:
                with _careful(captured):
                    value = function(tensor.detach())
                if isinstance(value, (bool, int, float)):
                    if captured:
                        raise TypeError(
                            "it returned a number: in a capture return a tensor, which each replay "
                            "computes again"
                        )
                    dtype = torch.float64 if isinstance(value, float) else torch.int64
                    value = torch.tensor(value, dtype=dtype)
                if not isinstance(value, torch.Tensor):
                    raise TypeError(f"it returned a {type(value).__name__}, not a tensor")
                if captured and not value.is_cuda:
                    raise TypeError("its result is not on the GPU")
                if written.storage_of(value) == written.storage_of(tensor) and value.numel():
                    value = value.clone()
                found[name] = value
            except Exception as error:  # the job goes on
                problems[name] = raised(error)
        return found, problems

    def wants_value(self, row: str) -> bool:
        return self.values is not None and is_selected(row, self.values)


class Values:
    """Probes that keep the values of rows, by the name of the row. Of captured graphs those of each
    so many replays."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._probes: dict[str, CudaGraphTensorProbe] = {}

    def keep(self, row: str, tensor: torch.Tensor) -> None:
        """Fails: ValueError, RuntimeError: the tensor cannot be kept."""
        from ...probe import CudaGraphTensorProbe

        if row not in self._probes:
            every = self._every if _native.is_capturing() else 1
            self._probes[row] = CudaGraphTensorProbe(
                f"{row}.value",
                [TensorRecord(capacity=4, every=every)],
                mode="always",
                non_contiguous="copy",
            )
        self._probes[row](tensor.detach())

    def __getitem__(self, row: str) -> CudaGraphTensorProbe:
        return self._probes[row]

    def __iter__(self) -> Iterator[str]:
        return iter(self._probes)

    def close(self) -> None:
        for one in self._probes.values():
            one.close()


def after_run(hooks: typing.Iterable[typing.Any], log: OpLogView) -> None:
    """Gives the rows of a run to the hooks that want them; what they return are columns, by name: a
    value for each row."""
    for hook in hooks:
        function = getattr(hook, "after_run", None)
        if function is None:
            continue
        try:
            columns = dict(function(log) or {})
            for name, values in columns.items():
                values = list(values)
                if len(values) != len(log.rows):
                    raise ValueError(
                        f"column {name!r} has {len(values)} values for {len(log.rows)} rows"
                    )
                for row, value in zip(log.rows, values):
                    typing.cast(dict, row.columns)[str(name)] = value
        except Exception as error:  # the log is read all the same
            log.gaps.append(f"hook {name_of(hook)}: after_run {raised(error)}")


def name_of(hook) -> str:
    return getattr(hook, "__name__", type(hook).__name__)


def raised(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    return f"raised {type(error).__name__}" + (f": {text}" if text else "")


def _plain(value: typing.Any) -> typing.Any:
    from ..details import column_of

    return column_of(value)


@contextlib.contextmanager
def _careful(captured: bool) -> Iterator[None]:
    """No mode sees the ops of a user's function. In a capture, reading a value raises before CUDA
    is asked, which would end the capture."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch.no_grad():
        if not captured:
            yield
            return
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
