"""CGDEBUG_PROBES: which probes of a job are switched on, without touching its code."""

from __future__ import annotations

import fnmatch
import os
import re


def is_selected(name: str, patterns: str | None = None) -> bool:
    """Whether `name` is among CGDEBUG_PROBES: globs with commas between them; "re:..." is a regular
    expression, "!..." excludes; unset or empty means every probe."""
    text = os.environ.get("CGDEBUG_PROBES", "") if patterns is None else patterns
    words = [word.strip() for word in text.split(",") if word.strip()]
    excludes = [word[1:] for word in words if word.startswith("!")]
    includes = [word for word in words if not word.startswith("!")]
    if any(_matches(word, name) for word in excludes):
        return False
    return not includes or any(_matches(word, name) for word in includes)


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("re:"):
        try:
            return re.search(pattern[3:], name) is not None
        except re.error as error:
            raise ValueError(
                f"CGDEBUG_PROBES: {pattern!r} is not a regular expression: {error}"
            ) from None
    return pattern == name or fnmatch.fnmatchcase(name, pattern)
