"""Python runs this when it starts in a job of `cgdebug-cli run --watch` or `--blocking`, which puts
this folder in front of PYTHONPATH. It starts what was asked for, and then the sitecustomize that
Python would have run."""

import importlib
import importlib.util
import os
import sys
import typing

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _start() -> None:
    for module, without in (
        ("_auto", "no model is watched"),
        ("_apart", "no graph is launched kernel by kernel"),
    ):
        try:
            _package()
            importlib.import_module(f"cgdebug._job.{module}").start()
        except Exception as error:  # the job goes on
            print(f"cgdebug: {without}: {error}", file=sys.stderr)


def _package():
    """The job's own cgdebug, else the one that this file belongs to."""
    try:
        import cgdebug._job._auto
    except ImportError:
        folder = os.path.dirname(_FOLDER)
        spec: typing.Any = importlib.util.spec_from_file_location(
            "cgdebug", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        sys.modules["cgdebug"] = package = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)
        import cgdebug._job._auto
    return cgdebug


def _run_next() -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _FOLDER]
    own = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", own)


_start()
_run_next()
