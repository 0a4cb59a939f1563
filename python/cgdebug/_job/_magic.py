"""In a notebook: %load_ext cgdebug, then %%cgdebug at the top of a cell."""

from __future__ import annotations

import argparse
import shlex
import typing


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        from IPython.core.error import UsageError

        raise UsageError(f"%%cgdebug: {message}. {self.format_usage().strip()}")


def _parser() -> _Parser:
    parser = _Parser(prog="%%cgdebug", add_help=False)
    parser.add_argument("--level", choices=("op", "kernel"), default="op")
    parser.add_argument("name", nargs="?", help="of a variable that gets the log")
    return parser


def load(ipython) -> None:
    ipython.register_magic_function(_cell_magic(ipython), "cell", "cgdebug")


def _cell_magic(ipython):
    def cgdebug(line: str, cell: str):
        """%%cgdebug [--level op|kernel] [NAME]

        Runs the cell, logs every op that it runs on this thread, in eager code and in what it
        captures, and shows the log from its first NaN or Inf. NAME: a variable that gets the log.
        """
        from ..op_log import debug_mode

        asked = _parser().parse_args(shlex.split(line))
        mode = debug_mode(level=asked.level, eager=True)
        result = (
            ipython.displayhook.exec_result
        )  # of the cell with the magic; the next line takes it
        with mode:
            ipython.run_cell(cell)  # which shows its own error
        ipython.displayhook.exec_result = result
        try:
            log = mode.log()
        except IndexError:
            log = None
        if log is None or not log.rows and not log.gaps:
            print("cgdebug: the cell ran no op on tensors")
            return None
        if asked.name:
            ipython.user_ns[asked.name] = log
        return log

    return cgdebug
