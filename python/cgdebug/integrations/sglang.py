"""SGLang: its entry point calls register() in every process.

A forward pass without a step is one that SGLang makes by itself, to warm up or to capture.
"""

from __future__ import annotations

import inspect
import os
import typing

from .. import _rewind
from .._job import _auto
from .._job._after_import import call_after_import
from .._job._fail_soft import entry, guard, tell, wrap
from ._engines import OWN_PASSES, RequestRows, capturing_pieces, know_names, know_rank, tell_rows

__all__ = ["register"]

_LABELS = "the labels of SGLang's graphs"
_STEPS = "the steps of SGLang"
_REQUESTS = "which request each row of SGLang's batches is of"
_CACHES = "the KV cache of SGLang"
_RUNNERS = "sglang.srt.model_executor.runner"
_DECODE = f"{_RUNNERS}.decode_cuda_graph_runner"
_CAPTURES = (
    _DECODE,
    f"{_RUNNERS}.prefill_cuda_graph_runner",
    "sglang.srt.speculative.eagle_draft_cuda_graph_runner",
    "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner",
    "sglang.srt.speculative.multi_layer_eagle_draft_extend_cuda_graph_runner",
    "sglang.srt.speculative.frozen_kv_mtp_cuda_graph_runner",
)
# Those that write where `out_cache_loc` says. Subclasses have other places, or a map of them.
_POOLS = ("MHATokenToKVPool", "MLATokenToKVPool")
_SHARED_EXECS = "SGLANG_ENABLE_CUDA_GRAPH_DEDUP"
_registered = False
_requests = RequestRows()


@entry("SGLang")
def register() -> None:
    """Arranges that each worker watches its model when it has loaded it, as CGDEBUG_WATCH asks,
    and labels its graphs. Does nothing in a job where nothing looks at graphs."""
    global _registered
    if _registered or not _auto.looks_at_graphs():
        return
    _registered = True
    if _auto.is_wanted():
        with guard("the last replays of SGLang"):
            _rewind.keep_of_engine(lambda label: label.startswith("bs="))
    _auto.start()
    call_after_import("sglang.srt.model_executor.model_runner", _wrap_runner)
    for name in _CAPTURES:
        call_after_import(name, _wrap_captures)
    call_after_import(_DECODE, _wrap_decode)


def _wrap_runner(module) -> None:
    from ..probe import step

    def watch(runner, *args, **kwargs):
        with guard("the ranks of SGLang"):
            know_rank()
        if os.environ.get(_SHARED_EXECS, "").lower() in ("1", "true", "yes", "y"):
            tell(
                "graphs that share what CUDA launches",
                f"{_SHARED_EXECS} lets SGLang launch them past CUDAGraph.replay(), so their "
                "replays are not counted. Type: unset " + _SHARED_EXECS,
            )
        if _auto.is_wanted():
            _auto.look_at(runner.model, OWN_PASSES)
        know_names(runner.model)
        _requests.know_model(runner.model, returns_logits=True)

    def begin_pass(runner, *args, **kwargs):
        batch = args[0] if args else kwargs.get("forward_batch")
        if not getattr(runner, "is_draft_worker", False):
            # Not its forward_pass_id, which begins again after a recovery.
            runner._cgdebug_step = getattr(runner, "_cgdebug_step", 0) + 1
            step(runner._cgdebug_step)
            _auto.begin_call()  # has this step: SGLang calls forward() of the model
            with guard(_REQUESTS):
                _tell_requests(batch)
            names = ("input_ids", "input_embeds", "positions")
            rows = getattr(batch, "num_token_non_padded_cpu", None)
            tell_rows(rows, [getattr(batch, name, None) for name in names])

    runner = getattr(module, "ModelRunner", None)
    if runner is None:
        tell("the model of SGLang", f"{module.__name__} has no ModelRunner")
        return
    wrap(runner, "load_model", "the model of SGLang", after=watch)
    wrap(runner, "forward", _STEPS, before=begin_pass)


def _tell_requests(batch) -> None:
    """Of a pass with drafts nothing is told: which of their tokens are kept is not known yet."""
    _requests.forget()
    requests = getattr(batch, "rids", None)
    positions = getattr(batch, "positions", None)
    if not requests or positions is None or not _auto.keeps_values():
        return
    tokens = getattr(batch, "extend_seq_lens_cpu", None) or [1] * len(requests)
    if getattr(batch, "spec_info", None) is None and sum(tokens) == len(positions):
        _requests.tell(requests, tokens, positions)


def _wrap_decode(module) -> None:
    runner = getattr(module, "DecodeCudaGraphRunner", None)
    if _rewind.is_on() and runner is not None:
        wrap(runner, "capture", _CACHES, before=_declare_caches)


def _declare_caches(runner, *args, **kwargs) -> None:
    """If there is one kind of them: several have slots of their own."""
    from .._rewind import caches

    pool = runner.model_runner.token_to_kv_pool
    if type(pool).__name__ not in _POOLS:
        return
    slots = pool.size + pool.page_size
    by_size: dict[int, list] = {}  # of the parts: a slot, or a page of them
    for name in ("k_buffer", "v_buffer", "kv_buffer"):
        for one in getattr(pool, name, ()):
            if slots % len(one) == 0 and slots // len(one) in (1, pool.page_size):
                by_size.setdefault(slots // len(one), []).append(one)
    for size, tensors in by_size.items():
        caches.declare(tensors, 0, runner.buffers.out_cache_loc, size)


def _wrap_captures(module) -> None:
    """Draft models have runners of their own."""
    found = [
        kind
        for kind in vars(module).values()
        if inspect.isclass(kind)
        and kind.__module__ == module.__name__
        and "capture_one_shape" in vars(kind)
    ]
    if not found:
        tell(_LABELS, f"{module.__name__} has no capture_one_shape()")
    for kind in found:
        wrap(kind, "capture_one_shape", _LABELS, before=_labelled(kind))


def _labelled(kind: type) -> typing.Callable[..., typing.Any]:
    name = kind.__name__.lower()
    size_is = "tokens" if "prefill" in name else "bs"
    draft = "" if name.startswith(("decode", "prefill")) else "draft,"
    if "extend" in name:
        draft = "draft-extend,"
    capture = inspect.signature(vars(kind)["capture_one_shape"])

    def label(*args, **kwargs):
        given = capture.bind(*args, **kwargs).arguments
        text = f"{draft}{size_is}={given['size']}"
        if given.get("variant_label") is not None:
            text += f",{given['variant_label']}"
        if given.get("stream_idx") is not None:
            text += f",stream={given['stream_idx']}"
        return capturing_pieces(text)

    return label
