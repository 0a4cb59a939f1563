"""What a row of an op log says beside its statistics, as readers get it: a JSON object."""

from __future__ import annotations

import json
import typing


def details_of(text: str) -> dict[str, typing.Any]:
    """Of the text that _op_log/details.py wrote; empty if there is none, or if it is damaged."""
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
