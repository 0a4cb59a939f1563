"""The rows of an op log on their way out: what an op wrote, under which name, made from which rows.

Nothing else knows how rows are kept. Rows of a graph, and of eager code on the CPU, are in a native
log (libprobe/op_log.h): one slot for hundreds of them. Where a GPU is used, rows of eager code are
probes of their own.
"""

from __future__ import annotations

import collections
import threading
import typing

import torch
from torch.utils._mode_utils import no_dispatch

from . import _accepted, _native, _site
from .actions import TensorStats, enabled_actions, native_options

_MAX_OP_BYTES = 511  # layout::kMaxOpBytes
_MAX_GAPS = 64  # different ones
UNKNOWN = 0  # of an input: no row shows what the op read


class Row(typing.NamedTuple):
    """What is known of a row when it is made.

    number: in its log, from 1
    inputs: numbers of the rows that the op read; UNKNOWN for what no row shows
    """

    number: int
    name: str
    op: str
    inputs: tuple[int, ...]
    site: str
    dtype: str
    shape: tuple[int, ...]


class OpLog:
    """The rows of one capture, or of what runs eagerly in one scope.

    graph: the number of the capture, 0 for an eager log. The rows of an eager log may be added
           again and again; each time is a replay of theirs.

    Thread: any.
    """

    def __init__(self, graph: int):
        self.graph = graph
        self.rows: list[Row] = []  # of the capture, or of the run that came last
        self.gaps: collections.Counter[str] = collections.Counter()
        self._lock = threading.RLock()
        self._before: list[tuple] = []  # the rows of the run before
        self._waiting: list[torch.Tensor] = []  # that flush() has yet to look at
        self._probes: dict[str, tuple[str, typing.Any]] = {}  # by name: with what it was made
        self._names: set[str] = set()  # of this run
        self._closed = False
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
    ) -> int:
        """Logs what `tensor` holds now, in the order of the current stream. Returns the number of
        the row.

        Fails: ValueError, RuntimeError: the tensor cannot be seen, or there is no room."""
        with self._lock:
            if self._closed:
                return UNKNOWN
            name = self._free_name(name)
            row = Row(
                len(self.rows) + 1,
                name,
                op,
                tuple(dict.fromkeys(inputs)),
                site,
                str(tensor.dtype).removeprefix("torch."),
                tuple(tensor.shape),
            )
            if self._has_probes or (tensor.is_cuda and not self.graph):
                self._observe(row, tensor)
            else:
                self._log(row, tensor)
            self._names.add(name)
            self.rows.append(row)
            return row.number

    def flush(self) -> None:
        """Computes what was added and not computed yet. Must be called before something overwrites
        a tensor of a row, and at the end of a capture.

        Fails: RuntimeError: rows of this capture are lost."""
        with self._lock:
            if not self._waiting:
                return
            try:
                self._native.flush()
            finally:
                self._waiting.clear()

    def end(self) -> None:
        """No more rows are added to this capture, or to this run of an eager log. Must be called
        before the capture ends.

        Fails: ValueError, RuntimeError: rows of this capture are lost."""
        with self._lock:
            if self._closed:
                return
            try:
                self._native.end()
            finally:
                self._waiting.clear()
            rows = [(row.name, _text_of(row), row.dtype, row.shape) for row in self.rows]
            if self._before and self._before != rows:
                self.note("the ops of a run were not those of the run before: replays begin again")
            self._before = rows

    def begin_run(self) -> None:
        """The rows of an eager log come again, as another replay."""
        with self._lock:
            if self.rows:
                self.rows = []
                self._names = set()

    def note(self, gap: str) -> None:
        """Notes something that the log does not show, and why."""
        with self._lock:
            if gap in self.gaps or len(self.gaps) < _MAX_GAPS:
                self.gaps[gap] += 1

    def wait(self, timeout: float) -> bool:
        """Waits until the daemon has read every row. Requires: the GPU is done with them."""
        with self._lock:
            parts = [self._native, *(native for _, native in self._probes.values())]
        return all(native.wait_consumed(timeout) for native in parts)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            probes, self._probes = self._probes, {}
        self._native.close()
        for _, native in probes.values():
            native.close()

    def _free_name(self, text: str) -> str:
        name = _accepted.make_name(text)
        number = 2
        while name in self._names:
            name = _accepted.make_name(f"{text}.{number}")
            number += 1
        return name

    def _log(self, row: Row, tensor: torch.Tensor) -> None:
        with no_dispatch(), torch.no_grad():
            dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
            waiting = self._native.add(
                row.name,
                op=_text_of(row),
                site=row.site,
                data=dense.data_ptr(),
                dtype=row.dtype,
                shape=list(row.shape),
                cuda=dense.device.index if dense.is_cuda else None,
                stream=torch.cuda.current_stream(dense.device).cuda_stream if dense.is_cuda else 0,
            )
        if waiting:
            self._waiting.append(dense)
        else:
            self._waiting.clear()

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


def _text_of(row: Row) -> str:
    """As layout::SlotRegistration::op: "17 aten.mm.default 3 5"."""
    text = f"{row.number} {row.op}"
    for place, number in enumerate(row.inputs):
        word = f" {number or '?'}"
        room = _MAX_OP_BYTES - (len(" ...") if place + 1 < len(row.inputs) else 0)
        if len(text) + len(word) > room:
            return text + " ..."
        text += word
    return text
