"""`cgdebug-cli set` on a graph that keeps replaying, with a real daemon."""

import subprocess

import pytest
import torch

from cgdebug import TensorRecord
from conftest import capture, find_program, wait_until

pytestmark = pytest.mark.gpu


@pytest.fixture
def live(graph_probe, daemon):
    p = graph_probe(TensorRecord(64), name="live.set")
    x = torch.full((1000,), 3.0, device="cuda")
    graph, _ = capture(lambda: p(x), warmup=0)

    def replay(times=1):
        for _ in range(times):
            graph.replay()  # noqa: F821, deleted after the test
        torch.cuda.synchronize()
        (slot,) = p.status().slots
        return slot

    wait_until(lambda: replay().consumed > 0, "the daemon reads the probe")
    yield p, x, replay
    del graph


def tell(daemon, *words):
    command = [find_program("cgdebug-cli"), "--socket", daemon.socket, "set", "live.set", *words]
    subprocess.run(command, check=True, capture_output=True, timeout=30)


def test_it_is_turned_off_and_on_again(live, daemon):
    _, _, replay = live
    tell(daemon, "--mode", "off")
    wait_until(lambda: replay().suppressed > 0, "the probe is off")
    before = replay()
    after = replay(20)
    assert after.accepted == before.accepted
    assert after.suppressed == before.suppressed + 20
    tell(daemon, "--mode", "registered")
    wait_until(lambda: replay().accepted > after.accepted, "the probe is on again")


def test_values_come_when_the_condition_holds(live, daemon):
    _, x, replay = live
    with daemon.connect() as client:

        def shown():
            """This probe: probes of earlier tests are still shown."""
            return client.probes("live.set")[-1]

        tell(daemon, "--on", "nan")
        wait_until(lambda: replay() and shown().control, "the job is told")
        replay(3)
        x[7] = float("nan")
        with_nan = replay().replays
        x[7] = 3.0
        end = replay(3).replays
        wait_until(lambda: shown().counters.replays == end, "all are read")
        kept = client.get("live.set", with_nan)
        assert kept.tensor.isnan().nonzero().tolist() == [[7]]
        stats = {s.replay_index: s.stats.nan for s in client.tail("live.set", last=4)}
        assert stats == {with_nan: 1, with_nan + 1: 0, with_nan + 2: 0, with_nan + 3: 0}
