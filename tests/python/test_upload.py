"""cgdebug-cli upload: segments are copied when they are closed, however often it is interrupted."""

import json
import os
import pathlib
import subprocess
import sys

import numpy
import pytest
from test_recording import Writer

import cgdebug
from cgdebug import _upload
from cgdebug.errors import RecordingError
from conftest import find_program, wait_until

pytest.importorskip("fsspec")


def upload(*arguments, **options):
    program = [find_program("cgdebug-cli"), "upload", *map(str, arguments)]
    return subprocess.Popen(program, stderr=subprocess.PIPE, text=True, **options)


def copy_of(path, to):
    process = upload(path, to)
    said = process.communicate(timeout=60)[1]
    return process.returncode, said


def write(path, replays=3, rank=-1):
    writer = Writer(path, rank)
    for n in range(1, replays + 1):
        writer.add("x", n, numpy.full(50_000, n, "float32"))
    writer.close()
    return path


def test_a_folder_is_copied_and_read_from_there(tmp_path):
    for rank in range(2):
        write(tmp_path / "runs" / f"r{rank}.cgrec", rank=rank)
    url = f"file://{tmp_path}/there"
    code, said = copy_of(tmp_path / "runs", url)
    assert code == 0 and "2 recording(s)" in said, said
    there = cgdebug.open(url)
    assert there.complete and there.ranks == [0, 1] and there.fetched.requests > 0
    assert there.diff(tmp_path / "runs").ok
    # Once more: nothing is left to be copied.
    segment = tmp_path / "there" / "r0.cgrec" / "segment-000001.cgd"
    before = segment.stat().st_mtime_ns
    code, said = copy_of(tmp_path / "runs", url)
    assert code == 0 and "0 bytes copied" in said and segment.stat().st_mtime_ns == before


def test_what_is_still_written_is_copied_when_it_is_closed(tmp_path):
    path, url = tmp_path / "a.cgrec", f"file://{tmp_path}/there/a.cgrec"
    writer = Writer(path)
    writer.add("x", 1, numpy.ones(4, "float32"))
    process = upload(path, url, "--follow")
    manifest = tmp_path / "there" / "a.cgrec" / _upload.MANIFEST
    wait_until(manifest.exists, "the upload has begun")
    assert _upload.is_being_written(path)
    with pytest.raises(RecordingError, match="nothing of .* has been uploaded yet"):
        cgdebug.open(url)
    code, said = copy_of(path, url)
    assert code == 3 and "not there: " in said and "still being written" in said
    writer.close()
    assert not _upload.is_being_written(path)
    assert process.wait(30) == 0, process.stderr.read()
    assert json.loads(manifest.read_text())["complete"] is True
    assert cgdebug.open(url).complete


def test_a_half_uploaded_recording_says_what_is_missing(tmp_path):
    path = write(tmp_path / "a.cgrec")
    url = f"file://{tmp_path}/there/a.cgrec"
    assert copy_of(path, url)[0] == 0
    there = tmp_path / "there" / "a.cgrec"
    # As after the first of several segments: the file has no end yet.
    known = json.loads((there / _upload.MANIFEST).read_text())
    (there / _upload.MANIFEST).write_text(json.dumps(known | {"complete": False}))
    segment = there / "segment-000001.cgd"
    segment.write_bytes(segment.read_bytes()[:-256])
    r = cgdebug.open(url)
    assert not r.complete and "has not ended: 1 segment had arrived" in " ".join(r.missing)
    assert not r.check().ok and not r.check().to_dict()["complete"]


def test_an_upload_that_fails_is_said_and_tried_again(tmp_path):
    path = write(tmp_path / "a.cgrec")
    blocked = tmp_path / "there"
    blocked.write_text("a file where a folder must be")
    process = upload(path, f"file://{blocked}/a.cgrec", "--follow")
    said = process.stderr.readline()
    assert "tries again in 1 s" in said and "Error" in said, said
    blocked.unlink()
    assert process.wait(30) == 0, process.stderr.read()
    assert cgdebug.open(f"file://{blocked}/a.cgrec").complete


def test_an_uploader_that_was_killed_goes_on_where_it_was(tmp_path, monkeypatch):
    """Killed before each write into the store in turn."""
    path = write(tmp_path / "a.cgrec")
    program = f"""
import os, sys
sys.path.insert(0, {str(pathlib.Path(_upload.__file__).parent)!r})
import _upload, _remote, pathlib
left = int(sys.argv[1])
class Files:
    def __init__(self, real):
        self._real = real
    def __getattr__(self, name):
        global left
        if name in ("pipe_file", "put_file"):
            left -= 1
            if left < 0:
                os._exit(9)
        return getattr(self._real, name)
real = _remote.filesystem
_remote.filesystem = lambda url: (Files(real(url)[0]), real(url)[1])
sys.exit(_upload.Uploader(pathlib.Path(sys.argv[2]), sys.argv[3]).run(follow=False))
"""
    for nth in range(10):
        url = f"file://{tmp_path}/there{nth}/a.cgrec"
        first = subprocess.run([sys.executable, "-c", program, str(nth), str(path), url])
        if first.returncode == 0:
            break
        assert first.returncode == 9
        with pytest.raises(RecordingError) if nth < 2 else _nothing():
            assert not cgdebug.open(url).missing
        assert copy_of(path, url)[0] == 0
        assert cgdebug.open(url).complete
    assert nth == 4  # begun, segment, segment is named, whole


class _nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def test_run_copies_each_segment_when_it_is_full(daemon, tmp_path):
    job = tmp_path / "job.py"
    job.write_text(
        "import torch, cgdebug\n"
        "p = cgdebug.CudaGraphTensorProbe('x', [cgdebug.TensorRecord()], mode='always')\n"
        "for n in range(40):\n"
        "    p(torch.full((100_000,), float(n)))\n"
    )
    url = f"file://{tmp_path}/there/a.cgrec"
    program = [find_program("cgdebug-cli"), "--socket", daemon.socket, "run", "--no-live"]
    program += ["-o", f"{tmp_path}/a.cgrec", "--roll-size", "1M", "--upload", url]
    environment = {k: v for k, v in os.environ.items() if k != "CGDEBUG"}
    done = subprocess.run(
        [*program, "--", sys.executable, str(job)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    there = cgdebug.open(url)
    assert there.complete and there["x"].replays == list(range(1, 41)), done.stderr
    assert len(_upload.segments_of(tmp_path / "there" / "a.cgrec")) > 5
    assert there.diff(tmp_path / "a.cgrec").ok
