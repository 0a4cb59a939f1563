"""Where rows of compiled code lie: no hook runs for the modules in it."""

import threading

import pytest
import torch
from torch import nn

import cgdebug
from cgdebug._op_log import compiled_names, following, names, scopes, written
from cgdebug._op_log.following import compiled_code, triton_kernels
from cgdebug._op_log.rows import gaps


class Layer(nn.Module):
    def __init__(self, rotation):
        super().__init__()
        self.up, self.down, self.rotation = nn.Linear(4, 8), nn.Linear(8, 4), rotation


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        rotation = nn.Module()
        rotation.register_buffer("table", torch.ones(4))
        self.layers = nn.ModuleList([Layer(rotation) for _ in range(3)])
        self.norm = nn.LayerNorm(4)


def named():
    model, known = Model(), names.ModuleNames()
    known.add_model(model)
    return model, known


def test_an_op_of_compiled_code_lies_where_its_parameter_does():
    model, known = named()
    one = torch.ones(4)
    assert known.inner_path("Model", [one]) == "Model", "nothing has run yet"
    assert known.inner_path("Model", [one, model.layers[1].up.weight]) == "layers.1.up"
    assert known.inner_path("Model", [one, 3, None]) == "layers.1", "the layer that ran before"
    assert known.inner_path("Model", [model.layers[2].down.weight.t()]) == "layers.2.down"
    assert known.inner_path("Model", [model.norm.weight]) == "norm"
    assert known.inner_path("Model", [one]) == "Model", "norm lies in no layer"


def test_an_op_stays_in_the_module_that_runs():
    model, known = named()
    assert known.inner_path("layers.0", [model.layers[1].up.weight]) == "layers.0"
    assert known.inner_path("layers.0", [model.layers[0].up.weight]) == "layers.0.up"


def test_an_op_may_be_given_the_name_of_its_layer():
    _, known = named()

    class LayerName:
        value = "layers.2.rotation"

    assert known.inner_path("Model", [torch.ones(1), "layers.0.down"]) == "layers.0.down"
    assert known.inner_path("Model", [LayerName()]) == "layers.2.rotation"
    assert known.inner_path("Model", ["no such module"]) == "layers.2"


def test_what_all_layers_share_is_in_none_of_them():
    model, known = named()
    known.inner_path("Model", [model.layers[1].up.weight])
    assert known.inner_path("Model", [model.layers[0].rotation.table]) == "layers.1"


def test_rows_of_the_code_of_a_graph_module_lie_where_their_parameters_do():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 3, bias=False) for _ in range(2)])

        def forward(self, x):
            return compiled(x, *(layer.weight for layer in self.layers))

    def plain(x, first, second):
        return torch.mm(torch.relu(torch.mm(x, first)), second)

    compiled = torch.fx.symbolic_trace(plain)
    net, x = Net(), torch.ones(2, 3)
    with cgdebug.debug_mode(net, eager=True) as log:
        net(x)
    rows = [row.name for row in log._scope.logs[0].rows if row.op != "input"]
    assert rows == ["fwd/layers.0/mm_0", "fwd/layers.0/relu_0", "fwd/layers.1/mm_0"]


def test_memory_that_compiled_code_is_given_was_there_before():
    seen = {}

    def note(x):
        seen[x.data_ptr()] = names.is_compiled_memory(x.untyped_storage().data_ptr())

    given = torch.ones(2)
    graph = torch.fx.Graph()
    argument = graph.placeholder("argument")
    graph.call_function(note, (argument,))
    own = graph.call_function(torch.zeros, (2,))
    graph.call_function(note, (own,))
    graph.output(own)
    made = torch.fx.GraphModule(nn.Module(), graph)(given)
    assert seen == {given.data_ptr(): False, made.data_ptr(): True}


def test_a_text_that_a_program_runs_is_compiled_code():
    model = nn.Module()
    model.layers = nn.ModuleList([nn.Linear(3, 3, bias=False) for _ in range(2)])
    made = []

    def note(x):
        made.append(names.is_compiled_memory(x.untyped_storage().data_ptr()))

    text = """
def execution_fn(x, first, second):
    y = x.mm(first)
    note(y)
    note(x)
    return y.mm(second)
"""
    namespace = {"note": note}
    exec(text, namespace)  # as vLLM runs the graph between its pieces
    model.forward = lambda x: namespace["execution_fn"](x, *(one.weight for one in model.layers))
    x = torch.ones(2, 3)
    with cgdebug.debug_mode(model, eager=True) as log:
        model(x)
    rows = [row.name for row in log._scope.logs[0].rows if row.op != "input"]
    assert rows == ["fwd/layers.0/mm_0", "fwd/layers.1/mm_0"]
    assert made == [True, False]


class Rectified(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.q(x).relu() * 2


class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Rectified() for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.sum()


def train_once(model, log):
    x = torch.ones(2, 4)
    model(x).backward()  # compiles
    with log:
        model(x).backward()
    return {row.name: row for row in log._scope.logs[0].rows}


@pytest.fixture
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_rows_of_a_compiled_model_have_their_modules_and_lines_forward_and_backward(fresh_compiler):
    model = Stack()
    log = cgdebug.debug_mode(model, eager=True)
    rows = train_once(torch.compile(model, backend="aot_eager"), log)
    eager = cgdebug.debug_mode(model, eager=True)
    plain = train_once(model, eager)
    places = {name.rpartition("/")[0] for name in plain}
    assert {name.rpartition("/")[0] for name in rows} == places
    for number in range(2):
        for name in (f"fwd/layers.{number}.q/addmm_0", f"bwd/layers.{number}.q/mm_0"):
            assert rows[name].site.endswith("in forward"), rows[name]
            assert rows[name].details.code == "return self.q(x).relu() * 2"
        assert f"fwd/layers.{number}/relu_0" in rows and f"fwd/layers.{number}/mul_0" in rows
    assert rows["fwd/Stack/sum_0"].details.code == "return x.sum()"
    # Each row of the compiled code lies where the same op lies without it.
    assert {name: rows[name].site for name in rows if name in plain} == {
        name: plain[name].site for name in rows if name in plain
    }
    log.close(), eager.close()


def test_layers_that_are_compiled_by_themselves_keep_their_paths(fresh_compiler):
    model = Stack()
    log = cgdebug.debug_mode(model, eager=True)
    for layer in model.layers:
        layer.compile(backend="aot_eager")
    rows = train_once(model, log)
    for number in range(2):
        assert f"fwd/layers.{number}.q/addmm_0" in rows, sorted(rows)
        assert f"bwd/layers.{number}.q/mm_0" in rows, sorted(rows)
    log.close()


def test_a_compiled_function_names_the_modules_that_it_calls(fresh_compiler):
    model = Stack()
    log = cgdebug.debug_mode(model, eager=True)
    rows = train_once(torch.compile(lambda x: model(x), backend="aot_eager"), log)
    assert "fwd/layers.1.q/addmm_0" in rows and "fwd/layers.1/relu_0" in rows, sorted(rows)
    log.close()


@pytest.mark.parametrize("from_cache", [False, True], ids=["compiled", "from the cache"])
def test_ops_of_inductor_have_their_modules_and_lines(
    from_cache, fresh_compiler, tmp_path, monkeypatch
):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model = Stack()
    if from_cache:
        compiled = torch.compile(model)
        compiled(torch.ones(2, 4)).backward()
        torch.compiler.reset()
    log = cgdebug.debug_mode(model, eager=True)
    rows = train_once(torch.compile(model), log)
    for number in range(2):
        row = next(row for name, row in rows.items() if name == f"fwd/layers.{number}.q/addmm_0")
        assert row.site.endswith("in forward") and row.details.code.startswith("return self.q(x)")
    backward = [row for name, row in rows.items() if name.startswith("bwd/") and "/mm_" in name]
    assert backward and all(row.name.startswith("bwd/layers.") for row in backward), sorted(rows)
    log.close()


@pytest.mark.parametrize(
    "text",
    [
        "L['self'].layers.0.q",
        "L['self'].layers[0].q",
        "L['self']._modules['layers']._modules['0']._modules['q']",
        "G['model'].layers.0.q",
        "layers.0.q",
    ],
)
def test_a_path_of_a_compiler_becomes_the_name_of_a_module(text):
    assert compiled_names.relative_path(text) == "layers.0.q"


def test_the_code_that_runs_is_known_where_a_log_begins_inside_it(fresh_compiler):
    seen = []

    @torch.library.custom_op("cgdebug_test::look", mutates_args=())
    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(list(compiled_names._thread.running))  # as where a capture begins
        return x.clone()

    look.register_fake(torch.empty_like)
    torch.compile(lambda x: look(x) + 1)(torch.ones(3))
    (code,) = seen[-1]
    assert compiled_names._codes[id(code)][1]
    assert compiled_names._thread.running == []


def test_a_step_that_raised_does_not_make_a_forward_part_of_the_optimizer(daemon):
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure():
        raise RuntimeError("no batch")

    with cgdebug.debug_mode(model, eager=True) as mode:
        with pytest.raises(RuntimeError, match="no batch"):
            optimizer.step(closure)
        model(torch.ones(2, 4))
    of_ops = [row.name for row in mode.log() if "addmm_" in row.name and row.op != "input"]
    assert of_ops and all(name.startswith("fwd/") for name in of_ops), of_ops


def test_a_backward_pass_is_not_given_the_names_of_another_threads_forward(monkeypatch):
    monkeypatch.setattr(names, "_nodes", {})
    place = names.Line("train.py:3 in a", "")

    def remember(module):
        names._thread.last_node = -1
        names._remember_node(7, module, place)

    class Node:
        def _sequence_nr(self):
            return 7

    remember("a")
    assert names._maker_of(Node())[0] == "a"
    other = threading.Thread(target=remember, args=("b",))
    other.start()
    other.join()
    assert names._maker_of(Node())[0] == "", "both have made a node with this number"


def test_a_lazy_module_is_logged_and_has_names_once_it_has_parameters(daemon):
    model = nn.Sequential(nn.LazyLinear(3))
    with cgdebug.debug_mode(model, eager=True) as mode:
        model(torch.ones(2, 4))
        model(torch.ones(2, 4))
    rows_of = [row.name for row in mode.log()]
    assert any("0.weight" in name for name in rows_of), rows_of


def test_a_log_does_not_copy_a_tensor_that_is_copied_when_it_is_written():
    one = torch._lazy_clone(torch.ones(4))
    assert written.storage_of(one) == 0
    assert torch._C._is_cow_tensor(one)


def test_a_log_that_could_not_be_opened_can_be_opened_again(monkeypatch):
    mode = cgdebug.debug_mode(nn.Linear(4, 4), eager=True)
    with monkeypatch.context() as patched:
        patched.setattr(scopes, "_Following", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            mode.__enter__()
    assert mode._scope not in scopes._scopes
    with mode:
        pass


def test_a_log_says_that_reasons_found_no_room(monkeypatch):
    monkeypatch.setattr(gaps, "_MAX_GAPS", 1)
    found = gaps.Gaps(graph=1)
    for reason in ("first", "second", "third", "first"):
        found.note(reason)
    assert found.counts == {"first": 2, gaps._MORE_GAPS: 2}


class Told:
    """A recorder of compiled code."""

    is_eager, has_rows = True, False

    def __init__(self):
        self.codes = 0
        self.kernels = self

    def begin_unseen(self):
        self.codes += 1

    def end_unseen(self, changed, made):
        pass


def test_compiled_code_of_another_thread_is_not_in_this_threads_log(monkeypatch):
    monkeypatch.setattr(compiled_code, "_recorders", [])
    recorder = Told()
    compiled_code.follow(recorder)
    call = compiled_code._logged(lambda code, inputs: None)
    other = threading.Thread(target=call, args=(None, []))
    other.start()
    other.join()
    assert recorder.codes == 0
    call(None, [])
    assert recorder.codes == 1
    passed_on = following.OpMode(recorder)  # as to a thread of autograd
    other = threading.Thread(target=lambda: _under(passed_on, call))
    other.start()
    other.join()
    assert recorder.codes == 2


def _under(mode, call):
    torch.utils._python_dispatch._push_mode(mode)
    try:
        call(None, [])
    finally:
        torch.utils._python_dispatch._pop_mode()


def test_kernels_of_a_module_that_is_imported_later_are_seen(monkeypatch, tmp_path):
    (tmp_path / "cgdebug_test_kernels.py").write_text(
        "class Launcher:\n    def run(self):\n        return 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(triton_kernels, "_wrapped", set())
    for _ in range(2):  # each log asks
        triton_kernels._wrap(
            "cgdebug_test_kernels", "Launcher", lambda run: lambda self: run(self) + 1
        )
    import cgdebug_test_kernels

    assert cgdebug_test_kernels.Launcher().run() == 2
