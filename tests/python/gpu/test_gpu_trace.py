"""Snapshots of a graph among the events of torch's profiler."""

import json
import time

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import cgdebug
from cgdebug import TensorRecord
from conftest import capture, own_session, wait_until

pytestmark = pytest.mark.gpu


def test_a_snapshot_lies_beside_the_kernel_of_its_replay(daemon, graph_probe, tmp_path):
    p = graph_probe(TensorRecord(64), name="traced")
    x = torch.zeros(1 << 16, device="cuda")
    graph, _ = capture(lambda: p(x.add_(1)), warmup=0)
    graph.replay()
    torch.cuda.synchronize()
    key = own_session()
    with daemon.connect(session=key) as client:
        wait_until(lambda: key in {s.key for s in client.sessions()}, "the session is known")
        with (
            client.record(tmp_path / "a.cgrec", probes=p.name) as live,
            profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof,
        ):
            for _ in range(5):
                graph.replay()
                torch.cuda.synchronize()
                time.sleep(0.02)
    prof.export_chrome_trace(str(tmp_path / "t.json"))
    cgdebug.open(live.directory).export(
        "perfetto", tmp_path / "both.json", trace=tmp_path / "t.json"
    )
    events = json.loads((tmp_path / "both.json").read_text())["traceEvents"]
    kernels = sorted(
        one["ts"] for one in events if one.get("cat") == "kernel" and "elementwise" in one["name"]
    )
    marks = sorted(one["ts"] for one in events if one.get("cat") == "cgdebug")
    apart = [mark - kernel for kernel, mark in zip(kernels, marks, strict=True)]
    # The replays are 20 ms apart. How well the GPU's clock is known depends on how busy the machine
    # was when it was read.
    assert len(apart) == 5 and all(abs(us) < 10_000 for us in apart), apart
