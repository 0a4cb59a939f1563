"""Sketches: of each row eight sums, by which two rows are told apart without their values.

The elements of a row are added up by their place modulo 8, each with a sign that its place alone
decides. The difference of two sketches is the sketch of the difference, and its length is that of
the difference, on average: the tug-of-war sketch of Alon, Matias and Szegedy ("The space complexity
of approximating the frequency moments", 1999) with the buckets of Charikar, Chen and Farach-Colton
("Finding frequent items in data streams", 2002).
"""

from __future__ import annotations

import torch

SUMS = 8
_EXACT = (torch.float32, torch.float16, torch.bfloat16)  # times a sign, and added up in float32
_FLOAT4 = getattr(torch, "float4_e2m1fn_x2", None)

_signs: dict[tuple[int, torch.dtype, torch.device], torch.Tensor] = {}


def of(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of [...,8] sums of the vectors of the last dimension, as integers, so that nobody
    takes a sum that is not finite for a value. What has no more elements than that in one of them
    is its own sketch. Dynamo traces this."""
    length = tensor.shape[-1] if tensor.dim() > 1 else 1
    if length <= SUMS or tensor.dtype == _FLOAT4:
        return tensor
    rows = tensor.detach()
    total = torch.float32 if rows.is_floating_point() else torch.float64
    if rows.dtype == torch.float64:
        total = torch.float64
    elif rows.dtype not in _EXACT:
        rows = rows.to(total)
    signed = rows * _signs_of(length, rows)
    if length % SUMS:
        signed = torch.nn.functional.pad(signed, (0, SUMS - length % SUMS))
    sums = signed.unflatten(-1, (-1, SUMS)).sum(-2, dtype=total)
    return sums.view(torch.int64 if total == torch.float64 else torch.int32)


def _signs_of(length: int, like: torch.Tensor) -> torch.Tensor:
    if torch.compiler.is_compiling():  # the code has no memory but its own
        return _make_signs(length, like)
    key = length, like.dtype, like.device
    if key not in _signs:
        if like.is_cuda and torch.cuda.is_current_stream_capturing():
            return _make_signs(length, like)  # in the memory of the graph
        with torch.inference_mode(False):
            signs = _make_signs(length, like)
        if like.is_cuda:
            torch.cuda.current_stream(like.device).synchronize()  # once: other streams read it, too
        _signs[key] = signs
    return _signs[key]


def _make_signs(length: int, like: torch.Tensor) -> torch.Tensor:
    """1 or -1 for each place, by a bit of a hash of it. Nothing on the way has more than 31 bits:
    Inductor computes in 32 what it finds small enough, and refuses larger constants there."""
    bits = torch.arange(1, length + 1, device=like.device)
    for low, high, shift in ((0x6F4D, 0x5A3B, 13), (0x7A2D, 0x4C95, 11), (0x5A3B, 0x6F4D, 14)):
        bits = (bits & 0x7FFF) * low ^ (bits >> 15) * high
        bits = bits ^ bits >> shift
    return (1 - 2 * (bits >> 3 & 1)).to(like.dtype)
