"""Which parameters of a model are the same on several ranks without being DTensors."""

from __future__ import annotations

import torch

from ..sharding import TensorShard


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
