#!/usr/bin/env python3
"""What watching a serving engine costs: vLLM on a Llama with random weights, alone and watched.

  tools/bench/serve.py [--levels 'plain,*,op:*'] [--layers 4] [--seqs 32] [--rounds 6] [--profile]

An engine for each level starts when the one before is ready; then all take turns with the same 32
requests of 512 tokens, so that a ratio is from one run. Said of each: seconds until it was ready, how
much more device memory it takes than plain, seconds of the rounds (median and least), whether its
tokens are those of plain, and what `status` says of its job. With --profile also what one replay of the graph of most replays takes on the
device, by torch's profiler: from its first kernel to its last, and in how many kernels.

A level may be followed by settings: '* CGDEBUG_REWIND=0'.

The caches of engines lie in --folder, by level: the second run with the same folder starts warm.
Needs a GPU, vLLM, and `cgdebug-cli` on PATH; memory for an engine is 4 GiB and its model.
"""

import argparse
import collections
import hashlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

REQUESTS, TOKENS, VOCABULARY = 32, 512, 4096
SETTINGS = {
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # for functions that run in the worker
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}


# --- in the engine's worker: vLLM sends these there by value ---------------------------------------


def begin_profile(model):
    import sys

    import torch

    sys._bench_profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    sys._bench_profile.__enter__()


def end_profile(model):
    """Of the graph that was replayed most often."""
    import collections
    import statistics
    import sys

    import torch

    torch.cuda.synchronize()
    profile = sys.__dict__.pop("_bench_profile")
    profile.__exit__(None, None, None)
    launches = collections.defaultdict(list)
    for event in profile.profiler.kineto_results.events():
        if str(event.device_type()).endswith("CUDA"):
            begin = event.start_ns()
            launches[event.correlation_id()].append((begin, begin + event.duration_ns()))
    replays = collections.defaultdict(list)  # by the number of their kernels
    for kernels in launches.values():
        if len(kernels) > 5:
            span = max(end for _, end in kernels) - min(begin for begin, _ in kernels)
            replays[len(kernels)].append(span / 1e3)
    if not replays:
        return {}
    kernels, spans = max(replays.items(), key=lambda item: len(item[1]))
    return {"replays": len(spans), "kernels": kernels, "us": statistics.median(spans)}


# --- one engine -----------------------------------------------------------------------------------


class Turns:
    """Files of a folder, by which engines wait for each other."""

    def __init__(self, folder, index, count):
        self.folder, self.index, self.count = pathlib.Path(folder), index, count

    def _done(self, what):
        return sum(1 for one in self.folder.iterdir() if one.name.startswith(what))

    def begin(self):
        """The engines start one after the other."""
        while self._done("ready.") < self.index:
            time.sleep(0.05)

    def all_ready(self):
        (self.folder / f"ready.{self.index}").touch()
        while self._done("ready.") < self.count:
            time.sleep(0.05)

    def mine(self, work):
        while (done := self._done("done.")) % self.count != self.index:
            time.sleep(0.01)
        result = work()
        (self.folder / f"done.{done}").touch()
        return result


def device_mib():
    """Of all processes, on the first GPU that the engine sees."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    words.append(f"--id={gpu}")
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def run_engine(options):
    from vllm import LLM, SamplingParams

    turns = Turns(options.turns, options.engine, options.engines)
    generator = random.Random(1)
    prompts = [
        {
            "prompt_token_ids": [
                generator.randrange(3, VOCABULARY) for _ in range(generator.randrange(3, 200))
            ]
        }
        for _ in range(REQUESTS)
    ]
    turns.begin()
    before = device_mib()
    begun = time.perf_counter()
    llm = LLM(
        model=options.model,
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="bfloat16",
        max_model_len=1024,
        gpu_memory_utilization=0.05,
        kv_cache_memory_bytes=4 << 30,
        max_num_seqs=options.seqs,
        seed=0,
    )
    result = {"ready": time.perf_counter() - begun, "mib": device_mib() - before}

    def serve(tokens=TOKENS):
        sampling = SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        begun = time.perf_counter()
        done = llm.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - begun
        text = repr([list(one.outputs[0].token_ids) for one in done])
        return seconds, hashlib.sha256(text.encode()).hexdigest()[:12]

    turns.all_ready()
    rounds = [turns.mine(serve) for _ in range(options.rounds)]
    result["seconds"] = [seconds for seconds, _ in rounds]
    result["tokens"] = sorted({tokens for _, tokens in rounds})
    if options.profile:

        def profiled():
            llm.apply_model(begin_profile)
            serve(24)
            return llm.apply_model(end_profile)[0]

        result["profile"] = turns.mine(profiled)
    if os.environ.get("CGDEBUG_WATCH"):
        said = subprocess.run(
            ["cgdebug-cli", "-q", "status"], capture_output=True, text=True, check=False
        )
        result["status"] = said.stdout + said.stderr
    pathlib.Path(options.result).write_text(json.dumps(result), encoding="utf-8")


# --- all of them ----------------------------------------------------------------------------------


def start(options, folder, index, levels):
    level, *settings = levels[index].split()
    own = folder / f"{index}-{level.replace('*', 'all').replace(':', '-')}"
    for name in ("vllm", "triton", "inductor"):
        (own / name).mkdir(parents=True, exist_ok=True)
    environment = os.environ | SETTINGS
    environment |= {
        "CGDEBUG_SOCKET": str(own / "daemon.sock"),
        "VLLM_CACHE_ROOT": str(own / "vllm"),
        "TRITON_CACHE_DIR": str(own / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"),
    }
    environment.pop("CGDEBUG_WATCH", None)
    if level != "plain":
        environment["CGDEBUG_WATCH"] = level
    environment |= dict(one.split("=", 1) for one in settings)
    words = [sys.executable, __file__, "--engine", str(index), "--engines", str(len(levels))]
    words += ["--turns", str(folder / "turns"), "--result", str(own / "result.json")]
    words += ["--model", str(folder / "model"), "--seqs", str(options.seqs)]
    words += ["--rounds", str(options.rounds)] + ["--profile"] * options.profile
    with open(own / "log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
    return own, process


def row(level, result, plain):
    seconds, base = result["seconds"], plain["seconds"]
    median, least = statistics.median(seconds), min(seconds)
    text = f"| `{level}` | {result['ready']:.1f} s | {result['mib'] - plain['mib']:+d} MiB "
    text += f"| {median:.2f} ({least:.2f}) s "
    text += f"| {median / statistics.median(base):.3f} ({least / min(base):.3f})x "
    text += f"| {'equal' if result['tokens'] == plain['tokens'] else 'OTHERS'} |"
    profile = result.get("profile")
    return text + (f" {profile['us']:.0f} us, {profile['kernels']} kernels |" if profile else "")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--levels", default="plain,*,op:*", help="the first must be plain")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seqs", type=int, default=32, help="512: all 51 sizes are captured")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--folder", default="build/serve")
    for name in ("engine", "engines"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    for name in ("turns", "result", "model"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine is not None:
        return run_engine(options)
    folder = pathlib.Path(options.folder).resolve()
    (folder / "model").mkdir(parents=True, exist_ok=True)
    config = CONFIG | {"num_hidden_layers": options.layers}
    (folder / "model" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    turns = folder / "turns"
    turns.mkdir(exist_ok=True)
    for one in turns.iterdir():
        one.unlink()
    levels = options.levels.split(",")
    started = [start(options, folder, index, levels) for index in range(len(levels))]
    waiting = collections.deque(started)
    while waiting:  # one that ended with an error leaves the others waiting for their turn
        own, process = waiting.popleft()
        if process.poll() is None:
            waiting.append((own, process))
            time.sleep(0.2)
        elif process.returncode != 0:
            for _, other in started:
                other.kill()
            sys.exit(f"{own.name} failed: see {own}/log")
    results = [json.loads((own / "result.json").read_text(encoding="utf-8")) for own, _ in started]
    print("| level | ready after | device | seconds | beside plain | tokens |")
    for level, result in zip(levels, results, strict=True):
        print(row(level, result, results[0]))
    for level, result in zip(levels, results, strict=True):
        if "status" in result:
            print(f"\n{level}:\n{result['status']}")
    return None


if __name__ == "__main__":
    main()
