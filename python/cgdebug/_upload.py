"""Copies recordings behind a URL while they are written: what `cgdebug-cli upload` runs, as a
program and without the rest of the package.

A segment is copied when nobody writes to it any more. Then upload.json, beside the segments there,
names it; a reader that finds less than a whole recording looks there for the reason. A copy that
was interrupted, by whatever, goes on where upload.json says when the same command is typed again.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pathlib
import signal
import socket
import struct
import sys
import time
import typing

if __package__:
    from . import _remote
else:
    import _remote  # type: ignore[no-redef, import-not-found]

MANIFEST = "upload.json"
_POLL_S = 0.5
_PAUSES_S = (1, 2, 4, 8, 16, 30)  # between attempts; then the last one again and again
_ATTEMPTS = 6  # without --follow
_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux


class UploadError(Exception):
    """What could not be uploaded, in a sentence."""


def is_being_written(recording: pathlib.Path) -> bool:
    """As IsBeingWritten() of recording_files.h."""
    try:
        descriptor = os.open(recording / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        asked = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked)
    finally:
        os.close(descriptor)
    return struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK


def segments_of(recording: pathlib.Path) -> list[pathlib.Path]:
    return sorted(recording.glob("segment-*.cgd"), key=lambda path: (len(path.name), path.name))


def recordings_in(folder: pathlib.Path) -> list[pathlib.Path]:
    if folder.name.endswith(".cgrec") or segments_of(folder):
        return [folder]
    return sorted(path for path in folder.glob("*.cgrec") if path.is_dir())


class Copy:
    """One recording and its copy behind `url`."""

    def __init__(self, recording: pathlib.Path, url: str):
        self.recording, self.url = recording, url
        self.done = False  # everything is there, and nobody writes to it
        self.bytes = 0
        self._manifest: dict[str, typing.Any] | None = None

    def go_on(self) -> bool:
        """Copies what can be copied and is not there yet; whether it copied anything. Fails:
        anything that the store or the disk may say."""
        # Asked first: what is closed after this is copied in the next round.
        growing = is_being_written(self.recording)
        segments = segments_of(self.recording)
        manifest = self._load()
        copied = False
        for segment in segments[:-1] if growing else segments:
            status = segment.stat()
            fact = {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
            if manifest["segments"].get(segment.name) == fact:
                continue
            # A daemon that goes on with a recording changes the segment that another one left.
            if manifest["complete"]:
                self._save(manifest | {"complete": False})
            self._put(segment)
            manifest["segments"][segment.name] = fact
            self._save(manifest | {"complete": False})
            self.bytes += status.st_size
            copied = True
        self.done = not growing and bool(segments)
        if self.done and not manifest["complete"]:
            self._save(manifest | {"complete": True})
        return copied

    def missing(self) -> list[str]:
        """The segments that are not known to be there."""
        there = (self._manifest or {"segments": {}})["segments"]
        return [path.name for path in segments_of(self.recording) if path.name not in there]

    def _load(self) -> dict[str, typing.Any]:
        if self._manifest is None:
            files, path = _remote.filesystem(self.url)
            try:
                known = json.loads(files.cat_file(f"{path}/{MANIFEST}"))
            except FileNotFoundError:
                known = {"segments": {}, "complete": False}
                self._save(known)
            self._manifest = known
        return self._manifest

    def _save(self, manifest: dict[str, typing.Any]) -> None:
        files, path = _remote.filesystem(self.url)
        manifest = manifest | {
            "from": f"{socket.gethostname()}:{self.recording.absolute()}",
            "written": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        }
        files.makedirs(path, exist_ok=True)
        files.pipe_file(f"{path}/{MANIFEST}", json.dumps(manifest, indent=1).encode())
        self._manifest = manifest

    def _put(self, segment: pathlib.Path) -> None:
        files, path = _remote.filesystem(self.url)
        target = f"{path}/{segment.name}"
        files.put_file(str(segment), target)
        files.invalidate_cache()
        there = files.info(target)["size"]
        if there != segment.stat().st_size:
            raise OSError(f"{there} of {segment.stat().st_size} bytes have arrived")


class Uploader:
    """`folder`: a recording, or a folder of recordings, which may grow."""

    def __init__(self, folder: pathlib.Path, url: str):
        self.folder, self.url = folder, url.rstrip("/")
        self._copies: dict[pathlib.Path, Copy] = {}
        self._stopped = False

    def stop(self, *_: object) -> None:
        self._stopped = True

    def run(self, follow: bool) -> int:
        """The exit code: 0 when everything is there, 3 when something is not."""
        failures = 0
        while True:
            try:
                copied = self._round()
                failures = 0
            except Exception as error:
                failures += 1
                pause = _PAUSES_S[min(failures, len(_PAUSES_S)) - 1]
                last = not follow and failures >= _ATTEMPTS
                then = "gives up" if last else f"tries again in {pause} s"
                say(f"{type(error).__name__}: {error}; {then}")
                if last or isinstance(error, (ImportError, UploadError)):
                    return self._finish()
                self._sleep(pause)
                copied = False
            whole = self.folder.name.endswith(".cgrec") and all(
                copy.done for copy in self._copies.values()
            )
            if self._stopped or (not failures and (not follow or (whole and self._copies))):
                return self._finish()
            if not copied and not failures:
                self._sleep(_POLL_S)

    def _round(self) -> bool:
        recordings = recordings_in(self.folder) if self.folder.exists() else []
        copied = False
        for recording in recordings:
            is_itself = recording == self.folder
            url = self.url if is_itself else f"{self.url}/{recording.name}"
            copy = self._copies.setdefault(recording, Copy(recording, url))
            copied |= copy.go_on()
        return copied

    def _finish(self) -> int:
        if not self._copies:
            say(f"there is no recording in {self.folder}")
            return 4
        missing = [f"{c.url}/{name}" for c in self._copies.values() for name in c.missing()]
        growing = [str(copy.recording) for copy in self._copies.values() if not copy.done]
        bytes_ = sum(copy.bytes for copy in self._copies.values())
        say(f"{len(self._copies)} recording(s), {bytes_} bytes copied to {self.url}")
        for what in missing:
            say(f"not there: {what}")
        for recording in growing:
            say(f"{recording} is still being written, or was not looked at")
        if missing or growing:
            say(f"to go on: cgdebug-cli upload {self.folder} {self.url} --follow")
        return 3 if missing or growing else 0

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stopped and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))


def say(text: str) -> None:
    print(f"cgdebug-cli upload: {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="cgdebug-cli upload", add_help=False)
    parser.add_argument("folder")
    parser.add_argument("url")
    parser.add_argument("--follow", action="store_true")
    arguments = parser.parse_args()
    uploader = Uploader(pathlib.Path(arguments.folder), arguments.url)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, uploader.stop)
    return uploader.run(arguments.follow)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder has modules whose names others may use
    sys.exit(main())
