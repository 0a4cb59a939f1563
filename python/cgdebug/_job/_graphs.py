"""Follows every torch.cuda.CUDAGraph of the process.

For `cgdebug-cli graphs`, and so that libprobe knows when the memory of a graph's probes may be
freed. Torch 2.14 and later call hooks when a graph is captured, instantiated and replayed. In
earlier ones the methods of torch.cuda.CUDAGraph are wrapped.

Every replay of a graph that was announced must be counted before it is launched: libprobe frees the
memory of its probes when as many replays have finished as were counted. If the count is too high,
or if others may launch the graph as well, the memory stays until the process ends.

Nothing here may disturb the job. What fails is left out, and a user object of CUDA then tells
libprobe of the graph's end.
"""

from __future__ import annotations

import contextlib
import functools
import typing
import weakref

from .._shared import _site, _torch_logs
from . import _graph_dumps

_HOOKS = (
    "register_graph_capture_start_hook",
    "register_graph_capture_end_hook",
    "register_graph_instantiate_hook",
    "register_graph_replay_start_hook",
)
_HANDLES = ("raw_cuda_graph", "raw_cuda_graph_exec")  # methods that show what CUDA can launch
_native: typing.Any = None
_watched = None  # the class that is watched
_handles: list = []  # of torch's hooks
_capturing: set = set()  # the announced captures that are under way
# Whether torch's current stream is capturing, whoever began it: Warp, CuPy and CUDA's own calls
# announce nothing.
_is_capturing: typing.Callable[[], bool] = bool
_live: dict = {}  # by announced graph: the number of its capture
# By whom a framework names each graph whose capture begins, where one label is for several graphs.
name_graph: typing.Callable[[], str] | None = None
# What a framework captures first in each graph whose capture begins. It does not raise.
begin_graph: typing.Callable[[], None] | None = None


def watch(native) -> None:
    """Follows the graphs that are captured from now on.

    Does nothing the second time, or for a torch without CUDA graphs."""
    global _native, _watched, _is_capturing
    import torch

    graph_class = getattr(torch.cuda, "CUDAGraph", None)
    if _watched is not None or graph_class is None:
        return
    _native, _watched = native, graph_class
    _is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", _is_capturing)
    with contextlib.suppress(AttributeError, TypeError):  # a torch that is built differently
        # One word counts the replays of all graphs that were captured before.
        graph_class._cgdebug_graph = None
        graph_class._cgdebug_capture = 0
        graph_class._cgdebug_count = native.count_unlisted
        _wrap_handles(graph_class)
        hooks = _hooks_of_torch()
        if hooks is None:
            _wrap(graph_class)
        else:
            _wrap_end(graph_class, told=True)
            _wrap_reset(graph_class)
            _wrap_begin(graph_class, told=True)
            _register(*hooks)
    with contextlib.suppress(Exception):
        _graph_dumps.watch(native, torch)


def captured() -> list[int]:
    """The numbers of the captures whose graphs live."""
    return [capture for known, capture in list(_live.items()) if known not in _capturing]


def _hooks_of_torch():
    import torch

    module = getattr(torch.cuda, "graphs", None)
    hooks = [getattr(module, name, None) for name in _HOOKS]
    return None if None in hooks else hooks


def _register(at_start, at_end, at_instantiate, at_replay) -> None:
    import torch

    _handles[:] = [
        at_replay(_replays),  # first: a graph is announced only if its replays are counted
        at_instantiate(_set_pool),
        at_start(_began),
    ]
    if end_of_captures(torch.cuda.CUDAGraph) == "capture_end":
        _handles.append(at_end(_ended))


def _replays(graph) -> None:
    if not _becomes_part_of_a_capture(graph):
        graph._cgdebug_count()


def _wrap(graph_class) -> None:
    torch_replay = graph_class.replay
    replay = _without_detour(torch_replay)

    @functools.wraps(torch_replay)
    def counted_replay(self):
        if _becomes_part_of_a_capture(self):
            return replay(self)
        self._cgdebug_count()
        try:
            return replay(self)
        except RuntimeError as error:
            counted = self._cgdebug_graph
            if counted is not None and _torch_refused(error, launcher):
                counted.take_back()
            raise

    launcher = torch_replay if replay is torch_replay else counted_replay
    graph_class.replay = counted_replay
    _wrap_end(graph_class, told=False)
    _wrap_reset(graph_class)
    _wrap_begin(graph_class, told=False)  # last: now every replay is counted


def _wrap_begin(graph_class, told: bool) -> None:
    """`told`: a hook reports the captures that begin."""
    begin = graph_class.capture_begin

    @functools.wraps(begin)
    def capture_begin(self, *args, **kwargs):
        # CUDAGraph.pool() says it when the capture has ended.
        self._cgdebug_pool = args[0] if args else kwargs.get("pool")
        begin(self, *args, **kwargs)
        if not told:
            _began(self)

    graph_class.capture_begin = capture_begin


def _without_detour(replay):
    """The method of torch's base class, if torch's own only calls it.

    That saves the CPU about what counting costs."""
    import torch

    native = getattr(torch._C, "_CUDAGraph", None)
    code = getattr(replay, "__code__", None)
    if code is None or code.co_names != ("super", "replay") or code.co_argcount != 1:
        return replay
    return getattr(native, "replay", replay)


def end_of_captures(graph_class) -> str:
    """The method with which every capture ends. From torch 2.15 on capture_end() calls it, and a
    program may call it alone, to look at the graph before it goes on."""
    return "capture_end_pre" if hasattr(graph_class, "capture_end_pre") else "capture_end"


def _wrap_end(graph_class, told: bool) -> None:
    """`told`: a hook reports the captures that end well."""
    name = end_of_captures(graph_class)
    end = getattr(graph_class, name)

    @functools.wraps(end)
    def end_of_capture(self):
        nodes = None if told else _count_nodes()
        try:
            end(self)
        except BaseException:
            if self._cgdebug_graph in _capturing:
                _end(self, None, failed=True)
            raise
        if name == "capture_end_pre":
            _ended(self)
        elif not told:
            _end(self, nodes)
            _set_pool(self)

    setattr(graph_class, name, end_of_capture)


def _wrap_reset(graph_class) -> None:
    """Torch's own hook for it also runs when the process ends, and says nothing about which."""
    reset = graph_class.reset

    @functools.wraps(reset)
    def forgetting_reset(self):
        reset(self)
        _forget(self)

    graph_class.reset = forgetting_reset


def _wrap_handles(graph_class) -> None:
    """Whoever has such a handle may launch the graph past replay()."""
    for name in _HANDLES:
        method = getattr(graph_class, name, None)
        if method is None:
            continue

        @functools.wraps(method)
        def raw(self, *args, _method=method, **kwargs):
            _share(self)
            return _method(self, *args, **kwargs)

        setattr(graph_class, name, raw)


def _share(graph) -> None:
    if graph._cgdebug_graph is not None:
        graph._cgdebug_graph.share()


def _becomes_part_of_a_capture(graph) -> bool:
    """Whether replay() does not launch the graph now, but makes it part of one that is captured."""
    try:
        if not _is_capturing():
            return False
    except Exception:
        pass  # not known
    _share(graph)
    return True


def _torch_refused(error, launcher) -> bool:
    """Whether the Python method that launches raised it: then the graph was not launched."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code is getattr(launcher, "__code__", None)


def _began(graph) -> None:
    if name_graph is not None:
        with contextlib.suppress(Exception):
            _native.set_graph_label(name_graph(), True)
    with contextlib.suppress(Exception):  # for probes in the bodies of conditional nodes
        _native.note_root_capture(_current_stream())
    with contextlib.suppress(Exception):
        _forget(graph)
        capture = graph._cgdebug_capture = _native.capture_of(_current_stream())
        if capture == 0:
            return
        known = _native.graph_begin(capture, _site.stack())
        if known is None:
            return
        try:
            pool = getattr(graph, "_cgdebug_pool", None)
            if pool is not None:
                known.pool(*pool)
            end = weakref.finalize(graph, _gone, known)
            end.atexit = False  # when the process ends, graphs stay as they were
            graph._cgdebug_count = known.counter()
            graph._cgdebug_end = end
            graph._cgdebug_graph = known
            _capturing.add(known)
            _live[known] = capture
        except BaseException:
            known.share()  # not every replay would be counted
            raise
    if begin_graph is not None:
        begin_graph()


def _ended(graph) -> None:
    """Called while the captured cudaGraph_t lives."""
    nodes = None
    with contextlib.suppress(Exception):
        raw = getattr(type(graph).raw_cuda_graph, "__wrapped__", type(graph).raw_cuda_graph)
        nodes = _native.graph_nodes(graph=raw(graph))
    _end(graph, nodes)


def _end(graph, nodes, failed=False) -> None:
    known = graph._cgdebug_graph
    if known is not None:
        _capturing.discard(known)
        if failed:
            _live.pop(known, None)
        known.end(nodes, failed)
    if not failed and graph._cgdebug_capture:
        with contextlib.suppress(Exception):
            _torch_logs.probes_captured(graph._cgdebug_capture)


def _set_pool(graph) -> None:
    with contextlib.suppress(Exception):  # the graph may not be instantiated yet
        graph._cgdebug_graph.pool(*graph.pool())


def _forget(graph) -> None:
    with contextlib.suppress(Exception):
        if graph._cgdebug_graph is not None:
            graph._cgdebug_graph, graph._cgdebug_count = None, _native.count_unlisted
            graph._cgdebug_end()


def _gone(known) -> None:
    _capturing.discard(known)
    _live.pop(known, None)
    known.gone()


def _current_stream() -> int:
    import torch

    return torch.cuda.current_stream().cuda_stream


def _count_nodes() -> int | None:
    with contextlib.suppress(Exception):
        return _native.graph_nodes(stream=_current_stream())
    return None
