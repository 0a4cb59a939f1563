"""Runs small programs by name, each in a process of its own that has imported torch already.

A script of programs ends with `serve(globals())`; a test drives it by `Programs`.
"""

import os
import subprocess
import sys


def serve(programs, ranks=1, eager=True):
    """Reads lines "NAME WATCH RUN", runs `run_NAME` watched as CGDEBUG_WATCH asks, as the run RUN, and
    answers with the exit code. With several ranks it runs as each of them, and they meet at the file
    RENDEZVOUS. eager: whether op logs have what runs eagerly; else they have captured graphs alone."""
    import torch

    torch.set_num_threads(1)
    for line in sys.stdin:
        name, watch, run = line.split()
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                os.environ |= {
                    "CGDEBUG_WATCH": watch,
                    "CGDEBUG_WATCH_EAGER": "1" if eager else "0",
                    "CGDEBUG_RUN_ID": run,
                }
                if ranks > 1:
                    os.environ |= {
                        "RANK": str(rank),
                        "WORLD_SIZE": str(ranks),
                        "RENDEZVOUS": os.path.abspath(f"{run}.ranks"),
                    }
                if name in programs.get("LOOKED_AT_AGAIN", ()):
                    os.environ["CGDEBUG_OP_LOG_READS"] = "1"
                import cgdebug  # noqa: F401  (it looks at the variables)

                torch.manual_seed(0)
                programs[f"run_{name}"]()
                return
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(max(codes, key=abs), flush=True)


class Programs:
    """`record(path, name, watch)` records a program of the script alone, whatever else runs here.
    Fails unless it exits with 0."""

    def __init__(self, script, folder):
        self._errors = folder / "errors"
        with self._errors.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env={name: one for name, one in os.environ.items() if name != "CGDEBUG_RUN_ID"},
            )

    def record(self, path, name, watch="op:*"):
        import cgdebug  # not at the top: the script looks at its variables first

        run = f"{name}-{path.parent.name}"
        with cgdebug.connect().record(path, run=run):
            self._run(name, watch, run)

    def _run(self, name, watch, run):
        self._process.stdin.write(f"{name} {watch} {run}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:  # the program may print as well
            if line.strip().lstrip("-").isdigit():
                assert line.strip() == "0", self._errors.read_text()
                return
        raise AssertionError(self._errors.read_text())

    def close(self):
        self._process.stdin.close()
        self._process.wait(timeout=60)
