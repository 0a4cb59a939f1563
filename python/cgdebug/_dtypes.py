"""Element types of tensors, by torch's name. The C++ table is kDtypes in proto/layout/dtype.h."""

from __future__ import annotations

import typing


class Dtype(typing.NamedTuple):
    short: str  # what one line of output has room for
    safetensors: str
    # The unsigned integer of its size, for a type that NumPy has only with ml_dtypes.
    bits: str | None = None
    least_normal: float = 0.0  # the smallest normal number; 0 where none is subnormal


TABLE = {
    "bool": Dtype("b8", "BOOL"),
    "uint8": Dtype("u8", "U8"),
    "int8": Dtype("i8", "I8"),
    "int16": Dtype("i16", "I16"),
    "int32": Dtype("i32", "I32"),
    "int64": Dtype("i64", "I64"),
    "float16": Dtype("f16", "F16", None, 2.0**-14),
    "bfloat16": Dtype("bf16", "BF16", "uint16", 2.0**-126),
    "float32": Dtype("f32", "F32", None, 2.0**-126),
    "float64": Dtype("f64", "F64", None, 2.0**-1022),
    "float8_e4m3fn": Dtype("f8e4m3", "F8_E4M3", "uint8", 2.0**-6),
    "float8_e5m2": Dtype("f8e5m2", "F8_E5M2", "uint8", 2.0**-14),
}


def bits_of(name: str) -> str | None:
    return TABLE[name].bits if name in TABLE else None
