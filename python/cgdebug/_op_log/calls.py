"""One call of an op, as long as it lasts: what it was given, and the rows that show it."""

from __future__ import annotations

import typing

import torch

from . import names, written
from .rows.row import UNKNOWN

if typing.TYPE_CHECKING:
    from .collectives import Collective
    from .extras import OpCall


class Link:
    """An argument that was read, and the row that shows it. None: it will be known after the op."""

    __slots__ = ("argument", "place", "row", "tensor")

    def __init__(self, argument: written.Tensors, place: int, row: int | None, tensor=None):
        self.argument, self.place, self.row, self.tensor = argument, place, row, tensor


class Call:
    """storages: of all its arguments; stores: of these, those that get no row
    told: what hooks were told
    overwritten: results of collectives that nobody has read, and the op overwrites"""

    __slots__ = (
        "args",
        "arguments",
        "kwargs",
        "links",
        "overwritten",
        "place",
        "plan",
        "storages",
        "stores",
        "told",
    )

    def __init__(self, plan: written.Plan, arguments: list[written.Tensors], args=(), kwargs=()):
        self.plan, self.arguments = plan, arguments
        self.args, self.kwargs = args, kwargs
        self.told: OpCall | None = None
        self.place = names.Place("fwd", "", names.Line())
        self.links: list[Link] = []
        self.overwritten: list[Collective] = []
        self.storages: set[int] = set()
        self.stores: set[int] = set()

    def inputs_of(self, place: int, count: int) -> list[int]:
        """What the output at `place`, of `count` outputs, was made from."""
        return [
            link.row or UNKNOWN
            for link in self.links
            if not (
                self.plan.by_place
                and link.argument.is_list
                and len(link.argument.tensors) == count
                and link.place != place
            )
        ]

    def given(self) -> dict[str, typing.Any]:
        return written.given(self.plan, self.args, self.kwargs)


def part_of(tensor: torch.Tensor) -> tuple:
    """Which part of its memory a tensor has."""
    return tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype
