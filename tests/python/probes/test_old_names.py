"""Code that was written for torch-cudagraph-debug: its names, of version 0.1 and 0.2."""

import subprocess
import sys
import textwrap

import pytest
import torch

import cgdebug
from cgdebug.tensor_debug import (
    CheckAction,
    PrintAction,
    RecordAction,
    TensorCheckError,
    TensorComparisonError,
    TensorComparisonOptions,
    TensorProbe,
    TensorRecorder,
    compare_points,
    compare_snapshots,
)


def run(text):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_old_package_name_is_found_after_import_cgdebug_and_is_the_same_code():
    text = """
        import cgdebug
        spec = cgdebug.__spec__
        import torch_cudagraph_debug
        from torch_cudagraph_debug.tensor_debug import CudaGraphTensorProbe, TensorProbe
        from torch_cudagraph_debug.tensor_debug.postprocess import drain_records
        assert CudaGraphTensorProbe is cgdebug.CudaGraphTensorProbe
        assert torch_cudagraph_debug.NativeExtensionUnavailableError
        assert issubclass(torch_cudagraph_debug.CudaGraphDebugError, Exception)
        assert cgdebug.__spec__ is spec and cgdebug.__name__ == "cgdebug"
        print("fine")
    """
    assert run(text) == "fine\n"


def test_a_package_of_that_name_that_is_installed_comes_first(tmp_path):
    (tmp_path / "torch_cudagraph_debug.py").write_text("own = 1\n")
    text = f"""
        import sys
        import cgdebug
        sys.path.append({str(tmp_path)!r})
        import torch_cudagraph_debug
        print(torch_cudagraph_debug.own)
    """
    assert run(text) == "1\n"


def test_what_the_old_package_has_and_cgdebug_has_not_is_an_import_error():
    text = """
        import cgdebug
        try:
            import torch_cudagraph_debug.memory_debug
        except ImportError as error:
            print(error)
    """
    assert "torch_cudagraph_debug.memory_debug" in run(text)


@pytest.fixture
def probe(daemon):
    made = []

    def make(*actions, **options):
        name = f"old{len(made)}"
        made.append(TensorProbe(name, list(actions), **{"when": "always", **options}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_calls_of_a_probe_have_names_of_their_own(probe):
    one = probe(RecordAction())
    x = torch.arange(3.0)
    assert one(x) is x
    assert one(x + 1, name="layers.0.hidden") is not None
    snapshot = one.snapshot()
    assert [seen.name for seen in snapshot.observations] == ["old0", "layers.0.hidden"]
    assert snapshot.tensor().tolist() == [0, 1, 2]
    assert snapshot.tensor("layers.0.hidden").tolist() == [1, 2, 3]
    assert snapshot.by_key[("layers.0.hidden", 0)].shape == (3,)
    with pytest.raises(KeyError):
        snapshot.tensor("layers.1.hidden")
    one(x * 5)
    assert one.snapshot().tensor().tolist() == [0, 5, 10]
    assert snapshot.tensor().tolist() == [0, 1, 2]  # what was read stays


def test_without_a_capture_a_probe_of_captures_does_nothing(probe):
    one = probe(RecordAction(), when="capture")
    one(torch.ones(3))
    assert not one._parts
    with pytest.raises(cgdebug.TensorDebugError, match="nothing was recorded"):
        one.snapshot()
    off = probe(RecordAction(enabled=False))
    off(torch.ones(3))
    assert off.replay_index is None and not off._parts


def test_a_check_compares_each_call_with_its_own_expectation(probe):
    one = probe(CheckAction([torch.zeros(2), torch.ones(2)]))
    one(torch.zeros(2), name="a")
    one(torch.ones(2), name="b")
    assert one.check_status().ok
    one.assert_check_ok()
    one(torch.full((2,), 3.0), name="b")
    status = one.check_status()
    assert (status.ok, status.name, status.order) == (False, "b", 1)
    assert status.key == ("b", 0) and "mismatch" in status.message.lower(), status.message
    with pytest.raises(TensorCheckError):
        one.assert_check_ok()


def test_a_check_that_compared_nothing_is_not_ok(probe):
    one = probe(CheckAction(torch.zeros(2)))
    one(torch.zeros(2), name="first")
    other = probe(CheckAction(torch.zeros(2)))
    other._part_of(type(next(iter(one._parts)))("never", 0), 0)
    assert one.check_status().ok and not other.check_status().ok


def test_gradients_are_seen_under_their_name(probe):
    one = probe(RecordAction())
    x = torch.ones(2, requires_grad=True)
    handle = one.watch_grad(x, name="x.grad")
    (x * 3).sum().backward()
    assert one.snapshot().tensor("x.grad").tolist() == [3, 3]
    handle.remove()
    assert one.watch_grad(torch.ones(2)) is None
    with pytest.raises(RuntimeError, match="does not require grad"):
        one.watch_grad(torch.ones(2), strict=True)


def test_wrong_arguments_are_refused(probe):
    with pytest.raises(ValueError, match="actions must not be empty"):
        TensorProbe("x", [])
    with pytest.raises(TypeError, match="not a str"):
        TensorProbe("x", ["record"])
    with pytest.raises(ValueError, match="when must be"):
        TensorProbe("x", [PrintAction()], when="never")
    with pytest.raises(TypeError, match="synchronize must be"):
        probe(RecordAction()).snapshot(synchronize="cuda")
    with pytest.raises(ValueError, match="cgdebug-cli record"):
        TensorRecorder(execution="eager", bundle_dir="x")
    with pytest.raises(cgdebug.TensorDebugError, match="needs a RecordAction"):
        probe(PrintAction()).snapshot()


def step(recorder, x, factor=1.0):
    hidden = recorder.observe("hidden", x + 1)
    return recorder.observe("output", hidden * factor)


def test_a_recorder_has_labelled_points_that_can_be_compared():
    with TensorRecorder(execution="eager", name="a") as recorder:
        step(recorder, torch.ones(2))  # outside of a point: not observed
        for label, factor in (("right", 1.0), ("same", 1.0), ("wrong", 2.0)):
            with recorder.record_point(label):
                step(recorder, torch.ones(2), factor)
        with pytest.raises(ValueError, match="label"), recorder.record_point("right"):
            pass
    result = recorder.result
    assert result.complete and [point.label for point in result.points] == [
        "right",
        "same",
        "wrong",
    ]
    assert compare_points(result["right"], result["same"]).ok
    comparison = result.compare("right", "wrong")
    assert comparison.status == "mismatch" and comparison.first_issue.key.name == "output"
    assert "2 of 2 elements differ, by 2 at most" in comparison.to_text()
    with pytest.raises(TensorComparisonError):
        comparison.assert_ok()
    loose = TensorComparisonOptions(atol=3)
    assert compare_snapshots(result["right"], result["wrong"], options=loose).ok
    with pytest.raises(cgdebug.TensorDebugError, match="has ended"), recorder.record_point("late"):
        pass


def test_what_only_one_side_has_is_a_mismatch_and_nothing_at_all_too():
    with TensorRecorder(execution="eager") as recorder:
        with recorder.record_point("both"):
            step(recorder, torch.ones(2))
        with recorder.record_point("one"):
            recorder.observe("hidden", torch.full((2,), 2.0))
        with recorder.record_point("none"):
            pass
    points = recorder.result
    missing = compare_points(points["both"], points["one"])
    assert missing.first_issue.issue == "the candidate does not have it"
    assert not compare_points(points["one"], points["both"]).ok
    assert not compare_points(points["none"], points["none"]).ok


def test_a_recorder_whose_body_fails_keeps_its_points_and_says_that_it_is_incomplete():
    recorder = TensorRecorder(execution="eager")
    with pytest.raises(ZeroDivisionError), recorder:
        with recorder.record_point("first"):
            step(recorder, torch.ones(2))
        with recorder.record_point("second"):
            raise ZeroDivisionError
    assert not recorder.result.complete
    assert [point.label for point in recorder.result.points] == ["first"]


@pytest.mark.gpu
def test_a_captured_graph_has_points_and_one_replay_number():
    x = torch.ones(2, device="cuda")
    recorder = TensorRecorder(execution="cuda_graph", name="graph")
    step(recorder, x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(recorder, x)
    for number in (1, 2):
        with recorder.record_point(f"replay-{number}"):
            graph.replay()
        x.add_(1)
    run = recorder.finish()
    assert [point.replay_index for point in run.points] == [1, 2]
    assert run["replay-2"].observation("hidden").tensor().tolist() == [3, 3]
    recorder.close()
