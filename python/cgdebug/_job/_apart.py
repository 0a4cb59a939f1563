"""CGDEBUG_LAUNCH_BLOCKING: launches captured graphs piece by piece, and waits behind each.
CGDEBUG_RACES: looks at the order of their nodes, see _op_log/node_order.py.

What CUDA_LAUNCH_BLOCKING is for eager code: a kernel that fails or hangs inside of a graph is
named, with the op that launched it, its module, its line and its tensors.

torch keeps the cudaGraph_t of each graph. At its first replay the graph is copied into pieces
(libprobe/apart) and its own nodes are removed. So torch's replay still does what it does beside the
launch, such as moving the state of random numbers on, and launches nothing; the pieces follow. Of a
graph that CUDA cannot copy, torch's replay launches the opaque piece, in its place.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
import typing

from .._shared import _words
from . import _graphs, _native
from ._fail_soft import guard, reason_of, tell
from ._graph_dumps import APART, KEPT

if typing.TYPE_CHECKING:
    import torch

    from .._op_log.node_map import NodeMap, Op

VARIABLE = "CGDEBUG_LAUNCH_BLOCKING"
RACES = "CGDEBUG_RACES"
HANGS_AFTER_S = 10.0
_LOOKS_EACH_S = 0.1  # so that Ctrl-C is seen
_MOST_OPS = 8  # of a piece that are shown

_GENERATORS = "_cgdebug_generators"  # that were registered with a graph

# Which captures are mapped, by the label of their graph; empty: no capture is looked at.
_is_mapped: list[typing.Callable[[str], bool]] = []
_finds_races = False


def install(torch) -> None:
    """Does nothing unless one of the variables asks for it."""
    global _finds_races
    is_blocking, finds_races = (_words.setting(name) == "1" for name in (VARIABLE, RACES))
    graph_class: typing.Any = getattr(torch.cuda, "CUDAGraph", None)
    if not (is_blocking or finds_races) or not hasattr(graph_class, "capture_begin"):
        return
    if is_blocking:
        if hasattr(graph_class, "raw_cuda_graph_exec"):
            _launch_in_pieces(graph_class)
        else:
            tell(VARIABLE, f"torch {torch.__version__} keeps no captured graph")
    _finds_races = finds_races
    map_captures(graph_class, lambda label: True)


def map_captures(graph_class, of: typing.Callable[[str], bool]) -> None:
    """From here on it is known which op made which node of a graph with such a label."""
    _is_mapped.append(of)
    if len(_is_mapped) > 1:
        return
    end_name = _graphs.end_of_captures(graph_class)
    begin, end = graph_class.capture_begin, getattr(graph_class, end_name)

    @functools.wraps(begin)
    def capture_begin(self, *args, **kwargs):
        self.__dict__.pop("_cgdebug_map", None)  # of a capture that nobody has ended
        begin(self, *args, **kwargs)
        label = _native.graph_label()
        if any(is_mapped(label) for is_mapped in _is_mapped):
            self._cgdebug_map = _Capture(_finds_races, label)

    @functools.wraps(end)
    def end_of_capture(self):
        capture = self.__dict__.pop("_cgdebug_map", None)
        if capture is not None:
            capture.end()
        end(self)
        if capture is not None:
            capture.has_ended()
            for name in (APART, KEPT):
                own = getattr(self, name, None)
                if own is not None:
                    own.captured(self, capture)

    graph_class.capture_begin = capture_begin
    setattr(graph_class, end_name, end_of_capture)


def own_graphs(
    graph_class,
    attribute: str,
    make_own: typing.Callable[[typing.Any], typing.Any],
    of: typing.Callable[[str], bool] = lambda label: True,
) -> None:
    """From here on torch keeps the cudaGraph_t of each graph that is made under a label of which
    of(label) is true, and what make_own(graph) returns is its `attribute`, and replays it."""
    make, replay, reset = graph_class.__init__, graph_class.replay, graph_class.reset

    @functools.wraps(make)
    def __init__(self, *args, **kwargs):
        keeps = bool(args[0]) if args else bool(kwargs.get("keep_graph", False))
        if not keeps and not of(_native.graph_label()):
            return make(self, *args, **kwargs)
        if not keeps:
            args, kwargs = (True, *args[1:]), {**kwargs}
            kwargs.pop("keep_graph", None)
        make(self, *args, **kwargs)
        setattr(self, attribute, None)
        if not keeps:  # who keeps the graph may change it, and launch it in another way
            with guard("a graph that torch keeps"):
                setattr(self, attribute, make_own(self))

    @functools.wraps(replay)
    def own_replay(self):
        own = getattr(self, attribute, None)
        return replay(self) if own is None else own.replay(self, replay)

    @functools.wraps(reset)
    def forgetting_reset(self):
        reset(self)
        own = getattr(self, attribute, None)
        if own is not None:
            own.forget()

    graph_class.__init__ = __init__
    graph_class.replay = own_replay
    graph_class.reset = forgetting_reset


def follow_generators(graph_class) -> None:
    """From here on generators_of() knows what is registered with a graph. Once per process."""
    register = getattr(graph_class, "register_generator_state", None)
    if register is None:
        return

    @functools.wraps(register)
    def register_generator_state(self, generator):
        register(self, generator)
        self.__dict__.setdefault(_GENERATORS, []).append(generator)

    graph_class.register_generator_state = register_generator_state


def generators_of(graph) -> list[torch.Generator]:
    """Those that the program has registered with it: a replay moves them on."""
    return graph.__dict__.get(_GENERATORS, [])


def _launch_in_pieces(graph_class) -> None:
    exec_of = graph_class.raw_cuda_graph_exec
    raw = plain(graph_class.raw_cuda_graph)
    own_graphs(graph_class, APART, lambda graph: _Graph(raw, plain(exec_of)))

    @functools.wraps(exec_of)
    def raw_cuda_graph_exec(self):
        own = getattr(self, APART, None)
        if own is not None:
            own.leave_whole(self, "its cudaGraphExec_t was asked for")
        return exec_of(self)

    graph_class.raw_cuda_graph_exec = raw_cuda_graph_exec


class _Capture:
    """A capture that is under way on this thread.

    number: 0 if it cannot be followed
    label:  what the graph was called when it began
    """

    def __init__(self, finds_races: bool, label: str):
        import torch

        self.number, self.device, self.label = 0, 0, label
        self.map: NodeMap | None = None
        self._mapping: typing.Any = None
        self._order: typing.Any = None
        self._missing = ""
        self._finds_races = finds_races
        with guard("the ops of a graph"):
            stream = torch.cuda.current_stream()
            self.device = stream.device_index
            self.number = _native.load().capture_of(stream.cuda_stream)
            if self.number:
                from .._op_log.node_map import Mapping

                self._mapping = Mapping(self.number)

    def __del__(self):
        self._end_mapping()

    def _end_mapping(self) -> None:
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            with guard("the ops of a graph"):
                self.map = mapping.end()

    def end(self) -> None:
        """The capture is about to end."""
        import torch

        self._end_mapping()
        if not self._finds_races:
            return
        try:
            from .._op_log import node_order, scopes

            if self.map is None:
                self._missing = "its ops could not be followed"
            elif scopes._scopes:
                self._missing = (
                    "an op log adds kernels that put nodes of other streams in order. Run it "
                    "without --watch 'op:...'"
                )
            else:
                stream = torch.cuda.current_stream().cuda_stream
                self._order = node_order.order_of(self.map, stream)
        except Exception as error:  # the capture goes on
            self._missing = reason_of(error)

    def has_ended(self) -> None:
        """And there is a graph."""
        if not self._finds_races:
            return
        with guard("the order of a graph"):
            from .._op_log import node_order

            if self._order is not None:
                node_order.notes.tell(self.number, self._order)
            else:
                node_order.notes.tell_missing(self.number, self._missing)


def plain(method):
    """Not what tells us that somebody may launch the graph past replay()."""
    while hasattr(method, "__wrapped__"):
        method = method.__wrapped__
    return method


class _Graph:
    """One torch.cuda.CUDAGraph. Thread: one at a time, as torch's own."""

    def __init__(self, raw: typing.Callable, exec: typing.Callable):
        self._raw, self._exec = raw, exec
        self.forget()

    def forget(self) -> None:
        self._map: NodeMap | None = None
        self.capture, self.label = 0, ""
        self._device = 0
        self._pieces: Pieces | None = None
        self._is_whole = False  # torch launches all of it
        self.replays, self.replayed_at = 0, 0.0
        self.why_not_apart = self.opaque = ""
        self._leave_mailbox()

    def captured(self, graph, capture: _Capture) -> None:
        self.forget()
        self._map, self.capture, self._device = capture.map, capture.number, capture.device
        self.label = capture.label

    def replay(self, graph, torch_replay) -> None:
        import torch

        if not self._is_whole and torch.cuda.is_current_stream_capturing():
            self.leave_whole(graph, "it became part of another capture")
        if not self._is_whole and self._pieces is None:
            self._take_apart(graph)
            self._join_mailbox()
        self.replays += 1
        if self._pieces is None or self._is_whole:
            torch_replay(graph)
            return
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream().cuda_stream
            self._pieces.run(stream, self.replays, lambda: torch_replay(graph))

    def _take_apart(self, graph) -> None:
        """From here on torch launches nothing but the opaque piece."""
        from .._rewind.touched import plain_nodes

        try:
            native = _native.load()
            raw = self._raw(graph)
            apart = native.ApartGraph(raw, plain=plain_nodes(self._map))
            pieces = Pieces(apart, self._map, self.capture)
            if apart.opaque is None:
                native.remove_nodes(raw)
            graph.instantiate()
            if apart.opaque is not None:
                self.opaque = "nodes of it that CUDA cannot copy, and those around, are one launch"
                apart.enable(self._exec(graph), only_own=False, is_on=False)
        except Exception as error:
            self._is_whole = True
            self._say_whole(str(error).partition("\n")[0])
            return
        self._pieces = pieces

    def leave_whole(self, graph, why: str) -> None:
        """Somebody else launches what torch has, so torch has all of it from here on."""
        if self._is_whole or not self.capture:
            return
        self._is_whole = True
        with guard("a graph that was taken apart"):
            apart = self._pieces.native if self._pieces is not None else None
            if apart is not None and apart.opaque is not None:
                apart.enable(self._exec(graph), only_own=False, is_on=True)
            else:
                if apart is not None:
                    apart.put_into(self._raw(graph))
                graph.instantiate()
        self._say_whole(why)

    def _say_whole(self, why: str) -> None:
        self.why_not_apart = why
        _say(
            f"cgdebug: graph {self.capture} is launched as a whole, so {VARIABLE} cannot name a "
            f"kernel of it that fails: {why}"
        )

    # --- of who asks: `graphs` says whether it is launched in pieces, and `ask` that it is

    @property
    def name(self) -> str:
        return self.label or str(self.capture)

    def _join_mailbox(self) -> None:
        with guard("questions about graphs"):
            from .._rewind import mailbox

            mailbox.join(self)

    def _leave_mailbox(self) -> None:
        mailbox = sys.modules.get("cgdebug._rewind.mailbox")
        if mailbox is not None:
            mailbox.leave(self)

    def ask(self, question) -> bool:
        question.refuse(f"{VARIABLE} launches its graphs in pieces already")
        return True

    def withdraw(self, question) -> bool:
        return False

    def state_text(self) -> str:
        return "launched as a whole" if self._is_whole else "launched in pieces"

    def frozen_at(self) -> int:
        return 0

    def go_on(self) -> bool:
        return False

    def kept_bytes(self) -> int:
        return 0


class Pieces:
    """A graph in pieces, and what they run."""

    def __init__(self, native, node_map: NodeMap | None, capture: int):
        self.native = native
        self.capture = capture
        self.nodes = native.nodes
        self.pieces: list[list[int]] = native.pieces
        self._map = node_map

    def run(self, stream: int, replay: int, torch_replay: typing.Callable[[], None]) -> None:
        """Launches one piece after another on `stream`, and waits behind each.

        torch_replay: launches nothing but the opaque piece, and moves random numbers on
        Fails: the error of torch, when a kernel has failed. It is then said which one."""
        await_stream = _native.probe_module().await_stream
        if self.native.opaque is None:
            torch_replay()
        self._wait(await_stream, stream, None, replay)
        for number in range(len(self.pieces)):
            try:
                if number == self.native.opaque:
                    torch_replay()
                else:
                    self.native.launch(number, stream)
            except Exception as error:
                self._fail(number, replay, error)
            self._wait(await_stream, stream, number, replay)

    def _wait(self, await_stream, stream: int, piece: int | None, replay: int) -> None:
        begun = time.monotonic()
        has_told = False
        while True:
            try:
                if await_stream(stream, _LOOKS_EACH_S):
                    if has_told:
                        self._tell("passed")
                    return
            except Exception as error:
                self._fail(piece, replay, error)
            if not has_told and piece is not None and time.monotonic() - begun >= HANGS_AFTER_S:
                has_told = True
                what = f"still runs after {HANGS_AFTER_S:.0f} s"
                _say(self.report(piece, replay, what))
                self._tell(f"stands {self.summary(piece)}, in replay {replay}: {what}")

    def _fail(self, piece: int | None, replay: int, error: Exception) -> typing.NoReturn:
        import torch

        what = getattr(error, "cause_in_cuda", None) or str(error)
        if piece is None:
            _say(
                f"cgdebug: {what} came before replay {replay} of graph {self.capture}: what was "
                "launched outside of graphs failed. Type: CUDA_LAUNCH_BLOCKING=1, in front of the "
                "same command"
            )
        else:
            _say(self.report(piece, replay, f"failed: {what}"))
            self._tell(f"failed {self.summary(piece)}, in replay {replay}: {what}")
        torch.cuda.synchronize()  # raises what torch raises for it
        raise error

    def _tell(self, text: str) -> None:
        """For `where` and `why`, also when this process is gone."""
        with contextlib.suppress(Exception):
            from .._op_log.node_order import notes

            notes.tell_piece(self.capture, text)

    def summary(self, piece: int) -> str:
        """What a piece is, in one line: its first node."""
        shown = self._shown(piece)
        text = f"node {shown[0]}" if len(shown) == 1 else self._one_of(piece, len(shown))
        text += f", kernel {self.nodes[shown[0]]['name']}"
        op, is_own = self.op_of(shown[0])
        if op is None:
            return text
        text += f", {'op' if is_own else 'launched behind'} {op.op} {op.name}".rstrip()
        text += f" of {op.module}" * bool(op.module) + f" ({op.site})" * bool(op.site)
        return text

    def _one_of(self, piece: int, count: int) -> str:
        what = "nodes that run in one launch" if piece == self.native.opaque else "parallel nodes"
        return f"one of {count} {what}"

    def _shown(self, piece: int) -> list[int]:
        nodes = self.pieces[piece]
        return [number for number in nodes if not self.nodes[number]["is_own"]] or nodes

    def report(self, piece: int, replay: int, what: str) -> str:
        """What a piece is, in lines."""
        shown = self._shown(piece)
        head = (
            f"cgdebug: node {shown[0]}"
            if len(shown) == 1
            else f"cgdebug: {self._one_of(piece, len(shown))}"
        )
        lines = [f"{head} of graph {self.capture} {what}, in replay {replay}"]
        for number in shown[:_MOST_OPS]:
            lines += self._lines_of(number)
        if len(shown) > _MOST_OPS:
            lines.append(f"  and {len(shown) - _MOST_OPS} more nodes")
        lines.append(
            "  Type: cgdebug-cli run --watch 'op:*' -- COMMAND, to see what was in these tensors; "
            "then cgdebug-cli ops"
        )
        return "\n".join(lines)

    def _lines_of(self, number: int) -> list[str]:
        node = self.nodes[number]
        kernel = f"  kernel  {node['name']}"
        if node["kind"] == "kernel":
            kernel += f", grid {_times(node['grid'])}, block {_times(node['block'])}"
        op, is_own = self.op_of(number)
        if op is None:
            return [kernel, "  op      not known"]
        if not is_own:
            return [kernel, f"  op      none; launched behind {op.op} {op.name}", *_place_of(op)]
        lines = [kernel, f"  op      {op.op}" + f", row {op.name}" * bool(op.name), *_place_of(op)]
        for one in op.given:
            verb = "reads" if not one.writes else "changes" if one.reads else "writes"
            name = " ".join(filter(None, (one.argument, one.row))) or "(no name)"
            lines.append(f"  {verb:<7} {name} {one.dtype}{list(one.shape)}")
        return lines

    def op_of(self, number: int) -> tuple[Op | None, bool]:
        """The op that a node belongs to; or the one behind which it was launched, and False."""
        if self._map is None:
            return None, False
        handle = self.nodes[number]["handle"]
        own = self._map.op_of.get(handle)
        return (own, True) if own is not None else (self._map.behind.get(handle), False)


def _place_of(op: Op) -> list[str]:
    lines = []
    if op.module:
        lines.append(f"  module  {op.module}")
    if op.site:
        lines.append(f"  line    {op.site}")
    return lines


def _times(sizes) -> str:
    return "x".join(map(str, sizes))


def _say(text: str) -> None:
    with contextlib.suppress(Exception):
        if sys.stderr is not None:
            print(text, file=sys.stderr, flush=True)
