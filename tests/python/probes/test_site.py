"""What a slot says about the line that calls its probe."""

import sys

import torch

from cgdebug import CudaGraphTensorProbe, TensorRecord


def line_here():
    return sys._getframe(1).f_lineno


def sites(p):
    return [slot.site for slot in p.status(timeout=0).slots]


def test_each_call_says_its_own_line_also_of_probes_made_in_a_loop(probe):
    probes = [probe(TensorRecord(), name=f"p{i}") for i in range(2)]
    probes[0](torch.ones(1))
    first = line_here() - 1

    def elsewhere(x):
        return probes[1](x)

    elsewhere(torch.ones(1))
    here = "test_each_call_says_its_own_line_also_of_probes_made_in_a_loop"
    assert sites(probes[0]) == [f"test_site.py:{first} in {here}"]
    assert sites(probes[1]) == [f"test_site.py:{first + 4} in elsewhere"]


def test_what_torch_does_between_a_hook_and_the_code_of_the_user_is_left_out(probe):
    p = probe(TensorRecord())
    inner = torch.nn.Linear(2, 3)
    inner.register_forward_hook(lambda module, args, out: (p(out), None)[1])
    hook_line = line_here() - 1

    class Model(torch.nn.Module):
        def forward(self, x):
            return p(inner(x).double())

    Model()(torch.ones(1, 2))
    forward_line = line_here() - 3
    assert sites(p) == [
        f"test_site.py:{hook_line}",
        f"test_site.py:{forward_line} in forward",
    ]


def test_a_second_call_of_a_shape_keeps_the_line_of_the_first(probe):
    p = probe(TensorRecord())
    p(torch.ones(1))
    first = line_here() - 1
    p(torch.ones(1))
    assert [site.split()[0] for site in sites(p)] == [f"test_site.py:{first}"]


def test_compiled_code_says_where_its_probe_was_made(probe):
    p = probe(TensorRecord())
    compiled = torch.compile(lambda x: p(x) + 1, backend="eager")
    compiled(torch.ones(1))
    (site,) = sites(p)
    assert site.startswith("conftest.py:") and site.endswith(" in make")


def test_a_gradient_is_seen_at_the_line_that_asks_for_it(probe):
    p = probe(TensorRecord())
    x = p.attach_grad(torch.ones(1, requires_grad=True))
    (x * 2).sum().backward()
    line = line_here() - 1
    assert [site.split()[0] for site in sites(p)] == [f"test_site.py:{line}"]


def test_the_line_that_makes_a_probe_is_told_with_its_function(monkeypatch):
    seen = {}

    class Module:
        @staticmethod
        def NativeProbe(name, **options):
            seen.update(options)
            return type("Native", (), {"site_key": "0:p", "close": lambda self: None})()

    monkeypatch.setattr("cgdebug._job._native.load", lambda: Module)
    CudaGraphTensorProbe("p", [TensorRecord()])
    line = line_here() - 1
    here = "test_the_line_that_makes_a_probe_is_told_with_its_function"
    assert seen["site"] == f"test_site.py:{line} in {here}"
