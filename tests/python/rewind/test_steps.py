"""Which rows of a replay in pieces are shown, and what is said of the others, without a GPU."""

import json
import re
import types

import pytest
import torch

from cgdebug._job import _apart
from cgdebug._op_log.node_map import Call, Given, Observed, Op, extent_of
from cgdebug._rewind import answer_text, mailbox, stepping
from cgdebug._rewind.kept_graph import Answer, KeptGraph
from cgdebug._rewind.rows import Stats
from cgdebug._rewind.steps import Counts, Steps, opaque_text
from cgdebug._rewind.touched import Touched


def given(extent, reads=False, writes=True, row="", **options):
    size = (extent[1] - extent[0]) // 4
    options = {"is_whole": True, "device": 0, "strides": (1,), "item_bytes": 4, **options}
    return Given("", row, "float32", (size,), extent, reads, writes, **options)


def op(name, *what, is_exact=True, kind="aten.mul.out"):
    return Op(name, kind, "", "a.py:1 in f", tuple(what), is_exact, Call((), {}, ()))


class Apart:
    """nodes: by number, what made each: an op, None (no op) or "own"; or (that, kind)
    launched: what a node does"""

    def __init__(self, *nodes, edges=(), pieces=None, launched=None, opaque=None):
        nodes = [one if type(one) is tuple else (one, "kernel") for one in nodes]
        self.nodes = [
            {
                "handle": 100 + number,
                "name": "k",
                "kind": kind,
                "may_write": kind not in ("empty", "event_node", "memory_node"),
                "is_own": made == "own",
            }
            for number, (made, kind) in enumerate(nodes)
        ]
        self.after = [[to for here, to in edges if here == at] for at in range(len(nodes))]
        self.pieces = pieces or [list(range(len(nodes)))]
        self.map = types.SimpleNamespace(
            op_of={
                100 + number: made for number, (made, _) in enumerate(nodes) if type(made) is Op
            },
            behind={},
            parameters=set(),
            collective=None,
            observed=[],
        )
        self._launched, self.opaque = launched, opaque

    @property
    def kinds(self):
        return [(one["handle"], one["kind"], one["is_own"]) for one in self.nodes]

    def launch(self, piece, stream, with_own):
        for node in self.pieces[piece]:
            self._launched[node]()


BUFFER, OTHER = (100, 200), (300, 400)


def hidden_rows(apart):
    """The names of the ops whose output cannot be looked at, with the reasons."""
    steps = Steps(apart, apart.map)
    ops = {id(one): one for one in apart.map.op_of.values()}.values()
    return {
        one.name: reason
        for one in ops
        for what in one.given
        if what.writes and (reason := steps.why_not_seen(one, what))
    }


def test_what_a_later_op_of_the_same_piece_overwrites_is_not_seen():
    first, reader = op("first", given(BUFFER)), op("reader", given(OTHER))
    last, beside = op("last", given(BUFFER)), op("beside", given((500, 600)))
    apart = Apart(first, reader, last, beside, edges=[(0, 1), (1, 2)])
    assert hidden_rows(apart) == {
        "first": "last (a.py:1 in f) may write the same memory before anybody can look at it"
    }
    assert Steps(apart, apart.map).counts == Counts(nodes=4, alone=0, parallel=4, of_no_op=0)


def test_of_two_that_no_path_orders_neither_is_seen():
    one, other = op("one", given(BUFFER)), op("other", given((196, 300)))
    assert hidden_rows(Apart(one, other)).keys() == {"one", "other"}


def test_a_path_through_nodes_that_write_nothing_puts_ops_in_order():
    one, other, beside = op("one", given(BUFFER)), op("other", given(BUFFER)), op("beside")
    nodes = (one, (None, "empty"), "own", other, beside)
    apart = Apart(*nodes, edges=[(0, 1), (1, 2), (2, 3)])
    assert hidden_rows(apart).keys() == {"one"}
    assert Steps(apart, apart.map).counts == Counts(nodes=3, alone=0, parallel=3, of_no_op=0)


def test_an_op_surely_ran_before_if_all_its_nodes_did():
    one, other = op("one", given(BUFFER)), op("other", given(BUFFER))
    assert hidden_rows(Apart(one, one, other, edges=[(0, 2), (1, 2)])).keys() == {"one"}
    assert hidden_rows(Apart(one, one, other, edges=[(0, 2)])).keys() == {"one", "other"}
    assert hidden_rows(Apart(one, other, other, edges=[(0, 1)])).keys() == {"one", "other"}


def test_columns_of_one_tensor_that_lie_apart_overwrite_nothing():
    even = given((0, 28), strides=(2,))._replace(shape=(4,))
    odd = given((4, 32), strides=(2,))._replace(shape=(4,))
    assert hidden_rows(Apart(op("even", even), op("odd", odd))) == {}


def test_ops_that_run_alone_are_seen_whatever_they_overwrite():
    one, other = op("one", given(BUFFER)), op("other", given(BUFFER))
    apart = Apart(one, other, edges=[(0, 1)], pieces=[[0], [1]])
    assert hidden_rows(apart) == {} and Steps(apart, apart.map).beside == set()
    apart = Apart(one, "own", other, edges=[(0, 2)], pieces=[[0, 1], [2]])
    assert hidden_rows(apart) == {}, "our own nodes write nothing of the job's"
    assert hidden_rows(Apart(one, one)) == {}, "an op does not overwrite itself unseen"


@pytest.mark.parametrize(
    "unknown, words",
    [
        (op("unknown", given(OTHER), kind="vllm.moe.default"), "unknown (a.py:1 in f) runs beside"),
        (op("unknown", given(OTHER), is_exact=False), "unknown (a.py:1 in f) runs beside"),
        (None, "a node that no op made runs beside it"),
    ],
)
def test_beside_something_whose_writes_nobody_tells_nothing_is_seen(unknown, words):
    one, after = op("one", given(BUFFER)), op("after", given((500, 600)))
    found = hidden_rows(Apart(one, unknown, after, edges=[(1, 2)]))
    assert found.keys() == {"one"}, "it surely ran before the other one"
    assert words in found["one"], found
    alone = Apart(one, unknown, after, edges=[(0, 1), (1, 2)], pieces=[[0], [1], [2]])
    assert hidden_rows(alone) == {}
    assert Steps(alone, alone.map).counts.of_no_op == (unknown is None)


# --- a replay in pieces


class Maker:
    """As RowMaker, of tensors in host memory."""

    def __init__(self, device):
        pass

    def can(self, dtype):
        return True

    def space(self, rows):
        return [None] * rows

    def batch(self, tensors):
        return tensors

    def compute(self, tensors, rows, first):
        for number, one in enumerate(tensors, first):
            nan = int(one.isnan().sum())
            low = float(one.min())
            rows[number] = Stats(one.numel(), nan, 0, 0, 0, low, float(one.max()), low, 0, 0, None)


class Clock:
    """As Times: the n-th launch takes n us."""

    def __init__(self, device):
        self._runs = []

    def run(self, op, launch):
        launch()
        self._runs.append(id(op))

    def us(self):
        taken = {}
        for number, op in enumerate(self._runs, 1):
            taken[op] = taken.get(op, 0.0) + number
        return taken


@pytest.fixture
def stepped(monkeypatch):
    """stepped(apart, tensors, question): Stepped, of ops that write these tensors."""

    def step(apart, tensors, question, torch_replay=lambda: None):
        by_address = {one.data_ptr(): one for one in tensors}
        stream = types.SimpleNamespace(cuda_stream=0)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
        monkeypatch.setattr(stepping, "RowMaker", Maker)
        monkeypatch.setattr(stepping, "Times", Clock)
        monkeypatch.setattr(stepping, "unpack_all", lambda rows: [one for one in rows if one])
        monkeypatch.setattr(stepping, "tensor_at", lambda one, _: by_address[one.extent[0]])
        one = stepping.Stepping(apart, apart.map, Touched(apart.map, 0), 0, question)
        return one.run(torch_replay, with_own=True)

    return step


def question(*rows, repro=False):
    return mailbox.Question(None, list(rows), values=repro, repro=repro)


def branch(value=7.0):
    """Two parallel branches: mul writes 2, clone reads it, div writes `value` over it; add."""
    buffer, copy, sums = torch.zeros(4), torch.zeros(4), torch.zeros(4)

    def wrote(name, tensor, *reads):
        one = given(extent_of(tensor), row=name)
        return op(name, *reads, one)

    mul = wrote("fwd/mul_0", buffer)
    clone = wrote("fwd/clone_0", copy, given(extent_of(buffer), True, False, "fwd/mul_0"))
    launched = [
        lambda: buffer.fill_(2.0),
        lambda: copy.copy_(buffer),
        lambda: buffer.fill_(value),
        lambda: sums.fill_(1.0),
    ]
    nodes = (mul, clone, wrote("fwd/div_0", buffer), wrote("fwd/add_0", sums))
    apart = Apart(*nodes, edges=[(0, 1), (1, 2)], launched=launched)
    return apart, [buffer, copy, sums]


def asked(stepped, program, *rows, repro=False):
    apart, tensors = program
    one = question(*rows, repro=repro)
    answer = Answer("1", 1, 5, stepped(apart, tensors, one), "it is the job's own replay", 0.0)
    return one, answer


def test_a_row_that_was_overwritten_in_its_piece_is_not_shown(stepped):
    one, answer = asked(stepped, branch())
    assert [(row.name, row.stats.max) for row in answer.stepped.rows] == [
        ("fwd/clone_0", 2.0),
        ("fwd/div_0", 7.0),
        ("fwd/add_0", 1.0),
    ]
    code, text, answered = answer_text.of(one, answer, "")
    assert code == mailbox.INCONCLUSIVE and answered["verdict"] == "inconclusive"
    assert "not seen: fwd/mul_0: fwd/div_0 (a.py:1 in f) may write the same memory" in text
    assert "of 4 nodes 0 ran alone and 4 together with others; 0 were made by no op" in text
    told = json.loads(json.dumps(answered))["not_seen"]
    assert [row["name"] for row in told["rows"]] == ["fwd/mul_0"] and told["parallel"] == 4


def test_the_hashes_of_all_rows_are_told_to_who_compares_them(stepped):
    one, answer = asked(stepped, branch(), "fwd/add_0")
    _, _, told = answer_text.of(one, answer, "", has_hashes=True)
    assert told["hashes"] == {
        name: ["aten.mul.out", 4, "0" * 16, "0" * 8]
        for name in ("fwd/clone_0", "fwd/div_0", "fwd/add_0")
    }
    assert "hashes" not in answer_text.of(one, answer, "")[2]
    rows = [*answer.stepped.rows, answer.stepped.rows[0]]
    answer = answer._replace(stepped=answer.stepped._replace(rows=rows))
    _, _, told = answer_text.of(one, answer, "", has_hashes=True)
    assert "fwd/clone_0" not in told["hashes"], "which of them?"


def test_rows_that_were_seen_are_answered_as_ever(stepped):
    code, text, answered = answer_text.of(*asked(stepped, branch(), "fwd/add_0"), "")
    assert code == mailbox.OK and answered["verdict"] == "nothing_found"
    assert "not seen" not in text and answered["not_seen"]["rows"] == []


def test_a_row_that_nobody_saw_is_no_row_that_does_not_exist(stepped):
    code, text, answered = answer_text.of(*asked(stepped, branch(), "fwd/mul_0"), "")
    assert code == mailbox.INCONCLUSIVE and "not seen: fwd/mul_0" in text
    assert answered["rows"] == [] and answered["first_nonfinite"] is None
    code, text, _ = answer_text.of(*asked(stepped, branch(), "fwd/no_such_row"), "")
    assert code == mailbox.NO_MATCH and "no row of graph 1 is called fwd/no_such_row" in text


def test_the_first_nan_may_be_earlier_where_a_row_was_not_seen(stepped):
    one, answer = asked(stepped, branch(value=torch.nan))
    code, text, answered = answer_text.of(one, answer, "")
    assert code == mailbox.FOUND and answered["first_may_be_earlier"]
    assert "first NaN here, or earlier in what was not seen: fwd/div_0" in text
    code, text, answered = answer_text.of(*asked(stepped, branch(value=torch.nan), "fwd/div_0"), "")
    assert code == mailbox.FOUND and not answered["first_may_be_earlier"]
    assert "first NaN: fwd/div_0" in text


def test_a_nan_before_the_parallel_piece_is_the_first_one(stepped):
    apart, tensors = branch()
    bad = torch.full((4,), torch.nan)
    before = Apart(
        op("fwd/bad_0", given(extent_of(bad), row="fwd/bad_0")),
        *apart.map.op_of.values(),
        edges=[(0, 1), (1, 2), (2, 3), (0, 4)],
        pieces=[[0], [1, 2, 3, 4]],
        launched=[lambda: None, *apart._launched],
    )
    code, text, _ = answer_text.of(*asked(stepped, (before, [*tensors, bad])), "")
    assert (
        code == mailbox.FOUND and "first NaN: fwd/bad_0" in text and "not seen: fwd/mul_0" in text
    )


def test_who_writes_a_script_is_told_the_hashes_too(stepped, tmp_path):
    pytest.importorskip("safetensors")
    tensor = torch.zeros(4)
    made = op("fwd/add_0", given(extent_of(tensor), row="fwd/add_0"))
    apart = Apart(made, launched=[lambda: None])
    one, answer = asked(stepped, (apart, [tensor]), "fwd/add_0", repro=True)
    code, _, told = answer_text.of_repro(one, answer, str(tmp_path), has_hashes=True)
    assert code == mailbox.OK and told["script"] == str(tmp_path / "repro.py")
    assert (told["capture"], told["replay"]) == (1, 5) and told["hashes"].keys() == {"fwd/add_0"}
    assert "hashes" not in answer_text.of_repro(one, answer, str(tmp_path))[2]


@pytest.mark.parametrize("row", ["fwd/mul_0", "fwd/clone_0", "fwd/add_0"])
def test_no_script_is_written_of_an_op_that_runs_beside_others(stepped, tmp_path, row):
    one, answer = asked(stepped, branch(), row, repro=True)
    assert answer.stepped.given == {}
    code, text, _ = answer_text.of_repro(one, answer, str(tmp_path / "repro"))
    assert code == mailbox.TROUBLE and "runs in one launch with other ops" in text, text
    assert not (tmp_path / "repro").exists()


def test_an_op_has_the_time_of_its_nodes_if_nothing_ran_beside_them(stepped, tmp_path):
    tensors = [torch.zeros(4) for _ in range(4)]
    names = ["fwd/add_0", "fwd/mul_0", "fwd/sub_0", "fwd/div_0"]
    ops = [op(name, given(extent_of(one), row=name)) for name, one in zip(names, tensors)]
    nodes = (ops[0], ops[1], ops[0], "own", ops[2], ops[3])
    apart = Apart(*nodes, pieces=[[0], [1], [2], [3], [4, 5]], launched=[lambda: None] * 6)
    one = mailbox.Question(None, [], values=False, slowest=1)
    answer = Answer("1", 1, 5, stepped(apart, tensors, one), "", 0.0)
    assert {row.name: row.us for row in answer.stepped.rows} == {
        "fwd/mul_0": 2.0,
        "fwd/add_0": 4.0,
        "fwd/sub_0": None,
        "fwd/div_0": None,
    }
    _, text, told = answer_text.of(one, answer, "")
    assert "  4.0 us  fwd/add_0  aten.mul.out\n  and 2 ops of which no time is known" in text
    assert [row["name"] for row in told["slowest"]] == ["fwd/add_0"]
    _, text, _ = answer_text.of(one, answer, "", trace=str(tmp_path / "trace.json"))
    assert "times of 2 ops: " in text and "; of 2 ops no time is known" in text
    trace = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    bars = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [(bar["name"], bar["ts"], bar["dur"]) for bar in bars] == [
        ("fwd/mul_0", 0.0, 2.0),
        ("fwd/add_0", 2.0, 4.0),
    ]
    assert trace["cgdebug_unknown"] == ["fwd/sub_0", "fwd/div_0"]
    assert {row["name"]: row["us"] for row in told["rows"]}["fwd/div_0"] is None
    one = question("fwd/*")
    _, text, told = answer_text.of(one, answer, "")
    assert re.search(r"^fwd/mul_0 .* 2\.0 us$", text, re.M) and told["slowest"] == []
    assert re.search(r"^fwd/div_0 .*mean [0-9.]+$", text, re.M) and "slowest" not in text


def test_an_op_of_which_a_node_runs_beside_others_has_no_time():
    one, other = op("one", given(BUFFER)), op("other", given(OTHER))
    apart = Apart(one, one, other, "own", pieces=[[0], [1, 2], [3]])
    assert Steps(apart, apart.map).alone == {}
    apart = Apart(one, "own", other, (None, "empty"), pieces=[[0, 1], [2, 3]])
    assert Steps(apart, apart.map).alone == {1: other}, "ours take time, too"


# --- graphs that cannot be stepped, or not in pieces


def test_what_is_launched_as_one_is_named_with_what_to_do():
    one = op("fwd/add_0", given(BUFFER))
    apart = Apart(
        one, "own", (None, "empty"), (None, "memcpy"), (None, "memset"), (one, "event_node")
    )
    assert opaque_text(apart.kinds, apart.map) == ""
    apart = Apart(one, ("own", "host_function"))
    told = opaque_text(apart.kinds, apart.map)
    assert "its node 1, a host function of a probe in the callback lane, runs in one launch" in told
    assert "CGDEBUG_LANE=direct" in told
    apart = Apart(one, (None, "conditional_node"))
    apart.map.behind[101] = one
    told = opaque_text(apart.kinds, apart.map)
    assert "its node 1, a conditional node, launched behind fwd/add_0 (a.py:1 in f)" in told
    assert "CGDEBUG_LANE" not in told
    apart = Apart((one, "child_graph"))
    assert "its node 0, a child graph of fwd/add_0" in opaque_text(apart.kinds, apart.map)


def three(kind, stepped, *rows, value=7.0):
    """add; mul and a node of that kind, which run in one launch; div writes `value`."""
    tensors = [torch.zeros(4) for _ in range(3)]
    names = ["fwd/add_0", "fwd/mul_0", "fwd/div_0"]
    ops = [op(name, given(extent_of(one), row=name)) for name, one in zip(names, tensors)]
    told = []

    def run(number, value):
        return lambda: (told.append(number), tensors[number].fill_(value))

    apart = Apart(
        ops[0],
        ops[1],
        (None, kind),
        ops[2],
        edges=[(0, 1), (1, 2), (2, 3)],
        pieces=[[0], [1, 2], [3]],
        launched=[run(0, 1.0), None, None, run(2, value)],
        opaque=1,
    )
    one = question(*rows)
    made = stepped(apart, tensors, one, run(1, 3.0))
    assert told == [0, 1, 2]
    return one, Answer("1", 1, 5, made, "it is the job's own replay", 0.0, "its node 2 is one")


@pytest.mark.parametrize("kind", ["conditional_node", "child_graph", "memory_node"])
def test_ops_around_the_opaque_piece_are_seen_and_in_it_nothing_is_inferred(stepped, kind):
    one, answer = three(kind, stepped)
    assert [(row.name, row.stats.max) for row in answer.stepped.rows] == [
        ("fwd/add_0", 1.0),
        ("fwd/div_0", 7.0),
    ]
    code, text, told = answer_text.of(one, answer, "")
    assert code == mailbox.INCONCLUSIVE and "not seen: fwd/mul_0: " in text
    assert "note: its node 2 is one" in text and told["not_seen"]["opaque"] == "its node 2 is one"
    why = "memory" if kind == "memory_node" else "runs beside it or behind it"
    assert why in told["not_seen"]["rows"][0]["reason"]
    code, text, _ = answer_text.of(*three(kind, stepped, value=torch.nan), "")
    assert code == mailbox.FOUND and "here, or earlier in what was not seen: fwd/div_0" in text
    code, _, _ = answer_text.of(*three(kind, stepped, "fwd/div_0"), "")
    assert code == mailbox.OK


def test_inputs_of_a_graph_that_frees_memory_are_not_looked_at(stepped):
    source, made = torch.ones(4), torch.zeros(4)
    reads = given(extent_of(source), True, False, "in/x")
    one = op("fwd/neg_0", reads, given(extent_of(made), row="fwd/neg_0"))
    for kind, seen in (("memory_node", ["fwd/neg_0"]), ("empty", ["in/x", "fwd/neg_0"])):
        apart = Apart(one, (None, kind), pieces=[[0], [1]], launched=[lambda: None] * 2, opaque=1)
        answer = stepped(apart, [source, made], question())
        assert [row.name for row in answer.rows] == seen
        assert [one.row.name for one in answer.not_seen] == ["in/x"] * (kind == "memory_node")


def test_what_probes_were_given_is_looked_at_where_a_replay_has_left_it(stepped):
    apart, tensors = branch()
    buffer = given(extent_of(tensors[0]))

    def saw(*names, replay=3, behind=(100,)):
        apart.map.observed = [Observed(name, buffer, behind) for name in names]
        one = mailbox.Question(replay, [], values=False)
        seen = stepped(apart, tensors, one).observed
        return {name: stats.max for name, stats in seen.items()}

    assert saw("mul") == {}, "something beside it may have overwritten it"
    apart.pieces = [[0], [1], [2], [3]]
    assert saw("mul", "twice", "again", "twice") == {"mul": 2.0, "again": 2.0}
    assert saw("div", behind=(101, 102)) == {"div": 7.0}
    assert saw("mul", behind=()) == saw("mul", behind=(100, 999)) == {}, "when is not known"
    assert saw("mul", replay=None) == {}, "nobody compares the next replay"


def test_nothing_is_found_over_nodes_that_no_op_made_is_not_said(stepped):
    tensor = torch.zeros(4)
    made = op("fwd/add_0", given(extent_of(tensor), row="fwd/add_0"))
    for node, code in ((None, mailbox.INCONCLUSIVE), ((None, "empty"), mailbox.OK)):
        apart = Apart(made, node, pieces=[[0], [1]], launched=[lambda: None] * 2)
        assert answer_text.of(*asked(stepped, (apart, [tensor])), "")[0] == code
        one_row = asked(stepped, (apart, [tensor]), "fwd/add_0")
        assert answer_text.of(*one_row, "")[0] == mailbox.OK, "that row was seen"


def test_a_look_that_fails_ends_no_replay(stepped, monkeypatch):
    apart, tensors = branch()
    apart.pieces = [[0], [1], [2], [3]]

    def fail(*_):
        raise torch.OutOfMemoryError("no memory for a copy")

    monkeypatch.setattr(Maker, "compute", fail)
    with pytest.raises(torch.OutOfMemoryError, match="no memory for a copy"):
        stepped(apart, tensors, question())
    assert [one[0].item() for one in tensors] == [7.0, 2.0, 1.0], "all of it has run"


class TorchGraph:
    """As torch's, without a GPU."""

    def __init__(self, keep_graph=False):
        self.registered, self.calls = [], []

    def register_generator_state(self, generator):
        self.registered.append(generator)

    def raw_cuda_graph(self):
        return 1

    def instantiate(self):
        self.calls.append("instantiate")


def test_a_replay_moves_on_the_generators_that_the_program_registered(monkeypatch):
    class Followed(TorchGraph):
        pass

    _apart.follow_generators(Followed)
    graph, other = Followed(), Followed()
    generators = [torch.Generator(), torch.Generator()]
    for one in generators:
        graph.register_generator_state(one)
    assert graph.registered == _apart.generators_of(graph) == generators
    assert _apart.generators_of(other) == []
    own = torch.Generator()
    monkeypatch.setattr(torch.cuda, "default_generators", (own,))
    kept = KeptGraph.__new__(KeptGraph)
    kept._device = 0
    assert kept._generators(graph) == [own, *generators]
