"""watch(): a probe on the output of every module of a model, without a change to its code."""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import functools
import itertools
import logging
import sys
import threading
import weakref

import torch

from . import _accepted, _native, _site
from .actions import Action, TensorRecord, TensorStats, enabled_actions, needs_daemon, whole_number
from .probe import CudaGraphTensorProbe

__all__ = ["Watch", "WatchReport", "watch"]

LEVELS = ("module",)
_MAX_DEPTH = 8  # of tuples and dicts in each other
_MAX_TENSORS = 64  # of one output
_MAX_SHOWN = 8
_DIRECT_STATS_BYTES_PER_SM = 4096  # of device memory: partial sums of a captured TensorStats

_log = logging.getLogger("cgdebug")
_lock = threading.RLock()
_tokens = itertools.count(1)
_places: weakref.WeakValueDictionary[int, _Place] = weakref.WeakValueDictionary()
_watches: weakref.WeakSet[Watch] = weakref.WeakSet()


def watch(
    model: torch.nn.Module,
    select: str = "*",
    level: str = "module",
    grads: bool = False,
    inputs: bool = False,
    params: bool = False,
    values: int | TensorRecord | None = None,
) -> Watch:
    """Puts a probe on the output of every module of `model` that `select` names:

        cgdebug.watch(model)            # before torch.compile and before a capture
        ...                             # cgdebug-cli check then names the layer that made NaN first

    select: globs of module names with commas between them, '!...' excludes: "layers.*,!*.norm". The
            model itself is called by its class.
    level:  "module" is the only one so far.
    grads:  also the gradients of those outputs, "grad/NAME".
    inputs: also what the modules are called with, "in/NAME".
    params: also their parameters, "param/NAME", each time before the module runs that owns them.
    values: None: statistics alone (TensorStats). A number: the values as well, of the last so many
            snapshots of each tensor, in shared memory; or a TensorRecord.

    A probe is called "fwd/layers.3.attn", and "fwd/layers.3.attn/0" or ".../KEY" if the output is a
    tuple, dict or dataclass. Wrappers (DistributedDataParallel, FSDP,
    torch.compile, checkpointing) do not appear in names. A module that is called several times in a
    capture is one probe, and its calls are #0, #1. A module that stands in the model twice has the
    first name. If another live watch uses the names, the class stands in front: "fwd/GPT.layers.3".

    The modules keep the watch alive, the watch does not keep the model alive. It ends with close()
    or with the model. Copies of the model, pickled ones too, are not watched. Values and gradients
    do not change. Code that torch.compile makes later contains the probes as ops: inductor does not
    fuse across a watched output, so last bits may differ from those of unwatched compiled code.

    Fails: TypeError, ValueError for a bad argument or when nothing is selected;
           NativeExtensionUnavailableError. What fails later is a line of explain(), not an error.
    """
    return Watch(model, select, level, grads, inputs, params, values)


@dataclasses.dataclass(frozen=True)
class WatchReport:
    """What a watch sees and what not; str() is for people.

    seen:         names of the probes that saw a tensor
    not_seen:     name -> why it saw none
    not_watched:  name of a module -> why it has no probe, though it was selected
    problems:     name -> why some of its tensors were not seen
    snapshots, lost: of all its probes
    shm_bytes:    of /dev/shm that the rings of its probes take
    device_bytes: of GPU memory, estimated, for statistics in captured graphs
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

    def __str__(self) -> str:
        state = " (closed)" if self.closed else ""
        lines = [
            f"{self.model}{state}: {len(self.seen)} probes see tensors, {len(self.not_seen)} do "
            f"not; {self.snapshots} snapshots, {self.lost} lost",
            f"cost: {len(self.seen)} probes, {self.shm_bytes / 2**20:.1f} MiB of /dev/shm"
            + (f", about {self.device_bytes / 2**20:.1f} MiB on the GPU" * (self.device_bytes > 0)),
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
        return "\n".join(lines)


class Watch:
    """What `watch` returns: the probes on a model. Also a context manager, which closes it.

    Thread: any.
    """

    def __init__(self, model, select, level, grads, inputs, params, values, *, skip=None):
        self._closed = False
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._list: list[_Place] = []
        self._not_watched: dict[str, str] = {}
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"watch: a torch.nn.Module is watched, not a {type(model).__name__}")
        if level not in LEVELS:
            raise ValueError(
                f"watch: level must be 'module', the only one that exists so far, not {level!r}"
            )
        for name, value in (("grads", grads), ("inputs", inputs), ("params", params)):
            if value not in (True, False):
                raise ValueError(f"watch: {name} must be True or False, not {value!r}")
        self._actions = _actions_of(values)
        self._select = select
        self._site = _site.of_caller()
        found, aliases = _modules_of(model)
        self._root = weakref.ref(next(iter(found.values())))
        self._known = weakref.WeakSet(found.values())
        skipped = skip or ()
        chosen = {
            name: module
            for name, module in found.items()
            if _is_selected(name, select) and module not in skipped
        }
        if not chosen:
            names = list(found)
            more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
            raise ValueError(
                f"watch: no module matches select={select!r}. The model has: "
                f"{', '.join(names[:_MAX_SHOWN])}{more}"
            )
        for name, first in aliases.items():
            if _is_selected(name, select):
                self._not_watched[name] = f"it is the same module as {first}"
        _native.load()
        global _dtypes
        _dtypes = frozenset(_accepted.torch_dtypes())
        _native.finish_at_exit()
        if needs_daemon(enabled_actions(self._actions)):
            _native.start_daemon()
        with _lock:
            self._prefix = _free_prefix(next(iter(found)), chosen)
            self._names = {self._prefix + name for name in chosen}
            _watches.add(self)
            _wrap_graphed_callables()
            try:
                for name, module in chosen.items():
                    self._hook(name, module, grads, inputs)
                if params:
                    self._hook_params(found)
            except BaseException:
                self.close()
                raise

    def _place(self, kind: str, name: str, module) -> _Place:
        place = _Place(self, f"{kind}/{self._prefix}{name}", module)
        self._list.append(place)
        return place

    def _hook(self, name: str, module: torch.nn.Module, grads: bool, inputs: bool) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            self._not_watched[name] = "TorchScript runs no hook"
            return
        if not _is_callable(module):
            return
        if inputs:
            hook = _InputHook(self._place("in", name, module))
            self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        output = _OutputHook(
            self._place("fwd", name, module), self._place("grad", name, module) if grads else None
        )
        self._handles.append(module.register_forward_hook(output))

    def _hook_params(self, found: dict[str, torch.nn.Module]) -> None:
        """A container such as a ParameterList is never called: the module around it is."""
        wanted: dict[str, list] = {}
        root = next(iter(found))
        for name, module in found.items():
            owner = name
            while not _is_callable(found.get(owner, found[root])) and owner != root:
                owner = owner.rpartition(".")[0] or root
            path = "" if name == root else name
            way = path[len(owner) + 1 :] if owner not in (root, name) else path * (owner != name)
            for own in module._parameters:
                full = f"{path}.{own}" if path else own
                if _is_selected(full, self._select):
                    wanted.setdefault(owner, []).append((way, own, full))
        for owner, parameters in wanted.items():
            module = found[owner]
            if isinstance(module, torch.jit.ScriptModule):
                continue
            places = [self._place("param", full, module) for _, _, full in parameters]
            hook = _ParamHook(places, [(way, own) for way, own, _ in parameters])
            self._handles.append(module.register_forward_pre_hook(hook))

    # --- reading ----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def probes(self) -> dict[str, CudaGraphTensorProbe]:
        """The probes made so far, by name. A probe is made when its module is first called."""
        with _lock:
            return {p.name: p for place in self._list for p in place.probes.values() if p}

    def explain(self) -> WatchReport:
        """What is seen, what is not and why, and what it costs."""
        seen, not_seen, problems = [], dict[str, str](), dict[str, str]()
        snapshots = lost = shm = device = 0
        for place in list(self._list):
            any_seen = False
            for probe in [p for p in list(place.probes.values()) if p]:
                slots = probe._native.status()["slots"]
                if not any(slot["replays"] for slot in slots):
                    why = "the code that contains it has not run yet"
                    if place.name.startswith("grad/"):
                        why = "no gradient came"
                    not_seen[probe.name] = self._ended(why)
                    continue
                any_seen = True
                seen.append(probe.name)
                for slot in slots:
                    snapshots += slot["replays"]
                    lost += slot["lost"]
                    shm += slot["capacity"] * slot["payload_bytes"]
                    device += _device_bytes(slot)
            if any_seen and place.problem:
                problems[place.name] = place.problem
            elif not any_seen and (place.problem or not place.probes):
                not_seen[place.name] = self._ended(self._why_not(place))
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
            device_bytes=device,
        )

    def _ended(self, why: str) -> str:
        return f"{why}, and the watch is closed" if self._closed else why

    def _why_not(self, place: _Place) -> str:
        if place.problem:
            return place.problem
        root = self._root()
        if root is None:
            return "the model is gone"
        if place.called:
            return "CGDEBUG_PROBES switches it off"
        if _was_compiled(root, place.module()):
            return (
                "its module was not called, or code that torch.compile made before the watch calls "
                "it: such code keeps running without probes. Type torch.compiler.reset() after "
                "watch(), or watch before the first call"
            )
        return "its module was never called"

    def _added_later(self) -> dict[str, str]:
        root = self._root()
        if root is None or self._closed:
            return {}
        return {
            name: "it was put into the model after watch(): call watch() again"
            for name, module in _modules_of(root)[0].items()
            if module not in self._known
            and _is_callable(module)
            and _is_selected(name, self._select)
        }

    def _text(self) -> str:
        root = self._root()
        return f"watch of {'a model that is gone' if root is None else type(root).__name__}"

    # --- life -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Takes every hook off the model and closes the probes. Safe at any time, also twice and
        while graphs replay. Compiled code keeps its ops, which then do nothing."""
        with _lock:
            self._closed = True
            handles, self._handles = self._handles, []
            for handle in handles:
                handle.remove()
            for probe in self.probes.values():
                probe.close()
            _watches.discard(self)
            if not _watches:
                _unwrap_graphed_callables()
                _restore_recompile_limit()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._list)} places"
        return f"<{self._text()}, {self._select!r}, {state}>"


class _Place:
    """One thing that is looked at, such as the output of one module. Its probes, one a tensor, are
    made when the tensors first come."""

    def __init__(self, owner: Watch, name: str, module: torch.nn.Module):
        self.watch = owner
        self.name = name
        self.module = weakref.ref(module)
        self.called = False
        self.problem = ""
        self.probes: dict[str, CudaGraphTensorProbe | None] = {}
        self.token = next(_tokens)
        _places[self.token] = self

    def note(self, problem: str) -> None:
        if not self.problem:
            self.problem = problem
            _log.warning("%s is not seen: %s", self.name, problem)

    def key_of(self, path: str) -> str:
        """What the op knows the probe by; empty when there is none."""
        if not self.called:
            self.called = True
            _allow_recompiles()
        if path not in self.probes:
            with _lock:
                if path not in self.probes and not self.watch.closed:
                    self.probes[path] = self._make(path)
        probe = self.probes.get(path)
        return "" if probe is None or self.watch.closed else probe._site_key

    def _make(self, path: str) -> CudaGraphTensorProbe | None:
        if len(self.probes) >= _MAX_TENSORS:
            self.note(f"it holds more than {_MAX_TENSORS} tensors: the others are not seen")
            return None
        taken = {probe.name for probe in self.probes.values() if probe}
        name = _probe_name(self.name + path, taken)
        try:
            probe = CudaGraphTensorProbe(
                name, self.watch._actions, mode="always", non_contiguous="copy"
            )
        except Exception as error:  # the job goes on
            self.note(str(error))
            return None
        return probe if probe._active else None


# --- hooks ----------------------------------------------------------------------------------------


class _Hook:
    """A hook of a module. A copy of the module gets one that does nothing, because the values of a
    copy under the names of the original would be wrong; so does a pickled one."""

    # Set by make_graphed_callables: in this state of `training` the graph runs instead.
    graphed_in_training: bool | None = None

    def is_off(self, module: torch.nn.Module) -> bool:
        if torch.compiler.is_compiling():
            return False
        if torch.jit.is_tracing():  # what is traced is used without us
            return True
        return self.graphed_in_training is not None and self.graphed_in_training == module.training

    def __deepcopy__(self, memo):
        return contextlib.nullcontext().__exit__

    def __reduce__(self):
        # Takes any arguments, returns None, and loads where cgdebug is not installed.
        return (getattr, (contextlib.nullcontext(), "__exit__"))


class _OutputHook(_Hook):
    def __init__(self, place: _Place, grad: _Place | None):
        self.place, self.grad = place, grad
        self.token, self.grad_token = place.token, grad.token if grad else 0

    def __call__(self, module, args, output):
        if self.is_off(module):
            return
        if not _look(self.token, self.grad_token, "", output, 0):
            _note_no_tensor(self.token)


class _InputHook(_Hook):
    def __init__(self, place: _Place):
        self.place, self.token = place, place.token

    def __call__(self, module, args, kwargs):
        if self.is_off(module):
            return
        if len(args) == 1 and not kwargs:
            found = _look(self.token, 0, "", args[0], 0)
        else:
            found = _look(self.token, 0, "", args, 0)
            found = _look(self.token, 0, "", kwargs, 0) or found
        if not found:
            _note_no_tensor(self.token)


class _ParamHook(_Hook):
    def __init__(self, places: list[_Place], ways: list[tuple[str, str]]):
        self.places = places
        self.entries = [
            (place.token, tuple(filter(None, way.split("."))), name)
            for place, (way, name) in zip(places, ways)
        ]

    def __call__(self, module, args):
        if self.is_off(module):
            return
        for token, way, name in self.entries:
            owner = module
            for part in way:
                owner = owner._modules.get(part)
                if owner is None:
                    break
            parameter = None if owner is None else owner._parameters.get(name)
            if parameter is not None:
                _look(token, 0, "", parameter, 0)


def _look(token: int, grad_token: int, path: str, value, depth: int) -> bool:
    """Observes every tensor in `value`; whether there was one. Dynamo traces this."""
    if isinstance(value, torch.Tensor):
        if not _can_be_seen(value):
            _note_refused(token, str(value.dtype))
            return True
        key = _key_of(token, path)
        if key:
            _observe(token, key, value)
        if grad_token and value.requires_grad:
            if value.is_leaf:  # such a hook would stay with the parameter for ever
                _note(grad_token, "the output is a leaf, such as a parameter: look at its .grad")
            else:
                grad_key = _key_of(grad_token, path)
                if grad_key:
                    value.register_hook(functools.partial(_observe, grad_token, grad_key))
        return True
    if depth == _MAX_DEPTH:
        return False
    found = False
    if isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            found = _look(token, grad_token, f"{path}/{index}", item, depth + 1) or found
    elif isinstance(value, dict):
        for name, item in value.items():
            found = _look(token, grad_token, f"{path}/{name}", item, depth + 1) or found
    elif hasattr(type(value), "__dataclass_fields__"):
        for name in type(value).__dataclass_fields__:
            item = getattr(value, name, None)
            found = _look(token, grad_token, f"{path}/{name}", item, depth + 1) or found
    return found


def _can_be_seen(tensor: torch.Tensor) -> bool:
    if tensor.is_nested or tensor.is_quantized or tensor.layout != torch.strided:
        return False
    return tensor.dtype in _dtypes


def _observe(token: int, key: str, tensor: torch.Tensor) -> None:
    if torch.compiler.is_compiling():
        _know_dtensor()
        torch.ops.cgdebug.observe(tensor, key)
        return
    try:
        if type(tensor) is not torch.Tensor:
            _native.know_dtensor()
        torch.ops.cgdebug.observe(tensor, key)
    except Exception as error:  # the job goes on
        _native.op_refused()
        _note(token, str(error).partition("\n")[0])


_dtypes: frozenset[torch.dtype] = frozenset()  # filled by the first watch


# Dynamo calls these once while it traces, and leaves them out of the graph.


@torch.compiler.assume_constant_result
def _know_dtensor() -> None:
    _native.know_dtensor()


@torch.compiler.assume_constant_result
def _key_of(token: int, path: str) -> str:
    place = _places.get(token)
    return "" if place is None else place.key_of(path)


@torch.compiler.assume_constant_result
def _note(token: int, problem: str) -> None:
    place = _places.get(token)
    if place is not None:
        place.note(problem)


@torch.compiler.assume_constant_result
def _note_refused(token: int, dtype: str) -> None:
    _note(token, f"a tensor like this ({dtype}) cannot be probed")


@torch.compiler.assume_constant_result
def _note_no_tensor(token: int) -> None:
    place = _places.get(token)
    if place is not None and not place.probes and not place.problem:
        place.problem = "it holds no tensor"


# --- layers that are compiled one by one ----------------------------------------------------------

# Without a watch they share compiled code. With one each has code of its own, since the names are
# part of it, and Dynamo gives up after recompile_limit of them.
_recompile_limit: tuple[int, int] | None = None  # before us, and what we made of it


def _allow_recompiles() -> None:
    global _recompile_limit
    config = _dynamo_config()
    if config is None:
        return
    with _lock:
        before = config.recompile_limit if _recompile_limit is None else _recompile_limit[0]
        needed = before + sum(place.called for other in _watches for place in other._list)
        if needed > config.recompile_limit:
            config.recompile_limit = needed
            _recompile_limit = (before, needed)


def _restore_recompile_limit() -> None:
    """Requires: _lock."""
    global _recompile_limit
    config = _dynamo_config()
    if config is not None and _recompile_limit is not None:
        before, ours = _recompile_limit
        if config.recompile_limit == ours:  # else the program has set it since
            config.recompile_limit = before
    _recompile_limit = None


def _dynamo_config():
    """None where Dynamo is not used, or its limit has another name (before torch 2.7)."""
    dynamo = sys.modules.get("torch._dynamo")
    config = getattr(dynamo, "config", None)
    return config if hasattr(config, "recompile_limit") else None


# --- make_graphed_callables -----------------------------------------------------------------------

# It refuses a module that has hooks, but not global hooks. So while it runs, ours are global.
_graphed_callables: collections.abc.Callable | None = None  # torch's own, while there is a watch


def _wrap_graphed_callables() -> None:
    global _graphed_callables
    if _graphed_callables is None:
        _graphed_callables = torch.cuda.make_graphed_callables
        torch.cuda.make_graphed_callables = _make_graphed_callables
        torch.cuda.graphs.make_graphed_callables = _make_graphed_callables


def _unwrap_graphed_callables() -> None:
    global _graphed_callables
    if torch.cuda.make_graphed_callables is _make_graphed_callables:
        torch.cuda.make_graphed_callables = _graphed_callables
        torch.cuda.graphs.make_graphed_callables = _graphed_callables
        _graphed_callables = None


def _make_graphed_callables(callables, *args, **kwargs):
    modules = [
        one
        for one in (callables if isinstance(callables, tuple) else (callables,))
        if isinstance(one, torch.nn.Module)
    ]
    # The last watch may end in the meantime, in another thread.
    torchs_own = _graphed_callables or torch.cuda.make_graphed_callables
    with _global_hooks(modules):
        result = torchs_own(callables, *args, **kwargs)
    for module in modules:
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
            if isinstance(hook, _Hook):
                hook.graphed_in_training = module.training
    return result


@contextlib.contextmanager
def _global_hooks(modules: list[torch.nn.Module]):
    aside: dict[int, tuple[list, list]] = {}
    restore: list[tuple[dict, int, _Hook]] = []
    for module in modules:
        mine = aside[id(module)] = ([], [])
        for hooks, into in ((module._forward_pre_hooks, mine[0]), (module._forward_hooks, mine[1])):
            for number, hook in list(hooks.items()):
                if isinstance(hook, _Hook):
                    into.append(hook)
                    restore.append((hooks, number, hook))
                    del hooks[number]

    def before(module, args):
        for hook in aside.get(id(module), ((), ()))[0]:
            hook(module, args, {}) if isinstance(hook, _InputHook) else hook(module, args)

    def after(module, args, output):
        for hook in aside.get(id(module), ((), ()))[1]:
            hook(module, args, output)

    handles = [
        torch.nn.modules.module.register_module_forward_pre_hook(before),
        torch.nn.modules.module.register_module_forward_hook(after),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for hooks, number, hook in restore:
            hooks[number] = hook


# --- modules and names ----------------------------------------------------------------------------


def _modules_of(
    model: torch.nn.Module,
) -> tuple[dict[str, torch.nn.Module], dict[str, str]]:
    """The modules by name, the model itself first, by its class; and other names of some of them.
    Wrappers are looked through."""
    found: dict[str, torch.nn.Module] = {}
    aliases: dict[str, str] = {}
    names: dict[int, str] = {}

    def visit(module: torch.nn.Module, name: str) -> None:
        module = _unwrapped(module)
        shown = name or type(module).__name__
        if id(module) in names:
            aliases[shown] = names[id(module)]
            return
        names[id(module)] = shown
        found[shown] = module
        for child, submodule in module._modules.items():
            if submodule is not None:
                visit(submodule, f"{name}.{child}" if name else child)

    visit(model, "")
    return found, aliases


def _unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    inner: torch.nn.Module | None = module
    while inner is not None:
        module, inner = inner, None
        for attribute in ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"):
            inner = inner or module._modules.get(attribute)
        if inner is None and isinstance(
            module, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
        ):
            inner = module.module
    return module


def _is_callable(module: torch.nn.Module) -> bool:
    return type(module).forward is not torch.nn.Module.forward or "forward" in vars(module)


def _is_selected(name: str, select: str) -> bool:
    try:
        return _native.recording_module().is_selected(name, select)
    except (ValueError, TypeError) as error:
        raise ValueError(f"watch: select={select!r}: {error}") from None


def _free_prefix(model: str, names: collections.abc.Iterable[str]) -> str:
    """Requires: _lock."""
    taken: set[str] = set()
    for other in list(_watches):
        if other._root() is not None:
            taken |= other._names
    for number in itertools.count():
        prefix = ["", f"{model}."][number] if number < 2 else f"{model}_{number}."
        if taken.isdisjoint(prefix + name for name in names):
            return prefix
    raise AssertionError


def _probe_name(text: str, taken: set[str]) -> str:
    """`text` as a name that a probe may have; not one of `taken`."""
    name = _accepted.make_name(text)
    for number in itertools.count(2):
        if name not in taken:
            break
        name = _accepted.make_name(f"{text}_{number}")
    return name


def _actions_of(values) -> list[Action]:
    if values is None:
        return [TensorStats()]
    if isinstance(values, TensorRecord):
        return [values]
    return [TensorRecord(capacity=whole_number("watch: values", values))]


def _was_compiled(*modules: torch.nn.Module | None) -> bool:
    """Whether Dynamo has code of one of them, or of another module of its class."""
    if "torch._dynamo" not in sys.modules:
        return False
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    codes = [getattr(type(module).forward, "__code__", None) for module in modules if module]
    codes += [torch.nn.Module._call_impl.__code__]
    return any(_debug_get_cache_entry_list(code) for code in codes if code is not None)


def _device_bytes(slot: dict) -> int:
    if slot["lane"] != "direct" or not slot["device"].startswith("cuda"):
        return 0
    sms = torch.cuda.get_device_properties(slot["device"]).multi_processor_count
    return slot["payload_bytes"] + _DIRECT_STATS_BYTES_PER_SM * sms
