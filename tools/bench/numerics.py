#!/usr/bin/env python3
"""The daemon's arithmetic compared with a plain sum, NumPy and torch: one thread, the same memory.

  sum     a sum of the bytes as float32 in 64 lanes: what reading the memory costs
  sums    every statistic except the histogram; stats: all of them, the histogram in a second pass
  numpy, torch   calls for the same statistics (what each of them has; hash in torch only)
  compare        a pair that is equal, that differs within the tolerance, in 1 of 997 elements, everywhere

Variants are interleaved over `--rounds` rounds; medians in GB/s of one tensor, ratios of medians, and the
spread (largest over smallest) of the statistics.

Needs torch and a build: PYTHONPATH=<build>/python python3 tools/bench/numerics.py --build <build>
"""

import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import platform
import statistics
import time

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"

import numpy  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)

DTYPES = [
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "bool",
]
NUMPY_DTYPES = {"float32", "float64", "float16", "int8", "uint8", "int16", "int32", "int64", "bool"}
CPUS = ("plain", "NEON", "AVX2", "AVX-512")
PAIRS = ("equal", "close", "sparse", "everywhere")


def make(dtype, mib, generator):
    count = (mib << 20) // getattr(torch, dtype).itemsize
    if dtype == "bool":
        return torch.rand(count, generator=generator) > 0.5
    if "int" in dtype:
        top = 100 if dtype.endswith("int8") else 10000
        return torch.randint(
            0 if dtype == "uint8" else -top, top, (count,), generator=generator
        ).to(getattr(torch, dtype))
    return torch.randn(count, generator=generator).to(getattr(torch, dtype))


def numpy_stats(a):
    with numpy.errstate(all="ignore"):
        wide = a if a.dtype.kind == "f" and a.itemsize >= 4 else a.astype(numpy.float32)
        return (wide.min(), wide.max(), wide.mean(), wide.std(), numpy.abs(wide).max(),
                numpy.abs(wide).sum(), numpy.sqrt(numpy.square(wide).sum()), numpy.isnan(wide).sum(),
                numpy.isposinf(wide).sum(), numpy.isneginf(wide).sum(), (wide == 0).sum())  # fmt: skip


def torch_stats(t):
    wide = t if t.dtype in (torch.float32, torch.float64) else t.float()
    result = [*wide.aminmax(), wide.mean(), wide.std(), wide.abs().max(), wide.norm(1), wide.norm(2),
              wide.isnan().sum(), wide.isposinf().sum(), wide.isneginf().sum(), (wide == 0).sum()]  # fmt: skip
    if hasattr(torch, "hash_tensor"):
        result.append(torch.hash_tensor(wide))
    return result


def pair_of(kind, t):
    other = t.clone()
    if kind == "close":
        other = t * (1 + 2e-7)
    elif kind == "sparse":
        other[::997] += 1
    elif kind == "everywhere":
        other = t * 2
    return other


def failing(function):
    def call():
        with contextlib.suppress(AssertionError):
            function()

    return call


def measure(variants, rounds):
    """Median seconds of each, interleaved; and the spread of each."""
    times = {name: [] for name in variants}
    for _ in range(rounds):
        for name, call in variants.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return medians, {name: max(values) / min(values) for name, values in times.items()}


def stats_row(lib, dtype, mib, rounds, generator):
    tensor = make(dtype, mib, generator)
    data, count, name = tensor.data_ptr(), tensor.numel(), dtype.encode()
    out = (ctypes.c_uint64 * 64)()
    variants = {
        "sum": lambda: lib.CgdPlainSum(ctypes.c_void_p(data), ctypes.c_uint64(tensor.nbytes // 4)),
        "sums": lambda: lib.CgdSumsOnly(name, ctypes.c_void_p(data), ctypes.c_uint64(count)),
        "stats": lambda: lib.CgdComputeStats(
            name, ctypes.c_void_p(data), ctypes.c_uint64(count), out
        ),
        "torch": lambda: torch_stats(tensor),
    }
    if dtype in NUMPY_DTYPES:
        variants["numpy"] = lambda: numpy_stats(tensor.numpy())
    medians, spread = measure(variants, rounds)
    row = {"dtype": dtype, "mib": mib, "spread_stats": round(spread["stats"], 2)}
    row |= {f"{key}_gbs": round(tensor.nbytes / value / 1e9, 2) for key, value in medians.items()}
    row["of_sum"] = round(row["sums_gbs"] / row["sum_gbs"], 2)
    row["of_sum_with_histogram"] = round(row["stats_gbs"] / row["sum_gbs"], 2)
    for peer in ("numpy", "torch"):
        if peer in medians:
            row[f"x_{peer}"] = round(medians[peer] / medians["stats"], 1)
    return row


def compare_row(lib, kind, mib, rounds, generator):
    a = make("float32", mib, generator)
    b = pair_of(kind, a)
    out = (ctypes.c_uint64 * 8)()
    x, y = a.numpy(), b.numpy()
    variants = {
        "compare": lambda: lib.CgdCompare(
            b"float32", ctypes.c_void_p(a.data_ptr()), ctypes.c_void_p(b.data_ptr()),
            ctypes.c_uint64(a.numel()), ctypes.c_double(1.3e-6), ctypes.c_double(1e-5), 0, out
        ),
        "allclose": lambda: numpy.allclose(x, y, rtol=1.3e-6, atol=1e-5),
        "assert_close": failing(lambda: torch.testing.assert_close(a, b)),
    }  # fmt: skip
    medians, spread = measure(variants, rounds)
    row = {"pair": kind, "mib": mib, "spread": round(spread["compare"], 2)}
    row |= {f"{key}_ms": round(value * 1e3, 2) for key, value in medians.items()}
    for peer in ("allclose", "assert_close"):
        row[f"x_{peer}"] = round(medians[peer] / medians["compare"], 1)
    return row


def print_table(rows):
    columns = list(dict.fromkeys(key for row in rows for key in row))
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(str(row.get(column, "")) for column in columns) + " |")
    print()


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--json", type=pathlib.Path, help="where to write the figures")
    arguments = parser.parse_args()
    lib = ctypes.CDLL(arguments.build / "tools/bench/libcgdebug_bench_numerics.so")
    lib.CgdPlainSum.restype = ctypes.c_float
    lib.CgdSumsOnly.restype = ctypes.c_uint64
    generator = torch.Generator().manual_seed(1)
    result = {
        "cpu": cpu_name(),
        "vectors": CPUS[lib.CgdCpu()],
        "numpy": numpy.__version__,
        "torch": torch.__version__,
        "rounds": arguments.rounds,
        "stats": [
            stats_row(lib, dtype, arguments.mib, arguments.rounds, generator)
            for dtype in arguments.dtypes.split(",")
        ],
        "compare": [
            compare_row(lib, kind, arguments.mib, arguments.rounds, generator) for kind in PAIRS
        ],
    }
    print(f"{result['cpu']}, {result['vectors']}, one thread, {arguments.mib} MiB\n")
    print_table(result["stats"])
    print_table(result["compare"])
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
