"""Recording a graph while it is replayed."""

import pytest
import torch

import cgdebug
from cgdebug import TensorRecord
from conftest import capture, own_session, wait_until

pytestmark = pytest.mark.gpu


def test_a_with_block_has_exactly_the_replays_that_were_launched_in_it(
    daemon, graph_probe, tmp_path
):
    p = graph_probe(TensorRecord(256), name="replayed")
    x = torch.zeros(64, device="cuda")
    graph, _ = capture(lambda: p(x.add_(1)), warmup=0)
    replays = 0
    key = own_session()
    with daemon.connect(session=key) as client:
        wait_until(lambda: key in {s.key for s in client.sessions()}, "the session is known")
        for turn in range(3):
            graph.replay()  # before it, and perhaps not run yet
            with client.record(tmp_path / f"{turn}.cgrec", probes=p.name) as live:
                for _ in range(100):  # nobody waits for the GPU
                    graph.replay()
            graph.replay()  # after it
            recording = cgdebug.open(live.directory)
            first = replays + 2
            values = [float(s.numpy()[0]) for s in recording[p.name]]
            assert values == [float(value) for value in range(first, first + 100)]
            assert recording.complete, recording.missing
            replays += 102
