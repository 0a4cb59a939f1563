"""Values are checked against their hashes; statistics are compared if there are no values."""

import pathlib
import shutil

import numpy
import pytest

import cgdebug
from cgdebug.errors import RecordingError
from cgdebug.testing import assert_recordings_close
from written_recordings import Writer, write


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a.cgrec")


def test_damage_is_found_by_verify(path):
    segment = next(pathlib.Path(path).glob("segment*"))
    data = bytearray(segment.read_bytes())
    r = cgdebug.open(path)
    at = data.index(numpy.full(6, 4, "float32").tobytes())
    data[at] ^= 1
    segment.write_bytes(data)
    assert len(cgdebug.open(path).verify()) >= 1
    with pytest.raises(RecordingError):
        cgdebug.open(path)["x"][4].numpy()
    assert r["x"][3].numpy()[0, 0] == 3


def test_damaged_values_are_called_neither_the_same_nor_good(tmp_path, path):
    other = str(tmp_path / "other.cgrec")
    shutil.copytree(path, other)
    segment = next(pathlib.Path(other).glob("segment*"))
    data = bytearray(segment.read_bytes())
    at = data.index(numpy.full(6, 4, "float32").tobytes())
    data[at] ^= 1
    segment.write_bytes(data)
    good, bad = cgdebug.open(path), cgdebug.open(other)
    where = f"{segment} is damaged: the values of probe 'x' at replay 4 (byte {at})"
    for diff in (good.diff(bad), bad.diff(good), bad.diff(bad, bitwise=True)):
        assert not diff.ok and diff.verdict == "incomplete"
        assert where in diff.missing[0] and f"cgdebug-cli verify {other}" in diff.missing[0]
    check = bad.check()
    assert not check.ok and not check.findings and where in check.missing[0]
    with pytest.raises(AssertionError, match="do not match their hash"):
        assert_recordings_close(good, bad)
    trusting = assert_recordings_close(good, bad, trust_hashes=True)
    assert str(trusting).startswith("same by recorded hash; values not read: 10 snapshots")
    assert bad.check(trust_hashes=True).ok
    assert good.diff(path).to_dict()["equal"]["bits"] == 10


def test_recordings_of_statistics_are_compared(tmp_path):
    paths = []
    for name, last, options in (
        ("a", 5, {}),
        ("b", 5, {}),
        ("c", 6, {}),
        ("d", 5, {"xor_hash": False}),
    ):
        writer = Writer(tmp_path / f"{name}.cgrec")
        writer.add("x", 1, numpy.float32([1, 2, last]), stats_only=True, **options)
        paths.append(writer.close())
    a = cgdebug.open(paths[0])
    assert a.diff(a).ok and a.diff(paths[1]).ok
    assert "same by hash and statistics; values were not recorded" in str(a.diff(paths[1]))
    different = a.diff(paths[2])
    assert different.verdict == "different" and "max" in different.first["statistics"]
    assert a.diff(paths[3]).verdict == "incomplete"


def test_statistics_of_the_same_elements_in_other_places_are_not_the_same(tmp_path):
    x = numpy.arange(12, dtype="float32").reshape(3, 4)
    paths = []
    for name, values in (("a", x), ("rows", x[[1, 0, 2]]), ("flipped", x[:, ::-1])):
        writer = Writer(tmp_path / f"{name}.cgrec")
        writer.add("x", 1, numpy.ascontiguousarray(values), stats_only=True)
        paths.append(writer.close())
    a = cgdebug.open(paths[0])
    for path in paths[1:]:
        for bitwise in (False, True):
            different = a.diff(path, bitwise=bitwise)
            assert different.verdict == "different"
            assert different.first["statistics"] == ["ordered_hash"]
        with pytest.raises(AssertionError, match="the same elements in other places"):
            assert_recordings_close(a, path)


def test_the_xor_hash_of_the_statistics_is_kept_and_none_where_it_was_not_computed(tmp_path):
    writer = Writer(tmp_path / "a.cgrec")
    values = numpy.float32([1, 2, 5])
    for replay, options in enumerate(
        ({}, {"stats_only": True}, {"stats_only": True, "xor_hash": False}), 1
    ):
        writer.add("x", replay, values, **options)
    recording = cgdebug.open(writer.close())
    snapshots = list(recording["x"])
    xor = int(numpy.bitwise_xor.reduce(values.astype("float64").view("uint64")))
    assert [snapshot.stats.xor_hash for snapshot in snapshots] == [xor, xor, None]
    assert snapshots[2].stats.max == 5
    assert recording.sql("SELECT xor_hash FROM v_snapshots ORDER BY replay") == [
        (f"{xor:016x}",),
        (f"{xor:016x}",),
        (None,),
    ]
