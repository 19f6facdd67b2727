"""Base classes of the wrappers."""

import abc
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorWrapper
from gymnasium.vector.utils import batch_space

from gpu_envs.backend.arrays import library_of
from gpu_envs.engine.results import Step, as_step
from gpu_envs.multi_agent_env import MultiAgentEnv
from gpu_envs.seeds import Seeds
from gpu_envs.vector_env import VectorEnv

StepResults = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]
"""Observations, rewards, terminations, truncations and infos."""

ResetResults = tuple[torch.Tensor, dict[str, Any]]
"""Observations and infos."""


class TorchWrapper(VectorWrapper[Any, Any, Any, Any, Any]):
    """Base class for wrappers of a ``gpu_envs.VectorEnv`` with torch output.

    Wrappers of rewards, actions and episodes pass Dict observations through; wrappers of observations refuse them.

    Calls of ``set_state``, ``stagger`` and ``rollout`` on ``unwrapped`` bypass the wrappers: their statistics, stacks
    and delays are not updated.

    Attributes:
        device: ``cpu`` or ``cuda:N``.
        output: ``torch``.
        autoreset_mode: Gymnasium's enum.
    """

    _simulator: VectorEnv

    def __init__(self, env: "VectorEnv | TorchWrapper") -> None:
        """Wrap an environment made with ``output="torch"``, or another wrapper."""
        name = type(self).__name__
        if isinstance(env, TorchWrapper):
            simulator = env._simulator
        elif isinstance(env, VectorEnv):
            simulator = env
        elif isinstance(env, MultiAgentEnv):
            raise TypeError(f"{name} wraps single-agent environments only; {env!r} has several agents: leave it out")
        else:
            raise TypeError(
                f"{name} wraps environments made by gpu_envs.make(..., output='torch') and wrappers of them; "
                f"got {type(env).__name__}: make it with gpu_envs.make, or use gymnasium.wrappers.vector if it has it"
            )
        if simulator.output != "torch":
            raise ValueError(
                f"{name} needs torch tensors, but {simulator!r} has output={simulator.output!r}: make it with "
                f"output='torch', or use gymnasium.wrappers.vector with output='numpy' if it has {name}"
            )
        super().__init__(env)
        self._env: Final = env
        self._simulator = simulator
        self._backend: Final = simulator.backend
        self._copy: Final = simulator.returns_copies
        self.device: Final = simulator.device
        self.output: Final = simulator.output
        self.autoreset_mode: Final = simulator.autoreset_mode
        self._torch_device: Final = torch.device(self.device)
        self._mode: Final = self.autoreset_mode.value
        self._same_step: Final = self.autoreset_mode is AutoresetMode.SAME_STEP

    def check(self) -> None:
        """Raise the first ActionError of earlier steps with actions on the device; see ``VectorEnv.check``."""
        self._simulator.check()

    def step(self, actions: Any, *, out: Step | None = None) -> StepResults:
        """Step every replica once.

        Args:
            actions: One action for each replica.
            out: Tensors to write results into. They are returned in place of the wrapper's buffers.

        Returns:
            Observations, rewards, terminations, truncations and infos.
        """
        return self._env.step(actions, out=out)

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> ResetResults:
        """Reset all replicas, or the replicas of ``options["reset_mask"]``; see ``VectorEnv.reset``."""
        return self._env.reset(seed=seed, options=options)

    def __reduce__(self) -> Any:
        """Refuse copies: the kernels hold the addresses of this wrapper's buffers."""
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled: copy env.unwrapped, wrap the copy, and transfer "
            "statistics with state_dict() and load_state_dict()"
        )

    # --- for subclasses ---

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self._torch_device)

    def _check_box(self, space: spaces.Space[Any], what: str, dtypes: Collection[str] = ()) -> spaces.Box:
        """Return the space, or raise a TypeError unless it is a Box with an allowed dtype (empty: any)."""
        if not isinstance(space, spaces.Box) or (dtypes and space.dtype.name not in dtypes):
            dtype = f" of {' or '.join(dtypes)}" if dtypes else ""
            name = type(self).__name__
            raise TypeError(
                f"{name} needs {what} in a Box{dtype}; the wrapped environment has {space}: leave {name} out"
            )
        return space

    def _set_observation_space(self, space: spaces.Space[Any]) -> None:
        self.single_observation_space = space
        self.observation_space = batch_space(space, self.num_envs)

    def _set_action_space(self, space: spaces.Space[Any]) -> None:
        self.single_action_space = space
        self.action_space = batch_space(space, self.num_envs)

    def _out_tensor(self, out: Step | None, name: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
        """Return ``out.<name>`` after checking its shape and dtype; None if the caller gave no such tensor."""
        tensor = getattr(as_step(out), name) if out is not None else None
        if tensor is None:
            return None
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"out.{name} is {type(tensor).__name__}; give a torch tensor to {type(self).__name__}")
        self._simulator._sim.arrays.checked_address(f"out.{name}", tensor, tuple(shape), (dtype,))
        return tensor

    def _target(self, out: Step | None, name: str, buffer: torch.Tensor) -> torch.Tensor:
        """Return the tensor to write to: the caller's tensor, a new tensor for ``copy=True``, or ``buffer``."""
        tensor = self._out_tensor(out, name, buffer.shape, buffer.dtype)
        if tensor is not None:
            return tensor
        return torch.empty_like(buffer) if self._copy else buffer

    def _reset_mask(self, options: Mapping[str, Any] | None) -> torch.Tensor | None:
        """Return ``options["reset_mask"]`` on the device, or None if all replicas are reset.

        Call it after the environment's reset, which checks the mask.
        """
        mask = (options or {}).get("reset_mask")
        if mask is None:
            return None
        if not isinstance(mask, torch.Tensor):
            on_host = library_of(mask) == "numpy"
            mask = torch.from_numpy(np.array(mask)) if on_host else torch.utils.dlpack.from_dlpack(mask)
        return mask.to(self._torch_device).contiguous()


class ObservationWrapper(TorchWrapper, abc.ABC):
    """Base class for wrappers that write transformed observations and final observations into buffers."""

    _observations: torch.Tensor
    _final_observations: torch.Tensor

    @abc.abstractmethod
    def _transform(self, results: StepResults, target: torch.Tensor, final: tuple[int | None, ...]) -> None:
        """Write the transformed observations of a step.

        Args:
            results: Results of the wrapped environment.
            target: Tensor to write observations into.
            final: Arguments of the kernel in SameStep mode: addresses of ``_final_obs`` and ``final_obs``, row stride
                of ``final_obs``, address to write to, and 1 to fill the rows without a final observation with zeros.
        """

    def step(self, actions: Any, *, out: Step | None = None) -> StepResults:
        """Step every replica once; transformed observations go to ``out.observations`` and ``out.final_obs``."""
        target = self._target(out, "observations", self._observations)
        if not self._same_step:
            results = self._env.step(actions, out=without(out, "observations"))
            self._transform(results, target, (None, None, 0, None, 0))
            return target, *results[1:]
        final_target = self._target(out, "final_obs", self._final_observations)
        results = self._env.step(actions, out=without(out, "observations", "final_obs"))
        infos = results[4]
        fill = self._copy and (out is None or out.final_obs is None)
        raw = infos["final_obs"]  # not contiguous: each row is a field of a larger record
        final = (infos["_final_obs"].data_ptr(), raw.data_ptr(), raw.stride(0), final_target.data_ptr(), int(fill))
        self._transform(results, target, final)
        infos["final_obs"] = final_target
        return target, *results[1:]


def without(out: Step | None, *names: str) -> Step | None:
    """Return ``out`` without the named results, or None if nothing is left."""
    if out is None:
        return None
    rest = dataclasses.replace(as_step(out), **dict.fromkeys(names))
    return rest if any(getattr(rest, field.name) is not None for field in dataclasses.fields(rest)) else None
