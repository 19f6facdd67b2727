"""Wrappers that add noise and delays to observations and actions, and random pushes to the state.

The noise depends on the replica's seed, the episode and the step only: it does not depend on the number of replicas or
on the device, and ``reset(seed=...)`` reproduces it. It is independent of the environment's random numbers. Nested
wrappers of the same class draw independent noise.
"""

import math
import operator
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, final

import numpy as np
import torch
from gymnasium import spaces

from gpu_envs.backend.arrays import to_numpy
from gpu_envs.backend.launcher import Kernel, load_kernels
from gpu_envs.backend.structs import Struct
from gpu_envs.codegen.observations import ELEMENT_TYPES
from gpu_envs.engine.results import Step
from gpu_envs.errors import did_you_mean
from gpu_envs.seeds import Seeds
from gpu_envs.vector_env import VectorEnv
from gpu_envs.wrappers.base import ObservationWrapper, ResetResults, StepResults, TorchWrapper
from gpu_envs.wrappers.blocks import ROWS, num_blocks, num_groups, program, rows_per_block
from gpu_envs.wrappers.rewards import REWARD_TYPES

StepRange: TypeAlias = int | tuple[int, int]
"""Number of steps, or a range ``(minimum, maximum)`` to draw it from for each replica and episode."""

_RANDOM = (
    ("const u64*", "seeds", ("rows",)),
    ("const int*", "episodes", ("rows",)),
    ("const int*", "elapsed", ("rows",)),
    ("int", "number"),
    ("int", "least"),
    ("int", "most"),
)

PERTURB_CALL = Struct.of(
    "PerturbCall",
    "float",
    *ROWS,
    *_RANDOM,
    ("const float*?", "noise", ("features",)),
    ("const Element*?", "low", ("features",)),
    ("const Element*?", "high", ("features",)),
    ("const Element*?", "initial", ("features",)),
    ("float", "repeat"),
    ("int", "length"),
    ("Element*?", "ring", ("rows", "length", "features")),
    ("int*?", "before", ("groups", "rows")),
    ("const Element*", "given"),
    ("Element*", "target"),
    ("const u8*", "finished"),
    ("const Element*", "final_given"),
    ("Index", "final_stride"),
    ("Element*", "final_target"),
    ("int", "fill"),
)

PUSH_CALL = Struct.of(
    "PushCall",
    "float",
    *ROWS,
    *_RANDOM,
    ("const u8*", "ended", ("rows",)),
    ("int", "fields"),
    ("const Index*", "addresses", ("fields",)),
    ("const float*", "noise", ("fields",)),
)

HEADERS = ("wrappers/noise.cuh",)
CALLS = {"perturb": PERTURB_CALL, "push": PUSH_CALL}

DISTRIBUTIONS = ("normal", "uniform")
MAX_STEPS = 2**31 - 2
"""Largest interval. (Memory limits delays: actions or observations of all delayed steps are stored.)"""


def prologue(stream: str, distribution: str, *, noisy: bool) -> str:
    """Return C++ definitions of the constants that ``noise.cuh`` needs before its code."""
    flags = {"NOISY": noisy, "UNIFORM": distribution == "uniform"}
    definitions = ", ".join(f"{name} = {str(value).lower()}" for name, value in flags.items())
    return f"constexpr Stream STREAM = {stream};\nconstexpr bool {definitions};"


@final
class ObservationNoise(ObservationWrapper):
    """Delay observations, then add noise to them.

    Until the delay has passed, an episode's first observation is repeated, so that no observation of the previous
    episode is seen. ``infos["final_obs"]`` is delayed and noisy too: it has the same values in SameStep mode as the
    last observation of an episode in the other modes. A replica that waits for a reset repeats its last observation.
    The observation space must be a Box, with noise a Box of float32; noise widens its bounds.
    """

    def __init__(
        self, env: VectorEnv | TorchWrapper, noise: Any = 0.0, *, distribution: str = "normal", delay: StepRange = 0
    ) -> None:
        """Wrap the environment and compile the kernel.

        Args:
            env: An environment made with ``output="torch"``, or a wrapper of one.
            noise: Standard deviation of normal noise, or maximum of uniform noise: a number, or one for each feature.
            distribution: ``normal`` or ``uniform``.
            delay: Delay in steps, or a range ``(minimum, maximum)`` to draw it from for each replica and episode.
        """
        super().__init__(env)
        scale = _check_scale("noise", noise, env.single_observation_space.shape or ())
        dtypes = ["float32"] if scale.any() else ELEMENT_TYPES
        space = self._check_box(env.single_observation_space, "observations", dtypes)
        if scale.any():
            margin = np.where(scale > 0, scale if distribution == "uniform" else np.inf, 0).astype(np.float32)
            self._set_observation_space(spaces.Box(space.low - margin, space.high + margin, space.shape, np.float32))
        rows, dtype = self.num_envs, getattr(torch, space.dtype.name)
        self._observations = self._zeros(rows, *space.shape, dtype=dtype)
        self._final_observations = self._zeros(rows if self._same_step else 0, *space.shape, dtype=dtype)
        element, delays = ELEMENT_TYPES[space.dtype.name], _check_steps("delay", delay, 0)
        kernel, blocks = _load(self, "perturb", "OBSERVATION_NOISE", element, space.shape, scale, distribution, delays)
        groups = num_groups(math.prod(space.shape))
        before = self._zeros(groups, rows, dtype=torch.int32) if self._same_step else None
        kernel.fill(low=None, high=None, initial=None, repeat=0.0, groups=groups, before=before)
        _allocate_history(kernel, self._observations, delays[1])
        self._perturb: Final = kernel.bind(blocks)

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> ResetResults:
        """Reset replicas; return all observations with delay and noise (the same as before where not reset)."""
        observations, infos = self._env.reset(seed=seed, options=options)
        target = self._target(None, "observations", self._observations)
        self._perturb(observations.data_ptr(), target.data_ptr(), None, None, 0, None, 0)
        return target, infos

    def _transform(self, results: StepResults, target: torch.Tensor, final: tuple[int | None, ...]) -> None:
        self._perturb(results[0].data_ptr(), target.data_ptr(), *final)


@final
class ActionNoise(TorchWrapper):
    """Repeat actions at random like Gymnasium's ``StickyAction``, then delay them, then add noise.

    Actions are never repeated or delayed into the next episode. The action space must be a Box, Discrete or
    MultiDiscrete; noise needs a Box, and noisy actions are clipped to its bounds. When a delayed or repeated action
    arrives, ``infos["action_mask"]`` may forbid it by then. Actions in host memory that are NaN or out of range raise
    an error in the step that receives them, not in the step that they would arrive in.
    """

    def __init__(
        self,
        env: VectorEnv | TorchWrapper,
        noise: Any = 0.0,
        *,
        distribution: str = "normal",
        delay: StepRange = 0,
        initial_action: Any = None,
        repeat_action_probability: float = 0.0,
    ) -> None:
        """Wrap the environment and compile the kernel.

        Args:
            env: An environment made with ``output="torch"``, or a wrapper of one.
            noise: Standard deviation of normal noise, or maximum of uniform noise: a number, or one for each element.
            distribution: ``normal`` or ``uniform``.
            delay: Delay in steps, or a range ``(minimum, maximum)`` to draw it from for each replica and episode.
            initial_action: Action to take until an episode's first action arrives. None takes zeros, clipped to the
                bounds, or the first discrete action.
            repeat_action_probability: Probability that a step repeats the action of the previous step.
        """
        super().__init__(env)
        space = env.single_action_space
        discrete = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
        bounds = None if discrete else self._check_box(space, "actions")
        shape = space.shape or ()
        scale = _check_scale("noise", noise, shape)
        if discrete and scale.any():
            raise TypeError(f"noise is {noise!r}, but the action space is {space}; noise needs a Box: leave it out")
        if not 0 <= repeat_action_probability <= 1:
            raise ValueError(f"repeat_action_probability is {repeat_action_probability!r}; give 0 to 1")
        dtype = "int64" if discrete else self._simulator.precision
        self._noisy_actions: Final = self._zeros(self.num_envs, *shape, dtype=getattr(torch, dtype))
        element, delays = {"int64": "i64", **REWARD_TYPES}[dtype], _check_steps("delay", delay, 0)
        kernel, blocks = _load(self, "perturb", "ACTION_NOISE", element, shape, scale, distribution, delays)
        kernel.fill(
            low=None if bounds is None else self._flat_action(bounds.low),
            high=None if bounds is None else self._flat_action(bounds.high),
            initial=self._flat_action(_check_initial_action(space, initial_action)),
            repeat=float(repeat_action_probability),
            groups=1,
            before=None,
        )
        _allocate_history(kernel, self._noisy_actions, max(delays[1], int(repeat_action_probability > 0)))
        self._perturb: Final = kernel.bind(blocks)

    def step(self, actions: Any, *, out: Step | None = None) -> StepResults:
        """Step every replica once with the actions after repetition, delay and noise."""
        simulator = self._simulator
        simulator._check_ready("step")
        read = simulator._reader.read(actions)
        if read.host is not None:
            simulator._check_actions(read)
        owner = np.require(read.owner, requirements="W") if isinstance(read.owner, np.ndarray) else read.owner
        clean = torch.as_tensor(owner).to(self._noisy_actions.dtype)
        self._perturb(clean.data_ptr(), self._noisy_actions.data_ptr(), None, None, 0, None, 0)
        return self._env.step(self._noisy_actions, out=out)

    def _flat_action(self, action: Any) -> torch.Tensor:
        flat = torch.from_numpy(np.array(action).reshape(-1))
        return flat.to(self._torch_device, self._noisy_actions.dtype)


@final
class RandomPushes(TorchWrapper):
    """Add noise to state fields at intervals: ``RandomPushes(env, {"x_dot": 0.5}, interval=(50, 100))``.

    A push follows its step: the next observation is the first to show it. Steps that end or start an episode have no
    push.
    """

    def __init__(
        self,
        env: VectorEnv | TorchWrapper,
        pushes: Mapping[str, Any],
        *,
        interval: StepRange,
        distribution: str = "normal",
    ) -> None:
        """Wrap the environment and compile the kernel.

        Args:
            env: An environment made with ``output="torch"``, or a wrapper of one.
            pushes: Standard deviation of normal pushes, or maximum of uniform pushes, for each pushed field of
                ``env.unwrapped.state``: a number, or an array with the field's shape.
            interval: Steps between pushes, or a range ``(minimum, maximum)`` to draw them from.
            distribution: ``normal`` or ``uniform``.
        """
        super().__init__(env)
        sim, intervals = self._simulator._sim, _check_steps("interval", interval, 1)
        scales: list[np.ndarray] = []
        addresses: list[int] = []
        for name, push in pushes.items():
            if name not in sim.state:
                raise ValueError(
                    f"the state has no {name!r}{did_you_mean(name, sim.state)}; its fields are {', '.join(sim.state)}"
                )
            field = sim.state[name]
            if not field.dtype.is_floating_point:
                raise TypeError(f"the state field {name!r} is {field.dtype}; give a field of floating-point numbers")
            scales.append(_check_scale(f"pushes[{name!r}]", push, tuple(field.shape[1:])).reshape(-1))
            column_bytes = self.num_envs * field.element_size()  # replicas are the innermost dimension
            addresses += [field.data_ptr() + column_bytes * j for j in range(len(scales[-1]))]
        if not addresses:
            raise ValueError(f"pushes is empty; give fields of the state: {', '.join(sim.state)}")
        scale, element = np.concatenate(scales), REWARD_TYPES[self._simulator.precision]
        kernel, blocks = _load(self, "push", "STATE_PUSH", element, (), scale, distribution, intervals)
        kernel.fill(
            ended=sim.buffers["ended"],
            fields=len(addresses),
            addresses=torch.tensor(addresses, device=self._torch_device),
            noise=torch.from_numpy(scale).to(self._torch_device),
        )
        self._push: Final = kernel.bind(blocks)

    def step(self, actions: Any, *, out: Step | None = None) -> StepResults:
        """Step every replica once, then add the pushes that are due to the state; results do not show them yet."""
        results = self._env.step(actions, out=out)
        self._push()
        return results


def _load(
    wrapper: TorchWrapper,
    name: str,
    stream: str,
    element: str,
    shape: tuple[int, ...],
    scale: np.ndarray,
    distribution: str,
    steps: tuple[int, int],
) -> tuple[Kernel, int]:
    """Compile a kernel and set its sizes and random counters; return it with its number of blocks."""
    if distribution not in DISTRIBUTIONS:
        raise ValueError(
            f"distribution is {distribution!r}{did_you_mean(distribution, DISTRIBUTIONS)} Give 'normal' or 'uniform'"
        )
    rows, features, buffers = wrapper.num_envs, math.prod(shape), wrapper._simulator._sim.buffers
    per_block, noisy = rows_per_block(rows), bool(scale.any())
    constants = prologue(stream, distribution, noisy=noisy)
    source = program(HEADERS, CALLS, wrapper._mode, features, per_block * features, constants, {"Element": element})
    kernel = load_kernels(wrapper._backend, source)[list(CALLS).index(name)]
    number, inner = 0, wrapper.env
    while isinstance(inner, TorchWrapper):
        number, inner = number + (type(inner) is type(wrapper)), inner.env
    counters = {counter: buffers[counter] for counter in ("seeds", "episodes", "elapsed")}
    kernel.fill(rows=rows, rows_of_block=per_block, **counters, number=number, least=steps[0], most=steps[1])
    if name == "perturb":
        kernel.fill(noise=torch.from_numpy(scale.reshape(-1)).to(wrapper._torch_device) if noisy else None)
    return kernel, num_blocks(rows, per_block) * num_groups(features)


def _allocate_history(kernel: Kernel, rows: torch.Tensor, steps: int) -> None:
    """Allocate the ring buffer with the rows of the last ``steps`` steps and of the current step."""
    length = 1 << steps.bit_length()
    shape = len(rows), length, rows[0].numel()
    kernel.fill(length=length, ring=torch.zeros(shape, dtype=rows.dtype, device=rows.device) if steps else None)


def _check_scale(name: str, scale: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return the scale of the noise as float32 of this shape; raise a ValueError unless finite and 0 or more."""
    array = np.asarray(to_numpy(scale), np.float32)
    if array.shape not in {(), shape}:
        raise ValueError(f"{name} has shape {array.shape}; give a number or an array of shape {shape}")
    if not (np.isfinite(array).all() and (array >= 0).all()):
        raise ValueError(f"{name} is {scale!r}; give finite numbers of 0 or more")
    return np.broadcast_to(array, shape).copy()


def _check_steps(name: str, steps: StepRange, minimum: int) -> tuple[int, int]:
    """Return a range of steps, the same number twice for an int; raise an error below ``minimum`` or if reversed."""
    message = f"{name} is {steps!r}; give an integer from {minimum} to {MAX_STEPS}, or a range (minimum, maximum)"
    try:
        low, high = map(operator.index, steps if isinstance(steps, tuple | list) else (steps, steps))
    except (TypeError, ValueError):
        raise TypeError(message) from None
    if not minimum <= low <= high <= MAX_STEPS:
        raise ValueError(message)
    return low, high


def _check_initial_action(space: spaces.Space[Any], action: Any) -> np.ndarray:
    """Return the initial action as an array, for None the default; raise a ValueError if it is not in the space."""
    if action is None:
        return np.clip(0, space.low, space.high) if isinstance(space, spaces.Box) else np.asarray(space.start)  # type: ignore[attr-defined]  # Discrete and MultiDiscrete have it
    array = np.asarray(to_numpy(action), space.dtype)
    if not space.contains(array if isinstance(space, spaces.Box | spaces.MultiDiscrete) else array[()]):
        raise ValueError(f"initial_action is {action!r}; give an action in {space}, or None")
    return array
