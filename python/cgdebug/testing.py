"""For tests of models: recordings compared as torch.testing compares tensors, whether padding
reaches real rows, and what in torch.compile makes a program differ."""

from __future__ import annotations

import dataclasses
import os
import shlex
import typing

from .recording import Diff, Recording
from .recording import open as open_recording

if typing.TYPE_CHECKING:
    from collections.abc import Callable

    from ._job._poison import Poison

__all__ = ["CompilerFault", "assert_recordings_close", "bisect_compiler", "poison"]


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
    from ._job import _poison

    return _poison.poison(call, inputs, valid_rows, outputs, state)


@dataclasses.dataclass(frozen=True)
class CompilerFault:
    """What makes compiled code differ from eager code.

    backend:   the first one of "eager", "aot_eager", "aot_eager_decomp_partition",
               "aot_eager_decomp_partition_crossref" and "inductor" that differs
    subsystem: the part of it without which nothing differs, such as "decomposition" or "lowerings";
               None: no single one
    number:    which use of it is the one, from 0; None: it is not used by number
    what:      that use in torch's words, such as "<OpOverload(op='aten.silu', ...)>"
    diff:      what differs
    """

    backend: str
    subsystem: str | None
    number: int | None
    what: str | None
    diff: Diff

    def __str__(self) -> str:
        words = [self.backend, *((self.subsystem,) if self.subsystem else ())]
        text = "the fault is in " + ", ".join(words)
        if self.number is not None:
            text += f", use {self.number}"
        return f"{text}{f': {self.what}' if self.what else ''}\n{self.diff}"


def bisect_compiler(
    run: Callable[[Callable], typing.Any],
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> CompilerFault | None:
    """Finds what in torch.compile makes a program differ from itself in eager mode:

        print(cgdebug.testing.bisect_compiler(lambda compile: compile(model)(x)))

    run: runs the program, with what it is given in the place of torch.compile, and returns the
         tensors that are compared. It is called many times, with the same seed, and must do the
         same each time: what it changes, such as weights, it makes anew.
    rtol, atol: of the comparison; by default those of torch.testing.assert_close for the dtype

    The first call is not compiled. Then torch's CompilerBisector asks for one backend after the
    other, and in the first that differs for one part after the other. Returns None if none
    differs. Each run is a recording; what is compared are values.

    Fails: NotCheckedError: two eager runs differ, or something could not be compared, so there is
           no verdict that could lead the search; what `run` raises."""
    from ._job._bisect import bisect

    found = bisect(run, rtol, atol)
    return None if found is None else CompilerFault(*found)


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
