"""Which inputs of a capture are looked at again where it ends. An eager call stands for the capture."""

import pytest
import torch
from torch import nn

import cgdebug
from cgdebug._op_log.input_ends import InputEnds
from op_logs import needs_mode

pytestmark = [pytest.mark.usefixtures("daemon"), needs_mode]


def ends_of(function, model=None):
    """The names of the inputs of function() that are looked at again, and their tensors."""
    with cgdebug.debug_mode(model, eager=True) as dm, torch.no_grad():
        recorder = dm._scope._following.recorder
        recorder.writer.input_ends = InputEnds()
        function()
        rows = recorder.log.rows
        return {
            rows[row - 1].name: one
            for row, one in recorder.writer.input_ends.take(recorder.writer.rows)
        }


def test_what_no_op_writes_is_looked_at_again():
    x, ids, written = torch.ones(4), torch.arange(6), torch.ones(4)

    def step():
        (x[1:] * 2).sum()
        ids[:3] + 1
        written.add_(1)
        written * 2

    ends = ends_of(step)
    assert list(ends) == ["in/mul_0.self", "in/add_0.self"]
    assert torch.equal(ends["in/mul_0.self"], x[1:])
    assert torch.equal(ends["in/add_0.self"], ids[:3])
    assert ends["in/mul_0.self"].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_what_has_a_name_in_a_model_is_large_or_lies_with_gaps_is_not_looked_at_again():
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    large, gaps = torch.ones(1 << 21), torch.ones(4, 4)

    def step():
        model(x)
        large + 1
        gaps[:, 1] + 1

    assert list(ends_of(step, model)) == ["in/Linear/addmm_0.mat1"]


def test_what_nobody_holds_any_more_is_not_kept_for_it():
    held = [torch.ones(4)]

    def step():
        held[0] + 1
        held.clear()

    assert ends_of(step) == {}


def test_only_the_first_inputs_are_looked_at_again():
    given = [torch.ones(1) for _ in range(40)]
    assert len(ends_of(lambda: [one + 1 for one in given])) == 32
