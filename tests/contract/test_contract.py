"""What cgdebug promises under every torch that it supports. Uses no other file of this tree, so it runs against
any installed package, beside any torch, without a GPU. Uses only public names, except for the census of
graphs, which depends on how torch is built."""

import ctypes
import gc
import html
import inspect
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

os.environ["CGDEBUG"] = "0"  # before any probe: only the tests that want a daemon start one

import torch

import cgdebug
from cgdebug import CudaGraphTensorProbe, TensorRecord

TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
BACKENDS = ["aot_eager", "inductor"]
LIBC = ctypes.CDLL(None)
MALLINFO2 = [
    "arena",
    "ordblks",
    "smblks",
    "hblks",
    "hblkhd",
    "usmblks",
    "fsmblks",
    "uordblks",
    "fordblks",
    "keepcost",
]


@pytest.fixture
def probe():
    made = []

    def make(name="p", **options):
        made.append(
            CudaGraphTensorProbe(name, [TensorRecord(capacity=8)], mode="always", **options)
        )
        return made[-1]

    yield make
    for p in made:
        p.close()


def values(p):
    return [record.tensor.flatten()[0].item() for record in p.records()]


def test_a_call_returns_its_tensor_and_keeps_its_values(probe):
    p, x = probe(), torch.arange(6, dtype=torch.float32).reshape(2, 3)
    assert p(x) is x
    (record,) = p.records()
    assert torch.equal(record.tensor, x)


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    ],
)
def test_every_dtype_arrives_bit_for_bit(probe, dtype):
    x = torch.arange(5).to(getattr(torch, dtype))
    p = probe()
    p(x)
    (record,) = p.records()
    assert record.tensor.dtype == x.dtype
    assert torch.equal(record.tensor.view(torch.uint8), x.view(torch.uint8))


def test_strided_tensors_are_packed_where_the_probe_copies(probe):
    x = torch.arange(12.0).reshape(3, 4)
    p = probe(non_contiguous="copy")
    p(x.t())
    assert torch.equal(p.records()[0].tensor, x.t().contiguous())


def test_conjugate_and_negative_views_are_taken_for_what_they_mean(probe):
    x = torch.view_as_complex(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).conj().imag  # negative bit
    p = probe(non_contiguous="copy")
    p(x)
    assert p.records()[0].tensor.tolist() == [-2, -4]


def test_refusals_are_value_errors_in_our_words(probe):
    with pytest.raises(ValueError, match="not contiguous"):
        probe()(torch.ones(3, 4).t())
    with pytest.raises(ValueError, match="view_as_real"):
        probe()(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(ValueError, match="sparse"):
        probe()(torch.eye(3).to_sparse())
    with pytest.raises(TypeError, match="not a tensor"):
        probe()([1, 2])


def test_vmap_is_refused_in_our_words(probe):
    p = probe()
    with pytest.raises((ValueError, RuntimeError), match=r"torch\.vmap"):
        torch.vmap(lambda row: p(row) * 2)(torch.ones(2, 3))


def test_probes_do_not_enter_the_gradient(probe):
    p, g = probe("forward"), probe("gradient", non_contiguous="copy")
    x = torch.ones(2, requires_grad=True)
    g.attach_grad(p(x * 3)).sum().backward()
    assert x.grad.tolist() == [3, 3] and values(g) == [1]


@pytest.mark.skipif(not hasattr(LIBC, "mallinfo2"), reason="a C library without mallinfo2")
def test_calls_leave_no_memory_behind(probe):
    class Mallinfo2(ctypes.Structure):
        _fields_ = tuple((name, ctypes.c_size_t) for name in MALLINFO2)

    def used():
        gc.collect()
        info = LIBC.mallinfo2()
        return info.uordblks + info.hblkhd

    LIBC.mallinfo2.restype = Mallinfo2
    p, x = probe(), torch.ones(8)
    for _ in range(1000):
        p(x)
    before = used()
    for _ in range(5000):
        p(x)
    assert used() - before < 5000 * 16, "less than the smallest block a call"


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_code_calls_each_probe_once_and_in_order(probe, backend):
    first, second = probe("first"), probe("second")

    def step(x):
        second(x + 2)
        first(x + 1)
        return second(x + 3).sum()

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    for i in range(2):
        assert compiled(torch.full((4,), float(i))).item() == 4 * (i + 3)
    assert values(first) == [1, 2] and values(second) == [2, 3, 3, 4]


def choose(inside, after):
    return lambda x: after(torch.cond(x.sum() > 0, lambda y: inside(y * 2), lambda y: y - 1, (x,)))


def test_a_probe_in_a_branch_of_cond_sees_what_runs_eagerly(probe):
    inside, after = probe("inside"), probe("after")
    for x in (torch.ones(3), -torch.ones(3)):
        choose(inside, after)(x)
    assert values(inside) == [2] and values(after) == [2, -2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_code_says_which_probe_in_a_branch_of_cond_sees_nothing(probe, backend):
    inside, after = probe("inside"), probe("after")
    compiled = torch.compile(choose(inside, after), fullgraph=True, backend=backend)
    with pytest.warns(RuntimeWarning, match=r"'inside' sees nothing .* a body of torch\.cond"):
        assert compiled(torch.ones(3)).tolist() == [2, 2, 2]
    assert compiled(-torch.ones(3)).tolist() == [-2, -2, -2]
    assert values(inside) == [] and values(after) == [2, -2]


@pytest.mark.skipif(TORCH < (2, 12), reason="torch before 2.12 captures no torch.cond")
def test_both_branches_that_torch_captures_call_their_probes(probe, monkeypatch):
    """A capture needs a GPU, so torch's own code gets a graph that only notes what is asked of it."""
    from torch._higher_order_ops import cudagraph_conditional_nodes

    class OnGpu(torch.Tensor):
        is_cuda = property(lambda self: True)

    class Graph:
        def begin_capture_to_if_node(self, condition):
            bodies.append(values(p))

        def end_capture_to_conditional_node(self):
            bodies.append(values(p))

    p, x, bodies = probe(), torch.ones(3), []
    graph_class = torch.cuda.CUDAGraph
    for name in ("begin_capture_to_if_node", "end_capture_to_conditional_node"):
        assert callable(getattr(graph_class, name))
    monkeypatch.setattr(graph_class, "get_currently_capturing_graph", Graph, raising=True)
    with cudagraph_conditional_nodes.CUDAGraphCaptureControlFlowOpDispatchMode():
        torch.ops.higher_order.cond(
            torch.tensor(True).as_subclass(OnGpu), lambda y: p(y * 2), lambda y: p(y - 1), (x,)
        )
    assert bodies == [[], [2], [2], [2, 0]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_backward_keeps_probes(probe, backend):
    p = probe()
    compiled = torch.compile(lambda x: (p(x * 2) ** 2).sum(), fullgraph=True, backend=backend)
    x = torch.full((3,), 2.0, requires_grad=True)
    compiled(x).backward()
    assert x.grad.tolist() == [16.0] * 3 and values(p) == [4]


@pytest.mark.skipif(TORCH < (2, 11), reason="torch 2.10 compiles no hook of an intermediate tensor")
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_gradients_are_seen(probe, backend):
    g = probe()
    compiled = torch.compile(
        lambda x: (g.attach_grad(x * 2) ** 2).sum(), fullgraph=True, backend=backend
    )
    compiled(torch.full((3,), 2.0, requires_grad=True)).backward()
    assert values(g) == [8]


class Layer(torch.nn.Module):
    """`breaks`: torch compiles what comes after it as a graph of its own."""

    def __init__(self, breaks):
        super().__init__()
        self.up, self.down, self.breaks, self.probe = (
            torch.nn.Linear(4, 8),
            torch.nn.Linear(8, 4),
            breaks,
            None,
        )

    def forward(self, x):
        x = x + self.down(torch.relu(self.up(x)))
        if self.probe is not None:
            x = self.probe(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return x * 1.5, None


class Net(torch.nn.Module):
    def __init__(self, breaks=False, depth=12):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(Layer(breaks) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x, _ = layer(x)
        return x


def compilations(net, by_layer, sizes, **options):
    """Runs the model; returns how often torch compiled, and how many graph breaks there were."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    model = net if by_layer else torch.compile(net, backend="aot_eager", **options)
    for layer in net.layers if by_layer else ():
        layer.compile(backend="aot_eager", **options)
    for size in sizes:
        model(torch.ones(size, 4, requires_grad=True)).sum().backward()
    graphs = counters["stats"]["unique_graphs"]
    return graphs, dict(counters["frames"]), len(counters["graph_break"])


def outputs_of_layers(net, sizes):
    outputs = [[] for _ in net.layers]
    for size in sizes:
        x = torch.ones(size, 4)
        for layer, seen in zip(net.layers, outputs):
            x = layer.forward(x)[0].detach()
            seen.append(x)
    return outputs


@pytest.mark.parametrize(
    ("breaks", "by_layer", "options", "sizes"),
    [
        (False, True, {}, [2]),
        (False, True, {"fullgraph": True, "dynamic": True}, [2, 3]),
        (False, True, {}, [2, 3, 5]),
        (True, True, {}, [2]),
        (True, False, {}, [2]),
        (False, False, {"fullgraph": True}, [2, 3]),
    ],
)
def test_a_watched_model_compiles_as_often_as_alone(breaks, by_layer, options, sizes):
    depth = 12 if by_layer or breaks else 3
    alone = compilations(Net(breaks, depth), by_layer, sizes, **options)
    net = Net(breaks, depth)
    with cgdebug.watch(net, values=8, inputs=True, params=True) as watch:
        assert compilations(net, by_layer, sizes, **options) == alone
        for number, wanted in enumerate(outputs_of_layers(Net(breaks, depth), sizes)):
            records = watch.probes[f"fwd/layers.{number}/0"].records()
            assert len(records) == len(wanted)
            for record, one in zip(records, wanted):
                torch.testing.assert_close(record.tensor, one)
        assert not watch.explain().not_seen


def test_probes_in_equal_layers_compile_as_often_as_none(probe):
    alone = compilations(Net(), True, [2], fullgraph=True)
    net = Net()
    for number, layer in enumerate(net.layers):
        layer.probe = probe(f"p{number}")
    assert compilations(net, True, [2], fullgraph=True) == alone
    for layer, (wanted,) in zip(net.layers, outputs_of_layers(Net(), [2])):
        (record,) = layer.probe.records()
        torch.testing.assert_close(record.tensor * 1.5, wanted)


def test_nothing_is_compiled_again_from_call_to_call(probe):
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    p = probe()
    compiled = torch.compile(lambda x: p(x) + 1, fullgraph=True, backend="aot_eager")
    for i in range(5):
        compiled(torch.full((2,), float(i)))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.fixture
def graphs(probe):
    """The module that follows torch's graphs, at work as in a job."""
    from cgdebug._job import _graphs

    probe()
    return _graphs


def test_the_methods_of_cuda_graphs_are_as_the_census_wraps_them(graphs):
    assert graphs._watched is torch.cuda.CUDAGraph
    for name in ("capture_begin", "capture_end", "replay", "reset"):
        method = getattr(torch.cuda.CUDAGraph, name)
        # An op log that ran before has wrapped that of the census.
        census = inspect.unwrap(
            method, stop=lambda one: one.__code__.co_filename == graphs.__file__
        )
        if TORCH < (2, 14) or name == "reset":
            assert census.__code__.co_filename == graphs.__file__, name
        of_torch = inspect.unwrap(method)
        assert of_torch.__qualname__ == f"CUDAGraph.{name}"
        assert of_torch.__module__ == "torch.cuda.graphs"
        if name != "capture_begin":  # whose arguments are handed on as they are
            assert list(inspect.signature(of_torch).parameters) == ["self"]
    assert bool(graphs._handles) == (TORCH >= (2, 14))


hooks_only = pytest.mark.skipif(TORCH < (2, 14), reason="torch before 2.14 has no hooks")


def hooks_of(name):
    """Torch's own table of what is registered."""
    return getattr(torch.cuda.graphs, name.replace("register_graph_", "_global_") + "s")


@hooks_only
def test_torchs_hooks_are_registered_and_removed_as_the_census_does(graphs):
    for name in graphs._HOOKS:
        register, table = getattr(torch.cuda.graphs, name), hooks_of(name)
        assert name in torch.cuda.graphs.__all__
        assert list(inspect.signature(register).parameters) == ["fn"]

        def mine(graph):
            pass

        before = list(table.values())
        handle = register(mine)
        assert list(table.values()) == [*before, mine]
        handle.remove()
        assert list(table.values()) == before


@hooks_only
def test_torch_calls_the_hooks_of_the_census(graphs):
    """A graph needs a GPU, so torch's dispatcher gets an object that is none; it swallows errors of hooks."""
    ends_are_wrapped = graphs.end_of_captures(torch.cuda.CUDAGraph) != "capture_end"
    for name in graphs._HOOKS:
        own = [hook for hook in hooks_of(name).values() if hook.__module__ == graphs.__name__]
        if ends_are_wrapped and name == "register_graph_capture_end_hook":
            assert not own
            continue
        (own,) = own
        inspect.signature(own).bind("graph")
        entered = []
        sys.setprofile(lambda frame, event, _, entered=entered: entered.append(frame.f_code))
        try:
            torch.cuda.graphs._run_global_hooks(hooks_of(name), object())
        finally:
            sys.setprofile(None)
        assert own.__code__ in entered, name


JOB = """
import torch
from cgdebug import CudaGraphTensorProbe, TensorRecord
p = CudaGraphTensorProbe("layer.out", [TensorRecord(capacity=4)], mode="always")
for i in range(4):
    p(torch.full((8,), float("nan") if i == 2 else float(i)))
"""


def test_the_command_line_records_a_job_and_names_its_nan(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "CGDEBUG"}
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    environment["XDG_RUNTIME_DIR"] = str(runtime)
    environment["PATH"] = os.path.dirname(shutil.which("cgdebug-cli"))  # no compiler, no toolkit

    def cli(*arguments):
        return subprocess.run(
            ["cgdebug-cli", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    recording = tmp_path / "a.cgrec"
    try:
        ran = cli("run", "-o", str(recording), "--", sys.executable, "-c", JOB)
        assert "layer.out" in ran.stderr and "@3" in ran.stderr, ran.stderr
        checked = cli("check", str(recording))
        assert checked.returncode == 1 and "layer.out" in checked.stdout, checked.stdout
    finally:
        cli("daemon", "stop")
    series = cgdebug.open(str(recording)).select("layer.out")[0]
    assert len(series) == 4 and series[4].tensor.tolist() == [3.0] * 8


RANK = """
import os, sys, torch, cgdebug
from torch.distributed import TCPStore
from torch.distributed.debug import start_debug_server, stop_debug_server

def main():
    rank = int(os.environ["RANK"])
    port = int(os.environ["MASTER_PORT"])
    store = rank == 0 and TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    p = cgdebug.CudaGraphTensorProbe("out<b>", [cgdebug.TensorRecord(8)], mode="always")
    for i in range(4):
        p(torch.full((8,), float("nan") if i == 2 and rank == 1 else float(i)))
    start_debug_server(
        port=int(sys.argv[1]), start_method="spawn", dump_dir=sys.argv[2], enabled_dumps={"cgdebug"}
    )
    sys.stdin.readline()
    if rank == 0:
        stop_debug_server()

if __name__ == "__main__":
    main()
"""


@pytest.mark.skipif(TORCH < (2, 13), reason="the debug server has no pages of others before 2.13")
def test_the_debug_server_of_torch_has_a_page_that_says_what_check_says(tmp_path):
    pytest.importorskip("tabulate")
    pytest.importorskip("requests")
    environment = {key: value for key, value in os.environ.items() if key != "CGDEBUG"}
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    ports = [free_port(), free_port()]
    environment.update(
        XDG_RUNTIME_DIR=str(runtime),
        WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(ports[0]),
        CGDEBUG_RUN_ID=tmp_path.name,
    )
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    command = [sys.executable, str(script), str(ports[1]), str(tmp_path / "dumps")]
    ranks = [
        subprocess.Popen(command, stdin=subprocess.PIPE, env={**environment, "RANK": str(rank)})
        for rank in range(2)
    ]
    try:
        page = wait_until(lambda: fetch(f"http://127.0.0.1:{ports[1]}/cgdebug"))
        assert "Rank 0: nothing found" in page and "Rank 1: something found" in page, page
        job = page.split("Rank 1: something found")[1].split("cgdebug-cli check ")[1][:8]
        checked = subprocess.run(
            ["cgdebug-cli", "check", job],
            env={**environment, "LC_ALL": "C", "COLUMNS": "120"},
            capture_output=True,
            text=True,
        )
        assert checked.returncode == 1 and "out<b>" in checked.stdout
        assert checked.stdout.strip() in html.unescape(page)
        assert "out<b>" not in page
        assert '<a href="/cgdebug">cgdebug</a>' in page
        dumps = tmp_path / "dumps"
        wait_until(
            lambda: any(
                checked.stdout.strip() in one.read_text() for one in dumps.glob("cgdebug_*")
            )
        )
    finally:
        for rank in ranks:
            rank.communicate(b"\n", timeout=300)
        subprocess.run(["cgdebug-cli", "daemon", "stop", "--force"], env=environment)
    assert [rank.returncode for rank in ranks] == [0, 0]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def wait_until(condition):
    """The first truthy value of condition()."""
    deadline = time.monotonic() + 300
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return value


def fetch(url):
    """None while nobody serves it."""
    try:
        with urllib.request.urlopen(url, timeout=300) as answer:
            return answer.read().decode()
    except ConnectionError:
        return None
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionError):
            return None
        raise


COMPILES = """
import os, torch, torch._dynamo
if os.environ.get("CGDEBUG_WATCH"):
    import cgdebug  # as Python's start does in a job of `cgdebug-cli run --watch`
from torch.fx.experimental.proxy_tensor import make_fx

def made():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

model, x = made(), torch.ones(2, 4)
compiled = torch.compile(model, backend="eager")
with torch.no_grad():
    compiled(x)
compiled(x).sum().backward()
other = made()
other(x)
exported = [torch.export.export(other, (x,), strict=strict) for strict in (False, True)]
graphs = [one.graph for one in exported] + [make_fx(other)(x).graph]
nodes = [[str(node.target) for node in graph.nodes] for graph in graphs]
counters = torch._dynamo.utils.counters
print("FOUND", dict(counters["frames"]), dict(counters["graph_break"]), nodes, compiled(x).sum().item())
"""


def test_a_program_that_is_watched_from_outside_is_compiled_and_exported_as_it_is_alone():
    found = {}
    for level, eager in (("", ""), ("*", ""), ("op:*", "1")):
        environment = {**os.environ, "CGDEBUG_WATCH": level, "CGDEBUG_WATCH_EAGER": eager}
        done = subprocess.run(
            [sys.executable, "-c", COMPILES], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        (found[level],) = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    assert found["*"] == found[""]
    assert found["op:*"] == found[""]


AHEAD_OF_TIME = """
import sys, torch
if hasattr(torch._dynamo.config, "enable_aot_compile"):
    torch._dynamo.config.enable_aot_compile = True
x, path = torch.ones(2, 4), sys.argv[1]
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x).relu()

model = Net()
with torch.no_grad():
    if sys.argv[2] == "save":
        import cgdebug
        watch = cgdebug.watch(model)
        made = torch.compile(model.forward, fullgraph=True).aot_compile(((x,), {}))
        made.save_compiled_function(path)
        assert "ahead of time" in watch.explain().not_seen["fwd/inner"]
        assert torch.equal(made(model, x), model(x))
    loaded = torch.compiler.load_compiled_function(open(path, "rb"))
    assert torch.equal(loaded(model, x), model(x))
"""


@pytest.mark.skipif(TORCH < (2, 11), reason="no load_compiled_function()")
def test_code_compiled_ahead_of_time_under_a_watch_is_loaded_with_and_without_one(tmp_path):
    for how in ("save", "load"):
        command = [sys.executable, "-c", AHEAD_OF_TIME, str(tmp_path / "code"), how]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
