"""Probes that are changed while their job runs."""

import pytest
import torch

from cgdebug import TensorRecord
from conftest import wait_until


@pytest.mark.parametrize(
    "first, every, count, off",
    [(3, 0, 2, [3, 4]), (2, 2, 2, [2, 3, 4]), (0, 0, 3, [2, 3, 4]), (0, 2, 2, [2, 3, 4])],
)
def test_set_with_a_count_ends_after_the_last_of_them(daemon, probe, first, every, count, off):
    name = f"set.{first}.{every}.{count}"
    p = probe(TensorRecord(capacity=8), name=name)
    p(torch.ones(2))
    with daemon.connect() as client:
        wait_until(lambda: name in [one.name for one in client.probes()], "the daemon knows it")
        assert client.set(name, mode="off", first=first, every=every, count=count).slots == 1
        wait_until(lambda: client.probes(name)[0].control, "the job is told")
    for _ in range(6):
        p(torch.ones(2))
    replays = [record.replay_index for record in p.records()]
    assert replays == [replay for replay in range(1, 8) if replay not in off]
