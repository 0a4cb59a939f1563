"""A small /dev/shm, such as Docker's default of 64 MiB: a watched model is seen as a whole, and what
has no room is counted and costs the job nothing."""

import json
import shutil
import subprocess
import sys

import pytest

JOB = """
import json, os, sys
import torch
import cgdebug

torch.set_num_threads(1)
torch.manual_seed(0)
modules, width, rows = map(int, sys.argv[1:4])
model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(modules)])
x = torch.randn(rows, width)

watch = cgdebug.watch(model)
with torch.no_grad():
    for _ in range(3):
        model(x)
    model[modules * 3 // 4].bias[0] = float("nan")
    model(x)
try:
    cgdebug.check("nan")
    found = "nothing"
except Exception as error:
    found = f"{type(error).__name__}: {error}"
slots = [slot for probe in watch.probes.values() for slot in probe.status(timeout=5).slots]
from cgdebug._job import _native
not_seen = _native.probe_module().not_seen()  # "7 of 9 probes are not watched ..."
files = [os.stat(f"/dev/shm/{name}") for name in os.listdir("/dev/shm")]
print(json.dumps({
    "found": found, "slots": len(slots),
    "payload_bytes": max(slot.payload_bytes for slot in slots),
    "shm_bytes": sum(file.st_blocks * 512 for file in files),
    "places_not_seen": int(not_seen.split()[0]) if not_seen else 0,
}))
"""


def run(shm, code, *arguments):
    """What the job prints, in a /dev/shm of its own and with a daemon of its own."""
    mount = f'mount -t tmpfs -o mode=1777,size={shm} t /dev/shm && exec "$@"'
    private = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--propagation", "private"]
    command = [*private, "sh", "-c", mount, "sh"]
    if not shutil.which("unshare") or subprocess.run([*command, "true"]).returncode != 0:
        pytest.skip("the system lets nobody mount")
    words = [*command, sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    print(seen)
    return seen


@pytest.fixture
def own_socket(daemon_allowed, monkeypatch, tmp_path):
    monkeypatch.setenv("CGDEBUG_SOCKET", str(tmp_path / "daemon.sock"))


@pytest.mark.usefixtures("own_socket")
def test_41_modules_of_4_mib_are_seen_in_dockers_64_mib():
    seen = run("64m", JOB, 40, 1024, 1024)
    assert seen["slots"] == 41 and seen["payload_bytes"] == 128
    assert seen["found"].startswith("FoundError") and "30" in seen["found"]
    assert seen["shm_bytes"] < 8 << 20


@pytest.mark.usefixtures("own_socket")
def test_300_modules_are_seen_in_dockers_64_mib():
    seen = run("64m", JOB, 299, 64, 8)
    assert seen["slots"] == 300
    assert seen["found"].startswith("FoundError") and "224" in seen["found"]


@pytest.mark.usefixtures("own_socket")
def test_in_2_mib_the_job_runs_on_and_what_is_not_seen_is_counted():
    seen = run("2m", JOB, 1000, 16, 8)
    assert 0 < seen["slots"] < 1001
    assert seen["shm_bytes"] <= 2 << 20
    assert seen["places_not_seen"] == 1001 - seen["slots"]


NODES = """
import json, sys
import torch
import cgdebug
from cgdebug import _probe

count = int(sys.argv[1])
inputs = [torch.ones(1 << 20, device="cuda") for _ in range(count)]
record = cgdebug.TensorRecord(capacity=4, where="host")
probes = [cgdebug.CudaGraphTensorProbe(f"p{i}", [record]) for i in range(count)]


def capture(is_probed):
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        for probe, x in zip(probes, inputs):
            x.add_(1)
            if is_probed:
                try:
                    probe(x)
                except RuntimeError:
                    pass
    return _probe.graph_nodes(graph=graph.raw_cuda_graph())


alone = capture(False)
watched = capture(True)
slots = sum(len(probe.status(timeout=5).slots) for probe in probes)
print(json.dumps({"alone": alone, "watched": watched, "slots": slots}))
"""


@pytest.mark.gpu
@pytest.mark.own_lane
def test_a_refused_probe_leaves_no_node_in_the_graph():
    """Each probe that has room adds two nodes: a copy and a leaf."""
    seen = run("64m", NODES, 12)
    assert 0 < seen["slots"] < 12
    assert seen["watched"] == seen["alone"] + 2 * seen["slots"]
