"""Launches each kernel of libprobe for each dtype, in small graphs, and checks a few results.

tools/sanitize_gpu runs it under compute-sanitizer.
"""

import warnings

import torch

import cgdebug
from cgdebug import CudaGraphTensorProbe, TensorCompare, TensorRecord, TensorStats
from cgdebug._shared import _dtypes

COUNT = 40_003  # more than one block, and a rest behind the vectors
COUNTS = {torch.bfloat16: 1_100_003}  # large tensors have kernels of their own
WAYS = {
    "record": lambda _: TensorRecord(capacity=2),
    "record, skip unchanged": lambda _: TensorRecord(capacity=2, unchanged="skip"),
    "stable record": lambda _: TensorRecord(capacity=2),
    "stats": lambda _: TensorStats(),
    "stable stats": lambda _: TensorStats(),
    "compare": lambda x: TensorCompare(x.clone()),
    "compare with the first": lambda _: TensorCompare("first"),
    "device": lambda _: TensorRecord(capacity=2, where="device"),
    "armed": lambda _: TensorRecord(capacity=2, where="device", on="nan"),
}


def tensor_of(dtype, finite):
    count = COUNTS.get(dtype, COUNT)
    small = (torch.arange(count + 1, device="cuda") * 37 % 101).to(torch.float32)
    if not finite and dtype.is_floating_point:
        small[5], small[count // 2] = float("nan"), float("inf")
    if dtype is torch.float4_e2m1fn_x2:  # to which torch converts nothing
        return small.nan_to_num(7, 8).to(torch.uint8).view(dtype)
    return small.to(dtype)


def look(dtype):
    """Each way at an aligned and a misaligned tensor; then again after it has changed."""
    whole, finite = tensor_of(dtype, False), tensor_of(dtype, True)
    places = {"aligned": slice(0, -1), "not aligned": slice(1, None)}
    probes = {}
    for place, part in places.items():
        for way, action in WAYS.items():
            # A trigger that holds would stop all rings.
            x, name = (finite if way == "armed" else whole)[part], f"{dtype} {place} {way}"
            stable = way.startswith("stable")
            probe = CudaGraphTensorProbe(name, [action(x)], lane="direct", stable=stable)
            probes[name] = probe, x
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for probe, x in probes.values():
            probe(x)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    whole.view(torch.uint8)[: whole.nbytes // 2].fill_(1)
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    for name, (probe, x) in probes.items():
        if "record" in name or "device" in name:
            kept = probe.records(synchronize=True, last=1)[0].tensor
            same = torch.equal(kept.cpu().view(torch.uint8), x.cpu().view(torch.uint8))
            assert same, f"{name}: not the values of the tensor"
        probe.close()
    return len(probes)


def log_ops():
    """The rows of an op log: many tensors in a launch, some of them strided."""
    x = torch.randn(65, 33, device="cuda", requires_grad=True)
    w = torch.randn(33, 129, device="cuda", dtype=torch.float32)
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        (x @ w).sum().backward()  # loads what may not be loaded in a capture
    torch.cuda.current_stream().wait_stream(side)
    x.grad = None
    with cgdebug.debug_mode(), torch.cuda.graph(graph):
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            y = (x @ w).to(dtype)
            y.t().mul(2).narrow(0, 3, 50).add(1)
            (y > 0).to(torch.int32).add(1)
        (x @ w).relu().square().sum().backward()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()


def main():
    warnings.simplefilter("ignore")
    dtypes = [getattr(torch, name) for name in _dtypes.table()]
    count = sum(look(dtype) for dtype in dtypes)
    log_ops()
    print(f"every kernel: {count} probes of {len(dtypes)} dtypes, and an op log")


if __name__ == "__main__":
    main()
