"""Captured programs that are asked about replays that are over."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.dropout(F.silu(self.up(self.norm(x))), 0.1, self.training))


class Model(nn.Module):
    def __init__(self, layers=3, width=64):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 256)

    def forward(self, ids, gain):
        x = self.embed(ids) * gain
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Training:
    """A whole step in one graph. `gain` overflows where `bad` says so."""

    def __init__(self):
        torch.manual_seed(0)
        model = Model().cuda().bfloat16().train()
        rate = torch.tensor(1e-3, device="cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True, fused=True)
        self.model, self.optimizer = model, optimizer
        self.ids = torch.zeros(4, 32, dtype=torch.long, device="cuda")
        self.gain = torch.ones(4, 1, 1, device="cuda", dtype=torch.bfloat16)
        self.source = torch.Generator(device="cuda").manual_seed(5)
        for one in model.parameters():
            one.grad = torch.zeros_like(one)

        def step():
            optimizer.zero_grad(set_to_none=False)
            logits = model(self.ids, self.gain).float().flatten(0, 1)
            loss = F.cross_entropy(logits, self.ids.flatten())
            loss.backward()
            optimizer.step()
            return loss.detach()

        self.graph, self.loss = _capture(step)

    def replay(self, bad=False):
        self.ids.copy_(torch.randint(0, 256, self.ids.shape, device="cuda", generator=self.source))
        self.gain.fill_(1.0)
        if bad:
            self.gain[1] = 3e38
        self.graph.replay()

    def state(self):
        torch.cuda.synchronize()
        moments = [one for kept in self.optimizer.state.values() for one in kept.values()]
        return [one.detach().clone() for one in [*self.model.parameters(), *moments, self.loss]]


class Inference:
    """Changes nothing in place."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = Model().cuda().eval()
        self.ids = torch.zeros(4, 32, dtype=torch.long, device="cuda")
        self.gain = torch.ones(4, 1, 1, device="cuda")
        with torch.no_grad():
            self.graph, self.logits = _capture(lambda: self.model(self.ids, self.gain))

    def replay(self, bad=False):
        self.ids.add_(1).remainder_(256)
        self.gain.fill_(3e38 if bad else 1.0)
        self.graph.replay()


class Engine:
    """Attends to a cache that no op is given: an op that appends to it, where `slots` says, and one
    that reads what `block_table` names, find both by themselves, as those of serving engines do.

    Two requests; each replay appends a token to both."""

    BLOCK, WIDTH = 4, 32

    def __init__(self, cache_mib=1):
        torch.manual_seed(0)
        blocks = (cache_mib << 20) // (self.BLOCK * self.WIDTH * 4)
        self.cache = torch.zeros(blocks, self.BLOCK, self.WIDTH, device="cuda")
        self.slots = torch.full((8,), -1, dtype=torch.long, device="cuda")
        self.block_table = torch.zeros(2, 64, dtype=torch.long, device="cuda")
        self.lengths = torch.zeros(2, dtype=torch.long, device="cuda")
        self.tokens = torch.zeros(2, self.WIDTH, device="cuda")
        self.project = nn.Linear(self.WIDTH, self.WIDTH).cuda()
        self.given = [[1], [2]]  # blocks of each request
        self.free = list(range(3, blocks))
        engine = self

        @torch.library.custom_op("rewind_test::append", mutates_args=())
        def append(tokens: torch.Tensor) -> torch.Tensor:
            flat = engine.cache.view(-1, engine.WIDTH)
            places = engine.slots[:2].view(-1, 1).expand(-1, engine.WIDTH)
            flat.scatter_(0, places, tokens)
            return tokens.new_empty(0)

        @torch.library.custom_op("rewind_test::attend", mutates_args=("output",))
        def attend(tokens: torch.Tensor, output: torch.Tensor) -> None:
            found = engine.cache.index_select(0, engine.block_table.flatten())
            found = found.view(2, -1, engine.WIDTH)
            places = torch.arange(found.shape[1], device="cuda")
            is_there = places < engine.lengths.unsqueeze(1)
            found = found.where(is_there.unsqueeze(-1), 0)
            scores = (found * tokens.unsqueeze(1)).sum(-1)
            scores = scores.masked_fill(~is_there, -torch.inf)
            output.copy_((scores.softmax(-1).unsqueeze(-1) * found).sum(1))

        self._ops = append, attend
        self.step()
        with torch.no_grad():
            self.graph, self.result = _capture(self._run)

    def _run(self):
        append, attend = self._ops
        hidden = self.project(self.tokens)
        append(hidden)
        output = torch.empty_like(hidden)
        attend(hidden, output)
        return output * 2

    def declare(self):
        from cgdebug._rewind import caches

        caches.declare([self.cache], 0, self.slots, self.BLOCK)

    def step(self, bad=False):
        """What the next replay is given."""
        for request in range(2):
            length = int(self.lengths[request])
            if length // self.BLOCK >= len(self.given[request]):
                self.given[request].append(self.free.pop(0))
            block = self.given[request][length // self.BLOCK]
            self.block_table[request, length // self.BLOCK] = block
            self.slots[request] = block * self.BLOCK + length % self.BLOCK
        self.lengths += 1
        self.tokens.copy_(torch.randn(2, self.WIDTH))
        if bad:
            self.tokens[1, 3] = float("nan")

    def replay(self, bad=False):
        if int(self.lengths[0]) >= 64 * self.BLOCK:
            self.lengths.zero_()  # other requests
        self.step(bad)
        self.graph.replay()

    def give_away(self, block):
        """To a request that writes something else there."""
        self.cache[block] = 7.0


class EngineOfOtherKernels(Engine):
    """Launches kernels of its own, of which torch knows nothing: one turns tokens in place, one
    appends to the cache, and one counts replays, in what a table of pointers leads to."""

    SOURCE = """
    extern "C" __global__ void turn(float* tokens) {
      float* const one = tokens + blockIdx.x * blockDim.x + threadIdx.x;
      *one = 0.5f * *one + 1.0f;
    }
    extern "C" __global__ void append(const float* tokens, float* cache, const long long* slots) {
      const int width = blockDim.x, at = threadIdx.x;
      const long long slot = slots[blockIdx.x];
      if (slot >= 0) cache[slot * width + at] = tokens[blockIdx.x * width + at];
    }
    extern "C" __global__ void count(long long** table) { *table[blockIdx.x] += 1; }
    """

    def __init__(self, cache_mib=1):
        self.counts = [torch.zeros(1, dtype=torch.long, device="cuda") for _ in range(2)]
        addresses = [one.data_ptr() for one in self.counts]
        self.table = torch.tensor(addresses, dtype=torch.long, device="cuda")
        self._turn, self._append, self._count = (
            torch.cuda._compile_kernel(self.SOURCE, name) for name in ("turn", "append", "count")
        )
        super().__init__(cache_mib)

    def _run(self):
        hidden = self.project(self.tokens)
        rows = {"grid": (2, 1, 1), "block": (self.WIDTH, 1, 1)}
        self._turn(**rows, args=[hidden])
        self._append(**rows, args=[hidden, self.cache, self.slots])
        self._count(grid=(2, 1, 1), block=(1, 1, 1), args=[self.table])
        output = torch.empty_like(hidden)
        self._ops[1](hidden, output)
        return output * 2


def _capture(step):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return graph, result
