"""What rules must write whole: the state in a reset, and observations."""

from collections.abc import Iterator

from gpu_envs.specs.base import Spec
from gpu_envs.specs.single import EnvSpec
from gpu_envs.specs.team import TeamSpec
from gpu_envs.translation.arguments import Arguments
from gpu_envs.translation.tree import Function
from gpu_envs.translation.types import Array, Thing


def check_reset(arguments: Arguments, spec: Spec, rules: Function) -> None:
    """Every field of the state is set by reset, single numbers on every way through it."""
    assert isinstance(spec, EnvSpec | TeamSpec)
    of_agents = {**spec.state, **spec.role_state} if isinstance(spec, TeamSpec) else {}
    fields = spec.typed_state if isinstance(spec, EnvSpec) else {**of_agents, **spec.shared}
    single = [name for name in fields if isinstance(spec, EnvSpec) and not fields[name].is_array]
    missing, some_ways = [name for name in fields if name not in rules.effects.fields], ""
    if not missing:
        missing = [name for name in single if name not in rules.effects.certain]
        some_ways = " on some ways only, and not on every one"
    if not missing:
        return
    name = missing[0]
    own = spec.sizes(name, fields[name], arguments.params)
    indices = ", ".join(("i" if name in of_agents else "") + "klm"[: len(own)])
    place = f"{next(iter(rules.written.annotations))}.{name}" + (f"[{indices}]" if indices else "")
    listed = ", ".join(map(repr, missing))
    raise rules.written.error(
        rules.written.tree,
        f"reset sets {listed}{some_ways}" if some_ways else f"reset does not set {listed}",
        f"Every field of the state has a first value: write {place} = ... in reset",
    )


def check_measure(spec: Spec, rules: Function) -> None:
    """Every metric is set; of a single agent on every way through ``measure``."""
    places = [f"metrics.{name}" for name in spec.metrics]
    missing = [place for place in places if place not in rules.effects.fields]
    ways = ""
    if not missing and isinstance(spec, EnvSpec):
        missing, ways = [place for place in places if place not in rules.effects.certain], " on some ways only"
    if missing:
        own = list(rules.written.annotations)[-1]
        first = missing[0].replace("metrics", own, 1)
        what = f"measure sets {first}{ways}" if ways else f"measure does not set {first}"
        raise rules.written.error(rules.written.tree, what, f"Every metric has a value: write {first} = ...")


def check_observe(arguments: Arguments, spec: Spec, rules: Function) -> None:
    """Every number of an observation is written, as far as it is known which are."""
    for part, size, what, whose in _parts(arguments, spec, rules):
        tree = rules.written.tree
        if part and part not in rules.effects.fields:
            every = f"Every part of {whose} is written: {what}[j] = ..."
            raise rules.written.error(tree, f"{rules.cpp} does not write {what}", every)
        written = {index for of, index in rules.effects.written if of == part}
        missing = set(range(size)) - written
        if missing and None not in written:
            each = f"{whose[0].upper()}{whose[1:]} has {size} numbers, and each of them is written"
            raise rules.written.error(tree, f"{rules.cpp} does not write {what}[{min(missing)}]", each)


def _parts(arguments: Arguments, spec: Spec, rules: Function) -> Iterator[tuple[str, int, str, str]]:
    """The parts of an observation: name, elements (0: not known), what rules call it, what it belongs to."""
    own, whose = list(rules.written.annotations)[-1], "the observation space"
    if isinstance(spec, TeamSpec):
        for role, count in zip(spec.roles, spec.counts(arguments.params).values(), strict=True):
            given = spec.role_observation(role, arguments.params)
            space, part = (given.individual, "") if rules.cpp == "observe" else (given.shared, "shared ")
            if count and space is not None:
                yield "", space.shape[0], own, f"the {part}observation space of {role.name!r}"
        return
    seen = arguments.all["Observation"]
    boxes = {name: field.kind for name, field in seen.fields.items()} if isinstance(seen, Thing) else {"": seen}
    for name, box in boxes.items():
        if isinstance(box, Array):
            size = box.sizes[0] or 0 if len(box.sizes) == 1 else 0
            yield name, size, f"{own}.{name}" if name else own, whose
