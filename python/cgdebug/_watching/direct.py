"""Modules whose forward() is called by itself. Torch runs no hook for that.

A module that code of the program seems to call so gets a method of ours in front of its forward(),
which runs the hooks of the watch. Any other is told as not seen, as far as it shows: when a module
inside of it is seen first.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import sys
import types
import typing
import weakref

import torch

from .._job._after_import import call_after_import
from . import module_hooks
from .compiled import make_no_frames_of
from .modules import is_callable

_UNSEEN = "its forward() was called, which runs no hook, and not the module"
FIRST_UNSEEN = f"{_UNSEEN}. Later calls are seen"
ALL_UNSEEN = f"{_UNSEEN}. How often is not known"
_CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)
_OURS = __name__.partition(".")[0]
_INSTALLED = ("site-packages", "dist-packages")
_MOST_DECORATORS = 8

_Modules = dict[str, torch.nn.Module]  # by path; that of the root is ""


# --- what the program's code says -----------------------------------------------------------------


def called_in_code(found: _Modules, stack: typing.Any) -> list[torch.nn.Module]:
    """The modules that code may call by forward(): methods of the model's classes, functions of
    the files that have these, of files of the program, and of `stack`, a frame.
    `found`: the modules by name, the root first."""
    root = next(iter(found))
    paths = {"" if name == root else name: module for name, module in found.items()}
    kinds = {type(module) for module in found.values()}
    codes_of = {kind: _calls_in(_methods_of(kind)) for kind in kinds}
    chosen: dict[int, torch.nn.Module] = {}
    for path, module in paths.items():
        for receiver, code in codes_of[type(module)]:
            is_itself = receiver == code.co_varnames[0] if code.co_varnames else False
            for one in [module] if is_itself else _meant(paths, path, receiver, code):
                chosen[id(one)] = one
    for receiver, code in _calls_in(_functions_around(kinds, stack)):
        for one in _meant(paths, "", receiver, code) + [paths[""]]:
            chosen[id(one)] = one
    return [
        module
        for module in chosen.values()
        if is_callable(module) and not isinstance(module, torch.jit.ScriptModule)
    ]


def _meant(
    paths: _Modules, path: str, receiver: str, code: types.CodeType
) -> list[torch.nn.Module]:
    """The modules inside of that at `path` that the code may mean: those named as the receiver.
    Where the receiver is a variable, those that the code names, and what is in lists of them."""
    start = f"{path}." if path else ""
    inside = {name: one for name, one in paths.items() if name.startswith(start) and name != path}
    by_name = [one for name, one in inside.items() if name.rpartition(".")[2] == receiver]
    if by_name:
        return by_name
    meant = []
    for name, module in inside.items():
        parent, _, own = name.rpartition(".")
        is_listed = isinstance(paths.get(parent), _CONTAINERS)
        if own in code.co_names or is_listed and parent.rpartition(".")[2] in code.co_names:
            meant.append(module)
    return meant


def _methods_of(kind: type) -> typing.Iterator[types.CodeType]:
    for one in kind.__mro__:
        if not _is_torch_or_ours(one.__module__):
            yield from _codes_of(vars(one).values())


def _functions_around(kinds: set[type], frame: typing.Any) -> typing.Iterator[types.CodeType]:
    of_model = {one.__module__ for kind in kinds for one in kind.__mro__}
    for name, module in list(sys.modules.items()):
        # An attribute that is asked for may import a module, which fails or warns.
        attributes = module.__dict__ if isinstance(module, types.ModuleType) else {}
        file = str(attributes.get("__file__") or "")
        is_installed = any(part in file for part in _INSTALLED) or file.startswith(_STDLIB)
        if (file and not is_installed or name in of_model) and not _is_torch_or_ours(name):
            for value in list(attributes.values()):
                if not isinstance(value, type):
                    yield from _codes_of([value])
                elif value.__module__ == name and not issubclass(value, torch.nn.Module):
                    yield from _codes_of(vars(value).values())
    for one in frames_from(frame):
        if not _is_torch_or_ours(one.f_globals.get("__name__", "")):
            yield one.f_code


_STDLIB = dis.__file__.rpartition("/")[0]


def _is_torch_or_ours(module: str) -> bool:
    return module.partition(".")[0] in ("torch", _OURS)


def _codes_of(values: typing.Iterable) -> typing.Iterator[types.CodeType]:
    for value in values:
        function = getattr(value, "__func__", value) if isinstance(value, _METHODS) else value
        for _ in range(_MOST_DECORATORS):
            if not isinstance(function, types.FunctionType):
                break
            yield function.__code__
            function = vars(function).get("__wrapped__")


_METHODS = (staticmethod, classmethod)


def _calls_in(codes: typing.Iterable[types.CodeType]) -> list[tuple[str, types.CodeType]]:
    """What forward() is called of, by its name or "", and the code that calls it."""
    calls, todo, known = [], list(codes), set[types.CodeType]()
    while todo:
        code = todo.pop()
        if code in known:
            continue
        known.add(code)
        todo += [one for one in code.co_consts if isinstance(one, types.CodeType)]
        if "forward" in code.co_names:
            calls += [(receiver, code) for receiver in _receivers_in(code)]
    return calls


@functools.cache
def _receivers_in(code: types.CodeType) -> tuple[str, ...]:
    receivers, before = [], None
    instructions = list(dis.get_instructions(code))
    for place, one in enumerate(instructions):
        if one.argval == "forward" and one.opname in ("LOAD_METHOD", "LOAD_ATTR"):
            receiver = _receiver(before, code)
            is_call = (
                one.opname == "LOAD_METHOD"
                or "NULL" in one.argrepr
                or _is_called_with_star(instructions[place + 1 :])
            )
            if receiver is not None and (is_call or _is_passed_on(receiver, code)):
                receivers.append(receiver)
        if one.opname not in ("PUSH_NULL", "EXTENDED_ARG"):
            before = one
    return tuple(receivers)


def _is_called_with_star(following: list[dis.Instruction]) -> bool:
    """Whether what lies on top of the stack is called, as in self.forward(*args)."""
    depth = 1
    for one in following:
        effect = dis.stack_effect(one.opcode, one.arg, jump=False)
        if one.opname == "CALL_FUNCTION_EX" and depth - (1 - effect) <= 0:
            return True
        depth += effect
        if depth <= 0:
            return False
    return False


def _is_passed_on(receiver: str, code: types.CodeType) -> bool:
    """As in checkpoint(self.layer.forward, x). Others are asked for their signature, or kept."""
    is_itself = receiver in code.co_varnames[:1]
    return "checkpoint" in " ".join(code.co_names) and bool(receiver) and not is_itself


def _receiver(before: dis.Instruction | None, code: types.CodeType) -> str | None:
    """None: it is super() or a class, and forward() is given `self`."""
    if before is None or not before.opname.startswith("LOAD_"):
        is_called = before is not None and "CALL" in before.opname
        return None if is_called and "super" in code.co_names else ""
    name = before.argval[-1] if isinstance(before.argval, tuple) else before.argval
    return None if not isinstance(name, str) or name[:1].isupper() else name


# --- a method in front of forward() ---------------------------------------------------------------


class InFront:
    """forward() of a module runs our hooks on it, until this is removed.

    Requires: the lock of the watches."""

    def __init__(self, module: torch.nn.Module):
        self._module = weakref.ref(module)
        attributes = vars(module)
        if "forward" not in attributes and not attributes.keys() & _OURS_BESIDE:
            attributes["forward"] = _in_front_of(module)
            attributes["__getstate__"] = _without_ours(module, "__getstate__")
            attributes["_replicate_for_data_parallel"] = _without_ours(
                module, "_replicate_for_data_parallel"
            )
        _gather_hooks(module)

    def remove(self) -> None:
        module = self._module()
        if module is not None:
            _gather_hooks(module)


_OURS_BESIDE = {"__getstate__", "_replicate_for_data_parallel"}  # beside forward()


def is_in_front_of(module: torch.nn.Module) -> bool:
    return _hooks_of(module) is not None


def _hooks_of(module: torch.nn.Module) -> tuple[list, list] | None:
    """What our forward() of the module runs before and after it; None: there is none of ours."""
    return getattr(vars(module).get("forward"), module_hooks.HOOKS_OF_FORWARD, None)


def _gather_hooks(module: torch.nn.Module) -> None:
    hooks = _hooks_of(module)
    if hooks is None:
        return
    for those, given in zip(hooks, module_hooks.ours_of(module), strict=True):
        those[:] = given
        for hook, _ in given:
            hook.is_in_front = True
    if not any(hooks):
        _remove_ours(vars(module))


def _remove_ours(attributes: dict[str, typing.Any]) -> None:
    for name in ("forward", *_OURS_BESIDE):
        attributes.pop(name, None)


def _in_front_of(module: torch.nn.Module):
    known = weakref.ref(module)
    real = type(module).forward
    before: list = []
    after: list = []

    @functools.wraps(real)
    def forward(*args, **kwargs):
        self = known()
        if not torch.compiler.is_compiling() and _is_called(self):
            return real(self, *args, **kwargs)
        for hook, has_kwargs in before:
            hook.run(self, args, kwargs) if has_kwargs else hook.run(self, args)
        output = real(self, *args, **kwargs)
        for hook, _ in after:
            hook.run(self, args, output)
        return output

    make_no_frames_of(forward, inner=True)
    with contextlib.suppress(ValueError, TypeError):
        forward.__signature__ = inspect.signature(module.forward)  # type: ignore[attr-defined]
    setattr(forward, module_hooks.HOOKS_OF_FORWARD, (before, after))
    return forward


def _without_ours(module: torch.nn.Module, name: str):
    """A method of the module that gives its attributes to a copy, a pickle or a replica."""
    known = weakref.ref(module)

    def give(*args, **kwargs):
        self = known()
        if name in vars(type(self)) or hasattr(type(self), name):
            given = getattr(type(self), name)(self, *args, **kwargs)
        else:
            given = vars(self)  # before Python 3.11
        if isinstance(given, torch.nn.Module):
            _remove_ours(vars(given))
        elif isinstance(given, dict):
            given = dict(given)
            _remove_ours(given)
        return given

    return give


def _leave_out_of_scripts(recursive) -> None:
    """TorchScript compiles what is in front of forward()."""
    make = recursive.create_script_module

    @functools.wraps(make)
    def make_of_program(module, *args, **kwargs):
        with module_hooks.forward_aside(module):
            return make(module, *args, **kwargs)

    recursive.create_script_module = make_of_program


def _choose_as_without(eval_frame) -> None:
    """torch.compile asks whether forward() of a model is torch's, and then compiles its call."""
    initialize = eval_frame.OptimizedModule._initialize

    @functools.wraps(initialize)
    def initialize_as_without(self, *args, **kwargs):
        with module_hooks.forward_aside(self._orig_mod):
            return initialize(self, *args, **kwargs)

    eval_frame.OptimizedModule._initialize = initialize_as_without


call_after_import("torch.jit._recursive", _leave_out_of_scripts)
call_after_import("torch._dynamo.eval_frame", _choose_as_without)


# --- calls that run -------------------------------------------------------------------------------


def _trace(frame, event, value) -> None:
    """Of a thread that waits for frames to return: other frames are not looked at."""


class _AtReturn:
    """The trace function of one frame."""

    def __init__(self) -> None:
        self.actions: dict[int, typing.Callable[[typing.Any], object]] = {}

    def __call__(self, frame, event, value):
        if event != "return":
            return self
        frame.f_trace = None
        if not any(isinstance(outer.f_trace, _AtReturn) for outer in frames_from(frame.f_back)):
            sys.settrace(None)
        if value is not None:  # or it raised
            for action in self.actions.values():
                action(value)
        return None


def at_return(frame: typing.Any, key: int, action: typing.Callable[[typing.Any], object]) -> bool:
    """Calls action(value) when a frame of this thread returns a value, once for each key. False: it
    cannot, because something else traces, such as a debugger."""
    if sys.gettrace() not in (None, _trace):
        return False
    if not isinstance(frame.f_trace, _AtReturn):
        frame.f_trace, frame.f_trace_lines = _AtReturn(), False
    frame.f_trace.actions.setdefault(key, action)
    sys.settrace(_trace)
    return True


def frames_from(frame: typing.Any) -> typing.Iterator[typing.Any]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_called(module: torch.nn.Module) -> bool:
    """Whether what runs forward() is the call of the module, which runs the hooks."""
    code = torch.nn.Module._call_impl.__code__
    caller = next((one for one in frames_from(sys._getframe(2)) if one.f_code is code), None)
    return caller is not None and caller.f_locals["self"] is module


make_no_frames_of(_is_called)


def running() -> list[tuple[torch.nn.Module, typing.Any]]:
    """The modules whose forward() runs on this thread where nothing runs their hooks, the outermost
    first, each with its frame."""
    run_hooks = torch.nn.Module._call_impl.__code__, _code_in_front()
    found: list[tuple[torch.nn.Module, typing.Any]] = []
    inner: list[tuple[torch.nn.Module, typing.Any]] = []  # whose call may be further out
    for frame in frames_from(sys._getframe(1)):
        code = frame.f_code
        if code in run_hooks:
            called = frame.f_locals["self"]
            found += [one for one in inner if one[0] is not called]
            inner = []
        elif code.co_name == "forward" and code.co_varnames:
            module = frame.f_locals.get(code.co_varnames[0])
            if isinstance(module, torch.nn.Module) and _runs(module, code):
                inner.append((module, frame))
    return [*found, *inner][::-1]


@functools.cache
def _code_in_front() -> types.CodeType:
    return next(one for one in _in_front_of.__code__.co_consts if isinstance(one, types.CodeType))


def _runs(module: torch.nn.Module, code: types.CodeType) -> bool:
    """Whether the code is the module's forward(), and not that of a class that it derives from."""
    return code in set(_codes_of([type(module).forward]))
