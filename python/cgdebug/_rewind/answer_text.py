"""An answer as text and as JSON."""

from __future__ import annotations

import collections
import json
import typing

from .._shared._dtypes import table

if typing.TYPE_CHECKING:
    from .kept_graph import Answer
    from .mailbox import Question
    from .rows import Stats
    from .stepping import NotSeen, Row, Stepped
    from .steps import Counts

_MOST_ROWS = 40
_MOST_READS = 8
_MOST_NOT_SEEN = 3


def of(
    question: Question, answer: Answer, values: str, has_hashes: bool = False, trace: str = ""
) -> tuple[int, str, dict[str, typing.Any]]:
    """(what to exit with, text, JSON); has_hashes: in JSON those of all rows, also of those that
    are not wanted

    values, trace: files for what is in the rows, and for the times of their ops"""
    from . import mailbox

    rows = answer.stepped.rows
    shown = [row for row in rows if question.wants(row.name)]
    not_seen = [one for one in answer.stepped.not_seen if question.wants(one.row.name)]
    if not shown and not not_seen:
        text = _no_match_text(question, answer)
        return mailbox.NO_MATCH, text, {"error": text}
    bad = [row for row in shown if _is_bad(row)]
    masks = [row for row in shown if not row.stats.is_finite and not _is_bad(row)]
    first = bad[0] if bad else None
    has_gap = bool(not_seen or (answer.stepped.counts.of_no_op and not question.rows))
    at = next((number for number, row in enumerate(rows) if row is first), 0)
    may_be_earlier = first is not None and any(one.place <= at for one in not_seen)
    lines = [f"replay {answer.replay} of graph {answer.graph}: {answer.verified}"]
    if first is not None:
        lines += _first_lines(answer, first, may_be_earlier)
    if question.rows:
        lines += _row_lines(shown)
    slowest = _slowest(shown, question.slowest)
    if question.slowest:
        lines += _slowest_lines(shown, slowest)
    lines.append(f"{_summary(shown, bad, masks)}; {answer.seconds * 1e3:.0f} ms")
    lines += _not_seen_lines(
        not_seen, answer.stepped.counts, _MOST_ROWS if question.rows else _MOST_NOT_SEEN
    )
    if answer.opaque:
        lines.append(f"note: {answer.opaque}")
    if values:
        lines.append(_save(shown, values))
    if trace:
        lines.append(_save_trace(answer, shown, trace))
    told = {
        "verdict": "found" if bad else "inconclusive" if has_gap else "nothing_found",
        "graph": answer.graph,
        "capture": answer.capture,
        "replay": answer.replay,
        "verified": answer.verified,
        "seconds": answer.seconds,
        "first_nonfinite": first and _row_json(first),
        "first_may_be_earlier": may_be_earlier,
        "masks": [row.name for row in masks],
        "rows": [_row_json(row) for row in shown],
        "slowest": [_row_json(row) for row in slowest],
        "not_seen": {
            "rows": [_not_seen_json(one) for one in not_seen],
            **answer.stepped.counts._asdict(),
            "opaque": answer.opaque,
        },
    }
    if has_hashes:
        told |= _hashes(answer.stepped)
    code = mailbox.FOUND if bad else mailbox.INCONCLUSIVE if has_gap else mailbox.OK
    return code, "\n".join(lines), told


def _no_match_text(question: Question, answer: Answer) -> str:
    rows = answer.stepped.rows
    return (
        f"no row of graph {answer.graph} is called {' or '.join(question.rows)}; there are "
        f"{len(rows)}, such as {', '.join(row.name for row in rows[:3])}"
    )


def _summary(shown: list[Row], bad: list[Row], masks: list[Row]) -> str:
    text = f"{len(shown)} rows, {len(bad)} with NaN or Inf"
    if masks:
        text += f", {len(masks)} with -Inf alone (masks?), the first {masks[0].name}"
    return text


def _row_lines(shown: list[Row]) -> list[str]:
    lines = [_row_text(row) for row in shown[:_MOST_ROWS]]
    if len(shown) > _MOST_ROWS:
        lines.append(f"and {len(shown) - _MOST_ROWS} more rows: ask for fewer, or with --json")
    return lines


def of_repro(
    question: Question, answer: Answer, directory: str, has_hashes: bool = False
) -> tuple[int, str, dict[str, typing.Any]]:
    """As of()."""
    from . import mailbox, repro

    stepped = answer.stepped
    rows = [*stepped.rows, *(one.row for one in stepped.not_seen)]
    ops = {id(row.op): row.op for row in rows if row.op and question.wants(row.name)}
    if len(ops) != 1:
        names = list(dict.fromkeys(row.name for row in rows if row.op))
        text = (
            f"{' or '.join(question.rows) or 'no row'} names {len(ops)} ops of graph "
            f"{answer.graph}, and one is written. Name its row, such as {', '.join(names[:3])}"
        )
        return mailbox.NO_MATCH, text, {"error": text}
    (op,) = ops.values()
    made = [row.value for row in stepped.rows if row.op is op and row.value is not None]
    given = stepped.given.get(id(op), [])
    try:
        if id(op) in stepped.beside:
            raise repro.CannotWrite(
                f"{op.op} {op.name} runs in one launch with other ops, and what it was given can "
                f"be copied only before all of them, so it may not be there yet"
            )
        script = repro.write(op, answer.replay, answer.graph, given, made, directory)
    except repro.CannotWrite as error:
        text = f"no script: {error}"
        return mailbox.TROUBLE, text, {"error": text}
    text = f"replay {answer.replay} of graph {answer.graph}: {answer.verified}\n"
    text += f"{op.op} {op.name} with what it was given: {script}\nnext:  python {script}"
    told = {
        "graph": answer.graph,
        "capture": answer.capture,
        "replay": answer.replay,
        "op": op.op,
        "name": op.name,
        "script": script,
        "verified": answer.verified,
    }
    if has_hashes:
        told |= _hashes(stepped)
    return mailbox.OK, text, told


def _slowest(rows: list[Row], most: int) -> list[Row]:
    """A row of each op that takes longest, the slowest first."""
    of_op = {id(row.op): row for row in reversed(rows) if row.us is not None}
    return sorted(of_op.values(), key=lambda row: -(row.us or 0.0))[:most]


def _slowest_lines(shown: list[Row], slowest: list[Row]) -> list[str]:
    lines = ["the slowest ops, each launched alone, which a replay may overlap:"]
    lines += [f"  {_us_text(row)}  {row.name}  {row.op.op}" for row in slowest if row.op]
    unknown = len({id(row.op) for row in shown if row.op and row.us is None})
    if unknown:
        lines.append(f"  and {unknown} ops of which no time is known")
    return lines


def _us_text(row: Row) -> str:
    return "" if row.us is None else f"{row.us:.1f} us"


def _hashes(stepped: Stepped) -> dict[str, dict[str, typing.Any]]:
    """By name, of rows that have a name of their own, and of probes: as the client compares them
    with what the replay left (client/cli/commands/find/left_rows.cpp)."""
    times = collections.Counter(row.name for row in stepped.rows)
    rows = {
        row.name: [row.op.op if row.op else "input", *_hash(row.stats)]
        for row in stepped.rows
        if times[row.name] == 1
    }
    probes = {name: ["", *_hash(stats)] for name, stats in stepped.observed.items()}
    return {"hashes": rows, "hashes_of_probes": probes}


def _hash(stats: Stats) -> tuple[int, str, str]:
    return stats.elements, f"{stats.hash:016x}", f"{stats.ordered:08x}"


def _is_bad(row: Row) -> bool:
    return bool(row.stats.nan or row.stats.pos_inf)


def _first_lines(answer: Answer, first: Row, may_be_earlier: bool) -> list[str]:
    what = "NaN" if first.stats.nan else "Inf"
    where = " here, or earlier in what was not seen" if may_be_earlier else ""
    lines = [f"first {what}{where}: {_row_text(first)}"]
    if first.op is None:
        return [*lines, "  it came from outside of the graph"]
    lines.append(f"  op      {first.op.op}")
    if first.op.module:
        lines.append(f"  module  {first.op.module}")
    if first.op.site:
        lines.append(f"  line    {first.op.site}")
    before = {}
    for row in answer.stepped.rows:
        if row is first:
            break
        before[row.name] = row
    hidden = {one.row.name for one in answer.stepped.not_seen}
    for one in [one for one in first.op.given if one.reads][:_MOST_READS]:
        known = before.get(one.row)
        text = _row_text(known) if known else one.row or one.argument
        lines.append(f"  reads   {text}" + "  not seen" * (not known and one.row in hidden))
    return lines


def _not_seen_lines(not_seen: list[NotSeen], counts: Counts, most: int) -> list[str]:
    lines = [f"not seen: {one.row.name}: {one.reason}" for one in not_seen[:most]]
    if len(not_seen) > most:
        lines.append(f"not seen: {len(not_seen) - most} more rows")
    if not_seen or counts.of_no_op:
        lines.append(
            f"of {counts.nodes} nodes {counts.alone} ran alone and {counts.parallel} together with "
            f"others; {counts.of_no_op} were made by no op, and what these write is in no row"
        )
    return lines


def _row_text(row: Row) -> str:
    one, stats = row.given, row.stats
    known = table().get(one.dtype)
    text = f"{row.name}  {known.short if known else one.dtype}[{','.join(map(str, one.shape))}]"
    text += f"  n={stats.elements}"
    for count, what in ((stats.nan, "NaN"), (stats.pos_inf, "Inf"), (stats.neg_inf, "-Inf")):
        if count:
            text += f" {'all' if count == stats.elements else count} {what}"
    if stats.elements > stats.nan + stats.pos_inf + stats.neg_inf:
        text += f"  in [{stats.min:.6g}, {stats.max:.6g}] mean {stats.mean:.6g}"
    return text + f"  {_us_text(row)}" * (row.us is not None)


def _row_json(row: Row) -> dict[str, typing.Any]:
    stats, op = row.stats, row.op
    is_any = stats.elements > stats.nan + stats.pos_inf + stats.neg_inf
    return {
        "name": row.name,
        "op": op.op if op else "input",
        "module": op.module if op else "",
        "site": op.site if op else "",
        "dtype": row.given.dtype,
        "shape": list(row.given.shape),
        "count": stats.elements,
        "nan": stats.nan,
        "pos_inf": stats.pos_inf,
        "neg_inf": stats.neg_inf,
        "min": stats.min if is_any else None,
        "max": stats.max if is_any else None,
        "mean": stats.mean if is_any else None,
        "hash": f"{stats.hash:016x}",
        "ordered_hash": f"{stats.ordered:08x}",
        "us": row.us,
    }


def _not_seen_json(one: NotSeen) -> dict[str, typing.Any]:
    op = one.row.op
    return {
        "name": one.row.name,
        "op": op.op if op else "",
        "module": op.module if op else "",
        "site": op.site if op else "",
        "reason": one.reason,
    }


def _save_trace(answer: Answer, rows: list[Row], path: str) -> str:
    """As Chrome's JSON, which Perfetto reads: a track for the graph, one op behind another, as the
    device ran each alone. Fails: OSError."""
    track = {"pid": 1, "tid": answer.capture}
    title = f"graph {answer.graph}, replay {answer.replay}: each op alone"
    events: list[dict[str, typing.Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "cgdebug"}},
        {"ph": "M", "name": "thread_name", **track, "args": {"name": title}},
    ]
    begin_us = 0.0
    ops = {id(row.op): row for row in reversed(rows) if row.op}  # the first row of each
    unknown = [row.name for row in ops.values() if row.us is None]
    for row in reversed(ops.values()):
        if row.op is not None and row.us is not None:
            about = {"op": row.op.op, "module": row.op.module, "line": row.op.site}
            bar = {"name": row.name, "ts": begin_us, "dur": row.us, "args": about}
            events.append({"ph": "X", **track, **bar})
            begin_us += row.us
    content = {"traceEvents": events, "cgdebug_unknown": unknown[::-1]}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file)
    text = f"times of {len(ops) - len(unknown)} ops: {path}, for Perfetto"
    return text + f"; of {len(unknown)} ops no time is known" * bool(unknown)


def _save(rows: list[Row], path: str) -> str:
    """As safetensors, by name of the row. Fails: OSError."""
    import torch

    tensors: dict[str, typing.Any] = {}
    for row in rows:
        if row.value is not None:
            name, number = row.name, 1
            while name in tensors:  # written again
                number += 1
                name = f"{row.name}#{number}"
            tensors[name] = row.value.detach().contiguous().cpu()
    try:
        from safetensors.torch import save_file
    except ImportError:
        torch.save(tensors, path)
        return f"values of {len(tensors)} rows: {path}, for torch.load()"
    save_file(tensors, path)
    return f"values of {len(tensors)} rows: {path}, as safetensors"
