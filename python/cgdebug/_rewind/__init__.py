"""CGDEBUG_ASK and CGDEBUG_REWIND: what any op of a captured graph made, in a replay that is over or
in the next one, without a probe that was captured for it.

`cgdebug-cli ask` asks, mailbox.py takes the question, and the job answers it on its own thread in
front of its next replay of that graph (kept_graph.py). A replay that is over is run again
(past_replay.py): from a copy of the state that was kept before it (recorder.py), with the inputs
that each replay since had. What it leaves must have the bits that it left then; else there is no
answer.
"""

from __future__ import annotations

import typing

from .._job import _apart
from .._job._fail_soft import tell
from .._job._graph_dumps import KEPT
from .._shared import _words

if typing.TYPE_CHECKING:
    from .ring import Ring

ASK = "CGDEBUG_ASK"
REWIND = "CGDEBUG_REWIND"

_replays = 0  # that are kept of each graph that is made from now on
_takes_all = False  # whether each of them takes questions
_is_decode: typing.Callable[[str], bool] | None = None  # of an engine, by the label of a graph
_is_installed = False


def keep(replays: int) -> None:
    """From here on, the last `replays` of each graph that is captured can be asked about.
    Fails: ValueError."""
    global _replays, _takes_all
    if isinstance(replays, bool) or not isinstance(replays, int) or replays < 1:
        raise ValueError(f"rewind is a number of replays, 1 or more, not {replays!r}")
    import torch

    _replays, _takes_all = max(_replays, replays), True
    _install_into(getattr(torch.cuda, "CUDAGraph", None))


def keep_of_engine(is_decode: typing.Callable[[str], bool]) -> None:
    """From here on the last replays of decode steps can be asked about, unless a variable says
    otherwise. is_decode: of the label of a graph."""
    global _is_decode
    import torch

    graph_class = getattr(torch.cuda, "CUDAGraph", None)
    has_owner = bool(_words.setting(REWIND)) or _words.setting(_apart.VARIABLE) == "1"
    if has_owner or not hasattr(graph_class, "raw_cuda_graph_exec"):
        return
    _is_decode = is_decode
    _install_into(graph_class)


def install(torch) -> None:
    """Does nothing unless one of the variables asks for it."""
    global _replays, _takes_all
    _replays = max(_replays, int(_words.setting(REWIND) or 0))
    if _replays or _words.setting(ASK) == "1":
        _takes_all = True
        _install_into(getattr(torch.cuda, "CUDAGraph", None))


def _install_into(graph_class: typing.Any) -> None:
    global _is_installed
    if _is_installed or not hasattr(graph_class, "capture_begin"):
        return
    _is_installed = True
    if _words.setting(_apart.VARIABLE) == "1":
        tell("questions about replays", f"{_apart.VARIABLE} launches graphs in pieces already")
        return
    if not hasattr(graph_class, "raw_cuda_graph_exec"):
        tell("questions about replays", "this torch keeps no captured graph")
        return
    _apart.own_graphs(graph_class, KEPT, _kept, takes_questions)
    _apart.map_captures(graph_class, takes_questions)
    _apart.follow_generators(graph_class)


def is_on() -> bool:
    """Whether graphs that are made from now on take questions."""
    return _is_installed


def _is_of_engine(label: str) -> bool:
    """Not of one of several ranks: no rank runs the collectives of its graphs again alone."""
    if _is_decode is None or not _is_decode(label):
        return False
    from torch import distributed

    has_ranks = distributed.is_available() and distributed.is_initialized()
    return not has_ranks or distributed.get_world_size() == 1


def takes_questions(label: str) -> bool:
    """Whether a graph does that was captured with this label."""
    return _takes_all or _is_of_engine(label)


def ring_of(label: str, device: int) -> Ring | None:
    """Where its replays are kept; None: nothing is."""
    from .ring import Ring, of_engine

    if _replays:
        return Ring(device, _replays)
    return of_engine(device) if _is_of_engine(label) else None


def _kept(graph):
    from .kept_graph import KeptGraph

    return KeptGraph(graph)
