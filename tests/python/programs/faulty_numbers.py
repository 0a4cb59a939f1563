"""More programs with one fault each, written without a look at what finds them: numbers that have no result,
that are too large or none, checks that fail (serve_programs.py)."""

import faulty_programs
import torch
from faulty_programs import BATCH, CALLS, SIZE, Model, infer, train, two_layers
from serve_programs import serve
from torch import nn

EXPECTED = {}  # as there


def expect(kind, level, *words):
    def add(program):
        EXPECTED[program.__name__.removeprefix("run_")] = (kind, level, words)
        return program

    return add


# --- numbers that have no result ------------------------------------------------------------------


@expect("domain", "shown", "acos_0", "the arc cosine of a number above 1 or below -1", "call 3")
def run_angle_of_a_cosine_above_one():
    def angle(x, scale):
        x = nn.functional.normalize(x, dim=-1) * scale
        return (x * nn.functional.normalize(x, dim=-1)).sum(-1).acos()

    infer(
        Model(angle),
        lambda call: (torch.randn(BATCH, SIZE), torch.full((), 1.001 if call == 2 else 0.9)),
    )


@expect("domain", "shown", "std", "call 6")
def run_deviation_of_the_last_batch_of_one():
    infer(
        Model(lambda x: (x - x.mean(0)) / x.std(0)),
        lambda call: (torch.randn(1 if call == CALLS - 1 else BATCH, SIZE),),
    )


@expect("domain", "shown", "pow_0")
def run_root_of_what_is_below_zero_as_a_power():
    infer(Model(lambda x: (x - x.mean()).pow(0.5)))


@expect("domain overflow", "shown", "div_0", "call 5")
def run_temperature_that_reaches_zero():
    infer(
        Model(lambda x, temperature: torch.softmax(x / temperature, -1)),
        lambda call: (torch.randn(BATCH, SIZE), torch.full((), (4 - call) / 4)),
    )


@expect("overflow", "shown", "exp_0", "too large for float32")
def run_softmax_by_hand():
    infer(Model(lambda x: (200 * x).exp() / (200 * x).exp().sum(-1, keepdim=True)))


@expect("overflow", "shown", "sum", "too large for float16")
def run_sum_in_half():
    infer(Model(lambda x: (x.half() * 0 + 30).repeat(1, 256).sum(-1, dtype=torch.float16)))


@expect("domain", "shown", "log1p_0", "the logarithm")
def run_logarithm_of_a_probability_of_one():
    infer(Model(lambda x: torch.log1p(-torch.sigmoid(x * 1000))))


@expect("domain nonfinite", "shown", "rsqrt_0")
def run_norm_without_an_epsilon():
    infer(
        Model(lambda x, kept: (x * kept) * (x * kept).square().mean(-1, keepdim=True).rsqrt()),
        lambda call: (torch.randn(BATCH, SIZE), (torch.arange(BATCH) != call)[:, None].float()),
    )


@expect("domain", "shown", "bwd/", "call 2")
def run_gradient_of_an_absolute_root():
    model = Model(lambda x: x.abs().sqrt())
    model.layer.bias.data.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for call in range(CALLS):
        x = torch.randn(BATCH, SIZE)
        if call == 1:
            x[2] = 0
            model.layer.bias.data.zero_()
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()


@expect("nonfinite", "shown", "weight", "NaN")
def run_checkpoint_with_a_nan():
    model = two_layers()
    model[2].weight.data[1, 3] = float("nan")
    infer(model)


# --- too large, or none ---------------------------------------------------------------------------


@expect("near_overflow", "consistent", "float16")
def run_activations_near_the_limit_of_half():
    infer(Model(lambda x: ((8 * x).tanh().half() * 60000).float().mean()))


@expect("overflow growth", "shown", "too large for float32")
def run_ascent_in_place_of_descent():
    train(two_layers(), steps=60, lr=20.0, loss_of=lambda out: -out.square().mean())


@expect("dead_layer", "consistent", "sigmoid_0", "is 0 throughout")
def run_gate_that_never_opens():
    model = Model(lambda x: torch.sigmoid(x - 1000) * x)
    infer(nn.Sequential(model, nn.Linear(SIZE, 4)))


# Nothing is said of the next two yet: that a factor is 0 may be meant.
def run_dropout_of_everything():
    infer(nn.Sequential(nn.Linear(SIZE, SIZE), nn.Dropout(1.0), nn.Linear(SIZE, 4)))


def run_integer_division_of_a_share():
    infer(
        Model(lambda x, count: x * (count // 64)),
        lambda call: (torch.randn(BATCH, SIZE), torch.randint(1, 60, (BATCH, 1))),
    )


# --- checks ---------------------------------------------------------------------------------------


@expect("mismatch", "shown", "failed comparison: out", "replay 4")
def run_kernel_that_differs_from_its_reference():
    from cgdebug import CudaGraphTensorProbe, TensorCompare

    probe = CudaGraphTensorProbe("out", [TensorCompare(torch.ones(4))], mode="always")
    for call in range(CALLS):
        probe(torch.ones(4) + (call == 3))


@expect("padding_leak", "shown", "mean_0", "call 2")
def run_mean_over_padding():
    import cgdebug

    def make(call):
        x = torch.randn(BATCH, SIZE)
        if call > 0:
            x[6:] = float("nan")
        cgdebug.valid_rows(6, x)
        return (x,)

    infer(Model(lambda x: x - x.mean(0)), make)


@expect("frozen_input", "consistent", "is the same in 6 calls")
def run_mask_of_the_first_batch():
    mask = torch.zeros(BATCH, BATCH).masked_fill(torch.rand(BATCH, BATCH) > 0.8, -1e9)
    infer(
        Model(lambda x, mask: torch.softmax(x @ x.T + mask, -1) @ x),
        lambda call: (torch.randn(BATCH, SIZE), mask),
    )


@expect("idle_optimizer", "shown", "nothing is trained")
def run_loss_of_a_step_function():
    train(two_layers(), loss_of=lambda out: (out.sign() + 0 * out).mean())


@expect("idle_optimizer not_stepped", "consistent", "weights are not stepped")
def run_layer_that_is_added_after_the_optimizer():
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU())
    parameters = [*model.parameters()]
    model.append(nn.Linear(SIZE, 4))
    train(model, parameters=parameters)


@expect("repeated_noise", "shown", "the same random numbers")
def run_seed_in_the_forward_pass():
    class Seeded(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.drop = nn.Linear(SIZE, SIZE), nn.Dropout(0.3)

        def forward(self, x):
            torch.manual_seed(7)  # so that a test is the same each time
            return self.drop(self.layer(x))

    train(Seeded())


assert not EXPECTED.keys() & faulty_programs.EXPECTED.keys()

if __name__ == "__main__":
    serve(globals())
