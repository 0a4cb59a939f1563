"""A client that is interrupted, forked, or cannot start a daemon."""

import os

import pytest
import torch

import cgdebug
from cgdebug import TensorRecord, _answers, _native, _wire
from conftest import find_program
from test_client import seen


@pytest.fixture
def client(daemon):
    key = _native.probe_module().session()["uuid"][:8]
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
    with pytest.raises(ConnectionError, match="cannot start the daemon /nowhere.*cgdebug-cli doctor"):
        cgdebug.connect(socket=f"{tmp_path}/a.sock", spawn=True)
    monkeypatch.setenv("CGDEBUG_DAEMON", find_program("cgdebug-daemon"))
    (tmp_path / "file").touch()
    with pytest.raises(ConnectionError, match="cannot"):
        cgdebug.connect(socket=f"{tmp_path}/file/a.sock", spawn=True)


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"probe": "x", "count": 1, "before_replay": 7}, "x: 1 snapshot lost before replay 7 (full)"),
        ({"probe": "", "count": 2, "before_replay": 0}, "2 snapshots lost (full)"),
    ],
)
def test_a_loss_is_told_as_the_command_line_does(fields, text):
    assert str(_answers.Event(kind="loss", cause="full", **fields)) == text
