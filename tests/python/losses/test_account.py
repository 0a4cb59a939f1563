"""One account decides what is complete. Commands x sources x kinds of gap: each answer is compared
with what was really produced. No combination may say "complete", "same" or "nothing found" over a
gap."""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess

import pytest

import cgdebug
from conftest import Daemon, Job, _shared, find_program, remove_segments_of, stop, wait_until

# Reads lines "PROBE CALLS [NAN_AT]" and says "done" after each.
JOB = """
import math
capacity = {"whole": 64, "gone": 4, "over": 4, "bad": 8, "late": 64, "lossy": 4, "limit": 64, "killed": 64}
probes = {name: CudaGraphTensorProbe(name, [TensorRecord(size)], mode="always")
          for name, size in capacity.items()}
count = dict.fromkeys(probes, 0)
CudaGraphTensorProbe("first", [TensorRecord(1)], mode="always")(torch.ones(1))
print("done", flush=True)
for line in sys.stdin:
    name, calls, nan_at = line.split()
    for _ in range(int(calls)):
        count[name] += 1
        value = math.nan if count[name] == int(nan_at) else float(count[name])
        probes[name](torch.full((1024,), value))
    print("done", flush=True)
"""


@dataclasses.dataclass
class Case:
    """A source, one probe of it, and what is true of it."""

    source: str
    probe: str
    produced: int  # in the stretch that the source covers
    kept: int
    gap: bool  # whether something is missing, even if the account cannot count it
    found: bool = False
    grows: bool = False


class World:
    """Jobs and recordings, made once."""

    def __init__(self, folder):
        self.folder = folder
        self.daemon = Daemon()
        self.live = Job(JOB, CGDEBUG_RUN_ID="account-live")
        self.over = Job(JOB, CGDEBUG_RUN_ID="account-over")
        self.cases = {}

    def call(self, job, probe, calls, nan_at=0):
        job.process.stdin.write(f"{probe} {calls} {nan_at}\n")
        job.process.stdin.flush()
        assert job.line() == "done"

    def read(self, job, probe, chunks, nan_at=0):
        """In chunks, so that the daemon reads every snapshot."""
        session = "account-live" if job is self.live else "account-over"
        with self.daemon.connect(session=session) as client:

            def consumed():
                return sum(one.counters.consumed for one in client.probes() if one.name == probe)

            for calls, total in chunks:
                self.call(job, probe, calls, nan_at)
                wait_until(lambda total=total: consumed() == total, f"{probe}@{total} is read")

    def stopped(self, job, probe, calls):
        """While the daemon reads nothing."""
        try:
            stop(self.daemon.process.pid)
            self.call(job, probe, calls)
        finally:
            os.kill(self.daemon.process.pid, signal.SIGCONT)

    def cli(self, *arguments):
        return subprocess.run(
            [find_program("cgdebug-cli"), "--socket", self.daemon.socket, "--no-spawn", *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "NO_COLOR": "1"},
        )

    def record(self, name, probe, **options):
        client = self.daemon.connect(session="account-live")
        return client.record(self.folder / f"{name}.cgrec", probes=probe, **options)

    def path(self, name):
        return str(self.folder / f"{name}.cgrec")

    def build(self):
        for job in (self.live, self.over):
            assert job.line() == "done"
        self.make_killed()
        for job, name in ((self.live, "live"), (self.over, "finished")):
            self.fill(job)
            grows = job is self.live
            if job is self.over:
                job.process.stdin.close()
                assert job.process.wait(300) == 0
            self.add_job(f"account-{'live' if grows else 'over'}", name, grows)
        self.make_recordings()
        self.make_merged()
        return self

    def fill(self, job):
        self.call(job, "whole", 20)
        self.read(job, "gone", [(4, total) for total in range(4, 24, 4)])
        self.read(job, "over", [(1, 1)])
        self.stopped(job, "over", 19)
        self.read(job, "bad", [(8, 8), (3, 11), (8, 19), (8, 27), (8, 35), (5, 40)], nan_at=11)

    def add_job(self, session, name, grows):
        def add(probe, produced, kept, **more):
            self.cases[f"{name}, {probe}"] = Case(
                session, probe, produced, kept, grows=grows, **more
            )
            self.cases[f"frozen of {name}, {probe}"] = Case(frozen, probe, produced, kept, **more)

        frozen = self.path(f"frozen-{name}")
        with self.daemon.connect() as client:
            client.freeze(frozen, session=session)
        add("whole", 20, 20, gap=False)
        add("gone", 20, 4, gap=True)
        add("over", 20, 4, gap=True)
        # The ring's eight, and what is pinned: the NaN and the four before it.
        add("bad", 40, 8 + 5, gap=True, found=True)

    def make_killed(self):
        self.record("killed", "killed")
        self.call(self.live, "killed", 10)
        with self.daemon.connect() as client:
            wait_until(lambda: client.recordings()[0].snapshots == 10, "they are recorded")
        self.daemon.process.kill()
        self.daemon.process.wait()
        self.daemon = Daemon()
        self.cases["recorded, daemon killed"] = Case(
            self.path("killed"), "killed", 10, 10, gap=True
        )

    def make_recordings(self):
        with self.record("whole", "late"):
            self.call(self.live, "late", 10)
        self.call(self.live, "late", 5)
        with self.record("late", "late"):
            self.call(self.live, "late", 10)
        self.call(self.live, "late", 5)  # stopped early
        self.call(self.live, "lossy", 1)
        with self.record("lossy", "lossy"):
            self.stopped(self.live, "lossy", 20)
        limited = self.record("limit", "limit", max_bytes=64 << 10)
        self.call(self.live, "limit", 40)
        kept = limited.stop().snapshots
        assert 0 < kept < 40
        shutil.copytree(self.path("whole"), self.path("damaged"))
        damage(pathlib.Path(self.path("damaged")))
        self.cases |= {
            "recorded": Case(self.path("whole"), "late", 10, 10, gap=False),
            "recorded late, stopped early": Case(self.path("late"), "late", 10, 10, gap=False),
            "recorded, overwritten": Case(self.path("lossy"), "lossy", 20, 4, gap=True),
            "recorded up to a limit": Case(self.path("limit"), "limit", kept, kept, gap=True),
            "recorded, damaged": Case(self.path("damaged"), "late", 10, 9, gap=True),
        }

    def make_merged(self):
        folder = self.folder / "folder"
        folder.mkdir()
        for name in ("whole", "lossy"):
            shutil.copytree(self.path(name), folder / f"{name}.cgrec")
        merged = self.path("merged")
        made = self.cli("extract", self.path("whole"), self.path("late"), "-o", merged)
        assert made.returncode == 3, made.stderr  # the copy has the gap
        self.cases |= {
            "folder, whole": Case(str(folder), "late", 10, 10, gap=False),
            "folder, overwritten": Case(str(folder), "lossy", 20, 4, gap=True),
            "merged of two with a hole": Case(merged, "late", 25, 20, gap=True),
        }

    def account(self, source, probe):
        return json.loads(self.cli("--json", "info", source, probe).stdout)["account"]

    def end(self):
        for job in (self.live, self.over):
            job.process.kill()
            job.process.wait()
        self.daemon.stop()
        remove_segments_of(self.live.pid, self.over.pid)


def damage(recording):
    """Makes one snapshot in the middle unreadable."""
    (segment,) = recording.glob("segment-*")
    data = bytearray(segment.read_bytes())
    snapshots = []
    for match in re.finditer(b"crec", data):
        (kind,) = struct.unpack_from("<H", data, match.start() + 8)
        if kind == 3 and match.start() % 64 == 0:
            snapshots.append(match.start())
    data[snapshots[len(snapshots) // 2] + 70] ^= 1
    segment.write_bytes(data)
    (recording / "catalogue.sqlite").unlink()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    while _shared:
        _shared.pop().stop()
    patch = pytest.MonkeyPatch()
    patch.setenv("CGDEBUG_DAEMON", "/bin/true")
    patch.delenv("CGDEBUG", raising=False)
    world = World(tmp_path_factory.mktemp("account"))
    try:
        yield world.build()
    finally:
        world.end()
        patch.undo()


JOBS = ["whole", "gone", "over", "bad"]
CASES = [
    *(f"{name}, {probe}" for name in ("live", "finished") for probe in JOBS),
    *(f"frozen of {name}, {probe}" for name in ("live", "finished") for probe in JOBS),
    "recorded",
    "recorded late, stopped early",
    "recorded, overwritten",
    "recorded up to a limit",
    "recorded, damaged",
    "recorded, daemon killed",
    "folder, whole",
    "folder, overwritten",
    "merged of two with a hole",
]
FILES = [case for case in CASES if not case.startswith(("live", "finished"))]


def test_every_case_of_the_world_is_looked_at(world):
    assert sorted(world.cases) == sorted(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_account_is_what_was_produced_and_what_is_there(world, name):
    case = world.cases[name]
    account = world.account(case.source, case.probe)
    assert account["produced"] == case.produced
    assert account["kept"] == case.kept
    assert sum(account["lost"].values()) == case.produced - case.kept - account["not_wanted"]
    assert account["not_wanted"] == 0 and account["unread"] == 0


@pytest.mark.parametrize("name", CASES)
def test_check_never_says_nothing_found_about_what_it_did_not_look_at(world, name):
    case = world.cases[name]
    result = world.cli("check", case.source, case.probe)
    assert result.returncode == (1 if case.found else 3 if case.gap else 0), result.stdout
    assert bool(re.search("^nothing found", result.stdout, re.M)) == (
        not case.found and not case.gap
    )
    if case.gap:
        assert not re.search(r"^complete", result.stdout, re.M), result.stdout
        assert "missing: " in result.stdout
        if not case.found:
            assert "only replays " in result.stdout, result.stdout
    report = json.loads(world.cli("--json", "check", case.source, case.probe).stdout)
    assert report["complete"] is not case.gap
    assert report["found"] is case.found
    assert report["goes_on"] is case.grows
    if case.found:
        assert report["first_nonfinite"]["replay"] == 11


@pytest.mark.parametrize("name", CASES)
def test_diff_never_says_same_over_a_gap(world, name):
    case = world.cases[name]
    result = world.cli("diff", case.source, case.source, case.probe, "--equal-nan")
    is_whole = not case.gap and not case.grows
    assert result.returncode == (0 if is_whole else 3), result.stdout + result.stderr
    assert result.stdout.startswith("same") == is_whole


@pytest.mark.parametrize("name", CASES)
def test_a_range_with_a_last_replay_hides_no_gap(world, name):
    case = world.cases[name]
    scope = (case.probe, "--replays", "1..1000000")
    check = world.cli("check", case.source, *scope)
    assert check.returncode == (1 if case.found else 3 if case.gap else 0), check.stdout
    diff = world.cli("diff", case.source, case.source, *scope, "--equal-nan")
    assert diff.returncode == (0 if not case.gap and not case.grows else 3), diff.stdout


def test_a_range_before_a_cut_end_is_whole(world):
    case = world.cases["recorded, daemon killed"]
    scope = (case.probe, "--replays", f"1..{case.kept - 1}")
    assert world.cli("diff", case.source, case.source, *scope).returncode == 0
    scope = (case.probe, "--replays", f"1..{case.kept + 1}")
    assert world.cli("diff", case.source, case.source, *scope).returncode == 3


@pytest.mark.parametrize("name", [case for case in CASES if case.startswith("recorded")])
def test_query_says_what_is_missing(world, name):
    case = world.cases[name]
    result = world.cli("query", case.source, "SELECT * FROM v_snapshots")
    said = "not all of it" in result.stderr or "damaged snapshot is not in" in result.stderr
    assert said == case.gap, result.stderr


@pytest.mark.parametrize("name", CASES)
def test_info_and_stats_say_what_is_missing(world, name):
    case = world.cases[name]
    info = world.cli("info", case.source, case.probe)
    assert ("not complete" in info.stdout) == case.gap
    assert ("nothing is known to be missing" in info.stdout) == (not case.gap and not case.grows)
    stats = world.cli("stats", case.source, case.probe)
    assert ("not all of it" in stats.stderr) == case.gap
    assert info.returncode == stats.returncode == (3 if case.gap else 0)


@pytest.mark.parametrize("name", FILES)
def test_python_says_the_same(world, name):
    case = world.cases[name]
    recording = cgdebug.open(case.source)
    check = recording.check(case.probe)
    assert check.ok == (not case.gap and not case.found)
    assert check.to_dict()["complete"] is not case.gap
    if "folder" not in name and "frozen" not in name:  # one probe: all of it
        assert recording.complete is not case.gap
        assert bool(recording.missing) == case.gap
    if case.gap:
        assert not recording.complete


@pytest.mark.parametrize("name", ["live", "over"])
def test_status_tells_what_is_kept_of_what_was_produced(world, name):
    status = json.loads(world.cli("--json", "status", f"account-{name}").stdout)
    (session,) = status["sessions"]
    counters = session["counters"]
    lost = sum(count for cause, count in counters.items() if cause.startswith("lost_"))
    assert counters["produced"] == counters["consumed"] + lost
    assert counters["kept"] < counters["consumed"]
    assert lost == {"live": 15 + 16, "over": 15}[name]
    assert "all finite" not in world.cli("status", f"account-{name}").stdout


@pytest.mark.parametrize("name", ["live", "over"])
def test_the_hint_of_status_can_be_typed(world, name):
    status = world.cli("status", f"account-{name}").stdout
    (hint,) = re.findall(r"first NaN: bad @11, .*-> cgdebug-cli (show .*)", status)
    shown = world.cli(*hint.replace("'", "").split())
    assert shown.returncode == 0, shown.stderr
    assert "all NaN" in shown.stdout, shown.stdout


def test_check_names_the_job_and_how_it_is(world):
    live = world.cli("check", "account-live", "whole").stdout
    assert live.startswith("job account-live (") and " is alive (pid " in live.splitlines()[0]
    assert "nothing found up to replay 20, in 20 snapshots\n" in live
    over = world.cli("check", "account-over", "whole").stdout
    assert over.startswith("job account-over (") and " has exited (pid " in over.splitlines()[0]


def test_check_of_the_replays_that_are_kept_reports_no_gap(world):
    asked = world.cli("check", "account-over", "gone", "--replays", "17..20")
    assert asked.returncode == 0, asked.stdout
    assert "nothing found in 4 snapshots, of replays 17..20\n" in asked.stdout
