"""testing.bisect_compiler(): torch's compiler bisector, with our comparison as its test."""

from __future__ import annotations

import os
import tempfile
import traceback
import types
import typing

import torch
from torch.utils import _pytree

from ..actions import TensorRecord
from ..errors import NotCheckedError
from ..probe import CudaGraphTensorProbe

if typing.TYPE_CHECKING:
    from collections.abc import Callable

    from .._read._reports import Diff
    from ..recording import Recording

_MANY = 8  # lines of what was not compared


def bisect(
    run: Callable[[Callable], typing.Any], rtol: float | None, atol: float | None
) -> tuple[str, str | None, int | None, str | None, Diff] | None:
    """The fields of the CompilerFault that testing.bisect_compiler() returns."""
    try:
        from torch._inductor.compiler_bisector import CompilerBisector
    except ImportError as error:
        raise RuntimeError("bisect_compiler: this torch has no compiler bisector") from error
    with tempfile.TemporaryDirectory(prefix="cgdebug-bisect-") as folder:
        runs = _Runs(folder, run, rtol, atol)
        runs.check_eager()

        def is_good() -> bool:
            torch._dynamo.reset()
            backend = CompilerBisector.get_backend()
            return runs.is_same(lambda code: torch.compile(code, backend=backend))

        try:
            found = CompilerBisector.do_bisect(is_good)
        except BaseException as error:
            _end_search(error, CompilerBisector.do_bisect.__func__.__code__)
            raise
        finally:
            torch._dynamo.reset()
    if found is None:
        return None
    assert runs.different is not None  # the bisector takes a backend only if it differs
    if found.debug_info == found.subsystem:  # not one use of it
        return found.backend, found.subsystem, None, None, runs.different
    return found.backend, found.subsystem, found.bisect_number, found.debug_info, runs.different


def _end_search(error: BaseException, code: types.CodeType) -> None:
    """Torch's bisector is on until the locals of its search go, which whoever keeps the exception
    keeps as well."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is code:
            frame.clear()


class _Runs:
    """different: the newest comparison that found a difference"""

    def __init__(self, folder: str, run, rtol: float | None, atol: float | None):
        self.different: Diff | None = None
        self._folder = folder
        self._run = run
        self._rtol, self._atol = rtol, atol
        self._count = 0
        self._reference = self._record(lambda code: code)

    def check_eager(self) -> None:
        """Fails: NotCheckedError."""
        if not self.is_same(lambda code: code):
            raise NotCheckedError(
                f"bisect_compiler: two eager runs differ, so compiled ones cannot be judged. Set "
                f"seeds and make weights anew in `run`.\n{self.different}"
            )

    def is_same(self, compile) -> bool:
        """Fails: NotCheckedError."""
        diff = self._record(compile).diff(self._reference, rtol=self._rtol, atol=self._atol)
        if diff.verdict == "incomplete":
            missing = "\n".join(diff.missing[:_MANY])
            raise NotCheckedError(f"bisect_compiler: not everything was compared:\n{missing}")
        if not diff.ok:
            self.different = diff
        return diff.ok

    def _record(self, compile) -> Recording:
        from .. import recording
        from ..client import connect

        self._count += 1
        path = os.path.join(self._folder, f"run-{self._count}.cgrec")
        torch.manual_seed(0)
        results = _pytree.tree_leaves_with_path(self._run(compile))
        mine = f"bisect/{os.getpid()}/result"
        tensors = {
            f"{mine}{_pytree.keystr(place) if place else ''}": one
            for place, one in results
            if isinstance(one, torch.Tensor)
        }
        if not tensors:
            raise NotCheckedError("bisect_compiler: `run` returned no tensor")
        probes = []
        with connect(spawn=True) as client, client.record(path, f"{mine}*"):
            for name, one in tensors.items():
                probe = CudaGraphTensorProbe(
                    name, [TensorRecord()], mode="always", non_contiguous="copy"
                )
                probes.append(probe)
                probe(one.detach())
        for probe in probes:
            probe.close()
        return recording.open(path)
