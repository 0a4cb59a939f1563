"""Continuous batching of transformers: each graph is labelled by the batch that it was captured
for. A job needs nothing for this but CGDEBUG_WATCH."""

from __future__ import annotations

from .._job._after_import import call_after_import
from .._job._fail_soft import wrap

__all__ = ["label_graphs"]


def label_graphs() -> None:
    call_after_import("transformers.generation.continuous_batching.model_runner", _wrap_runners)


def _wrap_runners(module) -> None:
    for kind in list(vars(module).values()):
        if isinstance(kind, type) and "_capture_graph" in vars(kind):
            _wrap(kind)


def _wrap(runner) -> None:
    from ..probe import graph_label

    def labelled(self, *args, **kwargs):
        label = _label(self.inputs_and_outputs)
        return graph_label(label) if label else None

    wrap(runner, "_capture_graph", "the labels of continuous batching", before=labelled)


def _label(batch) -> str:
    """The sizes that the inputs are padded to. Empty if they are not known."""
    try:
        if hasattr(batch, "io_pairs"):  # two batches take turns
            batch = batch.io_pairs[batch.current_pair].device_io
        if batch.use_block_table:
            return f"decode,tokens={batch.num_q_tokens}"
        tokens, kv, *lengths = batch._get_graph_key()
        return ",".join([f"tokens={tokens}", f"kv={kv}", *(f"k={length}" for length in lengths)])
    except (AttributeError, ValueError):
        return ""
