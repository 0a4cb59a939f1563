"""Loops in captured graphs, made with the CUDA driver: torch before 2.12 makes none."""

import contextlib
import ctypes

import torch
from cuda.bindings import driver, nvrtc

KERNELS = r"""
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned value);
extern "C" __global__ void enter(unsigned long long handle, const int* left) {
  cudaGraphSetConditional(handle, *left > 0);
}
extern "C" __global__ void count_down(unsigned long long handle, int* left) {
  *left -= 1;
  cudaGraphSetConditional(handle, *left > 0);
}
"""


def done(answer):
    status, *values = answer
    assert int(status) == 0, status
    return values[0] if len(values) == 1 else values


def load_kernels():
    torch.zeros(1, device="cuda")
    program = done(nvrtc.nvrtcCreateProgram(KERNELS.encode(), b"kernels.cu", 0, None, None))
    done(nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=compute_80"]))
    ptx = b" " * done(nvrtc.nvrtcGetPTXSize(program))
    done(nvrtc.nvrtcGetPTX(program, ptx))
    module = done(driver.cuModuleLoadData(ptx))
    names = ("enter", "count_down")
    return {name: done(driver.cuModuleGetFunction(module, name.encode())) for name in names}


def launch(kernel, handle, left):
    stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
    values = (int(handle), left.data_ptr())
    arguments = (values, (ctypes.c_uint64, ctypes.c_void_p))
    done(driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0))


def capture_info(stream):
    """Its graph, and the nodes that what comes next depends on."""
    answer = done(driver.cuStreamGetCaptureInfo(driver.CUstream(stream.cuda_stream)))
    _, _, graph, dependencies, *_ = answer
    return graph, dependencies or []


def go_on_behind(stream, node):
    """What `stream` captures next depends on `node` alone."""
    on = driver.CUstream(stream.cuda_stream)
    done(driver.cuStreamUpdateCaptureDependencies(on, [node], None, 1, 1))


def another_stream(stream):
    """torch gives the same streams out again and again."""
    while (other := torch.cuda.Stream()) == stream:
        pass
    return other


@contextlib.contextmanager
def loop(kernels, left):
    """What is captured inside runs while *left, which it counts down, is not 0."""
    outer = torch.cuda.current_stream()
    graph, _ = capture_info(outer)
    context = done(driver.cuCtxGetCurrent())
    handle = done(
        driver.cuGraphConditionalHandleCreate(
            graph, context, 0, driver.CU_GRAPH_COND_ASSIGN_DEFAULT
        )
    )
    launch(kernels["enter"], handle, left)
    _, before = capture_info(outer)
    params = driver.CUgraphNodeParams()
    params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle = handle
    params.conditional.type = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
    params.conditional.size = 1
    params.conditional.ctx = context
    node = done(driver.cuGraphAddNode(graph, before, None, len(before), params))
    body = params.conditional.phGraph_out[0]
    go_on_behind(outer, node)
    side = another_stream(outer)
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    stream = driver.CUstream(side.cuda_stream)
    done(driver.cuStreamBeginCaptureToGraph(stream, body, None, None, 0, mode))
    try:
        with torch.cuda.stream(side):
            yield
            launch(kernels["count_down"], handle, left)
    finally:
        done(driver.cuStreamEndCapture(stream))
