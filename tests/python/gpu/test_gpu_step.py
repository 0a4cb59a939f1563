"""Step numbers and replays that run behind the program."""

import pytest
import torch

import cgdebug
from cgdebug import TensorRecord
from conftest import capture

pytestmark = pytest.mark.gpu


def test_a_replay_keeps_the_step_it_was_launched_in(graph_probe):
    """However far the program runs ahead of the GPU."""
    p, x = graph_probe(TensorRecord(50)), torch.zeros(8, device="cuda")

    def busy():
        torch.cuda._sleep(2_000_000)
        p(x.add_(1))

    graph, _ = capture(busy, warmup=0)
    for number in range(50):
        cgdebug.step(number)
        graph.replay()
    cgdebug.step(None)
    records = p.records(synchronize=True)
    assert [r.step for r in records] == [r.replay_index - 1 for r in records] == list(range(50))
