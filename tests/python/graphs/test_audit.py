"""cgdebug.audit(): whether a capture still reads the memory that the model has. Here an eager call stands
for the capture: what is asked is where its tensors were then, and where they are now."""

import gc
import json
import os
import pathlib
import random
import sys

import audited_programs
import pytest
import torch
from serve_programs import Programs
from torch import nn

import cgdebug
from cgdebug._job._graph_pools import GraphPools, note_rows
from cgdebug._op_log import audit
from cgdebug._op_log.audit import Held, Place, Places, judge, texts_of
from cgdebug._op_log.names import ModuleNames
from conftest import capture

SIZE = 64


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(SIZE, SIZE)
        self.register_buffer("table", torch.randn(SIZE))
        self.workspace = torch.zeros(SIZE)  # a plain attribute
        self.absorbed = self.up.weight.detach().t().contiguous()
        self.caches = [torch.zeros(SIZE), torch.zeros(SIZE)]

    def forward(self, x):
        return self.up(x) + self.table + self.workspace + x @ self.absorbed + self.caches[1]


class World:
    """A model whose call was captured, with what it was given."""

    def __init__(self, run=None, model=None):
        self.net = model or Net()
        self.bytes = bytearray(8 * SIZE * 4)
        self.x = torch.frombuffer(self.bytes, dtype=torch.float32).view(8, SIZE)
        self.kept = []
        run = run or (lambda world: world.net(world.x))
        self.dm = cgdebug.debug_mode(self.net, eager=True)
        with self.dm:
            following = self.dm._scope._following
            self.holdings = following.hold(0, None)
            run(self)
            self.holdings.finish()

    def findings(self):
        gc.collect()
        (found,) = audit.run([self.holdings]).graphs
        return found.findings


@pytest.fixture(autouse=True)
def forget_all():
    yield
    audit._all.clear()


def assigned(world, copy=torch.Tensor.clone):
    state = {name: copy(one) for name, one in world.net.state_dict().items()}
    world.net.load_state_dict(state, assign=True)


def taken_again(world):
    """The memory of the input is given to a tensor that the model keeps."""
    world.x = None
    world.net.cache = torch.frombuffer(world.bytes, dtype=torch.float32)


def set_data(world):
    world.net.up.weight.data = torch.randn(SIZE, SIZE)


def replace_attribute(name, make):
    return lambda world: setattr(world.net, name, make())


EVENTS = {
    "nothing": (lambda world: None, {}),
    "copied in place": (lambda world: world.net.up.weight.data.copy_(torch.randn(SIZE, SIZE)), {}),
    "loaded": (lambda world: world.net.load_state_dict(Net().state_dict()), {}),
    "to the same dtype": (lambda world: world.net.to(torch.float32), {}),
    "a view keeps it": (
        lambda world: (world.kept.append(world.x[2:]), setattr(world, "x", None)),
        {},
    ),
    "data assigned": (set_data, {"up.weight": "wrong moved"}),
    "parameter replaced": (
        lambda world: setattr(world.net.up, "weight", nn.Parameter(torch.randn(SIZE, SIZE))),
        {"up.weight": "wrong moved"},
    ),
    "buffer replaced": (
        replace_attribute("table", lambda: torch.randn(SIZE)),
        {"table": "wrong moved"},
    ),
    "attribute rebound": (
        replace_attribute("absorbed", lambda: torch.randn(SIZE, SIZE)),
        {"absorbed": "wrong moved"},
    ),
    "cache in a list rebound": (
        lambda world: world.net.caches.__setitem__(1, torch.zeros(SIZE)),
        {"caches[1]": "wrong moved"},
    ),
    "assigned": (
        assigned,
        {"table": "wrong moved", "up.weight": "wrong moved", "up.bias": "wrong moved"},
    ),
    "resized": (
        lambda world: world.net.workspace.resize_(1 << 16),
        {"workspace": "wrong moved"},
    ),
    "removed": (lambda world: delattr(world.net, "workspace"), {"workspace": "latent freed"}),
    "input dropped": (lambda world: setattr(world, "x", None), {"in/": "latent freed"}),
    "input dropped, memory taken": (taken_again, {"in/": "wrong freed"}),
}


@pytest.mark.parametrize("event", EVENTS)
def test_what_happens_to_memory_is_told(daemon, event):
    happen, expected = EVENTS[event]
    world = World()
    assert world.findings() == []
    happen(world)
    found = world.findings()
    assert len(found) == len(expected), found
    for name, words in expected.items():
        level, kind = words.split()
        (text,) = [text for of, text in found if of == level and text.startswith(f"{kind}: {name}")]
        assert "read by fwd/" in text
    if event == "input dropped, memory taken":
        assert "and cache has it now" in found[0][1]


def test_a_tensor_that_moves_within_one_storage_has_moved(daemon):
    flat, net = torch.randn(2 * SIZE * SIZE), Net()
    net.absorbed = flat[: SIZE * SIZE].view(SIZE, SIZE)
    world = World(model=net)
    net.absorbed = flat[: SIZE * SIZE].view(SIZE, SIZE)
    assert world.findings() == []
    world.net.absorbed = flat[SIZE * SIZE :].view(SIZE, SIZE)
    ((level, text),) = world.findings()
    assert level == "wrong" and text.startswith("moved: absorbed")
    assert f"{flat.data_ptr():#x}" in text and f"{flat[SIZE * SIZE :].data_ptr():#x}" in text


def test_of_a_model_that_is_gone_all_memory_is_freed(daemon):
    world = World()
    assert world.findings() == []
    world.net = None
    gc.collect()
    assert {level for level, _ in world.findings()} == {"latent"}


def test_kernels_that_are_no_ops_are_not_looked_at(daemon):
    holdings = audit.Holdings(1, ModuleNames())
    holdings.kernels += 2
    holdings.finish()
    assert holdings.missing == ["what 2 kernels read that are no ops"]


def test_a_double_model_has_left_all_its_memory(daemon):
    world = World()
    world.net.double()
    assert {level for level, _ in world.findings()} == {"wrong"}
    assert len(world.findings()) == 3


def test_a_copy_with_the_same_values_is_latent_while_the_old_one_lives(daemon):
    world = World()
    world.kept.append(world.net.table)
    world.net.table = world.net.table.clone()
    ((level, text),) = world.findings()
    assert level == "latent" and "which something else keeps; the model has it at 0x" in text
    world.net.table.add_(1)
    assert world.findings()[0][0] == "wrong"


def test_tied_weights_of_which_one_is_replaced(daemon):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    world = World(lambda world: world.net(torch.randn(2, 4)), net)
    net[1].weight = nn.Parameter(torch.randn(4, 4))
    ((level, text),) = [one for one in world.findings() if "moved" in one[1]]
    assert level == "wrong" and text.startswith("moved: 1.weight")


def test_gradients_and_state_of_an_optimizer_have_names(daemon):
    net = nn.Linear(SIZE, SIZE)
    optimizer = torch.optim.AdamW(net.parameters())

    def step(world):
        net(torch.randn(8, SIZE)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    cgdebug.debug_mode(net, eager=True)
    step(None)  # makes the gradients and the state
    world = World(step, net)
    assert [one for one in world.findings() if "weight" in one[1] or "bias" in one[1]] == []
    net.weight.grad = None
    optimizer.state[net.weight]["exp_avg"] = torch.zeros(SIZE, SIZE)
    found = [text for _, text in world.findings()]
    assert any(text.startswith("freed: weight.grad") for text in found), found
    assert any(text.startswith("moved: weight.exp_avg:") for text in found), found


def test_tensors_that_differ_by_numbers_are_one_finding(daemon):
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))
    world = World(lambda world: world.net(torch.randn(2, 4)), net)
    assigned(world)
    found = [text for _, text in world.findings() if "moved" in text]
    assert sorted(text.split(":")[1].split(",")[0] for text in found) == [
        " 5 tensors *.bias",
        " 5 tensors *.weight",
    ]
    assert "read by fwd/0/addmm_0 and 4 more" in found[0]


# --- the decision, over plain data ------------------------------------------------------------------

HELD = Held(address=0x1000, bytes=0x100, label="in/fwd/mm_0.self", readers=["fwd/mm_0"])
NAMED = Held(0x1000, 0x100, "", ["fwd/mm_0"], ["w"])


@pytest.mark.parametrize(
    ("held", "is_alive", "now", "of_graphs", "expected"),
    [
        (HELD, True, [], [], None),
        (HELD, False, [], [], ("latent", "freed", "")),
        (HELD, False, [Place("kv", 0x10F0, 0x100)], [], ("wrong", "freed", "kv")),
        (HELD, False, [Place("kv", 0x1100, 0x100)], [], ("latent", "freed", "")),
        (HELD, False, [], [Place("out of capture 4", 0x1000, 0x10)], ("hazard", "freed", "out of capture 4")),
        (NAMED, True, [Place("w", 0x1000, 0x100)], [], None),
        (NAMED, False, [Place("w", 0x1000, 0x100)], [], None),  # made again in the same memory
        (NAMED, True, [Place("w", 0x2000, 0x100)], [], ("wrong", "moved", "")),
        (NAMED, False, [Place("w", 0x2000, 0x100), Place("b", 0x1000, 4)], [], ("wrong", "moved", "b")),
        (NAMED, True, [], [], ("latent", "gone", "")),
    ],
)  # fmt: skip
def test_the_decision_is_made_of_names_and_addresses(held, is_alive, now, of_graphs, expected):
    found = judge(held, is_alive, {one.name: one for one in now}, Places(now), Places(of_graphs))
    assert (found and (found.level, found.kind, found.user)) == expected


def test_what_overlaps_is_found_among_many_places():
    generator = random.Random(0)
    for _ in range(200):
        places = [
            Place(str(n), generator.randrange(200), generator.randrange(1, 30)) for n in range(12)
        ]
        address, size = generator.randrange(230), generator.randrange(1, 20)
        expected = {
            one.name
            for one in places
            if one.address < address + size and address < one.address + one.bytes
        }
        assert set(Places(places).at(address, size)) == expected


def test_host_memory_is_called_so():
    held = Held(0x1000, 0x200, "in/copy__0.src", ["fwd/copy__0"], is_host=True)
    found = judge(held, False, {}, Places([]), Places([]))
    ((level, text),) = texts_of([found], {})
    assert level == "latent" and "the graph copies from host memory at 0x1000" in text


# --- from the job to the command --------------------------------------------------------------------


LOADS = """
import json
from audited_programs import captured, load
from cgdebug._op_log import audit

def show():
    assert audit._native_log.wait_consumed(60)
    print(json.dumps(cgdebug.audit().wrong))
    sys.stdin.readline()

net = captured()
show()
load(net, assign=True)
show()
"""


def test_loading_weights_audits_by_itself_and_the_command_shows_it(daemon, cli, job):
    running = job(LOADS, PYTHONPATH=os.pathsep.join(sys.path))
    session = ("-s", f"{running.pid}")

    def shown():
        """What Python says, and the graph and the exit code of the command."""
        wrong = json.loads(running.line())
        done = cli("--json", *session, "audit")
        (graph,) = json.loads(done.stdout)["graphs"]
        return wrong, graph, done.returncode

    wrong, graph, code = shown()
    assert (wrong, graph["known"], graph["tensors"], graph["wrong"]) == ([], True, 5, [])
    assert code in (0, 3)
    running.process.stdin.write("\n")
    running.process.stdin.flush()
    wrong, graph, code = shown()
    assert code == 1
    assert any("0.weight" in text for text in wrong)
    moved = [text for text in graph["wrong"] if text.startswith("moved: ")]
    assert any("the graph reads 0x" in text for text in moved)
    assert "wrong   moved: " in cli(*session, "audit").stdout
    causes = cli("--json", *session, "why")
    kinds = {one["kind"]: one for one in json.loads(causes.stdout)["findings"]}
    assert kinds["moved_pointer"]["level"] == "shown"
    assert "cgdebug-cli audit" in kinds["moved_pointer"]["next"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    server = Programs(pathlib.Path(audited_programs.__file__), tmp_path_factory.mktemp("programs"))
    yield server
    server.close()


@pytest.mark.parametrize("name", audited_programs.EXPECTED)
def test_a_recording_has_what_the_job_found_last(daemon, cli, programs, tmp_path, name):
    code, words = audited_programs.EXPECTED[name]
    path = tmp_path / f"{name}.cgrec"
    programs.record(path, name)
    done = cli("audit", str(path))
    assert done.returncode == code, done.stdout
    for word in words:
        assert word in done.stdout, done.stdout
    kinds = {(one.kind, one.level) for one in cgdebug.why(path)}
    assert (("moved_pointer", "shown") in kinds) == (code == 1), kinds


class InPool:
    def __init__(self, pool):
        self.pool = lambda: pool


def test_freed_memory_in_the_pool_of_the_graph_stays_with_it(monkeypatch):
    segments = [
        {"address": 0x1000, "total_size": 0x400, "segment_pool_id": (0, 7)},
        {"address": 0x8000, "total_size": 0x400, "segment_pool_id": (0, 0)},
    ]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    pools = GraphPools()
    held = (HELD.address, HELD.bytes)
    assert pools.has(*held, InPool((0, 7)))
    assert not pools.has(*held, InPool((0, 8))), "of another graph"
    assert not pools.has(0x8000, 0x100, InPool((0, 7))), "of everybody"
    assert not pools.has(0x1380, 0x100, InPool((0, 7))), "in part"
    assert not pools.has(*held, None), "its graph is gone"


KEPT = {
    "device": 0,
    "bytes": 4096,
    "segments": 1,
    "held": 1536,
    "waiting": 0,
    "streams": [],
    "keepers": [
        {"by": "serve.py:40 in capture", "bytes": 1024, "blocks": 1},
        {"by": "0.weight", "bytes": 512, "blocks": 1},
    ],
    "more": {"bytes": 0, "blocks": 0},
}


def test_a_recording_and_its_report_have_what_the_pools_held(daemon, cli, programs, tmp_path):
    path = tmp_path / "pool.cgrec"
    programs.record(path, "with_a_pool")
    (graph,) = json.loads(cli("--json", "audit", str(path)).stdout)["graphs"]
    assert graph["memory"] == [KEPT]
    cli("report", str(path), "-o", str(tmp_path / "pool.html"))
    page = (tmp_path / "pool.html").read_text(encoding="utf-8")
    assert "Memory of graphs" in page
    assert "pool 0.3 on cuda:0: 4 KiB in 1 segment, 1.5 KiB held, 2.5 KiB free" in page
    programs.record(tmp_path / "none.cgrec", "input_dropped")
    cli("report", str(tmp_path / "none.cgrec"), "-o", str(tmp_path / "none.html"))
    assert "Memory of graphs" not in (tmp_path / "none.html").read_text(encoding="utf-8")


POOLS = """
import cgdebug
from audited_programs import Graph, captured
from cgdebug._job import _native
from cgdebug._op_log import audit

net = captured(graph=Graph())
for number in (7, 8):
    known = _native.probe_module().graph_begin(number, "serve.py:40 in capture")
    known.end(17, False)
    known.pool(0, 3)
cgdebug.audit()
assert audit._native_log.wait_consumed(60)
print("captured")
sys.stdin.readline()
"""


def test_the_command_shows_what_keeps_a_pool_and_of_which_graphs_nobody_knows(daemon, cli, job):
    running = job(POOLS, PYTHONPATH=os.pathsep.join(sys.path))
    assert running.line() == "captured"
    done = cli("graphs", str(running.pid), "--memory")
    assert "  512 B in 1 block: 0.weight\n" in done.stdout, done.stdout
    assert "of 1 of 2 graphs the memory is not known" in done.stderr
    (told,) = json.loads(cli("--json", "graphs", str(running.pid), "--memory").stdout)["sessions"]
    assert [graph["memory"] for graph in told["graphs"]] == [[KEPT], None]
    (told,) = json.loads(cli("--json", "graphs", str(running.pid)).stdout)["sessions"]
    assert "memory" not in told["graphs"][0], "it was not asked for"


def test_memory_in_a_pool_has_the_row_that_was_computed_there_last(monkeypatch):
    block = {"state": "active_allocated", "size": 0x100}
    one = {"device": 0, "address": 0x1000, "total_size": 0x400, "segment_pool_id": (0, 9)}
    blocks = [block, block, {"state": "inactive", "size": 0x200}]
    segments = [{**one, "stream": 5, "blocks": blocks}]
    segments.append({**one, "address": 0x9000, "stream": 6, "blocks": [block]})
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    graph = InPool((0, 9))
    note_rows(graph, [(0x1000, "fwd/mm_0"), (0x1100, "fwd/mm_1"), (0x1000, "fwd/mm_2")])
    notes = GraphPools().notes_of(graph, lambda address, size: ["b"] if address == 0x1100 else [])
    assert notes == [
        ("pool", "0 9 0 2048 2 768 0"),
        *(("stream", "1024 0x5"), ("stream", "1024 0x6")),
        ("keeps", "256 1 where fwd/mm_2 was computed"),
        *(("keeps", "256 1 b"), ("keeps", "256 1 ")),
    ]
    assert GraphPools().notes_of(None, list) == [], "its graph is gone"


@pytest.mark.gpu
def test_what_a_graph_is_given_by_one_before_it_in_its_pool_is_no_finding(daemon):
    first, second = (torch.nn.Linear(SIZE, SIZE).cuda() for _ in range(2))
    x = torch.randn(8, SIZE, device="cuda")
    with cgdebug.debug_mode(torch.nn.ModuleList([first, second])), torch.no_grad():
        graph, between = capture(lambda: first(x))
        later = torch.cuda.CUDAGraph()
        with torch.cuda.graph(later, pool=graph.pool()):
            out = second(between)
    del between
    graph.replay()
    later.replay()
    found = cgdebug.audit()
    assert found.latent == [] and found.wrong == [], found
    assert out.isfinite().all()


def test_a_job_without_graphs_is_inconclusive(daemon):
    found = cgdebug.audit()
    assert not found.ok and "anything" in found.not_looked_at[0]


@pytest.mark.gpu
@pytest.mark.parametrize("happens", [False, True])
def test_a_graph_that_reads_memory_which_the_model_has_left(daemon, happens):
    net, x = Net().cuda(), torch.randn(8, SIZE, device="cuda")
    for name in ("workspace", "absorbed"):
        setattr(net, name, getattr(net, name).cuda())
    net.caches = [one.cuda() for one in net.caches]
    with cgdebug.debug_mode(net), torch.no_grad():
        graph, _ = capture(lambda: net(x))
    graph.replay()
    assert cgdebug.audit().ok, cgdebug.audit()
    if happens:
        net.load_state_dict({n: one.clone() for n, one in net.state_dict().items()}, assign=True)
        found = cgdebug.audit()
        assert not found.ok and any("up.weight" in text for text in found.wrong), found
        assert "seen after replay 1" in str(found)
    del graph
    gc.collect()
    assert cgdebug.audit().graphs == []


class Captured:
    """A model in a graph: its step copies a batch from pinned memory, and may train."""

    def __init__(self, trains):
        torch.manual_seed(0)
        self.net = Net().cuda()
        for name in ("workspace", "absorbed"):
            setattr(self.net, name, getattr(self.net, name).cuda())
        self.net.caches = [one.cuda() for one in self.net.caches]
        self.x = torch.randn(8, SIZE, device="cuda")
        self.host = torch.randn(8, SIZE).pin_memory()
        self.kept = []
        for one in self.net.parameters() if trains else ():
            one.grad = torch.zeros_like(one)

        def step():
            x = self.x
            x.copy_(self.host, non_blocking=True)
            out = self.net(x).sum()
            if trains:
                out.backward()
            return out

        with cgdebug.debug_mode(self.net), torch.set_grad_enabled(trains):
            self.graph, self.out = capture(step)
        self.graph.replay()

    def take_again(self):
        address, self.x = self.x.data_ptr(), None
        gc.collect()
        while not self.kept or (self.kept[-1].data_ptr() != address and len(self.kept) < 64):
            self.kept.append(torch.randn(8, SIZE, device="cuda"))
        assert self.kept[-1].data_ptr() == address
        self.net.cache = self.kept[-1]

    def drop_gradients(self):
        for one in self.net.parameters():
            one.grad = None
        self.net(torch.randn(2, SIZE, device="cuda")).sum().backward()


def copy_in_place(world):
    for one in world.net.parameters():
        one.data.copy_(torch.randn_like(one))


def new_data(world):
    world.net.up.weight.data = torch.randn_like(world.net.up.weight)


# What happens, whether the graph trains, and which sentences are said: of what is wrong and latent.
ON_A_GPU = {
    "nothing": (lambda world: None, False, [], []),
    "copied in place": (copy_in_place, False, [], []),
    "trained on": (lambda world: world.graph.replay(), True, [], []),
    "data assigned": (new_data, False, ["moved: up.weight"], []),
    "attribute rebound": (
        lambda world: setattr(world.net, "absorbed", world.net.absorbed.clone()),
        False,
        ["moved: absorbed"],
        [],
    ),
    "gradients made again": (Captured.drop_gradients, True, ["up.bias.grad"], []),
    "input dropped": (lambda world: setattr(world, "x", None), False, [], ["freed: in/"]),
    "input dropped, memory taken": (Captured.take_again, False, ["freed: in/", "cache"], []),
    "host memory dropped": (lambda world: setattr(world, "host", None), False, [], ["host"]),
}


@pytest.mark.gpu
@pytest.mark.parametrize("event", ON_A_GPU)
def test_of_a_captured_graph_what_happens_to_its_memory_is_told(daemon, event):
    change, trains, wrong, latent = ON_A_GPU[event]
    world = Captured(trains)
    change(world)
    gc.collect()
    torch.cuda.synchronize()
    found = cgdebug.audit()
    assert bool(found.wrong) == bool(wrong) and found.ok == (not wrong), found
    assert all(any(one in text for text in found.wrong) for one in wrong), found
    assert all(any(one in text for text in found.latent) for one in latent), found
