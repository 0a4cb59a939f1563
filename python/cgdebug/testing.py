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
    """Asserts that every snapshot of `actual` is close to its counterpart in `expected`, and that
    none is missing.

    The default tolerances are those of torch.testing.assert_close for the dtype; `options` are
    those of `Recording.diff`.

    Fails: AssertionError with the first difference, or with what was not compared.
    """
    __tracebackhide__ = True
    one = actual if isinstance(actual, Recording) else open_recording(actual)
    other = expected if isinstance(expected, Recording) else open_recording(expected)
    diff = one.diff(other, *probes, rtol=rtol, atol=atol, **options)
    if not diff.ok:
        asked = {"rtol": rtol, "atol": atol, **options}
        command = ["cgdebug-cli", "diff", one.path, other.path, *probes, *_flags(asked)]
        if one._rank is not None and one._rank == other._rank:
            command += ["--ranks", str(one._rank)]
        raise AssertionError(f"{diff}\nsee: {shlex.join(command)}")
    return diff


def _flags(options: dict) -> list[str]:
    """The same options for the command line. Leaves out `names`, which the command line takes from
    a file."""
    words = []
    for name, value in options.items():
        if name == "replays" and value is not None:
            value = f"{value[0]}..{value[1]}"
        if value is None or value is False or name == "names":
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(str(value))
    return words
