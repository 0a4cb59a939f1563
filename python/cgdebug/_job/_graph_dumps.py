"""Names the kernels of probes and of op logs in what torch writes about a graph.

CUDAGraph.debug_dump(), and export_dot() of torch 2.14 and later: nodes have a line more, "cgdebug |
probe blk3.attn (Leaf)". CUDAGraph.get_graph_data() of torch 2.13 and later: nodes have a key more,
"cgdebug", which is None for the job's own nodes.

Only graphs that torch keeps can be looked at: those of CUDAGraph(keep_graph=True), in torch 2.14
and later also those of enable_debug_mode(). Of the others torch before 2.14 writes no dump.

The first line of a dump says whether the graph can be taken apart, and if not, why not.

Costs nothing before somebody asks. Nothing that goes wrong in it reaches the job.
"""

from __future__ import annotations

import contextlib
import functools
import re
import typing

_NODE = re.compile(r'label="\{(.*?)\}"\s*\]', re.DOTALL)
_HANDLE = re.compile(r"0x0*([0-9a-fA-F]+)")
_SPECIAL = re.compile(r'([{}|<>"\\])')
_native: typing.Any = None

APART = "_cgdebug_apart"  # of a graph that is launched in pieces
KEPT = "_cgdebug_kept"  # of one that can be asked about


def watch(native, torch) -> None:
    """Requires: called once."""
    global _native
    _native = native
    graph_class = torch.cuda.CUDAGraph
    module: typing.Any = getattr(torch.cuda, "graphs", None)
    with contextlib.suppress(AttributeError, TypeError):  # a torch that is built differently
        if hasattr(module, "_dump_graph_dot"):  # of debug_dump() and of export_dot()
            module._dump_graph_dot = _named_dump(module._dump_graph_dot)
        else:
            graph_class.debug_dump = _named_dump(graph_class.debug_dump)
        if hasattr(graph_class, "get_graph_data"):
            graph_class.get_graph_data = _named_data(graph_class.get_graph_data)


def annotate_dot(text: str, names: dict[int, str]) -> str:
    """Adds the names to the nodes of a graph that CUDA described with all details. names: by
    handle, which is an address."""

    def with_name(match: re.Match) -> str:
        body = match[1]
        for handle in _HANDLE.findall(body):
            name = names.get(int(handle, 16))
            if name is not None:
                added = "| {cgdebug | " + _SPECIAL.sub(r"\\\1", name) + "}\n"
                return match[0].replace(body, body + added, 1)
        return match[0]

    return _NODE.sub(with_name, text) if names else text


def annotate_data(data: dict, names: dict[int, str]) -> None:
    """Adds the names to the nodes of a graph. names: by place."""
    for node in data["nodes"]:
        node["cgdebug"] = names.get(node["index"])


def census_text(graph) -> str:
    """Whether a graph can be taken apart, as a clause."""
    own = getattr(graph, KEPT, None) or getattr(graph, APART, None)
    if own is None and not (hasattr(graph, KEPT) or hasattr(graph, APART)):
        return "it is not taken apart: nobody asked for it. Type: cgdebug-cli run --ask -- COMMAND"
    if own is None:
        return (
            "it is not taken apart: its program keeps it (keep_graph=True), and may change it or "
            "launch it in another way"
        )
    if own.why_not_apart:
        return f"it cannot be taken apart: {own.why_not_apart}"
    return "it can be taken apart" + f", but {own.opaque}" * bool(own.opaque)


def _named_dump(dump):
    @functools.wraps(dump)
    def named_dump(graph, path, *args, **kwargs):
        result = dump(graph, path, *args, **kwargs)
        with contextlib.suppress(Exception):
            names = {handle: name for handle, _, name in _nodes_of(graph)}
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                text = annotate_dot(file.read(), names)
            text = f"// cgdebug: {census_text(graph)}\n{text}"
            with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
        return result

    return named_dump


def _named_data(get):
    @functools.wraps(get)
    def get_graph_data(self, *args, **kwargs):
        data = get(self, *args, **kwargs)
        with contextlib.suppress(Exception):
            annotate_data(data, {place: name for _, place, name in _nodes_of(self)})
        return data

    return get_graph_data


def _nodes_of(graph) -> list[tuple[int, int, str]]:
    """(handle, place, name) of the kernels that are ours. Fails if torch keeps no graph."""
    method = type(graph).raw_cuda_graph
    raw = getattr(method, "__wrapped__", method)(graph)  # ours notes that others may launch it
    return _native.named_nodes(graph=raw)
