"""A captured graph that can be asked about."""

from __future__ import annotations

import contextlib
import threading
import time
import typing

import torch
from torch.utils._mode_utils import no_dispatch

from .._job import _apart, _native
from .._job._fail_soft import guard, reason_of, tell
from .._op_log.node_map import known_parameters
from . import caches, hidden, mailbox, ring_of, takes_questions
from .memory import Spans
from .past_replay import Refused, SecondRun, number_of, put_aside
from .recorder import Recorder
from .stepping import Stepping
from .steps import opaque_text
from .touched import Touched, listed, plain_nodes

if typing.TYPE_CHECKING:
    from .._op_log.node_map import NodeMap
    from .mailbox import Question
    from .ring import Ring
    from .stepping import Stepped


_NOTHING = contextlib.nullcontext()


class Answer(typing.NamedTuple):
    """capture: of the graph; replay: which one; verified: by what, as a sentence
    opaque: what of it was launched as one, as a sentence; empty: nothing"""

    graph: str
    capture: int
    replay: int
    stepped: Stepped
    verified: str
    seconds: float
    opaque: str = ""


class KeptGraph:
    """One torch.cuda.CUDAGraph. Thread: one at a time, as torch's own; mailbox.py asks from another
    one."""

    def __init__(self, graph):
        self._raw = _apart.plain(type(graph).raw_cuda_graph)
        self._exec = _apart.plain(type(graph).raw_cuda_graph_exec)
        self._lock = threading.RLock()
        self._question: Question | None = None
        self.forget()

    def forget(self) -> None:
        question = self._take_question()
        if question is not None:
            question.refuse("the graph is gone")
        mailbox.leave(self)
        self.capture = 0
        self.label = ""
        self.replays = 0
        self.replayed_at = 0.0
        self._device = 0
        self._map: NodeMap | None = None
        self._touched: Touched | None = None
        self._pieces: typing.Any = None
        self._recorder: Recorder | None = None
        self._caches: list[caches.Cache] = []  # it writes a part of them
        self.why_not_apart = ""  # as a sentence
        self.opaque = ""  # what of it is launched as one, as a sentence
        self._why_not = ""  # nothing is kept
        self._has_begun = False

    # --- of the job

    def captured(self, graph, capture) -> None:
        """capture: _apart's, which has ended."""
        self.forget()
        graph.instantiate()  # as torch does where it does not keep the graph
        if not takes_questions(capture.label):
            return
        self._map, self.capture, self._device = capture.map, capture.number, capture.device
        self.label = capture.label
        if self.capture:
            try:
                self._look_at_nodes(graph)
            except Exception as error:
                self.why_not_apart = reason_of(error)
            mailbox.join(self)

    def _look_at_nodes(self, graph) -> None:
        if self._map is None:
            self.why_not_apart = "its ops could not be followed while it was captured"
        else:
            self.opaque = opaque_text(_native.load().node_kinds(self._raw(graph)), self._map)

    @property
    def name(self) -> str:
        return self.label or str(self.capture)

    def replay(self, graph, torch_replay) -> None:
        if not self.capture or torch.cuda.is_current_stream_capturing():
            return torch_replay(graph)
        question = self._take_question()
        past = question if question is not None and question.replay is not None else None
        if past is not None or not self._has_begun:
            with guard("what is kept of replays"), _unseen():
                if not self._has_begun:
                    self._begin(graph)
                if past is not None:
                    question = None
                    past.answer(lambda: self._past(graph, torch_replay, past))
        self.replays += 1
        if self._recorder is not None:
            with guard("what is kept of replays"), _unseen(makes_tensors=False):
                self._recorder.before(self.replays)
        if question is None:
            torch_replay(graph)
        else:
            self._next(graph, torch_replay, question)
        self.replayed_at = time.monotonic()
        if self._recorder is not None:
            with guard("what is kept of replays"), _unseen(makes_tensors=False):
                self._recorder.after(self.replays)

    def _begin(self, graph) -> None:
        """In front of the first replay."""
        self._has_begun = True
        ring = ring_of(self.label, self._device)
        self._why_not = self._why_not_kept(graph, ring)
        if self._why_not and ring is not None and not ring.is_of_several:  # somebody asked for it
            tell(f"replays of graph {self.name}", self._why_not)

    def _why_not_kept(self, graph, ring: Ring | None) -> str:
        """As a sentence. Empty: it has a recorder from here on."""
        if self._map is None:
            return self.why_not_apart
        if ring is None:
            self._touched = Touched(self._map, self._device)
            return "nothing is kept. Type: cgdebug-cli run --rewind 64 -- COMMAND"
        try:
            touched = self._touched = self._look_at(graph, self._map)
            nodes = self._take_apart(graph).nodes
            waits = next((one["name"] for one in nodes if "nccl" in one["name"].lower()), "")
            if touched.collective or waits:
                return (
                    f"it has a collective, {touched.collective or waits}: a rank that ran it "
                    f"again alone would wait for the others for ever"
                )
            if self.why_not_apart or self.opaque:
                return self.why_not_apart or self.opaque
            if touched.unknown:
                return "what it reads and writes is not known: " + listed(touched.unknown)
            self._recorder = Recorder(
                touched,
                self._generators(graph) if touched.is_random else [],
                self._device,
                graph.pool(),
                ring,
                self.capture,
                self.name,
            )
        except torch.OutOfMemoryError:
            return "the device has no memory for copies"
        except Exception as error:
            return reason_of(error)
        return ""

    def _look_at(self, graph, node_map: NodeMap) -> Touched:
        """What it touches, but for the caches of an engine, which are in _caches then."""
        touched = Touched(node_map, self._device)
        found = hidden.look(node_map, self._take_apart(graph), graph.pool(), self._device)
        touched.add_hidden(found.spans, found.unknown, Spans(known_parameters(self._device)))
        touches = Spans([*touched.inputs, *touched.state])
        known = caches.of_device(self._device)
        self._caches = [one for one in known if touches.inside(*one.extent)]
        touched.leave_out(caches.spans_of(self._caches))
        return touched

    def _take_question(self) -> Question | None:
        with self._lock:
            question, self._question = self._question, None
        return question

    # --- of who asks

    def ask(self, question: Question) -> bool:
        """False: another question is waiting. Thread: any."""
        with self._lock:
            if self._question is not None:
                return False
            self._question = question
            return True

    def withdraw(self, question: Question) -> bool:
        """False: it is being answered. Thread: any."""
        with self._lock:
            if self._question is not question:
                return False
            self._question = None
            return True

    def state_text(self) -> str:
        if self._recorder is not None:
            return self._recorder.state_text()
        return self._why_not or "it has not been replayed"

    def frozen_at(self) -> int:
        """The replay because of which nothing more is kept; 0: more is."""
        return self._recorder.frozen_at if self._recorder is not None else 0

    def go_on(self) -> bool:
        """Keeps replays again; False: nothing has ended that. Thread: any."""
        return self._recorder is not None and self._recorder.ring.go_on()

    def kept_bytes(self) -> int:
        """Of the device."""
        return self._recorder.bytes if self._recorder is not None else 0

    # --- answers

    def _take_apart(self, graph):
        if self._pieces is None:
            # torch keeps the graph until reset(), behind which forget() follows.
            plain = plain_nodes(self._map)
            self._pieces = _native.load().ApartGraph(self._raw(graph), copies=False, plain=plain)
            if self._pieces.opaque is not None and not self.opaque:
                self.opaque = "kernels of it change others: these run in one launch with more nodes"
        return self._pieces

    @contextlib.contextmanager
    def _left_out(self, graph, apart, only_own: bool) -> typing.Iterator[None]:
        """Our nodes of the graph, or all but the opaque piece, do nothing in a launch of it.
        Fails: Refused."""
        exec = self._exec(graph)
        try:
            apart.enable(exec, only_own, is_on=False)
        except Exception as error:
            raise Refused(reason_of(error)) from None
        try:
            yield
        finally:
            apart.enable(exec, only_own, is_on=True)

    def _next(self, graph, torch_replay, question: Question) -> None:
        """This replay runs in pieces. Its results are the job's."""
        begun = time.monotonic()
        has_begun = False
        try:
            with _unseen():
                if self.why_not_apart or self._touched is None:
                    raise Refused(self.why_not_apart or self._why_not)
                apart = self._take_apart(graph)
                apart.prepare(with_own=True)
                stepping = self._stepping(apart, question)
                with self._left_out(graph, apart, only_own=False):
                    has_begun = True
                    stepped = stepping.run(lambda: torch_replay(graph), with_own=True)
        except Exception as error:
            if not has_begun:
                torch_replay(graph)
            question.refuse(reason_of(error))
            return
        seconds = time.monotonic() - begun
        verified = "it is the job's own replay, run in pieces"
        question.done(self._answer(self.replays, stepped, verified, seconds))

    def _stepping(self, apart, question: Question) -> Stepping:
        assert self._touched is not None and self._map is not None
        return Stepping(apart, self._map, self._touched, self._device, question)

    def _answer(self, replay: int, stepped: Stepped, verified: str, seconds: float) -> Answer:
        return Answer(self.name, self.capture, replay, stepped, verified, seconds, self.opaque)

    def _past(self, graph, torch_replay, question: Question) -> Answer:
        """Fails: Refused; all is as it was then."""
        begun = time.monotonic()
        recorder = self._recorder
        if recorder is None or self._touched is None:
            raise Refused(self._why_not or "it has not been replayed")
        asked = number_of(question.replay or 0, self.replays, recorder)
        apart = self._take_apart(graph)
        apart.prepare(with_own=False)
        with put_aside(recorder, self._device, graph.pool(), self._generators(graph)):
            again = SecondRun(
                recorder,
                self._stepping(apart, question),
                launch=lambda: torch_replay(graph),
                left_out=lambda only_own: self._left_out(graph, apart, only_own),
                caches=self._caches,
            )
            stepped, verified = again.run(asked)
        return self._answer(asked, stepped, verified, time.monotonic() - begun)

    def _generators(self, graph) -> list[torch.Generator]:
        """Those that a replay may move on."""
        return [torch.cuda.default_generators[self._device], *_apart.generators_of(graph)]


def _unseen(makes_tensors: bool = True):
    """What runs in it is no op of the job's, and the tensors that it makes can be written in any
    mode."""
    if not (
        torch._C._len_torch_dispatch_stack()
        or torch.is_grad_enabled()
        or (makes_tensors and torch.is_inference_mode_enabled())
    ):
        return _NOTHING
    scope = contextlib.ExitStack()
    scope.enter_context(torch.inference_mode(False))
    scope.enter_context(no_dispatch())
    scope.enter_context(torch.no_grad())
    return scope
