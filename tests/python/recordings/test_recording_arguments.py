"""Impossible arguments of recordings."""

import numpy
import pytest
import recording_writer

import cgdebug
from written_recordings import write


def test_an_invalid_replay_or_tolerance_is_refused_with_a_sentence(tmp_path):
    r = cgdebug.open(write(tmp_path / "a.cgrec"))
    for replay in (0, -1, 1 << 64):
        with pytest.raises(ValueError, match="replays count from 1"):
            r.replay(replay)
    with pytest.raises(TypeError, match="integer"):
        r["x"][1.5:3]
    with pytest.raises(ValueError, match=r"replays is \(first, last\)"):
        r.export("csv", tmp_path / "s.csv", replays=5)
    with pytest.raises(ValueError, match="float"):
        r.diff(r, rtol="a")


def test_values_that_are_not_contiguous_are_refused(tmp_path):
    writer = recording_writer.Writer(str(tmp_path / "a.cgrec"))
    slot = writer.add_slot(writer.add_session("0" * 32, "job", -1), "x", "float32", (2,))
    with pytest.raises(ValueError, match="not contiguous"):
        writer.append(slot, 1, numpy.arange(4, dtype="float32")[::2])
