"""Has the rows of a capture that are pending computed before anything overwrites their tensors, and
finds the nodes that the graph gets between two ops."""

from __future__ import annotations

import typing

import torch

from .. import written
from ..written import Kind
from .row import Nodes

if typing.TYPE_CHECKING:
    import threading

    from ..calls import Call
    from ..collectives import Collectives
    from .writer import RowWriter


class Guard:
    """Thread: any. The methods without an underscore that take no call take the lock themselves."""

    def __init__(self, writer: RowWriter, collectives: Collectives, lock: threading.RLock):
        self._writer = writer
        self._log = writer.log
        self._collectives = collectives
        self._lock = lock
        self._inside = 0  # ops and kernels that are running

    def begin(self) -> None:
        """An op or a kernel is about to run."""
        with self._lock:
            if self._inside:
                self.take_nodes()
            elif self._writer.captured and not self._writer.is_done:
                self._find_unseen()
            self._inside += 1

    def end(self, is_explained: bool = False) -> None:
        """It has run."""
        with self._lock:
            self._inside -= 1
            if self._inside or not self._log.graph:
                # What the op around it writes, and when, is not known.
                self.flush()
            else:
                self._log.finish_op(is_explained)
                ends = self._writer.input_ends
                if ends is not None and ends.is_new:
                    self.flush()

    def settle(self) -> None:
        """Nothing is pending behind this."""
        with self._lock:
            if self._writer.captured:
                self._find_unseen()
            self.flush()

    def take_nodes(self) -> None:
        if not self._writer.captured or self._writer.is_done:
            return
        try:
            self._log.take_nodes()
        except Exception as error:  # the job goes on
            self._writer.note("the op log", error)

    def _find_unseen(self) -> None:
        try:
            unseen = self._log.take_unseen()
        except Exception as error:  # the job goes on
            self._writer.note("the op log", error)
            return
        if not unseen:
            return
        sent = self._collectives.explained(unseen)
        self._log.count(
            Nodes(explained=len(sent), unseen=tuple(name for name in unseen if name not in sent))
        )

    def before(self, call: Call) -> None:
        """Has the rows computed that the op may overwrite."""
        if not self._log.graph:
            self.flush()
        if not self._log.has_pending or call.plan.kind is Kind.IGNORED:
            return
        if not call.plan.is_exact or self.may_overwrite(
            tensor for argument in call.arguments if argument.mutated for tensor in argument.tensors
        ):
            self.flush()

    def may_overwrite(self, writes: typing.Iterable[torch.Tensor]) -> bool:
        """Whether a row of what is written is pending."""
        return self._log.has_lost_memory() or any(map(self._is_pending, writes))

    def _is_pending(self, tensor: torch.Tensor) -> bool:
        storage = written.storage_of(tensor)
        return self._log.is_pending(storage) if storage else tensor.numel() > 0

    def flush(self) -> None:
        if self._writer.input_ends is not None:
            self._writer.input_ends.is_new = False
        try:
            self._log.flush()
        except Exception as error:  # the job goes on
            self._writer.note("the op log", error)
