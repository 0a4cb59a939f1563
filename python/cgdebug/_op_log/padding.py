"""cgdebug.valid_rows(): which rows of a padded batch are real, and in which tensors of the call
these rows are.

A tensor has the rows if it was named, or if an op made it that keeps them where they are: their
place in it is its layout. What an op permutes, gathers or adds up has no layout from there on, and
neither has what a kernel writes that is not known: its rows are not known. Nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import threading
import typing
import weakref

import torch
from torch.utils._mode_utils import no_dispatch

from . import written
from .memory import Memory

MASK_OP = "valid_rows"
ROW_OP = "padding"  # of the row of what lies in padding rows; the op it belongs to keeps rows apart
MIXED_OP = "padding.mixed"  # likewise, of an op that may read other rows for a row
IN_GRAPH = "valid_rows: rows not known: in a captured graph"
ON_GPU = "valid_rows: rows not known: on a GPU"

# An atom: (axis of the mask, or PLAIN, and its size). A layout has the atoms of each dimension, the
# slowest first: a dimension of 6 may be rows 2 x heads 3. What is made of pairs of rows, as scores
# of attention are, has those of the second factor as _OTHER axes: it is real if both are.
_PLAIN = -1
_OTHER = 16
_Atoms = tuple[tuple[int, int], ...]
Layout = tuple[_Atoms, ...]
_Known = Layout | None  # None: rows not known
_NO_ROWS: Layout = ((("none", 0),),)  # type: ignore[assignment]  # what is made of no row
_UNASKED: Layout = ((("unasked", 0),),)  # type: ignore[assignment]

_here = threading.local()


@dataclasses.dataclass(eq=False)
class Marks:
    """What valid_rows() was told.

    mask: bool, on the CPU: which rows are real; None: the tensors are on a GPU
    tensors: weak references to those that have the rows in their first dimensions
    is_taken: whether a log has them
    is_captured: the mask is on the GPU, and each replay computes it again
    count: if captured: how many rows are real, the first ones; int64, on the GPU. None: any are
    """

    mask: torch.Tensor | None
    tensors: tuple[weakref.ref, ...]
    is_taken: bool = False
    is_captured: bool = False
    count: torch.Tensor | None = None


class Tail(typing.NamedTuple):
    """Of a tensor whose rows lie one behind another in memory: those behind the first ones.

    start: how many these are; int64, on the GPU
    rows:  how many there are"""

    start: torch.Tensor
    rows: int


def newest() -> Marks | None:
    """Of this thread."""
    return getattr(_here, "marks", None)


def valid_rows(rows, *tensors: torch.Tensor) -> None:
    """Tells which rows of a padded batch are real, for the next call of the model on this thread,
    or for the one that runs:

        cgdebug.valid_rows(5, ids, positions)            # of 8: rows 5 to 7 are padding
        cgdebug.valid_rows(batch["attention_mask"], batch["input_ids"])

    Or, inside of a capture, with a number or mask on the GPU, which each replay reads again:

        with torch.cuda.graph(graph):
            cgdebug.valid_rows(num_tokens, ids, positions)
            model(ids, positions)

    rows: how many are real, the first ones, as a number or a tensor; or a mask, which is not zero
          where a row is real: of the first dimension, or of the first ones, as batch and tokens
    tensors: what has these rows in its first dimensions

    Op logs then have a second row for each row, `NAME.padding`, with the statistics of what lies in
    padding; in a captured graph, where a mask says which rows are real or these do not lie in front
    of the others in memory, it has 0 in their place. `cgdebug-cli check --padding`
    and `why` say whether NaN or Inf of padding reached a real row, and which op mixed them. In
    eager code on a GPU, and in a capture with a number or mask that is not on the GPU or was told
    before it, the rows are not known: the answers say so, and are inconclusive.

    Fails: TypeError, ValueError: the tensors do not have these rows."""
    if not tensors or not all(isinstance(one, torch.Tensor) for one in tensors):
        raise TypeError(
            "valid_rows: name the tensors that have the rows, as in valid_rows(5, ids, positions)"
        )
    if isinstance(rows, torch.Tensor) and rows.is_cuda and _is_capturing():
        _tell_capture(rows, tensors)
        return
    if any(isinstance(one, torch.Tensor) and not one.is_cpu for one in (rows, *tensors)):
        _here.marks = Marks(None, ())  # reading them would end a capture, or make the job wait
    else:
        with no_dispatch(), torch.no_grad():
            _here.marks = marks_of(rows, tensors, "valid_rows")
    from .scopes import valid_rows_are_told

    valid_rows_are_told(_here.marks)


def _tell_capture(rows: torch.Tensor, tensors: typing.Sequence[torch.Tensor]) -> None:
    """Adds nothing to a graph whose ops are not logged."""
    from .scopes import captured_here

    following = captured_here()
    if following is not None:
        following.take_marks_inside(lambda: captured_marks(rows, tensors))


def _is_capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def captured_marks(rows: torch.Tensor, tensors: typing.Sequence[torch.Tensor]) -> Marks:
    """What it computes is captured. Fails: ValueError: the tensors do not have these rows."""
    rows = rows.detach()
    count = None
    if rows.dim():
        mask = rows != 0
    else:
        count = rows.to(torch.int64, copy=True)
        size = tensors[0].shape[0] if tensors[0].dim() else 0
        mask = torch.arange(size, device=rows.device) < count
    marks = _marks(mask, tensors, "valid_rows")
    marks.is_captured, marks.count = True, count
    return marks


def marks_of(rows, tensors: typing.Sequence[torch.Tensor], caller: str) -> Marks:
    """Fails: ValueError, which begins with `caller`: the tensors do not have these rows."""
    first = tensors[0]
    if isinstance(rows, torch.Tensor) and rows.dim():
        mask = rows.detach().cpu() != 0
    else:
        count = int(rows)
        if first.dim() == 0 or not 0 <= count <= first.shape[0]:
            raise ValueError(
                f"{caller}: {count} rows cannot be real in a tensor of shape {list(first.shape)}"
            )
        mask = torch.arange(first.shape[0]) < count
    return _marks(mask, tensors, caller)


def _marks(mask: torch.Tensor, tensors: typing.Sequence[torch.Tensor], caller: str) -> Marks:
    for one in tensors:
        if tuple(one.shape[: mask.dim()]) != tuple(mask.shape):
            raise ValueError(
                f"{caller}: a tensor of shape {list(one.shape)} does not have "
                f"{' x '.join(map(str, mask.shape))} rows"
            )
    return Marks(mask, tuple(map(weakref.ref, tensors)))


class RowPlaces:
    """The layouts of the tensors of one call. Thread: one at a time."""

    def __init__(self, marks: Marks):
        """Requires: they have a mask."""
        self.mask = typing.cast(torch.Tensor, marks.mask)
        self._is_captured = marks.is_captured  # then the values of the mask are not known here
        self._captured_count = marks.count
        self.has_padding = self._is_captured or not bool(self.mask.all())
        self.is_told = False  # whether the log has a row with the mask
        self._layouts: Memory[dict[tuple, _Known]] = Memory()  # by part of the memory
        self._count = self._prefix()
        self._padding: dict[tuple, torch.Tensor] = {}  # masks by their shapes and axes
        self._rows_first: dict[Layout, bool] = {}
        shape = tuple(self.mask.shape)
        for reference in marks.tensors:
            tensor = reference()
            if tensor is not None:
                layout = tuple(
                    ((axis, size),) if size != 1 else () for axis, size in enumerate(shape)
                )
                self._set(tensor, layout + _plain(tensor.shape[len(shape) :]))

    def _prefix(self) -> int | None:
        """How many rows are real, if these are the first ones."""
        if self._is_captured or self.mask.dim() != 1:
            return None
        count = int(self.mask.sum())
        return count if bool(self.mask[:count].all()) else None

    # --- layouts ----------------------------------------------------------------------------------

    def of(self, tensor: torch.Tensor) -> _Known:
        """_NO_ROWS: it is made of no row."""
        parts = self._layouts.get(tensor)
        return _NO_ROWS if parts is None else parts.get(_part_of(tensor))

    def _set(self, tensor: torch.Tensor, layout: _Known) -> None:
        parts = self._layouts.get(tensor)
        if parts is None:
            parts = {}
            self._layouts.set(tensor, parts)
        has_rows = layout is not None and any(axis < _OTHER for axis in _axes(layout))
        parts[_part_of(tensor)] = layout if has_rows else None

    def is_known(self, tensor: torch.Tensor) -> bool:
        layout = self.of(tensor)
        return layout is not None and layout is not _NO_ROWS

    def follow(self, plan: written.Plan, arguments, given: dict, outputs) -> bool:
        """An op has run. arguments: as written.arguments_of(); given: its arguments by name;
        outputs: the tensors that it returned. Whether it may have read other rows for a row."""
        ins = [(one, self.of(one)) for each in arguments if each.read for one in each.tensors]
        mutated = [one for each in arguments if each.mutated for one in each.tensors]
        if all(layout is _NO_ROWS for _, layout in ins):
            return False  # what is written in place stays where it is
        rule = _RULES.get(plan.base.rstrip("_")) or (_pointwise if plan.is_pointwise else None)
        mixes = [rule is None]
        known = {id(one): layout for one, layout in ins}
        for tensor in [*mutated, *(one for one in outputs if not _is_in(one, mutated))]:
            layout: _Known = None
            if rule is not None and tensor.numel():
                try:
                    layout = rule(_Op(self, given, arguments, tensor, mixes, known))
                except (KeyError, IndexError, TypeError, ValueError):
                    mixes[0] = True
            if any(tensor is one for one in mutated):
                self._forget_others(tensor, layout)
            self._set(tensor, layout)
        return mixes[0]

    def _forget_others(self, tensor: torch.Tensor, layout: _Known) -> None:
        """What is written through one part of the memory may lie in its other parts. If its rows
        are where they were, those of the others are, too."""
        parts = self._layouts.get(tensor)
        if parts is None or (layout is not None and parts.get(_part_of(tensor)) == layout):
            return
        for part in parts:
            parts[part] = None

    # --- what lies in padding ---------------------------------------------------------------------

    def padding_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What lies in its padding rows; None: its rows are not known, or it is made of none."""
        return self._part(tensor, is_real=False)

    def tail_of(self, tensor: torch.Tensor) -> tuple[Tail, int] | None:
        """Of a capture in which the first rows are real: that, and the dimension that has the rows.
        If that changes slowest in memory, the tail is what lies in the padding rows."""
        layout, count = self.of(tensor), self._captured_count
        if count is None or count.device != tensor.device:  # no kernel reads another GPU's memory
            return None
        if layout is None or len(_axes(layout)) != 1:
            return None
        rows = (0, len(self.mask))
        for place, dim in enumerate(layout):
            if dim[:1] == (rows,):
                return Tail(count, len(self.mask)), place
        return None

    def real_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What lies in its real rows; None as above."""
        return self._part(tensor, is_real=True)

    def _part(self, tensor: torch.Tensor, is_real: bool) -> torch.Tensor | None:
        layout = self.of(tensor)
        if layout is None or layout is _NO_ROWS:
            return None
        tensor = tensor.detach()
        if self._count is not None and self._has_rows_first(layout):
            return tensor[: self._count] if is_real else tensor[self._count :]
        atoms = tuple(atom for dim in layout for atom in dim)
        split = tensor.reshape([size for _, size in atoms])
        mask = self._mask_over(atoms).to(tensor.device).expand(split.shape)
        if self._is_captured:  # how many there are is not known
            return split.masked_fill(mask if is_real else ~mask, 0)
        return split[~mask if is_real else mask]

    def _has_rows_first(self, layout: Layout) -> bool:
        """Whether its first dimension is the rows, and no other has them."""
        known = self._rows_first.get(layout)
        if known is None:
            known = layout[:1] == (((0, len(self.mask)),),) and len(_axes(layout)) == 1
            self._rows_first[layout] = known
        return known

    def _mask_over(self, atoms: _Atoms) -> torch.Tensor:
        """Where padding is, in a tensor with these atoms."""
        known = self._padding.get(atoms)
        if known is None:
            axes = [axis for axis, _ in atoms]
            real = self._real_over(axes)
            if any(axis >= _OTHER for axis in axes):
                others = {axis - _OTHER for axis in axes if axis >= _OTHER}
                axes = [_PLAIN if axis in others else axis for axis in axes]
                axes = [axis - _OTHER if axis >= _OTHER else axis for axis in axes]
                real = real & self._real_over(axes)
            known = self._padding[atoms] = ~real
        return known

    def _real_over(self, axes: list[int]) -> torch.Tensor:
        """The mask with its axes at these places."""
        places = [place for place, axis in enumerate(axes) if _PLAIN < axis < _OTHER]
        found = [axes[place] for place in places]
        real = self.mask
        for axis in reversed(range(self.mask.dim())):
            if axis not in found:  # real if any of its rows is
                real = real.any(axis)
        kept = sorted(found)
        real = real.permute([kept.index(axis) for axis in found])
        sizes = [1] * len(axes)
        for place, size in zip(places, real.shape):
            sizes[place] = size
        return real.reshape(sizes)


def _part_of(tensor: torch.Tensor) -> tuple:
    return tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype


def _is_in(tensor: torch.Tensor, tensors) -> bool:
    return any(tensor is one for one in tensors)


def _plain(shape) -> Layout:
    return tuple(((_PLAIN, size),) if size != 1 else () for size in shape)


def _axes(layout: Layout) -> list[int]:
    return [axis for dim in layout for axis, _ in dim if axis != _PLAIN]


def _others(atoms: _Atoms) -> _Atoms:
    return tuple((axis + _OTHER if _PLAIN < axis < _OTHER else axis, size) for axis, size in atoms)


def _distinct(layout: Layout) -> _Known:
    """An axis that is there twice makes pairs of rows."""
    result: list[_Atoms] = []
    for atoms in layout:
        if set(_axes((atoms,))) & set(_axes(tuple(result))):
            atoms = _others(atoms)
        result.append(atoms)
    axes = _axes(tuple(result))
    return tuple(result) if len(set(axes)) == len(axes) else None


# --- rules: where the rows are in what an op writes -----------------------------------------------


class _Op:
    """One op, and one tensor that it wrote.

    mixes: its element is set if the op may read other rows for a row
    known: the layouts of what it read, by id"""

    def __init__(
        self,
        places: RowPlaces,
        given: dict,
        arguments,
        out: torch.Tensor,
        mixes: list,
        known: dict[int, _Known],
    ):
        self.given, self.out, self.mixes = given, out, mixes
        self._places, self._arguments, self._known = places, arguments, known

    def get(self, name: str, default=None):
        return self.given.get(name, default)

    def tensor(self, *names: str) -> torch.Tensor:
        for name in names:
            if isinstance(self.given.get(name), torch.Tensor):
                return self.given[name]
        raise KeyError(names[0])

    def first(self) -> torch.Tensor:
        return self._arguments[0].tensors[0]

    def layout(self, tensor: torch.Tensor) -> _Known:
        """A tensor that is made of no row has a layout without them."""
        layout = self._of(tensor)
        return _plain(tensor.shape) if layout is _NO_ROWS else layout

    def has_rows(self, tensor: torch.Tensor) -> bool:
        return self._of(tensor) is not _NO_ROWS

    def _of(self, tensor: torch.Tensor) -> _Known:
        layout = self._known.get(id(tensor), _UNASKED)
        return self._places.of(tensor) if layout is _UNASKED else layout

    def reads(self) -> list[torch.Tensor]:
        return [one for each in self._arguments if each.read for one in each.tensors]

    def dim(self, name: str = "dim", default: int = 0, of: int | None = None) -> int:
        count = self.first().dim() if of is None else of
        dim = self.get(name, default)
        return dim + count if dim < 0 else dim

    def dims(self, count: int) -> list[int]:
        dims = self.get("dim", self.get("dims"))
        if dims is None or dims == []:
            return list(range(count))
        dims = [dims] if isinstance(dims, int) else dims
        return [dim + count if dim < 0 else dim for dim in dims]


def _pointwise(op: _Op) -> _Known:
    shape = op.out.shape
    result: list[_Atoms] = []
    layouts = [(one, op.layout(one)) for one in op.reads()]
    if any(layout is None for _, layout in layouts):
        op.mixes[0] = True  # it may hold anything of any row
    for place in range(1, len(shape) + 1):
        found: _Atoms = ((_PLAIN, shape[-place]),) if shape[-place] != 1 else ()
        for one, layout in layouts:
            if layout is None or place > one.dim() or one.shape[-place] == 1:
                continue
            given = layout[-place]
            if not _axes((given,)) or found == _others(given):
                continue
            if _axes((found,)) and found not in (given, _others(given)) and _others(found) != given:
                raise ValueError("two orders of rows")
            found = given
        result.insert(0, found)
    return _distinct(tuple(result))


def _same(op: _Op) -> _Known:
    return _like(op, op.first())


def _like(op: _Op, source: torch.Tensor) -> _Known:
    """As the first argument, as far as the sizes are the same."""
    layout = op.layout(source)
    if layout is None or op.out.dim() != source.dim():
        return None
    result = list(layout)
    for place, size in enumerate(op.out.shape):
        if size == source.shape[place]:
            continue
        if _axes((layout[place],)):
            raise ValueError("rows are left out")
        result[place] = ((_PLAIN, size),) if size != 1 else ()
    return tuple(result)


def _along(op: _Op) -> _Known:
    """An op along dimensions, whose result has the same shape."""
    layout = op.layout(op.first())
    if layout is None:
        return None
    shape = op.get("normalized_shape")
    count = op.first().dim()
    dims = range(count - len(shape), count) if shape is not None else [op.dim(default=-1)]
    if any(_axes((layout[dim],)) for dim in dims):
        op.mixes[0] = True
    return _like(op, op.first())


def _sorted(op: _Op) -> _Known:
    """Likewise, which leaves nothing in its place."""
    layout = op.layout(op.first())
    return None if layout is None or _axes((layout[op.dim(default=-1)],)) else _along(op)


def _attention(op: _Op) -> _Known:
    """Rows of the query. Which rows of keys and values they are made of, a mask decides."""
    op.mixes[0] = True
    return _same(op) if op.out.shape == op.first().shape else None


def _first_dim(op: _Op) -> _Known:
    """The first dimension stays."""
    layout = op.layout(op.first())
    if layout is None or op.out.dim() == 0 or op.out.shape[0] != op.first().shape[0]:
        return None
    if _axes(layout[1:]):
        op.mixes[0] = True
    return (layout[0], *_plain(op.out.shape[1:]))


def _batch_norm(op: _Op) -> _Known:
    op.mixes[0] = bool(op.get("training", op.get("train", True)))
    return _first_dim(op)


def _reduce(op: _Op) -> _Known:
    if isinstance(op.get("other"), torch.Tensor):  # max(self, other)
        return _pointwise(op)
    layout = op.layout(op.first())
    if layout is None:
        op.mixes[0] = True
        return None
    count = op.first().dim()
    dims = op.dims(count)
    if any(_axes((layout[dim],)) for dim in dims):
        op.mixes[0] = True
    if op.out.dim() == count:
        return tuple(() if place in dims else layout[place] for place in range(count))
    kept = tuple(layout[place] for place in range(count) if place not in dims)
    return kept if len(kept) == op.out.dim() else None


def _product(op: _Op) -> _Known:
    one = op.tensor("mat1", "batch1", "mat", "input", "self")
    other = op.tensor("mat2", "batch2", "weight", "vec")
    left, right = op.layout(one), op.layout(other)
    if left is None or right is None:
        op.mixes[0] = True  # it may hold anything of any row
    if left is None:
        return None
    if right is None:
        right = _plain(other.shape)
    elif "weight" in op.given:
        right = right[::-1]
    summed = right[-2:-1] or right  # of a vector all
    if _axes(left[-1:]) or _axes(summed):
        op.mixes[0] = True
    result = list(left[:-1])
    if other.dim() == 3 and _axes(right[:1]):  # a batch of products
        if _axes(tuple(result[:1])) and result[0] != right[0]:
            raise ValueError("two orders of rows")
        result[0] = right[0]
    if other.dim() == 1:
        return tuple(result)
    return _distinct((*result, right[-1]))


def _embedding(op: _Op) -> _Known:
    table, index = op.tensor("weight"), op.tensor("indices")
    layout = op.layout(index)
    if op.has_rows(table) or layout is None:
        op.mixes[0] = True
        return None
    return (*layout, *_plain(table.shape[1:]))


def _index(op: _Op) -> _Known:
    """Rows of a table that is made of no row."""
    table, indices = op.tensor("self"), op.given.get("indices")
    dim = 0
    if indices is None:
        indices, dim = [op.tensor("index")], op.dim()
    op.mixes[0] = True
    if op.has_rows(table) or dim or len(indices) != 1 or indices[0].dtype == torch.bool:
        return None
    layout = op.layout(indices[0])
    op.mixes[0] = layout is None
    return None if layout is None else (*layout, *_plain(table.shape[1:]))


def _gather(op: _Op) -> _Known:
    table, index = op.tensor("self"), op.tensor("index")
    of_table, of_index, dim = op.layout(table), op.layout(index), op.dim()
    op.mixes[0] = of_table is None or of_index is None or bool(_axes((of_table[dim],)))
    if of_index is not None and _axes(of_index):
        return of_index
    return None if op.mixes[0] else _like(op, table)


def _concatenate(op: _Op) -> _Known:
    dim = op.dim(of=op.out.dim())
    layouts = []
    for one in op.given["tensors"]:
        layout = op.layout(one)
        if one.numel() and (layout is None or _axes((layout[dim],))):
            op.mixes[0] = True
            return None
        if one.numel() and layout is not None:
            layouts.append(layout)
    result = list(_plain(op.out.shape))
    for place in range(op.out.dim()):
        for layout in layouts:
            if place == dim or not _axes((layout[place],)):
                continue
            if _axes((result[place],)) and result[place] != layout[place]:
                raise ValueError("two orders of rows")
            result[place] = layout[place]
    return tuple(result)


# --- views ----------------------------------------------------------------------------------------


def _reshape(op: _Op) -> _Known:
    layout = op.layout(op.first())
    if layout is None:
        return None
    atoms = [atom for dim in layout for atom in dim]
    result: list[_Atoms] = []
    for size in op.out.shape:
        dim: list[tuple[int, int]] = []
        done = 1
        while done < size:
            axis, count = atoms.pop(0)
            if size % (done * count) == 0:
                dim.append((axis, count))
                done *= count
                continue
            part = size // done
            if axis != _PLAIN or size % done or count % part:
                raise ValueError("rows are divided")
            dim.append((_PLAIN, part))
            atoms.insert(0, (_PLAIN, count // part))
            done = size
        result.append(tuple(dim))
    return tuple(result)


def _permute(op: _Op) -> _Known:
    layout = op.layout(op.first())
    return layout and tuple(layout[dim] for dim in op.dims(len(layout)))


def _transpose(op: _Op) -> _Known:
    layout = op.layout(op.first())
    if layout is None:
        return None
    result = list(layout)
    if len(result) > 1:
        one, other = op.dim("dim0", 0), op.dim("dim1", 1)
        result[one], result[other] = result[other], result[one]
    return tuple(result)


def _unsqueeze(op: _Op) -> _Known:
    layout = op.layout(op.first())
    dim = op.dim(of=op.out.dim())
    return layout and (*layout[:dim], (), *layout[dim:])


def _squeeze(op: _Op) -> _Known:
    layout, source = op.layout(op.first()), op.first()
    if layout is None:
        return None
    dims = op.dims(source.dim()) if "dim" in op.given else list(range(source.dim()))
    kept = [n for n in range(source.dim()) if n not in dims or source.shape[n] != 1]
    return tuple(layout[place] for place in kept)


def _expand(op: _Op) -> _Known:
    layout, source, shape = op.layout(op.first()), op.first(), op.out.shape
    if layout is None:
        return None
    new = len(shape) - source.dim()
    return _plain(shape[:new]) + tuple(
        layout[place]
        if source.shape[place] == shape[new + place]
        else ((_PLAIN, shape[new + place]),)
        for place in range(source.dim())
    )


def _one_of_dim(op: _Op) -> _Known:
    """One place of a dimension, as select() and unbind()."""
    layout, dim = op.layout(op.first()), op.dim()
    if layout is None or _axes((layout[dim],)):
        return None
    return (*layout[:dim], *layout[dim + 1 :])


def _part_of_dim(op: _Op) -> _Known:
    return _like(op, op.first())


_RULES: dict[str, typing.Callable[[_Op], _Known]] = {
    **dict.fromkeys(("clone", "_to_copy", "detach", "alias", "contiguous", "lift_fresh"), _same),
    **dict.fromkeys(("native_dropout", "tril", "triu", "bernoulli", "nan_to_num"), _same),
    **dict.fromkeys(("_softmax", "_log_softmax", "softmax", "log_softmax"), _along),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), _along),
    **dict.fromkeys(("sort", "topk", "cummax", "cummin", "glu"), _sorted),
    **dict.fromkeys(("native_layer_norm", "layer_norm", "rms_norm", "_fused_rms_norm"), _along),
    **dict.fromkeys(
        (
            *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"),
            *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
            *("_scaled_dot_product_fused_attention_overrideable", "scaled_dot_product_attention"),
        ),
        _attention,
    ),
    **dict.fromkeys(("convolution", "max_pool2d_with_indices", "avg_pool2d"), _first_dim),
    **dict.fromkeys(("_adaptive_avg_pool2d", "native_group_norm"), _first_dim),
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit"), _batch_norm),
    **dict.fromkeys(
        (
            *("sum", "mean", "amax", "amin", "max", "min", "var", "std", "var_mean", "std_mean"),
            *("prod", "any", "all", "argmax", "argmin", "norm", "linalg_vector_norm", "median"),
            *("logsumexp", "nansum", "count_nonzero", "aminmax"),
        ),
        _reduce,
    ),
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "linear", "mv", "addmv"), _product),
    "embedding": _embedding,
    **dict.fromkeys(("index", "index_select"), _index),
    "gather": _gather,
    "cat": _concatenate,
    **dict.fromkeys(("view", "_unsafe_view", "_reshape_alias", "reshape"), _reshape),
    "permute": _permute,
    **dict.fromkeys(("transpose", "t"), _transpose),
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "expand": _expand,
    **dict.fromkeys(("select", "unbind"), _one_of_dim),
    **dict.fromkeys(("slice", "split", "split_with_sizes", "chunk", "narrow"), _part_of_dim),
}
_RULES["copy"] = _pointwise
