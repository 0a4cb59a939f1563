"""Which rows of a replay in pieces are shown, and what is said of the others, without a GPU."""

import torch

from cgdebug._job import _apart
from cgdebug._rewind.kept_graph import KeptGraph


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
