"""What to do with records after a replay."""

from __future__ import annotations

import collections.abc
import typing

if typing.TYPE_CHECKING:
    from .probe import CudaGraphTensorProbe
    from .snapshot import TensorSnapshot


def drain_records(
    probe: CudaGraphTensorProbe,
    consumer: typing.Callable[[TensorSnapshot], object],
    synchronize: bool = True,
) -> list[TensorSnapshot]:
    """Calls `consumer` with each of the probe's records, oldest first, then clears exactly those:

        drain_records(probe, lambda snapshot: my_custom_action(snapshot.tensor))

    If `consumer` raises, the exception passes through and nothing is cleared, not even the records
    before that one. The next call gets the same records again, unless newer ones have overwritten
    them meanwhile. Records that arrive while `consumer` runs stay.

    synchronize: wait for the GPU first, so that every replay launched so far is included.
    Returns the records.
    """
    records = probe.records(synchronize=synchronize)
    for record in records:
        consumer(record)
    if records:
        probe._clear_up_to(records)
    return records


def export_records_to_tensorboard(
    writer,
    records: collections.abc.Iterable[TensorSnapshot],
    *,
    tag_prefix: str = "",
    step: int | typing.Callable[[TensorSnapshot], int] | None = None,
    write_scalars: bool = True,
    write_histograms: bool = False,
) -> None:
    """Writes scalars and histograms of records to a `SummaryWriter`, or anything with its
    `add_scalar(tag, value, step)` and `add_histogram(tag, values, step)`.

    Tags are "<tag_prefix><probe name>/invocation_<index>/<what>", where <what> is numel, mean, std
    (population), min, max, l2_norm, computed in float64 over all elements, so that a NaN shows as
    NaN; an empty tensor has numel only. A histogram ("values") covers the finite elements. Where
    the probe sees a part, "(part rows:0:8 of [64,32])" stands behind its name.

    step: the global step of every record, or a function of the record; None is its replay_index.
    The writer is neither flushed nor closed, and its errors pass through.
    """
    import numpy

    for record in records:
        part = f" (part {record._part_text})" if record.part else ""
        tag = f"{tag_prefix}{record.probe_name}{part}/invocation_{record.invocation_index}"
        at = record.replay_index if step is None else step(record) if callable(step) else step
        values = record.values().reshape(-1)
        if write_scalars:
            for what, value in _scalars(values).items():
                writer.add_scalar(f"{tag}/{what}", value, at)
        if write_histograms:
            finite = values[numpy.isfinite(values)]
            if finite.size:
                writer.add_histogram(f"{tag}/values", finite, at)


def _scalars(values) -> dict[str, float]:
    import numpy

    if values.size == 0:
        return {"numel": 0}
    with numpy.errstate(invalid="ignore", over="ignore"):
        return {
            "numel": int(values.size),
            "mean": float(values.mean()),
            "std": float(values.std()),
            "min": float(values.min()),
            "max": float(values.max()),
            "l2_norm": float(numpy.sqrt(numpy.square(values).sum())),
        }
