"""What objects look like in a notebook, and their plots. Only plots need matplotlib."""

from __future__ import annotations

import collections
import html
import math
import typing

import numpy

if typing.TYPE_CHECKING:
    from ..op_log import OpLogView
    from ..recording import Recording
    from ..snapshot import TensorSnapshot
    from ._reports import _Report
    from ._series import Series

MOST_ROWS = 30
MOST_BARS = 40
_BARS = "▁▂▃▄▅▆▇█"
_MOST_IN_LEGEND = 12
_LOG_FROM = 100.0  # a scale is logarithmic from this ratio of largest and smallest on


def text(value: object) -> str:
    """As HTML. A control character, which a job may put into a name, is shown and does nothing."""
    shown = "".join(
        one if one.isprintable() or one == "\n" else f"\\u{ord(one):04x}" for one in str(value)
    )
    return html.escape(shown)


def number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4g}"


def bars(values: numpy.ndarray, is_bad: numpy.ndarray) -> str:
    """A bar for each value, or for the worst of several; '!' where `is_bad`. On a log scale."""
    parts = []
    for at in numpy.array_split(numpy.arange(len(values)), min(MOST_BARS, len(values)) or 1):
        finite = values[at][numpy.isfinite(values[at])]
        parts.append((is_bad[at].any(), finite.max() if finite.size else math.nan))
    logs = [math.log(value) for _, value in parts if value > 0]
    low, span = min(logs, default=0.0), (max(logs, default=0.0) - min(logs, default=0.0)) or 1.0
    line = ""
    for bad, value in parts:
        share = (math.log(value) - low) / span if value > 0 else 0.0
        line += "!" if bad else " " if math.isnan(value) else _BARS[round(7 * share)]
    return line


def _table(head: typing.Sequence[str], rows: typing.Iterable[typing.Sequence[object]]) -> str:
    cells = "".join(f"<th style='text-align:left'>{text(one)}</th>" for one in head)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{text(one)}</td>" for one in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def _lost(reader) -> collections.Counter[int]:
    """How many snapshots of each series were lost, by its index."""
    lost: collections.Counter[int] = collections.Counter()
    for gap in reader.gaps():
        lost[gap["slot"]] += gap["count"]
    return lost


def _row_of(series: Series, lost: collections.Counter[int]) -> tuple:
    read = series._readable_columns()
    nonfinite, abs_max = read.arrays["nonfinite"], read.arrays["abs_max"].astype("float64")
    finite = abs_max[numpy.isfinite(abs_max)]
    replays = series.replays
    return (
        series.label + (f" (rank {series.rank})" if series.rank >= 0 else ""),
        f"{series.dtype_name}{list(series.shape)}"
        + (f" part {series.part_text}" if series.part_text else ""),
        f"{replays[0]}..{replays[-1]}" if replays else "–",
        number(float(finite.max())) if finite.size else "–",
        int((nonfinite > 0).sum()),
        lost[series._index] + len(series) - len(read),
        bars(abs_max, nonfinite > 0),
    )


_HEAD = (
    "probe",
    "tensor",
    "replays",
    "abs max",
    "with NaN or Inf",
    "missing or unreadable",
    "abs max over replays (log)",
)


_BAD = _HEAD.index("with NaN or Inf")


def of_recording(recording: Recording) -> str:
    lost = _lost(recording._reader)
    rows = [_row_of(series, lost) for series in recording.series]
    rows.sort(key=lambda row: row[_BAD] == 0)  # what was found first
    bad = sum(row[_BAD] > 0 for row in rows)
    said = f"{bad} of {len(rows)} with NaN or Inf" if bad else "no NaN or Inf"
    if bad and len(rows) > len(recording.probes):
        said += ", each shape and graph of a probe counted as one"
    more = len(rows) - MOST_ROWS
    near = f"r.select({recording.series[-1].probe!r})" if more > 0 else ""
    note = f"<p>and {more} more: <code>{text(near)}</code></p>" if more > 0 else ""
    head = f"<p>{text(repr(recording))}: {said}</p>"
    return head + _table(_HEAD, rows[:MOST_ROWS]) + note


def of_series(series: Series) -> str:
    return f"<p>{text(repr(series))}</p>" + _table(_HEAD, [_row_of(series, _lost(series._reader))])


def of_snapshot(snapshot: TensorSnapshot) -> str:
    stats = snapshot.stats
    names = ("nan", "inf", "zero", "min", "max", "mean", "std", "abs_max")
    row = [number(float(getattr(stats, name))) for name in names]
    return f"<p>{text(snapshot.describe())}</p>" + _table(names, [row])


def of_report(report: _Report, verdict: str, is_ok: bool) -> str:
    first, _, rest = str(report).partition("\n")
    sign = "✓" if is_ok else "✗" if verdict in ("found", "different") else "?"
    more = f"<details><summary>all of it</summary><pre>{text(rest)}</pre></details>" if rest else ""
    return f"<p><b>{sign} {text(verdict)}</b> {text(first)}</p>{more}"


def of_op_log(log: OpLogView) -> str:
    """The rows up to the first finding; without one the last rows."""
    first = log.first_nonfinite
    verdict = "found" if first else "inconclusive" if log.gaps else "nothing found"
    sign = "✗" if first else "?" if log.gaps else "✓"
    where = f" first non-finite: #{first.number} {first.name}" if first else ""
    end = next((i + 1 for i, row in enumerate(log.rows) if row is first), len(log.rows))
    shown = log.rows[max(0, end - MOST_ROWS) : end]
    parts = [one for one in ("region", "placements") if any(getattr(row, one) for row in shown)]
    own = list(dict.fromkeys(name for row in shown for name in row.columns))
    rows = [
        (
            f"#{row.number}",
            row.name,
            f"{row.dtype}{list(row.shape)}",
            "lost" if row.stats is None else f"{row.stats.nan + row.stats.inf}",
            "–" if row.stats is None else number(float(row.stats.abs_max)),
            " ".join(f"#{one}" for one in row.inputs) + " ?" * (not row.is_covered),
            row.site + f": {row.code}" * bool(row.site and row.code),
            row.arguments,
            *(str(getattr(row, one)) for one in parts),
            *(str(row.columns.get(one, "–")) for one in own),
        )
        for row in shown
    ]
    head = ["", "row", "tensor", "NaN and Inf", "abs max", "read", "line", "arguments"]
    head += [*parts, *own]
    left = len(log.rows) - len(shown)
    more = f"<p>and {left} more rows: <code>print(log)</code></p>" if left else ""
    gaps = "".join(f"<p>not shown: {text(gap)}</p>" for gap in log.gaps)
    return f"<p><b>{sign} {verdict}</b>{text(where)}</p>" + _table(head, rows) + more + gaps


# --- plots ----------------------------------------------------------------------------------------


def _axes(ax):
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plot() needs matplotlib: pip install matplotlib") from error
    return pyplot.subplots(figsize=(8, 3), layout="constrained")[1]


def plot_recording(selected: list[Series], stat: str, ax):
    if not selected:
        raise ValueError("plot: no probe is selected. The names: recording.probes")
    ax = _axes(ax)
    has_negative = False
    for series in selected:
        values = series.stat(stat)
        has_negative = has_negative or bool((values < 0).any())
        ax.plot(series.replays, values, marker="." if len(values) <= 60 else "", label=series.label)
        bad = series.stat("nonfinite") > 0
        for replay in numpy.asarray(series.replays)[bad]:
            ax.axvspan(replay - 0.5, replay + 0.5, color="crimson", alpha=0.25, linewidth=0)
    ax.set_yscale("symlog" if has_negative else "log")
    probes = len({series.name for series in selected})
    ax.set_title(f"{stat} of {probes} probe{'s' if probes > 1 else ''}")
    ax.set_xlabel("replay")
    if len(selected) <= _MOST_IN_LEGEND:
        ax.legend()
    return ax


def plot_series(series: Series, stats: typing.Sequence[str], ax):
    ax = _axes(ax)
    replays = numpy.asarray(series.replays)
    shown = [(name, series.stat(name)) for name in stats]
    for name, values in shown:
        ax.plot(replays, values, marker="." if len(replays) <= 60 else "", label=name)
    positive = numpy.concatenate([values[values > 0] for _, values in shown] or [numpy.zeros(0)])
    positive = positive[numpy.isfinite(positive)]
    if positive.size and positive.max() / positive.min() > _LOG_FROM:
        has_negative = any((values < 0).any() for _, values in shown)
        ax.set_yscale("symlog" if has_negative else "log")
    bad = series.stat("nonfinite") > 0
    for replay in replays[bad]:
        ax.axvspan(replay - 0.5, replay + 0.5, color="crimson", alpha=0.25, linewidth=0, hatch="xx")
    notes = [f"crossed: NaN or Inf in {int(bad.sum())} replays"] if bad.any() else []
    # The curve goes on over what was lost.
    slots = {one._index for one in getattr(series, "members", [series])}
    gaps = [gap for gap in series._reader.gaps() if gap["slot"] in slots]
    for gap in gaps:
        begin = gap["after_replay"] + 0.5
        end = gap["before_replay"] - 0.5 if gap["before_replay"] else begin + gap["count"]
        ax.axvspan(begin, end, color="grey", alpha=0.3, linewidth=0)
    if gaps:
        notes.append(f"grey: {sum(gap['count'] for gap in gaps)} snapshots are missing")
    ax.set_title(series.label + (f"   ({'; '.join(notes)})" if notes else ""))
    ax.set_xlabel("replay")
    ax.legend()
    return ax


def plot_snapshot(snapshot: TensorSnapshot, ax):
    values = numpy.asarray(snapshot.values(), dtype="float64")
    ax = _axes(ax)
    title = f"{snapshot.probe_name} @{snapshot.replay_index}"
    if values.ndim == 0:
        ax.text(0.5, 0.5, f"{values:.6g}", ha="center", va="center")
    elif values.ndim == 1:
        ax.plot(values)
        ax.set_xlabel("element")
    else:
        if values.ndim > 2:
            leading = numpy.unravel_index(0, values.shape[:-2])
            if not numpy.isfinite(values).all():
                leading = tuple(numpy.argwhere(~numpy.isfinite(values))[0][:-2])
            title += f" [{', '.join(str(int(one)) for one in leading)}, :, :]"
            values = values[leading]
        finite = numpy.abs(values[numpy.isfinite(values)])
        reach = float(finite.max()) if finite.size and finite.max() > 0 else 1.0
        # What is not finite is masked and drawn in a colour of its own.
        masked = numpy.ma.masked_invalid(values)
        image = ax.imshow(masked, cmap="PRGn", vmin=-reach, vmax=reach, aspect="auto")
        ax.set_facecolor("crimson")
        ax.figure.colorbar(image, ax=ax)
        count = int((~numpy.isfinite(values)).sum())
        title += f"   (red: {count} NaN or Inf)" if count else ""
    ax.set_title(title)
    return ax
