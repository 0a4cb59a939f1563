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
    on_gpu: bool = False

    @property
    def how(self) -> dict:
        """The options of compile(): on a GPU Inductor makes CUDA graphs of what it compiles."""
        if self.on_gpu and self.backend == "inductor":
            return {"mode": "reduce-overhead"}
        return {"backend": self.backend}

    @property
    def calls(self) -> int:
        """How often it calls compiled code: a CUDA graph is recorded in the second call."""
        return 4 if self.on_gpu else 1

    def compile(self, target, **options):
        import torch

        return torch.compile(target, **self.how, **options)

    def keep(self, value):
        """A copy: the next replay of a CUDA graph overwrites its outputs."""
        import torch

        if isinstance(value, torch.Tensor):
            return value.detach().clone()
        if isinstance(value, dict):
            return {name: self.keep(item) for name, item in value.items()}
        return [self.keep(item) for item in value] if isinstance(value, (list, tuple)) else value


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
