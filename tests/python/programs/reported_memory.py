"""Faults of memory, order and pieces of graphs that people reported, each in small, and what
`cgdebug.why` must say of it first (serve_programs.py). Of those without an entry in EXPECTED it says
nothing yet. What another stream, graph or rank does is written past torch, which logs its own ops
alone."""

import torch
import torch._dynamo  # an optimizer imports it when it begins
import torch.distributed.tensor
import torch.onnx
from serve_programs import serve
from torch import nn

CALLS, BATCH, SIZE = 6, 8, 16
# name: kinds that name the cause, level, words of the first sentence
EXPECTED = {
    "empty_requests_share_the_scale_of_a_tile": (
        "masked_row", "shown", ("_softmax_0 made 12 NaN in call 3", "masked out"),
    ),
    "a_dummy_batch_poisons_the_null_block": (
        "nonfinite", "shown", ("in/blocks holds 16 NaN in call 3", "nothing in the log wrote it"),
    ),
    "a_tensor_leaves_a_break_without_being_returned": (
        "frozen_input", "consistent", ("in/Pieces/mul_0.other is the same in 5 calls",),
    ),
    "the_metadata_are_for_fewer_rows_than_the_graph": (
        "bad_index", "shown", ("fwd/Paged/index_0 is given indices", "999999", "in call 3"),
    ),
    "the_output_is_overwritten_before_it_was_copied": (
        "lost_write", "consistent", ("what fwd/encoder/copy__0 wrote is lost",),
    ),
    "an_output_is_overwritten_by_the_next_run": (
        "lost_write", "consistent", ("what fwd/encoder/copy__0 wrote is lost",),
    ),
    "a_temporary_of_the_graph_lies_in_the_memory_of_another": (
        "foreign_write", "consistent", ("in/head.weight changes though no op of the log writes it",),
    ),
    "flags_of_readiness_are_not_reset": (
        "late_read", "consistent", ("is read before fwd/Fused/copy__0 writes it",),
    ),
    "the_graph_is_empty": (
        "frozen_input", "consistent", ("it is what fwd/layer/addmm_0 made in call 1",),
    ),
    "an_edge_of_the_graph_is_dropped": (
        "late_read", "consistent", ("is read before fwd/Model/copy__0 writes it",),
    ),
    "the_end_of_a_copy_comes_too_late": (
        "overwritten", "consistent",
        ("fwd/Model/add_0 reads what no op wrote", "written over in/layer/addmm_0.mat1", "in 2 of 6 calls"),
    ),
    "the_strides_of_a_kernel_are_made_again_by_a_reload": (
        "bad_index", "shown", ("fwd/Experts/index_1 is given indices", "in call 4"),
    ),
    "the_output_of_the_graph_is_freed": (
        "overwritten", "consistent",
        ("fwd/head/addmm_0 reads what no op wrote", "has written over fwd/Model/copy__0"),
    ),
}  # fmt: skip
RIGHT = ("the_strides_of_a_kernel_outlive_a_reload",)
# What an op reads is held against what was written there (CGDEBUG_OP_LOG_READS=1).
LOOKED_AT_AGAIN = {"the_end_of_a_copy_comes_too_late", "the_output_of_the_graph_is_freed"}


def unseen(tensor):
    """Its memory, written by what no log of this program shows."""
    return tensor.numpy()


def infer(model, inputs, calls=CALLS):
    with torch.no_grad():
        for call in range(calls):
            try:
                model(*inputs(call))
            except IndexError:
                return


def run_empty_requests_share_the_scale_of_a_tile():
    """vllm#38436: attention over no key is NaN, and a tile of the quantization has one scale."""

    class Tiles(nn.Module):
        def forward(self, x):
            tiles = x.view(2, BATCH // 2, SIZE)
            scale = tiles.abs().amax((1, 2), keepdim=True) / 6
            return ((tiles / scale).round() * scale).view(BATCH, SIZE)

    class Decode(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.quant, self.out = nn.Linear(SIZE, SIZE), Tiles(), nn.Linear(SIZE, SIZE)
            self.register_buffer("keys", torch.randn(BATCH, 6, SIZE))

        def forward(self, x, lengths):
            scores = (self.q(x)[:, None] * self.keys).sum(-1)
            scores = scores.masked_fill(torch.arange(6) >= lengths[:, None], float("-inf"))
            mixed = (scores.softmax(-1)[..., None] * self.keys).sum(1)
            return self.out(self.quant(mixed))

    def batch(call):
        lengths = torch.randint(1, 7, (BATCH,))
        if call >= 2:
            lengths[6:] = 0
        return torch.randn(BATCH, SIZE), lengths

    infer(Decode(), batch)


def run_a_dummy_batch_poisons_the_null_block():
    """vllm#57156: what is not valid is gathered from block 0 with weight 0, and 0 * NaN is NaN."""

    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(SIZE, SIZE)
            self.register_buffer("blocks", torch.randn(10, SIZE))

        def forward(self, x, pages):
            keys = self.blocks[pages.clamp(min=0)]
            scores = (self.q(x)[:, None] * keys).sum(-1)
            scores = scores.masked_fill(pages < 0, float("-inf"))
            return (scores.softmax(-1)[..., None] * keys).sum(1)

    model = Sparse()

    def batch(call):
        if call == 2:  # the capture of another graph
            unseen(model.blocks)[0] = float("nan")
        pages = torch.randint(1, 10, (BATCH, 4))
        pages[call % BATCH :, 3] = -1
        return torch.randn(BATCH, SIZE), pages

    infer(model, batch)


def run_the_metadata_are_for_fewer_rows_than_the_graph():
    """xLLM#1939: a graph of 8 rows runs with the offsets of 5."""
    offsets = torch.zeros(BATCH + 1, dtype=torch.long)
    unseen(offsets)[6:] = 10**6  # nobody has written these

    class Paged(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE)
            self.register_buffer("values", torch.randn(64, SIZE))

        def forward(self, x, offsets):
            return self.layer(x) + self.values[offsets[1:] - 1]

    def batch(call):
        rows = 5 if call == 3 else BATCH
        offsets[: rows + 1] = torch.arange(rows + 1) * (call % 3 + 1)
        if call == 2:
            unseen(offsets)[6:] = 10**6
        return torch.randn(BATCH, SIZE), offsets

    infer(Paged(), batch)


def run_the_output_is_overwritten_before_it_was_copied():
    """sglang-omni#1369: the copy of the output is under way when the next replay begins."""
    out = torch.zeros(BATCH, SIZE)

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE)

        def forward(self, x):
            return out.copy_(self.layer(x))

    class Pipeline(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = Encoder(), nn.Linear(SIZE, 4)

        def forward(self, x, next_x):
            y = self.encoder(x)
            self.encoder(next_x)
            return self.head(y)

    infer(Pipeline(), lambda call: (torch.randn(BATCH, SIZE), torch.randn(BATCH, SIZE)))


def run_the_end_of_a_copy_comes_too_late():
    """ninfer-3090#38: the graph begins before the copy from the host has ended."""
    static = torch.zeros(BATCH, SIZE)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE)

        def forward(self, x, late):
            y = self.layer(x)
            unseen(x)[BATCH - len(late) :] = late.numpy()  # the copy goes on
            return y + x

    def batch(call):
        rows = BATCH if call % 3 else 6
        fresh = torch.randn(BATCH, SIZE)
        unseen(static)[:rows] = fresh[:rows].numpy()
        return static, fresh[rows:]

    infer(Model(), batch)


def run_the_output_of_the_graph_is_freed():
    """TensorRT-LLM#17010: there is a weak reference alone, and the block is somebody else's."""
    out = torch.zeros(BATCH, SIZE)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 4)

        def forward(self, x, call):
            y = out.copy_(self.layer(x))
            unseen(out)[call % BATCH :] = 0.5  # whoever has the block now
            return self.head(y)

    infer(Model(), lambda call: (torch.randn(BATCH, SIZE), call))


def run_a_temporary_of_the_graph_lies_in_the_memory_of_another():
    """sglang#37168: a replay writes its temporary where another tensor is by now."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 4)

        def forward(self, x):
            y = self.layer(x).relu()
            unseen(self.head.weight.data)[0] = y[0].numpy()
            return self.head(y)

    infer(Model(), lambda call: (torch.randn(BATCH, SIZE),))


def run_a_tensor_leaves_a_break_without_being_returned():
    """sglang#27746: the piece behind the break reads what the break had made at the capture."""

    class Pieces(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 4)
            self.captured = None

        def forward(self, x):
            y = self.first(x)
            routes = y.softmax(-1)  # made anew by each run of the break
            if self.captured is None:
                self.captured = routes
            return self.second(y * self.captured)

    infer(Pieces(), lambda call: (torch.randn(BATCH, SIZE),))


def run_the_address_of_a_peer_is_stale():
    """aiter#3838: the buffer of the other rank is another one since it was registered again."""
    of_peer, newer = torch.randn(BATCH, SIZE), torch.randn(BATCH, SIZE)

    class AllReduce(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE)

        def forward(self, x):
            return self.layer(x) + of_peer

    def batch(call):
        unseen(of_peer if call < 2 else newer)[:] = torch.randn(BATCH, SIZE).numpy()
        return (torch.randn(BATCH, SIZE),)

    infer(AllReduce(), batch, 10)


def run_a_slot_of_a_table_of_pointers_is_baked():
    """aiter#4974: the graph reads the buffer of slot 0, whichever of the two was filled."""
    buffers = [torch.randn(BATCH, SIZE) for _ in range(2)]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE)

        def forward(self, x):
            return self.layer(x) * buffers[0]

    def batch(call):
        unseen(buffers[call % 2])[:] = torch.randn(BATCH, SIZE).numpy()
        return (torch.randn(BATCH, SIZE),)

    infer(Model(), batch, 8)


def run_the_indices_of_the_draft_are_allocated_too_small():
    """sglang#26532: a scatter of pages runs over its end, into what lies behind it."""
    pool = torch.zeros(BATCH * 4 + 64, dtype=torch.long)
    pages, tokens = pool[: BATCH * 4].view(BATCH, 4), pool[BATCH * 4 :]

    class Draft(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.register = nn.Embedding(64, SIZE), None
            self.kept = torch.randn(64, SIZE)

        def forward(self, ids):
            pages.copy_(ids[:, None] % 4 + torch.arange(4))
            unseen(pool)[BATCH * 4 : BATCH * 4 + 8] = 10**7  # two rows more than there are
            return self.embed(tokens[:BATCH]) + self.kept[pages].sum(1)

    infer(Draft(), lambda call: (torch.randint(0, 64, (BATCH,)),))


def run_an_output_is_overwritten_by_the_next_run():
    """pytorch#148439: two results of one graph are one tensor."""
    out = torch.zeros(BATCH, SIZE)

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE)

        def forward(self, x):
            return out.copy_(self.layer(x))

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = Encoder(), nn.Linear(SIZE, 4)

        def forward(self, x, other):
            return self.head(self.encoder(x) - self.encoder(other))

    infer(Pair(), lambda call: (torch.randn(BATCH, SIZE), torch.randn(BATCH, SIZE)))


def run_flags_of_readiness_are_not_reset():
    """DeepGEMM#451: from the second replay on the flags say at once that the tile is there."""
    tile, flag = torch.zeros(BATCH, SIZE), torch.zeros(1)

    class Fused(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 4)

        def forward(self, x):
            if flag.item() == 0:
                tile.copy_(self.layer(x))
                flag.fill_(1)
                return self.head(tile)
            y = self.head(tile)  # of the replay before
            tile.copy_(self.layer(x))
            return y

    infer(Fused(), lambda call: (torch.randn(BATCH, SIZE),))


def run_the_graph_is_empty():
    """helion#2817: nothing was captured, and what is read was written by the warm-up."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 4)
            self.out = None

        def forward(self, x):
            if self.out is None:
                self.out = self.layer(x)
            return self.head(self.out)

    infer(Model(), lambda call: (torch.randn(BATCH, SIZE),))


def run_an_edge_of_the_graph_is_dropped():
    """ROCm/rocm-systems#11499: what reads runs before what writes."""
    between = torch.zeros(BATCH, SIZE)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 4)

        def forward(self, x):
            y = self.head(between)
            between.copy_(self.layer(x))
            return y

    infer(Model(), lambda call: (torch.randn(BATCH, SIZE),))


def reload_weights_of(makes_strides_again):
    """The kernel of the experts has the strides of their weights; a reload makes the kernel again."""
    captured = torch.arange(4) * SIZE

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.weights = nn.Linear(SIZE, 4), nn.Parameter(torch.randn(4 * SIZE, SIZE))

        def forward(self, x):
            starts = captured[self.gate(x).argmax(-1)]
            return torch.einsum("bi,bij->bj", x, self.weights[starts[:, None] + torch.arange(SIZE)])

    model = Experts()

    def batch(call):
        if call == 3:
            model.weights.copy_(torch.randn(4 * SIZE, SIZE))
            if makes_strides_again:  # the block is somebody else's by now
                unseen(captured)[:] = torch.randn(4, dtype=torch.double).view(torch.long).numpy()
        return (torch.randn(BATCH, SIZE),)

    infer(model, batch)


def run_the_strides_of_a_kernel_are_made_again_by_a_reload():
    """vllm#48941, #41670: the graph has the addresses of those of the kernel before."""
    reload_weights_of(makes_strides_again=True)


def run_the_strides_of_a_kernel_outlive_a_reload():
    reload_weights_of(makes_strides_again=False)


if __name__ == "__main__":
    serve(globals())
