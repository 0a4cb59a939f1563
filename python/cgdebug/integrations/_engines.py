"""What the plug-ins of serving engines share."""

from __future__ import annotations

import contextlib
import sys
import typing

from .._job import _native

OWN_PASSES = (
    "of passes that the engine makes by itself, to profile, to warm up and to capture, only what "
    "is captured is seen: they have no step"
)


@contextlib.contextmanager
def own_pass() -> typing.Iterator[None]:
    """The engine runs the model by itself. It does so in each size that it captures, with tensors
    that mean nothing: only what it captures is looked at."""
    from ..probe import step

    step(None)
    probe = _native.probe_module()
    before = probe.set_sees_eager(False) if probe is not None else True
    try:
        yield
    finally:
        if probe is not None:
            probe.set_sees_eager(before)


def know_rank() -> None:
    """Tells the rank of a worker whose engine sets no variables of a launcher."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return
    ranks = distributed.get_world_size()
    if ranks > 1:
        store = distributed.distributed_c10d._get_default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        meeting = f"{getattr(store, 'host', '')}:{getattr(store, 'port', '')}"
        _native.load().set_rank(distributed.get_rank(), ranks, meeting)


def running_layer(names: typing.Mapping[typing.Any, str]) -> str:
    """The layer, a module with a number, that this thread is in the middle of; empty: in none.
    names: of the modules."""
    from torch.nn import Module

    from .._op_log.names import layer_of

    frame: typing.Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code is Module._call_impl.__code__:
            layer = layer_of(names.get(frame.f_locals["self"], ""))
            if layer:
                return layer
        frame = frame.f_back
    return ""


def tell_rows(count: object, tensors: typing.Iterable[object]) -> None:
    """So many rows of a pass are real, the first ones of these tensors that have as many rows as
    the first of them."""
    import torch

    from .._op_log.padding import valid_rows

    given = [one for one in tensors if isinstance(one, torch.Tensor) and one.dim()]
    if isinstance(count, int) and given and count < len(given[0]):
        valid_rows(count, *(one for one in given if len(one) == len(given[0])))


class ParameterNames:
    """The layers of a model, by the parameters that code is given."""

    def __init__(self, model: typing.Any):
        from .._op_log.names import ModuleNames

        self._names = ModuleNames()
        self._names.add_model(model)

    def layers_of(self, arguments: typing.Iterable[object]) -> str:
        """As "layer=2", or as "layer=2-3" for code that reads parameters of several; empty if it
        reads none of a numbered module."""
        import torch

        from .._op_log.names import layer_of

        numbers = {
            int(layer.rpartition(".")[2])
            for one in arguments
            if isinstance(one, torch.Tensor) and (layer := layer_of(self._names.owner_at(one)))
        }
        if not numbers:
            return ""
        first, last = min(numbers), max(numbers)
        return f"layer={first}" if first == last else f"layer={first}-{last}"
