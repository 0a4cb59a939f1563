"""Real programs, each alone and watched: the same exit code, the same output bit for bit, the same compiled code.

    python tests/field/matrix.py                     the short table, without the programs that take long
    python tests/field/matrix.py --whole             all programs at all levels
    python tests/field/matrix.py 'llama_*' -l '*'    what these globs name, at one level; -v shows what failed

Code that Inductor makes keeps tensors that are watched, so last bits may differ there at the levels "*" and "fx:*": the
table then says how far from eager code the outputs are, as part of the largest value, watched and alone.

A cell is "same" only if everything was compared. What cannot run is "not run", with the reason. Exit code: 0 nothing
differs, 1 something does.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import importlib.util
import itertools
import os
import pathlib
import pickle
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
)
for name in ("CGDEBUG_WATCH", "CGDEBUG_WATCH_EAGER", "CGDEBUG_PROBES", "RANK", "WORLD_SIZE"):
    os.environ.pop(name, None)
sys.path.insert(0, str(pathlib.Path(__file__).parent))

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

    @property
    def folder(self) -> pathlib.Path:
        return FOLDER / f"{self.program.name}-{[*LEVELS, ''].index(self.level)}"

    @property
    def key(self):
        return (self.program.name, self.level, self.reopens)


# --- in the child -------------------------------------------------------------------------------------------------


def run_child(task: Task) -> None:
    output = os.open(task.folder / f"output{task.reopens}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.setpgid(0, 0)
    if task.level and not task.reopens:
        os.environ["CGDEBUG_WATCH"], eager = LEVELS[task.level]
        os.environ["CGDEBUG_WATCH_EAGER"] = "1" if eager else "0"
        import cgdebug  # noqa: F401  # as Python's start does in a job of `cgdebug-cli run --watch`
    elif task.reopens:
        sys.modules["cgdebug"] = None  # type: ignore[assignment]
    torch.manual_seed(0)
    if task.reopens:
        assert task.program.reopen is not None
        values = task.program.reopen(task.folder)
    else:
        values = task.program.function(Run(task.program.backend, task.folder, not task.level))
    assert task.level or "cgdebug._probe" not in sys.modules, "a program alone has no probe"
    counters = torch._dynamo.utils.counters
    found = {
        "values": [*flat(values)],
        "frames": dict(counters["frames"]).get("ok", 0),
        "graphs": counters["stats"].get("unique_graphs", 0),
        "breaks": sorted(counters["graph_break"].items()),
    }
    with open(task.folder / f"found{task.reopens}", "wb") as file:
        pickle.dump(found, file)


def flat(value):
    """The values in it, as what is equal only if they are equal bit for bit."""
    if isinstance(value, torch.Tensor):
        plain = value.detach()
        plain = plain.dequantize() if plain.is_quantized else plain
        plain = plain.contiguous().flatten()
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
        while waiting and len(running) < jobs:
            task = waiting.pop(0)
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
            told(task)
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
    for what in ("frames", "graphs", "breaks"):
        if watched.found[what] != alone.found[what]:
            return "differs", f"{what} {alone.found[what]} -> {watched.found[what]}"
    if watched.found["values"] != alone.found["values"]:
        eager = results.get((f"{program.name} in eager code", "", False))
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
    """The largest difference of two tensors in the same place, as part of the largest value of the first."""
    if len(a) != len(b):
        return float("inf")
    found = 0.0
    for x, y in zip(a, b):
        if not isinstance(x, tuple) or x[:2] != y[:2] or not x[2]:
            continue
        dtype = getattr(torch, x[0].removeprefix("torch."))
        if not dtype.is_floating_point:
            continue
        left, right = (torch.frombuffer(bytearray(one[2]), dtype=dtype).double() for one in (x, y))
        largest = left.abs().max().item() or 1.0
        found = max(found, (left - right).abs().max().item() / largest)
    return found


# --- the table ----------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="*", help="globs; without one, all")
    parser.add_argument("--whole", action="store_true", help="all programs at all levels")
    parser.add_argument("-l", "--level", action="append", choices=LEVELS)
    parser.add_argument("-j", "--jobs", type=int, default=min(os.cpu_count() or 1, 8))
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
        results = run_all(tasks_of(chosen, levels), options.jobs, progress)
    finally:
        daemon.terminate()
        daemon.wait()
    states = show(chosen, missing, levels, results, options.verbose)
    total = f"{states.count('same')} same, {states.count('differs')} differ, {states.count('not run')} not run"
    print(
        f"{total}; {len(chosen)} programs, torch {torch.__version__}, {time.monotonic() - start:.0f} s"
    )
    return int("differs" in states)


def progress(task: Task) -> None:
    if sys.stdout.isatty():
        print(f"\r{task.program.name} {task.level or 'alone'}\033[K", end="")


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


def tasks_of(chosen: list[Program], levels: list[str]) -> list[Task]:
    tasks = []
    for program in chosen:
        tasks += [Task(program, level) for level in ("", *levels)]
        if program.backend == "inductor" and set(levels) & set(FUSES_LESS):
            eager = Program(
                f"{program.name} in eager code", program.function, "eager", (), False, None
            )
            tasks.append(Task(eager, ""))
    return tasks


def show(chosen, missing, levels, results, verbose) -> list[str]:
    print(end="\r\033[K" if sys.stdout.isatty() else "")
    rows, states = [["program", "alone", "code", *levels]], []
    for program in chosen:
        alone = results[program.name, "", False]
        code = f"{alone.found['frames']} frames" if alone.found and alone.found["frames"] else ""
        row = [program.name, f"{alone.seconds:.1f} s", code]
        for level in levels:
            state, text = judge(program, level, results)
            states.append(state)
            row.append(text)
        rows.append(row)
    for name, why in missing.items():
        rows.append([name, "", "", *itertools.repeat(why, len(levels))])
        states += ["not run"] * len(levels)
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths)]
        texts = row[3:] if len(set(row[3:])) > 1 else [f"all {row[3]}" if len(row) > 4 else row[3]]
        print("  ".join([*cells, " | ".join(texts)]))
    for key, result in results.items() if verbose else ():
        if result.code:
            print(f"--- {key[0]} {key[1] or 'alone'}\n{result.output}")
    return states


if __name__ == "__main__":
    code = main()
    shutil.rmtree(FOLDER, ignore_errors=True)
    sys.exit(code)
