"""Programs that are right, of the kinds that people train and serve, by name: nothing must be found in
them (serve_programs.py). They do what resembles a fault: weights that stay, layers that begin at zero,
rows that are masked out, noise that is seeded."""

import copy

import torch
import torch._dynamo  # an optimizer imports it when it begins
import torch.distributed.tensor
import torch.onnx
from serve_programs import serve
from torch import nn
from torch.nn import functional

CALLS, BATCH, SIZE = 8, 8, 16


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def layers(*sizes, activation=nn.Tanh):
    parts = []
    for one, next_one in zip(sizes, sizes[1:], strict=False):
        parts += [nn.Linear(one, next_one), activation()]
    return nn.Sequential(*parts[:-1])


def run_thousand_steps(steps=1000):
    """AdamW with a warm-up that begins at 0, and a cosine to 0."""
    model = layers(4, 8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def rate(at):
        return min(at / 50, 0.5 + 0.5 * torch.cos(torch.tensor(at / steps * torch.pi)).item())

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for _ in range(steps):
        x = torch.randn(BATCH, 4)
        step(optimizer, (model(x) - x.prod(-1, keepdim=True)).square().mean())
        schedule.step()


def run_lstm():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(32, SIZE, padding_idx=0)
            self.lstm = nn.LSTM(SIZE, SIZE, num_layers=2, batch_first=True, dropout=0.1)
            self.head = nn.Linear(SIZE, 5)

        def forward(self, tokens, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(
                self.embed(tokens), lengths, batch_first=True, enforce_sorted=False
            )
            out, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
            return self.head(out)

    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(CALLS):
        lengths = torch.randint(2, 7, (BATCH,))
        lengths[0] = 6
        tokens = torch.randint(1, 32, (BATCH, 6)) * (torch.arange(6) < lengths[:, None])
        targets = torch.where(tokens > 0, tokens % 5, -100)
        step(
            optimizer,
            functional.cross_entropy(model(tokens, lengths).flatten(0, 1), targets.flatten()),
        )


def run_diffusion():
    """A UNet that learns noise; its last convolution begins at zero."""

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Sequential(
                nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8), nn.SiLU()
            )
            self.middle = nn.Sequential(
                nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU()
            )
            self.time = nn.Linear(8, 8)
            self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
            self.out = nn.Conv2d(9, 1, 3, padding=1)
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

        def forward(self, x, t):
            frequencies = torch.exp(-torch.arange(4) / 2.0)
            angles = t[:, None] * frequencies
            hidden = (
                self.down(x)
                + self.time(torch.cat([angles.sin(), angles.cos()], -1))[..., None, None]
            )
            return self.out(torch.cat([self.up(self.middle(hidden)), x], 1))

    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    keep = torch.linspace(0.99, 0.01, 10)
    for _ in range(CALLS):
        image, noise = torch.randn(4, 1, 8, 8), torch.randn(4, 1, 8, 8)
        t = torch.randint(0, 10, (4,))
        kept = keep[t][:, None, None, None]
        loss = (
            (model(kept.sqrt() * image + (1 - kept).sqrt() * noise, t.float()) - noise)
            .square()
            .mean()
        )
        step(optimizer, loss)


def run_gan():
    """Two optimizers; each leaves the weights of the other alone."""
    generator, judge = layers(4, SIZE, SIZE), layers(SIZE, SIZE, 1, activation=nn.LeakyReLU)
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.9))
    for _ in range(CALLS):
        real, noise = torch.randn(BATCH, SIZE) + 1, torch.randn(BATCH, 4)
        loss = functional.softplus(-judge(real)) + functional.softplus(
            judge(generator(noise).detach())
        )
        step(of_judge, loss.mean())
        step(of_generator, functional.softplus(-judge(generator(noise))).mean())


def run_moving_average():
    """A teacher that no optimizer steps follows the student."""
    student = layers(SIZE, SIZE, 4)
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
    for _ in range(CALLS):
        x = torch.randn(BATCH, SIZE)
        target = teacher(x + 0.1 * torch.randn_like(x)).softmax(-1)
        step(optimizer, functional.cross_entropy(student(x), target))
        with torch.no_grad():
            for of_teacher, of_student in zip(
                teacher.parameters(), student.parameters(), strict=True
            ):
                of_teacher.lerp_(of_student, 0.1)


def run_accumulation():
    """A step for each four micro-batches."""
    model = layers(SIZE, SIZE, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(CALLS):
        optimizer.zero_grad()
        for _ in range(4):
            (model(torch.randn(BATCH, SIZE)).square().mean() / 4).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def run_frozen_backbone():
    """Batch norms of a backbone that is not trained, a head that is."""
    backbone = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    ).eval()
    backbone.requires_grad_(False)
    model = nn.Sequential(backbone, nn.Linear(36, 4))
    optimizer = torch.optim.Adam(model[1].parameters(), lr=1e-2)
    for _ in range(CALLS):
        image, label = torch.randn(BATCH, 1, 8, 8), torch.randint(0, 4, (BATCH,))
        step(optimizer, functional.cross_entropy(model(image), label))


class LowRank(nn.Module):
    """A layer that stays, and a correction that begins at zero."""

    def __init__(self, layer, rank=2):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + 2 * self.up(self.down(x))


def run_low_rank():
    model = layers(SIZE, SIZE, SIZE, 4)
    for place in (0, 2):
        model[place] = LowRank(model[place])
    model[4].requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(CALLS):
        label = torch.randint(0, 4, (BATCH,))
        step(optimizer, functional.cross_entropy(model(torch.randn(BATCH, SIZE)), label))


def run_low_rank_inference():
    """An adapter that was never trained: its correction is zero."""
    model = LowRank(nn.Linear(SIZE, SIZE))
    with torch.no_grad():
        for _ in range(CALLS):
            model(torch.randn(BATCH, SIZE))


class Attention(nn.Module):
    """Decodes token by token with a cache of a fixed size."""

    def __init__(self, length=16):
        super().__init__()
        self.embed, self.place = nn.Embedding(32, SIZE), nn.Embedding(length, SIZE)
        self.q, self.k, self.v = (nn.Linear(SIZE, SIZE) for _ in range(3))
        self.head = nn.Linear(SIZE, 32)
        self.register_buffer("keys", torch.zeros(4, length, SIZE))
        self.register_buffer("values", torch.zeros(4, length, SIZE))

    def forward(self, token, position):
        x = self.embed(token) + self.place(position)
        self.keys.index_copy_(1, position, self.k(x))
        self.values.index_copy_(1, position, self.v(x))
        scores = self.q(x) @ self.keys.mT / SIZE**0.5
        scores = scores.masked_fill(torch.arange(16) > position, float("-inf"))
        return self.head(scores.softmax(-1) @ self.values)


def run_decode_with_a_cache():
    model, token = Attention(), torch.randint(0, 32, (4, 1))
    with torch.no_grad():
        for call in range(12):
            token = model(token, torch.tensor([call])).argmax(-1)


def run_continuous_batching():
    """Requests of unlike lengths come and go; rows without a request have length 0."""

    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 4)

        def forward(self, x, lengths):
            keep = torch.arange(x.shape[1]) < lengths[:, None]
            scores = self.layer(x).sum(-1).masked_fill(~keep, float("-inf"))
            weight = torch.nan_to_num(scores.softmax(-1))
            return self.head((weight[..., None] * x).sum(1))

    model, lengths = Pool(), torch.tensor([3, 1, 0, 0, 5])
    with torch.no_grad():
        for call in range(20):
            lengths = torch.where(lengths == 0, 0, lengths % 6 + 1)
            lengths[call % 5] = 0 if call % 3 else 2
            model(torch.randn(5, 6, SIZE), lengths)


def run_variational():
    class Coder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = nn.Linear(SIZE, 8), nn.Linear(4, SIZE)

        def forward(self, x):
            mean, log_variance = self.encode(x).chunk(2, -1)
            z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
            distance = (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1) / 2
            return (self.decode(z) - x).square().mean() + 1e-3 * distance.mean()

    model = Coder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(CALLS):
        step(optimizer, model(torch.randn(BATCH, SIZE)))


def run_convolutions():
    """Batch norms, dropout of channels, a loss with a margin that is met by most."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.2),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    for _ in range(CALLS):
        image, label = torch.randn(BATCH, 3, 8, 8), torch.randint(0, 4, (BATCH,))
        step(optimizer, functional.multi_margin_loss(model(image), label, margin=0.1))


def run_contrastive():
    """Images and texts; the temperature is learned and clamped; the diagonal is masked out."""
    image, text = layers(SIZE, SIZE, 8), layers(SIZE, SIZE, 8)
    scale = nn.Parameter(torch.tensor(2.0))
    optimizer = torch.optim.AdamW([*image.parameters(), *text.parameters(), scale], lr=1e-2)
    for _ in range(CALLS):
        one = functional.normalize(image(torch.randn(BATCH, SIZE)), dim=-1)
        other = functional.normalize(text(torch.randn(BATCH, SIZE)), dim=-1)
        logits = scale.exp().clamp(max=100) * torch.cat([one @ other.T, one @ one.T], 1)
        logits = logits.masked_fill(torch.eye(BATCH).bool().repeat(1, 2).roll(BATCH, 1) &
                                    (torch.arange(2 * BATCH) >= BATCH), float("-inf"))  # fmt: skip
        step(optimizer, functional.cross_entropy(logits, torch.arange(BATCH)))


def run_policy():
    """Actions of a seeded evaluation, and a policy gradient whose advantages may be all 0."""
    policy = layers(4, SIZE, 3)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for _ in range(CALLS):
        state = torch.randn(BATCH, 4)
        chosen = torch.distributions.Categorical(logits=policy(state))
        action = chosen.sample()
        reward = (action == state.argmax(-1) % 3).float()
        step(optimizer, -(chosen.log_prob(action) * (reward - reward.mean())).mean()
             - 0.01 * chosen.entropy().mean())  # fmt: skip


def run_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.norm = nn.Embedding(32, SIZE), nn.LayerNorm(SIZE)
            self.head = nn.Linear(SIZE, 32, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            return self.head(self.norm(self.embed(tokens).cumsum(1)))

    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(CALLS):
        tokens = torch.randint(0, 32, (4, 6))
        step(
            optimizer,
            functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()),
        )


def run_checkpointed_dropout():
    """The backward pass makes the same noise again, on purpose."""
    from torch.utils.checkpoint import checkpoint

    block, head = (
        nn.Sequential(nn.Linear(SIZE, SIZE), nn.Dropout(0.3), nn.GELU()),
        nn.Linear(SIZE, 1),
    )

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.head = block, head

        def forward(self, x):
            return self.head(checkpoint(self.block, x, use_reentrant=False)).square().mean()

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(CALLS):
        step(optimizer, model(torch.randn(BATCH, SIZE)))


def run_safe_log():
    """log(0) that a mask takes away, a root that is kept from 0, an entropy with p log p."""

    class Safe(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE)

        def forward(self, x):
            p = self.layer(x).relu()
            entropy = torch.where(p > 0, p * p.clamp(min=1e-9).log(), 0.0).sum(-1)
            return entropy + (p.square().sum(-1) + 1e-6).sqrt()

    model = Safe()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(CALLS):
        step(optimizer, model(torch.randn(BATCH, SIZE)).mean())


def run_quantized_inference():
    """Weights of 8 bits with a scale a row, activations with a scale a token."""

    class Quantized(nn.Module):
        def __init__(self, layer):
            super().__init__()
            scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
            self.register_buffer("scale", scale)
            self.register_buffer("weight", (layer.weight.detach() / scale).round().to(torch.int8))

        def forward(self, x):
            scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
            return ((x / scale).round() @ self.weight.T.float()) * scale * self.scale.T

    model = nn.Sequential(
        Quantized(nn.Linear(SIZE, SIZE)), nn.ReLU(), Quantized(nn.Linear(SIZE, 4))
    )
    with torch.no_grad():
        for _ in range(CALLS):
            model(torch.randn(BATCH, SIZE))


def run_dynamic_programming():
    """CTC and its -Inf of paths that cannot be."""
    model = layers(SIZE, SIZE, 6)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(CALLS):
        scores = model(torch.randn(10, 4, SIZE)).log_softmax(-1)
        targets, lengths = torch.randint(1, 6, (4, 3)), torch.full((4,), 10)
        step(optimizer, functional.ctc_loss(scores, targets, lengths, torch.full((4,), 3)))


def run_sampling():
    """A nucleus: what is not in it is -Inf; the seed is set before each request, on purpose."""
    model = layers(SIZE, SIZE, 32)
    state = torch.randn(4, SIZE)
    with torch.no_grad():
        for call in range(CALLS):
            generator = torch.Generator().manual_seed(call)
            ordered, places = model(state).sort(descending=True)
            p = ordered.softmax(-1)
            ordered = ordered.masked_fill(p.cumsum(-1) - p > 0.9, float("-inf"))
            chosen = torch.multinomial(ordered.softmax(-1), 1, generator=generator)
            state = state + 0.1 * places.gather(1, chosen)


def run_evaluation_between_steps():
    """Dropout is off in evaluation; a batch of evaluation comes again and again."""
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Dropout(0.2), nn.ReLU(), nn.Linear(SIZE, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held_out = torch.randn(BATCH, SIZE)
    for _ in range(CALLS):
        model.train()
        step(
            optimizer,
            functional.cross_entropy(
                model(torch.randn(BATCH, SIZE)), torch.randint(0, 4, (BATCH,))
            ),
        )
        model.eval()
        with torch.no_grad():
            model(held_out).argmax(-1)


def run_second_moments_in_bfloat16():
    """Weights of bfloat16 with a copy of float32 that the optimizer steps."""
    model = layers(SIZE, SIZE, 1).bfloat16()
    main = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.Adam(main, lr=1e-2)
    for _ in range(CALLS):
        model(torch.randn(BATCH, SIZE, dtype=torch.bfloat16)).square().mean().backward()
        for p, one in zip(model.parameters(), main, strict=True):
            one.grad, p.grad = p.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            for p, one in zip(model.parameters(), main, strict=True):
                p.copy_(one)


def run_mixture_of_experts():
    """Top-2 of four experts with a balancing loss; not each expert has tokens in each call."""

    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(SIZE, 4, bias=False)
            self.experts = nn.ModuleList(
                layers(SIZE, SIZE, SIZE, activation=nn.SiLU) for _ in range(4)
            )

        def forward(self, x):
            p = self.gate(x).softmax(-1)
            weight, chosen = p.topk(2, -1)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                rows, place = (chosen == number).nonzero(as_tuple=True)
                if len(rows) > 0:
                    out = out.index_add(0, rows, expert(x[rows]) * weight[rows, place, None])
            load = functional.one_hot(chosen, 4).float().mean((0, 1))
            return (out - x).square().mean() + 0.1 * 4 * (load * p.mean(0)).sum()

    model = Mixture()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(CALLS):
        step(optimizer, model(torch.randn(3, SIZE)))


def run_missing_values():
    """Data mark what is missing with NaN, between two calls; the model replaces it."""

    class Filled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE)

        def forward(self, x):
            return self.layer(torch.nan_to_num(x))

    model = Filled()
    with torch.no_grad():
        for _ in range(CALLS):
            x = torch.randn(BATCH, SIZE)
            x[x > 1.5] = float("nan")
            model(x)


def run_mean_teacher():
    """The weights of the teacher follow those of the student, and get no gradient."""
    student = layers(SIZE, SIZE, 4)
    follow = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    teacher = torch.optim.swa_utils.AveragedModel(student, multi_avg_fn=follow)
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
    for _ in range(CALLS):
        x = torch.randn(BATCH, SIZE)
        with torch.no_grad():
            wanted = teacher(x)
        step(optimizer, (student(x) - wanted + 1).square().mean())
        teacher.update_parameters(student)


def run_clamped_half():
    """What is too large for float16 is cut off."""

    class Clamped(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE)

        def forward(self, x):
            return (self.layer(x) * 1e6).half().clamp(-64000, 64000).float()

    model = Clamped()
    with torch.no_grad():
        for _ in range(CALLS):
            model(torch.randn(BATCH, SIZE))


PROGRAMS = [name.removeprefix("run_") for name in list(globals()) if name.startswith("run_")]
LOOKED_AT_AGAIN = PROGRAMS  # CGDEBUG_OP_LOG_READS=1, which only adds rows where something is wrong


if __name__ == "__main__":
    serve(globals())
