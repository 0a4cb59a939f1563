"""What is wrong with an integration costs one printed line: the framework runs as it runs alone."""

import sys
import types

import pytest
import torch

import cgdebug
from cgdebug._job import _auto, _fail_soft, _graphs, _native
from cgdebug._job._after_import import call_after_import
from cgdebug._shared import _words
from cgdebug.errors import NativeExtensionUnavailableError
from cgdebug.integrations import _engines, lightning, sglang, vllm


@pytest.fixture(autouse=True)
def counted(monkeypatch):
    """(name, reason) of each call that was counted as not seen."""
    found = []
    monkeypatch.setattr(_fail_soft, "_told", set())
    monkeypatch.setattr(_native, "not_seen", lambda *what: found.append(what))
    yield found
    _auto.end_calls()  # an engine's passes follow one another, and the last one goes on
    cgdebug.step(None)


@pytest.fixture
def watched(monkeypatch):
    found = []
    monkeypatch.setenv("CGDEBUG_WATCH", "*")
    monkeypatch.setattr(_auto, "look_at", lambda model, note="": found.append(model))
    return found


def lines_of(capfd):
    return [line for line in capfd.readouterr().err.splitlines() if line.startswith("cgdebug: ")]


def label_now():
    label = _native.set_graph_label("", False)
    _native.set_graph_label(*label)
    return label[0]


class Runner:
    def load_model(self):
        self.model = torch.nn.Linear(2, 2)

    def get_model(self):
        return self.model

    def execute_model(self, *args, **kwargs):
        return args, kwargs

    def _dummy_run(self, *args):
        return args


@pytest.mark.parametrize(
    ("entry", "answer"),
    [
        (vllm.register, None),
        (sglang.register, None),
        (lightning.callbacks, []),
        (lightning.pytorch_lightning_callbacks, []),
    ],
)
def test_a_framework_starts_where_the_native_modules_do_not_load(
    monkeypatch, capfd, counted, entry, answer
):
    def fail():
        raise NativeExtensionUnavailableError("cgdebug's reader of recordings does not load")

    monkeypatch.setattr(_words, "_parser", fail)
    monkeypatch.setattr(_words, "_known_good", {})
    monkeypatch.setenv("CGDEBUG_WATCH", "*")
    assert entry() == answer
    (line,) = lines_of(capfd)
    assert "does not load" in line and line.endswith("The job goes on without")


def test_an_action_that_fails_after_an_import_does_not_fail_the_import(capfd, tmp_path, counted):
    (tmp_path / "cgdebug_test_soft.py").write_text("done = True\n")
    sys.path.insert(0, str(tmp_path))
    try:
        call_after_import("cgdebug_test_soft", lambda module: module.no_such_name)
        import cgdebug_test_soft

        call_after_import("cgdebug_test_soft", lambda module: module.no_such_name)
        assert cgdebug_test_soft.done
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("cgdebug_test_soft", None)
    (line,) = lines_of(capfd)
    assert "cgdebug_test_soft" in line and "no_such_name" in line
    assert len(counted) == 2


def test_a_runner_without_a_method_is_watched_without_it(capfd, watched):
    class Old(Runner):
        execute_model = None

    module = types.SimpleNamespace(GPUModelRunner=Old, __name__="vllm.runner")
    vllm._wrap_runner(module)
    runner = Old()
    runner.load_model()
    assert watched == [runner.model]
    (line,) = lines_of(capfd)
    assert "execute_model" in line


@pytest.mark.parametrize("wrap", [vllm._wrap_runner, sglang._wrap_runner])
def test_a_module_without_a_runner_is_left_alone(capfd, wrap):
    wrap(types.SimpleNamespace(__name__="runner"))
    assert len(lines_of(capfd)) == 1


def test_the_engine_s_own_exception_passes_and_what_it_returns_is_its_own(capfd, watched):
    class Failing(Runner):
        def execute_model(self, *args, **kwargs):
            raise KeyError("the engine's own")

    result = object()

    class Returning(Runner):
        def execute_model(self, one):
            return result

    for kind in (Failing, Returning):
        vllm._wrap_runner(types.SimpleNamespace(GPUModelRunner=kind, __name__="runner"))
    with pytest.raises(KeyError, match="the engine's own"):
        Failing().execute_model(1, dummy_run=True)
    assert Returning().execute_model(1) is result
    with pytest.raises(TypeError, match="execute_model"):
        Returning().execute_model()
    assert lines_of(capfd) == []


def test_a_failure_of_ours_is_told_once_and_counted_each_time(capfd, monkeypatch, counted):
    def fail(*args, **kwargs):
        raise RuntimeError("of ours\nand more")

    class Own(Runner):
        pass

    vllm._wrap_runner(types.SimpleNamespace(GPUModelRunner=Own, __name__="runner"))
    monkeypatch.setattr(vllm, "own_pass", fail)
    monkeypatch.setattr(vllm, "know_rank", fail)
    monkeypatch.setenv("CGDEBUG_WATCH", "*")
    monkeypatch.setattr(_auto, "look_at", fail)
    runner = Own()
    runner.load_model()
    for _ in range(3):
        assert runner._dummy_run(7) == (7,)
    lines = lines_of(capfd)
    assert len(lines) == 3 and all("RuntimeError: of ours." in line for line in lines)
    assert [name for name, _ in counted].count("the steps of vLLM") == 3


def test_what_the_job_asked_for_is_raised():
    def found(*args):
        raise cgdebug.FoundError("NaN")

    class Own(Runner):
        pass

    _fail_soft.wrap(Own, "execute_model", "steps", before=found)
    with pytest.raises(cgdebug.FoundError):
        Own().execute_model()


def test_a_context_of_ours_that_fails_leaves_the_engine_s_error_alone(capfd):
    class Scope:
        def __enter__(self):
            pass

        def __exit__(self, *error):
            raise RuntimeError("of ours")

    class Failing:
        def run(self):
            raise KeyError("the engine's")

    _fail_soft.wrap(Failing, "run", "labels", before=lambda self: Scope())
    with pytest.raises(KeyError, match="the engine's"):
        Failing().run()
    assert len(lines_of(capfd)) == 1


class Manager:
    def capture(self, create_forward_fn, progress_bar_desc=""):
        self.made = [create_forward_fn(one, warmup=False) for one in self.descs]
        self.label = label_now()
        return self.made


def test_what_vllm_s_factory_returns_passes_whatever_it_is(capfd):
    module = types.SimpleNamespace(CudaGraphManager=type("Own", (Manager,), {}))
    vllm._wrap_manager(module)
    manager = module.CudaGraphManager()
    manager.descs = [types.SimpleNamespace(num_tokens=8), object()]
    made = manager.capture(lambda desc, warmup: (desc, "attention"))
    assert made == [(desc, "attention") for desc in manager.descs]
    (line,) = lines_of(capfd)  # the second has no num_tokens
    assert "num_tokens" in line
    assert label_now() == ""


def test_a_manager_that_takes_other_arguments_is_left_alone(capfd):
    class Older:
        def capture(self, model, create_forward_fn):
            return model

    capture = Older.capture
    vllm._wrap_manager(types.SimpleNamespace(CudaGraphManager=Older))
    assert Older.capture is capture
    assert len(lines_of(capfd)) == 1


def test_a_wrapper_whose_context_is_unknown_runs_without_a_label(capfd):
    class Wrapper:
        def __call__(self, one):
            return one

    vllm._wrap_graphs(
        types.SimpleNamespace(
            CUDAGraphWrapper=Wrapper, is_forward_context_available=lambda: True, __name__="graphs"
        )
    )
    assert [Wrapper()(3) for _ in range(2)] == [3, 3]
    assert len(lines_of(capfd)) == 1


def test_a_capture_of_sglang_with_another_signature_runs_without_a_label(capfd):
    module = types.ModuleType("decode_runner")

    class DecodeCudaGraphRunner:
        def capture_one_shape(self, shape):
            return shape, label_now()

    DecodeCudaGraphRunner.__module__ = module.__name__
    module.DecodeCudaGraphRunner = DecodeCudaGraphRunner
    sglang._wrap_captures(module)
    assert DecodeCudaGraphRunner().capture_one_shape(4) == (4, "")
    assert len(lines_of(capfd)) == 1
    sglang._wrap_captures(types.ModuleType("no_runner"))
    assert len(lines_of(capfd)) == 0, "told once for all labels"


def test_graphs_of_sglang_are_labelled_by_size_variant_stream_and_draft():
    def runner(name):
        module = types.ModuleType(name)

        def capture_one_shape(self, size, forward=None, stream_idx=None, variant_label=None):
            return label_now()

        kind = type(name, (), {"capture_one_shape": capture_one_shape, "__module__": name})
        setattr(module, name, kind)
        sglang._wrap_captures(module)
        return kind()

    decode = runner("DecodeCudaGraphRunner")
    assert decode.capture_one_shape(4, None) == "bs=4"
    assert decode.capture_one_shape(4, None, 1, "lora") == "bs=4,lora,stream=1"
    assert runner("PrefillCudaGraphRunner").capture_one_shape(64) == "tokens=64"
    assert runner("EAGLEDraftCudaGraphRunner").capture_one_shape(2) == "draft,bs=2"
    assert runner("EAGLEDraftExtendCudaGraphRunner").capture_one_shape(2) == "draft-extend,bs=2"
    assert label_now() == ""


def test_a_pass_of_the_engine_s_own_is_not_seen_and_has_no_step(daemon):
    with cgdebug.CudaGraphTensorProbe("own", [cgdebug.TensorStats()], mode="always") as probe:
        with _engines.own_pass():
            probe(torch.ones(2))
            with _engines.own_pass():
                probe(torch.ones(2))
            probe(torch.ones(2))
        probe(torch.ones(2))
        assert probe._native.status()["slots"][0]["replays"] == 1


def test_a_piece_says_the_layers_whose_parameters_it_is_given():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(2, 3), torch.nn.Linear(3, 2)

    model = torch.nn.Module()
    model.embed = torch.nn.Linear(2, 2)
    model.layers = torch.nn.ModuleList([Layer() for _ in range(3)])
    names = _engines.ParameterNames(model)
    layers = model.layers
    assert names.layers_of([model.embed.weight, 7, None]) == ""
    assert names.layers_of([model.embed.weight, layers[0].up.weight]) == "layer=0"
    assert names.layers_of([layers[2].up.bias, layers[1].down.weight]) == "layer=1-2"


def test_the_layer_that_runs_is_that_of_the_innermost_call():
    seen = []

    class Attention(torch.nn.Module):
        def forward(self, x):
            seen.append(_engines.running_layer())
            return x

    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([torch.nn.Sequential(Attention()) for _ in range(2)])
    _engines.know_names(model)
    model.layers[1](torch.ones(1))
    assert seen == ["layers.1"] and _engines.running_layer() == ""


def test_a_finder_of_an_old_kind_does_not_fail_an_import_that_is_waited_for(monkeypatch, tmp_path):
    (tmp_path / "cgdebug_test_old.py").write_text("done = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = []
    monkeypatch.setattr(sys, "meta_path", [types.SimpleNamespace(), *sys.meta_path])
    call_after_import("cgdebug_test_old", found.append)
    import cgdebug_test_old

    assert found == [cgdebug_test_old]


def test_a_job_without_stderr_goes_on(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    _auto._fail("Model", ValueError("no module matches"))


class Names(torch.nn.Module):
    """Names the graph that would begin here."""

    def __init__(self, found):
        super().__init__()
        self.found = found

    def forward(self, x):
        self.found.append(_graphs.name_graph())
        return x


def test_pieces_of_a_breakable_graph_of_vllm_are_named_by_the_layer_in_which_they_begin():
    found = []
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([Names(found), Names(found)])})

    class Wrapper:
        def _capture(self, entry, args, kwargs):
            found.append(_graphs.name_graph())
            return [layer(*args, **kwargs) for layer in model["layers"]]

    _engines.know_names(model)
    vllm._wrap_breakable(types.SimpleNamespace(BreakableCUDAGraphWrapper=Wrapper))
    size = types.SimpleNamespace(num_tokens=8, num_reqs=None, num_active_loras=0)
    entry = types.SimpleNamespace(batch_descriptor=size)
    assert Wrapper()._capture(entry, (1,), {}) == [1, 1]
    assert found == ["tokens=8", "tokens=8,from=layers.0", "tokens=8,from=layers.1"]
    assert _graphs.name_graph is None and label_now() == ""
