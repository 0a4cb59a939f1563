"""watch(): a probe on the output of every module of a model, without a change to its code."""

from __future__ import annotations

import collections.abc
import dataclasses
import itertools
import sys
import typing
import weakref

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ._job import _native
from ._job._after_import import call_after_import
from ._op_log.capture_cost import CaptureCost
from ._op_log.extras import Extras, after_run
from ._op_log.options import LogOptions
from ._op_log.scopes import Scope, captured_before
from ._shared import _site, _torch_logs, _words
from ._watching import calls, compiled, direct, hooks, module_hooks
from ._watching.modules import IN_SCRIPT, inside_scripts, is_callable, is_selected, modules_of
from ._watching.places import NO_TENSOR, Place, lock
from ._watching.replicas import ReplicaHook, shards_of
from .actions import Action, TensorRecord, TensorStats, enabled_actions, needs_daemon, whole_number
from .op_log import OpLogView, read_log, records_of
from .probe import CudaGraphTensorProbe
from .snapshot import TensorSnapshot

__all__ = ["Watch", "WatchReport", "watch"]

_FX_NOTE = (
    "level fx changes what Inductor fuses: it keeps each tensor that is watched. Behind matmul and "
    "attention, where the probes are, results stay bit for bit those without probes"
)
_MAX_SHOWN = 8
_VALUES_OF_TRIGGER = 8

_Handle = torch.utils.hooks.RemovableHandle | calls.Follower | direct.InFront

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
            gradients are replicas, which `cgdebug-cli ranks` compares over ranks.
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
    )


_MISSING = object()


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
        skip: typing.Collection[torch.nn.Module] = (),
        eager=False,
    ):
        level = options.level
        self._closed = False
        self._handles: list[
            torch.utils.hooks.RemovableHandle | calls.Follower | direct.InFront
        ] = []
        self._scope: Scope | None = None  # of a level with an op log
        self._fx: typing.Any = None  # the pass of level "fx"
        self._list: list[Place] = []
        self._not_watched: dict[str, str] = {}
        self.notes: tuple[str, ...] = (_FX_NOTE,) * (level == "fx")
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"watch: a torch.nn.Module is watched, not a {type(model).__name__}")
        extras = _check_level(options, grads, inputs, params, values)
        is_log = level not in ("module", "fx")
        self._actions = _actions_of(values)
        self._part_actions: list[Action] = []
        if part is not None:
            self._part_actions = [_take_part(self._actions, level, values, part)]
        self._check_parts()
        self._select = select
        self._site = _site.of_caller()
        found, aliases = modules_of(model)
        self._root = weakref.ref(next(iter(found.values())))
        self._known = weakref.WeakSet(found.values())
        # Of those whose forward() is called: which runs our hooks, and which did not.
        self._in_front: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._not_all_seen: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        chosen = {
            name: module
            for name, module in found.items()
            if is_selected(name, select) and module not in skip
        }
        if not chosen:
            names = list(found)
            close = _words.close_to(select, names)
            more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
            raise ValueError(
                f"watch: no module matches select={select!r}.{close and close + '.'} The model "
                f"has: {', '.join(names[:_MAX_SHOWN])}{more}"
            )
        shared = self._shared_of(found, aliases, chosen) if level == "module" else {}
        for name, first in aliases.items():
            if name not in shared.get(first, {}) and is_selected(name, select):
                self._not_watched[name] = f"it is the same module as {first}"
        _native.load()
        hooks.learn_dtypes()
        _native.finish_at_exit()
        if needs_daemon(enabled_actions([*self._actions, *self._part_actions])):
            _native.start_daemon()
        with lock:
            self._prefix = _free_prefix(next(iter(found)), chosen)
            self._names = {self._prefix + name for name in chosen}
            _watches.add(self)
            weakref.finalize(self, _restore_without_watches).atexit = False
            _torch_logs.watched(
                next(_numbers),
                {
                    "model": next(iter(found)),
                    "select": select,
                    "level": level,
                    "site": self._site,
                    "modules": list(chosen),
                    "not_watched": dict(self._not_watched),
                },
            )
            if is_log:
                self._open_scope(model, options, extras, eager)
                return
            if level == "fx":
                self._open_pass(model, found, bool(grads))
                return
            call_after_import("torch._dynamo", _heed_hooks)
            try:
                self._handles.append(calls.Follower(self._root()))
                in_scripts = inside_scripts(found)
                for name, module in chosen.items():
                    if id(module) in in_scripts:
                        self._place("fwd", name, module).note(IN_SCRIPT)
                        continue
                    self._hook(name, module, grads, inputs, shared.get(name, {}))
                if params:
                    self._hook_params(found, in_scripts, shards_of(model), grads)
                for module in direct.called_in_code(found, sys._getframe(1)):
                    self._put_in_front(module)
            except BaseException:
                self.close()
                raise

    @staticmethod
    def _shared_of(
        found: dict[str, torch.nn.Module],
        aliases: dict[str, str],
        chosen: typing.Collection[str],
    ) -> dict[str, dict[str, torch.nn.Module]]:
        """By name of a chosen module that several others have: each of these, with the name that it
        has there."""
        root = next(iter(found))
        shared: dict[str, dict[str, torch.nn.Module]] = {}
        for name, first in aliases.items():
            parents = [
                found.get(aliases.get(path, path), found[root])
                for path in (name.rpartition(".")[0], first.rpartition(".")[0])
            ]
            if first in chosen and parents[0] is not parents[1]:
                shared.setdefault(first, {})[name] = parents[0]
        return shared

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

    def _hook(
        self,
        name: str,
        module: torch.nn.Module,
        grads: bool,
        inputs: bool,
        others: dict[str, torch.nn.Module],
    ) -> None:
        """others: further names of it, each with the module that has it by this name."""
        if not is_callable(module):
            return
        if inputs:
            hook = hooks.InputHook(self._place("in", name, module))
            self._handles.append(module_hooks.register(module, hook, before=True, with_kwargs=True))
        output: hooks.Hook
        output, *further = [
            hooks.OutputHook(
                self._place("fwd", one, module), self._place("grad", one, module) if grads else None
            )
            for one in (name, *others)
        ]
        if others:
            output = hooks.SharedHook(output, list(zip(others.values(), further)))
        self._handles.append(module_hooks.register(module, output))
        if not module_hooks.stay_last(module):
            self._handles.append(module_hooks.register(module, hooks.LastHook(), before=True))

    def _put_in_front(self, module: torch.nn.Module) -> None:
        """Requires: lock."""
        if module not in self._in_front and any(module_hooks.ours_of(module)):
            self._in_front.add(module)
            self._handles.append(direct.InFront(module))

    def look_around(self) -> None:
        for module, frame in direct.running():
            if module not in self._known:
                continue
            self._put_in_front(module)  # from its next call on
            if module is self._root():
                calls.begin_once(module)
            after = [hook for hook, _ in module_hooks.ours_of(module)[1]]

            def look(output, module=module, after=after):
                for hook in after:
                    hook.run(module, (), output)

            is_seen = direct.at_return(frame, id(self), look)
            is_seen_later = direct.is_in_front_of(module)
            if (is_seen and is_seen_later) or module in self._not_all_seen:
                continue
            self._not_all_seen.add(module)
            for place in (place for hook in after for place in hook.places):
                place.note(direct.FIRST_UNSEEN if is_seen_later else direct.ALL_UNSEEN)

    def _hook_params(
        self,
        found: dict[str, torch.nn.Module],
        in_scripts: set[int],
        shards: dict[int, str],
        grads: bool,
    ) -> None:
        """`in_scripts`: see inside_scripts(). `shards`: by id, of parameters that other ranks have.

        A container such as a ParameterList is never called; the module around it is, so that one
        gets the hook."""
        wanted: dict[str, list] = {}
        root = next(iter(found))
        for name, module in found.items():
            owner = name
            while not is_callable(found.get(owner, found[root])) and owner != root:
                owner = owner.rpartition(".")[0] or root
            path = "" if name == root else name
            way = path[len(owner) + 1 :] if owner not in (root, name) else path * (owner != name)
            for own, parameter in module._parameters.items():
                full = f"{path}.{own}" if path else own
                if is_selected(full, self._select):
                    wanted.setdefault(owner, []).append((way, own, full, parameter))
        of_optimizer = hooks.OptimizerHook()
        may_be_replicas: list[tuple[weakref.ref[torch.nn.Parameter], Place]] = []
        if not shards and torch.distributed.is_available() and is_callable(found[root]):
            hook = ReplicaHook(may_be_replicas)  # in front of those that look at parameters
            self._handles.append(module_hooks.register(found[root], hook, before=True))
        for owner, parameters in wanted.items():
            module = found[owner]
            places = [self._place("param", full, module) for _, _, full, _ in parameters]
            if id(module) in in_scripts:
                for place in places:
                    place.note(IN_SCRIPT)
                continue
            for place, (_, _, full, parameter) in zip(places, parameters, strict=True):
                if parameter is None:
                    continue
                place.shard = shards.get(id(parameter), "")
                may_be_replicas.append((weakref.ref(parameter), place))
                if grads and parameter.requires_grad:
                    grad = self._place("param_grad", full, module)
                    grad.shard = place.shard
                    may_be_replicas.append((weakref.ref(parameter), grad))
                    of_optimizer.add(parameter, grad)
            looks = hooks.ParamHook(places, [(way, own) for way, own, _, _ in parameters])
            self._handles.append(module_hooks.register(module, looks, before=True))
        if grads:
            handle = register_optimizer_step_pre_hook(of_optimizer)
            self._handles.append(handle)
            weakref.finalize(self, handle.remove).atexit = False

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
        seen, not_seen, problems = [], dict[str, str](), dict[str, str]()
        snapshots = lost = shm = 0
        for place in list(self._list):
            any_seen = False
            for probe in [p for p in list(place.probes.values()) if p]:
                status = probe._native.status()
                slots = status["slots"]
                if not any(slot["replays"] for slot in slots):
                    why = "the code that contains it has not run yet"
                    if place.name.startswith("grad/"):
                        why = "no gradient came"
                    not_seen[probe.name] = self._ended(why)
                    continue
                any_seen = True
                seen.append(probe.name)
                for slot in slots:
                    counts_calls = slot["in_body"] and not slot["graph_id"]
                    snapshots += slot["accepted" if counts_calls else "replays"]
                    lost += slot["lost"]
                    shm += slot["capacity"] * (
                        128 if slot["device_bytes"] else slot["payload_bytes"]
                    )
                    if (kept := self._kept_of(slot)) is not None:
                        problems[probe.name] = (
                            f"{kept} values are kept, because the rings of this process take as "
                            "much device memory as they may: CGDEBUG_DEVICE_MIB"
                        )
                if note := status["trigger_note"]:
                    problems[probe.name] = note
            if any_seen and place.problem:
                problems[place.name] = place.problem
            elif not any_seen and (place.problem or not place.probes):
                not_seen[place.name] = self._ended(self._why_not(place))
        if self._scope is not None:
            for number, log in enumerate(list(self._scope.logs)):
                seen += [row.name for row in log.rows]
                problems.update({f"log {number}: {gap}": "not shown" for gap in log.gaps})
                for line in log.coverage.lines() if log.coverage else ():
                    problems[f"log {number}: {line}"] = "no row shows what they wrote"
            for capture in self._scope.captured_before:
                problems[f"capture {capture}"] = captured_before(capture)
        if self._fx is not None and not self._list:
            not_seen["fx/*"] = self._ended(
                "torch.compile has made no code with matmul or attention since watch()"
            )
        return WatchReport(
            model=self._text(),
            closed=self._closed,
            seen=tuple(seen),
            not_seen=not_seen,
            not_watched=self._not_watched | self._added_later(),
            problems=problems,
            snapshots=snapshots,
            lost=lost,
            shm_bytes=shm,
            device_bytes=(_native.probe_module().session() or {}).get("device_bytes", 0),
            captures=tuple(self._scope.costs) if self._scope is not None else (),
            notes=self.notes,
        )

    def _kept_of(self, slot: dict) -> int | None:
        """How many values a slot keeps that found no room for all; None: it found room, or needs
        none."""
        for action in self._actions:
            if not isinstance(action, TensorRecord) or action.where != "auto":
                continue
            kept = slot["device_capacity"]
            if slot["lane"] == "direct" and 0 not in slot["shape"] and kept < action.capacity:
                return kept
        return None

    def _ended(self, why: str) -> str:
        return f"{why}, and the watch is closed" if self._closed else why

    def _why_not(self, place: Place) -> str:
        if place.problem:
            return place.problem
        root = self._root()
        if root is None:
            return "the model is gone"
        if place.called:
            return "CGDEBUG_PROBES switches it off"
        if why := self._why_no_parameter(place):
            return why
        module = place.module()
        if module is not None and type(module).__call__ is not torch.nn.Module.__call__:
            return (
                "its module was not called, or by the __call__() of its class, which runs no hook"
            )
        if place.name.startswith("param_grad/"):
            return "no step of an optimizer with a gradient of it came"
        if twin := self._twin_without_tensor(place):
            return f"its module was not called, or {NO_TENSOR}, as that of {twin}"
        if compiled.was_compiled(root, place.module()):
            return (
                "its module was not called, or code that torch.compile made before the watch calls "
                "it: such code keeps running without probes. Type torch.compiler.reset() after "
                "watch(), or watch before the first call"
            )
        return "its module was never called"

    def _why_no_parameter(self, place: Place) -> str:
        """Of a parameter that is none, or that is seen under another name; else nothing."""

        def parameter_of(one: Place) -> object:
            owned = getattr(one.module(), "_parameters", {})
            return owned.get(one.name.rpartition(".")[2], _MISSING)

        kind = place.name.partition("/")[0]
        if not kind.startswith("param") or (parameter := parameter_of(place)) is _MISSING:
            return ""
        if parameter is None:
            return "its module has none"
        for one in self._list:
            is_of_kind = one is not place and one.name.partition("/")[0] == kind and one.called
            if is_of_kind and parameter_of(one) is parameter:
                return f"it is the same parameter as {one.name}"
        return ""

    def _twin_without_tensor(self, place: Place) -> str:
        """Layers that share code share what Dynamo found out when it traced the first of them."""
        kind = place.name.partition("/")[0]
        for one in self._list:
            is_like_it = one.name.partition("/")[0] == kind and one.problem == NO_TENSOR
            if is_like_it and type(one.module()) is type(place.module()):
                return one.name
        return ""

    def _added_later(self) -> dict[str, str]:
        root = self._root()
        if root is None or self._closed:
            return {}
        return {
            name: "it was put into the model after watch(): call watch() again"
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
            handles, self._handles = self._handles, []
            for handle in handles:
                handle.remove()
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


def _restore_without_watches() -> None:
    """Also where a watch ends with its model, and nobody closes it."""
    with lock:
        if not list(_watches):  # its length counts the one that is about to go
            compiled.restore()


def _heed_hooks(dynamo) -> None:
    with lock:
        if _watches:
            compiled.heed_hooks(dynamo.config)


def _free_prefix(model: str, names: collections.abc.Iterable[str]) -> str:
    """Requires: lock."""
    taken: set[str] = set()
    for other in list(_watches):
        if other._root() is not None:
            taken |= other._names
    for number in itertools.count():
        prefix = ["", f"{model}."][number] if number < 2 else f"{model}_{number}."
        if taken.isdisjoint(prefix + name for name in names):
            return prefix
    raise AssertionError


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


def _actions_of(values) -> list[Action]:
    if values is None and _words.setting("CGDEBUG_ON"):
        values = _VALUES_OF_TRIGGER
    if values is None:
        return [TensorStats()]
    if isinstance(values, TensorRecord):
        return [values]
    kept = TensorRecord(capacity=whole_number("watch: values", values), where="auto")
    return [TensorStats(), kept]  # the statistics of values that stay on the device
