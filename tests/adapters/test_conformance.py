"""What every adapter must do, written once: each of ``players.PLAYERS`` is tested on all of its cases."""

import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import HAS_CUDA, Make, Place, assert_same_bits, moved, numpy_of, with_package
from players import PLAYERS, TEAMS, Player, Sb3Role, TorchRlTransformed, is_there, plain_of, played
from registered import joined_actions, numpy_by_role, over, split

import gpu_envs
from gpu_envs import ActionError

pytestmark = pytest.mark.usefixtures("one_thread")

INSTALLED = [player for player in PLAYERS if is_there(player)]
CASES = [(player, name) for player in INSTALLED for name in player.cases]
MODULES = {player.module: player for player in PLAYERS}
OF_ENVIRONMENTS = [player for player in INSTALLED if player.module != "pettingzoo"]
"""Those that take an environment too; PettingZoo's makers take an id."""

LIBRARIES = {library for player in PLAYERS for library in player.libraries} - {"torch"} | {"cupy"}


def each_case(wanted: Callable[[type[Player]], bool] = lambda _: True, *more: type[Player]) -> pytest.MarkDecorator:
    """Runs a test for each case of the adapters that are wanted."""
    others = [(player, name) for player in more if is_there(player) for name in player.cases]
    cases = [(player, name) for player, name in CASES if wanted(player)] + others
    return pytest.mark.parametrize(("player", "name"), cases, ids=[f"{p.__name__}-{name}" for p, name in cases])


each_player = pytest.mark.parametrize("player", INSTALLED, ids=lambda player: player.__name__)
each_taker = pytest.mark.parametrize("player", OF_ENVIRONMENTS, ids=lambda player: player.__name__)


def first_of(player: type[Player]) -> tuple[str, dict[str, Any]]:
    """A case of a player: the id and its parameters."""
    return next(iter(player.cases.values()))


def fitting(make: Make, player: type[Player], **changes: Any) -> Any:
    """An environment that a player takes, but for what is changed."""
    env_id, params = first_of(player)
    output = "torch" if player.output == "any" else player.output
    given = {"device": "cpu", "output": output, "autoreset_mode": player.mode, **params, **changes}
    return make(env_id, 2, **given)


def made(player: type[Player], env: Any, *args: Any, **kwargs: Any) -> Any:
    """What the library takes."""
    return player.made(env, *args, **kwargs)


def alone(player: type[Player]) -> dict[str, Any]:
    """Options with which no random numbers are drawn for the whole batch."""
    return {"others": "still"} if player is Sb3Role else {}


# --- trajectories ---


@pytest.mark.fast_cases(11)
@each_case(lambda player: player is not Sb3Role, TorchRlTransformed)  # a role's agents come and go: test_sb3_teams.py
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_gives_what_the_environment_gives(player: type[Player], name: str, device: str, precision: str) -> None:
    """Bit for bit, over the ends of episodes, with the same seed and actions; those of a device as well."""
    count = 40
    ours = played(player, name, count, device, precision=precision, seed=11)
    plain = plain_of(player, name, count, device, precision=precision)
    assert_same_bits(ours.begin()[0], numpy_by_role(plain, plain.reset(seed=11)[0]))
    for env in (ours.raw, plain):
        env.stagger(2)  # so that they do not all end at once
    seen = {"both": 0, "cut": 0, "some": 0, "ended": 0}
    for t, actions in enumerate(ours.draw(60)):
        result = ours.step(actions)
        observations, rewards, terminations, truncations, infos = plain.step(joined_actions(plain, actions))
        paid, out, cut = (numpy_by_role(plain, part) for part in (rewards, terminations, truncations))
        assert_same_bits(result.observations, numpy_by_role(plain, observations), f"observations of step {t}")
        ended = over({"terminations": out, "truncations": cut})
        for role in out:
            assert_same_bits(result.rewards[role].astype(np.float32), paid[role].astype(np.float32), "rewards")
            assert_same_bits(result.terminated[role], out[role], f"terminated in step {t}")
            only = cut[role] if player.both_flags else cut[role] & ~out[role]
            assert_same_bits(result.truncated[role], only, f"truncated in step {t}")
            seen["both"] += int((cut[role] & out[role]).sum())
            seen["cut"] += int(only.sum())
        assert_same_bits(result.ended, ended, f"ends of step {t}")
        if result.final is not None and ended.any():
            for role, final in split(plain, infos["final_obs"]).items():
                assert_same_bits(result.final[role][ended], final[ended], f"last observations of step {t}")
        seen["some"] += int(0 < ended.sum() < count)
        seen["ended"] += int(ended.sum())
    assert seen["ended"] >= 3 * count
    assert min(seen["cut"], seen["some"]) > 0
    assert seen["both"] > 0 or name not in ("CartPole-v1", "continuous")
    plain.close()


@each_case()
def test_what_was_given_stays(player: type[Player], name: str, device: str) -> None:
    """Nothing that was handed out changes later, nor does what is done with it change a trajectory."""
    ours, touched = (played(player, name, 4, device, seed=1) for _ in range(2))
    first, other = ours.begin()[1], touched.begin()[1]
    given, kept = [first], [[numpy_of(array) for array in first]]
    for array in other:
        overwrite(array)
    for actions in ours.draw(40):
        results = [each.step(actions) for each in (ours, touched)]
        for part in ("observations", "rewards", "terminated", "truncated"):
            assert_same_bits(getattr(results[0], part), getattr(results[1], part), part)
        given.append(results[0].given)
        kept.append([numpy_of(array) for array in results[0].given])
        if player.output == "any":  # the torch libraries' arrays go back into the next step
            for array in results[1].given:
                overwrite(array)
    ours.begin()
    for arrays, copies in zip(given, kept, strict=True):
        assert_same_bits(arrays, copies)


def overwrite(array: Any) -> None:
    """Fills a NumPy array with what no step gives."""
    if isinstance(array, np.ndarray) and array.flags.writeable and array.dtype != np.bool_:
        array[...] = 77


# --- seeds and copies ---


def trajectory(ours: Player, steps: int = 30) -> list[Any]:
    """All that a reset and steps with the same actions give."""
    found: list[Any] = [ours.begin()[0]]
    for actions in ours.draw(steps):
        result = ours.step(actions)
        found.append([getattr(result, part) for part in ("observations", "rewards", "terminated", "truncated")])
        found.append([result.ended, result.final])
    return found


@each_case(lambda player: player.module != "rsl_rl")  # which is reset once, when it is made
def test_seeds_make_runs_repeat(player: type[Player], name: str, device: str) -> None:
    """A seed given at the beginning or later; it holds once, and the next reset begins other episodes."""
    one, two, other = (played(player, name, 3, device, seed=seed) for seed in (5, 6, 6))
    first = trajectory(one)
    with pytest.raises(AssertionError, match="differs"):
        assert_same_bits(first, trajectory(other))
    if player.module == "skrl":  # takes a seed at the beginning alone
        assert_same_bits(first, trajectory(played(player, name, 3, device, seed=5)))
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
def test_replicas_are_those_of_a_batch(player: type[Player], name: str, device: str) -> None:
    """The replica i of seed s is the only one of seed s + i."""
    many, one = (played(player, name, n, device, seed=seed, **alone(player)) for n, seed in ((7, 20), (1, 23)))
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
    if player.module == "skrl":  # another test may have chosen a seed of skrl's own
        monkeypatch.setattr(importlib.import_module("skrl").config.torch, "key", 0)
    one, other = (played(player, name, 3, device, seed=None) for _ in range(2))
    with pytest.raises(AssertionError, match="differs"):
        assert_same_bits(trajectory(one), trajectory(other))


@each_case()
def test_copies_go_on_where_the_other_was(player: type[Player], name: str, device: str) -> None:
    """Deep copies and pickled ones, each by itself."""
    ours = played(player, name, 3, device, seed=1)
    ours.begin()
    actions = ours.draw(30)
    for before in actions[:10]:
        ours.step(before)
    twins = list(ours.copies())
    for given in actions[10:]:
        expected = ours.step(given)
        for twin in twins:
            result = twin.step(given)
            assert_same_bits([result.observations, result.rewards], [expected.observations, expected.rewards])
            assert_same_bits([result.ended, result.final], [expected.ended, expected.final])


@each_case(lambda player: player.staggers)
def test_staggered_episodes(player: type[Player], name: str, device: str) -> None:
    """First episodes are cut short: they end apart, within the limit, as the seed says. Nobody sees it coming."""
    count = 60
    runs = [played(player, name, count, device, seed=seed, stagger=True) for seed in (4, 4, 5)]
    straight = played(player, name, count, device, seed=4)
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


# --- from what it is made ---


@each_taker
def test_takes_an_environment(player: type[Player], make: Make, place: Place) -> None:
    """Of any output, where the library needs none; then it is that environment that closes."""
    if player.output not in ("any", place.output):
        pytest.skip(f"needs {player.output}")
    env = fitting(make, player, **place._asdict())
    ours = player(env, seed=1)
    assert ours.raw is env
    begun = ours.begin()[0]
    assert_same_bits(
        begun, {role: values for role, values in numpy_by_role(env, env.observe()).items() if role in begun}
    )
    plain = played(player, next(iter(player.cases)), 2, place.device, seed=1)
    assert_same_bits(begun, plain.begin()[0])
    for actions in ours.draw(20):
        assert_same_bits(ours.step(actions).observations, plain.step(actions).observations)
    ours.adapter.close()
    assert env.closed


@each_taker
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_environments_that_do_not_fit_are_refused(player: type[Player], make: Make, mode: str) -> None:
    if mode != player.mode:
        needed = f"autoreset_mode='{player.mode}'"
        with pytest.raises(ValueError, match=f"autoreset_mode='{mode}': make it with {needed}"):
            made(player, fitting(make, player, autoreset_mode=mode))
        with pytest.raises(ValueError, match=f"autoreset_mode is '{mode}'.*'{player.mode}'.*leave it out"):
            made(player, first_of(player)[0], 2, device="cpu", autoreset_mode=mode)
    elif player.output != "any":
        with pytest.raises(ValueError, match=f"output='numpy': make it with output='{player.output}'"):
            made(player, fitting(make, player, output="numpy"))
        with pytest.raises(ValueError, match=f"output is 'numpy', but this adapter requires '{player.output}'"):
            made(player, first_of(player)[0], 2, device="cpu", output="numpy")


@each_taker
def test_environments_without_statistics(player: type[Player], make: Make) -> None:
    """Those that hand on returns and lengths of episodes refuse them, and the others have no need of them."""
    name, params = first_of(player)
    if player.module in ("sb3", "rsl_rl"):
        for env, *more in ((fitting(make, player, statistics=False),), (name, 2)):
            options = {"device": "cpu", "statistics": False, **params} if more else {}
            with pytest.raises(ValueError, match=r"has statistics=False, but this adapter .* make it without"):
                made(player, env, *more, **options)
        return
    ours = player(fitting(make, player, statistics=False), seed=1)
    plain = player(fitting(make, player), seed=1)
    assert_same_bits(ours.begin()[0], plain.begin()[0])
    for actions in ours.draw(20):
        assert_same_bits(ours.step(actions).observations, plain.step(actions).observations)


@each_taker
def test_options_beside_an_environment_are_refused(player: type[Player], make: Make) -> None:
    env = fitting(make, player)
    parameter = {"gravity": 9.0} if player.cases is not TEAMS else {"grid_length": 5}
    for options in ({"num_envs": 2}, {"device": "cpu"}, parameter, {"max_episode_steps": 5}, {"threads": 1}):
        with pytest.raises(ValueError, match=rf"{next(iter(options))} cannot be combined with an existing environment"):
            made(player, env, **options)
    with pytest.raises(ValueError, match="num_envs, max_episode_steps cannot be combined with an existing environment"):
        made(player, env, 2, max_episode_steps=4)


@each_player
def test_what_is_no_environment_is_refused(player: type[Player]) -> None:
    env_id = first_of(player)[0]
    with pytest.raises(gpu_envs.UnknownEnvironmentError, match="Did you mean"):
        made(player, f"{env_id[:3]}{env_id[4:]}", 2)
    with pytest.raises(ValueError, match="no option or parameter 'no_such_thing'"):
        made(player, env_id, 2, device="cpu", no_such_thing=1.0)
    foreign: Any
    for foreign in (gymnasium.make("CartPole-v1"), {}):
        if player in OF_ENVIRONMENTS:
            with pytest.raises(TypeError, match=rf"env is {type(foreign).__name__}: pass an id such as 'CartPole-v1'"):
                made(player, foreign)


@pytest.mark.parametrize(
    ("module", "maker", "env_id", "message"),
    [
        ("sb3", "VecEnv", "TagGridWorld-v0", "role=.*tagger, runner"),
        ("skrl", "Wrapper", "TagGridWorld-v0", r"team of agents: use gpu_envs\.adapters\.skrl\.MultiAgentWrapper"),
        ("skrl", "MultiAgentWrapper", "CartPole-v1", r"one agent: use gpu_envs\.adapters\.skrl\.Wrapper"),
        ("rsl_rl", "VecEnv", "TagContinuous-v0", "has a team of agents; rsl_rl trains one"),
        ("rsl_rl", "VecEnv", "CartPole-v1", r"are Discrete\(2\); rsl_rl's policies give real numbers"),
        ("rsl_rl", "VecEnv", "Acrobot-v1", r"are Discrete\(3\); rsl_rl's policies give real numbers"),
        ("rsl_rl", "VecEnv", "MountainCar-v0", r"are Discrete\(3\); rsl_rl's policies give real numbers"),
        ("pettingzoo", "vector_env", "CartPole-v1", "has one agent"),
    ],
)
def test_environments_of_another_kind_are_refused(module: str, maker: str, env_id: str, message: str) -> None:
    adapter = pytest.importorskip(f"gpu_envs.adapters.{module}")
    with pytest.raises((ValueError, gpu_envs.UnknownEnvironmentError), match=message):
        getattr(adapter, maker)(env_id, 2, device="cpu")


# --- mistakes while it runs ---


@each_case()
def test_wrong_actions_change_nothing(player: type[Player], name: str) -> None:
    """An action that is none, or a batch of another shape, is refused, and the next step is as if it had not been."""
    ours, plain = (played(player, name, 2, "cpu", seed=3, **alone(player)) for _ in range(2))
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
    ours = played(player, next(iter(player.cases)), 2, "cpu", seed=3)
    ours.begin()
    ours.adapter.close()
    if player.module != "torchrl":  # which raises, as TorchRL's do
        ours.adapter.close()
    assert ours.raw.closed
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        ours.step(ours.draw(1)[0])


@pytest.mark.cuda
@pytest.mark.skipif(not HAS_CUDA, reason="no CUDA device")
@each_case(lambda player: player.output == "torch" and player.module in ("skrl", "rsl_rl"))
def test_nothing_waits_for_the_device(player: type[Player], name: str) -> None:
    """With torch's tensors in and out, the host waits for nothing in a step."""
    import torch

    ours = played(player, name, 64, "cuda")
    ours.begin()
    env = ours.adapter
    given = []
    for actions in ours.draw(20):
        tensors = {role: moved(values, Place("cuda", "torch")) for role, values in actions.items()}
        if "agent" in tensors:
            given.append(tensors["agent"].reshape(64, -1))
        else:
            columns = [array[:, i].reshape(64, -1) for array in tensors.values() for i in range(array.shape[1])]
            given.append(dict(zip(env.possible_agents, columns, strict=True)))
    env.step(given[0])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for actions in given[1:]:
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
    if not all(is_there(player) for player in PLAYERS if player.module == module):
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
        import torch  # once, for all of them; PettingZoo's adapter comes first and does without
    if os.fork() == 0:
        importlib.import_module(f"gpu_envs.adapters.{module}")
        print(module, *{name.partition(".")[0] for name in sys.modules}, flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, module
"""


@pytest.mark.slow
def test_importing_takes_no_other_library() -> None:
    """``gpu_envs`` imports none of them, and an adapter its own alone."""
    modules = sorted(
        (name for name, player in MODULES.items() if is_there(player)), key=lambda name: name != "pettingzoo"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORTS, *modules],
        capture_output=True,
        text=True,
        env=with_package(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = {module: set(names) for module, *names in map(str.split, done.stdout.splitlines())}
    assert not loaded.pop("gpu_envs") & (LIBRARIES | {"torch"})
    assert list(loaded) == modules
    beneath = {"tensordict"}  # what rsl_rl and skrl bring with them
    for module, names in loaded.items():
        own = set(MODULES[module].libraries)
        assert MODULES[module].libraries[0] in names
        assert not names & (LIBRARIES - own - (beneath if module != "sb3" else set())), module
    assert "pettingzoo" not in loaded or "torch" not in loaded["pettingzoo"]
