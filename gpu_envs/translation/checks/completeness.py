"""Checks that rules set every state field in reset, every metric, and every element of an observation."""

from collections.abc import Iterator

from gpu_envs.specs.base import Spec
from gpu_envs.specs.single import EnvSpec
from gpu_envs.specs.team import TeamSpec
from gpu_envs.translation.arguments import Arguments
from gpu_envs.translation.tree import Function
from gpu_envs.translation.types import Array, Struct


def check_reset(arguments: Arguments, spec: Spec, rules: Function) -> None:
    """Refuse a reset that leaves out a field of the state; for a single agent, a scalar field on any path."""
    assert isinstance(spec, EnvSpec | TeamSpec)
    agent_fields = {**spec.state, **spec.role_state} if isinstance(spec, TeamSpec) else {}
    fields = spec.typed_state if isinstance(spec, EnvSpec) else {**agent_fields, **spec.shared}
    scalars = [name for name in fields if isinstance(spec, EnvSpec) and not fields[name].is_array]
    missing, suffix = [name for name in fields if name not in rules.effects.fields], ""
    if not missing:
        missing = [name for name in scalars if name not in rules.effects.always_set]
        suffix = " on some paths only"
    if not missing:
        return
    name = missing[0]
    sizes = spec.sizes(name, fields[name], arguments.params)
    indices = ", ".join(("i" if name in agent_fields else "") + "klm"[: len(sizes)])
    place = f"{next(iter(rules.source.annotations))}.{name}" + (f"[{indices}]" if indices else "")
    names = ", ".join(map(repr, missing))
    raise rules.source.error(
        rules.source.tree,
        f"reset sets {names}{suffix}" if suffix else f"reset does not set {names}",
        f"Every field of the state has a first value: write {place} = ... in reset",
    )


def check_measure(spec: Spec, rules: Function) -> None:
    """Refuse a measure that leaves out a metric; for a single agent, on any path."""
    places = [f"metrics.{name}" for name in spec.metrics]
    missing = [place for place in places if place not in rules.effects.fields]
    suffix = ""
    if not missing and isinstance(spec, EnvSpec):
        missing, suffix = ([place for place in places if place not in rules.effects.always_set], " on some paths only")
    if missing:
        argument = list(rules.source.annotations)[-1]
        first = missing[0].replace("metrics", argument, 1)
        problem = f"measure sets {first}{suffix}" if suffix else f"measure does not set {first}"
        raise rules.source.error(rules.source.tree, problem, f"Every metric has a value: write {first} = ...")


def check_observe(arguments: Arguments, spec: Spec, rules: Function) -> None:
    """Refuse rules that leave out an element of an observation; an index computed at run time may be any element."""
    for part, size, name, space in _parts(arguments, spec, rules):
        tree = rules.source.tree
        if part and part not in rules.effects.fields:
            hint = f"Write every part of {space}: {name}[j] = ..."
            raise rules.source.error(tree, f"{rules.cpp} does not write {name}", hint)
        indices = {index for written_part, index in rules.effects.observation_writes if written_part == part}
        missing = set(range(size)) - indices
        if missing and None not in indices:
            hint = f"{space[0].upper()}{space[1:]} has {size} numbers: write each of them"
            raise rules.source.error(tree, f"{rules.cpp} does not write {name}[{min(missing)}]", hint)


def _parts(arguments: Arguments, spec: Spec, rules: Function) -> Iterator[tuple[str, int, str, str]]:
    """Yield the parts of an observation: key, elements (0: several dimensions), name in the rules, space."""
    argument = list(rules.source.annotations)[-1]
    if isinstance(spec, TeamSpec):
        for role, count in zip(spec.roles, spec.counts(arguments.params).values(), strict=True):
            observation = spec.role_observation(role, arguments.params)
            space, part = (observation.individual, "") if rules.cpp == "observe" else (observation.shared, "shared ")
            if count and space is not None:
                yield "", space.shape[0], argument, f"the {part}observation space of {role.name!r}"
        return
    observed = arguments.all["Observation"]
    boxes = {name: f.kind for name, f in observed.fields.items()} if isinstance(observed, Struct) else {"": observed}
    for name, box in boxes.items():
        if isinstance(box, Array):
            size = box.sizes[0] or 0 if len(box.sizes) == 1 else 0
            yield name, size, f"{argument}.{name}" if name else argument, "the observation space"
