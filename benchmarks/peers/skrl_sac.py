"""Train Pendulum with skrl's SAC, in torch: ``python -m benchmarks.peers.skrl_sac``.

Prints a line of JSON. Uses the networks and settings of skrl's example of SAC on Pendulum.
"""

import argparse
import json
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from skrl.agents.torch.sac import SAC
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import StepTrainer
from skrl.utils import set_seed

from benchmarks.record import versions
from benchmarks.timing import wait_function
from benchmarks.training.race import Rule

ENV = "Pendulum-v1"
HIDDEN = (400, 300)
MEMORY_SIZE = 20_000
SETTINGS = {"discount_factor": 0.98, "batch_size": 100, "learning_starts": 1000}
"""Settings of skrl's example that differ from SAC's defaults."""

CRITICS = ("critic_1", "critic_2", "target_critic_1", "target_critic_2")


def network(inputs: int, outputs: int) -> torch.nn.Module:
    """Return a network with two hidden layers."""
    first, second = HIDDEN
    return torch.nn.Sequential(
        *(torch.nn.Linear(inputs, first), torch.nn.ReLU()),
        *(torch.nn.Linear(first, second), torch.nn.ReLU()),
        torch.nn.Linear(second, outputs),
    )


class Actor(GaussianMixin, Model):  # type: ignore[misc]  # skrl's types are not followed
    """A Gaussian policy with a standard deviation that does not depend on the observation."""

    def __init__(self, spaces: dict[str, Any], device: Any) -> None:
        Model.__init__(self, device=device, **spaces)
        GaussianMixin.__init__(self, clip_actions=True)
        self.net = network(self.num_observations, self.num_actions)
        self.log_std = torch.nn.Parameter(torch.zeros(self.num_actions))
        self.max_torque = float(spaces["action_space"].high[0])

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the means and the logarithm of the standard deviation."""
        del role
        return self.max_torque * torch.tanh(self.net(inputs["observations"])), {"log_std": self.log_std}


class Critic(DeterministicMixin, Model):  # type: ignore[misc]  # skrl's types are not followed
    """A Q-function."""

    def __init__(self, spaces: dict[str, Any], device: Any) -> None:
        Model.__init__(self, device=device, **spaces)
        DeterministicMixin.__init__(self)
        self.net = network(self.num_observations + self.num_actions, 1)

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the value of the actions."""
        del role
        return self.net(torch.cat((inputs["observations"], inputs["taken_actions"]), -1)), {}


def make_trainer(seed: int, device: str, timesteps: int, **settings: Any) -> Any:
    """Create a trainer with an untrained agent."""
    set_seed(seed)
    env: Any = gymnasium.make(ENV)
    env.unwrapped.device = device  # otherwise skrl's wrapper takes a GPU if there is one
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    models: dict[str, Any] = {"policy": Actor(spaces, device), **{name: Critic(spaces, device) for name in CRITICS}}
    for model in models.values():
        model.init_parameters(method_name="normal_", mean=0.0, std=0.1)
    agent = SAC(
        models=models,
        memory=RandomMemory(memory_size=MEMORY_SIZE, device=device),
        device=device,
        cfg={"experiment": {"write_interval": 0, "checkpoint_interval": 0}} | settings,
        **spaces,
    )
    silent = {"headless": True, "disable_progressbar": True, "close_environment_at_exit": False}
    return StepTrainer(env=wrap_env(env), agents=agent, cfg={"timesteps": timesteps, **silent})


def race(seed: int, rule: Rule, device: str) -> dict[str, Any]:
    """Train until the target, after a warm-up with another agent."""
    start = time.perf_counter()
    warm = make_trainer(seed, device, 32, **SETTINGS | {"learning_starts": 0})
    for timestep in range(32):
        warm.train(timestep=timestep)
    trainer = make_trainer(seed, device, rule.limit, **SETTINGS)
    envs = gymnasium.make_vec(ENV, rule.episodes, vectorization_mode="sync")
    envs.reset(seed=seed)
    wait = wait_function(device)
    wait()
    prepared, policy, done = time.perf_counter() - start, trainer.agents.policy, 0

    def train(steps: int) -> int:
        nonlocal done
        for timestep in range(done, done + steps):
            trainer.train(timestep=timestep)
        wait()
        done += steps
        return done

    def evaluate() -> float:
        observations, _ = envs.reset()
        returns, is_over = np.zeros(rule.episodes), False
        while not is_over:
            observation_tensor = torch.as_tensor(observations, device=device)
            with torch.no_grad():
                means = policy.act({"observations": observation_tensor}, role="policy")[1]["mean_actions"]
            observations, rewards, _, truncated, _ = envs.step(means.cpu().numpy())
            returns, is_over = returns + rewards, bool(truncated.all())
        return float(returns.mean())

    return {"seed": seed, "settings": SETTINGS, "prepare_s": prepared, **rule.race(train, evaluate)}


def main() -> None:
    """Train, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--rule", type=Rule.from_json, default=Rule(), help="the rule of the race, as JSON")
    options = parser.parse_args()
    results = race(options.seed, options.rule, options.device)
    print(json.dumps({"versions": versions(("skrl", "torch", "gymnasium")), **results}))


if __name__ == "__main__":
    main()
