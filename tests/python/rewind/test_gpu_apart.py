"""Captured graphs that are launched piece by piece."""

import ctypes
import gc
import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import apart_programs
import pytest
import torch

import cgdebug
from cgdebug._job import _native
from conftest import find_program, side_stream, wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.own_lane]
HERE = pathlib.Path(__file__).parent


def in_pieces(graph, copies=True):
    return _native.load().ApartGraph(graph.raw_cuda_graph(), copies)


def run(apart, only=None):
    stream = torch.cuda.current_stream().cuda_stream
    for number in range(len(apart.pieces)) if only is None else only:
        apart.launch(number, stream)
        assert _native.probe_module().await_stream(stream, 60.0)


@pytest.mark.parametrize("name", apart_programs.PROGRAMS)
def test_a_graph_in_pieces_leaves_the_bits_of_one_launch(name):
    program = apart_programs.PROGRAMS[name]()
    apart = in_pieces(program.graph)
    before = program.save()
    program.graph.replay()
    after = program.save()
    changed = [one for one, was in zip(after, before) if not torch.equal(one, was)]
    assert changed, "a replay that changes nothing would prove nothing"
    program.restore(before)
    # The seed and the offset of random numbers are those of the replay.
    run(apart)
    now = program.save()
    different = [place for place, (a, b) in enumerate(zip(now, after)) if not torch.equal(a, b)]
    assert not different
    assert sorted(node for piece in apart.pieces for node in piece) == list(range(len(apart.nodes)))
    # All but the two parallel branches of the bag is stepped node by node.
    alone = sum(len(piece) == 1 for piece in apart.pieces)
    assert alone == len(apart.nodes) or name == "bag"
    assert all(node["name"] for node in apart.nodes)


@pytest.mark.parametrize("name", ["train", "bag"])
def test_pieces_of_a_graph_that_stays_leave_the_same_bits(name):
    program = apart_programs.PROGRAMS[name]()
    apart, original = in_pieces(program.graph), in_pieces(program.graph, copies=False)
    assert original.pieces == apart.pieces
    for number in range(len(apart.nodes)):
        assert original.pointers(number) == apart.pointers(number)
    before = program.save()
    program.graph.replay()
    after = program.save()
    program.restore(before)
    original.prepare(with_own=True)
    run(original)
    assert all(torch.equal(a, b) for a, b in zip(program.save(), after))


@pytest.mark.alone
def test_a_graph_in_pieces_takes_at_most_4_kib_of_the_host_for_each_node():
    x = torch.zeros(256, device="cuda")
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        for _ in range(4000):
            x.add_(1)
    graph.instantiate()
    first = in_pieces(graph, copies=False)  # what CUDA allocates once
    first.prepare(with_own=True)

    def resident():
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    second = in_pieces(graph, copies=False)
    second.prepare(with_own=True)
    each = (resident() - before) / len(second.nodes)
    print(f"{each:.0f} bytes a node")
    assert len(second.nodes) == 4000 and each <= 4 << 10


def test_a_kernel_that_spins_for_its_parallel_neighbour_does_not_hang():
    import apart_kernels

    flag = torch.ones(1, dtype=torch.int32, device="cuda")
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    side = side_stream()

    def step():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            apart_kernels.wait_for[(1,)](flag, out)
        apart_kernels.raise_flag[(1,)](flag)
        torch.cuda.current_stream().wait_stream(side)
        flag.zero_()

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        step()
    apart = in_pieces(graph)
    assert [len(piece) for piece in apart.pieces] == [2, 1]
    for _ in range(3):
        out.zero_()
        run(apart)
        assert out.item() == 1


def test_our_own_leaves_hold_no_graph_together_and_count_their_replays():
    x = torch.ones(64, device="cuda")
    probe = cgdebug.CudaGraphTensorProbe("p", [cgdebug.TensorRecord(capacity=8)])
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        y = probe(x * 2)
        z = (y + 1).cumsum(0)
    apart = in_pieces(graph)
    kernels = [n for n, node in enumerate(apart.nodes) if not node["is_own"]]
    assert all([number] in apart.pieces for number in kernels)
    for value in (1.0, 2.0):
        x.fill_(value)
        run(apart)
        assert z[0].item() == 2 * value + 1
    torch.cuda.synchronize()
    assert [record.tensor[0].item() for record in probe.records()] == [2.0, 4.0]
    probe.close()


@pytest.mark.parametrize("name", ["loop", "child", "random", "memory", "event"])
def test_what_cuda_cannot_leave_out_is_one_piece_of_a_graph_that_stays(name):
    opaque_programs = pytest.importorskip("opaque_programs")
    program = opaque_programs.Program(getattr(opaque_programs, name), keep_graph=True)
    before = program.save()
    program.restore(before)
    program.graph.replay()
    after = program.save()
    program.restore(before)
    apart = in_pieces(program.graph, copies=False)
    exec_ = program.graph.raw_cuda_graph_exec()
    assert (apart.opaque is None) == (name == "event")
    apart.prepare(with_own=True)
    apart.enable(exec_, only_own=False, is_on=False)
    if apart.opaque is None:
        program.graph.replay()
    stream = torch.cuda.current_stream().cuda_stream
    for number in range(len(apart.pieces)):
        if number == apart.opaque:
            with pytest.raises(ValueError, match="runs with its graph alone"):
                apart.launch(number, stream)
            program.graph.replay()
        else:
            apart.launch(number, stream)
    apart.enable(exec_, only_own=False, is_on=True)
    assert all(torch.equal(a, b) for a, b in zip(program.save(), after))
    program.restore(before)
    program.graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(program.save(), after)), "and as a whole again"


# --- CGDEBUG_LAUNCH_BLOCKING ------------------------------------------------------------------------

LAYERS = """
import sys, torch
from torch import nn

sys.path.insert(0, {here!r})


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(32, 16)
        self.drop = nn.Dropout(0.3)

    def forward(self, x, ids):
        return self.drop(x + self.table(ids))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(6))

    def forward(self, ids):
        x = torch.zeros(8, 16, device="cuda")
        for layer, one in zip(self.layers, ids):
            x = layer(x, one)
        return x


torch.manual_seed(0)
model = Model().cuda()
ids = [torch.zeros(8, dtype=torch.long, device="cuda") for _ in range(6)]
with torch.no_grad():
    model(ids)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(ids)
"""


@pytest.fixture
def script(tmp_path, daemon):
    """script(text, blocking=True): (exit code, stdout, stderr) of a program that captures the layers
    and then runs `text`."""

    def run_it(text, blocking=True):
        path = tmp_path / "layers.py"
        path.write_text(LAYERS.format(here=str(HERE)) + textwrap.dedent(text))
        command = [sys.executable, str(path)]
        if blocking:
            command = [
                find_program("cgdebug-cli"),
                "run",
                "--blocking",
                "--no-live",
                "--",
                *command,
            ]
        told = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        return told.returncode, told.stdout, told.stderr

    return run_it


def test_blocking_names_the_op_that_fails_inside_of_a_graph(script, cli):
    fails = """
        graph.replay()
        ids[3][2] = 1_000_000
        graph.replay()
        torch.cuda.synchronize()
        print("not reached")
    """
    code, out, err = script(fails)
    assert code != 0 and "not reached" not in out
    report = err[err.index("cgdebug: node") :].splitlines()
    assert "failed: cudaErrorAssert" in report[0] and "in replay 2" in report[0]
    text = "\n".join(report)
    assert "op      aten.embedding.default, row fwd/layers.3.table/embedding_0" in text
    assert "module  layers.3.table" in text
    assert "line    layers.py:15 in forward" in text
    assert "reads   weight in/layers.3.table.weight float32[32, 16]" in text
    assert "reads   indices in/layers.3.table/embedding_0.indices int64[8]" in text
    assert "writes  fwd/layers.3.table/embedding_0 float32[8, 16]" in text
    assert "Type: cgdebug-cli run --watch 'op:*'" in text
    # Others are told, too, although the process is gone.
    why = cli("why", re.search(r"\(pid (\d+)\)", err)[1], "--json")
    assert "op aten.embedding.default fwd/layers.3.table/embedding_0" in why.stdout, why.stdout
    assert json.loads(why.stdout)["findings"][0]["kind"] == "failed_kernel"


def test_a_graph_that_does_not_fail_is_as_without_blocking(script):
    runs = """
        for i in range(20):
            ids[i % 6].add_(1)
            graph.replay()
        print(out.sum().item().hex(), torch.rand(1, device="cuda").item().hex())
    """
    code, plain, _ = script(runs, blocking=False)
    assert code == 0
    code, blocked, err = script(runs)
    assert code == 0, err
    assert blocked == plain
    assert "cgdebug: graph" not in err, "it was launched as a whole"


def test_an_illegal_address_of_a_kernel_that_is_no_op_is_named_too(script):
    code, _, err = script(
        """
        import apart_kernels
        out, far = torch.zeros(8, device="cuda"), torch.zeros(1, dtype=torch.long, device="cuda")
        apart_kernels.write_far[(1,)](out, far)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), torch.no_grad():
            y = model(ids)
            apart_kernels.write_far[(1,)](out, far)
            y = y * 2
        far.fill_(1 << 40)
        graph.replay()
        torch.cuda.synchronize()
        """
    )
    assert code != 0
    report = err[err.index("cgdebug: node") :]
    assert "failed: cudaErrorIllegalAddress" in report
    assert "kernel  write_far, grid 1x1x1" in report
    assert "op      triton.write_far" in report


def test_a_kernel_that_hangs_is_named_while_it_hangs(daemon, cli, tmp_path):
    path = tmp_path / "layers.py"
    hangs = """
        import apart_kernels
        flag = torch.ones(1, dtype=torch.int32, device="cuda")
        seen = torch.zeros(1, dtype=torch.int32, device="cuda")
        apart_kernels.wait_for[(1,)](flag, seen)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), torch.no_grad():
            y = model(ids)
            apart_kernels.wait_for[(1,)](flag, seen)
        flag.zero_()
        torch.cuda.synchronize()
        graph.replay()
    """
    path.write_text("import cgdebug\n" + LAYERS.format(here=str(HERE)) + textwrap.dedent(hangs))
    process = subprocess.Popen(
        [sys.executable, str(path)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CGDEBUG_LAUNCH_BLOCKING": "1"},
    )
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "op      " in line:
                break
        text = "".join(lines)
        assert "still runs after 10 s, in replay 1" in text
        assert "kernel  wait_for" in text
        place = "launched kernel by kernel, stands: node"
        wait_until(lambda: place in cli("where", str(process.pid)).stdout, "where names the kernel")
    finally:
        process.kill()
        process.communicate()


def test_an_error_before_the_replay_is_not_blamed_on_the_graph(script):
    code, _, err = script(
        """
        import apart_kernels
        far = torch.full((1,), 1 << 40, device="cuda")
        graph.replay()
        apart_kernels.write_far[(1,)](torch.zeros(8, device="cuda"), far)
        graph.replay()
        torch.cuda.synchronize()
        """
    )
    assert code != 0
    assert "came before replay 2" in err
    assert "cgdebug: node" not in err


def test_who_asks_for_the_exec_launches_all_of_the_graph(script):
    code, out, err = script(
        """
        import ctypes
        graph.replay()
        first = out.clone()
        out.zero_()
        exec_ = graph.raw_cuda_graph_exec()
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        assert ctypes.CDLL("libcuda.so.1").cuGraphLaunch(ctypes.c_void_p(exec_), stream) == 0
        print(torch.equal(out, first))
        """
    )
    assert code == 0, err
    assert out == "True\n"
    assert "is launched as a whole" in err and "cudaGraphExec_t was asked for" in err
