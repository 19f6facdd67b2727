"""Stable-Baselines3's PPO with rollouts for thousands of environments."""

from typing import Any, final

import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv


@final
class PPO(stable_baselines3.PPO):
    """Stable-Baselines3's PPO, with a ``collect_rollouts`` for thousands of environments.

    It computes the values of final observations of truncated episodes in one batch instead of one by one, and reads
    infos only where an episode ended. These values may differ from the base class's in the last bit, as the results
    of a batch and of a single row may. All else, including callbacks and buffers, is as in the base class. Action
    masks are not used: for those, use sb3-contrib's ``MaskablePPO``.
    """

    _last_obs: Any
    _last_episode_starts: Any

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """Collect a rollout as the base class does, but value all final observations of a step in one batch."""
        # callbacks read the local variables, so these have the names of the base class's
        assert self._last_obs is not None, "call learn(), which resets the environments before the first rollout"
        self.policy.set_training_mode(False)
        rollout_buffer.reset()
        if self.use_sde:
            self.policy.reset_noise(env.num_envs)
        callback.on_rollout_start()
        for n_steps in range(n_rollout_steps):
            if self.use_sde and self.sde_sample_freq > 0 and n_steps % self.sde_sample_freq == 0:
                self.policy.reset_noise(env.num_envs)
            with torch.no_grad():
                obs_tensor = obs_as_tensor(self._last_obs, self.device)
                sampled, values, log_probs = self.policy(obs_tensor)
            actions = sampled.cpu().numpy()
            clipped_actions = self._clip_actions(actions)
            new_obs, rewards, dones, infos = env.step(clipped_actions)
            self.num_timesteps += env.num_envs
            callback.update_locals(locals())
            if not callback.on_step():
                return False
            ended = np.flatnonzero(dones)
            if ended.size:
                last = [infos[i] for i in ended]
                self._update_info_buffer(last, dones[ended])
                self._bootstrap(rewards, ended, last)
            stored = actions.reshape(-1, 1) if isinstance(self.action_space, spaces.Discrete) else actions
            rollout_buffer.add(self._last_obs, stored, rewards, self._last_episode_starts, values, log_probs)
            self._last_obs, self._last_episode_starts = new_obs, dones
        with torch.no_grad():
            values = self.policy.predict_values(obs_as_tensor(self._last_obs, self.device))
        rollout_buffer.compute_returns_and_advantage(last_values=values, dones=self._last_episode_starts)
        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    def _clip_actions(self, actions: np.ndarray) -> np.ndarray:
        """Return the actions for the environment: continuous ones unscaled or clipped, others unchanged."""
        if not isinstance(self.action_space, spaces.Box):
            return actions
        if self.policy.squash_output:
            return np.asarray(self.policy.unscale_action(actions))
        return np.asarray(np.clip(actions, self.action_space.low, self.action_space.high))

    def _bootstrap(self, rewards: np.ndarray, ended: np.ndarray, infos: list[dict[str, Any]]) -> None:
        """Add, in place, the discounted values of final observations to the rewards of truncated episodes."""
        truncated = [
            k
            for k, info in enumerate(infos)
            if info.get("TimeLimit.truncated", False) and info.get("terminal_observation") is not None
        ]
        if not truncated:
            return
        rows = [infos[k]["terminal_observation"] for k in truncated]
        by_key = isinstance(rows[0], dict)
        observations = {key: np.stack([row[key] for row in rows]) for key in rows[0]} if by_key else np.stack(rows)
        with torch.no_grad():
            values = self.policy.predict_values(self.policy.obs_to_tensor(observations)[0])
        rewards[ended[truncated]] += self.gamma * values.flatten().cpu().numpy()
