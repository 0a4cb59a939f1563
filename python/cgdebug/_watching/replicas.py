"""Which parameters of a model are the same on several ranks without being DTensors."""

from __future__ import annotations

import sys
import weakref

import torch

from .._job._fail_soft import guard
from ..sharding import TensorShard
from .direct import frames_from
from .hooks import Hook
from .places import Place


def shards_of(model: torch.nn.Module) -> dict[int, str]:
    """The shard, as text, of each parameter that other ranks have too, by its id."""
    shards: dict[int, str] = {}
    with guard("the replicas of Megatron-Core"):
        shards = _of_megatron(model)
    return shards | _of_data_parallel(model)


def _of_data_parallel(model: torch.nn.Module) -> dict[int, str]:
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


def _of_megatron(model: torch.nn.Module) -> dict[int, str]:
    """By Megatron-Core's own rule (param_is_not_tensor_parallel_duplicate): what is not split over
    the ranks of tensor parallelism is the same on them. Experts, which other ranks may not have,
    are left out."""
    state = sys.modules.get("megatron.core.parallel_state")
    modules = sys.modules.get("megatron.core.transformer.module")
    if state is None or modules is None or not state.model_parallel_is_initialized():
        return {}
    shards: dict[int, str] = {}
    of_split, of_whole = _megatron_ranks(model, state)
    rank = torch.distributed.get_rank()
    owners = [one for one in model.modules() if isinstance(one, modules.MegatronModule)]
    for parameter in (each for owner in owners for each in owner.parameters()):
        is_split = getattr(parameter, "tensor_model_parallel", False)
        is_expert = not getattr(parameter, "allreduce", True)
        ranks = [] if is_expert else of_split if is_split else of_whole
        if len(ranks) > 1 and type(parameter) is torch.nn.Parameter:
            shards[id(parameter)] = str(TensorShard.replica(parameter.shape, ranks, rank))
    return shards


def _megatron_ranks(model: torch.nn.Module, state) -> tuple[list[int], list[int]]:
    """The ranks that have the same of a parameter that tensor parallelism splits, and of one that
    it does not split."""
    ddp = sys.modules.get("megatron.core.distributed.distributed_data_parallel")
    wrapper = ddp.DistributedDataParallel if ddp is not None else ()
    configs = [one.ddp_config for one in model.modules() if isinstance(one, wrapper)]
    # Then a parameter is whole only while its module runs.
    if any(getattr(config, "overlap_param_gather", False) for config in configs):
        return [], []
    ranks = torch.distributed.get_process_group_ranks
    if not configs:
        return [], ranks(state.get_tensor_model_parallel_group())
    return (
        ranks(state.get_data_parallel_group(with_context_parallel=True)),
        ranks(state.get_tensor_and_data_parallel_group(with_context_parallel=True)),
    )


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
