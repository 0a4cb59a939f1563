"""run --blocking, and what it says of a piece, where there is no GPU."""

import gc
import json
import re
import sys
import types

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from cgdebug._job import _apart, _graph_dumps, _native
from cgdebug._op_log import node_map
from cgdebug._op_log.node_map import Given, Op
from cgdebug._rewind import mailbox
from cgdebug._rewind.stepping import Row

OP = Op(
    "fwd/layers.3/mm_0",
    "aten.mm.default",
    "layers.3",
    "model.py:7 in forward",
    (
        Given("self", "fwd/layers.2/add_1", "float32", (4, 8), (0, 128), True, False),
        Given("mat2", "in/layers.3.weight", "float32", (8, 8), (128, 384), True, False),
        Given("", "fwd/layers.3/mm_0", "float32", (4, 8), (512, 640), False, True),
    ),
)


def node(handle, name="gemm", is_own=False):
    return {
        "handle": handle,
        "kind": "kernel",
        "name": name,
        "grid": (2, 1, 1),
        "block": (128, 1, 1),
        "is_own": is_own,
    }


@pytest.fixture
def pieces():
    native = types.SimpleNamespace(
        nodes=[node(10), node(11, "stray"), node(12, "Leaf", is_own=True), node(13, "other")],
        pieces=[[0], [1], [2], [3, 0]],
        opaque=None,
    )
    node_map = types.SimpleNamespace(op_of={10: OP}, behind={11: OP})
    return _apart.Pieces(native, node_map, capture=5)


def test_a_piece_is_named_with_its_op_and_its_tensors(pieces):
    assert pieces.report(0, 7, "failed: cudaErrorAssert").splitlines()[:-1] == [
        "cgdebug: node 0 of graph 5 failed: cudaErrorAssert, in replay 7",
        "  kernel  gemm, grid 2x1x1, block 128x1x1",
        "  op      aten.mm.default, row fwd/layers.3/mm_0",
        "  module  layers.3",
        "  line    model.py:7 in forward",
        "  reads   self fwd/layers.2/add_1 float32[4, 8]",
        "  reads   mat2 in/layers.3.weight float32[8, 8]",
        "  writes  fwd/layers.3/mm_0 float32[4, 8]",
    ]


def test_a_piece_is_named_in_one_line_for_where_and_why(pieces):
    assert pieces.summary(0) == (
        "node 0, kernel gemm, op aten.mm.default fwd/layers.3/mm_0 of layers.3 "
        "(model.py:7 in forward)"
    )
    assert pieces.summary(1) == (
        "node 1, kernel stray, launched behind aten.mm.default fwd/layers.3/mm_0 of layers.3 "
        "(model.py:7 in forward)"
    )
    assert pieces.summary(3) == "one of 2 parallel nodes, kernel other"
    pieces.native.opaque = 3
    assert pieces.summary(3) == "one of 2 nodes that run in one launch, kernel other"


@pytest.mark.parametrize("opaque, ran", [(None, "all0123"), (1, "0all23"), (3, "012all")])
def test_torch_launches_the_opaque_piece_in_its_place(pieces, monkeypatch, opaque, ran):
    told = []
    module = types.SimpleNamespace(await_stream=lambda stream, most_s: True)
    monkeypatch.setattr(_apart._native, "probe_module", lambda: module)
    pieces.native.opaque = opaque
    pieces.native.launch = lambda number, stream: told.append(str(number))
    pieces.run(0, 1, lambda: told.append("all"))
    assert "".join(told) == ran


def test_a_node_that_no_op_made_says_behind_which_it_was_launched(pieces):
    text = pieces.report(1, 1, "failed: cudaErrorAssert")
    assert "op      none; launched behind aten.mm.default fwd/layers.3/mm_0" in text
    assert "reads" not in text


def test_of_a_parallel_region_each_node_is_named(pieces):
    text = pieces.report(3, 1, "still runs after 10 s")
    assert text.startswith("cgdebug: one of 2 parallel nodes of graph 5 still runs after 10 s")
    assert "kernel  other" in text and "kernel  gemm" in text
    assert "op      not known" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="a call of CUDA must fail")
def test_an_error_of_cuda_is_given_by_its_name():
    with pytest.raises(RuntimeError) as failed:
        _native.load().await_stream(0, 0.0)
    cause = failed.value.cause_in_cuda
    assert re.fullmatch(r"cudaError\w+ \(.+\)", cause)
    assert f" failed: {cause}. " in str(failed.value)


PIECES = """
    from cgdebug._op_log.node_order import notes
    for text in {texts}:
        notes.tell_piece(12, text)
    print(cgdebug._job._native.probe_module().session()["uuid"][:8])
    sys.stdin.readline()
"""
STANDS = "stands node 3, kernel spin, in replay 4: still runs after 10 s"
FAILED = "failed node 3, kernel gather, in replay 4: cudaErrorAssert"


@pytest.mark.parametrize(
    ("texts", "place", "cause"),
    [
        (
            [STANDS],
            "graph 12, launched kernel by kernel, stands: node 3, kernel spin",
            "consistent",
        ),
        ([STANDS, "passed"], None, None),
        (
            [STANDS, "passed", FAILED],
            "graph 12, launched kernel by kernel, failed: node 3",
            "shown",
        ),
    ],
    ids=["stands", "passed", "failed"],
)
def test_where_and_why_name_the_piece_of_a_graph(job, cli, texts, place, cause):
    running = job(PIECES.format(texts=texts), CGDEBUG="1")
    session = running.line()
    told = cli("where", session)
    piece = json.loads(cli("where", session, "--json").stdout)["jobs"][0]["ranks"][0]["piece"]
    causes = json.loads(cli("why", session, "--json").stdout)["findings"]
    if place is None:
        assert piece is None and told.returncode == 3 and causes == []
    else:
        assert piece.startswith(place) and place in told.stdout
        assert told.returncode == 0, told.stdout
        assert [one["level"] for one in causes] == [cause]
    # It says nothing of the order of the graph.
    assert cli("races", session).returncode == 3
    running.go_on()
    running.finish()


class OneNodeEach:
    """Stands for a capture in which each op adds a node, and something else one in front of it."""

    def __init__(self, capture):
        self._count = 0

    def take(self, stream):
        self._count += 1
        return [self._count]

    def take_rest(self, stream):
        return []


@pytest.fixture
def mapped(monkeypatch):
    """mapped(function): the NodeMap of what it runs, as if a stream captured it."""
    native = types.SimpleNamespace(CaptureNodes=OneNodeEach)
    monkeypatch.setattr(node_map._native, "load", lambda: native)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: types.SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(node_map.MapWriter, "_is_logged", lambda self, name, tensor: True)

    def of(function):
        mapping = node_map.Mapping(capture=1)
        function()
        found = mapping.end()
        assert gc.isenabled() and _get_current_dispatch_mode_stack() == []
        return found

    return of


def test_a_map_of_nodes_has_the_op_its_module_its_line_and_what_it_was_given(mapped):
    model = torch.nn.Sequential(torch.nn.Linear(4, 2, bias=False), torch.nn.ReLU())
    x = torch.ones(3, 4)
    with torch.no_grad():
        found = mapped(lambda: model(x))
    by_op = {op.op: op for op in found.op_of.values()}
    product = by_op["aten.mm.default"]
    assert (product.name, product.module) == ("fwd/0/mm_0", "0")
    assert "test_apart.py" in product.site
    assert [(one.argument, one.row, one.shape) for one in product.given] == [
        ("self", "in/0/mm_0.self", (3, 4)),
        ("mat2", "in/0.weight", (4, 2)),
        ("", "fwd/0/mm_0", (3, 2)),
    ]
    assert [(one.reads, one.writes) for one in product.given] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    begin, end = product.given[2].extent
    assert end - begin == 3 * 2 * 4
    assert by_op["aten.relu.default"].given[0].row == "fwd/0/mm_0"
    assert product in found.behind.values(), "a node that no op made is behind the op before it"


def test_a_map_tells_what_an_op_overwrites_by_what_was_there_before(mapped):
    x, y = torch.ones(4), torch.zeros(4)

    def run():
        torch.add(x, 1, out=y)
        y.mul_(2)

    found = mapped(run)
    by_op = {op.op: op for op in found.op_of.values()}
    changed = by_op["aten.mul_.Tensor"]
    assert changed.name == "fwd/mul__0"
    assert [(one.row, one.reads, one.writes) for one in changed.given] == [
        ("fwd/add_0", True, True)
    ]
    out = by_op["aten.add.out"].given[-1]
    assert (out.argument, out.row, out.reads, out.writes) == ("out", "fwd/add_0", False, True)


def test_what_an_op_writes_into_memory_that_it_was_given_has_the_name_of_its_row(mapped):
    x, buffer = torch.ones(4), torch.zeros(4)

    def run():
        torch.mul(x, 2, out=buffer)
        torch.mul(x, 7, out=buffer)
        torch._foreach_add_([x, buffer], 1)
        torch.ones(4).sin_()

    found = mapped(run)
    ops = list({id(op): op for op in found.op_of.values()}.values())
    names = [Row(op, one, stats=None).name for op in ops for one in op.given if one.writes]
    assert [op.op for op in ops][:2] == ["aten.mul.out", "aten.mul.out"]
    assert names[:2] == ["fwd/mul_0", "fwd/mul_1"] and names[-1] == "fwd/sin__0", names
    assert names[2:4] == ["fwd/_foreach_add__0.0", "fwd/_foreach_add__0.1"], names


def test_a_dump_says_whether_a_graph_can_be_taken_apart(tmp_path, monkeypatch):
    class Graph:
        pass

    monkeypatch.setattr(_graph_dumps, "_nodes_of", lambda graph: [])
    path = tmp_path / "graph.dot"

    def first_line(graph):
        dump = _graph_dumps._named_dump(lambda graph, path: path.write_text("digraph dot {}\n"))
        dump(graph, path)
        first, rest = path.read_text().split("\n", 1)
        assert rest == "digraph dot {}\n"
        return first

    graph = Graph()
    assert first_line(graph) == (
        "// cgdebug: it is not taken apart: nobody asked for it. Type: cgdebug-cli run --ask -- "
        "COMMAND"
    )
    graph._cgdebug_kept = None
    assert "its program keeps it (keep_graph=True)" in first_line(graph)
    graph._cgdebug_kept = types.SimpleNamespace(why_not_apart="", opaque="")
    assert first_line(graph) == "// cgdebug: it can be taken apart"
    graph._cgdebug_kept.opaque = "its node 3 runs with others"
    assert first_line(graph).endswith("taken apart, but its node 3 runs with others")
    graph._cgdebug_kept = types.SimpleNamespace(why_not_apart="its node 3 is there")
    assert first_line(graph) == "// cgdebug: it cannot be taken apart: its node 3 is there"


def test_a_graph_that_is_launched_in_pieces_says_so_when_it_is_asked(monkeypatch):
    monkeypatch.setattr(mailbox, "_listener", object())  # this process takes no questions
    one = _apart._Graph(raw=lambda graph: 0, exec=lambda graph: 0)
    one.capture = 7
    question = mailbox.Question(None, [], values=False)
    assert one.ask(question) and "launches its graphs in pieces already" in question.reason
    one._join_mailbox()
    one._say_whole("it became part of another capture")
    assert [state["why_not_apart"] for state in mailbox.states() if state["capture"] == 7] == [
        "it became part of another capture"
    ]
    one.forget()
    assert [state for state in mailbox.states() if state["capture"] == 7] == []


JOB = "import torch; print(torch.cuda.CUDAGraph.replay.__name__, hasattr({0}, '__wrapped__'))"


def test_run_blocking_reaches_a_job_that_does_not_import_cgdebug(cli):
    job = JOB.format("torch.cuda.CUDAGraph.__init__")
    told = cli("run", "--blocking", "--no-live", "--", sys.executable, "-c", job)
    assert told.returncode == 0, told.stderr
    assert told.stdout == "replay True\n"
    told = cli("run", "--no-live", "--", sys.executable, "-c", job)
    assert told.stdout == "replay False\n"


def test_a_value_that_it_cannot_have_is_refused(cli):
    told = cli("run", "--", sys.executable, "-c", "", CGDEBUG_LAUNCH_BLOCKING="yes")
    assert told.returncode == 2
    assert "CGDEBUG_LAUNCH_BLOCKING is 0 or 1, not 'yes'" in told.stderr
