"""What a watch tells Dynamo (to look at hooks) and asks it (what it has compiled)."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
import typing

import torch

from .._job._after_import import call_after_import
from .._job._fail_soft import guard
from . import module_hooks

# Dynamo keeps code for a module whose hooks have changed since, and gives it to others of the
# class: a watched layer would run what was compiled for one that is not. With this switch it looks.
_IGNORES_HOOKS = "skip_nnmodule_hook_guards"
_OURS = __name__.partition(".")[0] + "."
_ignored_hooks = False  # by the program's choice, which ours has replaced


def heed_hooks(config=None) -> None:
    """While there is a watch. Requires: the lock of the places."""
    global _ignored_hooks
    config = config or _dynamo_config()
    if getattr(config, _IGNORES_HOOKS, False):
        setattr(config, _IGNORES_HOOKS, False)
        _ignored_hooks = True


def restore() -> None:
    """When there is no watch any more. Requires: the lock of the places."""
    global _ignored_hooks
    if _ignored_hooks:
        setattr(_dynamo_config(), _IGNORES_HOOKS, True)
        _ignored_hooks = False


def _dynamo_config():
    """None if Dynamo is not used."""
    return getattr(sys.modules.get("torch._dynamo"), "config", None)


def make_no_frames_of(*functions, inner: bool = False) -> None:
    """Keeps Dynamo from compiling these by themselves, as it would the hook of a model that it
    compiles without its hooks. Where code that it compiles calls them, it still traces them.
    inner: what they call is compiled by itself."""
    for function in functions:
        call_after_import("torch._dynamo", functools.partial(_make_no_frame_of, function, inner))


def _make_no_frame_of(function, inner: bool, _dynamo) -> None:
    try:
        from torch._C._dynamo import eval_frame

        actions = eval_frame._FrameAction
        strategy = eval_frame._FrameExecStrategy(
            actions.SKIP, actions.DEFAULT if inner else actions.SKIP
        )
        eval_frame.set_code_exec_strategy(function.__code__, strategy)
    except (ImportError, AttributeError):
        pass  # an older torch compiles it, which takes time and changes nothing


def before_each_compilation(action: typing.Callable[[], None]) -> None:
    """Calls action() before Dynamo traces anything. It forgets callbacks when it is reset."""
    call_after_import("torch._dynamo.callback", functools.partial(_act_before, action))


def _act_before(action, callback) -> None:
    handler = callback.callback_handler
    run = handler.run_start_callbacks

    @functools.wraps(run)
    def run_after_action(*args, **kwargs):
        with guard("before a compilation"):
            action()
        return run(*args, **kwargs)

    make_no_frames_of(run_after_action)  # Dynamo would hold its lock and wait for it
    handler.run_start_callbacks = run_after_action


def leave_out_global_hooks(*functions) -> None:
    """Of hooks on the calls of all modules: they are no frames of Dynamo, and torch.export finds
    none. With such a hook it inlines the call of what it traces, and then refuses it."""
    make_no_frames_of(*functions)
    call_after_import("torch.export._trace", _set_ours_aside)


def _set_ours_aside(trace) -> None:
    export = trace._export
    if hasattr(export, "_cgdebug_sets_aside"):
        return

    @functools.wraps(export)
    def export_without_hooks(*args, **kwargs):
        modules = torch.nn.modules.module
        of_all = (modules._global_forward_pre_hooks, modules._global_forward_hooks)
        aside = [
            {number: hook for number, hook in hooks.items() if hook.__module__.startswith(_OURS)}
            for hooks in of_all
        ]
        for hooks, ours in zip(of_all, aside, strict=True):
            for number in ours:
                del hooks[number]
        try:
            return export(*args, **kwargs)
        finally:
            for hooks, ours in zip(of_all, aside, strict=True):
                hooks.update(ours)

    export_without_hooks._cgdebug_sets_aside = True  # type: ignore[attr-defined]
    trace._export = export_without_hooks


_AHEAD_OF_TIME = "code that is compiled ahead of time has no probes"


def _leave_out_of_saved_code(dynamo_aot) -> None:
    """Code that aot_compile() makes is saved and loaded where there is no watch. Its guards may
    not ask for our hooks, so it is compiled without them. A program that filters its guards,
    as vLLM does, has none that ask."""
    compile_fullgraph = dynamo_aot.aot_compile_fullgraph

    @functools.wraps(compile_fullgraph)
    def compile_without_hooks(model, example_inputs, hooks, *args, **kwargs):
        module = getattr(model, "__self__", model)
        if hooks.guard_filter_fn or not isinstance(module, torch.nn.Module):
            return compile_fullgraph(model, example_inputs, hooks, *args, **kwargs)
        with module_hooks.aside(module, _AHEAD_OF_TIME), _hooks_are_ignored():
            return compile_fullgraph(model, example_inputs, hooks, *args, **kwargs)

    dynamo_aot.aot_compile_fullgraph = compile_without_hooks


def _ignore_hooks_of_saved_code(package) -> None:
    load = package.load_guard_manager

    @functools.wraps(load)
    def load_without_hooks(*args, **kwargs):
        with _hooks_are_ignored():
            return load(*args, **kwargs)

    package.load_guard_manager = load_without_hooks


def _hooks_are_ignored():
    config = _dynamo_config()
    known = hasattr(config, _IGNORES_HOOKS)
    return config.patch({_IGNORES_HOOKS: True}) if known else contextlib.nullcontext()


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
    from torch._dynamo import external_utils
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    codes = [getattr(type(module).forward, "__code__", None) for module in modules if module]
    codes += [torch.nn.Module._call_impl.__code__]
    # What Dynamo compiles for a module of torch's own class, such as nn.Sequential.
    constants = external_utils.wrap_inline.__code__.co_consts
    codes += [one for one in constants if isinstance(one, types.CodeType)]
    return any(_debug_get_cache_entry_list(code) for code in codes if code is not None)


call_after_import("torch._dynamo.aot_compile", _leave_out_of_saved_code)
call_after_import("torch._dynamo.package", _ignore_hooks_of_saved_code)
