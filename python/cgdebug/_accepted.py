"""Which names and tensors a probe accepts, and why it refuses others."""

from __future__ import annotations

import re

import torch

from ._dtypes import table

MAX_NAME_BYTES = 255
# The same characters as in libprobe/registration.cpp.
_RESERVED_IN_NAMES = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029*?@#:{}]|^!")


def check_name(name) -> None:
    if not isinstance(name, str):
        raise TypeError(f"a probe's name must be a str, not {type(name).__name__}")
    if not name:
        raise ValueError("a probe needs a name: every place that shows the tensor uses it")
    reserved = _RESERVED_IN_NAMES.search(name)
    if reserved is not None:
        raise ValueError(
            f"a probe's name cannot contain {reserved[0]!r}: {name[:80]!r}. Selectors such as "
            f"'blk*' and NAME@12 use it, or it ends a line. Write for example "
            f"{_RESERVED_IN_NAMES.sub('_', name)[:80]!r}"
        )
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ValueError(f"a probe's name must be text that UTF-8 can hold: {name!r}") from None
    if size > MAX_NAME_BYTES:
        raise ValueError(
            f"a probe's name may have {MAX_NAME_BYTES} bytes of UTF-8, this one has {size}: "
            f"{name[:40]!r}..."
        )


def make_name(text: str) -> str:
    """A valid name made from any text. Keeps the end of a long one."""
    name = _RESERVED_IN_NAMES.sub("_", text).encode(errors="replace")
    return name[-MAX_NAME_BYTES:].decode(errors="ignore")


def torch_dtypes() -> list[torch.dtype]:
    return [getattr(torch, name) for name in table() if hasattr(torch, name)]


def check_tensor(probe: str, tensor) -> None:
    """Refuses tensors that torch does not even hand to the op.

    Fails: TypeError, ValueError.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"probe {probe!r} got a {type(tensor).__name__}, not a tensor")
    refused = _why_refused(tensor)
    if refused:
        raise ValueError(f"probe {probe!r}: {refused}")


def _why_refused(tensor: torch.Tensor) -> str:
    """Empty if the tensor is accepted."""
    if tensor.is_nested:
        return (
            "nested tensors are not supported: each row has a shape of its own. Probe "
            "tensor.values(), or torch.nested.to_padded_tensor(tensor, 0.0)"
        )
    if tensor.is_quantized:
        return (
            "quantized tensors are not supported. Probe tensor.int_repr() for what is stored, or "
            "tensor.dequantize()"
        )
    if tensor.layout != torch.strided:
        instead = {
            torch.sparse_coo: "tensor.to_dense(), or tensor.coalesce().values()",
            torch._mkldnn: "tensor.to_dense()",
        }.get(tensor.layout, "tensor.to_dense(), or tensor.values()")
        return f"tensors of layout {tensor.layout} are not supported. Probe {instead}"
    if tensor.device.type not in ("cpu", "cuda", "meta"):
        return f"device {tensor.device} is not supported (supported: cuda, cpu)"
    return ""
