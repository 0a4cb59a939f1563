"""Forked children, killed jobs, several processes: each has its own segment, none harms another."""

import os
import pathlib
import re
import signal

import pytest
import recording_writer
import torch

import cgdebug
from cgdebug import TensorRecord
from cgdebug._job import _native
from conftest import remove_segments_of, segments, wait_until

RECORD = """
p = CudaGraphTensorProbe("p", [TensorRecord()], mode="always")
p(torch.tensor([1]))
"""
SESSION = "from cgdebug import _probe\nprint(_probe.session()['name'])\n"


def fork(work):
    """Runs work() in a forked child; its exception's text, empty when it went well."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        text = ""
        try:
            work()
        except BaseException as error:
            text = repr(error)
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        text = pipe.read().decode()
    assert os.waitpid(pid, 0)[1] == 0
    remove_segments_of(pid)
    return text


def test_forked_child_has_its_own_segment_and_leaves_the_parents_alone(probe):
    p = probe(TensorRecord())
    p(torch.tensor([1]))
    parents_name = _native.probe_module().session()["name"]

    def child():
        p(torch.tensor([2]))
        assert [r.tensor.item() for r in p.records()] == [2]
        assert _native.probe_module().session()["name"] != parents_name
        p.close()

    assert fork(child) == ""
    p(torch.tensor([3]))
    assert [(r.replay_index, r.tensor.item()) for r in p.records()] == [(1, 1), (2, 3)]
    assert _native.probe_module().session()["name"] == parents_name and parents_name in segments()


def test_a_child_may_drop_or_make_probes(probe):
    p = probe(TensorRecord())
    p(torch.tensor([1]))

    def child():
        q = probe(TensorRecord(), name="q")
        q(torch.tensor([5]))
        assert q.records()[0].tensor.item() == 5 and p.records() == []

    assert fork(child) == ""
    assert p.records()[0].tensor.item() == 1


class Rows(torch.utils.data.Dataset):
    def __init__(self, p):
        self.p = p

    def __len__(self):
        return 4

    def __getitem__(self, index):
        self.p(torch.tensor([index]))
        return os.getpid(), [r.tensor.item() for r in self.p.records()]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_probes_work_in_data_loader_workers(probe):
    p = probe(TensorRecord())
    p(torch.tensor([77]))
    loader = torch.utils.data.DataLoader(
        Rows(p), batch_size=None, num_workers=1, multiprocessing_context="fork"
    )
    pids, rows = zip(*loader)
    assert list(rows) == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]
    remove_segments_of(*pids)
    assert [r.tensor.item() for r in p.records()] == [77]


def test_a_password_on_the_command_line_of_a_job_is_not_kept(daemon, job):
    one = job(
        RECORD + "print(os.getpid()); sys.stdin.readline()",
        arguments=["--store", "http://me:secret@host/runs"],
    )
    pid = one.line()
    with daemon.connect(session=pid) as connected:
        (session,) = wait_until(
            lambda: [s for s in connected.sessions() if str(s.pid) == pid], "it is known"
        )
    assert session.command.endswith("--store http://me:***@host/runs")


def test_clean_exit_without_a_daemon_leaves_nothing(without_daemon, job):
    one = job(RECORD + SESSION)
    name = one.line()
    one.finish()
    assert name not in segments()


def test_threads_that_still_ask_do_not_end_a_job_that_ends(without_daemon, job, tmp_path):
    path = str(tmp_path / "a.cgrec")
    writer = recording_writer.Writer(path)
    slot = writer.add_slot(writer.add_session("a" * 32, "job"), "p", "float32", [200_000])
    writer.append(slot, 1, torch.ones(200_000).numpy())
    writer.close()
    one = job(
        """
        import threading
        p = CudaGraphTensorProbe("p", [TensorRecord(1)], mode="always")
        p(torch.ones(200_000))
        from cgdebug import _recording
        reader = _recording.Reader(sys.argv[1])

        def ask(question):
            while True:
                question()

        questions = [p.records, p.status, reader.verify, lambda: reader.values(0, 1)]
        for question in 2 * questions:
            threading.Thread(target=ask, args=(question,), daemon=True).start()

        class Late:
            def __del__(self, sleep=time.sleep):
                sleep(0.5)  # the interpreter ends, and others may have its lock

        late = Late()
        print("done")
        """,
        arguments=[path],
    )
    assert one.finish()[0] == "done\n"


def test_killed_job_leaves_its_last_values(without_daemon, job):
    one = job(RECORD + SESSION + "sys.stdin.readline()")
    name = one.line()
    os.kill(one.pid, signal.SIGKILL)
    one.process.wait()
    assert name in segments()
    for path in pathlib.Path("/dev/shm").glob(f"{name}*"):
        assert path.stat().st_mode & 0o777 == 0o600


def test_two_jobs_have_two_segments(job):
    two = [job(RECORD + SESSION + "sys.stdin.readline()") for _ in range(2)]
    assert len({one.line() for one in two}) == 2
    for one in two:
        one.go_on()
        one.finish()


def test_job_with_disabled_probes_creates_no_segment(job):
    one = job("""
        p = CudaGraphTensorProbe("p", [TensorRecord(enabled=False)], mode="always")
        p(torch.ones(2))
        print(os.listdir("/dev/shm"))
        print([m for m in sys.modules if m == "cgdebug._probe"])
        print(os.getpid())
    """)
    one.line()
    assert one.line() == "[]"
    one.finish()


def test_the_traced_process_gets_no_thread_no_socket_no_protobuf(job):
    one = job("""
        threads = set(os.listdir("/proc/self/task"))
        p = CudaGraphTensorProbe("p", [TensorRecord()], mode="always")
        p(torch.ones(2))
        p.records()
        print(len(set(os.listdir("/proc/self/task")) - threads))
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        print(sum("socket:" in os.readlink(link) for link in links if os.path.islink(link)))
        print("google.protobuf" in sys.modules, "libprotobuf" in open("/proc/self/maps").read())
    """)
    assert [one.line(), one.line(), one.line()] == ["0", "0", "False False"]
    one.finish()


def test_without_room_in_shared_memory_the_job_goes_on_and_the_status_says_why(daemon, job):
    """In a process of its own: what was not seen counts for all that is said of a process."""
    one = job("""
        # More than /dev/shm holds in all: refused at once, without filling the machine's memory.
        total = os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize
        p = CudaGraphTensorProbe("huge", [TensorRecord(total // (1 << 20) + 2)], mode="always")
        x = torch.ones(1 << 18)
        assert p(x) is x
        print(" ".join(p.status().error.split()))
        q = CudaGraphTensorProbe("small", [TensorRecord()], mode="always")
        q(torch.ones(2))
        print(len(q.records()))
    """)
    assert re.search("probe 'huge': .*/dev/shm.*--shm-size", one.line())
    assert one.line() == "1"
    one.finish()


def test_a_command_that_names_no_job_means_the_newest_that_is_alive(daemon, cli, job, tmp_path):
    """As `status` and `show` do. A newer job that has ended is named."""
    code = """
        p = CudaGraphTensorProbe("p", [TensorRecord()], mode="always")
        p(torch.tensor([float(sys.argv[1])]))
        print(cgdebug._job._native.probe_module().session()["uuid"][:8])
        sys.stdin.readline()
    """
    alive = job(code, arguments=["1"], CGDEBUG_RUN_ID="run-alive")
    key = alive.line()
    ended = job(code, arguments=["nan"], CGDEBUG_RUN_ID="run-ended")
    other = ended.line()

    def state():
        with daemon.connect() as connected:
            return {one.key: one.state for one in connected.sessions()}.get(other)

    wait_until(lambda: state() == "alive", "the newer one is known")
    ended.process.kill()
    ended.process.wait()
    wait_until(lambda: state() == "died", "the daemon saw its death")
    for command in (["check"], ["stats"], ["query", "SELECT * FROM v_snapshots"]):
        result = cli(*command)
        assert result.returncode in (0, 3), result.stdout + result.stderr
        assert "ended: cgdebug-cli" in result.stderr and f"-s {other}" in result.stderr
    assert cli("check", "-s", other).returncode == 1
    frozen = tmp_path / "frozen.cgrec"
    cli("freeze", "-o", frozen)
    sessions = cgdebug.open(frozen).sql("SELECT uuid FROM session")
    assert [session.uuid[:8] for session in sessions] == [key]
