"""Captured programs with nodes that CUDA does not leave out of a launch of their graph, or that
must run with others in one. Each multiplies in front of them, and adds behind them."""

import captured_loop
import torch
import torch.nn.functional as F
from captured_loop import done, driver


class Program:
    """body(program, y): captured between mul_0 and add_0, with y = x * 2."""

    def __init__(self, body, keep_graph=False):
        self.kernels = captured_loop.load_kernels()
        self.x = torch.arange(64.0, device="cuda")
        self.between, self.total = torch.zeros(64, device="cuda"), torch.zeros(64, device="cuda")
        self.left = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.held = []
        self.graph = torch.cuda.CUDAGraph(keep_graph=keep_graph)
        F.dropout(self.x, 0.5)
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph, capture_error_mode="relaxed"):
            self.left.fill_(3)
            body(self, self.x * 2)
            self.result = torch.add(self.between, 1)
            self.total.add_(self.result)

    def replay(self):
        self.x.add_(0.25)
        self.graph.replay()

    def save(self):
        torch.cuda.synchronize()
        return [one.clone() for one in (self.x, self.between, self.total, self.result)]

    def restore(self, saved):
        for one, was in zip((self.x, self.between, self.total, self.result), saved):
            one.copy_(was)
        torch.cuda.manual_seed(3)
        torch.cuda.synchronize()


def loop(program, y):
    """Adds y to `between` three times."""
    with captured_loop.loop(program.kernels, program.left):
        program.between.add_(y)


def child(program, y):
    outer = torch.cuda.current_stream()
    side = captured_loop.another_stream(outer)
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    stream = driver.CUstream(side.cuda_stream)
    done(driver.cuStreamBeginCapture(stream, mode))
    with torch.cuda.stream(side):
        program.between.add_(y)
    graph = done(driver.cuStreamEndCapture(stream))
    into, before = captured_loop.capture_info(outer)
    node = done(driver.cuGraphAddChildGraphNode(into, before, len(before), graph))
    captured_loop.go_on_behind(outer, node)
    program.held.append(graph)


def random(program, y):
    """What draws random numbers in front of a child graph runs with it: torch prepares them in its
    launch of the graph."""
    child(program, F.dropout(y, 0.5))


def memory(program, y):
    """What lies in memory of the graph is copied there and back."""
    stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
    address = done(driver.cuMemAllocAsync(y.nbytes, stream))
    done(driver.cuMemcpyDtoDAsync(address, y.data_ptr(), y.nbytes, stream))
    done(driver.cuMemcpyDtoDAsync(program.between.data_ptr(), address, y.nbytes, stream))
    done(driver.cuMemFreeAsync(address, stream))


def event(program, y):
    """Is recorded for who waits outside of the graph; random numbers are drawn, too."""
    one = torch.cuda.Event(external=True)
    one.record()
    program.held.append(one)
    program.between.add_(F.dropout(y, 0.5))
