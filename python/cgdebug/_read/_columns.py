"""Statistics of many snapshots as columns, read in one pass.

A thing has one name wherever it is shown: here, in `Recording.table` and `to_pandas`, in what
`export` writes as csv, jsonl and parquet, in the view v_snapshots of SQL, and as an attribute of
`Series`, `TensorSnapshot` and `Stats`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import typing

from .._shared._replays import MAX_REPLAY
from ..errors import RecordingError
from ..snapshot import Stats

if typing.TYPE_CHECKING:
    import numpy

    from ._series import Series

# The statistics as recorded, in the order of `Stats`: counts, then measures.
_FIELDS = {field.name: field.type for field in dataclasses.fields(Stats)}
STORED_COUNTS = tuple(name for name, kind in _FIELDS.items() if kind == "int")
NUMBERS = tuple(name for name, kind in _FIELDS.items() if kind == "float")
_SUMS = {"pos_inf": ("inf", "pos_inf"), "neg_inf": ("neg_inf", "nonfinite")}
COUNTS = tuple(name for stored in STORED_COUNTS for name in _SUMS.get(stored, (stored,)))
# Statistics that are one number per snapshot.
STATS = (*COUNTS, *NUMBERS)
_OF_SERIES = (
    "probe",
    "rank",
    "session",
    "graph",
    "graph_id",
    "invocation",
    "graph_order",
    "site",
    "thread",
)
_OF_TENSOR = ("device", "dtype", "shape", "part")
_WHEN = ("replay", "iteration", "step", "serial", "timestamp_ns")
_HASHES = {"hash": 16, "xor_hash": 16, "ordered_hash": 8}  # digits
_AT_ONCE = 50_000  # snapshots
NAMES = (*_OF_SERIES, *_WHEN, *_OF_TENSOR, *STATS, "first_nonfinite", *_HASHES)


class Columns:
    """One row per snapshot of some series: series by series, replays ascending. A snapshot that
    cannot be read is left out, and `errors` says why."""

    def __init__(
        self,
        reader,
        series: list[Series],
        first: int = 1,
        last: int = MAX_REPLAY,
        on_read: collections.abc.Callable[[int], None] = lambda count: None,
    ):
        import numpy

        self.series = series
        arrays = _read(reader, series, first, last, on_read)
        self.errors: list[str] = arrays.pop("errors")
        if self.errors:
            arrays = {name: array[arrays["is_read"]] for name, array in arrays.items()}
        arrays["inf"] = arrays["pos_inf"] + arrays["neg_inf"]
        arrays["nonfinite"] = arrays["nan"] + arrays["inf"]
        places = {one._index: place for place, one in enumerate(series)}
        if len(arrays["slot"]):
            lookup = numpy.zeros(max(places) + 1, "int64")
            lookup[list(places)] = list(places.values())
            arrays["place"] = lookup[arrays["slot"]]
            by_series = numpy.argsort(arrays["place"], kind="stable")
            arrays = {name: array[by_series] for name, array in arrays.items()}
        else:
            arrays["place"] = arrays["slot"]
        self.arrays: dict[str, numpy.ndarray] = arrays

    def __len__(self) -> int:
        return len(self.arrays["replay"])

    def checked(self) -> Columns:
        if self.errors:
            raise RecordingError(self.errors[0])
        return self

    def of_series(self, name: str) -> list:
        """One value per series, for a column that has the same value in all rows of a series."""
        attribute = {"dtype": "dtype_name", "part": "part_text"}.get(name, name)
        return [getattr(one, attribute) for one in self.series]

    def column(self, name: str) -> list:
        """A column as a list of Python values; None where there is no value."""
        arrays = self.arrays
        if name in _OF_SERIES or name in _OF_TENSOR:
            values = self.of_series(name)
            return [values[place] for place in arrays["place"].tolist()]
        values = arrays[name].tolist()
        if name in ("step", "first_nonfinite"):
            return [None if value < 0 else value for value in values]
        if name in _HASHES:
            there, digits = arrays[f"has_{name}"].tolist(), _HASHES[name]
            return [f"{value:0{digits}x}" if known else None for value, known in zip(values, there)]
        return values

    def lists(self) -> dict[str, list]:
        return {name: self.column(name) for name in NAMES}

    def rows(self) -> collections.abc.Iterator[dict[str, typing.Any]]:
        for values in zip(*self.lists().values()):
            yield dict(zip(NAMES, values))

    def frame(self) -> dict:
        """The columns for pandas; an array where it holds the same values as the list."""
        import numpy

        columns: dict[str, typing.Any] = {}
        for name in NAMES:
            if name in _OF_SERIES or name in _OF_TENSOR:
                values = numpy.empty(len(self.series), object)
                for place, value in enumerate(self.of_series(name)):
                    values[place] = value
                columns[name] = values[self.arrays["place"]]
                if name in ("rank", "graph_id", "invocation", "graph_order"):
                    columns[name] = columns[name].astype("int64")
            elif name in STATS or name in ("replay", "iteration", "serial", "timestamp_ns"):
                columns[name] = self.arrays[name]
            else:
                columns[name] = self.column(name)
        return columns

    def arrow(self):
        """As a table of pyarrow."""
        import pyarrow

        columns = {}
        for name in NAMES:
            if name in _OF_SERIES or name in _OF_TENSOR:
                is_shape = name == "shape"
                values = [list(one) if is_shape else one for one in self.of_series(name)]
                kind = pyarrow.list_(pyarrow.int64()) if is_shape else None
                of_series = pyarrow.array(values, kind)
                columns[name] = of_series.take(pyarrow.array(self.arrays["place"]))
            elif name in ("step", "first_nonfinite"):
                columns[name] = pyarrow.array(self.arrays[name], mask=self.arrays[name] < 0)
            elif name in _HASHES:
                columns[name] = pyarrow.array(self.column(name), pyarrow.string())
            else:
                columns[name] = pyarrow.array(self.arrays[name])
        return pyarrow.table(columns)


def _read(reader, series, first: int, last: int, on_read) -> dict[str, typing.Any]:
    """Some replays at a time: Ctrl-C waits for one call only."""
    import numpy

    slots = [one._index for one in series]
    keys = [one._keys for one in series if one._keys]
    first = max([first, min((of[0][0] for of in keys), default=first)])
    last = min([last, max((of[-1][0] for of in keys), default=last)])
    count = max(1, -(-sum(map(len, keys)) // _AT_ONCE))
    step = max(1, -(-(last - first + 1) // count))
    parts = []
    for start in range(first, max(first, last) + 1, step):
        parts.append(reader.columns(slots, start, min(start + step - 1, last)))
        on_read(len(parts[-1]["slot"]))
    errors = [error for part in parts for error in part.pop("errors")]
    arrays = {name: numpy.concatenate([part[name] for part in parts]) for name in parts[0]}
    return {**arrays, "errors": errors}


def frame_of(columns: Columns):
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            "to_pandas needs pandas: pip install pandas. Without it: r.table()"
        ) from error
    return pandas.DataFrame(columns.frame())
