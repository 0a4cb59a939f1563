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
    said = process.communicate(timeout=300)[1]
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
    assert process.wait(120) == 0, process.stderr.read()
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
    assert process.wait(120) == 0, process.stderr.read()
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


@pytest.fixture
def hasty(monkeypatch):
    """An uploader of this process, which tries everything once."""
    monkeypatch.setattr(_upload, "_ATTEMPTS", 1)
    return _upload.Uploader


def test_another_recording_is_never_written_over(tmp_path):
    path = write(tmp_path / "a.cgrec")
    other = write(tmp_path / "other" / "a.cgrec", replays=2)
    url = f"file://{tmp_path}/there/a.cgrec"
    assert copy_of(path, url)[0] == 0
    manifest = tmp_path / "there" / "a.cgrec" / _upload.MANIFEST
    for text in (manifest.read_text(), "{"):  # also if it was cut off
        manifest.write_text(text)
        code, said = copy_of(other, url)
        assert code == 3 and f"{url} holds another recording" in said, said
        assert cgdebug.open(url).diff(path).ok
    manifest.unlink()
    assert copy_of(other, url)[0] == 3 and cgdebug.open(url).diff(path).ok


def test_upload_json_that_a_crash_cut_off_is_written_anew(tmp_path):
    path, url = write(tmp_path / "a.cgrec"), f"file://{tmp_path}/there/a.cgrec"
    assert copy_of(path, url)[0] == 0
    manifest = tmp_path / "there" / "a.cgrec" / _upload.MANIFEST
    for text in ("", '{"segments": ', "[]", '{"segments": []}'):
        manifest.write_text(text)
        assert copy_of(path, url)[0] == 0
        assert json.loads(manifest.read_text())["complete"] is True


def test_a_segment_that_vanished_behind_the_url_is_copied_again(tmp_path):
    path, url = write(tmp_path / "a.cgrec"), f"file://{tmp_path}/there/a.cgrec"
    assert copy_of(path, url)[0] == 0
    (tmp_path / "there" / "a.cgrec" / "segment-000001.cgd").unlink()
    code, said = copy_of(path, url)
    assert code == 0 and " 0 bytes" not in said and cgdebug.open(url).complete


def test_a_segment_that_was_deleted_before_it_was_copied_is_missing(tmp_path):
    path, url = tmp_path / "a.cgrec", f"file://{tmp_path}/there/a.cgrec"
    write(path)
    (path / "segment-000001.cgd").rename(path / "segment-000002.cgd")
    code, said = copy_of(path, url)
    assert code == 3 and f"not there: {url}/segment-000001.cgd" in said


def test_a_recording_that_cannot_be_copied_costs_no_other(tmp_path, hasty, capfd):
    for rank in range(3):
        write(tmp_path / "runs" / f"r{rank}.cgrec", rank=rank)
    url = f"file://{tmp_path}/there"
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "r0.cgrec").write_text("a file where a folder must be")
    assert hasty(tmp_path / "runs", url).run(follow=False) == 3
    said = capfd.readouterr().err
    assert f"not there: {url}/r0.cgrec/segment-000001.cgd" in said and "r1.cgrec" not in said
    for rank in (1, 2):
        assert cgdebug.open(f"{url}/r{rank}.cgrec").complete


def test_a_segment_that_changed_and_cannot_be_copied_again_is_not_done(
    tmp_path, hasty, monkeypatch
):
    path, url = tmp_path / "a.cgrec", f"file://{tmp_path}/there/a.cgrec"
    write(path)
    uploader = hasty(path, url)
    assert uploader.run(follow=False) == 0
    os.utime(path / "segment-000001.cgd")

    def fail(*_):
        raise OSError("no route")

    monkeypatch.setattr(_upload.Copy, "_put", fail)
    assert uploader.run(follow=False) == 3


def test_ctrl_c_ends_it_after_the_segment_that_is_being_copied(tmp_path, hasty, monkeypatch):
    for rank in range(3):
        write(tmp_path / "runs" / f"r{rank}.cgrec", rank=rank)
    uploader = hasty(tmp_path / "runs", f"file://{tmp_path}/there")
    put = _upload.Copy._put

    def stopped(*arguments):
        put(*arguments)
        uploader._stopped = True

    monkeypatch.setattr(_upload.Copy, "_put", stopped)
    assert uploader.run(follow=False) == 3
    assert len(list((tmp_path / "there").glob("*/segment-*"))) == 1
    # A reader of the folder knows of the others.
    r = cgdebug.open(f"file://{tmp_path}/there")
    assert r.ranks == [0] and not r.complete
    assert f"{tmp_path}/there/r2.cgrec" in " ".join(r.missing)


def test_it_runs_where_python_trusts_no_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    url = f"file://{tmp_path}/there/a.cgrec"
    code, said = copy_of(write(tmp_path / "a.cgrec"), url)
    assert code == 0, said


def test_what_would_be_gone_at_once_is_no_place(tmp_path):
    code, said = copy_of(write(tmp_path / "a.cgrec"), "memory://runs/a.cgrec")
    assert code == 2 and "Type another URL" in said


def test_a_protocol_that_nobody_knows_is_refused_at_once(tmp_path):
    code, said = copy_of(write(tmp_path / "a.cgrec"), "nosuch://bucket/a.cgrec")
    assert code == 2 and "tries again" not in said, said
    assert "cannot copy to nosuch://bucket/a.cgrec: Protocol not known: nosuch." in said
    assert "still being written" not in said


def test_run_ends_if_its_daemon_died_before_anything_was_recorded(own_daemon, tmp_path):
    daemon = own_daemon()
    program = [find_program("cgdebug-cli"), "--socket", daemon.socket, "--no-spawn", "run"]
    program += ["--no-live", "-o", f"{tmp_path}/a.cgrec", "--upload", f"file://{tmp_path}/there"]
    program += ["--", "sh", "-c", f"kill -9 {daemon.process.pid}"]
    assert subprocess.run(program, capture_output=True, timeout=300).returncode != 0


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
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    there = cgdebug.open(url)
    assert there.complete and there["x"].replays == list(range(1, 41)), done.stderr
    assert len(_upload.segments_of(tmp_path / "there" / "a.cgrec")) > 5
    assert there.diff(tmp_path / "a.cgrec").ok
