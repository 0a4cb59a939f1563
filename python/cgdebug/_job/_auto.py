"""CGDEBUG_WATCH: watches the models of a program that does not call cgdebug.watch.

A model is a module with parameters that is not called from inside another watched one. There may be
several, such as the two of a GAN. Each is watched when it is first called. In a program that has
called none, a module with submodules or buffers is taken for one, as a quantized model is.

With CGDEBUG_WATCH_VALUES an op log keeps the values of the rows that it names.

With CGDEBUG_WATCH_SKETCHES the outputs of modules have sketches of their rows.

With CGDEBUG_WATCH_EAGER=1 an op log has what runs eagerly, too, on the threads that call the model.
A call begins where the framework says so, else with each call of the first model, or where another
step is set while no model was called. It ends with the step of an optimizer or with the next call.
In a program without a model it begins with the first op (_before_models.py).
`cgdebug-cli run --watch --eager` also keeps torch.compile from compiling.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing.util
import os
import sys
import threading
import typing
import warnings
import weakref

from .._shared import _words
from ..integrations.continuous_batching import label_graphs
from . import _fail_soft
from ._after_import import call_after_import

VARIABLE = "CGDEBUG_WATCH"
EAGER = "CGDEBUG_WATCH_EAGER"
VALUES = "CGDEBUG_WATCH_VALUES"
SKETCHES = "CGDEBUG_WATCH_SKETCHES"
_OF_GRAPHS = ("CGDEBUG_LAUNCH_BLOCKING", "CGDEBUG_RACES", "CGDEBUG_ASK", "CGDEBUG_REWIND")

_lock = threading.RLock()
_started = False
_known: weakref.WeakSet | None = None  # modules that need no further look
_told: set[tuple[str, str]] = set()  # the failures that were printed
_passed_over: str = ""  # the class of the first module that is no model
_found_model = False  # whether another was called
_found_parameters = False  # whether one with parameters was
# Of modules that are models only as long as none with parameters is called.
_stand_ins: weakref.WeakSet = weakref.WeakSet()
_eager: typing.Any = None  # the scope that logs what runs eagerly
_root_rank = -1  # of its model, see _rank()
# Of other models, since the first one was called.
_calls_beside: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_MOST_BESIDE = 16
_has_told_of_fork = False  # in this process
_has_told_of_workers = False
_framework_begins = False  # whether a framework says where calls begin
has_trainer = False  # whether a Trainer of transformers was made, which sets steps
_has_told = False  # what is watched


def is_wanted() -> bool:
    """Whether the variable asks for a watch."""
    return bool(_words.setting(VARIABLE))


def looks_at_graphs() -> bool:
    """Whether a variable asks for a watch, or for something else that looks at captured graphs."""
    return is_wanted() or any(_words.setting(name) not in ("", "0") for name in _OF_GRAPHS)


def keeps_values() -> bool:
    """Whether values or sketches leave the job, which rows of requests are compared by."""
    named = (VALUES, SKETCHES, "CGDEBUG_ON")
    return is_wanted() and any(_words.setting(name) for name in named)


def wanted() -> tuple[str, str]:
    """(level, globs) of the variable. Requires: is_wanted()."""
    return _words.watched(_words.setting(VARIABLE), VARIABLE)


def start() -> None:
    """Installs the hook as soon as torch is imported, once per process. Does nothing without the
    variable."""
    global _started
    if _started or not os.environ.get(VARIABLE):
        return
    _started = True
    call_after_import("torch", _install)


def _install(torch) -> None:
    global _known
    if not is_wanted():
        return
    from .._watching.compiled import leave_out_global_hooks

    _known = weakref.WeakSet()
    torch.nn.modules.module.register_module_forward_pre_hook(_before_call)
    # No module that is exported is watched: its program must not have a node of ours.
    leave_out_global_hooks(_before_call)
    # This hook works on an OptimizedModule: the warning does not apply.
    warnings.filterwarnings("ignore", r"Using `torch.compile\(module\)` when there are global ")
    compile_module = torch.nn.Module.compile

    @functools.wraps(compile_module)
    def compile_watched(self, *args, **kwargs):
        look_at(self)  # its later calls do not come here
        return compile_module(self, *args, **kwargs)

    torch.nn.Module.compile = compile_watched
    label_graphs()
    if _wants_eager(wanted()[0]):
        from .._op_log import threads

        threads.expect()
        if wanted()[1] == "*" and not _words.setting(VALUES):
            from . import _before_models

            _before_models.expect(_scope_of, _follow_eager)
        call_after_import("torch.utils.data.dataloader", _tell_of_workers)
    call_after_import("transformers.trainer", _add_to_trainers)
    call_after_import("accelerate.optimizer", _add_to_optimizers)
    call_after_import("accelerate.accelerator", _add_to_accelerators)
    call_after_import("megatron.core.pipeline_parallel.schedules", _add_to_schedules)


def _add_to_trainers(module) -> None:
    from ..integrations.transformers import add_to_trainers

    add_to_trainers(module.Trainer)


def _add_to_optimizers(module) -> None:
    from ..integrations.accelerate import add_to_optimizers

    add_to_optimizers(module.AcceleratedOptimizer)


def _add_to_accelerators(module) -> None:
    from ..integrations.accelerate import add_to_accelerators

    add_to_accelerators(module.Accelerator)


def _add_to_schedules(module) -> None:
    from ..integrations.megatron import add_to_schedules

    add_to_schedules(module)


def has_set_step(number: int | None) -> bool:
    """For frameworks that set steps: whether this one was set last, so that the program, or its
    Trainer, sets none itself."""
    from . import _native

    return not has_trainer and _native.current_step() == number


def _before_call(module, args) -> None:
    """A global hook, which Dynamo traces."""
    import torch

    if torch.compiler.is_compiling():
        return
    if _here.is_looking:  # a signal came, and its handler calls a model
        _here.passed_by = _here.passed_by or type(module).__name__
        return
    _here.is_looking = True
    try:
        _look_at_call(module)
    except Exception as error:  # the job goes on
        _fail(type(module).__name__, error)
    finally:
        _here.is_looking = False
        if _here.passed_by:
            _tell_of_signal()


class _Here(threading.local):
    is_looking = False  # this thread begins a watch, or looks whether it must
    passed_by = ""  # the class of a module that was called meanwhile


_here = _Here()


def _tell_of_signal() -> None:
    from . import _native

    name, _here.passed_by = _here.passed_by, ""
    _native.not_seen(name, "a signal's handler called it while a watch began")


def _look_at_call(module) -> None:
    had_scope = _eager is not None
    if had_scope and _eager.is_forked:
        _tell_of_fork(module)
    if module not in typing.cast(weakref.WeakSet, _known):
        model = _around(module)
        look_at(model)
        _begin_if_root(model)  # its hooks come too late for this call
    elif type(module).__name__ == "OptimizedModule":
        _begin_if_root(module)  # the hooks of the model in it are compiled
    if _eager is None:
        return
    if module is _root():
        _calls_beside.clear()
    elif not _takes_over(module):
        return
    if not had_scope or not _framework_begins:
        _eager.model_is_called(hooks_are_late=not had_scope)


def _takes_over(module) -> bool:
    """Whether calls of the log are from now on those of this model: the one that began them is
    gone, or is not called any more."""
    from .._op_log import names

    global _root_rank
    if names.is_inside() or type(module).__name__ == "OptimizedModule":
        return False
    if (rank := _rank(module)) == 0:
        return False
    _calls_beside[module] = _calls_beside.get(module, 0) + 1
    if _root() is not None and _calls_beside[module] < _MOST_BESIDE:
        return False
    _eager.take_model(module)
    _root_rank = rank
    _calls_beside.clear()
    return True


def _around(module):
    """The outermost module that has this one, and whose forward() the program has called."""
    from .._watching import direct

    known = typing.cast(weakref.WeakSet, _known)
    for outer, _ in direct.running():
        if outer not in known and any(one is module for one in outer.modules()):
            return outer
    return module


def _tell_of_fork(module) -> None:
    """A model is called in a child process, whose ops are not shown. Transformations, as workers of
    a DataLoader call them, are no models."""
    global _has_told_of_fork
    if not _has_told_of_fork and next(module.parameters(), None) is not None:
        from .._op_log.rows.gaps import ACCOUNT
        from . import _native

        _has_told_of_fork = True
        _native.not_seen(ACCOUNT, "ops of a process that was forked are not shown")


def _tell_of_workers(dataloader) -> None:
    """What they hand over is in rows of this process, "in/...", so its log is whole."""
    iterator = dataloader._MultiProcessingDataLoaderIter
    begin = iterator.__init__

    @functools.wraps(begin)
    def begin_told(self, *args, **kwargs):
        global _has_told_of_workers
        begin(self, *args, **kwargs)
        if not _has_told_of_workers:
            _has_told_of_workers = True
            count = self._num_workers
            which = "worker process" if count == 1 else f"{count} worker processes"
            _fail_soft.say(
                f"ops in the {which} of a DataLoader are not logged. What comes from there has "
                f"rows in/... where it is read. To log how it is made: num_workers=0"
            )

    iterator.__init__ = begin_told


def _begin_if_root(module) -> None:
    from .. import watching
    from .._watching import calls

    inner = getattr(module, "_orig_mod", module)
    if any(one._root() is inner and one._scope is None for one in list(watching._watches)):
        calls.begin(module)


def begin_call() -> None:
    """For frameworks: a batch begins. From now on calls of the model begin nothing."""
    global _framework_begins
    _framework_begins = True
    if _eager is not None:
        _eager.begin_call()
    else:
        from .._watching import calls

        calls.begin_by_framework()


def step_is_set() -> None:
    """By the program. An eager log need not wait for a module: there may be none."""
    if _known is None or _eager is not None or not _wants_eager(wanted()[0]):
        return
    from . import _before_models

    _before_models.end()
    try:
        scope = _scope_of()
        scope.owner = scope
        scope.open()
        _follow_eager(scope)
    except Exception as error:  # the job goes on
        _fail("what runs eagerly", error)


def _scope_of(log=None):
    """Of what runs eagerly, without a model."""
    from .._op_log.scopes import Scope

    level, select = wanted()
    options = _log_options(level)
    extras = options.check("watch")
    return Scope(None, select, options, extras, eager=True, by_call=True, log=log)


def _log_options(level: str):
    from .._op_log.options import LogOptions

    return LogOptions(level, values=(_words.setting(VALUES) or None) if _is_log(level) else None)


def _root():
    """The model whose calls are those of the log, if there is one."""
    return _eager.model and _eager.model()


def end_calls() -> None:
    """The framework's loop has ended."""
    global _framework_begins
    _framework_begins = False
    if _eager is not None:
        _eager.end_call()
    else:
        from .._watching import calls

        calls.end_by_framework()


def look_at(module, note: str = "") -> None:
    """Watches `module` as the variable asks, unless it is part of a model that is watched. A
    failure is printed, because the job goes on. `note`: what its explain() says as well.
    Requires: start() was called, torch is imported."""
    from . import _aside

    try:
        outer, watches = _watched_around(module)
        with _lock:
            if not watches:
                _aside.call(_watch, module, note)
            elif any(one is module for one in outer.modules()):  # else it was made in this call
                _aside.call(_take_in_new, watches)
    except Exception as error:
        _fail(type(module).__name__, error)


def _fail(name: str, error: Exception) -> None:
    from .. import watching
    from . import _native

    text = error.reason if isinstance(error, watching.NothingSelected) else str(error)
    is_new = (name, text) not in _told
    if is_new:
        _told.add((name, text))
        _fail_soft.say(f"{name} is not watched, as {VARIABLE} asks: {text}")
    if not isinstance(error, ValueError):  # such as a module that the variable does not select
        _native.not_seen(name, text)


def _is_log(level: str) -> bool:
    return level not in ("module", "fx")


def _wants_eager(level: str) -> bool:
    return _is_log(level) and _words.setting(EAGER) == "1"


def _watch(module, note: str) -> None:
    from .. import watching
    from .._watching.modules import modules_of
    from . import _before_models

    known = typing.cast(weakref.WeakSet, _known)
    if module in known:
        return
    known.add(module)
    global _root_rank, _found_model, _found_parameters
    level, select = wanted()
    wants_eager = _wants_eager(level)
    rank = _rank(module)
    if rank < 2 and not _is_model_without_parameters(rank, wants_eager):
        _pass_over(type(module).__name__)
        return
    _found_model = True
    if rank == 2:
        _found_parameters = True
        for stand_in in list(_stand_ins):
            stand_in.close()
    watched = {one for other in list(watching._watches) for one in other._known}
    modules = modules_of(module)[0]
    known.update(modules.values())
    if all(one in watched for one in modules.values()):  # the program watches it itself
        return
    _before_models.end()
    # One log has the ops of all models.
    eager = wants_eager and _eager is None
    made = watching.Watch(
        module,
        select,
        _log_options(level),
        sketches=int(_words.setting(SKETCHES) or 0) if level == "module" else 0,
        skip=watched,
        eager=eager,
    )
    made.leaves_others = True
    made.notes += (note,) * bool(note)
    if rank < 2 and level == "module":
        _stand_ins.add(made)
    if eager:
        _follow_eager(made._scope)
        _root_rank = rank
    elif wants_eager and (rank > _root_rank or _root() in modules.values()):
        # Its calls are those of the log: generate() calls the encoder of a model by itself, first.
        _eager.take_model(module, was_none=_root_rank < 1)
        _root_rank = rank
    _tell_what_is_watched(type(module).__name__)


def _rank(module) -> int:
    """How much a module that the program calls is like a model: 2, with parameters; 1, with
    submodules or buffers, as a quantized model is; 0, as a loss, a metric, or what looks at weights
    to quantize them."""
    if next(module.parameters(), None) is not None:
        return 2
    if type(module).__module__.startswith("torch.ao.quantization."):
        return 0
    has_parts = next(module.children(), None) is not None
    return int(has_parts or next(module.buffers(), None) is not None)


def _is_model_without_parameters(rank: int, wants_eager: bool) -> bool:
    """Else it is a loss, a metric or a transformation, maybe in a worker of a DataLoader. An eager
    log begins with anything."""
    from torch.utils.data import get_worker_info

    if wants_eager:
        return rank > _root_rank
    return rank == 1 and not _found_parameters and get_worker_info() is None


def _tell_what_is_watched(name: str) -> None:
    """Once, to who looks on. `cgdebug-cli run` tells it itself."""
    global _has_told
    is_of_run = "_at_start" in os.environ.get("PYTHONPATH", "")
    is_seen = sys.stderr is not None and sys.stderr.isatty() and not is_of_run
    if is_seen and not _has_told and os.environ.get("RANK", "0") == "0":
        _fail_soft.say(
            f"{name} is watched, as {VARIABLE} asks. In another terminal, or when it has ended, "
            "type: cgdebug-cli check"
        )
    _has_told = True


def _pass_over(name: str) -> None:
    """Of a program that has no other module it is said when the process ends."""
    global _passed_over
    if not _passed_over:
        atexit.register(_tell_passed_over)
    _passed_over = _passed_over or name


def _tell_passed_over() -> None:
    if not _found_model:
        _fail_soft.say(
            f"{_passed_over} is not watched, as {VARIABLE} asks: it has no parameters, "
            "submodules or buffers, as a model has. In the program, type: cgdebug.watch(model)"
        )


def _follow_eager(scope) -> None:
    """The last replay ends with the process."""
    global _eager
    _eager = scope
    atexit.register(scope.close)
    # A worker of multiprocessing ends without atexit.
    multiprocessing.util.Finalize(None, scope.close, exitpriority=10)
    os.register_at_fork(after_in_child=scope.forked)


def _take_in_new(watches: list) -> None:
    """What was put into a model since its watch began is watched, too."""
    known = typing.cast(weakref.WeakSet, _known)
    for one in watches:
        one.take_in_new()
        known.update(one._known)


def _watched_around(module) -> tuple[typing.Any, list]:
    """The innermost watched module whose call is running on this thread around that of `module`,
    with the watches that have it."""
    import torch

    from .. import watching

    code = torch.nn.Module._call_impl.__code__
    watches = [one for one in list(watching._watches) if one not in _stand_ins or _rank(module) < 2]
    frame: typing.Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code is code:
            outer = frame.f_locals.get("self")
            around = [one for one in watches if outer is not module and outer in one._known]
            if around:
                return outer, around
        frame = frame.f_back
    return None, []
