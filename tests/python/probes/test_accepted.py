"""Names, options and tensors that a probe refuses, and what it says to write instead."""

import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from cgdebug import CudaGraphTensorProbe, TensorRecord


def test_not_a_tensor_is_refused(probe):
    with pytest.raises(TypeError, match="probe 'p' got a int, not a tensor"):
        probe(TensorRecord())(3)


@pytest.mark.parametrize(
    "tensor, text",
    [
        (torch.ones(2, dtype=torch.complex64), "probe 'p': dtype .* not supported .*view_as_real"),
        (torch.ones(2, 2).to_sparse(), r"probe 'p': .*sparse_coo .* tensor.coalesce\(\)"),
        (torch.ones(2, 2).to_sparse_csr(), r"probe 'p': .*sparse_csr .* tensor.values\(\)"),
        (torch.ones(2, 3).t(), r"probe 'p': .*not contiguous.*non_contiguous=\"copy\""),
        (torch.ones((1,) * 17), "at most 16 dimensions"),
        (
            torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
            r"probe 'p': quantized tensors .*tensor.int_repr\(\)",
        ),
        (
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            r"probe 'p': nested tensors .*tensor.values\(\)",
        ),
        (
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            r"probe 'p': nested tensors .*tensor.values\(\)",
        ),
        (torch.ones(3, device="meta"), "probe 'p': meta tensors .* no values"),
        (FakeTensorMode().from_tensor(torch.ones(3)), "probe 'p': fake tensors .* no values"),
    ],
)
def test_unsupported_tensors_are_refused(probe, tensor, text):
    p = probe(TensorRecord())
    with pytest.raises(ValueError, match=text):
        p(tensor)
    p(torch.ones(2))
    assert len(p.records()) == 1


@pytest.mark.parametrize("mode", ["capture", "always"])
def test_fake_tensors_of_a_trace_pass(probe, mode):
    p = probe(TensorRecord(), mode=mode)
    with FakeTensorMode():
        p(torch.ones(3))
        p(torch.ones(3, device="meta"))
    for kind in ("fake", "symbolic"):
        make_fx(lambda x: p(x * 2), tracing_mode=kind)(torch.ones(3))
    torch.export.export(torch.nn.Sequential(torch.nn.ReLU()), (torch.ones(3),))
    assert p.records() == []


@pytest.mark.parametrize("depth", [1, 2])
def test_inside_vmap_says_which_probe_and_what_to_probe_instead(probe, depth):
    p = probe(TensorRecord(), mode="always")
    function = lambda x: p(x * 2)  # noqa: E731
    for _ in range(depth):
        function = torch.vmap(function)
    with pytest.raises(ValueError, match="probe 'p' is called inside torch.vmap.*whole batch"):
        function(torch.ones(2, 3, 4))
    p(torch.vmap(lambda x: x * 2)(torch.ones(2, 3, 4)))
    torch.func.grad(lambda x: p(x * 2).sum())(torch.ones(3))
    assert [record.shape for record in p.records()] == [(2, 3, 4), (3,)]


@pytest.mark.parametrize(
    "name, error",
    [
        ("", ValueError),
        ("x" * 256, ValueError),
        ("é" * 128, ValueError),
        ("a\0b", ValueError),
        ("a\nb", ValueError),
        ("blk*", ValueError),
        ("blk?", ValueError),
        ("a@3", ValueError),
        ("a:b", ValueError),
        ("a{1}", ValueError),
        ("a#1", ValueError),
        ("!a", ValueError),
        ("\ud800", ValueError),
        (3, TypeError),
    ],
)
def test_bad_names_are_refused(name, error):
    with pytest.raises(error):
        CudaGraphTensorProbe(name, [TensorRecord()])


def test_a_name_that_selectors_would_misread_says_what_to_write_instead():
    with pytest.raises(ValueError, match=r"cannot contain '@': 'a@3\*'.*'a_3_'"):
        CudaGraphTensorProbe("a@3*", [TensorRecord()])


def test_two_live_probes_of_one_name_get_a_warning(probe):
    first = probe(TensorRecord(), name="dup")
    with pytest.warns(RuntimeWarning, match=r"both alive are called 'dup' \(.*Give each a name"):
        probe(TensorRecord(), name="dup")
    first.close()
    alone = probe(TensorRecord(), name="alone")
    alone.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        probe(TensorRecord(), name="alone")


@pytest.mark.parametrize("name", ["a/b.c", "x" * 255, "é" * 127, "层.3[out] 'quoted'"])
def test_long_and_foreign_names_work(probe, name):
    p = probe(TensorRecord(), name=name)
    p(torch.ones(1))
    assert p.records()[0].probe_name == name == p.name


@pytest.mark.parametrize(
    "options, text",
    [
        ({"mode": "eager"}, "mode must be 'capture' or 'always', not 'eager'"),
        ({"non_contiguous": "skip"}, "non_contiguous must be"),
        ({"lane": "fast"}, "lane must be"),
        ({"enabled": "no"}, "enabled must be True or False, not 'no'"),
    ],
)
def test_bad_options_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        CudaGraphTensorProbe("p", [TensorRecord()], **options)


def test_prepare_checks_the_non_contiguous_policy(probe):
    strided = torch.ones(2, 3).t()
    with pytest.raises(ValueError, match=r"probe 'p': .*not contiguous.*non_contiguous=\"copy\""):
        probe(TensorRecord()).prepare(strided)
    p = probe(TensorRecord(), name="packs", non_contiguous="copy")
    p.prepare(strided)
    p(strided)
    assert p.records()[0].shape == (3, 2)
