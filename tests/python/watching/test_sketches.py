"""A sketch of a row tells how far it is from another row, without its values."""

import pytest
import torch

import cgdebug
from cgdebug._watching import sketches


def sums_of(tensor):
    bits = sketches.of(tensor)
    return bits.view(torch.float64 if bits.dtype == torch.int64 else torch.float32).double()


@pytest.mark.parametrize("length", [9, 64, 1000, 4099])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_distances_are_right_within_what_the_answer_says(length, dtype):
    torch.manual_seed(length)
    a = torch.randn(400, length, dtype=torch.float64)
    b = (a + 0.25 * torch.randn(400, 1, dtype=torch.float64).abs() * torch.randn_like(a)).to(dtype)
    a = a.to(dtype)
    right = (a.double() - b.double()).norm(dim=-1)
    told = (sums_of(a) - sums_of(b)).norm(dim=-1)
    factor = torch.maximum(told / right, right / told)
    assert (factor < 2.5).double().mean() > 0.98
    assert 0.9 < (told**2).mean() / (right**2).mean() < 1.1  # no bias


def test_two_elements_that_are_swapped_have_another_sketch():
    a = torch.randn(64, 256)
    b = a.clone()
    b[:, [3, 200]] = a[:, [200, 3]]
    assert (sums_of(a) != sums_of(b)).any(-1).all()


def test_shards_of_a_row_add_up():
    """As an all-reduce adds up what each rank of a tensor-parallel layer has of a row."""
    parts = torch.randn(2, 16, 128, dtype=torch.float64)
    assert torch.allclose(sums_of(parts[0]) + sums_of(parts[1]), sums_of(parts.sum(0)))


@pytest.mark.parametrize(
    "tensor",
    [torch.randn(5, 8), torch.randn(5), torch.tensor(1.5), torch.zeros(3, 2, dtype=torch.int64)],
)
def test_what_is_no_longer_than_a_sketch_is_its_own(tensor):
    assert sketches.of(tensor) is tensor


def test_integers_of_64_bits_keep_their_differences():
    a = torch.full((1, 16), 2**40, dtype=torch.int64)
    b = a.clone()
    b[0, 5] += 1
    assert (sums_of(a) - sums_of(b)).norm() == 1


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_code_makes_the_same_sketches(backend, device):
    a = torch.randint(-99, 99, (4, 3, 100), device=device).bfloat16()  # exact in any order
    compiled = torch.compile(sketches.of, backend=backend, fullgraph=True)
    assert torch.equal(compiled(a), sketches.of(a))


def test_the_signs_of_neighbours_say_nothing_of_one_another():
    signs = sketches._make_signs(1 << 16, torch.zeros(1, dtype=torch.float64))
    for lag in (*range(1, 65), 128, 1024, 4096, 1 << 15):
        both = signs[lag:] * signs[:-lag]
        assert abs(both.sum()) < 6 * len(both) ** 0.5, lag
    assert abs(signs.sum()) < 6 * len(signs) ** 0.5


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 24), torch.nn.Linear(24, 4)

    def forward(self, x):
        return self.second(self.first(x).relu())


@pytest.mark.parametrize("compiles", [False, True])
def test_a_watch_keeps_them_beside_the_statistics(compiles):
    model = Block()
    x = torch.randn(3, 16, requires_grad=True)
    expected = model(x)
    expected.sum().backward()
    gradient, x.grad = x.grad, None
    with cgdebug.watch(model, sketches=4) as watch:
        run = torch.compile(model, backend="aot_eager") if compiles else model
        output = run(x)
        output.sum().backward()
        assert torch.equal(output, expected) and torch.equal(x.grad, gradient)
        probe = watch.probes["sketch/fwd/first"]
        (kept,) = probe.records()
        assert torch.equal(kept.tensor, sketches.of(model.first(x)))
        assert not watch.probes["fwd/first"].records()
        (short,) = watch.probes["sketch/fwd/second"].records()
        assert torch.equal(short.tensor, expected.detach())


def test_a_value_that_is_not_finite_is_told_once(daemon, job, cli):
    program = job("""
        model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Identity())
        watch = cgdebug.watch(model, sketches=4)
        with torch.no_grad():
            model[0].bias[3] = float("inf")
            model(torch.ones(2, 16))
        print("done")
        sys.stdin.readline()
    """)
    program.line()
    done = cli("check", str(program.pid), "--json")
    assert done.returncode == 1
    assert "sketch/" not in done.stdout
