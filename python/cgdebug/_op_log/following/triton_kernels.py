"""Tells recorders which Triton kernels run: they are no ops, and no dispatch mode sees them.

Inductor's kernels are launched by CachingAutotuner.run, those that people write by JITFunction.run.
Both are wrapped for good when the first recorder comes. Without a recorder they only call the
original.
"""

from __future__ import annotations

import functools
import logging
import typing

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ..._job._after_import import call_after_import
from .. import names
from ..written import storage_of

if typing.TYPE_CHECKING:
    from ..recorder import Recorder

_recorders: list[Recorder] = []
_wrapped: set[str] = set()
# By kernel of the user: names of arguments; None: torch cannot tell.
_written: typing.MutableMapping[typing.Any, frozenset[str] | None] = WeakIdKeyDictionary()


def follow(recorder: Recorder) -> None:
    _wrap("torch._inductor.runtime.triton_heuristics", "CachingAutotuner", _run_of_inductor)
    _wrap("triton.runtime.jit", "JITFunction", _run_of_user)
    _recorders.append(recorder)


def unfollow(recorder: Recorder) -> None:
    if recorder in _recorders:
        _recorders.remove(recorder)


def _wrap(module_name: str, class_name: str, make) -> None:
    """Now, or as soon as the module is imported: a job may compile later."""
    if class_name in _wrapped:
        return
    _wrapped.add(class_name)

    def wrap(module) -> None:
        kind = getattr(module, class_name)
        kind.run = functools.wraps(kind.run)(make(kind.run))

    call_after_import(module_name, wrap)


def _run_of_inductor(run):
    def logged_run(self, *args, benchmark_run=False, **kwargs):
        def launch():
            return run(self, *args, benchmark_run=benchmark_run, **kwargs)

        if not _recorders or benchmark_run:
            return launch()
        return _follow_launch(launch, lambda: _launch_of_inductor(self, args, kwargs))

    return logged_run


def _run_of_user(run):
    def logged_run(self, *args, **kwargs):
        def launch():
            return run(self, *args, **kwargs)

        if not _recorders or kwargs.get("warmup"):
            return launch()
        return _follow_launch(launch, lambda: _launch_of_user(self, args, kwargs))

    return logged_run


class _Launch(typing.NamedTuple):
    kernel: str
    tensors: dict[str, torch.Tensor]  # by name of the argument
    written: frozenset[str] | None  # None: not known
    is_inductors: bool  # made by Inductor: then the names of arguments say what is read
    is_compiled: bool  # called by compiled code, which allocates memory without an op

    def reads(self) -> list[tuple[str, torch.Tensor]]:
        """The kernel of a user may write only a part, so what was there before counts as read."""
        return [
            (name, one)
            for name, one in self.tensors.items()
            if not (self.is_inductors and name.startswith("out_ptr"))
        ]

    def writes(self) -> list[torch.Tensor]:
        """All that it may write of its arguments. The kernel of a user may also write to addresses
        that it finds in memory."""
        if self.written is None:
            return list(self.tensors.values())
        return [one for name, one in self.tensors.items() if name in self.written]

    def overwrites(self) -> list[tuple[str, torch.Tensor]]:
        """What it is known to overwrite, by name. An out_ptr is memory that nobody has written."""
        return [(name, one) for name, one in self.reads() if name in (self.written or ())]


def _launch_of_inductor(tuner, args, kwargs) -> _Launch:
    arguments = dict(zip(tuner.triton_meta.get("signature", {}), args)) | kwargs
    tensors = _tensors_of(arguments)
    mutated = set(tuner.mutated_arg_names or ())
    is_inductors = not getattr(tuner, "custom_kernel", False)
    if not is_inductors:
        written = frozenset(mutated) or _written_by(tuner.fn, arguments)
    else:
        written = frozenset(
            name
            for name in tensors
            if name.startswith(("out_ptr", "in_out_ptr")) or name in mutated
        )
    return _Launch(tuner.fn.__name__, tensors, written, is_inductors, True)


def _launch_of_user(function, args, kwargs) -> _Launch:
    arguments = dict(zip(function.arg_names, args))
    arguments |= {name: kwargs[name] for name in function.arg_names if name in kwargs}
    name = getattr(function, "__name__", "triton_kernel")
    return _Launch(name, _tensors_of(arguments), _written_by(function, arguments), False, False)


def _tensors_of(arguments) -> dict[str, torch.Tensor]:
    return {name: one for name, one in arguments.items() if isinstance(one, torch.Tensor)}


def _written_by(function, arguments) -> frozenset[str] | None:
    """Found in the kernel's code. This takes a second: only where rows of kernels are wanted."""
    if not any(recorder.kernels.has_rows for recorder in _recorders):
        return None
    if function not in _written:
        _written[function] = _find_written(function, arguments)
    if _written[function] is None:
        for recorder in _recorders:
            recorder.log.note(
                f"{getattr(function, '__name__', 'a Triton kernel')}: torch cannot tell which "
                f"arguments it writes, so it has no rows"
            )
    return _written[function]


def _find_written(function, arguments) -> frozenset[str] | None:
    """None where torch gives up: it then names all tensors, those that are only read among them,
    and warns of it."""
    from torch._higher_order_ops import triton_kernel_wrap

    gave_up = []

    def notice(record: logging.LogRecord) -> bool:
        is_it = "identify_mutated_tensors" in record.getMessage()
        if is_it:
            gave_up.append(record)
        return not is_it

    triton_kernel_wrap.log.addFilter(notice)
    try:
        found = triton_kernel_wrap.identify_mutated_tensors(function, arguments, {})
    finally:
        triton_kernel_wrap.log.removeFilter(notice)
    return None if gave_up else frozenset(found)


def _follow_launch(launch, describe):
    recorders = list(_recorders)
    try:
        kernel = describe()
    except Exception as error:  # the job goes on
        kernel = _Launch("triton_kernel", {}, None, False, False)
        for recorder in recorders:
            recorder.log.note(f"a Triton kernel: {str(error).partition(chr(10))[0]}")
    for recorder in recorders:
        _tell_before(recorder, kernel)
    try:
        result = launch()
    except BaseException:
        for recorder in recorders:
            recorder.kernels.wrote_unseen(())
        raise
    for recorder in recorders:
        _tell(recorder, kernel)
    return result


def _tell_before(recorder: Recorder, kernel: _Launch) -> None:
    recorder.kernels.begin()
    try:
        if recorder.kernels.has_rows and kernel.written is not None:
            _tell_reads(recorder, kernel)
    except Exception as error:  # the kernel goes on
        _note(recorder, kernel, error)
    recorder.kernels.guard(kernel.writes() if kernel.is_inductors else None)


def _tell_reads(recorder: Recorder, kernel: _Launch) -> None:
    changed = {storage_of(one) for one in kernel.writes()}
    reads = [(name, one) for name, one in kernel.reads() if storage_of(one) in changed]
    writes = kernel.overwrites()
    place = names.current_place(recorder.names, kernel.tensors.values())
    if kernel.is_compiled and not kernel.is_inductors:
        recorder.kernels.may_be_empty(one for _, one in writes)
    recorder.kernels.will_read(place, kernel.kernel, reads)
    if not recorder.kernels.has_pre:  # what a row shows already needs no other
        inout = [(name, one) for name, one in writes if name.startswith("in_out_ptr")]
        writes = [(name, one) for name, one in inout if recorder.kernels.is_unknown(one)]
    if writes:
        recorder.kernels.will_write(place, f"triton.{kernel.kernel}.pre", kernel.kernel, writes)


def _tell(recorder: Recorder, kernel: _Launch) -> None:
    if kernel.written is None or not recorder.kernels.has_rows:
        recorder.kernels.wrote_unseen(kernel.writes())
        return
    try:
        place = names.current_place(recorder.names, kernel.tensors.values())
    except Exception as error:  # the job goes on
        _note(recorder, kernel, error)
        recorder.kernels.wrote_unseen(kernel.writes())
        return
    writes = [(name, kernel.tensors[name]) for name in kernel.tensors if name in kernel.written]
    op = f"triton.{kernel.kernel}.default"
    recorder.kernels.wrote(place, op, kernel.kernel, kernel.reads(), writes)


def _note(recorder: Recorder, kernel: _Launch, error: Exception) -> None:
    recorder.log.note(f"{kernel.kernel}: {str(error).partition(chr(10))[0]}")
