"""`races` of what a job tells of its graphs, where there is no GPU."""

import json

import pytest

JOB = """
    from cgdebug._op_log.node_order import Order, notes
    notes.tell(12, Order(*{order}))
    print(cgdebug._job._native.probe_module().session()["uuid"][:8])
    sys.stdin.readline()
"""
RACE = "aten.mul.out fwd/mul_0 writes y float32[8], which aten.add.out fwd/add_0 reads"


@pytest.mark.parametrize(
    ("order", "verdict", "code"),
    [
        ((9, 2, [], [RACE], []), "found", 1),
        ((9, 2, [], [], []), "nothing", 0),
        ((9, 2, ["a node that no op made was launched"], [], []), "inconclusive", 3),
        ((9, 2, [], [], [RACE]), "inconclusive", 3),
    ],
    ids=["race", "none", "unknown", "possible"],
)
def test_what_a_job_tells_of_its_graphs(job, cli, order, verdict, code):
    running = job(JOB.format(order=order), CGDEBUG="1")
    session = running.line()
    told = cli("races", session, "--json")
    assert told.returncode == code, told.stdout + told.stderr
    answer = json.loads(told.stdout)
    assert answer["verdict"] == verdict
    assert [one["graph_id"] for one in answer["graphs"]] == [12]
    assert answer["graphs"][0]["races"] == order[3]
    assert "ops/order" not in cli("probes", session).stdout
    running.go_on()
    running.finish()


def test_a_job_that_tells_nothing_is_not_called_clean(job, cli):
    running = job(
        """
        p = CudaGraphTensorProbe("p", [TensorStats()], mode="always")
        p(torch.ones(4))
        print(cgdebug._job._native.probe_module().session()["uuid"][:8])
        sys.stdin.readline()
        """,
        CGDEBUG="1",
    )
    told = cli("races", running.line())
    assert told.returncode == 3
    assert "cgdebug-cli run --races" in told.stdout
