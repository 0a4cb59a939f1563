"""Which rows of a replay in pieces are shown, and what is said of the others, without a GPU."""

import types

import pytest
import torch

from cgdebug._job import _apart
from cgdebug._op_log.node_map import Op
from cgdebug._rewind.kept_graph import KeptGraph


class Apart:
    """nodes: by number, what made each: an op, None (no op) or "own"; or (that, kind)
    launched: what a piece does"""

    def __init__(self, *nodes, edges=(), pieces=None, launched=None):
        nodes = [one if type(one) is tuple else (one, "kernel") for one in nodes]
        self.nodes = [
            {"handle": 100 + number, "name": "k", "kind": kind, "is_own": made == "own"}
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
        )
        self._launched = launched

    def launch(self, piece, stream, with_own):
        for node in self.pieces[piece]:
            self._launched[node]()


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


@pytest.mark.parametrize("kind, is_whole", [("kernel", False), ("conditional_node", True)])
def test_a_graph_with_a_conditional_node_is_launched_as_a_whole(
    monkeypatch, capsys, kind, is_whole
):
    removed = []
    native = types.SimpleNamespace(
        ApartGraph=lambda raw: Apart((None, "kernel"), (None, kind)), remove_nodes=removed.append
    )
    monkeypatch.setattr(_apart._native, "load", lambda: native)
    graph = TorchGraph()
    own = _apart._Graph(raw=TorchGraph.raw_cuda_graph)
    own._take_apart(graph)
    assert own._is_whole == is_whole and (own._pieces is None) == is_whole
    assert removed == ([] if is_whole else [1]), "torch launches what it has"
    told = capsys.readouterr().err
    assert ("is launched as a whole" in told and "its node 1 is a conditional" in told) == is_whole
