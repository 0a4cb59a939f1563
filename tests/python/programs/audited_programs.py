"""Programs whose memory is looked at, and what `cgdebug-cli audit` must answer (serve_programs.py). An eager
call stands for the capture."""

import gc

import torch
from serve_programs import serve
from torch import nn

EXPECTED = {}  # name: exit code, words


def expect(code, *words):
    def add(program):
        EXPECTED[program.__name__.removeprefix("run_")] = (code, words)
        return program

    return add


class Graph:
    """Stands for one that was captured into this pool."""

    def pool(self):
        return (0, 3)


def take_snapshots(net):
    """torch's allocator then says this: `net` has its first weight in the pool of the graph."""
    weight = {"state": "active_allocated", "size": 512, "address": net[0].weight.data_ptr()}
    frame = {"filename": "serve.py", "line": 40, "name": "capture"}
    blocks = [weight, {"state": "active_allocated", "size": 1024, "frames": [frame]}]
    blocks += [{"state": "inactive", "size": 2560}]
    here = {"device": 0, "stream": 5, "address": weight["address"], "total_size": 4096}
    segments = [{**here, "segment_pool_id": (0, 3), "blocks": blocks}]
    segments += [{**here, "segment_pool_id": (0, 0), "blocks": []}]  # of everybody
    torch.cuda.memory_snapshot = lambda *args, **kwargs: segments


def captured(missing=(), graph=None):
    """A model whose call is a capture from here on."""
    import cgdebug  # not at the top: it looks at variables that serve() sets
    from cgdebug._op_log import audit

    net, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(2, 8)
    with cgdebug.debug_mode(net, eager=True) as dm:
        holdings = dm._scope._following.hold(0, None)
        net(x)
        holdings.finish()
    holdings.capture = 7
    holdings.missing += missing
    if graph is not None:
        take_snapshots(net)
        holdings.graph = lambda: graph
    audit.keep(holdings)
    return net


def load(net, **options):
    net.load_state_dict({name: one.clone() for name, one in net.state_dict().items()}, **options)


@expect(
    1, "wrong   moved: 2 tensors *.weight, the first 0.weight: the graph reads 0x", "read by fwd/"
)
def run_assigned():
    load(captured(), assign=True)


@expect(1, "wrong   moved: 0.bias")
def run_replaced_and_seen_at_the_end():
    net = captured()
    globals()["kept"] = net
    net[0].bias = nn.Parameter(torch.ones(8))


@expect(0, "nothing is wrong yet", "latent  freed: in/")
def run_input_dropped():
    net = captured()
    gc.collect()  # the input may be in a cycle
    load(net)


@expect(3, "inconclusive", "not looked at: graph 7: what 3 kernels read that are no ops")
def run_not_all_seen():
    load(captured(["what 3 kernels read that are no ops"]))


@expect(0)
def run_with_a_pool():
    globals()["kept"] = captured(graph=Graph())
    load(globals()["kept"])


@expect(3, "anything: no graph was captured with an op log")
def run_no_graph():
    nn.Linear(8, 8)(torch.randn(2, 8))


if __name__ == "__main__":
    serve(globals())
