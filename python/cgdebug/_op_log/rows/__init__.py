"""The rows of an op log on their way out: what an op wrote, under which name, made from which rows.

Nothing else knows how rows are kept: in a native log (libprobe/op_log.h), one slot for hundreds of
them.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
import typing

import torch

from ..._job import _accepted, _native
from ..._shared import _torch_logs
from .. import input_ends
from ..details import Details
from .call_details import CallDetails
from .gaps import ACCOUNT, MAX_CALLS, TOLD_ACCOUNT, Gaps
from .native_rows import NativeRows
from .row import NO_DETAILS, UNKNOWN, Coverage, Nodes, Row

if typing.TYPE_CHECKING:
    from ..padding import Tail

_GPU_TIMEOUT_S = 60  # for the rows of a call that has ended


class OpLog:
    """The rows of one capture, or of what runs eagerly in one scope.

    graph: the number of the capture, 0 for an eager log. The rows of an eager log may be added
           again and again; each time is a call, whose rows may be others.
    every: of a capture: the rows of replays 1, 1 + every, ... are seen
    calls: the numbers of the newest runs of an eager log, oldest first

    Thread: any.
    """

    def __init__(self, graph: int, every: int = 1):
        self.graph, self.every = graph, every
        self.rows: list[Row] = []  # of the capture, or of the run that came last
        self._lock = threading.RLock()
        self.calls: collections.deque[int] = collections.deque(maxlen=MAX_CALLS)
        self.told_rows: set[int] = set()  # lists of rows that torch's tools were told, hashed
        self._call_details = CallDetails()
        self._gaps = Gaps(graph)
        self._nodes = Nodes()  # that no row has
        self._nodes_of_op = 0
        self._names: set[str] = set()  # of this run
        self._closed = False
        self._ended_ns = 0  # wall clock: when the run that came last ended
        self._native = _native.load().NativeOpLog(every)
        self._out = NativeRows(self._native, of_graph=bool(graph))
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
        tail: Tail | None = None,
    ) -> int:
        """Logs what `tensor`, or its tail, holds now, in the order of the current stream. Returns
        the number of the row. In a capture the row is pending: until flush(), nobody may change the
        tensor.

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
                details=NO_DETAILS if details is None else details,
            )
            self._log(row, tensor, tail)
            self._names.add(name)
            self.rows.append(row)
            self._nodes = Nodes()
            return row.number

    def _log(self, row: Row, tensor: torch.Tensor, tail: Tail | None = None) -> None:
        self._out.add(row, tensor, self._details_text(row), tail)

    # --- pending rows, and the nodes of a capture -------------------------------------------------

    @property
    def copies(self) -> int:
        """Rows whose tensor had to be copied first, because it has gaps."""
        return self._out.copies

    @property
    def has_pending(self) -> bool:
        return bool(self._out.pending.memory)

    def is_pending(self, storage: int) -> bool:
        """Whether a pending row shows what is in the memory of that storage."""
        return self._out.pending.has(storage)

    def has_lost_memory(self) -> bool:
        """Whether a pending row's tensor has given its memory back, as resize_(0) of a storage
        does. The next op may be given that memory."""
        return self._out.pending.has_lost_memory()

    def flush(self) -> None:
        """Computes the pending rows. Must be called before something that is known changes one of
        their tensors.

        Fails: RuntimeError: rows of this capture are lost."""
        with self._lock:
            self._out.flush()

    def take_unseen(self) -> list[str]:
        """What the nodes run that were captured since the last call of this or of take_nodes(), and
        that belong to nobody who is followed. Rows that were pending are computed in front of them.

        Fails: RuntimeError: rows of this capture are lost."""
        with self._lock:
            if self._closed or not self.graph:
                return []
            return self._out.take_unseen(_current_stream())

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
            return Coverage.of(self.rows)

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
            if not (views and self.rows) or self._closed:
                return
            if self.rows[-1].details is NO_DETAILS:
                self.rows[-1] = self.rows[-1]._replace(details=Details())
            self.rows[-1].details.views += [f"after it: {view}" for view in views]
            self._amend()

    def _amend(self) -> None:
        row = self.rows[-1]
        self._native.amend_newest(row.text(), self._details_text(row))

    def _details_text(self, row: Row) -> str:
        if row.details is NO_DETAILS:
            return ""
        return row.details.to_json() if self.graph else self._call_details.text_of(row)

    def details_of(self, call: int, number: int) -> Details | None:
        """Of a row of an eager call, exactly; None if they are not kept."""
        with self._lock:
            return self._call_details.of(call, number)

    # --- the whole log ----------------------------------------------------------------------------

    def end(self, input_ends: typing.Iterable[tuple[int, torch.Tensor]] = ()) -> None:
        """No more rows are added to this capture, or to this run of an eager log. Must be called
        before the capture ends.

        input_ends: inputs of the capture that are looked at again here, and the numbers of the rows
                    that show them. They are no rows of the log.

        Fails: ValueError, RuntimeError: rows of this capture are lost."""
        with self._lock:
            if self._closed:
                return
            try:
                if self.graph:
                    self._take_rest()
                    self._add_ends(input_ends)
            finally:
                call = 0
                try:
                    if self.rows and not self.graph:
                        self._await_gpu()
                        self._gaps.tell_beside(self._native)
                    call = self._native.end()
                finally:
                    self._gaps.end_run(call)
                    self._out.pending.clear()
                    self._ended_ns = time.time_ns()
                if call:
                    self._called(call)
            self.tell_gaps()

    def _await_gpu(self) -> None:
        """For the rows of this call that a GPU computes."""
        end = time.monotonic() + _GPU_TIMEOUT_S
        while not self._native.await_rows(0.25) and time.monotonic() < end:
            pass  # signals are handled here
        if lost := self._native.drop_awaited():
            self.note(f"{lost} rows are not seen: the GPU has not computed them")

    def _add_ends(self, inputs: typing.Iterable[tuple[int, torch.Tensor]]) -> None:
        for number, (first, tensor) in enumerate(inputs, len(self.rows) + 1):
            row = self.rows[first - 1]
            name = self._free_name(f"end/{row.name.removeprefix('in/')}")
            self._names.add(name)
            end = Row(number, name, input_ends.OP, (first,), row.site, row.dtype, row.shape)
            self._log(end, tensor)
        self.flush()

    def _called(self, call: int) -> None:
        self.calls.append(call)
        with contextlib.suppress(Exception):  # the job goes on
            _torch_logs.op_log_called(self, call)
        self._call_details.keep(call, self.rows)

    def begin_run(self) -> None:
        """What comes now in an eager log is another call."""
        with self._lock:
            if self.rows:
                self.rows = []
                self._names = set()

    def note(self, gap: str) -> None:
        """Notes something that the log does not show, and why."""
        self._gaps.note(gap)

    @property
    def gaps(self) -> collections.Counter[str]:
        return self._gaps.counts

    def gaps_of(self, call: int) -> collections.Counter[str]:
        """What the log does not show of this call, and what it lacks in a call that nobody knows;
        0: of a log without calls, or of a run without rows."""
        return self._gaps.of(call)

    def tell_gaps(self) -> None:
        """Shows the gaps to the readers of other processes, except what a call has told. end() does
        so; it is for those that are noted later."""
        self._gaps.tell()

    def likeness(self, slot) -> tuple:
        """Of several slots of one name, the one with the greatest likeness is a row of the run that
        came last: the newest of those that were written before the run ended."""
        written_ns = slot.last_timestamp_ns
        return written_ns <= self._ended_ns, written_ns

    def wait(self, timeout: float) -> bool:
        """Waits until the daemon has read every row. Requires: the GPU is done with them."""
        if not self._gaps.wait(timeout):
            return False
        return self._native.wait_consumed(timeout)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._native.close()
        self._gaps.close()
        _native.not_wanted(ACCOUNT)
        _native.not_wanted(TOLD_ACCOUNT)

    def _free_name(self, text: str) -> str:
        name = _accepted.make_name(text)
        number = 2
        while name in self._names:
            name = _accepted.make_name(f"{text}.{number}")
            number += 1
        return name


def _current_stream() -> int:
    return torch.cuda.current_stream().cuda_stream
