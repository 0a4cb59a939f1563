"""cgdebug-cli ask, without a GPU: the memory of a graph as numbers, the mailbox, the refusals."""

import json
import os
import pathlib
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import types

import pytest
import torch

import cgdebug
from cgdebug import _rewind
from cgdebug._job import _apart, _native
from cgdebug._op_log.node_map import Call, Given, Op, Tensor, extent_of
from cgdebug._rewind import caches, mailbox, past_replay, repro
from cgdebug._rewind.hidden import Block, hidden_of
from cgdebug._rewind.memory import Spans
from cgdebug._rewind.recorder import Recorder
from cgdebug._rewind.ring import Ring
from cgdebug._rewind.rows import ROW_BYTES, unpack
from cgdebug._rewind.touched import Touched
from cgdebug.integrations import sglang, vllm
from conftest import wait_until


def given(begin, end, reads=False, writes=False, row="", **options):
    size = (end - begin) // 4
    options = {"is_whole": True, "device": 0, "strides": (1,), "item_bytes": 4, **options}
    return Given("", row, "float32", (size,), (begin, end), reads, writes, **options)


class Map:
    """What a NodeMap is asked for."""

    def __init__(self, *ops, parameters=(), behind=(), collective=None):
        self.op_of = dict(enumerate(ops, 1))
        self.behind = dict(behind)
        self.parameters = set(parameters)
        self.collective = collective


def op(*what, name="aten.add.Tensor", is_exact=True):
    return Op("fwd/add_0", name, "", "a.py:1 in f", tuple(what), is_exact)


def test_spans_are_disjoint_and_know_what_is_inside_and_outside():
    spans = Spans([(10, 20), (30, 40), (20, 25), (5, 6), (38, 50)])
    assert list(spans) == [(5, 6), (10, 25), (30, 50)] and spans.bytes == 36
    assert spans.inside(0, 32) == [(5, 6), (10, 25), (30, 32)]
    assert spans.outside(0, 32) == [(0, 5), (6, 10), (25, 30)]
    assert spans.inside(25, 30) == [] and spans.outside(12, 20) == []
    assert spans.has(11, 24) and not spans.has(11, 26)
    other = Spans([(0, 12), (24, 31)])
    assert list(spans.common(other)) == [(5, 6), (10, 12), (24, 25), (30, 31)]
    assert list(spans.without(other)) == [(12, 24), (31, 50)]
    spans.add(7, 7)
    assert list(spans) == [(5, 6), (10, 25), (30, 50)]


def test_inputs_state_and_weights_are_told_apart():
    weight, ids, state, scratch, out = (100, 200), (200, 240), (300, 340), (400, 440), (500, 540)
    touched = Touched(
        Map(
            op(given(*weight, reads=True), given(*ids, reads=True), given(*scratch, writes=True)),
            op(given(*scratch, reads=True), given(*state, reads=True, writes=True)),
            op(given(*state, reads=True), given(*out, writes=True, row="fwd/out")),
            parameters=[weight],
        ),
        0,
    )
    assert list(touched.inputs) == [ids] and list(touched.parameters) == [weight]
    assert list(touched.state) == [state]
    assert list(touched.written) == [state, scratch, out]
    assert touched.left[out].row == "fwd/out"
    assert touched.unknown == [] and not touched.is_random and touched.collective == ""


def test_memory_that_is_written_in_part_is_state():
    cache = given(100, 200, writes=True, is_whole=False)
    assert list(Touched(Map(op(cache)), 0).state) == [(100, 200)]
    holes = given(100, 200, writes=True, strides=(2,))._replace(shape=(12,))
    assert list(Touched(Map(op(holes)), 0).state) == [(100, 200)]


def test_what_nobody_tells_is_said():
    inexact = op(given(100, 200, writes=True), is_exact=False)
    host = op(given(100, 200, reads=True, device=-1), given(300, 400, writes=True))
    touched = Touched(Map(inexact, host), 0)
    assert len(touched.unknown) == 2
    assert any("touches memory that nobody tells" in one for one in touched.unknown)
    assert any("not of this device" in one for one in touched.unknown)
    scalar = op(given(100, 104, reads=True, device=-1), given(300, 400, writes=True))
    assert Touched(Map(scalar), 0).unknown == [], "its value was taken at the capture"


def test_random_numbers_and_collectives_are_known_by_the_op():
    assert Touched(Map(op(name="aten.native_dropout.default")), 0).is_random
    assert Touched(Map(op(name="triton.a_kernel.default")), 0).is_random
    assert not Touched(Map(op(name="aten.mm.default")), 0).is_random
    waits = op(name="c10d.allreduce_.default")
    assert Touched(Map(collective=waits), 0).collective == "fwd/add_0 (a.py:1 in f)"


class Apart:
    """nodes: by handle, the pointers of the kernel: (address, is it host memory), or None"""

    def __init__(self, pointers):
        self._pointers = list(pointers.values())
        self.nodes = [{"handle": one, "is_own": False} for one in pointers]

    def pointers(self, place):
        found = self._pointers[place]
        return found and [(address, 0, 1 << 40, is_host) for address, is_host in found]


BLOCKS = [
    Block(0x1000, 0x2000, (0, 0), True),
    Block(0x2000, 0x4000, (0, 0), False),
    Block(0x4000, 0x8000, (0, 1), False),
    Block(0x8000, 0x9000, (0, 0), True),
    Block(0xA000, 0xB000, (0, 1), True),
]


def hidden(pointers, name="vllm.attend.default", words=()):
    """name: of the op that made the node; empty: none did, it was launched behind one"""
    one = op(given(0x8000, 0x8100, reads=True), name=name)._replace(call=Call((), {}, ()))
    node_map = Map(behind=[(7, one)])
    if name:
        node_map.op_of = {7: one}
    tables = {0x1000: list(words)}
    return hidden_of(
        node_map,
        Apart({7: pointers}),
        (0, 1),
        lambda: BLOCKS,
        lambda table: tables.get(table.begin, []),
    )


def test_memory_that_an_op_is_given_beside_its_arguments_is_found():
    found = hidden([(0x1010, False), (0x8010, False), (0x4010, False)])
    assert list(found.spans) == [(0x1000, 0x2000)] and found.unknown == []
    assert list(hidden([(0x8800, False)]).spans) == [(0x8000, 0x9000)], "not what it was given"
    assert list(hidden([(0xA800, False)]).spans) == [(0xA000, 0xB000)], "its own, but held"
    assert list(hidden([(0x1010, False)], name="aten.mm.default").spans) == []


def test_a_node_that_no_op_made_may_touch_all_that_it_is_given():
    found = hidden([(0x1010, False), (0x8010, False), (0x4010, False)], name="")
    assert list(found.spans) == [(0x1000, 0x2000), (0x8000, 0x9000)] and found.unknown == []
    (why,) = hidden([(0x2010, False)], name="").unknown
    assert why == (
        "a node that no op made, launched behind fwd/add_0 (a.py:1 in f), which is given memory "
        "that torch does not know"
    )
    (why,) = hidden(None, name="").unknown
    assert "does not tell the arguments" in why


def test_memory_that_a_table_of_pointers_leads_to_may_be_touched():
    words = [0x8010, 0x2010, 0x4010, 0xF0000]
    for name in ("vllm.attend.default", ""):
        found = hidden([(0x1010, False)], name, words)
        assert list(found.spans) == [(0x1000, 0x2000), (0x8000, 0x9000)] and found.unknown == []


@pytest.mark.parametrize(
    "pointers, words",
    [
        (None, "does not tell the arguments"),
        ([(0x2010, False)], "memory that torch does not know beside"),
        ([(0x9010, False)], "memory that torch does not know beside"),
        ([(0x10, False)], "memory that torch does not know beside"),
        ([(0x1010, True)], "memory of the host beside"),
    ],
)
def test_memory_of_which_nobody_knows_what_a_replay_does_to_it_is_said(pointers, words):
    found = hidden(pointers)
    assert list(found.spans) == [] and len(found.unknown) == 1, found
    assert words in found.unknown[0] and found.unknown[0].startswith("fwd/add_0 (a.py:1 in f)")


def test_hidden_memory_is_an_input_unless_it_is_a_parameter_or_a_cache():
    touched = Touched(Map(op(given(100, 200, reads=True))), 0)
    touched.add_hidden(Spans([(300, 400), (500, 900)]), ["x"], Spans([(320, 340)]))
    assert list(touched.inputs) == [(100, 200), (300, 320), (340, 400), (500, 900)]
    assert list(touched.parameters) == [(320, 340)] and touched.unknown == ["x"]
    touched.leave_out(Spans([(500, 900)]))
    assert list(touched.inputs) == [(100, 200), (300, 320), (340, 400)]
    assert list(touched.hidden) == [(300, 320), (340, 400)]


def reads(*runs, written=(0, 0)):
    return types.SimpleNamespace(inputs=Spans(runs), written=Spans([written]))


def test_a_replay_writes_where_the_slots_say_that_it_reads():
    cache, slots = torch.zeros(6, 2), torch.tensor([4, 2, 5, 0])
    caches.declare([cache], 0, torch.tensor([1]), 1)
    caches.declare([cache], 0, slots, 1)
    declared = [one for one in caches.of_device(-1) if one.tensor() is cache]
    assert [one.slots is slots for one in declared] == [True], "the newest holds"
    begin, end = extent_of(slots)
    two = (begin, begin + 16)
    put_back = caches.put_aside(declared, reads(two), Spans([two]))
    cache += 1
    put_back()
    assert cache[:, 0].tolist() == [1, 1, 0, 1, 0, 1]


def test_what_a_replay_appends_to_a_cache_is_put_back():
    cache, slots = torch.arange(24.0).view(6, 2, 2), torch.tensor([5, 4, -1, 9])
    caches.declare([cache], 0, slots, 2)
    declared = [one for one in caches.of_device(-1) if one.tensor() is cache]
    before = cache.clone()
    whole = extent_of(slots)
    put_back = caches.put_aside(declared, reads(whole), Spans([whole]))
    cache[2] = 100.0
    cache[4, 1] = torch.nan
    put_back()
    assert torch.equal(cache, before)
    for touched, inputs in (
        (reads(whole), Spans()),
        (reads(), Spans([whole])),
        (reads(whole, written=whole), Spans([whole])),
    ):
        with pytest.raises(caches.CannotPutAside, match="which part"):
            caches.put_aside(declared, touched, inputs)
    del cache
    assert [one for one in caches.of_device(-1) if one.slots is slots] == []


def runner_of_vllm(shape, groups=1, is_second=True):
    slots, options = torch.zeros(8, dtype=torch.long), types.SimpleNamespace()
    options.kv_cache_config = types.SimpleNamespace(kv_cache_groups=[None] * groups, num_blocks=5)
    options.kv_caches = [torch.zeros(shape)]
    if is_second:
        options.block_tables = types.SimpleNamespace(
            slot_mappings=[slots], kernel_block_sizes=[16], blocks_per_kv_block=[2]
        )
    else:
        table = types.SimpleNamespace(block_size=16, blocks_per_kv_block=2)
        table.slot_mapping = types.SimpleNamespace(gpu=slots)
        options.input_batch = types.SimpleNamespace(block_table=[table])
    return options


@pytest.mark.parametrize("is_second", [False, True])
def test_the_cache_of_vllm_is_known_by_how_many_blocks_it_has(is_second):
    def declared(shape, **options):
        runner = runner_of_vllm(shape, is_second=is_second, **options)
        vllm._declare_caches(runner)
        mine = [one for one in caches.of_device(-1) if one.tensor() is runner.kv_caches[0]]
        return [(one.dim, one.slots_each) for one in mine]

    assert declared((10, 4, 16, 8)) == [(0, 16)]
    assert declared((2, 10, 16, 8)) == [(1, 16)]
    assert declared((10, 10, 16, 8)) == [], "which of them?"
    assert declared((3, 4, 16, 8)) == []
    assert declared((10, 4, 16, 8), groups=2) == [], "each has slots of its own"


@pytest.mark.parametrize(
    "kind, shape, each",
    [
        ("MHATokenToKVPool", (48, 2, 8), 1),
        ("MHATokenToKVPool", (3, 2, 16, 8), 16),  # pages
        ("MLATokenToKVPool", (48, 1, 8), 1),
        ("MHATokenToKVPool", (24, 2, 8), None),  # which rows?
        ("UnifiedMHATokenToKVPool", (48, 2, 8), None),  # its slots are translated
        ("SWAKVPool", None, None),  # each has slots of its own
    ],
)
def test_the_cache_of_sglang_is_known_by_how_many_slots_it_has(kind, shape, each):
    pool = type(kind, (), {"size": 32, "page_size": 16})()
    tensors = [] if shape is None else [torch.zeros(shape) for _ in range(2)]
    if kind.startswith("MLA"):
        pool.kv_buffer = tensors
    elif tensors:
        pool.k_buffer, pool.v_buffer = tensors[:1], tensors[1:]
    slots = torch.zeros(8, dtype=torch.long)
    runner = types.SimpleNamespace(
        model_runner=types.SimpleNamespace(token_to_kv_pool=pool),
        buffers=types.SimpleNamespace(out_cache_loc=slots),
    )
    sglang._declare_caches(runner)
    mine = [one for one in caches.of_device(-1) if one.slots is slots]
    assert [(one.dim, one.slots_each) for one in mine] == [(0, each)] * (2 if each else 0)


def test_a_row_of_nothing_is_empty():
    stats = unpack(bytes(ROW_BYTES))
    assert stats.elements == 0 and stats.is_finite and stats.first_nonfinite is None


def test_an_op_alone_says_whether_it_makes_the_same_bits(tmp_path, monkeypatch):
    x, y = torch.randn(4, 8), torch.randn(8, 4).t()
    tensors = [one.clone() for one in (x, y)]
    call = Call(
        (Tensor(0), Tensor(1)),
        {"alpha": 2},
        tuple(
            Given(
                "", "", "float32", tuple(one.shape), (4, 8), True, False, one.stride(), 4, True, 0
            )
            for one in (x, y)
        ),
    )
    one = Op("fwd/add_0", "aten.add.Tensor", "", "a.py:1 in f", (), True, call)
    script = repro.write(one, 37, "bs=8", tensors, [torch.add(x, y, alpha=2)], str(tmp_path))
    path = pathlib.Path(script)
    text = path.read_text(encoding="utf-8").replace('device="cuda"', 'device="cpu"')
    path.write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 0 and "makes the same bits" in done.stdout, done
    repro.write(one, 37, "bs=8", tensors, [x], str(tmp_path))
    path.write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 1 and "makes other bits" in done.stdout, done
    with pytest.raises(repro.CannotWrite, match="no op of torch"):
        repro.check(one._replace(call=None, op="triton.k.default"))


LISTENS = """
    import os, sys, time
    import cgdebug
    from cgdebug._rewind import mailbox

    class Graph:
        capture, label, replays, replayed_at, name = 1, "decode", 7, 1.0, "decode"
        why_not_apart = opaque = ""
        def ask(self, question):
            return True
        def withdraw(self, question):
            return True
        def state_text(self):
            return "replays 3 to 7, 1 MiB"
        frozen = 5
        def frozen_at(self):
            return self.frozen
        def go_on(self):
            was, self.frozen = self.frozen, 0
            return bool(was)
        def kept_bytes(self):
            return 1 << 20

    import torch
    import cgdebug
    probe = cgdebug.CudaGraphTensorProbe("a", [cgdebug.TensorRecord()], mode="always")
    probe(torch.ones(2))
    graph = Graph()
    mailbox.join(graph)
    print(os.getpid(), mailbox.path_of(os.getpid()), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def listening(daemon):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(LISTENS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    pid, path = process.stdout.readline().split()
    yield pid, path
    process.communicate("\n", timeout=30)
    assert not os.path.exists(path), "the socket goes with the process"


def test_a_question_reaches_the_process_that_has_the_graph(listening, cli):
    pid, path = listening
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    told = cli("ask", pid, "--list")
    assert told.returncode == 0 and "graph decode: 7 replays; replays 3 to 7" in told.stdout, told
    assert json.loads(cli("--json", "ask", pid, "--list").stdout)["graphs"][0]["graph"] == "decode"
    told = cli("ask", "--list")
    assert told.returncode == 0 and "decode" in told.stdout, "the only one"
    said = "the last replays of 1 graph, frozen at replay 5, 1 MiB of the device"
    assert f"{said}  -> cgdebug-cli ask {pid} --list" in cli("status").stdout
    told = cli("ask", f"{pid}@g:prefill@3")
    assert told.returncode == 4 and "no graph 'prefill'" in told.stderr and "decode" in told.stderr
    told = cli("ask", f"{pid}@g:decode", "--timeout", "1")
    assert told.returncode == 5 and "was not replayed within 1 s" in told.stderr, told.stderr


def test_a_job_keeps_replays_again_when_it_is_told_to(listening, cli):
    pid, _ = listening
    assert cli("ask", pid, "--list").stdout.endswith(f"type: cgdebug-cli ask {pid} --go-on\n")
    told = cli("ask", pid, "--go-on")
    assert (told.returncode, told.stdout) == (0, "replays are kept again\n"), told
    assert "--go-on" not in cli("ask", pid, "--list").stdout
    assert json.loads(cli("--json", "ask", pid, "--go-on").stdout)["go_on"] is False
    assert cli("ask", pid, "--go-on", "--list").returncode == 2


LOGGED = """
    import contextlib, json, os, sys
    import cgdebug, torch
    from cgdebug._rewind import mailbox

    def answer(asked):
        said = {"verdict": "nothing_found", "graph": "decode", "capture": 0, "replay": 2, "rows": []}
        if asked.get("hashes"):
            said |= json.load(open(sys.argv[2]))
        if asked.get("repro"):
            said["script"] = asked["repro"] + "/repro.py"
        return 0, "replay 2 of graph decode: verified", said

    mailbox._answer_one = answer
    mailbox._listen()
    net = torch.nn.Linear(4, 4)
    probe = cgdebug.CudaGraphTensorProbe("out", [cgdebug.TensorStats()], mode="always")
    with cgdebug.debug_mode(net, eager=True) if sys.argv[1] == "log" else contextlib.nullcontext():
        for number in range(3):
            made = net(torch.full((2, 4), float(number)))
            if sys.argv[1] == "probe":
                probe(made)
    print(os.getpid(), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def logged(daemon, tmp_path):
    """logged(what): (pid, file): a job that says of its second replay what is in the file, after
    three calls with a "log" or a "probe"."""
    started = []

    def start(what):
        told = tmp_path / "hashes.json"
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(LOGGED), what, str(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process.stdout.readline().strip(), told

    yield start
    for process in started:
        process.communicate("\n", timeout=30)


def test_a_past_replay_is_held_against_what_its_probes_saw(logged, cli):
    pid, told = logged("probe")
    saw = wait_until(
        lambda: (one := cli("show", "out@2", "--json")).returncode == 0 and one.stdout,
        "what the second call made is there",
    )
    stats = json.loads(saw)["stats"]
    same = ["", stats["count"], stats["xor_hash"], stats["ordered_hash"]]

    def asked(**seen):
        told.write_text(json.dumps({"hashes_of_probes": seen}))
        one, as_json = cli("ask", f"{pid}@2"), cli("--json", "ask", f"{pid}@2")
        answer = json.loads(as_json.stdout)
        assert one.returncode == as_json.returncode and "hashes_of_probes" not in answer
        return one, answer

    one, answer = asked(out=same, other=same)
    assert one.returncode == 0 and answer["probes_compared"] == 1, (one, answer)
    assert "what a probe saw in the replay was compared, and has the same bits" in one.stdout
    for other in ([*same[:2], "0123456789abcdef", same[3]], [*same[:3], "01234567"]):
        one, answer = asked(out=other)
        assert one.returncode == 3 and "left in its probes, first in what probe out" in one.stderr
        assert answer["reason"] == "not_reproduced" and answer["probe"] == "out"
    one, answer = asked(out=["", 5, *other[2:]])
    assert one.returncode == 0 and "probes_compared" not in answer, "of another size"


def test_a_past_replay_is_held_against_the_rows_that_it_left(logged, cli, tmp_path):
    pid, told = logged("log")
    shown = wait_until(
        lambda: (one := cli("ops", f"{pid}@2", "--json")).returncode == 0 and one.stdout,
        "the rows are there",
    )
    rows = json.loads(shown)["rows"]
    hashes = {
        one["name"]: [
            one["op"],
            one["stats"]["count"],
            one["stats"]["xor_hash"],
            one["stats"]["ordered_hash"],
        ]
        for one in rows
    }
    assert {"fwd/addmm_0", "in/addmm_0.mat1"} <= {name.replace("Linear/", "") for name in hashes}

    def asked(changed):
        told.write_text(json.dumps({"hashes": changed}))
        one, as_json = cli("ask", f"{pid}@2"), cli("--json", "ask", f"{pid}@2")
        answer = json.loads(as_json.stdout)
        assert one.returncode == as_json.returncode and "hashes" not in answer
        return one, answer

    one, answer = asked(hashes)
    assert one.returncode == 0 and answer["rows_compared"] == len(rows), (one, answer)
    assert f"{len(rows)} of the {len(rows)} rows that the replay left in its op log" in one.stdout
    name = next(name for name in hashes if name.endswith("addmm_0"))
    other = [*hashes[name][:2], "0123456789abcdef", hashes[name][3]]
    one, answer = asked(hashes | {name: other})
    number = next(one["number"] for one in rows if one["name"] == name)
    assert one.returncode == 3 and f"first in row #{number} {name}. The" in one.stderr, one
    assert answer["reason"] == "not_reproduced" and answer["row"]["name"] == name
    script = str(tmp_path / "repro" / "repro.py")
    one = cli("repro", f"{pid}@2", name, "-o", tmp_path / "repro")
    assert one.returncode == 3 and f"what the second run made: {script}" in one.stderr, one
    moved = [*hashes[name][:3], "01234567"]
    assert asked(hashes | {name: moved})[0].returncode == 3, "the same values in other places"
    unlike = ["aten.other.default", *other[1:]]
    one, answer = asked(hashes | {name: unlike})
    assert one.returncode == 0 and answer["rows_compared"] == len(rows) - 1, "of another op"
    one, answer = asked({"fwd/unknown_0": other})
    assert one.returncode == 0 and "rows_compared" not in answer and "op log" not in one.stdout
    # The next replay has left nothing yet.
    assert "rows_compared" not in json.loads(cli("--json", "ask", pid).stdout)


def recorder_in(ring, name=""):
    one = Recorder.__new__(Recorder)
    one.name, one.ring, one.left, one._copies, one._capture = name, ring, [], [], 7
    return one


def test_a_trigger_that_holds_ends_what_is_kept(monkeypatch):
    held = [(1, 3, 7, "old", False)]  # before the graph was kept
    module = types.SimpleNamespace(trigger_that_held=lambda device: held[-1])
    monkeypatch.setattr(_native, "load", lambda: module)
    ring = Ring(0, 4)
    one = recorder_in(ring)
    ring.look_at_triggers(7)
    assert (ring.frozen, one.frozen_at) == ("", 0)
    held.append((2, 15, 7, "root", False))
    ring.look_at_triggers(7)
    held.append((3, 16, 7, "later", False))
    one.before(17)
    assert one.frozen_at == 15 and one.state_text().endswith(
        "; frozen at replay 15: a trigger of root held"
    )
    ring.frozen, held[-1] = "", (4, 20, 9, "root", False)
    ring.look_at_triggers(7)
    assert ring.frozen == "frozen at replay 20 of graph 9: a trigger of root held"
    assert ring.go_on() and not ring.go_on(), "once"
    ring.look_at_triggers(7)
    assert ring.frozen == "", "the trigger that held is known"
    held.append((5, 21, 7, "root", True))
    ring.look_at_triggers(7)
    assert one.frozen_at == 21 and ring.frozen == "frozen at replay 21: a comparison of root failed"
    monkeypatch.undo()
    assert _native.load().trigger_that_held(0) is None, "none has held in this process"
    assert _native.load().trigger_that_held(1 << 20) is None


def test_graphs_that_share_a_ring_have_the_last_replays_of_all_of_them():
    ring = Ring(0, 4, is_of_several=True)
    few, many = recorder_in(ring, "bs=1"), recorder_in(ring, "bs=8")
    ring._slot_bytes = 100
    for replay, owner in [(1, few), (1, many), (2, many), (2, few), (3, many)]:
        ring.take(owner).replay = replay
    assert sorted(ring.kept_of(few)) == [2] and sorted(ring.kept_of(many)) == [1, 2, 3]
    assert (few.bytes, many.bytes) == (100, 300)
    assert many.state_text().startswith("replays 1 to 3, ")
    ring.take(many)  # its inputs are not there yet
    assert sorted(ring.kept_of(many)) == [2, 3] and many.replays() == (2, 3)
    del few
    assert ring.bytes_of(many) == 300, "a graph that is gone has nothing"


def test_what_was_kept_before_it_ended_is_not_told_as_kept_up_to_now():
    ring = Ring(0, 8)
    one = recorder_in(ring)
    for replay in (1, 2, 3, 40, 41):
        ring.take(one).replay = replay
    assert one.replays() == (40, 41)


def test_a_nan_that_was_there_before_ends_nothing():
    ring = Ring(0, 8)
    one = recorder_in(ring)
    names = ("fwd/logits", "fwd/scratch")
    one.left = [types.SimpleNamespace(made=name, row="") for name in names]
    ring._words = torch.zeros(8, 2, 16, dtype=torch.int64).numpy()

    def replays(first, *nans):
        """NaN in both, for each replay"""
        for replay, counts in enumerate(nans, first):
            ring._words[ring._taken % 8, :, 1] = counts
            ring.take(one).replay = replay
        ring._find_nan(ring._taken)
        return ring.frozen

    assert replays(1, (0, 0), (0, 0)) == ""
    assert replays(3, (0, 0), (0, 5), (3, 5)) == "frozen at replay 4, which left NaN in fwd/scratch"
    assert ring.go_on()
    assert replays(30, (3, 5), (0, 5), (0, 4)) == "", "they were there when replays were kept again"
    assert replays(33, (0, 4), (1, 4)) == "frozen at replay 34, which left NaN in fwd/logits"
    ring.go_on()
    other = recorder_in(ring)
    other.left = one.left
    ring._words[ring._taken % 8, :, 1] = 0, 1
    ring.take(other).replay = 1
    ring._find_nan(ring._taken)
    assert "replay 1" in ring.frozen, "of a graph that was not replayed before then, each counts"


def test_an_engine_keeps_decode_steps_unless_a_variable_says_otherwise(monkeypatch):
    class Kept(Graph):
        raw_cuda_graph_exec = capture_begin = capture_end = None

    def wanted(rewind, label):
        with monkeypatch.context() as patch:
            for name, value in (("_is_decode", None), ("_is_installed", True)):
                patch.setattr(_rewind, name, value)
            patch.setattr(torch.cuda, "CUDAGraph", Kept)
            patch.setenv("CGDEBUG_REWIND", rewind)
            _rewind.keep_of_engine(vllm._is_decode)
            return _rewind.takes_questions(label), _rewind.ring_of(label, 0)

    takes, ring = wanted("", "tokens=8,reqs=8")
    assert takes and len(ring) == 64
    assert wanted("", "tokens=4,reqs=4")[1] is ring, "all share one"
    pieces = ("tokens=8,layer=0-1", "tokens=8,reqs=8,from=layers.0")
    for label in (*pieces, "estimate,tokens=8,reqs=8", ""):
        assert wanted("", label) == (False, None)
    assert wanted("0", "tokens=8,reqs=8") == (False, None)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for ranks, is_kept in ((1, True), (2, False)):
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda n=ranks: n)
        assert wanted("", "tokens=8,reqs=8")[0] is is_kept, "a rank alone runs no collective"


def test_rows_are_named_as_everywhere():
    def wants(*globs):
        question = mailbox.Question(None, list(globs), values=False)
        names = ("fwd/layers.3/mul_0", "fwd/layers.3/mm_0", "in/x")
        return [name for name in names if question.wants(name)]

    assert len(wants()) == 3
    assert wants("fwd/*", "!*/mm_*") == ["fwd/layers.3/mul_0"]
    assert wants("in/x", "fwd/layers.3/mm_0") == ["fwd/layers.3/mm_0", "in/x"]


class Graph:
    """As torch's, without a GPU."""

    def __init__(self, keep_graph=False):
        self.keep_graph, self.calls = keep_graph, []

    def replay(self):
        self.calls.append("replay")

    def reset(self):
        self.calls.append("reset")


class Own:
    def __init__(self, graph):
        self.graph = graph

    def replay(self, graph, torch_replay):
        graph.calls.append("own")
        torch_replay(graph)

    def forget(self):
        self.graph.calls.append("forget")


def test_graphs_are_kept_unless_their_owner_keeps_them():
    class Kept(Graph):
        pass

    _apart.own_graphs(Kept, "_own", Own)
    for graph in (Kept(), Kept(False), Kept(keep_graph=False)):
        graph.replay()
        graph.reset()
        assert graph.keep_graph and graph.calls == ["own", "replay", "reset", "forget"]
    for graph in (Kept(True), Kept(keep_graph=True)):
        graph.replay()
        graph.reset()
        assert graph.keep_graph and graph.calls == ["replay", "reset"]


def test_graphs_that_nobody_asks_about_are_made_as_ever():
    class Kept(Graph):
        pass

    _apart.own_graphs(Kept, "_own", Own, of=lambda label: label == "decode")
    with cgdebug.graph_label("decode"):
        assert Kept().keep_graph
    plain = Kept()
    plain.replay()
    assert not plain.keep_graph and plain.calls == ["replay"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (past_replay.NotReproduced("x differs"), "not_reproduced"),
        (RuntimeError("x differs"), "no_answer"),
    ],
)
def test_an_answer_without_rows_has_its_reason_in_json(monkeypatch, error, reason):
    def fail():
        raise error

    class Graph:
        name = "decode"

        def ask(self, question):
            question.answer(fail)
            return True

    monkeypatch.setattr(mailbox, "_choose", lambda wanted: (Graph(), ""))
    code, text, told = mailbox._answer({"replay": 3})
    assert code == 3 and told["reason"] == reason and "x differs" in text
    assert text.startswith(reason.replace("_", " ") + ": ") and told["error"] == text


def test_bad_questions_end_no_process(listening, cli):
    pid, path = listening
    for sent in (b"", b"nonsense\n", b"[]\n", b'{"timeout_s": "x"}\n', b"{}"):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(path)
            peer.sendall(sent)
            peer.shutdown(socket.SHUT_WR)
            peer.settimeout(30)
            while peer.recv(1 << 16):
                pass
    assert cli("ask", pid, "--list").returncode == 0


def test_a_job_that_has_ended_is_said_to_have(listening, daemon, cli):
    pid, path = listening
    assert cli("ask", pid, "--list").returncode == 0
    os.kill(int(pid), signal.SIGKILL)
    words = "has ended, and a job answers by itself"
    told = wait_until(
        lambda: words in (one := cli("ask", pid)).stderr and one, "the daemon knows that it ended"
    )
    assert told.returncode == 4 and "run --rewind" in told.stderr, told.stderr
    os.unlink(path)  # a process that is killed leaves it


def test_who_takes_no_questions_is_told_what_to_type(daemon, cli):
    told = cli("ask", "4711@3")
    assert told.returncode == 4 and "run --rewind" in told.stderr, told.stderr
    told = cli("ask", "4711@0")
    assert told.returncode == 2 and "replays count from 1" in told.stderr, told.stderr
    told = cli("ask", "4711", "--slowest", "0")
    assert told.returncode == 2 and "--slowest" in told.stderr, told.stderr
    told = cli("repro", "4711@3", "fwd/x")
    assert told.returncode == 2 and "--output" in told.stderr, told.stderr


@pytest.mark.parametrize("number", [0, -1, True, "8", 1.5])
def test_rewind_is_a_number_of_replays(number):
    import cgdebug

    if number == 0:
        return cgdebug.watch(torch.nn.Linear(1, 1), rewind=0).close()
    with pytest.raises(ValueError, match="rewind is a number of replays"):
        cgdebug.watch(torch.nn.Linear(1, 1), rewind=number)
