"""TensorStats without a GPU: the daemon computes them and drops the values."""

import math

import pytest
import torch

from cgdebug import TensorRecord, TensorStats


def test_statistics_are_shown_and_values_are_not_kept(daemon, probe):
    p = probe(TensorStats(), name="alone")
    p(torch.tensor([1.0, -3.0, math.inf]))
    assert p.records() == []
    assert p.status().waited, "the daemon has seen it"
    with daemon.connect() as client:
        snapshot = client.get("alone")
        assert (snapshot.stats.min, snapshot.stats.max, snapshot.stats.pos_inf) == (-3, 1, 1)
        assert client.probes("alone")[0].actions == ["stats"]
        with pytest.raises(LookupError, match="only the statistics"):
            snapshot.tensor  # noqa: B018


def test_values_are_kept_where_another_action_wants_them(daemon, probe):
    p = probe(TensorStats(), TensorRecord(8, every=2), name="both")
    for i in range(4):
        p(torch.full((3,), float(i)))
    assert [record.replay_index for record in p.records()] == [1, 3]
    assert p.status().waited, "the daemon has seen them"
    with daemon.connect() as client:
        assert client.get("both", replay=2).stats.max == 1
        assert client.get("both", replay=3).tensor.tolist() == [2, 2, 2]


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_an_invalid_period_is_refused(every):
    with pytest.raises(ValueError, match="TensorStats: every"):
        TensorStats(every=every)


def test_a_disabled_action_makes_the_probe_a_no_op(probe):
    p = probe(TensorStats(enabled=False))
    x = torch.ones(2)
    assert p(x) is x
    assert not p.status().active
