"""The places that watches look at, each with its probes."""

from __future__ import annotations

import itertools
import logging
import threading
import typing
import weakref

import torch

from .._job import _accepted, _native, _tags
from ..actions import Action
from ..probe import CudaGraphTensorProbe, living

NO_TENSOR = "it holds no tensor"
IS_PARAMETER = "the output is a parameter, whose gradient params=True looks at"
MAX_DEPTH = 8  # of nested tuples and dicts
TOO_DEEP = f"a tensor of it lies deeper than in {MAX_DEPTH} containers"
_MAX_TENSORS = 64  # of one output
# In front of the path of a tensor: of its probe that keeps a part of the values, and of that which
# keeps a sketch of each row.
_PART = "part:"
SKETCH = "sketch:"

_log = logging.getLogger("cgdebug")
lock = threading.RLock()  # of all watches
_tokens = itertools.count(1)
_places: weakref.WeakValueDictionary[str, Place] = weakref.WeakValueDictionary()


def of_token(token: str) -> Place | None:
    """None if the watch is gone."""
    return _places.get(token)


def failure(error: Exception) -> str:
    """What `note` says of an exception that is nobody's refusal."""
    return f"cgdebug failed: {type(error).__name__}: {error}"


class Owner(typing.Protocol):
    """What a place needs of its watch."""

    _actions: list[Action]
    _part_actions: list[Action]  # of the probes that keep a part of the values, if there are any
    _sketch_actions: list[Action]  # of those that keep sketches, likewise

    @property
    def closed(self) -> bool: ...

    def look_around(self) -> None:
        """A tensor of a place has come for the first time, and is about to be looked at."""


class Place:
    """One thing to look at, such as the output of one module. Its probes, one per tensor, are made
    when the tensors first come."""

    def __init__(self, owner: Owner, name: str, module: torch.nn.Module):
        self.watch = owner
        self.name = name
        self.module = weakref.ref(module)
        self.called = False
        self.problem = ""
        self._not_wanted: weakref.finalize | None = None  # set as soon as it was not seen
        self.shard = ""  # of its tensor, if it is a replica without being a DTensor (TensorShard)
        self.probes: dict[str, CudaGraphTensorProbe | None] = {}
        self._keys: dict[str, tuple[str, ...]] = {}  # by path, while the watch is open
        self.token = str(next(_tokens))
        _places[self.token] = self
        self.tag = _tags.Tag(self)
        self.has_parts = bool(owner._part_actions)
        self.has_sketches = bool(owner._sketch_actions) and name.startswith("fwd/")
        self.looks_inside = name.startswith("fwd/")  # of objects of the program's own classes
        self.note_no_tensor = _to_say(self.token, NO_TENSOR)
        self.note_parameter = _to_say(self.token, IS_PARAMETER)
        self.note_in_trace = _to_note(self.token)
        self.note_object = _to_note_object(self.token)

    def note(self, problem: str) -> None:
        """Something was not seen: says so the first time, counts it every time."""
        if self.watch.closed:
            return
        if self._not_wanted is None:
            self._not_wanted = weakref.finalize(self, _native.not_wanted, self.name)
            self._not_wanted.atexit = False  # a program that ends has wanted it
        if not self.problem:
            self.problem = problem
            _log.warning("%s is not seen: %s", self.name, problem)
        _native.not_seen(self.name, problem)

    def end(self) -> None:
        """The watch is closed."""
        self._keys = {}
        for probe in filter(None, self.probes.values()):
            probe.close()
        if self._not_wanted is not None:
            self._not_wanted()

    def key_of(self, path: str) -> str:
        """The key by which the op finds the probe; empty if there is none."""
        self.called = True
        if path not in self.probes:
            with lock:
                if path not in self.probes and not self.watch.closed:
                    self.watch.look_around()
                    self.probes[path] = self._make(path)
        probe = self.probes.get(path)
        return "" if probe is None or self.watch.closed else probe._site_key

    def paths_of(self, path: str) -> tuple[str, ...]:
        """`path`, and by which path a probe keeps a part of that tensor's values. Dynamo traces
        this."""
        return (path, _PART + path) if self.has_parts else (path,)

    def keys_of(self, path: str) -> tuple[str, ...]:
        """The keys of the probes that see this tensor."""
        keys = self._keys.get(path)
        if keys is None:
            keys = tuple(filter(None, map(self.key_of, self.paths_of(path))))
            with lock:
                if keys and not self.watch.closed:
                    self._keys[path] = keys
        return keys

    def sight_of(self, path: str) -> tuple[str, str]:
        """As the tag of this place needs it."""
        return self.key_of(path), self.shard

    def _make(self, path: str) -> CudaGraphTensorProbe | None:
        kind, inner = _kind_of(path)
        if sum(_kind_of(one)[0] == kind for one in self.probes) >= _MAX_TENSORS:
            self.note(f"it holds more than {_MAX_TENSORS} tensors: the others are not seen")
            return None
        taken = {probe.name for probe in self.probes.values() if probe}
        name = _probe_name(f"{kind}/{self.name}{inner}" if kind else self.name + inner, taken)
        actions = {
            "": self.watch._actions,
            "part": self.watch._part_actions,
            "sketch": self.watch._sketch_actions,
        }[kind]
        try:
            probe = _PlaceProbe(name, actions, mode="always", non_contiguous="copy")
        except Exception as error:  # the job goes on
            self.note(str(error))
            return None
        if not probe._active:
            return None
        probe._native.follow_calls(sees_modules=not self.name.startswith("grad/"))
        return probe


def _kind_of(path: str) -> tuple[str, str]:
    """What a probe keeps of a tensor, empty: what the watch keeps; and the path of the tensor."""
    for start in (_PART, SKETCH):
        if path.startswith(start):
            return start[:-1], path[len(start) :]
    return "", path


class _PlaceProbe(CudaGraphTensorProbe):
    """Is made when its tensor first comes, which may be in the middle of code whose memory belongs
    to a CUDA graph of Inductor's: a tag would be a tensor there. The place has one."""

    def _make_tag(self) -> None:
        pass

    def _warn_of_twin(self) -> None:
        """Watches that are there have names of their own. One whose model is gone may not have been
        collected yet."""
        if not isinstance(living(self._name), _PlaceProbe):
            super()._warn_of_twin()


def _to_say(token: str, problem: str) -> typing.Callable[[], None]:
    """Why nothing is seen, if nothing is. Dynamo calls it while it traces, and makes no difference
    between those of two places."""

    def say() -> None:
        place = of_token(token)
        if place is not None and not place.probes and not place.problem:
            place.problem = problem

    say._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return say


def _to_note(token: str) -> typing.Callable[[str], None]:
    """Place.note, likewise."""

    def note(problem: str) -> None:
        place = of_token(token)
        if place is not None:
            place.note(problem)

    note._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return note


def _to_note_object(token: str) -> typing.Callable[[type], None]:
    """Likewise."""

    def note_object(kind: type) -> None:
        place = of_token(token)
        if place is not None:
            name = kind.__qualname__
            place.note(f"compiled code does not look into the object of class {name} in it")

    note_object._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return note_object


def _probe_name(text: str, taken: set[str]) -> str:
    """`text` as a name that a probe may have; not one of `taken`."""
    name = _accepted.make_name(text)
    for number in itertools.count(2):
        if name not in taken:
            break
        name = _accepted.make_name(f"{text}_{number}")
    return name
