"""drain_records and export_records_to_tensorboard."""

import math

import pytest
import torch

from cgdebug import TensorRecord, drain_records, export_records_to_tensorboard


class Writer:
    def __init__(self):
        self.scalars, self.histograms = {}, {}

    def add_scalar(self, tag, value, step):
        self.scalars[tag, step] = value

    def add_histogram(self, tag, values, step):
        self.histograms[tag, step] = list(values)


def values(records):
    return [record.tensor.item() for record in records]


def filled(probe, *numbers, **options):
    p = probe(TensorRecord(), **options)
    for number in numbers:
        p(torch.tensor([number]))
    return p


def test_drain_calls_the_consumer_with_each_snapshot_and_clears(probe):
    p, seen = filled(probe, 1, 2), []
    my_custom_action = seen.append
    drained = drain_records(p, lambda snapshot: my_custom_action(snapshot.tensor))
    assert [tensor.item() for tensor in seen] == [1, 2] == values(drained)
    assert p.records() == []
    p(torch.tensor([3]))
    assert values(drain_records(p, print, synchronize=False)) == [3]


def test_drain_keeps_everything_when_the_consumer_fails_at_the_last_one(probe):
    p, taken = filled(probe, 1, 2), []

    def fail(snapshot):
        taken.append(snapshot.tensor.item())
        if len(taken) == 2:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        drain_records(p, fail)
    assert taken == [1, 2] == values(p.records())


def test_drain_keeps_what_arrives_meanwhile(probe):
    p = filled(probe, 1)
    drain_records(p, lambda _: p(torch.tensor([2])))
    assert values(p.records()) == [2]


def test_drain_of_several_shapes_clears_each(probe):
    p = probe(TensorRecord())
    for size in (1, 2, 1):
        p(torch.ones(size))
    assert len(drain_records(p, lambda _: None)) == 3
    assert p.records() == []


def test_drain_does_not_call_the_consumer_for_nothing(probe):
    assert drain_records(probe(TensorRecord()), lambda _: 1 / 0) == []


def test_scalars_have_the_documented_tags_and_values(probe):
    p = probe(TensorRecord(), name="blk.out")
    p(torch.tensor([3.0, 4.0]))
    writer = Writer()
    export_records_to_tensorboard(writer, p.records())
    assert writer.scalars == {
        ("blk.out/invocation_0/numel", 1): 2,
        ("blk.out/invocation_0/mean", 1): 3.5,
        ("blk.out/invocation_0/std", 1): 0.5,
        ("blk.out/invocation_0/min", 1): 3,
        ("blk.out/invocation_0/max", 1): 4,
        ("blk.out/invocation_0/l2_norm", 1): 5,
    }
    assert writer.histograms == {}


def test_tags_say_which_part_of_the_tensor_they_are_of(probe):
    p = probe(TensorRecord(part="first:2"))
    p(torch.ones(3, 4))
    writer = Writer()
    export_records_to_tensorboard(writer, p.records())
    tags = {tag.rpartition("/")[0] for tag, _ in writer.scalars}
    assert tags == {"p (part first:2 of [3,4])/invocation_0"}


def test_prefix_and_histograms(probe):
    p = probe(TensorRecord())
    p(torch.tensor([1.0, float("nan"), 2.0]))
    p(torch.tensor([float("nan")] * 3))
    writer = Writer()
    export_records_to_tensorboard(
        writer, p.records(), tag_prefix="run/", write_scalars=False, write_histograms=True
    )
    assert writer.scalars == {} and writer.histograms == {("run/p/invocation_0/values", 1): [1, 2]}


def test_a_histogram_leaves_out_what_is_not_finite_and_is_absent_where_nothing_is(probe):
    p = probe(TensorRecord())
    inf, nan = float("inf"), float("nan")
    p(torch.tensor([inf, 1.0, nan, -inf, 2.0]))
    p(torch.tensor([inf, nan, -inf, nan, inf]))
    writer = Writer()
    export_records_to_tensorboard(writer, p.records(), write_scalars=False, write_histograms=True)
    assert writer.histograms == {("p/invocation_0/values", 1): [1, 2]}


@pytest.mark.parametrize(
    "step, expected",
    [(None, [1, 2]), (9, [9]), (0, [0]), (lambda record: record.replay_index * 10, [10, 20])],
)
def test_step_is_the_replay_or_what_was_asked_for(probe, step, expected):
    writer = Writer()
    export_records_to_tensorboard(writer, filled(probe, 1, 2).records(), step=step)
    assert sorted({at for _, at in writer.scalars}) == expected


def test_nan_shows_as_nan_and_empty_has_only_numel(probe):
    writer = Writer()
    p = probe(TensorRecord())
    p(torch.tensor([1.0, float("nan")]))
    export_records_to_tensorboard(writer, p.records())
    assert math.isnan(writer.scalars["p/invocation_0/mean", 1])
    q = probe(TensorRecord(), name="q")
    q(torch.empty(0))
    writer = Writer()
    export_records_to_tensorboard(writer, q.records(), write_histograms=True)
    assert writer.scalars == {("q/invocation_0/numel", 1): 0} and writer.histograms == {}


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16], ids=str)
def test_every_kind_of_dtype_has_scalars(probe, dtype):
    p, writer = probe(TensorRecord()), Writer()
    p(torch.tensor([1, 0, 1]).to(dtype))
    export_records_to_tensorboard(writer, p.records(), write_histograms=True)
    assert writer.scalars["p/invocation_0/mean", 1] == pytest.approx(2 / 3)


def test_writer_errors_pass_through(probe):
    class Broken(Writer):
        def add_scalar(self, tag, value, step):
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        export_records_to_tensorboard(Broken(), filled(probe, 1).records())


def test_a_real_summary_writer_accepts_it(probe, tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    p = probe(TensorRecord())
    p(torch.randn(100).to(torch.bfloat16))
    with tensorboard.SummaryWriter(tmp_path) as writer:
        export_records_to_tensorboard(writer, p.records(), write_histograms=True)
    assert any(path.stat().st_size > 500 for path in tmp_path.iterdir())
