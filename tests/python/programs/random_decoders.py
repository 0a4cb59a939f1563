"""Random decoders, each of which decodes three requests: one after the other, or in a batch of five.

    random_decoders.py one|all KEPT MODELS [FAULTY]

KEPT: what is kept, "values" or "sketches". FAULTY: in a batch, four of the models have a fault, with
the number of the model, its kind and where it is first seen printed as JSON.
"""

import json
import random
import sys

import torch

import cgdebug

STEPS, REQUESTS, ROWS, VOCABULARY = 4, 3, 5, 64
# The kind of a fault, and the module of layer 1 whose output differs first.
FAULTS = {
    "stale_key": "attn.out",
    "wrong_row": "attn.out",
    "wrong_length": "attn.out",
    "stale_weight": "up",
}


class Attention(torch.nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = torch.nn.Linear(dim, 3 * dim), torch.nn.Linear(dim, dim)
        self.fault = ""

    def forward(self, x, cache, step):
        q, k, v = (
            one.unflatten(-1, (self.heads, -1)) for one in self.qkv(x).split(x.shape[-1], -1)
        )
        cache[0][:, step], cache[1][:, step] = k, v
        seen = step + 1
        if self.fault and step == STEPS - 1:
            if self.fault == "stale_key":
                cache[0][1, step - 1] = cache[0][1, 0]
            elif self.fault == "wrong_row":
                cache[1][1, step - 1] = cache[1][2, step - 1]
            elif self.fault == "wrong_length":
                seen = step
        scores = torch.einsum("rhd,rthd->rht", q, cache[0][:, :seen]) / q.shape[-1] ** 0.5
        mixed = torch.einsum("rht,rthd->rhd", scores.softmax(-1), cache[1][:, :seen])
        return self.out(mixed.flatten(1))


class Layer(torch.nn.Module):
    def __init__(self, dim, norm, act):
        super().__init__()
        self.first, self.second = norm(dim), norm(dim)
        self.attn = Attention(dim, 4)
        self.up, self.down, self.act = (
            torch.nn.Linear(dim, 4 * dim),
            torch.nn.Linear(4 * dim, dim),
            act,
        )

    def forward(self, x, cache, step):
        x = x + self.attn(self.first(x), cache, step)
        return x + self.down(self.act(self.up(self.second(x))))


class Decoder(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        choose = random.Random(seed).choice
        torch.manual_seed(seed)
        dim = choose([64, 96, 128])
        norm = choose([torch.nn.LayerNorm, torch.nn.RMSNorm])
        act = choose([torch.nn.GELU(), torch.nn.SiLU(), torch.nn.ReLU(), torch.nn.Tanh()])
        self.dim, self.dtype = dim, choose([torch.float32, torch.float32, torch.bfloat16])
        self.embed = torch.nn.Embedding(VOCABULARY, dim)
        self.layers = torch.nn.ModuleList(Layer(dim, norm, act) for _ in range(choose([2, 3])))
        self.head = torch.nn.Linear(dim, VOCABULARY)
        self.tokens = torch.randint(0, VOCABULARY, (REQUESTS, STEPS))
        self.to(self.dtype)

    def forward(self, ids, caches, step):
        x = self.embed(ids)
        for layer, cache in zip(self.layers, caches):
            x = layer(x, cache, step)
        return self.head(x)

    def break_it(self, fault):
        if fault == "stale_weight":  # as if a half of it had been loaded
            weight = self.layers[1].up.weight
            weight[: len(weight) // 2] *= 1.5
        else:
            self.layers[1].attn.fault = fault


class Decoders(torch.nn.Module):
    def __init__(self, count):
        super().__init__()
        self.models = torch.nn.ModuleList(Decoder(seed) for seed in range(count))

    def forward(self, number, *arguments):
        return self.models[number](*arguments)

    def decode(self, number, requests, rows):
        model = self.models[number]
        shape = 2, rows, STEPS, 4, model.dim // 4
        caches = [torch.zeros(shape, dtype=model.dtype) for _ in model.layers]
        for step in range(STEPS):
            ids, names = torch.zeros(rows, dtype=torch.int64), [None] * rows
            for row, request in enumerate(requests):
                ids[row], names[row] = model.tokens[request, step], 1000 * number + request
            cgdebug.rows(names, [step] * rows)
            self(number, ids, caches, step)


def main():
    mode, kept, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    every = Decoders(count)
    watch = cgdebug.watch(every, **{kept: 64 if kept == "values" else 8})
    if sys.argv[4:] == ["FAULTY"]:
        chosen = dict(zip(range(1, count, count // 4), FAULTS))
        print(json.dumps({number: [fault, FAULTS[fault]] for number, fault in chosen.items()}))
        for number, fault in chosen.items():
            every.models[number].break_it(fault)
    for number in range(count):
        for request in range(REQUESTS) if mode == "one" else ():
            every.decode(number, [request], 1)
        if mode == "all":
            every.decode(number, list(range(REQUESTS)), ROWS)
    return watch


if __name__ == "__main__":
    with torch.no_grad():
        keep = main()
