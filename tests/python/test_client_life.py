"""A client that is interrupted or forked."""

import os

import pytest
import torch

from cgdebug import TensorRecord, _native, _wire
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
