"""Files that an export writes."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import sys
import typing


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> typing.Iterator[typing.BinaryIO]:
    """A file that appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def text_file(path: pathlib.Path, is_stdout: bool) -> typing.Iterator[typing.TextIO]:
    if is_stdout:
        yield sys.stdout
        sys.stdout.flush()
        return
    with replacing(path) as file:
        wrapper = io.TextIOWrapper(file, encoding="utf-8", newline="")
        yield wrapper
        wrapper.flush()
        wrapper.detach()
