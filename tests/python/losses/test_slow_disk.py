"""A disk takes as long as it takes: nothing is lost, and who waits for it waits for a daemon that is
well."""

import concurrent.futures
import os
import signal

import pytest
import torch

import cgdebug
from cgdebug import TensorRecord
from conftest import wait_until
from failing_world import TREE, Plan

pytestmark = pytest.mark.skipif(TREE is None, reason="the build has no tests")

TIMEOUT_S = 1  # of a client


class Disk:
    """That of a daemon. It is slow between `stall()` and `resume()`."""

    def __init__(self, path):
        self.plan = Plan.make(path)
        self.plan.kind, self.plan.error, self.plan.nth = 0, 0, 1

    def stall(self):
        self.plan.failed = 0
        self.plan.kind = 5  # sync

    def is_waited_for(self):
        return self.plan.failed == 1

    def resume(self):
        self.plan.kind = 0


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path / "plan")
    yield disk
    disk.resume()


@pytest.fixture
def daemon(disk, own_daemon, monkeypatch):
    for name, value in disk.plan.environment("cgdebug-daemon").items():
        monkeypatch.setenv(name, value)
    daemon = own_daemon()
    monkeypatch.delenv("LD_PRELOAD")
    return daemon


@pytest.fixture
def client(daemon):
    with cgdebug.connect(daemon.socket, session=os.getpid(), timeout=TIMEOUT_S) as client:
        yield client


@pytest.fixture
def later():
    """Runs a function beside the test."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield pool.submit


def is_known(client, p):
    try:
        return client.get(p.name).replay_index == 1
    except cgdebug.DaemonError:
        return False


def is_longer_than(seconds, future):
    return not concurrent.futures.wait([future], seconds).done


def test_the_end_of_a_recording_waits_for_the_disk(disk, client, probe, tmp_path, later):
    p = probe(TensorRecord(8), name="stopped")
    p(torch.zeros(4))
    wait_until(lambda: is_known(client, p), "it is known")
    live = client.record(tmp_path / "a.cgrec", probes=p.name, durability="each")
    disk.stall()
    p(torch.ones(4))
    stopped = later(live.stop)
    wait_until(disk.is_waited_for, "the daemon writes")
    assert is_longer_than(3 * TIMEOUT_S, stopped)
    disk.resume()
    assert stopped.result().snapshots == 1 and stopped.result().lost == 0
    assert cgdebug.open(live.directory).complete


def test_freeze_waits_for_the_disk_and_not_for_a_daemon_that_hangs(
    disk, daemon, client, probe, tmp_path, later
):
    p = probe(TensorRecord(4), name="frozen")
    p(torch.ones(4))
    wait_until(lambda: is_known(client, p), "it is known")
    disk.stall()
    frozen = later(client.freeze, tmp_path / "f.cgrec", probes=p.name)
    wait_until(disk.is_waited_for, "the daemon writes")
    assert is_longer_than(3 * TIMEOUT_S, frozen)
    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(TimeoutError, match="did not answer within 1 s"):
            frozen.result()
    finally:
        disk.resume()
        os.kill(daemon.process.pid, signal.SIGCONT)
