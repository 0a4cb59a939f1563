"""Level "fx": probes inside the code that torch.compile makes, behind matmul and attention.

Inductor calls a pass before it fuses. Ours puts probes into the graph. A probe keeps the tensor
that it sees, so Inductor does not fuse across it: behind matmul and attention, which it calls as
they are, results stay those without probes.

Code from Inductor's cache was made in another process. The probes that it looks for are made when
it is loaded.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import operator
import pathlib
import re
import typing
import weakref

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.virtualized import V

from .._job import _native

if typing.TYPE_CHECKING:
    from ..watching import Watch

_MATMUL = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_int_mm", "convolution")
_ATTENTION = (
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
    *("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu"),
    *("_flash_attention_forward", "_efficient_attention_forward"),
)
_GRADIENTS = {  # of attention: how many of its results are gradients
    "_scaled_dot_product_flash_attention_backward": 3,
    "_scaled_dot_product_efficient_attention_backward": 4,
    "_scaled_dot_product_cudnn_attention_backward": 3,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 3,
    "convolution_backward": 3,
}
_PROBE = re.compile(r"cgdebug\.observe\.default\([^\n]*?, '(\d+:fx/[^'\n]*)'\)")
_log = logging.getLogger("cgdebug")
_passes: weakref.WeakSet[ProbePass] = weakref.WeakSet()  # of open watches
_made = 0  # passes so far


class ProbePass(CustomGraphPass):
    """Puts the probes of one watch into graphs. Goes on to the pass that was there before."""

    def __init__(self, watch: Watch, modules: typing.Iterable[str], root: str, is_wanted, grads):
        global _made
        _made += 1
        self._watch = weakref.ref(watch)
        self._modules, self._root = frozenset(modules), root
        self._is_wanted, self._grads = is_wanted, grads
        self._before = torch._inductor.config.post_grad_custom_post_pass
        # The same in every process that makes the same watches: the code has the probes' names.
        what = (_made, root, sorted(self._modules), watch._select, watch._prefix, grads)
        text = pathlib.Path(__file__).read_bytes() + repr(what).encode()
        self._uuid = hashlib.sha256(text).hexdigest()
        self.graphs = 0

    def install(self) -> None:
        torch._inductor.config.post_grad_custom_post_pass = self
        _passes.add(self)
        _wrap_loading()

    def remove(self) -> None:
        """A pass that came later goes on to call this one, which then does nothing of its own."""
        _passes.discard(self)
        config = torch._inductor.config
        if config.post_grad_custom_post_pass is self:
            config.post_grad_custom_post_pass = self._before

    def uuid(self):
        before = self._before
        if before is not None and not isinstance(before, CustomGraphPass):
            return None  # as without us: such a pass is not cached
        inner = None if before is None else before.uuid()
        if before is not None and inner is None:
            return None
        return f"cgdebug {self._uuid if self in _passes else 'closed'} {inner!r}"

    def __call__(self, graph: torch.fx.Graph) -> None:
        if self._before is not None:
            self._before(graph)
        watch = self._watch()
        if watch is None or self not in _passes or V.aot_compilation:  # a package is the job's own
            return
        try:
            self.graphs += 1
            self._insert(watch, graph)
        except Exception as error:  # the code is compiled without probes
            _log.warning("level fx: no probes in compiled code: %s", error)
            _native.not_seen("fx/*", f"no probes in compiled code: {error}")

    def _insert(self, watch: Watch, graph: torch.fx.Graph) -> None:
        counts: dict[str, int] = {}
        for node in list(graph.nodes):
            base = _base_of(node)
            wanted = base in _MATMUL or base in _ATTENTION or base in _GRADIENTS
            is_backward = node.meta.get("partitioner_tag") == "is_backward"
            if not wanted or (is_backward and not self._grads):
                continue
            module = self._module_of(node)
            if not self._is_wanted(module):
                continue
            stem = "/".join(filter(None, ["bwd" if is_backward else "", module, base]))
            number = counts[stem] = counts.get(stem, -1) + 1
            for part, value in _results(node, base):
                key = watch._fx_key(f"{stem}_{number}{part}")
                if key:
                    with graph.inserting_after(value):
                        probe = graph.call_function(torch.ops.cgdebug.observe.default, (value, key))
                    probe.meta = {
                        name: node.meta[name]
                        for name in ("stack_trace", "nn_module_stack", "partitioner_tag")
                        if name in node.meta
                    } | {"val": None}

    def _module_of(self, node) -> str:
        """The innermost module of the watched model that the node belongs to; "" if it is none."""
        stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
        for path, _ in reversed(list(stack.values())):
            parts = _parts(path)
            for first in range(len(parts)):
                if ".".join(parts[first:]) in self._modules:
                    return ".".join(parts[first:])
        return self._root if stack else ""


def _parts(path: str) -> list[str]:
    """ "L['self']._modules['layers']['0'].attn" as ["layers", "0", "attn"]."""
    rest = re.sub(r"^[LG]\['[^']*'\]", "", path)
    found = re.findall(r"\['?([^'\]]+)'?\]|([A-Za-z_0-9]+)", rest)
    return [a or b for a, b in found if (a or b) not in ("_modules", "_orig_mod")]


def _base_of(node) -> str:
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return ""
    return node.target._schema.name.rpartition("::")[2]


def _results(node, base: str):
    """(what comes behind the name, node) of the tensors that it returns."""
    if base in _MATMUL and not isinstance(node.meta.get("val"), (tuple, list)):
        yield "", node
        return
    wanted = _GRADIENTS.get(base, 1)
    for user in sorted(node.users, key=lambda one: str(one.args[1:])):
        if user.target is operator.getitem and user.args[1] < wanted:
            yield (f".{user.args[1]}" if wanted > 1 else ""), user


# --- code from the cache --------------------------------------------------------------------------


def _wrap_loading() -> None:
    """Stays for good: without a pass it does nothing."""
    from torch._inductor.codecache import PyCodeCache

    load = PyCodeCache.load_by_key_path
    if hasattr(load, "_cgdebug"):
        return

    @functools.wraps(load)
    def load_with_probes(key, path, *args, **kwargs):
        if _passes:
            _make_probes_of(path)
        return load(key, path, *args, **kwargs)

    load_with_probes._cgdebug = True  # type: ignore[attr-defined]
    PyCodeCache.load_by_key_path = staticmethod(load_with_probes)


def _make_probes_of(path: str) -> None:
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
        for key in dict.fromkeys(_PROBE.findall(text)):
            for one in list(_passes):
                watch = one._watch()
                if watch is not None and watch._fx_known(key):
                    break
    except Exception as error:  # the code runs without probes
        _log.warning("level fx: %s may have probes that see nothing: %s", path, error)
        _native.not_seen("fx/*", f"{path} may have probes that see nothing: {error}")
