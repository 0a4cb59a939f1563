"""cgdebug in frameworks that own the training loop or the model. Each module does nothing unless
CGDEBUG_WATCH is set; those of vLLM and SGLang also label graphs and declare KV caches for what else
looks at graphs, such as CGDEBUG_REWIND.

    lightning       by entry point: every Trainer gets CgdebugCallback
    transformers    Trainer(..., callbacks=[CgdebugCallback()])
    accelerate, megatron  when they are imported: the steps of their training loops
    continuous_batching   that of transformers: nothing is needed but the variable
    vllm, sglang    by entry point: the model of every worker is watched

They watch the model before it is compiled and captured, name the step of each snapshot and, where
the framework captures a graph per batch size, label the graphs.
"""

import importlib

_MODULES = ("continuous_batching", "lightning", "sglang", "torch_debug", "transformers", "vllm")


def __getattr__(name: str):
    """Each is imported when it is named: it imports its framework."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *_MODULES})
