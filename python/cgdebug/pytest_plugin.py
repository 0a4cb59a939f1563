"""pytest: keeps the recordings of a failed test and prints the command that shows them.

Loaded by itself where cgdebug is installed. Whatever a test records below its `tmp_path`, or at the
path that the fixture `cgdebug_recording` gives, is copied when the test fails:

    def test_layer(cgdebug_recording):
        run_and_record(cgdebug_recording)       # a path NAME.cgrec that does not exist yet
        assert_recordings_close(cgdebug_recording, "tests/golden.cgrec")
"""

from __future__ import annotations

import pathlib
import re
import shlex
import shutil
import zlib

import pytest

_KEEP = "--cgdebug-keep"


def pytest_addoption(parser):
    parser.getgroup("cgdebug").addoption(
        _KEEP,
        default="cgdebug-failed",
        metavar="DIR",
        help="where recordings of failed tests are kept (default: cgdebug-failed); '' keeps none",
    )


@pytest.fixture
def cgdebug_recording(tmp_path, request) -> pathlib.Path:
    """A path for a recording of this test, kept when the test fails."""
    return tmp_path / f"{_file_name(request.node.name)}.cgrec"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    keep = item.config.getoption(_KEEP)
    if not report.failed or not keep:
        return
    tmp_path = getattr(item, "funcargs", {}).get("tmp_path")
    if tmp_path is None:
        return
    lines = []
    for recording in sorted(pathlib.Path(tmp_path).rglob("*.cgrec")):
        if not any(recording.glob("segment-*")):
            continue
        place = recording.relative_to(tmp_path)  # others may have the same name
        kept = pathlib.Path(keep) / _folder_of(item.nodeid) / place
        try:
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(recording, kept)
        except OSError as error:
            lines.append(f"{recording} could not be kept: {error}")
            continue
        lines.append(f"kept {kept}; see: cgdebug-cli check {shlex.quote(str(kept))}")
    if lines:
        report.sections.append(("cgdebug", "\n".join(lines)))


def _folder_of(nodeid: str) -> str:
    """Not that of another test, whose id may differ in a blank alone."""
    return f"{_file_name(nodeid)}-{zlib.crc32(nodeid.encode()):08x}"


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-")
