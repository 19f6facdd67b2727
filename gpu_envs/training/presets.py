"""Settings that suit an environment, by its id and the preset's name."""

from collections.abc import Mapping
from typing import Any

_CLASSIC: Mapping[str, Any] = {"num_envs": 1024, "epochs": 4, "minibatches": 8, "precision": "tf32"}
"""What the environments of a single agent have in common, unless they say otherwise."""

_CARTPOLE: Mapping[str, Any] = {
    **_CLASSIC,
    "num_envs": 512,
    "horizon": 32,
    "epochs": 2,
    "learning_rate": "0:0.004,1:0",
    "total_steps": 5_000_000,
    "target_return": 475.0,
}

_SWING_UP: Mapping[str, Any] = {
    "algorithm": "sac",
    "num_envs": 64,
    "horizon": 4,
    "updates": 32,
    "batch": 256,
    "slots": 500,
    "warm_up": 1024,
    "n_step": 2,
    "learning_rate": "0:0.004,1:0",
    "gamma": 0.97,
    "tau": 0.02,
    "max_grad_norm": None,
    "activation": "relu",
    "precision": "tf32",
    "total_steps": 30_000,
}
"""Pendulum from a buffer: some 3,600 updates."""

_CLIMB: Mapping[str, Any] = {
    **_SWING_UP,
    "num_envs": 256,
    "horizon": 8,
    "warm_up": 50_000,
    "n_step": 10,
    "learning_rate": "0:0.003,1:0",
    "gamma": 0.999,
    "exploration": "ou",
    "total_steps": 300_000,
}
"""MountainCarContinuous: a push must last to reach the goal, which only an end of an episode tells of."""

_CLIMB_SURELY: Mapping[str, Any] = {**_CLIMB, "algorithm": "td3", "gamma": 0.9999, "tau": 0.005, "noise": 0.3}

_TAG_CONTINUOUS: Mapping[str, Any] = {
    "num_envs": 1000,
    "horizon": 16,
    "epochs": 2,
    "minibatches": 8,
    "learning_rate": "0:0.001,1:0.0001",
    "gamma": 0.98,
    "hidden": (256, 256),
    "activation": "relu",
    "shared_trunk": True,
    "precision": "bf16",
    "stagger": True,
    "total_steps": 4_000_000,
}

_SMALL_TAG: Mapping[str, Any] = {
    "params": {
        "num_taggers": 3,
        "num_runners": 10,
        "grid_length": 10.0,
        "episode_length": 200,
        "num_other_agents_observed": 4,
        "num_acceleration_levels": 4,
        "num_turn_levels": 8,
    },
    "policies": {"runner": "random"},
    "num_envs": 128,
    "horizon": 16,
    "epochs": 4,
    "minibatches": 8,
    "learning_rate": "0:0.004,1:0.0003",
    "gamma": 0.95,
    "gae_lambda": 0.9,
    "activation": "relu",
    "shared_trunk": True,
    "stagger": True,
    "total_steps": 500_000,
}
"""A game that one core of a CPU learns in a quarter of a minute."""

_TAG_GRID: Mapping[str, Any] = {
    "num_envs": 8192,
    "horizon": 25,
    "epochs": 2,
    "minibatches": 8,
    "learning_rate": "0:0.002,1:0.0001",
    "gamma": 0.99,
    "gae_lambda": 0.99,
    "entropy_weight": "0:0.003,0.6:0.003,1:0",
    "activation": "relu",
    "normalise_observations": True,
    "precision": "tf32",
    "total_steps": 300_000_000,
}

_RICE: Mapping[str, Any] = {
    "num_envs": 512,
    "horizon": 20,
    "epochs": 4,
    "minibatches": 8,
    "learning_rate": "0:0.001,1:0",
    "gamma": 0.95,
    "hidden": (256, 256),
    "normalise_observations": True,
    "normalise_rewards": True,
    "precision": "bf16",
    "total_steps": 2_000_000,
}

_COVID: Mapping[str, Any] = {
    "num_envs": 256,
    "horizon": 90,
    "epochs": 4,
    "minibatches": 8,
    "learning_rate": "0:0.001,1:0",
    "gamma": 0.99,
    "gae_lambda": 0.97,
    "hidden": (256, 256),
    "normalise_observations": True,
    "normalise_rewards": True,
    "precision": "bf16",
    "stagger": True,
    "policy_settings": {"planner": {"learning_rate": "0:0.0005,0.4:0,1:0", "gamma": 0.997}},
    "total_steps": 12_000_000,
}
"""The planner learns for less than half of the time: governors then adapt to what it will do."""

_PQN: Mapping[str, Any] = {
    "algorithm": "pqn",
    "gamma": 0.99,
    "layer_norm": True,
    "normalise_observations": True,
    "normalise_rewards": True,
    "precision": "tf32",
}

_TAG_FROM_A_BUFFER: Mapping[str, Any] = {
    "algorithm": "sac",
    "params": {"actions": "continuous"},
    "num_envs": 32,
    "horizon": 8,
    "updates": 8,
    "batch": 4096,
    "slots": 512,
    "warm_up": 20_000,
    "n_step": 3,
    "learning_rate": 0.0005,
    "gamma": 0.98,
    "tau": 0.01,
    "temperature": 0.01,
    "target_entropy": -6.0,
    "max_grad_norm": None,
    "hidden": (256, 256),
    "activation": "relu",
    "stagger": True,
    "precision": "tf32",
    "total_steps": 500_000,
}

PRESETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "CartPole-v0": {"default": {**_CARTPOLE, "target_return": 195.0}},
    "CartPole-v1": {
        "default": _CARTPOLE,
        "pqn": {
            **_PQN,
            "num_envs": 512,
            "horizon": 16,
            "epochs": 2,
            "minibatches": 2,
            "learning_rate": "0:0.005,0.5:0.0005",
            "gae_lambda": 0.9,
            "max_grad_norm": 0.5,
            "epsilon": "0:0.3,0.5:0",
            "stagger": True,
            "total_steps": 1_000_000,
            "target_return": 475.0,
        },
    },
    "MountainCar-v0": {
        "default": {
            **_CLASSIC,
            "horizon": 64,
            "learning_rate": "0:0.002,1:0",
            "gae_lambda": 0.98,
            "normalise_observations": True,
            "normalise_rewards": True,
            "total_steps": 60_000_000,
            "target_return": -105.0,
        },
        "pqn": {
            **_PQN,
            "num_envs": 128,
            "horizon": 64,
            "epochs": 2,
            "minibatches": 16,
            "learning_rate": "0:0.001,1:0",
            "gae_lambda": 0.95,
            "max_grad_norm": 1.0,
            "epsilon": "0:1,0.3:0.05,1:0",
            "stagger": True,
            "total_steps": 4_000_000,
        },
    },
    "MountainCarContinuous-v0": {
        "default": {
            **_CLASSIC,
            "horizon": 128,
            "learning_rate": "0:0.001,1:0",
            "gamma": 0.999,
            "normalise_observations": True,
            "normalise_rewards": True,
            "total_steps": 60_000_000,
            "target_return": 94.5,
        },
        "sac": _CLIMB,
        "td3": _CLIMB_SURELY,
        "ddpg": {**_CLIMB_SURELY, "algorithm": "ddpg", "learning_rate": "0:0.002,1:0", "max_grad_norm": 1.0},
    },
    "Pendulum-v1": {
        "default": {
            **_CLASSIC,
            "num_envs": 512,
            "horizon": 32,
            "learning_rate": "0:0.003,1:0",
            "gamma": 0.95,
            "normalise_observations": True,
            "normalise_rewards": True,
            "stagger": True,
            "total_steps": 5_000_000,
        },
        "sac": _SWING_UP,
        "td3": {
            **_SWING_UP,
            "algorithm": "td3",
            "batch": 512,
            "slots": 1000,
            "n_step": 1,
            "learning_rate": "0:0.003,1:0",
            "tau": 0.05,
            "noise": 0.2,
            "target_noise": 0.1,
            "activation": "elu",
            "total_steps": 40_000,
        },
    },
    "Acrobot-v1": {
        "default": {
            **_CLASSIC,
            "horizon": 64,
            "learning_rate": "0:0.002,1:0",
            "gae_lambda": 0.94,
            "normalise_observations": True,
            "total_steps": 20_000_000,
            "target_return": -70.0,
        },
        "pqn": {
            **_PQN,
            "num_envs": 256,
            "horizon": 32,
            "epochs": 4,
            "minibatches": 4,
            "learning_rate": "0:0.002,1:0",
            "gamma": 0.999,
            "gae_lambda": 0.65,
            "max_grad_norm": 10.0,
            "epsilon": "0:0.5,0.5:0.01",
            "activation": "relu",
            "total_steps": 10_000_000,
        },
    },
    "TagContinuous-v0": {
        "default": _TAG_CONTINUOUS,
        "taggers": {**_TAG_CONTINUOUS, "gamma": 0.95, "policies": {"runner": "random"}},
        "runners": {**_TAG_CONTINUOUS, "policies": {"tagger": "random"}},
        "small": _SMALL_TAG,
        "sac": _TAG_FROM_A_BUFFER,
        "sac-taggers": {
            **_TAG_FROM_A_BUFFER,
            "num_envs": 64,
            "batch": 2048,
            "slots": 1024,
            "n_step": 1,
            "gamma": 0.95,
            "temperature": 1.0,
            "target_entropy": None,
            "policies": {"runner": "random"},
            "total_steps": 1_000_000,
        },
        "sac-runners": {**_TAG_FROM_A_BUFFER, "policies": {"tagger": "random"}},
    },
    "TagGridWorld-v0": {
        "default": _TAG_GRID,
        "taggers": {**_TAG_GRID, "policies": {"runner": "random"}},
        "runners": {**_TAG_GRID, "total_steps": 20_000_000, "policies": {"tagger": "random"}},
    },
    "RiceN-v0": {
        "default": _RICE,
        "negotiation": {
            **_RICE,
            "params": {"negotiation": True},
            "num_envs": 256,
            "horizon": 60,
            "minibatches": 32,
            "learning_rate": "0:0.002,1:0",
            "gamma": 0.98,
            "clip": 0.5,
            "total_steps": 3_000_000,
        },
    },
    "CovidEconomy-v0": {"default": _COVID},
}
"""Fields of ``Config``, by environment and name. The one called default is used where none is asked for."""
