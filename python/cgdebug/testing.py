"""For tests of models: recordings compared as torch.testing compares tensors, and whether padding
reaches real rows."""

from __future__ import annotations

import os
import shlex
import typing

from .recording import Diff, Recording
from .recording import open as open_recording

if typing.TYPE_CHECKING:
    from ._poison import Poison

__all__ = ["assert_recordings_close", "poison"]


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


def poison(
    call: typing.Callable[[], typing.Any],
    inputs: typing.Any,
    valid_rows: typing.Any,
    *,
    outputs: typing.Any = None,
    state: typing.Any = None,
) -> Poison:
    """Whether what lies in the padding rows of a call reaches its real ones:

        found = cgdebug.testing.poison(lambda: model(ids, cache), [ids, cache], valid_rows=5)
        assert found.ok, found

    Runs the call again with other padding, with large values in it and with NaN, and with NaN in
    memory that nobody has written, and compares the real rows of the outputs bit for bit with those
    of the call as it is. What is not the same in equal calls is not judged.

    call:    without arguments. It reads `inputs`: a model, or a graph's replay
    inputs:  tensors with the rows in their first dimensions, a list or by name, caches among them.
             They are changed, and put back before each call and at the end
    valid_rows: as for cgdebug.valid_rows(): how many are real, or a mask
    outputs: tensors that a replay writes; by default what `call` returns
    state:   further tensors that the call changes, to be put back: buffers of the model

    `verdict` is "none", "any value", "large only", "NaN only" or "reads memory that nobody wrote";
    `op` and `site` name the first op that let it through, where the call runs ops of torch. `ok` is
    false if something was found, or could not be looked at.

    Fails: TypeError, ValueError: no output has these rows, or all of them are real."""
    from . import _poison

    return _poison.poison(call, inputs, valid_rows, outputs, state)


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
