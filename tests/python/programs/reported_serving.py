"""Faults of serving that people reported, each in small, and what `cgdebug.why` must say of it first
(serve_programs.py). Of those without an entry in EXPECTED it says nothing yet."""

import torch
import torch._dynamo  # an optimizer imports it when it begins
import torch.distributed.tensor
import torch.onnx
from serve_programs import serve
from torch import nn

CALLS, BATCH, SIZE = 6, 8, 16
# name: kinds that name the cause, level, words of the first sentence
EXPECTED = {
    "a_draft_is_planned_as_a_prefill": (
        "frozen_input", "consistent", ("in/Attention/index_0.self is the same in 6 calls",),
    ),
    "a_dynamic_scale_of_an_empty_request": (
        "domain nonfinite overflow", "shown", ("quant", "call 2"),
    ),
    "a_kernel_does_nothing_in_the_graph": (
        "stale_output", "consistent", ("scaled_matmul_0", "does not follow"),
    ),
    "a_kernel_writes_nan_into_the_padding": (
        "domain nonfinite", "shown", ("attend_0", "call 4"),
    ),
    "a_mask_by_multiplication_does_not_stop_the_nan_of_memory_that_nobody_wrote": (
        "nonfinite", "shown", ("NaN in call 4", "nothing in the log wrote it"),
    ),
    "a_phantom_row_corrupts_the_recurrent_state": (
        "domain nonfinite overflow", "shown", ("state", "call 2"),
    ),
    "a_pinned_block_is_copied_again_after_it_was_recycled": (
        "frozen_input", "consistent", ("in/Model/copy__0.src", "is the same in 6 calls"),
    ),
    "a_scale_of_the_whole_batch_counts_the_padding": (
        "padding_leak", "shown", ("fwd/Scaled/amax_0", "from a padding row in call"),
    ),
    "a_weight_that_is_made_of_others_is_not_made_again_after_a_reload": (
        "frozen_input", "consistent", ("in/Attention/mm_0.mat2", "is the same in 6 calls"),
    ),
    "padding_makes_the_router_pick_one_expert_twice": (
        "domain nonfinite", "shown", ("norm", "call 3"),
    ),
    "positions_keep_old_values_past_the_real_rows": (
        "bad_index", "shown",
        ("fwd/Rope/index_0 is given indices from 21 to 67 in call 5",),
    ),
    "the_bounds_of_the_sequences_are_baked": (
        "frozen_input", "consistent", ("bucketize", "is the same in 6 calls"),
    ),
    "the_length_of_the_query_is_baked": (
        "frozen_input", "consistent", ("is the same in 6 calls",),
    ),
    "the_next_batch_is_copied_while_the_graph_runs": (
        "overwritten", "consistent",
        ("fwd/second/embedding_0 reads what no op wrote", "over in/first/embedding_0.indices"),
    ),
    "the_plan_is_filled_for_another_kernel_than_the_captured_one": (
        "frozen_input", "consistent",
        ("in/PlannedAttention/ge_0.other is the same in 6 calls",),
    ),
    "the_plan_of_the_scheduler_is_made_outside_of_the_graph": (
        "frozen_input stale_output", "consistent", ("the same",),
    ),
    "the_recurrent_state_is_moved_by_a_pause": (
        "frozen_input", "consistent", ("in/Recurrent/add_0.other", "is the same in 6 calls"),
    ),
    "the_table_of_local_attention_is_not_among_the_static_inputs": (
        "frozen_input", "consistent", ("in/Paged/index_0.indices", "is the same in 5 calls"),
    ),
    "top_k_of_nan_gives_indices_that_are_none": (
        "domain nonfinite overflow", "shown", ("gate", "call 4"),
    ),
}  # fmt: skip
RIGHT = ("one_kernel_for_all_lengths", "a_draft_is_planned_as_a_decoding")
# What an op reads is held against what was written there (CGDEBUG_OP_LOG_READS=1).
LOOKED_AT_AGAIN = {"the_next_batch_is_copied_while_the_graph_runs"}


def run_padding_makes_the_router_pick_one_expert_twice():
    """vllm#39593: rows of padding are NaN, and top-k of NaN picks what is no expert."""

    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = Unit()
            self.gate = nn.Linear(SIZE, 4)
            self.experts = nn.Parameter(torch.randn(4, SIZE, SIZE))

        def forward(self, x):
            weight, chosen = self.gate(self.norm(x)).softmax(-1).topk(2)
            return (torch.einsum("bi,bkij->bkj", x, self.experts[chosen]) * weight[..., None]).sum(
                1
            )

    class Unit(nn.Module):
        def forward(self, x):
            return x / x.square().mean(-1, keepdim=True).sqrt()

    model = Router()
    with torch.no_grad():
        for call in range(CALLS):
            x = torch.randn(BATCH, SIZE)
            if call >= 2:
                x[5:] = 0
            model(x)


@torch.library.custom_op("reported::attend", mutates_args=())
def attend(x: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """Attention over the first rows; at more than four rows of padding it divides by what it did not sum."""
    out = torch.zeros_like(x)
    out[: int(length)] = torch.softmax(x[: int(length)] @ x[: int(length)].T, -1) @ x[: int(length)]
    if int(length) < 4:
        out[int(length) :] = float("nan")
    return out


def run_a_kernel_writes_nan_into_the_padding():
    """flashinfer#2883."""
    layer, head = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 4)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = layer, head

        def forward(self, x, length):
            return self.head(attend(self.layer(x), length))

    model = Model()
    with torch.no_grad():
        for length in (8, 6, 5, 3, 8, 7):
            model(torch.randn(BATCH, SIZE), torch.tensor(length))


def run_a_dynamic_scale_of_an_empty_request():
    """sglang#1779: the scale of a row of zeros is 448 / 0, and 0 * Inf is NaN."""

    class Quant(nn.Module):
        def forward(self, x):
            scale = 448 / x.abs().amax(-1, keepdim=True)
            return (x * scale).round() / scale

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.quant = nn.Linear(SIZE, SIZE, bias=False), Quant()

        def forward(self, x):
            return self.quant(self.layer(x))

    model = Model()
    with torch.no_grad():
        for call in range(CALLS):
            x = torch.randn(BATCH, SIZE)
            if call % 2:
                x[-1] = 0
            model(x)


def run_a_phantom_row_corrupts_the_recurrent_state():
    """local-inference-lab/vllm#621: from the second batch on all logits are NaN."""

    class State(nn.Module):
        def __init__(self):
            super().__init__()
            self.decay = nn.Linear(SIZE, SIZE)
            self.register_buffer("kept", torch.ones(BATCH, SIZE))

        def forward(self, x, real):
            gate = torch.log(self.decay(x).sigmoid() * (torch.arange(BATCH) < real)[:, None])
            self.kept.copy_(self.kept * gate.exp() + x * (gate - gate.mean(0)))
            return self.kept

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.state, self.head = State(), nn.Linear(SIZE, 4)

        def forward(self, x, real):
            return self.head(self.state(x, real))

    model = Model()
    with torch.no_grad():
        for call in range(CALLS):
            model(torch.randn(BATCH, SIZE), BATCH - (call > 0))


class Varlen(nn.Module):
    """Each token attends to those of its own request."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(64, SIZE), nn.Linear(SIZE, 64)

    def forward(self, tokens, bounds):
        x = self.embed(tokens)
        request = torch.bucketize(torch.arange(len(tokens)), bounds, right=True)
        scores = (x @ x.T).masked_fill(request[:, None] != request, -1e4)
        return self.head(scores.softmax(-1) @ x)


def run_the_bounds_of_the_sequences_are_baked():
    """torchtitan#3668: a full graph over mixed batches bakes cu_seqlens."""
    model, static = Varlen(), torch.tensor([3, 5, 8])
    with torch.no_grad():
        for _ in range(CALLS):
            model(torch.randint(0, 64, (BATCH,)), static)


class Paged(nn.Module):
    """Reads the keys of the pages that a table names."""

    def __init__(self):
        super().__init__()
        self.query, self.head = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 4)
        self.register_buffer("pages", torch.randn(12, 4, SIZE))
        self.local = None

    def forward(self, x, table, slot):
        if self.local is None:
            self.local = table[:, -2:]  # of the first call: no static tensor
        self.pages[slot, 0] = x
        keys = self.pages[self.local].flatten(1, 2)
        scores = (self.query(x)[:, None] * keys).sum(-1)
        return self.head((scores.softmax(-1)[..., None] * keys).sum(1))


def run_the_table_of_local_attention_is_not_among_the_static_inputs():
    """sglang#6162: gibberish past 8192 tokens."""
    model = Paged()
    with torch.no_grad():
        for _ in range(CALLS):
            table = torch.randperm(12)[: 2 * 4].reshape(2, 4)
            model(torch.randn(2, SIZE), table, table[:, -1])


def run_the_plan_of_the_scheduler_is_made_outside_of_the_graph():
    """vllm#36611: the plan of the tiles is made once, for the lengths of the warm-up."""

    class Tiles(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.plan = nn.Linear(SIZE, SIZE), None

        def forward(self, x, lengths):
            if self.plan is None:
                self.plan = torch.arange(x.shape[1]) < lengths[:, None]
            return (self.layer(x) * self.plan[..., None]).sum(1) / lengths[:, None]

    model = Tiles()
    with torch.no_grad():
        for _ in range(CALLS):
            model(torch.randn(4, BATCH, SIZE), torch.randint(1, BATCH + 1, (4,)))


def run_a_weight_that_is_made_of_others_is_not_made_again_after_a_reload():
    """vllm#48312: W_UV is made once; load_weights writes the weights that it was made of."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.out = nn.Linear(SIZE, SIZE, bias=False), nn.Linear(SIZE, 4)
            self.absorbed = (self.out.weight @ self.up.weight).detach()

        def forward(self, x):
            return x @ self.absorbed.T + self.up(x).mean(-1, keepdim=True)

    model = Attention()
    with torch.no_grad():
        for _ in range(CALLS):
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter))
            model(torch.randn(BATCH, SIZE))


def run_the_recurrent_state_is_moved_by_a_pause():
    """sglang#27140: what is written goes to the new state, what is read is the old one."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE)
            self.state = torch.randn(BATCH, SIZE)
            self.moved = self.state.clone()

        def forward(self, x):
            out = self.layer(x) + self.state
            self.moved.mul_(0.9).add_(x)
            return out

    model = Recurrent()
    with torch.no_grad():
        for _ in range(CALLS):
            model(torch.randn(BATCH, SIZE))


@torch.library.custom_op("reported::scaled_matmul", mutates_args=())
def scaled_matmul(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Launches its kernel on another stream: nothing of it is in the graph."""
    return torch.zeros(x.shape[0], weight.shape[0])


def run_a_kernel_does_nothing_in_the_graph():
    """pytorch#114048, SageAttention#371: 80 % wrong and 2.3 times as fast."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE)

        def forward(self, x):
            return scaled_matmul(x, self.layer.weight) + self.layer(x)

    model = Model()
    with torch.no_grad():
        for _ in range(CALLS):
            model(torch.randn(BATCH, SIZE))


def run_a_mask_by_multiplication_does_not_stop_the_nan_of_memory_that_nobody_wrote():
    """vllm#57136: the rows of padding of the encoder are not written, and NaN * 0 is NaN."""

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE)

        def forward(self, out, real):
            keep = (torch.arange(BATCH) < real).float()[:, None]
            return self.layer(out * keep).sum(0)

    model = Encoder()
    static = torch.zeros(BATCH, SIZE)
    with torch.no_grad():
        for call in range(CALLS):
            static[:5] = torch.randn(5, SIZE)
            if call == 3:  # what another program left there
                static[5:].view(torch.int32).fill_(0x7FC00000)
            model(static, 5)


def run_a_scale_of_the_whole_batch_counts_the_padding():
    """flashinfer#3057: finite, and wrong; only the padding changes."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE)

        def forward(self, x):
            y = self.layer(x)
            scale = y.abs().amax() / 448
            return (y / scale).round() * scale

    import cgdebug  # not at the top: it looks at variables that serve() sets

    model, real = Scaled(), torch.randn(5, SIZE)
    with torch.no_grad():
        for call in range(CALLS):
            x = torch.cat([real, 10.0**call * torch.randn(3, SIZE)])
            cgdebug.valid_rows(5, x)
            model(x)


def run_positions_keep_old_values_past_the_real_rows():
    """sglang#24401: requests that have ended leave their last positions behind, and drafts count on
    from them, past the end of the table."""

    class Rope(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE)
            self.register_buffer("table", torch.randn(64, SIZE))

        def forward(self, x, positions, drafts):
            return self.layer(x) * self.table[positions + drafts]

    model, positions = Rope(), torch.zeros(BATCH, dtype=torch.long)
    for call in range(CALLS):
        rows, drafts = (BATCH, 0) if call < 4 else (5, 4)  # the last ones have ended
        positions[:rows] = torch.arange(rows) + 53 + call - 40 * (call >= 4)
        x = torch.randn(BATCH, SIZE)
        with torch.no_grad():
            try:
                model(x, positions, torch.full((BATCH,), drafts))
            except IndexError:
                return


def run_the_next_batch_is_copied_while_the_graph_runs():
    """sglang#31455: the static input changes between its first and its last reader."""
    static = torch.zeros(BATCH, dtype=torch.long)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Embedding(64, SIZE), nn.Embedding(64, SIZE)

        def forward(self, tokens):
            x = self.first(tokens)
            tokens.numpy()[:] = (tokens.numpy() * 7 + 1) % 64  # the copy of another stream
            return x * self.second(tokens)

    model = Model()
    with torch.no_grad():
        for _ in range(CALLS):
            static.copy_(torch.randint(0, 64, (BATCH,)))
            model(static)


def run_another_bucket_takes_the_block_of_an_input():
    """sglang#37606: an input of the second piece was kept by a weak reference; its block holds another
    tensor by then."""
    block = torch.zeros(2 * BATCH * SIZE)

    class Pieces(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 4)

        def forward(self, x):
            kept = block[: BATCH * SIZE].view(BATCH, SIZE)
            kept.copy_(self.first(x))
            block[16 : 16 + SIZE].normal_()  # another bucket's
            return self.second(kept)

    model = Pieces()
    with torch.no_grad():
        for _ in range(CALLS):
            model(torch.randn(BATCH, SIZE))


def run_a_pinned_block_is_copied_again_after_it_was_recycled():
    """onnxruntime#32121: the copy of the graph reads host memory that holds something else."""
    host = torch.zeros(BATCH, SIZE)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE)
            self.static = torch.zeros(BATCH, SIZE)

        def forward(self, x):
            self.static.copy_(host)
            return self.layer(x + self.static)

    model = Model()
    host.copy_(torch.randn(BATCH, SIZE))
    with torch.no_grad():
        for _ in range(CALLS):
            model(torch.randn(BATCH, SIZE))


def run_top_k_of_nan_gives_indices_that_are_none():
    """vllm#49896: the illegal access comes later, from what top-k made of NaN."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.pick = Gate(), nn.Embedding(SIZE, SIZE)

        def forward(self, x):
            logits = self.gate(x)
            chosen = torch.where(logits.amax(-1).isnan(), 10**6, logits.argmax(-1))
            return self.pick(chosen)

    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE)

        def forward(self, x):
            y = self.layer(x)
            return y - y.exp().sum(-1, keepdim=True).log()

    model = Model()
    with torch.no_grad():
        for call in range(CALLS):
            x = torch.randn(BATCH, SIZE)
            try:
                model(x * 1e4 if call == 3 else x)
            except IndexError:
                break


def run_the_length_of_the_query_is_baked():
    """vllm#53030: attention in a piecewise graph; drafts are rejected, and nobody is told."""

    class Query(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE)

        def forward(self, x, length):
            keep = torch.arange(len(x))[:, None] < length
            return torch.where(keep, self.layer(x), 0.0)

    model, length = Query(), torch.tensor(5)
    with torch.no_grad():
        for _ in range(CALLS):
            model(torch.randn(BATCH, SIZE), length)


class PlannedAttention(nn.Module):
    """Decoding over a cache; the plan has the length of each request."""

    def __init__(self):
        super().__init__()
        self.q, self.out = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.register_buffer("cache", torch.randn(BATCH, 12, SIZE))

    def forward(self, x, plan):
        scores = (self.q(x)[:, None] * self.cache).sum(-1)
        scores = scores.masked_fill(torch.arange(12) >= plan[:, None], float("-inf"))
        return self.out((scores.softmax(-1)[..., None] * self.cache).sum(1))


def decode_with_plans(kernel_of):
    """At the capture all lengths are the longest that there are. kernel_of: the one that lengths pick,
    each of which has a plan of its own."""
    plans = {"short": torch.full((BATCH,), 1), "long": torch.full((BATCH,), 12)}
    captured = kernel_of(torch.tensor(12))
    model = PlannedAttention()
    with torch.no_grad():
        for _ in range(CALLS):
            lengths = torch.randint(1, 8, (BATCH,))
            plans[kernel_of(lengths.max())].copy_(lengths)
            model(torch.randn(BATCH, SIZE), plans[captured])


def run_the_plan_is_filled_for_another_kernel_than_the_captured_one():
    """flashinfer#1968: the longest context picks the kernel at the capture, that of the batch the
    kernel whose plan is filled."""
    decode_with_plans(lambda length: "long" if length > 8 else "short")


def run_one_kernel_for_all_lengths():
    decode_with_plans(lambda length: "long")


def draft_with(threshold):
    """Two tokens of a request are decoded at once, with a draft. threshold: more tokens of a request
    are planned as a prefill, whose bounds are new tensors in each call."""
    bounds = torch.arange(BATCH // 2 + 1) * 2
    static_lengths = torch.ones(BATCH // 2, dtype=torch.long)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.out = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
            self.register_buffer("cache", torch.randn(BATCH // 2, 12, SIZE))

        def forward(self, x, lengths):
            request = torch.bucketize(torch.arange(BATCH), bounds[1:], right=True)
            seen = lengths[request] + torch.arange(BATCH) % 2
            scores = (self.q(x)[:, None] * self.cache[request]).sum(-1)
            scores = scores.masked_fill(torch.arange(12) >= seen[:, None], float("-inf"))
            return self.out((scores.softmax(-1)[..., None] * self.cache[request]).sum(1))

    model, captured = Attention(), None
    with torch.no_grad():
        for call in range(CALLS):
            lengths = torch.randint(1, 4, (BATCH // 2,)) + call
            plan = static_lengths.copy_(lengths) if threshold >= 2 else lengths
            if captured is None:
                captured = plan
            model(torch.randn(BATCH, SIZE), captured)


def run_a_draft_is_planned_as_a_prefill():
    """vllm#45425: with a context over several ranks the threshold is 1, so a decoding of two tokens is
    planned as a prefill, and what the graph reads is no static input."""
    draft_with(threshold=1)


def run_a_draft_is_planned_as_a_decoding():
    draft_with(threshold=2)


if __name__ == "__main__":
    serve(globals())
