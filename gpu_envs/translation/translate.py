"""Translates the Python rules of a spec to a C++ header."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpu_envs.backend.program import header_text
from gpu_envs.errors import TranslationError
from gpu_envs.specs.base import Spec
from gpu_envs.specs.rules import Rules
from gpu_envs.specs.single import EnvSpec
from gpu_envs.specs.team import TeamSpec
from gpu_envs.translation.arguments import Arguments
from gpu_envs.translation.checks.completeness import check_measure, check_observe, check_reset
from gpu_envs.translation.functions import translate_function
from gpu_envs.translation.sources import FunctionSource, RefusedError, annotation, read_source
from gpu_envs.translation.tree import Function
from gpu_envs.translation.types import BOOL, INT, NUMBERS, REAL, Tuple
from gpu_envs.translation.unit import SourceLine, Unit

PRELUDE = "dialect/python.cuh"
"""Header with Python's arithmetic."""

ONE = {
    "reset": ("State", "Params", "Random"),
    "step": ("State", "Params", "Action", "Random"),
    "observe": ("State", "Params", "Observation"),
    "allow": ("State", "Params", "Mask"),
    "measure": ("State", "Params", "Metrics"),
}
"""Functions of a single agent's rules, and the types of their arguments."""

TEAM = {
    "reset": ("World", "Params", "Team"),
    "step": ("World", "Params", "Team", "TeamActions"),
    "look": ("World", "Params", "Team"),
    "observe": ("World", "Params", "int", "Row"),
    "observe_shared": ("World", "Params", "int", "Row"),
    "allow": ("World", "Params", "int", "Mask"),
    "active": ("World", "Params", "int", "int"),
    "measure": ("World", "Params", "Team", "Metrics"),
}
"""Functions of a team's rules, and the types of their arguments."""

_READ_ONLY = {
    **dict.fromkeys(("observe", "observe_shared", "allow", "active"), frozenset({"State", "World"})),
    "measure": frozenset({"State"}),  # in a team measure may use scratch fields
}
"""Arguments that a function must not change."""

NAMES = {"State": "s", "World": "w", "Params": "p", "int": "i", "TeamActions": "actions"}
"""Usual argument names, if they are not the type's name in lower case."""


def translate_rules(spec: Spec, params: Mapping[str, Any]) -> str:
    """Return the C++ header of a spec's Python rules; raise a TranslationError if they cannot be translated.

    The values of fixed parameters in ``params`` are constants of the header, and determine shapes.
    """
    rules, spec = spec.header, spec.with_observed_params(())
    assert isinstance(rules, Rules)
    unit = Unit(Arguments(spec, params))
    signatures = TEAM if isinstance(spec, TeamSpec) else ONE
    _check_functions(spec, rules, signatures)
    functions = {}
    for name, kinds in signatures.items():
        if function := getattr(rules, name):
            source = read_source(function, f"{spec.id}: {name}")
            with source.at(source.tree):
                functions[name] = _translate_entry(unit, spec, name, source, kinds)
    check_reset(unit.arguments, spec, functions["reset"])
    for name in ("observe", "observe_shared"):
        if name in functions:
            check_observe(unit.arguments, spec, functions[name])
    if "measure" in functions:
        check_measure(spec, functions["measure"])
    parts = [("python.cuh", [SourceLine(1, header_text(PRELUDE))]), *unit.parts]
    lacks_look = "look" in signatures and rules.look is None
    empty_look = ["FN void look(World&, const Params&, Team&) {}"] if lacks_look else []
    return "\n".join([*_lines_of(parts), *empty_look, ""])


def _check_functions(spec: Spec, rules: Rules, signatures: Mapping[str, Any]) -> None:
    """Raise a TranslationError unless the rules have the functions that the spec needs, and no others."""
    for name in ("reset", "step", "observe"):
        if getattr(rules, name) is None:
            hint = "write Rules(reset=..., step=..., observe=...)"
            raise TranslationError(f"{spec.id}: the rules have no {name}; {hint}")
    if rules.look is not None and "look" not in signatures:
        raise TranslationError(f"{spec.id}: only teams have look; remove it, and compute observations in observe")
    shares = isinstance(spec, TeamSpec) and spec.has_shared_observations
    if (rules.observe_shared is not None) is not shares:
        unhandled = "a role has a shared_observation, but the rules have no observe_shared"
        unexpected = "the rules have observe_shared, but no role has a shared_observation"
        hint = "write both, Rules(observe_shared=...) and Role(shared_observation=...), or neither"
        raise TranslationError(f"{spec.id}: {unhandled if shares else unexpected}; {hint}")
    has_active_heads = isinstance(spec, TeamSpec) and spec.active_heads
    if (rules.active is not None) is not has_active_heads:
        unhandled = "active_heads is True, but the rules have no active"
        unexpected = "the rules have active, but the spec does not have active_heads=True"
        raise TranslationError(f"{spec.id}: {unhandled if has_active_heads else unexpected}; write both, or neither")
    if rules.allow is not None and spec.action_mask is None:
        problem = "Rules(allow=...) is given, but action_mask is None"
        raise TranslationError(f"{spec.id}: {problem}: add action_mask=True to the spec")
    if rules.allow is None and spec.masked:
        raise TranslationError(f"{spec.id}: action_mask is True, but the rules have no allow; add Rules(allow=...)")
    if rules.measure is not None and not spec.metrics:
        problem = "Rules(measure=...) is given, but the spec has no metrics"
        raise TranslationError(f"{spec.id}: {problem}: add metrics={{'name': Metric()}}")
    if rules.measure is None and spec.metrics:
        problem = f"the spec has the metrics {', '.join(spec.metrics)}"
        raise TranslationError(f"{spec.id}: {problem}, but the rules have no measure; add Rules(measure=...)")


def _translate_entry(unit: Unit, spec: Spec, name: str, source: FunctionSource, kinds: tuple[str, ...]) -> Function:
    """Translate a function that the driver calls, with arguments of the types ``kinds``; refuse others."""
    names = list(source.annotations)
    usual_names = ", ".join(NAMES.get(kind, kind.lower()) for kind in kinds)
    if len(names) != len(kinds):
        problem = f"{name} has {len(names)} arguments ({', '.join(names)}) and needs {len(kinds)}"
        raise RefusedError(problem, f"Write def {source.name}({usual_names}):")
    # Arguments are passed by position: usual names and annotations show a wrong order.
    usual_kinds = {usual: kind for kind in kinds for usual in (NAMES.get(kind, kind.lower()), kind.lower())}
    usual_kinds.pop("int", None)
    for node, kind in zip(source.arguments, kinds, strict=True):
        argument, type_name = node.arg, annotation(node.annotation)
        if node.annotation is None and usual_kinds.get(argument, kind) != kind:
            problem = f"{argument!r} is passed the {kind} in {name}"
            raise RefusedError(problem, f"Keep the order of the arguments: def {source.name}({usual_names}):", node)
        is_plain_action = type_name == "int" and kind == "Action" and unit.arguments.all[kind] is INT
        if type_name in (*unit.arguments.all, *NUMBERS) and type_name != kind and not is_plain_action:
            raise RefusedError(f"{argument!r} is passed the {kind}, not the {type_name}", "Keep their order", node)
    returns_outcome = name == "step" and isinstance(spec, EnvSpec)
    return translate_function(
        unit,
        source,
        name,
        dict(zip(names, kinds, strict=True)),
        BOOL if name == "active" else Tuple("Outcome", (REAL, BOOL)) if returns_outcome else None,
        is_phased=isinstance(spec, TeamSpec) and name in ("reset", "step", "look", "measure"),
        read_only=_READ_ONLY.get(name, frozenset()),
    )


def _lines_of(parts: Iterable[tuple[str, list[SourceLine]]]) -> Iterable[str]:
    """Yield the C++ of (file, lines), with ``#line`` directives that give compiler messages the author's lines."""
    for file, lines in parts:
        name, number = file.replace("\\", "\\\\").replace('"', '\\"'), 0
        for line in lines:
            if line.number and line.number != number:
                yield f'#line {line.number} "{name}"'
                number = line.number
            yield line.text
            number += 1
