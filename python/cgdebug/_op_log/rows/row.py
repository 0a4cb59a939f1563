"""What a row of an op log says when it is made, and which nodes of a graph the rows explain."""

from __future__ import annotations

import typing

from ..details import Details

_MAX_OP_BYTES = 16383  # layout::kMaxOpTextBytes
_MAX_NODE_NAMES = 3  # that a row keeps
UNKNOWN = 0  # of an input: no row shows what the op read
NO_DETAILS = Details()  # of a row that has none


class Nodes(typing.NamedTuple):
    """Nodes of a captured graph that write memory: kernels, copies and the like.

    explained: those of ops and kernels that have a row
    left_out:  those of ops and kernels that are followed and have no row
    unseen:    what the others run
    """

    explained: int = 0
    left_out: int = 0
    unseen: tuple[str, ...] = ()

    def plus(self, other: Nodes) -> Nodes:
        return Nodes(
            self.explained + other.explained,
            self.left_out + other.left_out,
            self.unseen + other.unseen,
        )


class Coverage(typing.NamedTuple):
    """Which nodes of a graph the rows of its log explain.

    unseen: what the unexplained nodes run: after this row, before that row, names. 0: before the
            first row, or after the last one
    """

    explained: int
    left_out: int
    unseen: tuple[tuple[int, int, tuple[str, ...]], ...]

    @property
    def nodes(self) -> int:
        return self.explained + self.left_out + sum(len(names) for _, _, names in self.unseen)

    def lines(self) -> list[str]:
        """One for each place with unexplained nodes."""
        found = []
        for after, before, names in self.unseen:
            place = f"between #{after} and #{before}"
            if not after or not before:
                place = f"after #{after}" if after else f"before #{before}"
            what = ", ".join(dict.fromkeys(names))
            found.append(f"?? {len(names)} kernel{'s' * (len(names) != 1)} {place}: {what}")
        return found

    def __str__(self) -> str:
        text = f"{self.nodes} kernel nodes: {self.explained} explained"
        return text + f", {self.left_out} left out" * (self.left_out > 0)

    @staticmethod
    def of(rows: list[Row]) -> Coverage:
        whole, gaps, last = Nodes(), [], 0
        for row in rows:
            for nodes, after, before in ((row.nodes, last, row.number), (row.rest, row.number, 0)):
                whole = whole.plus(nodes)
                if nodes.unseen:
                    gaps.append((after, before, nodes.unseen))
            last = row.number
        return Coverage(whole.explained, whole.left_out, tuple(gaps))


class Row(typing.NamedTuple):
    """What is known of a row when it is made.

    number: in its log, from 1
    inputs: numbers of the rows that the op read; UNKNOWN for what no row shows
    nodes:  those since the row before, up to the end of its op
    rest:   of the last row: those after it
    """

    number: int
    name: str
    op: str
    inputs: tuple[int, ...]
    site: str
    dtype: str
    shape: tuple[int, ...]
    nodes: Nodes = Nodes()
    rest: Nodes = Nodes()
    details: Details = NO_DETAILS

    def text(self) -> str:
        """As layout::SlotRegistration::op: "17 aten.mm.default +1 3 5"."""
        text = f"{self.number} {self.op}"
        for sign, count in (
            ("+", self.nodes.explained + self.rest.explained),
            ("-", self.nodes.left_out + self.rest.left_out),
        ):
            text += f" {sign}{count}" * (count > 0)
        for sign, names in (("<", self.nodes.unseen), (">", self.rest.unseen)):
            if names:
                shown = ",".join(list(dict.fromkeys(names))[:_MAX_NODE_NAMES])
                text += f" {sign}{len(names)}:{shown}"
        for place, number in enumerate(self.inputs):
            word = f" {number or '?'}"
            room = _MAX_OP_BYTES - (len(" ...") if place + 1 < len(self.inputs) else 0)
            if len(text) + len(word) > room:
                return text + " ..."
            text += word
        return text
