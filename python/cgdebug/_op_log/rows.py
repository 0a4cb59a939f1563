"""The rows of an op log on their way out: what an op wrote, under which name, made from which rows.

Nothing else knows how rows are kept. Rows of a graph, and of eager code on the CPU, are in a native
log (libprobe/op_log.h): one slot for hundreds of them. Where a GPU is used, rows of eager code are
probes of their own.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
import typing

import torch
from torch.utils._mode_utils import no_dispatch

from .._job import _accepted, _native
from .._shared import _site, _torch_logs
from ..actions import TensorStats, enabled_actions, native_options
from . import padding
from .details import Details

_MAX_OP_BYTES = 511  # layout::kMaxOpBytes
_MAX_GAPS = 64  # different ones
_MORE_GAPS = "more is not shown, for reasons that found no room here"
_MAX_CALLS = 1 << 16  # whose numbers are known
_MAX_NODE_NAMES = 3  # that a row keeps
_MAX_DETAILS = 1 << 17  # different rows of eager calls whose details are told
_MAX_EXACT_CALLS = 16  # whose details are kept here
# Not told to others: they see another log, which is whole.
_BEGIN_AGAIN = "the ops of a run were not those of the run before: replays begin again"
_MAX_DIMENSIONS = 4  # kMaxOpLogDimensions
UNKNOWN = 0  # of an input: no row shows what the op read
_NO_DETAILS = Details()  # of a row that has none
# What the account of the process calls what logs lack: what no gap row tells, and what one does.
ACCOUNT = "op log"
_TOLD_ACCOUNT = "op log rows"  # layout::kToldByGapRows


class Nodes(typing.NamedTuple):
    """Nodes of a captured graph that write memory: kernels, copies and the like.

    explained: those of ops and kernels that have a row
    left_out:  those of ops and kernels that are followed and have no row
    unseen:    what the others run
    """

    explained: int = 0
    left_out: int = 0
    unseen: tuple[str, ...] = ()

    def plus(self, other: Nodes) -> Nodes:
        return Nodes(
            self.explained + other.explained,
            self.left_out + other.left_out,
            self.unseen + other.unseen,
        )


class Coverage(typing.NamedTuple):
    """Which nodes of a graph the rows of its log explain.

    unseen: what the unexplained nodes run: after this row, before that row, names. 0: before the
            first row, or after the last one
    """

    explained: int
    left_out: int
    unseen: tuple[tuple[int, int, tuple[str, ...]], ...]

    @property
    def nodes(self) -> int:
        return self.explained + self.left_out + sum(len(names) for _, _, names in self.unseen)

    def lines(self) -> list[str]:
        """One for each place with unexplained nodes."""
        found = []
        for after, before, names in self.unseen:
            place = f"between #{after} and #{before}"
            if not after or not before:
                place = f"after #{after}" if after else f"before #{before}"
            what = ", ".join(dict.fromkeys(names))
            found.append(f"?? {len(names)} kernel{'s' * (len(names) != 1)} {place}: {what}")
        return found

    def __str__(self) -> str:
        text = f"{self.nodes} kernel nodes: {self.explained} explained"
        return text + f", {self.left_out} left out" * (self.left_out > 0)


class Row(typing.NamedTuple):
    """What is known of a row when it is made.

    number: in its log, from 1
    inputs: numbers of the rows that the op read; UNKNOWN for what no row shows
    nodes:  those since the row before, up to the end of its op
    rest:   of the last row: those after it
    """

    number: int
    name: str
    op: str
    inputs: tuple[int, ...]
    site: str
    dtype: str
    shape: tuple[int, ...]
    nodes: Nodes = Nodes()
    rest: Nodes = Nodes()
    details: Details = _NO_DETAILS


class _Waiting(typing.NamedTuple):
    """The memory of a tensor whose row is pending, or was a moment ago."""

    storage: torch.UntypedStorage
    bytes: int
    address: int
    row: str


class GapRows:
    """Tells the daemon what op logs do not show, as rows that hold no tensor (layout::IsOpGap).

    of: the number of a capture, "eager", or "job"

    Nothing that goes wrong in it reaches the job. Thread: any."""

    def __init__(self, of: int | str):
        self._of = of
        self._lock = threading.Lock()
        self._told: set[str] = set()
        self._native: typing.Any = None

    def tell(self, gaps: typing.Iterable[str]) -> None:
        """Each gap is told once."""
        with self._lock:
            new = [gap for gap in dict.fromkeys(gaps) if gap not in self._told]
            if not new:
                return
            self._told.update(new)
            try:
                if self._native is None:
                    self._native = _native.load().NativeOpLog()
                for gap in new:
                    add_note(self._native, "ops/gap", f"gap {self._of} {gap}")
                self._native.end()
            except Exception:  # there is no room for a row
                for gap in new:
                    _native.not_seen(ACCOUNT, gap)

    def wait(self, timeout: float) -> bool:
        with self._lock:
            native = self._native
        return native is None or native.wait_consumed(timeout)

    def close(self) -> None:
        with self._lock:
            if self._native is not None:
                self._native.close()


def add_note(native, name: str, text: str) -> None:
    """A row that has no tensor, only a text."""
    native.add(
        name,
        op=text,
        site="",
        data=0,
        dtype="uint8",
        shape=[0],
        cuda=None,
        stream=0,
    )


class OpLog:
    """The rows of one capture, or of what runs eagerly in one scope.

    graph: the number of the capture, 0 for an eager log. The rows of an eager log may be added
           again and again; each time is a call, whose rows may be others.
    calls: the numbers of the newest runs of an eager log on the CPU, oldest first
    copies: rows whose tensor had to be copied first, because it has gaps

    Thread: any.
    """

    def __init__(self, graph: int):
        self.graph = graph
        self.rows: list[Row] = []  # of the capture, or of the run that came last
        self.gaps: collections.Counter[str] = collections.Counter()
        self._new_gaps: collections.Counter[str] = collections.Counter()  # not told yet
        # By call: those that a row of the call tells. The others are of a call that nobody knows.
        self._gaps_of: collections.OrderedDict[int, collections.Counter[str]] = (
            collections.OrderedDict()
        )
        self._other_gaps: collections.Counter[str] = collections.Counter()
        self._lock = threading.RLock()
        self.calls: collections.deque[int] = collections.deque(maxlen=_MAX_CALLS)
        self.copies = 0
        self.told_rows: set[int] = set()  # lists of rows that torch's tools were told, hashed
        self._before: list[tuple] = []  # the rows of the run before
        # Of an eager log: what the rows said at first, and what of that has varied since.
        self._details: dict[tuple, tuple[dict, set[str]]] = {}
        self._of_calls: collections.OrderedDict[int, dict[int, Details]] = collections.OrderedDict()
        self._waiting: list[_Waiting] = []
        self._waiting_storages: set[int] = set()  # their addresses
        self._nodes = Nodes()  # that no row has
        self._nodes_of_op = 0
        self._probes: dict[str, tuple[str, typing.Any]] = {}  # by name: with what it was made
        self._names: set[str] = set()  # of this run
        self._closed = False
        self._ended_ns = 0  # wall clock: when the run that came last ended
        self._gap_rows = GapRows(graph or "eager")
        # The order in which rows are registered tells readers where an eager log begins, so all
        # rows of one go the same way.
        self._has_probes = not graph and torch.cuda.is_initialized()
        self._options = native_options(enabled_actions([TensorStats()]))
        self._module = _native.load()
        self._native = self._module.NativeOpLog()
        _native.finish_at_exit()
        _native.start_daemon()

    def add_row(
        self,
        name: str,
        op: str,
        tensor: torch.Tensor,
        inputs: typing.Iterable[int],
        site: str,
        details: Details | None = None,
    ) -> int:
        """Logs what `tensor` holds now, in the order of the current stream. Returns the number of
        the row. In a capture the row is pending: until flush(), nobody may change the tensor.

        Fails: ValueError, RuntimeError: the tensor cannot be seen, or there is no room."""
        with self._lock:
            if self._closed:
                return UNKNOWN
            name = self._free_name(name)
            if op != "input":
                self._count(Nodes(explained=self._nodes_of_op))
            row = Row(
                len(self.rows) + 1,
                name,
                op,
                tuple(dict.fromkeys(inputs)),
                site,
                str(tensor.dtype).removeprefix("torch."),
                tuple(tensor.shape),
                self._nodes,
                details=_NO_DETAILS if details is None else details,
            )
            if self._has_probes or (tensor.is_cuda and not self.graph):
                self._observe(row, tensor)
            else:
                self._log(row, tensor)
            self._names.add(name)
            self.rows.append(row)
            self._nodes = Nodes()
            return row.number

    # --- pending rows, and the nodes of a capture -------------------------------------------------

    @property
    def has_pending(self) -> bool:
        return bool(self._waiting)

    def is_pending(self, storage: int) -> bool:
        """Whether a pending row shows what is in the memory of that storage."""
        return storage in self._waiting_storages

    def has_lost_memory(self) -> bool:
        """Whether a pending row's tensor has given its memory back, as resize_(0) of a storage
        does. The next op may be given that memory."""
        return any(one.storage.nbytes() != one.bytes for one in self._waiting)

    def flush(self) -> None:
        """Computes the pending rows. Must be called before something that is known changes one of
        their tensors.

        Fails: RuntimeError: rows of this capture are lost."""
        with self._lock:
            if not self._waiting:
                return
            try:
                with self._marked():
                    self._native.flush()
            finally:
                self._forget_waiting()

    def take_unseen(self) -> list[str]:
        """What the nodes run that were captured since the last call of this or of take_nodes(), and
        that belong to nobody who is followed. Rows that were pending are computed in front of them.

        Fails: RuntimeError: rows of this capture are lost."""
        with self._lock:
            if self._closed or not self.graph:
                return []
            try:
                with self._marked():
                    return self._native.take_unseen(_current_stream())
            finally:
                if self._waiting and not self._native.pending():
                    self._forget_waiting()

    def take_nodes(self) -> None:
        """The nodes that were captured since then belong to the op that has run. If it has a row,
        they are explained; finish_op() tells that no more rows come.

        Fails: RuntimeError"""
        with self._lock:
            if self.graph and not self._closed:
                self._nodes_of_op += self._native.take_nodes(_current_stream())

    def finish_op(self, is_explained: bool = False) -> None:
        """is_explained: also without a row."""
        with self._lock:
            nodes = self._nodes_of_op
            self._count(Nodes(explained=nodes) if is_explained else Nodes(left_out=nodes))

    def forget_nodes(self) -> None:
        """The nodes that were captured since the last call of take_nodes() are nobody's."""
        with self._lock:
            if self.graph and not self._closed:
                self._native.take_nodes(_current_stream())

    def drop_nodes(self) -> None:
        """The nodes that were taken are our own."""
        self._nodes_of_op = 0

    def count(self, nodes: Nodes) -> None:
        with self._lock:
            self._nodes = self._nodes.plus(nodes)

    def _count(self, nodes: Nodes) -> None:
        self.count(nodes)
        self._nodes_of_op = 0

    @property
    def coverage(self) -> Coverage | None:
        """None for a log that is not of a graph."""
        if not self.graph:
            return None
        with self._lock:
            rows = list(self.rows)
        whole, gaps, last = Nodes(), [], 0
        for row in rows:
            for nodes, after, before in ((row.nodes, last, row.number), (row.rest, row.number, 0)):
                whole = whole.plus(nodes)
                if nodes.unseen:
                    gaps.append((after, before, nodes.unseen))
            last = row.number
        return Coverage(whole.explained, whole.left_out, tuple(gaps))

    def _forget_waiting(self) -> None:
        """Requires: none of them is pending. While one is, all are kept: which of them are pending
        is not known, because each stream has a batch of its own."""
        self._waiting.clear()
        self._waiting_storages.clear()

    def _take_rest(self) -> None:
        """The last row says what came after it."""
        self.count(Nodes(unseen=tuple(self.take_unseen())))
        self.count(Nodes(unseen=tuple(self._native.take_rest(_current_stream()))))
        if self.rows and self._nodes != Nodes():
            self.rows[-1] = self.rows[-1]._replace(rest=self._nodes)
            self._nodes = Nodes()
            self._amend()

    def add_views(self, views: list[str]) -> None:
        """Views that were made after the last row are told with it."""
        with self._lock:
            if not (views and self.rows) or self._closed or self._has_probes:
                return
            if self.rows[-1].details is _NO_DETAILS:
                self.rows[-1] = self.rows[-1]._replace(details=Details())
            self.rows[-1].details.views += [f"after it: {view}" for view in views]
            self._amend()

    def _amend(self) -> None:
        row = self.rows[-1]
        self._native.amend_newest(_text_of(row), self._details_text(row))

    def _details_text(self, row: Row) -> str:
        """Rows of eager calls with the same texts share a table: what varies from call to call is
        said to vary, from the second value on."""
        if row.details is _NO_DETAILS:
            return ""
        if self.graph:
            return row.details.to_json()
        key = (row.name, row.op, row.inputs, row.site, row.dtype, row.shape)
        now = row.details.parts()
        known = self._details.get(key)
        if known is None:
            if len(self._details) >= _MAX_DETAILS:
                return ""
            known = self._details[key] = (now, set())
        first, varying = known
        if first != now:
            varying.update(part for part in {*first, *now} if first.get(part) != now.get(part))
        return row.details.to_json(varying)

    def details_of(self, call: int, number: int) -> Details | None:
        """Of a row of an eager call, exactly; None if they are not kept."""
        with self._lock:
            return self._of_calls.get(call, {}).get(number)

    # --- the whole log ----------------------------------------------------------------------------

    def end(self) -> None:
        """No more rows are added to this capture, or to this run of an eager log. Must be called
        before the capture ends.

        Fails: ValueError, RuntimeError: rows of this capture are lost."""
        with self._lock:
            if self._closed:
                return
            try:
                if self.graph:
                    self._take_rest()
            finally:
                told = collections.Counter[str]()
                try:
                    told = self._add_gaps()
                    if call := self._native.end():
                        self.calls.append(call)
                        self._gaps_of[call], told = told, collections.Counter()
                        while len(self._gaps_of) > _MAX_CALLS:
                            self._gaps_of.popitem(last=False)
                        with contextlib.suppress(Exception):  # the job goes on
                            _torch_logs.op_log_called(self, call)
                        self._of_calls[call] = {row.number: row.details for row in self.rows}
                        while len(self._of_calls) > _MAX_EXACT_CALLS:
                            self._of_calls.popitem(last=False)
                finally:
                    self._other_gaps.update(told)
                    self._forget_waiting()
                    self._ended_ns = time.time_ns()
            self.tell_gaps()
            rows = [(row.name, _text_of(row), row.dtype, row.shape) for row in self.rows]
            if self._has_probes and self._before and self._before != rows:
                self.note(_BEGIN_AGAIN)
            self._before = rows

    def begin_run(self) -> None:
        """What comes now in an eager log is another call."""
        with self._lock:
            if self.rows:
                self.rows = []
                self._names = set()

    def note(self, gap: str) -> None:
        """Notes something that the log does not show, and why."""
        with self._lock:
            if gap not in self.gaps and len(self.gaps) >= _MAX_GAPS:
                gap = _MORE_GAPS
            self.gaps[gap] += 1
            self._new_gaps[gap] += 1
        # Of padding that is not known all rows are there.
        if not self.graph and gap not in (_BEGIN_AGAIN, padding.ON_GPU):
            _native.not_seen(_TOLD_ACCOUNT, gap)

    def gaps_of(self, call: int) -> collections.Counter[str]:
        """What the log does not show of this call, and what it lacks in a call that nobody knows;
        0: of a log without calls, or of a run without rows."""
        with self._lock:
            gaps = self._gaps_of.get(call, collections.Counter()) + self._other_gaps
            return gaps if call else gaps + self._new_gaps

    def _add_gaps(self) -> collections.Counter[str]:
        """Beside the rows of an eager run, which tells readers that these gaps are its own. Returns
        them."""
        told = collections.Counter[str]()
        if self.graph or self._has_probes or not self.rows:
            return told
        with contextlib.suppress(Exception):  # the rows must be ended; tell_gaps() tries again
            for gap in list(self._new_gaps):
                add_note(self._native, "ops/gap", f"gap log {gap}")
                told[gap] = self._new_gaps.pop(gap)
        return told

    def tell_gaps(self) -> None:
        """Shows the gaps to the readers of other processes, except what a call has told. end() does
        so; it is for those that are noted later."""
        with self._lock:
            self._gap_rows.tell(gap for gap in self._new_gaps if gap != _BEGIN_AGAIN)
            self._other_gaps.update(self._new_gaps)
            self._new_gaps.clear()

    def likeness(self, slot) -> tuple:
        """Of several slots of one name, the one with the greatest likeness is a row of the run that
        came last: the newest of those that were written before the run ended."""
        _, native = self._probes.get(slot.name, ("", None))
        is_own = native is not None and native.id == slot.probe_id
        written_ns = slot.last_timestamp_ns
        return is_own, written_ns <= self._ended_ns, written_ns

    def wait(self, timeout: float) -> bool:
        """Waits until the daemon has read every row. Requires: the GPU is done with them."""
        if not self._gap_rows.wait(timeout):
            return False
        with self._lock:
            parts = [self._native, *(native for _, native in self._probes.values())]
        return all(native.wait_consumed(timeout) for native in parts)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            probes, self._probes = self._probes, {}
        self._native.close()
        self._gap_rows.close()
        _native.not_wanted(ACCOUNT)
        _native.not_wanted(_TOLD_ACCOUNT)
        for _, native in probes.values():
            native.close()

    def _free_name(self, text: str) -> str:
        name = _accepted.make_name(text)
        number = 2
        while name in self._names:
            name = _accepted.make_name(f"{text}.{number}")
            number += 1
        return name

    def _marked(self, row: Row | None = None) -> contextlib.AbstractContextManager:
        """For kernels of rows: of those that are pending, and of this one."""
        names = []
        if self.graph and _torch_logs.asks_for_marks():
            names = [one.row for one in self._waiting] + ([row.name] if row else [])
        if not names:
            return contextlib.nullcontext()
        text = f"row {names[0]}" if len(names) == 1 else f"rows {names[0]} to {names[-1]}"
        return _torch_logs.marked(text)

    def _log(self, row: Row, tensor: torch.Tensor) -> None:
        with no_dispatch(), torch.no_grad(), self._marked(row):
            dense = tensor.detach().resolve_conj().resolve_neg()
            order = None
            if not dense.is_contiguous():
                order = _order_of(dense) if dense.is_cuda else None
                if order is None:
                    dense = dense.contiguous()
                    self.copies += 1
            waiting = self._native.add(
                row.name,
                op=_text_of(row),
                site=row.site,
                data=dense.data_ptr(),
                dtype=row.dtype,
                shape=list(row.shape),
                cuda=dense.device.index if dense.is_cuda else None,
                stream=torch.cuda.current_stream(dense.device).cuda_stream if dense.is_cuda else 0,
                order=order or [],
                details=self._details_text(row),
            )
        if waiting <= 1:  # those before are computed
            self._forget_waiting()
        if not waiting:
            return
        storage = dense.untyped_storage()
        address = storage.data_ptr()
        self._waiting.append(_Waiting(storage, storage.nbytes(), address, row.name))
        self._waiting_storages.add(address)

    def _observe(self, row: Row, tensor: torch.Tensor) -> None:
        native = self._probe_of(row)
        _site.given.text = row.site
        try:
            with no_dispatch():
                torch.ops.cgdebug.observe(tensor, native.site_key)
        finally:
            _site.given.text = None

    def _probe_of(self, row: Row):
        text = _text_of(row)
        made_with, native = self._probes.get(row.name, ("", None))
        if native is not None and made_with == text:
            return native
        if native is not None:
            native.close()
            self.note(f"{row.name} was made in another way than before: its replays begin again")
        native = self._module.NativeProbe(
            row.name,
            mode="always",
            copy_non_contiguous=True,
            site=row.site,
            op=text,
            **self._options,
        )
        self._probes[row.name] = (text, native)
        return native


def _order_of(tensor: torch.Tensor) -> list[tuple[int, int]] | None:
    """The dimensions of a tensor without gaps, from the one that changes fastest in memory: size,
    and stride if the tensor were contiguous. None if it has gaps, or if that is too long."""
    dimensions = []
    usual = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride())):
        if size != 1:
            dimensions.append((stride, size, usual))
        usual *= size
    order: list[tuple[int, int]] = []
    expected = 1
    for stride, size, usual in sorted(dimensions):
        if stride != expected:
            return None
        expected *= size
        if order and usual == order[-1][0] * order[-1][1]:  # one dimension with the one before
            order[-1] = (order[-1][0] * size, order[-1][1])
        else:
            order.append((size, usual))
    return order if len(order) <= _MAX_DIMENSIONS and expected < 1 << 32 else None


def _current_stream() -> int:
    return torch.cuda.current_stream().cuda_stream


def _text_of(row: Row) -> str:
    """As layout::SlotRegistration::op: "17 aten.mm.default +1 3 5"."""
    text = f"{row.number} {row.op}"
    for sign, count in (
        ("+", row.nodes.explained + row.rest.explained),
        ("-", row.nodes.left_out + row.rest.left_out),
    ):
        text += f" {sign}{count}" * (count > 0)
    for sign, names in (("<", row.nodes.unseen), (">", row.rest.unseen)):
        if names:
            shown = ",".join(list(dict.fromkeys(names))[:_MAX_NODE_NAMES])
            text += f" {sign}{len(names)}:{shown}"
    for place, number in enumerate(row.inputs):
        word = f" {number or '?'}"
        room = _MAX_OP_BYTES - (len(" ...") if place + 1 < len(row.inputs) else 0)
        if len(text) + len(word) > room:
            return text + " ..."
        text += word
    return text
