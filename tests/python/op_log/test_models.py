"""Where the tensors of a model are, for the many captures of one job: the model is walked once, and
what is found is what a walk would find now."""

import contextlib
import gc
import itertools
import random
import weakref

import pytest
import torch
from torch import nn

from cgdebug._op_log import audit, models, node_map
from cgdebug._op_log.names import ModuleNames

CAPTURES = 20
SIZE = 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(SIZE, SIZE)
        self.norm = nn.BatchNorm1d(SIZE)
        self.register_buffer("table", torch.randn(SIZE))
        self.workspace = torch.zeros(SIZE)
        self.caches = [torch.zeros(SIZE), None]
        self.by_name = {"k": torch.zeros(SIZE)}
        self.sizes = (SIZE, SIZE)
        self.empty = None
        self.words = {}


def net_of(count=4):
    return nn.Sequential(*(Block() for _ in range(count)))


def named(tensors):
    """By name, as tensors_of() says it, and which object it is."""
    return [[(name, id(one)) for name, one in dict(part).items()] for part in tensors]


class Walks:
    """How often a model of this many modules was walked from its root."""

    def __init__(self, monkeypatch, net):
        self.count = 0
        walk = nn.Module.named_modules

        def named_modules(module, *args, **kwargs):
            self.count += module is net
            return walk(module, *args, **kwargs)

        monkeypatch.setattr(nn.Module, "named_modules", named_modules)


@pytest.fixture
def walks(monkeypatch):
    return lambda net: Walks(monkeypatch, net)


def captured(net, tensors):
    """A capture whose ops are given these tensors; its audit, too."""
    names = ModuleNames()
    names.add_model(net)
    holdings = audit.Holdings(0, names)
    for number, one in enumerate(tensors):
        holdings.note(one, f"in/{number}", f"fwd/mm_{number}", "mm")
    holdings.finish()
    audit.keep(holdings)
    return holdings


def names_held(holdings):
    return [held.names for held, _ in holdings._held.values()]


@pytest.fixture(autouse=True)
def forget_all(monkeypatch):
    monkeypatch.setattr(audit, "_arrange", lambda: None)  # nothing is done at the end of the tests
    yield
    audit._all.clear()


def test_many_captures_of_one_model_walk_it_once(walks):
    net = net_of()
    count = walks(net)
    for _ in range(CAPTURES):
        holdings = captured(net, net[1].parameters())
        assert names_held(holdings)[0] == ["1.up.weight"]
    # Once for the places, and twice for what its parameters are called.
    assert count.count <= 5


def test_what_is_replaced_between_captures_costs_no_walk_but_of_the_parameters(walks):
    net = net_of()
    captured(net, net[1].parameters())
    count = walks(net)
    for _ in range(CAPTURES):
        net[2].up.weight.data = torch.randn(SIZE, SIZE)
        net[3].workspace = torch.zeros(SIZE)
        holdings = captured(net, [net[2].up.weight, net[3].workspace])
        assert names_held(holdings) == [["2.up.weight"], ["3.workspace"]]
    assert count.count <= 2 * CAPTURES


def step(optimizer, net):
    for one in net.parameters():
        one.grad = torch.ones_like(one)
    optimizer.step()


def new_state(net, names):
    optimizer = torch.optim.AdamW(net.parameters())
    names.optimizers.add(optimizer)
    step(optimizer, net)
    net.kept = lambda: optimizer
    return optimizer.state[net[0].up.weight]["exp_avg"], "0.up.weight.exp_avg"


def set_data(net, names):
    net[1].up.weight.data = torch.randn(SIZE, SIZE)
    return net[1].up.weight, "1.up.weight"


def set_grad(net, names):
    net[1].up.weight.grad = torch.randn(SIZE, SIZE)
    return net[1].up.weight.grad, "1.up.weight.grad"


def set_attribute(net, names):
    net[2].empty = torch.randn(SIZE)
    return net[2].empty, "2.empty"


def set_in_list(net, names):
    net[2].caches[1] = torch.randn(SIZE)
    return net[2].caches[1], "2.caches[1]"


def set_in_dict(net, names):
    net[2].words["x"] = torch.randn(SIZE)
    return net[2].words["x"], "2.words['x']"


def set_parameter(net, names):
    net[3].up.weight = nn.Parameter(torch.randn(SIZE, SIZE))
    return net[3].up.weight, "3.up.weight"


def set_buffer(net, names):
    net[3].table = torch.randn(SIZE)
    return net[3].table, "3.table"


def set_module(net, names):
    net[3].up = nn.Linear(SIZE, SIZE)
    return net[3].up.bias, "3.up.bias"


def add_module(net, names):
    net.append(Block())
    return net[4].table, "4.table"


def swap(net, names):
    torch.utils.swap_tensors(net[1].up.bias, nn.Parameter(torch.randn(SIZE)))
    return net[1].up.bias, "1.up.bias"


def make_a_list_of_a_tensor(net, names):
    net[0].workspace = [torch.zeros(SIZE)]
    return net[0].workspace[0], "0.workspace[0]"


CHANGES = [
    *(new_state, set_data, set_grad, set_attribute, set_in_list, set_in_dict, set_parameter),
    *(set_buffer, set_module, add_module, swap, make_a_list_of_a_tensor),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_capture_has_the_names_of_the_moment_when_it_ended(change):
    net = net_of()
    captured(net, net.parameters())
    names = ModuleNames()
    names.add_model(net)
    tensor, name = change(net, names)
    holdings = audit.Holdings(0, names)
    holdings.note(tensor, "in/0", "fwd/mm_0", "mm")
    holdings.finish()
    assert names_held(holdings) == [[name]]
    (found,) = audit.run([holdings]).graphs
    assert found.findings == []


@pytest.mark.parametrize("change", [set_data, set_parameter, set_buffer])
def test_what_has_moved_since_another_capture_is_found(change):
    net = net_of()
    first = captured(net, [*net.parameters(), *net.buffers()])
    tensor, name = change(net, first.names)
    captured(net, net.parameters())  # looks at the model, too
    (found,) = audit.run([first]).graphs
    ((level, text),) = found.findings
    assert level == "wrong" and text.startswith(f"moved: {name}:"), text
    assert f"the model has it at {tensor.data_ptr():#x}" in text


def random_change(generator, net):
    """Changes something of the net, in one of the ways of a program."""
    modules = [one for one in net.modules() if one is not net]
    module = generator.choice(modules)
    key = generator.choice(["a", "b", "workspace", "caches", "table"])
    value = generator.choice(
        [
            lambda: torch.zeros(SIZE),
            lambda: None,
            lambda: [torch.zeros(SIZE), 1],
            lambda: [1, 2],
            lambda: {"x": torch.zeros(SIZE)},
            lambda: {"x": 1},
            lambda: nn.Linear(SIZE, SIZE),
            lambda: nn.Parameter(torch.zeros(SIZE)),
            lambda: generator.choice(modules[-3:]),
            lambda: weakref.proxy(kept[0]),
            lambda: type("Local", (), {})(),
        ]
    )()
    kind = generator.randrange(4)
    if kind == 0 and key in vars(module):
        delattr(module, key)
    elif kind == 1 and isinstance(vars(module).get(key), list):
        vars(module)[key].append(torch.zeros(SIZE))
    elif kind == 2 and module._parameters:
        one = next(iter(module._parameters.values()))
        if one is not None:
            one.grad = generator.choice([None, torch.zeros_like(one)])
    elif not (isinstance(value, nn.Module) and any(one is module for one in value.modules())):
        if key in module._buffers and type(value) not in (type(None), torch.Tensor):
            return  # named_buffers() itself fails on a proxy
        with contextlib.suppress(TypeError):  # torch refuses it in that place
            setattr(module, key, value)


kept = [torch.zeros(SIZE)]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_found_is_what_a_walk_would_find(seed):
    generator, net = random.Random(seed), net_of(2)
    for _ in range(60):
        random_change(generator, net)
        assert named(models.tensors_of(net)) == named(models._walked(net))
        names = models.names_of(net)
        fresh = models.ModelNames(net)
        assert (names.names, names.aliases, names.others) == (
            fresh.names,
            fresh.aliases,
            fresh.others,
        )
        for one in itertools.chain(net.parameters(), net.buffers()):
            assert names.parameters.peek(one) == fresh.parameters.get(one)


def test_a_model_that_finds_its_tensors_in_its_own_way_is_asked_each_time():
    class Own(nn.Sequential):
        def named_parameters(self, *args, **kwargs):
            for name, one in super().named_parameters(*args, **kwargs):
                yield f"own.{name}", one

    net = Own(nn.Linear(SIZE, SIZE))
    assert [name for name, _ in models.tensors_of(net).all] == ["own.0.weight", "own.0.bias"]
    assert net not in models._walks


def captured_with_a_local_type():
    net = net_of()

    class Local:  # its function has the model
        def model(self):
            return net

    net.local = Local()
    captured(net, net.parameters())
    assert not weakref.getweakrefs(net[0].up.weight)
    return [weakref.ref(net), weakref.ref(net[1]), weakref.ref(Local)]


def test_nothing_is_kept_alive():
    parts = captured_with_a_local_type()
    audit._all.clear()
    gc.collect()
    assert [one() for one in parts] == [None, None, None]


def test_names_of_a_second_model_do_not_collide():
    first, second = net_of(2), net_of(2)
    names = ModuleNames()
    names.add_model(first)
    names.add_model(second)
    assert names.path_of(first[1].up) == "1.up"
    assert names.path_of(second[1].up) == "Sequential.1.up"
    assert names.parameter_at(second[1].up.weight) == "Sequential.1.up.weight"
    assert names.owner_of("Sequential.1.up") == (second, "1.up")
    assert names.owner_of("1.up") == (first, "1.up")


def test_the_memory_of_parameters_is_where_it_is_now():
    net = net_of()
    node_map.know_model(net)
    for _ in range(3):
        tensors = [*net.parameters(), *net.buffers()]
        known = node_map.known_parameters(-1)
        assert known >= {node_map.extent_of(one) for one in tensors}
        net[2].up.weight.data = torch.randn(SIZE, 2 * SIZE)
        net[3].table = torch.randn(SIZE)


@pytest.mark.parametrize(
    "make", [lambda: torch.eye(SIZE).to_sparse(), lambda: torch.empty(SIZE, device="meta")]
)
def test_a_tensor_without_memory_hides_no_other(make):
    net = net_of()
    net[0].register_buffer("strange", make())
    holdings = captured(net, net[1].parameters())
    assert names_held(holdings)[0] == ["1.up.weight"]
    assert holdings.names.parameter_at(net[1].up.weight) == "1.up.weight"


def test_nobody_makes_the_copy_of_memory_that_is_copied_on_write():
    net = net_of()
    copy = torch._lazy_clone(net[0].table)
    captured(net, net[1].parameters())
    assert torch._C._is_cow_tensor(net[0].table) and torch._C._is_cow_tensor(copy)
