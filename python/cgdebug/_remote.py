"""Recordings behind URLs (s3://, gs://, hf://, memory:// and whatever else fsspec knows), of which
only those bytes are fetched that are asked for."""

from __future__ import annotations

import os
import re
import select
import sys
import threading
import time
import typing

# As IsUrl() of remote_files.h.
_URL = re.compile(r"[A-Za-z0-9+.-]{2,}://")
_PAUSES_S = (0.2, 1.0)  # before the second and the third attempt
# Another attempt would fail in the same way.
_FINAL = (FileNotFoundError, PermissionError, ImportError, ValueError, NotImplementedError)

_PASSWORD = re.compile(r"([A-Za-z0-9+.-]{2,}://[^\s/?#@:'\"]*):[^\s/?#'\"]*(@[^\s/?#@'\"]*)")

_lock = threading.Lock()
# Up to the end of the host of a URL: what is shown -> what was typed. Another host may have the
# same user, and must not get this password.
_typed: dict[str, str] = {}
_sizes: dict[str, int] = {}  # by URL, as their folders were listed last
_fetched: dict[str, list[int]] = {}  # by recording: requests, bytes


class Fetched(typing.NamedTuple):
    """What was fetched of something that lies behind a URL."""

    requests: int
    bytes: int


def is_url(path: str) -> bool:
    return _URL.match(path) is not None


def hidden(text: str) -> str:
    """`text` with "***" instead of the passwords of its URLs, which filesystem() still knows."""

    def hide(match: re.Match) -> str:
        shown = f"{match[1]}:***{match[2]}"
        if shown != match[0]:
            with _lock:
                _typed[shown] = match[0]
        return shown

    return _PASSWORD.sub(hide, text)


def with_password(url: str) -> str:
    """What became `url` in hidden()."""
    with _lock:
        for shown, typed in _typed.items():
            if url.startswith(shown) and (url == shown or url[len(shown)] in "/?#"):
                return typed + url[len(shown) :]
    return url


def fetched(path: str) -> Fetched:
    """By this process since its start, of a recording or of all recordings in a folder."""
    path = path.rstrip("/")
    with _lock:
        counts = [
            count
            for folder, count in _fetched.items()
            if folder == path or folder.startswith(path + "/")
        ]
    return Fetched(sum(count[0] for count in counts), sum(count[1] for count in counts))


def filesystem(url: str) -> tuple[typing.Any, str]:
    """fsspec's file system, and the path there."""
    try:
        import fsspec
    except ImportError as error:
        raise ImportError(
            f"reading {hidden(url)} needs fsspec. Type: pip install fsspec"
        ) from error
    return fsspec.core.url_to_fs(with_password(url))


def entries(url: str) -> list[tuple[str, int, bool]] | None:
    """(name, bytes, whether it is a folder) of everything in a folder; None if there is none."""
    sizes: dict[str, int | None] = {}

    def ask():
        files, path = filesystem(url)
        path = path.rstrip("/")
        found = []
        sizes.clear()
        files.invalidate_cache()
        for entry in files.ls(path, detail=True):
            name = entry["name"].rstrip("/")
            is_folder = entry["type"] == "directory"
            if name.strip("/") == path.strip("/"):
                if is_folder or entry["name"].endswith("/"):
                    continue  # the folder's own mark in an object store
                raise NotADirectoryError(f"{url} is a file; only recordings are read from URLs")
            name = name.rsplit("/", 1)[-1]
            bytes_ = 0 if is_folder else _known_size(entry)
            if not is_folder:
                sizes[f"{url.rstrip('/')}/{name}"] = bytes_
            found.append((name, bytes_ or 0, is_folder))
        return found

    try:
        found = _try(ask, f"cannot list {url}")
    except FileNotFoundError:
        _count(url, 1, 0)
        return None
    _count(url, 1, 0)
    with _lock:
        for file, known in sizes.items():
            if known is None:
                _sizes.pop(file, None)
            else:
                _sizes[file] = known
    return found


def _known_size(entry: dict) -> int | None:
    """None where the store does not say it, or nonsense."""
    size = entry.get("size")
    return size if isinstance(size, int) and size >= 0 else None


def size(url: str) -> int:
    """Of a file, as the last listing of its folder said."""
    with _lock:
        if url in _sizes:
            return _sizes[url]

    def ask():
        files, path = filesystem(url)
        known = _known_size(files.info(path))
        if known is None:
            raise ValueError("the store does not say how large it is")
        return known

    return _try(ask, f"cannot look at {url}")


def read(url: str, offset: int, count: int) -> bytes:
    """Exactly `count` bytes."""

    def ask():
        files, path = filesystem(url)
        got = files.cat_file(path, start=offset, end=offset + count)
        if len(got) != count:
            raise OSError(f"it gave {len(got)} of {count} bytes")
        return got

    got = _try(ask, f"cannot fetch bytes {offset} to {offset + count} of {url}")
    _count(url.rsplit("/", 1)[0], 1, count)
    return got


def _try(ask: typing.Callable[[], typing.Any], what: str):
    for pause in (*_PAUSES_S, None):
        try:
            return ask()
        except FileNotFoundError:
            raise
        except Exception as error:
            if pause is None or isinstance(error, (*_FINAL, NotADirectoryError)):
                text = hidden(f"{what}: {type(error).__name__}: {error}")
                raise OSError(text) from error
        time.sleep(pause)


def _count(folder: str, requests: int, bytes_: int) -> None:
    with _lock:
        count = _fetched.setdefault(folder.rstrip("/"), [0, 0])
        count[0] += requests
        count[1] += bytes_


# --- for cgdebug-cli, which runs this file as a program -------------------------------------------


def _answer(request: dict) -> tuple[dict, bytes]:
    url = request["url"]
    try:
        if url.startswith("memory://"):
            raise OSError(f'only the process that wrote {url} can read it: cgdebug.open("{url}")')
        if request["do"] == "read":
            return {}, read(url, request["offset"], request["count"])
        return {"result": entries(url) if request["do"] == "entries" else size(url)}, b""
    except Exception as error:
        return {"error": str(error)}, b""


def _serve() -> None:
    """Answers requests from the socket that is standard input, until its other end is closed."""
    import json
    import signal
    import socket
    import struct

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the command, and that ends us
    peer = socket.socket(fileno=0)
    threading.Thread(target=_end_with, args=(peer,), daemon=True).start()
    with peer.makefile("rb") as requests:
        for line in requests:
            answer, values = _answer(json.loads(line))
            text = json.dumps(answer).encode()
            peer.sendall(struct.pack("<I", len(text)) + text + values)


def _end_with(peer) -> None:
    """Ends this process when the other end is closed, also while a store does not answer."""
    poll = select.poll()
    poll.register(peer, 0)  # a closed end is told always
    poll.poll()
    os._exit(0)


def forget_this_folder() -> None:
    """Of a program in this folder, which has modules whose names others may use."""
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [path for path in sys.path if not path or os.path.realpath(path) != here]


if __name__ == "__main__":
    forget_this_folder()
    _serve()
