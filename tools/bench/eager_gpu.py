#!/usr/bin/env python3
"""What watching costs an eager forward pass on a GPU: 18 modules of 4 MiB and their root, beside the same
model alone. Both take turns.

  PYTHONPATH=BUILD/python python3 tools/bench/eager_gpu.py [--width 1024] [--rounds 15]

`host`: until all is launched. Needs a GPU.
"""

import argparse
import statistics
import time

import torch
from torch import nn

import cgdebug

FORWARDS = 50


def make(width):
    torch.manual_seed(0)
    layers = [layer for _ in range(9) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers).cuda()


@torch.no_grad()
def times_of(model, x):
    """Milliseconds of a forward pass: until it is launched, and until it is done."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(FORWARDS):
        model(x)
    launched = time.perf_counter()
    torch.cuda.synchronize()
    return [(end - begun) / FORWARDS * 1e3 for end in (launched, time.perf_counter())]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    x = torch.randn(options.width, options.width, device="cuda")
    plain, watched = make(options.width), make(options.width)
    watch = cgdebug.watch(watched)
    for _ in range(3):
        times_of(plain, x), times_of(watched, x)
    rounds = [times_of(plain, x) + times_of(watched, x) for _ in range(options.rounds)]
    host, alone, host_watched, with_watch = map(statistics.median, zip(*rounds))
    print(f"alone {alone:.3f} ms (host {host:.3f}), watched {with_watch:.3f} ms", end=" ")
    print(f"(host {host_watched:.3f}): {with_watch / alone:.2f} times")
    print(watch.explain())


if __name__ == "__main__":
    main()
