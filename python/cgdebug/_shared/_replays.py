"""Ranges of replays, as callers give them."""

from __future__ import annotations

import operator

MAX_REPLAY = 2**64 - 1


def replay_range(replays: tuple[int, int] | None) -> tuple[int, int]:
    """(first, last); None means all. Fails: ValueError."""
    if replays is None:
        return 1, MAX_REPLAY
    try:
        first, last = map(operator.index, replays)
    except (TypeError, ValueError):
        first = last = 0
    if not 1 <= first <= last <= MAX_REPLAY:
        raise ValueError(f"replays is (first, last), counted from 1, not {replays!r}")
    return first, last
