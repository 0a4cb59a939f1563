"""The messages of assert_ok() about an incomplete comparison."""

import dataclasses
import re

import pytest

from cgdebug._job import _verdict
from cgdebug.status import ProbeStatus, SlotStatus


def status(**slot):
    counts = dict.fromkeys((field.name for field in dataclasses.fields(SlotStatus)), 0)
    return ProbeStatus(
        "a b", "capture", slots=(SlotStatus(**{**counts, "verdict": "pass", **slot}),)
    )


@pytest.mark.parametrize(
    "slot, text",
    [
        ({"replays": 5, "accepted": 5, "compared": 5}, ""),
        ({}, "its graph was never replayed"),
        (
            {"replays": 5, "suppressed": 5, "verdict": "none"},
            "turned off or down for 5 replays .*, the 0 compared matched. "
            "Type: cgdebug-cli set 'a b' --mode registered",
        ),
        (
            {"replays": 5, "accepted": 3, "compared": 3, "suppressed": 2},
            "turned off or down for 2 replays",
        ),
        ({"replays": 5, "accepted": 5, "compared": 3, "lost": 2}, "2 snapshots were overwritten"),
        ({"replays": 5, "accepted": 5, "compared": 3, "not_compared": 2}, "2 snapshots were"),
    ],
)
def test_why_it_is_not_compared(slot, text):
    said = _verdict.why_not_compared(status(**slot), True, 10, "")
    assert re.search(text, said) if text else said == "", said


def test_the_first_failure_is_that_of_the_earliest_replay():
    slots = [
        dataclasses.replace(status().slots[0], verdict="fail", first_failed_replay=replay)
        for replay in (7, 3, 5)
    ]
    assert ProbeStatus("x", "capture", slots=tuple(slots)).replay_index == 3
