"""Where the tensors of a model are, and what its modules are called, for those who ask often.

Each capture asks, and a job may capture thousands of graphs of one model. A walk through a few
hundred modules takes many milliseconds, so it is kept. Before it is used again, all its places are
looked at, in a few calls of C: it holds if there are the same modules with the same keys and with
values of the same types. What the tensors are is read anew each time.

A walk keeps nothing of the job alive. It has no weak reference to a tensor either:
torch.utils.swap_tensors() refuses a tensor that has one.

Thread: any. What is kept does not change, so nobody needs a lock; a destructor that runs in the
middle of a walk might wait for one.
"""

from __future__ import annotations

import enum
import operator
import sys
import typing
import weakref
from itertools import chain

import torch

from ..._watching.modules import modules_of, unwrapped
from .. import written
from ..memory import Memory

if typing.TYPE_CHECKING:
    from collections.abc import Iterable

_Named = list[tuple[str, torch.Tensor]]
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
# What named_parameters() and the like are made of. A model that has others is walked each time.
_METHODS = (
    *("named_parameters", "named_buffers", "named_modules"),
    *("parameters", "buffers", "modules", "_named_members"),
)
_DICTS = ("_parameters", "_buffers", "_modules")


class Tensors(typing.NamedTuple):
    """Of one model, by name. A name may come twice: the last one has it.

    parameters: of them alone
    all:        with their gradients, the buffers, and tensors that are attributes of modules
    """

    parameters: _Named
    all: _Named


def tensors_of(model: torch.nn.Module) -> Tensors:
    walk, places = _walk_of(model)
    attributes = None if walk is None else walk.attributes_at(places)
    if walk is None or attributes is None:
        return _walked(model)
    return walk.tensors(places, attributes)


def parameters_and_buffers(model: torch.nn.Module) -> list[torch.Tensor]:
    """One that has several names may come several times."""
    walk, places = _walk_of(model)
    if walk is None:
        return [*model.parameters(), *model.buffers()]
    return [one for one in (*places.parameters, *places.buffers) if one is not None]


def names_of(model: torch.nn.Module) -> ModelNames:
    """Looks through wrappers. What is returned tells of the model as it is now, and stays so."""
    model = unwrapped(model)
    walk, places = _walk_of(model)
    state = None if walk is None else _state_of(places)
    if walk is None or state is None:
        return ModelNames(model)
    known = walk.names
    if known is None or known[0] != state:
        known = state, ModelNames(model)
        if not known[1].lazy:  # such a parameter gets its memory later
            walk.names = known
    return known[1]


def _walk_of(model: torch.nn.Module) -> tuple[_Walk | None, _Places]:
    """A walk that holds, and what is in its places now. None: of this model none can be kept."""
    walk = _walks.get(model)
    places = None if walk is None else walk.look()
    if places is None:
        _walks.pop(model, None)
        try:
            walk = _Walk(model)
        except _CannotKeepError:
            return None, _NOTHING
        places = walk.look()
        if places is None:  # another thread is changing the model
            return None, _NOTHING
        _walks[model] = walk
    return walk, places


# --- a walk ---------------------------------------------------------------------------------------


def _walked(model: torch.nn.Module) -> Tensors:
    """Without a walk that was kept."""
    parameters = [*model.named_parameters(remove_duplicate=False)]
    found: _Named = []
    for name, one in parameters:
        found.append((name, one))
        if one.grad is not None:
            found.append((f"{name}.grad", one.grad))
    found += model.named_buffers(remove_duplicate=False)
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            if key not in ("_parameters", "_buffers"):
                shown = _joined(path, key)
                found += ((shown + part, one) for part, one in _tensors_in(value))
    return Tensors(parameters, found)


def _joined(path: str, key: str) -> str:
    return ".".join(filter(None, (path, key)))


def _tensors_in(value) -> _Named:
    """Of an attribute: a tensor, or a list or dict of them."""
    if isinstance(value, torch.Tensor):
        return [("", value)]
    if isinstance(value, (list, tuple)):
        return [(f"[{n}]", one) for n, one in enumerate(value) if isinstance(one, torch.Tensor)]
    if type(value) is dict:
        return [(f"[{n!r}]", one) for n, one in value.items() if isinstance(one, torch.Tensor)]
    return []


class _CannotKeepError(Exception):
    """The model finds its tensors in its own way."""


class _Places(typing.NamedTuple):
    """What is in the places of a walk.

    variables:  of each module
    parameters: of all modules, one after the other; some are None
    buffers:    likewise
    """

    variables: list[dict]
    parameters: list
    buffers: list


_NOTHING = _Places([], [], [])


class _Types:
    """Compares the types of values with those that were there before. A type that a function has
    made may keep the model alive, so it is known by its number, which is its own while it lives."""

    def __init__(self, values: Iterable):
        types = set(map(type, values))
        self._local = [weakref.ref(one) for one in types if not _is_global(one)]

    def are_alive(self) -> bool:
        return all(one() is not None for one in self._local)

    def of(self, values: Iterable) -> list:
        types = map(type, values)
        return list(map(id, types) if self._local else types)


class _Walk:
    """The places of parameters and buffers in a model.

    attributes: the places of tensors that are attributes, if somebody has asked
    names:      what names_of() found last, and the state in which the model was then

    Fails: _CannotKeepError
    """

    attributes: _Attributes | None = None
    names: tuple[list, ModelNames] | None = None

    def __init__(self, model: torch.nn.Module):
        visits = list(model.named_modules(remove_duplicate=False))
        numbers: dict[int, int] = {}
        modules: list[torch.nn.Module] = []
        self._paths: list[str] = []
        for path, module in visits:
            if id(module) not in numbers:
                numbers[id(module)] = len(modules)
                modules.append(module)
                self._paths.append(path)
        if not all(map(_is_plain, modules)):
            raise _CannotKeepError
        places, of_modules, of_parameters, of_buffers = _places_of(modules)
        children = _values_in(of_modules)
        tensors = places.parameters + places.buffers
        if not all(one is None or id(one) in numbers for one in children) or not all(
            one is None or isinstance(one, torch.Tensor) for one in tensors
        ):
            raise _CannotKeepError
        self._types = _Types(modules + tensors)
        self._modules = list(map(weakref.ref, modules))
        self._types_of_modules = self._types.of(modules)
        self._types_of_tensors = self._types.of(tensors)
        self._children = [-1 if one is None else numbers[id(one)] for one in children]
        self._keys = [_keys_in(one) for one in (of_modules, of_parameters, of_buffers)]
        self._parameters = _slots(visits, numbers, of_parameters)
        self._buffers = _slots(visits, numbers, of_buffers)

    def look(self) -> _Places | None:
        """None: the walk does not hold any more."""
        modules = [one() for one in self._modules]
        if not self._types.are_alive() or self._types.of(modules) != self._types_of_modules:
            return None
        try:
            places, *dicts = _places_of(modules)
        except (AttributeError, KeyError, TypeError):  # one is gone, or is no dict any more
            return None
        if list(map(_keys_in, dicts)) != self._keys:
            return None
        modules.append(None)  # has the number -1
        expected = map(modules.__getitem__, self._children)
        if not all(map(operator.is_, _values_in(dicts[0]), expected)):
            return None
        tensors = places.parameters + places.buffers
        return places if self._types.of(tensors) == self._types_of_tensors else None

    def attributes_at(self, places: _Places) -> _Attributes | None:
        """None: none can be kept."""
        known = self.attributes
        if known is None or not known.hold(places.variables):
            self.attributes = known = _Attributes(self._paths, places.variables)
            if not known.hold(places.variables) or not all(
                map(_has_usual_methods, places.variables)
            ):
                self.attributes = known = None
        return known

    def tensors(self, places: _Places, attributes: _Attributes) -> Tensors:
        parameters = [(name, places.parameters[slot]) for slot, name in self._parameters]
        found: _Named = []
        with torch._C.DisableTorchFunctionSubclass():
            for name, one in parameters:
                found.append((name, one))
                grad = one.grad
                if grad is not None:
                    found.append((f"{name}.grad", grad))
        found += [(name, places.buffers[slot]) for slot, name in self._buffers]
        found += attributes.tensors(places.variables)
        return Tensors(parameters, found)


class _Attributes:
    """The places of tensors that are attributes of modules, or in lists and dicts that are."""

    def __init__(self, paths: list[str], variables: list[dict]):
        values = _values_in(variables)
        self._types = _Types(values)
        self._types_of_values = self._types.of(values)
        self._keys = _keys_in(variables)
        self._found: list[tuple[int, str, str]] = []  # number of the module, key, name
        self._lists: list[tuple[int, str]] = []  # without a tensor
        self._dicts: list[tuple[int, str]] = []
        kinds = {one: _kind_of(one) for one in set(map(type, values))}
        for number, (path, own) in enumerate(zip(paths, variables, strict=True)):
            for key, value in own.items():
                kind = kinds[type(value)]
                if kind is _Kind.NO_TENSOR or key in _DICTS:
                    continue
                if kind is not _Kind.MANY or _tensors_in(value):
                    self._found.append((number, key, _joined(path, key)))
                else:
                    (self._dicts if type(value) is dict else self._lists).append((number, key))

    def hold(self, variables: list[dict]) -> bool:
        if not self._types.are_alive() or _keys_in(variables) != self._keys:
            return False
        values = chain.from_iterable(map(dict.values, variables))
        if self._types.of(values) != self._types_of_values:
            return False
        many: list[Iterable] = [variables[number][key] for number, key in self._lists]
        many += [variables[number][key].values() for number, key in self._dicts]
        kinds = set(map(_kind_of, set(map(type, chain.from_iterable(many)))))
        return kinds.isdisjoint((_Kind.TENSOR, _Kind.UNKNOWN))

    def tensors(self, variables: list[dict]) -> _Named:
        return [
            (name + part, one)
            for number, key, name in self._found
            for part, one in _tensors_in(variables[number][key])
        ]


_walks: weakref.WeakKeyDictionary[torch.nn.Module, _Walk] = weakref.WeakKeyDictionary()


def _places_of(modules: list) -> tuple[_Places, list[dict], list[dict], list[dict]]:
    """And their dicts of modules, of parameters and of buffers.

    Fails: AttributeError, KeyError, TypeError"""
    variables = list(map(operator.attrgetter("__dict__"), modules))
    of_parameters, of_buffers, of_modules = (
        list(map(operator.itemgetter(key), variables)) for key in _DICTS
    )
    if set(map(type, chain(of_parameters, of_buffers, of_modules))) != {dict}:
        raise TypeError
    places = _Places(variables, _values_in(of_parameters), _values_in(of_buffers))
    return places, of_modules, of_parameters, of_buffers


def _values_in(dicts: list[dict]) -> list:
    return list(chain.from_iterable(map(dict.values, dicts)))


def _keys_in(dicts: list[dict]) -> tuple[list[int], list]:
    """The number of keys of each dict, and the keys of all."""
    return list(map(len, dicts)), list(chain.from_iterable(dicts))


def _slots(visits, numbers: dict[int, int], dicts: list[dict]) -> list[tuple[int, str]]:
    """For each name of what is in the dicts: its place among the values of all, and the name."""
    begins, begin = [], 0
    for one in dicts:
        begins.append(begin)
        begin += len(one)
    return [
        (begins[number] + place, f"{path}.{key}" if path else key)
        for path, number in ((path, numbers[id(module)]) for path, module in visits)
        for place, (key, value) in enumerate(dicts[number].items())
        if value is not None
    ]


def _is_global(kind: type) -> bool:
    """Whether it lives as long as the Python module that has it."""
    module = sys.modules.get(kind.__module__)
    return kind.__module__ == "builtins" or getattr(module, kind.__qualname__, None) is kind


def _is_plain(module: torch.nn.Module) -> bool:
    own, kind, plain = vars(module), type(module), torch.nn.Module
    return (
        all(type(own.get(key)) is dict and not hasattr(kind, key) for key in _DICTS)
        and _has_usual_methods(own)
        and all(getattr(kind, name) is getattr(plain, name) for name in _METHODS)
    )


def _has_usual_methods(variables: dict) -> bool:
    return variables.keys().isdisjoint(_METHODS)


class _Kind(enum.Enum):
    """What a value may be."""

    NO_TENSOR = enum.auto()
    TENSOR = enum.auto()
    MANY = enum.auto()  # a list or dict, which may have tensors
    UNKNOWN = enum.auto()  # it may say that it is of another type, as a weakref.proxy() does


def _kind_of(kind: type) -> _Kind:
    if issubclass(kind, torch.Tensor):
        return _Kind.TENSOR
    if issubclass(kind, weakref.ProxyTypes) or any(
        "__class__" in vars(one) for one in kind.__mro__[:-1]
    ):
        return _Kind.UNKNOWN
    return _Kind.MANY if issubclass(kind, (list, tuple)) or kind is dict else _Kind.NO_TENSOR


# --- names ----------------------------------------------------------------------------------------


class ModelNames:
    """What the modules and parameters of a model are called in it.

    names:   of modules, the model itself first under its class
    aliases: further names of some of them
    others:  by name of a module that has several: the others
    paths:   by module
    parameters: by memory: of parameters, buffers, and gradients
    lazy:    parameters without memory yet
    """

    def __init__(self, model: torch.nn.Module):
        found, self.aliases = modules_of(model)
        self.names = dict.fromkeys(found)
        self.root = next(iter(found))
        self.model = weakref.ref(model)
        self.paths: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        for name, module in found.items():
            self.paths[module] = name
        self.others: dict[str, list[str]] = {}
        for name, first in self.aliases.items():
            self.others.setdefault(first, []).append(name)
        self.parameters: Memory[str] = Memory()
        self.lazy: list[tuple[weakref.ref, str]] = []
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            own = ".".join(part for part in name.split(".") if part not in _WRAPPERS)
            for one, shown in ((tensor, own), (tensor.grad, f"{own}.grad")):
                self._add(one, shown)

    def _add(self, tensor: torch.Tensor | None, name: str) -> None:
        tensor = getattr(tensor, "_local_tensor", tensor)
        if tensor is not None and torch.nn.parameter.is_lazy(tensor):
            self.lazy.append((weakref.ref(tensor), name))
        elif tensor is not None and self.parameters.get(tensor) is None:
            self.parameters.set(tensor, name)


def _state_of(places: _Places) -> list | None:
    """Equal if the tensors have the same memory; None: that is not known."""
    with torch._C.DisableTorchFunctionSubclass():
        named = [one for one in (*places.parameters, *places.buffers) if one is not None]
        tensors = named + [one.grad for one in named]
        tensors = [getattr(one, "_local_tensor", one) for one in tensors]
        state = list(map(id, map(type, tensors)))
        kinds = {
            one: one is not type(None) and not written.handles_ops(one)
            for one in set(map(type, tensors))
        }
        tensors = [one for one in tensors if kinds[type(one)]]
        begins = begins_of(tensors)
        if begins is None:
            return None
        # Of a storage with a name, ModelNames has a weak reference: no other one gets its number.
        storages = map(torch.Tensor.untyped_storage, tensors)
        return state + begins + list(map(operator.attrgetter("_cdata"), storages))


def begins_of(tensors: list[torch.Tensor]) -> list[int] | None:
    """Where the storage of each begins, if it has memory. None: one of them cannot be asked."""
    try:
        with torch._C.DisableTorchFunctionSubclass():
            asked = zip(
                map(torch._C._data_address, tensors),  # makes no copy, as data_ptr() may
                map(torch.Tensor.storage_offset, tensors),
                map(torch.Tensor.element_size, tensors),
                strict=True,
            )
            return [address - offset * item for address, offset, item in asked]
    except (AttributeError, RuntimeError):  # another torch; no storage, as a sparse one
        return None
