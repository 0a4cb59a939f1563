"""Which op made which nodes of a captured graph, and which tensors it was given.

It names ops as an op log does, and adds nothing to the graph.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import types
import typing
import weakref

import torch
from torch.utils import _pytree

from .._job import _native, _tags
from .._job._fail_soft import guard
from . import models, names
from .following import CollectorStopped, Followed
from .following.kernel_rows import KernelRows
from .recorder import Recorder
from .rows.row import UNKNOWN, Nodes
from .rows.writer import RowWriter
from .written import Kind, storage_of

_SENT = (Kind.C10D, Kind.FUNCTIONAL)  # they run on a stream of their own
_COLLECTIVES = ("c10d", "_c10d_functional", "symm_mem")
_OF_TORCH = ("aten.", "prims.", "c10d.", "_c10d_functional")
_INDEX = (torch.int64, torch.int32)
_PLAIN = (
    *(bool, int, float, complex, str, type(None)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


class Given(typing.NamedTuple):
    """A tensor that an op reads or writes.

    argument: its name in the op's schema; "" for a result
    row:      what an op log calls what is in it, of what is read: before the op; "" if that is not
              known
    extent:   address of its first byte, and behind its last one; (0, 0): not known, or empty
    strides:  in elements
    is_whole: whether the op is known to touch all of its elements
    device:   number of the GPU; -1: host memory
    made:     what an op log calls what the op has written into it; "" if that is not known
    """

    argument: str
    row: str
    dtype: str
    shape: tuple[int, ...]
    extent: tuple[int, int]
    reads: bool
    writes: bool
    strides: tuple[int, ...] = ()
    item_bytes: int = 1
    is_whole: bool = True
    device: int = -1
    made: str = ""

    @property
    def is_dense(self) -> bool:
        """Whether each byte of its extent is one of its elements."""
        return self.extent[1] - self.extent[0] == math.prod(self.shape) * self.item_bytes


class Call(typing.NamedTuple):
    """With what an op was called. In place of the n-th tensor is Tensor(n), and in that of what is
    neither a tensor nor plain, Other."""

    args: tuple
    kwargs: dict[str, typing.Any]
    tensors: tuple[Given, ...]


class Tensor(typing.NamedTuple):
    number: int


class Other(typing.NamedTuple):
    kind: str  # name of its class


class Op(typing.NamedTuple):
    """An op that has added nodes to a graph.

    name:     of its first row
    is_exact: whether what it touches is in `given`
    call:     None: of a kernel that is no op
    """

    name: str
    op: str
    module: str
    site: str
    given: tuple[Given, ...]
    is_exact: bool = True
    call: Call | None = None

    @property
    def may_touch_more(self) -> bool:
        """Than its arguments, such as the cache of an engine. An op of torch does not."""
        return self.call is not None and not self.op.startswith(_OF_TORCH)


class Observed(typing.NamedTuple):
    """What a probe was given.

    probe: its name
    given: the tensor
    behind: the nodes that came just before"""

    probe: str
    given: Given
    behind: tuple[int, ...]


# Of the models that ran while something was captured, whichever code the graph then came from.
_known = names.ModuleNames()
_known_models: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def know_model(model: torch.nn.Module) -> None:
    """Its parameters are told from inputs in graphs of code that calls no module, such as what
    torch.compile made. Thread: any."""
    if model not in _known_models:
        _known_models.add(model)
        _known.add_model(model)


def known_parameters(device: int) -> set[tuple[int, int]]:
    """Of the models that are known and live, on this device: (first byte, behind the last one)."""
    found = set()
    for _, model in _known.models():
        for tensor in models.parameters_and_buffers(model):
            tensor = getattr(tensor, "_local_tensor", tensor)
            if tensor.get_device() == device and storage_of(tensor):
                found.add(extent_of(tensor))
    return found


def _know_running_model() -> None:
    """The outermost module that this thread is in the middle of."""
    frame: types.FrameType | None = sys._getframe(1)
    found = None
    while frame is not None:
        if frame.f_code is torch.nn.Module._call_impl.__code__:
            found = frame.f_locals["self"]
        frame = frame.f_back
    if found is not None:
        know_model(found)


class NodeMap:
    """The ops of one capture, by the nodes that they have added. Stands where a Recorder has its
    log: what it is told is kept here, and no row is computed.

    graph:  the number of the capture
    op_of:  by node (cudaGraphNode_t)
    behind: by node that no op has added: the op that ran before
    collective: the first op that waits for other ranks, which one rank alone leaves without nodes;
                None: there is none
    parameters: (first byte, behind the last one) of what ops read of parameters and buffers
    observed: what probes were given, in order

    Thread: any."""

    def __init__(self, graph: int):
        self.graph = graph
        self.rows: list[str] = []  # the names, from number 1 on
        self.op_of: dict[int, Op] = {}
        self.behind: dict[int, Op] = {}
        self.collective: Op | None = None
        self.parameters: set[tuple[int, int]] = set()
        self.observed: list[Observed] = []
        self._newest: list[int] = []  # the nodes that came last, of an op or of none
        self._nodes = _native.load().CaptureNodes(graph)
        self._new: list[int] = []  # of the op or the kernel that is running
        self._outer: list[int] = []  # of the op, before a kernel in it
        self._ran: Op | None = None
        self._last: Op | None = None
        self._made: int | None = None  # its first row

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

    def add_views(self, views: list[str]) -> None:
        pass

    def add_row(self, name: str, op: str, tensor, inputs, site: str, details=None) -> int:
        self.rows.append(name)
        if op != "input" and self._made is None:
            self._made = len(self.rows)
        return len(self.rows)

    def take_unseen(self) -> list[str]:
        self._of_no_op(self._nodes.take(_current_stream()))
        return []

    def _of_no_op(self, nodes: list[int]) -> None:
        self._newest = nodes or self._newest
        if self._last is not None:
            self.behind.update(dict.fromkeys(nodes, self._last))

    def take_nodes(self) -> None:
        self._new += self._nodes.take(_current_stream())

    def drop_nodes(self) -> None:
        self._new = []

    def finish_op(self, is_explained: bool = False) -> None:
        """The op has run: the nodes that were taken are its own."""
        ran, nodes = self._ran, self._outer + self._new
        self._newest = nodes or self._newest
        if ran is not None:
            self._last = ran
            self.op_of.update(dict.fromkeys(nodes, ran))
        elif self._last is not None:
            self.behind.update(dict.fromkeys(nodes, self._last))
        self._outer, self._new, self._ran, self._made = [], [], None, None

    def end(self, input_ends=()) -> None:
        self._of_no_op(self._nodes.take_rest(_current_stream()))

    # --- what a MapRecorder tells

    def ran(
        self, op: str, place: names.Place, given: tuple[Given, ...], is_exact: bool, call: Call
    ) -> None:
        name = self.row_name(self._made)
        self._ran = Op(name, op, place.module, place.site, given, is_exact, call)
        if self.collective is None and op.startswith(_COLLECTIVES):
            self.collective = self._ran

    def begin_kernel(self) -> None:
        """A kernel that is no op is about to run. What was taken is the op's around it."""
        self._outer, self._new = self._outer + self._new, []

    def kernel_ran(self, kernel: Op) -> None:
        self.take_nodes()
        self.op_of.update(dict.fromkeys(self._new, kernel))
        self._new, self._last = [], kernel

    def take_elsewhere(self, is_of_op: bool) -> None:
        """Of the whole graph: the nodes of other streams. is_of_op: the op that runs made them."""
        nodes = self._nodes.take_rest(_current_stream())
        if is_of_op:
            self._new += nodes
        else:
            self._of_no_op(nodes)

    def observes(self, probe: str, tensor: torch.Tensor) -> None:
        """In front of the nodes of the probe."""
        behind = tuple(self._outer + self._new) or tuple(self._newest)
        given = _given("", tensor, "", True, False)
        self.observed.append(Observed(probe, given, behind))

    def row_name(self, number: int | None) -> str:
        return self.rows[number - 1] if number and number > UNKNOWN else ""


class MapWriter(RowWriter):
    log: typing.Any

    def tell_parameter(self, given: Given, tensor: torch.Tensor) -> None:
        is_one = self.names.parameter_at(tensor) or _known.parameter_at(tensor)
        if given.reads and is_one:
            self.log.parameters.add(given.extent)

    def row_of(self, tensor) -> str:
        return self.log.row_name(self.rows.get(tensor)) if storage_of(tensor) else ""

    def _is_logged(self, name: str, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class MapKernels(KernelRows):
    _writer: MapWriter

    def begin(self) -> None:
        super().begin()
        self._writer.log.begin_kernel()

    def wrote(self, place, op, base, reads, writes) -> None:
        with guard("the ops of a graph"):
            row_of = self._writer.row_of
            given = [
                *(_given(name, one, row_of(one), True, False, False) for name, one in reads),
                *(_given(name, one, row_of(one), False, True, False) for name, one in writes),
            ]
            for one, (_, tensor) in zip(given, reads):
                self._writer.tell_parameter(one, tensor)
            name = self._writer.counter.peek(place, base)
            self._writer.log.kernel_ran(Op(name, op, place.module, place.site, tuple(given)))
        super().wrote(place, op, base, reads, writes)

    def wrote_unseen(self, tensors) -> None:
        with guard("the ops of a graph"):
            place = names.current_place(self._writer.names)
            self._writer.log.kernel_ran(
                Op("", "a Triton kernel", place.module, place.site, (), is_exact=False)
            )
        super().wrote_unseen(tensors)


class MapRecorder(Recorder):
    """Tells a NodeMap what each op was given."""

    writer_type = MapWriter
    kernels_type = MapKernels
    log: typing.Any
    writer: MapWriter

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # By id of the call: the rows of what it will write, and with what it was called.
        self._begun: dict[int, tuple[list[str], Call]] = {}

    def _before(self, plan, args, kwargs):
        if plan.kind is Kind.IGNORED:
            site = _site_of(plan.name, args)
            if site and type(args[0]) is torch.Tensor:
                self.log.observes(site.partition(":")[2], args[0])
            return super()._before(plan, args, kwargs)
        if plan.kind in _SENT:
            self.log.take_elsewhere(is_of_op=False)
        call = super()._before(plan, args, kwargs)
        rows = [
            self.writer.row_of(tensor) if one.mutated else ""
            for one in call.arguments
            for tensor in one.tensors
        ]
        self._begun[id(call)] = rows, self._call_of(args, kwargs)
        return call

    def _call_of(self, args, kwargs) -> Call:
        tensors: list[Given] = []

        def take(value):
            if not isinstance(value, torch.Tensor):
                return value if isinstance(value, _PLAIN) else Other(type(value).__name__)
            tensors.append(_given("", value, self.writer.row_of(value), True, False))
            return Tensor(len(tensors) - 1)

        args, kwargs = _pytree.tree_map(take, (tuple(args), dict(kwargs)))
        return Call(args, kwargs, tuple(tensors))

    def _after(self, call, result) -> None:
        plan = call.plan
        if plan.kind is Kind.IGNORED:
            super()._after(call, result)
            return
        before, with_what = self._begun.pop(id(call), ([], Call((), {}, ())))
        super()._after(call, result)
        if plan.kind in _SENT:  # to a stream that nobody has waited for yet
            self.log.take_elsewhere(is_of_op=True)
        tensors = [(one, tensor) for one in call.arguments for tensor in one.tensors]
        has_index = any(
            not one.mutated and tensor.dim() and tensor.dtype in _INDEX for one, tensor in tensors
        )
        is_whole = plan.is_exact or plan.kind in _SENT
        given = [
            _given(
                one.name,
                tensor,
                row if one.mutated and one.read else self.writer.row_of(tensor),
                one.read,
                one.mutated,
                is_whole=is_whole and (not has_index or tensor.dtype in _INDEX),
                made=self.writer.row_of(tensor) if one.mutated else "",
            )
            for (one, tensor), row in zip(tensors, before)
        ]
        for one, (_, tensor) in zip(given, tensors):
            self.writer.tell_parameter(one, tensor)
        known = {one.extent for one in given}
        for tensor in _results(result):
            made = _given("", tensor, self.writer.row_of(tensor), False, True)
            if made.extent not in known and storage_of(tensor) not in call.storages:
                given.append(made)
        is_exact = bool(plan.arguments) and not any(
            tensor.is_cuda and tensor.numel() and not storage_of(tensor)
            for tensor in (*(tensor for _, tensor in tensors), *_results(result))
        )
        self.log.ran(plan.name, call.place, tuple(given), is_exact, with_what)


class Mapping:
    """Maps what this thread captures from here on, until end()."""

    def __init__(self, capture: int):
        self.map = NodeMap(capture)
        self.thread = threading.get_ident()
        modules = names.ModuleNames()
        recorder = MapRecorder(
            typing.cast(typing.Any, self.map),
            modules,
            lambda path: True,
            captured=True,
            has_kernels=True,
        )
        _know_running_model()
        self._collector = CollectorStopped()
        try:
            self._followed = Followed(recorder, modules)
        except BaseException:
            self._collector.end()
            raise

    def end(self) -> NodeMap:
        """Does nothing the second time."""
        try:
            self._followed.end()
        finally:
            self._collector.end()
        return self.map


def _site_of(op: str, args) -> str:
    """The probe that a call of an op of ours observes with; empty: none."""
    if op.startswith("cgdebug.observe_at"):
        return _tags.site_of(args[1], args[2] if len(args) > 2 else "")
    return args[1] if op.startswith("cgdebug.observe.") else ""


def _results(result) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [one for item in result for one in _results(item)]
    return []


def extent_of(tensor: torch.Tensor) -> tuple[int, int]:
    """From its first byte to behind its last one. (0, 0): it has no memory."""
    if not storage_of(tensor):
        return 0, 0
    begin = tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return begin, begin + (last + 1) * tensor.element_size()


@functools.lru_cache(4096)
def _once(value):
    """The same object for equal values: a graph has few shapes and many tensors."""
    return value


def _given(
    argument: str,
    tensor: torch.Tensor,
    row: str,
    reads: bool,
    writes: bool,
    is_whole: bool = True,
    made: str = "",
) -> Given:
    begin, end = extent_of(tensor)
    return Given(
        argument,
        row,
        _once(str(tensor.dtype).removeprefix("torch.")),
        _once(tuple(tensor.shape)),
        (begin, end),
        reads,
        writes,
        _once(tuple(tensor.stride())) if begin else (),
        tensor.element_size(),
        is_whole,
        tensor.get_device(),
        made,
    )


def _current_stream() -> int:
    return torch.cuda.current_stream().cuda_stream
