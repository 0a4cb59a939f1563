"""CudaGraphTensorProbe in eager mode on the CPU, through the process's real segment."""

import gc
import operator
import sys
import threading
import time

import numpy
import pytest
import torch
from all_dtypes import NAMES, made_of

import cgdebug
from cgdebug import (
    CudaGraphTensorProbe,
    TensorCompare,
    TensorNotComparedError,
    TensorPrint,
    TensorRecord,
)
from cgdebug._job import _native
from conftest import wait_until


def test_probe_returns_the_same_object(probe):
    x = torch.ones(3)
    assert probe(TensorRecord())(x) is x


def test_records_are_the_newest_in_order(probe):
    p = probe(TensorRecord(capacity=3), name="blk.out")
    for i in range(5):
        p(torch.full((2, 2), float(i)))
    records = p.records()
    assert [r.replay_index for r in records] == [3, 4, 5]
    assert [r.tensor[0, 0].item() for r in records] == [2, 3, 4]
    first = records[0]
    assert (first.probe_name, first.shape, first.dtype) == ("blk.out", (2, 2), torch.float32)
    assert (first.device, first.invocation_index, first.graph_id, first.rank) == ("cpu", 0, 0, -1)


def test_snapshots_own_their_values(probe):
    p, x = probe(TensorRecord(capacity=1)), torch.zeros(2)
    p(x)
    snapshot = p.records()[0]
    x.fill_(1)
    p(x)
    assert snapshot.tensor.tolist() == [0, 0] and p.records()[0].tensor.tolist() == [1, 1]


@pytest.mark.parametrize("dtype", NAMES)
def test_every_dtype_arrives_bit_for_bit(probe, dtype):
    p = probe(TensorRecord())
    x = made_of(torch.randint(-(2**62), 2**62, (7, 3)), dtype)
    p(x)
    record = p.records()[0]
    assert record.dtype == x.dtype and torch.equal(
        record.tensor.view(torch.uint8), x.view(torch.uint8)
    )


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,) * 16])
def test_unusual_shapes_arrive(probe, shape):
    p = probe(TensorRecord())
    p(torch.ones(shape))
    assert p.records()[0].tensor.shape == shape


def test_last_limits_the_records(probe):
    p = probe(TensorRecord(capacity=8))
    for i in range(6):
        p(torch.tensor([i]))
    assert [r.tensor.item() for r in p.records(last=2)] == [4, 5]
    assert p.records(last=0) == [] and len(p.records(last=100)) == 6
    for bad in (-1, 1.5, True):
        with pytest.raises(ValueError, match="last must"):
            p.records(last=bad)


def test_record_keeps_every_nth(probe):
    p = probe(TensorRecord(capacity=8, every=3))
    for i in range(1, 9):
        p(torch.tensor([i]))
    assert [(r.replay_index, r.tensor.item()) for r in p.records()] == [(1, 1), (4, 4), (7, 7)]


def test_clear_records_forgets_and_goes_on(probe):
    p = probe(TensorRecord())
    p(torch.tensor([1]))
    p.clear_records()
    assert p.records() == []
    p(torch.tensor([2]))
    assert [(r.replay_index, r.tensor.item()) for r in p.records()] == [(2, 2)]


def test_records_are_empty_without_a_record_action(probe):
    p = probe(TensorPrint())
    p(torch.ones(2))
    assert p.records() == []


def test_step_is_recorded(probe):
    p = probe(TensorRecord())
    p(torch.ones(1))
    cgdebug.step(41)
    p(torch.ones(1))
    cgdebug.step(None)
    p(torch.ones(1))
    assert [r.step for r in p.records()] == [None, 41, None]
    for bad in (-1, 1.5, True, 2**63, 2**70, torch.tensor(1.0), numpy.bool_(True)):
        with pytest.raises(ValueError, match="the step must"):
            cgdebug.step(bad)


@pytest.mark.parametrize(
    "number", [3, numpy.int64(3), numpy.uint8(3), torch.tensor(3), torch.tensor([3])], ids=type
)
def test_any_integer_is_a_step_and_a_count(probe, number):
    p = probe(TensorRecord(capacity=number))
    cgdebug.step(number)
    for _ in range(5):
        p(torch.ones(1))
    cgdebug.step(None)
    assert [r.step for r in p.records()] == [3, 3, 3] and len(p.records(last=number)) == 3


def test_a_step_out_of_range_raises_at_once_and_leaves_probes_alone(job):
    out, _ = job(
        """
        try:
            cgdebug.step(2**70)
        except ValueError as error:
            print(error)
        CudaGraphTensorProbe("p", [TensorRecord()], mode="always")(torch.ones(1))
        """
    ).finish()
    assert "the step must lie between 0 and 9223372036854775807" in out


def test_capture_mode_outside_a_capture_touches_nothing():
    p = CudaGraphTensorProbe("p", [TensorRecord(), TensorCompare(torch.ones(1))])
    x = torch.ones(4, 4, dtype=torch.complex64).t()
    assert p(3) == 3 and p(None) is None and p(x) is x
    assert p.records() == [] and p.status().slots == ()


def test_non_contiguous_copy_packs(probe):
    p = probe(TensorRecord(), non_contiguous="copy")
    x = torch.arange(6).reshape(2, 3).t()
    assert p(x) is x
    p(torch.ones(1).expand(3))
    p(torch.randn(4, dtype=torch.complex64).conj().imag)
    assert torch.equal(p.records()[0].tensor, x)
    assert p.records()[1].tensor.tolist() == [1, 1, 1]


def test_mode_and_non_contiguous_are_the_next_positional_parameters():
    p = CudaGraphTensorProbe("p", [TensorRecord()], "always", "copy")
    p(torch.ones(2, 3).t())
    assert len(p.records()) == 1
    p.close()


def test_each_eager_shape_counts_for_itself(probe):
    p = probe(TensorRecord())
    for size in (2, 3, 2):
        p(torch.ones(size))
    assert [(r.shape, r.replay_index) for r in p.records()] == [((2,), 1), ((3,), 1), ((2,), 2)]


def test_calls_from_several_threads_all_arrive(probe):
    p = probe(TensorRecord(capacity=400))

    def work(number):
        for i in range(100):
            p(torch.tensor([number * 100 + i]))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(r.tensor.item() for r in p.records()) == list(range(400))


# --- gradients ------------------------------------------------------------------------------------


def test_attach_grad_sees_the_gradient_and_leaves_it(probe):
    p = probe(TensorRecord())
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    assert p.attach_grad(x) is x
    (x * torch.tensor([3.0, 4.0])).sum().backward()
    assert p.records()[0].tensor.tolist() == [3, 4] == x.grad.tolist()


def test_attach_grad_works_on_intermediates(probe):
    p = probe(TensorRecord())
    x = torch.ones(2, requires_grad=True)
    hidden = p.attach_grad(x * 2)
    (hidden * hidden).sum().backward()
    assert p.records()[0].tensor.tolist() == [4, 4] and x.grad.tolist() == [8, 8]


def test_attach_grad_without_grad_is_left_alone_unless_strict(probe):
    p, x = probe(TensorRecord()), torch.ones(2)
    assert p.attach_grad(x) is x and p.attach_grad(x, return_handle=True) == (x, None)
    with pytest.raises(RuntimeError, match="does not require grad"):
        p.attach_grad(x, strict=True)


def test_removing_the_handle_ends_it(probe):
    p, x = probe(TensorRecord()), torch.ones(2, requires_grad=True)
    same, handle = p.attach_grad(x, return_handle=True)
    assert same is x
    handle.remove()
    (x * 2).sum().backward()
    assert p.records() == []


def test_a_gradient_that_no_probe_can_look_at_is_said_and_backward_goes_on(
    probe, capfd, monkeypatch
):
    counted = []  # not in the account of this process, which has other tests
    monkeypatch.setattr(_native, "not_seen", lambda *what: counted.append(what))
    x = torch.ones(3, requires_grad=True)
    expanded = probe(TensorRecord())
    expanded.attach_grad(x)
    x.sum().backward()
    table = torch.nn.Embedding(4, 2, sparse=True)
    sparse = probe(TensorRecord(), name="sparse")
    sparse.attach_grad(table.weight)
    table(torch.tensor([1])).sum().backward()
    assert x.grad.tolist() == [1, 1, 1] and table.weight.grad.is_sparse
    assert expanded.records() == [] == sparse.records()
    told = capfd.readouterr().err
    assert "not contiguous" in told and "layout torch.sparse_coo" in told
    assert [name for name, _ in counted] == ["p", "sparse"]  # as their probes are called


def test_expanded_gradients_need_the_copy_policy(probe):
    p, y = probe(TensorRecord(), non_contiguous="copy"), torch.ones(3, requires_grad=True)
    p.attach_grad(y)
    y.sum().backward()
    assert p.records()[0].tensor.tolist() == [1, 1, 1]


def test_probes_do_not_enter_the_gradient(probe):
    p = probe(TensorRecord())
    x = torch.ones(2, requires_grad=True)
    y = p(x * 3)
    assert type(y.grad_fn).__name__ == "MulBackward0"
    y.sum().backward()
    assert x.grad.tolist() == [3, 3]


# --- status, verdict, life ------------------------------------------------------------------------


def test_status_counts(probe):
    p = probe(TensorRecord(capacity=2), name="blk.out")
    assert "seen no tensor yet" in repr(p.status())
    for _ in range(3):
        p(torch.ones(4))
    status = p.status()
    (slot,) = status.slots
    assert (slot.replays, slot.accepted, slot.capacity, slot.payload_bytes) == (3, 3, 2, 16)
    assert (status.replays, status.captures, status.drops, status.bytes, status.lane) == (
        3,
        0,
        0,
        32,
        "host",
    )
    assert status.ok and status["ok"] and status.message == "" and status.replay_index == 0
    assert "float32[4] on cpu" in repr(status) and "3 replays" in repr(status)
    with pytest.raises(KeyError):
        status["nothing"]


def test_status_keeps_the_last_error(probe):
    p = probe(TensorRecord(), TensorCompare(torch.ones(2)))
    with pytest.raises(ValueError, match=r"expects float32\[2\].*the tensor is float32\[3\]"):
        p(torch.ones(3))
    assert "float32[3]" in p.status(timeout=0).error and "last error" in repr(p.status(timeout=0))


def test_assert_ok_without_a_compare_passes(probe):
    p = probe(TensorRecord())
    p(torch.ones(2))
    p.assert_ok()


def test_assert_ok_never_passes_when_nothing_was_compared(without_daemon, probe):
    p = probe(TensorCompare(torch.ones(2)))
    with pytest.raises(TensorNotComparedError, match="never called: call it on a tensor"):
        p.assert_ok()
    p(torch.ones(2))
    with pytest.raises(
        TensorNotComparedError, match="no daemon is running.*cgdebug-cli daemon start"
    ):
        p.assert_ok(timeout=0.1)
    p.close()
    with pytest.raises(TensorNotComparedError, match="closed"):
        p.assert_ok(timeout=0.1)


def test_a_test_without_daemon_starts_none_whichever_test_came_first(
    daemon, without_daemon, probe, monkeypatch
):
    monkeypatch.setattr(cgdebug._job._native, "_daemon_asked_in_pid", 0)  # as in the first test
    probe(TensorCompare(torch.ones(2)))
    with pytest.raises(ConnectionError, match="no cgdebug daemon listens"):
        daemon.connect()


def test_closed_probe_does_nothing(probe):
    p, x = probe(TensorRecord()), torch.ones(2)
    p(x)
    p.close()
    p.close()
    assert p(x) is x and p.status().closed and "closed" in repr(p.status())
    with pytest.raises(RuntimeError, match="closed"):
        p.records()


def test_context_manager_closes():
    with CudaGraphTensorProbe("p", [TensorRecord()], mode="always") as p:
        p(torch.ones(1))
        assert len(p.records()) == 1
    assert p.status().closed


def test_probes_that_come_and_go_leave_no_shared_memory_behind():
    from cgdebug import _probe

    def one(number):
        p = CudaGraphTensorProbe(f"p{number}", [TensorRecord(capacity=4)], mode="always")
        p(torch.ones(1 << 16))
        assert len(p.records()) == 1

    for number in range(3):
        one(number)
    gc.collect()
    before = _probe.session()
    for number in range(40):
        one(number)
    gc.collect()
    after = _probe.session()
    assert after["shm_bytes"] == before["shm_bytes"] and after["slots"] <= before["slots"] + 1


def test_a_constructor_that_fails_leaves_a_collectable_object():
    with pytest.raises(ValueError):
        CudaGraphTensorProbe("", [TensorRecord()])
    gc.collect()


def test_prepare_takes_a_tensor_like_the_later_one(probe):
    p = probe(TensorRecord())
    p.prepare(torch.ones(3))
    p(torch.ones(3))
    assert len(p.records()) == 1
    with pytest.raises(ValueError, match="view_as_real"):
        p.prepare(torch.ones(1, dtype=torch.complex64))
    with pytest.raises(TypeError, match="not a tensor"):
        p.prepare(3)


def test_other_threads_run_while_probes_are_given_up():
    """What a probe gives up may wait for a host function that wants the GIL."""
    module = _native.load()
    options = {"mode": "always", "copy_non_contiguous": False, "site": ""}
    actions = {"print": None, "record": None, "compare": None}
    seen, over = [], threading.Event()

    def run():
        while not over.is_set():
            seen.append(None)
            time.sleep(0)

    def ran_meanwhile():
        probes = [module.NativeProbe(f"p{i}", **options, **actions) for i in range(100)]
        # One call of C, so that no byte code gives the GIL away in between.
        call = operator.methodcaller("__call__")
        before, _, after = list(map(call, [seen.__len__, probes.clear, seen.__len__]))
        return after > before

    thread, interval = threading.Thread(target=run), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        # The thread has to be on a core to ask for the GIL.
        wait_until(ran_meanwhile, "another thread ran")
    finally:
        sys.setswitchinterval(interval)
        over.set()
        thread.join()
