"""Each request is served by a thread of its own, which may get the number of one that has ended."""

import sys
import textwrap

import pytest

pytest.importorskip("torch")

JOB = """
    import threading
    import torch
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    def serve(number):
        with torch.inference_mode():
            net(torch.full((2, 4), FAULT if number == 4 else 1.0)).tolist()
    for number in range(6):
        thread = threading.Thread(target=serve, args=(number,))
        thread.start()
        thread.join()
"""


@pytest.mark.parametrize(("fault", "code"), [("1.0", 0), ("float('nan')", 1)])
def test_every_request_is_logged(daemon, cli, tmp_path, fault, code):
    (tmp_path / "job.py").write_text(textwrap.dedent(JOB).replace("FAULT", fault))
    job = (sys.executable, tmp_path / "job.py")
    done = cli("run", "--watch", "op:*", "--eager", "--fail-on", "nan", "--", *map(str, job))
    assert done.returncode == code, done.stdout + done.stderr
    assert "after 6 calls" in done.stderr
