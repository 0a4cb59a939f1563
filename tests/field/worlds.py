"""Healthy programs on two ranks: `ranks` and `check` must find nothing in them, and say how much they could not judge.

    python tests/field/worlds.py                modules, parameters and gradients recorded; exit code 1: an alarm
    python tests/field/worlds.py 'fsdp*'        what these globs name
    python tests/field/worlds.py --rank NAME    one rank of one program; torchrun starts it

Needs torch with gloo and transformers, and the package and cgdebug-cli on their paths.
"""

from __future__ import annotations

import fnmatch
import pathlib
import re
import subprocess
import sys
import tempfile

STEPS = 3
NOTHING_FOUND, FOUND, NOT_JUDGED = 0, 1, 3


def llama():
    import transformers

    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=96,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=32,
        )
    )


def net(norm=None):
    import torch

    layers = [
        torch.nn.Linear(16, 32),
        norm or torch.nn.LayerNorm(32),
        torch.nn.GELU(),
        torch.nn.Linear(32, 16),
    ]
    return torch.nn.Sequential(*layers)


def train(model, batch, *, lr=0.05, each=1, forward=None):
    """Steps of AdamW; `each`: as many backward passes a step."""
    import torch

    import cgdebug

    watched = cgdebug.watch(model, params=True, grads=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(each):
            output = (forward or model)(batch())
            loss = output if output.ndim == 0 else output.float().square().mean()
            loss.backward()
        optimizer.step()
    watched.close()


def rows(rank):
    """Batches that no two ranks share."""
    import torch

    generator = torch.Generator().manual_seed(100 + rank)
    return lambda: torch.randn(8, 16, generator=generator)


def tokens(rank):
    import torch

    generator = torch.Generator().manual_seed(100 + rank)
    return lambda: torch.randint(0, 96, (2, 12), generator=generator)


def ddp(rank):
    import torch

    train(torch.nn.parallel.DistributedDataParallel(net()), rows(rank))


def ddp_llama(rank):
    import torch

    model = torch.nn.parallel.DistributedDataParallel(llama())
    train(model, tokens(rank), forward=lambda x: model(input_ids=x, labels=x).loss)


def ddp_sync_norm_in_eval(rank):
    import torch

    model = torch.nn.parallel.DistributedDataParallel(net(torch.nn.BatchNorm1d(32)))
    train(model, rows(rank))
    model.eval()
    with torch.no_grad():
        model(rows(rank)())


def ddp_accumulates(rank):
    import torch

    train(torch.nn.parallel.DistributedDataParallel(net()), rows(rank), each=3)


def ddp_bfloat16(rank):
    import torch

    model = torch.nn.parallel.DistributedDataParallel(net().bfloat16())
    train(model, lambda: rows(rank)().bfloat16())


def ddp_compiled(rank):
    import torch

    train(
        torch.compile(torch.nn.parallel.DistributedDataParallel(net()), backend="aot_eager"),
        rows(rank),
    )


def fsdp(rank):
    from torch.distributed.fsdp import fully_shard

    model = net()
    for layer in (model[0], model[3], model):
        fully_shard(layer)
    train(model, rows(rank))


def fsdp_llama(rank):
    from torch.distributed.fsdp import fully_shard

    model = llama()
    for layer in [*model.model.layers, model]:
        fully_shard(layer)
    train(model, tokens(rank), forward=lambda x: model(input_ids=x, labels=x).loss)


def tensor_parallel(rank):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))
    parallelize_module(
        model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    train(model, rows(0))  # tensor-parallel ranks are given the same batches


def tensor_and_sequence_parallel(rank):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    model = torch.nn.Sequential(
        torch.nn.LayerNorm(16), torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16)
    )
    plan = {
        "0": SequenceParallel(sequence_dim=0),
        "1": ColwiseParallel(input_layouts=Shard(0)),
        "3": RowwiseParallel(output_layouts=Shard(0)),
    }
    parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
    batch = rows(0)
    train(model, lambda: batch().chunk(2)[rank])


PROGRAMS = {
    each.__name__: each
    for each in (
        ddp, ddp_llama, ddp_sync_norm_in_eval, ddp_accumulates, ddp_bfloat16, ddp_compiled, fsdp, fsdp_llama,
        tensor_parallel, tensor_and_sequence_parallel,
    )
}  # fmt: skip


def run_rank(name):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    PROGRAMS[name](dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()


def said(command):
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return answer.returncode, answer.stdout + answer.stderr


def main():
    if sys.argv[1:2] == ["--rank"]:
        return run_rank(sys.argv[2])
    globs = sys.argv[1:] or ["*"]
    alarms = 0
    for name in (name for name in PROGRAMS if any(fnmatch.fnmatch(name, glob) for glob in globs)):
        with tempfile.TemporaryDirectory() as folder:
            recording = pathlib.Path(folder) / "r.cgrec"
            torchrun = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                "2",
            ]
            program = [*torchrun, __file__, "--rank", name]
            run = ["cgdebug-cli", "run", "-o", str(recording), "--", *program]
            codes = {"run": said(run)}
            for command in ("ranks", "check"):
                codes[command] = said(["cgdebug-cli", command, str(recording)])
            print(
                f"{name:32}",
                *(f"{command} {code}" for command, (code, _) in codes.items()),
                flush=True,
            )
            for command, (code, text) in codes.items():
                if code not in (NOTHING_FOUND, NOT_JUDGED):
                    alarms += 1
                if code != NOTHING_FOUND:
                    print(
                        re.sub("^", f"    {command}: ", text.strip()[-1500:], flags=re.M),
                        flush=True,
                    )
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
