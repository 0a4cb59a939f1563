"""TensorBoard's event files, written without torch."""

from __future__ import annotations

import os
import typing

if typing.TYPE_CHECKING:
    import numpy

_BINS = 64


class Writer:
    """One event file in `folder`."""

    def __init__(self, folder: str | os.PathLike):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer import event_file_writer

        self._event, self._summary = event_pb2.Event, summary_pb2
        self._file = event_file_writer.EventFileWriter(os.fspath(folder))

    def add_scalar(self, tag: str, value: float, step: int, wall_time: float) -> None:
        self._add(self._summary.Summary.Value(tag=tag, simple_value=value), step, wall_time)

    def add_histogram(self, tag: str, values: numpy.ndarray, step: int, wall_time: float) -> None:
        """`values`: finite doubles, at least one."""
        import numpy

        counts, edges = numpy.histogram(values, bins=_BINS)
        histogram = self._summary.HistogramProto(
            min=values.min(),
            max=values.max(),
            num=values.size,
            sum=values.sum(),
            sum_squares=numpy.square(values).sum(),
            bucket_limit=edges.tolist(),
            # The first bucket is what lies below the first edge.
            bucket=[0, *counts.tolist()],
        )
        self._add(self._summary.Summary.Value(tag=tag, histo=histogram), step, wall_time)

    def _add(self, value, step: int, wall_time: float) -> None:
        summary = self._summary.Summary(value=[value])
        self._file.add_event(self._event(wall_time=wall_time, step=step, summary=summary))

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        # Ctrl-C may have left a lock of its queue locked, for which close() would wait.
        if kind is None:
            self._file.close()
