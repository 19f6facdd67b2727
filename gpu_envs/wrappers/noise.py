"""Noise for policies that are to leave the simulation: of observations and of actions, and pushes of the state.

What is random is a function of the replica's seed, the episode and the step, as all else: it is the same in a batch of
any size and on every device, ``reset(seed=...)`` brings it back, and it shares no numbers with the environment. Of
wrappers of one kind around one another, each draws numbers of its own.
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
from gpu_envs.codegen.observed import ELEMENT_TYPES
from gpu_envs.engine.results import Step
from gpu_envs.errors import did_you_mean
from gpu_envs.seeds import Seeds
from gpu_envs.vector_env import VectorEnv
from gpu_envs.wrappers.base import Begun, ObservationWrapper, Results, TorchWrapper
from gpu_envs.wrappers.blocks import ROWS, blocks_of, groups_of, program, rows_of_block
from gpu_envs.wrappers.rewards import REWARD_TYPES

Steps: TypeAlias = int | tuple[int, int]
"""A number of steps, or the least and the most of what is drawn for each replica and episode."""

_DRAWN = (
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
    *_DRAWN,
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
    *_DRAWN,
    ("const u8*", "ended", ("rows",)),
    ("int", "fields"),
    ("const Index*", "addresses", ("fields",)),
    ("const float*", "noise", ("fields",)),
)

HEADERS = ("wrappers/noise.cuh",)
CALLS = {"perturb": PERTURB_CALL, "push": PUSH_CALL}

DISTRIBUTIONS = ("normal", "uniform")
MOST_STEPS = 2**31 - 2
"""Of an interval; a delay has to be kept in memory."""


def prologue(stream: str, distribution: str, *, noisy: bool) -> str:
    """What ``noise.cuh`` is told before it."""
    constants = {"NOISY": noisy, "UNIFORM": distribution == "uniform"}
    told = ", ".join(f"{name} = {str(value).lower()}" for name, value in constants.items())
    return f"constexpr Stream STREAM = {stream};\nconstexpr bool {told};"


@final
class ObservationNoise(ObservationWrapper):
    """Gives observations late, and with noise: first the delay, then the noise.

    An episode's first observation stands for those before it, so that nothing of the episode before is seen.
    ``infos["final_obs"]`` is what would have been seen next: as late, and with noise of its own; so it has the same
    numbers in SameStep as the last observation of an episode in the other modes. A replica that waits for its reset
    sees the same as before. Observations are in a Box; with noise in one of float32, whose bounds the noise widens.
    """

    def __init__(
        self, env: VectorEnv | TorchWrapper, noise: Any = 0.0, *, distribution: str = "normal", delay: Steps = 0
    ) -> None:
        """Takes the environment, and compiles.

        Args:
            env: Made with ``output="torch"``, or wrapped already.
            noise: The deviation of normal noise, or the most of uniform noise: a number, or one for each feature.
            distribution: ``normal`` or ``uniform``.
            delay: By how many steps observations are late; of a pair ``(least, most)``, drawn for each replica and
                episode.
        """
        super().__init__(env)
        scale = _scale("noise", noise, env.single_observation_space.shape or ())
        space = self._box(env.single_observation_space, "observations", ["float32"] if scale.any() else ELEMENT_TYPES)
        if scale.any():
            most = np.where(scale > 0, scale if distribution == "uniform" else np.inf, 0).astype(np.float32)
            self._observe_in(spaces.Box(space.low - most, space.high + most, space.shape, np.float32))
        rows, dtype = self.num_envs, getattr(torch, space.dtype.name)
        self._written = self._empty(rows, *space.shape, dtype=dtype)
        self._written_final = self._empty(rows if self._same_step else 0, *space.shape, dtype=dtype)
        element, late = ELEMENT_TYPES[space.dtype.name], _steps("delay", delay, 0)
        kernel, blocks = _load(self, "perturb", "OBSERVATION_NOISE", element, space.shape, scale, distribution, late)
        groups = groups_of(math.prod(space.shape))
        before = self._empty(groups, rows, dtype=torch.int32) if self._same_step else None
        kernel.fill(low=None, high=None, initial=None, repeat=0.0, groups=groups, before=before)
        _keep(kernel, self._written, late[1])
        self._perturb: Final = kernel.bind(blocks)

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> Begun:
        observations, infos = self._env.reset(seed=seed, options=options)
        target = self._place(None, "observations", self._written)
        self._perturb(observations.data_ptr(), target.data_ptr(), None, None, 0, None, 0)
        return target, infos

    def _write(self, results: Results, target: torch.Tensor, final: tuple[int | None, ...]) -> None:
        self._perturb(results[0].data_ptr(), target.data_ptr(), *final)


@final
class ActionNoise(TorchWrapper):
    """Repeats actions at random, as Gymnasium's ``StickyAction`` does, makes them late, and adds noise, in this order.

    Each episode begins anew: no action of the one before is repeated or arrives in it. Actions are in a Box, a
    Discrete or a MultiDiscrete; noise is added in a Box alone, and what it is added to is clipped to the bounds. An
    action that is late or repeated may be one that ``infos["action_mask"]`` forbids by then. One that is out of range,
    or not a number, is refused in the step that it is given to, if it comes from the host.
    """

    def __init__(
        self,
        env: VectorEnv | TorchWrapper,
        noise: Any = 0.0,
        *,
        distribution: str = "normal",
        delay: Steps = 0,
        initial_action: Any = None,
        repeat_action_probability: float = 0.0,
    ) -> None:
        """Takes the environment, and compiles.

        Args:
            env: Made with ``output="torch"``, or wrapped already.
            noise: The deviation of normal noise, or the most of uniform noise: a number, or one for each element.
            distribution: ``normal`` or ``uniform``.
            delay: By how many steps actions are late; of a pair ``(least, most)``, drawn for each replica and episode.
            initial_action: What arrives until an episode's first action does. None: zeros, or what in the bounds is
                nearest to them; of a Discrete the first action.
            repeat_action_probability: With which a step takes the action of the step before in place of that given.
        """
        super().__init__(env)
        space = env.single_action_space
        whole = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
        bounds = None if whole else self._box(space, "actions")
        shape = space.shape or ()
        scale = _scale("noise", noise, shape)
        if whole and scale.any():
            raise TypeError(f"noise is {noise!r}, and actions are in {space}; it is for actions in a Box")
        if not 0 <= repeat_action_probability <= 1:
            raise ValueError(f"repeat_action_probability is {repeat_action_probability!r}; give 0 to 1")
        dtype = "int64" if whole else self._simulator.precision
        self._passed: Final = self._empty(self.num_envs, *shape, dtype=getattr(torch, dtype))
        element, late = {"int64": "i64", **REWARD_TYPES}[dtype], _steps("delay", delay, 0)
        kernel, blocks = _load(self, "perturb", "ACTION_NOISE", element, shape, scale, distribution, late)
        kernel.fill(
            low=None if bounds is None else self._row(bounds.low),
            high=None if bounds is None else self._row(bounds.high),
            initial=self._row(_first_action(space, initial_action)),
            repeat=float(repeat_action_probability),
            groups=1,
            before=None,
        )
        _keep(kernel, self._passed, max(late[1], int(repeat_action_probability > 0)))
        self._perturb: Final = kernel.bind(blocks)

    def step(self, actions: Any, *, out: Step | None = None) -> Results:
        """Steps every replica once, with what becomes of the actions; results as of the environment inside."""
        simulator = self._simulator
        simulator._check_ready("step")
        read = simulator._reader.read(actions)
        if read.host is not None:
            simulator._inspect(read)
        owner = np.require(read.owner, requirements="W") if isinstance(read.owner, np.ndarray) else read.owner
        given = torch.as_tensor(owner).to(self._passed.dtype)
        self._perturb(given.data_ptr(), self._passed.data_ptr(), None, None, 0, None, 0)
        return self._env.step(self._passed, out=out)

    def _row(self, values: Any) -> torch.Tensor:
        """One value for each element of an action, on the device."""
        row = torch.from_numpy(np.array(values).reshape(-1))
        return row.to(self._torch_device, self._passed.dtype)


@final
class RandomPushes(TorchWrapper):
    """Adds noise to fields of the state every so many steps: ``RandomPushes(env, {"x_dot": 0.5}, interval=(50, 100))``.

    The interval is drawn for each replica and episode. A push comes after its step, so the next observation is the
    first that shows it. An episode that has just ended or begun is not pushed.
    """

    def __init__(
        self,
        env: VectorEnv | TorchWrapper,
        pushes: Mapping[str, Any],
        *,
        interval: Steps,
        distribution: str = "normal",
    ) -> None:
        """Takes the environment, and compiles.

        Args:
            env: Made with ``output="torch"``, or wrapped already.
            pushes: For each of some fields of ``env.unwrapped.state``, the deviation of normal pushes, or the most of
                uniform ones: a number, or for a field that is an array one for each element.
            interval: Steps from push to push; of a pair ``(least, most)``, drawn for each replica and episode.
            distribution: ``normal`` or ``uniform``.
        """
        super().__init__(env)
        sim, every = self._simulator._sim, _steps("interval", interval, 1)
        scales: list[np.ndarray] = []
        addresses: list[int] = []
        for name, given in pushes.items():
            if name not in sim.state:
                raise ValueError(
                    f"the state has no {name!r}{did_you_mean(name, sim.state)}; its fields are {', '.join(sim.state)}"
                )
            field = sim.state[name]
            if not field.dtype.is_floating_point:
                raise TypeError(f"{name!r} of the state is {field.dtype}; pushes are of real numbers")
            scales.append(_scale(f"pushes[{name!r}]", given, tuple(field.shape[1:])).reshape(-1))
            size = self.num_envs * field.element_size()  # of one element, of all replicas
            addresses += [field.data_ptr() + size * j for j in range(len(scales[-1]))]
        if not addresses:
            raise ValueError(f"pushes is empty; name fields of the state: {', '.join(sim.state)}")
        scale, element = np.concatenate(scales), REWARD_TYPES[self._simulator.precision]
        kernel, blocks = _load(self, "push", "STATE_PUSH", element, (), scale, distribution, every)
        kernel.fill(
            ended=sim.buffers["ended"],
            fields=len(addresses),
            addresses=torch.tensor(addresses, device=self._torch_device),
            noise=torch.from_numpy(scale).to(self._torch_device),
        )
        self._push: Final = kernel.bind(blocks)

    def step(self, actions: Any, *, out: Step | None = None) -> Results:
        """Steps every replica once, and then pushes; arguments and results as of the environment inside."""
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
    """Compiles one of the kernels, and fills in what numbers are drawn from; how many blocks it has."""
    if distribution not in DISTRIBUTIONS:
        raise ValueError(
            f"distribution is {distribution!r}{did_you_mean(distribution, DISTRIBUTIONS)} Give 'normal' or 'uniform'"
        )
    rows, features, buffers = wrapper.num_envs, math.prod(shape), wrapper._simulator._sim.buffers
    each, noisy = rows_of_block(rows), bool(scale.any())
    told = prologue(stream, distribution, noisy=noisy)
    made = program(HEADERS, CALLS, wrapper._mode, features, each * features, told, {"Element": element})
    kernel = load_kernels(wrapper._backend, made)[list(CALLS).index(name)]
    number, inner = 0, wrapper.env
    while isinstance(inner, TorchWrapper):
        number, inner = number + (type(inner) is type(wrapper)), inner.env
    drawn = {part: buffers[part] for part in ("seeds", "episodes", "elapsed")}
    kernel.fill(rows=rows, rows_of_block=each, **drawn, number=number, least=steps[0], most=steps[1])
    if name == "perturb":
        kernel.fill(noise=torch.from_numpy(scale.reshape(-1)).to(wrapper._torch_device) if noisy else None)
    return kernel, blocks_of(rows, each) * groups_of(features)


def _keep(kernel: Kernel, like: torch.Tensor, back: int) -> None:
    """Gives a kernel memory for so many steps before the last, and that."""
    length = 1 << back.bit_length()
    shape = len(like), length, like[0].numel()
    kernel.fill(length=length, ring=torch.zeros(shape, dtype=like.dtype, device=like.device) if back else None)


def _scale(name: str, given: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Deviations, one for each feature."""
    found = np.asarray(to_numpy(given), np.float32)
    if found.shape not in {(), shape}:
        raise ValueError(f"{name} has shape {found.shape}; give a number, or {shape} of them")
    if not (np.isfinite(found).all() and (found >= 0).all()):
        raise ValueError(f"{name} is {given!r}; give finite numbers from 0 up")
    return np.broadcast_to(found, shape).copy()


def _steps(name: str, given: Steps, least: int) -> tuple[int, int]:
    """The least and the most of a number of steps."""
    wrong = f"{name} is {given!r}; give a whole number from {least} up, or a pair of them, the least first"
    try:
        low, high = map(operator.index, given if isinstance(given, tuple | list) else (given, given))
    except (TypeError, ValueError):
        raise TypeError(wrong) from None
    if not least <= low <= high <= MOST_STEPS:
        raise ValueError(wrong)
    return low, high


def _first_action(space: spaces.Space[Any], given: Any) -> np.ndarray:
    """What arrives before an episode's first action does."""
    if given is None:
        return np.clip(0, space.low, space.high) if isinstance(space, spaces.Box) else np.asarray(space.start)  # type: ignore[attr-defined]  # of both others
    found = np.asarray(to_numpy(given), space.dtype)
    if not space.contains(found if isinstance(space, spaces.Box | spaces.MultiDiscrete) else found[()]):
        raise ValueError(f"initial_action is {given!r}, which is no action of {space}")
    return found
