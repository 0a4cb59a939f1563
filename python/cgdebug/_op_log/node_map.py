"""Which op made which nodes of a captured graph, and which tensors it was given.

It names ops as an op log does, and adds nothing to the graph.
"""

from __future__ import annotations

import gc
import threading
import typing

import torch

from .. import _native
from . import compiled_code, names, triton_kernels
from .recorder import OpMode, Recorder, leave
from .rows import UNKNOWN, Nodes
from .written import Tensors, handles_ops, storage_of


class Given(typing.NamedTuple):
    """A tensor that an op reads or writes.

    argument: its name in the op's schema; "" for a result
    row:      what an op log calls what is in it; "" if that is not known
    extent:   address of its first byte, and behind its last one
    """

    argument: str
    row: str
    dtype: str
    shape: tuple[int, ...]
    extent: tuple[int, int]
    reads: bool
    writes: bool


class Op(typing.NamedTuple):
    """An op that has added nodes to a graph. name: of its first row."""

    name: str
    op: str
    module: str
    site: str
    given: tuple[Given, ...]


class NodeMap:
    """The ops of one capture, by the nodes that they have added. Stands where a Recorder has its
    log: what it is told is kept here, and no row is computed.

    graph:  the number of the capture
    op_of:  by node (cudaGraphNode_t)
    behind: by node that no op has added: the op that ran before

    Thread: any."""

    def __init__(self, graph: int):
        self.graph = graph
        self.rows: list[str] = []  # the names, from number 1 on
        self.op_of: dict[int, Op] = {}
        self.behind: dict[int, Op] = {}
        self._nodes = _native.load().CaptureNodes(graph)
        self._new: list[int] = []  # of the op that is running
        self._ran: Op | None = None
        self._last: Op | None = None
        self._made: tuple[int, str, str] | None = None  # its first row: number, op, site

    # --- what a Recorder asks of its log. Nothing is ever pending.

    has_pending = False

    def is_pending(self, storage: int) -> bool:
        return False

    def has_lost_memory(self) -> bool:
        return False

    def flush(self) -> None:
        pass

    def begin_run(self) -> None:
        pass

    def count(self, nodes: Nodes) -> None:
        pass

    def note(self, gap: str) -> None:
        pass

    def tell_gaps(self) -> None:
        pass

    def add_row(self, name: str, op: str, tensor, inputs, site: str) -> int:
        self.rows.append(name)
        if op != "input" and self._made is None:
            self._made = (len(self.rows), op, site)
        return len(self.rows)

    def take_unseen(self) -> list[str]:
        for node in self._nodes.take(_current_stream()):
            if self._last is not None:
                self.behind[node] = self._last
        return []

    def take_nodes(self) -> None:
        self._new += self._nodes.take(_current_stream())

    def drop_nodes(self) -> None:
        self._new = []

    def finish_op(self, is_explained: bool = False) -> None:
        """The op has run: the nodes that were taken are its own."""
        ran = self._ran
        if ran is None and self._made is not None:  # a kernel that is no op
            number, op, site = self._made
            ran = Op(self.rows[number - 1], op, "", site, ())
        if ran is not None:
            self._last = ran
            self.op_of.update(dict.fromkeys(self._new, ran))
        self._new, self._ran, self._made = [], None, None

    def end(self) -> None:
        for node in self._nodes.take_rest(_current_stream()):
            if self._last is not None:
                self.behind[node] = self._last

    # --- what a MapRecorder tells

    def ran(self, plan, place: names.Place, given: tuple[Given, ...]) -> None:
        name = self.rows[self._made[0] - 1] if self._made else ""
        self._ran = Op(name, plan.name, place.module, place.site, given)

    def row_name(self, number: int | None) -> str:
        return self.rows[number - 1] if number and number > UNKNOWN else ""


class MapRecorder(Recorder):
    """Tells a NodeMap what each op was given."""

    log: typing.Any

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._written_rows: dict[int, list[str]] = {}  # by id of the call: of what it will write

    def _before(self, plan, args, kwargs):
        call = super()._before(plan, args, kwargs)
        self._written_rows[id(call)] = [
            self._row_of(tensor) if one.mutated else ""
            for one in call.arguments
            for tensor in one.tensors
        ]
        return call

    def _after(self, call, result) -> None:
        before = self._written_rows.pop(id(call), [])
        super()._after(call, result)
        tensors = [(one, tensor) for one in call.arguments for tensor in one.tensors]
        given = [
            _given(one, tensor, row if one.mutated else self._row_of(tensor))
            for (one, tensor), row in zip(tensors, before)
        ]
        known = {one.extent for one in given}
        for tensor in _results(result):
            made = _given(None, tensor, self._row_of(tensor))
            if made.extent not in known and storage_of(tensor) not in call.storages:
                given.append(made)
        self.log.ran(call.plan, call.place, tuple(given))

    def _row_of(self, tensor) -> str:
        return self.log.row_name(self._rows.get(tensor)) if storage_of(tensor) else ""

    def _is_logged(self, name: str, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class Mapping:
    """Maps what this thread captures from here on, until end()."""

    def __init__(self, capture: int):
        self.map = NodeMap(capture)
        self.thread = threading.get_ident()
        modules = names.ModuleNames()
        self._recorder = MapRecorder(
            typing.cast(typing.Any, self.map),
            modules,
            lambda path: True,
            captured=True,
            has_kernels=True,
        )
        self._mode = OpMode(self._recorder)
        # A dead graph that is collected while another one is captured ends that capture.
        self._had_gc = gc.isenabled()
        gc.disable()
        self._hooks = names.ModuleHooks(modules)
        try:
            triton_kernels.follow(self._recorder)
            compiled_code.follow(self._recorder)
            self._mode.__enter__()
        except BaseException:
            self.end()
            raise

    def end(self) -> NodeMap:
        """Does nothing the second time."""
        if self._hooks is None:
            return self.map
        hooks, self._hooks = self._hooks, typing.cast(typing.Any, None)
        triton_kernels.unfollow(self._recorder)
        compiled_code.unfollow(self._recorder)
        try:
            self._recorder.end()
            leave(self._mode)
        finally:
            hooks.remove()
            if self._had_gc:
                gc.enable()
        return self.map


def _results(result) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [one for item in result for one in _results(item)]
    return []


def _given(argument: Tensors | None, tensor: torch.Tensor, row: str) -> Given:
    begin = end = 0
    if not handles_ops(type(tensor)) and tensor.layout == torch.strided and tensor.numel():
        begin = tensor.data_ptr()
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        end = begin + (last + 1) * tensor.element_size()
    return Given(
        argument.name if argument else "",
        row,
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        (begin, end),
        argument is not None and argument.read,
        argument is None or argument.mutated,
    )


def _current_stream() -> int:
    return torch.cuda.current_stream().cuda_stream
