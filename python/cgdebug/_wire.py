"""Frames over the daemon's Unix socket."""

from __future__ import annotations

import collections.abc
import contextlib
import errno
import json
import os
import pathlib
import select
import socket
import struct
import time
import typing

from ._shared._reader import recording_module
from ._version import __version__

PROTOCOL = 3
_HEADER = struct.Struct("<IHHQ")  # body bytes, kind, flags, request id
_REQUEST, _RESPONSE, _PAYLOAD = 1, 2, 3
_MORE = 1
# Such a request takes as long as the disk takes, which may be any time.
_WAIT_FOR_DISK = ("freeze", "record_start", "record_stop")
_MAX_BODY_BYTES = {_RESPONSE: 16 << 20, _PAYLOAD: 4 << 20}
_DESCRIPTOR_SET = pathlib.Path(__file__).parent / "cgdebug.fds"
_messages: dict[str, typing.Any] = {}


class ConnectionLost(ConnectionError):
    """The daemon went away during a request or an answer."""


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
        """False in a forked child: answers would come to whichever process reads first."""
        return self._is_open and self._pid == os.getpid()

    def close(self) -> None:
        self._is_open = False
        self._socket.close()

    def interrupt(self) -> None:
        """Ends a `stream` that another thread reads, with ConnectionLost. Thread: any."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def ask(self, message) -> tuple:
        """One request, one answer and the payload bytes that follow it."""
        try:
            return self._ask(message)
        except BaseException:  # Ctrl-C too: what still comes is not the answer to the next request
            self.close()
            raise

    def _ask(self, message) -> tuple:
        request_id = self._send(message)
        may_wait = message.WhichOneof("kind") in _WAIT_FOR_DISK
        while may_wait and not self._has_answer():
            if not self._is_daemon_well():
                raise self._lost(TimeoutError("timed out"))
        deadline = time.monotonic() + self._timeout
        _, flags, body = self._receive(request_id, deadline, (_RESPONSE,))
        response = message_class("Response").FromString(body)
        payload = bytearray()
        if response.WhichOneof("kind") != "get":
            return response, payload
        wanted = response.get.payload_bytes
        while len(payload) < wanted:
            # Each frame shows that the daemon is alive, so each gets the whole timeout.
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

    def _has_answer(self) -> bool:
        """Waits for one, as long as the timeout."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(self._timeout * 1000))

    def _is_daemon_well(self) -> bool:
        """Whether it greets one that comes new."""
        try:
            Connection(self._path, self._timeout).close()
        except OSError:
            return False
        return True

    def stream(self, message, deadline: float | None = None) -> collections.abc.Iterator:
        """One request and its answers until the last one, or until the deadline."""
        request_id = self._send(message)
        flags = _MORE
        while flags & _MORE:
            _, flags, body = self._receive(request_id, deadline, (_RESPONSE,))
            yield message_class("Response").FromString(body)

    def _greet(self) -> None:
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
        device = response.hello.shm_device
        is_chosen = bool(os.environ.get("CGDEBUG_SOCKET")) or self._path != socket_path()
        if device and device != os.stat("/dev/shm").st_dev and not is_chosen:
            recording_module().refuse_other_container(self._path, response.hello.pid)
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

# Which socket belongs to the user's daemon, and who may listen there, is decided in C++:
# daemon/core/endpoint/runtime_dir.h. A user's daemon marks its socket in this folder.
_MARK_FOLDER = "/dev/shm"


def socket_path(explicit: str | None = None) -> str:
    """Where the daemon listens.

    Fails: ConnectionError for a directory in which others could pose as the daemon.
    """
    return recording_module().socket_path(explicit or "", _MARK_FOLDER)


def ensure_daemon(explicit: str | None, timeout: float) -> None:
    """Starts a daemon when nobody listens on socket_path(explicit), and waits until one does.

    Fails: ConnectionError.
    """
    recording_module().ensure_daemon(explicit or "", timeout, _MARK_FOLDER)


def ask_job(daemon: str, pid: int, question: dict, timeout: float) -> dict | None:
    """What a job answers by itself (_rewind/mailbox.py); None: it takes no questions, or is busy.

    daemon: the path of its socket"""
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(timeout)
            peer.connect(str(pathlib.Path(daemon).parent / f"ask-{pid}.sock"))
            peer.sendall(json.dumps(question).encode() + b"\n")
            with peer.makefile("rb") as answer:
                _, text, body = map(int, answer.readline().split())
                answer.read(text)
                return json.loads(answer.read(body))
    except (OSError, ValueError):
        return None


def _connect(path: str, timeout: float) -> socket.socket:
    """Fails: ConnectionRefusedError when nobody listens, other ConnectionErrors."""
    descriptor = recording_module().connect(path, timeout)
    if descriptor < 0:
        raise ConnectionRefusedError(
            errno.ECONNREFUSED,
            f"no cgdebug daemon listens at {path}. Type: cgdebug-cli daemon start   "
            f"or use cgdebug.connect(spawn=True); a probe that prints or compares starts one, too",
        )
    connection = socket.socket(fileno=descriptor)
    connection.settimeout(timeout)
    return connection
