"""What makes `cgdebug.check()` and `cgdebug.step()` raise: `CGDEBUG_FAIL_ON`."""

from __future__ import annotations

import shlex
import sys
import time
import typing

from .._shared import _words
from ..errors import DaemonError, FoundError, NotCheckedError
from . import _excuses, _native

# How long step() waits, once something was found, for what came before it.
_PATIENCE_S = 1.0
_POLL_S = 0.02


def wanted() -> list[str]:
    text = _words.setting("CGDEBUG_FAIL_ON")
    return _words.finding_kinds(text, "CGDEBUG_FAIL_ON") if text else []


class _Finding(typing.NamedTuple):
    """What the daemon found first of a kind, as `finding` of the native module says it.

    is_of_row: whether it is in a row of an op log
    order:     of its slot
    serial:    of its replay
    """

    text: str
    is_of_row: bool
    order: int
    serial: int


def _found(kinds: list[str]) -> dict[str, _Finding]:
    probe = _native.probe_module()
    if probe is None:
        return {}
    found = {kind: probe.finding(_words.finding_number(kind)) for kind in kinds}
    return {kind: _Finding(*one) for kind, one in found.items() if one is not None}


def raise_if_found(kinds: list[str]) -> None:
    """Looks at shared memory and waits only if something was found: an earlier one may come. Of
    what was found in rows of op logs it takes what is known of their excuses, and does not wait.

    Fails: FoundError.
    """
    found = _found(kinds)
    if not found:
        return
    if not all(one.is_of_row for one in found.values()):
        _native.probe_module().await_read(_PATIENCE_S)
        found = _found(kinds)
    _raise_first(found, _excuses.last() if _has_rows(found) else None)


def _has_rows(found: dict[str, _Finding]) -> bool:
    return any(one.is_of_row for one in found.values())


def _raise_first(found: dict[str, _Finding], verdict: _excuses.Verdict | None) -> None:
    for kind, one in found.items():
        if not one.is_of_row:
            raise FoundError(one.text, kind)
        first = verdict.found.get(kind) if verdict is not None else None
        if first is not None:
            is_same = first.place == (one.order, one.serial)  # the daemon knows more of it
            raise FoundError(one.text if is_same else first.sentence, kind)


def check(on: str | None = None, timeout: float = 10.0) -> None:
    """Raises `FoundError` if a probe of this process has shown what `on` names: "nan", "inf",
    "mismatch" (a failed `TensorCompare`) or "replica" (a tensor that must be the same on all ranks
    is not what most ranks of this machine have); commas separate several. Without it,
    $CGDEBUG_FAIL_ON counts, else "nan". Rows of op logs are looked at as well, and those that
    `cgdebug-cli check` excuses do not count: NaN that the program leaves out again, a step that
    torch's GradScaler skips.

    It answers for the process from its start, also for probes, watches and op logs that are closed.
    What was seen whole leaves nothing behind. What was found is found again by each later call, and
    what was not seen is told again.

    With "replica" it also waits for the other ranks of this machine, 3 s for each snapshot at most.
    Ranks of other machines are compared by `cgdebug-cli ranks`, which reads their recordings.

    Waits for the GPU, and for cgdebug-daemon to read everything. A `NotCheckedError` if it does not
    within `timeout` seconds, if something was to be watched and could not be, such as modules for
    which /dev/shm has no room, if snapshots were lost, if `cgdebug-cli set` turned a probe off or a
    trigger had stopped its ring for some replays, if nobody has looked at the values of a ring in
    device memory, which has neither `TensorStats` nor a trigger other than "mismatch" (unless `on`
    is "mismatch"), if nobody knows whether a NaN or Inf of a row has an excuse, or, with "mismatch"
    and "replica", if something could not be compared.
    """
    if on is not None and not isinstance(on, str):
        raise ValueError(f'cgdebug.check: on is a text such as "nan,inf", not {on!r}')
    if on is not None and on.endswith(".cgrec"):
        raise ValueError(f"cgdebug.check looks at this process. Type: cgdebug.open({on!r}).check()")
    kinds = (wanted() if on is None else _words.finding_kinds(on, "cgdebug.check: on")) or ["nan"]
    probe = _native.probe_module()
    not_seen = None if probe is None else probe.not_seen()
    if not_seen is None and (probe is None or probe.session() is None):
        raise NotCheckedError(
            "cgdebug.check: no probe of this process has seen a tensor. `explain()` of a watch and "
            "`status()` of a probe say why"
        )
    _synchronize()
    deadline = time.monotonic() + timeout
    read = _Read(*probe.await_read(timeout))
    found = _found(kinds)
    verdict = _excuses.ask(max(deadline - time.monotonic(), 1.0)) if _has_rows(found) else None
    _raise_first(found, verdict)
    if not_seen := probe.not_seen():
        raise NotCheckedError(f"cgdebug.check: {not_seen}. `explain()` of a watch names them all")
    if not read.everything:
        problem = _native.daemon_problem() or "type: cgdebug-cli status"
        raise NotCheckedError(
            f"cgdebug.check: no daemon has read everything within {timeout:g} s: {problem}"
        )
    if problem := _why_not_checked(read, kinds, verdict):
        raise NotCheckedError(f"cgdebug.check: {problem}")
    if "replica" in kinds:
        _raise_unless_compared(probe.session()["uuid"], deadline)


class _Read(typing.NamedTuple):
    """What the daemon has read of this process, as `await_read` of the native module says it.

    lost:         snapshots
    left_out:     runs of probes that wrote nothing
    not_compared: calls of probes
    unseen:       rings in device memory whose values nobody has looked at
    """

    everything: bool
    lost: int
    left_out: int
    not_compared: int
    unseen: int


def _why_not_checked(read: _Read, kinds: list[str], verdict: _excuses.Verdict | None) -> str:
    """What may hide in what was read, or ""."""
    lost, left_out, unseen = read.lost, read.left_out, read.unseen
    if lost:
        return (
            f"{lost} snapshot{'s were' if lost > 1 else ' was'} lost before the daemon read them; "
            f"the others show nothing. Give the probes a larger capacity"
        )
    if left_out:
        return (
            f"{left_out} run{'s' if left_out > 1 else ''} of probes wrote nothing, because a probe "
            f"was turned off (cgdebug-cli set) or a trigger had stopped its ring; the others show "
            f"nothing. Type: cgdebug-cli probes"
        )
    if unseen and set(kinds) != {"mismatch"}:
        return (
            f"nobody has looked at the values of {unseen} ring{'s' if unseen > 1 else ''} in "
            f"device memory; the others show nothing. Give such probes TensorStats() too, or "
            f'TensorRecord(where="device", on="nan")'
        )
    if verdict is not None and verdict.problem:
        return (
            f"rows of op logs have NaN or Inf, and whether they have an excuse is not known: "
            f"{verdict.problem}"
        )
    if read.not_compared and "mismatch" in kinds:
        return (
            f"{read.not_compared} call{'s' if read.not_compared > 1 else ''} of probes could not "
            f"compare everything. Type: cgdebug-cli status"
        )
    return ""


def _raise_unless_compared(uuid: str, deadline: float) -> None:
    """Waits until the snapshots of replicas that this process has sent are compared.

    Fails: FoundError; NotCheckedError if one was not compared with the other ranks, or none was.
    """
    from .. import _wire

    try:
        patience = max(deadline - time.monotonic(), 0.1)
        connection = _wire.Connection(_wire.socket_path(), patience)
        try:
            while True:
                synced, _ = connection.ask(_wire.request("sync"))
                answer, _ = connection.ask(_wire.request("sessions", include_dead=True))
                sessions = answer.sessions.sessions
                own = next((one for one in sessions if one.uuid == uuid), None)
                is_settled = synced.sync.complete and (own is None or not own.replicas.waiting)
                if is_settled or time.monotonic() > deadline:
                    break
                time.sleep(_POLL_S)
        finally:
            connection.close()
    except (ImportError, OSError, DaemonError) as error:
        raise NotCheckedError(
            f"cgdebug.check: the daemon says nothing of replicas: {error}"
        ) from error
    if own is None:
        raise NotCheckedError(
            "cgdebug.check: the daemon knows no replicas of this job. Type: cgdebug-cli status"
        )
    if own.found_replica:
        raise FoundError(own.found_replica, "replica")
    if not synced.sync.complete:
        problem = "the daemon has not compared everything in time. Type: cgdebug-cli status"
    else:
        problem = _why_not_compared(own, sessions)
    if problem:
        raise NotCheckedError(f"cgdebug.check: {problem}")


def _why_not_compared(own, sessions) -> str:
    """Why replicas of the session may differ unseen, or ""."""
    counts, run = own.replicas, shlex.quote(own.run_id)
    if own.rank < 0 or own.world_size < 2:
        return (
            "this process has no other ranks, so there are no replicas to compare. Start it with "
            "torchrun, or set RANK and WORLD_SIZE"
        )
    if counts.incomplete or counts.waiting:
        number = counts.incomplete + counts.waiting
        return (
            f"{number} snapshot{'s' if number > 1 else ''} of replicas could not be compared with "
            "all ranks of this machine: a rank lacks them, or is behind. Type: cgdebug-cli ranks "
            f"-s {run}"
        )
    if counts.unknown:
        return (
            f"{counts.unknown} snapshot{'s' if counts.unknown > 1 else ''} of replicas may differ "
            "from those of other ranks: by how much is not known without their values. Give the "
            f"probes TensorRecord(), or type: cgdebug-cli ranks -s {run}"
        )
    if counts.compared:
        return ""
    is_alone = not any(
        one.run_id == own.run_id
        and one.restart_count == own.restart_count
        and one.rank not in (-1, own.rank)
        for one in sessions
    )
    if is_alone:
        return (
            f"no other rank of run {run} has used a probe on this machine. Record on each machine "
            "and type: cgdebug-cli ranks FOLDER"
        )
    return (
        "no probe of this process has seen a replica: a DTensor that several ranks have, or what "
        "cgdebug.watch(model, params=True, grads=True) sees of DDP. To name others, record and "
        "type: cgdebug-cli ranks FOLDER --replicated GLOB"
    )


def _synchronize() -> None:
    """Waits for every GPU that this process uses."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "cgdebug.check waits for the GPU, which a capture forbids; call it after the capture"
        )
    current = torch.cuda.current_device()
    # A device without a context has run nothing, and synchronizing would make it one.
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", lambda device: device == current)
    for device in range(torch.cuda.device_count()):
        if has_context(device):
            torch.cuda.synchronize(device)
