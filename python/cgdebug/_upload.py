"""Copies recordings behind a URL while they are written: what `cgdebug-cli upload` runs, as a
program and without the rest of the package.

A segment is copied when nobody writes to it any more. Then upload.json, beside the segments there,
names it; a reader that finds less than a whole recording looks there for the reason. A copy that
was interrupted, by whatever, goes on where upload.json says when the same command is typed again.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import itertools
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
    # With PYTHONSAFEPATH it is not there.
    sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
    import _remote  # type: ignore[no-redef, import-not-found]

MANIFEST = "upload.json"
_POLL_S = 0.5
_PAUSES_S = (1, 2, 4, 8, 16, 30)  # between attempts; then the last one again and again
_ATTEMPTS = 6  # without --follow
_MOST_NAMED = 100  # of segments that are gone
_PATIENCE_S = 10  # without a recording, before it is said
_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux
_UUID = slice(16, 32)  # FileHeader::uuid


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


def _recording_of(header: bytes) -> str:
    """The number that all segments of a recording have in common (FileHeader in
    recording_layout.h); empty if its writer has not written it yet."""
    number = header[_UUID]
    return number.hex() if any(number) else ""


class Copy:
    """One recording and its copy behind `url`."""

    def __init__(self, recording: pathlib.Path, url: str):
        self.recording, self.url = recording, url
        self.done = False  # everything is there, and nobody writes to it
        self.refused = False  # another recording lies there
        self.bytes = 0
        self._begun = False
        self._manifest: dict[str, typing.Any] = {"segments": {}, "complete": False}

    def begin(self) -> None:
        """Finds what is there. If that is nothing, readers are told that something will come."""
        if self._begun:
            return
        written = self._read()
        known = written or {"segments": {}, "complete": False}
        # upload.json may be older than what lies beside it.
        there = {
            name: size
            for name, size, is_folder in _remote.entries(self.url) or []
            if not is_folder and name.startswith("segment-")
        }
        known["segments"] = {
            name: fact
            for name, fact in known["segments"].items()
            if isinstance(fact, dict) and name in there and fact.get("bytes") == there[name]
        }
        known["complete"] = known.get("complete") is True
        whole = next((name for name in sorted(there) if there[name] >= _UUID.stop), None)
        if not known.get("recording") and whole is not None:
            known["recording"] = _recording_of(_remote.read(f"{self.url}/{whole}", 0, _UUID.stop))
        self._manifest = known
        self._check(known)
        if written is None:
            self._save(complete=False)
        self._begun = True

    def go_on(self, is_stopped: typing.Callable[[], bool]) -> None:
        """Copies what can be copied and is not there yet.

        Fails: UploadError: another recording lies there; anything that the store or the disk may
        say.
        """
        self.done = False
        # Asked first: what is closed after this is copied in the next round.
        growing = is_being_written(self.recording)
        segments = segments_of(self.recording)
        self.begin()
        manifest = self._manifest
        for segment in segments[:-1] if growing else segments:
            status = segment.stat()
            fact = {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
            if manifest["segments"].get(segment.name) == fact:
                continue
            if is_stopped():
                return
            # A daemon that goes on with a recording changes the segment that another one left. And
            # who copies another recording to this place must find ours.
            if manifest["complete"] or not manifest.get("recording"):
                self._save(complete=False)
            self._put(segment, status)
            manifest["segments"][segment.name] = fact
            self._save(complete=False)
            self.bytes += status.st_size
        if growing or not segments:
            return
        if not manifest["complete"]:
            self._save(complete=True)
        self.done = True

    def missing(self) -> list[str]:
        """The segments that are not known to be there, also those that are not here any more."""
        there = self._manifest["segments"]
        here = [path.name for path in segments_of(self.recording)]
        numbers = [int(name[8:-4]) for name in here if name[8:-4].isdecimal()]
        every = (f"segment-{number:06}.cgd" for number in range(1, max(numbers, default=0)))
        not_there = [name for name in here if name not in there]
        gone = (name for name in every if name not in there and name not in not_there)
        return [*itertools.islice(gone, _MOST_NAMED), *not_there]

    def _read(self) -> dict[str, typing.Any] | None:
        """What upload.json says; None if it is not there, or was cut off."""
        files, path = _remote.filesystem(self.url)
        try:
            text = files.cat_file(f"{path}/{MANIFEST}")
        except FileNotFoundError:
            return None
        try:
            known = json.loads(text)
        except ValueError:
            return None
        is_whole = isinstance(known, dict) and isinstance(known.get("segments"), dict)
        return known if is_whole else None

    def _check(self, known: dict[str, typing.Any]) -> None:
        """Fails: UploadError: `known` is of another recording."""
        segments = segments_of(self.recording)
        own = ""
        if segments:
            with open(segments[0], "rb") as file:
                own = _recording_of(file.read(_UUID.stop))
        there = known.get("recording")
        if there and own and there != own:
            raise UploadError(
                f"{self.url} holds another recording (from {known.get('from', 'elsewhere')}), "
                f"which stays. Type another URL for {self.recording}"
            )
        self._manifest["recording"] = own or there or ""

    def _save(self, complete: bool) -> None:
        # Another process may have begun to copy another recording to the same place.
        self._check(self._read() or {})
        manifest = self._manifest | {
            "complete": complete,
            "from": f"{socket.gethostname()}:{self.recording.absolute()}",
            "written": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        }
        files, path = _remote.filesystem(self.url)
        files.makedirs(path, exist_ok=True)
        files.pipe_file(f"{path}/{MANIFEST}", json.dumps(manifest, indent=1).encode())
        self._manifest.update(manifest)

    def _put(self, segment: pathlib.Path, before: os.stat_result) -> None:
        files, path = _remote.filesystem(self.url)
        target = f"{path}/{segment.name}"
        files.put_file(str(segment), target)
        files.invalidate_cache()
        there = files.info(target)["size"]
        if there != before.st_size:
            raise OSError(f"{there} of {before.st_size} bytes have arrived")
        after = segment.stat()
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise OSError(f"{segment} changed while it was copied")


class Uploader:
    """`folder`: a recording, or a folder of recordings, which may grow."""

    def __init__(self, folder: pathlib.Path, url: str):
        self.folder, self.url = folder, url.rstrip("/")
        self._copies: dict[pathlib.Path, Copy] = {}
        self._stopped = False

    def stop(self, number: int, _: object) -> None:
        """Handles a signal. Of the same signal, the next one ends this process."""
        self._stopped = True
        signal.signal(number, signal.SIG_DFL)
        if number == signal.SIGINT:
            say("stops after this segment; Ctrl-C again stops at once")

    def run(self, follow: bool) -> int:
        """The exit code: 0 when everything is there, 3 when something is not."""
        failures = 0
        patience = time.monotonic() + _PATIENCE_S
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
                if last:
                    return self._finish()
                self._sleep(pause)
                copied = False
            whole = self.folder.name.endswith(".cgrec") and all(
                copy.done or copy.refused for copy in self._copies.values()
            )
            if self._stopped or (not failures and (not follow or (whole and self._copies))):
                return self._finish()
            if not self._copies and not failures and time.monotonic() > patience:
                patience = float("inf")
                say(f"there is no recording in {self.folder} yet; waits for one")
            if not copied and not failures:
                self._sleep(_POLL_S)

    def _round(self) -> bool:
        """Whether it copied anything. Fails: one of them failed, after all were tried."""
        for recording in recordings_in(self.folder) if self.folder.exists() else []:
            is_itself = recording == self.folder
            url = self.url if is_itself else f"{self.url}/{recording.name}"
            self._copies.setdefault(recording, Copy(recording, url))
        before = sum(copy.bytes for copy in self._copies.values())
        # Readers of a folder must know of each recording before one takes all the time.
        errors = [self._try(copy, copy.begin) for copy in self._copies.values()]
        for copy in self._copies.values():
            go_on = functools.partial(copy.go_on, lambda: self._stopped)
            errors.append(self._try(copy, go_on))
        if failed := next(filter(None, errors), None):
            raise failed
        return sum(copy.bytes for copy in self._copies.values()) > before

    @staticmethod
    def _try(copy: Copy, do: typing.Callable[[], None]) -> Exception | None:
        """Why it failed and is to be tried again."""
        if copy.refused or not copy.recording.exists():
            return None
        try:
            do()
        except UploadError as error:
            say(str(error))
            copy.refused = True
        except Exception as error:
            return error
        return None

    def _finish(self) -> int:
        if not self._copies:
            say(f"there is no recording in {self.folder}")
            return 4
        copies = [copy for copy in self._copies.values() if not copy.refused]
        missing = [f"{copy.url}/{name}" for copy in copies for name in copy.missing()]
        growing = [str(copy.recording) for copy in copies if not copy.done]
        bytes_ = sum(copy.bytes for copy in copies)
        say(f"{len(copies)} recording(s), {bytes_} bytes copied to {self.url}")
        for what in missing:
            say(f"not there: {what}")
        for recording in growing:
            is_growing = is_being_written(pathlib.Path(recording))
            say(f"{recording} " + ("is still being written" if is_growing else "is not all there"))
        if missing or growing:
            say(f"to go on: cgdebug-cli upload {self.folder} {self.url} --follow")
        return 3 if missing or growing or len(copies) < len(self._copies) else 0

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stopped and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))


def say(text: str) -> None:
    text = _remote.hidden(text)
    # If nobody reads it, or the disk is full, the copy goes on.
    with contextlib.suppress(OSError, RuntimeError):
        print(f"cgdebug-cli upload: {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="cgdebug-cli upload", add_help=False)
    parser.add_argument("folder")
    parser.add_argument("url")
    parser.add_argument("--follow", action="store_true")
    arguments = parser.parse_args()
    if arguments.url.startswith("memory://"):
        say(f"{arguments.url} would be gone when this process ends. Type another URL")
        return 2
    try:
        _remote.filesystem(arguments.url)
    except (ImportError, ValueError) as error:  # no later attempt would find its protocol
        is_unknown = str(error).startswith("Protocol not known")
        known = ". Type one that fsspec knows: s3://, gs://" if is_unknown else ""
        say(f"cannot copy to {arguments.url}: {error}{known}")
        return 2
    except Exception:  # the store does not answer: run() says so and tries again
        pass
    uploader = Uploader(pathlib.Path(arguments.folder), arguments.url)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, uploader.stop)
    return uploader.run(arguments.follow)


if __name__ == "__main__":
    _remote.forget_this_folder()
    sys.exit(main())
