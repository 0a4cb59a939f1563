"""What a watch has on the modules of a model: hooks, and the places that these look at."""

from __future__ import annotations

import collections.abc
import dataclasses
import typing
import weakref

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from . import calls, direct, hooks, module_hooks
from .modules import IN_SCRIPT, inside_scripts, is_callable, is_selected, unwrapped
from .places import Place, lock
from .replicas import ReplicaHook


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What watch() was asked for. shards: by id, of parameters that other ranks have."""

    select: str
    grads: bool
    inputs: bool
    params: bool
    shards: dict[int, str]


class OnModules:
    """root: the model; known: its modules.

    Requires: places.lock."""

    def __init__(
        self,
        root: weakref.ref[torch.nn.Module],
        known: weakref.WeakSet[torch.nn.Module],
        make_place: collections.abc.Callable[[str, str, torch.nn.Module], Place],
        take_in_new: collections.abc.Callable[[], None],
    ):
        self._root = root
        self._known = known
        self._place = make_place
        self._take_in_new = take_in_new
        self._by_id: dict[int, weakref.ref[torch.nn.Module]] = {}  # those that are known
        self._handles: list[
            torch.utils.hooks.RemovableHandle | calls.Follower | direct.InFront
        ] = []
        # Behind forward(), which the program may take off with its own.
        self._outputs: list[tuple[weakref.ref[torch.nn.Module], hooks.Hook, typing.Any]] = []
        # Of those whose forward() is called: which runs our hooks, and which did not.
        self._in_front: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._not_all_seen: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def watch(
        self,
        found: dict[str, torch.nn.Module],
        chosen: dict[str, torch.nn.Module],
        shared: dict[str, dict[str, torch.nn.Module]],
        wanted: Wanted,
    ) -> None:
        """Hooks the chosen ones of those that were found. shared: of shared_of()."""
        root = self._root()
        self._handles.append(calls.Follower(root))
        if is_callable(root):
            myself = weakref.WeakMethod(self._catch_up)
            catch_up = hooks.CatchUpHook(lambda: (myself() or (lambda: None))())
            self._handles.append(module_hooks.register(root, catch_up, before=True))
        self.hook(found, found, chosen, shared, wanted)

    def remove(self) -> None:
        outputs, self._outputs = self._outputs, []
        handles, self._handles = self._handles, []
        for handle in (*(handle for _, _, handle in outputs), *handles):
            handle.remove()

    def hook(
        self,
        found: dict[str, torch.nn.Module],
        new: dict[str, torch.nn.Module],
        chosen: dict[str, torch.nn.Module],
        shared: dict[str, dict[str, torch.nn.Module]],
        wanted: Wanted,
    ) -> None:
        """As watch(), without what is looked at around them. new: those found that have no hooks
        yet, of which some are chosen."""
        self._by_id = {}
        in_scripts = inside_scripts(found)
        for name, module in chosen.items():
            if id(module) in in_scripts:
                self._place("fwd", name, module).note(IN_SCRIPT)
                continue
            self._hook(name, module, wanted, shared.get(name, {}))
        if wanted.params:
            self._hook_params(found, new, in_scripts, wanted)

    def _hook(
        self,
        name: str,
        module: torch.nn.Module,
        wanted: Wanted,
        others: dict[str, torch.nn.Module],
    ) -> None:
        """others: further names of it, each with the module that has it by this name."""
        if not is_callable(module):
            return
        if wanted.inputs:
            hook = hooks.InputHook(self._place("in", name, module))
            self._handles.append(module_hooks.register(module, hook, before=True, with_kwargs=True))
        output: hooks.Hook
        output, *further = [
            hooks.OutputHook(
                self._place("fwd", one, module),
                self._place("grad", one, module) if wanted.grads else None,
            )
            for one in (name, *others)
        ]
        if others:
            output = hooks.SharedHook(output, list(zip(others.values(), further)))
        handle = module_hooks.register(module, output)
        self._outputs.append((weakref.ref(module), output, handle))
        if not module_hooks.stay_last(module):
            self._handles.append(module_hooks.register(module, hooks.LastHook(), before=True))

    def _catch_up(self) -> None:
        self._put_back()
        if self.has_new():
            self._take_in_new()

    def has_new(self) -> bool:
        """Whether the program has put something into a module. It may do so past __setattr__, as
        what quantizes a model does."""
        with lock:
            if len(self._by_id) != len(self._known):  # one is gone: another may have its id
                self._by_id = {id(module): weakref.ref(module) for module in self._known}
            is_known = self._by_id.__contains__
            for alive in self._by_id.values():
                module = alive()
                if module is None or not module._modules:
                    continue
                parts = module._modules.values()
                if not all(map(is_known, map(id, parts))) and any(map(self._is_new, parts)):
                    return True
            return False

    def _is_new(self, part: torch.nn.Module | None) -> bool:
        return part is not None and part not in self._known and unwrapped(part) not in self._known

    def _put_back(self) -> None:
        """The hooks that the program took off."""
        for alive, hook, handle in self._outputs:
            module = alive()
            if module is not None and not module_hooks.is_there(module, hook, handle):
                break
        else:
            return
        with lock:  # another thread may do the same
            for number, (alive, hook, handle) in enumerate(self._outputs):
                module = alive()
                if module is not None and not module_hooks.is_there(module, hook, handle):
                    handle = module_hooks.register(module, hook)
                    self._outputs[number] = (alive, hook, handle)

    def put_in_front(self, module: torch.nn.Module) -> None:
        """Of one that is not called, but its forward() is."""
        if module not in self._in_front and any(module_hooks.ours_of(module)):
            self._in_front.add(module)
            self._handles.append(direct.InFront(module))

    def look_around(self) -> None:
        """Looks at modules that run right now and have not run our hooks."""
        for module, frame in direct.running():
            if module not in self._known:
                continue
            self.put_in_front(module)  # from its next call on
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
        new: dict[str, torch.nn.Module],
        in_scripts: set[int],
        wanted: Wanted,
    ) -> None:
        """new: those whose parameters are looked at; in_scripts: see inside_scripts().

        A container such as a ParameterList is never called; the module around it is, so that one
        gets the hook."""
        by_owner: dict[str, list] = {}
        root = next(iter(found))
        for name, module in new.items():
            owner = name
            while not is_callable(found.get(owner, found[root])) and owner != root:
                owner = owner.rpartition(".")[0] or root
            path = "" if name == root else name
            way = path[len(owner) + 1 :] if owner not in (root, name) else path * (owner != name)
            for own, parameter in module._parameters.items():
                full = f"{path}.{own}" if path else own
                if is_selected(full, wanted.select):
                    by_owner.setdefault(owner, []).append((way, own, full, parameter))
        of_optimizer = hooks.OptimizerHook()
        may_be_replicas: list[tuple[weakref.ref[torch.nn.Parameter], Place]] = []
        if not wanted.shards and torch.distributed.is_available() and is_callable(found[root]):
            hook = ReplicaHook(may_be_replicas)  # in front of those that look at parameters
            self._handles.append(module_hooks.register(found[root], hook, before=True))
        for owner, parameters in by_owner.items():
            module = found[owner]
            places = [self._place("param", full, module) for _, _, full, _ in parameters]
            if id(module) in in_scripts:
                for place in places:
                    place.note(IN_SCRIPT)
                continue
            for place, (_, _, full, parameter) in zip(places, parameters, strict=True):
                if parameter is None:
                    continue
                place.shard = wanted.shards.get(id(parameter), "")
                may_be_replicas.append((weakref.ref(parameter), place))
                if wanted.grads and parameter.requires_grad:
                    grad = self._place("param_grad", full, module)
                    grad.shard = place.shard
                    may_be_replicas.append((weakref.ref(parameter), grad))
                    of_optimizer.add(parameter, grad)
            looks = hooks.ParamHook(places, [(way, own) for way, own, _, _ in parameters])
            self._handles.append(module_hooks.register(module, looks, before=True))
        if wanted.grads:
            handle = register_optimizer_step_pre_hook(of_optimizer)
            self._handles.append(handle)
            weakref.finalize(self, handle.remove).atexit = False


def shared_of(
    found: dict[str, torch.nn.Module],
    aliases: dict[str, str],
    chosen: collections.abc.Collection[str],
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
