"""Where `cgdebug-cli ask` asks a job: a Unix socket beside the daemon's, "ask-PID.sock".

A thread waits there, and costs the job nothing. It hands a question to its graph; the job answers
it on its own thread, in front of the graph's next replay.

A question is one line of JSON. The answer begins with the line "EXIT TEXT JSON", which is what to
exit with and the bytes of the two parts that follow.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import struct
import threading
import typing
import weakref

from .._job._fail_soft import guard, reason_of
from .._shared._reader import recording_module
from . import answer_text

if typing.TYPE_CHECKING:
    from .kept_graph import Answer

OK, FOUND, TROUBLE, INCONCLUSIVE, NO_MATCH, TIMEOUT = range(6)  # client/cli/exit_codes.h
_MOST_QUESTION_BYTES = 1 << 20
_MOST_ANSWER_S = 600.0  # once the job has begun to answer
_SENDS_FOR_S = 10.0

_lock = threading.RLock()
_graphs: weakref.WeakSet[Asked] = weakref.WeakSet()
_listener: socket.socket | None = None


class Asked(typing.Protocol):
    """A graph that takes questions, and says what it cannot do.

    why_not_apart: as a sentence; empty: it can be run op by op
    opaque:        what of it cannot, as a sentence; empty: nothing"""

    capture: int
    label: str
    replays: int
    replayed_at: float
    why_not_apart: str
    opaque: str

    @property
    def name(self) -> str: ...
    def ask(self, question: Question) -> bool: ...
    def withdraw(self, question: Question) -> bool: ...
    def state_text(self) -> str: ...
    def frozen_at(self) -> int: ...
    def go_on(self) -> bool: ...
    def kept_bytes(self) -> int: ...


class Question:
    """replay: None, the next one; negative: counted from the last one
    values: whether copies of the rows are wanted
    repro:  whether copies of what their ops were given are, too
    slowest: so many ops are listed that take longest"""

    def __init__(
        self,
        replay: int | None,
        rows: list[str],
        values: bool,
        repro: bool = False,
        slowest: int = 0,
    ):
        self.replay, self.rows, self.values, self.repro = replay, rows, values, repro
        self.slowest = slowest
        self.result: Answer | None = None
        self.reason = ""
        self.is_other = False  # the replay that was run again is not the same one
        self._is_answered = threading.Event()

    def wants(self, name: str) -> bool:
        return not self.rows or recording_module().is_selected(name, ",".join(self.rows))

    def answer(self, make: typing.Callable[[], Answer]) -> None:
        from .past_replay import NotReproduced

        try:
            self.done(make())
        except NotReproduced as error:
            self.is_other = True
            self.refuse(str(error))
        except Exception as error:
            self.refuse(reason_of(error))

    def done(self, result: Answer) -> None:
        self.result = result
        self._is_answered.set()

    def refuse(self, reason: str) -> None:
        self.reason = reason
        self._is_answered.set()

    def wait(self, most_s: float) -> bool:
        return self._is_answered.wait(most_s)


def join(graph: Asked) -> None:
    """From here on it can be asked. Thread: any."""
    with _lock:
        _graphs.add(graph)
        if _listener is None:
            with guard("questions about replays"):
                _listen()


def leave(graph: Asked) -> None:
    with _lock:
        _graphs.discard(graph)


def path_of(pid: int) -> pathlib.Path:
    from .._wire import socket_path

    return pathlib.Path(socket_path(None)).parent / f"ask-{pid}.sock"


def _listen() -> None:
    """Requires: _lock."""
    global _listener
    path = path_of(os.getpid())
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()  # of a process that had this number before
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)  # before anybody can connect
    listener.listen(4)
    _listener = listener
    threading.Thread(target=_serve, args=(listener,), name="cgdebug-ask", daemon=True).start()
    weakref.finalize(_graphs, path.unlink, missing_ok=True)  # at exit


def _forget_listener() -> None:
    """In a child process, which has no thread for it."""
    global _listener, _lock
    _lock = threading.RLock()
    if _listener is not None:
        _listener.close()
    _listener = None
    _graphs.clear()


os.register_at_fork(after_in_child=_forget_listener)


def _serve(listener: socket.socket) -> None:
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        with contextlib.suppress(OSError, ValueError), peer:
            _, uid, _ = struct.unpack(
                "iII", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            )
            if uid not in (os.getuid(), 0):
                continue
            peer.settimeout(_SENDS_FOR_S)
            asked = _read_line(peer)
            code, text, answer = _answer(asked)
            body, data = text.encode(), json.dumps(answer).encode()
            peer.sendall(f"{code} {len(body)} {len(data)}\n".encode() + body + data)


def _read_line(peer: socket.socket) -> dict[str, typing.Any]:
    """Fails: ValueError, OSError."""
    line = b""
    while not line.endswith(b"\n"):
        part = peer.recv(1 << 16)
        if not part or len(line) > _MOST_QUESTION_BYTES:
            raise ValueError("no question")
        line += part
    return json.loads(line)


def _answer(asked: dict[str, typing.Any]) -> tuple[int, str, dict[str, typing.Any]]:
    try:
        return _answer_one(asked)
    except Exception as error:  # who asks is told
        text = f"the job could not answer: {type(error).__name__}: {error}"
        return TROUBLE, text, {"error": text}


def _answer_one(asked: dict[str, typing.Any]) -> tuple[int, str, dict[str, typing.Any]]:
    if asked.get("list"):
        return _list()
    if asked.get("go_on"):
        return _go_on()
    wanted, most_s = str(asked.get("graph", "")), float(asked.get("timeout_s", 30))
    graph, problem = _choose(wanted)
    if graph is None:
        return NO_MATCH, problem, {"error": problem}
    values, repro = str(asked.get("values", "")), str(asked.get("repro", ""))
    question = Question(
        asked.get("replay"),
        list(asked.get("rows", ())),
        bool(values or repro),
        bool(repro),
        int(asked.get("slowest", 0)),
    )
    if not graph.ask(question):
        text = f"graph {graph.name} is being asked already. Type the same again"
        return TROUBLE, text, {"error": text}
    if not question.wait(most_s) and graph.withdraw(question):
        text = (
            f"graph {graph.name} was not replayed within {most_s:.0f} s, and a job answers when it "
            f"replays. Its state: {graph.state_text()}"
        )
        return TIMEOUT, text, {"error": text}
    if not question.wait(_MOST_ANSWER_S):
        text = f"graph {graph.name} has not answered for {_MOST_ANSWER_S:.0f} s"
        return TIMEOUT, text, {"error": text}
    if question.result is None:
        reason = "not_reproduced" if question.is_other else "no_answer"
        text = f"{reason.replace('_', ' ')}: {question.reason}"
        json = {"verdict": "inconclusive", "reason": reason, "graph": graph.name, "error": text}
        return INCONCLUSIVE, text, json
    has_hashes = bool(asked.get("hashes"))
    if repro:
        return answer_text.of_repro(question, question.result, repro, has_hashes)
    trace = str(asked.get("perfetto", ""))
    return answer_text.of(question, question.result, values, has_hashes, trace)


def _list() -> tuple[int, str, dict[str, typing.Any]]:
    known = states()
    lines = []
    for one in known:
        line = f"graph {one['graph']}: {one['replays']} replays; {one['kept']}"
        if one["why_not_apart"] and one["why_not_apart"] != one["kept"]:
            line += f"; it cannot be taken apart: {one['why_not_apart']}"
        if one["opaque"] and one["opaque"] != one["kept"]:
            line += f"; {one['opaque']}"
        lines.append(line)
    if any(one["frozen_at"] for one in known):
        lines.append(f"to keep replays again, type: cgdebug-cli ask {os.getpid()} --go-on")
    return OK, "\n".join(lines) or "no graph was captured", {"graphs": known}


def _go_on() -> tuple[int, str, dict[str, typing.Any]]:
    with _lock:
        graphs = list(_graphs)
    gone_on = sum(one.go_on() for one in graphs) > 0  # all of them
    text = "replays are kept again" if gone_on else "nothing has ended that replays are kept"
    return OK, text, {"go_on": gone_on}


def _choose(wanted: str) -> tuple[Asked | None, str]:
    with _lock:
        graphs = sorted(_graphs, key=lambda one: one.replayed_at)
    if wanted:
        graphs = [one for one in graphs if wanted in (one.label, str(one.capture))]
    if graphs:
        return graphs[-1], ""
    with _lock:
        known = sorted({one.name for one in _graphs})
    return None, f"no graph {wanted!r} in this process; there is: {', '.join(known) or 'none'}"


def states() -> list[dict[str, typing.Any]]:
    """What is kept, by graph, and whether it can be taken apart."""
    with _lock:
        graphs = list(_graphs)
    return [
        {
            "graph": one.name,
            "capture": one.capture,
            "replays": one.replays,
            "kept": one.state_text(),
            "bytes": one.kept_bytes(),
            "frozen_at": one.frozen_at(),
            "why_not_apart": one.why_not_apart,  # empty: it can be
            "opaque": one.opaque,
        }
        for one in sorted(graphs, key=lambda one: one.capture)
    ]
