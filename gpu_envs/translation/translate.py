"""From the rules of a spec, written in Python, to the header that a C++ author would have written."""

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
from gpu_envs.translation.functions import translate
from gpu_envs.translation.sources import RefusedError, Written, annotation, read
from gpu_envs.translation.tree import Function
from gpu_envs.translation.types import BOOL, INT, NUMBERS, REAL, Several
from gpu_envs.translation.unit import SourceLine, Unit

PRELUDE = "dialect/python.cuh"
"""The header with Python's arithmetic."""

ONE = {
    "reset": ("State", "Params", "Random"),
    "step": ("State", "Params", "Action", "Random"),
    "observe": ("State", "Params", "Observation"),
    "allow": ("State", "Params", "Mask"),
    "measure": ("State", "Params", "Metrics"),
}
"""The arguments of the functions of a single agent."""

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
"""The arguments of the functions of a team."""

_FROZEN = {
    **dict.fromkeys(("observe", "observe_shared", "allow", "active"), frozenset({"State", "World"})),
    "measure": frozenset({"State"}),  # a team's may need scratch
}
"""What functions must not change."""

NAMES = {"State": "s", "World": "w", "Params": "p", "int": "i", "TeamActions": "actions"}


def translated(spec: Spec, params: Mapping[str, Any]) -> str:
    """Translates the rules of a spec to C++.

    Args:
        spec: The spec, whose ``header`` is ``Rules``.
        params: The values of all parameters; shapes follow from those that are fixed.

    Returns:
        The text of the header.

    Raises:
        TranslationError: The rules use what cannot be translated.
    """
    rules, spec = spec.header, spec.with_observed_params(())
    assert isinstance(rules, Rules)
    unit = Unit(Arguments(spec, params))
    wanted = TEAM if isinstance(spec, TeamSpec) else ONE
    _check(spec, rules, wanted)
    made = {}
    for name, kinds in wanted.items():
        if function := getattr(rules, name):
            written = read(function, f"{spec.id}: {name}")
            with written.at(written.tree):
                made[name] = _entry(unit, spec, name, written, kinds)
    check_reset(unit.arguments, spec, made["reset"])
    for name in ("observe", "observe_shared"):
        if name in made:
            check_observe(unit.arguments, spec, made[name])
    if "measure" in made:
        check_measure(spec, made["measure"])
    empty = [] if rules.look is not None or "look" not in wanted else ["FN void look(World&, const Params&, Team&) {}"]
    parts = [("python.cuh", [SourceLine(1, header_text(PRELUDE))]), *unit.parts]
    return "\n".join([*_joined(parts), *empty, ""])


def _check(spec: Spec, rules: Rules, wanted: Mapping[str, Any]) -> None:
    """Which functions there must be."""
    for name in ("reset", "step", "observe"):
        if getattr(rules, name) is None:
            raise TranslationError(f"{spec.id}: the rules have no {name}; give Rules(reset=..., step=..., observe=...)")
    if rules.look is not None and "look" not in wanted:
        raise TranslationError(f"{spec.id}: look is of teams; leave it out, and compute what is seen in observe")
    sharing = isinstance(spec, TeamSpec) and spec.has_shared_observations
    if (rules.observe_shared is not None) is not sharing:
        have = "a role has a shared_observation, and the rules have no observe_shared"
        lack = "the rules have observe_shared, and no role has a shared_observation"
        hint = "give both, Rules(observe_shared=...) and Role(shared_observation=...), or neither"
        raise TranslationError(f"{spec.id}: {have if sharing else lack}; {hint}")
    heads = isinstance(spec, TeamSpec) and spec.active_heads
    if (rules.active is not None) is not heads:
        have = "active_heads is True, and the rules have no active"
        lack = "the rules have active, and the spec no active_heads=True"
        raise TranslationError(f"{spec.id}: {have if heads else lack}; give both, or neither")
    if rules.allow is not None and spec.action_mask is None:
        raise TranslationError(f"{spec.id}: the rules have allow, and the spec no masks; give action_mask=True")
    if rules.allow is None and spec.masked:
        raise TranslationError(f"{spec.id}: action_mask is True, and the rules have no allow; give Rules(allow=...)")
    if rules.measure is not None and not spec.metrics:
        raise TranslationError(
            f"{spec.id}: the rules have measure, and the spec names no metrics; give metrics={{'name': Metric()}}"
        )
    if rules.measure is None and spec.metrics:
        what = f"the spec names the metrics {', '.join(spec.metrics)}"
        raise TranslationError(f"{spec.id}: {what}, and the rules have no measure; give Rules(measure=...)")


def _entry(unit: Unit, spec: Spec, name: str, written: Written, kinds: tuple[str, ...]) -> Function:
    """Translates one of the functions that the driver calls."""
    given = list(written.annotations)
    usual = ", ".join(NAMES.get(kind, kind.lower()) for kind in kinds)
    if len(given) != len(kinds):
        what = f"{name} has {len(given)} arguments ({', '.join(given)}) and needs {len(kinds)}"
        raise RefusedError(what, f"Write def {written.name}({usual}):")
    # Arguments in another order would be taken for one another: by their usual names, or by their annotations.
    meant = {each: kind for kind in kinds for each in (NAMES.get(kind), kind.lower()) if each and each != "int"}
    for node, kind in zip(written.arguments, kinds, strict=True):
        own, word = node.arg, annotation(node.annotation)
        if node.annotation is None and meant.get(own, kind) != kind:
            what = f"{own!r} stands where {name} gets the {kind}"
            raise RefusedError(what, f"Mind the order: def {written.name}({usual}):", node)
        number = word == "int" and kind == "Action" and unit.arguments.all[kind] is INT
        if word in (*unit.arguments.all, *NUMBERS) and word != kind and not number:
            raise RefusedError(f"{own!r} is the {kind} here, and not the {word}", "Mind the arguments' order", node)
    usual_result = name == "step" and isinstance(spec, EnvSpec)
    return translate(
        unit,
        written,
        name,
        dict(zip(given, kinds, strict=True)),
        BOOL if name == "active" else Several("Outcome", (REAL, BOOL)) if usual_result else None,
        between=isinstance(spec, TeamSpec) and name in ("reset", "step", "look", "measure"),
        frozen=_FROZEN.get(name, frozenset()),
    )


def _joined(parts: Iterable[tuple[str, list[SourceLine]]]) -> Iterable[str]:
    """The lines of all parts, with the lines of the author's that they come from, for the compilers' messages."""
    for file, lines in parts:
        name, at = file.replace("\\", "\\\\").replace('"', '\\"'), 0
        for line in lines:
            if line.number and line.number != at:
                yield f'#line {line.number} "{name}"'
                at = line.number
            yield line.text
            at += 1
