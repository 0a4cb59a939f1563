"""What rows of eager calls say beside their statistics, call by call."""

from __future__ import annotations

import collections
import typing

if typing.TYPE_CHECKING:
    from ..details import Details
    from .row import Row

_MAX_DETAILS = 1 << 17  # different rows of eager calls whose details are told
_MAX_EXACT_CALLS = 16  # whose details are kept here


class CallDetails:
    """Rows of eager calls with the same texts share a table: what varies from call to call is said
    to vary, from the second value on. Of the newest calls all is kept.

    Thread: one at a time.
    """

    def __init__(self) -> None:
        # What the rows said at first, what of that has varied since, and how the first is told.
        self._told: dict[tuple, tuple[dict, set[str], str]] = {}
        self._of_calls: collections.OrderedDict[int, dict[int, Details]] = collections.OrderedDict()

    def text_of(self, row: Row) -> str:
        """As readers are told it."""
        key = (row.name, row.op, row.inputs, row.site, row.dtype, row.shape)
        now = row.details.parts()
        known = self._told.get(key)
        if known is None:
            if len(self._told) >= _MAX_DETAILS:
                return ""
            known = self._told[key] = (now, set(), row.details.to_json())
        first, varying, text = known
        if first == now and not varying:
            return text
        varying.update(part for part in {*first, *now} if first.get(part) != now.get(part))
        return row.details.to_json(varying)

    def keep(self, call: int, rows: list[Row]) -> None:
        self._of_calls[call] = {row.number: row.details for row in rows}
        while len(self._of_calls) > _MAX_EXACT_CALLS:
            self._of_calls.popitem(last=False)

    def of(self, call: int, number: int) -> Details | None:
        """Of a row of a call; None if they are not kept."""
        return self._of_calls.get(call, {}).get(number)
