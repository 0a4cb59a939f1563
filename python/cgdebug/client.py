"""Asks cgdebug-daemon about running jobs, from any process. Needs NumPy and protobuf, not torch."""

from __future__ import annotations

import collections.abc
import math
import os
import sys
import threading
import time
import typing

from . import _wire
from ._shared import _answers, _words
from ._shared._answers import Answer, Event, Probe, Session, is_no_row
from .snapshot import TensorSnapshot

# What callers write, and its names in proto/control.proto.
_ONLY = {"all": "ALL", "nan": "NONFINITE", "changed": "CHANGED", "mismatch": "FAILED"}
_MODES = {"registered": "AS_REGISTERED", "off": "OFF", "stats": "STATS", "full": "FULL"}
_DURABILITIES = {"none": "NONE", "interval": "INTERVAL", "each": "EACH"}
_LOSSLESS = {None: "NEW_JOBS", False: "NEVER", True: "ALWAYS"}
_MAX_TIMEOUT_S = 1_000_000  # sockets refuse more


def connect(
    socket: str | None = None,
    session: str | int | None = None,
    spawn: bool = False,
    timeout: float = 10.0,
) -> Client:
    """Connects to the user's daemon.

    socket:  its path; None means $CGDEBUG_SOCKET, else where the user's daemon listens
    session: the job that every request is about unless it names another: its key, label, run id or
             pid; None means all of them, or the newest where one is needed
    spawn:   start a daemon when none is running
    timeout: of each request, in seconds; `freeze`, `record` and the end of a recording wait for
             the disk, as long as the daemon answers others
    Fails: ConnectionError; the text says how to start a daemon.
    """
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not is_number or not 0 < timeout <= _MAX_TIMEOUT_S:
        raise ValueError(
            f"connect: timeout is a number of seconds above 0, {_MAX_TIMEOUT_S} at most, not "
            f"{timeout!r}"
        )
    return Client(socket, session or "", spawn, timeout)


class Client:
    """A connection to the daemon; made by `connect`, closed by `close` or `with`.

    Thread: from any thread, requests wait for each other; a `tail` has a connection of its own.
    Fails:  DaemonError for a refused request, ConnectionError and TimeoutError for a lost one.
    """

    def __init__(
        self,
        socket: str | None,
        session: str | int = "",
        spawn: bool = False,
        timeout: float = 10.0,
    ):
        self._socket = socket
        self._session = str(session)
        self._timeout = timeout
        self._lock = threading.Lock()
        try:
            self._connection = self._connect(spawn)
        except _wire.ConnectionLost:  # that daemon was about to end, or was just killed
            self._connection = self._connect(spawn)

    def status(self, session: str | int | None = None) -> Answer:
        """The daemon and its sessions: version, pid, memory, `sessions`, `skipped` files."""
        return self._ask("status", session=self._pick(session))

    def sessions(self, include_dead: bool = True) -> list[Session]:
        """Jobs alive, and with `include_dead` those that ended but can still be read."""
        return self._ask("sessions", include_dead=include_dead).sessions

    def probes(self, *probes: str, session: str | int | None = None) -> list[Probe]:
        """Probes by glob ("blk*", "re:...", "!..." excludes), all without one. One entry is one
        call in one captured graph."""
        return self._probes(session=self._pick(session), probes=list(probes))

    def _probes(self, **fields) -> list[Probe]:
        found = []
        while True:
            answer = self._ask("probes", **fields)
            found += [probe for probe in answer.probes if not is_no_row(probe.op)]
            if not answer.more or not answer.probes:
                return found
            last = answer.probes[-1]
            fields.update(after_session=last.session, after_slot=last.slot)

    def graphs(self, session: str | int | None = None) -> list[Answer]:
        """The CUDA graphs of each job, as they are now. A job has `captures`, `gone`, `failed`,
        `empty`, and `graphs` in order of capture. A graph has `state` ("capturing", "live", "gone"
        or "failed"), `graph` (its name), `nodes`, `replays`, `probes`, `probe_bytes`, `pool`,
        `stack` and others. `nodes` and `replays` are None where they are not known. `apart` says
        whether a graph can be run op by op, for `cgdebug-cli ask`, and if it is False,
        `why_not_apart` says why; None: the job does not keep it, see `run --ask`."""
        jobs = self._ask("graphs", session=self._pick(session)).sessions
        pids = {one.key: one.pid for one in self.sessions(include_dead=False)}
        for job in jobs:
            _say_apart(job, self._connection.path, pids.get(job.session))
        return jobs

    def get(
        self,
        probe: str,
        replay: int = -1,
        *,
        session: str | int | None = None,
        graph_id: int = 0,
        invocation: int | None = None,
        iteration: int | None = None,
    ) -> TensorSnapshot:
        """One tensor, by the exact name of its probe; if several sessions have it, of the newest of
        them: `session` names another. `replay` counts from 1; -1 is the newest that the daemon
        keeps, -2 the one before it. A replay given by number is also looked for in the job's ring.
        `iteration`, from 0, is one run of the body of a conditional node in that replay; without
        it, it is the last. The result's `.tensor` is a torch tensor (imports torch), `.numpy()` an
        array."""
        if replay == 0:
            raise ValueError("get: replays count from 1; -1 is the newest")
        request: dict[str, typing.Any] = {
            "session": self._pick(session),
            "probe": probe,
            "replay": replay,
            "graph_id": graph_id,
        }
        if invocation is not None:
            request["invocation"] = invocation
        if iteration is not None:
            request["iteration"] = iteration
        reply, payload = self._ask_with_payload("get", **request)
        return _answers.snapshot(reply.snapshot, None if reply.payload_dropped else payload)

    def tail(
        self,
        *probes: str,
        follow: bool = False,
        only: str = "all",
        last: int = 10,
        session: str | int | None = None,
    ) -> collections.abc.Iterator[TensorSnapshot | Event]:
        """What the probes show: the newest `last` events, then with `follow` each new one until
        every session has ended.

        Yields TensorSnapshot (with `stats`; fetch the values with `get`) and Event, whose `kind` is
        "print", "loss", "compare_failed", "unequal" (a replica that differs between ranks) or, with
        only="all", "session".
        only: "all", "nan" (NaN or Inf), "changed" or "mismatch" (a failed comparison).
        """
        if only not in _ONLY:
            raise ValueError(f"tail: only must be one of {', '.join(_ONLY)}, not {only!r}")
        request = _wire.request(
            "tail",
            session=self._pick(session),
            probes=list(probes),
            last=last,
            follow=follow,
            until_exit=follow,
            only=_ONLY[only],
        )
        if probes and not follow:
            self.probes(*probes, session=session)  # raises if there is none
        return _events(self._connect, request)

    def set(
        self,
        *probes: str,
        mode: str | None = None,
        every: int = 0,
        first: int = 0,
        count: int = 0,
        on: str | None = None,
        ttl: float | None = 300.0,
        session: str | int | None = None,
    ) -> Answer:
        """Changes captured probes while they replay; those captured later are as registered.

        probes: globs as in `probes`, at least one
        mode:   "off", "stats" (no values), "full", or "registered" to undo; "full" with `on`
        every:  one replay in this many; 0 = as registered
        first:  the first replay that the change applies to; 0 = the next one
        count:  how many snapshots; after them the probes are as registered
        on:     "nan" (NaN or Inf), "inf", "absmax>1e4" or "changed": values only in replays where
                this holds, else statistics. Rings in device memory stop instead, once, are
                recorded and go on; "mismatch", a failed comparison of the job, is for them alone
        ttl:    seconds until the probes are as registered again, even if the daemon is gone;
                None = until the job ends
        Returns how many `slots` and `probes` the change applies to.
        """
        if mode is None and on is None:
            raise ValueError("set: give mode= or on=")
        control = {
            "mode": _choice("set", "mode", mode or "full", _MODES),
            "every": every,
            "from": first,
        }
        if count:
            last = (count - 1) * max(every, 1)
            control["until"] = first + last if first else last + 1
        if on is not None:
            control.update(_condition(on))
        if ttl is not None and not (isinstance(ttl, (int, float)) and 0 < ttl < math.inf):
            raise ValueError(f"set: ttl is a number of seconds above 0, or None, not {ttl!r}")
        return self._ask(
            "set",
            session=self._pick(session),
            probes=list(probes),
            control=control,
            ttl_ms=0 if ttl is None else max(1, round(ttl * 1000)),
        )

    def record(
        self,
        directory: str | os.PathLike,
        probes: str | collections.abc.Sequence[str] = (),
        *,
        replays: int = 0,
        duration: float = 0.0,
        align: int = 0,
        max_bytes: int = 0,
        roll_bytes: int = 0,
        durability: str = "",
        lossless: bool | None = None,
        graph: str = "",
        shape: collections.abc.Sequence[int] | None = None,
        session: str | int | None = None,
        run: str = "",
    ) -> LiveRecording:
        """Writes every snapshot from now on to disk. The recording ends with `stop()`, with the
        `with` block, after `replays` replays of each probe, after `duration` seconds, or with the
        job.

        The recording has, or counts as lost, exactly the probe calls made after this returns and
        before `stop()` is called. A call in a CUDA graph is made when the GPU runs it, so both
        functions wait for the GPU if this process uses torch. For a job in another process the
        caller must do that.

        durability: when a snapshot survives a power failure: "none", "interval" (after a second) or
                    "each" (at once). Default: the daemon's setting.
        roll_bytes: the size of a segment file. Default: the daemon's setting.
        lossless:   whether jobs wait for room rather than lose a snapshot, and write every replay
                    whatever `every` of an action is. None: jobs that start after the recording.

        graph, shape: record only the calls in one graph (its label, the number of its capture or
                    "eager"), or only tensors of one shape. A graph that is captured later is known
                    by the label that cgdebug.graph_label gave it.
        run:        record only the jobs of one run (CGDEBUG_RUN_ID), also those that begin later

            with c.record("out.cgrec", probes="blk*") as rec:
                ...
            r = cgdebug.open(rec.directory)
        """
        how: dict[str, str] = {"run_id": run} if run else {}
        if durability:
            how["durability"] = _choice("record", "durability", durability, _DURABILITIES)
        _finish_gpu_work()
        reply = self._ask(
            "record_start",
            directory=_recording_path(directory),
            session=self._pick(session),
            probes=[probes] if isinstance(probes, str) else list(probes),
            replays=replays,
            duration_s=duration,
            align=align,
            max_bytes=max_bytes,
            roll_bytes=roll_bytes,
            lossless=_LOSSLESS[lossless],
            which=_which(graph, shape),
            **how,
        )
        return LiveRecording(self, reply.recording)

    def recordings(self) -> list[Answer]:
        """What this daemon records and has recorded: `directory`, `active`, `state`, `snapshots`,
        `durable_snapshots`, `lost`, `bytes`, `error`."""
        return self._ask("record_list").recordings

    def freeze(
        self,
        directory: str | os.PathLike,
        probes: str | collections.abc.Sequence[str] = (),
        *,
        last: int = 0,
        session: str | int | None = None,
    ) -> Answer:
        """Writes a job's newest replays that are still in memory: the `last` of each probe, or all.
        The job may be dead. Returns when they are written, however long that takes."""
        return self._ask(
            "freeze",
            directory=_recording_path(directory),
            session=self._pick(session),
            probes=[probes] if isinstance(probes, str) else list(probes),
            last=last,
        ).recording

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def __repr__(self) -> str:
        about = f", session {self._session!r}" if self._session else ""
        return (
            f"<cgdebug.Client of daemon {self._connection.daemon_version} "
            f"(pid {self._connection.daemon_pid}) at {self._connection.path}{about}>"
        )

    # --- inside -----------------------------------------------------------------------------------

    def _connect(self, spawn: bool = False) -> _wire.Connection:
        if spawn:
            _wire.ensure_daemon(self._socket, self._timeout)
        return _wire.Connection(_wire.socket_path(self._socket), self._timeout)

    def _pick(self, session: str | int | None) -> str:
        return self._session if session is None else str(session)

    def _ask(self, kind: str, **fields) -> Answer:
        return self._ask_with_payload(kind, **fields)[0]

    def _ask_with_payload(self, kind: str, **fields) -> tuple[Answer, bytearray]:
        with self._lock:
            if not self._connection.is_open:  # lost in an earlier request, or of the parent process
                self._connection = self._connect()
            response, payload = self._connection.ask(_wire.request(kind, **fields))
        return _answers.plain(_answers.checked(response, kind)), payload


class LiveRecording:
    """A recording in progress. The end of its `with` block stops it and waits until it is on the
    disk."""

    def __init__(self, client: Client, state: Answer):
        self._client = client
        self._state = state

    @property
    def directory(self) -> str:
        return self._state.directory

    def refresh(self) -> Answer:
        """Its state now, as in `Client.recordings`."""
        found = [one for one in self._client.recordings() if one.id == self._state.id]
        self._state = found[0] if found else self._state
        return self._state

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it has everything that was asked for. Returns False at the timeout."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.refresh().active:
            if deadline is not None and time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def stop(self) -> Answer:
        """Ends the recording if it has not ended by itself, and returns its state. The recording
        then has, or counts as lost, everything that probes saw before this call."""
        _finish_gpu_work()
        reply = self._client._ask("record_stop", recording=str(self._state.id))
        self._state = reply.recordings[0]
        return self._state

    def __enter__(self) -> LiveRecording:
        return self

    def __exit__(self, *exception) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = self._state
        return (
            f"<recording {state.directory}: {state.state}, {state.snapshots} snapshots, "
            f"{state.lost + state.refused} missing>"
        )


def _say_apart(job: Answer, path: str, pid: int | None) -> None:
    """Sets `apart` and `why_not_apart` of its graphs. pid: None if it has ended"""
    answer = pid is not None and _wire.ask_job(path, pid, {"list": True}, timeout=1.0)
    graphs = answer["graphs"] if answer else ()
    known = {one["capture"]: one["why_not_apart"] for one in graphs}
    for graph in job.graphs:
        why_not = known.get(graph.graph_id)
        graph.apart = None if why_not is None else not why_not
        graph.why_not_apart = why_not or None


def _events(
    connect: typing.Callable[[], _wire.Connection], request
) -> collections.abc.Iterator[TensorSnapshot | Event]:
    """What answers a request for a tail, on a connection of its own."""
    connection = connect()
    skipped = {None, "caught_up"} | ({"session_change"} if request.tail.only else set())
    try:
        for response in connection.stream(request):
            if response.WhichOneof("kind") is None and not response.HasField("error"):
                continue  # the end
            reply = _answers.checked(response, "tail")
            kind = reply.WhichOneof("event")
            if kind in skipped:
                continue
            event = _answers.plain(getattr(reply, kind))
            yield (
                _answers.snapshot(event, None)
                if kind == "snapshot"
                else _answers.event(kind, event)
            )
    finally:
        connection.close()


def _finish_gpu_work() -> None:
    """Waits for the GPU: a probe call that it has not run yet is not in a ring."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
        return
    for device in range(torch.cuda.device_count()):
        if torch._C._cuda_hasPrimaryContext(device):
            torch.cuda.synchronize(device)


def _condition(on: str) -> dict[str, typing.Any]:
    trigger, threshold = _words.condition(on, "set: on")
    return {"trigger": trigger, "threshold": threshold}


def _which(graph: str, shape: collections.abc.Sequence[int] | None) -> dict[str, typing.Any]:
    """The fields that select slots of the named probes."""
    which: dict[str, typing.Any] = {"graph": graph}
    if shape is not None:
        which["shape"] = {"sizes": [int(size) for size in shape]}
    return which


def _choice(function: str, argument: str, value: str, choices: dict[str, str]) -> str:
    if value not in choices:
        raise ValueError(
            f"{function}: {argument} must be one of {', '.join(choices)}, not {value!r}"
        )
    return choices[value]


def _recording_path(directory: str | os.PathLike) -> str:
    """Adds .cgrec, the suffix of recordings. An existing folder keeps its name, and the daemon says
    that it is not a recording."""
    path = os.path.abspath(directory)
    return path if path.endswith(".cgrec") or os.path.isdir(path) else f"{path}.cgrec"
