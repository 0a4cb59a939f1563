#!/usr/bin/env python3
"""What watching a model costs where /dev/shm is small, as it is in a container.

Each case is a job in a /dev/shm of its own. It has a model twice: alone, and watched by '*'. Both
take turns, so that what else the machine does hits both. Shown are the medians of a step, their
ratio, what the watch takes of /dev/shm, and what the account says was not seen.

    41 of 4 MiB   modules whose outputs have 4 MiB, in Docker's default of 64 MiB
    llama         300 modules in blocks like Llama's, in 64 MiB
    2 MiB         the same model where a part of it has no room

Needs a build and torch, no GPU, and unshare: python3 tools/bench/small_shm.py --build BUILD
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

JOB = """
import copy, json, os, statistics, sys, time
import torch, cgdebug
from cgdebug._job import _native

kind, steps = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)

class Block(torch.nn.Module):  # 14 modules
    def __init__(self, width=256, inner=704):
        super().__init__()
        linear = lambda i, o: torch.nn.Linear(i, o, bias=False)
        self.attention, self.mlp = torch.nn.Module(), torch.nn.Module()
        self.before, self.after = torch.nn.RMSNorm(width), torch.nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (linear(width, width) for _ in range(4))
        self.q_norm, self.k_norm = torch.nn.RMSNorm(64), torch.nn.RMSNorm(64)
        self.gate, self.up, self.act, self.down = linear(width, inner), linear(width, inner), torch.nn.SiLU(), linear(inner, width)
    def forward(self, x):
        h = self.before(x)
        q, k, v = (f(h).unflatten(-1, (-1, 64)).transpose(-2, -3) for f in (self.q, self.k, self.v))
        h = torch.nn.functional.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, is_causal=True)
        x = x + self.o(h.transpose(-2, -3).flatten(-2))
        h = self.after(x)
        return x + self.down(self.act(self.gate(h)) * self.up(h))

if kind == "llama":
    model, x = torch.nn.Sequential(*[Block() for _ in range(23)]), torch.randn(1, 64, 256)
else:
    model, x = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(40)]), torch.randn(1024, 1024)
watched = copy.deepcopy(model)
watch = cgdebug.watch(watched)

@torch.no_grad()
def step(one):
    start = time.perf_counter()
    one(x)
    return time.perf_counter() - start

first = step(watched)
step(model)
times = [(step(model), step(watched)) for _ in range(steps)]
with torch.no_grad():
    next(watched[len(watched) * 3 // 4].parameters()).fill_(float("nan"))
step(watched)
try:
    cgdebug.check("nan")
    found = "nothing"
except Exception as error:
    found = f"{type(error).__name__}: {error}".splitlines()[0]
slots = sum(len(probe.status(timeout=5).slots) for probe in watch.probes.values())
files = [os.stat(f"/dev/shm/{name}") for name in os.listdir("/dev/shm")]
alone, seen = (statistics.median(column) * 1e3 for column in zip(*times))
print(json.dumps({
    "modules": len(list(watched.modules())), "places seen": slots,
    "alone ms": alone, "watched ms": seen, "ratio": seen / alone, "first step ms": first * 1e3,
    "shm KiB": sum(file.st_blocks for file in files) / 2,
    "NaN": found, "account": _native.probe_module().not_seen() or "all is seen",
}))
"""
CASES = {
    "41 of 4 MiB": ("64m", "linear", 9),
    "llama": ("64m", "llama", 41),
    "llama, 2 MiB": ("2m", "llama", 41),
    "41 of 4 MiB, 2 MiB": ("2m", "linear", 9),
}


def run(build, shm, kind, steps):
    mount = f'mount -t tmpfs -o mode=1777,size={shm} t /dev/shm && exec "$@"'
    private = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--propagation", "private"]
    with tempfile.TemporaryDirectory(prefix="cgdebug-bench-") as folder:
        environment = {
            **os.environ,
            "CGDEBUG_SOCKET": f"{folder}/d.sock",
            "PYTHONPATH": str(build / "python"),
            "PATH": f"{build / 'bin'}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            [*private, "sh", "-c", mount, "sh", sys.executable, "-c", JOB, kind, str(steps)],
            env=environment, stdout=subprocess.PIPE, text=True, timeout=600, check=True,
        )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=pathlib.Path, required=True)
    build = parser.parse_args().build.resolve()
    for name, case in CASES.items():
        print(name)
        for what, value in run(build, *case).items():
            print(f"  {what:14}", f"{value:.3g}" if isinstance(value, float) else value, flush=True)


if __name__ == "__main__":
    main()
