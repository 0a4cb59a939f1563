"""SGLang: its entry point calls register() in every process.

A forward pass without a step is one that SGLang makes by itself, to warm up or to capture.
"""

from __future__ import annotations

from .. import _auto

__all__ = ["register"]

_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
_GRAPHS = "sglang.srt.model_executor.runner"


def register() -> None:
    """Arranges that each worker watches its model when it has loaded it. Does nothing without
    CGDEBUG_WATCH."""
    if not _auto.is_wanted():
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from ..probe import graph_label, step

    def watch(result, runner, *args, **kwargs):
        _auto.look_at(runner.model)

    def name_step(runner, *args, **kwargs):
        if not getattr(runner, "is_draft_worker", False):
            step(runner.forward_pass_id + 1)  # which forward() is about to count

    def labelled(kind):
        def capture(original, runner, size, *args, **kwargs):
            with graph_label(f"{kind}={size}"):
                return original(runner, size, *args, **kwargs)

        return capture

    _auto.start()
    HookRegistry.register(f"{_RUNNER}.load_model", watch, HookType.AFTER)
    HookRegistry.register(f"{_RUNNER}.forward", name_step, HookType.BEFORE)
    decode = f"{_GRAPHS}.decode_cuda_graph_runner.DecodeCudaGraphRunner.capture_one_shape"
    prefill = f"{_GRAPHS}.prefill_cuda_graph_runner.PrefillCudaGraphRunner.capture_one_shape"
    HookRegistry.register(decode, labelled("bs"), HookType.AROUND)
    HookRegistry.register(prefill, labelled("tokens"), HookType.AROUND)
