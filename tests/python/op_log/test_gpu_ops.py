"""Op logs of captured graphs: what every op of every replay wrote."""

import gc
import os

import numpy
import pytest
import torch
import torch._dynamo
import torch.nn.attention
from torch import nn

import cgdebug
from cgdebug._op_log.rows import OpLog
from conftest import capture
from op_logs import capture_in, check_names, hash_of, needs_mode, ordered_of

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("torch_as_before"), needs_mode]
SIZE = 64


class Block(nn.Module):
    scale = 1.0

    def __init__(self):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(SIZE), nn.Linear(SIZE, 3 * SIZE)
        self.out, self.up = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 2 * SIZE)
        self.down = nn.Linear(2 * SIZE, SIZE)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (4, -1)).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, dim=-1)
        )
        h = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True) * self.scale
        x = x + self.out(h.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(x)))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(SIZE, 16)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def make():
    torch.manual_seed(0)
    return Transformer().cuda()


def inputs():
    torch.manual_seed(1)
    return torch.randn(2, 32, SIZE, device="cuda")


@pytest.fixture
def deterministic():
    """Attention whose backward adds up in one order."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        yield


class Step:
    """Forward, backward and AdamW of a model, to be captured."""

    def __init__(self):
        self.model, self.x = make(), inputs()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, capturable=True)

    def __call__(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss


def test_a_captured_step_is_logged_whole_and_its_bits_are_those_without_the_log(
    debug_mode, deterministic
):
    plain, logged = Step(), Step()
    graph, expected = capture(plain, warmup=2)
    dm = debug_mode(logged.model)
    logged_graph, actual = capture_in(dm, logged)
    for _ in range(3):
        graph.replay()
        logged_graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(actual, expected)
    for a, b in zip(plain.model.parameters(), logged.model.parameters()):
        assert torch.equal(a, b)
    log = dm.log()
    assert log.replay == 3 and log.graph != 0
    check_names(
        log,
        "in/layers.0.qkv.weight",
        "fwd/layers.0.qkv/addmm_0",
        "fwd/layers.1.norm/native_layer_norm_0.0",
        "bwd/layers.1.down/mm_0",
        "bwd/layers.0.qkv/mm_0",
    )
    assert all(row.stats is not None for row in log)
    # The mask of causal attention is made of -Inf.
    assert all(row.stats.nan == 0 and row.stats.pos_inf == 0 for row in log)
    assert log["fwd/mean_0"].stats.xor_hash == hash_of(actual)


def test_seeds_of_attention_that_nobody_writes_are_neither_rows_nor_inputs(debug_mode):
    model, x = make(), inputs()
    dm = debug_mode(model)

    def step():
        model.zero_grad(set_to_none=True)
        model(x).sum().backward()

    graph, _ = capture_in(dm, step)
    graph.replay()
    log = dm.log()
    names = [row.name for row in log]
    assert any("_scaled_dot_product" in name for name in names), names
    assert not any("philox" in name or "rng_state" in name for name in names)
    assert log.first_nonfinite is None and log.gaps == []


def test_rows_are_what_a_recomputation_gives(debug_mode):
    model, x = make().eval(), inputs()
    reference = debug_mode(model, eager=True)
    with torch.no_grad():
        dm = debug_mode(model)
        graph, _ = capture_in(dm, lambda: model(x))
        for seed in (2, 3):
            torch.manual_seed(seed)
            x.copy_(torch.randn_like(x))
            graph.replay()
            torch.cuda.synchronize()
            with reference:
                model(x)
            captured, eager = dm.log(), reference.log()
            assert [row.name for row in captured] == [row.name for row in eager]
            diff = captured.diff(eager)
            assert diff.verdict == "same", diff.text
            # The inputs are rows, too.
            row = captured["in/layers.0.norm/native_layer_norm_0.input"]
            assert row.stats.xor_hash == hash_of(x)


def test_make_graphed_callables_is_logged_forward_and_backward(debug_mode, deterministic):
    plain, model, x = make(), make(), inputs()
    expected = torch.cuda.make_graphed_callables(plain, (x.clone(),))
    dm = debug_mode(model)
    with dm:
        graphed = torch.cuda.make_graphed_callables(model, (x.clone(),))
    outputs = []
    for one in (expected, graphed):
        out = one(x)
        out.square().mean().backward()
        outputs.append(out.detach().clone())
    torch.cuda.synchronize()
    assert torch.equal(*outputs)
    for a, b in zip(plain.parameters(), model.parameters()):
        assert torch.equal(a.grad, b.grad)
    assert dm.logs == 2
    forward, backward = dm.log(0), dm.log(1)
    assert "fwd/layers.1.down/addmm_0" in [row.name for row in forward]
    assert "bwd/layers.1.down/mm_0" in [row.name for row in backward]
    assert forward.gaps == backward.gaps == []


def test_compiled_code_in_trees_runs_as_without_the_log(debug_mode, deterministic):
    plain, model, x = make(), make(), inputs()
    outputs = []
    for one in (plain, model):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled = torch.compile(one, mode="reduce-overhead", fullgraph=True)
        dm = debug_mode(one) if one is model else None
        if dm is not None:
            with dm:
                results = [run_step(compiled, one, x) for _ in range(4)]
        else:
            results = [run_step(compiled, one, x) for _ in range(4)]
        counters = torch._dynamo.utils.counters
        assert counters["stats"]["unique_graphs"] == 1
        assert counters["inductor"]["cudagraph_skips"] == 0
        outputs.append(results)
    for expected, actual in zip(*outputs):
        for a, b in zip(expected, actual):
            assert torch.equal(a, b)
    assert dm.logs >= 1
    names = {row.name for number in range(dm.logs) for row in dm.log(number)}
    assert any("mm_" in name for name in names), names


def run_step(compiled, model, x):
    model.zero_grad(set_to_none=True)
    torch.compiler.cudagraph_mark_step_begin()
    out = compiled(x)
    out.square().mean().backward()
    return [out.detach().clone(), *(p.grad.clone() for p in model.parameters())]


def test_kernels_of_compiled_code_are_rows_with_the_right_values(debug_mode):
    model, x = make().eval(), inputs()
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True)
        expected = compiled(x)
        dm = debug_mode(model, level="kernel")
        graph, out = capture_in(dm, lambda: compiled(x))
        graph.replay()
        torch.cuda.synchronize()
    assert torch.equal(out, expected)
    log = dm.log()
    kernels = [row for row in log if row.op.startswith("triton.")]
    assert kernels and all(".out_ptr" in r.name or "in_out_ptr" in r.name for r in kernels)
    assert hash_of(out) in {row.stats.xor_hash for row in log}
    inputs_of_log = {row.name for row in log if row.op == "input"}
    assert "in/layers.0.qkv.weight" in inputs_of_log
    # What a kernel wrote is no input of the log.
    assert all(row.is_covered for row in log), [row.name for row in log if not row.is_covered]


def test_a_planted_inf_is_named_by_the_command(debug_mode, cli):
    model, x = make().eval(), inputs()
    with torch.no_grad():
        dm = debug_mode(model)
        graph, _ = capture_in(dm, lambda: model(x))
        graph.replay()
        torch.cuda.synchronize()
        assert dm.log().first_nonfinite is None
        model.layers[1].up.weight[3, 5] = torch.inf
    graph.replay()
    torch.cuda.synchronize()
    assert dm.log().first_nonfinite.name == "in/layers.1.up.weight"
    done = cli("ops", str(os.getpid()), "--only", "nan")
    assert done.returncode == 1, done.stderr
    assert "first non-finite: #" in done.stdout and "in/layers.1.up.weight" in done.stdout


def test_a_wrong_constant_in_one_op_is_named_against_eager(debug_mode, cli):
    model, x = make().eval(), inputs()
    with torch.no_grad():
        reference = debug_mode(model, eager=True)
        with reference:
            model(x)
        model.layers[1].scale = 1.25
        dm = debug_mode(model)
        graph, _ = capture_in(dm, lambda: model(x))
        graph.replay()
    diff = dm.log().diff(reference.log())
    assert diff.verdict == "different"
    assert diff.first == "fwd/layers.1/mul_0", diff.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torchs_debug_mode_on_the_eager_run_names_the_same_op_as_our_log_of_the_replay(
    debug_mode, deterministic, dtype
):
    # Other backends of attention return seeds that nobody wrote, and DebugMode hashes them.
    torchs_own = pytest.importorskip("torch.utils._debug_mode")
    mode_of = torchs_own.DebugMode
    model, x = make().eval().to(dtype), inputs().to(dtype)

    def run_under_debug_mode():
        with mode_of() as mode, mode_of.log_tensor_hashes(["norm", "hash_tensor"]):
            model(x)
        return mode.logs

    with torch.no_grad():
        right = run_under_debug_mode()
        graph, _ = capture_in(sound := debug_mode(model), lambda: model(x))
        model.layers[1].scale = 1.25
        expected = mode_of.check_hash_mismatches(right, run_under_debug_mode())
        broken_graph, _ = capture_in(dm := debug_mode(model), lambda: model(x))
        graph.replay()
        broken_graph.replay()
    pair = sound.log().match_debug_mode(right)
    assert mode_of.check_hash_mismatches(pair.theirs, pair.ours) == []
    pair = dm.log().match_debug_mode(right)
    (actual, *_) = mode_of.check_hash_mismatches(pair.theirs, pair.ours)
    assert actual["call"] == expected[0]["call"] == "aten::mul.Tensor"
    assert actual["hash1"] == expected[0]["hash1"]
    diff = dm.log().diff(right)
    assert diff.verdict == "different" and diff.first.startswith("fwd/layers.1/mul_"), diff.text


def test_a_stale_input_is_named(debug_mode):
    model, x = make().eval(), inputs()
    fresh = x * 2
    with torch.no_grad():
        reference = debug_mode(model, eager=True)
        with reference:
            model(fresh)
        dm = debug_mode(model)
        graph, _ = capture_in(dm, lambda: model(x))  # nobody copies `fresh` into x
        graph.replay()
    diff = dm.log().diff(reference.log())
    assert diff.first == "in/layers.0.norm/native_layer_norm_0.input", diff.text


# --- rows that are computed later -----------------------------------------------------------------


def fill_unseen(tensor, byte):
    """Writes a tensor in the order of the current stream, with no op and no Triton kernel."""
    import ctypes

    fill = ctypes.CDLL("libcuda.so.1").cuMemsetD8Async
    stream = torch.cuda.current_stream().cuda_stream
    bytes_of = tensor.numel() * tensor.element_size()
    pointer, size = ctypes.c_uint64(tensor.data_ptr()), ctypes.c_size_t(bytes_of)
    assert fill(pointer, ctypes.c_ubyte(byte), size, ctypes.c_void_p(stream)) == 0


def pending_of(dm):
    return dm._scope.logs[-1]._native.pending()


class Kept:
    """What tensors hold at a point of the capture, and the rows that show it."""

    def __init__(self, dm):
        self.copies = []
        self._dm = dm

    def __call__(self, tensor):
        # A copy that the recorder does not notice: no row is computed because of it.
        with torch.utils._mode_utils.no_dispatch():
            copy = torch.empty_like(tensor)
            copy.copy_(tensor)
        self.copies.append(copy)
        for log in self._dm._scope.logs:
            log.take_nodes()
            log.drop_nodes()
        return tensor

    def check(self, log, names):
        assert len(names) == len(self.copies)
        for name, copy in zip(names, self.copies):
            assert log[name].stats.xor_hash == hash_of(copy), f"{name}\n{log}"
            assert log[name].stats.ordered_hash == ordered_of(copy), f"{name}\n{log}"


class EachRow:
    """What each row's tensor held when the row was made: a copy is captured beside it."""

    def __init__(self, monkeypatch):
        self.copies = {}
        add_row = OpLog.add_row

        def add_and_copy(log, name, op, tensor, *rest):
            number = add_row(log, name, op, tensor, *rest)
            with torch.utils._mode_utils.no_dispatch():
                self.copies[log.rows[-1].name] = tensor.detach().clone(
                    memory_format=torch.contiguous_format
                )
            nodes = log._nodes_of_op
            log.take_nodes()
            log._nodes_of_op = nodes  # the copy is ours
            return number

        monkeypatch.setattr(OpLog, "add_row", add_and_copy)

    def check(self, log):
        names = [row.name for row in log]
        assert len(names) == len(self.copies) and not set(names) ^ set(self.copies)
        for row in log:
            copy = self.copies[row.name].cpu()
            assert row.stats.ordered_hash == ordered_of(copy), row
            if copy.dtype == torch.bfloat16:
                copy = copy.float()
            wrong = wrong_stats(row.stats, copy.numpy())
            assert not wrong, f"{row}: {wrong}"


def wrong_stats(stats, values):
    """(name, actual, expected) of those that are not what numpy computes."""
    x = values.astype("float64").ravel()
    good = x[numpy.isfinite(x)]
    wide = x if values.dtype.kind == "f" else values.astype("int64").ravel()
    exact = {
        "xor_hash": int(numpy.bitwise_xor.reduce(wide.view("uint64"))) if wide.size else 0,
        "count": x.size,
        "nan": numpy.isnan(x).sum(),
        "pos_inf": numpy.isposinf(x).sum(),
        "neg_inf": numpy.isneginf(x).sum(),
        "zero": (x == 0).sum(),
    }
    near = {}
    if good.size:
        largest = abs(good).max()
        exact |= {"min": good.min(), "max": good.max()}
        near = {
            "mean": (good.mean(), 1e-5 * abs(good.mean()) + 1e-6 * largest),
            "std": (good.std(), 1e-4 * good.std() + 1e-5 * largest),
            "l1": (abs(good).sum(), 1e-5 * abs(good).sum()),
            "l2": (numpy.sqrt((good**2).sum()), 1e-5 * numpy.sqrt((good**2).sum())),
        }
    wrong = [
        (name, getattr(stats, name), expected)
        for name, expected in exact.items()
        if getattr(stats, name) != expected
    ]
    return wrong + [
        (name, getattr(stats, name), expected)
        for name, (expected, tolerance) in near.items()
        if not abs(getattr(stats, name) - expected) <= tolerance
    ]


class Mixed(nn.Module):
    """Dropout, ops in place, views, tensors that lie in memory in another order, and with gaps."""

    def __init__(self):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(50, SIZE), nn.ModuleList(Block() for _ in range(2))
        self.dropout, self.head = nn.Dropout(0.2), nn.Linear(SIZE, 50, bias=False)
        self.register_buffer("calls", torch.zeros(2, 3))

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = nn.functional.relu_(self.dropout(block(x)) + 0.1)
        y = x.transpose(1, 2) * 2  # lies as x does
        y = y + y.flip(2).masked_fill(y.detach() == 0, 0.0)
        scores = y.transpose(1, 2).unflatten(-1, (4, -1)).transpose(1, 2).exp().log()
        with torch.no_grad():
            self.calls[:, 1].add_(1)  # with gaps
            self.calls.t().mul_(1.5)
            x.detach().clone().view(-1)[::2].fill_(-torch.inf)
            masked = scores.masked_fill(scores < 0.3, -torch.inf)
            masked.sub_(masked.amax(-1, keepdim=True)).exp_()
        return self.head(scores.transpose(1, 2).flatten(2).to(torch.bfloat16).float())


@pytest.mark.own_lane
@pytest.mark.parametrize(
    "settings", [{}, {"CGDEBUG_OP_LOG_MIB": "1"}, {"CGDEBUG_OP_LOG_BATCH": "7"}], ids=str
)
def test_every_row_of_every_replay_of_a_training_step_is_what_torch_computes(
    debug_mode, monkeypatch, settings
):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    torch.manual_seed(3)
    model = Mixed().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True, foreach=True)
    tokens = torch.randint(0, 50, (8, 64), device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    each = EachRow(monkeypatch)
    graph, _ = capture_in(dm := debug_mode(model), step)
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        each.check(dm.log())
        tokens.random_(0, 50)
    assert dm.log().coverage.unseen == ()
    log = dm._scope.logs[0]
    tokens_again = 1  # where the graph ends
    assert log._native.counters()["rows"] == len(log.rows) + tokens_again > 300
    # Views with gaps: of `calls`, of the clone, and gradients that attention packs.
    assert log.copies <= 12, log.copies


def test_no_kernel_of_a_training_step_is_unknown(debug_mode, deterministic):
    plain, logged = Step(), Step()
    graph, expected = capture(plain, warmup=2)
    dm = debug_mode(logged.model)
    logged_graph, actual = capture_in(dm, logged)
    for _ in range(3):
        graph.replay()
        logged_graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(actual, expected)
    log = dm.log()
    assert log.gaps == [], log.gaps
    assert log.coverage.unseen == () and log.coverage.left_out == 0, str(log)
    assert log.coverage.explained > 100


def test_rows_of_many_ops_share_a_launch(debug_mode):
    x, waited = torch.ones(64, device="cuda"), []
    dm = debug_mode()

    def run():
        y = x
        for _ in range(200):
            y = y + 1
            if dm._scope.logs:
                waited.append(pending_of(dm))
        return y

    graph, y = capture_in(dm, run)
    graph.replay()
    log = dm.log()
    # That of an input is computed as soon as its op has run.
    assert waited[:2] == [0, 1] and max(waited) == 63 and waited[63:66] == [63, 0, 1], waited[:70]
    assert [log[f"fwd/add_{i}"].stats.max for i in range(200)] == [2 + i for i in range(200)]
    assert log.coverage.explained == 200 and log.coverage.unseen == ()


def test_what_nobody_follows_changes_no_row_and_is_named(debug_mode, cli, every_lane):
    x = torch.full((1000,), 3.0, device="cuda")
    dm = debug_mode()
    label = f"unfollowed-{every_lane}"

    def run():
        y = x * 2
        z = y + 1
        fill_unseen(y, 0)
        fill_unseen(x, 0)
        last = y + z
        fill_unseen(last, 1)
        return last

    with cgdebug.graph_label(label):
        graph, _ = capture_in(dm, run)
    for _ in range(3):
        x.fill_(3)
        graph.replay()
    log = dm.log()
    assert log["in/mul_0.self"].stats.max == 3
    assert log["fwd/mul_0"].stats.max == 6
    assert log["fwd/add_0"].stats.max == 7
    assert log["fwd/add_1"].stats.max == 7
    assert log.coverage.unseen == ((3, 4, ("memset", "memset")), (4, 0, ("memset",)))
    assert (log.coverage.explained, log.coverage.nodes) == (3, 6)
    assert "?? 2 kernels between #3 and #4: memset" in str(log)
    assert log.diff(log).verdict == "inconclusive"
    done = cli("ops", str(os.getpid()), "--coverage")
    assert done.returncode == 0, done.stderr
    assert "6 kernel nodes: 3 explained" in done.stdout
    assert "?? 2 kernels between #3 and #4: memset" in done.stdout
    assert "?? 1 kernel after #4: memset" in done.stdout
    # Of this graph alone: other tests of this process may have left findings.
    checked = cli("check", str(os.getpid()), "--graph", label)
    assert checked.returncode == 3, checked.stdout
    assert "3 kernels that no row shows" in checked.stdout or (
        "no row shows what 3 kernels wrote" in checked.stdout  # unless earlier logs are missing
    )


def test_what_nobody_follows_on_a_stream_that_joins_late_changes_no_row(debug_mode):
    x = torch.full((1 << 20,), 3.0, device="cuda")
    side = torch.cuda.Stream()
    dm = debug_mode()

    def run():
        y = x * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            fill_unseen(y, 0)
        kept = [x + 1 for _ in range(100)]  # more than one batch
        torch.cuda.current_stream().wait_stream(side)
        return y + 1, kept

    graph, (last, _) = capture_in(dm, run)
    for _ in range(20):
        graph.replay()
        torch.cuda.synchronize()
        assert last.max() == 1
        log = dm.log()
        assert log["fwd/mul_0"].stats.min == log["fwd/mul_0"].stats.max == 6
    assert [names for _, _, names in log.coverage.unseen] == [("memset",)]


def test_rows_of_what_is_overwritten_are_right(debug_mode):
    x, dm = torch.ones(5000, device="cuda"), debug_mode()
    keep = Kept(dm)

    def run():
        keep.copies.clear()
        y = x.clone()
        for _ in range(100):
            keep(y.add_(1))
        out = torch.empty_like(y)
        keep(torch.mul(y, 2, out=out))
        keep(torch.add(out, 1, out=out))
        out.view(50, 100)[3].zero_()
        keep(out[300:400])
        first, second = out.clone(), out.clone()
        torch._foreach_mul_([first, second], 3.0)
        torch._foreach_add_([first, second], 1.0)
        keep(first)
        keep(second)
        keep(first.normal_())
        keep(torch.rand_like(second))
        return out

    graph, _ = capture_in(dm, run)
    for _ in range(2):
        graph.replay()
        log = dm.log()
        keep.check(
            log,
            [f"fwd/add__{i}" for i in range(100)]
            + ["fwd/mul_0", "fwd/add_0", "fwd/zero__0"]
            + [
                "fwd/_foreach_add__0.0",
                "fwd/_foreach_add__0.1",
                "fwd/normal__0",
                "fwd/rand_like_0",
            ],
        )


def test_memory_that_is_used_again_changes_no_row(debug_mode):
    x = torch.ones(1 << 20, device="cuda")
    dm = debug_mode()

    def run():
        for i in range(150):
            y = x * i  # each is freed at once
        z = x + 7
        z.untyped_storage().resize_(0)
        for i in range(20):
            w = x - i
        return y, w

    graph, _ = capture_in(dm, run)
    for _ in range(3):
        graph.replay()
    log = dm.log()
    for i in range(150):
        row = log[f"fwd/mul_{i}"]
        assert row.stats.min == row.stats.max == i
    assert log["fwd/add_0"].stats.min == log["fwd/add_0"].stats.max == 8
    for i in range(20):
        assert log[f"fwd/sub_{i}"].stats.max == 1 - i


def test_rows_of_two_streams_are_right(debug_mode):
    x = torch.ones(1 << 20, device="cuda")
    side = torch.cuda.Stream()
    dm = debug_mode()

    def run():
        y = x * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = y * 3
            y.add_(1)
        w = x + 1
        torch.cuda.current_stream().wait_stream(side)
        return w + y + z

    graph, out = capture_in(dm, run)
    for _ in range(5):
        graph.replay()
        log = dm.log()
        values = {row.name: row.stats.max for row in log}
        assert out.max() == 11
        assert (values["fwd/mul_0"], values["fwd/mul_1"], values["fwd/add__0"]) == (2, 6, 3)
        assert (values["fwd/add_0"], values["fwd/add_2"]) == (2, 11)
    assert log.coverage.unseen == ()


def test_what_a_custom_op_writes_without_saying_so_changes_no_row(debug_mode):
    hidden = {}

    @torch.library.custom_op("cgdebug_test::secretive", mutates_args=())
    def secretive(x: torch.Tensor) -> torch.Tensor:
        fill_unseen(hidden["y"], 0)
        return x + 1

    x = torch.ones(1000, device="cuda")
    dm = debug_mode()

    def run():
        hidden["y"] = y = x * 5
        return secretive(x), y

    graph, _ = capture_in(dm, run)
    graph.replay()
    log = dm.log()
    assert log["fwd/mul_0"].stats.max == 5
    assert log.coverage.unseen == ()  # it was that op


def test_triton_kernels_and_their_buffers_change_no_row(debug_mode):
    def function(x):
        for _ in range(3):
            x = torch.softmax(x @ x, -1) * 2 + x
            x.mul_(1.5)
        return x

    x = torch.randn(64, 64, device="cuda")
    compiled = torch.compile(function, fullgraph=True)
    expected = compiled(x)
    logs = []
    for level in ("kernel", "op"):
        dm = debug_mode(level=level)
        graph, out = capture_in(dm, lambda: compiled(x))
        for _ in range(3):
            graph.replay()
        assert torch.equal(out, expected)
        logs.append(dm.log())
        assert logs[-1].coverage.unseen == ()
    kernels, ops = logs
    assert kernels.coverage.left_out == 0 and kernels.coverage.explained > 3
    assert ops.coverage.left_out > 0
    # The products are rows of both.
    hashes = [{row.stats.xor_hash for row in log if "mm" in row.op} for log in logs]
    assert hashes[0] == hashes[1] != set()
    assert hash_of(out) in {row.stats.xor_hash for row in kernels}


def test_a_dead_graph_that_waits_for_the_collector_does_not_end_a_capture(debug_mode):
    def make_garbage():
        graph, _ = capture(lambda: torch.ones(4, device="cuda").exp())
        cycle = [graph]
        cycle.append(cycle)

    make_garbage()
    x = torch.ones(4, device="cuda")

    def collect_while_captured():
        y = x.exp()
        make_no_garbage = [[] for _ in range(2000)]  # would start the collector
        for one in make_no_garbage:
            one.append(one)
        return y * 2

    dm = debug_mode()
    graph, out = capture_in(dm, collect_while_captured)
    graph.replay()
    torch.cuda.synchronize()
    assert [row.name for row in dm.log()] == ["in/exp_0.self", "fwd/exp_0", "fwd/mul_0"]
    assert torch.equal(out, x.exp() * 2)


def test_a_capture_that_fails_leaves_nothing(job):
    # In a process of its own: torch's generator of random numbers stays as the capture left it.
    failing = job(
        """
        import gc
        from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
        dm = cgdebug.debug_mode()
        x = torch.ones(4, device="cuda")
        try:
            with dm, torch.cuda.graph(torch.cuda.CUDAGraph()):
                x.exp().sum().item()
        except RuntimeError:
            print("failed")
        torch.cuda.synchronize()
        assert _get_current_dispatch_mode_stack() == []
        assert not torch.nn.modules.module._global_forward_hooks
        assert gc.isenabled() and dm.logs == 0
        """
    )
    assert failing.line() == "failed"
    failing.finish()


@pytest.mark.parametrize("order", ["mode first", "graph first", "model first"])
def test_del_in_any_order(daemon, order):
    model, x = make().eval(), inputs()
    dm = cgdebug.debug_mode(model)
    with torch.no_grad():
        graph, out = capture_in(dm, lambda: model(x))
    graph.replay()
    if order == "mode first":
        del dm
    elif order == "model first":
        del model
    else:
        del graph
    gc.collect()
    if order != "graph first":
        graph.replay()
    torch.cuda.synchronize()
    assert torch.isfinite(out).all()


def test_watch_of_level_op_logs_captures_alone(daemon):
    model, x = make().eval(), inputs()
    with cgdebug.watch(model, level="op", select="layers.1.*") as w, torch.no_grad():
        graph, _ = capture(lambda: model(x))
        graph.replay()
        log = w.log()
        rows = [row.name for row in log if row.op != "input"]
        assert "fwd/layers.1.up/addmm_0" in rows
        assert all("/layers.1." in name for name in rows), rows
        assert set(rows) <= set(w.explain().seen)
    assert not cgdebug._op_log.scopes._scopes
    graph.replay()
    torch.cuda.synchronize()


def test_the_variable_logs_the_captures_of_a_job_that_does_not_know_of_it(daemon, job, cli):
    job_ = job(
        """
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).cuda().eval()
        x = torch.ones(2, 8, device="cuda")
        with torch.no_grad():
            model(x)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = model(x)
        graph.replay()
        torch.cuda.synchronize()
        print("ready")
        sys.stdin.readline()
        """,
        CGDEBUG_WATCH="op:*",
    )
    assert job_.line() == "ready"
    done = cli("ops", str(job_.pid))
    assert done.returncode == 0, done.stderr
    assert "fwd/0/addmm_0" in done.stdout and "fwd/1/gelu_0" in done.stdout, done.stdout
    job_.go_on()


BEFORE = """
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).cuda().eval()
    x = torch.ones(2, 8, device="cuda")
    probe = CudaGraphTensorProbe("first", [TensorStats()])
    graphs = [torch.cuda.CUDAGraph() for _ in range(3)]

    def capture(graph):
        with torch.no_grad(), torch.cuda.graph(graph):
            return probe(model(x))

    with torch.no_grad():
        model(x)
    torch.cuda.synchronize()
    capture(graphs[0])
    capture(graphs[1])
    graphs.pop(1)  # what is gone is no gap
    watched = cgdebug.watch(model, level="op")
    capture(graphs[1])
    for graph in graphs:
        graph.replay()
    torch.cuda.synchronize()
    log = watched.log()
    print(log.graph)
    print([text for text in watched.explain().problems.values() if "before" in text])
    sys.stdin.readline()
"""


def test_a_graph_captured_before_the_watch_is_told_by_the_commands(daemon, job, cli):
    running = job(BEFORE)
    watched, told = running.line(), running.line()
    assert told.count("made before the watch") == 1, told
    source = str(running.pid)
    whole = cli("ops", source)
    assert whole.returncode == 3, whole.stdout + whole.stderr
    assert whole.stderr.count("was made before the watch, so it has no op log") == 1, whole.stderr
    assert cli("ops", f"{source}@g:{watched}").returncode == 0, "the log that was chosen is whole"
    checked = cli("check", source)
    assert checked.returncode == 3 and "made before the watch" in checked.stdout, checked.stdout
    running.go_on()


def test_two_models_in_one_capture_have_names_of_their_own(debug_mode):
    first, second, x = make().eval(), make().eval(), inputs()
    dm = debug_mode(first)
    with torch.no_grad():
        graph, _ = capture_in(dm, lambda: first(x).sum() + second(x).sum())
    graph.replay()
    names = [row.name for row in dm.log()]
    assert "fwd/layers.0.up/addmm_0" in names
    assert "fwd/Transformer.layers.0.up/addmm_0" in names
