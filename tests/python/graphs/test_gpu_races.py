"""Ops of captured graphs that touch the same bytes with no path between them."""

import ctypes
import functools
import json
import pathlib
import random

import captured_programs
import pytest
import torch
from serve_programs import Programs

from cgdebug._job import _apart
from conftest import ROOT

pytestmark = [pytest.mark.gpu, pytest.mark.own_lane]
N = 1 << 12


@functools.cache
def streams():
    """Three of them. torch hands out one stream under several objects."""
    found = {}
    while len(found) < 3:
        one = torch.cuda.Stream()
        found.setdefault(one.cuda_stream, one)
    return tuple(found.values())


@pytest.fixture
def order():
    """order(step): what is known of the order of what `step(side)` captures; `side` is a second
    stream."""

    def of(step):
        first, side, _ = streams()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=first):
            capture = _apart._Capture(finds_races=True, label="")
            step(side)
            capture.end()
        assert capture._missing == ""
        return capture._order

    return of


def zeros(*shape):
    return torch.zeros(shape or (N,), device="cuda")


def fork(side):
    side.wait_stream(torch.cuda.current_stream())


def join(side):
    torch.cuda.current_stream().wait_stream(side)


def test_a_stream_that_waits_has_no_race(order):
    x, y, z = zeros(), zeros(), zeros()

    def step(side):
        torch.mul(x, 2, out=y)
        fork(side)
        with torch.cuda.stream(side):
            torch.add(y, 1, out=z)
        torch.add(x, 3, out=x)
        join(side)
        z.add_(x)

    found = order(step)
    assert (found.races, found.possible, found.unknown) == ([], [], [])
    assert found.nodes == 4 and found.unordered == 2


def test_a_stream_that_does_not_wait_is_named_with_both_ops(order):
    x, y, z = zeros(), zeros(), zeros()

    def step(side):
        fork(side)
        torch.mul(x, 2, out=y)
        with torch.cuda.stream(side):
            torch.add(y, 1, out=z)
        join(side)

    found = order(step)
    assert len(found.races) == 1, found
    assert "aten.mul.out fwd/mul_0 (test_gpu_races.py:" in found.races[0]
    assert "writes" in found.races[0] and "aten.add.out fwd/add_0" in found.races[0]
    assert found.races[0].endswith("reads")


def test_memory_that_is_used_again_too_early_is_a_race(order):
    """A tensor that another stream reads is freed, and its stream is given the memory again."""
    x, z = zeros(), zeros()

    def step(side):
        y = x * 2
        fork(side)
        with torch.cuda.stream(side):
            torch.add(y, 1, out=z)
        del y  # without y.record_stream(side)
        w = x * 3
        join(side)
        z.add_(w)

    assert len(order(step).races) == 1


@pytest.mark.parametrize(
    ("one", "other", "races"),
    [
        (slice(0, 16), slice(16, 32), 0),
        (slice(0, 17), slice(16, 32), 1),
        ((slice(None), slice(0, 16)), (slice(None), slice(16, 32)), 0),
        ((slice(None), slice(0, 17)), (slice(None), slice(16, 32)), 1),
        ((slice(None), slice(0, 32, 2)), (slice(None), slice(1, 32, 2)), 0),
    ],
    ids=["rows", "rows that meet", "columns", "columns that meet", "odd and even columns"],
)
def test_parts_of_a_tensor_are_told_apart_by_their_bytes(order, one, other, races):
    x, y = zeros(32, 32), zeros(32, 32)

    def step(side):
        fork(side)
        torch.mul(x[one], 2, out=y[one])
        with torch.cuda.stream(side):
            torch.mul(x[other], 3, out=y[other])
        join(side)

    found = order(step)
    assert len(found.races) == races, found
    assert found.possible == []


def test_a_place_that_an_index_chooses_is_possible_and_no_race(order):
    cache, rows, z = zeros(64, 8), torch.arange(4, device="cuda"), zeros(64, 8)
    new = zeros(4, 8)

    def step(side):
        fork(side)
        cache[rows] = new
        with torch.cuda.stream(side):
            torch.add(cache, 1, out=z)
        join(side)

    found = order(step)
    assert found.races == [] and len(found.possible) == 1


def test_a_node_that_no_op_made_is_not_known_if_it_runs_beside_others(order):
    x, y = zeros(), zeros()
    driver = ctypes.CDLL("libcuda.so.1")

    def stray(stream):
        address, stream = ctypes.c_ulonglong(y.data_ptr()), ctypes.c_void_p(stream.cuda_stream)
        assert driver.cuMemsetD8Async(address, 0, ctypes.c_size_t(64), stream) == 0

    def beside(side):
        fork(side)
        stray(side)
        x.add_(1)
        join(side)
        x.add_(1)

    def between(side):
        x.add_(1)
        stray(torch.cuda.current_stream())
        x.add_(1)

    assert len(order(beside).unknown) == 1
    assert order(between).unknown == []


def test_an_op_that_is_not_of_torch_may_touch_more_than_its_arguments(order):
    x, hidden = zeros(), zeros()

    @torch.library.custom_op("races_test::reads", mutates_args=())
    def reads(x: torch.Tensor) -> torch.Tensor:
        return x + hidden

    def beside(side):
        fork(side)
        with torch.cuda.stream(side):
            reads(x)
        hidden.add_(1)
        join(side)
        x.add_(1)

    found = order(beside)
    assert found.races == [] and len(found.unknown) == 1, found
    assert "races_test.reads" in found.unknown[0] and "may touch bytes" in found.unknown[0]


class Program:
    """Ops on streams, each with the buffers that it reads and writes and the ops that it waits for."""

    def __init__(self, seed):
        rng = random.Random(seed)
        self.ops = []
        writer, readers = {}, {}
        for number in range(rng.randint(8, 24)):
            reads, writes = rng.randrange(8), rng.randrange(8)
            waits = {writer.get(reads), writer.get(writes), *readers.get(writes, ())} - {None}
            self.ops.append([rng.randrange(3), reads, writes, waits])
            readers[writes] = []
            readers.setdefault(reads, []).append(number)
            writer[writes] = number

    def unordered(self):
        """The pairs in conflict, by the definition."""
        before, last = [], {}
        for number, (stream, _, _, waits) in enumerate(self.ops):
            direct = set(waits) | ({last[stream]} if stream in last else set())
            before.append(direct.union(*(before[one] for one in direct)))
            last[stream] = number
        return {
            (a, b)
            for b, (_, reads, writes, _) in enumerate(self.ops)
            for a, (_, other_reads, other_writes, _) in enumerate(self.ops[:b])
            if a not in before[b]
            and (writes in (other_reads, other_writes) or reads == other_writes)
        }

    def step(self, side):
        buffers = [zeros() for _ in range(8)]
        first, *others = streams()
        for one in others:
            one.wait_stream(first)
        events = []
        for stream, reads, writes, waits in self.ops:
            with torch.cuda.stream(streams()[stream]):
                for one in waits:
                    streams()[stream].wait_event(events[one])
                torch.add(buffers[reads], 1, out=buffers[writes])
                events.append(torch.cuda.Event())
                events[-1].record(streams()[stream])
        for one in others:
            first.wait_stream(one)


def test_in_random_programs_each_planted_race_is_found_and_no_other(order):
    planted = 0
    for seed in range(100):
        program = Program(seed)
        assert program.unordered() == set()
        if seed % 5 == 0:  # leave a wait out whose lack no other path makes good
            for op in program.ops:
                for one in list(op[3]):
                    op[3].discard(one)
                    if program.unordered():
                        break
                    op[3].add(one)
                if program.unordered():
                    break
        expected = program.unordered()
        planted += bool(expected)
        found = order(program.step)
        assert len(found.races) == len(expected), (seed, expected, found)
        assert found.possible == [] and found.unknown == []
    assert planted >= 15


JOB = """
    n = 1 << 12
    x, y, z = (torch.zeros(n, device="cuda") for _ in range(3))
    side = torch.cuda.Stream()

    def step():
        side.wait_stream(torch.cuda.current_stream())
        torch.mul(x, 2, out=y)
        if {waits}:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.add(y, 1, out=z)
        torch.cuda.current_stream().wait_stream(side)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    torch.cuda.synchronize()
    print(cgdebug._job._native.probe_module().session()["uuid"][:8])
    sys.stdin.readline()
"""


@pytest.mark.parametrize(("waits", "verdict", "code"), [(True, "nothing", 0), (False, "found", 1)])
def test_races_of_a_live_job(job, cli, waits, verdict, code):
    running = job(JOB.format(waits=waits), CGDEBUG="1", CGDEBUG_RACES="1")
    session = running.line()
    told = cli("races", session, "--json")
    answer = json.loads(told.stdout)
    assert told.returncode == code, (answer, told.stderr)
    assert answer["verdict"] == verdict
    assert answer["graphs"][0]["nodes"] == 2
    if not waits:
        assert "aten.mul.out" in cli("races", session).stdout
        assert "has a race" in cli("why", session).stdout
    running.go_on()
    running.finish()


LLAMA = """
    sys.path.insert(0, sys.argv[1])
    import apart_programs
    program = apart_programs.PROGRAMS["llama_train"]()
    program.graph.replay()
    torch.cuda.synchronize()
    print(cgdebug._job._native.probe_module().session()["uuid"][:8])
    sys.stdin.readline()
"""


def test_a_training_step_of_transformers_has_no_race(job, cli):
    pytest.importorskip("transformers")
    where = str(ROOT / "tests" / "python" / "rewind")
    running = job(LLAMA, arguments=[where], CGDEBUG="1", CGDEBUG_RACES="1")
    told = cli("races", running.line(), "--json")
    answer = json.loads(told.stdout)
    assert told.returncode == 0 and answer["verdict"] == "nothing", (answer, told.stderr)
    assert answer["graphs"][0]["nodes"] > 300, answer
    running.go_on()
    running.finish()


def test_a_graph_whose_op_log_adds_order_is_not_called_clean(job, cli):
    code = "log = cgdebug.debug_mode(None)\n    log.__enter__()\n" + JOB.format(waits=False)
    running = job("    " + code, CGDEBUG="1", CGDEBUG_RACES="1")
    told = cli("races", running.line())
    assert told.returncode == 3, told.stdout
    assert "an op log adds kernels" in told.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CGDEBUG_RACES", "1")
        script = pathlib.Path(captured_programs.__file__)
        server = Programs(script, tmp_path_factory.mktemp("programs"))
    yield server
    server.close()


@pytest.mark.parametrize(
    "name",
    [
        *captured_programs.CORRECT,
        # Whatever else is wrong with them.
        *(name for name in captured_programs.EXPECTED if not name.endswith("_in_a_capture")),
    ],
)
def test_programs_without_a_race_have_none(daemon, cli, programs, tmp_path, name):
    path = tmp_path / "a.cgrec"
    programs.record(path, name, watch="*")
    told = cli("races", path)
    assert told.returncode == 0, told.stdout + told.stderr
