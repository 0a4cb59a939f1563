"""What it costs to keep the last replays of a graph (CGDEBUG_REWIND), and how long an answer takes.

    python tools/bench/rewind.py          about a minute on one GPU
    python tools/bench/rewind.py --ask    keeps no replay, and asks about the next one

Each program is captured twice, one of them so that it can be asked about, and both graphs are timed
in turns. "answer": how long the job takes from a question to its answer, for the first question
(which makes the pieces of the graph) and for the second.
"""

import gc
import json
import os
import socket
import statistics
import sys
import threading
import time

os.environ["CGDEBUG_REWIND"] = (
    "" if "--ask" in sys.argv else os.environ.get("CGDEBUG_REWIND", "200")
)
os.environ["CGDEBUG_ASK"] = "1"
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.nn.functional as F
from torch import nn

import cgdebug  # noqa: F401
from cgdebug._rewind import mailbox

ROUNDS, REPLAYS = 9, 100
KEEPS = bool(os.environ["CGDEBUG_REWIND"])


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = width // 64
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) / 8, -1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return x + self.down(F.dropout(F.silu(self.up(x)), 0.1, self.training))


class Model(nn.Module):
    def __init__(self, layers, width):
        super().__init__()
        self.embed = nn.Embedding(1024, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 1024)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def program(layers, width, batch, length, trains):
    """(a function that makes one step, what has to live as long as its graph)"""
    torch.manual_seed(0)
    model = Model(layers, width).cuda().bfloat16().train(trains)
    ids = torch.randint(0, 1024, (batch, length), device="cuda")
    if not trains:
        return torch.no_grad()(lambda: model(ids)), model
    rate = torch.tensor(1e-4, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True, fused=True)
    for one in model.parameters():
        one.grad = torch.zeros_like(one)

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(ids).float().flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, (model, optimizer)


def capture(step, **options):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph(**options)
    with torch.cuda.graph(graph):
        graph.result = step()
    return graph


def clock(graph):
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / REPLAYS * 1e3


def ask(graph, replay):
    """Seconds of an answer, with how many nodes were launched, or why there is none. replay: None:
    the next one"""
    told = []

    def question():
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(str(mailbox.path_of(os.getpid())))
        name = str(graph._cgdebug_kept.capture)
        asked = {"graph": name} | ({"replay": replay} if replay else {})
        peer.sendall(json.dumps(asked).encode() + b"\n")
        told.append(b"".join(iter(lambda: peer.recv(1 << 16), b"")))

    thread = threading.Thread(target=question)
    thread.start()
    while thread.is_alive():
        graph.replay()
        torch.cuda.synchronize()
    head, _, rest = told[0].partition(b"\n")
    _, text, _ = map(int, head.split())
    answer = json.loads(rest[text:])
    if "seconds" not in answer:
        return str(answer)
    nodes, seconds = answer["not_seen"]["nodes"], answer["seconds"]
    return f"{seconds * 1e3:.0f} ms ({nodes} nodes, {seconds / nodes * 1e6:.1f} us each)"


def main():
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}; rewind "
        f"{os.environ['CGDEBUG_REWIND']}"
    )
    for name, shape in (
        ("decode, 12 layers of 1024, 8 x 1", (12, 1024, 8, 1, False)),
        ("prefill, 12 layers of 1024, 8 x 512", (12, 1024, 8, 512, False)),
        ("training, 2 layers of 256, 4 x 128", (2, 256, 4, 128, True)),
        ("training, 12 layers of 1024, 8 x 512", (12, 1024, 8, 512, True)),
    ):
        step, keep = program(*shape)
        alone = capture(step, keep_graph=True)
        kept = capture(step)
        times = [(clock(alone), clock(kept)) for _ in range(ROUNDS)]
        alone_ms, kept_ms = (statistics.median(one) for one in zip(*times))
        ratio = statistics.median(b / a for a, b in times)
        of = kept._cgdebug_kept
        texts = [ask(kept, of.replays - 20 if KEEPS else None) for _ in range(2)]
        print(
            f"{name}: {alone_ms:.3f} ms alone, {kept_ms:.3f} kept, x {ratio:.4f}; "
            f"{of.state_text()}; answer {texts[0]}, then {texts[1]}",
            flush=True,
        )
        del step, keep, alone, kept, of
        gc.collect()
        torch.cuda.empty_cache()


main()
