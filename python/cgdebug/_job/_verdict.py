"""The messages of assert_ok(): a mismatch, or why not everything was compared."""

from __future__ import annotations

import os
import shlex

from ..errors import TensorCompareMismatchError
from ..status import ProbeStatus, SlotStatus


def why_not_compared(
    status: ProbeStatus, consumed: bool, timeout: float, daemon_problem: str
) -> str:
    """Empty if everything was compared."""
    compared = sum(slot.compared for slot in status.slots)
    by_daemon = [slot for slot in status.slots if slot.compared_on != "device"]
    lost = sum(max(slot.lost, slot.not_compared) for slot in by_daemon)
    turned_off = sum(slot.suppressed for slot in status.slots)
    broken = next((slot for slot in status.slots if slot.verdict == "error"), None)
    if status.closed:
        return "it is closed. Call assert_ok() before close()"
    if broken is not None:
        return f"{broken.verdict_text}. Type: cgdebug-cli status"
    if not status.slots and status.error:
        return status.error
    if not status.slots:
        if status.mode == "always":
            return "it was never called: call it on a tensor before assert_ok()"
        return (
            'it has seen no tensor yet. In mode="capture" it looks only inside a captured graph; '
            'call it in one, or use mode="always"'
        )
    if not any(slot.accepted or slot.suppressed or slot.compared for slot in status.slots):
        if any(slot.graph_replays for slot in status.slots):
            return "the body of its conditional node did not run in any replay so far"
        return "its graph was never replayed. Call graph.replay() first"
    if not consumed and not status.daemon_alive:
        return (
            f"no daemon is running{f' ({daemon_problem})' if daemon_problem else ''}. "
            f"Type: cgdebug-cli daemon start"
        )
    if not consumed:
        return (
            f"the daemon did not get through everything within {timeout:g} s ({compared} "
            f"compared so far). Type: cgdebug-cli status"
        )
    if lost:
        return (
            f"{lost} snapshots were overwritten before the daemon could read them; the {compared} "
            f"it read matched. Give the probe more room: TensorRecord(capacity=...)"
        )
    if turned_off:
        return (
            f"it was turned off or down for {turned_off} replays (cgdebug-cli set), the {compared} "
            f"compared matched. Type: cgdebug-cli set {shlex.quote(status.name)} --mode registered"
        )
    if compared == 0 and any(slot.compared_with == "first" for slot in status.slots):
        return (
            'expected="first" compares later replays with the first one, and there was no later '
            "one. Replay the graph again"
        )
    if compared == 0:
        return "the daemon has seen its snapshots but compared none. Type: cgdebug-cli status"
    return ""


def mismatch_error(status: ProbeStatus, failed: SlotStatus) -> TensorCompareMismatchError:
    """For `failed`, the status's first failure."""
    count = sum(slot.mismatched for slot in status.slots)
    times = f"first of {count}" if count > 1 else "the only one"
    call = f", call {failed.invocation_index}" if failed.invocation_index else ""
    call += f", in part {failed.part}" if failed.part else ""
    replay = failed.first_failed_replay
    return TensorCompareMismatchError(
        f"probe {status.name!r}{rank_words()} failed at replay {replay}{call} ({times}).\n"
        f"{failed.verdict_text}\n"
        f"see: cgdebug-cli show -s {os.getpid()} {shlex.quote(f'{status.name}@{replay}')}",
        status.name,
        replay,
        failed.invocation_index,
    )


def rank() -> int:
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else -1


def rank_words() -> str:
    return f" (rank {rank()})" if rank() >= 0 else ""
