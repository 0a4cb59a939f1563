"""Acts on modules of other packages as soon as they have been imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import typing


def call_after_import(name: str, action: typing.Callable[[typing.Any], object]) -> None:
    """Calls action(module) once: now if module `name` has been imported, else when its import ends.
    An exception of `action` fails that import. Requires: that import is not under way."""
    if name in sys.modules:
        action(sys.modules[name])
    else:
        sys.meta_path.insert(0, _After(name, action))


class _After(importlib.abc.MetaPathFinder):
    def __init__(self, name, action):
        self._name = name
        self._action = action

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self._name:
            return None
        spec = next(filter(None, (self._ask(one, path, target) for one in sys.meta_path)), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self._action(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _ask(self, finder, path, target) -> importlib.machinery.ModuleSpec | None:
        return None if finder is self else finder.find_spec(self._name, path, target)
