"""What a watch tells Dynamo (how often it may compile) and asks it (what it has compiled)."""

from __future__ import annotations

import sys

import torch

# Without a watch, layers that are compiled one by one share their code. With a watch each has its
# own, because the names are part of the code, and Dynamo gives up after recompile_limit of them.
_recompile_limit: tuple[int, int] | None = None  # the program's value, and ours


def allow_recompiles(called: int) -> None:
    """Sets the limit for `called` places. Requires: the lock of the places."""
    global _recompile_limit
    config = _dynamo_config()
    if config is None:
        return
    before = config.recompile_limit if _recompile_limit is None else _recompile_limit[0]
    needed = before + called
    if needed > config.recompile_limit:
        config.recompile_limit = needed
        _recompile_limit = (before, needed)


def restore_recompile_limit() -> None:
    """Requires: the lock of the places."""
    global _recompile_limit
    config = _dynamo_config()
    if config is not None and _recompile_limit is not None:
        before, ours = _recompile_limit
        if config.recompile_limit == ours:  # otherwise the program has changed it
            config.recompile_limit = before
    _recompile_limit = None


def _dynamo_config():
    """None if Dynamo is not used, or its limit has another name (before torch 2.7)."""
    dynamo = sys.modules.get("torch._dynamo")
    config = getattr(dynamo, "config", None)
    return config if hasattr(config, "recompile_limit") else None


def make_no_frame_of(function) -> None:
    """Keeps Dynamo from compiling `function` by itself, as it would the hook of a model that it
    compiles without its hooks. Where code that it compiles calls `function`, it still traces it."""
    try:
        from torch._C._dynamo import eval_frame

        skip = eval_frame._FrameAction.SKIP
        strategy = eval_frame._FrameExecStrategy(skip, skip)
        eval_frame.set_code_exec_strategy(function.__code__, strategy)
    except (ImportError, AttributeError):
        pass  # an older torch compiles it, which takes time and changes nothing


def why_no_gradient() -> str:
    """Why the code that Dynamo is tracing can have no hook on a gradient in it; empty if it can."""
    from torch._dynamo import compiled_autograd, external_utils
    from torch._guards import TracingContext

    cure = "Look at the gradients of the parameters: params=True"
    if compiled_autograd.compiled_autograd_enabled:
        return f"compiled autograd fails to compile hooks on gradients. {cure}"
    if not hasattr(external_utils, "_ApplyBackwardHook"):  # torch 2.11 and some later ones
        if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 11):
            return ""
        return f"before torch 2.11 compiled code has no hooks on gradients. {cure}"
    context = TracingContext.try_get()
    shapes = getattr(getattr(context, "fake_mode", None), "shape_env", None)
    if shapes is not None and shapes.var_to_range:
        return f"torch compiles no hooks on gradients where sizes are dynamic. {cure}"
    return ""


def was_compiled(*modules: torch.nn.Module | None) -> bool:
    """Whether Dynamo has code for one of these modules, or for another of the same class."""
    if "torch._dynamo" not in sys.modules:
        return False
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    codes = [getattr(type(module).forward, "__code__", None) for module in modules if module]
    codes += [torch.nn.Module._call_impl.__code__]
    return any(_debug_get_cache_entry_list(code) for code in codes if code is not None)
