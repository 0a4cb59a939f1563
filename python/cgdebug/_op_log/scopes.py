"""Who wants op logs, and the captures and eager runs that they come from."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
import typing
import weakref

import torch

from .._job import _graphs, _native
from .._job._fail_soft import reason_of
from .._shared import _torch_logs, _words
from .._watching.modules import is_selected
from . import audit, names, node_order, padding, regions, threads
from .capture_cost import CaptureCost
from .extras import Extras, Values
from .following import CollectorStopped, Followed
from .input_ends import InputEnds
from .options import LogOptions
from .outputs import OutputRecorder
from .recorder import Recorder
from .rows import OpLog
from .rows.gaps import ACCOUNT, GapRows

# What a recorder, and its KernelRows, do while the job waits.
_TIMED = ("before", "after", "end")
_TIMED_OF_KERNELS = ("begin", "will_read", "will_write", "guard", "wrote", "wrote_unseen")
_lock = threading.RLock()
_scopes: list[Scope] = []  # open ones; those with eager logs in the order of opening
_wrapped = False
_logged: set[int] = set()  # captures that a scope followed
_job_gaps = GapRows("job")


class _OnThread(threading.local):
    own_logs = 0  # eager logs of ops that the program has opened here
    capture: _Following | None = None  # of what this thread captures


_on_thread = _OnThread()


class Scope:
    """While a scope is open, each capture gets an op log; with `eager`, so does what runs eagerly
    on this thread, call after call. One log serves all scopes that want it. A thread that has
    opened scopes captures for these, and for those of a watch, alone.

    model:  names the modules; further models are named when they are first called
    select: globs of modules of `model`, whose rows alone are wanted; "*": the rows of all modules,
            and those that are in none
    by_call: what runs on other threads that call the model is logged too, and where calls begin is
             told by model_is_called() and begin_call(). It waits while the program has an eager log
             of ops of its own on a thread: a call has one number, and is in one log.
    log:     of what runs eagerly on this thread; else it makes one
    """

    def __init__(
        self,
        model: torch.nn.Module | None,
        select: str,
        options: LogOptions,
        extras: Extras,
        *,
        eager: bool,
        by_call: bool = False,
        log: OpLog | None = None,
    ):
        _native.load()
        self.options, self.extras, self.by_call = options, extras, by_call
        self.every = options.replays()
        self.values = Values(self.every)
        self.lines = options.lines()
        self.model = None if model is None else weakref.ref(model)
        self.owner: object = None  # a watch, which is of the whole job; is kept alive
        self._thread = 0  # that opened it
        self._select = select
        self.logs: list[OpLog] = []
        self.costs: list[CaptureCost] = []  # of the captures so far
        self._eager = eager
        self._eager_log = log
        self.logs += [] if log is None else [log]
        self._following: _Following | None = None
        # `is_first`: this thread opened the log; by_call: `one`, what follows another one
        self._here = threading.local()
        self._of_threads: set[_Following] = set()  # by_call: those of other threads
        self._free_logs: list[OpLog] = []  # of threads that have ended
        self._threads: threads.Watcher | None = None  # by_call
        self.is_forked = False
        self.captured_before: list[int] = []  # live graphs that nobody logs

    def open(self) -> None:
        regions.follow()
        with _lock:
            _wrap_captures()
            self._thread = threading.get_ident()
            _scopes.append(self)
            if self.owner is not None:
                self.captured_before = [
                    capture for capture in _graphs.captured() if capture not in _logged
                ]
        _job_gaps.tell(map(captured_before, self.captured_before))
        if self._eager:
            try:
                self._open_eager()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """What is captured from now on is not logged. The logs stay."""
        with _lock:
            if self in _scopes:
                _scopes.remove(self)
        self.owner = None
        if self._threads is not None:
            self._threads.close()
        following, self._following = self._following, None
        for one in list(self._of_threads):
            one.end()
        if following is not None:
            following.end()
            if self._is_own_log():
                _own_log_ends()

    def is_of_this_thread(self) -> bool:
        return self.owner is None and self._thread == threading.get_ident()

    def _is_own_log(self) -> bool:
        return not self.by_call and self.options.level != "graph"

    def model_is_called(self, hooks_are_late: bool) -> None:
        """Must be called before each call of the model: what runs eagerly from here on is another
        replay. Does nothing inside a call of it. hooks_are_late: the scope was opened by a hook of
        this call, which had chosen its hooks before."""
        following, model = self._followed_here(), self.model and self.model()
        if following is None or model is None:
            return
        if hooks_are_late:
            following.enter_module(model)
            following.has_root = True
        elif not names.is_running(model):
            following.root_is_called()

    def take_model(self, model: torch.nn.Module, was_none: bool = False) -> None:
        """Calls are those of `model` from now on. was_none: what was called so far was no model, so
        that the call under way may be that of this one."""
        self.model = weakref.ref(model)
        following = self._followed_here()
        if following is not None:
            following.take_model(was_none)

    def begin_call(self) -> None:
        """What runs eagerly on this thread from here on is another call."""
        following = self._followed_here()
        if following is not None:
            following.next_run()
            following.has_begun = True

    def end_call(self) -> None:
        """A framework's batch has ended. What runs up to the next call of the model is of it."""
        following = self._followed_here()
        if following is not None:
            following.has_root = True

    def _followed_here(self) -> _Following | None:
        """What follows this thread. It begins to if it does not yet."""
        first = self._following
        if first is None or self._is_first_here():
            return first
        known = getattr(self._here, "one", None)
        if known is None:
            known = self._here.one = _OfThread(self, first)
        return known.following

    def _is_first_here(self) -> bool:
        """Whether this is the thread that opened the log. Another one may have its number later."""
        return getattr(self._here, "is_first", False)

    def _followed_already(self) -> _Following | None:
        """What follows this thread, if anything does."""
        first = self._following
        if first is None or self._is_first_here():
            return first
        known = getattr(self._here, "one", None)
        return known and known.following

    def forked(self) -> None:
        """In a child process: it logs nothing."""
        self.is_forked = True
        for one in (self._following, *self._of_threads):
            if one is not None:
                one.stop()

    def wants(self, path: str, modules: names.ModuleNames) -> bool:
        """Whether the rows of the module with this path are wanted; "": those in no module."""
        if self._select == "*":
            return True
        model, name = modules.owner_of(path)
        mine = self.model and self.model()
        return bool(name) and model is not None and model is mine and self._matches(name)

    def _matches(self, name: str) -> bool:
        return is_selected(name, self._select)

    def forget(self) -> None:
        """Closes the logs: the graphs replay on without them."""
        self.close()
        self.values.close()
        logs, self.logs = self.logs, []
        self._eager_log = None
        for log in logs:
            if not any(log in other.logs for other in _scopes):
                log.close()

    def _open_eager(self) -> None:
        if self._eager_log is None:
            self._eager_log = OpLog(graph=0)
            self.logs.append(self._eager_log)
        else:
            self._eager_log.begin_run()
        cost = CaptureCost(graph=0)
        self._here = threading.local()
        self._here.is_first = True
        self._following = _Following([self], self._eager_log, captured=False, cost=cost)
        if self._is_own_log():
            _own_log_begins()
        if self.by_call:
            self._threads = threads.Watcher(self._is_followed_here, _tell_of_job)
            self._threads.open()

    def _is_followed_here(self) -> bool:
        return self._is_first_here() or getattr(self._here, "one", None) is not None


class _OfThread:
    """Follows the thread that makes it, as long as that lives."""

    def __init__(self, scope: Scope, first: _Following):
        self._scope = weakref.ref(scope)
        with _lock:
            log = scope._free_logs.pop() if scope._free_logs else None
        if log is None:
            log = OpLog(graph=0)
            scope.logs.append(log)
        log.begin_run()
        self.following = _Following([scope], log, False, CaptureCost(graph=0), beside=first)
        scope._of_threads.add(self.following)

    def __del__(self):
        self.following.end()
        scope = self._scope()
        if scope is not None:
            scope._of_threads.discard(self.following)
            scope._free_logs.append(self.following.log)


def valid_rows_are_told(marks: padding.Marks) -> None:
    """Those who follow this thread in the middle of a call take them for it; others for the next
    one."""
    with _lock:
        scopes = list(_scopes)
    for scope in scopes:
        following = scope._followed_already()
        if following is not None:
            following.take_marks(marks)


def captured_here() -> _Following | None:
    """What follows the capture of this thread, if anything does."""
    return _on_thread.capture


def _own_log_begins() -> None:
    _on_thread.own_logs += 1
    for following in _by_call_here():
        following.pause()


def _own_log_ends() -> None:
    _on_thread.own_logs -= 1
    if not _on_thread.own_logs:
        for following in _by_call_here():
            following.resume()


def _by_call_here() -> list[_Following]:
    """What follows this thread for scopes by call."""
    with _lock:
        scopes = [scope for scope in _scopes if scope.by_call]
    return [one for one in (scope._followed_already() for scope in scopes) if one is not None]


def _tell_of_job(gap: str) -> None:
    _job_gaps.tell([gap])
    _native.not_seen(ACCOUNT, gap)


def captured_before(capture: int) -> str:
    return (
        f"capture {capture} was made before the watch, so it has no op log: watch() before the "
        f"first capture"
    )


class _Following:
    """A mode that is entered on this thread, with the hooks that tell it the modules.

    beside: follows another thread with the same names and hooks
    """

    def __init__(
        self,
        scopes: list[Scope],
        log: OpLog,
        captured: bool,
        cost: CaptureCost,
        beside: _Following | None = None,
    ):
        self.thread = threading.get_ident()
        self.has_root = False  # whether the model was called in this call
        self.has_begun = False  # whether a framework began this call, and has not called the model
        self._root: weakref.ref | None = None  # of a scope that is not told, see _begins()
        modules = beside._names if beside else names.ModuleNames(max(one.lines for one in scopes))
        self._names: names.ModuleNames = modules
        for scope in () if beside else scopes:
            model = scope.model and scope.model()
            if model is not None:
                modules.add_model(model)
        self.log = log
        self._by_call = any(scope.by_call for scope in scopes)
        if not captured and not self._by_call and scopes[0].model is not None:
            self._root = scopes[0].model
        self.recorder = self._recorder_of(scopes, captured, cost)
        begins = None if captured else self._begins
        self._followed = Followed(self.recorder, modules, begins, is_beside=beside is not None)

    def _recorder_of(self, scopes: list[Scope], captured: bool, cost: CaptureCost) -> Recorder:
        levels = {scope.options.level for scope in scopes}
        given = (
            self.log,
            self._names,
            lambda path: any(scope.wants(path, self._names) for scope in scopes),
            captured,
            levels != {"op"},  # level "graph" must know whatever is written
        )
        recorder = (
            OutputRecorder(*given, has_ops=levels != {"graph"})
            if "graph" in levels
            else Recorder(*given)
        )
        recorder.writer.is_paused = not captured and self._by_call and _on_thread.own_logs > 0
        recorder.kernels.has_pre = any(scope.options.pre for scope in scopes)
        recorder.steps.ends_with_step = (
            not captured and self._by_call and scopes[0].model is not None
        )
        recorder.steps.begins_after_step = not captured and not self._by_call
        recorder.steps.on_step = self.forget_root
        recorder.writer.input_ends = InputEnds() if captured else None
        recorder.writer.looks_again = not captured and _words.setting("CGDEBUG_OP_LOG_READS") == "1"
        recorder.writer.added.values = scopes[0].values
        recorder.writer.added.extras = Extras.joined([scope.extras for scope in scopes])
        for one, timed in ((recorder, _TIMED), (recorder.kernels, _TIMED_OF_KERNELS)):
            for name in timed:
                setattr(one, name, cost.timed(getattr(one, name)))
        return recorder

    def next_run(self) -> None:
        self.recorder.next_run()

    def hold(self, capture: int, graph) -> audit.Holdings:
        """From here on it is kept which memory ops are given."""
        holdings = audit.Holdings(capture, self._names, graph)
        self.recorder.writer.holdings = holdings
        return holdings

    def take_marks_of_capture(self) -> None:
        """Those that were told while it was captured."""
        self.recorder.take_marks(padding.newest())

    def take_marks_inside(self, make) -> None:
        """Those that make() makes are computed by each replay."""
        self.recorder.take_marks_inside(make)

    def take_marks(self, marks: padding.Marks) -> None:
        """In front of the next call of the model they are of that one."""
        if not self.has_root or self.has_begun or names.is_inside():
            self.recorder.take_marks(marks)

    def forget_root(self) -> None:
        self.has_root = False

    def take_model(self, was_none: bool) -> None:
        self.recorder.steps.ends_with_step = True
        if was_none:
            self.forget_root()

    def _begins(self, module: torch.nn.Module) -> None:
        """A module is about to be called that is in no other one."""
        if threading.get_ident() != self.thread or self._by_call:
            return
        if self._root is None:
            self._root = weakref.ref(module)
        if self._root() is module:
            self.root_is_called()

    def root_is_called(self) -> None:
        if self.has_root or self.recorder.steps.is_of_other_step():
            self.next_run()
        self.has_root, self.has_begun = True, False

    def pause(self) -> None:
        """Another log has what runs from here on, until resume()."""
        self.next_run()
        self.recorder.writer.is_paused = True

    def resume(self) -> None:
        self.recorder.writer.is_paused = False
        self.forget_root()

    def stop(self) -> None:
        self.recorder.writer.is_done = True

    def enter_module(self, module: torch.nn.Module) -> None:
        if self._followed.hooks is not None:
            self._followed.hooks.enter(module)

    def end(self) -> None:
        self._followed.end()


# --- captures -------------------------------------------------------------------------------------


def scopes_of_capture() -> list[Scope]:
    """For which this thread captures."""
    with _lock:
        scopes = list(_scopes)
    if any(one.is_of_this_thread() for one in scopes):
        return [one for one in scopes if one.owner is not None or one.is_of_this_thread()]
    return scopes


def _wrap_captures() -> None:
    """Stays for good: without a scope it does nothing. Requires: _lock."""
    global _wrapped
    graph_class: typing.Any = getattr(torch.cuda, "CUDAGraph", None)
    if _wrapped or not hasattr(graph_class, "capture_begin"):
        return
    _wrapped = True
    name = _graphs.end_of_captures(graph_class)
    begin, end = graph_class.capture_begin, getattr(graph_class, name)

    @functools.wraps(begin)
    def capture_begin(self, *args, **kwargs):
        _end_of(self, failed=True)  # of a capture that nobody ended
        audit.forget_graph(self)
        scopes = scopes_of_capture()
        if not scopes:
            return begin(self, *args, **kwargs)
        collector = CollectorStopped()
        try:
            begin(self, *args, **kwargs)
        except BaseException:
            collector.end()
            raise
        self._cgdebug_ops = _Capture(self, scopes, collector)

    @functools.wraps(end)
    def end_of_capture(self):
        capture = _end_of(self, failed=False)
        try:
            end(self)
        except BaseException as error:
            if capture is not None:
                capture.tell_broken(error)
                capture.drop()
            raise
        finally:
            if capture is not None:
                capture.collector.end()
        if capture is not None and capture.holdings is not None and capture.log is not None:
            audit.keep(capture.holdings)

    graph_class.capture_begin = capture_begin
    setattr(graph_class, name, end_of_capture)


class _Capture:
    def __init__(self, graph, scopes: list[Scope], collector: CollectorStopped):
        self._scopes = scopes
        self.collector = collector
        self.log: OpLog | None = None
        self.cost = CaptureCost(graph=0)
        self.following: _Following | None = None
        self.recorder: Recorder | None = None
        self.holdings: audit.Holdings | None = None
        # A graph whose capture nobody ends, because of an exception, must not leave the mode there.
        self._abandoned = weakref.finalize(graph, self.give_up)
        self._abandoned.atexit = False
        try:
            number = _native.probe_module().capture_of(torch.cuda.current_stream().cuda_stream)
            if number == 0:
                return
            _logged.add(number)
            self.log = OpLog(number, math.gcd(*(scope.every for scope in scopes)))
            self.cost = CaptureCost(number)
            self.following = _Following(scopes, self.log, captured=True, cost=self.cost)
            self.recorder = self.following.recorder
            _on_thread.capture = self.following
            self.holdings = self.following.hold(number, graph)
            for scope in scopes:
                scope.logs.append(self.log)
            forget = weakref.finalize(graph, audit.forget, number)
            forget.atexit = False
            close = weakref.finalize(graph, self.log.close)
            close.atexit = False  # when the process ends, graphs stay as they were
        except Exception as error:  # the capture goes on
            _log_failure(error)
            _job_gaps.tell([f"the ops of a capture are not logged: {reason_of(error)}"])

    def give_up(self) -> None:
        self.end()
        self.drop()
        self.collector.end()

    def end(self) -> None:
        self._abandoned.detach()
        following, self.following = self.following, None
        if following is None:
            return
        if _on_thread.capture is following:
            _on_thread.capture = None
        try:
            following.take_marks_of_capture()
            following.end()
        except Exception as error:
            _log_failure(error)
            _job_gaps.tell([f"the end of a capture is not logged: {reason_of(error)}"])
        if self.log is None:
            return
        if not self.log.rows:
            _job_gaps.tell(f"capture {self.log.graph}: {gap}" for gap in self.log.gaps)
            self.drop()
            self.holdings = None  # nobody knows what its ops were given
            return
        try:
            if self.holdings is not None:
                self.holdings.finish(self.log)
            self._tell(self.log)
        except Exception as error:
            _log_failure(error)

    def _tell(self, log: OpLog) -> None:
        self.cost.rows = len(log.rows)
        with contextlib.suppress(RuntimeError):
            stream = torch.cuda.current_stream().cuda_stream
            self.cost.nodes = _native.probe_module().graph_nodes(stream=stream)
        for scope in self._scopes:
            scope.costs.append(self.cost)
        _torch_logs.op_log_captured(log, self.cost)

    def tell_broken(self, error: BaseException) -> None:
        """The capture ended with it."""
        if self.log is None or self.recorder is None:
            return
        try:
            node_order.notes.tell_broken(self.log.graph, self.recorder.last_op.why_broken(error))
        except Exception as failure:
            _log_failure(failure)

    def drop(self) -> None:
        """The capture failed, or it has no row."""
        if self.log is not None:
            for scope in self._scopes:
                if self.log in scope.logs:
                    scope.logs.remove(self.log)
                if self.cost in scope.costs:
                    scope.costs.remove(self.cost)
            self.log.close()


def _end_of(graph, failed: bool) -> _Capture | None:
    capture = graph.__dict__.pop("_cgdebug_ops", None)
    if capture is not None:
        if failed:
            capture.give_up()
        else:
            capture.end()
    return capture


def _log_failure(error: Exception) -> None:
    logging.getLogger("cgdebug").warning("the ops of a capture are not logged: %s", error)
