#!/usr/bin/env python3
"""What watching a whole model costs: a training step of a Llama, captured as one graph.

A Llama of Hugging Face with random weights, its backward pass and AdamW:
  plain    nothing is watched
  again    the same: whether the step itself gives the same bits twice
  modules  cgdebug.watch(model): statistics of the output of each module
  grads    the same with the gradients of these outputs
  copies   no probes: a copy of each output on the device
  device   cgdebug.watch(model): the outputs themselves, in device memory
  armed    the same with a trigger on NaN, which never holds
  ops      cgdebug.debug_mode(model): every tensor that an op writes, gradients and optimizer too
  ops10    the same of each tenth replay
  padded   ops, and of each row also what lies in padding: three quarters of the batch are real
  ops:64   ops with CGDEBUG_OP_LOG_MIB=64
The variants take turns within one run. After `--steps` replays each, loss and parameters must be
those of the plain graph bit for bit. Attention is a backend whose backward pass is deterministic.
With --profile plain,ops it says how long which kernels of these take in a replay.

Needs a GPU, torch and transformers: PYTHONPATH=BUILD/python python3 tools/bench/op_log.py
"""

import contextlib
import gc
import os
import statistics
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else bits may differ between runs

import graph_bench as bench
import torch
import torch.nn.attention
import transformers

import cgdebug

VARIANTS = "plain,again,modules,ops"
# The default, cuDNN's, is not deterministic.
ATTENTION = [
    torch.nn.attention.SDPBackend.FLASH_ATTENTION,
    torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION,
]
WATCHED = {
    "modules": {},
    "grads": {"grads": True},
    "device": {"values": cgdebug.TensorRecord(capacity=2, where="device")},
    "armed": {"values": cgdebug.TensorRecord(capacity=2, where="device", on="nan")},
}
OWN_KERNELS = {"OpLogParts": "rows", "Leaf": "leaves"}


class Step:
    """One training step, to be captured."""

    def __init__(self, options):
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            hidden_size=options.hidden,
            intermediate_size=options.hidden * 11 // 4,
            num_hidden_layers=options.layers,
            num_attention_heads=options.hidden // 64,
            vocab_size=options.vocabulary,
            use_cache=False,
        )
        with torch.device("cuda"):
            self.model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
            shape = (options.batch, options.tokens)
            self.tokens = torch.randint(0, options.vocabulary, shape)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, capturable=True)

        self.real_rows = None  # on the device; of the padding nothing is told without it

    def __call__(self):
        if self.real_rows is not None:
            cgdebug.valid_rows(self.real_rows, self.tokens)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(input_ids=self.tokens, labels=self.tokens).loss
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def copies_of_outputs(model):
    """Copies what each module returns; the copies by module."""
    copies = {}

    def copy(module, _, output):
        if isinstance(output, (tuple, list)):
            output = output[0]
        elif isinstance(output, dict):
            output = output["logits"] if "logits" in output else output["last_hidden_state"]
        kept = copies.get(module)
        if kept is None or kept.shape != output.shape:
            kept = copies[module] = torch.empty_like(output)
        kept.copy_(output.detach())

    for module in model.modules():
        module.register_forward_hook(copy)
    return copies


class Variant:
    """A captured step, with what its capture took."""

    def __init__(self, name, options):
        kind, _, mib = name.partition(":")
        os.environ.pop("CGDEBUG_OP_LOG_MIB", None)
        if mib:
            os.environ["CGDEBUG_OP_LOG_MIB"] = mib
        self.step = Step(options)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.copies = copies_of_outputs(self.step.model) if kind == "copies" else {}
        watched = WATCHED.get(kind)
        self.watch = None if watched is None else cgdebug.watch(self.step.model, **watched)
        logs = {"ops": 1, "ops10": 10, "padded": 1}  # by how many replays are logged
        if kind == "padded":
            self.step.real_rows = torch.tensor(options.batch * 3 // 4, device="cuda")
        every = logs.get(kind)
        self.mode = cgdebug.debug_mode(self.step.model, every=every) if every else None
        gc.collect()
        torch.cuda.synchronize()
        free = torch.cuda.mem_get_info()[0]
        began = time.perf_counter()
        self.graph = torch.cuda.CUDAGraph()
        with self.mode or contextlib.nullcontext(), torch.cuda.graph(self.graph):
            self.loss = self.step()
        self.capture_s = time.perf_counter() - began
        self.memory_mib = (free - torch.cuda.mem_get_info()[0]) / 2**20
        self.replay(2)

    def replay(self, count):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        for _ in range(count):
            self.graph.replay()
        after.record()
        torch.cuda.synchronize()
        return before.elapsed_time(after) / count

    def rows(self):
        if self.watch is not None:
            return len(self.watch.explain().seen)
        return 0 if self.mode is None else sum(len(log.rows) for log in self.mode._scope.logs)

    def log(self):
        return None if self.mode is None else self.mode._scope.logs[0]

    def launches(self):
        """What the launches of the log read in a replay."""
        if self.mode is None:
            return {}
        return {**self.log()._native.counters(), "copies": self.log().copies}

    def coverage(self):
        return None if self.mode is None else self.log().coverage

    def notes(self):
        return [] if self.mode is None else list(self.log().gaps)

    def kernel_ms(self):
        """Of a replay, by kind of kernel: how many, and how long they take."""
        activity = torch.profiler.ProfilerActivity.CUDA
        with torch.profiler.profile(activities=[activity]) as profile:
            self.graph.replay()
            torch.cuda.synchronize()
        found = {}
        for event in profile.events():
            if event.device_type != torch.autograd.DeviceType.CUDA:
                continue
            kind = next((OWN_KERNELS[key] for key in OWN_KERNELS if key in event.name), "the job's")
            count, ms = found.get(kind, (0, 0.0))
            found[kind] = (count + 1, ms + event.time_range.elapsed_us() / 1000)
        return found

    def is_as(self, other):
        """Whether loss and parameters are the same, bit for bit."""
        mine = [self.loss, *self.step.model.parameters()]
        return all(map(torch.equal, mine, [other.loss, *other.step.model.parameters()]))


def parser():
    result = bench.parser(__doc__, rounds=6, replays=5)
    for name, default in (
        ("layers", 12), ("hidden", 1024), ("batch", 8), ("tokens", 512), ("vocabulary", 32000)
    ):  # fmt: skip
        result.add_argument(f"--{name}", type=int, default=default)
    result.add_argument("--steps", type=int, default=50)
    result.add_argument("--variants", default=VARIANTS)
    result.add_argument("--profile", default="", help="variants")
    return result


def main():
    options = parser().parse_args()
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    with torch.nn.attention.sdpa_kernel(ATTENTION):
        variants = {name: Variant(name, options) for name in options.variants.split(",")}
    for variant in variants.values():
        variant.replay(options.steps - 2)
    plain = variants["plain"]
    is_same = {name: one.is_as(plain) for name, one in variants.items()}
    times = {name: [] for name in variants}
    for _ in range(options.rounds):
        for name, variant in variants.items():
            times[name].append(variant.replay(options.replays))
    figures = {"machine": bench.machine(), "variants": {}}
    rows = []
    for name, variant in variants.items():
        step_ms = statistics.median(times[name])
        # Ratios of neighbouring samples: if the clock changes its speed, it changes both.
        ratio = statistics.median(one / other for one, other in zip(times[name], times["plain"]))
        coverage = variant.coverage()
        figures["variants"][name] = {
            "step_ms": step_ms,
            "ratio": ratio,
            "rows": variant.rows(),
            "launches": variant.launches(),
            "coverage": coverage and coverage.explained / max(coverage.nodes, 1),
            "capture_s": variant.capture_s,
            "capture_mib": variant.memory_mib,
            "is_bit_for_bit": is_same[name],
            "notes": variant.notes(),
        }
        rows.append(
            [name, f"{step_ms:.2f}", f"{step_ms - statistics.median(times['plain']):.2f}",
             f"{100 * (ratio - 1):.1f}", variant.rows(), str(coverage or "-"),
             f"{variant.capture_s:.2f}", f"{variant.memory_mib:.0f}",
             "yes" if is_same[name] else "NO"]
        )  # fmt: skip
    print(
        f"A step of a Llama: {options.layers} layers, hidden {options.hidden}, batch "
        f"{options.batch} x {options.tokens}, bf16, AdamW.\n"
    )
    columns = ["", "ms a step", "ms added", "% added", "rows", "kernel nodes explained",
               "capture s", "MiB of the capture", "bit for bit"]  # fmt: skip
    print(bench.table(columns, rows))
    for name, variant in variants.items():
        read = variant.launches()
        if read:
            print(
                f"{name}: {read['launches']} launches of {read['rows'] / read['launches']:.1f} rows "
                f"on average, {read['bytes'] / 1e9:.2f} GB read, {read['copies']} rows copied first"
            )
        for note in variant.notes():
            print(f"{name}: not shown: {note}")
        if name in options.profile.split(","):
            for kind, (count, ms) in sorted(variant.kernel_ms().items()):
                print(f"{name}: {count} kernels of {kind}: {ms:.2f} ms")
    bench.report(figures, options.json)


if __name__ == "__main__":
    main()
