"""Megatron-Core: a run of its forward_backward_func is a call and a step, without an edit.

Its schedules and its attention name the device "cuda": the program of the tests says that this is
the CPU, and has nothing else that a training without cgdebug would not have."""

import json
import sys
import textwrap

import pytest

pytest.importorskip("megatron.core")

HEAD = """
    import contextlib, itertools, os, sys, torch
    import torch.distributed as dist
    from torch.overrides import TorchFunctionMode
    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {{}})
            if str(kwargs.get("device")).startswith("cuda"): kwargs["device"] = "cpu"
            return func(*args, **kwargs)
    torch.cuda.current_device = lambda: "cpu"
    OnCpu().__enter__()
    {imports}
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
    from megatron.core.tensor_parallel.random import initialize_rng_tracker
    from megatron.core.transformer.transformer_config import TransformerConfig
    places = torch.arange(4).unsqueeze(0)
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool).triu(1)

    def forward(data, model):
        tokens = next(data)
        return model(tokens, places, mask, labels=tokens), lambda losses: (losses.mean(), {{}})

    def run(forward_only):
        get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=(torch.randint(0, 16, (1, 4)) for _ in itertools.count()),
            model=model, num_microbatches=2, seq_length=4, micro_batch_size=1,
            forward_only=forward_only,
        )
"""
TRAINING = (
    HEAD
    + """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    initialize_rng_tracker(inference_rng_tracker=True)
    torch.manual_seed(0)
    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=2, use_cpu_initialization=True,
        hidden_dropout=0, attention_dropout=0,
    )
    model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=16, max_sequence_length=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for n in range(3):
        {each}
        optimizer.zero_grad()
        run(False)
        if n == {bad}: next(model.parameters()).grad.fill_(float("nan"))
        optimizer.step()
    run(True)
    for _ in range(2):
        with torch.no_grad(): model(torch.zeros(1, 4, dtype=torch.long), places, mask)
"""
)
# Two ranks, each of which has half of the layers, or half of each layer.
PARALLEL = (
    HEAD
    + """
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
    parallel_state.initialize_model_parallel({kind}_model_parallel_size=2)
    initialize_rng_tracker(inference_rng_tracker=True)
    torch.manual_seed(0)
    config = TransformerConfig(
        num_layers=2, hidden_size=8, num_attention_heads=2, use_cpu_initialization=True,
        hidden_dropout=0, attention_dropout=0, pipeline_dtype=torch.float32, batch_p2p_sync=False,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size(),
    )
    model = GPTModel(
        config, get_gpt_layer_local_spec(), vocab_size=16, max_sequence_length=4,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=False,
    )
    {each}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for n in range(3):
        optimizer.zero_grad()
        run(False)
        if (rank, n) == (1, 1): {fault}
        optimizer.step()
"""
)
LAUNCHER = """
import os, subprocess, sys
ranks = [
    subprocess.Popen(
        [sys.executable, "-W", "ignore", *sys.argv[1:]],
        env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
             "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"})
    for rank in (0, 1)
]
sys.exit(max(rank.wait() for rank in ranks))
"""


@pytest.fixture
def record(daemon, cli, tmp_path):
    """record(options, **words): (path of the recording, how `run` ended)"""

    def run(*options, imports="", each="", bad=9):
        script, path = tmp_path / "job.py", tmp_path / "job.cgrec"
        program = textwrap.dedent(TRAINING).format(
            imports=imports, each=textwrap.indent(textwrap.dedent(each), " " * 4).strip(), bad=bad
        )
        script.write_text(program, encoding="utf-8")
        done = cli("run", *options, "-o", path, "--", sys.executable, "-W", "ignore", script)
        return path, done

    return run


def _calls(cli, path, probe):
    sql = f"select call, step, count(*) as n from v_snapshots where probe = '{probe}' group by call"
    done = cli("--json", "query", path, sql)
    assert done.returncode == 0, done.stderr
    return [(row["call"], row["step"], row["n"]) for row in json.loads(done.stdout)]


# Three of training and one of evaluation, of two microbatches each, and two of the model alone.
WHOLE = [(1, 0, 2), (2, 1, 2), (3, 2, 2), (4, 2, 2), (5, 2, 1), (6, 2, 1)]


def test_each_run_of_the_schedule_is_a_call_and_a_step(record, cli):
    path, done = record("--watch", "*")
    assert done.returncode == 0, done.stderr
    assert _calls(cli, path, "fwd/decoder") == WHOLE


def test_the_rows_of_its_microbatches_and_of_the_optimizer_are_of_that_call(record, cli):
    path, done = record("--watch", "op:*", "--eager", bad=1)
    sql = "select call, step from v_snapshots where probe glob 'opt/*' and nan > 0 order by call"
    rows = json.loads(cli("--json", "query", path, sql).stdout)
    assert (rows[0]["call"], rows[0]["step"]) == (2, 1), "the optimizer's step is of its batch"
    sql = """select call, count(distinct graph_order) as n from v_snapshots
             where probe glob 'fwd/decoder.layers.0.mlp/*' group by call"""
    counts = {row["call"]: row["n"] for row in json.loads(cli("--json", "query", path, sql).stdout)}
    assert sorted(counts) == [1, 2, 3, 4, 5, 6]
    assert counts[4] == 2 * counts[5], "two microbatches are one call"
    assert done.returncode == 0, done.stderr
    checked = cli("check", path)
    assert checked.returncode == 1
    assert "first non-finite: call 2 (step 1)" in checked.stdout


def test_a_program_that_sets_steps_keeps_them(record, cli):
    path, _ = record("--watch", "*", imports="import cgdebug", each="cgdebug.step(10 * n)")
    assert [step for _, step, _ in _calls(cli, path, "fwd/decoder")][:4] == [0, 10, 20, 20]


def test_a_schedule_that_raises_ends_its_call(record, cli):
    path, done = record(
        "--watch",
        "*",
        each="""
        with contextlib.suppress(TypeError):
            get_forward_backward_func()(
                forward_step_func=lambda data, model: model(None), data_iterator=None, model=model,
                num_microbatches=1, seq_length=4, micro_batch_size=1,
            )
        model(torch.zeros(1, 4, dtype=torch.long), places, mask)
        """,
    )
    assert done.returncode == 0, done.stderr
    calls = _calls(cli, path, "fwd/decoder")
    assert [n for _, _, n in calls] == [1, 2, 1, 2, 1, 2, 2, 1, 1]


@pytest.fixture
def record_ranks(daemon, cli, tmp_path):
    """record_ranks(options, **words): path of the recording of both ranks"""

    def run(*options, imports="", each="", fault="pass", kind):
        path = tmp_path / "ranks.cgrec"
        program = PARALLEL.format(imports=imports, each=each, fault=fault, kind=kind)
        (tmp_path / "job.py").write_text(textwrap.dedent(program), encoding="utf-8")
        (tmp_path / "launch.py").write_text(LAUNCHER, encoding="utf-8")
        launch = (sys.executable, tmp_path / "launch.py", tmp_path / "job.py", tmp_path / "meet")
        done = cli("run", *options, "-o", path, "--", *launch)
        assert done.returncode == 0, done.stderr
        return path

    return run


NAN = 'next(model.parameters()).grad.fill_(float("nan"))'


@pytest.mark.parametrize("kind", ["tensor", "pipeline"])
def test_each_rank_of_a_parallel_model_has_the_calls_and_steps_of_its_schedule(
    record_ranks, cli, kind
):
    path = record_ranks("--watch", "op:*", "--eager", fault=NAN, kind=kind)
    row = "fwd/decoder.layers.0.mlp.linear_fc1/mm_0"
    sql = f"""select rank, call, step, count(*) as n from v_snapshots
              where probe = '{row}' group by rank, call"""
    found = json.loads(cli("--json", "query", path, sql).stdout)
    assert [(one["rank"], one["call"], one["step"]) for one in found] == [
        (rank, call, call - 1) for rank in (0, 1) for call in (1, 2, 3)
    ]
    first = json.loads(cli("--json", "check", path).stdout)["first_nonfinite"]
    assert (first["rank"], first["replay"], first["step"]) == (1, 2, 1), first
    bad = json.loads(cli("--json", "ranks", path).stdout)["first_bad"]
    assert bad["rank"] == 1 and "at step 1" in bad["saw"], bad


def test_what_tensor_parallelism_does_not_split_is_compared_over_its_ranks(record_ranks, cli):
    path = record_ranks(
        imports="import cgdebug",
        each="cgdebug.watch(model, params=True)",
        fault="model.decoder.layers[1].input_layernorm.weight.data[0] += 1e-3",
        kind="tensor",
    )
    done = cli("ranks", path)
    assert done.returncode == 1, done.stdout
    report = json.loads(cli("--json", "ranks", path).stdout)
    # Of each layer two norms and two biases, the last norm and the places.
    assert report["replicas"] == 2 * (2 * 2 + 2) + 2 + 1
    first = report["first_difference"]
    assert first["probe"] == "param/decoder.layers.1.input_layernorm.weight", report
    assert (first["replay"], first["equal_before"], report["unequal"]) == (5, 4, 2), report
