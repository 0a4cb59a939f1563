"""testing.poison(): whether padding reaches real rows, and by which op."""

import pytest
import torch
from torch import nn

from cgdebug.testing import poison
from conftest import capture

ROWS, REAL, SIZE, EXPERTS = 8, 5, 16, 4


class Mix(nn.Module):
    """A layer behind which `mix` does what a test plants."""

    def __init__(self, mix=None):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.mix = mix

    def forward(self, x):
        x = self.up(x).relu()
        if self.mix is not None:
            x = self.mix(x)
        return self.down(x)


def scale_of_batch(x):
    scale = x.abs().amax() / 127
    return (x / scale).round() * scale


def mean_of_batch(x):
    return x - x.mean(0)


def capacity(x):
    """Only the first three rows that choose an expert get into it, padding in front."""
    chosen = x.flip(0)[:, :EXPERTS].argmax(-1)
    place = nn.functional.one_hot(chosen, EXPERTS).cumsum(0).gather(1, chosen[:, None])
    return x * (place <= 3).flip(0)


def zero_times(x):
    weights = (torch.arange(ROWS) < REAL).float()
    return x + (x * weights[:, None]).sum(0)


def large_beats_the_mask(x):
    hidden = torch.where(torch.arange(ROWS) < REAL, 0.0, -1e4)
    return torch.softmax(x @ x.T + hidden, -1) @ x


def unwritten(x):
    out = torch.empty(ROWS, SIZE)
    out[:, 1:] = x[:, 1:]
    return out


def noisy(x):
    return x + torch.rand(ROWS, SIZE, generator=torch.Generator().manual_seed(torch.seed()))


LEAKS = {
    scale_of_batch: ("any value", "amax"),
    mean_of_batch: ("any value", "mean"),
    capacity: ("any value", "flip"),
    zero_times: ("NaN only", "sum"),
    large_beats_the_mask: ("large only", "softmax"),
    unwritten: ("reads memory that nobody wrote", "addmm"),
}


def test(mix, make=Mix, rows=REAL, **options):
    model, x = make(mix), torch.randn(ROWS, SIZE)
    before = x.clone()
    found = poison(lambda: model(x), {"x": x}, rows, **options)
    assert torch.equal(x, before)
    return found


test.__test__ = False


@pytest.mark.parametrize("mix", LEAKS, ids=lambda mix: mix.__name__)
def test_a_leak_is_named_with_its_kind_and_its_op(mix):
    verdict, op = LEAKS[mix]
    found = test(mix)
    assert found.verdict == verdict, found
    assert not found.ok
    assert op in found.op, found
    assert "test_poison.py" in found.site


@pytest.mark.parametrize(
    "make",
    [
        Mix,
        lambda mix: nn.TransformerEncoderLayer(SIZE, 2, batch_first=True).eval(),
        lambda mix: nn.Sequential(nn.LayerNorm(SIZE), nn.Linear(SIZE, 3), nn.Softmax(-1)),
        lambda mix: lambda x: (x[None].transpose(1, 2).transpose(1, 2)[0] ** 2).cumsum(-1),
    ],
    ids=["mlp", "encoder", "norm", "views"],
)
def test_rows_that_are_kept_apart_do_not_leak(make):
    if make is Mix:
        found = test(None)
    else:
        model, x = make(None), torch.randn(ROWS, 6, SIZE) if make(None) else None
        found = poison(lambda: model(x), [x], REAL)
    assert found.ok, found
    assert found.verdict == "none" and not found.op


def test_a_mask_of_batch_and_tokens_hides_keys():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(SIZE, 2, batch_first=True).eval()
    x = torch.randn(3, 6, SIZE)
    mask = torch.arange(6) < torch.tensor([[6], [4], [2]])
    with torch.no_grad():
        right = poison(lambda: layer(x, src_key_padding_mask=~mask), [x], mask)
        wrong = poison(lambda: layer(x), [x], mask)
    assert right.verdict in ("none", "NaN only"), right  # 0 x NaN of a hidden value
    assert wrong.verdict == "any value"


def test_what_is_not_deterministic_is_said_and_not_judged():
    found = test(noisy)
    assert found.verdict == "none" and not found.ok
    assert found.unstable == ["result[0]"]
    assert "inconclusive" in str(found)


def test_compiled_code_runs_compiled_in_the_call_and_afterwards():
    runs = []

    def backend(module, inputs):
        def run(*args):
            runs.append(1)
            return module(*args)

        return run

    torch._dynamo.reset()
    model, x = torch.compile(Mix(mean_of_batch), backend=backend), torch.randn(ROWS, SIZE)
    model(x)
    found = poison(lambda: model(x), {"x": x}, REAL)
    assert found.verdict == "any value" and "mean" in found.op
    during = len(runs)
    assert during > 3
    model(x)
    assert len(runs) == during + 1


def test_padding_of_whole_numbers_that_cannot_be_changed_is_said():
    table, ids = torch.randn(4, SIZE), torch.zeros(ROWS, dtype=torch.long)
    found = poison(lambda: table[ids] + table[ids].mean(0), {"ids": ids}, REAL)
    assert not found.ok
    assert any("ids: it has one value" in text for text in found.not_looked_at)
    bytes_ = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 2).clone()
    assert poison(lambda: bytes_.float() * 2, {"x": bytes_}, 200).verdict == "none"


def test_an_output_without_rows_is_not_looked_at():
    x = torch.randn(ROWS, SIZE)
    found = poison(lambda: (x * 2, x.mean()), [x], REAL)
    assert found.verdict == "none" and not found.ok
    assert "result[1]" in found.not_looked_at[0]
    with pytest.raises(ValueError, match="no output has these rows"):
        poison(lambda: x.mean(), [x], REAL)


def test_what_runs_no_op_here_has_no_op_to_name():
    """As a graph's replay, which writes tensors that it has made before."""
    import numpy

    x, out = torch.randn(ROWS, SIZE), torch.zeros(ROWS, SIZE)
    one, other = x.numpy(), out.numpy()
    found = poison(
        lambda: numpy.subtract(one, one.mean(0), out=other), [x], REAL, outputs={"y": out}
    )
    assert found.verdict == "any value" and found.op == ""
    assert any("no op of torch" in text for text in found.not_looked_at)


def test_state_that_a_call_changes_is_put_back():
    x, total = torch.randn(ROWS, SIZE), torch.zeros(())

    def call():
        total.add_(1)
        return x * total

    assert poison(call, [x], REAL, state=[total]).ok
    assert total.item() == 0
    assert poison(call, [x], REAL).unstable


def test_state_that_is_called_like_an_input_is_put_back():
    x, cache = torch.randn(ROWS, SIZE), torch.zeros(())

    def call():
        cache.add_(1)
        return x * cache

    assert poison(call, {"cache": x}, REAL, state={"cache": cache}).ok
    assert cache.item() == 0


@pytest.mark.parametrize("rows", [9, torch.ones(4)], ids=["count", "mask"])
def test_rows_that_the_inputs_do_not_have_are_refused(rows):
    with pytest.raises(ValueError, match="poison: "):
        test(None, rows=rows)
    with pytest.raises(ValueError, match="all rows are real"):
        test(None, rows=ROWS)


@pytest.mark.gpu
def test_a_replay_that_leaks_is_found():
    x = torch.randn(ROWS, SIZE, device="cuda")
    graph, out = capture(lambda: x - x.mean(0))
    found = poison(graph.replay, [x], REAL, outputs=[out])
    assert found.verdict == "any value" and not found.op
    graph, out = capture(lambda: x * 2)
    found = poison(graph.replay, [x], REAL, outputs=[out])
    assert found.verdict == "none" and not found.ok  # nobody looked at its memory
