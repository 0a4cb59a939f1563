"""vLLM: its entry point calls register() in every process.

A forward pass without a step is one that vLLM makes by itself: to profile, to warm up, to capture.
"""

from __future__ import annotations

import functools
import os

from .. import _auto
from .._after_import import call_after_import

__all__ = ["register"]

_registered = False


def register() -> None:
    """Arranges that each worker watches its model when it has loaded it. Does nothing without
    CGDEBUG_WATCH."""
    global _registered
    if _registered or not _auto.is_wanted():
        return
    _registered = True
    # The key of this cache does not tell a model with probes from one without.
    os.environ.setdefault("VLLM_DISABLE_COMPILE_CACHE", "1")
    _auto.start()
    call_after_import("vllm.v1.worker.gpu_model_runner", _wrap_runner)
    call_after_import("vllm.v1.worker.gpu.model_runner", _wrap_runner)
    call_after_import("vllm.compilation.cuda_graph", _wrap_graphs)
    call_after_import("vllm.v1.worker.gpu.cudagraph_utils", _wrap_manager)


def _label(descriptor) -> str:
    """The label of a BatchDescriptor or a BatchExecutionDescriptor."""
    parts = [f"tokens={descriptor.num_tokens}"]
    if descriptor.num_reqs is not None:
        parts.append(f"reqs={descriptor.num_reqs}")
    if descriptor.num_active_loras:
        parts.append(f"loras={descriptor.num_active_loras}")
    return ",".join(parts)


def _wrap_runner(module) -> None:
    from ..probe import step

    runner = module.GPUModelRunner
    load_model, execute_model = runner.load_model, runner.execute_model

    @functools.wraps(load_model)
    def load_and_watch(self, *args, **kwargs):
        load_model(self, *args, **kwargs)
        _auto.look_at(self.get_model())

    @functools.wraps(execute_model)
    def execute_with_step(self, *args, **kwargs):
        if kwargs.get("dummy_run"):
            step(None)
        else:
            self._cgdebug_step = getattr(self, "_cgdebug_step", -1) + 1
            step(self._cgdebug_step)
        return execute_model(self, *args, **kwargs)

    runner.load_model, runner.execute_model = load_and_watch, execute_with_step


def _wrap_graphs(module) -> None:
    from ..probe import graph_label

    wrapper = module.CUDAGraphWrapper
    call = wrapper.__call__

    @functools.wraps(call)
    def call_labelled(self, *args, **kwargs):
        if module.is_forward_context_available():
            descriptor = module.get_forward_context().batch_descriptor
            entry = self.concrete_cudagraph_entries.get(descriptor)
            if descriptor is not None and (entry is None or entry.cudagraph is None):
                with graph_label(_label(descriptor)):
                    return call(self, *args, **kwargs)
        return call(self, *args, **kwargs)

    wrapper.__call__ = call_labelled


def _wrap_manager(module) -> None:
    from ..probe import graph_label

    manager = module.CudaGraphManager
    capture = manager.capture

    @functools.wraps(capture)
    def capture_labelled(self, create_forward_fn, *args, **kwargs):
        def create(descriptor, *create_args, **create_kwargs):
            forward = create_forward_fn(descriptor, *create_args, **create_kwargs)

            @functools.wraps(forward)
            def labelled(*forward_args, **forward_kwargs):
                with graph_label(_label(descriptor)):
                    return forward(*forward_args, **forward_kwargs)

            return labelled

        return capture(self, create, *args, **kwargs)

    manager.capture = capture_labelled
