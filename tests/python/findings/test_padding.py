"""valid_rows(): which rows of a padded batch are real, followed through the ops of a call."""

import functools
import pathlib
import threading

import padded_programs
import pytest
import torch
from serve_programs import Programs
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _len_torch_dispatch_stack

import cgdebug
from cgdebug._job._poison import _Trace
from cgdebug._op_log import padding
from cgdebug._op_log.rows.native_rows import is_slowest

ROWS, REAL, TOKENS, SIZE = 6, 4, 5, 8


def rows_of(function, x, rows=REAL):
    """{name: shape of the real rows of what the op wrote, or None: not known}"""
    with torch.no_grad(), _Trace(padding.marks_of(rows, [x], "test")) as trace:
        function(x)
    return {
        ran.name.removeprefix("fwd/"): tuple(ran.value.shape) if ran.has_rows else None
        for ran in trace.ops
    }


def attention(x):
    """Of one head, over all rows: pairs of rows have both."""
    scores = x @ x.T
    return torch.softmax(scores, -1) @ x


@pytest.mark.parametrize(
    ("function", "last"),
    [
        (lambda x: F.layer_norm(x.relu() @ torch.ones(SIZE, 3), (3,)).exp(), (REAL, 3)),
        (lambda x: (x - x.mean(0)).square().mean(-1).clone(), (REAL,)),
        (lambda x: x.view(ROWS, 2, 4).transpose(1, 2).reshape(ROWS, 8) + 1, (REAL, 8)),
        (lambda x: x.T.relu().T.clone(), (REAL, SIZE)),
        (lambda x: torch.cat([x, x * 2], -1), (REAL, 2 * SIZE)),
        (lambda x: torch.ones(50, 3)[x.argmax(-1)].exp(), (REAL, 3)),
        (lambda x: x[:, :3].exp(), (REAL, 3)),
        (lambda x: torch.zeros(ROWS, SIZE).copy_(x).exp(), (REAL, SIZE)),
        (attention, (REAL, SIZE)),
    ],
)
def test_ops_that_keep_the_rows_are_followed(function, last):
    rows = rows_of(function, torch.randn(ROWS, SIZE))
    assert [*rows.values()][-1] == last, rows


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[torch.randperm(ROWS)].exp(),
        lambda x: x.view(ROWS * SIZE)[3:].exp(),
        lambda x: x.flatten().view(SIZE, ROWS).exp(),
        lambda x: x.sort(0).values.exp(),
        lambda x: x.sum(0).exp(),
        lambda x: x[:REAL].exp(),
        lambda x: x.flip(0).exp(),
        lambda x: torch.zeros(ROWS + 1, SIZE).index_put_((torch.arange(ROWS),), x).exp(),
    ],
)
def test_rows_that_were_moved_are_not_known(function):
    rows = rows_of(function, torch.randn(ROWS, SIZE))
    assert [*rows.values()][-1] is None, rows


@pytest.mark.parametrize(("write", "last"), [(torch.neg_, (REAL, SIZE)), (None, None)])
def test_what_is_written_through_a_view_lies_in_the_whole_tensor(write, last):
    def function(x):
        y, part = x.flip(0), x[:, :1]
        part.copy_(y[:, :1]) if write is None else write(part)
        x.exp()

    assert [*rows_of(function, torch.randn(ROWS, SIZE)).values()][-1] == last


def test_a_mask_of_batch_and_tokens_is_followed_through_heads():
    x = torch.randn(3, TOKENS, SIZE)
    mask = torch.arange(TOKENS) < torch.tensor([[5], [2], [3]])
    real = int(mask.sum())

    def attend(x):
        heads = x.view(3, TOKENS, 2, 4).transpose(1, 2)
        scores = heads @ heads.transpose(-1, -2) + torch.where(mask, 0, -torch.inf)[:, None, None]
        out = (torch.softmax(scores, -1) @ heads).transpose(1, 2).reshape(3, TOKENS, SIZE)
        return F.linear(out, torch.ones(2, SIZE))

    rows = rows_of(attend, x, mask)
    pairs = int((mask.sum(1) ** 2).sum()) * 2
    assert rows["_softmax_0"] == (pairs,)
    assert [*rows.values()][-1] == (2 * real,), rows


def test_what_is_made_of_no_row_has_none():
    rows = rows_of(lambda x: torch.ones(ROWS, SIZE).exp(), torch.randn(ROWS, SIZE))
    assert rows["exp_0"] is None


@pytest.mark.parametrize(
    ("rows", "shape", "words"),
    [
        (7, (6, 2), "7 rows cannot be real"),
        (-1, (6, 2), "-1 rows cannot be real"),
        (torch.ones(5), (6, 2), "does not have 5 rows"),
        (torch.ones(6, 3), (6, 2), "does not have 6 x 3 rows"),
        (2, (), "cannot be real"),
    ],
)
def test_rows_that_a_tensor_does_not_have_are_refused(rows, shape, words):
    with pytest.raises(ValueError, match=words):
        cgdebug.valid_rows(rows, torch.zeros(shape))
    with pytest.raises(TypeError, match="name the tensors"):
        cgdebug.valid_rows(5)


@pytest.mark.parametrize(
    "mask", [torch.tensor(REAL), torch.arange(ROWS) % 2], ids=["a number", "a mask"]
)
def test_what_lies_in_padding_has_0_in_place_of_real_rows_where_their_number_is_not_known(mask):
    x = torch.full((ROWS, 3), torch.nan)
    real = padding.marks_of(mask, [x], "test").mask
    x[real] = torch.inf
    places = padding.RowPlaces(padding.captured_marks(mask, [x]))
    part = places.padding_of(x)
    assert part.shape == x.shape and not part[real].any()
    assert part[~real].isnan().all()


def test_the_tail_of_a_tensor_is_where_its_rows_lie_one_behind_another():
    x = torch.zeros(ROWS, 2, 4)
    places = padding.RowPlaces(padding.captured_marks(torch.tensor(REAL), [x]))
    tail, dim = places.tail_of(x)
    assert (tail.start.item(), tail.rows, dim) == (REAL, ROWS, 0)
    turned = x.transpose(0, 2)
    for tensor, place, slowest in (
        (x, 0, True),
        (turned, 2, True),  # as it lies in memory
        (turned.contiguous(), 2, False),
        (x[:, :1], 0, False),  # it has gaps
        (x[:1].expand(ROWS, 2, 4), 0, False),
        (x[:, :0], 0, False),  # nothing is in it
    ):
        assert is_slowest(tensor, place) is slowest, tensor.stride()
    elsewhere = torch.zeros(ROWS, 3, device="meta")
    places._set(elsewhere, (((0, ROWS),), ((-1, 3),)))
    assert places.tail_of(elsewhere) is None


# --- in an op log -----------------------------------------------------------------------------------


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, 3))


def logged(dm, **options):
    return {row.name: row for row in dm.log(**options)}


def test_an_eager_log_has_what_lies_in_padding_beside_each_row(daemon, model):
    x = torch.randn(ROWS, SIZE)
    x[REAL:] = torch.nan
    with cgdebug.debug_mode(model, eager=True) as dm, torch.no_grad():
        cgdebug.valid_rows(REAL, x)
        model(x)
    rows = logged(dm)
    mask = rows["in/valid_rows"]
    assert (mask.op, mask.shape, mask.stats.zero) == ("valid_rows", (ROWS,), ROWS - REAL)
    twin = rows["fwd/0/addmm_0.padding"]
    assert (twin.op, twin.shape) == ("padding", (ROWS - REAL, SIZE))
    assert twin.inputs == (rows["fwd/0/addmm_0"].number,)
    assert twin.stats.nan == (ROWS - REAL) * SIZE == rows["fwd/0/addmm_0"].stats.nan
    assert "in/0.weight.padding" not in rows
    assert {row.op for row in rows.values() if row.name.startswith("fwd/")} <= {
        *("aten.addmm.default", "aten.relu.default", "padding"),
    }


def test_valid_rows_are_those_of_the_call_that_comes(daemon, model):
    with cgdebug.debug_mode(model, eager=True) as dm, torch.no_grad():
        for real in (4, 2, None, ROWS):
            x = torch.randn(ROWS, SIZE)
            if real is not None:
                cgdebug.valid_rows(real, x)
            model(x)
    padded = []
    for call in dm.calls:
        rows = logged(dm, replay=call)
        mask, twin = rows.get("in/valid_rows"), rows.get("fwd/0/addmm_0.padding")
        padded.append((mask and mask.stats.zero, twin and twin.shape[0]))
    assert padded == [(2, 2), (4, 4), (None, None), (0, None)]


def test_a_thread_that_tells_rows_is_not_followed_for_it(daemon, model):
    modes = []

    def tell():
        cgdebug.valid_rows(REAL, torch.randn(ROWS, SIZE))
        modes.append(_len_torch_dispatch_stack())

    with cgdebug.debug_mode(model, eager=True) as dm, torch.no_grad():
        model(torch.randn(ROWS, SIZE))
        other = threading.Thread(target=tell)
        other.start()
        other.join()
    assert modes == [0]
    assert "fwd/0/addmm_0" in logged(dm)


def test_rows_that_are_not_known_on_a_gpu_leave_the_log_whole(daemon, job):
    code = """
    from cgdebug._op_log import padding, scopes

    model = torch.nn.Linear(4, 4)
    with debug_mode(model, eager=True) as dm, torch.no_grad():
        scopes.valid_rows_are_told(padding.Marks(None, ()))  # as of tensors on a GPU
        model(torch.ones(2, 4))
    assert padding.ON_GPU in dm.log().gaps
    cgdebug.check("nan")
    """
    job(code).finish()


def test_valid_rows_may_be_told_in_the_middle_of_a_call(daemon):
    class Model(nn.Module):
        def forward(self, x):
            hidden = x.flip(0)  # nobody knows where the rows are
            cgdebug.valid_rows(REAL, hidden)
            return hidden.exp()

    with cgdebug.debug_mode(model := Model(), eager=True) as dm, torch.no_grad():
        for _ in range(2):
            model(torch.randn(ROWS, SIZE))
    for call in dm.calls:
        rows = logged(dm, replay=call)
        assert rows["fwd/Model/exp_0.padding"].shape == (ROWS - REAL, SIZE)
        assert "fwd/Model/flip_0.padding" not in rows


# --- check --padding, and why -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    server = Programs(pathlib.Path(padded_programs.__file__), tmp_path_factory.mktemp("programs"))
    yield server
    server.close()


@pytest.mark.parametrize("name", padded_programs.EXPECTED)
def test_check_says_whether_padding_reached_a_real_row(daemon, cli, programs, tmp_path, name):
    code, words = padded_programs.EXPECTED[name]
    path = tmp_path / f"{name}.cgrec"
    programs.record(path, name)
    done = cli("check", "--padding", str(path))
    assert done.returncode == code, done.stdout
    for word in words:
        assert word in done.stdout
    causes = cgdebug.why(path)
    if code == 1:
        assert (causes.first.kind, causes.first.level) == ("padding_leak", "shown")
        assert cli("--json", "check", "--padding", str(path)).stdout.count('"padding_leak"') == 1
    elif name == "made_by_the_real_rows":
        assert (causes.first.kind, causes.first.level) == ("domain", "shown"), causes
    elif name not in ("not_told", "told_once"):
        assert all(one.level != "shown" for one in causes), causes
    if name == "kept_apart":
        note = cli("check", str(path))
        assert note.returncode == 0 and "in padding rows alone" in note.stdout, note.stdout


@pytest.mark.gpu
@pytest.mark.own_lane
@pytest.mark.parametrize("inside", [True, False])
def test_a_number_that_no_replay_reads_leaves_rows_that_are_not_known(daemon, model, inside):
    model = model.cuda()
    x = torch.randn(ROWS, SIZE, device="cuda")
    model(x)
    graph = torch.cuda.CUDAGraph()
    if not inside:
        cgdebug.valid_rows(REAL, x)
    with cgdebug.debug_mode(model) as dm, torch.cuda.graph(graph):
        if inside:
            cgdebug.valid_rows(REAL, x)
        model(x)
    graph.replay()
    assert padding.IN_GRAPH in dm.log().gaps
    dm.close()


@pytest.mark.gpu
@pytest.mark.own_lane
@pytest.mark.parametrize("is_mask", [False, True])
def test_each_replay_has_what_lies_in_its_own_padding(daemon, model, is_mask):
    model = model.cuda()
    x = torch.randn(ROWS, SIZE, device="cuda")
    real = torch.zeros(ROWS if is_mask else (), dtype=torch.long, device="cuda")
    with torch.no_grad():
        model(x)
        graph = torch.cuda.CUDAGraph()
        with cgdebug.debug_mode(model) as dm, torch.cuda.graph(graph):
            cgdebug.valid_rows(real, x)
            out = model(x)
        for count in (4, 2, ROWS):
            x.normal_()
            x[count:] = torch.nan
            real.copy_(torch.arange(ROWS) < count if is_mask else torch.tensor(count))
            graph.replay()
            log = dm.log()
            rows = {row.name: row for row in log}
            assert rows["in/valid_rows"].stats.zero == ROWS - count
            twin = rows["fwd/0/addmm_0.padding"]
            assert (twin.op, twin.shape) == ("padding", (ROWS, SIZE))
            assert twin.inputs == (rows["fwd/0/addmm_0"].number,)
            assert twin.stats.nan == (ROWS - count) * SIZE
            assert twin.stats.count == (ROWS if is_mask else ROWS - count) * SIZE
            assert rows["fwd/2/addmm_0.padding"].stats.nan == (ROWS - count) * 3
            assert "in/0.weight.padding" not in rows
            assert log.gaps == [] and log.coverage.unseen == ()
    assert not out.isnan().any()
    dm.close()


@pytest.mark.gpu
@pytest.mark.own_lane
def test_a_capture_that_nobody_logs_has_no_node_more(daemon, model):
    from conftest import capture

    model, x = model.cuda(), torch.randn(ROWS, SIZE, device="cuda")
    count, nodes = torch.tensor(REAL, device="cuda"), []
    native = cgdebug._job._native.probe_module()

    def step(tells):
        if tells:
            cgdebug.valid_rows(count, x)
        model(x)
        if torch.cuda.is_current_stream_capturing():
            stream = torch.cuda.current_stream().cuda_stream
            nodes.append(native.graph_nodes(stream=stream))

    with torch.no_grad():
        for tells in (False, True):
            capture(functools.partial(step, tells))
    assert len(nodes) == 2 and nodes[0] == nodes[1] > 0


class Places(nn.Module):
    """Rows that are the first dimension; that are the last one, and slowest in memory all the same;
    and that lie behind another dimension, so that no part of the memory is the padding."""

    def forward(self, x):
        return x * 2, x.T * 2, x.view(len(x), 2, -1).transpose(0, 1).contiguous()


@pytest.mark.gpu
@pytest.mark.own_lane
@pytest.mark.parametrize("shape", [(ROWS, SIZE), (1000, 514)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("count", [4, 0, -3, 1 << 40])
def test_a_replay_sees_in_padding_what_an_eager_call_sees(daemon, cli, shape, dtype, count):
    model, x = Places(), (torch.arange(shape[0] * shape[1]) % 7).reshape(shape).to(dtype)
    if dtype.is_floating_point:
        x[-1, 3] = torch.nan
    real = min(max(count, 0), len(x))
    with cgdebug.debug_mode(model, eager=True) as dm:
        cgdebug.valid_rows(real, x)
        model(x)
    eager = {name.rpartition("/")[2]: row for name, row in logged(dm).items()}
    on_gpu, word = x.cuda(), torch.tensor(count, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with cgdebug.debug_mode(model) as dm, torch.cuda.graph(graph):
        cgdebug.valid_rows(word, on_gpu)
        model(on_gpu)
    graph.replay()
    rows = {name.rpartition("/")[2]: row for name, row in logged(dm).items()}
    if real == len(x):
        assert rows["mul_0.padding"].stats.count == rows["mul_1.padding"].stats.count == 0
        return
    for name, first in (("mul_0", f"[{len(x) - 1}, 3]"), ("mul_1", f"[3, {len(x) - 1}]")):
        seen, wanted = rows[f"{name}.padding"], eager[f"{name}.padding"]
        for fact in ("count", "nan", "zero", "min", "max", "l1"):
            assert getattr(seen.stats, fact) == getattr(wanted.stats, fact), (name, fact)
        assert seen.stats.std == pytest.approx(wanted.stats.std)
        if dtype.is_floating_point:  # its place in the whole tensor
            assert f"nan at {first}" in cli("show", f"{seen.name}@1").stdout
        else:
            assert seen.stats.xor_hash == wanted.stats.xor_hash
    first = "mul_0.padding"
    assert rows[first].stats.ordered_hash == eager[first].stats.ordered_hash
    behind = rows["clone_0.padding"].stats
    assert behind.count == x.numel() and behind.zero >= real * shape[1]
