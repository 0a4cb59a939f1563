"""TensorRecord(part=...): a probe that sees some elements of each tensor."""

import pytest
import torch

import cgdebug
from cgdebug import TensorCompare, TensorPrint, TensorRecord, TensorStats
from cgdebug.snapshot import part_of

PARTS = {
    "rows:1:3": lambda x: x[1:3],
    "rows:5:99": lambda x: x[5:99],
    "first:7": lambda x: x.flatten()[:7],
    "first:9999": lambda x: x.flatten()[:9999],
    "stride:3": lambda x: x.flatten()[::3],
    "stride:9999": lambda x: x.flatten()[::9999],
}
SOURCES = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2).contiguous().transpose(0, 2),
    "every other": lambda x: torch.stack([x, x], -1)[..., 0],
    "one more dimension": lambda x: torch.stack([x, x], 1)[:, 0],
}
EXAMPLE = torch.arange(6 * 4 * 5).reshape(6, 4, 5)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("source", SOURCES)
def test_a_record_has_the_elements_of_the_part_of_the_logical_tensor(probe, part, source):
    for dtype in (torch.bool, torch.uint8, torch.bfloat16, torch.float32, torch.int64):
        p = probe(TensorRecord(part=part), name=f"p {dtype}", non_contiguous="copy")
        x = EXAMPLE.to(dtype)
        p(SOURCES[source](x))
        [record] = p.records()
        assert torch.equal(record.tensor, PARTS[part](x))
        assert (record.part, record.full_shape) == (part, (6, 4, 5))
        assert f"part {part} of [6,4,5]" in repr(record)


def test_elements_of_a_negated_view_are_its_own(probe):
    p = probe(TensorRecord(part="stride:2"), non_contiguous="copy")
    negated = torch.complex(torch.zeros(4), torch.arange(4.0)).conj().imag
    assert negated.is_neg()
    p(negated)
    assert p.records()[0].tensor.tolist() == [0, -2]


def test_a_whole_tensor_has_no_part(probe):
    p = probe(TensorRecord())
    p(EXAMPLE)
    [record] = p.records()
    assert (record.part, record.full_shape) == ("", (6, 4, 5))
    assert "part" not in repr(record)


def test_only_the_part_takes_room(probe):
    p = probe(TensorRecord(part="first:16"))
    p(torch.zeros(1 << 20))
    assert p.status().slots[0].payload_bytes == 64


@pytest.mark.parametrize(
    "part",
    ["rows:8", "rows:3:3", "rows:-1:2", "first:0", "first: 5", "stride:0", "all", "first:9" * 9],
)
def test_a_part_that_is_none_is_refused_with_what_to_type(probe, part):
    with pytest.raises(
        ValueError, match=r'is not a part of a tensor\. Type rows:A:B .*part="rows:0:8"'
    ):
        probe(TensorRecord(part=part))


@pytest.mark.parametrize("part", ["", 5, b"first:1"])
def test_a_part_is_a_text(part):
    with pytest.raises(ValueError, match="part must be a text such as"):
        TensorRecord(part=part)
    with pytest.raises(ValueError, match="part must be a text such as"):
        TensorCompare(EXAMPLE, part=part)


def test_a_tensor_that_has_no_such_rows_is_refused(probe):
    p = probe(TensorRecord(part="rows:6:8"))
    with pytest.raises(ValueError, match=r"has none of the 6 rows of the tensor \[6, 4, 5\]"):
        p(EXAMPLE)
    with pytest.raises(ValueError, match="the tensor has no dimensions"):
        p(torch.tensor(1.0))


@pytest.mark.parametrize(
    "part, shape", [("rows:6:8", (0, 4)), ("first:3", (0,)), ("stride:2", (0,))]
)
def test_of_an_empty_tensor_the_part_is_empty(probe, part, shape):
    p = probe(TensorRecord(part=part))
    p(torch.zeros(0, 4))
    assert p.records()[0].shape == shape


@pytest.mark.parametrize("part", ["first:3", "stride:2"])
def test_of_a_scalar_the_part_has_one_element(probe, part):
    p = probe(TensorRecord(part=part))
    p(torch.tensor(7.0))
    assert p.records()[0].tensor.tolist() == [7.0]


def test_what_judges_whole_tensors_does_not_share_a_probe_with_a_part(probe):
    with pytest.raises(ValueError, match="Give TensorStats to a second probe"):
        probe(TensorRecord(part="first:1"), TensorStats())
    with pytest.raises(ValueError, match="Give both the same part, or use two probes"):
        probe(TensorRecord(part="first:1"), TensorCompare(EXAMPLE))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("expects_whole", [True, False])
def test_a_comparison_sees_the_part_of_what_is_expected(daemon, probe, part, expects_whole):
    x = EXAMPLE.float()
    expected = x if expects_whole else PARTS[part](x)
    p = probe(TensorCompare(expected, part=part), TensorRecord(part=part))
    p(x)
    p.assert_ok()
    inside = x.clone()
    inside[5, 0, 0] += part == "rows:5:99"
    inside[1, 0, 0] += part == "rows:1:3"
    inside[0, 0, 0] += not part.startswith("rows")
    p(inside)
    with pytest.raises(cgdebug.TensorCompareMismatchError, match=rf"in part {part} of \[6,4,5\]"):
        p.assert_ok()


def test_two_probes_are_compared_in_the_same_part_alone(daemon, probe):
    wanted = probe(TensorRecord(part="first:3"), name="wanted")
    same = probe(TensorCompare(wanted, part="first:3"), name="same")
    other = probe(TensorCompare(wanted, part="first:4"), name="other")
    wanted(torch.zeros(9))
    same(torch.tensor([0.0] * 8 + [1.0]))
    same.assert_ok()
    with pytest.raises(ValueError, match="probe 'wanted', which was not called with float32"):
        other(torch.zeros(9))
    with pytest.raises(cgdebug.TensorCompareMismatchError):
        wanted(torch.zeros(9))
        same(torch.ones(9))
        same.assert_ok()


def test_an_expected_tensor_of_another_shape_is_refused(daemon, probe):
    p = probe(TensorCompare(torch.zeros(5), part="first:7"))
    with pytest.raises(ValueError, match=r"the tensor is float32\[7\] \(part first:7 of \[120\]\)"):
        p(torch.zeros(120))


def test_readers_of_a_recording_know_that_it_is_a_part(client, probe, tmp_path):
    p = probe(TensorRecord(part="rows:0:2"), TensorPrint(), name="x")
    with client.record(tmp_path / "a.cgrec", probes="x") as live:
        for _ in range(3):
            p(EXAMPLE.float())
    recording = cgdebug.open(live.directory)
    snapshot = recording["x"][1]
    assert torch.equal(snapshot.tensor, EXAMPLE[:2].float())
    assert (snapshot.part, snapshot.full_shape) == ("rows:0:2", (6, 4, 5))
    diff = recording.diff(recording)
    assert diff.ok and diff.verdict == "same_in_part"
    assert str(diff).startswith("same in the part: 3 snapshots")
    assert "nothing found in the part, in 3 snapshots" in str(recording.check())


@pytest.fixture
def parts_of_two_runs(client, tmp_path):
    """Recordings of the rows 0:2 and of the rows 2:4 of one tensor."""
    paths = []
    for part in ("rows:0:2", "rows:2:4"):
        p = cgdebug.CudaGraphTensorProbe("x", [TensorRecord(part=part)], mode="always")
        with client.record(tmp_path / f"{part[-1]}.cgrec", probes="x") as live:
            p(torch.ones(6, 4))
        p.close()
        paths.append(str(live.directory))
    return paths


def test_two_parts_of_a_tensor_are_never_the_same(parts_of_two_runs, cli):
    a, b = parts_of_two_runs
    assert cgdebug.open(a).diff(b).verdict == "incomplete"
    found = cli("diff", a, b)
    assert found.returncode == 3
    assert "A has part rows:0:2 of [6,4], B has part rows:2:4 of [6,4]" in found.stdout


def test_every_command_says_that_it_is_a_part(parts_of_two_runs, cli, probe):
    a = parts_of_two_runs[0]
    part = "part rows:0:2 of [6,4]"
    for words in (["info", a], ["stats", a], ["show", f"{a}:x"], ["check", a]):
        found = cli(*words)
        assert ("in the part" if words[0] == "check" else part) in found.stdout, words
    p = probe(TensorRecord(part="rows:0:2"), TensorPrint(), name="alive")
    p(torch.ones(6, 4))
    p.status()  # the daemon has read it
    assert part in cli("probes", "-v", "alive").stdout
    assert part in cli("tail", "-n", "1", "alive").stdout


def test_exports_say_that_it_is_a_part(parts_of_two_runs, tmp_path):
    import numpy

    a, b = map(cgdebug.open, parts_of_two_runs)
    text = "rows:0:2 of [6,4]"
    a.export("npz", tmp_path / "npz")
    [file] = (tmp_path / "npz").glob("*.npz")
    arrays = numpy.load(file)
    assert arrays["x"].shape == (2, 4) and str(arrays["x@part"]) == text
    a.export("jsonl", tmp_path / "a.jsonl")
    assert f'"part": "{text}"' in (tmp_path / "a.jsonl").read_text()
    for one, name in ((a, "a"), (b, "b")):
        one.export("safetensors", tmp_path / name)
    again = cgdebug.open(tmp_path / "a")
    assert again["x"].part == "rows:0:2" and again["x"].full_shape == (6, 4)
    assert again.diff(a).verdict == "same_in_part"
    assert again.diff(tmp_path / "b").verdict == "incomplete"
    assert a.sql("select part from probe") == [(text,)]


@pytest.mark.parametrize("text", ["rows:0:2", "rows:0:2 of [6,x]", "of [" + "9" * 9999 + "]"])
def test_a_part_that_somebody_else_wrote_is_not_taken_for_the_whole_tensor(text):
    assert part_of(text, (2, 4)) == (text, (2, 4))


def test_a_watch_keeps_a_part_beside_the_statistics_of_the_whole(daemon):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    with cgdebug.watch(model, "0", values=2, part="rows:0:1", grads=True) as watch:
        model(torch.ones(5, 4)).sum().backward()
        assert set(watch.probes) == {"fwd/0", "part/fwd/0", "grad/0", "part/grad/0"}
        [record] = watch.probes["part/fwd/0"].records()
        assert (record.shape, record.full_shape) == ((1, 3), (5, 3))
        [slot] = watch.probes["fwd/0"].status().slots
        assert (slot.shape, slot.part) == ((5, 3), "")
        [slot] = watch.probes["part/fwd/0"].status().slots
        assert slot.part == "rows:0:1 of [5,3]" and "part rows:0:1 of [5,3]" in str(slot)


def test_a_watch_refuses_a_part_without_values():
    model = torch.nn.Linear(4, 3)
    with pytest.raises(ValueError, match="add values=N"):
        cgdebug.watch(model, part="rows:0:1")
    with pytest.raises(ValueError, match="is not a part of a tensor"):
        cgdebug.watch(model, values=2, part="rows:0")
    with pytest.raises(ValueError, match="is not a part of a tensor"):
        cgdebug.watch(model, values=TensorRecord(part="rows:0"))


def test_a_compiled_model_is_watched_in_part(daemon):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    with cgdebug.watch(model, "0", values=2, part="first:2") as watch:
        torch.compile(model, backend="aot_eager")(torch.ones(5, 4))
        [record] = watch.probes["part/fwd/0"].records()
        assert record.shape == (2,)
