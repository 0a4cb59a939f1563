"""What the plug-ins of serving engines share."""

from __future__ import annotations

import contextlib
import sys
import typing
import weakref

from .._job import _graphs, _native

if typing.TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

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


_names: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()


def know_names(model: torch.nn.Module) -> None:
    """From here on capturing_pieces() knows its layers."""
    _names.update((one, name) for name, one in model.named_modules())


def running_layer() -> str:
    """The layer, a module with a number, that this thread is in the middle of; empty: in none."""
    from torch.nn import Module

    from .._op_log.names import layer_of

    frame: typing.Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code is Module._call_impl.__code__:
            layer = layer_of(_names.get(frame.f_locals["self"], ""))
            if layer:
                return layer
        frame = frame.f_back
    return ""


@contextlib.contextmanager
def capturing_pieces(label: str) -> typing.Iterator[None]:
    """The engine captures one size. It may have several graphs, which eager code in the middle of a
    layer divides: each is named by the layer in which it begins."""
    from ..probe import graph_label

    def name_piece() -> str:
        layer = running_layer()
        return f"{label},from={layer}" if layer else label

    with own_pass(), graph_label(label):
        _graphs.name_graph = name_piece
        try:
            yield
        finally:
            _graphs.name_graph = None


def tell_rows(count: object, tensors: typing.Iterable[object]) -> None:
    """So many rows of a pass are real, the first ones of these tensors that have as many rows as
    the first of them."""
    import torch

    from .._op_log.padding import valid_rows

    given = [one for one in tensors if isinstance(one, torch.Tensor) and one.dim()]
    if isinstance(count, int) and given and count < len(given[0]):
        valid_rows(count, *(one for one in given if len(one) == len(given[0])))


class RequestRows:
    """Tells cgdebug.rows() which request each row of the engine's passes is of.

    Captured graphs read the numbers of requests from one tensor, which is written before each
    pass: a whole graph once, of a piecewise graph each piece."""

    def __init__(self) -> None:
        self._numbers: torch.Tensor | None = None
        self._heads: list[str] = []

    def know_model(self, model: torch.nn.Module, returns_logits: bool) -> None:
        """Engines compute the logits of the last token of each request."""
        named = model.named_modules()
        self._heads = [name for name, one in named if type(one).__name__ == "LogitsProcessor"]
        if self._heads and returns_logits:
            self._heads.append(type(model).__name__)

    def forget(self) -> None:
        """A pass begins of which nothing is known so far."""
        rows = sys.modules.get("cgdebug._watching.rows")
        if rows is not None:
            rows.forget()
            if self._numbers is not None:
                self._numbers.fill_(rows.PADDING)

    def tell(
        self,
        requests: Sequence[str],
        tokens: Iterable[int],
        positions: object,
        is_replay: bool = False,
    ) -> None:
        """The pass is of so many tokens of each request; the rows behind them are padding.
        Requires: forget() was called when it began.

        positions: of each row in its request
        is_replay: a graph that was captured whole is replayed, which tells its rows itself: what
                   follows it is compared with it"""
        import torch

        from .._watching.rows import PADDING, number_of, rows

        if not isinstance(positions, torch.Tensor) or positions.dim() != 1:
            return
        each = [(number_of(one), int(n)) for one, n in zip(requests, tokens)]
        numbers = [number for number, n in each for _ in range(n)]
        if len(numbers) > len(positions):
            return
        if self._numbers is not None and len(positions) <= len(self._numbers):
            self._numbers[: len(numbers)].copy_(torch.tensor(numbers))
        if is_replay and not self._heads:
            return
        padding = [PADDING] * (len(positions) - len(numbers))
        rows(torch.tensor(numbers + padding, device=positions.device), positions)
        if self._heads:
            last = torch.tensor([n for _, n in each], device=positions.device).cumsum(0) - 1
            rows([number for number, _ in each], positions[last], of=self._heads)

    def expect_capture(self, positions: torch.Tensor, tokens: int) -> None:
        """The next call of the model is captured whole, with so many rows. positions: where all
        graphs read them, those of the most rows as well."""
        from .._watching.rows import rows

        rows(self._read_by_graphs(positions)[:tokens], positions[:tokens])

    @contextlib.contextmanager
    def capturing_pieces(self, positions: torch.Tensor, tokens: int) -> typing.Iterator[None]:
        """Each graph whose capture begins is a piece of a call with so many rows."""
        from .._watching.rows import rows_of_graph

        numbers = self._read_by_graphs(positions)
        _graphs.begin_graph = lambda: rows_of_graph(numbers[:tokens], positions[:tokens])
        try:
            yield
        finally:
            _graphs.begin_graph = None

    def _read_by_graphs(self, positions: torch.Tensor) -> torch.Tensor:
        import torch

        from .._watching.rows import PADDING

        if self._numbers is None:
            with torch.inference_mode(False):  # it is written outside of that mode, too
                self._numbers = torch.full(
                    positions.shape, PADDING, dtype=torch.int64, device=positions.device
                )
        return self._numbers


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
