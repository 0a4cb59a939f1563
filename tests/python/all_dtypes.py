"""Every dtype that can be probed, by its name, and tensors of it."""

import torch

from cgdebug._shared import _dtypes

NAMES = list(_dtypes.table())
FLOAT4 = "float4_e2m1fn_x2"
# Those to which torch converts numbers.
CONVERTED = [name for name in NAMES if name != FLOAT4]


def made_of(numbers, name):
    """`numbers` as that dtype; their bytes, if torch converts none to it."""
    dtype = getattr(torch, name)
    return numbers.to(dtype) if name in CONVERTED else numbers.to(torch.uint8).view(dtype)
