"""Acts on modules of other packages as soon as they have been imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import typing

from ._fail_soft import guard


def call_after_import(name: str, action: typing.Callable[[typing.Any], object]) -> None:
    """Calls action(module) once: now if module `name` has been imported, else when its import ends.
    An exception of `action` is printed: that import goes on."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is None:
        sys.meta_path.insert(0, _After(name, action))
    elif isinstance(spec, _Initializing):
        spec.__dict__["_cgdebug_actions"].append(action)
    elif getattr(spec, "_initializing", False) and type(spec) is importlib.machinery.ModuleSpec:
        spec.__dict__["_cgdebug_actions"] = [action]
        spec.__class__ = _Initializing
    else:
        _act(action, module)


def _act(action, module) -> None:
    with guard(f"after the import of {module.__name__}"):
        action(module)


def constant_in_traces(function):
    """`torch.compiler.assume_constant_result`, which imports the compiler: it takes as long as the
    rest of torch, and most jobs compile nothing."""
    call_after_import("torch._dynamo", lambda dynamo: dynamo.assume_constant_result(function))
    return function


class _Initializing(importlib.machinery.ModuleSpec):
    """The spec of a module whose import is under way. Python sets `_initializing` to False when
    that import ends, well or not."""

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name != "_initializing" or value:
            return
        actions = self.__dict__.pop("_cgdebug_actions")
        self.__class__ = importlib.machinery.ModuleSpec  # type: ignore[assignment]
        failed = getattr(sys.modules.get(self.name), "__spec__", None) is not self
        for action in actions:
            call_after_import(self.name, action) if failed else _act(action, sys.modules[self.name])


class _After(importlib.abc.MetaPathFinder):
    def __init__(self, name, action):
        self._name = name
        self._action = action

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self._name:
            return None
        later = sys.meta_path[sys.meta_path.index(self) + 1 :]  # there may be more of this class
        finds = (getattr(finder, "find_spec", None) for finder in later)  # old finders have none
        found = (find(fullname, path, target) for find in finds if find is not None)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                # A loader may be of several modules.
                if self in sys.meta_path and module.__name__ == self._name:
                    # A new list: another thread may be going through this one.
                    sys.meta_path = [one for one in sys.meta_path if one is not self]
                    _act(self._action, module)

            spec.loader.exec_module = exec_module
        return spec
