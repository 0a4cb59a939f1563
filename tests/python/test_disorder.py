"""Daemons and jobs that are stopped and killed at random while they are asked for things: every value
that can be read is the one that the job had, and every one that is missing is counted.

CGDEBUG_TEST_DISORDER=500 for so many events, CGDEBUG_TEST_SEED=n for those of an earlier run.
"""

import mmap
import os
import random
import signal
import struct
import time

import pytest

import cgdebug
from conftest import wait_until

EVENTS = int(os.environ.get("CGDEBUG_TEST_DISORDER", "20"))
SEED = int(os.environ.get("CGDEBUG_TEST_SEED", str(time.time_ns() % 100_000)))

# Every probe's replay n holds n everywhere. The file counts what all probes have seen.
JOB = """
import mmap, struct
rounds = mmap.mmap(os.open(os.environ["ROUNDS"], os.O_RDWR), 16)
probes = [
    CudaGraphTensorProbe("disk", [TensorRecord(to="disk")], mode="always"),
    CudaGraphTensorProbe("tenth", [TensorRecord(to="disk", every=10)], mode="always"),
    CudaGraphTensorProbe("ring", [TensorRecord(8)], mode="always"),
    CudaGraphTensorProbe("stats", [TensorStats(every=3)], mode="always"),
]
values = [torch.empty(1_000), torch.empty(64), torch.empty(300), torch.empty(64)]
n = 0
while not rounds[8]:
    n += 1
    for probe, value in zip(probes, values):
        probe(value.fill_(n))
    rounds[:8] = struct.pack("q", n)
    time.sleep(0.0003)
"""


class CountedJob:
    def __init__(self, job, folder):
        folder.mkdir()
        rounds = folder / "rounds"
        rounds.write_bytes(bytes(16))
        with open(rounds, "r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 16)
        self.folder, self.was_killed = folder, False
        self.process = job(JOB, ROUNDS=str(rounds), CGDEBUG_DIR=str(folder)).process

    def rounds(self):
        return struct.unpack("q", self._shared[:8])[0]

    def kill(self):
        self.was_killed = True
        self.process.kill()
        self.process.wait()

    def finish(self):
        self._shared[8:9] = b"\1"
        assert self.process.wait(60) == 0


class Disorder:
    """One daemon after the other, two jobs at a time, and what happens to them."""

    def __init__(self, own_daemon, job, folder):
        self.random = random.Random(SEED)
        self.own_daemon, self.job, self.folder = own_daemon, job, folder
        self.jobs, self.recordings = [], 0
        self.start_job()
        self.start_job()
        self.daemon = own_daemon()
        for one in self.jobs:
            self.wait_for_probes(one)

    def start_job(self):
        self.jobs.append(CountedJob(self.job, self.folder / f"job{len(self.jobs)}"))

    def wait_for_probes(self, job):
        def known():
            with self.daemon.connect() as client:
                mine = [one for one in client.sessions() if one.pid == job.process.pid]
                return mine and mine[0].probe_count == 4

        wait_until(known, "the daemon knows the job's four probes")

    def next_path(self):
        self.recordings += 1
        return self.folder / f"{self.recordings}.cgrec"

    def go_on_for_a_while(self):
        job = self.jobs[-1]
        enough = job.rounds() + self.random.randrange(300)
        wait_until(lambda: job.rounds() >= enough, "the job goes on")

    def kill_daemon(self):
        self.daemon.process.kill()
        self.daemon.process.wait()
        if self.random.random() < 0.5:
            self.go_on_for_a_while()
        self.daemon = self.own_daemon()

    def stop_daemon(self):
        self.daemon.process.send_signal(signal.SIGSTOP)
        self.go_on_for_a_while()
        self.daemon.process.send_signal(signal.SIGCONT)

    def kill_job(self):
        self.jobs[-1].kill()
        self.start_job()
        self.wait_for_probes(self.jobs[-1])

    def record(self):
        probes = self.random.choice([(), "ring", ("disk", "stats")])
        with self.daemon.connect() as client:
            client.record(self.next_path(), probes, replays=self.random.choice([0, 50]))

    def stop_recording(self):
        with self.daemon.connect() as client:
            for live in client.recordings():
                if live.active and live.directory == str(self.folder / f"{self.recordings}.cgrec"):
                    cgdebug.client.LiveRecording(client, live).stop()

    def freeze(self):
        with self.daemon.connect() as client:
            key = self.random.choice(client.sessions()).key
            client.freeze(self.next_path(), session=key)

    def change(self):
        with self.daemon.connect() as client:
            alive = [one.process.pid for one in self.jobs if not one.was_killed]
            key = self.random.choice([one for one in client.sessions() if one.pid in alive]).key
            mode = self.random.choice(["off", "stats", "full", "registered"])
            client.set("ring", mode=mode, every=self.random.randrange(5), session=key, ttl=0.5)


def true_snapshots(recording, series):
    """Replays of a probe, after a look at every one of their values."""
    for replay in series.replays:
        snapshot = series[replay]
        assert (snapshot.stats.min, snapshot.stats.max) == (replay, replay), (recording, snapshot)
        if series.name in ("disk", "tenth"):
            assert (snapshot.numpy() == replay).all(), (recording, snapshot)
    return series.replays


def lost(recording, name, first=0, last=1 << 62):
    """How many are counted as lost between two replays."""
    gaps = [gap for gap in recording.gaps if gap.probe == name]
    return sum(g.count for g in gaps if g.after_replay >= first and g.before_replay <= last)


def settled(job):
    """Whether what the job wanted on the disk is there, or is counted as lost."""
    rounds = job.rounds()
    for path in job.folder.glob("*.cgrec"):
        recording = cgdebug.open(path)
        wanted = {"disk": rounds, "tenth": (rounds + 9) // 10}
        for name, count in wanted.items():
            found = len(recording[name].replays) + lost(recording, name) if name in recording else 0
            if found - count not in ((0, 1) if job.was_killed else (0,)):
                return False
        return not recording.growing
    return False


@pytest.mark.timeout(60 + 5 * EVENTS)
def test_what_is_read_is_true_and_what_is_missing_is_counted(own_daemon, job, tmp_path):
    print(f"CGDEBUG_TEST_SEED={SEED}")
    world = Disorder(own_daemon, job, tmp_path)
    events = [world.kill_daemon, world.stop_daemon, world.kill_job, world.record, world.record,
              world.stop_recording, world.freeze, world.freeze, world.change, world.change]  # fmt: skip
    for _ in range(EVENTS):
        world.go_on_for_a_while()
        event = world.random.choice(events)
        print(event.__name__)
        event()
    for one in (one for one in world.jobs if not one.was_killed):
        one.finish()
    for one in world.jobs:
        wait_until(
            lambda one=one: settled(one), f"the recording in {one.folder} has all or says so"
        )
    for path in sorted(tmp_path.rglob("*.cgrec")):
        recording = cgdebug.open(path)
        for series in recording.series:
            replays = true_snapshots(recording, series)
            if series.name == "disk" and len(recording.sessions) == 1 and replays:
                first, last = replays[0], replays[-1]
                missing = last - first + 1 - len(replays)
                assert missing == lost(recording, "disk", first, last), (path, recording.gaps)
        assert recording.verify() == [], path
