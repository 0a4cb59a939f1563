"""For tests of models: recordings compared as torch.testing compares tensors."""

from __future__ import annotations

import os
import shlex

from .recording import Diff, Recording
from .recording import open as open_recording

__all__ = ["assert_recordings_close"]


def assert_recordings_close(
    actual: Recording | str | os.PathLike,
    expected: Recording | str | os.PathLike,
    *probes: str,
    rtol: float | None = None,
    atol: float | None = None,
    **options,
) -> Diff:
    """Every snapshot of `actual` is close to its counterpart in `expected`, and none is missing.

    Tolerances left out are those of torch.testing.assert_close for the dtype; `options` as of
    `Recording.diff`. Fails: AssertionError with the first difference, or with what was not compared.
    """
    __tracebackhide__ = True
    one = actual if isinstance(actual, Recording) else open_recording(actual)
    other = expected if isinstance(expected, Recording) else open_recording(expected)
    diff = one.diff(other, *probes, rtol=rtol, atol=atol, **options)
    if not diff.ok:
        command = f"cgdebug-cli diff {shlex.quote(one.path)} {shlex.quote(other.path)}"
        raise AssertionError(f"{diff}\nsee: {command}")
    return diff
