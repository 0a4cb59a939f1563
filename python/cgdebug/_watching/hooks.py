"""The hooks on modules, which observe every tensor that they find."""

from __future__ import annotations

import contextlib
import functools
import sys
import typing
import weakref

import torch

from .. import _accepted, _native
from .._after_import import call_after_import, constant_in_traces
from . import compiled, module_hooks, places
from .places import Place

_MAX_DEPTH = 8  # of nested tuples and dicts

_dtypes: frozenset[torch.dtype] = frozenset()  # filled by the first watch


def learn_dtypes() -> None:
    """Called before the first hook runs. Dynamo, which traces the hooks, then sees a constant."""
    global _dtypes
    _dtypes = frozenset(_accepted.torch_dtypes())


class Hook:
    """A hook of a module. If the module had hooks of the program before, a copied or pickled one
    gets a hook that does nothing: its values must not appear under the names of the original."""

    places: list[Place]  # that it looks at

    def __call__(self, module, *call):
        if torch.compiler.is_compiling():
            if not _is_exporting():  # an exported program belongs to the job
                self.look(module, *call)
            return
        if torch.jit.is_tracing():  # the traced code runs without us
            return
        if module_hooks.runs_as_graph(module):  # it has us in it
            return
        try:
            self.look(module, *call)
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


call_after_import("torch._dynamo", lambda _: compiled.make_no_frame_of(Hook.__call__))


class OutputHook(Hook):
    def __init__(self, place: Place, grad: Place | None):
        self.places = [place] if grad is None else [place, grad]
        self.token, self.grad_token = place.token, grad.token if grad else ""

    def look(self, module, args, output):
        if not _look(self.token, self.grad_token, "", output, 0):
            _note_no_tensor(self.token)


class SharedHook(Hook):
    """Of a module that several modules have: each has a hook for it of its own, and the module
    whose call runs decides. Compiled code has the first alone."""

    def __init__(self, first: OutputHook, by_parent: dict[int, OutputHook]):
        self.first, self.by_parent = first, by_parent
        self.places = first.places

    def look(self, module, args, output):
        hook = self.first
        if not torch.compiler.is_compiling():
            hook = self.by_parent.get(id(_caller_of(module)), hook)
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
        self.places, self.token = [place], place.token

    def look(self, module, args, kwargs):
        if len(args) == 1 and not kwargs:
            found = _look(self.token, "", "", args[0], 0)
        else:
            found = _look(self.token, "", "", args, 0)
            found = _look(self.token, "", "", kwargs, 0) or found
        if not found:
            _note_no_tensor(self.token)


class ParamHook(Hook):
    def __init__(self, targets: list[Place], ways: list[tuple[str, str]]):
        self.places = targets
        self.entries = [
            (place.token, tuple(filter(None, way.split("."))), name)
            for place, (way, name) in zip(targets, ways)
        ]

    def look(self, module, args):
        for token, way, name in self.entries:
            owner = module
            for part in way:
                owner = owner._modules.get(part)
                if owner is None:
                    break
            parameter = None if owner is None else owner._parameters.get(name)
            if parameter is not None:
                _look(token, "", "", parameter, 0)


class OptimizerHook:
    """Before a step of any optimizer: the gradients of the watched parameters, as it applies them.
    DistributedDataParallel has reduced them by then."""

    def __init__(self):
        # No places: torch keeps this hook, and they keep the watch.
        self._tokens: dict[int, tuple[weakref.ref[torch.nn.Parameter], str]] = {}

    def add(self, parameter: torch.nn.Parameter, place: Place) -> None:
        self._tokens[id(parameter)] = (weakref.ref(parameter), place.token)

    def __call__(self, optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                known, token = self._tokens.get(id(parameter), (None, ""))
                alive = None if known is None else known()
                # Another parameter may have the id of one that is gone.
                if alive is None or alive is not parameter or alive.grad is None:
                    continue
                if torch.compiler.is_compiling():
                    _look(token, "", "", alive.grad, 0)
                    continue
                try:
                    _look(token, "", "", alive.grad, 0)
                except Exception as error:  # the job goes on
                    _note(token, places.failure(error))


def _look(token: str, grad_token: str, path: str, value, depth: int) -> bool:
    """Observes every tensor in `value`. Returns whether there was one. Dynamo traces this."""
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return False
    if isinstance(value, torch.Tensor):
        if not _can_be_seen(value):
            _note_refused(token, str(value.dtype))
            return True
        for key in (_key_of(token, path), _part_key_of(token, path)):
            if key:
                _observe(token, key, value, _shard_of(token))
        if grad_token and value.requires_grad:
            if value.is_leaf:  # a hook on a leaf would stay with the parameter for ever
                _note(grad_token, "the output is a leaf, such as a parameter: look at its .grad")
            elif torch.compiler.is_compiling() and (why := _why_no_gradient()):
                _note(grad_token, why)
            else:
                for grad_key in (_key_of(grad_token, path), _part_key_of(grad_token, path)):
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
    else:
        for name in _fields_of(type(value)):
            item = getattr(value, name, None)
            found = _look(token, grad_token, f"{path}/{name}", item, depth + 1) or found
    return found


def _can_be_seen(tensor: torch.Tensor) -> bool:
    if tensor.is_nested or tensor.is_quantized or tensor.layout != torch.strided:
        return False
    return tensor.dtype in _dtypes


def _observe(token: str, key: str, tensor: torch.Tensor, shard: str = "") -> None:
    if torch.compiler.is_compiling():
        _know_dtensor()
        torch.ops.cgdebug.observe(tensor, key, shard)
        return
    try:
        if type(tensor) is not torch.Tensor:
            _native.know_dtensor()  # a DTensor says by itself which part it is
        torch.ops.cgdebug.observe(tensor, key, shard)
    except Exception as error:  # the job goes on
        _native.op_refused()
        _note(token, str(error).partition("\n")[0])


# Dynamo calls these once while it traces, and leaves them out of the graph. A token is a text,
# because Dynamo makes an integer that is different in the next frame a variable.


@constant_in_traces
def _is_exporting() -> bool:
    return torch.compiler.is_exporting()  # Dynamo would take it for True in all that it traces


@constant_in_traces
def _why_no_gradient() -> str:
    return compiled.why_no_gradient()


@constant_in_traces
def _know_dtensor() -> None:
    _native.know_dtensor()


@constant_in_traces
def _fields_of(kind: type) -> tuple[str, ...]:
    return tuple(getattr(kind, "__dataclass_fields__", ()))


@constant_in_traces
def _key_of(token: str, path: str) -> str:
    place = places.of_token(token)
    return "" if place is None else place.key_of(path)


@constant_in_traces
def _part_key_of(token: str, path: str) -> str:
    place = places.of_token(token)
    return "" if place is None else place.part_key_of(path)


@constant_in_traces
def _shard_of(token: str) -> str:
    place = places.of_token(token)
    return "" if place is None else place.shard


@constant_in_traces
def _note(token: str, problem: str) -> None:
    place = places.of_token(token)
    if place is not None:
        place.note(problem)


@constant_in_traces
def _note_refused(token: str, dtype: str) -> None:
    _note(token, f"a tensor like this ({dtype}) cannot be probed")


@constant_in_traces
def _note_no_tensor(token: str) -> None:
    place = places.of_token(token)
    if place is not None and not place.probes and not place.problem:
        place.problem = "it holds no tensor"
