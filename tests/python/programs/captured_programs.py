"""The programs of faulty_programs.py in captured CUDA graphs, and faults that only graphs have: by name, and
what `cgdebug.why` must say of them first (serve_programs.py). CORRECT are programs that are right."""

import gc

import faulty_programs
import torch
from faulty_programs import BATCH, CALLS, SIZE, Decoder, Model, Recurrent, two_layers
from serve_programs import serve
from torch import nn

# Of those, what a graph can capture. A generator of its own, a mean of chosen elements and a
# GradScaler that the CPU steps cannot be captured.
_EAGER = (
    *("log_of_zero", "zero_by_zero", "root_of_a_variance", "ignored_targets", "masked_row"),
    *("overflow_in_half", "cast_to_half", "exp", "nan_in_the_data"),
    *("frozen_positions", "buffer_that_the_warm_up_wrote", "baked_scalar"),
    *("learning_rate_of_zero", "update_below_a_digit", "wrong_parameter_group"),
    *("loss_of_weight_zero", "detached_layer", "dead_relu", "softmax_of_one_class"),
    *("forgotten_result", "op_that_does_not_follow"),
)
# name: kind, level, words of the first sentence
EXPECTED = {
    name: (kind, level, [word.replace("call", "replay") for word in words])
    for name in _EAGER
    for kind, level, words in [faulty_programs.EXPECTED[name]]
}
CORRECT = []


def expect(kind, level, *words):
    def add(program):
        EXPECTED[program.__name__.removeprefix("run_")] = (kind, level, words)
        return program

    return add


def correct(program):
    CORRECT.append(program.__name__.removeprefix("run_"))
    return program


def captured(function, warmup=2):
    """The graph of function(), and its result."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warmup):
            function()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    gc.collect()  # a dead graph that is collected during a capture breaks it
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


def replay(graph):
    graph.replay()
    torch.cuda.synchronize()


def infer(model, make=None, replays=CALLS):
    """As faulty_programs.infer(): each call copies into what the graph reads, and replays it."""
    make = make or (lambda call: (torch.randn(BATCH, SIZE),))
    model = model.cuda()
    with torch.no_grad():
        static = [one.cuda().contiguous() for one in make(0)]
        graph, _ = captured(lambda: model(*static))
        for call in range(replays):
            for one, fresh in zip(static, make(call)):
                one.copy_(fresh)
            replay(graph)


def train(model, parameters=None, loss_of=None, steps=CALLS, optimizer=torch.optim.SGD, **options):
    """As faulty_programs.train(), one step a replay."""
    chosen = [*(parameters or model.parameters())]
    model.cuda()  # the parameters stay the same objects
    if optimizer is torch.optim.AdamW:
        options["capturable"] = True
    optimizer = optimizer(chosen, **{"lr": 0.01, **options})
    x = torch.randn(BATCH, SIZE, device="cuda", dtype=next(model.parameters()).dtype)

    def step():
        optimizer.zero_grad(set_to_none=True)
        out = model(x)
        loss = loss_of(out) if loss_of else out.square().mean()
        loss.backward()
        optimizer.step()

    graph, _ = captured(step)
    for _ in range(steps):
        x.normal_()
        replay(graph)


faulty_programs.infer, faulty_programs.train = infer, train
globals().update({f"run_{name}": getattr(faulty_programs, f"run_{name}") for name in _EAGER})


# --- what graphs alone have -----------------------------------------------------------------------


@expect("growth", "consistent", "in each of the last 6 replays", "too large for float16")
def run_state_that_is_not_damped():
    infer(Recurrent(torch.float16, 1.7), replays=10)


@expect("repeated_noise", "shown", "the same random numbers", "6 replays")
def run_seed_before_each_replay():
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Dropout(0.5), nn.Linear(SIZE, 4)).cuda()
    x = torch.randn(BATCH, SIZE, device="cuda")
    batches = torch.randn(CALLS, BATCH, SIZE, device="cuda")
    with torch.no_grad():
        graph, _ = captured(lambda: model(x))
        for batch in batches:
            x.copy_(batch)
            torch.manual_seed(0)
            replay(graph)


@expect("frozen_input", "consistent", "the input in/tokens/", "is the same in 6 replays")
def run_stale_token():
    """The new token is a tensor of its own, and nobody copies it into the one that the graph reads."""
    token, position = (torch.zeros(4, dtype=torch.long, device="cuda") for _ in range(2))
    model = Decoder().cuda()
    with torch.no_grad():
        graph, logits = captured(lambda: model(token, position))
        mine = token
        for _ in range(CALLS):
            mine = logits.argmax(-1)  # not token.copy_()
            position.add_(1)
            replay(graph)
    del mine


@expect("moved_pointer", "shown", "moved", "0.weight")
def run_moved_pointer():
    model, x = two_layers().cuda(), torch.randn(BATCH, SIZE, device="cuda")
    globals()["kept"] = model  # until the end, when it is looked at last
    with torch.no_grad():
        graph, _ = captured(lambda: model(x))
        globals()["graph"] = graph
        for call in range(CALLS):
            x.normal_()
            replay(graph)
            if call == 2:
                model[0].weight = nn.Parameter(torch.randn(SIZE, SIZE, device="cuda"))


class Slow(nn.Module):
    """Reads its input first and last, and in between takes long."""

    ROUNDS = 60

    def __init__(self):
        super().__init__()
        self.large = nn.Parameter(torch.randn(4096, 4096) / 64)

    def forward(self, x):
        begun = (x * 2) + 1
        h = self.large
        for _ in range(self.ROUNDS):
            h = h @ self.large
        return begun, x + h.mean()


def replay_and_copy(graph, x, begun, call, side):
    """While the replay runs, the input of the next one is copied on another stream."""
    x.fill_(call)
    torch.cuda.synchronize()
    graph.replay()
    done = torch.cuda.Event()
    done.record()
    with torch.cuda.stream(side):
        while begun[0].item() != 2 * call + 1:  # until the first ops have run
            pass
        x.fill_(call + 1)
        side.synchronize()
    was_running = not done.query()
    torch.cuda.synchronize()
    return was_running


@expect("torn_input", "shown", "mul_0.self changed while replay", "no op of the graph writes it")
def run_torn_input():
    model, x = Slow().cuda(), torch.zeros(1024, device="cuda")
    side = torch.cuda.Stream()
    with torch.no_grad():
        graph, (begun, _) = captured(lambda: model(x), warmup=1)
        torn = [replay_and_copy(graph, x, begun, call, side) for call in range(1, CALLS + 1)]
    assert any(torn), "no replay still ran when its input was copied"


def run_graph_and_then(broken):
    """A graph that is right, and then a capture that fails."""
    model = two_layers()  # lives as long as the program: its log has the capture
    infer(model)
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            broken(torch.ones(4, device="cuda"))
    except RuntimeError:
        return
    raise AssertionError("it was captured")


@expect("failed_capture", "consistent", "ended with an error", "_local_scalar_dense.default")
def run_value_that_is_read_in_a_capture():
    run_graph_and_then(lambda x: (x * 2).sum().item())


@expect("failed_capture", "consistent", "the last op before the error was aten.mul.Tensor")
def run_wait_in_a_capture():
    def wait(x):
        y = x * 2
        torch.cuda.synchronize()
        return y

    run_graph_and_then(wait)


def run_padded(function):
    """Whose padding has NaN. How many rows are real is a number on the GPU."""
    import cgdebug  # not at the top: it looks at variables that serve() sets

    model, x = Model(function).cuda(), torch.randn(BATCH, SIZE, device="cuda")
    count = torch.tensor(BATCH, device="cuda")

    def step():
        cgdebug.valid_rows(count, x)
        return model(x)

    with torch.no_grad():
        graph, _ = captured(step)
        for call in range(CALLS):
            count.fill_(6 - call % 3)
            x.normal_()
            x[6 - call % 3 :] = torch.nan
            replay(graph)


@expect("padding_leak", "shown", "mean_0 (aten.mean.dim) lets NaN or Inf of padding", "replay 1")
def run_mean_over_padding():
    run_padded(lambda x: x - x.mean(0))


# --- what is right --------------------------------------------------------------------------------


@correct
def run_decoding():
    token, position = (torch.zeros(4, dtype=torch.long, device="cuda") for _ in range(2))
    model = Decoder().cuda()
    with torch.no_grad():
        graph, logits = captured(lambda: model(token, position))
        for _ in range(CALLS):
            token.copy_(logits.argmax(-1).add(1).remainder(64))
            position.add_(1)
            replay(graph)


@correct
def run_training_with_sgd():
    train(two_layers(), steps=10)


@correct
def run_training_with_adamw_and_dropout():
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU(), nn.Dropout(0.5), nn.Linear(SIZE, 4))
    train(model, optimizer=torch.optim.AdamW, steps=10)


@correct
def run_damped_state():
    infer(Recurrent(torch.float32, 0.5), replays=10)


@correct
def run_attention_with_a_mask():
    def attend(x, mask):
        return torch.softmax((x @ x.T).masked_fill(mask, float("-inf")), -1) @ x

    def make(call):
        kept = 1 + call % 4
        return torch.randn(BATCH, SIZE), (torch.arange(BATCH) >= kept).expand(BATCH, BATCH)

    infer(Model(attend), make)


@correct
def run_copy_on_another_stream_that_waits():
    """The next input is copied on another stream, behind the replay."""
    model = two_layers().cuda()
    x, side = torch.randn(BATCH, SIZE, device="cuda"), torch.cuda.Stream()
    with torch.no_grad():
        graph, _ = captured(lambda: model(x))
        for _ in range(CALLS):
            fresh = torch.randn(BATCH, SIZE, device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                x.copy_(fresh)
            fresh.record_stream(side)
            torch.cuda.current_stream().wait_stream(side)
            graph.replay()
        torch.cuda.synchronize()


@correct
def run_padding_that_stays_apart():
    run_padded(lambda x: torch.softmax(x, -1) @ torch.ones(SIZE, 3, device="cuda"))


@correct
def run_two_graphs_of_one_pool():
    """The second graph reads what the first one left."""
    first, second = (nn.Linear(SIZE, SIZE).cuda() for _ in range(2))
    x = torch.randn(BATCH, SIZE, device="cuda")
    with torch.no_grad():
        a, middle = captured(lambda: first(x).relu())
        b = torch.cuda.CUDAGraph()
        with torch.cuda.graph(b, pool=a.pool()):
            second(middle)
        for _ in range(CALLS):
            x.normal_()
            a.replay()
            b.replay()
            torch.cuda.synchronize()


if __name__ == "__main__":
    serve(globals(), eager=False)
