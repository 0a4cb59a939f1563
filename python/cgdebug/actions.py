"""What a probe does with the tensors it sees.

An action is a frozen value: `dataclasses.replace(action, enabled=False)` switches it off. A
disabled action is not validated.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import math
import numbers
import operator
import sys
import typing

from ._shared import _words
from ._shared._dtypes import table

_UINT16_MAX = 2**16 - 1
_UINT32_MAX = 2**32 - 1


@dataclasses.dataclass(frozen=True)
class TensorPrint:
    """Prints one line per snapshot in the job's own terminal, written there by cgdebug-daemon.

    max_items: values shown after the summary; 0 shows none.
    every:     replays 1, 1 + every, 1 + 2 * every, ... are printed.
    summary:   shape, range, mean, standard deviation and the counts of NaN and Inf.
    """

    max_items: int = 16
    every: int = 1
    summary: bool = True
    enabled: bool = True

    def __post_init__(self):
        _check_flags(self)
        if self.enabled:
            _check_count(self, "max_items", 0)
            _check_count(self, "every", 1)


@dataclasses.dataclass(frozen=True)
class TensorRecord:
    """Keeps the newest snapshots in shared memory, where `probe.records()` reads them; no daemon
    needed.

    capacity: snapshots kept for each call of the probe in each captured graph; each takes the
              tensor's size in /dev/shm. The oldest is overwritten.
    every:    replays 1, 1 + every, ... are kept.
    to:       "disk": cgdebug-daemon also writes each of them into a recording, and the job waits
              for the daemon when the ring is full. The recording is <session>-<key>.cgrec in
              $CGDEBUG_DIR, else in ./runs; `cgdebug-cli record list` tells where. When the disk
              is full the recording ends, and the job's terminal says so.
    where:    "device": in graphs of the direct lane the values stay in device memory, so that no
              replay waits for the link to the host. `capacity` + 1 times the tensor's size is
              taken there, and `status()` shows it. Values travel when somebody asks for them:
              `records()`, and `cgdebug-cli show`, `get`, `record` and `freeze`. Those of a job that
              dies are gone. Elsewhere (eager calls, the callback lane) it is the same as "host".
              "auto": as "device", but when the rings of this process take a quarter of the device's
              memory, or half of what is free of it, or $CGDEBUG_DEVICE_MIB MiB instead, a new one
              keeps fewer values, and at last none, only statistics, and has no trigger. `status()`
              shows how many. A memory saver of an engine, which pauses `cudaMalloc`ed memory, does
              not see these rings: they are given back when the probe is closed and its graphs are
              gone.
    on:       with where="device" or "auto": a trigger. When it holds for a replay, all rings of
              this process in device memory stop, keep the replays up to that one until
              cgdebug-daemon has written them into a recording, and go on. Rings of other
              devices stop as well, each at the replay that it has reached. Eager calls and the
              callback lane have no triggers. The GPU computes statistics in each replay, except
              for "mismatch".
                "nan"            NaN or Inf
                "inf"            Inf alone
                "absmax>NUMBER"  a larger magnitude, NaN or Inf
                "changed"        other statistics than in the replay before
                "mismatch"       a `TensorCompare` of this process failed for the first time in a
                                 graph. cgdebug-daemon finds that, so the rings stop some
                                 replays later
              Without it, $CGDEBUG_ON is taken: `cgdebug-cli run --on` sets it.
    part:     keeps only some elements of each tensor, and only these are copied, so that a replay
              costs what they take:
                "rows:A:B"  indices A to B-1 of dimension 0, as x[A:B]; B may be beyond its end
                "first:N"   the first N elements in row-major order, as x.flatten()[:N]
                "stride:K"  the elements 0, K, 2K ... in row-major order, as x.flatten()[::K]
              A tensor that is not contiguous is packed first (non_contiguous="copy"): of "rows" and
              "first" about what they need of it, of "stride" all of it. Every reader says which
              part it is, and never judges the tensor by it. A trigger (on) looks at the part
              alone. With "stride" the copy engine of the
              callback lane and of eager calls is slow. `TensorStats` sums up whole tensors, and
              goes into a probe of its own.
    unchanged: "skip": in graphs of the direct lane, a tensor of 64 KiB or more that is bit for bit
              the one of the snapshot before it, as a 128-bit hash tells, is not sent to the host
              again. Each replay has its snapshot and its value all the same, for every reader.
              Worth it for weights and masks; a tensor that changes in each replay is hashed and
              then sent. `status()` shows how many were not sent. Elsewhere (eager calls, the
              callback lane) every value is sent.
    times:    with on: how many recordings the triggers of each device of this process may make. A
              trigger that still holds when the rings go on makes the next one at once.
    """

    capacity: int = 16
    enabled: bool = True
    every: int = 1
    to: str = "ring"
    where: str = "host"
    on: str | None = None
    times: int = 1
    part: str | None = None
    unchanged: str = "send"

    def __post_init__(self):
        _check_flags(self)
        if self.enabled:
            _check_part(self)
            _check_count(self, "capacity", 1)
            _check_count(self, "every", 1)
            _check_count(self, "times", 1)
            if self.times > _UINT16_MAX:
                raise ValueError(f"TensorRecord: times must be at most {_UINT16_MAX}")
            if self.to not in ("ring", "disk"):
                raise ValueError(f'TensorRecord: to must be "ring" or "disk", not {self.to!r}')
            if self.where not in ("host", "device", "auto"):
                raise ValueError(
                    f'TensorRecord: where must be "host", "device" or "auto", not {self.where!r}'
                )
            if self.unchanged not in ("send", "skip"):
                raise ValueError(
                    f'TensorRecord: unchanged must be "send" or "skip", not {self.unchanged!r}'
                )
            if self.unchanged == "skip" and self.where != "host":
                raise ValueError(
                    'TensorRecord: unchanged="skip" is for values that are sent in each replay, '
                    f"and with where={self.where!r} none are: leave one of the two out"
                )
            if self.on is not None:
                _trigger_of(self.on)
                if self.where == "host":
                    raise ValueError(
                        'TensorRecord: on freezes rings in device memory: add where="device"'
                    )


@dataclasses.dataclass(frozen=True, eq=False)
class TensorCompare:
    """Compares every snapshot with `expected`; `probe.assert_ok()` tells the result.

    expected:   a tensor or NumPy array for every call of the probe, or a sequence of them: item i
                for the i-th call in a capture (from 0). Same dtype and shape as what is probed;
                copied when the probe is made. "first": the first replay of a graph is what its
                later replays are compared with, for each call of the probe in it by itself; of
                eager calls, the first call with a tensor of that shape. Another probe: what that
                one saw in the same replay, in its call of the same number in the same graph; of
                eager calls on the CPU, in its last call. It must be called first, both must be in
                the same lane and made before the capture, and such a TensorCompare is the only
                action of its probe. In the direct lane the other probe's tensor is copied once more
                on the device, in every replay.
                Give a CUDA tensor, "first" or a probe to compare on the GPU: there, in a graph of
                the direct lane, a replay that matches sends nothing, and `assert_ok()` needs no
                daemon, which gets the values of the other replays. All else is compared by
                cgdebug-daemon: probes with other actions, eager calls, the callback lane, bodies of
                conditional nodes. Both find the same. `status().slots[i].compared_on` says which.
    rtol, atol: a value passes when abs(actual - expected) <= atol + rtol * abs(expected).
                Differences of integers are exact over the whole range of int64; infinities need the
                same sign.
    equal_nan:  a NaN equals a NaN.
    bitwise:    every bit must be equal, -0.0 and NaN payloads included; the tolerances are ignored.
    every:      replays 1, 1 + every, ... are compared.
    part:       compares only these elements, as `TensorRecord(part=...)` keeps them; `expected` is
                then a whole tensor, of which the same part is taken, or just the part. A
                TensorRecord and a TensorCompare of one probe have the same part. "stride" is not
                compared on the GPU.
    """

    expected: typing.Any
    rtol: float = 1e-5
    atol: float = 1e-8
    equal_nan: bool = False
    enabled: bool = True
    bitwise: bool = False
    every: int = 1
    part: str | None = None

    def __post_init__(self):
        _check_flags(self)
        if not self.enabled:
            return
        _check_part(self)
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if not isinstance(value, numbers.Real) or not math.isfinite(value) or value < 0:
                raise ValueError(
                    f"TensorCompare: {name} must be a finite number >= 0, not {value!r}"
                )
            object.__setattr__(self, name, float(value))
        _check_count(self, "every", 1)
        _check_expected(self.expected)

    @property
    def per_invocation(self) -> bool:
        return not (self.with_first or self.with_probe) and not (
            _is_tensor(self.expected) or _is_array(self.expected)
        )

    @property
    def with_first(self) -> bool:
        return isinstance(self.expected, str)

    @property
    def with_probe(self) -> bool:
        return _is_probe(self.expected)

    @property
    def on_device(self) -> bool:
        if self.with_first or self.with_probe:
            return True
        items = self.expected if self.per_invocation else [self.expected]
        return any(_is_tensor(item) and item.device.type == "cuda" for item in items)


@dataclasses.dataclass(frozen=True)
class TensorStats:
    """Statistics of every snapshot without its values: range, mean, standard deviation, L1, L2 and
    the counts of NaN, Inf, zero, subnormal and, of int8, float8 and float4, saturated elements.
    `cgdebug-cli tail` and `probes` show them.

    They are computed where the tensor is, and 128 bytes go to the daemon: by the GPU in graphs of
    the direct lane and in eager calls, by the calling thread for tensors on the CPU. In the
    callback lane the values go to the daemon, which computes them and drops the values.

    Counts, extremes and the hash are exact. Mean and standard deviation are good to 2e-6 of the
    largest magnitude, L1, L2 and RMS to 2e-6 of themselves, for dtypes of 16 and 8 bits: these are
    summed in float32 over at most 256 elements and then in float64. For wider dtypes all sums are
    in float64.

    every: looks at replays 1, 1 + every, ...
    hash:  also the XOR of the elements widened to 64 bits, as `torch.hash_tensor`, and a hash that
           knows their places; without it `Stats.xor_hash` and `Stats.ordered_hash` are None.
    """

    every: int = 1
    hash: bool = True
    enabled: bool = True

    def __post_init__(self):
        _check_flags(self)
        if self.enabled:
            _check_count(self, "every", 1)


Action = TensorPrint | TensorRecord | TensorCompare | TensorStats


def needs_daemon(actions: dict[str, Action]) -> bool:
    """Whether the daemon carries out one of them."""
    to_disk = getattr(actions.get("record"), "to", "") == "disk"
    return bool(actions.keys() - {"record"}) or to_disk or is_armed(actions)


def is_armed(actions: dict[str, Action]) -> bool:
    """Whether one of them has a trigger."""
    record = actions.get("record")
    if not isinstance(record, TensorRecord) or record.where == "host":
        return False
    return record.on is not None or bool(_words.setting("CGDEBUG_ON"))


# --- for the probe --------------------------------------------------------------------------------


def enabled_actions(actions) -> dict[str, Action]:
    """The enabled actions, by their keywords of `NativeProbe`."""
    keywords = {
        TensorPrint: "print",
        TensorRecord: "record",
        TensorCompare: "compare",
        TensorStats: "stats",
    }
    if isinstance(actions, tuple(keywords)) or not isinstance(actions, collections.abc.Iterable):
        raise TypeError(f"actions must be a list, as in [TensorRecord()], not {actions!r}")
    found: dict[str, Action] = {}
    for action in actions:
        keyword = next((word for kind, word in keywords.items() if isinstance(action, kind)), None)
        if keyword is None:
            raise TypeError(
                f"an action must be a TensorPrint, TensorRecord, TensorCompare or TensorStats, not "
                f"{action!r}"
            )
        if not action.enabled:
            continue
        if keyword in found:
            raise ValueError(
                f"two enabled {type(action).__name__} actions in one probe; use two "
                f"probes, or disable one of them with enabled=False"
            )
        found[keyword] = action
    return found


def _part_of(actions: dict[str, Action]) -> str:
    """The part that the probe sees; empty: whole tensors."""
    parts = {
        type(action).__name__: action.part
        for action in actions.values()
        if isinstance(action, TensorRecord | TensorCompare)
    }
    if len(set(parts.values())) > 1:
        both = " and ".join(f"{name}(part={part!r})" for name, part in parts.items())
        raise ValueError(
            f"{both} cannot be in one probe: it sees one part of a tensor. Give both the same "
            f"part, or use two probes"
        )
    return next(iter(parts.values()), None) or ""


def native_options(actions: dict[str, Action]) -> dict[str, typing.Any]:
    """The keyword arguments of `NativeProbe` for these actions."""
    options: dict[str, typing.Any] = dict.fromkeys(("print", "record", "compare", "stats"))
    options["part"] = _part_of(actions)
    for keyword, action in actions.items():
        fields = {f.name: getattr(action, f.name) for f in dataclasses.fields(action)}
        del fields["enabled"]
        fields.pop("part", None)
        if isinstance(action, TensorRecord):
            on = fields.pop("on")
            if on is None and action.where != "host":
                on = _words.setting("CGDEBUG_ON") or None
            fields["trigger"], fields["threshold"] = _trigger_of(on)
        if isinstance(action, TensorCompare):
            fields["per_invocation"] = action.per_invocation
            fields["on_device"] = action.on_device
            fields["with_first"] = action.with_first
            fields["probe"] = _id_of(action.expected) if action.with_probe else None
            items = action.expected if action.per_invocation else [action.expected]
            if action.with_first or action.with_probe:
                items = []
            fields["expected"] = [_payload_of(item) for item in items]
        options[keyword] = fields
    return options


def _trigger_of(on: str | None) -> tuple[int, float]:
    return (0, 0.0) if on is None else _words.condition(on, "TensorRecord: on")


def _id_of(probe) -> int:
    if probe._native is None:
        raise ValueError(
            f"TensorCompare: expected is probe {probe.name!r}, which is off (no enabled action, or "
            f"CGDEBUG_PROBES leaves it out)"
        )
    number: int = probe._native.id
    return number


def _payload_of(item) -> tuple[str, list[int], typing.Any]:
    """(dtype, shape, contiguous bytes) of an expected tensor or array; the bytes are a copy."""
    if _is_tensor(item):
        import torch

        if item.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "TensorCompare: expected is on the GPU, and a capture forbids to copy it to the "
                "CPU; make the probe before the capture"
            )
        flat = item.detach().resolve_neg().clone(memory_format=torch.contiguous_format)
        flat = flat.cpu().reshape(-1)
        return _dtype_name(item), list(item.shape), flat.view(torch.uint8).numpy()
    import numpy

    native = item.astype(item.dtype.newbyteorder("="), order="C", copy=True)
    return _dtype_name(item), list(item.shape), native.reshape(-1).view(numpy.uint8)


def _check_flags(action) -> None:
    """Only bool is taken: in Python "no" is true, and equal_nan="no" would let a NaN pass."""
    for field in dataclasses.fields(action):
        is_looked_at = field.name == "enabled" or (action.enabled and field.type == "bool")
        value = getattr(action, field.name)
        if is_looked_at and value not in (True, False):
            raise ValueError(
                f"{type(action).__name__}: {field.name} must be True or False, not {value!r}"
            )


def _check_part(action) -> None:
    """What the text means is checked where it is parsed, when the probe is made."""
    if action.part is None or (isinstance(action.part, str) and action.part):
        return
    raise ValueError(
        f'{type(action).__name__}: part must be a text such as "rows:0:8", "first:4096" or '
        f'"stride:64", not {action.part!r}'
    )


def _check_count(action, name: str, least: int) -> None:
    """Checks a field and makes it an int; it may be one of NumPy's."""
    what = f"{type(action).__name__}: {name}"
    number = whole_number(what, getattr(action, name))
    if number < least:
        raise ValueError(f"{what} must be at least {least}, not {number}")
    if number > _UINT32_MAX:
        raise ValueError(f"{what} must be at most {_UINT32_MAX}, not {number}")
    object.__setattr__(action, name, number)


def whole_number(what: str, value) -> int:
    """`value` as an int. It is an integer of Python, NumPy or a tensor on the CPU, not a bool.

    Fails: ValueError.
    """
    is_bool = isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
    is_on_gpu = _is_tensor(value) and value.device.type != "cpu"
    if is_on_gpu:
        raise ValueError(
            f"{what} is a tensor on {value.device}: reading it waits for the GPU. Give the number "
            f"that the program has, or value.item()"
        )
    try:
        if not is_bool:
            return operator.index(value)
    except TypeError:
        pass
    raise ValueError(f"{what} must be an integer, not {value!r}")


def _check_expected(expected) -> None:
    if _is_tensor(expected) or _is_array(expected):
        _check_expected_item(expected, "expected")
        return
    if _is_probe(expected):
        return
    if isinstance(expected, str):
        if expected != "first":
            raise ValueError(
                f"TensorCompare: expected must be a tensor, a NumPy array, a sequence of them, "
                f'"first" or a probe, not {expected!r}'
            )
        return
    if not isinstance(expected, collections.abc.Sequence) or isinstance(expected, bytes):
        raise ValueError(
            f"TensorCompare: expected must be a tensor, a NumPy array, a sequence of them, "
            f'"first" or a probe, not {type(expected).__name__}'
        )
    if not expected:
        raise ValueError(
            "TensorCompare: expected is empty; give one tensor, or one for each call of "
            "the probe in a capture"
        )
    for index, item in enumerate(expected):
        _check_expected_item(item, f"expected[{index}]")


def _check_expected_item(item, name: str) -> None:
    if not _is_tensor(item) and not _is_array(item):
        raise ValueError(
            f"TensorCompare: {name} is a {type(item).__name__}, not a tensor or NumPy "
            f"array; wrap it: torch.tensor(...)"
        )
    if _is_tensor(item):
        if item.device.type not in ("cpu", "cuda"):
            raise ValueError(
                f"TensorCompare: {name} is on {item.device}; give a tensor on the CPU or on a CUDA "
                f"device"
            )
        if str(item.layout) != "torch.strided":
            raise ValueError(f"TensorCompare: {name} has layout {item.layout}; give .to_dense()")
    if _dtype_name(item) not in table():
        raise ValueError(
            f"TensorCompare: {name} has dtype {_dtype_name(item)}; what can be compared "
            f"is {', '.join(table())}"
        )


def _dtype_name(item) -> str:
    return str(item.dtype).replace("torch.", "") if _is_tensor(item) else item.dtype.name


def _is_tensor(value) -> bool:
    # Whoever holds a tensor has imported torch; the same for NumPy.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_probe(value) -> bool:
    module = sys.modules.get("cgdebug.probe")
    return module is not None and isinstance(value, module.CudaGraphTensorProbe)


def _is_array(value) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))
