"""Actions of registered environments in all types and forms, and actions that are refused."""

import functools
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from harness import (
    HAS_CUDA,
    HAS_TORCH,
    IDS,
    PLACES,
    Array,
    Make,
    Place,
    assert_all_same,
    assert_same_bits,
    assert_unchanged,
    is_discrete,
    numpy_of,
    random_actions,
    to_place,
)
from registered import (
    BOXES,
    LIMIT,
    VARIANTS,
    Actions,
    Variant,
    assert_refused,
    distant_starts,
    draw_actions,
    ended_replicas,
    has_integer_actions,
    join_actions,
    make_variant,
    parametrize_variants,
    place_actions,
    roles_of,
    step_outcome,
    take_step,
)

import gpu_envs
from gpu_envs import ActionError
from gpu_envs.engine.roles import RoleInterface

INTEGER_DTYPES = ["int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool"]

DEVICE_PLACES = [place for place in PLACES if place.device == "cuda" and place.output != "numpy"]

each_action = parametrize_variants(
    {name: VARIANTS[name] for name in (*IDS, "continuous-nearest", "continuous-box", "grid-full")}
)


def one_and_zero(env: Any) -> Actions:
    """Actions that every_third element type can hold."""
    return {role: np.arange(a.size).reshape(a.shape) % 2 for role, a in draw_actions(env, 1)[0].items()}


@each_action
@pytest.mark.parametrize("kind", [*INTEGER_DTYPES, "float32", "float64", "float16"])
def test_action_types(make: Make, variant: Variant, place: Place, kind: str) -> None:
    """Every dtype that can represent an action has the same effect, also if roles have different dtypes."""
    env = make_variant(make, variant, 9, place)
    env.reset(seed=0)
    widest = {
        role: a.astype(np.int64 if has_integer_actions(env) else np.float32) for role, a in one_and_zero(env).items()
    }
    expected = take_step(env, widest, place)
    actions = {role: a.astype(kind) for role, a in one_and_zero(env).items()}
    roles = roles_of(env)
    for some in (roles, roles[:1], roles[1:]) if variant.has_team else (roles,):
        env.reset(seed=0)
        mixed = place_actions(env, {**widest, **{role: actions[role] for role in some}}, place)
        if kind in ("float16", "float32", "float64") if has_integer_actions(env) else kind == "bool":
            word = f"role '{some[0]}'.*dtype" if variant.has_team else "dtype"
            assert_refused(env, functools.partial(env.step, mixed), TypeError, word)
        else:
            assert_same_bits(expected, step_outcome(env, env.step(mixed)), str(some))


class DLPackArray:
    """An array of an unknown library that only supports DLPack."""

    def __init__(self, array: Array) -> None:
        """Wrap an array."""
        self._array = array

    def __dlpack__(self, **kwargs: Any) -> Any:
        """Export the array."""
        return self._array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        """Return the device of the array."""
        return self._array.__dlpack_device__()


def action_forms(actions: np.ndarray, place: Place) -> dict[str, Any]:
    """The same actions in many memory layouts and libraries."""
    axis = min(1, actions.ndim - 1)  # agents or elements, if the array has two dimensions
    every_third = (slice(None),) * axis + (slice(None, None, 3),)
    forms: dict[str, Any] = {
        "host": actions,
        "list": actions.tolist(),
        "tuple": tuple(actions.tolist()),
        "strided": np.repeat(actions, 2, axis=0)[::2],
        "strided agents": np.repeat(actions, 3, axis=axis)[every_third],
        "reversed": np.flip(np.ascontiguousarray(np.flip(actions, axis)), axis),
        "reversed replicas": np.ascontiguousarray(actions[::-1])[::-1],
        "Fortran": np.asfortranarray(actions),
        "big-endian": actions.astype(actions.dtype.newbyteorder(">")),
        "read-only": np.frombuffer(actions.tobytes(), actions.dtype).reshape(actions.shape),
        "unaligned": np.frombuffer(b"x" + actions.tobytes(), np.uint8)[1:].view(actions.dtype).reshape(actions.shape),
        "DLPack": DLPackArray(actions),
    }
    for other in PLACES:
        if other.device == place.device:
            forms[f"{other}"] = to_place(actions, other)
            forms[f"strided {other}"] = to_place(np.repeat(actions, 3, axis=0), other)[::3]
            forms[f"strided agents {other}"] = to_place(np.repeat(actions, 3, axis=axis), other)[every_third]
            forms[f"DLPack {other}"] = DLPackArray(to_place(actions, other))
    if HAS_TORCH:
        forms["torch on the host"] = to_place(actions, Place("cpu", "torch"))
    if place.output == "torch" and actions.dtype == np.float32:  # a policy's output may still require gradients
        forms["with gradients"] = to_place(actions, place).requires_grad_()
    return forms


@each_action
@pytest.mark.parametrize("count", [1, 9])
def test_action_forms(make: Make, variant: Variant, place: Place, count: int) -> None:
    """Lists, strided arrays and arrays of other libraries on host or device have the same effect, also if mixed."""
    env = make_variant(make, variant, count, place)
    action = draw_actions(env, 1)[0]
    by_role = {role: action_forms(values, place) for role, values in action.items()}
    *others, last = roles_of(env)
    env.reset(seed=0)
    expected = take_step(env, action)
    for name in by_role[last]:
        for actions in (
            {role: by_role[role][name] for role in reversed(by_role)},
            {**{role: action[role] for role in others}, last: by_role[last][name]},
        ):
            env.reset(seed=0)
            assert_same_bits(expected, step_outcome(env, env.step(join_actions(env, actions))), name)


def invalid_actions(env: Any) -> dict[str, tuple[Any, type[Exception], str]]:
    """Invalid batches of actions by name, with the expected error and a pattern of its message."""
    good = draw_actions(env, 1)[0]
    role = roles_of(env)[-1]
    role_actions = good[role]
    team = env.env_spec.has_team
    axis = 1 if team else 0
    arrays: dict[str, tuple[Any, type[Exception], str]] = {
        "too few": (role_actions[:-1], ValueError, "shape"),
        "too many": (np.concatenate([role_actions, role_actions], axis), ValueError, "shape"),
        "dimensions": (role_actions[..., None], ValueError, "shape"),
        "flat": (role_actions.reshape(len(role_actions), -1, 1, 1), ValueError, "shape"),
        "ragged": ([[0], [0, 1], *([[0]] * (len(role_actions) - 2))], ValueError, "shape"),
        "empty": ([], ValueError, "shape"),
        "scalar": (0 if has_integer_actions(env) else 0.0, TypeError, "scalar"),
        "None": (None, TypeError, "dtype"),
        "text": (np.full(role_actions.shape, "a"), TypeError, "dtype"),
        "complex": (role_actions.astype(complex), TypeError, "dtype"),
    }
    if has_integer_actions(env):
        arrays["float"] = (role_actions.astype(np.float32), TypeError, "dtype")
    if not team:
        return arrays
    of_one_role: dict[str, tuple[Any, type[Exception], str]] = {
        f"role's {what}": ({**good, role: wrong}, error, f"role '{role}'.*{word}")
        for what, (wrong, error, word) in arrays.items()
    }
    return of_one_role | {
        "none": (None, TypeError, "NoneType.*mapping from roles"),
        "array": (role_actions, TypeError, "ndarray.*mapping"),
        "list": ([*good.values()], TypeError, "list.*mapping"),
        "no roles": ({}, ValueError, "'tagger' are missing"),
        "missing": ({"tagger": good["tagger"]}, ValueError, r"'runner' are missing.*\['tagger'\]"),
        "unknown": ({**good, "runners": role_actions}, ValueError, "'runners'. Did you mean 'runner'.*tagger, runner"),
        "agents": ({"tagger_0": 0, "runner_0": 0}, ValueError, "missing"),
    }


@each_action
def test_invalid_actions(make: Make, variant: Variant, place: Place) -> None:
    """Actions of another shape or type are refused with the role's name, and the environment can continue."""
    env, plain = (make_variant(make, variant, 6, place) for _ in range(2))
    for one in (env, plain):
        one.reset(seed=0)
    for actions, error, word in invalid_actions(env).values():
        assert_refused(env, functools.partial(env.step, actions), error, word)
        env.check()
    for good in draw_actions(env, 2):
        assert_same_bits(take_step(env, good), take_step(plain, good))


@each_action
@pytest.mark.parametrize("place_of", ["last", "first"])
def test_action_out_of_range(make: Make, variant: Variant, place: Place, place_of: str) -> None:
    """An invalid action on the host raises an error with replica, agent and step, and changes nothing."""
    count = 70
    env, plain = (make_variant(make, variant, count, place, autoreset_mode="SameStep") for _ in range(2))
    for one in (env, plain):
        one.reset(seed=0, options=distant_starts(env))  # no episode ends within two steps
    replica = count - 2 if place_of == "last" else 0
    wrong: list[tuple[Any, str]] = [(np.nan, "not a number")]
    if has_integer_actions(env):
        space: Any = next(iter(RoleInterface(env).roles.values())).action
        size = int(space.n if isinstance(space, Discrete) else space.nvec.max())
        wrong = [(value, "range") for value in (-1, size, 2**40, -(2**63), 2**32)]
    agents = [(role, i) for role, info in RoleInterface(env).roles.items() for i in (0, len(info.agents) - 1)]
    for t, good in enumerate(draw_actions(env, 2)):
        for role, number in agents:
            agent = f", {role}_{number}" if variant.has_team else ""
            for value, word in wrong:
                bad = {name: values.copy() for name, values in good.items()}
                for row in (replica, replica + 1):  # the message has the first
                    bad[role][(row, number) if variant.has_team else row] = value
                    bad[agents[-1][0]][(row, -1) if variant.has_team else row] = value
                for kind in (np.int64,) if has_integer_actions(env) else (np.float32, np.float64):
                    actions = join_actions(env, {name: values.astype(kind) for name, values in bad.items()})
                    match = rf"replica {replica}{agent}, step {t} .*{word}"
                    assert_refused(env, functools.partial(env.step, actions), ActionError, match)
                    env.check()
        assert_same_bits(take_step(env, good), take_step(plain, good))
    if has_integer_actions(env):
        first = "replica 0, tagger_0" if variant.has_team else "replica 0"
        for value, dtype, word in ((200, np.uint8, f"{first}.*range.*200"), (2**64 - 1, np.uint64, "range")):
            filled = {name: np.full(values.shape, value, dtype) for name, values in good.items()}
            with pytest.raises(ActionError, match=word):
                env.step(join_actions(env, filled))


@parametrize_variants(BOXES)
@pytest.mark.parametrize("value", [-5.0, 5.0, np.inf, -np.inf])
def test_box_actions_beyond_the_bounds(make: Make, variant: Variant, device: str, value: float) -> None:
    """Real actions outside their bounds are allowed: the rules clip them."""
    env = make_variant(make, variant, 3, Place(device, "numpy"))
    view = RoleInterface(env)
    spaces: dict[str, Any] = {role: info.action for role, info in view.roles.items()}
    results = []
    for clipped in (False, True):
        env.reset(seed=0)
        actions = {}
        for role, space in spaces.items():
            numbers = np.full((*view.batch_shape(role), *space.shape), value, np.float32)
            actions[role] = numbers.clip(space.low, space.high) if clipped else numbers
        results.append(take_step(env, actions))
    assert_all_same(results)


# --- environments of one kind only ---


def test_invalid_actions_of_a_rollout(make: Make, env_id: str, place: Place) -> None:
    """All actions of a rollout are checked before its first step, also of ended replicas, which restart at once."""
    env = make(env_id, 5, **place._asdict(), max_episode_steps=1)
    env.reset(seed=0)
    env.step(to_place(random_actions(env_id, 5), place))
    for step, row in ((0, 3), (2, 1)):
        block = random_actions(env_id, 4, 5)
        block[step, row] = 4 if is_discrete(env_id) else np.nan
        match = f"step {step} of the block, replica {row}"
        assert_refused(env, functools.partial(env.rollout, 4, block), ActionError, match)
    env.rollout(1, block[:1])


@pytest.mark.parametrize("name", ["continuous-nearest", "continuous-box"])
def test_actions_of_inactive_agents_are_ignored(make: Make, place: Place, mode: str, name: str) -> None:
    """Even invalid ones."""
    env, plain = (make_variant(make, VARIANTS[name], 20, place, autoreset_mode=mode) for _ in range(2))
    for one in (env, plain):
        one.reset(seed=3)
    invalid: Any = -7 if has_integer_actions(env) else np.nan
    ignored = 0
    for action in draw_actions(env, LIMIT):
        in_game = np.split(numpy_of(env.state["in_game"]), [env.counts["tagger"]], axis=1)
        alive = dict(zip(("tagger", "runner"), in_game, strict=True))
        partly_invalid = {role: values.copy() for role, values in action.items()}
        for role, values in partly_invalid.items():
            values[~alive[role]] = invalid
            ignored += int((~alive[role]).sum())
        steps = [take_step(env, partly_invalid, place), take_step(plain, action, place)]
        assert_all_same(steps)
        if mode == "Disabled" and ended_replicas(steps[0]).any():
            for one in (env, plain):
                one.reset(options={"reset_mask": ended_replicas(steps[0])})
    env.check()
    assert ignored > 50
    assert_same_bits(env.get_state(), plain.get_state())


# --- actions on a device ---


@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
def test_invalid_device_actions_raise_with_numpy_output(make: Make, variant: Variant) -> None:
    """With NumPy output a step waits for the device anyway, so that invalid device actions raise at once."""
    env = make_variant(make, variant, 5, Place("cuda", "numpy"))
    env.reset(seed=0)
    valid = draw_actions(env, 1)[0]
    role = roles_of(env)[-1]
    invalid = {name: values.copy() for name, values in valid.items()}
    invalid[role][(3, 0) if variant.has_team else 3] = 99 if has_integer_actions(env) else np.nan
    match = f"replica 3, {role}_0" if variant.has_team else "replica 3"
    with pytest.raises(ActionError, match=match):
        env.step(place_actions(env, invalid, Place("cuda", "cupy")))
    if len(roles_of(env)) > 1:  # actions on the host are checked before the step
        env.reset(seed=0)
        first = roles_of(env)[0]
        mixed = {**invalid, first: to_place(valid[first], Place("cuda", "cupy"))}
        assert_refused(env, lambda: env.step(mixed), ActionError, match)
    take_step(env, valid)


def test_numpy_needs_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    env = gpu_envs.make("CartPole-v1", 2, device="cpu")
    env.reset(seed=0)
    assert env.step([0, 1])[1].tolist() == [1, 1]


@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
def test_device_actions_for_the_cpu(make: Make, variant: Variant) -> None:
    """Actions on a GPU are refused by an environment on the CPU."""
    env = make_variant(make, variant, 5)
    env.reset(seed=0)
    action, role = draw_actions(env, 1)[0], roles_of(env)[-1]
    match = rf"role '{role}'.*cuda" if variant.has_team else "cuda"
    for place in DEVICE_PLACES:
        actions = join_actions(env, {**action, role: to_place(action[role], place)})
        with pytest.raises(ValueError, match=match):
            assert_unchanged(env, functools.partial(env.step, actions))
