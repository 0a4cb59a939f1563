"""Real programs, each alone and watched: the same exit code, the same output bit for bit, the same compiled code.

    python tests/field/matrix.py                     the short table, without the programs that take long
    python tests/field/matrix.py --whole             all programs at all levels
    python tests/field/matrix.py 'llama_*' -l '*'    what these globs name, at one level; -v shows what failed
    python tests/field/matrix.py --gpu '*inductor*'  on a GPU, where Inductor makes CUDA graphs (reduce-overhead)

A row is shown as soon as its program has run at each level.

Code that Inductor makes keeps tensors that are watched, so last bits may differ there at the levels "*" and "fx:*": the
table then says how far from eager code the outputs are, as part of the largest value, watched and alone.

On a GPU a program is watched when it has run alone: two processes that compile the same code at a time may choose unlike
kernels for it, alone too.

A cell is "same" only if everything was compared. What cannot run is "not run", with the reason. Exit code: 0 nothing
differs, 1 something does.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import importlib.util
import os
import pathlib
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import typing

FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="cgdebug-field-"))
os.environ.update(
    CGDEBUG_RUN_ID=f"field-{os.getpid()}",
    CGDEBUG_SOCKET=str(FOLDER / "daemon.sock"),
    OMP_NUM_THREADS="1",  # a child that is forked has no threads of its parent
    TOKENIZERS_PARALLELISM="false",
    TORCHINDUCTOR_CACHE_DIR=str(FOLDER / "inductor"),
    TORCHINDUCTOR_COMPILE_THREADS="1",
    TORCHINDUCTOR_DETERMINISTIC="1",  # else each process takes the kernels that it measures as fastest
    PYTORCH_NVML_BASED_CUDA_CHECK="1",  # a parent that asks the driver leaves none to its children
)
for name in ("CGDEBUG_WATCH", "CGDEBUG_WATCH_EAGER", "CGDEBUG_PROBES", "RANK", "WORLD_SIZE"):
    os.environ.pop(name, None)
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import features  # noqa: E402, F401
import frameworks  # noqa: E402, F401
import models  # noqa: E402, F401
import products  # noqa: E402, F401
import torch  # noqa: E402
from programs import PROGRAMS, Program, Run  # noqa: E402

# By the name in the table: CGDEBUG_WATCH, and whether an op log has what runs eagerly, too.
LEVELS = {
    "*": ("*", False),
    "op:*": ("op:*", True),
    "kernel:*": ("kernel:*", True),
    "graph:*": ("graph:*", False),
    "fx:*": ("fx:*", False),
}
QUICK_LEVELS = ("*", "op:*")
FUSES_LESS = ("*", "fx:*")  # the levels that change what Inductor fuses
DEADLINE_S = 600
NOISE = 4 * torch.finfo(torch.float32).eps
ZERO = 1e-3
# Imported once, before the children are forked.
PRELOADED = (
    *(
        "torch._dynamo",
        "torch._inductor.compile_fx",
        "torch.export",
        "torch.fx.experimental.proxy_tensor",
    ),
    *(
        "torch.ao.quantization.quantize_fx",
        "torch.distributed.fsdp",
        "torch.distributed.pipelining",
    ),
    *(
        f"transformers.models.{name}.modeling_{name}"
        for name in ("llama", "gpt2", "bert", "t5", "vit", "mixtral")
    ),
    *("transformers.trainer", "transformers.generation", "accelerate", "lightning"),
)


class Task(typing.NamedTuple):
    """One process: a program at a level, "" if it is alone; or who opens its files afterwards."""

    program: Program
    level: str
    reopens: bool = False
    on_gpu: bool = False

    @property
    def folder(self) -> pathlib.Path:
        return FOLDER / f"{self.program.name}-{[*LEVELS, ''].index(self.level)}"

    @property
    def key(self):
        return (self.program.name, self.level, self.reopens)

    def may_begin(self, results: dict) -> bool:
        return not self.on_gpu or not self.level or (self.program.name, "", False) in results


# --- in the child -------------------------------------------------------------------------------------------------


def run_child(task: Task) -> None:
    output = os.open(task.folder / f"output{task.reopens}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.setpgid(0, 0)
    is_watched = task.level in LEVELS
    if is_watched and not task.reopens:
        os.environ["CGDEBUG_WATCH"], eager = LEVELS[task.level]
        os.environ["CGDEBUG_WATCH_EAGER"] = "1" if eager else "0"
        import cgdebug  # noqa: F401  # as Python's start does in a job of `cgdebug-cli run --watch`
    elif task.reopens:
        sys.modules["cgdebug"] = None  # type: ignore[assignment]
    if task.on_gpu:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as torch asks for it
        torch.set_default_device("cuda")
        torch._inductor.config.deterministic = True  # else each process measures what to choose
    torch.manual_seed(0)
    if task.reopens:
        assert task.program.reopen is not None
        values = task.program.reopen(task.folder)
    else:
        run = Run(task.program.backend, task.folder, not is_watched, task.on_gpu)
        values = task.program.function(run)
    assert is_watched or "cgdebug._probe" not in sys.modules, "a program alone has no probe"
    counters = torch._dynamo.utils.counters
    found = {
        "values": [*flat(values)],
        "frames": dict(counters["frames"]).get("ok", 0),
        "graphs": counters["stats"].get("unique_graphs", 0),
        "breaks": sorted(
            (without_addresses(text), n) for text, n in counters["graph_break"].items()
        ),
        "skipped CUDA graphs": counters["inductor"]["cudagraph_skips"],
    }
    with open(task.folder / f"found{task.reopens}", "wb") as file:
        pickle.dump(found, file)


def without_addresses(text: str) -> str:
    """Each process has other ones."""
    return re.sub("0x[0-9a-f]+", "0x", text)


def flat(value):
    """The values in it, as what is equal only if they are equal bit for bit."""
    if isinstance(value, torch.Tensor):
        plain = value.detach()
        plain = plain.dequantize() if plain.is_quantized else plain
        plain = plain.contiguous().flatten().cpu()
        yield str(value.dtype), tuple(value.shape), plain.view(torch.uint8).numpy().tobytes()
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from flat(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from flat(item)
    elif hasattr(value, "get_seq_length"):  # a cache of keys and values
        yield int(value.get_seq_length())
    elif value is None or isinstance(value, (str, int, float, bool)):
        yield value
    else:
        raise TypeError(f"a program returned a {type(value).__name__}")


# --- running ------------------------------------------------------------------------------------------------------


class Result(typing.NamedTuple):
    code: int  # what the shell would say
    seconds: float
    found: dict | None  # of a child that ended well
    output: str

    def problem(self) -> str:
        lines = [line for line in self.output.splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line.split(":")[0]] or lines or [""]
        return f"exit code {self.code}: {errors[-1].strip()[:150]}"


def run_all(tasks: list[Task], jobs: int, told) -> dict:
    results: dict = {}
    running: dict[int, tuple[Task, float]] = {}
    waiting = list(tasks)
    while waiting or running:
        while len(running) < jobs:
            task = next((one for one in waiting if one.may_begin(results)), None)
            if task is None:
                break
            waiting.remove(task)
            task.folder.mkdir(exist_ok=True)
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                leave(task)
            running[pid] = (task, time.monotonic())
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            time.sleep(0.02)
            for pid, (_, start) in running.items():
                if time.monotonic() - start > DEADLINE_S:
                    os.kill(pid, signal.SIGKILL)
            continue
        if pid not in running:
            continue
        task, start = running.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        code = 128 - code if code < 0 else code
        results[task.key] = read_result(task, code, time.monotonic() - start)
        if code == 0 and task.program.reopen and not task.reopens:
            waiting.insert(0, task._replace(reopens=True))
        else:
            shutil.rmtree(task.folder, ignore_errors=True)
            told(task, results)
    return results


def leave(task: Task) -> typing.NoReturn:
    """The child ends as a program does: with what runs at exit."""
    try:
        run_child(task)
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    sys.exit(0)


def read_result(task: Task, code: int, seconds: float) -> Result:
    output = (task.folder / f"output{task.reopens}").read_text(errors="replace")
    path = task.folder / f"found{task.reopens}"
    found = pickle.loads(path.read_bytes()) if code == 0 and path.exists() else None
    return Result(code, seconds, found, output)


# --- comparing ----------------------------------------------------------------------------------------------------


def judge(program: Program, level: str, results: dict) -> tuple[str, str]:
    """(state, text) of a cell; the state is "same", "differs" or "not run"."""
    alone, watched = results[program.name, "", False], results[program.name, level, False]
    if alone.found is None:
        return "not run", f"not run: alone it ends with {alone.problem()}"
    if watched.found is None:
        return "differs", watched.problem()
    text = "same"
    for what in ("frames", "graphs", "breaks", "skipped CUDA graphs"):
        if watched.found[what] != alone.found[what]:
            text = f"{what} {alone.found[what]} -> {watched.found[what]}"
            return "differs", text if len(text) < 300 else f"{text[:300]}..."
    if watched.found["values"] != alone.found["values"]:
        eager = results.get((name_in_eager(program), "", False))
        if (
            program.backend != "inductor"
            or level not in FUSES_LESS
            or eager is None
            or eager.found is None
        ):
            return "differs", "other values: " + first_difference(
                alone.found["values"], watched.found["values"]
            )
        distances = [
            distance(eager.found["values"], one.found["values"]) for one in (watched, alone)
        ]
        text = "{:.1e} from eager, alone {:.1e}".format(*distances)
        if distances[0] > max(distances[1], NOISE):
            return "differs", text
    if program.reopen:
        files = [results.get((program.name, one, True)) for one in ("", level)]
        if files[0] is None or files[0].found is None:
            return "not run", "not run: the files of the program alone cannot be opened"
        if files[1] is None or files[1].found is None:
            return (
                "differs",
                f"its files, without cgdebug: {files[1].problem() if files[1] else 'not opened'}",
            )
        if files[0].found["values"] != files[1].found["values"]:
            return "differs", "its files have other values"
    return "same", text


def first_difference(a: list, b: list) -> str:
    if len(a) != len(b):
        return f"{len(a)} -> {len(b)} of them"
    index, (x, y) = next((i, pair) for i, pair in enumerate(zip(a, b)) if pair[0] != pair[1])
    if isinstance(x, tuple):
        return f"tensor {index}, {x[1]}: {distance([x], [y]):.1e} of its largest value"
    return f"value {index}: {x!r} -> {y!r}"[:150]


def distance(a: list, b: list) -> float:
    """The largest difference of two tensors in the same place, as part of the largest value of the first, or of
    `ZERO` of the largest value of all: a tensor below that is zero but for rounding."""
    if len(a) != len(b):
        return float("inf")
    pairs = []
    for x, y in zip(a, b):
        if not isinstance(x, tuple) or x[:2] != y[:2] or not x[2]:
            continue
        dtype = getattr(torch, x[0].removeprefix("torch."))
        if dtype.is_floating_point:
            pairs.append(
                [torch.frombuffer(bytearray(one[2]), dtype=dtype).double() for one in (x, y)]
            )
    largest = [left.abs().max().item() for left, _ in pairs]
    least = ZERO * max(largest, default=0.0) or 1.0
    return max(
        (
            (left - right).abs().max().item() / max(most, least)
            for (left, right), most in zip(pairs, largest)
        ),
        default=0.0,
    )


# --- the table ----------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="*", help="globs; without one, all")
    parser.add_argument("--whole", action="store_true", help="all programs at all levels")
    parser.add_argument("-l", "--level", action="append", choices=LEVELS)
    parser.add_argument("-j", "--jobs", type=int, default=min(os.cpu_count() or 1, 8))
    parser.add_argument("--gpu", action="store_true", help="all tensors on the GPU")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="shows what children that failed wrote"
    )
    options = parser.parse_args()
    levels = options.level or (list(LEVELS) if options.whole else list(QUICK_LEVELS))
    chosen, missing = choose(options)
    if not chosen and not missing:
        parser.error(f"no program is called {' or '.join(options.programs)}")
    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # its programs are not run
    start = time.monotonic()
    daemon = subprocess.Popen(
        ["cgdebug-daemon", "--foreground", "--socket", os.environ["CGDEBUG_SOCKET"]],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        tasks = tasks_of(chosen, levels, options.gpu)
        table = Table(chosen, missing, levels, tasks)
        results = run_all(tasks, options.jobs, table.ended)
    finally:
        daemon.terminate()
        daemon.wait()
    states = table.states
    for key, result in results.items() if options.verbose else ():
        if result.code:
            print(f"--- {key[0]} {key[1] or 'alone'}\n{result.output}")
    total = f"{states.count('same')} same, {states.count('differs')} differ, {states.count('not run')} not run"
    print(
        f"{total}; {len(chosen)} programs, torch {torch.__version__}, {time.monotonic() - start:.0f} s"
    )
    return int("differs" in states)


def choose(options) -> tuple[list[Program], dict[str, str]]:
    """The programs to run; and those that cannot be, with the reason."""
    chosen, missing = [], {}
    for program in PROGRAMS.values():
        if options.programs:
            wanted = any(fnmatch.fnmatchcase(program.name, one) for one in options.programs)
        else:
            wanted = options.whole or program.is_quick
        absent = [package for package in program.needs if importlib.util.find_spec(package) is None]
        if wanted and absent:
            missing[program.name] = f"not run: no {' and '.join(absent)} here"
        elif wanted:
            chosen.append(program)
    return chosen, missing


def tasks_of(chosen: list[Program], levels: list[str], on_gpu: bool) -> list[Task]:
    tasks = []
    for program in chosen:
        tasks += [Task(program, level, on_gpu=on_gpu) for level in ("", *levels)]
        if program.backend == "inductor" and set(levels) & set(FUSES_LESS):
            eager = Program(name_in_eager(program), program.function, "eager", (), False, None)
            tasks.append(Task(eager, "", on_gpu=on_gpu))
    return tasks


def name_in_eager(program: Program) -> str:
    return f"{program.name} in eager code"


class Table:
    """Shows the row of a program when the last of its tasks has ended. `states`: of all cells so far."""

    def __init__(self, chosen, missing, levels, tasks):
        self.states: list[str] = []
        self._levels = levels
        self._programs = {program.name: program for program in chosen}
        self._program_of = {name_in_eager(program): program.name for program in chosen}
        self._open: dict[str, int] = {}
        for task in tasks:
            name = self._name_of(task)
            self._open[name] = self._open.get(name, 0) + 1
        self._width = max(map(len, [*self._programs, *missing, "program"]))
        self._show("program", "alone", "code", levels)
        for name, why in missing.items():
            self.states += ["not run"] * len(levels)
            self._show(name, "", "", [why] * len(levels))

    def _name_of(self, task: Task) -> str:
        return self._program_of.get(task.program.name, task.program.name)

    def ended(self, task: Task, results: dict) -> None:
        name = self._name_of(task)
        self._open[name] -= 1
        if self._open[name]:
            return
        program, alone = self._programs[name], results[name, "", False]
        code = f"{alone.found['frames']} frames" if alone.found and alone.found["frames"] else ""
        cells = [judge(program, level, results) for level in self._levels]
        self.states += [state for state, _ in cells]
        self._show(name, f"{alone.seconds:.1f} s", code, [text for _, text in cells])

    def _show(self, name: str, seconds: str, code: str, texts: list[str]) -> None:
        if len(texts) > 1 and len(set(texts)) == 1:
            texts = [f"all {texts[0]}"]
        cells = [name.ljust(self._width), seconds.rjust(8), code.ljust(9)]
        print("  ".join([*cells, " | ".join(texts)]), flush=True)


if __name__ == "__main__":
    code = main()
    shutil.rmtree(FOLDER, ignore_errors=True)
    sys.exit(code)
