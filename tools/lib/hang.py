"""Four ranks whose second never comes to an all-reduce; for tools/pictures.

hang.py FILE, where the ranks meet; torchrun's variables say which rank this is. Prints "hangs" when it
will not go on.
"""

import os
import sys
import threading

import torch
import torch.distributed as dist
from torch import nn

import cgdebug
from cgdebug import CudaGraphTensorProbe, TensorStats

LAYERS, WIDTH, HANGS_AT_STEP, LATE_RANK = 4, 64, 27, 1


class Block(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.probes = {
            part: CudaGraphTensorProbe(f"{name}.{part}", [TensorStats()], mode="always")
            for part in ("attn", "mlp.act", "out")
        }
        self.is_late = name == "blk2"

    def forward(self, x, step):
        x = self.probes["attn"](x + self.up(x))
        hangs = self.is_late and step == HANGS_AT_STEP
        if hangs:
            print("hangs", flush=True)
        if hangs and dist.get_rank() == LATE_RANK:
            threading.Event().wait()
        act = self.probes["mlp.act"](torch.relu(self.down(x)))
        dist.all_reduce(act)
        return self.probes["out"](x + act / dist.get_world_size())


def main():
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{sys.argv[1]}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    torch.manual_seed(0)
    blocks = nn.ModuleList(Block(f"blk{layer}") for layer in range(LAYERS))
    with torch.no_grad():
        for step in range(HANGS_AT_STEP + 1):
            cgdebug.step(step)
            x = torch.randn(8, WIDTH)
            for block in blocks:
                x = block(x, step)


main()
