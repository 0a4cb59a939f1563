"""The modules of a model by name, as a watch selects them."""

from __future__ import annotations

import torch

from .._job import _native

IN_SCRIPT = "TorchScript runs its code, without the hooks in it"


def modules_of(
    model: torch.nn.Module,
) -> tuple[dict[str, torch.nn.Module], dict[str, str]]:
    """The modules by name, the model itself first under its class; and further names of some of
    them. Looks through wrappers."""
    found: dict[str, torch.nn.Module] = {}
    aliases: dict[str, str] = {}
    names: dict[int, str] = {}
    waiting = [(model, "")]
    while waiting:
        module, name = waiting.pop()
        module = unwrapped(module)
        shown = name or type(module).__name__
        if id(module) in names:
            aliases[shown] = names[id(module)]
            continue
        names[id(module)] = shown
        found[shown] = module
        waiting += [
            (submodule, f"{name}.{child}" if name else child)
            for child, submodule in reversed(module._modules.items())
            if submodule is not None
        ]
    return found, aliases


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    inner: torch.nn.Module | None = module
    while inner is not None:
        module, inner = inner, None
        if isinstance(module, torch.jit.ScriptModule):
            break
        for attribute in ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"):
            inner = inner or module._modules.get(attribute)
        if inner is None and isinstance(
            module, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
        ):
            inner = module.module
    return module


def inside_scripts(found: dict[str, torch.nn.Module]) -> set[int]:
    """The ids of those modules of which TorchScript runs the code, without Python."""
    scripts = [one for one in found.values() if isinstance(one, torch.jit.ScriptModule)]
    return {id(inner) for one in scripts for inner in one.modules() if inner is not one}


def is_callable(module: torch.nn.Module) -> bool:
    if isinstance(module, torch.jit.ScriptModule):
        return True
    return type(module).forward is not torch.nn.Module.forward or "forward" in vars(module)


def is_selected(name: str, select: str) -> bool:
    try:
        return _native.recording_module().is_selected(name, select)
    except (ValueError, TypeError) as error:
        raise ValueError(f"watch: select={select!r}: {error}") from None
