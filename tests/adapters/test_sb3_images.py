"""Small images fail in Stable-Baselines3's policies as documented, and the documented alternatives work."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from small_envs import walk

import gpu_envs

torch = pytest.importorskip("torch")
pytest.importorskip("stable_baselines3", minversion="2.9")

from stable_baselines3 import PPO  # noqa: E402
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor  # noqa: E402

from gpu_envs.adapters.sb3 import VecEnv  # noqa: E402

pytestmark = pytest.mark.usefixtures("temporary_registry")


class Flat(BaseFeaturesExtractor):  # type: ignore[misc]  # Stable-Baselines3 has no types
    """Concatenates all parts of an observation."""

    def __init__(self, space: spaces.Dict) -> None:
        super().__init__(space, spaces.flatdim(space))

    def forward(self, observations: dict[str, Any]) -> Any:
        return torch.cat([part.flatten(1) for part in observations.values()], 1)


def learn(folder: Path, side: int, most: int, shape: tuple[int, ...], **policy: Any) -> None:
    spaces_by_name: dict[str, spaces.Space[Any]] = {
        "image": spaces.Box(0, most, shape, np.uint8),
        "x": spaces.Box(-8, 8, (1,), np.float32),
    }
    observe = f"""for (int j = 0; j < {side * side * 3}; ++j) observation.image[j] = u8(j % 7);
    observation.x[0] = float(s.x);"""
    spec = walk(folder, more={"observation": spaces.Dict(spaces_by_name)}, observe=observe)
    gpu_envs.register(spec, replace=True)
    env = VecEnv(spec, 2, device="cpu")
    PPO("MultiInputPolicy", env, n_steps=4, batch_size=8, n_epochs=1, device="cpu", policy_kwargs=policy).learn(8)


def test_small_images(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="Kernel size can't be greater than actual input size"):
        learn(tmp_path, 35, 255, (35, 35, 3))
    learn(tmp_path, 36, 255, (36, 36, 3))
    learn(tmp_path, 5, 255, (5, 5, 3), features_extractor_class=Flat)
    learn(tmp_path, 5, 254, (5, 5, 3))
    learn(tmp_path, 5, 255, (75,))
