"""Probes under torch.compile(fullgraph=True) on the CPU."""

import gc
import json

import pytest
import torch
import torch._dynamo

import cgdebug
from cgdebug import CudaGraphTensorProbe, TensorRecord

BACKENDS = ["eager", "aot_eager", "inductor"]


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def values(p):
    return [record.tensor.flatten()[0].item() for record in p.records()]


@pytest.mark.parametrize("backend", BACKENDS)
def test_forward_and_gradient_are_seen_once_a_call(probe, backend):
    forward, gradient = probe(TensorRecord(), name="f"), probe(TensorRecord(), name="g")

    def step(x):
        y = gradient.attach_grad(forward(x * 2))
        return (y * y).sum()

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    for i in range(1, 4):
        x = torch.full((3,), float(i), requires_grad=True)
        compiled(x).backward()
        assert x.grad.tolist() == [8 * i] * 3
    assert values(forward) == [2, 4, 6] and values(gradient) == [4, 8, 12]
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_probe_of_the_gradient_alone_is_not_dropped(probe, backend):
    gradient = probe(TensorRecord())
    compiled = torch.compile(
        lambda x: (gradient.attach_grad(x * 2) ** 2).sum(), fullgraph=True, backend=backend
    )
    for i in range(1, 3):
        compiled(torch.full((3,), float(i), requires_grad=True)).backward()
    assert values(gradient) == [4, 8]


def test_two_probes_keep_their_order_and_count(probe):
    first, second = probe(TensorRecord(), name="a"), probe(TensorRecord(), name="b")

    @torch.compile(fullgraph=True)
    def step(x):
        second(x + 2)
        first(x + 1)
        return second(x + 3).sum()

    step(torch.zeros(2))
    assert values(first) == [1] and values(second) == [2, 3]
    stamps = [
        r.timestamp_ns for r in (second.records()[0], first.records()[0], second.records()[1])
    ]
    assert stamps == sorted(stamps)


def test_nothing_is_recompiled_from_call_to_call(probe):
    p = probe(TensorRecord(capacity=32))
    compiled = torch.compile(lambda x: p(x) + 1, fullgraph=True, backend="eager")
    for i in range(20):
        compiled(torch.full((2,), float(i)))
    assert values(p) == list(range(20))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_disabled_and_capture_only_probes_compile_to_nothing_visible():
    off = CudaGraphTensorProbe("off", [TensorRecord(enabled=False)])
    waiting = CudaGraphTensorProbe("waiting", [TensorRecord()])
    compiled = torch.compile(lambda x: waiting(off(x)) + 1, fullgraph=True)
    assert compiled(torch.zeros(2)).tolist() == [1, 1]
    assert off.records() == waiting.records() == []
    waiting.close()


def test_compiled_code_outlives_its_probe():
    def make():
        p = CudaGraphTensorProbe("gone", [TensorRecord()], mode="always")
        return torch.compile(
            lambda x: torch.ops.cgdebug.observe(x, p._site_key) or x + 1, backend="eager"
        ), p

    compiled, p = make()
    assert compiled(torch.zeros(2)).tolist() == [1, 1]
    p.close()
    del p
    gc.collect()
    assert compiled(torch.zeros(2)).tolist() == [1, 1]


def test_dynamic_shapes_are_recorded_as_they_are(probe):
    p = probe(TensorRecord())
    compiled = torch.compile(lambda x: p(x) * 2, fullgraph=True, dynamic=True, backend="eager")
    for size in (3, 4, 5):
        compiled(torch.ones(size))
    assert sorted(r.shape for r in p.records()) == [(3,), (4,), (5,)]


CACHED_JOB = """
    import json
    from torch._dynamo.utils import counters
    print_effect = PRINT_EFFECT
    if EXTRA:
        CudaGraphTensorProbe("made before", [TensorRecord()], mode="always")
    first = CudaGraphTensorProbe("first", [TensorRecord()], mode="always")
    second = CudaGraphTensorProbe("second", [TensorRecord()], mode="always")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

    @torch.compile(fullgraph=True)
    def step(x):
        second(x + 2)
        y = first(model(x))
        if print_effect:
            torch.ops.aten._print("effect of another")
        return second(y * 2).sum()

    for i in range(3):
        step(torch.full((2, 4), float(i))).backward()
    stamps = [record.serial for pair in zip(second.records()[::2], first.records(),
              second.records()[1::2]) for record in pair]
    print("ANSWER", json.dumps({
        "sites": [first._site_key, second._site_key],
        "starts": [record.tensor.flatten()[0].item() for record in second.records()[::2]],
        "count": [len(first.records()), len(second.records())],
        "in order": len(stamps) == 9 and stamps == sorted(stamps),
        "inductor": dict(counters["inductor"]),
        "aot": dict(counters["aot_autograd"]),
    }))
"""


@pytest.fixture(scope="module")
def inductors_cache(tmp_path_factory):
    """Of all tests that use it: g++ takes ten seconds for each kernel that is not in there."""
    return tmp_path_factory.mktemp("inductor")


def run_cached(job, folder, extra=False, print_effect=False):
    code = CACHED_JOB.replace("PRINT_EFFECT", str(print_effect)).replace("EXTRA", str(extra))
    out, _ = job(code, TORCHINDUCTOR_CACHE_DIR=str(folder)).finish(timeout=300)
    return json.loads(next(line for line in out.splitlines() if line[:7] == "ANSWER ")[7:])


def test_the_next_process_takes_compiled_code_with_probes_from_torchs_caches(job, inductors_cache):
    cold = run_cached(job, inductors_cache)
    warm = run_cached(job, inductors_cache, extra=True)
    assert cold["inductor"].get("fxgraph_cache_hit", 0) == 0
    assert cold["inductor"]["fxgraph_cache_miss"] == warm["inductor"]["fxgraph_cache_hit"] == 2
    assert warm["aot"]["autograd_cache_hit"] == 1
    for one in (cold, warm):
        assert "fxgraph_cache_bypass" not in one["inductor"]
        assert "autograd_cache_bypass" not in one["aot"]
        assert one["sites"] == ["1:first", "1:second"]
        assert one["starts"] == [2, 3, 4] and one["count"] == [3, 6] and one["in order"]


def test_code_with_another_effect_is_cached_no_more_than_without_probes(job, inductors_cache):
    for _ in range(2):
        answer = run_cached(job, inductors_cache, print_effect=True)
        assert answer["inductor"]["fxgraph_cache_bypass"] > 0
        assert "autograd_cache_hit" not in answer["aot"]
        assert answer["count"] == [3, 6]


def test_a_new_probe_is_never_taken_for_a_closed_one_of_its_name(probe):
    old = probe(TensorRecord(), name="same")
    compiled = torch.compile(lambda x: old(x) + 1, fullgraph=True, backend="eager")
    compiled(torch.zeros(2))
    old.close()
    new = probe(TensorRecord(), name="same")
    compiled(torch.zeros(2))
    assert new.records() == [] and new._site_key == "2:same"


# --- level "fx" of watch() --------------------------------------------------------------------------

FX_JOB = """
    import json
    import cgdebug
    import torch._inductor.config as config
    from torch._dynamo.utils import counters
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Other(CustomGraphPass):
        graphs = 0
        def __call__(self, graph):
            Other.graphs += 1
        def uuid(self):
            return "other"

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = (torch.nn.Linear(4, 4, bias=False) for _ in range(2))
        def forward(self, x):  # so that there is nothing to fuse, and no C++ to compile
            return self.down(self.up(x))

    def run():
        x = torch.ones(2, 4, requires_grad=True)
        y = net(x)
        y.sum().backward()
        return [y.detach(), x.grad]

    torch.manual_seed(0)
    net = Net()
    plain = run()
    config.post_grad_custom_post_pass = other = Other()
    watch = cgdebug.watch(net, level="fx", grads=True, values=4, select="!up")
    net.compile(fullgraph=True)
    seen = run()
    def hash_of(name):
        return watch.probes[name].records()[-1].stats.xor_hash
    answer = {
        "same": all(map(torch.equal, plain, seen)),
        "seen": sorted(watch.explain().seen),
        "text": str(watch.explain()),
        "right": hash_of("fx/down/mm_0") == torch.hash_tensor(seen[0]).item(),
        "other": Other.graphs,
        "hits": counters["inductor"]["fxgraph_cache_hit"],
        "bypass": counters["inductor"]["fxgraph_cache_bypass"],
    }
    watch.close()
    answer["restored"] = config.post_grad_custom_post_pass is other
    print("ANSWER", json.dumps(answer))
"""


def test_level_fx_sees_behind_the_matmuls_of_compiled_code_that_is_cached_too(job, tmp_path):
    answers = []
    for _ in range(2):
        out, _ = job(FX_JOB, TORCHINDUCTOR_CACHE_DIR=str(tmp_path)).finish(timeout=300)
        answers.append(json.loads(out.partition("ANSWER ")[2]))
    for answer in answers:
        assert answer["same"] and answer["right"] and answer["restored"], answer
        assert "fx/down/mm_0" in answer["seen"] and "fx/bwd/down/mm_0" in answer["seen"], answer
        assert not any("/up/" in name for name in answer["seen"]), answer
        assert "changes what Inductor fuses" in answer["text"]
        assert answer["bypass"] == 0
    cold, warm = answers
    assert cold["hits"] == 0 and cold["other"] > 0
    assert warm["hits"] > 0 and warm["other"] == 0 and warm["seen"] == cold["seen"]


def test_level_fx_after_compilation_says_what_to_type(daemon):
    class Net(torch.nn.Module):
        def forward(self, x):
            return x @ x

    net = Net()
    compiled = torch.compile(net, backend="eager")
    compiled(torch.ones(2, 2))
    with cgdebug.watch(net, level="fx") as w:
        compiled(torch.ones(2, 2))
        text = str(w.explain())
    assert "before the watch" in text and "torch.compiler.reset()" in text, text
    assert "made no code with matmul or attention since watch()" in text
