"""watch(): a probe on the output of every module of a model, without a change to its code."""

from __future__ import annotations

import collections.abc
import dataclasses
import itertools
import sys
import typing
import weakref

import torch

from ._job import _aside, _native
from ._job._after_import import call_after_import
from ._op_log.capture_cost import CaptureCost
from ._op_log.extras import Extras, after_run
from ._op_log.options import LogOptions
from ._op_log.scopes import Scope
from ._shared import _site, _torch_logs, _words
from ._watching import compiled, direct, hooks
from ._watching.account import Account
from ._watching.modules import is_callable, is_selected, modules_of
from ._watching.on_modules import OnModules, Wanted, shared_of
from ._watching.places import Place, lock
from ._watching.replicas import shards_of
from .actions import Action, TensorRecord, TensorStats, enabled_actions, needs_daemon, whole_number
from .op_log import OpLogView, read_log, records_of
from .probe import CudaGraphTensorProbe
from .snapshot import TensorSnapshot

__all__ = ["Watch", "WatchReport", "watch"]

_FX_NOTE = (
    "level fx changes what Inductor fuses: it keeps each tensor that is watched. Behind matmul and "
    "attention, where the probes are, results stay bit for bit those without probes"
)
_PUT_IN_LATER = (
    "it was put into the model, which was not called since. If only parts of the model are called, "
    "call watch() again"
)
_MAX_SHOWN = 8
_VALUES_OF_TRIGGER = 8

_watches: weakref.WeakSet[Watch] = weakref.WeakSet()
_numbers = itertools.count(1)


def watch(
    model: torch.nn.Module,
    select: str = "*",
    level: str = "module",
    grads: bool = False,
    inputs: bool = False,
    params: bool = False,
    values: int | str | TensorRecord | None = None,
    *,
    pre: bool = False,
    part: str | None = None,
    frames: int | None = None,
    hooks: typing.Any = None,
    hash: typing.Callable | None = None,
    stats: typing.Mapping[str, typing.Callable] | None = None,
    every: int | None = None,
    rewind: int = 0,
    sketches: int = 0,
) -> Watch:
    """Puts a probe on the output of every module of `model` that `select` names:

        cgdebug.watch(model)            # before torch.compile and before a capture
        ...                             # cgdebug-cli check then names the layer that made NaN first

    select: globs of module names with commas between them, '!...' excludes: "layers.*,!*.norm". The
            model itself is called by its class.
    level:  "module", or "op": every tensor that an op of those modules writes while it is captured,
            see debug_mode() and Watch.log(). "kernel": also what Triton kernels write, and with
            `pre` what they are about to overwrite. "graph": only what a capture found and what
            leaves it. These have no hooks on modules and change no compiled code. With select="*"
            the ops that are in no module, such as those of the optimizer, are logged too. Their
            logs have inputs, parameters and gradients by themselves, and statistics alone: the
            other arguments are of "module".
            "fx": probes inside the code that torch.compile makes, behind matmul and attention,
            "fx/layers.3.attn/mm_0"; with `grads` in its backward, too, "fx/bwd/...". The compiled
            code changes: Inductor does not fuse across a probe. Torch 2.10 or later.
    grads:  also the gradients of those outputs, "grad/NAME". With params also those of the
            parameters, "param_grad/NAME", each time before an optimizer applies them.
    inputs: also what the modules are called with, "in/NAME".
    params: also their parameters, "param/NAME", each time before the module runs that owns them.
            If `model` is, or contains, a DistributedDataParallel, its parameters and their
            gradients are replicas, which `cgdebug-cli ranks` compares over ranks. So are those of
            Megatron-Core's models that its tensor parallelism does not split.
    values: None: only statistics (TensorStats). A number N: also the values of the last N
            snapshots of each tensor, as TensorRecord(capacity=N, where="auto") keeps them: those of
            captured graphs stay in device memory, of which they take a quarter at most. Or give a
            TensorRecord. With $CGDEBUG_ON, 8 are kept.
    part:   with values=N: keeps only these elements of each tensor, "rows:0:8", "first:4096" or
            "stride:64" as `TensorRecord(part=...)` explains. They are those of a second probe,
            "part/fwd/layers.3.attn": the statistics stay those of the whole tensor.

    frames, hooks, hash, stats, every: of levels with a log, see debug_mode(); so is values="GLOBS".
    rewind: N: of each graph that is captured from now on, what its last N replays were given is
            kept, so that `cgdebug-cli ask JOB@REPLAY` can run one again and say what any op made.
            $CGDEBUG_REWIND does the same.

    sketches: N: of level "module": also a sketch of each row of the last N outputs of each module,
            32 bytes by which `cgdebug-cli diff A B --by request` compares rows that cgdebug.rows()
            told. A recording has those of all calls. They are "sketch/fwd/layers.3.attn", and are
            computed by two small kernels behind the module.

    What is put into the model later is watched from the next call of the model on.

    A probe is called "fwd/layers.3.attn", and "fwd/layers.3.attn/0" or ".../KEY" if the output is a
    tuple, dict or dataclass. Wrappers (DistributedDataParallel, FSDP,
    torch.compile, checkpointing) do not appear in names. A module that is called several times in a
    capture is one probe, and its calls are #0, #1. A module that several modules have is named by
    the one that calls it; in compiled code, and where one has it twice, by its first name. If
    another live watch uses the names, the class comes in front: "fwd/GPT.layers.3".

    forward() that is called in place of its module is seen, too. If only an installed package other
    than the model's calls it, that holds for modules that have others in them, in eager code.

    The modules keep the watch alive, the watch does not keep the model alive. It ends with close()
    or with the model. Copies of the model, pickled ones too, are not watched. Values and gradients
    do not change. Code that torch.compile makes later contains the probes as ops: inductor does not
    fuse across a watched output, so last bits may differ from those of unwatched compiled code.

    Fails: TypeError, ValueError for a bad argument or when nothing is selected;
           NativeExtensionUnavailableError. What fails later becomes a line of explain(), not an
           error.
    """
    globs = values if isinstance(values, str) else None
    if rewind:
        from . import _rewind

        _rewind.keep(rewind)
    return Watch(
        model,
        select,
        LogOptions(level, pre, frames, hooks, hash, stats, globs, every),
        grads=grads,
        inputs=inputs,
        params=params,
        values=None if isinstance(values, str) else values,
        part=part,
        sketches=sketches,
    )


@dataclasses.dataclass(frozen=True)
class WatchReport:
    """What a watch sees and what it does not; str() is for people.

    seen:         names of the probes that saw a tensor
    not_seen:     name -> why it saw none
    not_watched:  name of a module -> why it has no probe, though it was selected
    problems:     name -> why some of its tensors were not seen
    snapshots, lost: of all its probes
    shm_bytes:    of /dev/shm that the rings of its probes take
    device_bytes: of GPU memory, that all probes of this process take
    captures:     with an op log: what each capture cost; also as str()
    notes:        what else is to be known of the level
    """

    model: str
    closed: bool
    seen: tuple[str, ...]
    not_seen: dict[str, str]
    not_watched: dict[str, str]
    problems: dict[str, str]
    snapshots: int
    lost: int
    shm_bytes: int
    device_bytes: int
    captures: tuple[CaptureCost, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        state = " (closed)" if self.closed else ""
        lines = [
            f"{self.model}{state}: {len(self.seen)} probes see tensors, {len(self.not_seen)} do "
            f"not; {self.snapshots} snapshots, {self.lost} lost",
            f"cost: {len(self.seen)} probes, {self.shm_bytes / 2**20:.1f} MiB of /dev/shm"
            + (f", {self.device_bytes / 2**20:.1f} MiB on the GPU" * (self.device_bytes > 0)),
        ]
        for title, entries in (
            ("not seen", self.not_seen),
            ("seen in part", self.problems),
            ("not watched", self.not_watched),
        ):
            by_reason: dict[str, list[str]] = {}
            for name, reason in entries.items():
                by_reason.setdefault(reason, []).append(name)
            for reason, names in by_reason.items():
                shown = ", ".join(names[:_MAX_SHOWN])
                more = len(names) - _MAX_SHOWN
                lines.append(f"{title}: {shown}{f' and {more} more' * (more > 0)}: {reason}")
        lines += [str(one) for one in self.captures[:_MAX_SHOWN]]
        if len(self.captures) > _MAX_SHOWN:
            total = sum(one.seconds for one in self.captures)
            lines.append(f"... {len(self.captures)} captures in all, {total * 1e3:.0f} ms")
        lines += self.notes
        return "\n".join(lines)


class Watch:
    """What `watch` returns: the probes on a model. Also a context manager, which closes it.

    Thread: any.
    """

    leaves_others = False  # what is put into the model later and has another watch

    def __init__(
        self,
        model,
        select,
        options: LogOptions,
        *,
        grads=False,
        inputs=False,
        params=False,
        values: int | TensorRecord | None = None,
        part=None,
        sketches: int = 0,
        skip: typing.Collection[torch.nn.Module] = (),
        eager=False,
    ):
        level = options.level
        self._closed = False
        self._scope: Scope | None = None  # of a level with an op log
        self._fx: typing.Any = None  # the pass of level "fx"
        self._list: list[Place] = []
        self._not_watched: dict[str, str] = {}
        self.notes: tuple[str, ...] = (_FX_NOTE,) * (level == "fx")
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"watch: a torch.nn.Module is watched, not a {type(model).__name__}")
        extras = _check_level(options, grads, inputs, params, values)
        self._actions = _actions_of(values)
        self._part_actions: list[Action] = []
        if part is not None:
            self._part_actions = [_take_part(self._actions, level, values, part)]
        self._sketch_actions = _sketch_actions_of(sketches, level)
        self._check_parts()
        self._select = select
        self._site = _site.of_caller()
        found, aliases = modules_of(model)
        self._root = weakref.ref(next(iter(found.values())))
        self._known = weakref.WeakSet(found.values())
        self._on_modules = OnModules(self._root, self._known, self._place, self.take_in_new)
        chosen = _chosen_of(found, select, skip)
        shared = shared_of(found, aliases, chosen) if level == "module" else {}
        for name, first in aliases.items():
            if name not in shared.get(first, {}) and is_selected(name, select):
                self._not_watched[name] = f"it is the same module as {first}"
        _native.load()
        hooks.learn_dtypes()
        _native.finish_at_exit()
        if needs_daemon(enabled_actions([*self._actions, *self._part_actions])):
            _native.start_daemon()
        self._wanted = Wanted(select, grads, inputs, params, shards_of(model) if params else {})
        with lock:
            self._enlist(found, chosen, level)
            if level == "module":
                self._watch_modules(found, chosen, shared)
            elif level == "fx":
                self._open_pass(model, found, bool(grads))
            else:
                self._open_scope(model, options, extras, eager)

    def _enlist(self, found, chosen, level: str) -> None:
        """Requires: lock."""
        self._prefix = _free_prefix(next(iter(found)), chosen)
        self._names = {self._prefix + name for name in chosen}
        _watches.add(self)
        weakref.finalize(self, _restore_without_watches).atexit = False
        _torch_logs.watched(
            next(_numbers),
            {
                "model": next(iter(found)),
                "select": self._select,
                "level": level,
                "site": self._site,
                "modules": list(chosen),
                "not_watched": dict(self._not_watched),
            },
        )

    def _watch_modules(self, found, chosen, shared) -> None:
        call_after_import("torch._dynamo", _heed_hooks)
        try:
            self._on_modules.watch(found, chosen, shared, self._wanted)
            for module in direct.called_in_code(found, sys._getframe(2)):
                self._on_modules.put_in_front(module)
        except BaseException:
            self.close()
            raise

    def take_in_new(self) -> None:
        # Watches what was put into the model since.
        with lock:
            root = self._root()
            if root is None or self._closed or self._scope is not None or self._fx is not None:
                return
            if not self._on_modules.has_new():
                return
            others = [
                one._known for one in list(_watches) if self.leaves_others and one is not self
            ]
            found, aliases = modules_of(root)
            new = {
                name: module
                for name, module in found.items()
                if module not in self._known and not any(module in them for them in others)
            }
            chosen = {
                name: module for name, module in new.items() if is_selected(name, self._select)
            }
            self._known.update(found.values())
            self._prefix = _free_prefix(next(iter(found)), chosen, but=self)
            self._names |= {self._prefix + name for name in chosen}
            shared = shared_of(found, aliases, chosen)
            self._on_modules.hook(found, new, chosen, shared, self._wanted)

    def _check_parts(self) -> None:
        """Now, because a probe that cannot be made later only becomes a line of explain()."""
        for action in (*self._actions, *self._part_actions):
            if isinstance(action, TensorRecord) and action.enabled and action.part:
                _native.load().check_part("watch", action.part)

    def _open_scope(self, model, options: LogOptions, extras: Extras, eager: bool) -> None:
        self._scope = Scope(self._root(), self._select, options, extras, eager=eager, by_call=eager)
        self._scope.owner = self
        if not eager:  # that has the ops of all models, also when this one is gone
            end = weakref.finalize(model, self._scope.close)
            end.atexit = False
        self._scope.open()

    def _open_pass(self, model: torch.nn.Module, found, grads: bool) -> None:
        from ._watching import fx

        root = self._root()
        if compiled.was_compiled(root, *found.values()):
            self._not_watched["code that torch.compile made before the watch"] = (
                "it keeps running without probes. Type torch.compiler.reset() after watch(), or "
                "watch before the first call"
            )

        def is_wanted(name: str) -> bool:
            return self._select == "*" or bool(name and is_selected(name, self._select))

        self._fx = fx.ProbePass(self, found, next(iter(found)), is_wanted, grads)
        self._fx.install()
        end = weakref.finalize(model, self.close)  # keeps the watch as long as the model
        end.atexit = False

    def _fx_key(self, stem: str) -> str:
        """The key of the probe "fx/..." that compiled code looks for; empty if there is none."""
        name = f"fx/{self._prefix}{stem}"
        with lock:
            for place in self._list:
                if place.name == name:
                    return place.key_of("")
            return self._place("fx", stem, self._root()).key_of("")

    def _fx_known(self, key: str) -> bool:
        """Makes the probe that code from Inductor's cache looks for, if it is one of this watch."""
        name = key.partition(":")[2]
        start = f"fx/{self._prefix}"
        if not name.startswith(start):
            return False
        if self._fx_key(name[len(start) :]) != key:
            self._not_watched[name] = (
                "code from Inductor's cache looks for another probe of this name. Type "
                "TORCHINDUCTOR_FORCE_DISABLE_CACHES=1"
            )
        return True

    def _place(self, kind: str, name: str, module) -> Place:
        place = Place(self, f"{kind}/{self._prefix}{name}", module)
        self._list.append(place)
        return place

    def look_around(self) -> None:
        self._on_modules.look_around()

    # --- reading ----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def probes(self) -> dict[str, CudaGraphTensorProbe]:
        """The probes made so far, by name. A probe is made when its module is first called."""
        with lock:
            return {p.name: p for place in self._list for p in place.probes.values() if p}

    def log(self, graph: int = -1, replay: int = -1, *, timeout: float = 10.0) -> OpLogView:
        """With level "graph", "op" or "kernel": what one replay of one of the captures wrote, as
        debug_mode.log().
        graph: which of the captures, in their order; -1 is the last."""
        if self._scope is None:
            raise ValueError("Watch.log: a watch of the modules has no op log: give it a level")
        log = read_log(self._scope.logs, graph, replay, timeout)
        after_run(self._scope.extras.hooks, log)
        return log

    def records(self, row: str, *, synchronize: bool = False) -> list[TensorSnapshot]:
        """The newest values of a row that values="GLOBS" selects, as debug_mode.records()."""
        if self._scope is None:
            raise ValueError("Watch.records: a watch of the modules has no rows: give it a level")
        return records_of(self._scope, row, synchronize)

    def explain(self) -> WatchReport:
        """What is seen, what is not and why, and what it costs."""
        account = Account(list(self._list), self._actions, self._root, self._closed)
        if self._scope is not None:
            account.add_logs(self._scope)
        if self._fx is not None and not self._list:
            account.miss(
                "fx/*", "torch.compile has made no code with matmul or attention since watch()"
            )
        return WatchReport(
            model=self._text(),
            closed=self._closed,
            seen=tuple(account.seen),
            not_seen=account.not_seen,
            not_watched=self._not_watched | self._added_later(),
            problems=account.problems,
            snapshots=account.snapshots,
            lost=account.lost,
            shm_bytes=account.shm_bytes,
            device_bytes=(_native.probe_module().session() or {}).get("device_bytes", 0),
            captures=tuple(self._scope.costs) if self._scope is not None else (),
            notes=self.notes,
        )

    def _added_later(self) -> dict[str, str]:
        root = self._root()
        if root is None or self._closed:
            return {}
        return {
            name: _PUT_IN_LATER
            for name, module in modules_of(root)[0].items()
            if module not in self._known and is_callable(module) and is_selected(name, self._select)
        }

    def _text(self) -> str:
        root = self._root()
        return f"watch of {'a model that is gone' if root is None else type(root).__name__}"

    # --- life -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Takes every hook off the model and closes the probes. Safe at any time, also twice and
        while graphs replay. Compiled code keeps its ops, which then do nothing."""
        with lock:
            self._closed = True
            self._on_modules.remove()
            for place in self._list:
                place.end()
            if self._scope is not None:
                self._scope.forget()
            if self._fx is not None:
                self._fx.remove()
            _watches.discard(self)
            _restore_without_watches()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._list)} places"
        return f"<{self._text()}, {self._select!r}, {state}>"


def _chosen_of(
    found: dict[str, torch.nn.Module], select: str, skip: typing.Collection[torch.nn.Module]
) -> dict[str, torch.nn.Module]:
    """Fails: ValueError, if it is none."""
    chosen = {
        name: module
        for name, module in found.items()
        if is_selected(name, select) and module not in skip
    }
    if not chosen:
        names = list(found)
        close = _words.close_to(select, names)
        more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
        raise NothingSelected(
            f"no module matches select={select!r}.{close and close + '.'} The model "
            f"has: {', '.join(names[:_MAX_SHOWN])}{more}"
        )
    return chosen


class NothingSelected(ValueError):
    """`reason`: without the name of the function, for who did not call it."""

    def __init__(self, reason: str):
        super().__init__(f"watch: {reason}")
        self.reason = reason


def _restore_without_watches() -> None:
    """Also where a watch ends with its model, and nobody closes it."""
    with lock:
        if not list(_watches):  # its length counts the one that is about to go
            compiled.restore()


def _take_in_new() -> None:
    for one in list(_watches):
        _aside.call(one.take_in_new)


compiled.before_each_compilation(_take_in_new)


def _heed_hooks(dynamo) -> None:
    with lock:
        if _watches:
            compiled.heed_hooks(dynamo.config)


def _free_prefix(model: str, names: collections.abc.Iterable[str], but: Watch | None = None) -> str:
    """That no other watch has. but: one that keeps its own, where it can. Requires: lock."""
    taken: set[str] = set()
    for other in list(_watches):
        if other._root() is not None and other is not but:
            taken |= other._names
    own = () if but is None else (but._prefix,)
    for prefix in itertools.chain(own, _prefixes(model)):
        if taken.isdisjoint(prefix + name for name in names):
            return prefix
    raise AssertionError


def _prefixes(model: str) -> collections.abc.Iterator[str]:
    yield from ("", f"{model}.")
    for number in itertools.count(2):
        yield f"{model}_{number}."


def _check_level(
    options: LogOptions, grads, inputs, params, values: int | TensorRecord | None
) -> Extras:
    """What the level logs besides statistics.

    Fails: ValueError, if the level is none, or has not what was asked for.
    """
    level, levels = options.level, _words.watch_levels()
    if level not in levels:
        raise ValueError(f"watch: level must be {' or '.join(map(repr, levels))}, not {level!r}")
    for name, value in (("grads", grads), ("inputs", inputs), ("params", params)):
        if value not in (True, False):
            raise ValueError(f"watch: {name} must be True or False, not {value!r}")
    if level == "fx" and (inputs or params):
        raise ValueError("watch: level='fx' has no inputs and params: level='graph' has them")
    is_log = level not in ("module", "fx")
    if is_log and (grads or inputs or params or values is not None):
        raise ValueError(
            f"watch: level={level!r} logs gradients, inputs and parameters by itself, and "
            "statistics alone: leave grads, inputs and params out; values are globs of rows"
        )
    extras = options.check("watch")
    for name in ("frames", "every"):
        if getattr(options, name) is not None and not is_log:
            raise ValueError(f"watch: {name} is of levels with a log, and the level is {level!r}")
    if extras and not is_log:
        raise ValueError(
            f"watch: hooks, hash, stats and values='GLOBS' are of levels with a log, and the "
            f"level is {level!r}"
        )
    return extras


def _take_part(actions: list[Action], level: str, values, part: str) -> TensorRecord:
    """Replaces the record of `actions` by one that keeps the part alone, which is returned.

    Fails: ValueError.
    """
    if level != "module" or not isinstance(actions[-1], TensorRecord):
        raise ValueError(
            "watch: part says which elements values keeps: add values=N. Levels with a log "
            "and level='fx' have no part"
        )
    if isinstance(values, TensorRecord):
        raise ValueError("watch: write TensorRecord(..., part=...) instead of part")
    return dataclasses.replace(typing.cast(TensorRecord, actions.pop()), part=part)


def _sketch_actions_of(sketches, level: str) -> list[Action]:
    """Fails: ValueError."""
    count = whole_number("watch: sketches", sketches)
    if count and level != "module":
        raise ValueError(f"watch: sketches are of level 'module', and the level is {level!r}")
    return [TensorRecord(capacity=count)] if count else []


def _actions_of(values) -> list[Action]:
    if values is None and _words.setting("CGDEBUG_ON"):
        values = _VALUES_OF_TRIGGER
    if values is None:
        return [TensorStats()]
    if isinstance(values, TensorRecord):
        return [values]
    kept = TensorRecord(capacity=whole_number("watch: values", values), where="auto")
    return [TensorStats(), kept]  # the statistics of values that stay on the device
