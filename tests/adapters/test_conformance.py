"""Tests of all adapters: each class in ``players.PLAYERS`` is tested on all of its cases."""

import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import HAS_CUDA, Make, Place, assert_same_bits, numpy_of, subprocess_env, to_place
from players import PLAYERS, TEAM_CASES, Player, Sb3Role, TorchRlTransformed, is_installed, make_plain_env, make_player
from registered import ended_replicas, join_actions, numpy_by_role, split_by_role

import gpu_envs
from gpu_envs import ActionError

pytestmark = pytest.mark.usefixtures("one_thread")

INSTALLED = [player for player in PLAYERS if is_installed(player)]
CASES = [(player, name) for player in INSTALLED for name in player.cases]
MODULES = {player.module: player for player in PLAYERS}
WRAPPING = [player for player in INSTALLED if player.module != "pettingzoo"]
"""Adapters that can wrap an existing environment; PettingZoo's functions only accept an id."""

LIBRARIES = {library for player in PLAYERS for library in player.libraries} - {"torch"} | {"cupy"}


def each_case(condition: Callable[[type[Player]], bool] = lambda _: True, *more: type[Player]) -> pytest.MarkDecorator:
    """Parametrize a test over the cases of adapters that satisfy a condition, and of ``more``."""
    more_cases = [(player, name) for player in more if is_installed(player) for name in player.cases]
    cases = [(player, name) for player, name in CASES if condition(player)] + more_cases
    return pytest.mark.parametrize(("player", "name"), cases, ids=[f"{p.__name__}-{name}" for p, name in cases])


each_player = pytest.mark.parametrize("player", INSTALLED, ids=lambda player: player.__name__)
each_wrapping = pytest.mark.parametrize("player", WRAPPING, ids=lambda player: player.__name__)


def first_of(player: type[Player]) -> tuple[str, dict[str, Any]]:
    """Return the id and parameters of a player's first case."""
    return next(iter(player.cases.values()))


def supported_env(make: Make, player: type[Player], **changes: Any) -> Any:
    """Create an environment that a player supports, except for ``changes``."""
    env_id, params = first_of(player)
    output = "torch" if player.output == "any" else player.output
    options = {"device": "cpu", "output": output, "autoreset_mode": player.mode, **params, **changes}
    return make(env_id, 2, **options)


def create(player: type[Player], env: Any, *args: Any, **kwargs: Any) -> Any:
    return player.make_adapter(env, *args, **kwargs)


def alone(player: type[Player]) -> dict[str, Any]:
    """Return options without random numbers that are shared by all replicas."""
    return {"others": "still"} if player is Sb3Role else {}


# --- trajectories ---


@pytest.mark.fast_cases(11)
@each_case(lambda player: player is not Sb3Role, TorchRlTransformed)  # Sb3Role: test_sb3_teams.py
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_results_equal_the_environment(player: type[Player], name: str, device: str, precision: str) -> None:
    """Bit for bit, across the ends of episodes, with the same seed and actions."""
    count = 40
    ours = make_player(player, name, count, device, precision=precision, seed=11)
    plain = make_plain_env(player, name, count, device, precision=precision)
    assert_same_bits(ours.begin()[0], numpy_by_role(plain, plain.reset(seed=11)[0]))
    for env in (ours.raw, plain):
        env.stagger(2)  # so that episodes end at different steps
    counts = {"both": 0, "truncated": 0, "partial": 0, "ended": 0}
    for t, actions in enumerate(ours.draw(60)):
        result = ours.step(actions)
        observations, rewards, terminations, truncations, infos = plain.step(join_actions(plain, actions))
        paid, terminated, truncated = (numpy_by_role(plain, part) for part in (rewards, terminations, truncations))
        assert_same_bits(result.observations, numpy_by_role(plain, observations), f"observations of step {t}")
        ended = ended_replicas({"terminations": terminated, "truncations": truncated})
        for role in terminated:
            assert_same_bits(result.rewards[role].astype(np.float32), paid[role].astype(np.float32), "rewards")
            assert_same_bits(result.terminated[role], terminated[role], f"terminated in step {t}")
            expected = truncated[role] if player.both_flags else truncated[role] & ~terminated[role]
            assert_same_bits(result.truncated[role], expected, f"truncated in step {t}")
            counts["both"] += int((truncated[role] & terminated[role]).sum())
            counts["truncated"] += int(expected.sum())
        assert_same_bits(result.ended, ended, f"ends of step {t}")
        if result.final is not None and ended.any():
            for role, final in split_by_role(plain, infos["final_obs"]).items():
                assert_same_bits(result.final[role][ended], final[ended], f"final observations of step {t}")
        counts["partial"] += int(0 < ended.sum() < count)
        counts["ended"] += int(ended.sum())
    assert counts["ended"] >= 3 * count
    assert min(counts["truncated"], counts["partial"]) > 0
    assert counts["both"] > 0 or name not in ("CartPole-v1", "continuous")
    plain.close()


@each_case()
def test_returned_arrays_are_independent(player: type[Player], name: str, device: str) -> None:
    """Later steps do not change returned arrays, and writing to these does not change the trajectory."""
    ours, touched = (make_player(player, name, 4, device, seed=1) for _ in range(2))
    first, other = ours.begin()[1], touched.begin()[1]
    returned, copied = [first], [[numpy_of(array) for array in first]]
    for array in other:
        overwrite(array)
    for actions in ours.draw(40):
        results = [each.step(actions) for each in (ours, touched)]
        for part in ("observations", "rewards", "terminated", "truncated"):
            assert_same_bits(getattr(results[0], part), getattr(results[1], part), part)
        returned.append(results[0].arrays)
        copied.append([numpy_of(array) for array in results[0].arrays])
        if player.output == "any":  # torch libraries pass these arrays to the next step
            for array in results[1].arrays:
                overwrite(array)
    ours.begin()
    for arrays, copies in zip(returned, copied, strict=True):
        assert_same_bits(arrays, copies)


def overwrite(array: Any) -> None:
    """Fill a NumPy array with a value that no step returns."""
    if isinstance(array, np.ndarray) and array.flags.writeable and array.dtype != np.bool_:
        array[...] = 77


# --- seeds and copies ---


def trajectory(ours: Player, steps: int = 30) -> list[Any]:
    """Return the results of a reset and of steps with fixed actions."""
    results: list[Any] = [ours.begin()[0]]
    for actions in ours.draw(steps):
        result = ours.step(actions)
        results.append([getattr(result, part) for part in ("observations", "rewards", "terminated", "truncated")])
        results.append([result.ended, result.final])
    return results


@each_case(lambda player: player.module != "rsl_rl")  # reset only by its constructor
def test_seeds_reproduce_runs(player: type[Player], name: str, device: str) -> None:
    """Seeds of the constructor and of ``seed`` apply to one reset; the next reset starts other episodes."""
    one, two, other = (make_player(player, name, 3, device, seed=seed) for seed in (5, 6, 6))
    first = trajectory(one)
    with pytest.raises(AssertionError, match="differs"):
        assert_same_bits(first, trajectory(other))
    if player.module == "skrl":  # only its constructor has a seed
        assert_same_bits(first, trajectory(make_player(player, name, 3, device, seed=5)))
        return
    two.seed(5)
    assert_same_bits(first, trajectory(two))
    again = trajectory(one)
    with pytest.raises(AssertionError, match="differs"):
        assert_same_bits(again[0], first[0])
    assert_same_bits(again, trajectory(two))
    one.seed(5)
    assert_same_bits(first, trajectory(one))


@each_case()
def test_replica_i_has_seed_plus_i(player: type[Player], name: str, device: str) -> None:
    """Replica i of seed s equals a single replica of seed s + i."""
    many, one = (make_player(player, name, n, device, seed=seed, **alone(player)) for n, seed in ((7, 20), (1, 23)))
    assert_same_bits({r: v[3:4] for r, v in many.begin()[0].items()}, one.begin()[0])
    for actions in many.draw(40):
        result = many.step(actions)
        expected = one.step({role: values[3:4] for role, values in actions.items()})
        for part in ("observations", "rewards", "terminated", "truncated"):
            here = {role: values[3:4] for role, values in getattr(result, part).items()}
            assert_same_bits(here, getattr(expected, part), part)


@each_case()
def test_without_a_seed_runs_differ(
    player: type[Player], name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if player.module == "skrl":  # another test may have set skrl's seed
        monkeypatch.setattr(importlib.import_module("skrl").config.torch, "key", 0)
    one, other = (make_player(player, name, 3, device, seed=None) for _ in range(2))
    with pytest.raises(AssertionError, match="differs"):
        assert_same_bits(trajectory(one), trajectory(other))


@each_case()
def test_copies_continue_independently(player: type[Player], name: str, device: str) -> None:
    """Deep copies and pickles."""
    ours = make_player(player, name, 3, device, seed=1)
    ours.begin()
    actions = ours.draw(30)
    for before in actions[:10]:
        ours.step(before)
    twins = list(ours.copies())
    for later in actions[10:]:
        expected = ours.step(later)
        for twin in twins:
            result = twin.step(later)
            assert_same_bits([result.observations, result.rewards], [expected.observations, expected.rewards])
            assert_same_bits([result.ended, result.final], [expected.ended, expected.final])


@each_case(lambda player: player.staggers)
def test_staggered_episodes(player: type[Player], name: str, device: str) -> None:
    """First episodes end at different steps that depend on the seed, which observations do not show."""
    count = 60
    runs = [make_player(player, name, count, device, seed=seed, stagger=True) for seed in (4, 4, 5)]
    straight = make_player(player, name, count, device, seed=4)
    firsts = [one.begin()[0] for one in (*runs, straight)]
    offsets = [numpy_of(one.raw.offset).tolist() for one in (*runs, straight)]
    limit = runs[0].raw.max_episode_steps
    assert offsets[0] == offsets[1] != offsets[2]
    assert not any(offsets[3])
    assert set(offsets[0]) == set(range(limit))
    assert not numpy_of(runs[0].raw.elapsed).any()
    assert_same_bits(firsts[0], firsts[3])
    ended = np.zeros(count, bool)
    for actions in runs[0].draw(limit):
        ended |= runs[0].step(actions).ended
    assert ended.all()


# --- constructors ---


@each_wrapping
def test_wraps_an_environment(player: type[Player], make: Make, place: Place) -> None:
    """With any supported output; closing the adapter closes the environment."""
    if player.output not in ("any", place.output):
        pytest.skip(f"needs {player.output}")
    env = supported_env(make, player, **place._asdict())
    ours = player(env, seed=1)
    assert ours.raw is env
    initial = ours.begin()[0]
    assert_same_bits(
        initial, {role: values for role, values in numpy_by_role(env, env.observe()).items() if role in initial}
    )
    plain = make_player(player, next(iter(player.cases)), 2, place.device, seed=1)
    assert_same_bits(initial, plain.begin()[0])
    for actions in ours.draw(20):
        assert_same_bits(ours.step(actions).observations, plain.step(actions).observations)
    ours.adapter.close()
    assert env.closed


@each_wrapping
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_unsupported_environments_raise(player: type[Player], make: Make, mode: str) -> None:
    if mode != player.mode:
        required = f"autoreset_mode='{player.mode}'"
        with pytest.raises(ValueError, match=f"autoreset_mode='{mode}': make it with {required}"):
            create(player, supported_env(make, player, autoreset_mode=mode))
        with pytest.raises(ValueError, match=f"autoreset_mode is '{mode}'.*'{player.mode}'.*leave it out"):
            create(player, first_of(player)[0], 2, device="cpu", autoreset_mode=mode)
    elif player.output != "any":
        with pytest.raises(ValueError, match=f"output='numpy': make it with output='{player.output}'"):
            create(player, supported_env(make, player, output="numpy"))
        with pytest.raises(ValueError, match=f"output is 'numpy', but this adapter requires '{player.output}'"):
            create(player, first_of(player)[0], 2, device="cpu", output="numpy")


@each_wrapping
def test_environments_without_statistics(player: type[Player], make: Make) -> None:
    """Adapters that report returns and lengths refuse them; other adapters work without statistics."""
    name, params = first_of(player)
    if player.module in ("sb3", "rsl_rl"):
        for env, *more in ((supported_env(make, player, statistics=False),), (name, 2)):
            options = {"device": "cpu", "statistics": False, **params} if more else {}
            with pytest.raises(ValueError, match=r"has statistics=False, but this adapter .* make it without"):
                create(player, env, *more, **options)
        return
    ours = player(supported_env(make, player, statistics=False), seed=1)
    plain = player(supported_env(make, player), seed=1)
    assert_same_bits(ours.begin()[0], plain.begin()[0])
    for actions in ours.draw(20):
        assert_same_bits(ours.step(actions).observations, plain.step(actions).observations)


@each_wrapping
def test_options_with_an_environment_raise(player: type[Player], make: Make) -> None:
    env = supported_env(make, player)
    parameter = {"gravity": 9.0} if player.cases is not TEAM_CASES else {"grid_length": 5}
    for options in ({"num_envs": 2}, {"device": "cpu"}, parameter, {"max_episode_steps": 5}, {"threads": 1}):
        with pytest.raises(ValueError, match=rf"{next(iter(options))} cannot be combined with an existing environment"):
            create(player, env, **options)
    with pytest.raises(ValueError, match="num_envs, max_episode_steps cannot be combined with an existing environment"):
        create(player, env, 2, max_episode_steps=4)


@each_player
def test_invalid_environments_raise(player: type[Player]) -> None:
    env_id = first_of(player)[0]
    with pytest.raises(gpu_envs.UnknownEnvironmentError, match="Did you mean"):
        create(player, f"{env_id[:3]}{env_id[4:]}", 2)
    with pytest.raises(ValueError, match="no option or parameter 'no_such_thing'"):
        create(player, env_id, 2, device="cpu", no_such_thing=1.0)
    foreign: Any
    for foreign in (gymnasium.make("CartPole-v1"), {}):
        if player in WRAPPING:
            with pytest.raises(TypeError, match=rf"env is {type(foreign).__name__}: pass an id such as 'CartPole-v1'"):
                create(player, foreign)


@pytest.mark.parametrize(
    ("module", "maker", "env_id", "message"),
    [
        ("sb3", "VecEnv", "TagGridWorld-v0", "role=.*tagger, runner"),
        ("skrl", "Wrapper", "TagGridWorld-v0", r"team of agents: use gpu_envs\.adapters\.skrl\.MultiAgentWrapper"),
        ("skrl", "MultiAgentWrapper", "CartPole-v1", r"one agent: use gpu_envs\.adapters\.skrl\.Wrapper"),
        ("rsl_rl", "VecEnv", "TagContinuous-v0", "has a team of agents, but rsl_rl trains a single agent"),
        ("rsl_rl", "VecEnv", "CartPole-v1", r"are Discrete\(2\), but rsl_rl's policies are continuous"),
        ("rsl_rl", "VecEnv", "Acrobot-v1", r"are Discrete\(3\), but rsl_rl's policies are continuous"),
        ("rsl_rl", "VecEnv", "MountainCar-v0", r"are Discrete\(3\), but rsl_rl's policies are continuous"),
        ("pettingzoo", "vector_env", "CartPole-v1", "has one agent"),
    ],
)
def test_unsupported_kinds_of_environments_raise(module: str, maker: str, env_id: str, message: str) -> None:
    adapter = pytest.importorskip(f"gpu_envs.adapters.{module}")
    with pytest.raises((ValueError, gpu_envs.UnknownEnvironmentError), match=message):
        getattr(adapter, maker)(env_id, 2, device="cpu")


# --- errors of steps ---


@each_case()
def test_wrong_actions_change_nothing(player: type[Player], name: str) -> None:
    """Invalid actions and arrays of another shape raise, and do not change the next step."""
    ours, plain = (make_player(player, name, 2, "cpu", seed=3, **alone(player)) for _ in range(2))
    for one in (ours, plain):
        one.begin()
    good = ours.draw(1)[0]
    role = "runner" if "runner" in good else "agent"
    wrong: Any = np.nan if good[role].dtype.kind == "f" else 77
    bad = {each: values.copy() for each, values in good.items()}
    bad[role][1] = wrong
    with pytest.raises(ActionError, match=r"replica 1" if player.module != "pettingzoo" else "."):
        ours.step(bad)
    with pytest.raises((ValueError, RuntimeError)):
        ours.step({role: values[:1] for role, values in good.items()})
    assert_same_bits(ours.step(good).observations, plain.step(good).observations)


@each_player
def test_a_closed_environment_is_not_stepped(player: type[Player]) -> None:
    ours = make_player(player, next(iter(player.cases)), 2, "cpu", seed=3)
    ours.begin()
    ours.adapter.close()
    if player.module != "torchrl":  # raises, as other TorchRL environments do
        ours.adapter.close()
    assert ours.raw.closed
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        ours.step(ours.draw(1)[0])


@pytest.mark.cuda
@pytest.mark.skipif(not HAS_CUDA, reason="no CUDA device")
@each_case(lambda player: player.output == "torch" and player.module in ("skrl", "rsl_rl"))
def test_steps_do_not_synchronize(player: type[Player], name: str) -> None:
    """With torch tensors as actions and results, a step does not wait for the device."""
    import torch

    ours = make_player(player, name, 64, "cuda")
    ours.begin()
    env = ours.adapter
    steps = []
    for actions in ours.draw(20):
        tensors = {role: to_place(values, Place("cuda", "torch")) for role, values in actions.items()}
        if "agent" in tensors:
            steps.append(tensors["agent"].reshape(64, -1))
        else:
            columns = [array[:, i].reshape(64, -1) for array in tensors.values() for i in range(array.shape[1])]
            steps.append(dict(zip(env.possible_agents, columns, strict=True)))
    env.step(steps[0])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for actions in steps[1:]:
            env.step(actions)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    ours.raw.check()


# --- imports ---


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    ("module", "library"), [(name, library) for name, player in MODULES.items() for library in player.libraries]
)
def test_a_missing_library_is_reported_with_its_extra(
    module: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not all(is_installed(player) for player in PLAYERS if player.module == module):
        pytest.skip("another of its libraries is missing here")
    for name in [name for name in sys.modules if name.startswith(f"gpu_envs.adapters.{module}")]:
        monkeypatch.delitem(sys.modules, name)
    for name in {library, *(name for name in sys.modules if name.startswith(f"{library}."))}:
        monkeypatch.setitem(sys.modules, name, None)
    extra = re.escape(f"pip install 'gpu_envs[{MODULES[module].extra}]'")
    with pytest.raises(ImportError, match=rf"(?is){library}.*{extra}"):
        importlib.import_module(f"gpu_envs.adapters.{module}")


IMPORTS = """
import importlib, os, sys
import gpu_envs
print("gpu_envs", *{name.partition(".")[0] for name in sys.modules}, flush=True)
for module in sys.argv[1:]:
    if module != "pettingzoo":
        import torch  # once for all; PettingZoo's adapter, which does not need it, is first
    if os.fork() == 0:
        importlib.import_module(f"gpu_envs.adapters.{module}")
        print(module, *{name.partition(".")[0] for name in sys.modules}, flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, module
"""


@pytest.mark.slow
def test_imports_load_only_required_libraries() -> None:
    """``gpu_envs`` imports no library of adapters, and an adapter only its own."""
    modules = sorted(
        (name for name, player in MODULES.items() if is_installed(player)), key=lambda name: name != "pettingzoo"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORTS, *modules],
        capture_output=True,
        text=True,
        env=subprocess_env(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = {module: set(names) for module, *names in map(str.split, done.stdout.splitlines())}
    assert not loaded.pop("gpu_envs") & (LIBRARIES | {"torch"})
    assert list(loaded) == modules
    dependencies = {"tensordict"}  # of rsl_rl and skrl
    for module, names in loaded.items():
        required = set(MODULES[module].libraries)
        assert MODULES[module].libraries[0] in names
        assert not names & (LIBRARIES - required - (dependencies if module != "sb3" else set())), module
    assert "pettingzoo" not in loaded or "torch" not in loaded["pettingzoo"]
