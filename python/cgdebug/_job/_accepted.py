"""Which names and tensors a probe accepts, and why it refuses others."""

from __future__ import annotations

import sys

import torch

from .._shared import _words
from .._shared._dtypes import table
from . import _native


def check_name(name) -> None:
    if not isinstance(name, str):
        raise TypeError(f"a probe's name must be a str, not {type(name).__name__}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"a probe's name must be text that UTF-8 can hold: {name!r}") from None
    _words.check_probe_name(name)


def make_name(text: str) -> str:
    """A valid name made from any text. Keeps the end of a long one."""
    return _words.make_probe_name(text.encode(errors="replace").decode())


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


def refusal_of(probe: str, tensor: torch.Tensor, error: RuntimeError) -> ValueError | None:
    """What the op refused, from the error that torch made of it; None if it is another one."""
    if isinstance(error, NotImplementedError):  # of torch's dispatcher, whose text names no probe
        return ValueError(
            f"probe {probe!r}: a {type(tensor).__name__} is not supported: torch does not know how "
            f"to give it to a probe ({str(error).splitlines()[0]}). Probe the tensors that it holds"
        )
    # torch 2.15 and later drop the type of an op's exception.
    return ValueError(str(error)) if _native.op_refused() else None


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
    return why_without_values(tensor)


def why_without_values(tensor: torch.Tensor) -> str:
    """Of a meta or fake tensor that nobody traces with, the sentence that says so; else empty."""
    if tensor.is_meta:
        kind = "meta tensors"
    elif type(tensor) is not torch.Tensor and _is_fake(tensor):
        kind = "fake tensors"
    else:
        return ""
    return "" if is_tracing() else f"{kind} are not supported: they have no values"


def _is_fake(tensor: torch.Tensor) -> bool:
    fakes = sys.modules.get("torch._subclasses.fake_tensor")  # which makes them
    return fakes is not None and fakes.is_fake(tensor)


def is_tracing() -> bool:
    """Whether tensors have no values, because a compiler or DTensor asks what an op would do."""
    keys = torch._C._TorchDispatchModeKey
    return any(
        torch._C._get_dispatch_mode(key) is not None
        for key in (keys.FAKE, keys.FUNCTIONAL, keys.PROXY)
    )
