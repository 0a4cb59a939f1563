"""A daemon, a job and a command line, in one of which a call fails: see test_failing_calls.py."""

import ctypes
import errno
import json
import mmap
import os
import pathlib
import re
import signal
import socket
import subprocess

import cgdebug
from conftest import DEADLINE_S, ROOT, find_program, remove_segments_of, wait_until

# The build tree that the package runs from, or the one that it was installed from.
TREES = (pathlib.Path(cgdebug.__file__).parents[2], ROOT / "build" / "release")
TREE = next((tree for tree in TREES if (tree / "tests/six_probes_job").exists()), None)

KINDS = ["open", "mmap", "fallocate", "write", "sync", "rename", "accept", "malloc"]
ERRORS = {
    "open": errno.EMFILE,
    "mmap": errno.ENOMEM,
    "fallocate": errno.ENOSPC,
    "write": errno.ENOSPC,
    "sync": errno.EIO,
    "rename": errno.EIO,
    "accept": errno.EMFILE,
    "malloc": errno.ENOMEM,
}
# What a message about the error contains, whichever program writes it.
WORDS = {
    errno.EMFILE: "Too many open files|no more files",
    errno.ENOMEM: "(?i)memory|bad_alloc",
    errno.ENOSPC: "No space left|too small|disk is full|full",
    errno.EIO: "Input/output error|I/O error",
}
PARTS = (4, 4, 4)


class Plan(ctypes.Structure):
    """FailPlan of tests/support/failing/failing_calls.h, in a file that the failing process maps."""

    _fields_ = [
        ("kind", ctypes.c_uint32),
        ("error", ctypes.c_int32),
        ("nth", ctypes.c_uint64),
        ("calls", ctypes.c_uint64 * 9),
        ("failed", ctypes.c_uint64),
        ("frames", ctypes.c_uint64),
        ("stack", ctypes.c_char * 128 * 24),
    ]

    @classmethod
    def make(cls, path, kind="malloc", nth=0):
        path.write_bytes(bytes(ctypes.sizeof(cls)))
        with open(path, "r+b") as file:
            plan = cls.from_buffer(mmap.mmap(file.fileno(), 0))
        plan.kind, plan.error, plan.nth = KINDS.index(kind) + 1, ERRORS[kind], nth
        plan.path = path
        return plan

    def environment(self, program):
        library = TREE / "tests/libcgdebug_failing_calls.so"
        return {
            "LD_PRELOAD": str(library),
            "CGDEBUG_FAIL_FILE": str(self.path),
            "CGDEBUG_FAIL_IN": program,
        }

    def text(self):
        stack = [bytes(frame.value).decode() for frame in self.stack[: self.frames]]
        return f"{KINDS[self.kind - 1]} number {self.nth} failed in: " + " ".join(stack)


class Process:
    """A process that must end by itself, in time, and not by a signal."""

    def __init__(self, folder, name, arguments, environment):
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        self.name = name
        with open(self.out, "ab") as out, open(self.err, "ab") as err:
            self.popen = subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=out, stderr=err,
                env={**os.environ, **environment},
            )  # fmt: skip

    def alive(self):
        return self.popen.poll() is None

    def stdout(self):
        return self.out.read_text(errors="replace")

    def stderr(self):
        return self.err.read_text(errors="replace")

    def end(self):
        """Its exit code."""
        try:
            code = self.popen.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
            raise AssertionError(f"{self.name} hangs: {self.stderr()}") from None
        assert code >= 0, f"{self.name} died of signal {-code}: {self.stderr()}"
        return code


class World:
    """A daemon, a job with six probes, requests to them, a second daemon; `failing` is the program
    in which a call fails."""

    def __init__(self, folder, plan, failing):
        self.folder, self.plan, self.failing = folder, plan, failing
        self.socket = str(folder / "d.sock")
        self.recordings = folder / "recordings"
        self.started = []  # every process
        self.said = ""  # by programs that refused something
        self.refused = False  # whether any program refused something

    def start(self, name, *arguments):
        environment = {
            "CGDEBUG_SOCKET": self.socket,
            "CGDEBUG_DIR": str(self.recordings),
            "CGDEBUG_DAEMON": "/bin/true",
            "NO_COLOR": "1",
        }
        if name == self.failing:
            environment.update(self.plan.environment(pathlib.Path(arguments[0]).name))
        environment.pop("CGDEBUG", None)
        process = Process(self.folder, f"{name}-{len(self.started)}", arguments, environment)
        self.started.append(process)
        return process

    def start_daemon(self, name):
        """Starts a daemon that accepts connections. If one refuses to start, it must say why, and
        another one is started."""
        program = find_program("cgdebug-daemon")
        log = ("--log-file", str(self.folder / "daemon.log"))
        for attempt in (name, "daemon-again"):
            daemon = self.start(attempt, program, "--foreground", "--socket", self.socket, *log)
            wait_until(
                lambda one=daemon: self.accepts() or not one.alive(), "the daemon starts or ends"
            )
            if daemon.alive():
                return daemon
            assert daemon.end() != 0
            self.refused = True
        raise AssertionError(f"no daemon starts: {daemon.stderr()}")

    def accepts(self):
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(self.socket) == 0

    def end_daemon(self, daemon):
        if daemon.alive():
            daemon.popen.send_signal(signal.SIGTERM)
        elif daemon.end() == 0:
            raise AssertionError("the daemon ended, and said that all was well")
        self.refused |= daemon.end() != 0

    def cli(self, *arguments):
        program = find_program("cgdebug-cli")
        process = self.start("cli", program, "--socket", self.socket, "--no-spawn", *arguments)
        process.code = process.end()
        self.refused |= process.code != 0
        return process

    def wait_for_part(self, job, part):
        done = lambda: job.stdout().count("part\n") >= part or not job.alive()  # noqa: E731
        wait_until(done, "the job has done its part", DEADLINE_S)

    def go_on(self, job):
        if job.alive():
            job.popen.stdin.write(b"\n")
            job.popen.stdin.flush()

    def run(self):
        first = self.start_daemon("daemon")
        job = self.start("job", TREE / "tests/six_probes_job", *map(str, PARTS))
        self.job = job
        self.wait_for_part(job, 1)
        self.cli("record", "start", "-o", str(self.folder / "client.cgrec"))
        self.go_on(job)
        self.wait_for_part(job, 2)
        tail = self.cli("tail", "--json", "-n", "1000")
        check_tail(tail.stdout())
        if first.alive():  # a daemon that died has ended the recording
            self.cli("record", "stop")
        self.end_daemon(first)
        second = self.start_daemon("second")
        self.go_on(job)
        self.refused |= job.end() != 0
        if second.alive():
            self.cli("status")
        self.end_daemon(second)
        self.check_job()
        for path in sorted(self.folder.rglob("*.cgrec")):
            self.check_recording(path)
        if why := self.why_not_whole():
            self.check_it_was_said(why)

    # --- what must hold ---------------------------------------------------------------------------

    def check_job(self):
        """The ring counts everything that the job was told is written."""
        self.slots = {}
        for line in self.job.stdout().splitlines():
            found = re.match(
                r"probe (\w+) done (\d+) accepted (\d+) consumed (\d+) lost (\d+)", line
            )
            if found:
                numbers = dict(
                    zip(("done", "accepted", "consumed", "lost"), map(int, found.groups()[1:]))
                )
                every = 3 if found[1] == "third" else 1
                assert numbers["accepted"] == (numbers["done"] + every - 1) // every, line
                self.slots[found[1]] = numbers | {"verdict": line.split(" verdict ")[1]}

    def check_recording(self, path):
        if not any(path.glob("segment-*")):
            self.refused = True
            return
        try:
            recording = cgdebug.open(path)
        except cgdebug.RecordingError as error:
            self.said += str(error)
            self.refused = True
            return
        assert recording.verify() == [], path
        gaps = {}
        for gap in recording.gaps:
            gaps[gap.probe] = gaps.get(gap.probe, 0) + gap.count
        for series in recording.series:
            for replay in series.replays:
                value = 7 if series.name == "expected" else replay
                snapshot = series[replay]
                assert (snapshot.stats.min, snapshot.stats.max) == (value, value), (path, snapshot)
                if series.name != "stats":
                    assert (snapshot.numpy() == value).all(), (path, snapshot)
        for name in ("disk", "third"):
            if path.name == "client.cgrec" or name not in self.slots:
                continue
            have = len(recording[name].replays) if name in recording else 0
            if have == self.slots[name]["accepted"]:
                continue
            self.refused = True
            lost = gaps.get(name, 0)
            # A recording that ended early says so, and lacks what came later.
            if have + lost != self.slots[name]["accepted"]:
                assert not recording.complete, (path, name, have, lost, self.slots[name])
                self.said += " ".join(recording.missing)
                self.ended_early = True

    def whole(self):
        """Whether everything is as if nothing had failed."""
        return self.why_not_whole() is None

    def why_not_whole(self):
        if self.refused:
            return "somebody refused something"
        if "error " in self.job.stdout() or len(self.slots) < 6:
            return f"the job said: {self.job.stdout()}"
        if not (self.folder / "client.cgrec").exists() or len(list(self.recordings.glob("*"))) != 1:
            return f"there is {list(self.folder.rglob('*.cgrec'))}"
        for name, slot in self.slots.items():
            if slot["consumed"] != slot["accepted"] or slot["lost"]:
                return f"{name}: {slot}"
        if self.slots["expected"]["verdict"] != f"1 compared {sum(PARTS)}":
            return self.slots["expected"]["verdict"]
        return None

    def everything_said(self):
        texts = [process.stderr() + process.stdout() for process in self.started]
        log = self.folder / "daemon.log"
        return (
            self.said + "".join(texts) + (log.read_text(errors="replace") if log.exists() else "")
        )

    def check_it_was_said(self, why):
        text = self.everything_said()
        if not re.search(WORDS[self.plan.error], text):
            lines = [
                line for line in text.splitlines() if not line.startswith(("{", "probe", "part"))
            ]
            text = "\n".join(lines)[-2000:]
            raise AssertionError(f"nobody says what failed; {why}: {text}")

    def clean_up(self):
        for process in self.started:
            if process.alive():
                process.popen.kill()
            process.popen.wait()
            process.popen.stdin.close()
        remove_segments_of(self.job.popen.pid if hasattr(self, "job") else -1)


def check_tail(text):
    for line in text.splitlines():
        event = json.loads(line)
        if event["event"] == "snapshot":
            value = 7 if event["probe"] == "expected" else event["replay"]
            assert event["stats"]["min"] == event["stats"]["max"] == value, event
