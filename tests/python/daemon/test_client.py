"""cgdebug.connect(): a running job seen from another process."""

import itertools
import os
import socket
import struct
import threading
import types

import numpy
import pytest
import torch

import cgdebug
from cgdebug import (
    DaemonError,
    TensorCompare,
    TensorPrint,
    TensorRecord,
    TensorSnapshot,
    _wire,
)
from conftest import wait_until

HEADER = struct.Struct("<IHHQ")


def seen(client, name, replay):
    """The newest snapshot of a probe, once the daemon has it."""

    def newest():
        try:
            got = client.get(name)
        except DaemonError:
            return None
        return got if got.replay_index >= replay else None

    return wait_until(newest, f"{name}@{replay}")


def test_status_tells_who_answers(client, daemon):
    status = client.status()
    assert status.pid == daemon.process.pid and status.socket == daemon.socket
    assert status.version == cgdebug.__version__ and status.shm_total_bytes > 0
    assert repr(daemon.process.pid) in repr(client)


def test_sessions_name_this_process(client):
    session = next(s for s in client.sessions() if s.pid == os.getpid())
    assert session.state == "alive" and session.rank == -1 and session.probe_count >= 0
    assert str(os.getpid()) in repr(session)


def test_probes_by_glob(client, probe):
    for name in ("glob.a.out", "glob.b.out", "glob.b.in"):
        probe(TensorRecord(capacity=3), name=name)(torch.ones(2, 3, dtype=torch.bfloat16))
    for name in ("a.out", "b.out", "b.in"):
        seen(client, f"glob.{name}", 1)
    found = client.probes("glob.*")
    first = found[0]
    assert [p.name for p in found] == ["glob.a.out", "glob.b.out", "glob.b.in"]
    assert (first.dtype, first.shape, first.device, first.capacity) == (
        "bfloat16",
        [2, 3],
        "cpu",
        3,
    )
    assert first.actions == ["record"] and first.verdict is None
    assert "glob.a.out" in repr(first)
    assert [p.name for p in client.probes("glob.*", "!*.in")] == ["glob.a.out", "glob.b.out"]
    assert [p.name for p in client.probes("re:glob\\.[b-z]\\.i")] == ["glob.b.in"]
    with pytest.raises(DaemonError, match="no probe matches 'glob.c"):
        client.probes("glob.c*")


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float64"])
def test_get_returns_the_values_bit_for_bit(client, probe, dtype):
    p = probe(TensorRecord(), name=f"get.{dtype}")
    x = torch.randint(-100, 100, (3, 5)).to(getattr(torch, dtype))
    p(x)
    got = seen(client, p.name, 1)
    assert isinstance(got, TensorSnapshot)
    assert torch.equal(got.tensor, x) and got.dtype == x.dtype and got.shape == (3, 5)
    assert got.numpy().dtype == numpy.dtype(dtype) and got.device == "cpu" and got.graph_id == 0


def test_get_bfloat16(client, probe):
    p = probe(TensorRecord(), name="get.bf16")
    p(torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
    got = seen(client, "get.bf16", 1)
    assert got.tensor.tolist() == [1.5, -2.0] == got.values().tolist()
    assert got.numpy_is_bits == (got.numpy().dtype == numpy.uint16)


def test_get_a_large_tensor_in_many_frames(client, probe):
    p = probe(TensorRecord(capacity=2), name="get.large")
    x = torch.randn(3 << 20) + 0.5
    p(x)
    assert torch.equal(seen(client, "get.large", 1).tensor, x)


@pytest.mark.parametrize("shape", [(0,), ()])
def test_get_empty_and_scalar(client, probe, shape):
    p = probe(TensorRecord(), name=f"get.shape{len(shape)}")
    p(torch.ones(shape))
    assert seen(client, p.name, 1).tensor.shape == shape


def test_get_by_replay(client, probe):
    p = probe(TensorRecord(), name="get.replay")
    cgdebug.step(5)
    for i in range(1, 4):
        p(torch.tensor([i]))
    cgdebug.step(None)
    newest = seen(client, "get.replay", 3)
    assert newest.numpy().item() == 3 and newest.step == 5 and newest.stats.max == 3
    with pytest.raises(DaemonError) as caught:
        client.get("get.replay", replay=99)
    assert caught.value.code == "no_snapshot"
    with pytest.raises(ValueError, match="count from 1"):
        client.get("get.replay", replay=0)
    with pytest.raises(TypeError, match="replay cannot be 1.5"):
        client.get("get.replay", replay=1.5)
    with pytest.raises(DaemonError, match="probe 'get.replay' has no call 3"):
        client.get("get.replay", invocation=3)


def test_a_session_may_be_named_by_its_pid(client, daemon, probe):
    probe(TensorRecord(), name="by.pid")(torch.ones(1))
    seen(client, "by.pid", 1)
    assert client.get("by.pid", session=os.getpid()).replay_index == 1
    with daemon.connect(session=os.getpid()) as other:
        assert other.probes("by.pid")[0].name == "by.pid"


def test_tail_of_an_unknown_name_says_so(client):
    with pytest.raises(DaemonError, match="no probe matches 'no.such'"):
        client.tail("no.such")


def test_a_wrong_name_gets_the_near_ones(client, probe):
    probe(TensorRecord(), name="near.attn")(torch.ones(1))
    seen(client, "near.attn", 1)
    with pytest.raises(DaemonError) as caught:
        client.get("near.atn")
    assert caught.value.code == "no_probe" and "near.attn" in caught.value.close
    with pytest.raises(DaemonError) as caught:
        client.get("near.attn", session="nobody")
    assert caught.value.code == "no_session"
    assert client.get("near.attn").replay_index == 1  # the connection goes on


def test_tail_gives_the_newest_in_order(client, probe):
    p = probe(TensorRecord(capacity=8), name="tail.last")
    for i in range(1, 6):
        p(torch.tensor([float(i)]))
    seen(client, "tail.last", 5)
    events = list(client.tail("tail.last", last=3))
    assert [e.replay_index for e in events] == [3, 4, 5]
    assert [e.stats.mean for e in events] == [3, 4, 5]
    assert "tail.last @5 f32[1] cpu n=1" in repr(events[-1])


def test_tail_follow_streams_until_it_is_closed(client, probe):
    p = probe(TensorRecord(), name="tail.follow")
    p(torch.zeros(1))
    seen(client, "tail.follow", 1)
    stream = client.tail("tail.follow", follow=True, last=1)
    assert next(stream).replay_index == 1
    for i in range(2, 5):
        p(torch.ones(1))
        assert next(stream).replay_index == i
    stream.close()
    assert client.status().pid


def test_tail_only_nan(client, probe):
    p = probe(TensorRecord(), name="tail.nan")
    for i in range(6):
        p(torch.tensor([1.0, float("nan") if i == 3 else 2.0]))
    seen(client, "tail.nan", 6)
    events = list(client.tail("tail.nan", only="nan", last=100))
    assert [e.replay_index for e in events] == [4] and "1 NaN!" in repr(events[0])
    with pytest.raises(ValueError, match="only must be one of"):
        client.tail(only="sometimes")


def test_tail_shows_printed_lines_and_failures(client, probe):
    p = probe(TensorPrint(max_items=1), TensorCompare(torch.ones(2)), name="tail.events")
    p(torch.zeros(2))
    with pytest.raises(AssertionError):
        p.assert_ok()
    kinds = {}
    for event in client.tail("tail.events", last=100):
        if not isinstance(event, TensorSnapshot):
            kinds[event.kind] = str(event)
    assert "tail.events" in kinds["print"]
    assert "Mismatched elements: 2 / 2" in kinds["compare_failed"]


def test_threads_may_share_a_client(client, probe):
    p = probe(TensorRecord(), name="threads")
    p(torch.arange(1000))
    seen(client, "threads", 1)
    sums = []
    threads = [
        threading.Thread(target=lambda: sums.append(client.get("threads").numpy().sum()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [499500] * 8


# --- no daemon, or not ours ---


def test_no_daemon_says_how_to_start_one(tmp_path):
    with pytest.raises(
        ConnectionError, match="no cgdebug daemon listens at .*cgdebug-cli daemon start"
    ):
        cgdebug.connect(socket=f"{tmp_path}/none.sock")


@pytest.mark.parametrize("timeout", [None, 0, -1, "1"])
def test_a_timeout_is_a_number_of_seconds(timeout):
    with pytest.raises(ValueError, match="timeout is a number of seconds above 0"):
        cgdebug.connect(timeout=timeout)


def test_spawn_starts_one(no_daemon):
    with cgdebug.connect(spawn=True) as client, cgdebug.connect(spawn=True) as again:
        assert client.status().pid == again.status().pid
        usual = f"{os.environ.get('XDG_RUNTIME_DIR')}/cgdebug/daemon.sock"
        assert client.status().socket == os.environ.get("CGDEBUG_SOCKET", usual)


def test_a_client_survives_a_new_daemon(own_daemon):
    first = own_daemon()
    client = first.connect()
    first.stop()
    with pytest.raises(ConnectionError):
        client.status()
    second = own_daemon()
    assert client.status().pid == second.process.pid
    client.close()


def test_a_directory_that_others_may_write_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(_wire, "_MARK_FOLDER", "")
    monkeypatch.delenv("CGDEBUG_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    os.chmod(tmp_path, 0o700)
    folder = tmp_path / "cgdebug"
    folder.mkdir()
    os.chmod(folder, 0o777)
    with pytest.raises(ConnectionError, match=r"others .* may write it. Type: chmod 0700"):
        cgdebug.connect()
    folder.rmdir()
    folder.symlink_to("/tmp")
    with pytest.raises(ConnectionError, match="not a directory"):
        cgdebug.connect()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_owner_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(_wire, "_MARK_FOLDER", "")
    monkeypatch.delenv("CGDEBUG_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    os.chmod(tmp_path, 0o700)
    folder = tmp_path / "cgdebug"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(ConnectionError, match="belongs to uid 12345.*CGDEBUG_SOCKET"):
        cgdebug.connect()


class Impostor:
    """Answers each connection with fixed bytes."""

    def __init__(self, folder, answer):
        self.path = f"{folder}/x.sock"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        self.answer = answer
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        try:
            for _ in itertools.count():
                connection, _ = self.listener.accept()
                connection.recv(65536)
                connection.sendall(self.answer)
                connection.close()
        except OSError:
            pass


def response(**hello):
    message = _wire.message_class("Response")()
    for name, value in hello.items():
        setattr(message.hello, name, value)
    body = message.SerializeToString()
    return HEADER.pack(len(body), 2, 0, 1) + body


@pytest.mark.parametrize(
    "answer, text",
    [
        (
            response(protocol=99, version="9.9.9"),
            "protocol 3.*9.9.9 .protocol 99.*cgdebug-cli daemon stop",
        ),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak cgdebug's protocol"),
        (HEADER.pack(1 << 30, 2, 0, 1), "does not speak cgdebug's protocol"),
        (HEADER.pack(0, 2, 0, 7), "does not speak cgdebug's protocol"),  # to another request
        (HEADER.pack(100, 2, 0, 1) + b"short", "closed the connection"),
        (b"", "closed the connection"),
    ],
)
def test_a_daemon_of_another_version_is_refused(answer, text):
    import tempfile

    with tempfile.TemporaryDirectory(prefix="cgdebug-test-") as folder:
        impostor = Impostor(folder, answer)
        with pytest.raises(ConnectionError, match=text):
            cgdebug.connect(socket=impostor.path)
        impostor.listener.close()


def test_a_daemon_that_never_answers_times_out(tmp_path):
    import tempfile

    with tempfile.TemporaryDirectory(prefix="cgdebug-test-") as folder:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"{folder}/x.sock")
        listener.listen()
        with pytest.raises(TimeoutError, match="did not answer within 0.2 s"):
            cgdebug.connect(socket=f"{folder}/x.sock", timeout=0.2)
        listener.close()


def test_set_switches_a_probe_off_and_on(client, probe):
    p = probe(TensorRecord(capacity=8), name="set.x")
    p(torch.ones(2))
    seen(client, "set.x", 1)

    def set_and_wait(mode):
        assert client.set("set.x", mode=mode, ttl=60).slots == 1

        def is_set():
            control = client.probes("set.x")[0].control
            return mode == (control.mode if control else "registered")

        wait_until(is_set, f"the job is told: {mode}")

    set_and_wait("off")
    p(torch.ones(2))
    set_and_wait("registered")
    p(torch.ones(2))
    assert seen(client, "set.x", 3).replay_index == 3
    assert client.probes("set.x")[0].counters.produced == 2


def test_set_refuses_what_it_does_not_know(client):
    with pytest.raises(ValueError, match="mode= or on="):
        client.set("x")
    with pytest.raises(ValueError, match="off"):
        client.set("x", mode="on")
    for condition in ("max>3", "abs_max", "abs_max>", "abs_max>a", "nan>3"):
        with pytest.raises(ValueError, match='"absmax>NUMBER"'):
            client.set("x", on=condition)
    for ttl in ("5m", 0, -1, float("inf")):
        with pytest.raises(ValueError, match="ttl is a number of seconds"):
            client.set("x", mode="off", ttl=ttl)
    with pytest.raises(DaemonError, match="no probe matches"):
        client.set("nothing.like.this", mode="off")


@pytest.mark.parametrize("lossless, name", [(False, "NEVER"), (True, "ALWAYS")])
def test_record_says_whether_jobs_wait(client, monkeypatch, lossless, name):
    asked = {}

    def ask(kind, **fields):
        asked.update(fields)
        return types.SimpleNamespace(recording=None)

    monkeypatch.setattr(client, "_ask", ask)
    client.record("x", lossless=lossless)
    field = _wire.message_class("RecordStartRequest").DESCRIPTOR.fields_by_name["lossless"]
    assert asked["lossless"] == name and name in field.enum_type.values_by_name
