"""Loads the native reader of recordings, and says clearly why it does not load."""

from __future__ import annotations

import functools

from .. import _remote
from ..errors import NativeExtensionUnavailableError

INSTALL = "pip install --no-build-isolation .  # in its source tree; or install its wheel again"


@functools.cache
def recording_module():
    """The native reader of recordings; needs no torch.

    Fails: NativeExtensionUnavailableError.
    """
    try:
        from .. import _recording
    except ImportError as error:
        raise NativeExtensionUnavailableError(
            f"cgdebug's reader of recordings does not load: {error}.", INSTALL
        ) from error
    _recording.read_urls_with(_remote.entries, _remote.size, _remote.read)
    return _recording
