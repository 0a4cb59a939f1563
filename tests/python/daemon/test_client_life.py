"""A client that is interrupted, forked, or cannot start a daemon."""

import os
import signal
import socket

import pytest
import torch
from test_client import seen

import cgdebug
from cgdebug import TensorRecord, _wire
from cgdebug._shared import _answers
from conftest import find_program, own_session, wait_until


@pytest.fixture
def client(daemon):
    key = own_session()
    with daemon.connect(session=key) as connected:
        yield connected


def test_a_request_after_an_interrupted_one_gets_its_own_answer(client, probe, monkeypatch):
    probe(TensorRecord(), name="life.x")(torch.ones(2))
    seen(client, "life.x", 1)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(_wire.Connection, "_read", interrupted)
        client.sessions()
    assert client.get("life.x").numpy().tolist() == [1, 1]


def test_a_forked_child_takes_no_answer_of_its_parent(client, probe):
    for name, value in (("life.parent", 1.0), ("life.child", 2.0)):
        probe(TensorRecord(), name=name)(torch.full((3,), value))
        seen(client, name, 1)
    connection = client._connection
    child = os.fork()
    if child == 0:
        wrong = client.get("life.child").probe_name != "life.child"
        os._exit(wrong or client._connection is connection)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client._connection is connection and client.get("life.parent").numpy()[0] == 1


@pytest.mark.parametrize("timeout", [float("inf"), float("nan"), 1e30, True])
def test_a_timeout_that_no_socket_takes_is_refused_in_words(timeout):
    with pytest.raises(ValueError, match="timeout is a number of seconds above 0"):
        cgdebug.connect(timeout=timeout)


def test_a_daemon_that_cannot_be_started_is_a_connection_error(tmp_path, monkeypatch):
    monkeypatch.setenv("CGDEBUG_DAEMON", "/nowhere/cgdebug-daemon")
    with pytest.raises(
        ConnectionError, match="/nowhere/cgdebug-daemon cannot be started: No such file"
    ):
        cgdebug.connect(socket=f"{tmp_path}/a.sock", spawn=True)
    monkeypatch.setenv("CGDEBUG_DAEMON", find_program("cgdebug-daemon"))
    (tmp_path / "file").touch()
    with pytest.raises(ConnectionError, match="cannot"):
        cgdebug.connect(socket=f"{tmp_path}/file/a.sock", spawn=True)


@pytest.mark.parametrize(
    "fields, text",
    [
        (
            {"probe": "x", "count": 1, "before_replay": 7},
            "x: 1 snapshot lost before replay 7 (full)",
        ),
        ({"probe": "", "count": 2, "before_replay": 0}, "2 snapshots lost (full)"),
    ],
)
def test_a_loss_has_the_words_of_the_command_line(fields, text):
    assert str(_answers.Event(kind="loss", cause="full", **fields)) == text


def test_the_users_daemon_is_found_whatever_the_runtime_directory_is(monkeypatch, tmp_path):
    monkeypatch.delenv("CGDEBUG_SOCKET", raising=False)
    places = [tmp_path / "a", tmp_path / "b"]
    for place in places:
        place.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(places[1]))
    own_place = f"{places[1]}/cgdebug/daemon.sock"
    if _wire.socket_path() != own_place:
        pytest.skip("this user has a daemon of their own running")
    monkeypatch.setenv("CGDEBUG_DAEMON", find_program("cgdebug-daemon"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(places[0]))
    with cgdebug.connect(spawn=True) as first:
        pid = first.status().pid
        try:
            monkeypatch.setenv("XDG_RUNTIME_DIR", str(places[1]))
            with cgdebug.connect(spawn=True) as again:
                assert again.status().pid == pid
            assert _wire.socket_path() == f"{places[0]}/cgdebug/daemon.sock"
        finally:
            os.kill(pid, signal.SIGTERM)
    wait_until(lambda: _wire.socket_path() == own_place, "the daemon gives its mark back")


def test_a_connection_that_is_lost_before_the_first_answer_is_made_again(daemon, monkeypatch):
    greet, lost = _wire.Connection._greet, []

    def lose_the_first(connection):
        if not lost:
            lost.append(connection)
            connection._socket.shutdown(socket.SHUT_RDWR)
        greet(connection)

    monkeypatch.setattr(_wire.Connection, "_greet", lose_the_first)
    with daemon.connect() as client:
        assert client.status().pid == daemon.process.pid
    assert lost


def test_socket_path_rules(monkeypatch, tmp_path):
    uid = os.geteuid()
    monkeypatch.setattr(_wire, "_MARK_FOLDER", "")
    monkeypatch.delenv("CGDEBUG_SOCKET", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert _wire.socket_path() == f"/tmp/cgdebug-{uid}/daemon.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    os.chmod(tmp_path, 0o700)
    assert _wire.socket_path() == f"{tmp_path}/cgdebug/daemon.sock"
    os.chmod(tmp_path, 0o777)  # others could pose as the daemon
    assert _wire.socket_path() == f"/tmp/cgdebug-{uid}/daemon.sock"
    monkeypatch.setenv("CGDEBUG_SOCKET", "/somewhere/a.sock")
    assert _wire.socket_path() == "/somewhere/a.sock"
    assert _wire.socket_path("/else/b.sock") == "/else/b.sock"
