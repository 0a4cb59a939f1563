"""torch.cuda.make_graphed_callables for modules that are watched."""

from __future__ import annotations

import collections.abc
import contextlib

import torch

from .hooks import Hook, InputHook

# Torch refuses a module that has hooks, but not global hooks. So while it runs, ours are global.
_graphed_callables: collections.abc.Callable | None = None  # torch's own, while there is a watch


def wrap() -> None:
    global _graphed_callables
    if _graphed_callables is None:
        _graphed_callables = torch.cuda.make_graphed_callables
        torch.cuda.make_graphed_callables = _make_graphed_callables
        torch.cuda.graphs.make_graphed_callables = _make_graphed_callables


def unwrap() -> None:
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
            if isinstance(hook, Hook):
                hook.graphed_in_training = module.training
    return result


@contextlib.contextmanager
def _global_hooks(modules: list[torch.nn.Module]):
    aside: dict[int, tuple[list, list]] = {}
    restore: list[tuple[dict, int, Hook]] = []
    for module in modules:
        mine = aside[id(module)] = ([], [])
        for hooks, into in ((module._forward_pre_hooks, mine[0]), (module._forward_hooks, mine[1])):
            for number, hook in list(hooks.items()):
                if isinstance(hook, Hook):
                    into.append(hook)
                    restore.append((hooks, number, hook))
                    del hooks[number]

    def before(module, args):
        for hook in aside.get(id(module), ((), ()))[0]:
            hook(module, args, {}) if isinstance(hook, InputHook) else hook(module, args)

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
