"""Where rows of compiled code lie: no hook runs for the modules in it."""

import torch
from torch import nn

import cgdebug
from cgdebug._op_log import names


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
