"""Daemons and jobs are stopped and killed at random while clients ask for things. Every value that
can be read is the job's, and every missing one is counted.

CGDEBUG_TEST_DISORDER=500 runs so many events, 600s so many seconds. These runs have eight jobs in
one /dev/shm, half of them another user's if the tests may switch user. CGDEBUG_TEST_SEED=n repeats
the events of an earlier run.
"""

import collections
import contextlib
import json
import mmap
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import pytest

import cgdebug
from conftest import wait_until

SETTING = os.environ.get("CGDEBUG_TEST_DISORDER", "20")
SECONDS = int(SETTING[:-1]) if SETTING.endswith("s") else 0
EVENTS = 0 if SECONDS else int(SETTING)
SEED = int(os.environ.get("CGDEBUG_TEST_SEED", str(time.time_ns() % 100_000)))
IS_LONG = "CGDEBUG_TEST_DISORDER" in os.environ
JOBS = int(os.environ.get("CGDEBUG_TEST_DISORDER_JOBS", "8" if IS_LONG else "2"))  # at a time
OTHER_UID = 54321

# The sizes of the tensors of each probe; each size is a slot of its own. The k-th shape is replayed
# in every k-th round; its replay n holds n everywhere.
SHAPES = {"disk": [1_000, 700, 30], "tenth": [64, 65], "ring": [300, 1], "stats": [64, 640]}
JOB = """
import json, mmap, struct
rounds = mmap.mmap(os.open(os.environ["ROUNDS"], os.O_RDWR), 16)
actions = {
    "disk": TensorRecord(to="disk"),
    "tenth": TensorRecord(to="disk", every=10),
    "ring": TensorRecord(8),
    "stats": TensorStats(every=3),
}
calls = []
for name, counts in json.loads(os.environ["SHAPES"]).items():
    probe = CudaGraphTensorProbe(name, [actions[name]], mode="always")
    calls += [(probe, k, torch.empty(count)) for k, count in enumerate(counts, 1)]
n = 0
while not rounds[8]:
    n += 1
    for probe, k, value in calls:
        if n % k == 0:
            probe(value.fill_(n // k))
    rounds[:8] = struct.pack("q", n)  # after all calls
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
        shapes = json.dumps(SHAPES)
        self.process = job(JOB, ROUNDS=str(rounds), SHAPES=shapes, CGDEBUG_DIR=str(folder)).process

    def rounds(self):
        return struct.unpack("q", self._shared[:8])[0]

    def calls(self, shape):
        """How often each probe was called with shape number `shape`, at least and at most."""
        rounds = self.rounds()
        return rounds // (shape + 1), (rounds + self.was_killed) // (shape + 1)

    def kill(self):
        self.was_killed = True
        self.process.kill()
        self.process.wait()

    def finish(self):
        self._shared[8:9] = b"\1"
        assert self.process.wait(300) == 0


class Disorder:
    """One daemon after the other, some jobs at a time, and what happens to them."""

    def __init__(self, own_daemon, job, folder, jobs):
        self.random = random.Random(SEED)
        self.own_daemon, self.job, self.folder = own_daemon, job, folder
        self.jobs, self.recordings = [], 0
        for _ in range(jobs):
            self.start_job()
        self.daemon = own_daemon()
        for one in self.jobs:
            self.wait_for_probes(one)

    def alive(self):
        return [one for one in self.jobs if not one.was_killed]

    def start_job(self):
        self.jobs.append(CountedJob(self.job, self.folder / f"job{len(self.jobs)}"))

    def wait_for_probes(self, job):
        def known():
            with self.daemon.connect() as client:
                mine = [one for one in client.sessions() if one.pid == job.process.pid]
                return mine and mine[0].probe_count == len(SHAPES)

        wait_until(known, "the daemon knows the four probes of the job", 60)

    def next_path(self):
        self.recordings += 1
        return self.folder / f"{self.recordings}.cgrec"

    def go_on_for_a_while(self):
        job = self.random.choice(self.alive())
        enough = job.rounds() + self.random.randrange(300)
        wait_until(lambda: job.rounds() >= enough, "the job goes on", 60)

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
        self.random.choice(self.alive()).kill()
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
            alive = [one.process.pid for one in self.alive()]
            key = self.random.choice([one for one in client.sessions() if one.pid in alive]).key
            mode = self.random.choice(["off", "stats", "full", "registered"])
            client.set("ring", mode=mode, every=self.random.randrange(5), session=key, ttl=0.5)

    def look(self):
        """Whose jobs the daemon shows: this user's, and what an earlier test has left behind."""
        with self.daemon.connect() as client:
            pids = {one.pid for one in client.sessions()}
        shown = {pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()}
        own = {one.process.pid for one in self.jobs} | {os.getpid()}
        assert shown <= own, f"the daemon shows {shown - own}, which are not this user's"


def true_snapshots(recording, series):
    """The replays of a probe's shape; checks every one of their values."""
    for replay in series.replays:
        snapshot = series[replay]
        assert (snapshot.stats.min, snapshot.stats.max) == (replay, replay), (recording, snapshot)
        if series.name in ("disk", "tenth"):
            assert (snapshot.numpy() == replay).all(), (recording, snapshot)
    return series.replays


def gaps_of(recording, series):
    return [gap for gap in recording._reader.gaps() if recording._all[gap["slot"]] is series]


def lost(recording, series, first=0, last=1 << 62):
    """How many snapshots of a shape are counted as lost between two replays."""
    return sum(
        gap["count"]
        for gap in gaps_of(recording, series)
        if gap["after_replay"] >= first and gap["before_replay"] <= last
    )


def why_unsettled(job):
    """Says what the job wanted on the disk that is neither there nor counted as lost. If there is
    nothing, also returns how many snapshots are there and how many are lost."""
    there = missing = 0
    paths = list(job.folder.glob("*.cgrec"))
    if len(paths) != 1:
        return f"{paths}", 0, 0
    recording = cgdebug.open(paths[0])
    if recording.growing:
        return f"{paths[0]} is being written", 0, 0
    for name, every in (("disk", 1), ("tenth", 10)):
        for shape, elements in enumerate(SHAPES[name]):
            found = [one for one in recording.select(name) if one.shape == (elements,)]
            have = sum(len(one.replays) for one in found)
            gone = sum(lost(recording, one) for one in found)
            least, most = ((calls + every - 1) // every for calls in job.calls(shape))
            if not least <= have + gone <= most:
                return f"{name}{{{elements}}}: {have} and {gone} of {least} to {most}", 0, 0
            there, missing = there + have, missing + gone
    return "", there, missing


def as_another_user(folder):
    """This test, run by another user in the same /dev/shm; None if that is impossible."""
    if os.geteuid() != 0 or not IS_LONG or "CGDEBUG_TEST_IS_OTHER_USER" in os.environ:
        return None
    environment = {
        **os.environ,
        "CGDEBUG_TEST_IS_OTHER_USER": "1",
        "CGDEBUG_TEST_DISORDER_JOBS": str(JOBS // 2),
        "CGDEBUG_TEST_SEED": str(SEED + 1),
        "HOME": str(folder),
        "USER": "other",  # torch asks, and this uid may have no name
        "TMPDIR": str(folder),
    }
    environment.pop("XDG_RUNTIME_DIR", None)
    user = {"user": OTHER_UID, "group": OTHER_UID, "extra_groups": [], "cwd": folder}
    try:
        subprocess.run(
            [sys.executable, "-c", "import cgdebug, torch"], env=environment, check=True, **user
        )
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no other user: {error}")  # the interpreter may lie where only this one may read
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider"]
    with open(folder / "output", "wb") as output:
        return subprocess.Popen(
            [*command, f"--basetemp={folder}/pytest", __file__],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            **user,
        )


@contextlib.contextmanager
def another_user():
    """Whether another user runs; its test must have passed in the end."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cgdebug-user-", dir="/tmp"))
    try:
        os.chown(folder, OTHER_UID, OTHER_UID) if os.geteuid() == 0 else None
        process = as_another_user(folder)
        try:
            yield process is not None
            if process is not None:
                code = process.wait(600 + SECONDS + 5 * EVENTS)
                output = (folder / "output").read_text(errors="replace")
                print("the other user:\n" + output)
                assert code == 0, output
        finally:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def trouble(world):
    """Lets random things happen; returns how often each did."""
    events = [world.kill_daemon, world.stop_daemon, world.kill_job, world.record, world.record,
              world.stop_recording, world.freeze, world.freeze, world.change, world.change,
              world.look]  # fmt: skip
    happened = collections.Counter()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end if SECONDS else happened.total() < EVENTS:
        world.go_on_for_a_while()
        event = world.random.choice(events)
        happened[event.__name__] += 1
        if not IS_LONG:
            print(event.__name__)
        event()
    world.look()
    return happened


@pytest.mark.timeout(900 + 2 * SECONDS + 5 * EVENTS)
def test_what_is_read_is_true_and_what_is_missing_is_counted(own_daemon, job, tmp_path):
    print(f"CGDEBUG_TEST_SEED={SEED}")
    with another_user() as is_there:
        world = Disorder(own_daemon, job, tmp_path, JOBS // 2 if is_there else JOBS)
        happened = trouble(world)
        for one in world.alive():
            one.finish()
        there = missing = 0
        for one in world.jobs:
            try:
                wait_until(lambda one=one: why_unsettled(one)[0] == "", "the account is exact")
            except AssertionError:
                raise AssertionError(f"{one.folder}: {why_unsettled(one)[0]}") from None
            there, missing = there + why_unsettled(one)[1], missing + why_unsettled(one)[2]
        snapshots = check_recordings(tmp_path)
        print(f"{dict(happened)}: {len(world.jobs)} jobs, {sum(j.rounds() for j in world.jobs)} "
              f"rounds; for the disk {there} are there, {missing} counted as lost; "
              f"{snapshots} snapshots were read")  # fmt: skip


def check_recordings(folder):
    """How many snapshots they hold, all of them true, and every one between two counted."""
    count = 0
    for path in sorted(folder.rglob("*.cgrec")):
        recording = cgdebug.open(path)
        for series in recording.series:
            replays = true_snapshots(recording, series)
            count += len(replays)
            every = {"disk": 1, "tenth": 10}.get(series.name)
            if every and len(recording.sessions) == 1 and replays:
                first, last = replays[0], replays[-1]
                absent = (last - first) // every + 1 - len(replays)
                gaps = gaps_of(recording, series)
                assert absent == lost(recording, series, first, last), (path, series, gaps)
        assert recording.verify() == [], path
    return count
