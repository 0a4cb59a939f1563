"""Which parameters of a model are the same on several ranks without being DTensors."""

from __future__ import annotations

import sys
import weakref

import torch

from ..sharding import TensorShard
from .direct import frames_from
from .hooks import Hook
from .places import Place


def shards_of(model: torch.nn.Module) -> dict[int, str]:
    """The shard, as text, of each parameter under DistributedDataParallel, by its id."""
    shards: dict[int, str] = {}
    for module in model.modules():
        if not isinstance(module, torch.nn.parallel.DistributedDataParallel):
            continue
        ranks = torch.distributed.get_process_group_ranks(module.process_group)
        if len(ranks) < 2:
            continue
        rank = torch.distributed.get_rank()
        for name, parameter in module.module.named_parameters():
            if name not in module.parameters_to_ignore:
                shards[id(parameter)] = str(TensorShard.replica(parameter.shape, ranks, rank))
    return shards


class ReplicaHook(Hook):
    """Before a call of the model, of which these are parameters: looks for a
    DistributedDataParallel around it, which may have come after the watch."""

    places = []

    def __init__(self, parameters: list[tuple[weakref.ref[torch.nn.Parameter], Place]]):
        self._parameters = parameters

    def look(self, module, *call) -> None:
        if torch.compiler.is_compiling() or not self._parameters:
            return
        wrapper = _wrapper_that_calls() if torch.distributed.is_initialized() else None
        if wrapper is None:
            return
        shards = shards_of(wrapper)
        for parameter, place in self._parameters:
            place.shard = shards.get(id(parameter()), "")
        self._parameters = []


def _wrapper_that_calls() -> torch.nn.parallel.DistributedDataParallel | None:
    code = torch.nn.parallel.DistributedDataParallel.forward.__code__
    calls = (one for one in frames_from(sys._getframe(1)) if one.f_code is code)
    call = next(calls, None)
    return None if call is None else call.f_locals["self"]
