"""The hooks on modules, which observe every tensor that they find."""

from __future__ import annotations

import collections.abc
import contextlib
import enum
import functools
import sys
import types
import typing
import weakref

import torch
from torch.utils._mode_utils import no_dispatch

from .._job import _accepted, _aside, _native, _tags
from .._job._after_import import constant_in_traces
from . import compiled, module_hooks, places, sketches
from .places import Place

_MAX_LOOKED_AT = 10_000  # objects below that, for a tensor
_OTHER_CONTAINERS = (
    collections.deque,
    set,
    frozenset,
    collections.abc.Iterator,
    collections.abc.Awaitable,
)

_dtypes: frozenset[torch.dtype] = frozenset()  # filled by the first watch


def learn_dtypes() -> None:
    """Called before the first hook runs. Dynamo, which traces the hooks, then sees a constant."""
    global _dtypes
    _dtypes = frozenset(_accepted.torch_dtypes())


class Hook:
    """A hook of a module. If the module had hooks of the program before, a copied or pickled one
    gets a hook that does nothing: its values must not appear under the names of the original."""

    places: list[Place]  # that it looks at
    is_in_front = False  # forward() of its module runs it where nothing else does, see direct.py

    def __call__(self, module, *call):
        if not torch.compiler.is_compiling():
            self._run(module, *call)
        elif not self.is_in_front:
            self.trace(module, *call)

    def trace(self, module, *call):
        """Dynamo traces this. Each call and each attribute in it takes a millisecond of its time,
        for each module."""
        if not _is_exporting():  # an exported program belongs to the job
            self.look(module, *call)

    def run(self, module, *call):
        if torch.compiler.is_compiling():
            self.trace(module, *call)
        else:
            self._run(module, *call)

    def _run(self, module, *call):
        if torch.jit.is_tracing() or _is_make_fx_tracing():  # the traced code runs without us
            return
        if module_hooks.runs_as_graph(module):  # it has us in it
            return
        try:
            _aside.call(self.look, module, *call)
        except Exception as error:  # the job goes on
            for place in self.places:
                place.note(places.failure(error))

    def look(self, module, *call) -> None:
        raise NotImplementedError

    def __deepcopy__(self, memo):
        return contextlib.nullcontext().__exit__

    def __reduce__(self):
        # Takes any arguments, returns None, and loads where cgdebug is not installed.
        return (getattr, (contextlib.nullcontext(), "__exit__"))


class OutputHook(Hook):
    def __init__(self, place: Place, grad: Place | None):
        self.places = [place] if grad is None else [place, grad]
        self.place, self.grad = place, grad

    def trace(self, module, args, output):
        if not isinstance(output, torch.Tensor):
            super().trace(module, args, output)
        elif not _is_exporting():
            _observe_traced(self.place, self.grad, "", output)

    def look(self, module, args, output):
        if not torch.compiler.is_compiling():
            if not module_hooks.put_last(module):
                self.place.note("a hook that is new may have changed it in this call")
            if isinstance(output, torch.Tensor):
                return _observe_now(self.place, self.grad, "", output)
        if not _look(self.place, self.grad, "", output, 0):
            self.place.note_no_tensor()


class LastHook(Hook):
    """Before a call of a module that had hooks of the program before ours. New ones may have come
    behind them."""

    places = []

    def look(self, module, *call):
        if not torch.compiler.is_compiling():
            module_hooks.put_last(module)


class CatchUpHook(Hook):
    """Before a call of a model: what the program has changed in it."""

    places = []

    def __init__(self, catch_up: typing.Callable[[], None]):
        self._catch_up = catch_up

    def look(self, module, *call):
        if not torch.compiler.is_compiling():
            self._catch_up()


class SharedHook(Hook):
    """Of a module that several modules have: each has a hook for it of its own, and the module
    whose call runs decides. Compiled code has the first alone."""

    def __init__(self, first: OutputHook, others: list[tuple[torch.nn.Module, OutputHook]]):
        self.first = first
        # By id, which another module may have when the parent is gone.
        self.by_parent = {id(parent): (weakref.ref(parent), hook) for parent, hook in others}
        self.places = first.places

    def look(self, module, args, output):
        hook = self.first
        if not torch.compiler.is_compiling():
            caller = _caller_of(module)
            parent, own = self.by_parent.get(id(caller), (lambda: None, hook))
            hook = own if parent() is caller else hook
        hook.look(module, args, output)


def _caller_of(module: torch.nn.Module):
    """The module whose call runs around that of `module` on this thread; None: there is none."""
    code = torch.nn.Module._call_impl.__code__
    frame: typing.Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code is code and frame.f_locals["self"] is not module:
            return frame.f_locals["self"]
        frame = frame.f_back
    return None


class InputHook(Hook):
    def __init__(self, place: Place):
        self.places, self.place = [place], place

    def look(self, module, args, kwargs):
        if len(args) == 1 and not kwargs:
            found = _look(self.place, None, "", args[0], 0)
        else:
            found = _look(self.place, None, "", args, 0)
            found = _look(self.place, None, "", kwargs, 0) or found
        if not found:
            self.place.note_no_tensor()


class ParamHook(Hook):
    def __init__(self, targets: list[Place], ways: list[tuple[str, str]]):
        self.places = targets
        self.entries = [
            (place, tuple(filter(None, way.split("."))), name)
            for place, (way, name) in zip(targets, ways)
        ]

    def look(self, module, args):
        for place, way, name in self.entries:
            owner = module
            for part in way:
                owner = owner._modules.get(part)
                if owner is None:
                    break
            parameter = None if owner is None else owner._parameters.get(name)
            if parameter is not None:
                _look(place, None, "", parameter, 0)


class OptimizerHook:
    """Before a step of any optimizer: the gradients of the watched parameters, as it applies them.
    DistributedDataParallel has reduced them by then."""

    def __init__(self):
        # No place: torch keeps this hook, and they keep the watch.
        self._known: dict[int, tuple[weakref.ref[torch.nn.Parameter], weakref.ref[Place]]] = {}

    def add(self, parameter: torch.nn.Parameter, place: Place) -> None:
        self._known[id(parameter)] = (weakref.ref(parameter), weakref.ref(place))

    def __call__(self, optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                known = self._known.get(id(parameter))
                if known is None:
                    continue
                alive, place = known[0](), known[1]()
                # Another parameter may have the id of one that is gone.
                if alive is None or alive is not parameter or alive.grad is None or place is None:
                    continue
                if torch.compiler.is_compiling():
                    _look(place, None, "", alive.grad, 0)
                    continue
                try:
                    _look(place, None, "", alive.grad, 0)
                except Exception as error:  # the job goes on
                    place.note(places.failure(error))


def _is_make_fx_tracing() -> bool:
    if torch._C._len_torch_dispatch_stack():
        return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
    before = torch._ops.mode_stack_state_for_pre_dispatch()
    return before.get(0) is not None


compiled.make_no_frames_of(
    Hook.__call__,
    Hook.run,
    Hook._run,
    OptimizerHook.__call__,
    module_hooks.Hooks.__bool__,
    module_hooks.Hooks.__len__,
)


def _look(
    place: Place,
    grad: Place | None,
    path: str,
    value,
    depth: int,
    known: set[int] | None = None,
) -> bool:
    """Observes every tensor in `value`. Returns whether there was one. Dynamo traces this.
    known: the ids of the objects that were looked into"""
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return False
    if isinstance(value, torch.Tensor):
        if torch.compiler.is_compiling():
            _observe_traced(place, grad, path, value)
        else:
            _observe_now(place, grad, path, value)
        return True
    if depth == places.MAX_DEPTH:
        if not torch.compiler.is_compiling() and not _holds_tensor(value):
            return False
        place.note_in_trace(places.TOO_DEEP)
        return True
    found = False
    if isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            found = _look(place, grad, f"{path}/{index}", item, depth + 1, known) or found
    elif isinstance(value, dict):
        for name, item in value.items():
            found = _look(place, grad, f"{path}/{name}", item, depth + 1, known) or found
    elif fields := _fields_of(type(value)):
        for name in fields:
            item = getattr(value, name, None)
            found = _look(place, grad, f"{path}/{name}", item, depth + 1, known) or found
    elif place.looks_inside and not _holds_nothing(type(value)):
        if torch.compiler.is_compiling():
            place.note_object(type(value))
            return True
        return _look_inside(place, grad, path, value, depth, known or set())
    return found


def _holds_tensor(value) -> bool:
    """Whether a tensor lies anywhere in `value`; True too where that is too much to look at."""
    known: dict[int, object] = {}
    left = [value]
    while left and len(known) < _MAX_LOOKED_AT:
        one = left.pop()
        if isinstance(one, torch.Tensor):
            return True
        if id(one) in known:
            continue
        known[id(one)] = one
        if isinstance(one, dict):
            left.extend(one.values())
        elif isinstance(one, (tuple, list, collections.deque, set, frozenset)):
            left.extend(one)
        elif not _holds_nothing(type(one)):
            left.extend(_attributes_of(one).values())
    return bool(left)


def _look_inside(
    place: Place, grad: Place | None, path: str, value, depth: int, known: set[int]
) -> bool:
    """The same of what is no usual container, such as an object of the program's own class."""
    if isinstance(value, (collections.abc.Iterator, collections.abc.Awaitable)):
        place.note("its output is made later, by a generator or a coroutine")
        return True
    if isinstance(value, (collections.deque, set, frozenset)):
        return _look(place, grad, path, list(value), depth, known)
    if id(value) in known:
        return False
    known.add(id(value))
    return _look(place, grad, path, _attributes_of(value), depth, known)


def _attributes_of(value) -> dict[str, object]:
    attributes = dict(getattr(value, "__dict__", {}))
    for name in _slots_of(type(value)):
        attributes[name] = getattr(value, name, None)
    return attributes


_NO_SKETCH = "of a tensor with a class of its own no sketch is made"
_IS_LEAF = "the output is a leaf: look at its .grad"


def _observe_now(place: Place, grad: Place | None, path: str, tensor: torch.Tensor) -> None:
    why = _accepted.why_without_values(tensor) if _can_be_seen(tensor) else _refused(tensor)
    if why:
        place.note(why)
        return
    for key in place.keys_of(path):
        _observe(place.token, key, tensor, place.shard)
    if place.has_sketches:
        _observe_sketch(place, path, tensor)
    if grad is None or not tensor.requires_grad:
        return
    if isinstance(tensor, torch.nn.Parameter):  # such as a bias that is handed on
        grad.note_parameter()
        return
    if tensor.is_leaf:  # a hook on a leaf would stay with it for ever
        grad.note(_IS_LEAF)
        return
    for key in grad.keys_of(path):
        tensor.register_hook(functools.partial(_observe, grad.token, key))


def _observe_sketch(place: Place, path: str, tensor: torch.Tensor) -> None:
    if type(tensor) is not torch.Tensor:
        place.note(_NO_SKETCH)
        return
    key = place.key_of(places.SKETCH + path)
    if not key:
        return
    # In a capture its kernels are ops like others, which a log of the graph has.
    hides = torch._C._len_torch_dispatch_stack() and not _native.is_capturing()
    with no_dispatch() if hides else contextlib.nullcontext(), torch.no_grad():
        sketch = sketches.of(tensor)
    _observe(place.token, key, sketch)


def _observe(token: str, key: str, tensor: torch.Tensor, shard: str = "") -> None:
    observe = torch.ops.cgdebug.observe.default
    try:
        if type(tensor) is not torch.Tensor:
            _native.know_dtensor()  # a DTensor says by itself which part it is
        elif torch._C._len_torch_dispatch_stack() and not _native.is_capturing():
            with no_dispatch():  # a mode of the program may know its own ops alone
                return observe(tensor, key, shard)
        observe(tensor, key, shard)
    except Exception as error:  # the job goes on
        _native.op_refused()
        place = places.of_token(token)
        if place is not None:
            place.note(str(error).partition("\n")[0])


def _observe_traced(place: Place, grad: Place | None, path: str, tensor: torch.Tensor) -> None:
    """Dynamo traces this. The tag of a place is an input of the code, which layers that are alike
    share; a text of a place would be a part of it."""
    needs_name = _tags.needs_name()
    if needs_name in _tags.UNSEEN:
        place.note_in_trace(needs_name)
        return
    if needs_name:
        for key in _keys_of(place.token, path):
            torch.ops.cgdebug.observe(tensor, key)
        return
    if not _can_be_seen(tensor):
        _tags.note(tensor, place.tag, _refused(tensor))
        return
    if place.has_parts:
        for full_path in place.paths_of(path):
            _tags.observe(tensor, place.tag, full_path)
    else:
        _tags.observe(tensor, place.tag, path)
    if place.has_sketches:
        _tags.observe(sketches.of(tensor), place.tag, places.SKETCH + path)
    if grad is None or not tensor.requires_grad:
        return
    if isinstance(tensor, torch.nn.Parameter):
        grad.note_parameter()
        return
    problem = _IS_LEAF if tensor.is_leaf else _why_no_gradient()
    if problem:
        _tags.note(tensor, grad.tag, problem)
        return
    for full_path in grad.paths_of(path):
        _tags.observe_gradient(tensor, grad.tag, full_path)


def _can_be_seen(tensor: torch.Tensor) -> bool:
    if tensor.is_nested or tensor.is_quantized or tensor.layout != torch.strided:
        return False
    return tensor.dtype in _dtypes


def _refused(tensor: torch.Tensor) -> str:
    if tensor.is_nested:
        return "a nested tensor cannot be probed"
    if tensor.is_quantized:
        return f"a quantized tensor ({tensor.dtype}) cannot be probed"
    if tensor.layout != torch.strided:
        return f"a tensor of layout {tensor.layout} cannot be probed"
    return f"a tensor of {tensor.dtype} cannot be probed"


# Dynamo calls these once while it traces, and leaves them out of the graph.


@constant_in_traces
def _is_exporting() -> bool:
    return torch.compiler.is_exporting()  # Dynamo would take it for True in all that it traces


@constant_in_traces
def _why_no_gradient() -> str:
    return compiled.why_no_gradient()


@constant_in_traces
def _fields_of(kind: type) -> tuple[str, ...]:
    return tuple(getattr(kind, "__dataclass_fields__", ()))


@constant_in_traces
def _holds_nothing(kind: type) -> bool:
    """Whether no tensor of an output can be in it, or only such as are seen by themselves."""
    if issubclass(kind, (torch.nn.Module, type, enum.Enum, types.FunctionType, types.ModuleType)):
        return True
    # The keys and values of every layer, which the layers have made.
    if any(one.__module__ == "transformers.cache_utils" for one in kind.__mro__):
        return True
    is_open = kind.__dictoffset__ != 0 or bool(_slots_of(kind))
    return not is_open and not issubclass(kind, _OTHER_CONTAINERS)


def _slots_of(kind: type) -> list[str]:
    slots: list[str] = []
    for one in kind.__mro__:
        own = vars(one).get("__slots__", ())
        slots += [own] if isinstance(own, str) else own
    return [name for name in slots if not name.startswith("__")]


@constant_in_traces
def _keys_of(token: str, path: str) -> tuple[str, ...]:
    place = places.of_token(token)
    return () if place is None else place.keys_of(path)
