"""Adapters and wrappers around user environments: Dicts, images, integers and action masks."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from carriers import CARRIERS
from corridors import ACTIONS, EVERYTHING, LIMIT, SPACES, corridor, expected_mask, expected_observations, write_file
from gymnasium.spaces import Box, Dict, Discrete
from harness import DEVICES, assert_same_bits, numpy_of, on_host
from players import Player, Sb3, Skrl, TorchRl

from gpu_envs import MultiAgentEnv, Step, VectorEnv
from gpu_envs.registry import catalog as registry

pytest.importorskip("torch")

import torch

pytestmark = pytest.mark.usefixtures("one_thread")

COUNT, STEPS = 6, 3 * LIMIT

MASKED = [{"shown": "everything", "masked": True, "categorical_actions": given} for given in (True, False)]

MakeCorridor = Callable[..., VectorEnv]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder for headers."""
    return tmp_path_factory.mktemp("corridors")


@pytest.fixture(params=DEVICES)
def make_corridor(request: pytest.FixtureRequest, folder: Path) -> MakeCorridor:
    """Makes a corridor with these spaces of observations and actions, and with or without masks."""

    def make(shown: str = "position", acted: str = "one", masked: bool = False, **kwargs: Any) -> VectorEnv:
        chosen = {"device": request.param, "output": "torch", "autoreset_mode": "SameStep", **kwargs}
        return VectorEnv(corridor(folder, shown, acted, masked=masked), COUNT, **chosen)

    return make


def random_actions(space: Any, rng: np.random.Generator, masks: np.ndarray | None = None) -> np.ndarray:
    """Random actions, among the possible ones if masks are given."""
    if isinstance(space, Box):
        return rng.uniform(-1, 1, (COUNT, *space.shape)).astype(np.float32)
    allowed = np.ones((COUNT, space.n)) if masks is None else masks
    return np.asarray((rng.random(allowed.shape) * allowed).argmax(-1))


class TestStableBaselines3:
    """The vectorised environment for Stable-Baselines3."""

    @pytest.mark.parametrize("shown", SPACES)
    @pytest.mark.parametrize("results", ["numpy", "torch", "one block"])
    def test_observations(self, shown: str, results: str, make_corridor: MakeCorridor) -> None:
        """They match the state; ``terminal_observation`` matches ``final_obs`` of a plain environment."""
        sb3 = pytest.importorskip("gpu_envs.adapters.sb3")
        from gpu_envs.adapters.sb3.results import DeviceResults, result_shapes

        plain = make_corridor(shown, output="numpy")
        venv = sb3.VecEnv(make_corridor(shown, output="numpy" if results == "numpy" else "torch"), seed=3)
        if results == "one block":
            venv._slots._results = DeviceResults(result_shapes(venv.env, None), None, venv.env.device)  # noqa: SLF001 - a GPU's choice, tested on the host
        assert venv.observation_space == SPACES[shown]
        first = venv.reset()
        assert_same_bits(first, plain.reset(seed=3)[0])
        assert_same_bits(first, expected_observations(shown, on_host(venv.env.state)))
        kept, rng, ends = copy.deepcopy(first), np.random.default_rng(0), 0
        for _ in range(STEPS):
            actions = random_actions(venv.action_space, rng)
            observations, rewards, dones, infos = venv.step(actions)
            _, paid, terminations, truncations, described = plain.step(actions)
            assert_same_bits(observations, expected_observations(shown, on_host(venv.env.state)))
            assert_same_bits(rewards, paid)
            assert_same_bits(dones, terminations | truncations)
            for i in np.flatnonzero(dones):
                last = on_host(described["final_obs"])
                row = {key: part[i] for key, part in last.items()} if isinstance(last, dict) else last[i]
                assert_same_bits(infos[i]["terminal_observation"], row)
                ends += 1
        assert ends >= 2 * COUNT
        assert_same_bits(first, kept)

    def test_learns_from_a_dict(self, make_corridor: MakeCorridor) -> None:
        """PPO of Stable-Baselines3 and of this package get the same numbers, except for rounding."""
        sb3 = pytest.importorskip("gpu_envs.adapters.sb3")
        import stable_baselines3

        learned = []
        for algorithm in (stable_baselines3.PPO, sb3.PPO):
            venv = sb3.VecEnv(make_corridor("everything"), seed=0)
            model = algorithm(
                "MultiInputPolicy", venv, n_steps=LIMIT + 1, batch_size=20, n_epochs=1, seed=0, device="cpu"
            )
            model.learn(COUNT * (LIMIT + 1))
            learned.append(torch.cat([part.detach().flatten() for part in model.policy.parameters()]))
        torch.testing.assert_close(*learned)

    @pytest.mark.parametrize("output", ["numpy", "torch"])
    def test_masks(self, output: str, make_corridor: MakeCorridor) -> None:
        """They match the state of the returned observations, through the method that sb3-contrib calls."""
        sb3 = pytest.importorskip("gpu_envs.adapters.sb3")
        venv = sb3.VecEnv(make_corridor(masked=True, output=output), seed=3)
        assert venv.has_attr("action_masks")
        venv.reset()
        rng = np.random.default_rng(0)
        for _ in range(STEPS):
            masks = np.stack(venv.env_method("action_masks"))
            assert_same_bits(masks, expected_mask(on_host(venv.env.state)))
            assert_same_bits(venv.action_masks(), masks)
            assert_same_bits(venv.env_method("action_masks", indices=[4, -1]), list(masks[[4, -1]]))
            assert_same_bits(venv.get_attr("action_masks", 2)[0](), masks[2])
            infos = venv.step(random_actions(venv.action_space, rng, masks))[3]
            assert all("action_mask" not in info for info in infos)
        assert not numpy_of(venv.env.state["wrong"]).any()

    def test_without_masks(self, make_corridor: MakeCorridor) -> None:
        sb3 = pytest.importorskip("gpu_envs.adapters.sb3")
        venv = sb3.VecEnv(make_corridor())
        venv.reset()
        assert not venv.has_attr("action_masks")
        for ask in (venv.action_masks, lambda: venv.env_method("action_masks")):
            with pytest.raises(ValueError, match="has no action masks"):
                ask()

    @pytest.mark.parametrize(("shown", "policy"), [("position", "MlpPolicy"), ("everything", "MultiInputPolicy")])
    def test_maskable_ppo(self, shown: str, policy: str, make_corridor: MakeCorridor) -> None:
        """It never chooses a forbidden action: each would cost 100."""
        sb3 = pytest.importorskip("gpu_envs.adapters.sb3")
        contrib = pytest.importorskip("sb3_contrib")
        venv = sb3.VecEnv(make_corridor(shown, masked=True), seed=0)
        model = contrib.MaskablePPO(policy, venv, n_steps=LIMIT, batch_size=18, n_epochs=1, seed=0, device="cpu")
        model.learn(2 * LIMIT * COUNT)
        assert min(episode["r"] for episode in model.ep_info_buffer) >= 0
        assert (model.rollout_buffer.action_masks == 0).any()

    @pytest.mark.parametrize("output", ["numpy", "torch"])
    @pytest.mark.parametrize("device", DEVICES)
    def test_teams(self, output: str, device: str) -> None:
        """Each agent has its own masks; randomly acting roles choose possible actions."""
        sb3 = pytest.importorskip("gpu_envs.adapters.sb3")
        env = MultiAgentEnv(CARRIERS, COUNT, device=device, output=output, autoreset_mode="SameStep")
        given: list[Any] = []
        step = env.step
        venv = sb3.VecEnv(env, role="digger", seed=0)
        env.step = lambda actions, **out: given.append(actions["carrier"]) or step(actions, **out)  # type: ignore[method-assign, func-returns-value]
        venv.reset()
        assert venv.has_attr("action_masks")
        narrowed = 0
        for _ in range(STEPS):
            masks, carriers = venv.action_masks(), numpy_of(env.action_mask["carrier"])  # type: ignore[index]
            assert_same_bits(masks, numpy_of(env.action_mask["digger"]).reshape(-1, 5).astype(bool))  # type: ignore[index]
            venv.step(np.stack([masks[:, :3].argmax(-1), masks[:, 3:].argmax(-1)], -1))
            chosen = numpy_of(given[-1]) - 10
            assert np.take_along_axis(carriers, chosen[..., None], -1).all()
            narrowed += int((carriers == 0).sum())
        assert narrowed
        assert len(np.unique(np.concatenate([numpy_of(part) for part in given]))) >= 4


class TestTorchRL:
    """The environment for TorchRL."""

    @pytest.fixture
    def env_of(self, make_corridor: MakeCorridor) -> Callable[..., Any]:
        torchrl = pytest.importorskip("gpu_envs.adapters.torchrl")

        def make(shown: str = "position", masked: bool = False, **kwargs: Any) -> Any:
            return torchrl.Env(make_corridor(shown, masked=masked, autoreset_mode="Disabled"), seed=0, **kwargs)

        return make

    @pytest.mark.parametrize("options", [*({"shown": shown} for shown in SPACES), *MASKED], ids=str)
    def test_torchrl_checks_pass(self, options: dict[str, Any], env_of: Callable[..., Any]) -> None:
        from torchrl.envs.utils import check_env_specs

        check_env_specs(env_of(**options), break_when_any_done="both")

    @pytest.mark.parametrize("shown", SPACES)
    def test_observations(self, shown: str, env_of: Callable[..., Any]) -> None:
        """They have the keys of the Dict and the dtypes of the space, and later steps do not change them."""
        env = env_of(shown)
        space = SPACES[shown]
        keys = tuple(space) if isinstance(space, Dict) else ("observation",)
        now, kept = env.reset(), []
        for _ in range(STEPS):
            state = expected_observations(shown, on_host(env.env.state))
            expected = state if isinstance(state, dict) else {"observation": state}
            assert_same_bits({key: now[key] for key in keys}, expected)
            kept.append(({key: now[key] for key in keys}, expected))
            _, now = env.step_and_maybe_reset(env.rand_action(now))
        for early, expected in kept:
            assert_same_bits(early, expected)

    @pytest.mark.parametrize("categorical", [True, False])
    @pytest.mark.parametrize("transformed", [False, True])
    def test_masks(self, categorical: bool, transformed: bool, env_of: Callable[..., Any]) -> None:
        """Random actions are possible, also after restarts, and with TorchRL's ``ActionMask``."""
        from torchrl.envs import TransformedEnv
        from torchrl.envs.transforms import ActionMask

        base = env_of("position", True, categorical_actions=categorical)
        env = TransformedEnv(base, ActionMask()) if transformed else base
        now, wrong, ends = env.reset(), 0, 0
        for _ in range(STEPS):
            assert now["action_mask"].dtype is torch.bool
            assert_same_bits(now["action_mask"], expected_mask(on_host(base.env.state)))
            stepped, now = env.step_and_maybe_reset(env.rand_action(now))
            wrong += int((stepped["next", "reward"] < 0).sum())
            ends += int(stepped["next", "done"].sum())
        assert wrong == 0
        assert ends >= 2 * COUNT

    def test_copies(self, env_of: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A copy samples with separate masks."""
        spec = corridor(folder, "everything", masked=True)
        monkeypatch.setitem(registry.SPECS, spec.id, spec)
        env = env_of("everything", True)
        env.rollout(2)
        other = copy.deepcopy(env)
        assert other.full_action_spec["action"].mask is not env.full_action_spec["action"].mask
        assert int((other.rollout(STEPS, break_when_any_done=False)["next", "reward"] < 0).sum()) == 0

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("categorical", [True, False])
    def test_teams(self, device: str, categorical: bool) -> None:
        torchrl = pytest.importorskip("gpu_envs.adapters.torchrl")
        from torchrl.envs.utils import check_env_specs

        raw = MultiAgentEnv(CARRIERS, COUNT, device=device, output="torch", autoreset_mode="Disabled")
        env = torchrl.Env(raw, seed=0, categorical_actions=categorical)
        check_env_specs(env, break_when_any_done="both")
        now, narrowed = env.reset(), 0
        for _ in range(STEPS):
            raw.observe()  # the steps wrote masks to other arrays
            for role in raw.roles:
                assert_same_bits(now[role, "action_mask"], numpy_of(raw.action_mask[role]).astype(bool))  # type: ignore[index]
            env.rand_action(now)
            chosen = now["carrier", "action"] if categorical else now["carrier", "action"].long().argmax(-1)
            masks = now["carrier", "action_mask"]
            assert masks.gather(-1, chosen.unsqueeze(-1)).all()
            narrowed += int((~masks).sum())
            _, now = env.step_and_maybe_reset(now)
        assert narrowed

    def test_nothing_is_possible(self) -> None:
        """Then all actions are sampled: after the end of an episode they have no effect."""
        pytest.importorskip("torchrl")
        from gpu_envs.adapters.torchrl.specs import nonempty_mask

        mask = torch.tensor([[True, False, True], [False, False, False]])
        assert nonempty_mask(mask, (3,)).tolist() == [[True, False, True], [True, True, True]]
        assert nonempty_mask(mask, (2, 1)).tolist() == [[True, False, True], [True, True, True]]
        assert nonempty_mask(~mask, (2, 1)).tolist() == [[False, True, True], [True, True, True]]

    def test_names_that_have_a_meaning(self) -> None:
        pytest.importorskip("torchrl")
        from gpu_envs.adapters.torchrl.specs import observation_specs

        space = Dict({"reward": EVERYTHING["position"]})
        with pytest.raises(ValueError, match="the keys 'reward', which TorchRL reserves"):
            observation_specs(space, torch.Size((2,)), torch.device("cpu"))


class TestSkrl:
    """The wrapper for skrl."""

    @pytest.mark.parametrize("shown", SPACES)
    def test_observations(self, shown: str, make_corridor: MakeCorridor) -> None:
        """Rows of float32, which skrl splits into the parts of the space."""
        skrl = pytest.importorskip("gpu_envs.adapters.skrl")
        from skrl.utils.spaces.torch import unflatten_tensorized_space

        wrapper = skrl.Wrapper(make_corridor(shown, masked=True), seed=0)
        observations, rng = wrapper.reset()[0], np.random.default_rng(0)
        for _ in range(STEPS):
            assert observations.dtype is torch.float32
            apart = on_host(unflatten_tensorized_space(SPACES[shown], observations))
            env = wrapper.env if hasattr(wrapper, "env") else wrapper._env  # noqa: SLF001 - skrl's wrapped environment
            expected = expected_observations(shown, on_host(env.state))
            parts = expected if isinstance(expected, dict) else {"": expected}
            assert_same_bits(
                apart if isinstance(apart, dict) else {"": apart},
                {key: part.astype(np.float32) for key, part in parts.items()},
            )
            actions = torch.from_numpy(random_actions(ACTIONS["one"], rng)).reshape(-1, 1).to(wrapper.device)
            observations, _, _, _, infos = wrapper.step(actions)
            assert infos["final_obs"].shape == observations.shape
            assert infos["final_obs"].dtype is torch.float32


class TestRslRl:
    """The vectorised environment for rsl_rl."""

    def test_groups(self, make_corridor: MakeCorridor) -> None:
        """Keys of a Dict are groups; later steps do not change them."""
        rsl_rl = pytest.importorskip("gpu_envs.adapters.rsl_rl")
        venv = rsl_rl.VecEnv(make_corridor("floats", "real"), seed=0)
        rng, kept = np.random.default_rng(0), []
        now = venv.get_observations()
        for _ in range(STEPS):
            expected = expected_observations("floats", on_host(venv.env.state))
            assert set(now.keys()) == set(expected)
            kept.append((now, expected))
            now = venv.step(torch.from_numpy(random_actions(ACTIONS["real"], rng)).to(venv.device))[0]
        for groups, expected in kept:
            assert_same_bits(dict(groups.items()), expected)

    @pytest.mark.parametrize("shown", ["image", "counts", "everything"])
    def test_refuses_what_it_cannot_take(self, shown: str, make_corridor: MakeCorridor) -> None:
        rsl_rl = pytest.importorskip("gpu_envs.adapters.rsl_rl")
        with pytest.raises(ValueError, match=r"group '\w+', are Box\(.*int.*use an environment with a float32 Box"):
            rsl_rl.VecEnv(make_corridor(shown, "real"))


class TestWrappers:
    """Wrappers of this package."""

    @pytest.mark.parametrize("shown", ["image", "counts", "position"])
    @pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
    def test_frames(self, shown: str, mode: str, make_corridor: MakeCorridor) -> None:
        """Stacks of any dtype, with masks in infos: the newest frame is the environment's observation."""
        from gpu_envs.wrappers import FrameStackObservation

        inner = make_corridor(shown, masked=True, autoreset_mode=mode)
        env = FrameStackObservation(inner, 3)
        space = SPACES[shown]
        stacks, infos = env.reset(seed=0)
        rng, before, over = np.random.default_rng(0), None, np.ones(COUNT, bool)
        for _ in range(LIMIT - 1):  # no episode reaches the limit
            frames = numpy_of(stacks)
            assert frames.dtype == space.dtype
            assert frames.shape == (COUNT, 3, *(space.shape or ()))
            state = on_host(inner.state)
            assert_same_bits(frames[:, -1], expected_observations(shown, state))
            assert_same_bits(numpy_of(infos["action_mask"]).astype(bool), expected_mask(state))
            if before is not None:
                assert_same_bits(frames[~over, :-1], before[~over, 1:])
            before = frames
            stacks, _, terminations, _, infos = env.step(random_actions(inner.single_action_space, rng))
            over = numpy_of(terminations)

    def test_masks_in_out(self, make_corridor: MakeCorridor) -> None:
        """``out.action_mask`` reaches the environment through wrappers that write other results."""
        from gpu_envs.wrappers import NormalizeObservation, NormalizeReward

        inner = make_corridor("position", masked=True)
        env = NormalizeReward(NormalizeObservation(inner))
        observations, _ = env.reset(seed=0)
        mask = torch.full((COUNT, 4), 7, dtype=torch.int8, device=observations.device)
        infos = env.step(np.zeros(COUNT, int), out=Step(action_mask=mask))[4]
        assert infos["action_mask"] is mask
        assert_same_bits(mask.bool(), expected_mask(on_host(inner.state)))

    @pytest.mark.parametrize("shown", ["everything", "image", "counts"])
    def test_refusals(self, shown: str, make_corridor: MakeCorridor) -> None:
        """Wrappers name the spaces that they support."""
        from gpu_envs.wrappers import FlattenObservation, FrameStackObservation, NormalizeObservation

        env = make_corridor(shown)
        with pytest.raises(TypeError, match="NormalizeObservation needs observations in a Box of float32; "):
            NormalizeObservation(env)
        if shown == "everything":
            with pytest.raises(TypeError, match="FlattenObservation needs observations in a Box; "):
                FlattenObservation(env)
            with pytest.raises(TypeError, match="needs observations in a Box of float32 or uint8 or int32; "):
                FrameStackObservation(env, 2)


@pytest.mark.usefixtures("temporary_registry")
@pytest.mark.parametrize("player", [Sb3, TorchRl, Skrl], ids=lambda player: player.module)
def test_spec_paths(player: type[Player], tmp_path: Path) -> None:
    """A spec path works like an id."""
    path = write_file(tmp_path, f"Corridor{player.module}-v0")
    taken = player(f"{path}:CORRIDOR", 2, device="cpu")
    taken.begin()
    assert taken.raw.num_envs == 2
    assert isinstance(taken.raw.single_action_space, Discrete)
