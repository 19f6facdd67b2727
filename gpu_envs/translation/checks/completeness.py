"""What rules must write whole: the state in a reset, and observations."""

import math
from collections.abc import Iterator, Mapping

from gpu_envs.errors import TranslationError
from gpu_envs.specs.base import Spec
from gpu_envs.specs.fields import Field
from gpu_envs.specs.single import EnvSpec
from gpu_envs.specs.spaces import space_of
from gpu_envs.specs.team import TeamSpec
from gpu_envs.translation.arguments import Arguments
from gpu_envs.translation.signatures import names_of
from gpu_envs.translation.tree import Function
from gpu_envs.translation.types import Array, Thing


def check_reset(spec: Spec, rules: Function) -> None:
    """Every field of the state is set by reset, single numbers on every way through it."""
    assert isinstance(spec, EnvSpec | TeamSpec)
    of_agents = spec.state if isinstance(spec, TeamSpec) else {}
    fields = spec.typed_state if isinstance(spec, EnvSpec) else {**spec.state, **spec.shared}
    missing = [name for name in fields if name not in rules.effects.fields]
    if missing:
        raise _unset(rules, f"reset does not set {_listed(missing)}", missing[0], fields, of_agents)
    if isinstance(spec, TeamSpec):
        return
    unsure = [n for n, field in fields.items() if not field.is_array and n not in rules.effects.certain]
    if unsure:
        what = f"reset sets {_listed(unsure)} on some ways only, and not on every one"
        raise _unset(rules, what, unsure[0], fields, of_agents)


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names))


def _unset(
    rules: Function, what: str, name: str, fields: Mapping[str, Field], of_agents: Mapping[str, Field]
) -> TranslationError:
    place = f"{names_of(rules.written)[0]}.{name}"
    indices = [*(["i"] if name in of_agents else []), *(["k"] if fields[name].is_array else [])]
    place += f"[{', '.join(indices)}]" if indices else ""
    return rules.written.error(
        rules.written.tree, what, f"Every field of the state has a first value: write {place} = ... in reset"
    )


def check_observe(arguments: Arguments, spec: Spec, rules: Function) -> None:
    """Every number of an observation is written, as far as it is known which are."""
    for part, size, what, whose in _parts(arguments, spec, rules):
        tree = rules.written.tree
        if part and part not in rules.effects.fields:
            every = f"Every part of {whose} is written: {what}[j] = ..."
            raise rules.written.error(tree, f"observe does not write {what}", every)
        if not size or part in rules.effects.anywhere:
            continue
        missing = set(range(size)) - {index for of, index in rules.effects.written if of == part}
        if missing:
            each = f"{whose[0].upper()}{whose[1:]} has {size} numbers, and each of them is written"
            raise rules.written.error(tree, f"observe does not write {what}[{min(missing)}]", each)


def _parts(arguments: Arguments, spec: Spec, rules: Function) -> Iterator[tuple[str, int, str, str]]:
    """The parts of an observation: name, elements (0: not known), what rules call it, what it belongs to."""
    own, whose = names_of(rules.written)[-1], "the observation space"
    if isinstance(spec, TeamSpec):
        for role, count in zip(spec.roles, spec.counts(arguments.params).values(), strict=True):
            size = math.prod(space_of(role.observation, arguments.params).shape or (1,)) if count else 0
            yield "", size, own, f"the observation space of {role.name!r}"
        return
    seen = arguments.all["Observation"]
    if isinstance(seen, Thing):
        for name, value in seen.fields.items():
            if isinstance(value.kind, Array):
                yield name, _size(value.kind), f"{own}.{name}", whose
    elif isinstance(seen, Array):
        yield "", _size(seen), own, whose


def _size(box: Array) -> int:
    return box.sizes[0] or 0 if len(box.sizes) == 1 else 0
