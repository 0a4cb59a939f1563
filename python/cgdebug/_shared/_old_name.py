"""`import torch_cudagraph_debug` gives cgdebug where no package of that name is installed."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import typing

_OLD = "torch_cudagraph_debug"
_OWN = (__package__ or "").rpartition(".")[0] or "cgdebug"


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The last of sys.meta_path: a package that is installed comes first."""

    def __init__(self):
        self._specs: dict[str, typing.Any] = {}

    def find_spec(self, fullname, path=None, target=None):
        if fullname != _OLD and not fullname.startswith(f"{_OLD}."):
            return None
        own = _OWN + fullname[len(_OLD) :]
        try:
            found = importlib.util.find_spec(own)
        except ImportError:
            found = None
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=is_package)

    def create_module(self, spec):
        module = importlib.import_module(_OWN + spec.name[len(_OLD) :])
        self._specs[module.__name__] = module.__spec__
        return module

    def exec_module(self, module) -> None:
        """The import has given it the spec of the old name."""
        module.__spec__ = self._specs.pop(module.__name__)


def answer() -> None:
    """From now on the old name is found. May be called again."""
    if not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.append(_Finder())
