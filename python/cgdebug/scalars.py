"""Statistics of probes as curves in TensorBoard, Weights & Biases or MLflow, while the job runs."""

from __future__ import annotations

import atexit
import collections.abc
import re
import threading
import time
import typing
import warnings

from . import _wire
from ._job import _native
from ._shared import _answers
from .errors import DaemonError

_STATS = ("abs_max", "mean", "std", "nonfinite")
_ALL = 1 << 20  # more events than a daemon keeps
_RETRY_S = 0.2
_EVENTS_PER_LOOK = 32  # at the time that they took


def log_to(
    writer: typing.Any,
    *probes: str,
    stats: collections.abc.Sequence[str] = _STATS,
    every: int = 1,
    prefix: str = "cgdebug/",
    session: str | int | None = None,
    socket: str | None = None,
    max_share: float = 0.05,
) -> ScalarLog:
    """Logs statistics of each snapshot from now on, as the daemon computes them:

        with cgdebug.log_to(SummaryWriter("runs/a"), "blk*"):
            train()

    writer:  a SummaryWriter of torch or tensorboardX; `wandb` or one of its runs; `mlflow`, whose
             run is active; or any function, which is called with a TensorSnapshot that has `stats`
             but no values
    probes:  globs as in `Client.probes`; none = all
    stats:   attributes of `Stats`
    every:   one replay in this many
    prefix:  of every tag. The step is the user's own (`cgdebug.step`), else the replay
    session: another job, a run of several, or None: this process
    socket:  of the daemon, as in `connect`
    max_share: of one core. What takes longer is left out, and counted in `missed`

    A thread of this process reads the daemon and calls the writer; the job never waits for it. In
    W&B the curves have an axis of their own, "<prefix>step". It counts no log of yours, but a run
    whose own curves use W&B's step should be another one: wandb.init(reinit="create_new").
    """
    if every < 1:
        raise ValueError(f"log_to: every is a whole number from 1 on, not {every!r}")
    if not 0 < max_share <= 1:
        raise ValueError(f"log_to: max_share is above 0 and at most 1, not {max_share!r}")
    from .snapshot import Stats

    known = [*Stats.__dataclass_fields__, "nonfinite", "inf"]
    for name in stats:
        if name not in known:
            raise ValueError(f"log_to: no statistic {name!r}; there are {', '.join(known)}")
    return ScalarLog(
        _sink_of(writer, prefix), probes, tuple(stats), every, prefix, session, socket, max_share
    )


class ScalarLog:
    """A log that `log_to` began. `close` or the end of its `with` block ends it; so does the end of
    the process.

    logged: snapshots so far
    missed: snapshots that are in no curve, because they were lost, or came faster than max_share
            allows
    error:  why it logs no more: what the writer raised, or what the daemon refused
    """

    def __init__(self, sink, probes, stats, every, prefix, session, socket, max_share):
        self.logged = 0
        self.missed = 0
        self.error: BaseException | None = None
        self._sink = sink
        self._stats = stats
        self._every = every
        self._prefix = prefix
        self._socket = socket
        self._session = None if session is None else str(session)
        self._probes = list(probes)
        self._seen: dict[tuple[str, int], int] = {}  # (session, slot): ordinal
        self._told: dict[tuple[str, int], int] = {}  # losses since that one, which are in `missed`
        self._since_ns = time.time_ns()
        self._has_begun = self._job() is not None
        self._budget = _Budget(max_share)
        self._tags: dict[tuple[str, int], str] = {}
        self._changed = threading.Condition()
        self._connection: _wire.Connection | None = None
        self._is_live = False  # the daemon sends what happens now, not the past
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="cgdebug-log", daemon=True)
        self._thread.start()
        atexit.register(self.close, 2.0)

    def close(self, timeout: float = 10.0) -> None:
        """Logs what the daemon has read by now, waiting at most `timeout` seconds. The writer stays
        open."""
        atexit.unregister(self.close)
        if self._is_closing or not self._thread.is_alive():
            return
        deadline = time.monotonic() + timeout
        with self._changed:
            self._budget.lift()
            self._changed.notify_all()
        wanted = self._last_ordinals(deadline)
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    not self._thread.is_alive()
                    or all(self._seen.get(key, 0) >= last for key, last in wanted.items())
                ),
                max(deadline - time.monotonic(), 0),
            )
            self._is_closing = True
            if self._connection is not None:
                self._connection.interrupt()
            self._changed.notify_all()
        self._thread.join(max(deadline - time.monotonic(), 0.1))

    def __enter__(self) -> ScalarLog:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def __repr__(self) -> str:
        failed = f", stopped by {self.error!r}" if self.error else ""
        return f"<cgdebug.ScalarLog: {self.logged} snapshots logged, {self.missed} missed{failed}>"

    # --- inside; those without a lock run on the thread -------------------------------------------

    def _job(self) -> str | None:
        if self._session is not None:
            return self._session
        module = _native.probe_module()
        session = module and module.session()
        return session["uuid"][:8] if session else None

    def _connect(self, timeout: float = 10.0) -> _wire.Connection:
        return _wire.Connection(_wire.socket_path(self._socket), timeout)

    def _request(self, job: str, follow: bool):
        return _wire.request(
            "tail",
            session=job,
            probes=self._probes,
            last=_ALL,
            follow=follow,
            until_exit=follow,
        )

    def _last_ordinals(self, deadline: float) -> dict[tuple[str, int], int]:
        """Of everything that jobs did by now. Empty if no daemon says it in time."""
        job = self._job()
        last: dict[tuple[str, int], int] = {}
        if job is None:
            return last
        try:
            connection = self._connect(max(deadline - time.monotonic(), 0.01))
            try:
                connection.ask(_wire.request("sync"))
                for response in connection.stream(self._request(job, follow=False), deadline):
                    reply = response.tail.snapshot
                    if response.tail.HasField("snapshot"):
                        key = (reply.session, reply.slot)
                        last[key] = max(last.get(key, 0), reply.ordinal)
            finally:
                connection.close()
        except (ConnectionError, TimeoutError):
            return {}
        return last

    def _run(self) -> None:
        try:
            while self._follow():
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closing, _RETRY_S)
        except BaseException as error:
            self.error = error
            if not self._is_closing:
                warnings.warn(
                    f"cgdebug.log_to logs no more: {error!r}",
                    RuntimeWarning,
                    stacklevel=1,
                )
        with self._changed:
            if self._connection is not None:
                self._connection.close()
            self._changed.notify_all()

    def _follow(self) -> bool:
        """Reads the daemon until it ends or the job does. Returns whether to try again."""
        job = self._job()
        try:
            if job is None:
                return not self._is_closing
            connection = self._connect()  # may take seconds, which `close` does not wait for
            with self._changed:
                if self._is_closing:
                    connection.close()
                    return False
                self._connection = connection
            self._is_live = False
            for response in connection.stream(self._request(job, follow=True)):
                if response.HasField("error"):
                    _answers.checked(response, "tail")
                if response.tail.HasField("snapshot"):
                    self._take(response.tail.snapshot)
                elif response.tail.HasField("loss") and self._is_live:
                    self._lose(response.tail.loss)
                elif response.tail.caught_up:
                    self._is_live = True
            return self._session is None and not self._is_closing
        except (ConnectionError, TimeoutError):
            return not self._is_closing
        except DaemonError as error:
            if error.code not in ("no_session", "no_probe"):  # which may come
                raise
            return not self._is_closing

    def _lose(self, message) -> None:
        """Ordinals do not tell what a slot lost before its first snapshot, or after its last."""
        if message.HasField("slot"):
            key = (message.session, message.slot.slot)
            self.missed += message.count
            self._told[key] = self._told.get(key, 0) + message.count

    def _take(self, message) -> None:
        key = (message.session, message.slot)
        before = self._seen.get(key)
        if before is not None and message.ordinal <= before:
            return  # of the past, which comes again after a new connection
        is_of_past = message.timestamp_ns < self._since_ns
        if before is None:
            before = message.ordinal - 1 if self._has_begun or is_of_past else 0
        told = self._told.pop(key, 0)
        # What was lost before a snapshot of the past is of the past, too.
        self.missed += -told if is_of_past else max(message.ordinal - before - 1 - told, 0)
        if not is_of_past and message.replay % self._every == 0:
            self._log(message)
        with self._changed:
            self._seen[key] = message.ordinal
            self._changed.notify_all()
        self._budget.spend(self._changed, lambda: self._is_closing)

    def _log(self, message) -> None:
        self.logged += 1
        if isinstance(self._sink, _Function):
            self._sink.call(_answers.snapshot(_answers.plain(message), None))
            return
        step = message.step if message.step >= 0 else message.replay
        scalars = {
            f"{self._prefix}{self._tag_of(message)}/{name}": _value_of(message.stats, name)
            for name in self._stats
        }
        if self.missed:
            scalars[f"{self._prefix}missed"] = self.missed
        self._sink.write(scalars, step, message.timestamp_ns / 1e9)

    def _tag_of(self, message) -> str:
        """Unique, and the same for as long as the slot lives, whatever else is captured later."""
        key = (message.session, message.slot)
        if key not in self._tags:
            tag = message.probe + message.qualifier
            if message.rank >= 0:
                tag = f"rank{message.rank}/{tag}"
            if message.invocation:
                tag += f"[{message.invocation}]"
            if tag in self._tags.values():
                tag += f"#{message.slot}"
            self._tags[key] = tag
        return self._tags[key]


class _Budget:
    """Makes a thread sleep when it took more than a share of one core."""

    def __init__(self, share: float):
        self._share = share
        self._events = 0
        self._began: tuple[float, float] | None = None

    def lift(self) -> None:
        self._share = 1.0

    def spend(self, condition: threading.Condition, is_over) -> None:
        self._events += 1
        if self._events % _EVENTS_PER_LOOK and self._began is not None:
            return
        now = (time.thread_time(), time.monotonic())
        if self._began is None:
            self._began = now
            return
        used, passed = now[0] - self._began[0], now[1] - self._began[1]
        pause = used / self._share - passed
        if pause > 0:
            with condition:
                condition.wait_for(lambda: is_over() or self._share == 1.0, pause)
        elif passed > 1:
            self._began = now  # what was saved up is not spent at once


# --- writers --------------------------------------------------------------------------------------


def _sink_of(writer: typing.Any, prefix: str):
    if hasattr(writer, "add_scalar"):
        return _TensorBoard(writer)
    if hasattr(writer, "active_run") and hasattr(writer, "MlflowClient"):
        return _Mlflow(writer)
    if hasattr(writer, "define_metric") and hasattr(writer, "log"):
        return _Wandb(writer, prefix)
    if callable(writer):
        return _Function(writer)
    raise TypeError(
        "log_to: the writer is a SummaryWriter, wandb or a run of it, mlflow, or a function, not "
        f"{type(writer).__name__}"
    )


class _Function:
    def __init__(self, call: typing.Callable[[typing.Any], object]):
        self.call = call


class _TensorBoard:
    def __init__(self, writer):
        self._writer = writer

    def write(self, scalars: dict[str, float], step: int, time_s: float) -> None:
        for tag, value in scalars.items():
            self._writer.add_scalar(tag, value, step, walltime=time_s)


class _Wandb:
    def __init__(self, writer, prefix: str):
        self._run = writer.run if hasattr(writer, "init") else writer
        if self._run is None:
            raise ValueError("log_to: wandb has no run. Type: wandb.init(mode='offline')")
        self._axis = f"{prefix}step"
        self._run.define_metric(f"{prefix}*", step_metric=self._axis)

    def write(self, scalars: dict[str, float], step: int, time_s: float) -> None:
        self._run.log({self._axis: step, **scalars})


class _Mlflow:
    def __init__(self, mlflow):
        from mlflow.entities import Metric

        run = mlflow.active_run()  # of the thread that calls log_to
        if run is None:
            raise ValueError("log_to: no run of mlflow is active. Type: mlflow.start_run()")
        self._run_id = run.info.run_id
        self._client = mlflow.MlflowClient()
        self._metric = Metric

    def write(self, scalars: dict[str, float], step: int, time_s: float) -> None:
        # MLflow takes no other characters in a name, and 1000 metrics at a time.
        metrics = [
            self._metric(re.sub(r"[^\w\-. /]", "_", tag), value, int(time_s * 1000), step)
            for tag, value in scalars.items()
        ]
        for first in range(0, len(metrics), 1000):
            self._client.log_batch(self._run_id, metrics=metrics[first : first + 1000])


def _value_of(stats, name: str) -> float:
    if name == "inf":
        return stats.pos_inf + stats.neg_inf
    if name == "nonfinite":
        return stats.nan + stats.pos_inf + stats.neg_inf
    return getattr(stats, name)
