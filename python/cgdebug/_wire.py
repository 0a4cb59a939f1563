"""Frames over the daemon's Unix socket, and where that socket is."""

from __future__ import annotations

import collections.abc
import errno
import fcntl
import os
import pathlib
import shutil
import socket
import stat
import struct
import subprocess
import sys
import time
import typing

PROTOCOL = 2
_HEADER = struct.Struct("<IHHQ")  # body bytes, kind, flags, request id
_REQUEST, _RESPONSE, _PAYLOAD = 1, 2, 3
_MORE = 1
_MAX_BODY_BYTES = {_RESPONSE: 16 << 20, _PAYLOAD: 4 << 20}
_DESCRIPTOR_SET = pathlib.Path(__file__).parent / "cgdebug.fds"
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux
_START_AGAIN_AFTER_S = 0.3
_messages: dict[str, typing.Any] = {}


class ConnectionLost(ConnectionError):
    """The daemon went away in the middle of it."""


def message_class(name: str) -> typing.Any:
    """A class of proto/control.proto, built at run time: generated code is tied to one protobuf
    version, the descriptor set is not."""
    if not _messages:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        files = descriptor_pb2.FileDescriptorSet.FromString(_DESCRIPTOR_SET.read_bytes()).file
        pool = descriptor_pool.DescriptorPool()
        for file in files:
            pool.Add(file)
        if hasattr(message_factory, "GetMessageClass"):  # protobuf 4.22 and later
            make = message_factory.GetMessageClass
        else:
            make = message_factory.MessageFactory(pool).GetPrototype
        for file in files:
            for message in file.message_type:
                _messages[message.name] = make(
                    pool.FindMessageTypeByName(f"{file.package}.{message.name}")
                )
    return _messages[name]


def request(kind: str, **fields):
    """A Request with its `kind` set, even when every field has its default."""
    message = message_class("Request")()
    part = getattr(message, kind)
    part.SetInParent()
    for name, value in fields.items():
        _assign(part, name, value)
    return message


def _assign(part, name: str, value) -> None:
    """Fails: TypeError, ValueError; protobuf's own text does not say which field it is about."""
    if isinstance(value, dict):
        for inner, setting in value.items():
            _assign(getattr(part, name), inner, setting)
        return
    field = part.DESCRIPTOR.fields_by_name.get(name)
    if field is not None and field.enum_type is not None and isinstance(value, str):
        value = field.enum_type.values_by_name[value].number
    try:
        if isinstance(value, list):
            getattr(part, name).extend(value)
        else:
            setattr(part, name, value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} cannot be {value!r}: {error}") from None


class Connection:
    """One connection, greeted. Thread: one at a time.

    Fails: ConnectionError, TimeoutError.
    """

    def __init__(self, path: str, timeout: float):
        self._path = path
        self._timeout = timeout
        self._last_id = 0
        self._pid = os.getpid()
        self._socket = _connect(path, timeout)
        self._is_open = True
        try:
            self._greet()
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> str:
        return self._path

    @property
    def is_open(self) -> bool:
        """Not in a forked child: its answers would come to whichever process reads first."""
        return self._is_open and self._pid == os.getpid()

    def close(self) -> None:
        self._is_open = False
        self._socket.close()

    def ask(self, message) -> tuple:
        """One request, one answer and the payload bytes that follow it."""
        try:
            return self._ask(message)
        except BaseException:  # Ctrl-C too: what still comes is not the answer to the next request
            self.close()
            raise

    def _ask(self, message) -> tuple:
        request_id = self._send(message)
        # A freeze takes as long as writing takes.
        is_slow = message.WhichOneof("kind") == "freeze"
        deadline = None if is_slow else time.monotonic() + self._timeout
        _, flags, body = self._receive(request_id, deadline, (_RESPONSE,))
        response = message_class("Response").FromString(body)
        payload = bytearray()
        if response.WhichOneof("kind") != "get":
            return response, payload
        wanted = response.get.payload_bytes
        while len(payload) < wanted:
            # Each frame is news of a daemon that is alive, so each has the whole time.
            deadline = time.monotonic() + self._timeout
            _, flags, body = self._receive(request_id, deadline, (_PAYLOAD,))
            payload += body
            if not flags & _MORE or len(payload) > wanted:
                break
        if len(payload) != wanted:
            raise ConnectionError(
                f"the daemon announced {wanted} payload bytes and sent {len(payload)}"
            )
        return response, payload

    def stream(self, message) -> collections.abc.Iterator:
        """One request and its answers until the last; waits without a deadline between them."""
        request_id = self._send(message)
        flags = _MORE
        while flags & _MORE:
            _, flags, body = self._receive(request_id, None, (_RESPONSE,))
            yield message_class("Response").FromString(body)

    def _greet(self) -> None:
        from . import __version__

        hello = request("hello", protocol=PROTOCOL, client="python", version=__version__)
        response, _ = self.ask(hello)
        if response.HasField("error"):
            raise ConnectionError(response.error.message)
        if response.hello.protocol != PROTOCOL:
            raise ConnectionError(
                f"this is cgdebug {__version__} (protocol {PROTOCOL}), the daemon at {self._path} "
                f"is {response.hello.version} (protocol {response.hello.protocol}). "
                f"Type: cgdebug-cli daemon stop   and run this again"
            )
        self.daemon_version = response.hello.version
        self.daemon_pid = response.hello.pid

    def _send(self, message) -> int:
        body = message.SerializeToString()
        self._last_id += 1
        self._socket.settimeout(self._timeout)
        try:
            self._socket.sendall(_HEADER.pack(len(body), _REQUEST, 0, self._last_id) + body)
        except OSError as error:
            raise self._lost(error) from error
        return self._last_id

    def _receive(self, request_id: int, deadline: float | None, kinds: tuple) -> tuple:
        size, kind, flags, answered = _HEADER.unpack(self._read(_HEADER.size, deadline))
        if kind not in kinds or size > _MAX_BODY_BYTES[kind] or answered != request_id:
            self.close()  # nothing says where the next frame begins
            raise ConnectionError(
                f"what listens at {self._path} does not speak cgdebug's protocol "
                f"(frame kind {kind}, {size} bytes)"
            )
        return kind, flags, self._read(size, deadline)

    def _read(self, size: int, deadline: float | None) -> bytes:
        buffer = bytearray(size)
        view, done = memoryview(buffer), 0
        while done < size:
            left = None if deadline is None else deadline - time.monotonic()
            try:
                if left is not None and left <= 0:
                    raise TimeoutError("timed out")
                self._socket.settimeout(left)
                count = self._socket.recv_into(view[done:])
            except OSError as error:
                raise self._lost(error) from error
            if count == 0:
                raise self._lost(None)
            done += count
        return bytes(buffer)

    def _lost(self, error: OSError | None) -> OSError:
        # Half a frame may have been read: the connection cannot go on.
        self.close()
        if isinstance(error, socket.timeout):
            return TimeoutError(
                f"the daemon at {self._path} did not answer within {self._timeout:g} s. "
                f"Type: cgdebug-cli daemon status"
            )
        why = f": {error.strerror or error}" if error else ""
        return ConnectionLost(
            f"the daemon at {self._path} closed the connection{why}. Type: cgdebug-cli daemon logs"
        )


# --- the socket -----------------------------------------------------------------------------------


def socket_path(explicit: str | None = None) -> str:
    """Where the daemon listens. A directory that was not named by the user must be a real one, the
    user's own and not writable by others: whoever may write it can pose as the daemon.

    Fails: ConnectionError.
    """
    chosen = explicit or os.environ.get("CGDEBUG_SOCKET", "")
    if chosen:
        return os.path.abspath(chosen)
    if marked := _marked_socket():
        return marked
    directory = _default_directory()
    _check_directory(directory)
    return f"{directory}/daemon.sock"


def ensure_daemon(explicit: str | None, timeout: float) -> None:
    """Starts a daemon, detached, when nobody listens on socket_path(explicit), and waits until
    one does.

    Fails: ConnectionError.
    """
    path = socket_path(explicit)
    try:
        _connect(path, timeout).close()
        return
    except ConnectionRefusedError:
        pass
    is_chosen = bool(explicit or os.environ.get("CGDEBUG_SOCKET"))
    command = [_find_daemon(), "--spawned", *(["--socket", path] if is_chosen else [])]
    log_path = f"{path[:-5] if path.endswith('.sock') else path}.log"
    process = _start(command, path, log_path)
    deadline = time.monotonic() + timeout
    start_again = time.monotonic() + _START_AGAIN_AFTER_S
    while True:
        try:
            _connect(socket_path(explicit), timeout).close()
            return
        except ConnectionRefusedError:
            # Exit 0: another daemon has the lock, or it went to the background. The other one may
            # have been about to end.
            if process.poll() == 0 and time.monotonic() > start_again:
                process = _start(command, path, log_path)
                start_again = time.monotonic() + _START_AGAIN_AFTER_S
            if process.poll() not in (None, 0):
                why = f"exited with {process.returncode}"
            elif time.monotonic() > deadline:
                why = f"accepted no connection within {timeout:g} s"
            else:
                time.sleep(0.005)
                continue
        raise ConnectionError(
            f"the daemon {why}; its log is {log_path}. "
            f"To see it start, type: cgdebug-daemon --foreground"
        )


def _start(command: list, path: str, log_path: str) -> subprocess.Popen:
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as log:
            return subprocess.Popen(
                command,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    except OSError as error:
        raise ConnectionError(
            f"cannot start the daemon {command[0]} on {path}: {error}. Type: cgdebug-cli doctor"
        ) from error


def _marked_socket() -> str:
    """Where the user's daemon listens, whatever XDG_RUNTIME_DIR says: it keeps a lock on a file
    beside the segments (daemon/core/base/daemon_mark.h). "" when there is none."""
    try:
        mark = os.open(
            f"/dev/shm/cgdebug-daemon-{os.geteuid()}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        )
    except OSError:
        return ""
    try:
        info = os.fstat(mark)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid():
            return ""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        if _FLOCK.unpack(fcntl.fcntl(mark, fcntl.F_GETLK, asked))[0] == fcntl.F_UNLCK:
            return ""
        path = os.fsdecode(os.pread(mark, 4096, 0))
        return path if path.startswith("/") else ""
    except OSError:
        return ""
    finally:
        os.close(mark)


def _connect(path: str, timeout: float) -> socket.socket:
    """Fails: ConnectionRefusedError when nobody listens, other ConnectionErrors."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(path)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        _, owner, _ = struct.unpack("3i", credentials)
        if owner != os.geteuid():
            raise ConnectionError(
                f"what listens at {path} runs as uid {owner}, not as uid "
                f"{os.geteuid()}; it is not your daemon"
            )
        return connection
    except (FileNotFoundError, ConnectionRefusedError) as error:
        connection.close()
        raise ConnectionRefusedError(
            errno.ECONNREFUSED,
            f"no cgdebug daemon listens at {path}. Type: cgdebug-cli daemon start   "
            f"or use cgdebug.connect(spawn=True); a probe that prints or compares starts one, too",
        ) from error
    except ConnectionError:
        connection.close()
        raise
    except OSError as error:
        connection.close()
        raise ConnectionError(f"cannot connect to the daemon at {path}: {error}") from error


def _default_directory() -> str:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        try:
            info = os.stat(runtime)
        except OSError:
            info = None
        if (
            info
            and stat.S_ISDIR(info.st_mode)
            and info.st_uid == os.geteuid()
            and not info.st_mode & 0o022
        ):
            return f"{runtime}/cgdebug"
    return f"/tmp/cgdebug-{os.geteuid()}"


def _check_directory(directory: str) -> None:
    try:
        info = os.lstat(directory)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(info.st_mode):
        problem = f"it is not a directory. Type: rm {directory}"
    elif info.st_uid != os.geteuid():
        problem = (
            f"it belongs to uid {info.st_uid}, not to uid {os.geteuid()}, who could pose as the "
            f"daemon. Type: export CGDEBUG_SOCKET=$HOME/.cgdebug.sock"
        )
    elif info.st_mode & 0o022:
        problem = f"others than its owner may write it. Type: chmod 0700 {directory}"
    else:
        return
    raise ConnectionError(f"refusing to use {directory} for the daemon's socket: {problem}")


def _find_daemon() -> str:
    """$CGDEBUG_DAEMON, beside this interpreter (an environment's bin), then PATH."""
    explicit = os.environ.get("CGDEBUG_DAEMON")
    beside = os.path.join(os.path.dirname(sys.executable or "/"), "cgdebug-daemon")
    found = explicit or (beside if os.access(beside, os.X_OK) else shutil.which("cgdebug-daemon"))
    if not found:
        raise ConnectionError(
            f"no daemon is running and cgdebug-daemon is neither at {beside} nor on "
            f"PATH. Install cgdebug in this environment"
        )
    return found
