"""Models that are called on other threads, and by the handlers of signals."""

import concurrent.futures
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


IN_SIGNALS = """
    import signal
    import torch
    torch.set_num_threads(1)
    net = torch.nn.Linear(4, 4)
    seen = []
    def handle(*_):
        seen.append(net(torch.ones(1, 4)).sum().item())
        if len(seen) < 100:
            signal.setitimer(signal.ITIMER_REAL, 0.001)  # here: no handler runs in another one
    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    while len(seen) < 100:
        net(torch.ones(2, 4)).sum().backward()
    net(torch.full((2, 4), float("nan")))
"""


@pytest.mark.parametrize("level", [("*",), ("op:*", "--eager")], ids=["modules", "ops"])
def test_a_handler_that_calls_the_model_does_not_keep_it_from_being_watched(
    daemon, cli, tmp_path, level
):
    (tmp_path / "job.py").write_text(textwrap.dedent(IN_SIGNALS))
    job = (sys.executable, str(tmp_path / "job.py"))
    done = cli("run", "--watch", *level, "--fail-on", "nan", "--", *job)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "is not watched, as CGDEBUG_WATCH asks" not in done.stderr


def test_a_thread_captures_for_its_own_debug_mode_and_for_a_watch(debug_mode):
    from cgdebug._op_log import scopes

    def own(outer):
        assert scopes.scopes_of_capture() == [outer], "a thread without one captures for all"
        with debug_mode() as inner:
            assert scopes.scopes_of_capture() == [inner._scope]
            outer.owner = outer  # as that of a watch
            assert scopes.scopes_of_capture() == [outer, inner._scope]
            outer.owner = None

    with debug_mode() as mode, concurrent.futures.ThreadPoolExecutor(1) as threads:
        threads.submit(own, mode._scope).result()
        assert scopes.scopes_of_capture() == [mode._scope]
    assert scopes.scopes_of_capture() == []
