"""Memory that no op wrote between a row and an op that reads it (CGDEBUG_OP_LOG_READS)."""

import pytest
import torch

import cgdebug
from op_logs import needs_mode

pytestmark = [pytest.mark.usefixtures("daemon"), needs_mode]


@pytest.fixture
def rows_of(monkeypatch):
    """The rows of what function() runs: name, op, and the numbers of those that it read."""
    monkeypatch.setenv("CGDEBUG_OP_LOG_READS", "1")

    def log(function):
        with cgdebug.debug_mode(eager=True) as dm, torch.no_grad():
            rows = dm._scope._following.recorder.log.rows
            function()
            return [(row.name, row.op, row.inputs) for row in rows]

    return log


def test_what_something_else_wrote_has_a_row_that_the_reader_reads(rows_of):
    x = torch.ones(4)

    def step():
        y = x * 2
        y.numpy()[1] = 7
        y + 1
        y + 1  # what is there now is known

    assert rows_of(step) == [
        ("in/mul_0.self", "input", ()),
        ("fwd/mul_0", "aten.mul.Tensor", (1,)),
        ("in/add_0.self", "overwritten", (2,)),
        ("fwd/add_0", "aten.add.Tensor", (3,)),
        ("fwd/add_1", "aten.add.Tensor", (3,)),
    ]


def test_an_input_may_be_overwritten_between_two_readers(rows_of):
    x = torch.ones(4)

    def step():
        x + 1
        x.numpy()[:] = 2
        x * 2

    assert [op for _, op, _ in rows_of(step)] == [
        "input",
        "aten.add.Tensor",
        "overwritten",
        "aten.mul.Tensor",
    ]


def test_what_ops_write_is_no_foreign_write(rows_of):
    x = torch.arange(12.0)

    def step():
        y = x * 2
        y[4:].add_(1)
        y.view(3, 4)[1].copy_(y[:4])
        out = torch.empty(12)
        torch.add(y, 1, out=out)
        (out + y).unsqueeze(0).expand(2, 12) + 1

    assert "overwritten" not in [op for _, op, _ in rows_of(step)]


def test_what_is_written_where_an_op_does_not_read_is_not_told(rows_of):
    pool = torch.zeros(8)

    def step():
        pool[:4].add_(1)
        pool.numpy()[0] = 5
        pool[4:] + 1

    assert "overwritten" not in [op for _, op, _ in rows_of(step)]


def test_nothing_is_looked_at_twice_unless_it_is_asked_for(rows_of, monkeypatch):
    monkeypatch.delenv("CGDEBUG_OP_LOG_READS")
    x = torch.ones(4)

    def step():
        y = x * 2
        y.numpy()[1] = 7
        y + 1

    assert "overwritten" not in [op for _, op, _ in rows_of(step)]
