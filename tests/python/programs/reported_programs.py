"""Faults that people reported, each in small, and what `cgdebug.why` must say of it first
(serve_programs.py). Three of the ten have no entry in EXPECTED: it says nothing of them yet."""

import torch
import torch._dynamo  # an optimizer imports it when it begins
import torch.distributed.tensor
import torch.onnx
from serve_programs import serve
from torch import nn

CALLS, BATCH, SIZE = 6, 8, 16
# name: kind, level, words of the first sentence
EXPECTED = {
    "a_padded_request_of_length_0": ("domain", "shown", ("div_0", "0 divided by 0")),
    "a_position_delta_that_is_omitted_later": (
        "frozen_input", "consistent", ("in/Rotary/", "is the same in 6 calls"),
    ),
    "backward_fills_a_buffer_that_the_optimizer_does_not_read": (
        "idle_optimizer", "shown", ("nothing is trained", "4 parameters"),
    ),
    "the_copy_of_the_weights_is_skipped_at_first": (
        "zero_weights", "consistent", ("all 2 weights are 0 up to call 2", "all gradients"),
    ),
    "draft_logits_are_never_written_again": (
        "frozen_input", "consistent", ("in/Draft/", "is the same"),
    ),
    "padded_inputs_hold_what_was_in_memory": (
        "nonfinite", "shown", ("in/layer/addmm_0.mat1 holds", "NaN in call 4"),
    ),
    "the_quantized_weight_is_not_updated": (
        "frozen_input", "consistent", ("in/Quantized/mm_0.mat2", "is the same"),
    ),
    "the_state_of_the_generator_is_baked": (
        "repeated_noise", "shown", ("bernoulli__0", "the same random numbers"),
    ),
}  # fmt: skip


class Pool(nn.Module):
    """The mean over the tokens of each request, in the scale of the whole batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)

    def forward(self, x, lengths):
        keep = torch.arange(x.shape[1]) < lengths[:, None]
        pooled = (self.layer(x) * keep[..., None]).sum(1) / lengths[:, None]
        return pooled / pooled.abs().amax()


def run_a_padded_request_of_length_0():
    """One NaN of the padding reaches each request, by a scale per tensor."""
    model = Pool()
    x = torch.randn(CALLS, BATCH, 4, SIZE)
    lengths = torch.randint(1, 5, (CALLS, BATCH))
    lengths[4, 5:] = 0
    with torch.no_grad():
        for call in range(CALLS):
            model(x[call], lengths[call])


class Draft(nn.Module):
    def __init__(self):
        super().__init__()
        self.draft, self.target = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.logits = torch.zeros(BATCH, SIZE)
        self.is_warm = False

    def forward(self, x):
        if not self.is_warm:
            self.logits.copy_(self.draft(x))
            self.is_warm = True
        return (self.target(x).softmax(-1) / self.logits.softmax(-1)).clamp(max=1)


def run_draft_logits_are_never_written_again():
    model = Draft()
    with torch.no_grad():
        for _ in range(CALLS):
            model(torch.randn(BATCH, SIZE))


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)

    def forward(self, x, delta):
        angle = torch.arange(BATCH)[:, None] + delta
        return self.layer(x) * angle.float().cos()


def run_a_position_delta_that_is_omitted_later():
    model = Rotary()
    static = torch.tensor([[7]] * BATCH)
    with torch.no_grad():
        for _ in range(CALLS):
            model(torch.randn(BATCH, SIZE), static)


def run_the_state_of_the_generator_is_baked():
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Dropout(0.1), nn.Linear(SIZE, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    state = torch.get_rng_state()
    data = torch.randn(CALLS, BATCH, SIZE)
    for batch in data:
        torch.set_rng_state(state)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def run_the_copy_of_the_weights_is_skipped_at_first():
    """The forward pass reads a buffer that is gathered from the weights; at first it is zeros."""
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, 1))
    main = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.data.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(CALLS):
        optimizer.zero_grad()
        model(torch.randn(BATCH, SIZE)).square().mean().backward()
        optimizer.step()
        if step == 1:
            for p, kept in zip(model.parameters(), main, strict=True):
                p.data.copy_(kept)


class Shared(torch.autograd.Function):
    buffer = torch.zeros(BATCH, SIZE)

    @staticmethod
    def forward(ctx, x):
        Shared.buffer.copy_(x)
        return Shared.buffer * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * Shared.buffer  # of the microbatch that came last


def run_a_buffer_is_reused_before_backward():
    model = nn.Linear(SIZE, SIZE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(CALLS):
        optimizer.zero_grad()
        losses = [Shared.apply(model(torch.randn(BATCH, SIZE))).square().mean() for _ in range(2)]
        for loss in losses:
            loss.backward()
        optimizer.step()


def run_backward_fills_a_buffer_that_the_optimizer_does_not_read():
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for p in model.parameters():
        p.main_grad = torch.zeros_like(p)
        p.grad = torch.zeros_like(p)
    for _ in range(CALLS):
        loss = model(torch.randn(BATCH, SIZE)).square().mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            p.main_grad.copy_(gradient)
        optimizer.step()


class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(SIZE, SIZE) / 4)
        self.low = None

    def forward(self, x):
        if self.low is None:
            self.low = self.weight.detach().bfloat16()
        y = x.bfloat16() @ self.low
        return y.float() + (x @ self.weight - (x @ self.weight).detach())


def run_the_quantized_weight_is_not_updated():
    model = Quantized()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(CALLS):
        optimizer.zero_grad()
        model(torch.randn(BATCH, SIZE)).square().mean().backward()
        optimizer.step()


class Static(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)

    def forward(self, x):
        y = self.layer(x)
        scale = y.abs().amax() / 448
        return (y / scale).round() * scale


def run_padded_inputs_hold_what_was_in_memory():
    model = Static()
    static = torch.zeros(BATCH, SIZE)
    static[6:] = torch.tensor(0x7FC00000, dtype=torch.int32).view(torch.float32)
    with torch.no_grad():
        for call in range(CALLS):
            static[:6] = torch.randn(6, SIZE)
            model(static if call > 2 else static[:6])


if __name__ == "__main__":
    serve(globals())
