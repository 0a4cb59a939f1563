"""Rows of op logs, eager and on the CPU, from the job's process to every command."""

import dataclasses
import itertools
import json
import math

import pytest
import torch
from all_dtypes import NAMES, made_of

import cgdebug
from cgdebug import TensorStats
from cgdebug._op_log.rows.native_rows import _order_of
from conftest import own_session


@pytest.fixture
def op_log(daemon):
    """op_log() makes a log; each is closed afterwards."""
    made = []

    def make():
        made.append(cgdebug._job._native.load().NativeOpLog())
        return made[-1]

    yield make
    for log in made:
        log.close()


def add(log, name, tensor, op="", site=""):
    log.add(
        name,
        op=op,
        site=site,
        data=tensor.data_ptr(),
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=list(tensor.shape),
    )


def test_each_row_is_a_probe_and_each_run_a_replay(daemon, op_log):
    log = op_log()
    for run in range(1, 4):
        add(log, "t1/mm", torch.full((2, 3), float(run)), op="1 aten.mm.default", site="net.py:3")
        add(log, "t1/relu", torch.tensor([0.0, -run]), op="2 aten.relu.default 1")
        log.end()
    assert log.wait_consumed(10.0)
    with daemon.connect(session=own_session()) as client:
        (mm,) = client.probes("t1/mm")
        assert (mm.dtype, tuple(mm.shape), mm.site) == ("float32", (2, 3), "net.py:3")
        calls = mm.counters.replays  # the number of the newest call
        assert (mm.counters.produced, mm.actions, mm.op) == (3, ["stats"], "1 aten.mm.default")
        snapshot = client.get("t1/mm")
        assert (snapshot.replay_index, snapshot.stats.min, snapshot.stats.count) == (calls, 3, 6)
        assert client.get("t1/relu", replay=calls - 1).stats.min == -2
        with pytest.raises(LookupError, match="only the statistics"):
            snapshot.tensor  # noqa: B018


def test_check_names_the_first_row_with_a_nan(cli, op_log):
    log = op_log()
    good, bad = torch.ones(4), torch.tensor([1.0, math.nan])
    for second in (good[:2], bad):
        add(log, "t2/first", good)
        add(log, "t2/second", second)
        add(log, "t2/third", second)
        call = log.end()
    assert log.wait_consumed(10.0)
    checked = cli("check", own_session(), "t2/*")
    assert checked.returncode == 1, checked.stdout + checked.stderr
    named = [line for line in checked.stdout.splitlines() if "t2/" in line]
    assert "t2/second" in named[0] and f"call {call}" in named[0], checked.stdout


@pytest.mark.parametrize("name", NAMES)
def test_a_row_has_the_statistics_that_a_probe_of_the_tensor_has(daemon, op_log, probe, name):
    x = made_of(torch.tensor([0.0, 1.0, 3.0, 2.0, 1.0]), name)
    log = op_log()
    add(log, f"t3/row/{name}", x)
    log.end()
    single = probe(TensorStats(), name=f"t3/probe/{name}")
    single(x)
    assert log.wait_consumed(10.0) and single.status().waited
    with daemon.connect(session=own_session()) as client:
        row, one = client.get(f"t3/row/{name}"), client.get(f"t3/probe/{name}")
    # The daemon computes the statistics of the probe, and adds in another order.
    row, one = dataclasses.asdict(row.stats), dataclasses.asdict(one.stats)
    assert row.pop("std") == pytest.approx(one.pop("std"), rel=1e-12)
    assert row == one


def test_rows_are_recorded_and_read_back(cli, daemon, op_log, tmp_path):
    path = tmp_path / "rows.cgrec"
    log = op_log()
    add(log, "t4/before", torch.ones(1))
    log.end()
    assert log.wait_consumed(10.0)
    started = cli("record", "start", "-o", str(path), "-s", own_session(), "--probes", "t4/*")
    assert started.returncode == 0, started.stderr
    for run in range(3):
        add(log, "t4/a", torch.full((3,), float(run)), op="1 aten.add.Tensor")
        add(log, "t4/b", torch.full((3,), math.inf), op="2 aten.exp.default 1")
        log.end()
    assert log.wait_consumed(10.0)
    assert cli("record", "stop", str(path)).returncode == 0
    with cgdebug.open(path) as recording:
        assert {"t4/a", "t4/b"} <= set(recording.probes)
        assert [one.stats.max for one in recording["t4/a"]] == [0, 1, 2]
    checked = cli("check", str(path), "--json")
    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert json.loads(checked.stdout)["findings"][0]["probe"] == "t4/b"


def test_one_row_cannot_be_changed_alone(cli, op_log):
    log = op_log()
    add(log, "t5/row", torch.ones(1))
    log.end()
    assert log.wait_consumed(10.0)
    refused = cli("set", "t5/row", "-s", own_session(), "--mode", "off")
    assert refused.returncode != 0
    assert "row of an op log" in refused.stderr, refused.stdout + refused.stderr


@pytest.mark.parametrize("name", ["fwd/layers.3.attn/mm_2", "in/a.up/mm_0.self", "grad/up.weight"])
def test_whoever_asks_for_the_values_of_a_row_is_told_what_to_type(cli, op_log, name):
    log = op_log()
    add(log, name, torch.ones(1), op="1 aten.mm.default", site="net.py:7")
    log.end()
    assert log.wait_consumed(10.0)
    refused = cli("set", name, "-s", own_session(), "--mode", "full")
    assert refused.returncode == 2, refused.stdout + refused.stderr
    typed = f"type: cgdebug-cli run --watch 'op:*' --eager --values '{name}' -- COMMAND. "
    assert typed in refused.stderr, refused.stderr
    assert f'cgdebug.debug_mode(model, eager=True, values="{name}")' in refused.stderr
    assert "cgdebug-cli ask" not in refused.stderr, "only graphs take questions"


def test_an_order_tells_the_place_of_each_element_in_memory():
    checked = 0
    for shape in [(6,), (3, 4), (1, 3, 1, 2), (2, 3, 4), (2, 3, 1, 4), (2, 3, 4, 5)]:
        for dimensions in itertools.permutations(range(len(shape))):
            x = torch.arange(math.prod(shape)).reshape(shape).permute(dimensions)
            order = _order_of(x)
            assert order is not None and math.prod(size for size, _ in order) == x.numel()
            usual = x.contiguous().flatten()
            for index in range(x.numel()):  # x holds the indices of memory
                place, rest = 0, index
                for size, stride in order:
                    place += rest % size * stride
                    rest //= size
                assert usual[place] == index, (shape, dimensions)
            checked += 1
    assert checked == 1 + 2 + 24 + 6 + 24 + 24


def test_a_tensor_with_gaps_has_no_order():
    x = torch.zeros(4, 6)
    for tensor in (x[:, ::2], x[:, 2:4], x[::2], x[0].expand(3, 6), x.t()[1:, 1:]):
        assert _order_of(tensor) is None
    # More dimensions than a kernel takes.
    assert _order_of(torch.zeros(2, 3, 2, 3, 2).permute(4, 3, 2, 1, 0)) is None
