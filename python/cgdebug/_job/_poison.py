"""testing.poison(): whether what lies in padding rows reaches real ones, by running a call again
with other padding."""

from __future__ import annotations

import dataclasses
import typing

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from .._op_log import names, padding, written
from .._op_log.memory import Memory
from ._accepted import is_tracing

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_REPEATS = 3  # of the call as it is, to find what is not deterministic
_LARGE = 3e4  # float16 has it
_NO_OPS = (
    "which op it is: the call has no op of torch that reads these tensors, as a graph's replay"
)

Rows = dict[str, torch.Tensor]  # the real rows of the outputs

VERDICTS = {
    "none": "no leak",
    "any value": "any value of padding reaches real rows",
    "large only": "large values of padding reach real rows",
    "NaN only": "NaN of padding reaches real rows, finite values do not",
    "reads memory that nobody wrote": "real rows depend on memory that nobody wrote",
}


@dataclasses.dataclass(frozen=True)
class Poison:
    """What testing.poison() found.

    verdict: "none", "any value", "large only", "NaN only" or "reads memory that nobody wrote"
    op:     the first op that let it through, "fwd/layers.3.moe/mean_0 (aten.mean.dim)"; empty:
            none, or not known
    site:   the line that calls it
    changed: by what padding was filled with: the outputs whose real rows changed
    unstable: outputs that are not the same in two equal calls: they were not judged
    not_looked_at: sentences
    """

    verdict: str
    op: str
    site: str
    changed: dict[str, list[str]]
    unstable: list[str]
    not_looked_at: list[str]

    @property
    def ok(self) -> bool:
        """Whether "no leak" may be said: nothing was found, and all was looked at."""
        return self.verdict == "none" and not self.unstable and not self.not_looked_at

    def __str__(self) -> str:
        lines = [VERDICTS[self.verdict]]
        if self.verdict == "none" and not self.ok:
            lines = ["inconclusive: no leak found, but not all was looked at"]
        if self.op:
            lines.append(f"first: {self.op}" + (f" at {self.site}" if self.site else ""))
        for fill, outputs in self.changed.items():
            if outputs:
                lines.append(f"with {fill} in padding, real rows change of: {', '.join(outputs)}")
        if self.unstable:
            lines.append(f"not deterministic, so not judged: {', '.join(self.unstable)}")
        lines += [f"not looked at: {one}" for one in self.not_looked_at]
        return "\n".join(lines)


def poison(call, inputs, valid_rows, outputs, state) -> Poison:
    """As testing.poison()."""
    named = _named(inputs, "inputs")
    if not callable(call) or not named:
        raise TypeError("poison: give a function, and the tensors whose padding it reads")
    with no_dispatch(), torch.no_grad():
        marks = padding.marks_of(valid_rows, list(named.values()), "poison")
    if bool(typing.cast(torch.Tensor, marks.mask).all()):
        raise ValueError("poison: all rows are real, so there is no padding to change")
    return _Test(call, named, marks, outputs, _named(state, "state")).run()


def _named(tensors, what: str) -> dict[str, torch.Tensor]:
    if tensors is None:
        return {}
    if isinstance(tensors, torch.Tensor):
        tensors = [tensors]
    if not hasattr(tensors, "items"):
        tensors = {f"{what}[{place}]": one for place, one in enumerate(tensors)}
    found = dict(tensors.items())
    for name, one in found.items():
        if not isinstance(one, torch.Tensor):
            raise TypeError(f"poison: {what}: {name} is a {type(one).__name__}, not a tensor")
    return found


class _Test:
    def __init__(self, call, inputs, marks, outputs, state):
        self._call, self._inputs, self._marks, self._outputs = call, inputs, marks, outputs
        self._mask = typing.cast(torch.Tensor, marks.mask)
        kept = [*state.values(), *inputs.values()]
        self._kept = [(one, one.detach().clone()) for one in kept]
        self._generator = torch.Generator().manual_seed(0)
        self._not_compared: set[str] = set()
        self._has_ops = False  # whether the call runs an op of torch on this thread

    def run(self) -> Poison:
        rng = torch.random.get_rng_state()
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self._rng = rng, cuda
        try:
            return self._run()
        finally:
            self._restore()

    def _run(self) -> Poison:
        base = self._rows_of_call()
        unstable: set[str] = set()
        for _ in range(_REPEATS):
            unstable |= set(_different(base, self._rows_of_call(), ()))
        changed = {
            _FILLS[fill.__name__]: _different(base, self._rows_of_call(fill), unstable)
            for fill in (self._other, self._large, self._nan)
        }
        not_looked = [f"{name}: it does not have these rows" for name in sorted(self._not_compared)]
        for name, one in self._inputs.items():
            is_number = one.dtype.is_floating_point or one.dtype == torch.bool
            if not is_number and one.numel() and int(one.min()) == int(one.max()):
                not_looked.append(f"{name}: it has one value, so its padding was not changed")
        if not base:
            raise ValueError(
                "poison: no output has these rows. Name them: poison(..., outputs=[logits])"
            )
        memory = self._memory(base, unstable, not_looked)
        changed["memory that nobody wrote"] = memory
        verdict, fill = self._judge(changed)
        op, site = "", ""
        if fill is not None:
            op, site = self._first_op(fill, not_looked)
        return Poison(verdict, op, site, changed, sorted(unstable), not_looked)

    def _judge(self, changed) -> tuple[str, Callable | None]:
        other, large, nan, memory = changed.values()
        if other:
            return "any value", self._other
        if large:
            return "large only", self._large
        if nan:
            return "NaN only", self._nan
        return ("reads memory that nobody wrote", self._unwritten) if memory else ("none", None)

    # --- one call ---------------------------------------------------------------------------------

    def _restore(self) -> None:
        with no_dispatch(), torch.no_grad():
            for one, before in self._kept:
                one.copy_(before)
        torch.random.set_rng_state(self._rng[0])
        if self._rng[1]:
            torch.cuda.set_rng_state_all(self._rng[1])

    def _run_call(self, fill: Callable | None):
        self._restore()
        with no_dispatch(), torch.no_grad():
            for tensor in self._inputs.values():
                if fill is not None:
                    real = self._mask.to(tensor.device)
                    tensor[~real] = fill(tensor, real).to(tensor.dtype)
        return self._call()

    def _rows_of_call(
        self, fill: Callable | None = None, memory: float = 0.0
    ) -> dict[str, torch.Tensor]:
        """The real rows of the outputs. memory: what is in memory that nobody has written."""
        with _Unwritten(memory) as mode:
            result = self._run_call(fill)
        self._has_ops = self._has_ops or mode.has_ops
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        found = {}
        outputs = _named(self._outputs, "outputs")
        if not outputs:
            leaves = torch.utils._pytree.tree_leaves(result)
            tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
            outputs = _named(tensors, "result")
        mask = self._mask
        for name, tensor in outputs.items():
            if tuple(tensor.shape[: mask.dim()]) == tuple(mask.shape):
                with no_dispatch():
                    found[name] = tensor.detach()[mask.to(tensor.device)].cpu()
            else:
                self._not_compared.add(name)
        return found

    # --- what padding is filled with --------------------------------------------------------------

    def _other(self, tensor: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Other values of the kind that are in the tensor."""
        rows = tensor[~real]
        if tensor.dtype == torch.bool:
            return ~rows
        if not tensor.dtype.is_floating_point:
            low, high = int(tensor.min()), int(tensor.max())
            return (rows.long() - low + 1 + (high - low) // 2) % (high - low + 1) + low
        known = tensor[real].float()
        size = float(known.std()) if known.numel() > 1 and bool(known.isfinite().all()) else 1.0
        noise = torch.randn(rows.shape, generator=self._generator).to(tensor.device)
        return noise * (size or 1.0) + 0.5

    def _large(self, tensor: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Numbers alone: an index would lie outside of its table."""
        rows = tensor[~real]
        return torch.full_like(rows, _LARGE) if tensor.dtype.is_floating_point else rows

    def _nan(self, tensor: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        rows = tensor[~real]
        return torch.full_like(rows, torch.nan) if tensor.dtype.is_floating_point else rows

    def _unwritten(self, tensor: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        return tensor[~real]

    def _memory(self, base: Rows, unstable: set[str], not_looked: list[str]) -> list[str]:
        """The outputs whose real rows depend on what is in memory that ops are given."""
        if not self._has_ops:
            not_looked.append("memory that nobody wrote: the call runs no op of torch here")
            return []
        rows = self._rows_of_call(memory=torch.nan)
        return _different(base, rows, unstable)

    # --- which op ---------------------------------------------------------------------------------

    def _first_op(self, fill: Callable, not_looked: list[str]) -> tuple[str, str]:
        is_memory = fill.__name__ == "_unwritten"
        traces = []
        for one, value in ((None, 0.0), (fill, torch.nan)):
            trace = _Trace(self._marks)
            hooks = names.ModuleHooks(trace.names)
            try:
                with _Unwritten(value if is_memory else 0.0), trace:
                    self._run_call(None if is_memory else one)
            finally:
                hooks.remove()
            traces.append(trace.ops)
        if not traces[0]:
            not_looked.append(_NO_OPS)
            return "", ""
        first = _first_difference(*traces)
        if first is None:
            not_looked.append("which op it is: the ops of the two calls are not the same")
            return "", ""
        return f"{first.name} ({first.op})", first.site


_FILLS = {"_other": "other values", "_large": "large values", "_nan": "NaN"}


def _different(before: Rows, after: Rows, without: typing.Collection[str]) -> list[str]:
    return [
        name
        for name, rows in before.items()
        if name not in without and not _is_same(rows, after.get(name))
    ]


def _is_same(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Bit for bit."""
    if other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


class _Unwritten(TorchDispatchMode):
    """Fills the memory that ops are given and that nobody has written yet."""

    def __init__(self, value: float):
        super().__init__()
        self._value = value
        self.has_ops = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # else compiled code runs eagerly, also after this mode has ended

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if is_tracing():
            return result
        plan = written.plan_of(func)
        self.has_ops = self.has_ops or plan.kind is not written.Kind.IGNORED
        if plan.kind is written.Kind.EMPTY and isinstance(result, torch.Tensor):
            is_number = result.dtype.is_floating_point or result.dtype.is_complex
            if is_number:  # an index of any value may end the process
                result.fill_(self._value)
        return result


class _Ran(typing.NamedTuple):
    """An op of a call, and one tensor that it wrote.

    inputs: places of those that it read
    has_rows: whether its rows are known; then `value` has the real ones, else all
    """

    name: str
    op: str
    site: str
    inputs: tuple[int, ...]
    has_rows: bool
    value: torch.Tensor


class _Trace(TorchDispatchMode):
    """The ops of one call, with the real rows of what they wrote."""

    def __init__(self, marks: padding.Marks):
        super().__init__()
        self.names = names.ModuleNames()
        self.ops: list[_Ran] = []
        self._rows = padding.RowPlaces(marks)
        self._wrote: Memory[int] = Memory()
        self._counter = names.Counter()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if is_tracing():
            return func(*args, **kwargs)
        plan = written.plan_of(func)
        arguments = written.arguments_of(plan, args, kwargs)
        place = names.current_place(self.names, (*args, *kwargs.values()))
        inputs = tuple(
            dict.fromkeys(
                number
                for each in arguments
                for one in each.tensors
                if (number := self._wrote.get(one)) is not None
            )
        )
        given_to = {written.storage_of(one) for each in arguments for one in each.tensors}
        result = func(*args, **kwargs)
        outputs = [one for _, one in written.returned_by(result)]
        self._rows.follow(plan, arguments, written.given(plan, args, kwargs), outputs)
        changed = [one for each in arguments if each.mutated for one in each.tensors]
        made = [one for one in outputs if written.storage_of(one) not in given_to]
        if plan.kind in (written.Kind.EMPTY, written.Kind.IGNORED) or not (changed or made):
            return result
        name = self._counter.take(place, plan.base)
        for one in (*changed, *made):
            if not written.storage_of(one):
                continue
            real = self._rows.real_of(one)
            has_rows = real is not None
            value = (real if real is not None else one.detach()).cpu().clone()
            self.ops.append(_Ran(name, plan.name, place.site, inputs, has_rows, value))
            self._wrote.set(one, len(self.ops) - 1)
        return result


def _first_difference(before: Sequence[_Ran], after: Sequence[_Ran]) -> _Ran | None:
    """The first op that changed real rows; of the ops in front of it whose rows are not known and
    that changed as well, the first that it is made of. None: they are not the same ops."""
    differs = []
    for one, other in zip(before, after):
        if (one.name, one.op) != (other.name, other.op):
            break
        differs.append(not _is_same(one.value, other.value))
    first = next((n for n, is_so in enumerate(differs) if is_so and before[n].has_rows), None)
    if first is None:
        unknown = [n for n, is_so in enumerate(differs) if is_so]
        return before[unknown[0]] if unknown else None
    made_of = {first}
    for place in range(first, -1, -1):
        if place in made_of and (place == first or not before[place].has_rows):
            made_of.update(n for n in before[place].inputs if differs[n] and not before[n].has_rows)
    return before[min(made_of)]
