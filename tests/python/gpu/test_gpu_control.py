"""The live control in the direct lane, written as a daemon writes it, by another process."""

import subprocess
import sys

import pytest
import torch

from cgdebug import TensorCompare, TensorRecord, TensorStats, _recording
from cgdebug._job import _native
from conftest import capture

pytestmark = [pytest.mark.gpu, pytest.mark.own_lane, pytest.mark.usefixtures("without_daemon")]

OFF, STATS, FULL = 1, 2, 3
NONFINITE, INF, ABS_MAX = 1, 2, 3

# Writes SlotCredit (proto/layout/ring_layout.h). Runs in a process of its own, because a job that
# closes a second descriptor of its segment drops the lock that says that it lives.
WRITER = """
import mmap, struct, sys
name, index, mode, trigger, every, first, until = sys.argv[1], *map(int, sys.argv[2:8])
threshold = float(sys.argv[8])
with open(f"/dev/shm/{name}", "r+b") as file:
    control = mmap.mmap(file.fileno(), 0)
    word, offset, size, extent = struct.unpack_from("=QQQI", control, int(sys.argv[10]) + 32 * index)
with open(f"/dev/shm/{name}.{extent}", "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
    (order,) = struct.unpack_from("=Q", memory, offset + 264)
    credit = offset + int(sys.argv[9])
    (old,) = struct.unpack_from("=Q", memory, credit + 16)
    version = (old >> 48 | 1) & 0xFFFF
    struct.pack_into("=Q", memory, credit + 16, version << 48)
    struct.pack_into("=QQQqd", memory, credit + 24, order, first, until, 0, threshold)
    new = (version + 1 & 0xFFFF) << 48 | every << 16 | trigger << 8 | mode
    struct.pack_into("=Q", memory, credit + 16, new)
"""


class Controlled:
    def __init__(self, p, x):
        self.probe, self.x = p, x
        self.graph, _ = capture(lambda: p(x), warmup=0)

    def set(self, mode, trigger=0, every=0, first=1, until=0, threshold=0.0):
        (slot,) = self.probe.status(timeout=0).slots
        name = _native.load().session()["name"]
        words = [name, slot.slot, mode, trigger, every, first, until, threshold]
        words += [_recording.SLOT_CREDIT_OFFSET, _recording.DIRECTORY_OFFSET]
        subprocess.run([sys.executable, "-c", WRITER, *map(str, words)], check=True)
        self.replay()  # what this one does was decided already

    def replay(self, times=1):
        for _ in range(times):
            self.graph.replay()
        torch.cuda.synchronize()

    @property
    def counts(self):
        (slot,) = self.probe.status(timeout=0).slots
        return slot.replays, slot.accepted, slot.suppressed


@pytest.fixture
def controlled(graph_probe):
    x = torch.zeros(1000, device="cuda")
    return Controlled(graph_probe(TensorRecord(64), lane="direct"), x)


def test_off_and_on_again(controlled):
    controlled.replay(2)
    controlled.set(OFF)
    assert controlled.counts == (3, 3, 0)
    controlled.replay(10)
    assert controlled.counts == (13, 3, 10)
    controlled.set(0)
    controlled.replay(2)
    assert controlled.counts == (16, 5, 11)
    assert [r.replay_index for r in controlled.probe.records()] == [1, 2, 3, 15, 16]


def test_values_after_statistics_are_sent_although_they_did_not_change(graph_probe):
    x = torch.full((1 << 16,), 7.0, device="cuda")
    c = Controlled(graph_probe(TensorRecord(2, unchanged="skip"), lane="direct"), x)
    c.replay(3)
    c.set(STATS)
    c.replay(5)  # their 128 bytes took the place of the values
    c.set(0)
    c.replay(3)
    assert [(r.replay_index, r.tensor.unique().tolist()) for r in c.probe.records()] == [
        (12, [7.0]), (13, [7.0])
    ]  # fmt: skip
    (slot,) = c.probe.status(timeout=0).slots
    assert (slot.accepted, slot.unchanged) == (13, 2 + 1 + 2)
    c.set(OFF)
    c.replay(4)
    c.set(0)
    c.replay(1)  # the values from before it was off are still in the ring
    (slot,) = c.probe.status(timeout=0).slots
    assert slot.unchanged == 5 + 2
    assert c.probe.records()[-1].tensor.unique().tolist() == [7.0]


def test_a_control_holds_for_its_replays_only(controlled):
    controlled.set(OFF, first=4, until=6)
    controlled.replay(9)
    assert [r.replay_index for r in controlled.probe.records()] == [1, 2, 3, 7, 8, 9, 10]


def test_every_nth_replay(controlled):
    controlled.set(FULL, every=3, first=1)
    controlled.replay(9)
    assert [r.replay_index for r in controlled.probe.records()] == [1, 4, 7, 10]


def test_statistics_alone_leave_no_values(controlled):
    controlled.replay(1)
    controlled.set(STATS)
    controlled.replay(5)
    assert controlled.counts == (7, 7, 0)
    assert [r.replay_index for r in controlled.probe.records()] == [1, 2]


@pytest.mark.parametrize(
    "trigger, bad, threshold",
    [(NONFINITE, float("nan"), 0), (INF, float("-inf"), 0), (ABS_MAX, -5.0, 4.0)],
)
def test_a_trigger_sends_the_values_that_it_waits_for(controlled, trigger, bad, threshold):
    controlled.set(FULL, trigger=trigger, threshold=threshold)
    controlled.x.fill_(3)
    controlled.replay(3)
    controlled.x[517] = bad
    controlled.replay(1)
    controlled.x[517] = 3
    controlled.replay(2)
    assert controlled.counts == (7, 7, 0)
    records = controlled.probe.records()
    assert [r.replay_index for r in records] == [1, 5]
    assert str(records[1].tensor[517].item()) == str(bad)


def test_small_tensors_are_sent_as_they_are(graph_probe):
    small = Controlled(graph_probe(TensorRecord(8), lane="direct"), torch.ones(3, device="cuda"))
    small.set(STATS)
    small.replay(3)
    assert small.counts == (4, 4, 0)
    assert [r.replay_index for r in small.probe.records()] == [1]


def test_a_probe_of_statistics_is_turned_off_too(graph_probe):
    p = Controlled(graph_probe(TensorStats(), lane="direct"), torch.ones(100, device="cuda"))
    p.set(OFF)
    p.replay(5)
    assert p.counts == (6, 1, 5)


def test_a_comparison_on_the_gpu_sends_what_the_control_wants(graph_probe):
    x = torch.ones(1000, device="cuda")
    p = graph_probe(TensorCompare(x.clone()), lane="direct")
    controlled = Controlled(p, x)
    controlled.replay(3)
    assert controlled.counts == (3, 0, 0)
    p.assert_ok()  # there is no daemon, and it needs none
    controlled.set(FULL)
    controlled.replay(2)
    assert controlled.counts == (6, 2, 0)
    assert p.status(timeout=0).slots[0].compared == 6
