"""What an op writes and what it reads, by its schema and by the storages of its tensors."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import threading
import typing

import torch
from torch.utils import _pytree

# They write all of what they are given, and read none of it.
_OVERWRITING = frozenset(
    {
        *("bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_"),
        *("random_", "uniform_", "fill_", "zero_", "copy_", "set_", "resize_"),
        *("_foreach_copy_", "_foreach_zero_"),
    }
)
# Results that attention and batch norm fill in only with some backends and arguments. Without
# dropout nobody writes the seeds.
_UNWRITTEN = frozenset(
    {
        *("philox_seed", "philox_offset", "rng_state", "unused", "debug_attn_mask"),
        *("reserve", "reserveSpace"),
    }
)
# The same by place. CTC loss writes its table as far as each sequence reaches.
_UNWRITTEN_PLACES = {"_ctc_loss": (1,)}
# They write arguments that their schemas do not mark, if their argument `training` is true.
_STATISTICS = ("running_mean", "running_var")
_UNMARKED = {
    "native_batch_norm": _STATISTICS,
    "cudnn_batch_norm": _STATISTICS,
    "miopen_batch_norm": _STATISTICS,
}
# Their results share memory with an argument, or are copies of it.
_MAY_COPY = frozenset(
    {
        *("contiguous", "flatten", "pin_memory", "ravel", "reshape", "reshape_as", "to"),
        *("resolve_conj", "resolve_neg"),
    }
)
_STORE_BYTES = 32 << 20
_STORE_SHARE = 8
_INDEX = (torch.int64, torch.int32)
_NO_ROW = frozenset({"cgdebug", "prim", "profiler"})
_WRAPS = "_wrap_tensor_autograd"  # a result of a collective, before anybody has waited for it
# c10d's ops return before the result is there: these arguments will hold it.
_C10D_RESULTS = {
    "allreduce_": ("tensors",),
    "allreduce_coalesced_": ("tensors",),
    "allgather_": ("output_tensors",),
    "_allgather_base_": ("output_tensor",),
    "allgather_coalesced_": ("output_lists",),
    "allgather_into_tensor_coalesced_": ("outputs",),
    "reduce_": ("tensors",),
    "reduce_scatter_": ("output_tensors",),
    "_reduce_scatter_base_": ("output_tensor",),
    "reduce_scatter_tensor_coalesced_": ("outputs",),
    "broadcast_": ("tensors",),
    "gather_": ("output_tensors",),
    "gather_into_tensor_": ("output_tensor",),  # torch 2.15
    "scatter_": ("output_tensors",),
    "alltoall_": ("output_tensors",),
    "alltoall_base_": ("output",),
    "recv_": ("tensors",),
    "recv_any_source_": ("tensors",),
}


class Kind(enum.Enum):
    PLAIN = 0
    IGNORED = 1  # never a row
    EMPTY = 2  # memory that nobody has written yet
    C10D = 3  # the result is there when somebody has waited for it
    FUNCTIONAL = 4  # likewise: when wait_tensor is called
    WAIT = 5
    UNKNOWN = 6  # what is in its memory then is not known


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the schema of an op says.

    mutated: for each argument: whether the op writes it
    read:    for each argument: whether the op reads what was there
    unwritten: places of the returned tensors that may not be written
    """

    name: str  # "aten.mm.default"
    base: str  # "mm"
    kind: Kind
    arguments: tuple[str, ...] = ()
    mutated: tuple[bool, ...] = ()
    read: tuple[bool, ...] = ()
    unwritten: frozenset[int] = frozenset()
    by_place: bool = False  # the n-th output is made of the n-th tensor of each list
    # What it writes is what its schema and its results show, and nothing else.
    is_exact: bool = False
    is_pointwise: bool = False  # each element is made of those in its place
    is_view: bool = False  # it returns other views of memory, and looks at none of it


@functools.lru_cache(maxsize=4096)
def plan_of(op) -> Plan:
    schema = getattr(op, "_schema", None)
    if schema is None:  # a higher-order operator
        name = getattr(op, "__name__", str(op))
        return Plan(f"higher_order.{name}", name, Kind.PLAIN)
    namespace, _, base = schema.name.partition("::")
    name = f"{namespace}.{base}.{schema.overload_name or 'default'}"
    kind = _kind_of(namespace, base, getattr(op, "tags", ()))
    results = _C10D_RESULTS.get(base, ()) if kind is Kind.C10D else _UNMARKED.get(base, ())
    mutated, read = [], []
    # Such an op reads only the shape and the dtype of its arguments.
    is_shape_alone = base.endswith("_like") or base.startswith("new_")
    for argument in schema.arguments:
        writes = argument.alias_info is not None and argument.alias_info.is_write
        writes = writes or argument.name in results
        mutated.append(writes)
        overwrites = argument.is_out or (base in _OVERWRITING and argument.name in ("self", "out"))
        read.append(not (writes and overwrites) and not is_shape_alone)
    return Plan(
        name,
        base if namespace == "aten" else f"{namespace}.{base}",
        kind,
        tuple(argument.name for argument in schema.arguments),
        tuple(mutated),
        tuple(read),
        frozenset(
            n
            for n, one in enumerate(schema.returns)
            if one.name in _UNWRITTEN or n in _UNWRITTEN_PLACES.get(base, ())
        ),
        base.startswith(("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad")),
        namespace in ("aten", "prims") and kind in (Kind.PLAIN, Kind.EMPTY),
        torch.Tag.pointwise in getattr(op, "tags", ()),
        _is_view(schema, base),
    )


def _is_view(schema, base: str) -> bool:
    aliases = [one.alias_info for one in schema.returns]
    is_alias = all(one is not None and not one.is_write for one in aliases)
    return bool(aliases) and is_alias and base not in _MAY_COPY


def _kind_of(namespace: str, base: str, tags: typing.Collection) -> Kind:
    if base == "resize_":
        return Kind.UNKNOWN
    # Such as transpose_: another view of the same memory.
    if namespace in _NO_ROW or torch.Tag.inplace_view in tags:
        return Kind.IGNORED
    if base in ("record_stream", _WRAPS):
        return Kind.IGNORED
    if namespace == "aten" and base.lstrip("_").startswith(("empty", "new_empty")):
        return Kind.EMPTY
    if namespace == "c10d":
        return Kind.C10D
    if namespace.startswith("_c10d_functional"):
        return Kind.WAIT if base == "wait_tensor" else Kind.FUNCTIONAL
    return Kind.PLAIN


class Tensors(typing.NamedTuple):
    """One argument of a call."""

    name: str
    tensors: list[torch.Tensor]
    is_list: bool
    mutated: bool
    read: bool


def arguments_of(plan: Plan, args, kwargs) -> list[Tensors]:
    if not plan.arguments:
        return [
            Tensors(str(place), [value], False, False, True)
            for place, value in enumerate(_pytree.tree_leaves((args, kwargs)))
            if isinstance(value, torch.Tensor)
        ]
    values = [
        args[place] if place < len(args) else kwargs.get(name)
        for place, name in enumerate(plan.arguments)
    ]
    unwritten: tuple[str, ...] = ()
    if plan.base in _UNMARKED and not values[plan.arguments.index("training")]:
        unwritten = _UNMARKED[plan.base]
    found = []
    for place, (name, value) in enumerate(zip(plan.arguments, values)):
        tensors = tensors_in(value)
        if tensors:
            is_list = not isinstance(value, torch.Tensor)
            mutated = plan.mutated[place] and name not in unwritten
            found.append(Tensors(name, tensors, is_list, mutated, plan.read[place]))
    return found


def given(plan: Plan, args, kwargs) -> dict[str, typing.Any]:
    """What an op was given, by the names of its arguments. Those with their default may be
    missing."""
    known = plan.arguments
    found = {
        known[place] if place < len(known) else str(place): value
        for place, value in enumerate(args)
    }
    return found | dict(kwargs)


def tensors_in(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [one for item in value for one in tensors_in(item)]
    return []


def returned_by(result) -> list[tuple[int, torch.Tensor]]:
    """The tensors in what an op returned, and their places in it."""
    parts = [result] if isinstance(result, torch.Tensor) else _pytree.tree_leaves(result)
    return [(place, one) for place, one in enumerate(parts) if isinstance(one, torch.Tensor)]


def handles_ops(kind: type) -> bool:
    """Whether it is a type of tensors that takes ops apart, such as DTensor."""
    handler = getattr(kind, "__torch_dispatch__", None)
    return handler is not torch._C._disabled_torch_dispatch_impl


_PLAIN = (torch.Tensor, torch.nn.Parameter)


_NO_MEMORY = (0, None)


class _Look(threading.local):
    """`with one_look:` while this thread looks at the tensors of one op, it asks each of them once
    where its memory is. After code of the user: again()."""

    memory: dict[int, tuple[torch.Tensor, tuple[int, torch.UntypedStorage | None]]] | None = None

    def __enter__(self) -> None:
        self.memory = {}  # by id()

    def __exit__(self, *_) -> None:
        self.memory = None

    def again(self) -> None:
        """What was asked so far may have changed."""
        if self.memory:
            self.memory = {}


one_look = _Look()


def memory_of(tensor: torch.Tensor) -> tuple[int, torch.UntypedStorage | None]:
    """The memory that a tensor shares with its views, and its address; 0 where there is none."""
    memory = one_look.memory
    if memory is None:
        return _memory_of(tensor)
    known = memory.get(id(tensor))
    if known is None:  # the tensor is kept, so that no other gets its id
        known = memory[id(tensor)] = (tensor, _memory_of(tensor))
    return known[1]


def storage_of(tensor: torch.Tensor) -> int:
    """The address of the memory that a tensor shares with its views; 0 where there is none."""
    return memory_of(tensor)[0]


def _memory_of(tensor: torch.Tensor) -> tuple[int, torch.UntypedStorage | None]:
    # why_unseen() says the same in words.
    kind = type(tensor)
    if kind not in _PLAIN and (torch.nn.parameter.is_lazy(tensor) or handles_ops(kind)):
        return _NO_MEMORY
    if tensor.is_nested or tensor.layout is not torch.strided:
        return _NO_MEMORY
    if not (tensor.is_cpu or tensor.is_cuda) or tensor.numel() == 0:
        return _NO_MEMORY
    try:
        if torch._C._is_cow_tensor(tensor):  # asking would make the copy
            return _NO_MEMORY
        if tensor._is_zerotensor():
            return _NO_MEMORY
        storage = tensor.untyped_storage()
    except NotImplementedError:  # a wrapper of torch.func: ops are given what is in it
        return _NO_MEMORY
    address = storage.data_ptr()
    return (address, storage) if address else _NO_MEMORY


def why_unseen(tensor: torch.Tensor) -> str:
    """Why no row can show what is in the tensor; empty if one can, or if nothing is in it."""
    if tensor.is_nested:
        return "nested tensors are not shown"
    if tensor.layout != torch.strided:
        return f"tensors of {tensor.layout} are not shown"
    if tensor.device.type not in ("cpu", "cuda", "meta"):
        return f"tensors on {tensor.device.type} are not shown"
    return ""


def is_store(arguments: list[Tensors], argument: Tensors, tensor: torch.Tensor) -> bool:
    """Whether an op writes by index to a place in `tensor`, one of `argument`, that is small beside
    all of it, as the KV cache of an engine gets the keys of one step."""
    bytes_of = tensor.numel() * tensor.element_size()
    if bytes_of < _STORE_BYTES or not (argument.mutated and argument.read):
        return False
    given = [one for each in arguments if not each.mutated for one in each.tensors]
    has_index = any(one.dim() and one.dtype in _INDEX for one in given)
    rest = sum(one.numel() * one.element_size() for one in given)
    return has_index and rest * _STORE_SHARE < bytes_of


def fills_storage(tensor: torch.Tensor) -> bool:
    """Whether it has all of its memory, each element once, or again and again."""
    elements = tensor.numel()
    if 0 in tensor.stride():
        elements = math.prod(n for n, step in zip(tensor.shape, tensor.stride()) if step)
    return elements * tensor.element_size() == tensor.untyped_storage().nbytes()
