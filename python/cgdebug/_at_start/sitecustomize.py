"""Python runs this when it starts in a job of `cgdebug-cli run --watch` or `--blocking`, which puts
this folder in front of PYTHONPATH. It imports the package, which starts what the variables ask for,
and then runs the sitecustomize that Python would have run."""

import importlib
import importlib.util
import os
import sys
import typing

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _start() -> None:
    try:
        _import()
    except Exception as error:  # the job goes on
        print(f"cgdebug: nothing of this process is watched: {error}", file=sys.stderr)


def _import() -> None:
    """The job's own cgdebug, else the one that this file belongs to."""
    try:
        import cgdebug._job._auto  # noqa: F401  a folder may have the name cgdebug, too
    except ImportError:
        folder = os.path.dirname(_FOLDER)
        spec: typing.Any = importlib.util.spec_from_file_location(
            "cgdebug", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        sys.modules["cgdebug"] = package = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)


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
