"""The arguments of functions: their names, their annotations, and how they are passed."""

import ast
from collections.abc import Mapping

from gpu_envs.translation.arguments import Arguments
from gpu_envs.translation.sources import Written
from gpu_envs.translation.values import BOOL, INT, REAL, Elements, Number, Thing, Value

NUMBERS: Mapping[str, Number] = {"float": REAL, "int": INT, "bool": BOOL}

PLACES = {
    "State": ("State&", "s"),
    "Params": ("const Params&", "p"),
    "Random": ("Random&", "random"),
    "World": ("World&", "w"),
    "Team": ("Team&", "team"),
    "Action": ("const Action&", "action"),
    "TeamActions": ("const TeamActions&", "actions"),
    "Observation": ("Observation&", "observation"),
    "Row": ("const Row&", "row"),
    "Mask": ("Mask&", "mask"),
}
"""How arguments are passed, and their names in C++."""


def argument(arguments: Arguments, kind: str, *, frozen: bool) -> tuple[str, Value]:
    """An argument other than a plain number: its declaration in C++, and what it is in the rules."""
    cpp, code = PLACES[kind]
    if kind == "Mask" and "World" in arguments.all:
        cpp = "const Mask&"
    if frozen and kind in ("State", "World"):
        cpp = f"const {cpp}"
    found = arguments.all[kind]
    owner = found.owner if isinstance(found, Thing | Elements) else ""
    return f"{cpp} {code}", Value(code, found, owner=owner)


def names_of(written: Written) -> list[str]:
    """The names of a function's arguments."""
    given = written.tree.args
    extra = given.vararg or given.kwarg
    if extra:
        raise written.error(extra, "the arguments of rules are listed by name", "Name each of them")
    return [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def annotations_of(written: Written) -> dict[str, str]:
    """The arguments' annotations: the last part of their names, ``""`` where there is none."""
    given = written.tree.args
    return {a.arg: annotation(a.annotation) for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)}


def annotation(node: ast.expr | None) -> str:
    """The last part of an annotation's name, or the whole of one with brackets; ``""`` where there is none."""
    if node is None:
        return ""
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)
    return text if "[" in text else text.rpartition(".")[2]
