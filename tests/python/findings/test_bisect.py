"""torch's compiler bisector with our comparison as its test: cgdebug.testing.bisect_compiler()."""

from unittest import mock

import pytest
import torch

import cgdebug
from cgdebug.testing import bisect_compiler

pytest.importorskip("torch._inductor.compiler_bisector")
pytestmark = pytest.mark.usefixtures("daemon")


def wrong_silu(x):
    return x * torch.sigmoid(x) + 0.1


@pytest.fixture
def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU(), torch.nn.Softplus())


@pytest.fixture
def wrong_decomposition():
    from torch._inductor import decomposition

    wrong = {torch.ops.aten.silu.default: wrong_silu}
    with (
        mock.patch.dict(decomposition.decompositions, wrong),
        mock.patch.dict(torch._decomp.decomposition_table, wrong),
    ):
        yield
    torch._dynamo.reset()


def test_a_wrong_decomposition_is_named(model, wrong_decomposition):
    x = torch.linspace(-2, 2, 16).view(4, 4)
    fault = bisect_compiler(lambda compile: compile(model)(x))
    assert (fault.backend, fault.subsystem) == ("aot_eager_decomp_partition", "decomposition")
    assert "aten.silu" in fault.what and not fault.diff.ok
    assert str(fault).startswith("the fault is in aot_eager_decomp_partition, decomposition, use ")


def test_a_program_that_compiles_right_has_no_fault():
    def sine(x):
        return x.sin()

    assert bisect_compiler(lambda compile: compile(sine)(torch.linspace(-2, 2, 16))) is None


def test_without_a_verdict_nothing_is_searched(model):
    x = torch.ones(4, 4)
    calls = []

    def is_never_the_same(compile):
        calls.append(compile)
        return model(x) + len(calls)

    with pytest.raises(cgdebug.NotCheckedError, match="two eager runs differ"):
        bisect_compiler(is_never_the_same)

    def returns_more_when_it_is_compiled(compile):
        y = model(x)
        return (y,) if compile(abs) is abs else (y, y + 1)

    with pytest.raises(cgdebug.NotCheckedError, match="not everything was compared"):
        bisect_compiler(returns_more_when_it_is_compiled)
    with pytest.raises(cgdebug.NotCheckedError, match="returned no tensor"):
        bisect_compiler(lambda compile: 1)
