"""What PyTorch's own tools show of cgdebug.

TORCH_LOGS=+cgdebug   a line for each capture and for each probe in it, and why a probe does not
                      leave its graph directly; for each watch, for each graph that torch.compile
                      makes with probes in it, and for each list of rows that an eager log has
TORCH_TRACE=folder    for tlparse: an artifact for each of these, as JSON: "cgdebug_capture_N_rows",
                      "cgdebug_capture_N_probes", "cgdebug_call_N_rows", "cgdebug_watch_N",
                      "cgdebug_compiled_N_probes"
torch.cuda.graph(enable_annotations=True) of torch 2.14 and later: the kernels of a probe have its
                      name
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import sys
import typing

if typing.TYPE_CHECKING:
    from .._op_log.capture_cost import CaptureCost
    from .._op_log.rows import OpLog

_log = logging.getLogger("cgdebug")  # torch sets its level: it knows every logger by its name
_compiled = itertools.count(1)
_MARK = "cgdebug "
_PROBE_MARK = f"{_MARK}probe "
_NO_MARK: contextlib.AbstractContextManager = contextlib.nullcontext()


def op_log_captured(log: OpLog, cost: CaptureCost) -> None:
    """Requires: the capture is ending or has ended."""
    _log.info("%s", cost)
    for gap, count in log.gaps.items():
        _log.info("capture %d: not shown: %s (%d times)", log.graph, gap, count)
    if _is_tracing():
        _trace(
            f"capture_{log.graph}_rows",
            {"graph_id": log.graph, "rows": _rows_of(log), "gaps": dict(log.gaps)},
        )


def _rows_of(log: OpLog) -> list[dict[str, typing.Any]]:
    return [
        {
            "number": row.number,
            "name": row.name,
            "op": row.op,
            "inputs": row.inputs,
            "dtype": row.dtype,
            "shape": row.shape,
            "site": row.site,
            **row.details.to_dict(),
        }
        for row in log.rows
    ]


def op_log_called(log: OpLog, call: int) -> None:
    """Tells of the rows of an eager call, if its log has not had these rows before."""
    if not (_log.isEnabledFor(logging.INFO) or _is_tracing()):
        return
    rows = hash(tuple((row.name, row.dtype, row.shape) for row in log.rows))
    if rows in log.told_rows:
        return
    log.told_rows.add(rows)
    _log.info(
        "call %d: %d rows; later calls that have the same rows are not told", call, len(log.rows)
    )
    gaps = log.gaps_of(call)
    for gap, count in gaps.items():
        _log.info("call %d: not shown: %s (%d times)", call, gap, count)
    _trace(f"call_{call}_rows", {"call": call, "rows": _rows_of(log), "gaps": dict(gaps)})


def watched(number: int, about: dict[str, typing.Any]) -> None:
    """Tells of a watch that begins. number: of the watch in the process, from 1."""
    _log.info(
        "watch %d: %s of %s, level %s: %d modules",
        *(number, about["select"], about["model"], about["level"], len(about["modules"])),
    )
    _trace(f"watch_{number}", {"watch": number, **about})


def compiled(sites: list[dict[str, str]]) -> None:
    """Tells of a graph with probes in it that torch.compile is about to make code of."""
    number = next(_compiled)
    _log.info("compiled graph %d: %d probes are in it", number, len(sites))
    for entry in sites:
        _log.info("compiled graph %d: a probe at %s", number, entry["site"] or entry["node"])
    _trace(f"compiled_{number}_probes", {"graph": number, "probes": sites})


def probes_captured(graph_id: int) -> None:
    """Tells of the probes that a capture contains. Requires: the capture has ended."""
    if not (_log.isEnabledFor(logging.INFO) or _is_tracing()):
        return
    probe = sys.modules.get("cgdebug.probe")
    found = []
    for one in list(probe._live.values()) if probe is not None else ():
        status = one._status(waited=True)
        for slot in status.slots:
            if slot.graph_id == graph_id:
                found.append(
                    {
                        "probe": one.name,
                        "dtype": slot.dtype,
                        "shape": list(slot.shape),
                        "lane": slot.lane,
                        "why_not_direct": status.lane_note if slot.lane != "direct" else None,
                        "site": one._site,
                    }
                )
    if not found:
        return
    _log.info("capture %d: %d tensors are seen by probes", graph_id, len(found))
    for entry in found:
        why = f": {entry['why_not_direct']}" if entry["why_not_direct"] else ""
        _log.info(
            "capture %d: probe %s, %s%s, %s lane%s",
            *(graph_id, entry["probe"], entry["dtype"], entry["shape"], entry["lane"], why),
        )
    _trace(f"capture_{graph_id}_probes", {"graph_id": graph_id, "probes": found})


def asks_for_marks() -> bool:
    """Whether the capture under way wants names for its kernels."""
    annotations = sys.modules.get("torch.cuda._graph_annotations")
    return bool(getattr(annotations, "_annotations_enabled", False))


def marked(name: str) -> contextlib.AbstractContextManager:
    """Gives the kernels that are captured inside this name, if the capture asks for names."""
    if not asks_for_marks():
        return _NO_MARK
    annotations: typing.Any = sys.modules["torch.cuda._graph_annotations"]
    return annotations.mark_kernels(_MARK + name, backward=False)


def probe_of_mark(mark) -> str | None:
    """The probe whose name `marked` gave to a kernel, from what torch has of it."""
    name = mark.get("name") if isinstance(mark, dict) else None
    if not isinstance(name, str) or not name.startswith(_PROBE_MARK):
        return None
    return name[len(_PROBE_MARK) :]


def _is_tracing() -> bool:
    internal = sys.modules.get("torch._logging._internal")
    return bool(getattr(getattr(internal, "trace_log", None), "handlers", None))


def _trace(name: str, payload: dict[str, typing.Any]) -> None:
    if not _is_tracing():
        return
    from torch._logging import trace_structured

    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": f"cgdebug_{name}", "encoding": "json"},
        payload_fn=lambda: json.dumps(payload, default=str),
        expect_trace_id=False,
    )
