import enum
import functools
import pkgutil


class HookType(enum.Enum):
    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"


class HookRegistry:
    hooks = []

    @classmethod
    def register(cls, target, hook, hook_type=HookType.AFTER, *, source=None):
        cls.hooks.append((target, hook, hook_type))

    @classmethod
    def apply_hooks(cls):
        for target, hook, kind in cls.hooks:
            owner, _, name = target.rpartition(".")
            owner = pkgutil.resolve_name(owner)
            setattr(owner, name, _wrapped(getattr(owner, name), hook, kind))


def _wrapped(original, hook, kind):
    @functools.wraps(original)
    def call(*args, **kwargs):
        if kind is HookType.AROUND:
            return hook(original, *args, **kwargs)
        if kind is HookType.BEFORE:
            args, kwargs = hook(*args, **kwargs) or (args, kwargs)
            return original(*args, **kwargs)
        result = original(*args, **kwargs)
        changed = hook(result, *args, **kwargs)
        return result if changed is None else changed

    return call
