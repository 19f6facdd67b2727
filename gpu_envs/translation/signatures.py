"""The arguments of functions: their names, their annotations, and how they are passed."""

import ast

from gpu_envs.translation.sources import Written

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


def arguments_of(written: Written) -> list[ast.arg]:
    """A function's arguments."""
    given = written.tree.args
    extra = given.vararg or given.kwarg
    if extra:
        raise written.error(extra, "the arguments of rules are listed by name", "Name each of them")
    return [*given.posonlyargs, *given.args, *given.kwonlyargs]


def names_of(written: Written) -> list[str]:
    """The names of a function's arguments."""
    return [argument.arg for argument in arguments_of(written)]


def annotations_of(written: Written) -> dict[str, str]:
    """The arguments' annotations: the last part of their names, ``""`` where there is none."""
    return {argument.arg: annotation(argument.annotation) for argument in arguments_of(written)}


def annotation(node: ast.expr | None) -> str:
    """The last part of an annotation's name, or the whole of one with brackets; ``""`` where there is none."""
    if node is None:
        return ""
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)
    return text if "[" in text else text.rpartition(".")[2]
