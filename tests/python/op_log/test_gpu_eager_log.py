"""Eager code on a GPU: rows of op logs, and statistics of a watch, are those of calls, as on a CPU, and
the GPU is not waited for until a call has ended."""

import json
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from torch import nn

from cgdebug._op_log import rows
from conftest import find_program
from op_logs import needs_mode

pytestmark = [pytest.mark.gpu, pytest.mark.own_lane, needs_mode]


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3)).cuda()


def test_calls_of_unlike_shapes_are_one_log_of_numbered_calls(debug_mode):
    net, dm = model(), debug_mode(eager=True)
    outputs = {}
    with dm, torch.no_grad():
        for length in (2, 3, 5):
            outputs[length] = net(torch.full((length, 8), float(length), device="cuda"))
    assert dm.logs == 1 and len(dm.calls) == 3
    for call, (length, out) in zip(dm.calls, outputs.items()):
        log = dm.log(replay=call)
        assert log.replay == call
        row = log["fwd/1/addmm_0"]
        assert row.shape == (length, 3) and row.stats.count == out.numel()
        assert row.stats.max == out.max().item() and row.stats.min == out.min().item()
        assert "self=" in row.arguments or "bias=" in row.arguments, row.arguments
        assert log.rows[row.inputs[-1] - 1].name.startswith("in/1."), row


def test_a_training_step_is_one_call_with_its_backward_and_its_optimizer(debug_mode):
    net, dm = model(), debug_mode(eager=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with dm:
        for _ in range(3):
            net(torch.ones(2, 8, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(dm.calls) == 3
    names = [row.name for row in dm.log()]
    assert "fwd/0/addmm_0" in names and "bwd/0/mm_0" in names
    assert any(name.startswith("opt/") for name in names)
    assert all(row.stats is not None for row in dm.log(replay=dm.calls[0]))


def test_rows_of_both_devices_and_of_two_streams_are_in_the_order_of_the_program(debug_mode):
    dm, side = debug_mode(eager=True), torch.cuda.Stream()
    with dm:
        x = torch.ones(64, device="cuda") * 2
        on_cpu = torch.ones(4) * 3
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 5
        torch.cuda.current_stream().wait_stream(side)
        z = y.double() * 7
    del on_cpu, z
    log = dm.log()
    products = [row for row in log if row.op == "aten.mul.Tensor"]
    assert [row.stats.max for row in products] == [2, 3, 10, 70]
    assert [row.number for row in products] == sorted(row.number for row in products)


@pytest.mark.parametrize(
    "seen",
    [
        lambda x: x,
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x.unflatten(0, (4, 8)).permute(2, 0, 1),
        lambda x: x[1:, 1:],
    ],
    ids=["usual", "transposed", "gaps", "permuted", "odd"],
)
def test_a_row_has_the_statistics_of_its_tensor_however_it_lies(debug_mode, seen):
    torch.manual_seed(0)
    x = torch.randn(32, 48, device="cuda")
    dm = debug_mode(eager=True)
    with dm:
        y = seen(x).neg()
    (row,) = [row for row in dm.log() if row.op == "aten.neg.default"]
    assert row.shape == tuple(y.shape) and row.stats.count == y.numel()
    assert (row.stats.min, row.stats.max) == (y.min().item(), y.max().item())
    assert row.stats.l1 == pytest.approx(y.abs().sum().item(), rel=1e-5)


def test_the_first_rows_of_a_large_tensor_are_those_of_their_op(debug_mode):
    """Memory is written again by the next op, so a row that came too late would show that."""
    x = torch.zeros(1 << 22, device="cuda")
    dm = debug_mode(eager=True)
    with dm:
        for _ in range(20):
            x.add_(1)
    rows_of = [row.stats.max for row in dm.log() if row.op == "aten.add_.Tensor"]
    assert rows_of == list(range(1, 21))


def test_the_job_does_not_wait_for_the_gpu_before_a_call_ends(debug_mode):
    dm = debug_mode(eager=True)
    x = torch.ones(64, device="cuda")
    with dm:
        x.mul(2)
        torch.cuda.synchronize()
        torch.cuda._sleep(int(1e10))  # five seconds and more
        begun = torch.cuda.Event()
        begun.record()
        for _ in range(100):
            x = x + 1
        assert not begun.query(), "the ops were launched while the GPU was busy"
    assert len([row for row in dm.log() if row.op == "aten.add.Tensor"]) == 100


def test_rows_that_the_gpu_does_not_compute_in_time_are_said_to_be_missing(debug_mode, monkeypatch):
    monkeypatch.setattr(rows, "_GPU_TIMEOUT_S", 0.3)
    dm = debug_mode(eager=True)
    x = torch.ones(64, device="cuda")
    with dm:
        y = x * 2
        torch.cuda.synchronize()
        torch.cuda._sleep(int(5e9))
        z = y * 3
    del z
    log = dm.log(timeout=20)
    assert any("the GPU has not computed them" in gap for gap in log.gaps), log.gaps


PROGRAM = """
    import torch
    from torch import nn
    torch.manual_seed(0)
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 3)
        def forward(self, x, factor):
            return self.two(self.one(x) * factor)
    net = Net().cuda()
    with torch.no_grad():
        for call in range(1, 6):
            net(torch.ones(call, 8, device="cuda"), BAD if call == 4 else 1.0)
"""


def run_watched(tmp_path, text, options=("--watch", "op:*", "--eager")):
    path = tmp_path / "job.py"
    path.write_text(textwrap.dedent(text))
    words = [find_program("cgdebug-cli"), "run", *options, "--no-live"]
    words += ["-o", str(tmp_path / "a.cgrec"), "--", sys.executable, str(path)]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("watch", [("op:*", "--eager"), ("*",)], ids=["log", "watch"])
@pytest.mark.parametrize("value, code", [("float('nan')", 1), ("2.0", 0)])
def test_a_nan_of_one_call_is_named_with_its_call(cli, tmp_path, value, code, watch):
    run_watched(tmp_path, PROGRAM.replace("BAD", value), ("--watch", *watch))
    said = cli("check", tmp_path / "a.cgrec")
    assert said.returncode == code, said.stdout + said.stderr
    assert ("call 4" in said.stdout) == bool(code), said.stdout


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("values", [None, 8], ids=["statistics", "values"])
def test_a_watch_counts_the_calls_of_tensors_on_a_gpu_and_of_their_gradients(cli, tmp_path, values):
    """Though autograd runs the backward pass on another thread."""
    program = """
        import torch, cgdebug
        from torch import nn
        net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).cuda()
        watch = cgdebug.watch(net, grads=True, values=VALUES)
        for call in range(1, 5):
            cgdebug.step(10 * call)
            net(torch.ones(call, 8, device="cuda")).sum().backward()
            net(torch.ones(7, 8, device="cuda"))
        """
    done = run_watched(tmp_path, program.replace("VALUES", str(values)), options=())
    assert done.returncode == 0, done.stderr
    sql = "select probe, replay, step from v_snapshots order by replay"
    told = cli("--json", "query", tmp_path / "a.cgrec", sql)
    seen = {name: [] for name in ("fwd/0", "grad/0")}
    for row in json.loads(told.stdout):
        if row["probe"] in seen:
            seen[row["probe"]].append((row["replay"], row["step"]))
    assert seen["fwd/0"] == [(2 * n + i, 10 * (n + 1)) for n in range(4) for i in (1, 2)]
    assert seen["grad/0"] == [(2 * n + 1, 10 * (n + 1)) for n in range(4)]


@pytest.mark.usefixtures("daemon")
def test_queued_uses_of_a_probe_of_values_keep_the_call_and_the_step_that_each_began_with(
    cli, tmp_path
):
    done = run_watched(
        tmp_path,
        """
        import torch, cgdebug
        net = torch.nn.ReLU()
        watch = cgdebug.watch(net, values=1024)
        x = torch.ones(4, device="cuda")
        torch.cuda.synchronize()
        torch.cuda._sleep(1 << 28)  # the GPU begins when all is queued
        for call in range(1, 201):
            cgdebug.step(10 * call)
            net(x.mul(call))
        """,
        options=(),
    )
    assert done.returncode == 0, done.stderr
    sql = "select call, step, max from v_snapshots where probe = 'fwd/ReLU' order by serial"
    told = json.loads(cli("--json", "query", tmp_path / "a.cgrec", sql).stdout)
    assert [(row["call"], row["step"], row["max"]) for row in told] == [
        (n, 10 * n, n) for n in range(1, 201)
    ]


@pytest.mark.usefixtures("daemon")
def test_a_gpu_that_has_failed_keeps_nobody_waiting(tmp_path):
    begun = time.monotonic()
    done = run_watched(
        tmp_path,
        """
        import torch
        net = torch.nn.Embedding(4, 8).cuda()
        net(torch.tensor([1, 2], device="cuda"))
        net(torch.tensor([100], device="cuda"))
        torch.cuda.synchronize()
        """,
    )
    assert done.returncode != 0 and "device-side assert" in done.stderr, done.stderr
    assert time.monotonic() - begun < rows._GPU_TIMEOUT_S, "it waited for rows that never come"
