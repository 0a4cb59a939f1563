"""Element types of tensors, by torch's name, from the table in proto/layout/dtype.h."""

from __future__ import annotations

import functools
import typing

from ._reader import recording_module


class Dtype(typing.NamedTuple):
    short: str  # for lines of output
    safetensors: str
    # The unsigned integer of its size, for a type that NumPy has only with ml_dtypes.
    bits: str | None
    min_normal: float  # the smallest normal number; 0 where none is subnormal
    number: int  # in memory that processes share


@functools.cache
def table() -> dict[str, Dtype]:
    """Loads the native reader of recordings, so nothing here happens when cgdebug is imported.

    Fails: NativeExtensionUnavailableError.
    """
    return {name: Dtype(*row) for name, *row in recording_module().dtypes()}


def bits_of(name: str) -> str | None:
    return table()[name].bits if name in table() else None
