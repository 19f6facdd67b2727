"""What all wrappers share: which environments they take, whose memory they return, what ``out`` and masks mean."""

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

Results = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]
"""Observations, rewards, terminations, truncations and infos."""

Begun = tuple[torch.Tensor, dict[str, Any]]
"""Observations and infos."""


class TorchWrapper(VectorWrapper[Any, Any, Any, Any, Any]):
    """A wrapper around a ``gpu_envs.VectorEnv`` with torch output, or around another of these wrappers.

    Observations that are a Dict pass wrappers of rewards, actions and episodes unchanged; others refuse them.

    What is done to the environment inside past the wrapper (``set_state``, ``stagger``, ``rollout`` of ``unwrapped``)
    it does not know of.

    Attributes:
        device: ``cpu`` or ``cuda:N``.
        output: ``torch``.
        autoreset_mode: Gymnasium's enum.
    """

    _simulator: VectorEnv

    def __init__(self, env: "VectorEnv | TorchWrapper") -> None:
        """Takes an environment made with ``output="torch"``, or wrapped already."""
        name = type(self).__name__
        if isinstance(env, TorchWrapper):
            simulator = env._simulator
        elif isinstance(env, VectorEnv):
            simulator = env
        elif isinstance(env, MultiAgentEnv):
            raise TypeError(
                f"{name} wraps environments of one agent, and {env!r} has a team, whose results are by role"
            )
        else:
            raise TypeError(
                f"{name} wraps what gpu_envs.make(..., output='torch') gives, and wrappers of gpu_envs.wrappers; "
                f"got {type(env).__name__}. Gymnasium's own wrappers are for others"
            )
        if simulator.output != "torch":
            raise ValueError(
                f"{name} works on torch tensors, and {simulator!r} gives {simulator.output}: make it with "
                "output='torch', or use Gymnasium's own wrappers with output='numpy'"
            )
        super().__init__(env)
        self._env: Final = env
        self._simulator = simulator
        self._backend: Final = simulator.backend
        self._fresh: Final = simulator.gives_copies
        self.device: Final = simulator.device
        self.output: Final = simulator.output
        self.autoreset_mode: Final = simulator.autoreset_mode
        self._torch_device: Final = torch.device(self.device)
        self._mode: Final = self.autoreset_mode.value
        self._same_step: Final = self.autoreset_mode is AutoresetMode.SAME_STEP

    def check(self) -> None:
        """Raises the first ActionError of the steps whose actions came from the device, as of ``VectorEnv``."""
        self._simulator.check()

    def step(self, actions: Any, *, out: Step | None = None) -> Results:
        """Steps every replica once.

        Args:
            actions: One for each replica.
            out: Tensors to write results into; they are returned in place of the wrapper's own.

        Returns:
            Observations, rewards, terminations, truncations and infos.
        """
        return self._env.step(actions, out=out)

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> Begun:
        """Begins new episodes in all replicas, or in those of ``options["reset_mask"]``; as of ``VectorEnv``."""
        return self._env.reset(seed=seed, options=options)

    def __reduce__(self) -> Any:
        """Wrappers are not copied: their kernels point into memory of their own."""
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled; do so with the environment inside, wrap it anew, and "
            "hand over statistics with state_dict() and load_state_dict()"
        )

    # --- for those who derive from it ---

    def _empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Memory on the device, of zeros."""
        return torch.zeros(shape, dtype=dtype, device=self._torch_device)

    def _box(self, space: spaces.Space[Any], what: str, dtypes: Collection[str] = ()) -> spaces.Box:
        """A space, once it is a box, of one of these dtypes if any are named."""
        if not isinstance(space, spaces.Box) or (dtypes and space.dtype.name not in dtypes):
            of = f" of {' or '.join(dtypes)}" if dtypes else ""
            several = ", which is of several arrays" if isinstance(space, spaces.Dict) else ""
            raise TypeError(
                f"{type(self).__name__} needs {what} in a Box{of}; {self._simulator!r} has {space}{several}"
            )
        return space

    def _observe_in(self, space: spaces.Space[Any]) -> None:
        """Sets what the observations are from here on."""
        self.single_observation_space = space
        self.observation_space = batch_space(space, self.num_envs)

    def _act_in(self, space: spaces.Space[Any]) -> None:
        """Sets what the actions are from here on."""
        self.single_action_space = space
        self.action_space = batch_space(space, self.num_envs)

    def _given(self, out: Step | None, name: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
        """The tensor that the caller gave for a result, once it fits; None: there is none."""
        given = getattr(as_step(out), name) if out is not None else None
        if given is None:
            return None
        if not isinstance(given, torch.Tensor):
            raise TypeError(f"out.{name} is {type(given).__name__}; {type(self).__name__} writes into torch tensors")
        self._simulator._sim.arrays.checked_address(f"out.{name}", given, tuple(shape), (dtype,))
        return given

    def _place(self, out: Step | None, name: str, live: torch.Tensor) -> torch.Tensor:
        """Where a result goes: into what the caller gave, into fresh memory, or into the wrapper's own."""
        given = self._given(out, name, live.shape, live.dtype)
        if given is not None:
            return given
        return torch.empty_like(live) if self._fresh else live

    def _mask(self, options: Mapping[str, Any] | None) -> torch.Tensor | None:
        """``reset_mask`` on the device, once the environment has taken it; None: all replicas were reset."""
        mask = (options or {}).get("reset_mask")
        if mask is None:
            return None
        if not isinstance(mask, torch.Tensor):
            on_host = library_of(mask) == "numpy"
            mask = torch.from_numpy(np.array(mask)) if on_host else torch.utils.dlpack.from_dlpack(mask)
        return mask.to(self._torch_device).contiguous()


class ObservationWrapper(TorchWrapper, abc.ABC):
    """A wrapper that writes observations, and those that end episodes, into memory of its own."""

    _written: torch.Tensor
    _written_final: torch.Tensor

    @abc.abstractmethod
    def _write(self, results: Results, target: torch.Tensor, final: tuple[int | None, ...]) -> None:
        """Writes what the wrapper makes of a step.

        Args:
            results: Of the environment inside.
            target: Where observations go.
            final: For the kernel in SameStep: addresses of the mask of ends and of the final observations, the stride
                of their rows, the address where they go, and whether the other rows become zeros.
        """

    def step(self, actions: Any, *, out: Step | None = None) -> Results:
        """Steps every replica once; ``out.observations`` and ``out.final_obs`` receive what the wrapper makes."""
        target = self._place(out, "observations", self._written)
        if not self._same_step:
            results = self._env.step(actions, out=without(out, "observations"))
            self._write(results, target, (None, None, 0, None, 0))
            return target, *results[1:]
        final_target = self._place(out, "final_obs", self._written_final)
        results = self._env.step(actions, out=without(out, "observations", "final_obs"))
        infos = results[4]
        fill = self._fresh and (out is None or out.final_obs is None)
        raw = infos["final_obs"]  # rows of a record of the simulator's: they need not touch
        final = (infos["_final_obs"].data_ptr(), raw.data_ptr(), raw.stride(0), final_target.data_ptr(), int(fill))
        self._write(results, target, final)
        infos["final_obs"] = final_target
        return target, *results[1:]


def without(out: Step | None, *names: str) -> Step | None:
    """What is left for the environment inside when a wrapper writes some of the results itself."""
    if out is None:
        return None
    rest = dataclasses.replace(as_step(out), **dict.fromkeys(names))
    return rest if any(getattr(rest, field.name) is not None for field in dataclasses.fields(rest)) else None
