"""What a watch sees, what it does not and why, and what it costs."""

from __future__ import annotations

import weakref

import torch

from .._op_log.scopes import Scope, captured_before
from ..actions import Action, TensorRecord
from ..probe import CudaGraphTensorProbe
from . import compiled
from .places import IS_PARAMETER, NO_TENSOR, Place

_MISSING = object()


class Account:
    """Of the places of a watch. The fields are those of WatchReport.

    actions: of the watch; root: its model"""

    def __init__(
        self,
        places: list[Place],
        actions: list[Action],
        root: weakref.ref[torch.nn.Module],
        is_closed: bool,
    ):
        self.seen: list[str] = []
        self.not_seen: dict[str, str] = {}
        self.problems: dict[str, str] = {}
        self.snapshots = self.lost = self.shm_bytes = 0
        self._places = places
        self._actions = actions
        self._root = root
        self._is_closed = is_closed
        for place in places:
            self._add_place(place)

    def _add_place(self, place: Place) -> None:
        is_seen = [self._add_probe(place, one) for one in list(place.probes.values()) if one]
        problem = "" if place.problem == IS_PARAMETER and place.probes else place.problem
        if any(is_seen) and problem:
            self.problems[place.name] = problem
        elif not any(is_seen) and (problem or not place.probes):
            self.miss(place.name, self._why_not(place))

    def _add_probe(self, place: Place, probe: CudaGraphTensorProbe) -> bool:
        """Whether it has seen a tensor."""
        status = probe._native.status()
        slots = status["slots"]
        if not any(slot["replays"] for slot in slots):
            is_grad = place.name.startswith("grad/")
            self.miss(
                probe.name,
                "no gradient came" if is_grad else "the code that contains it has not run yet",
            )
            return False
        self.seen.append(probe.name)
        for slot in slots:
            counts_calls = slot["in_body"] and not slot["graph_id"]
            self.snapshots += slot["accepted" if counts_calls else "replays"]
            self.lost += slot["lost"]
            bytes_of_entry = 128 if slot["device_bytes"] else slot["payload_bytes"]
            self.shm_bytes += slot["capacity"] * bytes_of_entry
            if (kept := self._kept_of(slot)) is not None:
                self.problems[probe.name] = (
                    f"{kept} values are kept, because the rings of this process take as "
                    "much device memory as they may: CGDEBUG_DEVICE_MIB"
                )
        if note := status["trigger_note"]:
            self.problems[probe.name] = note
        return True

    def add_logs(self, scope: Scope) -> None:
        for number, log in enumerate(list(scope.logs)):
            self.seen += [row.name for row in log.rows]
            self.problems.update({f"log {number}: {gap}": "not shown" for gap in log.gaps})
            for line in log.coverage.lines() if log.coverage else ():
                self.problems[f"log {number}: {line}"] = "no row shows what they wrote"
        for capture in scope.captured_before:
            self.problems[f"capture {capture}"] = captured_before(capture)

    def miss(self, name: str, why: str) -> None:
        self.not_seen[name] = f"{why}, and the watch is closed" if self._is_closed else why

    def _kept_of(self, slot: dict) -> int | None:
        """How many values a slot keeps that found no room for all; None: it found room, or needs
        none."""
        for action in self._actions:
            if not isinstance(action, TensorRecord) or action.where != "auto":
                continue
            kept = slot["device_capacity"]
            if slot["lane"] == "direct" and 0 not in slot["shape"] and kept < action.capacity:
                return kept
        return None

    def _why_not(self, place: Place) -> str:
        if place.problem:
            return place.problem
        root = self._root()
        if root is None:
            return "the model is gone"
        if place.called:
            return "CGDEBUG_PROBES switches it off"
        if why := self._why_no_parameter(place):
            return why
        module = place.module()
        if module is not None and type(module).__call__ is not torch.nn.Module.__call__:
            return (
                "its module was not called, or by the __call__() of its class, which runs no hook"
            )
        if place.name.startswith("param_grad/"):
            return "no step of an optimizer with a gradient of it came"
        if twin := self._twin_without_tensor(place):
            return f"its module was not called, or {NO_TENSOR}, as that of {twin}"
        if compiled.was_compiled(root, place.module()):
            return (
                "its module was not called, or code that torch.compile made before the watch calls "
                "it: such code keeps running without probes. Type torch.compiler.reset() after "
                "watch(), or watch before the first call"
            )
        return "its module was never called"

    def _why_no_parameter(self, place: Place) -> str:
        """Of a parameter that is none, or that is seen under another name; else nothing."""

        def parameter_of(one: Place) -> object:
            owned = getattr(one.module(), "_parameters", {})
            return owned.get(one.name.rpartition(".")[2], _MISSING)

        kind = place.name.partition("/")[0]
        if not kind.startswith("param") or (parameter := parameter_of(place)) is _MISSING:
            return ""
        if parameter is None:
            return "its module has none"
        for one in self._places:
            is_of_kind = one is not place and one.name.partition("/")[0] == kind and one.called
            if is_of_kind and parameter_of(one) is parameter:
                return f"it is the same parameter as {one.name}"
        return ""

    def _twin_without_tensor(self, place: Place) -> str:
        """Layers that share code share what Dynamo found out when it traced the first of them."""
        kind = place.name.partition("/")[0]
        for one in self._places:
            is_like_it = one.name.partition("/")[0] == kind and one.problem == NO_TENSOR
            if is_like_it and type(one.module()) is type(place.module()):
                return one.name
        return ""
