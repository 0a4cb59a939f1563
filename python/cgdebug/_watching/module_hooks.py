"""Our hooks on modules, which nobody finds but what runs them.

Torch lets hooks change what a program does: make_graphed_callables (TransformerEngine's, too)
refuses a module that has some, TransformerEncoderLayer then leaves its fused kernels out,
torch.jit.script compiles them, quantization moves them to other modules, and they are pickled and
copied with the module. So the dict in which a watched module keeps its hooks shows ours to
those who go through its items, as the call of a module and Dynamo do.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import sys

import torch

_ASK_WHETHER_THERE_ARE_HOOKS = ("make_graphed_callables", "_make_graphed_callables")
HOOKS_OF_FORWARD = "_cgdebug_hooks"  # an attribute of the method that direct.py has in front
_FUSED = torch.nn.modules.transformer.__file__


class Hooks(collections.OrderedDict):
    """The hooks of a module, or what torch keeps beside them, by the number of the hook."""

    def __init__(self) -> None:
        super().__init__()
        self.ours: set[int] = set()

    def __setitem__(self, number, hook) -> None:
        """Ours stay behind those of the program, which may change what a module gets or returns."""
        super().__setitem__(number, hook)
        if number in self.ours:
            return
        for one in [one for one in self if one in self.ours]:
            # move_to_end() moves it for Python alone, and Dynamo's guards go by the order in C.
            super().__setitem__(one, super().pop(one))

    def clear(self) -> None:
        """By the program: those of the program."""
        for number, _ in self._of_program():
            del self[number]

    def __len__(self) -> int:
        caller = sys._getframe(1).f_code
        if caller.co_name in _ASK_WHETHER_THERE_ARE_HOOKS or caller.co_filename == _FUSED:
            return len(self._of_program())
        return super().__len__()

    def __bool__(self) -> bool:
        return super().__len__() > 0

    def values(self):
        return dict(self._of_program()).values()

    def copy(self):
        return collections.OrderedDict(self._of_program())

    def __reduce__(self):
        return (collections.OrderedDict, (), None, None, iter(self._of_program()))

    def _of_program(self) -> list[tuple]:
        return [(number, hook) for number, hook in self.items() if number not in self.ours]


def register(module: torch.nn.Module, hook, before: bool = False, with_kwargs: bool = False):
    """As register_forward_hook; `before`: as register_forward_pre_hook. Returns the handle."""
    names = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs")
    if not before:
        names = ("_forward_hooks", "_forward_hooks_with_kwargs")
    for name in names:
        # A dict with hooks stays: their handles refer to it. So does that of a ScriptModule.
        stays = isinstance(module, torch.jit.ScriptModule) or getattr(module, name)
        if not isinstance(getattr(module, name), Hooks) and not stays:
            vars(module)[name] = Hooks()  # a class may refuse to have attributes set
    # Those of the class, because a ScriptModule has others, which refuse.
    kind = torch.nn.Module
    add = kind.register_forward_pre_hook if before else kind.register_forward_hook
    handle = add(module, hook, with_kwargs=with_kwargs)
    # Compiled code holds the number. With numbers of their own, modules could not share the code.
    taken = getattr(module, names[0])
    ours = next(number for number in itertools.count(-1, -1) if number not in taken)
    for name in names:
        hooks = getattr(module, name)
        if isinstance(hooks, Hooks):
            hooks.ours.add(ours)
        if handle.id in hooks:
            hooks[ours] = hooks.pop(handle.id)
    handle.id = ours
    return handle


def is_there(module: torch.nn.Module, hook, handle: torch.utils.hooks.RemovableHandle) -> bool:
    """Whether the hook still runs behind forward(). A program may empty the dict of the hooks, or
    put another in its place."""
    return module._forward_hooks.get(handle.id) is hook


def stay_last(module: torch.nn.Module) -> bool:
    """Whether our hooks stay behind those of the program: a dict that had hooks before is not ours,
    and does not keep them there."""
    return type(module._forward_hooks) is Hooks


def put_last(module: torch.nn.Module) -> bool:
    """Puts our hooks behind those of the program. Returns whether they were there already."""
    hooks = module._forward_hooks
    if stay_last(module) or not hooks or hasattr(hooks[next(reversed(hooks))], "places"):
        return True
    for number in [number for number, hook in hooks.items() if hasattr(hook, "places")]:
        hooks[number] = hooks.pop(number)
    return False


def ours_of(module: torch.nn.Module) -> tuple[list, list]:
    """Our hooks that run before forward() and after it, each with whether it gets kwargs."""
    before, after = [
        [
            (hook, number in getattr(module, f"{name}_with_kwargs"))
            for number, hook in getattr(module, name).items()
            if hasattr(hook, "places")
        ]
        for name in ("_forward_pre_hooks", "_forward_hooks")
    ]
    return before, after


@contextlib.contextmanager
def aside(model: torch.nn.Module, why: str):
    """Without our hooks on the modules of `model`. `why`: what their places note."""
    before = []
    for module in model.modules():
        for name in ("_forward_pre_hooks", "_forward_hooks"):
            hooks = getattr(module, name)
            ours = [hook for hook in hooks.values() if hasattr(hook, "places")]
            if isinstance(hooks, Hooks):
                ours = [hooks[number] for number in hooks.ours if number in hooks]
            if not ours and not isinstance(hooks, Hooks):
                continue
            before.append((module, name, hooks))
            rest = [(number, hook) for number, hook in hooks.items() if hook not in ours]
            vars(module)[name] = collections.OrderedDict(rest)
            for place in (place for hook in ours for place in hook.places):
                place.note(why)
    try:
        with forward_aside(model):
            yield
    finally:
        for module, name, hooks in before:
            vars(module)[name] = hooks


@contextlib.contextmanager
def forward_aside(model: torch.nn.Module):
    """Without what direct.py has in front of forward()."""
    forwards = [(module, vars(module).get("forward")) for module in model.modules()]
    ours = [one for one in forwards if hasattr(one[1], HOOKS_OF_FORWARD)]
    for module, _ in ours:
        del vars(module)["forward"]
    try:
        yield
    finally:
        for module, forward in ours:
            vars(module)["forward"] = forward


def runs_as_graph(module: torch.nn.Module) -> bool:
    """Whether make_graphed_callables has captured the module as it is called now."""
    forward = module.__dict__.get("forward")
    code = getattr(forward, "__code__", None)
    if code is None or "graph_training_state" not in code.co_freevars:
        return False
    state = forward.__closure__[code.co_freevars.index("graph_training_state")]
    return state.cell_contents == module.training
