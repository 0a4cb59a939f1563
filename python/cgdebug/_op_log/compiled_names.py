"""Which module and which line an op of compiled code came from.

A graph of torch.fx says it of each node. Code of Inductor names its nodes in a comment above each
kernel: what Dynamo called them in a forward graph, what AOTAutograd calls them in a backward one.
So what the nodes of a graph were is kept while Inductor compiles it, for the code that comes of it.
Code that another process compiled has the nodes of Dynamo's graph, and in backward none.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import re
import sys
import threading
import types
import typing
import weakref

import torch

from .._shared import _site, _torch_logs

_COMMENT = re.compile(r"^\s*(?:#|//) (?:Topologically Sorted|Unsorted) Source Nodes: \[(.*?)\], ")
_KERNEL = re.compile(r"^\s*(?:[\w.]+\.run\(|extern_kernels\.|torch\.ops\.)")
_FRAME = re.compile(r'^\s*File "(.*)", line (\d+), in (.*)$')
_MAX_NODES = 1 << 16  # of one graph


class Node(typing.NamedTuple):
    """path: of its module, from the module that was compiled: "layers.0.q"; empty: that itself
    op:   "relu"
    lines: (site, code) of the stack, the innermost first
    """

    path: str
    op: str
    lines: tuple[tuple[str, str], ...] = ()


Nodes = typing.Dict[str, Node]  # noqa: UP006


class _Thread(threading.local):
    def __init__(self):
        self.compiling: list[tuple[Nodes, bool]] = []  # and whether they are AOTAutograd's
        self.running: list[object] = []  # code of Inductor, the innermost last


_thread = _Thread()
_graphs: weakref.WeakKeyDictionary[torch.nn.Module, list[Node | None]] = weakref.WeakKeyDictionary()
_codes: dict[int, tuple[weakref.ref, Nodes]] = {}  # by id of the compiled code


# --- graphs ---------------------------------------------------------------------------------------


def node_of_graph(frame: types.FrameType) -> Node | None:
    """The node that the frame, of the code of a torch.fx.GraphModule, runs."""
    graph = frame.f_locals.get("self")
    lines = getattr(graph, "_lineno_map", None)
    if not isinstance(graph, torch.fx.GraphModule) or not lines:
        return None
    place = lines.get(frame.f_lineno - (getattr(graph, "_prologue_start", None) or 0))
    nodes = _graphs.get(graph)
    if nodes is None:
        nodes = _graphs[graph] = [_node(one) for one in graph.graph.nodes]
    return nodes[place] if place is not None and place < len(nodes) else None


def _node(node: torch.fx.Node) -> Node | None:
    """None if nothing is known of where it came from."""
    if "stack_trace" not in node.meta and "nn_module_stack" not in node.meta:
        return None
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    entries = list(stack.values())
    path = relative_path(str(entries[-1][0])) if entries else ""
    target = node.target
    schema = getattr(target, "_schema", None)
    op = str(schema.name if schema is not None else getattr(target, "__name__", target))
    return Node(path, op.partition("::")[2] or op, _lines(node.meta.get("stack_trace") or ""))


def relative_path(text: str) -> str:
    """ "layers.0.q" of "L['self'].layers.0.q" and of "L['self']._modules['layers'][0].q"."""
    text = re.sub(r"^[LG]\['[^']*'\]|^L__\w+?__", "", text)
    text = text.replace("._modules", "")
    text = re.sub(r"\[['\"]?([^\]'\"]*)['\"]?\]", r".\1", text)
    return text.strip(".")


@functools.lru_cache(maxsize=1 << 14)
def _lines(trace: str) -> tuple[tuple[str, str], ...]:
    """Of a "stack_trace" of torch.fx, without what lies in torch."""
    found: list[tuple[str, str]] = []
    lines = trace.splitlines()
    for number, line in enumerate(lines):
        match = _FRAME.match(line)
        if match is None or _site.is_of_library(match[1]):
            continue
        code = lines[number + 1].strip() if number + 1 < len(lines) else ""
        if _FRAME.match(code):
            code = ""
        found.append((_site.text_at(match[1], int(match[2]), match[3]), code))
    return tuple(reversed(found))


# --- code of Inductor -----------------------------------------------------------------------------


def nodes_of_inductor(frame: types.FrameType) -> list[Node]:
    """The nodes that a kernel was made of, which the frame of Inductor's code calls."""
    code = _thread.running[-1] if _thread.running else None
    known = _codes.get(id(code))
    if known is None or known[0]() is not code:
        return []
    names = _names_above(frame.f_code.co_filename, frame.f_lineno)
    return [known[1][name] for name in names if name in known[1]]


@functools.lru_cache(maxsize=1 << 14)
def _names_above(file: str, line: int) -> tuple[str, ...]:
    """Of the nearest comment above a line that belongs to the same kernel."""
    is_first = True
    for number in range(line, max(line - 60, 0), -1):
        text = linecache.getline(file, number)
        match = _COMMENT.match(text)
        if match is not None:
            return tuple(name.strip() for name in match[1].split(",") if name.strip())
        if not is_first and _KERNEL.match(text):
            return ()
        is_first = False
    return ()


def wrap_compiler(module) -> None:
    """From now on the nodes of what `module`, torch._inductor.compile_fx, compiles are kept."""
    _wrap_code(sys.modules.get("torch._inductor.output_code"))
    for name, is_aot in (("compile_fx", False), ("_compile_fx_inner", True)):
        original = getattr(module, name, None)
        if original is not None:
            setattr(module, name, _kept(original, is_aot))


def _kept(original, is_aot: bool):
    @functools.wraps(original)
    def compile_graph(graph, *args, **kwargs):
        nodes = _nodes_by_name(graph, is_aot)
        if not is_aot:
            _tell_probes(graph)
        if nodes is None:
            return original(graph, *args, **kwargs)
        _thread.compiling.append((nodes, is_aot))
        try:
            code = original(graph, *args, **kwargs)
        finally:
            _thread.compiling.pop()
        if is_aot:
            _remember(code, nodes)
        return code

    return compile_graph


def _tell_probes(graph) -> None:
    """Tells torch's tools of the probes in a graph that Dynamo made."""
    with contextlib.suppress(Exception):  # the compiler goes on
        probes = [one for one in graph.graph.nodes if str(one.target).startswith("cgdebug.observe")]
        if probes:
            lines = [_lines(one.meta.get("stack_trace") or "") for one in probes]
            _torch_logs.compiled(
                [
                    {"node": one.name, "site": known[0][0] if known else ""}
                    for one, known in zip(probes, lines)
                ]
            )


def _wrap_code(module) -> None:
    """What comes from a cache was not compiled here: it has the nodes of Dynamo's graph."""
    kind = getattr(module, "CompiledFxGraph", None)
    original = getattr(kind, "post_compile", None)
    if kind is None or original is None:
        return

    @functools.wraps(original)
    def post_compile(self, *args, **kwargs):
        if _thread.compiling and not _thread.compiling[-1][1] and not _is_backward(self):
            _remember(self, _thread.compiling[-1][0])
        return original(self, *args, **kwargs)

    kind.post_compile = post_compile
    call = kind.__call__

    @functools.wraps(call)
    def run(self, *args, **kwargs):
        _thread.running.append(self)  # a capture may begin inside, and with it a log
        try:
            return call(self, *args, **kwargs)
        finally:
            _thread.running.pop()

    kind.__call__ = run


def _is_backward(code) -> bool:
    options = getattr(code, "fx_kwargs", None) or {}
    return bool(options.get("is_backward", True))


def _nodes_by_name(graph, is_aot: bool) -> Nodes | None:
    """None if there are none, or if they cannot be read."""
    try:
        if not isinstance(graph, torch.fx.GraphModule):
            return None
        nodes: Nodes = {}
        for node in graph.graph.nodes:
            if node.op in ("placeholder", "output", "get_attr") or len(nodes) >= _MAX_NODES:
                continue
            origin = node.meta.get("from_node") if is_aot else None
            if (found := _node(node)) is not None:
                nodes[str(origin[0].name) if origin else node.name] = found
        return nodes
    except Exception:  # the compiler goes on; rows have no more than the module that was compiled
        return None


def _remember(code: object, nodes: Nodes) -> None:
    key = id(code)
    with contextlib.suppress(TypeError):  # not of a kind that is followed
        _codes[key] = (weakref.ref(code, lambda _: _codes.pop(key, None)), nodes)
