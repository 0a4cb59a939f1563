"""cgdebug.audit(): whether captured graphs still read the memory that the model has.

The recorder of a capture tells which memory ops were given that was there before (Holdings). Later
the names of that memory are looked up again: a name that is elsewhere has moved, and memory whose
storage is gone is freed. judge() decides, over addresses and names alone.
"""

from __future__ import annotations

import atexit
import bisect
import contextlib
import dataclasses
import functools
import itertools
import re
import threading
import time
import typing
import weakref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .._job import _graphs, _native
from .._job._graph_pools import GraphPools, note_rows
from . import models, written
from .rows.gaps import add_note

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .names import ModuleNames
    from .rows import OpLog

# Their result is a view: no row shows it.
_VIEWS = frozenset(
    {
        *("alias", "as_strided", "detach", "expand", "permute", "select", "slice", "split", "t"),
        *("split_with_sizes", "squeeze", "transpose", "unbind", "unsqueeze", "view", "view_as"),
    }
)
LEVELS = ("wrong", "latent", "hazard")
_MAX_TEXT_BYTES = 460  # of a note; kMaxOpBytes, less what comes before it
_MAX_NOTES = 64  # of a graph
_COMPARED_BYTES = 64 << 20  # at a time
_STEP_INTERVAL_S = 10.0  # between audits that step() makes
_STEP_SHARE = 100  # of the time between them, an audit takes at most one part
_MAX_READERS = 1 << 12  # of one tensor


class Place(typing.NamedTuple):
    """Memory that has a name now. start: of the tensor in it, in bytes"""

    name: str
    address: int
    bytes: int
    start: int = 0


class Places:
    """Finds what lies where. It goes through the places when it is asked for the first time: most
    audits ask nothing."""

    def __init__(self, places: Iterable[Place]):
        self._places: Iterable[Place] | None = places

    def _sort(self, places: Iterable[Place]) -> None:
        self._places = None
        self._all = sorted(places, key=lambda one: one.address)
        self._begins = [one.address for one in self._all]
        # The greatest end of each and those before it.
        self._ends = list(itertools.accumulate((one.address + one.bytes for one in self._all), max))

    def at(self, address: int, size: int) -> list[str]:
        """The names of what overlaps these bytes."""
        if self._places is not None:
            self._sort(self._places)
        found = []
        place = bisect.bisect_left(self._begins, address + size) - 1
        while place >= 0 and self._ends[place] > address:
            one = self._all[place]
            if one.address + one.bytes > address:
                found.append(one.name)
            place -= 1
        return found[::-1]


@dataclasses.dataclass
class Held:
    """Memory that was there before a capture, and that its ops were given.

    names:   of parameters, buffers, gradients, state of optimizers, attributes of modules; empty:
             it had none when the capture ended
    label:   what to call it without a name: "in/fwd/mm_0.self", the argument that it was
    readers: rows of the ops that were given it
    is_host: it lies in the memory of the host, and the graph copies from it
    starts:  by name: of the tensor in the memory, in bytes
    """

    address: int
    bytes: int
    label: str
    readers: list[str] = dataclasses.field(default_factory=list)
    names: list[str] = dataclasses.field(default_factory=list)
    is_host: bool = False
    starts: dict[str, int] = dataclasses.field(default_factory=dict)

    def has_moved(self, name: str, now: Place) -> bool:
        return (now.address, now.start) != (self.address, self.starts.get(name, now.start))


class Finding(typing.NamedTuple):
    """level: "wrong", "latent" or "hazard"; kind: "moved", "freed", "gone"; name: of the tensor;
    user: what has the memory now, or ""; now: where the tensor is now, 0: nowhere"""

    level: str
    kind: str
    name: str
    held: Held
    is_alive: bool
    user: str
    now: int


def judge(
    held: Held,
    is_alive: bool,
    now: Mapping[str, Place],
    named: Places,
    of_graphs: Places,
    is_same: Callable[[str], bool] | None = None,
    capture: int = 0,
) -> Finding | None:
    """is_alive: whether its storage is there, with the same memory
    now:       what has which name now
    named:     the same, by place
    of_graphs: memory of captures, of this one too
    capture:   the number of this one
    is_same:   whether what has this name now has the same values as the memory that the graph reads
    """
    own = set(held.names)
    name = held.names[0] if held.names else held.label
    user = ""
    by_graph = False
    if not is_alive:
        strangers = [one for one in named.at(held.address, held.bytes) if one not in own]
        if strangers:
            user = strangers[0]
        else:
            graphs = of_graphs.at(held.address, held.bytes)
            others = [one for one in graphs if not one.endswith(_of_capture(capture))]
            user, by_graph = (others[0], True) if others else ("", False)
    moved = [one for one in held.names if one in now and held.has_moved(one, now[one])]
    if moved:
        place = now[moved[0]]
        level = "wrong"
        is_elsewhere = place.address != held.address
        if is_elsewhere and is_alive and is_same is not None and is_same(moved[0]):
            level = "latent"
        return Finding(level, "moved", moved[0], held, is_alive, user, place.address + place.start)
    if any(one in now for one in held.names):
        return None  # it is where it was, in a storage that may be another one
    if not is_alive:
        level = "wrong" if user and not by_graph else "hazard" if by_graph else "latent"
        return Finding(level, "freed", name, held, is_alive, user, 0)
    if held.names:
        return Finding("latent", "gone", name, held, is_alive, "", 0)
    return None


def texts_of(findings: Iterable[Finding], since: Mapping[tuple, int]) -> list[tuple[str, str]]:
    """(level, sentence), those that differ by numbers in their names as one.

    since: by key_of(): after how many replays it was seen first"""
    groups: dict[tuple, list[Finding]] = {}
    for one in findings:
        groups.setdefault(key_of(one), []).append(one)
    found = []
    for key, group in sorted(groups.items(), key=lambda item: LEVELS.index(item[1][0].level)):
        first = group[0]
        text = f"{first.kind}: {first.name}"
        if len(group) > 1:
            text = f"{first.kind}: {len(group)} tensors {key[2]}, the first {first.name}"
        reads = "copies from host memory at" if first.held.is_host else "reads"
        state = "which nobody has now"
        if first.is_alive:
            state = "which something else keeps"
        elif first.user:
            state = f"freed, and {first.user} has it now"
        elif first.kind != "freed":
            state = "freed"
        address = first.held.address + first.held.starts.get(first.name, 0)
        text += f": the graph {reads} {address:#x}, {state}"
        if first.now:
            text += f"; the model has it at {first.now:#x}"
        elif first.kind == "gone":
            text += "; the model has no tensor of that name"
        readers = list(dict.fromkeys(row for one in group for row in one.held.readers))
        if readers:
            more = f" and {len(readers) - 1} more" if len(readers) > 1 else ""
            text += f"; read by {readers[0]}{more}"
        if since.get(key):
            text += f"; seen after replay {since[key]}"
        found.append((first.level, text))
    return found


def key_of(one: Finding) -> tuple:
    return one.level, one.kind, re.sub(r"\d+", "*", one.name), bool(one.user), one.is_alive


# --- what a capture was given ---------------------------------------------------------------------


def _of_capture(capture: int) -> str:
    return f" of capture {capture}"


class Holdings:
    """The memory that one capture was given. Thread: one at a time, as its recorder."""

    def __init__(self, capture: int, module_names: ModuleNames, graph=None):
        self.capture, self.names = capture, module_names
        self.graph = None if graph is None else weakref.ref(graph)
        self.missing: list[str] = []
        self.kernels = 0  # that are no ops: nobody knows what they were given
        self.made: list[Place] = []  # memory that the capture has of its own
        self._held: dict[int, tuple[Held, StorageWeakRef]] = {}  # by StorageImpl
        self.since: dict[tuple, int] = {}
        self.told: tuple[list[tuple[str, str]], list[tuple[str, str]]] | None = None
        self.newest: GraphAudit | None = None
        self._had_models = False

    def note(self, tensor: torch.Tensor, label: str, reader: str, base: str) -> None:
        """An op is given the tensor, which was there before the capture."""
        copies = "copy" in base
        is_host = bool(self.capture) and tensor.device.type == "cpu"
        address = written.storage_of(tensor)
        if not address or (is_host and not copies):
            return  # a number, which the capture has read already
        storage = tensor.untyped_storage()
        known = self._held.get(storage._cdata)
        if known is None:
            held = Held(address, storage.nbytes(), label, is_host=is_host)
            known = self._held[storage._cdata] = held, StorageWeakRef(storage)
        readers = known[0].readers
        if base not in _VIEWS and len(readers) < _MAX_READERS and reader not in readers[-1:]:
            readers.append(reader)

    def has(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._held

    def note_made(self, tensor: torch.Tensor, row: str) -> None:
        if self.capture and tensor.device.type != "cpu" and written.storage_of(tensor):
            storage = tensor.untyped_storage()
            name = f"{row}{_of_capture(self.capture)}"
            self.made.append(Place(name, storage.data_ptr(), storage.nbytes()))

    def finish(self, log: OpLog | None = None) -> None:
        """The capture ends: the memory has the names that it has now."""
        self._had_models = bool(self.names.models())
        at: dict[int, list[Place]] = {}
        addresses = {held.address for held, _ in self._held.values()}
        for place in _places_at(tensors_of(self.names), addresses):
            at.setdefault(place.address, []).append(place)
        for held, _ in self._held.values():
            for place in at.get(held.address, []):
                held.names.append(place.name)
                held.starts[place.name] = place.start
        coverage = log.coverage if log is not None else None
        kernels = self.kernels
        if coverage is not None:
            kernels += sum(len(one[2]) for one in coverage.unseen)
        if kernels:
            self.missing.append(f"what {kernels} kernels read that are no ops")
        elif log is not None and log.gaps:
            self.missing.append(f"not logged: {next(iter(log.gaps))}")

    def named(self) -> dict[str, Place]:
        """What had a name when the capture ended, and where it was."""
        return {
            name: Place(name, held.address, held.bytes, held.starts[name])
            for held, _ in self._held.values()
            for name in held.names
        }

    @property
    def is_over(self) -> bool:
        """Whether its models are gone: nobody can tell any more where their tensors were."""
        return self._had_models and not self.names.models()

    def held(self) -> list[tuple[Held, bool]]:
        """All of it, and whether its storage is there with the same memory."""
        found = []
        for held, reference in self._held.values():
            storage = self._storage_of(reference)
            found.append((held, storage is not None and storage.data_ptr() == held.address))
        return found

    @staticmethod
    def _storage_of(reference: StorageWeakRef) -> torch.UntypedStorage | None:
        return torch.UntypedStorage._new_with_weak_ptr(reference.cdata)

    def is_same(self, held: Held, tensors: Mapping[str, torch.Tensor], name: str) -> bool:
        """Whether the tensor of that name has the values of the memory that the graph reads.
        Requires: it is alive."""
        for one, reference in self._held.values():
            storage = self._storage_of(reference) if one is held else None
            if storage is not None:
                other = tensors[name].untyped_storage()
                if storage.nbytes() != other.nbytes() or storage.device != other.device:
                    return False
                old, new = (
                    torch.empty(0, dtype=torch.uint8, device=each.device).set_(each)
                    for each in (storage, other)
                )
                parts = range(0, old.numel(), _COMPARED_BYTES)  # a comparison takes as much memory
                return all(
                    torch.equal(old[at : at + _COMPARED_BYTES], new[at : at + _COMPARED_BYTES])
                    for at in parts
                )
        return False

    @property
    def replays(self) -> int:
        graph = self.graph and self.graph()
        return getattr(getattr(graph, "_cgdebug_graph", None), "replays", 0) or 0


def places_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, Place]:
    found = {}
    for name, tensor in tensors.items():
        if written.storage_of(tensor):
            storage = tensor.untyped_storage()
            start = tensor.data_ptr() - storage.data_ptr()
            found[name] = Place(name, storage.data_ptr(), storage.nbytes(), start)
    return found


def _places_at(tensors: Mapping[str, torch.Tensor], addresses: set[int]) -> Iterable[Place]:
    """Those whose memory begins at one of the addresses. A capture is given few of the tensors that
    a model has, so all are asked where they begin, and only those few for the rest."""
    kinds = {one: not written.handles_ops(one) for one in set(map(type, tensors.values()))}
    asked = {name: one for name, one in tensors.items() if kinds[type(one)]}  # others have none
    begins = models.begins_of(list(asked.values()))
    if begins is not None:
        tensors = {
            name: one
            for (name, one), begin in zip(asked.items(), begins, strict=True)
            if begin in addresses
        }
    return places_of(tensors).values()


def tensors_of(module_names: ModuleNames) -> dict[str, torch.Tensor]:
    """By name: parameters, buffers and gradients of the models that have names, tensors that are
    plain attributes of their modules, and the state of the optimizers that stepped."""
    found: dict[str, torch.Tensor] = {}
    parameters: dict[int, str] = {}
    for prefix, model in module_names.models():
        tensors = models.tensors_of(model)
        found.update((prefix + name, one) for name, one in tensors.all)
        parameters.update((id(one), prefix + name) for name, one in tensors.parameters)
    for optimizer in list(module_names.optimizers):
        for parameter, state in list(optimizer.state.items()):
            name = parameters.get(id(parameter))
            for key, one in state.items() if name and isinstance(state, dict) else ():
                if isinstance(one, torch.Tensor):
                    found[f"{name}.{key}"] = one
    return {name: getattr(one, "_local_tensor", one) for name, one in found.items()}


# --- audits ---------------------------------------------------------------------------------------


class GraphAudit(typing.NamedTuple):
    """Of one graph. capture: its number; tensors: at how many it was looked; findings: (level,
    sentence); memory: (kind, text) of the notes about its pool"""

    capture: int
    tensors: int
    replays: int
    findings: list[tuple[str, str]]
    missing: list[str]
    memory: list[tuple[str, str]]


class Audit:
    """What audit() found.

    graphs: one for each graph that was captured with an op log
    not_looked_at: sentences
    """

    def __init__(self, graphs: list[GraphAudit], not_looked_at: list[str]):
        self.graphs = graphs
        self.not_looked_at = not_looked_at

    @property
    def wrong(self) -> list[str]:
        """Sentences: a graph does not read what the model has."""
        return self._of("wrong")

    @property
    def latent(self) -> list[str]:
        """Sentences: a graph reads memory that the model has left, and that may change hands."""
        return self._of("latent")

    @property
    def hazards(self) -> list[str]:
        """Sentences: another graph may write what a graph reads, as graphs do that share a pool."""
        return self._of("hazard")

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong, and all was looked at."""
        return not self.wrong and not self.not_looked_at

    def _of(self, level: str) -> list[str]:
        return [
            f"graph {graph.capture}: {text}"
            for graph in self.graphs
            for kind, text in graph.findings
            if kind == level
        ]

    def __str__(self) -> str:
        lines = []
        for level, texts in zip(LEVELS, (self.wrong, self.latent, self.hazards)):
            lines += [f"{level:<7} {text}" for text in texts]
        lines += [f"not looked at: {text}" for text in self.not_looked_at]
        tensors = sum(graph.tensors for graph in self.graphs)
        lines.append(f"looked at {tensors} tensors of {len(self.graphs)} graphs")
        return "\n".join(lines)


_lock = threading.RLock()
_all: dict[int, Holdings] = {}  # by capture: of graphs that live
_native_log: typing.Any = None
_is_automatic = False
_told = 0  # how often the daemon was told of a graph
_last_s = 0.0  # when the newest audit ended, and how long it took
_took_s = 0.0


def audit() -> Audit:
    """Whether the graphs of this process still read the memory that the model has:

        engine.reload_weights(path)
        found = cgdebug.audit()
        assert found.ok, found

    It knows the memory that ops of a capture were given, of graphs that were captured with an op
    log, by debug_mode(), watch(level="op") or `run --watch 'op:*'`: parameters, buffers, gradients,
    state of optimizers, tensors that are attributes of modules, static inputs, and host memory that
    a graph copies from. It looks where these are now. "Wrong": the model has the tensor elsewhere,
    or something else has its memory. "Latent": the memory is freed, or the values are still the
    same. "Hazard": another graph may write it.

    It is called by itself when `load_state_dict()` returns, by `cgdebug.step()`, at most every
    10 s, and at the end of the process: `cgdebug-cli audit` and `why` show what it found last.
    """
    return run(list(_all.values()))


def run(all_of_them: Sequence[Holdings], are_new: bool = False) -> Audit:
    """Audits these. are_new: their captures have just ended, so all names are where they were."""
    global _last_s, _took_s
    not_looked: list[str] = []
    graphs: list[GraphAudit] = []
    with _lock, torch.no_grad():
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return Audit([], ["anything: a graph is being captured"])
        begin = time.monotonic()
        tensors: dict[tuple, dict[str, torch.Tensor]] = {}
        # One that is collected meanwhile would change what its names are found by.
        keys = [one.names.models_and_optimizers() for one in all_of_them]
        held = [one.held() for one in all_of_them]
        named_before = [one.named() for one in all_of_them]
        # A walk through the models would take longer than all the rest of a small capture.
        is_walked = not are_new or not all(is_alive for of in held for _, is_alive in of)
        now: dict[tuple, dict[str, Place]] = {}
        for one, key, named in zip(all_of_them, keys, named_before, strict=True):
            if key not in tensors:
                tensors[key] = tensors_of(one.names) if is_walked else {}
            now.setdefault(key, {}).update(named)
        if is_walked:
            for key, of in tensors.items():
                now[key] = places_of({name: of[name] for name in now[key] if name in of})
        everything = Places(place for of in tensors.values() for place in places_of(of).values())
        of_graphs = Places(place for one in all_of_them for place in one.made)
        pools = GraphPools()
        for one, key, of_one in zip(all_of_them, keys, held, strict=True):
            graphs.append(
                _audit_one(one, of_one, now[key], tensors[key], everything, of_graphs, pools)
            )
        known = {one.capture for one in all_of_them}
        captured = [] if are_new else _graphs.captured()  # new ones are asked about nothing else
        others = [capture for capture in captured if capture not in known]
        if others:
            not_looked.append(
                f"{len(others)} graphs that were captured without an op log, the first: capture "
                f"{others[0]}"
            )
        if not graphs:
            not_looked.append("anything: no graph was captured with an op log")
        for graph in graphs:
            not_looked += [f"graph {graph.capture}: {text}" for text in graph.missing]
        _last_s, _took_s = time.monotonic(), time.monotonic() - begin
    return Audit(graphs, not_looked)


def _audit_one(
    holdings: Holdings,
    all_held: list[tuple[Held, bool]],
    now: dict[str, Place],
    tensors: dict[str, torch.Tensor],
    named: Places,
    of_graphs: Places,
    pools: GraphPools,
) -> GraphAudit:
    # What was found while its models were there can be found no more.
    before = holdings.newest.findings if holdings.is_over and holdings.newest else []
    findings = []
    looked = 0
    graph = holdings.graph and holdings.graph()
    for held, is_alive in all_held:
        looked += 1
        is_same = functools.partial(holdings.is_same, held, tensors)
        found = judge(held, is_alive, now, named, of_graphs, is_same, holdings.capture)
        if found is None:
            continue
        is_free = found.level == "latent" and found.kind == "freed" and not held.is_host
        if is_free and pools.has(held.address, held.bytes, graph):
            continue
        findings.append(found)
        holdings.since.setdefault(key_of(found), holdings.replays)
    texts = texts_of(findings, holdings.since)
    texts = before + [one for one in texts if one not in before]
    memory = pools.notes_of(graph, named.at)
    holdings.newest = GraphAudit(
        holdings.capture, looked, holdings.replays, texts, list(holdings.missing), memory
    )
    _tell(holdings, holdings.newest)
    return holdings.newest


def _tell(holdings: Holdings, found: GraphAudit) -> None:
    """Tells the daemon (layout::IsOpAudit), if it is not what it was told before."""
    global _native_log, _told
    texts = found.findings + [("missing", text) for text in found.missing]
    if (texts, found.memory) == holdings.told or not found.capture:
        return
    holdings.told = texts, found.memory
    _told += 1
    with contextlib.suppress(Exception):  # the job goes on
        if _native_log is None:
            _native_log = _native.load().NativeOpLog()
            _native.finish_at_exit()
            _native.start_daemon()
        head = f"audit {found.capture} {_told}"
        notes = [f"looked {found.tensors} {found.replays}"]
        notes += [f"{level} {_cut(text)}" for level, text in texts[:_MAX_NOTES]]
        if len(texts) > _MAX_NOTES:
            notes.append(f"missing {len(texts) - _MAX_NOTES} more findings, for which was no room")
        notes += [f"{kind} {_cut(text)}" for kind, text in found.memory]
        for note in notes:
            add_note(_native_log, "ops/audit", f"{head} {note}")
        _native_log.end()


def _cut(text: str) -> str:
    cut = text.encode(errors="replace")[:_MAX_TEXT_BYTES].decode(errors="ignore")
    return cut if len(cut) == len(text) else cut + " ..."


# --- when it is done ------------------------------------------------------------------------------


def keep(holdings: Holdings) -> None:
    """Its capture has ended well: it is looked at until forget()."""
    with _lock:
        _all[holdings.capture] = holdings
        note_rows(
            holdings.graph and holdings.graph(),
            ((one.address, one.name) for one in holdings.made),
        )
        _arrange()
    with contextlib.suppress(Exception):  # the job goes on
        run([holdings], are_new=True)  # it changes nothing of the others


def forget(capture: int) -> None:
    with _lock:
        _all.pop(capture, None)


def forget_graph(graph: object) -> None:
    """It is captured again."""
    with _lock:
        for capture, one in list(_all.items()):
            if one.graph is not None and one.graph() is graph:
                del _all[capture]


def step_is_set() -> None:
    """At most every 10 s, and never for more than a hundredth of the time."""
    if _all and time.monotonic() - _last_s > max(_STEP_INTERVAL_S, _STEP_SHARE * _took_s):
        run_quietly()


def run_quietly() -> None:
    if _all:
        with contextlib.suppress(Exception):  # the job goes on
            run(list(_all.values()))


def _arrange() -> None:
    """Requires: _lock."""
    global _is_automatic
    if _is_automatic:
        return
    _is_automatic = True
    _native.finish_at_exit()
    atexit.register(run_quietly)  # in front of what waits for the daemon
    load = torch.nn.Module.load_state_dict

    @functools.wraps(load)
    def load_state_dict(self, *args, **kwargs):
        result = load(self, *args, **kwargs)
        run_quietly()
        return result

    typing.cast(typing.Any, torch.nn.Module).load_state_dict = load_state_dict
