"""Checks that a trajectory depends on seed, actions and parameters, and on nothing else: bit for bit."""

import pickle

from gpu_envs.backend.background import available_threads
from gpu_envs.backend.arrays import to_numpy
from gpu_envs.backend.host import MIN_STEPS_PER_THREAD
from gpu_envs.codegen.header import rules_part
from gpu_envs.engine.roles import RoleInterface
from gpu_envs.engine.options import Options, config_of
from gpu_envs.engine.random_actions import num_elements
from gpu_envs.specs.team import TeamSpec
from gpu_envs.testing.draws import Draw
from gpu_envs.testing.report import FailedError, SkippedError
from gpu_envs.testing.subject import Moment, Run, Subject, difference, first_difference, flat, picked

_HIDDEN = (
    "the rules read what is not set: a local variable without a value, a field that reset left out, or scratch that no "
    "phase wrote"
)

_MOST_BYTES = 2**28
"""Observations of a batch that is large enough for several threads."""


def _played(run: Run, seed: int, numbers: list[Draw]) -> list[Moment]:
    """A trajectory: the first observations, and each step's results with the state after it."""
    moments = [run.reset(seed) | run.state()]
    return moments + [run.step(draw) | run.state() for draw in numbers]


def _demand_same(one: list[Moment], other: list[Moment], what: str, advice: str) -> None:
    found = difference(one[0], other[0])
    found = f"after reset, {found}" if found else first_difference(one[1:], other[1:])
    if found:
        raise FailedError(f"{what}: {found}; {advice}")


def seeds(subject: Subject, device: str) -> str:
    """Plays twice with the same seed, and once with another."""
    run, numbers = subject.run(device=device), subject.draws()
    first = _played(run, subject.seed, numbers)
    for other, where in ((run, "when played again"), (subject.run(device=device), "in another environment")):
        again = _played(other, subject.seed, numbers)
        _demand_same(first, again, f"the same seed gave something else {where}", _HIDDEN)
    others = _played(run, subject.seed + 1000, numbers)
    starts = "; all episodes start alike" if not difference(first[0], others[0]) else ""
    if not difference(first[0], others[0]) and not first_difference(first[1:], others[1:]):
        return f"{subject.steps} steps twice; another seed gives the same too: nothing here is random"
    return f"{subject.steps} steps twice; another seed gives others{starts}"


def independence(subject: Subject, device: str) -> str:
    """Plays batches of several sizes, single replicas, and replicas whose neighbours act otherwise."""
    n, numbers = subject.num_envs, subject.draws()
    batch = _played(subject.run(n, device=device), subject.seed, numbers)
    for size in sorted({1, 3, n - 2} - {0, n, -1}):
        few = _played(subject.run(size, device=device), subject.seed, numbers)
        _demand_same([picked(m, slice(size)) for m in batch], few, f"in batches of {n} and of {size}", _HIDDEN)
    alone = "each is what it would be alone"
    if "shared_random" in rules_part(config_of(subject.spec, 1, Options(), subject.params))[1]:
        alone = "what they share is drawn from the first one's seed"
    else:
        for i in (1, n - 1):
            own = [{role: units[i : i + 1] for role, units in draw.items()} for draw in numbers]
            single = _played(subject.run(1, device=device), subject.seed + i, own)
            first = f"replica {i} of a batch seeded {subject.seed}"
            what = f"{first} is not the single environment seeded {subject.seed + i}"
            _demand_same([picked(m, slice(i, i + 1)) for m in batch], single, what, _HIDDEN)
    _beside_others(subject, device, batch)
    threads = _threads(subject) if device == "cpu" else "any launch"
    return f"batches of 1, 3, {n - 2} and {n}, {alone}; beside others that act otherwise; {threads}"


def _beside_others(subject: Subject, device: str, batch: list[Moment]) -> None:
    """One replica again, whose neighbours have other seeds and actions; but the first's seed is what all share."""
    n, here = subject.num_envs, subject.num_envs // 2
    seeds = [subject.seed + (i if i in (0, here) else i + 1000) for i in range(n)]
    run = subject.run(device=device)
    moments = [run.reset(seeds) | run.state()]
    for draw in subject.draws():
        changed = {role: 1.0 - 2.0**-53 - units for role, units in draw.items()}
        for role, units in draw.items():
            changed[role][here] = units[here]
        moments.append(run.step(changed) | run.state())
    one = slice(here, here + 1)
    _demand_same(
        [picked(m, one) for m in batch],
        [picked(m, one) for m in moments],
        f"replica {here} changes with the seeds and actions of its neighbours (it has number 0 below)",
        "the rules write or read outside their replica: look at the indices",
    )


def _threads(subject: Subject) -> str:
    """A batch that several threads step, and the same by one."""
    most = available_threads()
    agents = sum(len(role.agents) for role in subject.roles.values())
    count = 2 * MIN_STEPS_PER_THREAD // (32 * agents if subject.team else 1) + 3
    sizes = [
        num_elements(space) * (len(subject.roles[part].agents) if subject.team else 1)
        for part, space in subject.observation_spaces.items()
    ]
    if most == 1 or 4 * count * sum(sizes) > _MOST_BYTES:
        return "one thread (this machine has one core, or observations are large)"
    numbers = subject.draws(3, count)
    one, many = (_played(subject.run(count, device="cpu", threads=k), subject.seed, numbers) for k in (1, most))
    _demand_same(one, many, f"by one thread and by {most}", "the rules have memory of their own: no static variables")
    return f"by one thread and by {most}"


def resets(subject: Subject, device: str) -> str:
    """Resets what has been played with other seeds, and what is new."""
    numbers = subject.draws()
    for mode in ("NextStep", "SameStep"):
        used, new = (subject.run(device=device, autoreset_mode=mode) for _ in range(2))
        used.reset(subject.seed + 77)
        used.follow(numbers)
        left = used.reset(subject.seed) | used.state()
        found = difference(new.reset(subject.seed) | new.state(), left)
        if found:
            raise FailedError(
                f"after a reset of new and of used replicas with one seed, {found}: reset must set every field of the "
                "state, and observe count on nothing else"
            )
    return f"the same after {subject.steps} steps of other episodes as at first"


def round_trip(subject: Subject, device: str) -> str:
    """Saves the state amid episodes, and goes on from it: there, in another environment, and out of a pickle."""
    numbers = subject.draws()
    half = len(numbers) // 2
    run = subject.run(device=device)
    run.reset(subject.seed)
    run.follow(numbers[:half])
    saved, noted = run.env.get_state(), dict(run.last)
    pickled = pickle.dumps(run.env) if subject.is_known else None

    def rest(of: Run) -> list[Moment]:
        of.last = noted
        return [of.step(draw) | of.state() for draw in numbers[half:]]

    first = rest(run)
    run.env.set_state(saved)
    ways = {"once more from a saved state": rest(run)}
    other = subject.run(device=device)
    other.env.set_state(saved)
    ways["in another environment with that state"] = rest(other)
    if pickled is not None:
        other.env = pickle.loads(pickled)
        ways["out of a pickle"] = rest(other)
    for way, moments in ways.items():
        found = first_difference(first, moments)
        if found:
            raise FailedError(f"{way}, {found}: step must depend on state, parameters, action and random alone")
    told = "" if pickled is not None else " (no pickle: it is not registered)"
    return f"{len(numbers) - half} steps {', '.join(ways)}{told}"


def observations(subject: Subject, device: str) -> str:
    """Observes anew what was observed in a step: twice, and after the state was restored."""
    run = subject.run(device=device)
    moment = run.reset(subject.seed)
    for t, draw in enumerate([None, *subject.draws()]):
        if draw is not None:
            moment = run.step(draw)
        seen = {n: v for n, v in moment.items() if n.startswith("observations")}
        run.env.set_state(run.env.get_state())
        for again in ("when observed anew", "when observed a second time"):
            found = difference(seen, run.observe())
            if found:
                raise FailedError(
                    f"after step {t}, {found} {again}: observe (and look) must be functions of state and parameters, "
                    "and count on nothing that step or reset leaves in scratch"
                )
    return f"observed three times after each of {subject.steps} steps"


def rollouts(subject: Subject, device: str) -> str:
    """Takes steps at once, and one by one."""
    steps = subject.steps
    fused, single = (subject.run(device=device, autoreset_mode="SameStep") for _ in range(2))
    fused.reset(subject.seed)
    single.reset(subject.seed)
    result = fused.env.rollout(steps, per_step=True)
    by_role = {name: to_numpy(values) for name, values in RoleInterface(fused.env).split(result.actions).items()}
    names = ("observations", "rewards", "terminations", "truncations")
    for t in range(steps):
        moment = picked(single.act({name: values[t] for name, values in by_role.items()}), slice(None), names)
        both: Moment = {}
        for name in names:
            value = getattr(result, name)
            both |= flat(name, {k: v[t] for k, v in value.items()} if isinstance(value, dict) else value[t])
        found = difference(both, moment)
        if found:
            raise FailedError(f"in step {t + 1} of a rollout and of single steps with its actions, {found}; {_HIDDEN}")
    return f"{steps} steps at once are the single steps"


def idle_elements(subject: Subject, device: str) -> str:
    """Draws elements of actions that the rules say mean nothing, and leaves them at their first choice."""
    if not (isinstance(subject.spec, TeamSpec) and subject.spec.active_heads):
        raise SkippedError("the spec has none (active_heads=False)")
    runs = [subject.run(device=device, active_heads=told) for told in (True, False)]
    one, other = (_played(run, subject.seed, subject.draws()) for run in runs)
    masks = [[{n: m.pop(n) for n in [*m] if n.startswith("action_mask")} for m in moments] for moments in (one, other)]
    if not first_difference(*masks):
        raise SkippedError("with these parameters all elements are always active")
    advice = "active says of an element that it means nothing in the step to come, in which elapsed is greater by one"
    _demand_same(one, other, "when elements that are not active are at their first choice, and when drawn", advice)
    return f"{subject.steps} steps are the same whatever elements hold that are not active"


def devices(subject: Subject, names: tuple[str, ...]) -> str:
    """Plays on both devices."""
    if len(names) < 2:
        raise SkippedError(f"only {names[0]} was asked for, or is here")
    for mode in ("NextStep", "SameStep"):
        runs = [subject.run(device=device, autoreset_mode=mode) for device in names]
        one, other = (_played(run, subject.seed, subject.draws()) for run in runs)
        advice = f"{_HIDDEN}; or phases read what other turns of the same phase write"
        _demand_same(one, other, f"on {' and on '.join(names)}", advice)
    return f"{subject.steps} steps on {' and on '.join(names)}, the same bits"
