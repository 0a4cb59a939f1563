"""The stubs of the native modules say what pybind11 knows of them: names, arguments, defaults and types.

They are written by hand, because they say more: pybind11 knows that status() makes a dict, and mypy
is to know its keys. So a type of the stub may be narrower than that of the module, and no other."""

import ast
import importlib
import pathlib

import pytest
import torch

import cgdebug

ANY_NUMBER = {
    "typing.SupportsInt | typing.SupportsIndex": "int",
    "typing.SupportsFloat | typing.SupportsIndex": "float",
}
MODULES = (
    "typing.",
    "typing_extensions.",
    "collections.abc.",
    "cgdebug._probe.",
    "cgdebug._recording.",
)
# What a type of pybind11 may be in a stub, beside itself and itself with parameters.
NARROWER = {
    "Sequence": {"list", "tuple"},
    "None": {"NoReturn"},
    "str": {"bytes"},  # std::string takes both
}


def parsed(annotation):
    text = ast.unparse(annotation)
    for old, new in ANY_NUMBER.items():
        text = text.replace(old, new)
    for module in MODULES:
        text = text.replace(module, "")
    return ast.parse(text, mode="eval").body


def alternatives(kind):
    if isinstance(kind, ast.BinOp):
        return [*alternatives(kind.left), *alternatives(kind.right)]
    return [kind]


def is_narrower(ours, native, keyed):
    """keyed: the names of the stub's TypedDicts"""
    if isinstance(ours, ast.BinOp) or isinstance(native, ast.BinOp):
        theirs = alternatives(native)
        is_pointer = len(theirs) == 1 and ast.unparse(native)[0].isupper()  # which may be null
        return ast.unparse(native) == "object" or all(
            any(is_narrower(one, other, keyed) for other in theirs)
            or (is_pointer and ast.unparse(one) == "None")
            for one in alternatives(ours)
        )
    if isinstance(native, ast.Subscript):
        return (
            isinstance(ours, ast.Subscript)
            and is_narrower(ours.value, native.value, keyed)
            and parameters_are_narrower(ours.slice, native.slice, keyed)
        )
    name = ast.unparse(ours.value if isinstance(ours, ast.Subscript) else ours)
    known = ast.unparse(native)
    return (
        known in ("object", name)
        or name in NARROWER.get(known, ())
        or (known == "dict" and name in keyed)
    )


def parameters_are_narrower(ours, native, keyed):
    lists = [one.elts if isinstance(one, ast.Tuple) else [one] for one in (ours, native)]
    return len(lists[0]) == len(lists[1]) and all(
        is_narrower(one, other, keyed) for one, other in zip(*lists, strict=True)
    )


def arguments_of(function):
    """(name, whether by name alone, default, type) of each, without self."""
    given = function.args
    by_place = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(by_place) - len(given.defaults)) + given.defaults
    found = [(one, False, default) for one, default in zip(by_place, defaults, strict=True)]
    found += [
        (one, True, default)
        for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    return [
        (one.arg, by_name, default and ast.unparse(default), one.annotation)
        for one, by_name, default in found
        if one.arg not in ("self", "arg0")
    ]


def signature_in(text, name):
    """What pybind11 writes in the first line of a docstring."""
    head = text.split("\n")[0]
    return ast.parse(f"def {head[head.index('(') :]}: ...".replace("def ", f"def {name}", 1)).body[
        0
    ]


def functions_in(stub, module):
    """(name, function of the stub, docstring of the module's) of each."""
    for node in stub.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node, getattr(module, node.name).__doc__
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for one in [one for one in node.body if isinstance(one, ast.FunctionDef)]:
                if one.name == "__buffer__":  # a slot of the type, not a function of pybind11
                    continue
                there = vars(getattr(module, node.name))[one.name]
                of_module = there.fget if isinstance(there, property) else there
                assert isinstance(there, property) == bool(one.decorator_list), one.name
                yield f"{node.name}.{one.name}", one, of_module.__doc__


def differences(stub, module):
    keyed = {one.name for one in stub.body if isinstance(one, ast.ClassDef)}
    for name, ours, text in functions_in(stub, module):
        if name == "count_unlisted":  # CPython's own, without a signature
            continue
        native = signature_in(text, ours.name)
        own, known = arguments_of(ours), arguments_of(native)
        if [one[:3] for one in own] != [one[:3] for one in known]:
            yield f"{name}({', '.join(map(str, own))}), in the module {text}"
            continue
        kinds = [(one[3], other[3]) for one, other in zip(own, known, strict=True)]
        for mine, there in [*kinds, (ours.returns, native.returns)]:
            if not is_narrower(parsed(mine), parsed(there), keyed):
                yield f"{name}: {ast.unparse(mine)}, in the module {ast.unparse(there)}"


def stub_of(name):
    return ast.parse((pathlib.Path(cgdebug.__file__).parent / f"{name}.pyi").read_text())


def declared_in(stub):
    """Names of a .pyi that are there at run time too: functions, classes, methods, constants."""
    for node in stub.body:
        if isinstance(node, ast.AnnAssign):
            yield node.target.id
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            yield node.name
            inner = node.body if isinstance(node, ast.ClassDef) else []
            methods = [one.name for one in inner if isinstance(one, ast.FunctionDef)]
            yield from (f"{node.name}.{name}" for name in methods if name != "__buffer__")


@pytest.mark.parametrize("name", ["_recording", "_probe"])
def test_the_stub_of_a_native_module_declares_what_it_has(name):
    module = importlib.import_module(f"cgdebug.{name}")
    declared = set(declared_in(stub_of(name)))
    there = {one for one in vars(module) if not one.startswith("_")}
    for kind in [one for one in there if isinstance(getattr(module, one), type)]:
        methods = {one for one in vars(getattr(module, kind)) if not one.startswith("_")}
        there |= {f"{kind}.{one}" for one in methods | {"__init__", "__len__"}}
    assert {one for one in declared if "__" not in one} == {one for one in there if "__" not in one}


@pytest.mark.parametrize("name", ["_recording", "_probe"])
def test_a_stub_says_what_pybind11_knows(name):
    module = importlib.import_module(f"cgdebug.{name}")
    assert list(differences(stub_of(name), module)) == []


@pytest.mark.parametrize(
    "right, wrong",
    [
        ("def begin_call() -> int", "def begin_call() -> str"),
        ("def capture_of(stream: int) -> int", "def capture_of(capture: int) -> int"),
        ("def capture_of(stream: int) -> int", "def capture_of(stream: int = 0) -> int"),
        ("def capture_of(stream: int) -> int", "def capture_of(*, stream: int) -> int"),
        ("def capture_of(stream: int) -> int", "def capture_of(stream: int | None) -> int"),
        (
            "def watched(text: str, what: str) -> tuple[str, str]",
            "def watched(text: str, what: str) -> tuple[str]",
        ),
        (
            "def named_nodes(graph: int) -> list[tuple[int, int, str]]",
            "def named_nodes(graph: int) -> list[int]",
        ),
    ],
)
def test_a_stub_that_says_something_else_is_found(right, wrong):
    module = importlib.import_module("cgdebug._probe")

    def found(text):
        return list(differences(ast.parse(f"{text}: ..."), module))

    assert found(right) == []
    assert len(found(wrong)) == 1


def keys_in(name):
    """Keys of the TypedDict `name` of _probe.pyi, with those of its base."""
    node = next(one for one in stub_of("_probe").body if getattr(one, "name", "") == name)
    inherited = set().union(*(keys_in(base.id) for base in node.bases if base.id != "TypedDict"))
    return inherited | {one.target.id for one in node.body}


def test_the_stub_has_the_keys_of_a_status_and_of_records():
    actions = [cgdebug.TensorRecord(), cgdebug.TensorCompare(torch.zeros(3))]
    probe = cgdebug.CudaGraphTensorProbe("stubs/keys", actions, mode="always")
    probe(torch.ones(3))
    native = probe._native
    status, (record,) = native.status(), native.records()
    probe.close()
    assert set(status) == keys_in("_Status")
    assert set(status["slots"][0]) == keys_in("_Slot")
    assert set(status["slots"][0]["verdict"]) == keys_in("_Verdict")
    assert set(record) == keys_in("_Record")
    from cgdebug import _probe

    assert set(_probe.session()) == keys_in("_Session")
