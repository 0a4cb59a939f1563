"""A dtype from the probe to every place that shows it: uint16, half of whose values int16 lacks."""

import json
import os

import numpy
import torch

import cgdebug
from cgdebug import TensorCompare, TensorPrint, TensorRecord, TensorStats, _recording
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
    writer = _recording.Writer(str(path))
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
