"""Lets torch.compile cache compiled code that contains probes.

A compiler keeps probes in order by wrapping each in the operator `with_effects`, and Inductor
caches no code with that operator, because it cannot know what every effect does. A probe does
nothing that a cache could get wrong: the code gets a tag as its input, or holds the probe's site
key, which is the same in every process that makes the same probes, and finds the probe by it when
it runs.
"""

from __future__ import annotations

import sys
import threading

_OPS = ("cgdebug::observe", "cgdebug::observe_at", "cgdebug::note_at")
_lock = threading.RLock()
_done = False


def allow() -> None:
    """Called while a compiler traces a probe. Code that also has other effects is not cached, as
    before. Does nothing for a torch whose cache works differently."""
    global _done
    codecache = sys.modules.get("torch._inductor.codecache")
    if _done or codecache is None:
        return
    with _lock:
        if not _done:
            _done = True
            _allow(codecache)


def _allow(codecache) -> None:
    try:
        from torch._higher_order_ops.effects import with_effects

        cache, bypass = codecache.FxGraphCache, codecache.BypassFxGraphCache
        check = cache._check_for_hop
        if with_effects._cacheable:  # this torch caches it by itself
            return
    except (ImportError, AttributeError):
        return

    def check_for_hop(module) -> None:
        other = _other_effect(module, with_effects)
        if other is not None:
            raise bypass(f"Can't cache HigherOrderOperator: with_effects of {other}")
        check(module)

    cache._check_for_hop = staticmethod(check_for_hop)
    with_effects._cacheable = True


def _other_effect(module, with_effects):
    """An operator with an effect that is not a probe's, if `module` calls one."""
    for part in module.modules():
        for node in part.graph.nodes if hasattr(part, "graph") else ():
            if node.target is with_effects and node.args[1].name() not in _OPS:
                return node.args[1]
    return None
