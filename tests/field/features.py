"""Features of torch, each in a few lines. One program runs them all."""

import copy
import gc
import io
import pickle
import threading
import weakref

import torch
from products import X, net
from programs import program
from torch import nn

FEATURES = []


def feature(function):
    FEATURES.append(function)
    return function


@program()
def features(run):
    torch.set_num_threads(1)
    found = {}
    for function in FEATURES:
        torch.manual_seed(0)
        found[function.__name__] = run.keep(function())
    return found


class Calls(nn.Module):
    """A linear layer in front of a function."""

    def __init__(self, function):
        super().__init__()
        self.net, self.function = net(), function

    def forward(self, x):
        return self.function(self.net(x))


def gradients(model):
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


# --- torch.func and autograd ---


@feature
def derivatives():
    model = net()
    return [
        torch.autograd.functional.jacobian(model, X),
        torch.func.jacrev(model)(X),
        torch.func.jacfwd(model)(X),
        torch.func.hessian(lambda x: model(x).sum())(X),
        torch.func.functionalize(model)(X),
    ]


@feature
def gradient_of_each_sample():
    model = net()

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    by_sample = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))
    return by_sample(dict(model.named_parameters()), X)


@feature
def ensemble():
    models = [net() for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")

    def call(parameters, buffers):
        return torch.func.functional_call(base, (parameters, buffers), (X,))

    return torch.vmap(call)(parameters, buffers)


@feature
def forward_mode():
    import torch.autograd.forward_ad as forward

    with forward.dual_level():
        return forward.unpack_dual(net()(forward.make_dual(X, torch.ones_like(X)))).tangent


@feature
def double_backward():
    model, x = net(), X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    gradient.square().sum().backward()
    return gradients(model)


@feature
def function_of_its_own():
    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0].exp()

    model = Calls(Exp.apply)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x):
        loss = model(X).sum()
    with torch.autograd.detect_anomaly(check_nan=True):
        loss.backward()
    return gradients(model)


@feature
def optimizer_that_calls_again():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)

    def closure():
        optimizer.zero_grad()
        loss = model(X).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return list(model.parameters())


@feature
def average_of_weights():
    model = net()
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(X).sum().backward()
        optimizer.step()
        average.update_parameters(model)
    return average(X)


# --- modes and types of tensors ---


@feature
def modes_of_the_program():
    from torch.utils.flop_counter import FlopCounterMode

    class Counts(torch.overrides.TorchFunctionMode):
        count = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            Counts.count += 1
            return function(*args, **(kwargs or {}))

    with FlopCounterMode(display=False) as flops, Counts(), torch.device("cpu"):
        return [net()(torch.ones(2, 8)), flops.get_total_flops(), Counts.count]


@feature
def classes_of_tensors():
    class Own(torch.Tensor):
        pass

    made = net()(X.as_subclass(Own))
    return [type(made).__name__, made.as_subclass(torch.Tensor)]


@feature
def layouts_and_dtypes():
    sparse = Calls(lambda x: torch.sparse.mm(torch.eye(8).to_sparse(), x.t()))
    nested = torch.nested.nested_tensor([X, X[:1]])
    bag = nn.Sequential(nn.EmbeddingBag(10, 4, sparse=True))
    bag(torch.tensor([[1, 2], [3, 4]])).sum().backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = net()(X)
    return [
        sparse(X),
        net()(nested).unbind(),
        torch.view_as_real(nn.Linear(8, 8, dtype=torch.complex64)(torch.complex(X, X))),
        bag[0].weight.grad.to_dense(),
        half,
    ]


@feature
def without_values():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = net()(torch.empty(2, 8))
    return [list(net().to("meta")(X.to("meta")).shape), list(fake.shape)]


@feature
def inference():
    with torch.inference_mode():
        return net()(X).clone()


# --- modules ---


@feature
def modules_of_torch():
    lstm, attention = nn.LSTM(8, 4), nn.MultiheadAttention(8, 2)
    packed, _ = lstm(nn.utils.rnn.pack_sequence([X, X[:1]]))
    layer = nn.TransformerEncoderLayer(8, 2, 8).eval()
    with torch.no_grad():
        return [packed.data, attention(X, X, X), layer(X), nn.DataParallel(net())(X)]


@feature
def modules_that_change():
    class Symmetric(nn.Module):
        def forward(self, weight):
            return weight.triu() + weight.triu(1).t()

    lazy = nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d())
    symmetric = nn.Linear(8, 8)
    nn.utils.parametrize.register_parametrization(symmetric, "weight", Symmetric())
    pruned = net()
    nn.utils.prune.l1_unstructured(pruned[0], "weight", amount=0.5)
    return [lazy(X), symmetric(X), pruned(X)]


@feature
def output_that_is_made_later():
    class Generates(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x):
            for number in range(3):
                yield self.net(x + number)

    return list(Generates()(X))


@feature
def threads():
    model, made = net(), [None] * 4

    def call(number):
        made[number] = model(X + number)

    running = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return made


@feature
def copies_and_ends():
    model = net()
    model(X)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)]
    found = [copy.deepcopy(model)(X), *(one(X) for one in copies), list(model.state_dict())]
    gone = weakref.ref(model)
    del model
    gc.collect()
    return [*found, gone() is None]


# --- code that is made of code ---


@feature
def traced_code():
    from torch.fx.experimental.proxy_tensor import make_fx

    model = Calls(lambda x: x * 2 + 1)
    traced = torch.jit.trace(model, X)
    graph = make_fx(model)(X)
    return [
        traced(X),
        [node.kind() for node in traced.inlined_graph.nodes()],
        torch.jit.freeze(traced.eval())(X),
        torch.jit.script(net())(X),
        [str(node.target) for node in graph.graph.nodes],
        graph(X),
    ]
