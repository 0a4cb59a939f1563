"""TensorPrint, TensorRecord and TensorCompare: defaults and refusals."""

import dataclasses

import numpy
import pytest
import torch
from all_dtypes import NAMES, made_of

from cgdebug import CudaGraphTensorProbe, TensorCompare, TensorPrint, TensorRecord
from cgdebug.actions import enabled_actions, native_options


def test_defaults():
    assert TensorPrint() == TensorPrint(max_items=16, every=1, summary=True, enabled=True)
    assert TensorRecord() == TensorRecord(capacity=16, enabled=True)
    compare = TensorCompare(torch.ones(1))
    assert (compare.rtol, compare.atol, compare.equal_nan, compare.enabled) == (
        1e-5,
        1e-8,
        False,
        True,
    )


def test_actions_are_frozen_and_replaceable():
    action = TensorRecord(capacity=4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        action.capacity = 5
    assert not dataclasses.replace(action, enabled=False).enabled


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: TensorRecord(capacity=0), "TensorRecord: capacity must be at least 1, not 0"),
        (
            lambda: TensorRecord(capacity=2**32),
            "capacity must be at most 4294967295, not 4294967296",
        ),
        (lambda: TensorRecord(capacity=2.5), "capacity must be an integer"),
        (lambda: TensorRecord(capacity=True), "capacity must be an integer"),
        (lambda: TensorRecord(every=0), "every must be at least 1"),
        (lambda: TensorRecord(where="gpu"), '"device" or "auto", not \'gpu\''),
        (lambda: TensorRecord(unchanged="drop"), 'unchanged must be "send" or "skip", not'),
        (lambda: TensorRecord(unchanged="skip", where="device"), "leave one of the two out"),
        (
            lambda: TensorRecord(where="device", on="nan", times=2**16),
            "times must be at most 65535",
        ),
        (lambda: TensorRecord(on="nan"), 'add where="device"'),
        (lambda: TensorRecord(where="device", on="absmax>x"), 'or "mismatch", not'),
        (lambda: TensorRecord(enabled="no"), "enabled must be True or False, not 'no'"),
        (lambda: TensorPrint(summary="no"), "TensorPrint: summary must be True or False"),
        (lambda: TensorCompare(torch.ones(1), equal_nan="no"), "equal_nan must be True or False"),
        (lambda: TensorCompare(torch.ones(1), bitwise=None), "bitwise must be True or False"),
        (lambda: TensorPrint(every=0), "TensorPrint: every must be at least 1"),
        (lambda: TensorPrint(max_items=-1), "max_items must be at least 0"),
        (lambda: TensorCompare(torch.ones(1), every=-1), "every must be at least 1"),
        (lambda: TensorCompare(torch.ones(1), rtol=-1e-3), "rtol must be a finite number >= 0"),
        (lambda: TensorCompare(torch.ones(1), atol=float("nan")), "atol must be a finite number"),
        (lambda: TensorCompare(torch.ones(1), atol=float("inf")), "atol must be a finite number"),
        (lambda: TensorCompare(torch.ones(1), rtol="1"), "rtol must be a finite number"),
        (lambda: TensorCompare([]), "expected is empty"),
        (lambda: TensorCompare(3.0), "expected must be a tensor"),
        (lambda: TensorCompare("last"), 'of them, "first" or a probe, not'),
        (lambda: TensorCompare([torch.ones(1), 2.0]), r"expected\[1\] is a float"),
        (lambda: TensorCompare(torch.ones(1, dtype=torch.complex64)), "dtype complex64"),
        (lambda: TensorCompare(numpy.ones(1, dtype="uint32")), "dtype uint32"),
        (lambda: TensorCompare(torch.ones(2, 2).to_sparse()), "to_dense"),
        (
            lambda: TensorCompare(torch.empty(1, device="meta")),
            "is on meta; give a tensor on the CPU",
        ),
    ],
)
def test_bad_arguments_are_refused_with_a_reason(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_disabled_actions_are_not_validated():
    TensorRecord(capacity=0, enabled=False)
    TensorPrint(every=0, enabled=False)
    TensorCompare(None, rtol=-1, enabled=False)


@pytest.mark.parametrize(
    "actions, error, text",
    [
        ([TensorRecord(), TensorRecord()], ValueError, "two enabled TensorRecord"),
        (TensorRecord(), TypeError, "must be a list"),
        (3, TypeError, "must be a list"),
        (["record"], TypeError, "an action must be a TensorPrint"),
    ],
)
def test_a_probe_refuses_bad_action_lists(actions, error, text):
    with pytest.raises(error, match=text):
        CudaGraphTensorProbe("p", actions)


def test_a_disabled_twin_is_not_a_duplicate():
    CudaGraphTensorProbe("p", [TensorRecord(enabled=False), TensorRecord(capacity=2)]).close()


@pytest.mark.parametrize("dtype", NAMES)
def test_expected_tensors_of_every_dtype_become_their_bytes(dtype):
    tensor = made_of(torch.arange(6).reshape(2, 3), dtype)
    ((name, shape, payload),) = native_options({"compare": TensorCompare(tensor)})["compare"][
        "expected"
    ]
    assert (name, shape) == (dtype, [2, 3])
    assert bytes(payload) == bytes(tensor.reshape(-1).view(torch.uint8).numpy())


def test_expected_arrays_become_their_bytes():
    options = native_options(
        {
            "compare": TensorCompare(
                [
                    numpy.array([[1, 2], [3, 4]], dtype=">i4").T,
                    torch.ones(2, 2).t(),
                    torch.tensor(1.5),
                ]
            )
        }
    )
    assert options["compare"]["per_invocation"]
    (_, shape, first), (_, _, second), (_, scalar_shape, third) = options["compare"]["expected"]
    assert shape == [2, 2] and bytes(first) == numpy.array([1, 3, 2, 4], dtype="<i4").tobytes()
    assert bytes(second) == numpy.ones(4, dtype="float32").tobytes()
    assert scalar_shape == [] and bytes(third) == numpy.float32(1.5).tobytes()


def test_expected_is_copied():
    expected = torch.ones(2)
    payload = native_options({"compare": TensorCompare(expected)})["compare"]["expected"][0][2]
    expected.zero_()
    assert bytes(payload) == numpy.ones(2, dtype="float32").tobytes()


def test_the_variable_arms_rings_in_device_memory_that_have_no_trigger(monkeypatch):
    monkeypatch.setenv("CGDEBUG_ON", "absmax>7")

    def trigger_of(record):
        options = native_options(enabled_actions([record]))["record"]
        return options["trigger"], options["threshold"]

    assert trigger_of(TensorRecord(where="device")) == (3, 7.0)
    assert trigger_of(TensorRecord(where="auto")) == (3, 7.0)
    assert trigger_of(TensorRecord(where="device", on="changed")) == (4, 0.0)
    assert trigger_of(TensorRecord()) == (0, 0.0)
