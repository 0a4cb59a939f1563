"""Recordings with known values, written with the real writer and without a job."""

import numpy
import recording_writer


class Writer:
    """A recording with one session, written with the real writer."""

    def __init__(self, path, rank=-1):
        self.path = str(path)
        self._writer = recording_writer.Writer(self.path)
        uuid = f"{rank + 1:032x}"
        self._session = self._writer.add_session(uuid, "job" if rank < 0 else f"job/r{rank}", rank)
        self._slots = {}

    def add(self, probe, replay, values, dtype=None, **options):
        values = numpy.ascontiguousarray(values)
        key = (probe, options.pop("invocation", 0))
        if key not in self._slots:
            self._slots[key] = self._writer.add_slot(
                self._session,
                probe,
                dtype or values.dtype.name,
                values.shape,
                invocation=key[1],
            )
        self._writer.append(self._slots[key], replay, values, **options)

    def lose(self, probe, count, after_replay):
        self._writer.lose(self._slots[probe, 0], count, after_replay)

    def commit(self):
        self._writer.commit()

    def close(self):
        self._writer.close()
        return self.path


def write(path, replays=5, factor=1.0, rank=-1):
    writer = Writer(path, rank)
    for n in range(1, replays + 1):
        writer.add("x", n, numpy.full((2, 3), n, "float32"), step=n + 100)
        writer.add("y", n, numpy.array([n, n * factor], "float32"), step=n + 100)
    return writer.close()
