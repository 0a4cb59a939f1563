"""cgdebug.integrations: jobs of frameworks that do not know of cgdebug.

Lightning and transformers are the real ones. vLLM and SGLang need a GPU to start: for them the
tests have stand-ins (stand_ins/).
"""

import importlib
import inspect
import json
import os
import subprocess
import sys
import textwrap
import types

import pytest
import torch

import cgdebug
from cgdebug._job import _graphs
from cgdebug._watching import rows
from cgdebug._watching.rows import number_of
from cgdebug.integrations._engines import RequestRows
from conftest import ROOT


@pytest.fixture(autouse=True)
def own_run(monkeypatch):
    monkeypatch.delenv("CGDEBUG_RUN_ID")


@pytest.fixture
def run(daemon, tmp_path):
    """run(code, **environment) runs it in a process that finds the entry points of the package."""

    def start(*code, **environment):
        if sys.version_info < (3, 11):
            pytest.skip("needs tomllib")
        import tomllib

        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        info = tmp_path / "entry" / "cgdebug-0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: cgdebug\nVersion: 0\n")
        info.joinpath("entry_points.txt").write_text(
            "".join(
                f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
                for group, points in project["entry-points"].items()
            )
        )
        (tmp_path / "job.py").write_text("".join(map(textwrap.dedent, code)))
        path = [
            str(info.parent),
            str(ROOT / "tests/python/integrations/stand_ins"),
            *filter(None, [os.environ.get("PYTHONPATH")]),
        ]
        done = subprocess.run(
            [sys.executable, "job.py"],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path),
                "CGDEBUG": "1",
                "CGDEBUG_DAEMON": "/bin/true",
                "CGDEBUG_RUN_ID": tmp_path.name,
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return start


def probes_of(cli, run_id):
    told = json.loads(cli("--json", "probes", "-s", run_id).stdout)
    return {one["name"] for one in told.get("probes", ())}  # none: nobody knows such a job


def steps_of(run_id, probe):
    """The steps of all its snapshots, oldest first."""
    with cgdebug.connect(socket=os.environ.get("CGDEBUG_SOCKET")) as client:
        shown = client.tail(probe, last=50, session=run_id)
        return [one.step for one in shown if isinstance(one, cgdebug.TensorSnapshot)]


LIGHTNING = """
    import torch
    import {package} as L
    from torch import nn

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        def training_step(self, batch, batch_idx):
            return self.net(batch).square().mean()
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.DataLoader(torch.ones(6, 4), batch_size=2)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Module(), data)
    import sys
    print("cgdebug.probe" in sys.modules)
"""


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning_by_entry_point_alone(run, cli, tmp_path, package):
    done = run(LIGHTNING.format(package=package), CGDEBUG_WATCH="*")
    assert done.stdout.endswith("True\n"), done.stderr
    names = {f"fwd/net.{i}" for i in range(3)} | {"fwd/net"}
    assert names <= probes_of(cli, tmp_path.name)
    assert steps_of(tmp_path.name, "fwd/net") == [0, 1, 2]


def test_calls_after_a_validation_of_lightning_are_calls_of_their_own(run, cli, tmp_path):
    program = LIGHTNING.format(package="lightning.pytorch").replace(
        "    trainer.fit(Module(), data)\n",
        """
    class Validated(Module):
        def forward(self, batch):
            return self.net(batch)
        def validation_step(self, batch, batch_idx):
            self(batch)
    module = Validated()
    trainer.validate(module, data, verbose=False)
    with torch.no_grad():
        module(torch.ones(2, 4)); module(torch.ones(2, 4))
""",
    )
    run(program, CGDEBUG_WATCH="*")
    told = cli("--json", "tail", "fwd/net", "-n", "20", "-s", tmp_path.name).stdout.splitlines()
    calls = [one["replay"] for one in map(json.loads, told) if "probe" in one]
    assert calls == [1, 2, 3, 4, 5], "three batches, and two calls after them"


def test_lightning_without_the_variable_is_left_alone(run):
    assert run(LIGHTNING.format(package="lightning.pytorch")).stdout.endswith("False\n")


TRAINER = """
    import torch, transformers
    {imports}
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        vocab_size=64, max_position_embeddings=16,
    )
    data = [{{"input_ids": torch.arange(8), "labels": torch.arange(8)}} for _ in range(8)]
    trainer = transformers.Trainer(
        transformers.LlamaForCausalLM(config),
        transformers.TrainingArguments(
            "out", max_steps=4, per_device_train_batch_size=2, use_cpu=True, report_to=[],
            save_strategy="no", disable_tqdm=True,
        ),
        train_dataset=data,
        {callbacks}
    )
    trainer.train()
"""


def test_the_trainer_of_transformers_by_callback(run, cli, tmp_path):
    callbacks = "callbacks=[cgdebug.integrations.transformers.CgdebugCallback()],"
    code = TRAINER.format(imports="import cgdebug", callbacks=callbacks)
    run(code, CGDEBUG_WATCH="*self_attn*,lm_head")
    names = probes_of(cli, tmp_path.name)
    assert "fwd/model.layers.1.self_attn.q_proj" in names and "fwd/lm_head" in names
    assert not any(".mlp" in name for name in names)
    assert steps_of(tmp_path.name, "fwd/lm_head") == [0, 1, 2, 3]


def test_a_trainer_has_the_callback_by_itself(run, tmp_path):
    code = TRAINER.format(
        imports="import cgdebug._job._auto; cgdebug._job._auto.start()", callbacks=""
    )
    run(code, CGDEBUG_WATCH="lm_head")
    assert steps_of(tmp_path.name, "fwd/lm_head") == [0, 1, 2, 3]


ACCELERATE = """
    import cgdebug._job._auto; cgdebug._job._auto.start()
    import torch, cgdebug
    from accelerate import Accelerator
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = torch.nn.Linear(4, 1)
    data = torch.utils.data.DataLoader(torch.randn(12, 4), batch_size=2)
    net, optimizer, data = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1), data)
    for n, x in enumerate(data):
        {each}
        with accelerator.accumulate(net):
            accelerator.backward(net(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    accelerator.end_training()
    with torch.no_grad(): net(x)
"""


def test_steps_of_accelerate_are_those_of_its_optimizer(run, tmp_path):
    run(ACCELERATE.format(each=""), CGDEBUG_WATCH="*")
    assert steps_of(tmp_path.name, "fwd/Linear") == [0, 0, 1, 1, 2, 2, None]


def test_a_program_with_accelerate_that_sets_steps_keeps_them(run, tmp_path):
    run(ACCELERATE.format(each="cgdebug.step(10 + n)"), CGDEBUG_WATCH="*")
    assert steps_of(tmp_path.name, "fwd/Linear") == [10, 11, 12, 13, 14, 15, 15]


VLLM = """
    import os
    from importlib.metadata import entry_points
    for point in entry_points(group="vllm.general_plugins"):
        point.load()()
    import torch
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    runner = GPUModelRunner()
    runner.load_model(model=torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))
    runner._dummy_run(torch.ones(2, 4))
    for n in range(3):
        runner.execute_model(torch.ones(2, 4))
    print(os.environ.get("VLLM_DISABLE_COMPILE_CACHE"))
"""


def test_vllm_s_runner_watches_its_model_and_names_the_forward_pass(run, cli, tmp_path):
    assert run(VLLM, CGDEBUG_WATCH="0").stdout == "1\n"
    assert probes_of(cli, tmp_path.name) == {"fwd/0"}
    assert steps_of(tmp_path.name, "fwd/0") == [0, 1, 2]  # the profile run is not looked at


def test_vllm_keeps_its_compile_cache_where_no_probe_is_in_compiled_code(run):
    assert run(VLLM, CGDEBUG_WATCH="op:*").stdout == "None\n"


def test_vllm_without_the_variable_is_left_alone(run):
    assert run(VLLM).stdout == "None\n"


OF_GRAPHS = [
    ("CGDEBUG_REWIND", "4"),
    ("CGDEBUG_ASK", "1"),
    ("CGDEBUG_RACES", "1"),
    ("CGDEBUG_LAUNCH_BLOCKING", "1"),
]


@pytest.mark.parametrize("variable, text", OF_GRAPHS)
def test_vllm_s_graphs_have_labels_for_whatever_looks_at_graphs(run, cli, tmp_path, variable, text):
    done = run(
        VLLM,
        """
        import contextlib
        from cgdebug._job import _native
        from vllm.compilation import cuda_graph
        torch.cuda.CUDAGraph, torch.cuda.graph = object, contextlib.nullcontext
        cuda_graph.context = cuda_graph.ForwardContext(cuda_graph.BatchDescriptor(8, 2))
        label = cuda_graph.CUDAGraphWrapper(lambda: _native.graph_label())
        print(label(), _native.current_step())
        """,
        **{variable: text},
    )
    assert done.stdout == "None\ntokens=8,reqs=2 2\n", "None: it keeps its compile cache"
    assert probes_of(cli, tmp_path.name) == set(), "nobody asked for a watch"


@pytest.mark.parametrize("variable", ["CGDEBUG_ASK", "CGDEBUG_REWIND"])
def test_vllm_s_cache_is_known_to_whoever_asks_about_replays(run, variable):
    done = run(
        VLLM,
        """
        from cgdebug._rewind import caches
        cache = torch.zeros(2, 10, 16, 8)
        runner.initialize_kv_cache([cache], num_blocks=10)
        print([(one.tensor() is cache, one.dim) for one in caches.of_device(-1)])
        """,
        **{variable: "1"},
    )
    assert done.stdout == "None\n[(True, 1)]\n", done.stderr


def test_vllm_s_runner_tells_which_rows_are_padding(run, cli, tmp_path):
    code = VLLM.replace(
        "runner.execute_model(torch.ones(2, 4))",
        "runner.execute_model(types.SimpleNamespace("
        "input_ids=torch.ones(8, 4), total_num_scheduled_tokens=5 + n))",
    )
    run("import types\n", code, CGDEBUG_WATCH="op:*", CGDEBUG_WATCH_EAGER="1")
    assert padding_of(cli, tmp_path.name, "fwd/0/linear_0.padding") == {(3, 4), (2, 4), (1, 4)}


def padding_of(cli, run_id, row):
    told = json.loads(cli("--json", "probes", "-s", run_id).stdout)
    return {tuple(one["shape"]) for one in told["probes"] if one["name"] == row}


SGLANG = """
    from importlib.metadata import entry_points
    for point in entry_points(group="sglang.srt.plugins"):
        point.load()()
    import torch
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner
    runner = ModelRunner(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))
    runner.load_model()
    assert DecodeCudaGraphRunner().capture_one_shape(2, lambda size: size) == 2
    runner.model(torch.ones(2, 4))
    for n in range(3):
        runner.forward(torch.ones(2, 4))
    print(runner.forward.__name__, hasattr(runner.forward, "__wrapped__"))
"""


# Two requests of six tokens, the first alone or both in batches of eight rows. drafts: of each pass.
SERVES = """
    import types
    torch.manual_seed(0)
    table = torch.randn(2, 6, 4)
    def batch_of(requests, step, drafts=()):
        tokens = {f"chat-{one}": 2 for one in requests}
        used, rows = 2 * len(requests), 8 if len(requests) > 1 else 2
        ids, positions = torch.zeros(rows, 4), torch.zeros(rows, dtype=torch.int64)
        for n, one in enumerate(requests):
            ids[2 * n : 2 * n + 2] = table[one, step : step + 2]
            positions[2 * n : 2 * n + 2] = torch.arange(step, step + 2)
        return types.SimpleNamespace(
            input_ids=ids, positions=positions, num_scheduled_tokens=tokens, rids=list(tokens),
            extend_seq_lens_cpu=list(tokens.values()), total_num_scheduled_tokens=used,
            num_token_non_padded_cpu=used, scheduled_spec_decode_tokens=dict(drafts),
            spec_info="drafts" if drafts else None, logits_indices=torch.arange(2, used + 1, 2) - 1)
    class LogitsProcessor(torch.nn.Linear): pass
    class Model(torch.nn.Sequential):
        # Of the last tokens alone, in vLLM apart.
        def __init__(self):
            super().__init__(torch.nn.Linear(4, 4), torch.nn.ReLU())
            self.logits_processor = LogitsProcessor(4, 8)
        def forward(self, x, last=None):
            hidden = self[1](self[0](x))
            return hidden if last is None else self.logits_processor(hidden[last])
        def compute_logits(self, hidden):
            return self.logits_processor(hidden)
    def serve(run, requests, drafts=()):
        for step in (0, 2, 4):
            run(batch_of(requests, step, drafts))
"""
# Each server adds random digits to the names of requests, and has two passes of its own first.
VLLM_NAMES = """
    import uuid
    added = uuid.uuid4().hex[:8]
    def named(batch, name="{}-{}"):
        tokens = {name.format(one, added): n for one, n in batch.num_scheduled_tokens.items()}
        batch.num_scheduled_tokens, batch.rids = tokens, list(tokens)
        runner.input_batch = types.SimpleNamespace(req_ids=batch.rids)
        return batch
    def warm_up():
        for _ in range(2):
            execute(named(batch_of([0], 0), name="_warmup_0_"))
"""
VLLM_SERVES = (
    VLLM_NAMES
    + """
    runner = GPUModelRunner()
    runner.positions = torch.zeros(16, dtype=torch.int64)
    torch.manual_seed(1)
    runner.load_model(model=Model())
    runner._dummy_sampler_run(torch.ones(8, 4))
    def execute(batch):
        runner.positions[: len(batch.positions)] = batch.positions
        if mrope:
            batch.positions = batch.positions.expand(3, -1)
        runner.execute_model(batch)
        runner.sample_tokens()
    def run(batch):
        execute(named(batch))
    warm_up()
"""
)
SGLANG_SERVES = """
    torch.manual_seed(1)
    runner = ModelRunner(Model())
    runner.load_model()
    def run(batch):
        used = batch.num_token_non_padded_cpu
        batch.input_ids, batch.positions = batch.input_ids[:used], batch.positions[:used]
        runner.forward(batch)
"""


def second_runner(code):
    return code.replace("worker.gpu_model_runner", "worker.gpu.model_runner")


def compared_by_request(run, cli, tmp_path, code, **environment):
    """The exit code and the answer of the first request alone against both in batches."""
    for name, requests in (("alone", "[0]"), ("both", "[0, 1]")):
        last = f"    serve(run, {requests}, drafts)\n"
        variables = {
            "CGDEBUG_ON": "nan",
            **environment,
            "CGDEBUG_RUN_ID": f"{tmp_path.name}-{name}",
        }
        run(*code, last, CGDEBUG_WATCH="*", **variables)
    sides = [f"{tmp_path.name}-{name}" for name in ("alone", "both")]
    done = cli("--json", "diff", *sides, "--by", "request")
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


ENGINES = {
    "vllm": (VLLM, VLLM_SERVES),
    "vllm, second runner": (second_runner(VLLM), second_runner(VLLM_SERVES)),
    "vllm, M-RoPE": (VLLM, VLLM_SERVES.replace("if mrope", "if True")),
    "sglang": (SGLANG, SGLANG_SERVES),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_tell_which_request_each_row_is_of(run, cli, tmp_path, engine):
    start, serves = ENGINES[engine]
    start = start.split("    runner = ")[0]
    code, answer = compared_by_request(
        run, cli, tmp_path, (start, SERVES, "    mrope, drafts = False, ()\n", serves)
    )
    assert (answer["tokens"], answer["requests"]) == (6, 1), answer
    # Of two layers, and in vLLM of the model, and the logits of the last token of three passes,
    # which in SGLang the model returns.
    of_model = 3 if engine == "sglang" else 6
    assert answer["first"] is None and answer["compared"] == 6 + 6 + of_model + 3, answer
    assert code == 3 and ["only B has 6 rows" in one for one in answer["missing"]] == [True], answer


def test_what_vllm_samples_after_a_whole_graph_is_of_the_pass(run, cli, tmp_path):
    start, serves = ENGINES["vllm, second runner"]
    start = start.split("    runner = ")[0]
    serves = serves.replace("execute(named(batch))", "batch.mode = 'FULL'; execute(named(batch))")
    code, answer = compared_by_request(
        run, cli, tmp_path, (start, SERVES, "    mrope, drafts = False, ()\n", serves)
    )
    assert (answer["tokens"], answer["first"], answer["compared"]) == (6, None, 3), answer
    assert code == 3 and ["only B has 6 rows" in one for one in answer["missing"]] == [True], answer
    assert steps_of(f"{tmp_path.name}-alone", "fwd/logits_processor") == [0, 1, 2]


def test_what_graphs_read_has_the_requests_of_the_pass_alone():
    requests, positions = RequestRows(), torch.arange(8)
    with torch.inference_mode():
        requests.expect_capture(positions, 8)
    graph = requests._numbers
    requests.forget()
    requests.tell(["a", "b"], [1, 2], positions[:4], is_replay=True)
    assert graph.tolist() == [number_of(one) for one in ("a", "b", "b", *[None] * 5)]
    requests.forget()  # a pass of which nothing is told
    assert set(graph.tolist()) == {number_of(None)}
    requests.tell(["a"], [9], positions[:4], is_replay=True)
    assert set(graph.tolist()) == {number_of(None)}, "it has more rows than positions"


def test_each_piece_of_a_graph_reads_the_requests_of_the_pass(monkeypatch):
    seen = []
    monkeypatch.setattr(rows, "_send", lambda *told: seen.append(told))
    requests, positions = RequestRows(), torch.arange(8)
    with requests.capturing_pieces(positions, 4):
        for _ in range(2):
            _graphs.begin_graph()
    assert _graphs.begin_graph is None
    requests.forget()
    requests.tell(["a", "b"], [1, 2], positions[:4])
    for name, numbers, places in seen:
        assert name == "rows"
        assert numbers.tolist() == [number_of(one) for one in ("a", "b", "b", None)]
        assert places.tolist() == [0, 1, 2, 3]
    assert len(seen) == 2


@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL"])
def test_vllm_tells_the_requests_in_the_captures_of_pieces_alone(run, mode):
    done = run(
        VLLM.split("    runner = ")[0],
        f"""
        import types
        from vllm.compilation import cuda_graph
        from cgdebug._job import _graphs
        runner = GPUModelRunner()
        runner.positions = torch.arange(16)
        runner.load_model(model=torch.nn.Sequential(torch.nn.Linear(4, 4)))
        cuda_graph.context = cuda_graph.ForwardContext(cuda_graph.BatchDescriptor(8))
        class Capture:
            def __enter__(self): print("capture", _graphs.begin_graph is not None)
            def __exit__(self, *error): pass
        torch.cuda.CUDAGraph, torch.cuda.graph = (lambda: None), (lambda graph: Capture())
        piece = cuda_graph.CUDAGraphWrapper(runner.model)
        piece.runtime_mode = types.SimpleNamespace(name={mode!r})
        piece(torch.ones(8, 4))
        print("then", _graphs.begin_graph is not None)
        """,
        CGDEBUG_WATCH="*",
        CGDEBUG_ON="nan",
    )
    assert done.stdout.split() == ["capture", str(mode == "PIECEWISE"), "then", "False"]


@pytest.mark.gpu
def test_vllm_s_pieces_are_compared_by_request(run, cli, tmp_path):
    """Two pieces and what runs between them, in graphs of two rows and of eight."""
    code = (
        VLLM.split("    runner = ")[0],
        SERVES,
        VLLM_NAMES,
        """
        from vllm.compilation import cuda_graph
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.between, self.second = (torch.nn.Linear(4, 4) for _ in range(3))
                self.pieces = [cuda_graph.CUDAGraphWrapper(self.first.__call__),
                               cuda_graph.CUDAGraphWrapper(self.second.__call__)]
                for piece in self.pieces: piece.runtime_mode = types.SimpleNamespace(name="PIECEWISE")
            def forward(self, x):
                y = self.between(self.pieces[0](x[0]))
                return self.pieces[1](x[1][: len(y)].copy_(y))
        torch.manual_seed(1)
        torch.set_grad_enabled(False)
        runner = GPUModelRunner()
        runner.positions = torch.zeros(16, dtype=torch.int64, device="cuda")
        runner.load_model(model=Model().cuda())
        static = torch.zeros(2, 16, 4, device="cuda")
        def given(rows):
            cuda_graph.context = cuda_graph.ForwardContext(cuda_graph.BatchDescriptor(rows))
            return static[:, :rows]
        torch.nn.functional.linear(static[0], torch.ones(4, 4, device="cuda"))  # cuBLAS is there
        for rows in (8, 2): runner._dummy_run(given(rows))
        def run(batch):
            rows = len(named(batch).positions)
            runner.positions[:rows] = batch.positions.cuda()
            batch.positions = runner.positions[:rows]
            static[0, :rows] = batch.input_ids.cuda()
            batch.input_ids = given(rows)
            runner.execute_model(batch)
            torch.cuda.synchronize()
        drafts = ()
        """,
    )
    # What a ring in device memory keeps is gone with the job.
    kept = {"CGDEBUG_ON": "", "CGDEBUG_WATCH_SKETCHES": "16"}
    code, answer = compared_by_request(run, cli, tmp_path, code, **kept)
    assert (answer["tokens"], answer["requests"]) == (6, 1), answer
    assert answer["first"] is None and answer["compared"] >= 18, answer
    assert code == 3 and [one for one in answer["missing"] if "only B has 6 rows" not in one] == []


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_of_passes_with_drafts_engines_tell_no_requests(run, cli, tmp_path, engine):
    start, serves = ENGINES[engine]
    start = start.split("    runner = ")[0]
    drafts = "    mrope, drafts = False, {'chat-0': [1]}.items()\n"
    code, answer = compared_by_request(run, cli, tmp_path, (start, SERVES, drafts, serves))
    assert code == 2 and "does not say which request a row belongs to" in answer["error"]


@pytest.mark.gpu
def test_vllm_s_graphs_are_labelled_by_their_batch(run, tmp_path):
    run(
        """
        from importlib.metadata import entry_points
        for point in entry_points(group="vllm.general_plugins"):
            point.load()()
        import torch
        from vllm.compilation import cuda_graph
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner
        runner = GPUModelRunner()
        runner.load_model(model=torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).cuda())
        runner._dummy_run(torch.ones(2, 4, device="cuda"))
        torch.cuda.synchronize()
        runner.model = cuda_graph.CUDAGraphWrapper(runner.model)
        inputs = {size: torch.ones(size, 4, device="cuda") for size in (8, 4)}
        for rounds in range(3):
            for size, x in inputs.items():
                descriptor = cuda_graph.BatchDescriptor(size, 2)
                cuda_graph.context = cuda_graph.ForwardContext(descriptor)
                run = runner.execute_model if rounds else runner._dummy_run
                with torch.inference_mode():
                    run(x)
        torch.cuda.synchronize()
        """,
        CGDEBUG_WATCH="0",
    )
    with cgdebug.connect(socket=os.environ.get("CGDEBUG_SOCKET")) as client:
        slots = client.probes(session=tmp_path.name)
    captured = {one.graph: one.counters.replays for one in slots if one.graph_id}
    assert captured == {"tokens=8,reqs=2": 2, "tokens=4,reqs=2": 2}
    assert set(steps_of(tmp_path.name, "fwd/0")) == {0, 1, 2, 3}  # none of what vLLM ran itself


def test_sglang_s_runner_watches_its_model_and_names_the_forward_pass(run, cli, tmp_path):
    assert run(SGLANG, CGDEBUG_WATCH="0").stdout == "forward True\n"
    assert probes_of(cli, tmp_path.name) == {"fwd/0"}
    assert steps_of(tmp_path.name, "fwd/0") == [None, 1, 2, 3]


def test_sglang_s_runner_tells_which_rows_are_padding(run, cli, tmp_path):
    code = SGLANG.replace(
        "runner.forward(torch.ones(2, 4))",
        "runner.forward(types.SimpleNamespace("
        "input_ids=torch.ones(8, 4), num_token_non_padded_cpu=5 + n))",
    )
    run("import types\n", code, CGDEBUG_WATCH="op:*", CGDEBUG_WATCH_EAGER="1")
    rows = probes_of(cli, tmp_path.name)
    (row,) = [name for name in rows if name.endswith("mm_0.padding")]
    assert padding_of(cli, tmp_path.name, row) == {(3, 4), (2, 4), (1, 4)}


@pytest.mark.parametrize("variable, text", OF_GRAPHS)
def test_sglang_s_graphs_have_labels_for_whatever_looks_at_graphs(
    run, cli, tmp_path, variable, text
):
    done = run(
        SGLANG,
        """
        from cgdebug._job import _native
        print(DecodeCudaGraphRunner().capture_one_shape(4, lambda size: _native.graph_label()))
        print(_native.current_step())
        """,
        **{variable: text},
    )
    assert done.stdout == "forward True\nbs=4\nNone\n", done.stderr
    assert probes_of(cli, tmp_path.name) == set(), "nobody asked for a watch"


def test_a_runner_of_sglang_whose_cache_is_not_known_captures_without_it(run):
    done = run(
        SGLANG,
        """
        from cgdebug._rewind import caches
        runner = DecodeCudaGraphRunner()
        print(runner.capture())
        pool = type("MHATokenToKVPool", (), {"size": 15, "page_size": 1})()
        pool.k_buffer, pool.v_buffer = [torch.zeros(16, 1, 8)], [torch.zeros(16, 1, 8)]
        runner.model_runner = type("ModelRunner", (), {"token_to_kv_pool": pool})
        runner.buffers = type("Buffers", (), {"out_cache_loc": torch.zeros(8, dtype=torch.long)})
        print(runner.capture(), len(caches.of_device(-1)))
        """,
        CGDEBUG_REWIND="4",
    )
    assert done.stdout == "forward True\n[1]\n[1] 2\n"
    assert done.stderr.count("the KV cache of SGLang: AttributeError") == 1, done.stderr


def test_sglang_without_the_variable_is_left_alone(run):
    assert run(SGLANG).stdout == "forward False\n"


def test_graphs_of_continuous_batching_are_labelled_by_the_sizes_they_are_padded_to():
    runner = pytest.importorskip("transformers.generation.continuous_batching.model_runner")
    ios = pytest.importorskip("transformers.generation.continuous_batching.input_outputs")
    from cgdebug.integrations import continuous_batching

    made = [
        kind
        for kind in vars(runner).values()
        if isinstance(kind, type) and "_capture_graph" in vars(kind)
    ]
    assert len(made) == 1
    key = inspect.getsource(ios.ContinuousBatchingIOs._get_graph_key)
    assert "return (self.num_q_tokens, self.max_kv_read, *self." in key
    pair = inspect.getsource(ios.ContinuousBatchingAsyncIOs.get_graph)
    assert "self.io_pairs[self.current_pair].device_io" in pair

    labels = []

    class Runner:
        def _capture_graph(self):
            label = cgdebug._job._native.set_graph_label("", False)
            cgdebug._job._native.set_graph_label(*label)
            labels.append(label[0])

    batch = types.SimpleNamespace(use_block_table=False, _get_graph_key=lambda: (32, 256, 64))
    decode = types.SimpleNamespace(use_block_table=True, num_q_tokens=4)
    turns = types.SimpleNamespace(
        current_pair=1, io_pairs=[None, types.SimpleNamespace(device_io=batch)]
    )
    continuous_batching._wrap(Runner)
    for one in (batch, decode, turns, None):
        capturing = Runner()
        capturing.inputs_and_outputs = one
        capturing._capture_graph()
    assert labels == ["tokens=32,kv=256,k=64", "decode,tokens=4", "tokens=32,kv=256,k=64", ""]


def test_the_debug_servers_page_says_which_torch_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.distributed.debug._frontend", None)
    monkeypatch.delitem(sys.modules, "cgdebug.integrations.torch_debug", raising=False)
    with pytest.raises(ImportError, match=r"needs the debug server of torch 2\.13 or later"):
        importlib.import_module("cgdebug.integrations.torch_debug")
