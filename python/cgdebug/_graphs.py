"""Follows every torch.cuda.CUDAGraph of the process, for `cgdebug-cli graphs`.

Torch 2.14 and later call hooks when a graph is captured, instantiated and replayed. In earlier
versions the methods of torch.cuda.CUDAGraph are wrapped. An attribute of each graph says which word
of shared memory counts its replays, so that a replay costs one addition.

Nothing here may disturb the job: what fails is missing from the census.
"""

from __future__ import annotations

import contextlib
import functools
import os
import typing
import weakref

from . import _site

_HOOKS = (
    "register_graph_capture_start_hook",
    "register_graph_capture_end_hook",
    "register_graph_instantiate_hook",
    "register_graph_replay_start_hook",
)
_native: typing.Any = None
_counters: memoryview | list[int] = [0]  # in shared memory once a graph is captured
_counters_pid = 0
_watched = None  # the class that is watched
_handles: list = []  # of torch's hooks


def watch(native) -> None:
    """Follows the graphs that are captured from now on.

    Does nothing the second time, or for a torch without CUDA graphs."""
    global _native, _watched
    import torch

    graph_class = getattr(torch.cuda, "CUDAGraph", None)
    if _watched is not None or graph_class is None:
        return
    _native, _watched = native, graph_class
    try:
        # Graphs that were captured before share one word.
        graph_class._cgdebug_counter = 0
        graph_class._cgdebug_order = 0
        hooks = _hooks_of_torch()
        if hooks is None:
            _wrap(graph_class)
        else:
            _register(*hooks)
            _wrap_reset(graph_class)
    except (AttributeError, TypeError):  # a torch that is built differently
        return


def _hooks_of_torch():
    import torch

    module = getattr(torch.cuda, "graphs", None)
    hooks = [getattr(module, name, None) for name in _HOOKS]
    return None if None in hooks else hooks


def _register(at_start, at_end, at_instantiate, at_replay) -> None:
    _handles[:] = [
        at_start(_began),
        at_end(_ended),
        at_instantiate(_set_pool),
        at_replay(_replays),
    ]


def _replays(graph) -> None:
    _counters[graph._cgdebug_counter] += 1


def _wrap(graph_class) -> None:
    begin, end = graph_class.capture_begin, graph_class.capture_end
    replay = graph_class.replay

    @functools.wraps(begin)
    def capture_begin(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        _began(self)

    @functools.wraps(end)
    def capture_end(self):
        nodes = _count_nodes()
        try:
            end(self)
        except BaseException:
            _native.graph_end(self._cgdebug_order, None, True)
            raise
        _native.graph_end(self._cgdebug_order, nodes, False)
        _set_pool(self)

    @functools.wraps(replay)
    def counted_replay(self):
        _counters[self._cgdebug_counter] += 1
        replay(self)

    graph_class.capture_begin = capture_begin
    graph_class.capture_end = capture_end
    graph_class.replay = counted_replay
    _wrap_reset(graph_class)


def _wrap_reset(graph_class) -> None:
    """Torch's own hook for it also runs when the process ends, and says nothing about which."""
    reset = graph_class.reset

    @functools.wraps(reset)
    def forgetting_reset(self):
        reset(self)
        _forget(self)

    graph_class.reset = forgetting_reset


def _began(graph) -> None:
    with contextlib.suppress(Exception):
        _forget(graph)
        capture = _native.capture_of(_current_stream())
        if capture == 0:
            return
        order, counter = _native.graph_begin(capture, _site.stack())
        if order == 0:
            return
        _find_counters()
        graph._cgdebug_order, graph._cgdebug_counter = order, counter
        graph._cgdebug_end = weakref.finalize(graph, _native.graph_gone, order)
        graph._cgdebug_end.atexit = False  # when the process ends, graphs stay as they were


def _ended(graph) -> None:
    """Called while the captured cudaGraph_t lives."""
    nodes = None
    with contextlib.suppress(Exception):
        nodes = _native.graph_nodes(graph=graph.raw_cuda_graph())
    _native.graph_end(graph._cgdebug_order, nodes, False)


def _set_pool(graph) -> None:
    with contextlib.suppress(Exception):  # the graph may not be instantiated yet
        _native.graph_pool(graph._cgdebug_order, *graph.pool())


def _forget(graph) -> None:
    with contextlib.suppress(Exception):
        if graph._cgdebug_order != 0:
            graph._cgdebug_order = graph._cgdebug_counter = 0
            graph._cgdebug_end()


def _find_counters() -> None:
    global _counters, _counters_pid
    if _counters_pid != os.getpid():  # a forked child has a table of its own
        words = _native.graph_counters()
        if words is not None:
            _counters, _counters_pid = words, os.getpid()


def _current_stream() -> int:
    import torch

    return torch.cuda.current_stream().cuda_stream


def _count_nodes() -> int | None:
    with contextlib.suppress(Exception):
        return _native.graph_nodes(stream=_current_stream())
    return None
