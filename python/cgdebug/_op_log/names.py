"""What rows are called: "fwd/layers.3.attn/mm_2", by the phase, the module and the op."""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import os
import sys
import threading
import types
import typing
import warnings
import weakref

import torch

from .._job import _aside
from .._shared import _site
from .._watching import compiled
from . import compiled_names, models, regions
from .memory import Memory
from .written import storage_of

_MAX_NODES = 1 << 18  # whose place is remembered
_MAX_SOURCES = 32  # of a kernel


class Line(typing.NamedTuple):
    """Where the job calls an op.

    site:   "train.py:12 in forward"; empty: unknown
    code:   the text of the line, if its file can be read
    frames: where that was called, the innermost first, as many as are wanted
    region: of annotate(), record_function and NVTX, in which it is called; empty: in none
    redistributed: "S(0) -> R": the placements of the DTensor that it redistributes; empty: of none
    sources: of a kernel that a compiler fused: its ops, "layers.0.mlp/relu model.py:7 in forward"
    """

    site: str = ""
    code: str = ""
    frames: tuple[str, ...] = ()
    region: str = ""
    redistributed: str = ""
    sources: tuple[str, ...] = ()


_NO_LINE = Line()


class Place(typing.NamedTuple):
    """Where an op runs."""

    phase: str  # "fwd", "bwd", "opt", "clip", "scaler"
    module: str  # its path, the class of the model for the model itself; empty: in none
    line: Line
    stem: str = ""  # the whole name, where it does not follow from the op

    @property
    def site(self) -> str:
        return self.line.site


class _Thread(threading.local):
    def __init__(self):
        self.modules: list[tuple[int, str]] = []  # that are being called: id and path
        self.optimizers = 0  # whose step() is running, and not a closure of it
        self.last_backward = Place("bwd", "", _NO_LINE)
        self.last_node = -1  # of autograd, that this thread made


_thread = _Thread()
# Where each node of autograd came from, by its sequence number and the thread that made it. Its
# backward may run in another capture and in another thread, and tells the number alone.
_nodes: dict[int, dict[int, tuple[str, Line]]] = {}


class ModuleNames:
    """The paths of modules, and the names of their parameters. The first model has plain names.
    Another model whose names are taken has its class in front of all of them.

    frames: how many lines are wanted of each row, the one that calls the op included"""

    def __init__(self, frames: int = 1):
        self.frames = frames
        # And what is in front of their names. Other captures of the models have the same ones.
        self._models: list[tuple[str, models.ModelNames]] = []
        self._wrappers: weakref.WeakKeyDictionary[torch.nn.Module, str] = (
            weakref.WeakKeyDictionary()
        )
        self._parameters: Memory[str] = Memory()  # that somebody has asked for
        self._lazy: list[tuple[weakref.ref, str]] = []  # parameters without memory yet
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()  # that stepped
        self._roots: set[str] = set()  # paths of models
        self._last_layer = ""  # that compiled code ran
        self._lock = threading.RLock()

    def add_model(self, model: torch.nn.Module) -> None:
        with self._lock:
            found = models.names_of(model)
            root = found.model()
            known = None if root is None else self._known_path(root)
            if known is not None:  # called through a wrapper, such as that of torch.compile
                if root is not model:
                    self._wrappers[model] = known
                return
            for number in itertools.count():
                prefix = ("", f"{found.root}.")[number] if number < 2 else f"{found.root}_{number}."
                if not self._has_any(prefix, found.names):
                    break
            self._models.append((prefix, found))
            self._roots.add(prefix + found.root)
            self._lazy += [(reference, prefix + name) for reference, name in found.lazy]

    def _has_any(self, prefix: str, names: typing.Iterable[str]) -> bool:
        """Whether a module of the models so far has such a path."""
        return bool(self._models) and any(
            name in one.names for path in names for one, name in self._parts_of(prefix + path)
        )

    def _parts_of(self, path: str) -> typing.Iterator[tuple[models.ModelNames, str]]:
        """Each model to which the path may belong, and the name in it."""
        for prefix, one in self._models:
            if path.startswith(prefix):
                yield one, path[len(prefix) :]

    def _known_path(self, module: torch.nn.Module) -> str | None:
        for prefix, one in reversed(self._models):
            if (name := one.paths.get(module)) is not None:
                return prefix + name
        return self._wrappers.get(module)

    def _owner(self, path: str) -> tuple[weakref.ref, str] | None:
        """The model that has a module with this path, and the module's name in it."""
        parts = list(self._parts_of(path))
        for one, name in parts:
            if name in one.names:
                return one.model, name
        for one, name in parts:
            if name in one.aliases:
                return one.model, name
        return None

    def _other_paths(self, path: str) -> list[str]:
        """Of a module that has several."""
        for prefix, one in self._models:
            others = one.others.get(path[len(prefix) :]) if path.startswith(prefix) else None
            if others:
                return [prefix + name for name in others]
        return []

    def _name_lazy(self) -> None:
        """Parameters of lazy modules have memory after the first call."""
        with self._lock:
            waiting, self._lazy = self._lazy, []
            for reference, name in waiting:
                tensor = reference()
                tensor = getattr(tensor, "_local_tensor", tensor)
                if tensor is not None and torch.nn.parameter.is_lazy(tensor):
                    self._lazy.append((reference, name))
                elif tensor is not None and self._name_at(tensor) is None:
                    self._parameters.set(tensor, name)

    def models(self) -> list[tuple[str, torch.nn.Module]]:
        """Those that live, and what is in front of the names of their modules."""
        with self._lock:
            known = {prefix: one.model() for prefix, one in self._models}
        return [(prefix, model) for prefix, model in known.items() if model is not None]

    def models_and_optimizers(self) -> tuple[frozenset, frozenset[int]]:
        """Equal for those that name the same tensors."""
        known = frozenset((prefix, id(model)) for prefix, model in self.models())
        return known, frozenset(map(id, self.optimizers))

    def parameter_at(self, tensor: torch.Tensor) -> str:
        """The name of the parameter whose memory it is; empty if it is no parameter's."""
        if self._lazy:
            self._name_lazy()
        return self._name_at(tensor) or ""

    def _name_at(self, tensor: torch.Tensor) -> str | None:
        known = self._parameters.get(tensor)
        if known is not None:
            return known
        for prefix, one in self._models:
            name = one.parameters.peek(tensor)
            if name is not None:
                self._parameters.set(tensor, prefix + name)
                return prefix + name
        return None

    def owner_at(self, tensor: torch.Tensor) -> str:
        """The one module whose parameter's memory it is; empty: none, or one that several have."""
        path = self.parameter_at(tensor).rpartition(".")[0]
        return "" if self._other_paths(path) else path

    def inner_path(self, path: str, arguments: typing.Iterable[object]) -> str:
        """The module inside that of `path` to which an op belongs that compiled code calls: no hook
        runs for the modules in it. It is the one whose parameter the op reads, or that an argument
        names. Without either, it is the layer that ran before: the module with a number."""
        is_root = not path or path in self._roots
        for one in arguments:
            if isinstance(one, torch.Tensor):
                inner = self.owner_at(one)
            else:  # vLLM's ops of attention are given the name of their layer
                text = getattr(one, "value", one)
                inner = text if isinstance(text, str) and self._owner(text) else ""
            if inner and (is_root or inner == path or inner.startswith(f"{path}.")):
                self._last_layer = layer_of(inner)
                return inner
        last = self._last_layer
        return last if last and (is_root or last.startswith(f"{path}.")) else path

    def path_inside(self, base: str, path: str) -> str:
        """The module with this path inside of that of `base`; empty if it is not known."""
        if not path:
            return base
        model = base.rpartition(".")[0] if base in self._roots else base
        for one in (f"{model}.{path}" if model else path, path):
            if self._owner(one):
                return one
        return ""

    def ran(self, path: str) -> None:
        """Compiled code has run an op of this module."""
        self._last_layer = layer_of(path) or self._last_layer

    def owner_of(self, path: str) -> tuple[torch.nn.Module | None, str]:
        """The model that the path belongs to, and the module's name in that model."""
        reference, name = self._owner(path) or (None, path)
        return (None if reference is None else reference()), name

    def path_of(self, module: torch.nn.Module) -> str:
        with self._lock:
            path = self._known_path(module)
            if path is None and _is_generated(module):
                return _thread.modules[-1][1] if _thread.modules else ""
            if path is None and not _thread.modules:
                self.add_model(module)
                path = self._known_path(module)
            if path is None:  # a wrapper, or made while its parent runs
                path = _thread.modules[-1][1] if _thread.modules else type(module).__name__
            if _thread.modules:
                parent = _thread.modules[-1][1]
                for other in self._other_paths(path):
                    if other.rpartition(".")[0] == parent:
                        return other
            return path


def layer_of(path: str) -> str:
    """The layer that the module lies in, "model.layers.3": up to its first number; empty: none."""
    parts = path.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else ""


def _is_generated(module: torch.nn.Module) -> bool:
    """Whether a compiler made it of a function: the parameters are arguments then."""
    is_graph = isinstance(module, torch.fx.GraphModule)
    return is_graph and next(module.parameters(), None) is None


_hooks: set[ModuleHooks] = set()  # that are in force


class ModuleHooks:
    """Follows which module and which optimizer runs, in every thread, by hooks that no module sees.
    They are there while ops are logged."""

    def __init__(
        self,
        names: ModuleNames,
        on_begin: typing.Callable[[torch.nn.Module], None] | None = None,
    ):
        """on_begin: before the call of a module that is in no other, on its thread."""
        from torch.nn.modules import module as hooks
        from torch.optim import optimizer

        self._names, self._on_begin = names, on_begin
        self._handles = [
            hooks.register_module_forward_pre_hook(self._before_call),
            hooks.register_module_forward_hook(self._after_call, always_call=True),
            optimizer.register_optimizer_step_pre_hook(self._before_step),
            optimizer.register_optimizer_step_post_hook(self._after_step),
        ]
        # Global hooks work on an OptimizedModule: the warning does not apply.
        warnings.filterwarnings("ignore", r"Using `torch.compile\(module\)` when there are global ")
        if not _hooks:  # what was left by a call that went on after the last hooks were removed
            _thread.modules = []
            _thread.optimizers = 0
        _hooks.add(self)
        _thread.last_node = torch.autograd._get_sequence_nr() - 1

    def remove(self) -> None:
        _hooks.discard(self)
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def enter(self, module: torch.nn.Module) -> None:
        """The module's call has begun, and its hooks were chosen before these were there."""
        self._before_call(module, ())

    def _before_call(self, module, args) -> None:
        if torch.compiler.is_compiling() or self not in _hooks:  # removed while the call begins
            return
        _aside.call(self._begin, module)

    def _begin(self, module) -> None:
        if not _thread.modules:  # the first of several logs tells all: then the thread is in one
            for one in list(_hooks):
                if one._on_begin is not None:
                    one._on_begin(module)
        try:
            path = self._names.path_of(module)
        except Exception:  # the job goes on; the row has no module then
            path = ""
        if not _thread.modules:  # a step that raised has no end; its closure counts none
            _thread.optimizers = 0
        _thread.modules.append((id(module), path))

    def _after_call(self, module, args, output) -> None:
        if torch.compiler.is_compiling():
            return
        stack = _thread.modules
        if any(one == id(module) for one, _ in stack):
            while stack.pop()[0] != id(module):
                pass

    def _before_step(self, optimizer, args, kwargs):
        if torch.compiler.is_compiling():
            return None
        _thread.optimizers += 1
        self._names.optimizers.add(optimizer)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure) or hasattr(closure, "_cgdebug_closure"):
            return None
        closure = _outside_step(closure)
        return (
            ((args[0], closure, *args[2:]), kwargs)
            if len(args) > 1
            else (args, {**kwargs, "closure": closure})
        )

    def _after_step(self, optimizer, args, kwargs) -> None:
        if not torch.compiler.is_compiling():
            _thread.optimizers = max(0, _thread.optimizers - 1)


compiled.leave_out_global_hooks(
    ModuleHooks._before_call,
    ModuleHooks._after_call,
    ModuleHooks._before_step,
    ModuleHooks._after_step,
)


def _outside_step(closure):
    """What an optimizer calls in the middle of its step is no part of it."""

    @functools.wraps(closure, updated=())
    def run(*args, **kwargs):
        inside, _thread.optimizers = _thread.optimizers, 0
        try:
            return closure(*args, **kwargs)
        finally:
            _thread.optimizers = inside

    typing.cast(typing.Any, run)._cgdebug_closure = True
    return run


def is_running(module: torch.nn.Module) -> bool:
    """Whether this thread is inside a call of it that hooks have seen."""
    return any(one == id(module) for one, _ in _thread.modules)


def is_inside() -> bool:
    """Whether this thread is inside a call of any module that hooks have seen."""
    return bool(_thread.modules)


def current_place(names: ModuleNames, arguments: typing.Iterable[object] = ()) -> Place:
    """Where the op runs that is being dispatched on this thread."""
    module = _thread.modules[-1][1] if _thread.modules else ""
    line, phase, is_compiled, nodes = _line_of_op(names.frames)
    if torch._C._current_graph_task_id() != -1:
        place = _backward_place(names, module, line)
        if is_compiled and not place.stem:
            place = _place_inside(names, place, nodes, arguments)
        return place
    if _thread.optimizers:
        return Place("opt", module, line)
    _remember_node(torch.autograd._get_sequence_nr() - 1, module, line)
    place = Place("fwd", module, line)
    if is_compiled:
        place = _place_inside(names, place, nodes, arguments)
    return place._replace(phase="fwd" if place.module else phase)


def _place_inside(
    names: ModuleNames,
    place: Place,
    nodes: list[compiled_names.Node],
    arguments: typing.Iterable[object],
) -> Place:
    """The place of an op in code that a compiler made of these nodes. The last of them is what the
    op computes."""
    if not nodes:
        return place._replace(module=names.inner_path(place.module, arguments))
    paths = [names.path_inside(place.module, one.path) for one in nodes]
    module = paths[-1] or names.inner_path(place.module, arguments)
    names.ran(module)
    line = place.line
    if nodes[-1].lines:
        (site, code), *callers = nodes[-1].lines
        texts = [f"{one}: {text}" if text else one for one, text in callers[: names.frames - 1]]
        line = line._replace(site=site, code=code, frames=tuple(texts))
    if len(nodes) > 1:
        sources = [
            f"{path or place.module}/{one.op}" + (f" {one.lines[0][0]}" if one.lines else "")
            for path, one in zip(paths, nodes)
        ]
        line = line._replace(sources=tuple(dict.fromkeys(sources))[:_MAX_SOURCES])
    return place._replace(module=module, line=line)


def _remember_node(number: int, module: str, line: Line) -> None:
    # Several ops may see this number as the last one; the first of them made the node.
    if number == _thread.last_node:
        return
    _thread.last_node = number
    if len(_nodes) >= _MAX_NODES:
        for old in list(itertools.islice(_nodes, _MAX_NODES // 2)):
            _nodes.pop(old, None)
    _nodes.setdefault(number, {})[threading.get_ident()] = (module, line)


def _maker_of(node) -> tuple[str, Line]:
    """The module and line that made a node of autograd; nothing where threads disagree."""
    try:
        makers = {*_nodes.get(node._sequence_nr(), {}).values()}
    except AttributeError:
        makers = set()
    return makers.pop() if len(makers) == 1 else ("", _NO_LINE)


def _backward_place(names: ModuleNames, module: str, line_of_op: Line) -> Place:
    node = torch._C._current_autograd_node()
    if node is None:  # a sum of gradients, between two nodes
        last = _thread.last_backward
        return Place("bwd", last.module, last.line, _joined("bwd", last.module, "gradsum"))
    variable = getattr(node, "variable", None)
    if variable is not None:  # AccumulateGrad
        variable = getattr(variable, "_local_tensor", variable)
        name = names.parameter_at(variable)
        return Place("bwd", "", _NO_LINE, f"grad/{name}" if name else "")
    known = _maker_of(node)
    if module:  # checkpointing runs the forward pass again
        _remember_node(torch.autograd._get_sequence_nr() - 1, module, known[1])
    line = known[1]._replace(region=regions.current() or known[1].region)
    if isinstance(node, torch.autograd.function.BackwardCFunction) and _is_in_own_backward():
        line = line_of_op
    place = Place("bwd", module or known[0], line)
    _thread.last_backward = place
    return place


def _is_in_own_backward() -> bool:
    """Whether the program's own code for a torch.autograd.Function calls the op, and not code of
    torch alone."""
    frame: types.FrameType | None = sys._getframe(1)
    torch_folder = os.path.dirname(torch.__file__) + os.sep
    is_own = False
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(torch_folder):
            name = file[len(torch_folder) :]
            if name == os.path.join("autograd", "function.py"):
                return is_own
            if name == os.path.join("autograd", "graph.py"):  # runs the backward pass
                return False
        elif not is_own:
            code, _ = _code_of(file, frame.f_globals.get("__name__"))
            is_own = code is _Code.PROGRAMS
        frame = frame.f_back
    return False


class Counter:
    """Numbers the ops of one name, so that an op that is added elsewhere renames none."""

    def __init__(self):
        self._counts: collections.Counter[str] = collections.Counter()

    def peek(self, place: Place, base: str) -> str:
        return self._name(place, base, self._counts[self._key(place, base)])

    def take(self, place: Place, base: str) -> str:
        key = self._key(place, base)
        self._counts[key] += 1
        return self._name(place, base, self._counts[key] - 1)

    @staticmethod
    def _key(place: Place, base: str) -> str:
        return place.stem or _joined(place.phase, place.module, base)

    def _name(self, place: Place, base: str, number: int) -> str:
        key = self._key(place, base)
        is_gradient = key.startswith("grad/")
        return key if is_gradient and number == 0 else f"{key}_{number}"


def _joined(*parts: str) -> str:
    return "/".join(filter(None, parts))


# By the end of the file in torch that an op is called from, unless it is called by a module.
_PHASES = {"clip_grad.py": "clip", "grad_scaler.py": "scaler"}


def _line_of_op(frames: int) -> tuple[Line, str, bool, list[compiled_names.Node]]:
    """The innermost line that is neither cgdebug's, nor torch's, nor of code that was generated,
    with what called it, `frames` of them in all; the phase of what was called there; and whether
    such code of a compiler calls the op, and of which nodes it was made."""
    phase = "fwd"
    frame: types.FrameType | None = sys._getframe(1)
    is_generated = False
    nodes: list[compiled_names.Node] = []
    redistributed = ""
    while frame is not None:
        file = frame.f_code.co_filename
        code, name = _code_of(file, frame.f_globals.get("__name__"))
        if code is _Code.INDUCTORS:
            is_generated = True
            nodes = nodes or compiled_names.nodes_of_inductor(frame)
        elif code is _Code.GRAPHS:
            is_generated = True
            if not nodes and (node := compiled_names.node_of_graph(frame)) is not None:
                nodes = [node]
        elif code is _Code.PROGRAMS:
            line = Line(
                _site.text_of(frame),
                _site.code_at(file, frame.f_lineno),
                _site.callers_of(frame, frames - 1) if frames > 1 else (),
                regions.current(),
                redistributed,
            )
            return line, phase, is_generated, nodes
        if name is not None:
            phase = _PHASES.get(name, phase)
            if name == "_redistribute.py" and not redistributed:
                redistributed = _redistribution_in(frame)
        frame = frame.f_back
    line = _NO_LINE._replace(region=regions.current(), redistributed=redistributed)
    return line, phase, is_generated, nodes


def _redistribution_in(frame: types.FrameType) -> str:
    """What a frame of torch.distributed.tensor._redistribute changes; empty: it changes nothing."""
    if frame.f_code.co_name != "redistribute_local_tensor":
        return ""
    specs = [frame.f_locals.get(name) for name in ("current_spec", "target_spec")]
    texts = [placements_of(spec) for spec in specs]
    return " -> ".join(texts) if all(texts) else ""


def placements_of(spec: object) -> str:
    """ "S(0),R", one for each dimension of the mesh; empty without any."""
    placements = getattr(spec, "placements", None) or ()
    return ",".join("".join(str(one).split()) for one in placements)


class _Code(enum.Enum):
    """Whose code a frame runs."""

    INDUCTORS = enum.auto()  # its files may lie in a folder that the job chose
    # Of a torch.fx.GraphModule, or what a program wrote and ran as a text in no module's namespace,
    # as vLLM does with such a graph.
    GRAPHS = enum.auto()
    LIBRARYS = enum.auto()  # cgdebug's or torch's, or other code without a file
    PROGRAMS = enum.auto()


_LIBRARIES = (_site.OWN, os.path.dirname(torch.__file__) + os.sep)
_TOLD_BY_NAME = (*_PHASES, "_redistribute.py")


@functools.lru_cache(maxsize=4096)
def _code_of(file: str, module: object) -> tuple[_Code, str | None]:
    """Of a frame with this file and `__name__`; and the file's name, if something is told by it."""
    name = os.path.basename(file)
    told = name if name in _TOLD_BY_NAME else None
    if isinstance(module, str) and module.startswith("torch._inductor.runtime.compile_tasks."):
        return _Code.INDUCTORS, told
    if file.startswith("<eval_with_key>") or (file == "<string>" and module is None):
        return _Code.GRAPHS, told
    if file.startswith(_LIBRARIES) or _site.is_generated(file):
        return _Code.LIBRARYS, told
    return _Code.PROGRAMS, told


def is_compiled_memory(storage: int) -> bool:
    """Whether code that a compiler made calls the op, and has allocated the memory by itself. The
    outermost such code decides: what it is given was there before."""
    frame: types.FrameType | None = sys._getframe(1)
    is_own = False
    while frame is not None:
        code, _ = _code_of(frame.f_code.co_filename, frame.f_globals.get("__name__"))
        if code in (_Code.GRAPHS, _Code.INDUCTORS):
            names = [
                name
                for name, one in frame.f_locals.items()
                if isinstance(one, torch.Tensor) and storage_of(one) == storage
            ]
            given = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            if names:
                is_own = not any(name in given or name.startswith("arg") for name in names)
        frame = frame.f_back
    return is_own
