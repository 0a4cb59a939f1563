"""Programs with one fault each, by name, and what `cgdebug.why` must say of it first
(serve_programs.py)."""

import torch
import torch._dynamo  # an optimizer imports it when it begins
import torch.distributed.tensor
import torch.onnx
from serve_programs import serve
from torch import nn

CALLS, BATCH, SIZE = 6, 8, 16
# name: kind, level, words of the first sentence
EXPECTED = {}


def expect(kind, level, *words):
    def add(program):
        EXPECTED[program.__name__.removeprefix("run_")] = (kind, level, words)
        return program

    return add


def infer(model, make=None):
    make = make or (lambda call: (torch.randn(BATCH, SIZE),))
    with torch.no_grad():
        for call in range(CALLS):
            model(*make(call))


def train(model, parameters=None, loss_of=None, steps=CALLS, optimizer=torch.optim.SGD, **options):
    optimizer = optimizer(parameters or model.parameters(), **{"lr": 0.01, **options})
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(torch.randn(BATCH, SIZE, dtype=next(model.parameters()).dtype))
        (loss_of(out) if loss_of else out.square().mean()).backward()
        optimizer.step()


def two_layers():
    return nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU(), nn.Linear(SIZE, 4))


class Model(nn.Module):
    """A layer, and a function of what it gives."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(SIZE, SIZE), function

    def forward(self, *given):
        return self.function(self.layer(given[0]), *given[1:])


# --- NaN and Inf ----------------------------------------------------------------------------------


@expect("domain", "shown", "log_0", "the logarithm of 0", "call 1")
def run_log_of_zero():
    infer(Model(lambda x: x.relu().log().sum()))


@expect("domain", "shown", "div_0", "0 divided by 0", "call 4")
def run_zero_by_zero():
    infer(
        Model(lambda x, scale: (x * scale) / (x * scale).norm(dim=-1, keepdim=True)),
        lambda call: (torch.randn(BATCH, SIZE), torch.ones(BATCH, 1) * (call != 3)),
    )


@expect("domain", "shown", "sqrt_0", "the root of a negative number")
def run_root_of_a_variance():
    infer(Model(lambda x: ((x + 1e4).square().mean(-1) - (x + 1e4).mean(-1).square() - 9).sqrt()))


@expect("domain", "shown", "nll_loss_forward", "every target is ignored", "call 3")
def run_ignored_targets():
    infer(
        Model(lambda x, target: nn.functional.cross_entropy(x, target)),
        lambda call: (
            torch.randn(BATCH, SIZE),
            torch.full((BATCH,), -100) if call == 2 else torch.randint(0, SIZE, (BATCH,)),
        ),
    )


@expect("domain", "shown", "mean_0", "no element")
def run_mean_of_nothing():
    infer(Model(lambda x: x[x > 1e3].mean()))


@expect("masked_row", "shown", "_softmax_0", "masked out", "call 2")
def run_masked_row():
    def attend(x, mask):
        return torch.softmax((x @ x.T).masked_fill(mask, float("-inf")), -1) @ x

    def make(call):
        kept = 0 if call == 1 else 4
        return torch.randn(BATCH, SIZE), (torch.arange(BATCH) >= kept).expand(BATCH, BATCH)

    infer(Model(attend), make)


@expect("overflow", "shown", "pow_0", "too large for float16", "call 5")
def run_overflow_in_half():
    infer(
        Model(lambda x: x.half().pow(2).float().mean()),
        lambda call: (torch.randn(BATCH, SIZE).clamp(-2, 2) * 8**call / 10,),
    )


@expect("overflow", "shown", "_to_copy_0", "too large for float16")
def run_cast_to_half():
    infer(Model(lambda x: (x * 1e5).half() / 1e5))


@expect("overflow", "shown", "exp_0", "too large for float32")
def run_exp():
    infer(Model(lambda x: (100 * x).exp().sum().log()))


@expect("nonfinite", "shown", "holds", "NaN", "call 4", "nothing in the log wrote it")
def run_nan_in_the_data():
    batches = torch.randn(CALLS, BATCH, SIZE)
    batches[3, 2, 1] = float("nan")
    infer(two_layers(), lambda call: (batches[call],))


@expect("overflow", "shown", "too large for float32")
def run_exploding_training():
    torch.manual_seed(1)
    train(two_layers(), steps=40, lr=1e3, loss_of=lambda out: out.pow(4).mean())


# --- growth ---------------------------------------------------------------------------------------


@expect("overflow", "shown", "too large for float32", "what it read goes up to")
def run_learning_rate_too_high():
    torch.manual_seed(1)
    train(two_layers(), steps=9, lr=3e2, loss_of=lambda out: out.square().mean())


class Recurrent(nn.Module):
    def __init__(self, dtype, gain):
        super().__init__()
        self.layer, self.gain = nn.Linear(SIZE, SIZE).to(dtype), gain
        self.register_buffer("state", torch.ones(BATCH, SIZE, dtype=dtype))

    def forward(self, x):
        self.state.mul_(self.gain).add_(self.layer(x.to(self.state.dtype)))
        return self.state.tanh()


@expect("growth", "consistent", "in each of the last 6 calls", "too large for float16")
def run_state_that_is_not_damped():
    with torch.no_grad():
        model = Recurrent(torch.float16, 1.7)
        for _ in range(10):
            model(torch.randn(BATCH, SIZE))


@expect("growth", "consistent", "in each of the last 6 calls", "too large for bfloat16")
def run_moving_average_that_adds_up():
    with torch.no_grad():
        model = Recurrent(torch.bfloat16, 9.0)
        for _ in range(10):
            model(torch.randn(BATCH, SIZE))


@expect("growth", "consistent", "in each of the last 6 calls", "too large for float32")
def run_loss_scale_that_is_never_lowered():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10):
        optimizer.zero_grad()
        (model(torch.randn(BATCH, SIZE)).square().mean() * 2.0 ** (8 * step)).backward()
        for parameter in model.parameters():
            parameter.grad.div_(2.0 ** (8 * step))
        optimizer.step()


# --- inputs ---------------------------------------------------------------------------------------


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(64, SIZE), nn.Embedding(64, SIZE)
        self.head = nn.Linear(SIZE, 64)

    def forward(self, token, position):
        return self.head(self.tokens(token) + self.positions(position))


@expect("frozen_input", "consistent", "the input in/positions/", "is the same in 6 calls")
def run_frozen_positions():
    position = torch.arange(4) + 10  # nobody moves it on
    infer(Decoder(), lambda call: (torch.randint(0, 64, (4,)), position))


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder, self.segments = Decoder(), nn.Embedding(2, 64)

    def forward(self, tokens, position, segments, mask):
        scores = self.decoder(tokens, position) + self.segments(segments)
        return scores.masked_fill(mask, float("-inf")).softmax(-1)


@expect("frozen_input", "consistent", "in/decoder.positions/", "is the same in 6 calls")
def run_frozen_position_of_one_step():
    mask, segments = torch.arange(64) > 60, torch.tensor([0, 0, 1, 1])  # these may stay
    infer(
        Masked(),
        lambda call: (torch.randint(0, 64, (4,)), torch.full((4,), 7), segments, mask),
    )


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.context = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.kept = None

    def forward(self, x, context):
        if self.kept is None:  # the warm-up, and nobody else
            self.kept = self.context(context)
        return self.layer(x) * self.kept


@expect("frozen_input", "consistent", "is the same in", "mul_0.other")
def run_buffer_that_the_warm_up_wrote():
    infer(Cached(), lambda call: (torch.randn(BATCH, SIZE), torch.randn(BATCH, SIZE)))


@expect("frozen_input", "consistent", "is the same in 6 calls", "div_0.other")
def run_baked_scalar():
    temperature = torch.tensor(1.0)
    infer(
        Model(lambda x, temperature: torch.softmax(x / temperature, -1)),
        lambda call: (torch.randn(BATCH, SIZE), temperature),
    )


# --- noise ----------------------------------------------------------------------------------------


@expect("repeated_noise", "shown", "the same random numbers", "6 calls")
def run_repeated_dropout():
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Dropout(0.5), nn.Linear(SIZE, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = torch.randn(CALLS, BATCH, SIZE)
    for batch in batches:
        torch.manual_seed(0)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


@expect("repeated_noise", "consistent", "randn", "the same random numbers")
def run_repeated_noise():
    def noisy(x):
        return x + torch.randn(x.shape, generator=torch.Generator().manual_seed(1))

    infer(Model(noisy))


# --- training -------------------------------------------------------------------------------------


@expect("idle_optimizer", "shown", "the optimizer changes nothing", "4 parameters")
def run_learning_rate_of_zero():
    train(two_layers(), optimizer=torch.optim.AdamW, lr=0.0)


@expect("idle_optimizer", "shown", "the optimizer changes nothing")
def run_update_below_a_digit():
    train(two_layers().bfloat16(), lr=1e-7)


@expect("not_stepped", "consistent", "2 of 4 weights are not stepped", "0.weight")
def run_wrong_parameter_group():
    model = two_layers()
    train(model, parameters=model[2].parameters())


@expect("idle_optimizer", "shown", "nothing is trained", "gradients")
def run_loss_of_weight_zero():
    train(two_layers(), loss_of=lambda out: 0 * out.square().mean())


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 4)

    def forward(self, x):
        return self.second(self.first(x).relu().detach())


@expect("no_gradient", "consistent", "2 of 4 weights get no gradient", "first.weight")
def run_detached_layer():
    train(Detached())


@expect("dead_layer", "shown", "relu_0", "is 0 throughout")
def run_dead_relu():
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, 4))
    model[0].bias.data.fill_(-100)
    infer(model)


@expect("dead_layer", "consistent", "_softmax_0", "is 1 throughout")
def run_softmax_of_one_class():
    infer(nn.Sequential(nn.Linear(SIZE, 1), nn.Softmax(-1)))


class Forgotten(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(SIZE, SIZE) for _ in range(3))

    def forward(self, x):
        x = self.first(x)
        self.second(x)  # its result is forgotten
        return self.third(x).sum()


@expect("unread", "consistent", "nobody reads fwd/second/addmm_0")
def run_forgotten_result():
    infer(Forgotten())


@expect("not_stepped", "consistent", "gradients are computed and no optimizer steps")
def run_forgotten_step():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(CALLS):
        optimizer.zero_grad()
        model(torch.randn(BATCH, SIZE)).square().mean().backward()


@expect("no_gradient", "consistent", "the backward pass reaches none of 4 weights")
def run_loss_made_of_a_number():
    train(
        two_layers(),
        loss_of=lambda out: torch.tensor(out.square().mean().item(), requires_grad=True),
    )


@expect("skipped_steps", "consistent", "the GradScaler skips all 6 steps")
def run_scale_too_large():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    for _ in range(CALLS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(torch.randn(BATCH, SIZE))
        scaler.scale(out.float().square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()


@expect("frozen_input", "consistent", "in/0/addmm_0.mat1 is the same", "fwd/randint_0 changes")
def run_batch_that_stays_while_labels_change():
    model, x = two_layers(), torch.randn(BATCH, SIZE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(CALLS):
        optimizer.zero_grad()
        out = model(x)
        nn.functional.cross_entropy(out, torch.randint(0, 4, (BATCH,))).backward()
        optimizer.step()


# --- ops ------------------------------------------------------------------------------------------

_kept = []


@torch.library.custom_op("faulty::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    """Writes its result into a buffer that it has filled once."""
    if not _kept:
        _kept.append(x * 3)
    return _kept[0].clone()


@expect("stale_output", "consistent", "native_batch_norm_0.running_", "does not follow")
def run_statistics_that_keep_nothing():
    """A momentum of 0."""
    train(nn.Sequential(nn.Linear(SIZE, SIZE, bias=False), nn.BatchNorm1d(SIZE, momentum=0.0)))


@expect("stale_output", "consistent", "scale_0", "does not follow", "6 calls")
def run_op_that_does_not_follow():
    infer(Model(lambda x: scale(x).sum()))


if __name__ == "__main__":
    serve(globals())
