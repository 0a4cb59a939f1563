"""What users add to the rows of a log: columns of their hooks, their statistics, kept values."""

from __future__ import annotations

import typing

from torch.utils._mode_utils import no_dispatch

from ..calls import Call
from . import Extras, OpCall, Values, raised

if typing.TYPE_CHECKING:
    import torch

    from .. import names
    from ..details import Details


class Added:
    """captured: whether a graph captures what the functions launch, with the op

    Thread: as the recorder that has it.
    """

    def __init__(self, log, captured: bool):
        self.extras = Extras()
        self.values = Values(every=1)
        self._log = log
        self._captured = captured

    def before(self, op, call: Call, stem: str) -> None:
        """Tells hooks of an op that is about to run. `stem`: of its rows."""
        call.told = self._told(call.place, stem, call.plan.name, op, call.args, dict(call.kwargs))
        self.extras.before(call.told)

    def columns(self, call: Call, stem: str, result) -> dict[str, typing.Any]:
        """Of an op that has run, and that before() was told of."""
        told = typing.cast(OpCall, call.told)
        told.name, told.result = stem, result
        return self._columns(told)

    def columns_of_kernel(
        self, place: names.Place, stem: str, op: str, reads: list[torch.Tensor]
    ) -> dict[str, typing.Any]:
        return self._columns(self._told(place, stem, op, None, reads, {}))

    def stop(self, call: Call) -> None:
        """An op that before() was told of has run, or failed. Must be called before anything else
        is done for its rows."""
        if call.told is not None:
            self.extras.stop(call.told)

    def compute(self, name: str, tensor, details: Details) -> dict[str, torch.Tensor]:
        """The user's statistics of a row. Why one is not there is one of its columns."""
        computed, problems = self.extras.computed(tensor, self._captured)
        if problems:
            details.columns = {**details.columns, **problems}
        if self.extras.wants_value(name):
            try:
                with no_dispatch():
                    self.values.keep(name, tensor)
            except Exception as error:  # the job goes on
                details.columns = {**details.columns, "value": raised(error)}
        self._forget_nodes()
        return computed

    def _columns(self, told: OpCall) -> dict[str, typing.Any]:
        columns = self.extras.columns(told)
        self._forget_nodes()
        return columns

    def _told(self, place: names.Place, stem: str, name: str, op, args, kwargs) -> OpCall:
        return OpCall(
            *(stem, name, op, tuple(args), kwargs, place.module, place.phase, place.site),
            captured=self._captured,
        )

    def _forget_nodes(self) -> None:
        """The nodes that were captured since then are those of the user's functions, and ours."""
        if self._captured:
            self._log.forget_nodes()
