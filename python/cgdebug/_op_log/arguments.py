"""What ops were given, as rows say it: "self=#3.t(), dim=1", with the views between rows."""

from __future__ import annotations

import torch

from . import names, written
from .calls import Call, part_of
from .details import Details, text_of, type_of
from .memory import Memory
from .rows.row import UNKNOWN

EMPTY = -1  # in the place of a row: nobody has written the memory yet
_SAME_PART = frozenset({"alias", "detach", "lift_fresh"})  # views that a read does not name
_MAX_VIEW_TEXT = 200
_MAX_PARTS = 256  # of one memory, whose views are known


class Arguments:
    """Knows of each memory by which views its parts were made from what a row shows.

    log: only its rows are named

    Thread: as the recorder that has it.
    """

    def __init__(self, log, module_names: names.ModuleNames):
        self._log = log
        self._names = module_names
        self._apart = ("", "")  # the newest op on DTensors, and what it was given
        self.begin_run(Memory())

    def begin_run(self, rows: Memory[int]) -> None:
        """rows: the row that wrote a memory last, or UNKNOWN, or EMPTY."""
        self._rows = rows
        self._views: Memory[dict[tuple, str]] = Memory()  # by part of it: how it was made
        self._new_views: list[str] = []  # since the newest row

    def takes_apart(self, plan: written.Plan, args, kwargs) -> None:
        """A type of tensors is about to call the ops that this one is made of, on its parts."""
        shown = [
            f"{name}={type_of(one)} {names.placements_of(one)}"
            for name, one in written.given(plan, args, kwargs).items()
            if isinstance(one, torch.Tensor) and names.placements_of(one)
        ]
        self._apart = (plan.name, ", ".join(shown)) if shown else ("", "")

    def details_of(self, call: Call) -> Details:
        details = Details.of(call.place.line)
        if not details.placements and call.plan.name == self._apart[0]:
            details.placements, self._apart = f"on DTensors: {self._apart[1]}", ("", "")
        text_of_tensor = self.text_of
        details.arguments = [
            (name, text_of(value, text_of_tensor)) for name, value in call.given().items()
        ]
        return details

    def text_of(self, tensor: torch.Tensor) -> str:
        """ "#3.t()": the row that shows what is in the tensor, and the views that lie between."""
        if not written.storage_of(tensor):
            return type_of(tensor)
        row = self._rows.get(tensor)
        made = (self._views.get(tensor) or {}).get(part_of(tensor))
        if row == EMPTY:
            return f"empty {type_of(tensor)}"
        if row is None or row == UNKNOWN or row > len(self._log.rows):  # no row has it
            name = self._names.parameter_at(tensor)
            return f"{name or '?'}{made or ''}" if name or made else f"? {type_of(tensor)}"
        return f"memory of #{row}" if made is None else f"#{row}{made}"

    def wrote(self, tensor: torch.Tensor) -> None:
        """A row shows the tensor: whoever reads a part of it has viewed that."""
        self._views.set(tensor, {part_of(tensor): ""})

    def viewed(self, call: Call, outputs: list[tuple[int, torch.Tensor]]) -> None:
        """The op has made views of memory: the reads of later rows say how."""
        of = {
            written.storage_of(tensor): tensor
            for argument in call.arguments
            for tensor in argument.tensors
        }
        rest = list(call.given().values())
        while rest and any(rest[0] is one for one in of.values()):
            rest.pop(0)
        given = ", ".join(text_of(value, type_of) for value in rest)
        for place, tensor in outputs:
            storage = written.storage_of(tensor)
            if not storage or storage not in of:
                continue
            source = of[storage]
            text = f".{call.plan.base}({given})" + f"[{place}]" * (len(outputs) > 1)
            self._new_views.append(f"{self.text_of(source)}{text} -> {type_of(tensor)}")
            if call.plan.base in _SAME_PART:
                continue
            parts = self._views.get(tensor) or {}
            made = parts.get(part_of(source), "") + text
            if len(made) <= _MAX_VIEW_TEXT and len(parts) < _MAX_PARTS:
                parts.setdefault(part_of(tensor), made)
                self._views.set(tensor, parts)

    def take_views(self) -> list[str]:
        """Those that were made since the newest row."""
        views, self._new_views = self._new_views, []
        return views
