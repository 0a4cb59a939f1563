"""vLLM: its entry point calls register() in every process.

A forward pass without a step is one that vLLM makes by itself: to profile, to warm up, to capture.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import sys
import typing

from .. import _rewind
from .._job import _auto
from .._job._after_import import call_after_import
from .._job._fail_soft import entry, guard, tell, wrap
from ._engines import (
    OWN_PASSES,
    ParameterNames,
    RequestRows,
    capturing_pieces,
    know_names,
    know_rank,
    own_pass,
    tell_rows,
)

__all__ = ["register"]

_LABELS = "the labels of vLLM's graphs"
_STEPS = "the steps of vLLM"
_ROWS = "the padding of vLLM's batches"
_REQUESTS = "which request each row of vLLM's batches is of"
_MEMORY = "the memory of vLLM's graphs"
_CACHES = "the KV cache of vLLM"
_TOKENS = "total_num_scheduled_tokens"  # without padding
_ADDED = re.compile(r"-[0-9a-f]{8}$")  # to the name of a request
_registered = False
_parameters: ParameterNames | None = None  # of the model that was loaded first
_requests = RequestRows()
_positions: typing.Any = None  # where whole graphs read them
_is_estimating = False  # captures graphs to see how much memory they take, and drops them


@entry("vLLM")
def register() -> None:
    """Arranges that each worker watches its model when it has loaded it, as CGDEBUG_WATCH asks,
    and labels its graphs. Does nothing in a job where nothing looks at graphs."""
    global _registered
    if _registered or not _auto.looks_at_graphs():
        return
    _registered = True
    if _auto.is_wanted() and _auto.wanted()[0] in ("module", "fx"):
        # These put probes into the compiled code, and the key of its cache does not tell.
        os.environ.setdefault("VLLM_DISABLE_COMPILE_CACHE", "1")
    if _auto.is_wanted():
        with guard("the last replays of vLLM"):
            _rewind.keep_of_engine(_is_decode)
    _auto.start()
    call_after_import("vllm.v1.worker.gpu_model_runner", _wrap_runner)
    call_after_import("vllm.v1.worker.gpu.model_runner", _wrap_runner)
    call_after_import("vllm.compilation.cuda_graph", _wrap_graphs)
    call_after_import("vllm.compilation.breakable_cudagraph", _wrap_breakable)
    call_after_import("vllm.v1.worker.gpu.cudagraph_utils", _wrap_manager)


def _label(descriptor) -> str:
    """The label of a BatchDescriptor or a BatchExecutionDescriptor."""
    parts = ["estimate"] * _is_estimating + [f"tokens={descriptor.num_tokens}"]
    if getattr(descriptor, "num_reqs", None) is not None:
        parts.append(f"reqs={descriptor.num_reqs}")
    if getattr(descriptor, "num_active_loras", 0):
        parts.append(f"loras={descriptor.num_active_loras}")
    return ",".join(parts)


def _is_decode(label: str) -> bool:
    """Of a whole graph, not of a piece or an estimate."""
    return label.startswith("tokens=") and ",reqs=" in label and ",from=" not in label


@contextlib.contextmanager
def _estimating(*args, **kwargs) -> typing.Iterator[None]:
    """Later graphs of these sizes get the plain labels."""
    global _is_estimating
    _is_estimating = True
    try:
        yield
    finally:
        _is_estimating = False


def _wrap_runner(module) -> None:
    from ..probe import step

    def watch(runner, *args, **kwargs):
        global _parameters, _positions
        model = runner.get_model()
        buffers = getattr(runner, "input_buffers", runner)  # of the second runner
        _positions = getattr(buffers, "positions", None)
        with guard("the ranks of vLLM"):
            know_rank()
        if _auto.is_wanted():
            _auto.look_at(model, OWN_PASSES)
        _parameters = _parameters or ParameterNames(model)
        know_names(model)
        _requests.know_model(model, returns_logits=False)

    def name_step(runner, *args, dummy_run=False, **kwargs):
        runner._cgdebug_rows = runner._cgdebug_output = None
        _requests.forget()
        output = args[0] if args else None
        runner._cgdebug_is_own = dummy_run or _is_warm_up(output)
        if runner._cgdebug_is_own:
            return own_pass()
        runner._cgdebug_output = output
        runner._cgdebug_rows = getattr(output, _TOKENS, None)
        runner._cgdebug_step = getattr(runner, "_cgdebug_step", -1) + 1
        step(runner._cgdebug_step)
        _auto.begin_call()  # has this step: what follows a whole graph calls no model
        return None

    def pad(runner, input_ids=None, positions=None, *args, inputs_embeds=None, **kwargs):
        rows = getattr(runner, "_cgdebug_rows", None)
        tell_rows(rows, [input_ids, inputs_embeds, positions])
        with guard(_REQUESTS):
            _tell_requests(runner, positions)

    def own(runner, *args, **kwargs):
        runner._cgdebug_rows = runner._cgdebug_output = None
        _requests.forget()
        return own_pass()

    def sample(runner, *args, **kwargs):
        return own_pass() if getattr(runner, "_cgdebug_is_own", False) else None

    runner = getattr(module, "GPUModelRunner", None)
    if runner is None:
        tell("the model of vLLM", f"{module.__name__} has no GPUModelRunner")
        return
    wrap(runner, "load_model", "the model of vLLM", after=watch)
    if _rewind.is_on():
        wrap(runner, "initialize_kv_cache", _CACHES, after=_declare_caches)
    wrap(runner, "execute_model", _STEPS, before=name_step)
    if hasattr(runner, "profile_cudagraph_memory"):
        wrap(runner, "profile_cudagraph_memory", _LABELS, before=_estimating)
    wrap(runner, "_dummy_run", _STEPS, before=own)
    for name, before in (
        ("_dummy_sampler_run", own),
        ("_dummy_pooler_run", own),
        ("sample_tokens", sample),
    ):
        if hasattr(runner, name):
            wrap(runner, name, _STEPS, before=before)
    if hasattr(runner, "_model_forward"):
        wrap(runner, "_model_forward", _ROWS, before=pad)
    elif hasattr(runner, "prepare_inputs"):
        _wrap_inputs(runner)
    if hasattr(runner, "reload_weights"):
        wrap(runner, "reload_weights", _MEMORY, after=_look_at_memory)


def _is_warm_up(output) -> bool:
    """Whether all requests of the pass are those that vLLM makes by itself."""
    requests = list(getattr(output, "num_scheduled_tokens", None) or ())
    return requests != [] and all(str(one).startswith("_warmup_") for one in requests)


def _names_of(requests: typing.Iterable[str]) -> list[str]:
    """As clients named them. vLLM adds eight random digits, which are others in each server."""
    if os.environ.get("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", "0") != "0":
        return list(requests)
    return [_ADDED.sub("", one) for one in requests]


def _tell_requests(runner, positions) -> None:
    """Which tokens of a draft are kept is not known yet: of a pass with some nothing is told."""
    output = getattr(runner, "_cgdebug_output", None)
    tokens = getattr(output, "num_scheduled_tokens", None)
    if not tokens or not _auto.keeps_values() or _has_drafts(output):
        return
    # In its request, also where the model is given others (M-RoPE).
    own = getattr(runner, "positions", None)
    if positions is not None and own is not None:
        positions = own[: positions.shape[-1]]
    requests = runner.input_batch.req_ids
    counts = [tokens[one] for one in requests]
    _requests.tell(_names_of(requests), counts, positions, _is_whole_graph())


def _has_drafts(output) -> bool:
    return bool(getattr(output, "scheduled_spec_decode_tokens", None))


def _is_whole_graph() -> bool:
    """Whether the pass that begins replays a graph that was captured whole."""
    context = sys.modules.get("vllm.forward_context")
    if context is None or not context.is_forward_context_available():
        return False
    mode = getattr(context.get_forward_context(), "cudagraph_runtime_mode", None)
    return getattr(mode, "name", "") == "FULL"


def _wrap_inputs(runner) -> None:
    """The second runner calls the model itself, with what this gives it."""
    prepare = runner.prepare_inputs

    @functools.wraps(prepare)
    def prepare_inputs(self, scheduler_output, batch_desc, *args, **kwargs):
        batch = prepare(self, scheduler_output, batch_desc, *args, **kwargs)
        with guard(_REQUESTS):
            is_replay = getattr(batch_desc.cg_mode, "name", "") == "FULL"
            if _is_warm_up(scheduler_output):
                return batch
            if not is_replay:
                tell_rows(batch.num_tokens, [batch.input_ids, batch.positions])
            if _auto.keeps_values() and not _has_drafts(scheduler_output):
                tokens = batch.num_scheduled_tokens
                _requests.tell(_names_of(batch.req_ids), tokens, batch.positions, is_replay)
        return batch

    runner.prepare_inputs = prepare_inputs


def _declare_caches(runner, *args, **kwargs) -> None:
    """If there is one kind of them: several have slots of their own."""
    from .._rewind import caches

    config = runner.kv_cache_config
    if len(config.kv_cache_groups) != 1:
        return
    tables = getattr(runner, "block_tables", None)
    if tables is not None:
        slots, slots_each = tables.slot_mappings[0], tables.kernel_block_sizes[0]
        split = tables.blocks_per_kv_block[0]
    else:
        table = runner.input_batch.block_table[0]
        slots, slots_each = table.slot_mapping.gpu, table.block_size
        split = table.blocks_per_kv_block
    by_dim: dict[int, list] = {}
    for one in runner.kv_caches:
        dims = [dim for dim, size in enumerate(one.shape) if size == config.num_blocks * split]
        if len(dims) == 1:
            by_dim.setdefault(dims[0], []).append(one)
    for dim, tensors in by_dim.items():
        caches.declare(tensors, dim, slots, slots_each)


def _look_at_memory(*args, **kwargs) -> None:
    """Weights were loaded again: whether the graphs read them."""
    from .._op_log import audit

    audit.run_quietly()


def _tells_graphs() -> bool:
    """Whether graphs that are captured tell which request each of their rows is of."""
    return _positions is not None and _auto.keeps_values()


def _expect_capture(descriptor) -> None:
    if _tells_graphs():
        _requests.expect_capture(_positions, descriptor.num_tokens)


@contextlib.contextmanager
def _capturing(label: contextlib.AbstractContextManager, pieces_of=None) -> typing.Iterator[None]:
    """Under the label; pieces_of: the descriptor of the batch whose pieces they are."""
    with contextlib.ExitStack() as scope:
        with guard(_REQUESTS):
            if pieces_of is not None and _tells_graphs():
                scope.enter_context(_requests.capturing_pieces(_positions, pieces_of.num_tokens))
        scope.enter_context(label)
        yield


def _wrap_graphs(module) -> None:
    """Each piece of a piecewise graph has a wrapper of its own, and is given its parameters."""
    from ..probe import graph_label

    def label(wrapper, *args, **kwargs):
        if not module.is_forward_context_available():
            return None
        descriptor = module.get_forward_context().batch_descriptor
        entry = wrapper.concrete_cudagraph_entries.get(descriptor)
        if descriptor is None or (entry is not None and entry.cudagraph is not None):
            return None
        text = _label(descriptor)
        mode = getattr(getattr(wrapper, "runtime_mode", None), "name", "")
        with guard(_REQUESTS):
            if mode == "FULL" and _is_whole_graph():
                _expect_capture(descriptor)
        with guard(_LABELS):
            layers = _parameters.layers_of(args) if _parameters else ""
            text = f"{text},{layers}" if layers else text
        return _capturing(graph_label(text), descriptor if mode == "PIECEWISE" else None)

    wrap(module.CUDAGraphWrapper, "__call__", _LABELS, before=label)


def _wrap_breakable(module) -> None:
    """Graphs that eager attention divides, without a wrapper of their own."""

    def label(wrapper, entry, *args, **kwargs):
        descriptor = entry.batch_descriptor
        return _capturing(capturing_pieces(_label(descriptor)), descriptor)

    wrap(module.BreakableCUDAGraphWrapper, "_capture", _LABELS, before=label)


def _wrap_manager(module) -> None:
    """The second runner captures whole graphs without a wrapper."""
    from ..probe import graph_label

    manager = module.CudaGraphManager
    if next(iter(list(inspect.signature(manager.capture).parameters)[1:]), "") != (
        "create_forward_fn"
    ):
        tell(_LABELS, "CudaGraphManager.capture() takes other arguments than before")
        return
    capture = manager.capture

    def capture_labelled(self, create_forward_fn, *args, **kwargs):
        with contextlib.ExitStack() as labels:

            def create(*create_args, **create_kwargs):
                with guard(_LABELS):
                    labels.close()
                    descriptor = create_args[0] if create_args else create_kwargs["desc"]
                    labels.enter_context(graph_label(_label(descriptor)))
                with guard(_REQUESTS):
                    # Those of drafts have positions of their own.
                    is_of_model = type(self).__name__ == "ModelCudaGraphManager"
                    if is_of_model and getattr(descriptor.cg_mode, "name", "") == "FULL":
                        _expect_capture(descriptor)
                return create_forward_fn(*create_args, **create_kwargs)

            with own_pass():
                return capture(self, create, *args, **kwargs)

    manager.capture = capture_labelled
