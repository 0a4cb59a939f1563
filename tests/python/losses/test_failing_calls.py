"""One system call or allocation fails once, in a job, in the daemon or in the command line. Nothing
crashes or hangs, no value is wrong, no loss is uncounted, and a message says what failed.

By default a few calls are made to fail. CGDEBUG_TEST_FAILING_CALLS=all takes each call;
`daemon:malloc` those of one program and kind, `daemon:malloc:17` one of them, `all/50` every 50th.
"""

import itertools
import os
import re
import sys

import pytest

from failing_world import KINDS, PARTS, TREE, WORDS, Plan, World

if TREE is None:
    pytest.skip("no build tree with the tests' programs", allow_module_level=True)

# --- which calls ----------------------------------------------------------------------------------

SETTING = os.environ.get("CGDEBUG_TEST_FAILING_CALLS", "")
STEP = int(SETTING.partition("/")[2] or 1)
CHOSEN = SETTING.partition("/")[0].split(":")
PROGRAMS = ["job", "daemon", "second"]
failed_calls = {}  # (program, kind) -> how many


def chosen(program, kind):
    if CHOSEN[0] not in ("", "all", program):
        return False
    return len(CHOSEN) < 2 or CHOSEN[1] == kind


def fail_calls(total, sample, run):
    """Calls run(n), which says whether there was an n-th call to fail, for all calls or for a
    sample of the `total` that a run without failures makes. Returns what went wrong."""
    failures, nth = [], 0
    numbers = itertools.count(1, STEP)
    if len(CHOSEN) == 3:
        numbers = [int(CHOSEN[2])]
    elif not SETTING:
        numbers = (
            sorted({1 + total * (2 * i + 1) // (2 * sample) for i in range(sample)})
            if total
            else []
        )
    for nth in numbers:
        try:
            if not run(nth) and nth > total:
                break
        except AssertionError as error:
            failures.append(str(error))
            print(error, file=sys.stderr, flush=True)
    return failures


def run_one(folder, program, kind, nth):
    """Runs with the n-th call failing. Returns the world's Plan, which says whether there was such
    a call."""
    folder.mkdir()
    world = World(folder, Plan.make(folder / "plan", kind, nth), program)
    try:
        world.run()
    except Exception as error:
        raise AssertionError(f"{program}: {world.plan.text()}\n{error}\nin {folder}") from error
    finally:
        world.clean_up()
    if nth:
        assert world.plan.failed or nth > world.plan.calls[KINDS.index(kind) + 1]
        if world.plan.failed:
            key = program, kind
            failed_calls[key] = failed_calls.get(key, 0) + 1
    else:
        assert world.whole(), (world.why_not_whole(), world.everything_said())
    return world.plan


@pytest.fixture(scope="module", autouse=True)
def report():
    yield
    for (program, kind), count in failed_calls.items():
        print(f"{program} {kind}: {count} calls failed")


@pytest.fixture
def untouched(without_daemon, tmp_path, monkeypatch):
    """How often each program does each kind of thing when nothing fails."""
    monkeypatch.delenv("CGDEBUG")
    monkeypatch.delenv("CGDEBUG_RUN_ID")

    def count(program):
        return run_one(tmp_path / "untouched", program, "malloc", 0).calls

    return count


@pytest.mark.timeout(0 if SETTING else 900)
@pytest.mark.parametrize("program", PROGRAMS)
def test_one_failing_call_harms_nothing_but_what_it_was_for(untouched, tmp_path, program):
    kinds = [kind for kind in KINDS if chosen(program, kind)]
    if not kinds:
        pytest.skip("not chosen")
    counts = untouched(program)
    failures = []
    for kind in kinds:
        run = lambda nth: run_one(tmp_path / f"{kind}-{nth}", program, kind, nth).failed  # noqa: E731,B023
        failures += fail_calls(counts[KINDS.index(kind) + 1], 1, run)
    assert not failures, f"{len(failures)} of them:\n" + "\n\n".join(failures[:5])


COMMANDS = {
    "status": ["status"],
    "probes": ["probes"],
    "tail": ["tail", "-n", "100"],
    "show": ["show", "ring@-1"],
    "check": ["check", "A"],
    "diff": ["diff", "A", "B"],
    "info": ["info", "A"],
    "stats": ["stats", "A"],
    "export": ["export", "A", "--to", "npz", "-o", "OUT"],
}


def without_times(text):
    """The part of the output that two runs of one command must have in common."""
    return re.sub(
        r"(?m)^(daemon|memory|/dev/shm) .*$|\d+(\.\d+)? ?[mµ]?s( ago)?\b|SINCE.*", "", text
    )


@pytest.mark.timeout(0 if SETTING else 900)
def test_one_failing_call_never_changes_an_answer(untouched, tmp_path):
    kinds = [kind for kind in KINDS if chosen("cli", kind) and kind != "accept"]
    if not kinds:
        pytest.skip("not chosen")
    world = World(tmp_path, Plan.make(tmp_path / "plan"), "nobody")
    failures = []
    try:
        world.start_daemon("daemon")
        world.job = world.start("job", TREE / "tests/six_probes_job", *map(str, PARTS))
        world.wait_for_part(world.job, 1)
        for name in ("a", "b"):
            world.cli("freeze", "-o", str(tmp_path / f"{name}.cgrec"))
        places = {"A": str(tmp_path / "a.cgrec"), "B": str(tmp_path / "b.cgrec")}
        for name, words in COMMANDS.items():
            for kind in kinds:
                failures += fail_command(world, places, name, words, kind)
    finally:
        world.clean_up()
    assert not failures, f"{len(failures)} of them:\n" + "\n\n".join(failures[:5])


def fail_command(world, places, name, words, kind):
    """What went wrong in any of the calls of one command."""
    number = [0]

    def run(nth):
        number[0] += 1
        out = world.folder / f"{name}-{kind}-{number[0]}"
        plan = Plan.make(world.folder / "plan", kind, nth)
        world.plan, world.failing = plan, "cli"
        arguments = (str(out) if word == "OUT" else places.get(word, word) for word in words)
        try:
            process = world.cli(*arguments)
        except AssertionError as error:  # it hangs or crashes
            raise AssertionError(f"cgdebug-cli {name}: {plan.text()}\n{error}") from error
        return plan, process

    plan, good = run(0)
    assert good.code in (0, 3), (name, good.stderr())  # 3: only the last replays were in the rings

    def check(nth):
        plan, process = run(nth)
        if not plan.failed:
            return False
        failed_calls["cli", kind] = failed_calls.get(("cli", kind), 0) + 1
        said = f"cgdebug-cli {name}: {plan.text()}\n{process.code} {process.stderr()}"
        same = without_times(process.stdout()) == without_times(good.stdout())
        if not same or process.code != good.code:
            assert process.code in (2, 3, 4, 5), said
            assert re.search(WORDS[plan.error], process.stderr() + process.stdout()), said
        return True

    return fail_calls(plan.calls[KINDS.index(kind) + 1], 2, check)
