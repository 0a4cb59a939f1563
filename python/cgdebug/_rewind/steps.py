"""In which piece of a graph each op runs, and whether what it writes can be looked at behind it.

A piece of several nodes is launched as a whole (libprobe/apart): when it is over, another op of it
may have overwritten what an op wrote, or it is gone. Nothing is said of such memory.
"""

from __future__ import annotations

import typing

from .._op_log.node_order import share_bytes
from .touched import name_of

if typing.TYPE_CHECKING:
    from .._op_log.node_map import Given, NodeMap, Op

_CAN_RUN_APART = ("kernel", "memcpy", "memset", "empty", "event_node")  # as libprobe/apart


class Counts(typing.NamedTuple):
    """Of the nodes that may write, without ours.

    alone:    in a piece without another one
    parallel: the others
    of_no_op: of both, those that no op made: what they write is in no row
    """

    nodes: int
    alone: int
    parallel: int
    of_no_op: int


class Steps:
    """begins, ends: by piece, the ops whose first, and whose last, node is in it
    beside: ids of the ops that share a piece with something else
    alone: by piece: the op of all its nodes, if no other piece has some of them and others', too
    single: by node (cudaGraphNode_t) that may write: its piece, if no other such node is in it
    has_memory: the graph allocates or frees memory, which may be gone behind the opaque piece
    """

    def __init__(self, apart: typing.Any, node_map: NodeMap):
        nodes = apart.nodes
        ops = [node_map.op_of.get(node["handle"]) for node in nodes]
        self._op_at = [None if node["is_own"] else op for node, op in zip(nodes, ops)]
        self.beside = set[int]()
        self._why_not = dict[tuple[int, tuple[int, int]], str]()  # by id of the op, and extent
        self.has_memory = any(node["kind"] == "memory_node" for node in nodes)
        writing = [node["may_write"] and not node["is_own"] for node in nodes]
        after = apart.after
        alone = of_no_op = 0
        first, last, op_of = dict[int, int](), dict[int, int](), dict[int, "Op"]()
        self.alone, self.single = dict[int, "Op"](), dict[int, int]()
        mixed = set[int]()  # ids of ops
        for number, piece in enumerate(apart.pieces):
            here = [node for node in piece if writing[node]]
            of_no_op += sum(self._op_at[node] is None for node in here)
            if len(here) == 1:
                alone += 1
                self.single[nodes[here[0]]["handle"]] = number
            elif here:
                self._look_at(piece, here, _before(after, piece))
            if number == apart.opaque and self.has_memory:
                self._hide_all(filter(None, (self._op_at[node] for node in here)))
            doing = [self._op_at[node] for node in piece if nodes[node]["may_write"]]
            if doing and doing[0] is not None and all(op is doing[0] for op in doing):
                self.alone[number] = doing[0]
            else:
                mixed.update(id(op) for op in doing)
            for node in piece:
                op = self._op_at[node]
                if op is not None:
                    op_of[id(op)] = op
                    first.setdefault(id(op), number)
                    last[id(op)] = number
        self.counts = Counts(sum(writing), alone, sum(writing) - alone, of_no_op)
        self.alone = {piece: op for piece, op in self.alone.items() if id(op) not in mixed}
        self.begins, self.ends = dict[int, list["Op"]](), dict[int, list["Op"]]()
        for op in {id(op): op for op in node_map.op_of.values()}.values():
            if id(op) in op_of:
                self.begins.setdefault(first[id(op)], []).append(op)
                self.ends.setdefault(last[id(op)], []).append(op)

    def why_not_seen(self, op: Op, given: Given) -> str:
        """Why nobody knows what `op` wrote there, as a sentence; empty: it can be looked at."""
        return self._why_not.get((id(op), given.extent), "")

    def _hide_all(self, ops: typing.Iterable[Op]) -> None:
        why = "it ran in one launch with nodes that allocate and free memory"
        for op in ops:
            self._why_not.update(((id(op), one.extent), why) for one in op.given)

    def _look_at(self, piece: list[int], here: list[int], before: list[int]) -> None:
        """here: those of the piece that may write"""
        place = {node: number for number, node in enumerate(piece)}
        ops = dict[int, "Op"]()
        nodes_of = dict[int, int]()  # as bits, by their places in the piece
        surely_before = dict[int, int]()  # those from which a path leads to each node of the op
        unknown = 0  # those of which nobody tells what they write
        for node in here:
            op, bit = self._op_at[node], 1 << place[node]
            if op is None or not op.is_exact or op.may_touch_more:
                unknown |= bit
            if op is not None:
                ops[id(op)] = op
                nodes_of[id(op)] = nodes_of.get(id(op), 0) | bit
                others = before[place[node]]
                surely_before[id(op)] = surely_before.get(id(op), others) & others
        if len(ops) > 1 or any(self._op_at[node] is None for node in here):
            self.beside |= ops.keys()
        for key, op in ops.items():
            beside = unknown & ~nodes_of[key] & ~surely_before[key]
            if beside:
                other = self._op_at[piece[(beside & -beside).bit_length() - 1]]
                who = name_of(other) if other is not None else "a node that no op made"
                why = (
                    f"{who} runs beside it or behind it, and nobody tells which memory that writes"
                )
                for one in op.given:
                    self._why_not.setdefault((key, one.extent), why)
        for writer, given, by_too, given_too in _overlapping(ops.values()):
            pairs = (((id(writer), given), by_too), ((id(by_too), given_too), writer))
            for (key, hidden), by in pairs:
                if nodes_of[id(by)] & ~surely_before[key]:
                    why = f"{name_of(by)} may write the same memory before anybody can look at it"
                    self._why_not.setdefault((key, hidden.extent), why)


def _before(after: list[list[int]], piece: list[int]) -> list[int]:
    """For each node of a piece those of it from which a path leads there: as bits, by places."""
    place = {node: number for number, node in enumerate(piece)}
    before = [0] * len(piece)
    for number, node in enumerate(piece):  # a piece has them in order
        for following in after[node]:
            if following in place:
                before[place[following]] |= before[number] | 1 << number
    return before


def _overlapping(
    ops: typing.Iterable[Op],
) -> typing.Iterator[tuple[Op, Given, Op, Given]]:
    """Each two that different ops write, unless they are known to share no byte."""
    writes = [
        (one.extent, op, one)
        for op in ops
        for one in op.given
        if one.writes and one.extent[0] < one.extent[1]
    ]
    writes.sort(key=lambda write: write[0])
    reaching: list[tuple[Op, Given]] = []  # those that may reach the bytes of the next one
    for (begin, _), op, one in writes:
        reaching = [there for there in reaching if there[1].extent[1] > begin]
        for other_op, other in reaching:
            if other_op is not op and share_bytes(one, other) is not False:
                yield op, one, other_op, other
        reaching.append((op, one))


def opaque_text(nodes: typing.Iterable[tuple[int, str, bool]], node_map: NodeMap) -> str:
    """What of a graph is launched as one, and because of which node, as a sentence; empty: nothing,
    as far as kinds of nodes tell. nodes: handle, kind, and whether it is ours"""
    for number, (handle, kind, is_own) in enumerate(nodes):
        if kind in _CAN_RUN_APART:
            continue
        what = f"its node {number}, {'an' if kind[0] in 'aeiou' else 'a'} {kind.replace('_', ' ')}"
        op = node_map.op_of.get(handle)
        before = node_map.behind.get(handle)
        if is_own:
            what += " of a probe in the callback lane"
        elif op is not None:
            what += f" of {name_of(op)}"
        elif before is not None:
            what += f", launched behind {name_of(before)}"
        text = f"{what}, runs in one launch with nodes around it"
        return text + ". Type: CGDEBUG_LANE=direct, in front of the same command" * is_own
    return ""
