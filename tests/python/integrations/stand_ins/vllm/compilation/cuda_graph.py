import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class BatchDescriptor:
    num_tokens: int
    num_reqs: int | None = None
    num_active_loras: int = 0


@dataclasses.dataclass
class ForwardContext:
    batch_descriptor: BatchDescriptor | None


@dataclasses.dataclass
class CUDAGraphEntry:
    cudagraph: torch.cuda.CUDAGraph | None = None
    output: torch.Tensor | None = None


context: ForwardContext | None = None


def is_forward_context_available():
    return context is not None


def get_forward_context():
    return context


class CUDAGraphWrapper:
    def __init__(self, runnable):
        self.runnable = runnable
        self.concrete_cudagraph_entries = {}

    def __call__(self, *args, **kwargs):
        if not is_forward_context_available() or get_forward_context().batch_descriptor is None:
            return self.runnable(*args, **kwargs)
        descriptor = get_forward_context().batch_descriptor
        entry = self.concrete_cudagraph_entries.setdefault(descriptor, CUDAGraphEntry())
        if entry.cudagraph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                entry.output = self.runnable(*args, **kwargs)
            entry.cudagraph = graph
            return entry.output
        entry.cudagraph.replay()
        return entry.output
