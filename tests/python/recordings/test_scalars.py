"""cgdebug.log_to: curves in TensorBoard, W&B and MLflow while the job runs."""

import math
import os
import signal
import struct
import threading
import time

import pytest
import torch

import cgdebug
from conftest import Job, stop, wait_until


@pytest.fixture
def logged(daemon, probe):
    """logged(writer, run, *probes): what `run` does is logged to the writer. No step is known."""
    cgdebug.step(None)

    def make(writer, run, *probes, **options):
        with cgdebug.log_to(writer, *probes, socket=daemon.socket, **options) as log:
            run()
        return log

    return make


class Curves:
    """A writer with SummaryWriter's signature."""

    def __init__(self):
        self.points = {}

    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None):
        self.points.setdefault(tag, []).append((global_step, scalar_value, walltime))

    def values(self, tag):
        return [(step, value) for step, value, _ in self.points[tag]]


def ramp(p, steps=5):
    for i in range(steps):
        p(torch.tensor([float(i), -2.0 * i, float("nan") if i == 3 else 0.0]))


def test_every_snapshot_is_a_point_with_the_statistics_of_the_daemon(logged, probe):
    p, other = probe(cgdebug.TensorRecord(8), name="log.a"), probe(cgdebug.TensorStats(), name="x")
    curves, began = Curves(), time.time()
    log = logged(curves, lambda: (other(torch.ones(1)), ramp(p)), "log.*", stats=["abs_max", "nan"])
    assert curves.values("cgdebug/log.a/abs_max") == [(i + 1, 2.0 * i) for i in range(5)]
    assert curves.values("cgdebug/log.a/nan") == [(i + 1, float(i == 3)) for i in range(5)]
    assert began <= curves.points["cgdebug/log.a/nan"][0][2] <= time.time()
    assert set(curves.points) == {"cgdebug/log.a/abs_max", "cgdebug/log.a/nan"}
    assert (log.logged, log.missed, log.error) == (5, 0, None)


def test_steps_are_the_users_own_and_calls_have_curves_of_their_own(logged, probe):
    p = probe(cgdebug.TensorStats(), name="log.step")

    def run():
        for step in (100, 200):
            cgdebug.step(step)
            p(torch.full((2,), float(step)))
            p(torch.full((3,), step + 1.0))  # another shape is another call

    try:
        curves = Curves()
        logged(curves, run, "log.step", stats=["max"], prefix="")
    finally:
        cgdebug.step(None)
    points = [curves.values(tag) for tag in curves.points]
    assert sorted(points) == [[(100, 100.0), (200, 200.0)], [(100, 101.0), (200, 201.0)]]


def test_what_was_before_is_not_logged_and_one_in_so_many_is(logged, probe):
    p = probe(cgdebug.TensorRecord(16), name="log.every")  # a slow daemon loses none
    ramp(p, 4)
    curves = Curves()
    log = logged(curves, lambda: ramp(p, 8), "log.every", stats=["max"], every=3)
    assert [step for step, _ in curves.values("cgdebug/log.every/max")] == [6, 9, 12]
    assert log.missed == 0


def test_a_function_gets_the_snapshot(logged, probe):
    p, seen = probe(cgdebug.TensorRecord(8), name="log.f"), []
    logged(seen.append, lambda: ramp(p, 2), "log.f")
    assert [(one.probe_name, one.replay_index, one.stats.max) for one in seen] == [
        ("log.f", 1, 0.0),
        ("log.f", 2, 1.0),
    ]


def test_a_loss_is_counted_and_in_a_curve(own_daemon):
    daemon = own_daemon()
    job = Job("""
        p = CudaGraphTensorProbe("x", [TensorRecord(capacity=4)], mode="always")
        for line in sys.stdin:
            for _ in range(20):
                p(torch.ones(2))
            print("done")
    """)
    job.go_on(), job.line()
    curves = Curves()
    with cgdebug.log_to(curves, session=job.pid, socket=daemon.socket) as log:
        wait_until(lambda: log._seen, "the log reads the job")
        first = log.logged + log.missed
        stop(daemon.process.pid)
        job.go_on(), job.line()
        os.kill(daemon.process.pid, 18)
        wait_until(lambda: log.logged + log.missed >= first + 20, "all is logged or missed")
    assert log.missed > 0
    assert curves.values("cgdebug/missed")[-1][1] == log.missed
    job.finish()


def test_what_a_call_lost_before_its_first_snapshot_is_missed(own_daemon, job):
    daemon = own_daemon()
    running = job("""
        old, new = (CudaGraphTensorProbe(name, [TensorRecord(capacity=4)], mode="always")
                    for name in ("old", "new"))
        for p, calls, line in zip((old, new), (1, 20), sys.stdin):
            for _ in range(calls):
                p(torch.ones(2))
            print("done")
        sys.stdin.read()
    """)
    running.go_on(), running.line()
    with cgdebug.log_to(Curves(), session=running.pid, socket=daemon.socket) as log:
        wait_until(lambda: log._is_live, "the log has read the past")
        stop(daemon.process.pid)
        running.go_on(), running.line()
        os.kill(daemon.process.pid, signal.SIGCONT)
        wait_until(lambda: log.logged + log.missed == 20, "all is logged or missed")
        assert log.missed > 0


def test_what_was_lost_before_the_log_began_is_not_missed(own_daemon, job):
    daemon = own_daemon()
    running = job("""
        p = CudaGraphTensorProbe("x", [TensorRecord(capacity=4)], mode="always")
        for calls, line in zip((1, 20), sys.stdin):
            for _ in range(calls):
                p(torch.ones(2))
            print("done")
        sys.stdin.read()
    """)
    running.go_on(), running.line()
    with daemon.connect() as client:

        def count(name):
            sessions = [one for one in client.status().sessions if one.pid == running.pid]
            return sum(getattr(one.counters, name) for one in sessions)

        wait_until(lambda: count("consumed") == 1, "the first is read")
        stop(daemon.process.pid)
        running.go_on(), running.line()
        os.kill(daemon.process.pid, signal.SIGCONT)
        wait_until(lambda: count("consumed") + count("lost_overwritten") == 21, "the others too")
        assert count("lost_overwritten") > 0
    with cgdebug.log_to(Curves(), session=running.pid, socket=daemon.socket) as log:
        wait_until(lambda: log._is_live, "the log has read the past")
    assert (log.logged, log.missed) == (0, 0)


def test_a_log_ends_in_time_although_the_daemon_hangs(own_daemon, probe):
    daemon = own_daemon()
    p = probe(cgdebug.TensorRecord(8), name="log.stuck")
    ramp(p, 1)
    log = cgdebug.log_to(lambda _: None, "log.stuck", socket=daemon.socket)
    wait_until(lambda: log._is_live, "the log has read the past")
    stop(daemon.process.pid)
    try:
        began = time.monotonic()
        log.close(timeout=0.5)
        assert time.monotonic() - began < 8  # an answer is waited for longer: 10 s
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)


def test_a_daemon_that_dies_costs_no_point_twice(own_daemon, probe):
    p = probe(cgdebug.TensorRecord(64), name="log.again")
    daemon = own_daemon()
    curves = Curves()
    with cgdebug.log_to(curves, "log.again", stats=["max"], socket=daemon.socket) as log:
        ramp(p, 5)
        wait_until(lambda: log.logged == 5, "the first are logged")
        daemon.process.kill()
        daemon.process.wait()
        ramp(p, 5)
        own_daemon()
        wait_until(lambda: log.logged + log.missed == 10, "the others are logged, or missed")
    steps = [step for step, _ in curves.values("cgdebug/log.again/max")]
    assert steps == sorted(set(steps))


def test_a_writer_that_hangs_delays_neither_the_job_nor_its_end(daemon, probe):
    p = probe(cgdebug.TensorRecord(2), name="log.hang")
    release = threading.Event()
    log = cgdebug.log_to(lambda _: release.wait(300), "log.hang", socket=daemon.socket)
    try:
        ramp(p, 3)
        began = time.monotonic()
        log.close(timeout=0.3)
        assert time.monotonic() - began < 100  # before it is released
    finally:
        release.set()


def test_a_writer_that_raises_is_called_no_more_and_the_job_goes_on(daemon, probe):
    p = probe(cgdebug.TensorRecord(8), name="log.raise")
    calls = []

    def write(snapshot):
        calls.append(snapshot)
        raise OSError("the disk is full")

    with pytest.warns(RuntimeWarning, match="the disk is full"):  # noqa: SIM117
        with cgdebug.log_to(write, "log.raise", socket=daemon.socket) as log:
            ramp(p, 3)
            wait_until(lambda: log.error, "it is noticed")
    assert len(calls) == 1 and "the disk is full" in repr(log)


def test_logging_takes_no_more_than_its_share(daemon, probe):
    p = probe(cgdebug.TensorRecord(64), name="log.share")
    spent = []

    def write(snapshot):
        until = time.thread_time() + 0.002
        while time.thread_time() < until:
            pass
        spent.append(time.thread_time())

    log = cgdebug.log_to(write, "log.share", socket=daemon.socket, max_share=0.1)
    ramp(p, 1)
    wait_until(lambda: spent, "it begins")
    began = time.monotonic()

    def goes_on():
        ramp(p, 4)
        return time.monotonic() - began > 1.5 and spent[-1] - spent[0] > 0.05

    wait_until(goes_on, "it gets its share")
    used, took = spent[-1] - spent[0], time.monotonic() - began
    log.close(timeout=0.1)
    assert used < 0.1 * took + 0.15


def test_probes_that_the_daemon_refuses_end_the_log_in_words(daemon, probe):
    probe(cgdebug.TensorStats(), name="log.bad")(torch.ones(1))
    with pytest.warns(RuntimeWarning, match="logs no more"):  # noqa: SIM117
        with cgdebug.log_to(print, "re:(", socket=daemon.socket) as log:
            wait_until(lambda: log.error, "it is noticed")
    assert isinstance(log.error, cgdebug.DaemonError)


@pytest.mark.parametrize(
    "arguments, error, says",
    [
        ({"writer": 3}, TypeError, "not int"),
        ({"every": 0}, ValueError, "every is a whole number"),
        ({"stats": ["median"]}, ValueError, "no statistic 'median'; there are count"),
        ({"max_share": 0}, ValueError, "max_share is above 0"),
    ],
)
def test_bad_arguments_are_refused_in_words(arguments, error, says):
    with pytest.raises(error, match=says):
        cgdebug.log_to(**{"writer": print, **arguments})


def test_tensorboard_shows_the_curves(logged, probe, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    p = probe(cgdebug.TensorStats(), name="log.tb")
    with SummaryWriter(str(tmp_path)) as writer:
        logged(writer, lambda: ramp(p), "log.tb")
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    points = read.Scalars("cgdebug/log.tb/abs_max")
    assert [(one.step, one.value) for one in points] == [(i + 1, 2.0 * i) for i in range(5)]
    assert [one.value for one in read.Scalars("cgdebug/log.tb/nonfinite")] == [0, 0, 0, 1, 0]


def test_mlflow_has_the_curves_in_the_run_that_was_active(logged, probe, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    p = probe(cgdebug.TensorStats(), name="log.ml(0),a")
    empty = probe(cgdebug.TensorStats(), name="log.ml.nan")
    mlflow.set_tracking_uri(f"file:{tmp_path}/runs")

    def run():
        ramp(p)
        empty(torch.tensor([float("nan")]))

    with mlflow.start_run() as active:
        logged(mlflow, run, "log.ml*")
    client = mlflow.MlflowClient(f"file:{tmp_path}/runs")
    points = client.get_metric_history(active.info.run_id, "cgdebug/log.ml_0__a/abs_max")
    assert [(one.step, one.value) for one in points] == [(i + 1, 2.0 * i) for i in range(5)]
    (point,) = client.get_metric_history(active.info.run_id, "cgdebug/log.ml.nan/mean")
    assert math.isnan(point.value)
    with pytest.raises(ValueError, match=r"Type: mlflow.start_run\(\)"):
        cgdebug.log_to(mlflow)


def test_wandb_gets_the_curves_on_an_axis_of_their_own(logged, probe, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_SILENT", "true")
    with pytest.raises(ValueError, match="Type: wandb.init"):
        cgdebug.log_to(wandb)
    p = probe(cgdebug.TensorStats(), name="log.wb")
    run = wandb.init(mode="offline", dir=str(tmp_path), project="p")
    logged(run, lambda: ramp(p), "log.wb", stats=["abs_max"])
    run.finish()
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    records = []

    def is_written():  # by a process of W&B's own
        records[:] = [
            wandb_internal_pb2.Record.FromString(data) for data in records_of(file.read_bytes())
        ]
        return any(record.HasField("exit") for record in records)

    wait_until(is_written, "W&B has written the end of the run")
    axes = {one.metric.glob_name: one.metric.step_metric for one in records}
    rows = [
        {"/".join(item.nested_key) or item.key: item.value_json for item in one.history.item}
        for one in records
        if one.HasField("history")
    ]
    assert axes.get("cgdebug/*") == "cgdebug/step"
    assert [(int(row["cgdebug/step"]), float(row["cgdebug/log.wb/abs_max"])) for row in rows] == [
        (i + 1, 2.0 * i) for i in range(5)
    ]


def records_of(log):
    """Of W&B's file: 7 bytes, then leveldb's log format."""
    at, parts = 7, b""
    while at + 7 <= len(log):
        if 32768 - at % 32768 < 7:  # no header fits into the rest of the block
            at += 32768 - at % 32768
            continue
        size, kind = struct.unpack_from("<HB", log, at + 4)
        parts += log[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""
