"""The hooks on modules, which observe every tensor that they find."""

from __future__ import annotations

import contextlib
import functools
import weakref

import torch

from .. import _accepted, _native
from .._after_import import constant_in_traces
from . import places
from .places import Place

_MAX_DEPTH = 8  # of nested tuples and dicts

_dtypes: frozenset[torch.dtype] = frozenset()  # filled by the first watch


def learn_dtypes() -> None:
    """Called before the first hook runs. Dynamo, which traces the hooks, then sees a constant."""
    global _dtypes
    _dtypes = frozenset(_accepted.torch_dtypes())


class Hook:
    """A hook of a module. A copied or pickled module gets a hook that does nothing, because its
    values must not appear under the names of the original."""

    # Set by make_graphed_callables: in this state of `training` the graph runs instead.
    graphed_in_training: bool | None = None

    def is_off(self, module: torch.nn.Module) -> bool:
        if torch.compiler.is_compiling():
            return False
        if torch.jit.is_tracing():  # the traced code runs without us
            return True
        return self.graphed_in_training is not None and self.graphed_in_training == module.training

    def __deepcopy__(self, memo):
        return contextlib.nullcontext().__exit__

    def __reduce__(self):
        # Takes any arguments, returns None, and loads where cgdebug is not installed.
        return (getattr, (contextlib.nullcontext(), "__exit__"))


class OutputHook(Hook):
    def __init__(self, place: Place, grad: Place | None):
        self.place, self.grad = place, grad
        self.token, self.grad_token = place.token, grad.token if grad else 0

    def __call__(self, module, args, output):
        if self.is_off(module):
            return
        if not _look(self.token, self.grad_token, "", output, 0):
            _note_no_tensor(self.token)


class InputHook(Hook):
    def __init__(self, place: Place):
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


class ParamHook(Hook):
    def __init__(self, targets: list[Place], ways: list[tuple[str, str]]):
        self.places = targets
        self.entries = [
            (place.token, tuple(filter(None, way.split("."))), name)
            for place, (way, name) in zip(targets, ways)
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


class OptimizerHook:
    """Before a step of any optimizer: the gradients of the watched parameters, as it applies them.
    DistributedDataParallel has reduced them by then."""

    def __init__(self):
        self._tokens: dict[int, tuple[weakref.ref[torch.nn.Parameter], int]] = {}

    def add(self, parameter: torch.nn.Parameter, place: Place) -> None:
        self._tokens[id(parameter)] = (weakref.ref(parameter), place.token)

    def __call__(self, optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                known, token = self._tokens.get(id(parameter), (None, 0))
                alive = None if known is None else known()
                # Another parameter may have the id of one that is gone.
                if alive is not None and alive is parameter and alive.grad is not None:
                    _look(token, 0, "", alive.grad, 0)


def _look(token: int, grad_token: int, path: str, value, depth: int) -> bool:
    """Observes every tensor in `value`. Returns whether there was one. Dynamo traces this."""
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
    elif hasattr(type(value), "__dataclass_fields__"):
        for name in type(value).__dataclass_fields__:
            item = getattr(value, name, None)
            found = _look(token, grad_token, f"{path}/{name}", item, depth + 1) or found
    return found


def _can_be_seen(tensor: torch.Tensor) -> bool:
    if tensor.is_nested or tensor.is_quantized or tensor.layout != torch.strided:
        return False
    return tensor.dtype in _dtypes


def _observe(token: int, key: str, tensor: torch.Tensor, shard: str = "") -> None:
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


# Dynamo calls these once while it traces, and leaves them out of the graph.


@constant_in_traces
def _know_dtensor() -> None:
    _native.know_dtensor()


@constant_in_traces
def _key_of(token: int, path: str) -> str:
    place = places.of_token(token)
    return "" if place is None else place.key_of(path)


@constant_in_traces
def _part_key_of(token: int, path: str) -> str:
    place = places.of_token(token)
    return "" if place is None else place.part_key_of(path)


@constant_in_traces
def _shard_of(token: int) -> str:
    place = places.of_token(token)
    return "" if place is None else place.shard


@constant_in_traces
def _note(token: int, problem: str) -> None:
    place = places.of_token(token)
    if place is not None:
        place.note(problem)


@constant_in_traces
def _note_refused(token: int, dtype: str) -> None:
    _note(token, f"a tensor like this ({dtype}) cannot be probed")


@constant_in_traces
def _note_no_tensor(token: int) -> None:
    place = places.of_token(token)
    if place is not None and not place.probes and not place.problem:
        place.problem = "it holds no tensor"
