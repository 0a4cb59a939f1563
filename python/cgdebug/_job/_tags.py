"""Names a place to compiled code by an input of it, so that layers that are alike share the code.

Dynamo makes a text or a number that differs from layer to layer part of the code, and compiles the
code again for each of them. A tensor is an input of the code. On a CPU its value names the place.
On a GPU, where reading a value would wait, and where Inductor makes no CUDA graph of code that has
a tensor of the CPU, its address does: Inductor leaves an input that is marked as static where it
is, and records a CUDA graph anew where the input lies elsewhere.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
import threading
import typing
import weakref

import torch
from torch.utils._python_dispatch import _disable_current_modes

from . import _compile_cache, _effects, _native  # noqa: F401  # _effects: orders the ops
from ._after_import import constant_in_traces

_lock = threading.RLock()
_numbers = itertools.count(1)
_tags: weakref.WeakValueDictionary[int, Tag] = weakref.WeakValueDictionary()
_gpus: set[int] = set()  # for which tags have tensors
_by_address: dict[int, int] = {}
_ask: typing.Any = None  # kept: the op calls it
observe_at: typing.Any = None  # the op, when it is loaded


class Named(typing.Protocol):
    """What a tag names."""

    def sight_of(self, path: str) -> tuple[str, str]:
        """The site key of the probe that sees the tensor `path` there, empty if none does; and the
        part of a distributed tensor that it is."""

    def note(self, problem: str) -> None: ...


class Tag:
    """Its tensors: `cpu`, and `cuda0` and so on as soon as code for that GPU is traced."""

    cpu: torch.Tensor

    def __init__(self, named: Named):
        self._named = weakref.ref(named)
        self.number = next(_numbers)
        with torch.inference_mode(False), _disable_current_modes():
            self.cpu = torch.tensor([self.number], dtype=torch.int64, device="cpu")
        with _lock:
            _tags[self.number] = self
            gpus = list(_gpus)
        for gpu in gpus:
            self.add_gpu(gpu)
        weakref.finalize(self, _forget, self.number).atexit = False

    def add_gpu(self, gpu: int) -> None:
        if hasattr(self, f"cuda{gpu}"):
            return
        with torch.inference_mode(False), _disable_current_modes():
            tensor = torch.empty(1, dtype=torch.int64, device=f"cuda:{gpu}")
        torch._dynamo.mark_static_address(tensor, guard=False)
        _by_address[tensor.data_ptr()] = self.number
        _native.op_library().cgdebug_tag_on_gpu(tensor.data_ptr(), self.number)
        setattr(self, f"cuda{gpu}", tensor)


def observe(tensor: torch.Tensor, tag: Tag, path: str) -> None:
    """Dynamo traces this."""
    observe_at(tensor, _tensor_of(tag, tensor) if tensor.is_cuda else tag.cpu, path)


def note(tensor: torch.Tensor, tag: Tag, problem: str) -> None:
    """Says in each call of the code why nobody sees `tensor`. Dynamo traces this."""
    torch.ops.cgdebug.note_at(_tensor_of(tag, tensor), problem)


def observe_gradient(tensor: torch.Tensor, tag: Tag, path: str) -> None:
    """Dynamo traces this."""
    tensor.register_hook(functools.partial(_observe_at, _tensor_of(tag, tensor), path))


def _observe_at(tag: torch.Tensor, path: str, tensor: torch.Tensor) -> None:
    torch.ops.cgdebug.observe_at(tensor, tag, path)


def _tensor_of(tag: Tag, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_cuda:
        _prepare_gpu(tensor.device.index)
        return getattr(tag, f"cuda{tensor.device.index}")
    return tag.cpu


def _connect() -> None:
    """Lets the op ask this module."""
    global _ask
    global observe_at
    observe_at = torch.ops.cgdebug.observe_at.default
    library = _native.op_library()
    _ask = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_char_p)(_answer)
    library.cgdebug_tag_set.argtypes = [ctypes.c_int64, *[ctypes.c_char_p] * 3]
    library.cgdebug_tag_on_gpu.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.cgdebug_tag_forget.argtypes = [ctypes.c_int64]
    for function in ("ask", "set", "on_gpu", "forget"):
        getattr(library, f"cgdebug_tag_{function}").restype = None
    library.cgdebug_tag_ask(_ask)
    _native.take_notes(_take_note)


def _take_note(tag: torch.Tensor, problem: str) -> None:
    """The op note_at."""
    named = _named_by(tag)
    if named is not None:
        named.note(problem)


def site_of(tag: torch.Tensor, path: str) -> str:
    """The site key of the probe that sees a tensor there; empty: none does."""
    named = _named_by(tag)
    return named.sight_of(path)[0] if named is not None else ""


def _named_by(tag: torch.Tensor) -> Named | None:
    return _named(_by_address.get(tag.data_ptr(), 0) if tag.is_cuda else int(tag))


def _answer(number: int, path: bytes) -> None:
    """Called by the op when it meets a tensor of a place for the first time."""
    site, shard = "", ""
    try:
        named = _named(number)
        if named is not None:
            site, shard = named.sight_of(path.decode())
    finally:
        _native.op_library().cgdebug_tag_set(number, path, site.encode(), shard.encode())


def _named(number: int) -> Named | None:
    tag = _tags.get(number)
    return None if tag is None else tag._named()


def _forget(number: int) -> None:
    library = _native.op_library()
    library.cgdebug_tag_forget(number)
    for address in [address for address, of in list(_by_address.items()) if of == number]:
        del _by_address[address]
        library.cgdebug_tag_on_gpu(address, 0)


@constant_in_traces
def _prepare_gpu(gpu: int) -> None:
    with _lock:
        if gpu in _gpus:
            return
        _gpus.add(gpu)
        tags = list(_tags.values())
    for tag in tags:
        tag.add_gpu(gpu)


@constant_in_traces
def needs_name() -> str:
    """Whether the probe that is being traced must be named in the code, and not empty if so: an
    exported program belongs to the job, and of a body of torch.cond or of a loop a message says
    which probe it lost. So it is with UNSEEN. Comes before every observation that is traced."""
    _native.know_dtensor()
    _compile_cache.allow()
    if torch.compiler.is_exporting():
        return "exported"
    transforms = torch._C._functorch.get_interpreter_stack() or ()
    if any(one.key() == torch._C._functorch.TransformType.Vmap for one in transforms):
        return _IN_VMAP  # the op would ask a tensor without a value for the tag
    frame = sys._getframe()
    while frame is not None:
        is_torchs = frame.f_code.co_filename.endswith("higher_order_ops.py")
        kind = type(frame.f_locals.get("self")).__name__ if is_torchs else ""
        if kind.startswith(_BODIES):
            return "body"
        if kind.startswith(_REGION):
            return _IN_REGION
        frame = typing.cast(typing.Any, frame.f_back)
    return ""


def _start_of_class(name: str) -> str:
    """How Dynamo's class for it begins: "WhileLoop" for while_loop."""
    return name.title().replace("_", "")


_BODIES = tuple(map(_start_of_class, _native.WITH_BODIES))
_REGION = _start_of_class(_native.OF_REGIONS)
# Layers share the code of a region, and autograd fails where an op with an effect is in it.
_IN_REGION = "compiled code of torch.compiler.nested_compile_region has no probes"
_IN_VMAP = "inside torch.vmap each call is of a slice that does not exist in memory by itself"
UNSEEN = (_IN_REGION, _IN_VMAP)  # why a watch puts no probe there

_native.when_op_loads(_connect)
