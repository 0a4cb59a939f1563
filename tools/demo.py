"""Trains a small GPT under cgdebug probes; tools/demo runs it and shows what the daemon saw.

With a GPU one CUDA graph holds the whole step (forward, backward, Adam) and every step is a replay; no
Python runs in it. Without one the same code runs eagerly. What the probes see is not printed here: it
leaves through shared memory, and cgdebug-cli shows it.
"""

import argparse
import pathlib
import sys
import time

import torch

import cgdebug
from cgdebug import CudaGraphTensorProbe, TensorCompare, TensorPrint, TensorRecord

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from tiny_gpt import TinyGpt, load_text

LAYERS, LENGTH, BATCH = 4, 64, 16
FAULT_LAYER = 2
GROWTH = 2.0  # of the faulty weight per step; its activation grows by the square
LOSS_SCALE = 128.0  # keeps float16 gradients out of the subnormal range


class Probes:
    """The probes of a run by name; called at each point of the model that has a name."""

    def __init__(self, frozen_name, frozen_weight, mode):
        def make(name, *actions):
            return CudaGraphTensorProbe(name, list(actions), mode=mode)

        recorded = [f"blk{i}.{part}" for i in range(LAYERS) for part in ("attn", "mlp.act", "out")]
        self.forward = {
            name: make(name, TensorRecord(capacity=16)) for name in recorded + ["logits"]
        }
        self.forward["loss"] = make("loss", TensorPrint(every=20), TensorRecord(capacity=16))
        # A frozen weight must not change: it is compared in every step, bit for bit.
        expected = frozen_weight.detach().cpu().clone()
        self.forward[frozen_name] = make(frozen_name, TensorCompare(expected, bitwise=True))
        self.backward = {
            name: make(f"{name}.grad", TensorRecord(capacity=16))
            for name in ("blk0.out", "blk3.out")
        }

    def __call__(self, name, tensor):
        if name in self.backward:
            tensor = self.backward[name].attach_grad(tensor)
        return self.forward[name](tensor) if name in self.forward else tensor

    def __len__(self):
        return len(self.forward) + len(self.backward)


class Trainer:
    """One training step, captured in a CUDA graph where there is a GPU."""

    def __init__(self, device, seed):
        torch.manual_seed(seed)
        self.device = device
        self.probe = lambda name, tensor: tensor
        self.model = TinyGpt(
            lambda name, tensor: self.probe(name, tensor), LAYERS, length=LENGTH
        ).to(device)
        self.frozen = self.model.blocks[FAULT_LAYER].up.weight.requires_grad_(False)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(self.trained, lr=1e-3, capturable=device.type == "cuda")
        self.tokens = torch.zeros(BATCH, LENGTH + 1, dtype=torch.int64, device=device)
        self.growth = torch.ones((), device=device)
        self.loss = None
        self.graph = None

    def step(self):
        with torch.no_grad():
            self.frozen.mul_(self.growth)
        self.optimizer.zero_grad(set_to_none=True)
        self.loss = self.model(self.tokens)
        (self.loss * LOSS_SCALE).backward()
        torch._foreach_div_([p.grad for p in self.trained], LOSS_SCALE)
        self.optimizer.step()

    def capture(self):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # torch wants its warm-ups on the stream that captures
                self.step()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            self.step()

    def run(self, tokens):
        self.tokens.copy_(tokens)
        if self.graph is None:
            self.step()
        else:
            self.graph.replay()
            torch.cuda.synchronize()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--fault", choices=["overflow"], help="make one activation overflow float16"
    )
    parser.add_argument(
        "--fault-step", type=int, help="where the weight begins to grow (default: half)"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.fault_step is None:
        arguments.fault_step = arguments.steps // 2
    if arguments.device is None:
        arguments.device = "cuda" if torch.cuda.is_available() else "cpu"
    return arguments


def main():
    arguments = parse_arguments()
    device = torch.device(arguments.device)
    trainer = Trainer(device, arguments.seed)
    trainer.probe = Probes(
        f"blk{FAULT_LAYER}.mlp.up.weight",
        trainer.frozen,
        "capture" if device.type == "cuda" else "always",
    )
    text = load_text()
    starts = torch.Generator().manual_seed(arguments.seed)
    offsets = torch.arange(LENGTH + 1)

    def batch():
        first = torch.randint(len(text) - LENGTH, (BATCH, 1), generator=starts)
        return text[first + offsets]

    if device.type == "cuda":
        trainer.tokens.copy_(batch())
        trainer.capture()
    print(
        f"{sum(p.numel() for p in trainer.model.parameters()):,} parameters, {len(text):,} characters, "
        f"{len(trainer.probe)} probes, {arguments.steps} steps on {device.type}, "
        f"{'one CUDA graph a step' if trainer.graph else 'eager'}",
        flush=True,
    )
    began = time.perf_counter()
    for step in range(1, arguments.steps + 1):
        if arguments.fault and step >= arguments.fault_step:
            trainer.growth.fill_(GROWTH)
        cgdebug.step(step)
        trainer.run(batch())
    seconds = time.perf_counter() - began
    print(
        f"loss {trainer.loss.item():.3f} after {arguments.steps} steps, "
        f"{1e3 * seconds / arguments.steps:.2f} ms a step",
        flush=True,
    )


if __name__ == "__main__":
    main()
