"""`python -m cgdebug ...` is `cgdebug-cli ...` of this environment."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import sysconfig


def find_program() -> str | None:
    """cgdebug-cli in the build tree this package lies in, beside this interpreter, or on PATH."""
    package = pathlib.Path(__file__).parent
    for folder in (package.parents[1] / "bin", sysconfig.get_path("scripts")):
        program = pathlib.Path(folder) / "cgdebug-cli"
        if os.access(program, os.X_OK):
            return str(program)
    return shutil.which("cgdebug-cli")


def main() -> None:
    program = find_program()
    if program is None:
        sys.exit(
            "cgdebug: cgdebug-cli is neither beside this Python nor on PATH. Type: pip install ."
        )
    os.environ["CGDEBUG_PREFIX"] = str(pathlib.Path(__file__).parent)
    os.execv(program, ["cgdebug-cli", *sys.argv[1:]])


if __name__ == "__main__":
    main()
