"""The native module: slots, rings and the process's segment. Package-internal; use `cgdebug`."""

from collections.abc import Callable
from typing import Any, TypedDict

class _ObservedSlot(TypedDict):
    slot: int
    invocation_index: int
    graph_id: int
    graph_label: str
    dtype: str
    shape: tuple[int, ...]
    device: str
    part: str

class _Record(_ObservedSlot):
    replay_index: int
    serial: int
    ordinal: int
    timestamp_ns: int
    step: int | None
    shard: str
    payload: bytearray

class _Verdict(TypedDict):
    state: str
    compared: int
    mismatched: int
    lost: int
    first_failed_replay: int
    text: str

class _Slot(_ObservedSlot):
    site: str
    lane: str
    policy: str
    capacity: int
    payload_bytes: int
    replays: int
    in_body: bool
    taken: int
    graph_replays: int
    accepted: int
    consumed: int
    lost: int
    overwrote_unread: int
    waits: int
    wait_ns: int
    suppressed: int
    retired: bool
    compares: bool
    compared_with: str
    failure: dict[str, Any] | None
    compared_on: str
    verdict: _Verdict

class _Status(TypedDict):
    closed: bool
    error: str | None
    lane_note: str | None
    daemon_alive: bool
    slots: list[_Slot]

class _Print(TypedDict):
    max_items: int
    every: int
    summary: bool

class _Recording(TypedDict):
    capacity: int
    every: int
    to: str  # "ring", "disk"
    where: str  # "host", "device", "auto"
    trigger: int  # layout::ControlTrigger
    threshold: float
    times: int
    unchanged: str

class _Compare(TypedDict):
    expected: list[tuple[str, list[int], Any]]  # dtype, shape, contiguous bytes (a buffer)
    per_invocation: bool
    rtol: float
    atol: float
    equal_nan: bool
    bitwise: bool
    every: int
    on_device: bool
    with_first: bool
    probe: int | None  # the id of another

class _Stats(TypedDict):
    every: int
    hash: bool

class _Session(TypedDict):
    name: str
    uuid: str
    shm_bytes: int
    slots: int
    released_unread: int

class NativeProbe:
    def __init__(
        self,
        name: str,
        *,
        mode: str,
        copy_non_contiguous: bool,
        site: str,
        print: _Print | None,
        record: _Recording | None,
        compare: _Compare | None,
        stats: _Stats | None = None,
        lane: str = "auto",
        stable: bool = False,
        op: str = "",
        part: str = "",
    ) -> None: ...
    @property
    def id(self) -> int: ...
    @property
    def site_key(self) -> str: ...
    def records(self, last: int = -1) -> list[_Record]: ...
    def clear_records(self, upto: dict[int, int] | None = None) -> None: ...
    def wait_consumed(self, timeout_s: float) -> bool: ...
    def status(self) -> _Status: ...
    def follow_calls(self) -> None: ...
    def close(self) -> None: ...

class NativeOpLog:
    def __init__(self) -> None: ...
    def add(
        self,
        name: str,
        op: str,
        site: str,
        data: int,
        dtype: str,
        shape: list[int],
        cuda: int | None = None,
        stream: int = 0,
        order: list[tuple[int, int]] = ...,
        details: str = "",
    ) -> int: ...
    def counters(self) -> dict[str, int]: ...
    def flush(self) -> None: ...
    def pending(self) -> int: ...
    def take_nodes(self, stream: int) -> int: ...
    def take_unseen(self, stream: int) -> list[str]: ...
    def take_rest(self, stream: int) -> list[str]: ...
    def amend_newest(self, op: str, details: str) -> None: ...
    def end(self) -> int: ...
    def wait_consumed(self, timeout_s: float) -> bool: ...
    def close(self) -> None: ...

def set_site_provider(function: Callable[[], str]) -> None: ...
def set_step(step: int | None, stream: int | None) -> None: ...
def begin_call() -> int: ...
def end_call() -> None: ...
def leave_calls() -> None: ...
def set_calls_followed(are_followed: bool) -> None: ...
def set_sees_eager(sees: bool) -> bool: ...
def set_rank(rank: int, world_size: int, meeting: str) -> None: ...
def set_graph_label(label: str, scoped: bool) -> tuple[str, bool]: ...
def capture_of(stream: int) -> int: ...
def note_root_capture(stream: int) -> None: ...

class Graph:
    def end(self, nodes: int | None, failed: bool) -> None: ...
    def pool(self, first: int, second: int) -> None: ...
    def counter(self) -> Callable[[], None]: ...
    def take_back(self) -> None: ...
    def share(self) -> None: ...
    def gone(self) -> None: ...
    @property
    def replays(self) -> int: ...
    @property
    def is_gone(self) -> bool: ...

def graph_begin(capture: int, stack: str) -> Graph | None: ...
def named_nodes(graph: int) -> list[tuple[int, int, str]]: ...
def graph_nodes(stream: int = 0, graph: int = 0) -> int | None: ...
def count_unlisted() -> None: ...
def check_part(who: str, part: str) -> None: ...
def session() -> _Session | None: ...
def finding(kind: int) -> str | None: ...
def count_refused(name: str, reason: str, is_captured: bool) -> None: ...
def not_wanted(name: str) -> None: ...
def not_seen() -> str | None: ...
def await_read(timeout_s: float) -> tuple[bool, int, int, int, int]: ...
def start_daemon() -> None: ...
def version() -> str: ...
def finish(timeout_s: float) -> str: ...
def tell_malformed_settings() -> None: ...

FINDING_KINDS: list[str]
WATCH_LEVELS: list[str]

def condition(text: str, what: str) -> tuple[int, float]: ...
def finding_kinds(list: str, what: str) -> list[str]: ...
def watched(text: str, what: str) -> tuple[str, str]: ...
def check_probe_name(name: str) -> None: ...
def make_probe_name(text: str) -> str: ...
def setting_problem(name: str, text: str) -> str: ...
