"""Dtypes from the probe to every place that shows them: uint16, half of whose values int16 lacks,
the floats of 8 bits with one NaN, and those of 4 bits."""

import json
import os

import numpy
import pytest
import recording_writer
import torch
from all_dtypes import FLOAT4

import cgdebug
from cgdebug import TensorCompare, TensorPrint, TensorRecord, TensorStats
from cgdebug._shared import _dtypes
from conftest import own_session, wait_until

VALUES = [40_000, 65_535, 32_768, 1]


def tensor(*values):
    return torch.tensor(values, dtype=torch.int64).to(torch.uint16)


def test_the_docstring_of_probes_names_every_dtype():
    text = cgdebug.CudaGraphTensorProbe.__doc__.split("Dtypes:")[1].split(".\n")[0]
    assert [word.strip() for word in text.split(",")] == list(_dtypes.table())


def test_uint16_keeps_its_values_in_every_view_of_a_live_job(cli, probe):
    p = probe(TensorRecord(), name="u16.live")
    p(tensor(*VALUES))
    assert p.records()[0].numpy().tolist() == VALUES
    assert p.records()[0].stats.min == 1 and p.records()[0].stats.max == 65_535
    arguments = ["show", "-s", str(os.getpid()), "u16.live"]
    wait_until(lambda: cli(*arguments).returncode == 0, "the daemon has read it")
    assert "[40000, 65535, 32768, 1]" in cli(*arguments).stdout
    shown = json.loads(cli(*arguments, "--json").stdout)
    assert shown["dtype"] == "uint16" and shown["values"] == VALUES
    assert (shown["stats"]["min"], shown["stats"]["max"]) == (1, 65_535)
    assert shown["stats"]["mean"] == sum(VALUES) / 4


def test_statistics_of_uint16_alone_are_of_unsigned_values(cli, probe):
    probe(TensorStats(), name="u16.stats")(torch.full((70_000,), 40_000).to(torch.uint16))
    arguments = ["show", "-s", str(os.getpid()), "u16.stats", "--json"]
    wait_until(lambda: cli(*arguments).returncode == 0, "the daemon has read it")
    stats = json.loads(cli(*arguments).stdout)["stats"]
    assert (stats["min"], stats["max"], stats["mean"], stats["std"]) == (40_000, 40_000, 40_000, 0)


def test_uint16_is_printed_unsigned(cli, probe):
    probe(TensorPrint(), name="u16.print")(tensor(*VALUES))
    arguments = ["tail", "-s", str(os.getpid()), "-n", "9", "u16.print", "--json"]
    wait_until(lambda: '"print"' in cli(*arguments).stdout, "the daemon has printed it")
    printed = cli(*arguments).stdout
    assert "u16[4]" in printed and "[40000, 65535, 32768, 1]" in printed


def test_uint16_differs_by_unsigned_values(probe, daemon):
    p = probe(TensorCompare(tensor(40_000, 1), rtol=0, atol=1), name="u16.compare")
    p(tensor(40_001, 1))
    p.assert_ok()
    p(tensor(40_001, 65_535))
    try:
        p.assert_ok()
    except cgdebug.TensorCompareMismatchError as error:
        assert "65534" in str(error)
    else:
        raise AssertionError("65535 passed for 1")


def recording_of(path, *values):
    writer = recording_writer.Writer(str(path))
    slot = writer.add_slot(writer.add_session("1" * 32, "job"), "u16.rec", "uint16", [len(values)])
    writer.append(slot, 1, numpy.array(values, "uint16"))
    writer.close()
    return str(path)


def test_recordings_of_uint16_are_compared_and_exported(cli, tmp_path):
    path = recording_of(tmp_path / "a.cgrec", *VALUES)
    other = recording_of(tmp_path / "b.cgrec", 40_000, 65_535, 32_768, 65_534)
    (snapshot,) = cgdebug.open(path)["u16.rec"]
    assert snapshot.numpy().tolist() == snapshot.values().tolist() == VALUES
    assert snapshot.tensor.dtype is torch.uint16 and snapshot.tensor.tolist() == VALUES
    assert snapshot.stats.max == 65_535 and "u16[4]" in repr(snapshot)
    diff = cli("diff", path, other, "--atol", "65532")
    assert diff.returncode == 1 and "65533" in diff.stdout
    assert cli("diff", path, other, "--atol", "65533").returncode == 0
    out = tmp_path / "out"
    assert cli("export", path, "--to", "safetensors", "-o", str(out)).returncode == 0
    (file,) = out.rglob("*.safetensors")
    assert b'"U16"' in file.read_bytes()
    (snapshot,) = cgdebug.open(file)["u16.rec"]
    assert snapshot.numpy().tolist() == VALUES
    npy = tmp_path / "x.npy"
    assert cli("show", f"{path}:u16.rec", "-o", str(npy)).returncode == 0
    loaded = numpy.load(npy)
    assert loaded.dtype == numpy.uint16 and loaded.tolist() == VALUES


def test_a_recording_from_a_probe_keeps_uint16(cli, probe, tmp_path):
    p = probe(TensorRecord(8), name="u16.frozen")
    key = own_session()
    p(tensor(*VALUES))
    wait_until(
        lambda: cli("show", "-s", key, "u16.frozen").returncode == 0, "the daemon has read it"
    )
    frozen = tmp_path / "f.cgrec"
    assert cli("freeze", "-s", key, "--probes", "u16.frozen", "-o", str(frozen)).returncode == 0
    (snapshot,) = cgdebug.open(frozen)["u16.frozen"]
    assert snapshot.numpy().tolist() == VALUES


# Bits, and what they are; the third is the NaN.
WITH_ONE_NAN = {
    "float8_e4m3fnuz": ([0x40, 0xC0, 0x80, 0x7F, 0x01], [1, -1, "nan", 240, 2**-10]),
    "float8_e5m2fnuz": ([0x40, 0xC0, 0x80, 0x7F, 0x01], [1, -1, "nan", 57344, 2**-17]),
    "float8_e8m0fnu": ([0x7F, 0x80, 0xFF, 0xFE, 0x00], [1, 2, "nan", 2.0**127, 2.0**-127]),
}


@pytest.mark.parametrize("name", WITH_ONE_NAN)
def test_a_float8_with_one_nan_is_shown_recorded_and_exported(cli, probe, tmp_path, name):
    bits, wanted = WITH_ONE_NAN[name]
    x = torch.tensor(bits, dtype=torch.uint8).view(getattr(torch, name))
    p, stats = probe(TensorRecord(8), name=name), probe(TensorStats(), name=f"{name}.stats")
    p(x)
    stats(x)
    key = own_session()
    finite = [value for value in wanted if value != "nan"]
    for shown_name in (p.name, stats.name):
        arguments = ["show", "-s", key, shown_name, "--json"]
        wait_until(lambda a=arguments: cli(*a).returncode == 0, "the daemon has read it")
        shown = json.loads(cli(*arguments).stdout)
        assert shown["dtype"] == name and shown["stats"]["nan"] == 1
        assert shown["stats"]["first_nonfinite"] == {"index": 2, "value": "NaN"}
        assert (shown["stats"]["min"], shown["stats"]["max"]) == (min(finite), max(finite))
        assert shown["stats"]["mean"] == pytest.approx(sum(finite) / 4, rel=1e-12)
        assert shown["stats"]["subnormal"] == (0 if name == "float8_e8m0fnu" else 1)
    arguments = ["show", "-s", key, p.name, "--json"]
    assert json.loads(cli(*arguments).stdout)["values"] == [
        "NaN" if v == "nan" else v for v in wanted
    ]
    frozen, out = tmp_path / "f.cgrec", tmp_path / "out"
    assert cli("freeze", "-s", key, "--probes", name, "-o", str(frozen)).returncode == 0
    assert cli("export", str(frozen), "--to", "safetensors", "-o", str(out)).returncode == 0
    (file,) = out.rglob("*.safetensors")
    assert f'"{_dtypes.table()[name].safetensors}"'.encode() in file.read_bytes()
    for source in (frozen, file):
        (snapshot,) = cgdebug.open(source)[name]
        assert snapshot.numpy().view(numpy.uint8).tolist() == bits
        numpy.testing.assert_array_equal(
            snapshot.values(), [numpy.nan if v == "nan" else v for v in wanted]
        )
        assert snapshot.tensor.dtype is x.dtype
        assert snapshot.stats.ordered_hash == p.records()[0].stats.ordered_hash


@pytest.mark.parametrize("name", WITH_ONE_NAN)
def test_a_float8_with_one_nan_is_compared_by_value(probe, daemon, name):
    x = torch.tensor(WITH_ONE_NAN[name][0], dtype=torch.uint8).view(getattr(torch, name))
    p = probe(TensorCompare(x, rtol=0, atol=0, equal_nan=True), name=f"{name}.compare")
    p(x)
    p.assert_ok()
    other = x.view(torch.uint8).clone()
    other[4] = other[2]  # a NaN
    p(other.view(x.dtype))
    with pytest.raises(cgdebug.TensorCompareMismatchError, match="Mismatched elements: 1 / 5"):
        p.assert_ok()


def test_float4_is_shown_recorded_and_exported_as_two_values_in_a_byte(cli, probe, tmp_path):
    bits, values = [[0x17, 0x8F], [0x20, 0xFE]], [[6, 0.5, -6, -0.0], [0, 1, -4, -6]]
    x = torch.tensor(bits, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    p, stats = probe(TensorRecord(8), name="f4"), probe(TensorStats(), name="f4.stats")
    p(x)
    stats(x)
    key = own_session()
    for name in ("f4", "f4.stats"):
        arguments = ["show", "-s", key, name, "--json"]
        wait_until(lambda a=arguments: cli(*a).returncode == 0, "the daemon has read it")
        shown = json.loads(cli(*arguments).stdout)
        assert (shown["dtype"], shown["shape"]) == (FLOAT4, [2, 2])
        numbers = {
            name: shown["stats"][name] for name in ("count", "zero", "subnormal", "min", "max")
        }
        assert numbers == {"count": 8, "zero": 2, "subnormal": 1, "min": -6, "max": 6}
        assert shown["stats"]["mean"] == pytest.approx(-8.5 / 8, rel=2e-6)
    assert json.loads(cli("show", "-s", key, "f4", "--json").stdout)["values"] == [
        pair for row in values for pair in (row[:2], row[2:])
    ]
    assert "[[6|0.5, -6|-0], [0|1, -4|-6]]" in cli("show", "-s", key, "f4").stdout
    frozen, out = tmp_path / "f.cgrec", tmp_path / "out"
    assert cli("freeze", "-s", key, "--probes", "f4", "-o", str(frozen)).returncode == 0
    assert cli("export", str(frozen), "--to", "safetensors", "-o", str(out)).returncode == 0
    (file,) = out.rglob("*.safetensors")
    assert b'"F4", "shape": [2, 4]' in file.read_bytes()
    for source in (frozen, file):
        (snapshot,) = cgdebug.open(source)["f4"]
        assert snapshot.shape == (2, 2) and snapshot.numpy_is_bits
        assert snapshot.numpy().tolist() == bits and snapshot.values().tolist() == values
        assert snapshot.tensor.dtype is x.dtype
        assert torch.equal(snapshot.tensor.view(torch.uint8), x.view(torch.uint8))
        assert snapshot.stats.ordered_hash == p.records()[0].stats.ordered_hash
        assert (snapshot.stats.count, snapshot.stats.subnormal) == (8, 1)


def test_float4_is_compared_by_its_values(probe, daemon):
    as_float4 = lambda *bits: torch.tensor(bits, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)  # noqa: E731
    p = probe(TensorCompare(as_float4(0x21, 0x43), rtol=0, atol=0), name="f4.compare")
    p(as_float4(0x21, 0x43))
    p.assert_ok()
    p(as_float4(0x21, 0x53))
    with pytest.raises(cgdebug.TensorCompareMismatchError) as error:
        p.assert_ok()
    assert "Mismatched elements: 1 / 4" in str(error.value)
    assert "Greatest absolute difference: 1.0 at index (3,)" in str(error.value)


@pytest.mark.parametrize(
    "name, bits, saturated, subnormal",
    [
        ("int8", [127, 0x80, 0x81, 126, 0, 0], 3, 0),
        ("float8_e4m3fn", [0x7E, 0xFE, 0x7F, 0x7D, 1, 0], 2, 1),
        ("float8_e5m2", [0x7B, 0xFB, 0x7C, 0x7A, 1, 0], 2, 1),
        ("float8_e4m3fnuz", [0x7F, 0xFF, 0x80, 0x7E, 1, 0], 2, 1),
        (FLOAT4, [0x77, 0x10, 0x0F, 0x66], 3, 1),
        ("uint8", [255, 0], None, 0),
    ],
)
def test_saturated_elements_of_types_to_quantise_to_are_counted(
    cli, probe, tmp_path, name, bits, saturated, subnormal
):
    x = torch.tensor(bits, dtype=torch.uint8).view(getattr(torch, name))
    values, stats = (
        probe(TensorRecord(), name=f"sat.{name}"),
        probe(TensorStats(), name=f"st.{name}"),
    )
    values(x)
    stats(x)
    assert values.records()[0].stats.saturated == saturated
    key, path = own_session(), tmp_path / "f.cgrec"
    for one in (values.name, stats.name):
        wait_until(lambda p=one: cli("show", "-s", key, p).returncode == 0, "it is read")
        shown = json.loads(cli("show", "-s", key, one, "--json").stdout)["stats"]
        assert (shown.get("saturated"), shown["subnormal"]) == (saturated, subnormal)
        assert ("saturated" in cli("show", "-s", key, one).stdout) == (saturated is not None)
    probes = ["--probes", values.name, "--probes", stats.name]
    assert cli("freeze", "-s", key, *probes, "-o", str(path)).returncode == 0
    with cgdebug.open(path) as recording:
        for one in (values.name, stats.name):
            (snapshot,) = recording[one]
            assert snapshot.stats.saturated == saturated
