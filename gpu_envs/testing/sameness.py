"""Checks that a trajectory depends only on seed, actions and parameters, bit for bit.

Each check returns details for the report, or raises a FailedError.
"""

import pickle

from gpu_envs.backend.arrays import to_numpy
from gpu_envs.backend.background import available_threads
from gpu_envs.backend.host import MIN_STEPS_PER_THREAD
from gpu_envs.codegen.header import rules_part
from gpu_envs.engine.options import Options, config_of
from gpu_envs.engine.random_actions import num_elements
from gpu_envs.engine.roles import RoleInterface
from gpu_envs.specs.team import TeamSpec
from gpu_envs.testing.draws import Draw
from gpu_envs.testing.report import FailedError, SkippedError
from gpu_envs.testing.subject import Moment, Run, Subject, difference, first_difference, flatten, select

_UNINITIALISED = (
    "the rules read an uninitialised value: a local variable, a field that reset does not set, or scratch that no "
    "phase wrote"
)

_MAX_BYTES = 2**28
"""Maximum size of observations of a batch for several threads, in bytes."""


def _trajectory(run: Run, seed: int, draws: list[Draw]) -> list[Moment]:
    """Returns a trajectory: observations after reset, and the results and state of each step."""
    moments = [run.reset(seed) | run.state()]
    return moments + [run.step(draw) | run.state() for draw in draws]


def _check_equal(one: list[Moment], other: list[Moment], what: str, advice: str) -> None:
    """Raises a FailedError, "WHAT: the first difference; ADVICE", unless two trajectories are equal."""
    message = difference(one[0], other[0])
    message = f"after reset, {message}" if message else first_difference(one[1:], other[1:])
    if message:
        raise FailedError(f"{what}: {message}; {advice}")


def seeds(subject: Subject, device: str) -> str:
    """Checks that equal seeds give equal results; returns a summary, also of whether another seed changes them."""
    run, draws = subject.run(device=device), subject.draws()
    first = _trajectory(run, subject.seed, draws)
    for other, where in ((run, "when played again"), (subject.run(device=device), "in another environment")):
        repeated = _trajectory(other, subject.seed, draws)
        _check_equal(first, repeated, f"the same seed gave different results {where}", _UNINITIALISED)
    other_seed = _trajectory(run, subject.seed + 1000, draws)
    starts = "; initial states do not depend on the seed" if not difference(first[0], other_seed[0]) else ""
    if not difference(first[0], other_seed[0]) and not first_difference(first[1:], other_seed[1:]):
        return f"{subject.steps} steps twice; another seed gives the same results: nothing is random"
    return f"{subject.steps} steps twice; another seed gives different results{starts}"


def independence(subject: Subject, device: str) -> str:
    """Checks that replicas depend on no batch size, neighbours' actions and seeds, or threads; returns a summary."""
    n, draws = subject.num_envs, subject.draws()
    batch = _trajectory(subject.run(n, device=device), subject.seed, draws)
    for size in sorted({1, 3, n - 2} - {0, n, -1}):
        smaller = _trajectory(subject.run(size, device=device), subject.seed, draws)
        _check_equal(
            [select(m, slice(size)) for m in batch], smaller, f"in batches of {n} and of {size}", _UNINITIALISED
        )
    alone_text = "each replica is the same alone"
    if "shared_random" in rules_part(config_of(subject.spec, 1, Options(), subject.params))[1]:
        alone_text = "shared random numbers use the seed of the first replica"
    else:
        for i in (1, n - 1):
            single_draws = [{role: units[i : i + 1] for role, units in draw.items()} for draw in draws]
            single = _trajectory(subject.run(1, device=device), subject.seed + i, single_draws)
            first = f"replica {i} of a batch seeded {subject.seed}"
            what = f"{first} is not the single environment seeded {subject.seed + i}"
            _check_equal([select(m, slice(i, i + 1)) for m in batch], single, what, _UNINITIALISED)
    _check_other_neighbours(subject, device, batch)
    threads = _threads(subject) if device == "cpu" else "any launch"
    return f"batches of 1, 3, {n - 2} and {n}, {alone_text}, and with neighbours that act differently; {threads}"


def _check_other_neighbours(subject: Subject, device: str, batch: list[Moment]) -> None:
    """Checks that the middle replica of a trajectory stays equal with other actions and seeds of its neighbours."""
    n, middle = subject.num_envs, subject.num_envs // 2
    seeds = [subject.seed + (i if i in (0, middle) else i + 1000) for i in range(n)]  # all may share the first one
    run = subject.run(device=device)
    moments = [run.reset(seeds) | run.state()]
    for draw in subject.draws():
        changed = {role: 1.0 - 2.0**-53 - units for role, units in draw.items()}
        for role, units in draw.items():
            changed[role][middle] = units[middle]
        moments.append(run.step(changed) | run.state())
    middle_only = slice(middle, middle + 1)
    _check_equal(
        [select(m, middle_only) for m in batch],
        [select(m, middle_only) for m in moments],
        f"replica {middle} changes with the seeds and actions of its neighbours (it has number 0 below)",
        "the rules write or read outside their replica: check the indices",
    )


def _threads(subject: Subject) -> str:
    """Checks that a batch is equal if stepped by one thread and by several; returns a summary."""
    max_threads = available_threads()
    agents = sum(len(role.agents) for role in subject.roles.values())
    count = 2 * MIN_STEPS_PER_THREAD // (32 * agents if subject.team else 1) + 3
    sizes = [
        num_elements(space) * (len(subject.roles[part].agents) if subject.team else 1)
        for part, space in subject.observation_spaces.items()
    ]
    if max_threads == 1 or 4 * count * sum(sizes) > _MAX_BYTES:
        return "one thread (the machine has one core, or observations are large)"
    draws = subject.draws(3, count)
    single, parallel = (
        _trajectory(subject.run(count, device="cpu", threads=k), subject.seed, draws) for k in (1, max_threads)
    )
    _check_equal(single, parallel, f"by one thread and by {max_threads}", "the rules must not have static variables")
    return f"by one thread and by {max_threads}"


def resets(subject: Subject, device: str) -> str:
    """Checks that a reset gives the same in new replicas and in used ones; returns a summary."""
    draws = subject.draws()
    for mode in ("NextStep", "SameStep"):
        old, new = (subject.run(device=device, autoreset_mode=mode) for _ in range(2))
        old.reset(subject.seed + 77)
        old.run_steps(draws)
        after_reset = old.reset(subject.seed) | old.state()
        message = difference(new.reset(subject.seed) | new.state(), after_reset)
        if message:
            raise FailedError(
                f"after a reset of new and of used replicas with one seed, {message}: reset must set every field of "
                "the state, and observe must depend on nothing else"
            )
    return f"the same in new replicas and after {subject.steps} steps of other episodes"


def round_trip(subject: Subject, device: str) -> str:
    """Checks that a saved state continues equally in place, in another environment and unpickled; returns a summary."""
    draws = subject.draws()
    half = len(draws) // 2
    run = subject.run(device=device)
    run.reset(subject.seed)
    run.run_steps(draws[:half])
    saved, last = run.env.get_state(), dict(run.last)
    pickled = pickle.dumps(run.env) if subject.is_registered else None

    def play_rest(run: Run) -> list[Moment]:
        run.last = last
        return [run.step(draw) | run.state() for draw in draws[half:]]

    first = play_rest(run)
    run.env.set_state(saved)
    continuations = {"from a saved state": play_rest(run)}
    other = subject.run(device=device)
    other.env.set_state(saved)
    continuations["in another environment with this state"] = play_rest(other)
    if pickled is not None:
        other.env = pickle.loads(pickled)
        continuations["from a pickle"] = play_rest(other)
    for how, moments in continuations.items():
        message = first_difference(first, moments)
        if message:
            raise FailedError(f"{how}, {message}: step may depend only on state, parameters, action and random")
    note = "" if pickled is not None else " (not pickled, because it is not registered)"
    return f"{len(draws) - half} steps {', '.join(continuations)}{note}"


def observations(subject: Subject, device: str) -> str:
    """Checks that observing again, with the state restored, gives a step's observations; returns a summary."""
    run = subject.run(device=device)
    moment = run.reset(subject.seed)
    for t, draw in enumerate([None, *subject.draws()]):
        if draw is not None:
            moment = run.step(draw)
        observed = {n: v for n, v in moment.items() if n.startswith("observations")}
        run.env.set_state(run.env.get_state())
        for when in ("when observed again", "when observed a third time"):
            message = difference(observed, run.observe())
            if message:
                raise FailedError(
                    f"after step {t}, {message} {when}: observe (and look) must be functions of state and parameters, "
                    "and not depend on scratch that step or reset wrote"
                )
    return f"observed three times after each of {subject.steps} steps"


def rollouts(subject: Subject, device: str) -> str:
    """Checks that a rollout equals single steps with its actions; returns a summary."""
    steps = subject.steps
    fused, single = (subject.run(device=device, autoreset_mode="SameStep") for _ in range(2))
    fused.reset(subject.seed)
    single.reset(subject.seed)
    result = fused.env.rollout(steps, per_step=True)
    by_role = {name: to_numpy(values) for name, values in RoleInterface(fused.env).split(result.actions).items()}
    names = ("observations", "rewards", "terminations", "truncations")
    for t in range(steps):
        moment = select(single.act({name: values[t] for name, values in by_role.items()}), slice(None), names)
        expected: Moment = {}
        for name in names:
            value = getattr(result, name)
            expected |= flatten(name, {k: v[t] for k, v in value.items()} if isinstance(value, dict) else value[t])
        message = difference(expected, moment)
        if message:
            raise FailedError(
                f"in step {t + 1} of a rollout and of single steps with its actions, {message}; {_UNINITIALISED}"
            )
    return f"a rollout of {steps} steps equals single steps"


def idle_elements(subject: Subject, device: str) -> str:
    """Checks that the choices of inactive elements of actions have no effect; returns a summary."""
    if not (isinstance(subject.spec, TeamSpec) and subject.spec.active_heads):
        raise SkippedError("the spec has no actions with inactive elements (active_heads is not True)")
    runs = [subject.run(device=device, active_heads=active) for active in (True, False)]
    one, other = (_trajectory(run, subject.seed, subject.draws()) for run in runs)
    masks = [[{n: m.pop(n) for n in [*m] if n.startswith("action_mask")} for m in moments] for moments in (one, other)]
    if not first_difference(*masks):
        raise SkippedError("with these parameters, all elements are always active")
    advice = "active describes the next step, when elapsed is greater by one"
    _check_equal(one, other, "with inactive elements at their first choice, and at random", advice)
    return f"{subject.steps} steps do not depend on inactive elements"


def devices(subject: Subject, names: tuple[str, ...]) -> str:
    """Checks that the devices give equal results; returns a summary."""
    if len(names) < 2:
        raise SkippedError(f"only {names[0]} is requested or available")
    for mode in ("NextStep", "SameStep"):
        runs = [subject.run(device=device, autoreset_mode=mode) for device in names]
        one, other = (_trajectory(run, subject.seed, subject.draws()) for run in runs)
        advice = f"{_UNINITIALISED}; or a phase reads what another iteration of it writes"
        _check_equal(one, other, f"on {' and on '.join(names)}", advice)
    return f"{subject.steps} steps on {' and on '.join(names)} have equal bits"
