"""Programs with a padded batch, by name, and what `cgdebug-cli check --padding` must answer
(serve_programs.py)."""

import numpy
import torch
from serve_programs import serve
from torch import nn

CALLS, ROWS, REAL, SIZE = 3, 6, 4, 8
EXPECTED = {}  # name: exit code, words


def expect(code, *words):
    def add(program):
        EXPECTED[program.__name__.removeprefix("run_")] = (code, words)
        return program

    return add


class Model(nn.Module):
    def __init__(self, mix):
        super().__init__()
        self.layer, self.mix = nn.Linear(SIZE, SIZE), mix

    def forward(self, x):
        return self.mix(self.layer(x))


def infer(mix, padding=numpy.nan, rows=REAL, calls=CALLS):
    """From the second call on there is `padding` behind the real rows."""
    import cgdebug  # not at the top: it looks at variables that serve() sets

    model, random = Model(mix), numpy.random.default_rng(0)
    with torch.no_grad():
        for call in range(calls):
            values = random.standard_normal((ROWS, SIZE), dtype=numpy.float32)
            if call:
                values[REAL:] = padding
            x = torch.from_numpy(values)  # which no op of torch has made
            if rows is not None and (rows != "once" or not call):
                cgdebug.valid_rows(REAL if rows == "once" else rows, x)
            model(x)


LEAKS = "lets NaN or Inf of padding into real rows in call 2"


@expect(1, "mean_0 (aten.mean.dim)", LEAKS, "the first real rows: fwd/Model/sub_0 has 32 NaN")
def run_mean():
    infer(lambda x: x - x.mean(0))


@expect(
    1, "amax_0", LEAKS, "addmm_0, which has 16 NaN or Inf in 2 padding rows, and none elsewhere"
)
def run_scale():
    infer(lambda x: (x / x.abs().amax()).round())


@expect(1, "sum_0", LEAKS)
def run_zero_times():
    weights = (torch.arange(ROWS) < REAL).float()
    infer(lambda x: x + (x * weights[:, None]).sum(0))


@expect(1, "_softmax_0", LEAKS)
def run_attention_without_a_mask():
    infer(lambda x: torch.softmax(x @ x.T, -1) @ x)


@expect(1, "batch_norm", LEAKS)
def run_batch_norm():
    infer(nn.BatchNorm1d(SIZE))


@expect(0, "no NaN or Inf of padding reached a real row", "padding has NaN or Inf first in in/")
def run_kept_apart():
    infer(lambda x: nn.functional.layer_norm(x.relu(), (SIZE,)) + x)


@expect(0, "no NaN or Inf of padding reached a real row")
def run_clean():
    infer(lambda x: x - x.mean(0), padding=0.0)


@expect(0, "no NaN or Inf of padding reached a real row")
def run_without_padding():
    infer(lambda x: x - x.mean(0), padding=0.0, rows=ROWS)


@expect(0, "no NaN or Inf of padding reached a real row")
def run_made_by_the_real_rows():
    infer(lambda x: x.relu().log())


@expect(3, "of these has NaN or Inf", "fwd/Model/flip_0 ")
def run_moved():
    infer(lambda x: x.flip(0).exp())


@expect(3, "nothing called cgdebug.valid_rows()")
def run_not_told():
    infer(lambda x: x - x.mean(0), rows=None)


@expect(3, "the padding of 2 of 3 calls")
def run_told_once():
    infer(lambda x: x.relu(), rows="once")


if __name__ == "__main__":
    serve(globals())
