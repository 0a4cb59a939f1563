"""Levels of op logs in captured graphs, planted faults, and jobs whose captures are their own."""

import json
import os
import subprocess
import sys
import textwrap
import time

import pytest
import torch
import torch._dynamo

import cgdebug
from conftest import capture, find_program, wait_until
from op_logs import capture_in, hash_of, make, needs_mode, tokens

triton = pytest.importorskip("triton", reason="level kernel needs Triton")
import triton.language as tl  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.own_lane,
    pytest.mark.usefixtures("torch_as_before"),
    needs_mode,
]


@triton.jit
def pad_kernel(x, valid, columns, SIZE: tl.constexpr):
    """Doubles the valid rows, and means to leave the padding alone."""
    row = tl.program_id(0)
    places = row * columns + tl.arange(0, SIZE)
    inside = tl.arange(0, SIZE) < columns
    value = tl.load(x + places, mask=inside)
    result = tl.where(row < valid, value * 2, float("nan"))
    tl.store(x + places, result, mask=inside)


def on_gpu(layers=2):
    return make(layers).cuda().eval(), tokens().cuda()


def replay(*graphs):
    for graph in graphs:
        graph.replay()
    torch.cuda.synchronize()


# --- level "graph" --------------------------------------------------------------------------------


def test_level_graph_has_the_inputs_and_the_result_of_a_capture(debug_mode):
    model, ids = on_gpu()
    with torch.no_grad():
        dm = debug_mode(model, level="graph")
        graph, out = capture_in(dm, lambda: model(ids))
        for _ in range(2):
            ids.add_(1)
            replay(graph)
            log = dm.log()
            names = [row.name for row in log]
            assert "in/layers.1.attn.wo.weight" in names
            outputs = [row for row in log if row.name.startswith("out/")]
            assert [row.name for row in outputs] == ["out/head/mm_0"], names
            assert outputs[0].stats.xor_hash == hash_of(out)
            assert log["in/embed/embedding_0.indices"].stats.xor_hash == hash_of(ids)
            assert {log.rows[n - 1].name for n in outputs[0].inputs} <= set(names)
    assert log.gaps == [] and all(row.is_covered for row in log)


def test_level_graph_has_what_compiled_code_found_and_left(debug_mode):
    model, ids = on_gpu()
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True)
        expected = compiled(ids)
        dm = debug_mode(model, level="graph")
        graph, out = capture_in(dm, lambda: compiled(ids))
        replay(graph)
    assert torch.equal(out, expected)
    log = dm.log()
    assert {row.name.partition("/")[0] for row in log} == {"in", "out"}
    assert hash_of(out) in {row.stats.xor_hash for row in log if row.name.startswith("out/")}
    assert "in/layers.0.up.weight" in [row.name for row in log]


def test_a_stale_input_is_named_by_the_command_at_level_graph(debug_mode, cli, tmp_path):
    model, ids = on_gpu()
    fresh = ids + 1
    paths = [str(tmp_path / "eager.cgrec"), str(tmp_path / "graph.cgrec")]
    with torch.no_grad():
        with cgdebug.connect().record(paths[0]):
            reference = debug_mode(model, level="graph", eager=True)
            with reference:
                out = model(fresh)  # noqa: F841
            reference.log()
        with cgdebug.connect().record(paths[1]):
            dm = debug_mode(model, level="graph")
            graph, _ = capture_in(dm, lambda: model(ids))  # nobody copies `fresh` into ids
            replay(graph)
            dm.log()
    done = cli("ops", "diff", paths[1], paths[0])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "first divergence: #" in done.stdout and "in/embed/embedding_0.indices" in done.stdout


# --- levels "kernel" and "fx" ---------------------------------------------------------------------


def test_a_kernel_that_writes_nan_into_padding_is_named_by_the_command(debug_mode, cli):
    x = torch.ones(8, 16, device="cuda")

    def run():
        y = x * 3
        pad_kernel[(8,)](y, 5, 16, SIZE=16)
        return y[:5].sum()

    dm = debug_mode(level="kernel", pre=True)
    graph, out = capture_in(dm, run)
    replay(graph)
    assert out.item() == 5 * 16 * 6  # what is valid is right
    log = dm.log()
    names = [row.name for row in log]
    assert names[-3:] == ["fwd/pad_kernel_0.x.pre", "fwd/pad_kernel_0.x", "fwd/sum_0"], names
    before, after = log["fwd/pad_kernel_0.x.pre"], log["fwd/pad_kernel_0.x"]
    assert (before.stats.nan, before.stats.max) == (0, 3)
    assert (after.stats.nan, after.stats.max) == (3 * 16, 6)
    assert after.inputs == (before.number,) and log.first_nonfinite is after
    done = cli("ops", str(os.getpid()), "--only", "nan")
    assert done.returncode == 0, done.stdout + done.stderr  # no later row has it
    (row,) = [line for line in done.stdout.splitlines() if "48 NaN" in line]
    assert "fwd/pad_kernel_0.x " in row
    assert "not finite, and excused (see check): #" in done.stdout, done.stdout


def test_level_fx_leaves_the_bits_of_trees_alone_and_sees_what_a_recomputation_gives(
    probe, daemon, monkeypatch
):
    # Inductor measures whether a product is faster with padding, which other processes change.
    monkeypatch.setattr("torch._inductor.config.shape_padding", False)
    plain, ids = on_gpu()
    model, _ = on_gpu()
    with torch.no_grad():
        expected = torch.compile(plain, mode="reduce-overhead", fullgraph=True)
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            reference = expected(ids).clone()
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        with cgdebug.watch(model, level="fx", values=2) as w:
            compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
            for _ in range(4):
                torch.compiler.cudagraph_mark_step_begin()
                actual = compiled(ids).clone()
            torch.cuda.synchronize()
            assert torch.equal(actual, reference)
            counters = torch._dynamo.utils.counters
            assert counters["stats"]["unique_graphs"] == 1
            assert counters["inductor"]["cudagraph_skips"] == 0
            seen = w.explain().seen
            assert "fx/layers.1.up/mm_0" in seen and "fx/layers.0.attn/bmm_0" in seen, seen
            record = w.probes["fx/head/mm_0"].records(synchronize=True)[-1]
            assert torch.equal(record.tensor.reshape(actual.shape), actual.cpu())


def test_a_wrong_constant_in_layer_7_is_named_by_the_command_against_eager(
    debug_mode, cli, tmp_path
):
    model, ids = on_gpu(layers=9)
    paths = [str(tmp_path / "eager.cgrec"), str(tmp_path / "graph.cgrec")]
    with torch.no_grad():
        with cgdebug.connect().record(paths[0]):
            reference = debug_mode(model, eager=True)
            with reference:
                model(ids)
            reference.log()
        model.layers[7].attn.scale = 1.001
        with cgdebug.connect().record(paths[1]):
            dm = debug_mode(model)
            graph, _ = capture_in(dm, lambda: model(ids))
            replay(graph)
            dm.log()
    done = cli("ops", "diff", paths[1], paths[0])
    assert done.returncode == 1, done.stdout + done.stderr
    first = next(line for line in done.stdout.splitlines() if "first divergence" in line)
    assert "fwd/layers.7.attn/mul_0" in first, done.stdout


def test_a_wrong_constant_in_compiled_code_is_named_by_the_command_against_a_right_one(
    debug_mode, cli, tmp_path
):
    paths, logs = [], []
    for scale in (0.5, 0.501):
        torch._dynamo.reset()
        model, ids = on_gpu(layers=9)
        model.layers[7].attn.scale = scale
        paths.append(str(tmp_path / f"{scale}.cgrec"))
        with torch.no_grad(), cgdebug.connect().record(paths[-1]):
            compiled = torch.compile(model, fullgraph=True)
            compiled(ids)
            dm = debug_mode(model, level="kernel")
            graph, _ = capture_in(dm, lambda: compiled(ids))  # noqa: B023
            replay(graph)
            logs.append(dm.log())
    done = cli("ops", "diff", paths[1], paths[0])
    assert done.returncode == 1, done.stdout + done.stderr
    first = logs[1].diff(logs[0]).first
    assert f" {first} " in next(
        line for line in done.stdout.splitlines() if "first divergence" in line
    )
    # It is in the eighth of nine layers, and all that comes before it is the same.
    assert 0.7 < logs[1][first].number / len(logs[1]) < 0.95, done.stdout


def test_explain_and_torch_logs_tell_of_a_capture(probe, daemon, caplog):
    model, ids = on_gpu()
    single = probe(cgdebug.TensorStats(), name="logits", mode="capture", lane="callback")
    with cgdebug.watch(model, level="op") as w, torch.no_grad():
        with caplog.at_level("INFO", logger="cgdebug"):
            graph, _ = capture(lambda: single(model(ids)))
        replay(graph)
        report = w.explain()
        (cost,) = report.captures
        assert cost.rows == len(w.log()) and cost.nodes > 20 and 0 < cost.seconds < 60
        assert str(cost) in str(report)
    assert str(cost) in caplog.text
    assert "probe logits, float32[2, 5, 16], callback lane" in caplog.text


class Link(torch.nn.Module):
    scale = 0.5

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(16, 16, bias=False)

    def forward(self, x):
        return (self.lin(x) * self.scale).relu()


def test_a_wrong_constant_in_a_graph_is_bracketed_against_compiled_code(debug_mode, cli, tmp_path):
    paths = [str(tmp_path / "graph.cgrec"), str(tmp_path / "compiled.cgrec")]
    x = torch.ones(8, 16, device="cuda")
    for place, path in enumerate(paths):
        torch.manual_seed(0)
        model = torch.nn.ModuleDict({"layers": torch.nn.Sequential(*(Link() for _ in range(9)))})
        model = model.cuda().eval()
        run = model["layers"]
        if place == 0:
            run[7].scale = 0.501
        else:
            run = torch.compile(run, fullgraph=True)
        with torch.no_grad(), cgdebug.connect().record(path):
            run(x)
            dm = debug_mode(model, level="kernel")
            graph, _ = capture_in(dm, lambda: run(x))  # noqa: B023
            replay(graph)
            dm.log()
    done = cli("ops", "diff", *paths)
    assert done.returncode == 1, done.stdout + done.stderr
    fault = next(line for line in done.stdout.splitlines() if "it is made of" in line)
    assert "fwd/layers.7/mul_0" in fault and "only B has: #" in fault, done.stdout
    assert "layers.6" not in fault and "triton_" in fault, done.stdout


# --- what surrounds a capture ---------------------------------------------------------------------


@pytest.mark.parametrize("cache_enabled", [False, True])
def test_autocast_in_a_capture_is_logged_as_in_eager_code(debug_mode, cache_enabled):
    model, ids = on_gpu()

    def run():
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=cache_enabled):
            return model(ids)

    with torch.no_grad():
        plain, expected = capture(run)
        reference = debug_mode(model, eager=True)
        with reference:
            run()
        dm = debug_mode(model)
        graph, out = capture_in(dm, run)
        replay(plain, graph)
    assert torch.equal(out, expected)
    diff = dm.log().diff(reference.log())
    assert diff.verdict == "same", diff.text
    assert any(row.dtype == "bfloat16" for row in dm.log())


def test_the_seeds_that_cudnn_attention_leaves_unwritten_are_no_rows(debug_mode):
    q = torch.randn(2, 4, 32, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def run():
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        (grad,) = torch.autograd.grad(out.sum(), q)
        return grad

    dm = debug_mode()
    graph, _ = capture_in(dm, run)
    replay(graph)
    log = dm.log()
    names = [row.name for row in log]
    assert any("cudnn_attention" in name for name in names), names
    # The result and the sum of logarithms; of the backward pass three gradients.
    results = [name for name in names if name.startswith("fwd/") and "cudnn_attention_0" in name]
    assert len(results) == 2, names
    assert all(row.is_covered for row in log if "cudnn" in row.name), str(log)


def test_an_async_all_reduce_in_a_capture_is_seen_when_it_has_been_waited_for(job, daemon):
    seen = job(
        """
        import torch.distributed as dist
        from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
        torch.cuda.set_device(0)
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        x = torch.ones(1 << 20, device="cuda")
        def run():
            y = x * 3
            work = dist.all_reduce(y, async_op=True)
            z = x + 1
            work.wait()
            return y + z
        run()
        torch.cuda.synchronize()
        dm = cgdebug.debug_mode()
        graph = torch.cuda.CUDAGraph()
        with dm, torch.cuda.graph(graph):
            out = run()
        graph.replay()
        torch.cuda.synchronize()
        assert out.max().item() == out.min().item() == 5
        log = dm.log()
        print([(row.name, row.stats.max) for row in log if row.op != "input"], log.gaps)
        assert _get_current_dispatch_mode_stack() == []
        """
    ).line()
    assert (
        seen
        == str(
            [
                ("fwd/mul_0", 3.0),
                ("fwd/add_0", 2.0),
                ("fwd/c10d.allreduce__0", 3.0),
                ("fwd/add_1", 5.0),
            ]
        )
        + " []"
    ), seen


BATCHING = """
    import torch, gc, time, sys, transformers
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers import ContinuousBatchingConfig
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, vocab_size=128, max_position_embeddings=1024)
    model = LlamaForCausalLM(config).cuda().eval()
    batching = ContinuousBatchingConfig(num_blocks=32, max_batch_tokens=64, use_cuda_graph=True,
        q_padding_interval_size=16, kv_padding_interval_size=256, use_async_batching=False)
    prompts = [list(range(1, 1 + n)) for n in (3, 20, 7, 40, 55)]
    start = time.monotonic()
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    # The manager stays, as in a server, and so do its graphs.
    done = model.generate_batch(prompts, continuous_batching_config=batching, warmup=False,
        persistent_manager=True,
        generation_config=GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=127))
    torch.cuda.synchronize()
    print([done[key].generated_tokens for key in sorted(done)])
    graphs = sum(type(one) is torch.cuda.CUDAGraph for one in gc.get_objects())
    print(graphs, round(time.monotonic() - start, 2), (free - torch.cuda.mem_get_info()[0]) >> 20)
    sys.stdin.readline()
"""


@pytest.mark.alone
def test_continuous_batching_of_transformers_needs_the_variable_alone(daemon, job, cli):
    pytest.importorskip("transformers")
    pytest.importorskip("transformers.generation.continuous_batching.model_runner")
    lines = []
    for watch in ("", "op:*"):  # one after the other: each measures the memory of the whole device
        running = job(BATCHING, CGDEBUG_WATCH=watch, TRANSFORMERS_VERBOSITY="error")
        tokens, measured = running.line(), running.line()
        lines.append((tokens, *measured.split()))
        if not watch:
            running.go_on()
            running.finish()
    (plain, graphs, _, memory), (watched, watched_graphs, _, watched_memory) = lines
    assert plain == watched and graphs == watched_graphs, lines

    def rows():
        return json.loads(cli("--json", "probes", "-s", str(running.pid)).stdout)["probes"]

    def labels():
        return {one["graph"] for one in rows()}

    # One graph for each size that a batch is padded to: 64 tokens while prompts are read, then 16.
    wait_until(lambda: len(labels()) == int(graphs), f"{graphs} graphs; {lines}", 10.0)
    begin = time.monotonic()
    probes = rows()
    print(
        f"continuous batching: {lines[0][1:]} against {lines[1][1:]} graphs, s and MiB with an op "
        f"log; {len(probes)} rows in {sorted(labels())}, listed in {time.monotonic() - begin:.2f} s"
    )
    assert all(label.startswith(("tokens=", "decode,tokens=")) for label in labels()), labels()
    assert len(labels()) >= 2 and not any("#" in label for label in labels()), labels()
    of_layer = [one for one in probes if one["name"] == "fwd/model.layers.3.mlp.down_proj/mm_0"]
    assert {one["graph"] for one in of_layer} == labels()
    assert int(watched_memory) - int(memory) < 16 * int(graphs), lines
    running.go_on()


def test_rows_of_graphs_that_the_compiler_captures_have_their_layers_and_lines(
    debug_mode, monkeypatch
):
    # It pads where that is faster, as it measures each time, and padding is of no layer.
    monkeypatch.setattr(torch._inductor.config, "shape_padding", False)
    torch.compiler.reset()
    model, x = make(4).cuda(), tokens().cuda()
    compiled = torch.compile(model, mode="reduce-overhead")
    dm = debug_mode(model, level="kernel")
    with dm:
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            model.zero_grad()  # they lie in the memory of the graph
            logits = compiled(x)
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), x.flatten()).backward()
    assert dm.logs == 2  # the forward pass, and the backward pass
    layers = {name for name, _ in model.named_modules() if name}
    for graph in range(dm.logs):
        rows = [row for row in dm.log(graph=graph) if row.op != "input"]
        placed = [
            row
            for row in rows
            if row.site.endswith("in forward") and row.name.split("/")[1] in layers
        ]
        missing = [str(row) for row in rows if row not in placed]
        assert len(placed) >= 0.95 * len(rows), missing[:8]
        assert any(len(row.sources) > 1 for row in rows)  # kernels name what they were fused from
    torch.compiler.reset()


# --- some replays of all --------------------------------------------------------------------------


def run_alone(tmp_path, text):
    """What cgdebug-cli run says of a program whose op log has each tenth replay, and its pid."""
    program = """
        import os, torch, cgdebug
        x, dm = torch.zeros(64, device="cuda"), cgdebug.debug_mode(every=10)
        def capture(step):
            step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with dm, torch.cuda.graph(graph):
                out = step()
            return graph, out
        def replay(graph):
            graph.replay()
            torch.cuda.synchronize()
    """
    path = tmp_path / "tenth.py"
    path.write_text(textwrap.dedent(program) + textwrap.dedent(text) + "print(os.getpid())\n")
    words = [find_program("cgdebug-cli"), "run", "--no-live", "--", sys.executable, str(path)]
    told = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert told.stdout.strip().isdecimal(), told
    return told, told.stdout.strip()


@pytest.mark.usefixtures("daemon")
def test_of_each_tenth_replay_all_rows_of_all_graphs_are_there_and_others_are_no_loss(
    cli, tmp_path
):
    """More rows than a page has, so that pages have to agree."""
    told, pid = run_alone(
        tmp_path,
        """
        def step():
            y = x
            for _ in range(700):
                y = y + 1
            return y
        graph, out = capture(step)
        for number in range(1, 36):
            x.fill_(number)
            replay(graph)
            assert out[0].item() == number + 700
        assert dm.log().replay == 31
        assert dm.log(replay=-2).replay == 21
        try:
            dm.log(replay=12)
            raise AssertionError("it has rows")
        except KeyError as error:
            assert "replay 12 has no rows: with every=10 replays 1, 11" in str(error)
        for number in (1, 11, 21, 31):
            rows = dm.log(replay=number)
            assert [row.stats.max for row in rows] == [number + i for i in range(701)]
        """,
    )
    assert told.returncode == 0, told
    said = cli("check", pid)
    assert said.returncode == 0, said.stdout
    said = cli("ops", pid)
    assert said.returncode == 0 and "replay 31" in said.stdout, said.stdout


@pytest.mark.usefixtures("daemon")
def test_a_nan_of_a_replay_that_has_no_rows_is_found_when_it_is_still_there(cli, tmp_path):
    _, pid = run_alone(
        tmp_path,
        """
        graph, _ = capture(lambda: (x + 1) * 2)
        replay(graph)
        x[3] = float("nan")
        for _ in range(9):
            replay(graph)
        assert dm.log().replay == 1
        replay(graph)
        assert dm.log(replay=11)[0].stats.nan == 1
        """,
    )
    said = cli("check", pid)
    assert said.returncode == 1 and "replay 11" in said.stdout, said.stdout
