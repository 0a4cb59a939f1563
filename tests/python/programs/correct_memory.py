"""Programs that are right and write into memory that stays, by name; each does what resembles a fault of
memory or order (serve_programs.py)."""

import torch
import torch._dynamo  # an optimizer imports it when it begins
import torch.distributed.tensor
import torch.onnx
from serve_programs import serve
from torch import nn

CALLS, BATCH, SIZE = 6, 8, 16


def infer(model, inputs=lambda call: (torch.randn(BATCH, SIZE),)):
    with torch.no_grad():
        for call in range(CALLS):
            model(*inputs(call))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.Linear(SIZE, SIZE), torch.zeros(BATCH, SIZE)

    def forward(self, x):
        return self.out.copy_(self.layer(x))


def run_a_static_output_is_read_before_the_next_run():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = Encoder(), nn.Linear(SIZE, 4)

        def forward(self, x, other):
            first = self.encoder(x).clone()
            return self.head(first - self.encoder(other))

    infer(Pair(), lambda call: (torch.randn(BATCH, SIZE), torch.randn(BATCH, SIZE)))


def run_a_buffer_is_cleared_before_it_is_filled():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = Encoder(), nn.Linear(SIZE, 4)

        def forward(self, x):
            self.encoder.out.zero_()
            return self.head(self.encoder(x))

    infer(Model())


def run_a_state_that_is_made_of_the_one_before():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.x, self.h = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
            self.state = torch.zeros(BATCH, SIZE)

        def forward(self, x):
            y = (self.x(x) + self.h(self.state)).tanh()
            self.state.copy_(y)
            return y.sum(-1)

    infer(Recurrent())


def run_the_next_batch_is_copied_when_this_one_is_done():
    static = torch.randn(BATCH, SIZE)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE)

        def forward(self, next_x):
            y = self.layer(static).relu()
            static.copy_(next_x)
            return y

    infer(Model())


def run_all_weights_come_from_another_process():
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, 4))

    def batch(call):
        for weight in model.parameters():
            weight.data.numpy()[:] *= 1.01
        return (torch.randn(BATCH, SIZE),)

    infer(model, batch)


def run_a_regression_that_begins_at_zero():
    model = nn.Linear(SIZE, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(CALLS):
        x = torch.randn(BATCH, SIZE)
        optimizer.zero_grad()
        (model(x) - x.sum(-1, keepdim=True)).square().mean().backward()
        optimizer.step()


def run_an_expert_that_has_no_token_in_some_calls():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.table = nn.Linear(SIZE, SIZE), nn.Embedding(64, SIZE)

        def forward(self, x, tokens):
            y = self.layer(x)
            return y + self.table(tokens) if len(tokens) == BATCH else y

    infer(Experts(), lambda call: (torch.randn(BATCH, SIZE),
                                   torch.randint(0, 64, (BATCH if call % 2 else 1,))))  # fmt: skip


def run_one_batch_is_measured_again_and_again():
    model, x = nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, 4)), torch.randn(BATCH, SIZE)  # fmt: skip
    infer(model, lambda call: (x,))


def run_features_of_a_text_are_kept_for_all_images():
    class Clip(nn.Module):
        def __init__(self):
            super().__init__()
            self.text, self.image, self.kept = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE), None

        def forward(self, image, text):
            if self.kept is None:
                self.kept = self.text(text)
            return self.image(image) @ self.kept.T

    text = torch.randn(4, SIZE)
    infer(Clip(), lambda call: (torch.randn(BATCH, SIZE), text))


def run_a_scale_of_the_real_rows():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE)

        def forward(self, x, real):
            y = torch.where(real[:, None], self.layer(x), 0.0)
            scale = y.abs().amax() / 448
            return (y / scale).round() * scale

    import cgdebug  # not at the top: it looks at variables that serve() sets

    model, real = Scaled(), torch.arange(BATCH) < 5
    with torch.no_grad():
        for call in range(CALLS):
            x = torch.cat([torch.randn(5, SIZE), 10.0**call * torch.randn(3, SIZE)])
            cgdebug.valid_rows(5, x)
            model(x, real)


PROGRAMS = [name.removeprefix("run_") for name in list(globals()) if name.startswith("run_")]
LOOKED_AT_AGAIN = PROGRAMS  # CGDEBUG_OP_LOG_READS=1


if __name__ == "__main__":
    serve(globals())
