"""Captured programs of unlike kinds, with all that their graphs read and write."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


class Program:
    """graph: captured with keep_graph=True; state: each tensor that it changes, and its results"""

    def __init__(self, step, state):
        self.step = step  # keeps the weights that the graph reads
        self.state = [one for one in state if one.is_cuda]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(self.graph):
            results = step()
        self.graph.instantiate()
        self.state += [one for one in results if one.is_cuda]

    def save(self):
        torch.cuda.synchronize()
        return [one.clone() for one in self.state]

    def restore(self, saved):
        with torch.no_grad():
            for one, was in zip(self.state, saved):
                one.copy_(was)
        torch.cuda.synchronize()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        with sdpa_kernel(SDPBackend.MATH):  # the others' backward is not deterministic
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.dropout(F.silu(self.up(x)), 0.1, self.training))


class Model(nn.Module):
    def __init__(self, layers=2, width=128):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 256)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train(fused=False):
    torch.manual_seed(0)
    model = Model().cuda().bfloat16().train()
    rate = torch.tensor(1e-3, device="cuda")
    how = {"fused": True} if fused else {"foreach": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True, **how)
    ids = torch.randint(0, 256, (4, 64), device="cuda")
    return _training(
        model,
        optimizer,
        lambda: F.cross_entropy(model(ids).float().flatten(0, 1), ids.flatten()),
    )


def _training(model, optimizer, loss_of):
    for one in model.parameters():
        one.grad = torch.zeros_like(one)

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return [loss.detach()]

    step()
    moments = [one for state in optimizer.state.values() for one in state.values()]
    gradients = [one.grad for one in model.parameters()]
    return Program(step, [*model.parameters(), *gradients, *moments])


def decode():
    torch.manual_seed(1)
    rows, width, length = 8, 128, 32
    keys = torch.zeros(rows, length, width, device="cuda")
    place = torch.zeros(rows, dtype=torch.long, device="cuda")
    ids = torch.randint(0, 256, (rows,), device="cuda")
    embed, out = nn.Embedding(256, width).cuda(), nn.Linear(width, 256).cuda()

    @torch.no_grad()
    def step():
        x = embed(ids)
        keys[torch.arange(rows, device="cuda"), place] = x
        mask = torch.arange(length, device="cuda")[None] <= place[:, None]
        scores = torch.einsum("rd,rtd->rt", x, keys).masked_fill(~mask, float("-inf"))
        logits = out(torch.einsum("rt,rtd->rd", scores.softmax(-1), keys))
        ids.copy_(logits.argmax(-1))
        place.add_(1).clamp_(max=length - 1)
        return [logits]

    return Program(step, [keys, place, ids])


def bag():
    """Kernels that take their arguments in unlike ways, on two streams."""
    torch.manual_seed(2)
    x = torch.randn(64, 1024, device="cuda")
    index = torch.randperm(64, device="cuda")  # each once: the order of sums is no chance
    parts = [torch.randn(64, 8 + i, device="cuda") for i in range(40)]
    many = [torch.randn(33, 7, device="cuda") for _ in range(60)]
    pinned = torch.arange(64, dtype=torch.float32).pin_memory()
    landed = torch.zeros(64, device="cuda")
    conv = nn.Conv2d(8, 16, 3, padding=1).cuda().half()
    image = torch.randn(2, 8, 32, 32, device="cuda").half()
    side = torch.cuda.Stream()

    @torch.no_grad()
    def step():
        out = [torch.cat(parts, 1), x.sort(-1).values, x.cumsum(-1), x.topk(7).values]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            beside = torch._foreach_mul(many, 1.5)
            out.append(conv(image))
        landed.copy_(pinned, non_blocking=True)
        out.append(torch.zeros(256, 1024, device="cuda").index_add_(0, index, x[index]))
        out.append(x.softmax(-1) @ x.T)
        torch.cuda.current_stream().wait_stream(side)
        out.append(torch.where(x > 0, x, 0.0).argmax(-1))
        return out + list(beside)

    return Program(step, [landed])


def compiled():
    torch.manual_seed(3)
    model = Model(layers=1).cuda().bfloat16().eval()
    run = torch.compile(model, dynamic=False)
    ids = torch.randint(0, 256, (4, 64), device="cuda")

    @torch.no_grad()
    def step():
        return [run(ids)]

    return Program(step, [])


def llama_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
        max_position_embeddings=128,
    )
    return transformers, transformers.LlamaForCausalLM(config).cuda().bfloat16()


def llama_train():
    torch.manual_seed(4)
    _, model = llama_of_transformers()
    rate = torch.tensor(1e-3, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True, foreach=True)
    ids = torch.randint(0, 256, (4, 32), device="cuda")

    def loss_of():
        with sdpa_kernel(SDPBackend.MATH):  # the others' backward is not deterministic
            return model(input_ids=ids, labels=ids, use_cache=False).loss

    return _training(model, optimizer, loss_of)


def llama_decode():
    torch.manual_seed(5)
    rows, length = 4, 64
    transformers, model = llama_of_transformers()
    model.eval()
    cache = transformers.StaticCache(config=model.config, max_cache_len=length)
    ids = torch.randint(0, 256, (rows, 1), device="cuda")
    place = torch.zeros(1, 1, dtype=torch.long, device="cuda")
    is_told = "cache_position" in inspect.signature(model.forward).parameters  # of earlier ones

    @torch.no_grad()
    def step():
        mask = (torch.arange(length, device="cuda") <= place).view(1, 1, 1, length)
        where = {"cache_position": place.view(1)} if is_told else {}
        # By place: the name of the cache is another one in each version.
        with sdpa_kernel(SDPBackend.MATH):
            logits = model(ids, mask.expand(rows, 1, 1, length), place, cache, **where).logits
        ids.copy_(logits[:, -1:].argmax(-1))
        place.add_(1)
        return [logits]

    step()  # makes the memory of the cache
    kept = [one for layer in cache.layers for one in vars(layer).values()]
    return Program(step, [ids, place, *(one for one in kept if isinstance(one, torch.Tensor))])


PROGRAMS = {
    "train": train,
    "train_fused": lambda: train(fused=True),
    "decode": decode,
    "bag": bag,
    "compiled": compiled,
    "llama_train": llama_train,
    "llama_decode": llama_decode,
}
