"""Tensors in the forms of NumPy and safetensors."""

from __future__ import annotations

import hashlib
import json
import math
import struct
import typing
import urllib.parse
import zipfile

from .._shared._dtypes import bits_of, table

_MAX_FILE_NAME = 255


def array_of(snapshot, upcast: str | None):
    """(array, name of the dtype when the array holds its bits, else "")."""
    import numpy

    kind = bits_of(snapshot.dtype_name)
    if kind is None:
        return snapshot.numpy(), ""
    if upcast:
        return snapshot.values().astype(upcast), ""
    bits = numpy.frombuffer(snapshot._bytes(), dtype=kind)
    return bits.reshape(snapshot.shape), snapshot.dtype_name


def folder_name(probe: str) -> str:
    """One folder per probe. Characters with a meaning in paths are escaped as in a URL, and a name
    that is too long is cut."""
    name = urllib.parse.quote(probe, safe=" #@,[]+=:()")
    if len(name) > _MAX_FILE_NAME:
        name = f"{name[:200]}~{hashlib.sha256(probe.encode()).hexdigest()[:16]}"
    return name.replace(".", "%2E") if set(name) == {"."} else name


def _member_name(name: str) -> str:
    """A name that would lead an unpacker out of its folder is escaped as in a URL."""
    folders = name.split("/")[:-1]
    if not any(part in ("", ".", "..") for part in folders) and not set("%\\") & set(name):
        return name
    return urllib.parse.quote(name, safe=" #@,[]+=:()").replace(".", "%2E")


def write_npz(file: typing.BinaryIO, arrays: dict) -> None:
    """Like numpy.savez, which cannot store an array called "file": it takes that as its own
    argument."""
    import numpy

    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{_member_name(name)}.npy", "w", force_zip64=True) as member:
                numpy.lib.format.write_array(member, numpy.asanyarray(array), allow_pickle=False)


def write_safetensors(
    file: typing.BinaryIO, rank: int, replay: int, tensors: dict, of_export: dict
) -> None:
    """`tensors`: name -> (series, snapshot), in graph order. `of_export`: "missing", what the
    recording lacks, in sentences; "before" and "after", the replays of its rank that the files
    before and behind it have, 0 for none; "ranks", those that were exported. What the format has
    no place for goes into the entry "cgdebug" of its metadata, as JSON."""
    tensors = {_key_of(name, tensors): of for name, of in tensors.items()}
    header: dict = {}
    about: dict = {"version": 1, "rank": rank, "replay": replay, "tensors": {}, **of_export}
    end = 0
    for name, (series, snapshot) in tensors.items():
        begin, end = end, end + len(snapshot._bytes())
        dtype = table()[snapshot.dtype_name].safetensors
        shape = list(snapshot.shape)
        if dtype == "F4":  # the format counts values, torch bytes of two
            shape = [*shape[:-1], 2 * shape[-1]] if shape else [2]
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [begin, end],
        }
        about["tensors"][name] = _about(series, snapshot)
    steps = {snapshot.step for _, snapshot in tensors.values()}
    if len(steps) == 1 and None not in steps:  # the format of a file has one place for it
        about["step"] = steps.pop()
    metadata = {"format": "pt", "cgdebug": json.dumps(about)}
    text = json.dumps({"__metadata__": metadata, **header}).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for _, snapshot in tensors.values():
        file.write(snapshot._bytes())


def _key_of(name: str, tensors: dict) -> str:
    """The format has an entry of its own called "__metadata__"; "probe" in ours has the name."""
    key = name
    while key == "__metadata__" or (key != name and key in tensors):
        key += "@"
    return key


def _about(series, snapshot) -> dict:
    stats = {
        name: value if math.isfinite(value) else repr(value)
        for name, value in vars(snapshot.stats).items()
        if name not in ("xor_hash", "ordered_hash") and value is not None
    }
    return {
        "probe": series.name,
        "session": series.session,
        "invocation": series.invocation,
        "capture": series.graph_id,
        "graph": series.graph,
        "graph_is_given": int(series.graph_is_given),
        "iteration": snapshot.iteration,
        "serial": snapshot.serial,
        "order": series.graph_order,
        "part": series.part_text,
        "timestamp_ns": snapshot.timestamp_ns,
        "hash": f"{snapshot.hash:016x}" if snapshot.hash is not None else None,
        "stats": stats,
    }
