"""In inference mode torch gives a mode whole ops, such as linear. They make what they make without it."""

# In a process of its own, which keeps what no log can show, and the modes of later threads.
JOB = """
import threading
from torch import nn
from cgdebug._op_log import threads

torch.manual_seed(0)
X = torch.randn(5, 2, 8).transpose(0, 1)
LINEAR, GRU = nn.Linear(8, 8), nn.GRU(8, 8, batch_first=True)
ATTENTION = nn.MultiheadAttention(8, 2, batch_first=True)
CONJUGATE = torch.randn(3, 3, dtype=torch.complex64)
OPS = {
    "linear": lambda: LINEAR(X),
    "gru": lambda: GRU(X)[0],
    "attention": lambda: ATTENTION(X, X, X)[0],
    "einsum": lambda: torch.einsum("abc,dc->abd", X, LINEAR.weight),
    "tensordot": lambda: torch.tensordot(X, LINEAR.weight, ([2], [1])),
    "kron": lambda: torch.kron(CONJUGATE.conj(), CONJUGATE),
    "vmap": lambda: torch.vmap(LINEAR)(X),
}

def call(op, autocast):
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        return op()

def on_thread(op, autocast):
    made = []
    thread = threading.Thread(target=lambda: made.append(call(op, autocast)))
    thread.start()
    thread.join()
    return made[0]

for autocast in (False, True):
    expected = {name: call(op, autocast) for name, op in OPS.items()}
    threads.expect()
    for name, op in OPS.items():
        with cgdebug.debug_mode(eager=True):
            results = [call(op, autocast), on_thread(op, autocast)]
        for result in results:
            assert result.dtype == expected[name].dtype, (name, autocast)
            assert torch.equal(result, expected[name]), (name, autocast)
"""


def test_the_result_is_that_without_a_log(job):
    job(JOB).finish()
