"""What a step of any registered environment gives, and where it writes it."""

import copy
import dataclasses
import time
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from harness import (
    HAS_CUDA,
    Make,
    Place,
    address,
    assert_same_bits,
    empty,
    numpy_of,
)
from registered import (
    CONTINUOUS,
    EXTRAS,
    LIMIT,
    RESULTS,
    Variant,
    assert_guards,
    assert_refused,
    draw,
    dtype,
    each_variant,
    far,
    guarded,
    infos_of_a_start,
    joined_actions,
    library,
    made,
    numpy_by_role,
    outcome,
    placed,
    record,
    roles_of,
    shape_of,
    slot,
    split,
    still,
    storage_place,
    take,
)

import gpu_envs
from gpu_envs import Field, Step
from gpu_envs.engine.by_role import ByRole
from gpu_envs.engine.results import OutReader, only_finished


@each_variant
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_types_of_results(make: Make, variant: Variant, place: Place, precision: str) -> None:
    """Arrays are of the library, shape, type and device promised, within the spaces; rewards of the precision."""
    env = made(
        make, variant, 5, place, precision=precision, autoreset_mode="SameStep", statistics=True, max_episode_steps=1
    )
    first, infos = env.reset(seed=0)
    assert set(infos) == infos_of_a_start(env)
    step = env.step(placed(env, draw(env, 1)[0], place))
    spaces = split(env, env.observation_spaces if variant.has_team else env.observation_space)
    for role, seen in ByRole(env).roles.items():
        rows = ByRole(env).rows(role)
        shape = (*rows, *(seen.observation.shape or ()))
        expected = [
            (first, "float32", shape),
            (step[0], "float32", shape),
            (step[1], precision, rows),
            (step[2], "bool", rows),
            (step[3], "bool", rows),
            (step[4]["final_obs"], "float32", shape),
            (step[4]["episode"]["r"], precision, rows),
            (step[4]["episode"]["l"], "int32", rows),
            (env.episode_return, precision, rows),
            (env.episode_length, "int32", rows),
        ]
        if variant.has_team:
            expected += [(infos["alive"], "bool", rows), (step[4]["alive"], "bool", rows)]
        for given, kind, dimensions in expected:
            array = split(env, given)[role]
            assert (dtype(array), tuple(array.shape), library(array)) == (kind, dimensions, place.output)
            assert place.output != "torch" or array.device.type == place.device
        assert spaces[role].shape == shape
        for given in (first, step[0]):
            assert numpy_by_role(env, given)[role] in spaces[role]
    for mask in ("_final_obs", "_episode"):
        assert (dtype(step[4][mask]), tuple(step[4][mask].shape)) == ("bool", (5,))
    for metrics in (env.episode_metrics, {n: v for n, v in step[4]["episode"].items() if n not in ("r", "l")}):
        assert list(metrics) == list(env.env_spec.metrics)
        for values in metrics.values():
            assert (dtype(values), tuple(values.shape), library(values)) == (precision, (5,), place.output)
    spec: Any = gpu_envs.spec(variant.env_id)
    assert tuple(env.state) == spec.fields
    shared = {"elapsed": Field("int"), **getattr(spec, "shared", {})}
    counts = {name: role.size(env.params) for role in getattr(spec, "roles", ()) for name in role.state}
    fields = {"in_game": Field("bool"), **spec.state, **getattr(spec, "of_roles", {}), **shared}
    for name, field in env.state.items():
        agents = (counts.get(name, env.num_agents),) if variant.has_team and name not in shared else ()
        length = spec.sizes(name, fields[name], env.params)
        kind = {"real": precision, "int": "int32", "bool": "bool", "byte": "uint8"}[fields[name].type]
        assert (dtype(field), tuple(field.shape)) == (kind, (5, *agents, *length))
        assert library(field) == ("cupy" if place == ("cuda", "numpy") else place.output)


@each_variant
def test_spaces(make: Make, variant: Variant, device: str) -> None:
    """Spaces are Gymnasium's batches of the single ones, and samples are accepted."""
    env = made(make, variant, 3, Place(device, "numpy"))
    env.reset(seed=0)
    whole = "s" if variant.has_team else ""
    observations, actions = (split(env, getattr(env, f"{name}_space{whole}")) for name in ("observation", "action"))
    for role, seen in ByRole(env).roles.items():
        for many, single in ((observations[role], seen.observation), (actions[role], seen.action)):
            agents = batch_space(single, len(seen.agents)) if variant.has_team else single
            assert many == batch_space(agents, 3)
        actions[role].seed(0)
    for _ in range(3):
        given = env.step(joined_actions(env, {role: space.sample() for role, space in actions.items()}))[0]
        assert all(array in observations[role] for role, array in split(env, given).items())


def test_mode_is_told(make: Make, variant: Variant, mode: str) -> None:
    """The mode is Gymnasium's enum, as an attribute and in the metadata; it may be given as enum or string."""
    for given in (mode, AutoresetMode(mode)):
        env = made(make, variant, 1, autoreset_mode=given)
        assert env.autoreset_mode is env.metadata["autoreset_mode"] is AutoresetMode(mode)


@pytest.mark.parametrize("copied", [None, True, False])
def test_copy(make: Make, variant: Variant, place: Place, copied: bool | None) -> None:
    """With ``copy`` results are fresh arrays; without they are the simulator's memory, the same every step."""
    if place == ("cuda", "numpy") and copied is False:
        with pytest.raises(ValueError, match="copy=False"):
            made(make, variant, 5, place, copy=False)
        return
    env = made(make, variant, 5, place, copy=copied, autoreset_mode="SameStep", max_episode_steps=1)
    fresh = place.output == "numpy" if copied is None else copied
    first, infos = env.reset(seed=0)
    steps = [env.step(placed(env, action, place)) for action in draw(env, 3)]
    call = env.simulation.program.calls["step"]
    for role, kernel in zip(roles_of(env), call.role if variant.has_team else [call], strict=True):
        columns = {name: [split(env, step[i])[role] for step in steps] for i, name in enumerate(RESULTS)}
        columns["observations"].append(split(env, first)[role])
        columns["final_obs"] = [split(env, step[4]["final_obs"])[role] for step in steps]
        if variant.has_team:
            columns["alive"] = [given["alive"][role] for given in (infos, *(step[4] for step in steps))]
        for name, column in columns.items():
            assert len({address(array) for array in column}) == (len(column) if fresh else 1)
            if not fresh:
                assert address(column[0]) == address(env.simulation.buffers[slot(env, name, role)])
        if not fresh:
            assert kernel.observations == address(columns["observations"][-1])  # what the kernel writes to
    if variant.has_team and not fresh:
        assert address(infos["alive"][roles_of(env)[0]]) == address(env.state["in_game"])


def test_returned_copies_are_kept(make: Make, variant: Variant, place: Place, mode: str) -> None:
    """Copies do not change with the next step, or reset; nor do the infos."""
    env = made(make, variant, 5, place, copy=True, autoreset_mode=mode, statistics=True, max_episode_steps=2)
    env.allow_frozen_steps()
    env.reset(seed=0)
    actions = [placed(env, action, place) for action in draw(env, 6)]
    env.step(actions[0])
    kept = env.step(actions[1])
    flat = {**{str(i): values for i, values in enumerate(kept[:4])}, "infos": kept[4]}
    before = copy.deepcopy(flat)
    for action in actions[2:]:
        env.step(action)
    env.reset(seed=1)
    assert_same_bits(before, flat)


@each_variant
@pytest.mark.parametrize("count", [1, 3, 67])
def test_out(make: Make, variant: Variant, place: Place, count: int) -> None:
    """A step writes straight into rows of the user's storage, whatever their alignment, and gives those rows back."""
    steps = LIMIT + 3
    plain, env = (made(make, variant, count, place, autoreset_mode="SameStep") for _ in range(2))
    wholes, storage = {}, {}
    for name in RESULTS:
        for role in roles_of(env):
            shape, kind = shape_of(env, name, role)
            wholes[name, role], storage[name, role] = guarded(place, (steps + 1, *shape), kind)
    plain.reset(seed=0), env.reset(seed=0)
    actions = draw(env, steps)
    expected = record(plain, actions, place)
    untouched = {key: numpy_of(env.simulation.buffers[slot(env, *key)]) for key in storage}
    for t, action in enumerate(actions):
        rows = {name: {role: storage[name, role][t + 1] for role in roles_of(env)} for name in RESULTS}
        out = Step(**{name: joined_actions(env, by_role) for name, by_role in rows.items()})
        results = env.step(placed(env, action, place), out=out)
        for name, result in zip(RESULTS, results, strict=False):
            assert all(given is rows[name][role] for role, given in split(env, result).items())
    for (name, role), values in storage.items():
        given = numpy_of(values)
        assert_same_bits(given[1:], expected[name][role], f"{name}.{role}")
        assert (given[0] == np.full(1, 77).astype(given.dtype)).all()
        assert_guards(wholes[name, role])
        assert_same_bits(untouched[name, role], env.simulation.buffers[slot(env, name, role)], "no further copy")


@pytest.mark.parametrize("name", [*RESULTS, *EXTRAS])
def test_any_subset_of_out(make: Make, variant: Variant, place: Place, name: str) -> None:
    """One array of one role alone may be given; the next step without it goes where it always went."""
    options: dict[str, Any] = {"autoreset_mode": "SameStep", "max_episode_steps": 2, "statistics": True}
    plain, env = (made(make, variant, 7, place, **options) for _ in range(2))
    for role in roles_of(env):
        whole, target = guarded(place, *shape_of(env, name, role))
        out = Step(**{name: {role: target} if variant.has_team else target})
        plain.reset(seed=0, options=far(env)), env.reset(seed=0, options=far(env))
        for t, action in enumerate(draw(env, 4)):
            expected = plain.step(placed(env, action, place))
            given = env.step(placed(env, action, place), out=out if t < 2 else None)
            assert_same_bits(outcome(env, expected), outcome(env, given), f"step {t}")
            if t == 1:  # the first end of all episodes
                extras = {"final_obs": expected[4]["final_obs"]}
                extras |= {"episode_return": plain.episode_return, "episode_length": plain.episode_length}
                values: dict[str, Any] = {**dict(zip(RESULTS, expected, strict=False)), **extras}
                assert_same_bits(target, split(env, values[name])[role], name)
                before = numpy_of(target)
            if t < 2:
                assert name in EXTRAS or split(env, given[RESULTS.index(name)])[role] is target
            assert_same_bits(plain.episode_return, env.episode_return)
            assert_same_bits(plain.episode_length, env.episode_length)
        assert_same_bits(before, target)
        assert_guards(whole)


def test_final_values_go_out_where_episodes_end(make: Make, variant: Variant, place: Place) -> None:
    """``final_obs`` and the statistics are written only where an episode ended; other rows stay."""
    env = made(make, variant, 3, place, autoreset_mode="SameStep", statistics=True, max_episode_steps=2)
    env.reset(seed=0, options=far(env))
    env.step(placed(env, still(env), place))
    env.reset(options={"reset_mask": np.array([True, False, True]), **far(env)})
    targets = {name: {role: guarded(place, *shape_of(env, name, role)) for role in roles_of(env)} for name in EXTRAS}
    out = Step(
        **{name: joined_actions(env, {role: two[1] for role, two in both.items()}) for name, both in targets.items()}
    )
    infos = env.step(placed(env, still(env), place), out=out)[4]
    assert numpy_of(infos["_final_obs"]).tolist() == [False, True, False]
    for name, by_role in targets.items():
        for role, (whole, target) in by_role.items():
            values = numpy_of(target)
            assert (values[[0, 2]] == 77).all(), name
            assert (values[1] != 77).any(), name
            assert_guards(whole)
            if place.output != "numpy" and name == "final_obs":
                assert split(env, infos["final_obs"])[role] is target
    assert all((values[1] == 2).all() for values in numpy_by_role(env, out.episode_length).values())


def bad_outs(env: Any, place: Place) -> dict[str, tuple[Any, type[Exception], str]]:
    """Storage that no step can write into, the error it deserves, and a word of its message."""
    place, role = storage_place(place), roles_of(env)[0]
    team = env.env_spec.has_team
    shape, features = shape_of(env, "rewards", role)[0], shape_of(env, "observations", role)[0]

    def one(name: str, array: Any) -> Step:
        return Step(**{name: {role: array} if team else array})

    def rewards(shape: tuple[int, ...], kind: str = "float32") -> Step:
        return one("rewards", empty(place, shape, kind))

    where = rf"out\.rewards\['{role}'\]" if team else r"out\.rewards"
    good = empty(place, shape, "float32")
    turned = empty(place, (features[-1], *features[1:-1], features[0]), "float32")
    turned = turned.swapaxes(0, -1) if hasattr(turned, "swapaxes") else turned.transpose(0, -1)
    found: dict[str, tuple[Any, type[Exception], str]] = {
        "replicas": (rewards((shape[0] + 1, *shape[1:])), ValueError, f"{where} has shape"),
        "agents": (rewards((*shape[:-1], shape[-1] + 1)), ValueError, "shape"),
        "dimensions": (rewards((*shape, 1)), ValueError, "shape"),
        "row": (one("observations", empty(place, (*features[:-1], features[-1] - 1), "float32")), ValueError, "shape"),
        "flat": (one("observations", empty(place, (int(np.prod(features)),), "float32")), ValueError, "shape"),
        "dtype": (rewards(shape, "float64"), TypeError, f"{where} has dtype float64"),
        "dtype of flags": (one("truncations", empty(place, shape, "uint8")), TypeError, "uint8"),
        "strided": (one("rewards", empty(place, (*shape[:-1], 2 * shape[-1]), "float32")[..., ::2]), ValueError, "out"),
        "transposed": (one("observations", turned), ValueError, "contiguous"),
        "list": (one("rewards", numpy_of(good).tolist()), TypeError, "list"),
        "no last ones": (one("final_obs", good), ValueError, "SameStep"),
        "no Step": ([], TypeError, "out is list; give a gpu_envs.Step"),
    }
    if place.output == "numpy":
        unaligned = np.zeros(good.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(shape)
        found |= {
            "bytes' order": (one("rewards", good.astype(">f4")), TypeError, f"{where} has dtype >f4"),
            "unaligned": (one("rewards", unaligned), ValueError, "aligned"),
        }
    if team:
        found |= {
            "no mapping": (Step(rewards=good), TypeError, r"out\.rewards.*mapping"),
            "unknown role": (Step(rewards={f"{role}s": good}), ValueError, f"'{role}s'.*Did you mean '{role}'"),
            "agent for a role": (Step(rewards={role: good, f"{role}_0": good}), ValueError, f"{role}_0"),
        }
    return found


def overlapping_outs(env: Any) -> dict[str, Any]:
    """Storage that a step writes into for another purpose."""
    role, team = roles_of(env)[0], env.env_spec.has_team
    shape = shape_of(env, "rewards", role)[0]

    def first_of(array: Any) -> Step:
        rewards = array.reshape(-1)[: int(np.prod(shape))].reshape(shape)
        return Step(rewards={role: rewards} if team else rewards)

    seen = env.simulation.buffers[slot(env, "observations", role)]
    reals = [values for values in env.state.values() if str(values.dtype).endswith("float32")]
    storage = empty(storage_place(Place(env.device.partition(":")[0], env.output)), tuple(seen.shape), "float32")
    both = dataclasses.replace(first_of(storage), observations={role: storage} if team else storage)
    found: dict[str, Any] = {
        "own observations": (first_of(seen), ValueError, "overlaps the environment's own 'observations"),
        "one another": (both, ValueError, r"out\.\w+.* and out\.\w+.* overlap"),
    }
    if reals:
        found["state"] = (first_of(reals[0]), ValueError, "overlaps the environment's own 'state")
    return found


def test_bad_out(make: Make, variant: Variant, place: Place) -> None:
    """Storage of a wrong role, shape, type or layout is refused by name, and nothing has changed."""
    env = made(make, variant, 5, place)
    env.reset(seed=0)
    actions = placed(env, draw(env, 1)[0], place)
    for out, error, word in (bad_outs(env, place) | overlapping_outs(env)).values():
        assert_refused(env, lambda out=out: env.step(actions, out=out), error, word)  # type: ignore[misc]
    env.step(actions)


def test_read_only_out(make: Make, variant: Variant) -> None:
    """An array that must not be written is refused."""
    env = made(make, variant, 5)
    env.reset(seed=0)
    role = roles_of(env)[-1]
    rewards = np.zeros(*shape_of(env, "rewards", role))
    rewards.flags.writeable = False
    out = Step(rewards={role: rewards} if variant.has_team else rewards)
    with pytest.raises(ValueError, match=r"out\.rewards.*writable"):
        take(env, draw(env, 1)[0], out=out)


def test_out_on_another_device(make: Make, variant: Variant, place: Place) -> None:
    """Storage must be where the environment is, which is told by its device alone."""
    env = made(make, variant, 5, place)
    names = [f".{role}" for role in roles_of(env)] if variant.has_team else [""]
    reader = OutReader(env.simulation.shapes, names, "cuda:7")
    role = roles_of(env)[-1]

    def out(place: Place) -> Step:
        rewards = empty(place, *shape_of(env, "rewards", role))
        return Step(rewards={role: rewards} if variant.has_team else rewards)

    with pytest.raises(ValueError, match=r"out\.rewards.* is on .*cuda:7"):
        reader.read(out(storage_place(place)))
    if HAS_CUDA:
        other = Place("cpu", "numpy") if place.device == "cuda" else Place("cuda", "cupy")
        env.reset(seed=0)
        actions = placed(env, draw(env, 1)[0], place)
        assert_refused(env, lambda: env.step(actions, out=out(other)), ValueError, "is on")


# --- what only one kind has ---


@pytest.mark.parametrize("env_id", ["TagContinuous-v0", "TagGridWorld-v0"])
def test_names(make: Make, env_id: str) -> None:
    """Roles, counts and agents in their order, and what the environment is."""
    env = made(make, Variant(env_id, {}), 3)
    taggers, runners = (3, 12) if env_id == CONTINUOUS else (4, 1)
    assert env.roles == ("tagger", "runner")
    assert env.counts == {"tagger": taggers, "runner": runners}
    assert env.num_agents == taggers + runners == len(env.possible_agents)
    names = [*(f"tagger_{i}" for i in range(taggers)), *(f"runner_{i}" for i in range(runners))]
    assert env.possible_agents == names
    assert env.render_mode is None
    assert (env.num_envs, env.device, env.output, env.precision) == (3, "cpu", "numpy", "float32")
    assert env.spec is gpu_envs.spec(env_id)
    for word in (env_id, "num_envs=3", "'cpu'", "'numpy'", "'NextStep'", "MultiAgentEnv"):
        assert word in repr(env)


def test_alive_is_live(make: Make, place: Place) -> None:
    """Without copies ``alive`` is the state's own memory; with them it is that step's."""
    env = made(make, Variant(CONTINUOUS, {}), 2, place)
    alive = env.reset(seed=0)[1]["alive"]["runner"]
    env.state["in_game"] = np.zeros((2, 15), bool)
    assert numpy_of(alive).all() == (place.output == "numpy")


@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 2), (0,)], ids=str)
@pytest.mark.parametrize("dtype_", ["float32", "float64", "int32", "bool"])
def test_what_is_kept_of_episodes_that_ended(shape: tuple[int, ...], dtype_: str) -> None:
    """Of arrays that lie in one piece, and of views that do not."""
    numbers = np.random.default_rng(0)
    for finished in (np.zeros(9, bool), numbers.random(9) < 0.5, np.ones(9, bool)):
        whole = (numbers.random((18, *shape)) * 100).astype(dtype_)
        for values in (whole[:9], whole[::2]):
            before = values.copy()
            kept = only_finished(np.flatnonzero(finished), values)
            expected = np.where(finished.reshape(-1, *(1,) * len(shape)), values, values.dtype.type(0))
            np.testing.assert_array_equal(kept, expected, strict=True)
            kept += kept.dtype.type(1)
            np.testing.assert_array_equal(values, before)
    given = np.zeros(3)
    assert only_finished(np.array([0]), {"a": np.ones(3), "b": np.ones(3)}, {"a": given})["a"] is given


@pytest.mark.timing
def test_copies_cost_little() -> None:
    """Ended episodes among them: 1.4 of the time without, on two cores; pages fetched anew each time made it 3."""

    def seconds(copy_: bool) -> float:
        env = gpu_envs.make(
            "CartPole-v1", 16384, device="cpu", autoreset_mode="SameStep", copy=copy_, statistics=True, threads=1
        )
        env.reset(seed=0)
        actions = np.random.default_rng(0).integers(0, 2, 16384)
        taken = []
        for _ in range(7):
            began = time.perf_counter()
            for _ in range(60):
                env.step(actions)
            taken.append(time.perf_counter() - began)
        return min(taken)

    assert min(seconds(True) / seconds(False) for _ in range(3)) < 2.2
