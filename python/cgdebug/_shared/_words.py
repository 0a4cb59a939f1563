"""What users type, read by the same C++ as cgdebug-cli and the probes read it with."""

from __future__ import annotations

import itertools
import os
import sys
import typing

from ._reader import recording_module

_known_good: dict[str, str] = {}  # by name, the text of a variable that was found well-formed


def _parser() -> typing.Any:
    return sys.modules.get("cgdebug._probe") or recording_module()


def setting(name: str) -> str:
    """The text of an environment variable of the table, "" if it is unset. A malformed one is as
    good as unset: it costs one line on stderr and is counted as not seen."""
    text = os.environ.get(name, "")
    if not text or _known_good.get(name) == text:
        return text
    if problem := _parser().setting_problem(name, text):
        _tell(problem)
        return ""
    _known_good[name] = text
    return text


def _tell(problem: str) -> None:
    """Prints it once, and counts it as not seen."""
    try:
        from .. import _probe
    except ImportError:
        print(f"cgdebug: {problem}", file=sys.stderr)
    else:
        _probe.tell_malformed_settings()


def apply_config(path: str) -> None:
    """Sets the variables that a file of settings names and that are unset.

    Fails: ValueError, if it cannot be read or understood.
    """
    for name, text in _parser().read_config(path):
        os.environ[name] = os.environ.get(name) or text


def watch_levels() -> list[str]:
    return _parser().WATCH_LEVELS


def watched(text: str, what: str) -> tuple[str, str]:
    """(level, globs) of "layers.*" or "op:layers.*".

    Fails: ValueError, which begins with `what`.
    """
    return _parser().watched(text, what)


def condition(text: object, what: str) -> tuple[int, float]:
    """The number of a `layout::ControlTrigger`, and its threshold.

    Fails: ValueError, which begins with `what`.
    """
    try:
        if isinstance(text, str):
            return _parser().condition(text, what)
    except ValueError:
        pass
    raise ValueError(
        f'{what} must be "nan", "inf", "absmax>NUMBER", "changed" or "mismatch", not {text!r}'
    ) from None


def finding_number(kind: str) -> int:
    """The number of a `layout::FindingKind`."""
    return _parser().FINDING_KINDS.index(kind)


def finding_kinds(text: str, what: str) -> list[str]:
    """Fails: ValueError, which begins with `what`."""
    return _parser().finding_kinds(text, what)


def check_probe_name(name: str) -> None:
    """Fails: ValueError."""
    _parser().check_probe_name(name)


def make_probe_name(text: str) -> str:
    return _parser().make_probe_name(text)


def close_to(name: str, names: typing.Collection[str]) -> str:
    """ " Close: 'a', 'b'": those of `names` that `name`, or its globs, may mean; "" if none may."""
    import difflib

    wanted = [glob for glob in name.split(",") if not glob.startswith("!")]
    close = [difflib.get_close_matches(one, names, n=3, cutoff=0.5) for one in wanted]
    found = list(dict.fromkeys(itertools.chain.from_iterable(close)))[:3]
    return f" Close: {', '.join(map(repr, found))}" if found else ""
