"""hooks=["memory"]: what memory each op took."""

from __future__ import annotations

import threading
import typing

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .. import written

if typing.TYPE_CHECKING:
    from . import OpCall


class _Taken(typing.NamedTuple):
    """By one op, in bytes. most: the greatest amount at once, beyond what was there before."""

    kept: int
    allocated: int
    most: int


class MemoryColumns:
    """Columns "kept", the bytes that the op's call added; "allocated", all that it asked for, what
    it gave back included; and "peak", the greatest amount by then.

    On a GPU they are torch's counters, and the peak is that of the job. On a CPU torch's allocator
    tells them of the thread that calls the op, and the peak is that of all memory that the ops of
    the log have touched. Where a profiler runs on the thread, which then has the allocator's ear,
    only "kept" is there: the size of what the op returned in new memory.
    """

    __name__ = "memory"

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._touched: dict[int, tuple[StorageWeakRef, int]] = {}  # by StorageImpl, with its size
        self._peak = 0

    def before(self, call: OpCall) -> None:
        counters = _counters() if torch.cuda.is_initialized() else None
        call.state[self] = (counters, _Listener.begin())

    def stop(self, call: OpCall) -> None:
        """The op has run, or failed. Nothing else may allocate between."""
        counters, is_listening = call.state[self]
        taken = _Listener.end() if is_listening else None
        call.state[self] = (counters, _counters() if counters else None, taken)

    def __call__(self, call: OpCall) -> dict[str, int]:
        given = written.tensors_in([*call.args, *call.kwargs.values()])
        made = written.tensors_in(call.result)
        before, after, taken = call.state.get(self, (None, None, None))
        if before and after and any(one.is_cuda for one in (*made, *given)):
            kept, allocated = (after[place] - before[place] for place in (0, 1))
            return {"kept": kept, "allocated": allocated, "peak": after[2]}
        if taken is None:
            known = {written.storage_of(one) for one in given}
            new = {written.storage_of(one): one.untyped_storage().nbytes() for one in made}
            return {"kept": sum(new[address] for address in new if address not in {0, *known})}
        return {"kept": taken.kept, "allocated": taken.allocated, "peak": self._top(call, taken)}

    def _top(self, call: OpCall, taken: _Taken) -> int:
        tensors = written.tensors_in([*call.args, *call.kwargs.values(), call.result])
        with self._lock:
            for one in tensors:
                if one.device.type == "cpu" and written.storage_of(one):
                    storage = one.untyped_storage()
                    self._touched[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
            gone = [key for key, (storage, _) in self._touched.items() if storage.expired()]
            for key in gone:
                del self._touched[key]
            now = sum(size for _, size in self._touched.values())
            self._peak = max(self._peak, now - taken.kept + taken.most)
            return self._peak


class _Listener:
    """Hears of what torch's allocator gives out and takes back on this thread."""

    @staticmethod
    def begin() -> bool:
        """Whether it does; then end() must be called on this thread."""
        try:
            config = torch._C._profiler.ProfilerConfig(
                torch._C._profiler.ProfilerState.CPU,
                *(False, True, False, False, False),  # memory alone
                torch._C._profiler._ExperimentalConfig(),
            )
            torch._C._autograd._enable_profiler_legacy(config)
        except Exception:  # another profiler runs, or this torch has none
            return False
        return True

    @staticmethod
    def end() -> _Taken:
        now = allocated = most = 0
        for events in torch._C._autograd._disable_profiler_legacy():
            for event in events:
                size = event.cpu_memory_usage() if event.kind() == "memory_alloc" else 0
                now += size
                allocated += max(size, 0)
                most = max(most, now)
        return _Taken(now, allocated, most)


def _counters() -> tuple[int, int, int]:
    stats = torch.cuda.memory_stats()
    return tuple(
        stats.get(f"allocated_bytes.all.{name}", 0) for name in ("current", "allocated", "peak")
    )
