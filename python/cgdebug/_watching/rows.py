"""cgdebug.rows(): which token of which request each row of a call holds."""

from __future__ import annotations

import collections.abc
import hashlib
import threading
import typing

import torch
from torch.utils._mode_utils import no_dispatch

from .._job import _aside, _native
from ..actions import TensorRecord
from ..probe import CudaGraphTensorProbe
from . import calls

NAME = "rows"  # of the probe, "rows/lm_head" of one module; client/analysis/requests/request_rows.h
_KEPT = 64
_TEXT = 1 << 62  # numbers from here on are texts
PADDING = -1
_IN_GRAPH = (
    "the rows of a captured graph change with its replays: give cgdebug.rows() the tensors on the "
    "GPU that the graph reads"
)

_Requests: typing.TypeAlias = "torch.Tensor | collections.abc.Sequence[int | str | None]"
_Positions: typing.TypeAlias = "torch.Tensor | collections.abc.Sequence[int]"


class _Here(threading.local):
    def __init__(self):
        # By the name of the probe: requests, positions, and whether both were given on a GPU.
        self.told: dict[str, tuple[torch.Tensor, torch.Tensor, bool]] = {}


_here = _Here()
_lock = threading.RLock()
_probes: dict[str, CudaGraphTensorProbe] = {}


def rows(
    requests: _Requests,
    positions: _Positions,
    *,
    of: str | collections.abc.Sequence[str] = (),
) -> None:
    """Tells which token of which request each row holds, for the next call of a watched model on
    this thread, or for the one that runs:

        cgdebug.rows(["chat-1", "chat-2"], [17, 4])      # a row is one token of one request
        cgdebug.rows([1, 2], position_ids)               # [batch, tokens]: a row is a request
        logits = model(ids, position_ids)

    `cgdebug-cli diff A B --by request` then compares each token with itself, whatever batch, bucket
    or process computed it.

    requests:  of each row, or of each row of `positions`; a number from 0 on, or a text. None, or a
               negative number, is padding
    positions: of the token in its request, int64
    of:        the modules whose outputs have these rows, as their probes are called behind "fwd/".
               It is told after the rows of the call, of those that compute others, such as the
               logits of the last tokens alone:

        cgdebug.rows([1, 2], position_ids)
        cgdebug.rows([1, 2], position_ids[:, -1:], of=["lm_head", "LlamaForCausalLM"])
        logits = model(ids, position_ids, logits_to_keep=1)

    In a captured graph, call it inside the capture, with int64 tensors on the GPU that are written
    before each replay; where several graphs compute a call, in each of them. The table is the probe
    "rows", of a module "rows/lm_head", which keeps 64 calls.

    Fails: TypeError, ValueError: the two do not have the same rows."""
    modules = [of] if of and isinstance(of, str) else of
    probes = [f"{NAME}/{module}" for module in modules] or [NAME]
    is_on_gpu = all(isinstance(one, torch.Tensor) and one.is_cuda for one in (requests, positions))
    if not is_on_gpu and _native.is_capturing():
        _native.not_seen(probes[0], _IN_GRAPH)
        return
    with no_dispatch(), torch.no_grad():
        told = _aside.call(_as_tensors, requests, positions)
    if probes == [NAME]:
        forget()
    _here.told |= dict.fromkeys(probes, (*told, is_on_gpu))
    calls.at_begin = _observe
    if calls.is_running():
        _observe()


def rows_of_graph(requests: torch.Tensor, positions: torch.Tensor) -> None:
    """As rows(), of the graph whose capture has begun, for int64 tensors on the GPU. Where that
    fails, they are counted as not seen."""
    _observe_told(NAME, requests, positions)


def forget() -> None:
    """What was told is of no call."""
    _here.told = {}


def _as_tensors(requests: _Requests, positions: _Positions) -> tuple[torch.Tensor, torch.Tensor]:
    if not isinstance(positions, torch.Tensor):
        positions = torch.tensor(list(positions), dtype=torch.int64)
    if not isinstance(requests, torch.Tensor):
        numbers = [number_of(one) for one in requests]
        requests = torch.tensor(numbers, dtype=torch.int64, device=positions.device)
    for name, one in (("requests", requests), ("positions", positions)):
        if one.is_floating_point() or one.is_complex() or one.dtype == torch.bool:
            raise TypeError(f"rows: {name} are whole numbers, not {one.dtype}")
    if not requests.dim() or requests.shape != positions.shape[: requests.dim()]:
        raise ValueError(
            f"rows: requests of shape {list(requests.shape)} and positions of shape "
            f"{list(positions.shape)} do not have the same rows"
        )
    return requests, positions


def number_of(request: int | str | None) -> int:
    if request is None:
        return PADDING
    if isinstance(request, str):
        digest = hashlib.blake2b(request.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 2 | _TEXT
    if isinstance(request, int):
        return request
    raise TypeError(f"rows: a request is a number or a text, not {type(request).__name__}")


def _observe() -> None:
    """A call has begun."""
    told = _here.told
    forget()
    for probe, (requests, positions, is_on_gpu) in told.items():
        if not is_on_gpu and _native.is_capturing():
            _native.not_seen(probe, _IN_GRAPH)
        else:
            _observe_told(probe, requests, positions)


def _observe_told(probe: str, requests: torch.Tensor, positions: torch.Tensor) -> None:
    try:
        with no_dispatch(), torch.no_grad(), _lock:
            _aside.call(_send, probe, requests, positions)
    except Exception as error:  # the job goes on
        _native.not_seen(probe, str(error))


def _send(name: str, requests: torch.Tensor, positions: torch.Tensor) -> None:
    probe = _probes.get(name)
    if probe is None:
        probe = CudaGraphTensorProbe(name, [TensorRecord(capacity=_KEPT)], mode="always")
        _probes[name] = probe
    for _ in range(positions.dim() - requests.dim()):
        requests = requests.unsqueeze(-1)
    both = [one.to(torch.int64).expand(positions.shape).flatten() for one in (requests, positions)]
    probe(torch.stack(both, -1))
