"""BenchMARL's algorithms on team environments; ``make benchmarl`` installs what these tests need."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("benchmarl")

from benchmarl import algorithms
from benchmarl.experiment import Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from gymnasium.spaces import Box, Discrete
from torchrl.envs import ExplorationType, set_exploration_type

import gpu_envs
from gpu_envs.adapters.benchmarl import Task

# BenchMARL 1.5 calls deprecated parts of TorchRL, which warns
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")

ENVS = 50
STEPS = {"SimpleSpread-v3": 25, "TagGridWorld-v0": 30}
"""Steps of an episode, by environment."""


def experiment_of(task: Task, algorithm: str, folder: Path, frames: int, **settings: Any) -> Experiment:
    config = ExperimentConfig.get_from_yaml()
    batch = ENVS * STEPS[task.name]
    values: dict[str, Any] = {
        "max_n_frames": frames,
        "gamma": 0.95,
        "lr": 1e-3,
        "on_policy_n_envs_per_worker": ENVS,
        "on_policy_collected_frames_per_batch": batch,
        "on_policy_minibatch_size": batch // 4,
        "on_policy_n_minibatch_iters": 4,
        "off_policy_n_envs_per_worker": ENVS,
        "off_policy_collected_frames_per_batch": batch,
        "off_policy_n_optimizer_steps": 10,
        "off_policy_memory_size": 10_000,
        "exploration_anneal_frames": frames // 2,
        "evaluation": False,
        "evaluation_episodes": 100,
        "loggers": [],
        "create_json": False,
        "save_folder": str(folder),
    }
    for name, value in (values | settings).items():
        assert hasattr(config, name)
        setattr(config, name, value)
    model = MlpConfig.get_from_yaml()
    of_algorithm = getattr(algorithms, f"{algorithm.capitalize()}Config").get_from_yaml()
    return Experiment(task, of_algorithm, model, seed=0, config=config, critic_model_config=MlpConfig.get_from_yaml())


def mean_return(experiment: Experiment, role: str, random_role: str = "") -> float:
    """Returns the mean return of 100 episodes of a role's agents, against agents with random actions."""

    def policy(tensordict: Any) -> Any:
        tensordict = experiment.policy(tensordict)
        if random_role:
            actions = tensordict[random_role, "action"]
            actions.copy_(torch.randint(5, actions.shape))
        return tensordict

    env = experiment.task.get_env_fun(100, experiment.continuous_actions, 1, "cpu")()
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        rolled = env.rollout(experiment.max_steps, policy, break_when_any_done=False)
    first = rolled["next", "done"].cumsum(1) - rolled["next", "done"].long() == 0  # steps of the first episode
    rewards: torch.Tensor = rolled["next", role, "reward"] * first.unsqueeze(-1)
    return float(rewards.sum((1, 3)).mean())


@pytest.mark.parametrize("algorithm", ["mappo", "vdn"])
def test_learns_simple_spread(algorithm: str, tmp_path: Path) -> None:
    task = Task("SimpleSpread-v3", N=2)
    experiment = experiment_of(task, algorithm, tmp_path, 60_000, off_policy_n_optimizer_steps=40)
    before = mean_return(experiment, "agent")
    experiment.run()
    after = mean_return(experiment, "agent")
    assert after > before + 2


@pytest.mark.parametrize("algorithm", ["mappo", "qmix"])
def test_taggers_learn_to_catch(algorithm: str, tmp_path: Path) -> None:
    task = Task("TagGridWorld-v0", max_episode_steps=STEPS["TagGridWorld-v0"])
    experiment = experiment_of(task, algorithm, tmp_path, 60_000)
    before = mean_return(experiment, "tagger", "runner")
    experiment.run()
    after = mean_return(experiment, "tagger", "runner")
    assert after > before + 0.2


@pytest.mark.parametrize("algorithm", ["mappo", "ippo", "qmix", "vdn", "maddpg", "masac"])
@pytest.mark.parametrize("env", ["SimpleSpread-v3", "TagGridWorld-v0"])
def test_every_algorithm_runs(env: str, algorithm: str, tmp_path: Path) -> None:
    task = Task(env)
    if algorithm == "maddpg" and not task.supports_continuous_actions():
        pytest.skip("needs continuous actions")
    frames = 2 * ENVS * STEPS[env]
    evaluates = {"evaluation": True, "evaluation_interval": frames // 2, "loggers": ["csv"]}
    experiment = experiment_of(task, algorithm, tmp_path, frames, checkpoint_at_end=True, **evaluates)
    experiment.run()
    assert experiment.total_frames == frames
    weights = [parameter for loss in experiment.losses.values() for parameter in loss.parameters()]
    assert all(bool(torch.isfinite(weight).all()) for weight in weights)
    (checkpoint,) = tmp_path.rglob("*.pt")
    again = Experiment.reload_from_file(str(checkpoint))
    assert (again.task, again.task.env) == (task, task.env)
    assert again.total_frames == frames


@pytest.mark.parametrize("env", [name for name in gpu_envs.ids() if isinstance(gpu_envs.spec(name), gpu_envs.TeamSpec)])
def test_specs(env: str) -> None:
    """Groups are roles, and only observations are inputs of networks."""
    spaces = gpu_envs.make(env, device="cpu").single_action_spaces
    kinds = {type(space) for space in spaces.values()}
    if kinds not in ({Box}, {Discrete}) and "actions" not in gpu_envs.spec(env).params:
        with pytest.raises(ValueError, match="algorithms need Box for all agents, or Discrete for all"):
            Task(env)
        return
    task = Task(env)
    made = task.get_env_fun(3, task.supports_continuous_actions(), 0, "cpu")()
    groups = task.group_map(made)
    assert [*groups] == [*spaces]
    observations, actions = task.observation_spec(made), task.action_spec(made)
    assert {(*map(str, key),) for key in observations.keys(True, True)} == {(role, "observation") for role in groups}
    assert {(*map(str, key),) for key in actions.keys(True, True)} == {(role, "action") for role in groups}
    for role, agents in groups.items():
        assert observations[role].shape == actions[role].shape == (len(agents),)
    masks = task.action_mask_spec(made)
    assert masks is None or {key[1] for key in masks.keys(True, True)} == {"action_mask"}
    assert task.max_steps(made) > 0
    assert task.info_spec(made) is task.state_spec(made) is None


def test_either_kind_of_actions() -> None:
    task = Task("SimpleSpread-v3")
    assert task.supports_continuous_actions()
    assert task.supports_discrete_actions()
    kinds = [
        task.get_env_fun(2, continuous, 0, "cpu")().full_action_spec["agent", "action"] for continuous in (False, True)
    ]
    assert [spec.dtype for spec in kinds] == [torch.int64, torch.float32]
    task.config["continuous_actions"] = False
    assert (task.supports_continuous_actions(), task.supports_discrete_actions()) == (False, True)
    fixed = Task("SimpleSpread-v3", continuous_actions=True)
    assert (fixed.supports_continuous_actions(), fixed.supports_discrete_actions()) == (True, False)


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"CartPole-v1 has a single agent, .* give the id of a team .*TagGridWorld-v0"):
        Task("CartPole-v1")
    with pytest.raises(ValueError, match="num_envs is 5: leave it out"):
        Task("TagGridWorld-v0", num_envs=5)
    with pytest.raises(ValueError, match=r"MultiDiscrete.* Discrete for all; leave actions out"):
        Task("TagContinuous-v0", actions="discrete")
