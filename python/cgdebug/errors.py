"""The exceptions of cgdebug. A message says what happened and what to type next."""

from __future__ import annotations


class TensorDebugError(Exception):
    """Base of the errors below."""


class TensorCompareMismatchError(TensorDebugError, AssertionError):
    """A snapshot differs from what `TensorCompare` expected. A failure is sticky.

    `replay_index` (from 1) and `invocation_index` name the first snapshot that failed.
    """

    def __init__(
        self, message: str, probe_name: str = "", replay_index: int = 0, invocation_index: int = 0
    ):
        super().__init__(message)
        self.probe_name = probe_name
        self.replay_index = replay_index
        self.invocation_index = invocation_index

    def __reduce__(self):
        return (type(self), (str(self), self.probe_name, self.replay_index, self.invocation_index))


class TensorNotComparedError(TensorDebugError, RuntimeError):
    """Not every snapshot was compared, so nobody can say "same": there was no daemon, a deadline
    passed, snapshots were lost, or nothing was ever replayed."""


class FoundError(TensorDebugError, AssertionError):
    """`cgdebug.check()` or `step()` found what it looks for. `kind` is "nan", "inf" or "mismatch";
    the message names probe, replay and place, and says what to type."""

    def __init__(self, message: str, kind: str = ""):
        super().__init__(message)
        self.kind = kind

    def __reduce__(self):
        return (type(self), (str(self), self.kind))


class NotCheckedError(TensorDebugError, RuntimeError):
    """`cgdebug.check()` found nothing, but not every snapshot was looked at."""


class NativeExtensionUnavailableError(TensorDebugError, RuntimeError):
    """The native module or the torch op library is missing or does not load."""

    def __init__(self, problem: str, fix: str = ""):
        super().__init__(f"{problem} Type: {fix}" if fix else problem)
        self.problem, self.fix = problem, fix


class RecordingError(TensorDebugError, RuntimeError):
    """A recording or another source cannot be read, or cannot do what was asked."""


class NothingMatchedError(RecordingError):
    """A recording has none of the probes, replays or ranks that were asked for."""


class DaemonError(TensorDebugError, RuntimeError):
    """The daemon refused a request.

    `code` is its reason ("no_probe", "no_session", "no_snapshot", "bad_request", "version",
    "too_large", "internal"), `close` has names that resemble the one asked for.
    """

    def __init__(self, message: str, code: str = "unknown", close: tuple = ()):
        super().__init__(message)
        self.code = code
        self.close = tuple(close)

    def __reduce__(self):
        return (type(self), (str(self), self.code, self.close))
