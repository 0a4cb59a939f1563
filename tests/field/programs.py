"""The table of programs. Each is a function of a Run, and returns what it makes: tensors, numbers, texts, in any nesting.

A program knows nothing of cgdebug.
"""

from __future__ import annotations

import dataclasses
import pathlib
import typing


@dataclasses.dataclass
class Run:
    """What a program is given."""

    backend: str | None  # of torch.compile
    folder: pathlib.Path  # its own, for files
    is_alone: bool  # without a watch

    def compile(self, target, **options):
        import torch

        return torch.compile(target, backend=self.backend, **options)


@dataclasses.dataclass(frozen=True)
class Program:
    name: str
    function: typing.Callable
    backend: str | None
    needs: tuple[str, ...]  # packages; a machine without one does not run the program
    is_quick: bool  # also part of the short table
    reopen: typing.Callable | None  # reads the files that the program left, without cgdebug


PROGRAMS: dict[str, Program] = {}


def program(*backends: str, needs: str = "", quick: bool = True, reopen=None):
    """Puts a function into the table, once per backend; a backend in brackets is left out of the short table."""

    def add(function):
        for backend in backends or (None,):
            is_quick = quick and not (backend or "").startswith("(")
            backend = backend and backend.strip("()")
            name = function.__name__ + (f"[{backend}]" if backend else "")
            packages = tuple(needs.split())
            PROGRAMS[name] = Program(name, function, backend, packages, is_quick, reopen)
        return function

    return add
