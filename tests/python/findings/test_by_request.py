"""Rows of one token of one request are compared, whatever batch computed them."""

import json
import signal
import subprocess
import sys

import pytest
import torch

import cgdebug
from conftest import ROOT, find_program

# Decodes four requests: `one` after the other, or `all` in a batch of six, two rows of it padding.
# A decoder with a cache of its own for each row. fault: in a layer, from some token on. kept: what
# watch() keeps, as "values" or "sketches".
PROGRAM = """
import sys
import torch, cgdebug
mode, fault, dtype, kept = sys.argv[1], sys.argv[2], getattr(torch, sys.argv[3]), sys.argv[4]
torch.manual_seed(0)
DIM, LENGTH, REQUESTS = 64, 6, 4

class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(DIM, 3 * DIM)
        self.out = torch.nn.Linear(DIM, DIM)
    def forward(self, x, cache, positions):
        q, k, v = self.qkv(x).split(DIM, -1)
        rows = torch.arange(len(x))
        cache[0][rows, positions], cache[1][rows, positions] = k, v
        if fault == "stale" and self.number == 2 and mode == "all" and int(positions.max()) == 3:
            cache[0][1, 2] = cache[0][1, 0]  # a key of another token
        scores = torch.einsum("rd,rtd->rt", q, cache[0]) / DIM**0.5
        mask = torch.arange(LENGTH) > positions[:, None]
        return self.out(torch.einsum("rt,rtd->rd", scores.masked_fill(mask, -1e9).softmax(-1), cache[1]))

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.LayerNorm(DIM), torch.nn.LayerNorm(DIM)
        self.attn = Attention()
        self.mlp = torch.nn.Sequential(torch.nn.Linear(DIM, 4 * DIM), torch.nn.GELU(), torch.nn.Linear(4 * DIM, DIM))
    def forward(self, x, cache, positions):
        x = x + self.attn(self.first(x), cache, positions)
        return x + self.mlp(self.second(x))

class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(512, DIM)
        self.layers = torch.nn.ModuleList([Layer() for _ in range(4)])
        self.head = torch.nn.Linear(DIM, 512)
        for n, layer in enumerate(self.layers): layer.attn.number = n
    def forward(self, ids, positions, caches):
        x = self.embed(ids)
        for layer, cache in zip(self.layers, caches): x = layer(x, cache, positions)
        return self.head(x)

model = Decoder().to(dtype)
tokens = torch.randint(0, 512, (REQUESTS, LENGTH))
if kept != "none": watch = cgdebug.watch(model, **{kept: 64 if kept == "values" else 2})

def decode(requests, rows):
    caches = [torch.zeros(2, rows, LENGTH, DIM, dtype=dtype) for _ in model.layers]
    for step in range(LENGTH):
        ids, positions = torch.zeros(rows, dtype=torch.int64), torch.zeros(rows, dtype=torch.int64)
        names = [None] * rows
        for row, request in enumerate(requests):
            ids[row], positions[row], names[row] = tokens[request, step], step, f"chat-{request}"
        if fault == "swapped" and mode == "all" and step == 4: ids[[0, 1]] = ids[[1, 0]]
        if fault != "untold" or step != 2: cgdebug.rows(names, positions)
        model(ids, positions, caches)

with torch.no_grad():
    if mode == "one":
        for request in range(REQUESTS): decode([request], 1)
    else:
        decode(list(range(REQUESTS)), 6)
"""


@pytest.fixture
def recorded(cli, tmp_path):
    """recorded(mode, fault, dtype, kept): the path of what that run of PROGRAM saw."""
    script = tmp_path / "decode.py"
    script.write_text(PROGRAM)

    def run(mode, fault="none", dtype="float32", kept="values", *options):
        path = tmp_path / f"{mode}-{fault}-{dtype}-{kept}.cgrec"
        job = [sys.executable, script, mode, fault, dtype, kept]
        done = cli("run", *options, "-o", path, "--", *job)
        assert done.returncode == 0, done.stdout + done.stderr
        return path

    return run


def compare(a, b, *options):
    command = [find_program("cgdebug-cli"), *options, "diff", a, b, "--by", "request"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


KEPT = pytest.mark.parametrize("kept", ["values", "sketches"])


@KEPT
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_correct_batch_has_no_growth(recorded, dtype, kept):
    code, text = compare(recorded("one", "none", dtype, kept), recorded("all", "none", dtype, kept))
    assert code == 0, text
    assert "24 tokens of 4 requests" in text
    assert ("were compared by sketches" in text) == (kept == "sketches")


@KEPT
def test_a_fault_in_a_row_is_named_by_its_request_and_module(recorded, kept):
    one = recorded("one", kept=kept)
    code, text = compare(one, recorded("all", "stale", kept=kept))
    assert code == 1, text
    assert "first growth of the error: fwd/layers.2.attn.out, request" in text
    assert "position 3" in text
    assert "cgdebug-cli show" in text
    code, text = compare(one, recorded("all", "swapped", kept=kept), "--json")
    answer = json.loads(text)
    assert (code, answer["verdict"]) == (1, "growth")
    assert (answer["first"]["probe"], answer["first"]["position"]) == ("fwd/embed", 4)


@KEPT
def test_a_call_whose_rows_nobody_told_is_not_passed_over(recorded, kept):
    code, text = compare(recorded("one", kept=kept), recorded("all", "untold", kept=kept))
    assert code == 3, text
    assert "B: nobody told the rows of 1 call" in text
    assert "only A has 4 rows" in text


def test_equal_batches_are_the_same_bit_for_bit_without_their_values(recorded):
    one = recorded("all", kept="sketches")
    code, text = compare(one, one)
    assert (code, text.count("bit for bit")) == (0, 1), text
    assert "same: 24 tokens" in text


def test_values_and_sketches_are_not_compared(recorded):
    code, text = compare(recorded("one"), recorded("all", kept="sketches"))
    assert code == 3, text
    assert "or sketches of rows with sketches=N, in both" in text


def test_run_keeps_sketches_of_a_program_that_watches_nothing(recorded):
    options = "--watch", "*", "--sketches", "2"
    one, batch = (recorded(mode, "none", "float32", "none", *options) for mode in ("one", "all"))
    code, text = compare(one, batch)
    assert code == 0 and "24 tokens of 4 requests" in text, text
    code, text = compare(one, recorded("all", "stale", "float32", "none", *options))
    assert code == 1 and "fwd/layers.2.attn.out" in text, text


def test_sketches_of_what_is_no_module_are_refused(cli):
    done = cli("run", "--watch", "op:*", "--sketches", "2", "--", sys.executable, "-c", "1")
    assert done.returncode == 2 and "--watch '*' --sketches" in done.stderr
    with pytest.raises(ValueError, match="sketches are of level 'module'"):
        cgdebug.watch(torch.nn.Linear(2, 2), level="op", sketches=2)


def test_options_of_probes_are_refused(recorded):
    one = recorded("one")
    command = [find_program("cgdebug-cli"), "diff", one, one, "--by", "request", "--stat"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--by request compares rows" in done.stderr


@pytest.mark.parametrize(
    ("requests", "positions", "error"),
    [
        ([1, 2], [0], ValueError),
        ([1.5], [0], TypeError),
        (torch.ones(2), torch.zeros(2, dtype=torch.int64), TypeError),
        (torch.ones(2, dtype=torch.int64), torch.zeros(3, 2, dtype=torch.int64), ValueError),
    ],
)
def test_rows_that_do_not_fit_are_refused(requests, positions, error):
    with pytest.raises(error, match=r"^rows: "):
        cgdebug.rows(requests, positions)


def test_of_200_random_models_none_has_growth_and_four_faults_are_named(cli, tmp_path):
    script = ROOT / "tests/python/programs/random_decoders.py"

    def run(mode, *more):
        path = tmp_path / f"{mode}{len(more)}.cgrec"
        done = cli("run", "-o", path, "--", sys.executable, script, mode, "sketches", "200", *more)
        assert done.returncode == 0, done.stdout + done.stderr
        return path, done.stdout

    one, _ = run("one")
    answer = json.loads(compare(one, run("all")[0], "--json")[1])
    assert (answer["tokens"], answer["grown"], answer["missing"]) == (2400, 0, [])
    assert answer["equal_sketches"] < answer["compared"], "or there was no rounding"
    faulty, told = run("all", "FAULTY")
    faults = json.loads(next(line for line in told.splitlines() if line.startswith("{")))
    answer = json.loads(compare(one, faulty, "--json")[1])
    named = {}
    for probe in [one["probe"] for one in answer["probes"] if one["grown"]]:
        named.setdefault(probe.split(".")[1], probe)
    assert named == {
        number: f"fwd/models.{number}.layers.1.{module}" for number, (_, module) in faults.items()
    }


def test_a_module_that_was_first_called_late_keeps_its_place(cli, tmp_path):
    script = tmp_path / "experts.py"
    script.write_text("""
import sys
import torch, cgdebug
torch.manual_seed(0)
class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(2))
        self.head = torch.nn.Linear(16, 16)
    def forward(self, x, chosen):
        return self.head(self.experts[chosen](x))
model = Experts()
watch = cgdebug.watch(model, sketches=4)
with torch.no_grad():
    model.experts[1].weight *= float(sys.argv[1])
    for step in range(2):
        cgdebug.rows(["chat"], [step])
        model(torch.ones(1, 16), step)
""")
    paths = [tmp_path / "a.cgrec", tmp_path / "b.cgrec"]
    for path, factor in zip(paths, ("1", "1.5")):
        cli("run", "-o", path, "--", sys.executable, script, factor)
    code, text = compare(*paths)
    assert code == 1 and "first growth of the error: fwd/experts.1, request" in text, text


# Decodes as many tokens as lines come: two jobs of it are two servers.
SERVER = """
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
    tokens = torch.randn(128, 16)
    watch = cgdebug.watch(model, KEPT)
    for position in range(128):
        word = sys.stdin.readline().strip()
        if not word:
            break
        with torch.no_grad():
            if word == "broken":
                model[1].weight[3] *= 2
            cgdebug.rows(["chat"], [position])
            model(tokens[position : position + 1])
        print(position)
    watch.explain()
"""


class Servers:
    def __init__(self, job, kept):
        program = SERVER.replace("KEPT", kept)
        self.jobs = [job(program), job(program)]
        self.names = [str(one.pid) for one in self.jobs]

    def decode(self, *words):
        for one, word in zip(self.jobs, words):
            one.process.stdin.write(word + "\n")
            one.process.stdin.flush()
            one.line()

    def follow(self, *options):
        return subprocess.Popen(
            [find_program("cgdebug-cli"), *options, "diff", *self.names, "--by", "request", "-f"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self):
        for one in self.jobs:
            one.process.stdin.write("\n")
            one.process.stdin.flush()
            one.process.wait(60)


@pytest.fixture(params=["values=32", "sketches=32"])
def servers(daemon, job, request):
    return Servers(job, request.param)


def test_of_two_jobs_what_both_have_now_is_compared(servers):
    servers.decode("next", "next")
    code, text = compare(*servers.names)
    assert (code, "same: 1 token of 1 request" in text) == (0, True), text  # by hash, of sketches
    servers.decode("next", "broken")
    code, text = compare(*servers.names)
    assert code == 1 and "first growth of the error: fwd/1, request" in text, text


def test_following_two_jobs_ends_at_the_first_growth(servers):
    servers.decode("next", "next")
    following = servers.follow()
    assert "no growth so far: 1 token of 1 request" in following.stderr.readline()
    servers.decode("next", "broken")
    text = following.communicate(timeout=60)[0]
    assert following.returncode == 1, text
    assert "first growth of the error: fwd/1, request" in text and "position 1" in text


def test_following_ends_with_the_jobs(servers):
    servers.decode("next", "next")
    following = servers.follow("--json")
    following.stderr.readline()
    servers.decode("next", "next")
    servers.end()
    answer = json.loads(following.communicate(timeout=60)[0])
    assert (following.returncode, answer["verdict"], answer["tokens"]) == (0, "same", 2)


@pytest.mark.parametrize("kept", ["values=4", "sketches=4"])
class TestFollowingMoreCallsThanAreKept:
    CALLS = 80  # the table of rows keeps 64

    @pytest.fixture
    def servers(self, daemon, job, kept):
        return Servers(job, kept)

    def follow(self, servers, last="next"):
        """Each call is compared while it is there. The exit code, and the answer."""
        servers.decode("next", "next")
        following = servers.follow("--json")
        for call in range(1, self.CALLS + 1):
            said = following.stderr.readline()
            assert f"no growth so far: {call} token" in said
            if call < self.CALLS:
                servers.decode("next", "next")
        servers.decode("next", last)
        servers.end()
        answer = json.loads(following.communicate(timeout=60)[0])
        return following.returncode, answer

    def test_what_was_compared_is_not_missing(self, servers):
        code, answer = self.follow(servers)
        assert (code, answer["verdict"], answer["missing"]) == (0, "same", []), answer
        assert answer["tokens"] == self.CALLS + 1

    def test_a_fault_is_found(self, servers):
        code, answer = self.follow(servers, last="broken")
        assert (code, answer["first"]["probe"]) == (1, "fwd/1"), answer
        assert answer["first"]["position"] == self.CALLS

    def test_what_was_given_up_unread_is_missing(self, servers):
        servers.decode("next", "next")
        following = servers.follow("--json")
        following.stderr.readline()
        following.send_signal(signal.SIGSTOP)
        for _ in range(16):
            servers.decode("next", "next")
        servers.end()
        following.send_signal(signal.SIGCONT)
        answer = json.loads(following.communicate(timeout=60)[0])
        assert (following.returncode, answer["verdict"]) == (3, "inconclusive")
        assert any("no longer kept" in one for one in answer["missing"]), answer


def test_what_one_job_has_not_computed_when_following_ends_is_said(servers):
    servers.decode("next", "next")
    servers.jobs[0].process.stdin.write("next\n")
    servers.jobs[0].process.stdin.flush()
    servers.jobs[0].line()
    following = servers.follow()
    following.stderr.readline()
    following.send_signal(signal.SIGINT)
    text = following.communicate(timeout=60)[0]
    assert following.returncode == 3, text
    assert "only A has 1 row" in text


@KEPT
@pytest.mark.parametrize("factor, expected", [("1", 0), ("1.5", 1)])
def test_a_module_that_computes_the_last_tokens_alone_is_compared_by_them(
    cli, tmp_path, kept, factor, expected
):
    script = tmp_path / "last.py"
    script.write_text("""
import sys
import torch, cgdebug
mode, kept, factor = sys.argv[1], sys.argv[2], float(sys.argv[3])
torch.manual_seed(0)
class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(64, 32), torch.nn.Linear(32, 64)
    def forward(self, ids, kept): return self.head(self.embed(ids)[:, -kept:])
model = Decoder()
watch = cgdebug.watch(model, **{kept: 8})
requests, ids, positions = ["a", "b"], torch.arange(10).view(2, 5), torch.arange(5).expand(2, 5)
with torch.no_grad():
    model.head.weight *= factor
    for some in [[0, 1]] if mode == "all" else [[1], [0]]:
        cgdebug.rows([requests[n] for n in some], positions[some])
        cgdebug.rows([requests[n] for n in some], positions[some, -2:], of=["head", "Decoder"])
        model(ids[some], 2)
        cgdebug.rows([requests[n] for n in some], positions[some] + 5)
        model(ids[some], 5)  # of all, as nothing else was told
""")
    paths = [tmp_path / "a.cgrec", tmp_path / "b.cgrec"]
    for path, mode, scale in zip(paths, ("one", "all"), ("1", factor)):
        done = cli("run", "-o", path, "--", sys.executable, script, mode, kept, scale)
        assert done.returncode == 0, done.stdout + done.stderr
    code, text = compare(*paths, "--json")
    answer = json.loads(text)
    assert (code, answer["missing"]) == (expected, []), text
    of_head = next(one for one in answer["probes"] if one["probe"] == "fwd/head")
    assert (answer["tokens"], of_head["compared"]) == (20, 2 * 2 + 2 * 5)
    if expected:
        assert answer["first"]["probe"] == "fwd/head" and answer["first"]["position"] == 3
        assert of_head["grown"] == 14


def test_rows_alone_are_followed(recorded):
    one = recorded("one")
    command = [find_program("cgdebug-cli"), "diff", one, one, "--follow"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "--by request --follow" in done.stderr
