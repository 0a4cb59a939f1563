"""Recordings in other formats.

    r.export("safetensors", "out/")                  one file per replay, every dtype as it is
    r.export("npz", "out/", upcast="float32")        NumPy; bfloat16 and float8 as float32
    r.export("csv", "stats.csv", "blk3.*")           statistics, one row per snapshot

``python3 -m cgdebug.export`` is what ``cgdebug-cli export`` runs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys

from ._read._export import WRITERS, export, export_work
from ._remote import hidden
from ._shared._progress import Progress
from ._shared._replays import MAX_REPLAY
from .errors import NothingMatchedError, RecordingError
from .recording import Recording

__all__ = ["export"]

_INCONCLUSIVE = 3
_CLOSED_PIPE = 141  # as a shell has it: 128 and SIGPIPE
_INTERRUPTED = 130


def _parse_range(text: str) -> tuple[int, int]:
    first, dots, last = text.partition("..")
    try:
        low = int(first)
        high = int(last) if last else (MAX_REPLAY if dots else low)
    except ValueError:
        low = high = 0
    if not 1 <= low <= high:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of replays such as 100..200")
    return low, high


def _parse_shape(text: str) -> tuple[int, ...]:
    """The text of `cgdebug-cli --shape`, which has checked it."""
    return tuple(int(size) for size in re.findall(r"\d+", text))


def _print_json(answer: dict) -> None:
    print(json.dumps({"schema": 1, **answer}, indent=2))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cgdebug-cli export", description=__doc__.split("\n")[0])
    parser.add_argument("source")
    parser.add_argument("--to", required=True, choices=list(WRITERS), dest="format")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--probes", action="append", default=[])
    parser.add_argument("--replays", type=_parse_range)
    parser.add_argument("--graph")
    parser.add_argument("--shape", type=_parse_shape)
    parser.add_argument("--ranks")
    parser.add_argument("--upcast", choices=["float32"])
    parser.add_argument("--trace")
    parser.add_argument("-f", "--force", action="store_true")
    parser.add_argument("-q", "--quiet", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        rank = int(options.ranks) if options.ranks else None
    except ValueError:
        print("cgdebug: export takes one rank: --ranks 0", file=sys.stderr)
        return 2
    is_json = options.json and options.output != "-"
    what = f"export {hidden(options.source)} --to {options.format} -o {options.output}"
    try:
        with Progress(what) as progress:
            recording = Recording(options.source, rank=rank)
            work = export_work(
                recording,
                options.format,
                options.output,
                options.probes,
                options.replays,
                options.upcast,
                options.force,
                options.graph,
                options.shape,
                options.trace,
                progress,
            )
    except KeyboardInterrupt:
        if os.path.isdir(options.output):
            print(f"cgdebug: stopped; {options.output} has a part of it", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # Silent, like every command. The rest of the buffer must go somewhere at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CLOSED_PIPE
    except (RecordingError, ImportError, ValueError, OSError) as error:
        print(f"cgdebug: {error}", file=sys.stderr)
        code = 4 if isinstance(error, NothingMatchedError) else 2
        if is_json:
            _print_json({"error": str(error), "exit_code": code})
        return code
    if is_json:
        answer = {"output": options.output, "format": options.format, "remarks": work.remarks}
        _print_json({**answer, "complete": not work.lacks_some})
        return _INCONCLUSIVE if work.lacks_some else 0
    for remark in work.remarks:
        print(f"cgdebug: {remark}", file=sys.stderr)
    if not options.quiet and options.output != "-":
        print(f"cgdebug: written to {options.output}", file=sys.stderr)
    return _INCONCLUSIVE if work.lacks_some else 0


if __name__ == "__main__":
    sys.exit(main())
