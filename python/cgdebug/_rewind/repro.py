"""One op of one replay as a script of its own, with what it was given and what it made."""

from __future__ import annotations

import pathlib
import typing

import torch
from torch.utils import _pytree

from .._op_log.node_map import Other, Tensor

if typing.TYPE_CHECKING:
    from .._op_log.node_map import Op

_SCRIPT = '''"""{what}

    python {file}

Runs the op alone, with what it was given, and says whether it makes the same bits.
"""

import pathlib
import sys

import torch
from safetensors.torch import load_file

HERE = pathlib.Path(__file__).parent
STRIDES = {strides}
kept = load_file(HERE / "tensors.safetensors")


def tensor(name):
    """As it was: its elements in the places of its memory."""
    values = kept[name]
    made = torch.empty_strided(values.shape, STRIDES[name], dtype=values.dtype, device="cuda")
    return made.copy_(values)


def bits(one):
    return one.detach().contiguous().reshape(-1).view(torch.uint8).cpu()


given = [tensor(f"given.{{number}}") for number in range({given})]
result = {op}(*{args}, **{kwargs})
found = [one for one in (result if isinstance(result, (list, tuple)) else [result])
         if isinstance(one, torch.Tensor)]
changed = {changed}  # the places of what it changes in place
made = [given[number] for number in changed] or found
is_same = len(made) >= {made}
for number in range(min({made}, len(made))):
    then, now = bits(kept[f"made.{{number}}"]), bits(made[number])
    differ = int((then != now).sum()) if then.shape == now.shape else -1
    is_same = is_same and differ == 0
    values = made[number].double() if made[number].is_floating_point() else made[number]
    print(f"result {{number}}: {{list(made[number].shape)}}, {{differ}} of {{len(then)}} bytes "
          f"differ, {{int((~values.isfinite()).sum())}} elements are not finite")
if is_same:
    print("the op alone makes the same bits: look at its inputs, and at the op")
else:
    print("the op alone makes other bits: it reads memory that others write (aliasing, order, "
          "workspace), or is random")
sys.exit(0 if is_same else 1)
'''


class CannotWrite(Exception):
    """Why there is no script, as a sentence."""


def check(op: Op) -> None:
    """Fails: CannotWrite."""
    if op.call is None:
        raise CannotWrite(f"{op.op} is no op of torch: a kernel alone cannot be called")
    kinds = (Tensor, Other)
    leaves = _pytree.tree_leaves(
        (op.call.args, op.call.kwargs), is_leaf=lambda one: isinstance(one, kinds)
    )
    for value in leaves:
        if isinstance(value, Other):
            raise CannotWrite(f"{op.op} was given a {value.kind}")
    if any(one.device < 0 and one.extent[0] for one in op.call.tensors):
        raise CannotWrite(f"{op.op} was given a tensor in host memory")


def write(
    op: Op,
    replay: int,
    graph: str,
    given: list[torch.Tensor],
    made: list[torch.Tensor],
    directory: str,
) -> str:
    """The path of the script. Fails: CannotWrite, OSError."""
    check(op)
    assert op.call is not None
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise CannotWrite("needs safetensors. Type: pip install safetensors") from None
    path = pathlib.Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    tensors = {f"given.{n}": one.contiguous().cpu() for n, one in enumerate(given)}
    tensors |= {f"made.{n}": one.contiguous().cpu() for n, one in enumerate(made)}
    save_file(tensors, path / "tensors.safetensors")
    namespace, base, overload = (op.op.split(".") + ["default"])[:3]
    changed = [
        number
        for number, one in enumerate(op.call.tensors)
        if any(other.writes and other.extent == one.extent for other in op.given)
    ]
    what = f"{op.op} of replay {replay} of graph {graph}: {op.name}"
    script = path / "repro.py"
    script.write_text(
        _SCRIPT.format(
            what=what + f" ({op.site})" * bool(op.site),
            file=script.name,
            strides={f"given.{n}": tuple(one.strides) for n, one in enumerate(op.call.tensors)},
            given=len(given),
            op=f"torch.ops.{namespace}.{base}.{overload}",
            args=_code(op.call.args),
            kwargs=_code(op.call.kwargs),
            changed=changed,
            made=len(made),
        ),
        encoding="utf-8",
    )
    return str(script)


def _code(value) -> str:
    if isinstance(value, Tensor):
        return f"given[{value.number}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_code(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(_code, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, float) and value != value or value in (float("inf"), float("-inf")):
        return f"float({str(value)!r})"
    return repr(value)
