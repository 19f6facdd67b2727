"""Evaluation of any policy over full episodes; trainers share its results and its count of episodes.

Every replica contributes the same number of episodes, so that short episodes are not overrepresented.
"""

import contextlib
import dataclasses
import math
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np

from gpu_envs.backend.arrays import Array, Arrays, NumpyArrays, dtype_name
from gpu_envs.documented import documented
from gpu_envs.engine.batch import Batch
from gpu_envs.engine.options import check_num_envs
from gpu_envs.engine.random_actions import RandomActions
from gpu_envs.engine.roles import RoleInterface
from gpu_envs.making import make
from gpu_envs.progress import Progress
from gpu_envs.seeds import Seed, check_seed, derived_seed
from gpu_envs.specs.base import Spec
from gpu_envs.tables import Row, html_table, text_table

MAX_REPLICAS = 4096
"""Default limit of replicas in an evaluation."""

MAX_EPISODE_STEPS = 1_000_000
"""Limit of steps of an episode, for environments without a limit."""

_CHECK_INTERVAL = 32
"""Steps between two updates of the progress bar. On a GPU, only these steps wait for the device."""


@final
@documented
@dataclasses.dataclass(frozen=True)
class Estimate:
    """Mean and standard deviation of a quantity over episodes."""

    mean: float
    """Mean over episodes."""
    std: float
    """Standard deviation over episodes."""
    interval: float
    """Half the width of the mean's 95 % confidence interval."""

    @classmethod
    def of(cls, values: np.ndarray) -> "Estimate":
        """Return the estimate from the values of all episodes."""
        std = float(values.std(ddof=1, dtype=np.float64)) if values.size > 1 else 0.0
        return cls(float(values.mean(dtype=np.float64)), std, 1.96 * std / math.sqrt(values.size))


@final
@documented
@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of one role's episodes; of several agents, each episode counts once, with their mean."""

    mean: float
    """Mean return."""
    std: float
    """Standard deviation of the returns."""
    interval: float
    """Half the width of the mean return's 95 % confidence interval."""
    length: float
    """Mean length; for an agent that becomes inactive early, the steps until then."""
    length_interval: float
    """Half the width of the mean length's 95 % confidence interval."""
    episodes: int
    """Number of episodes."""
    metrics: Mapping[str, Estimate]
    """The environment's metrics, the same for all roles."""
    returns: np.ndarray = dataclasses.field(repr=False, compare=False)
    """Return of each episode, ``[episodes per replica, num_envs]``; with several agents ``[..., num_envs, agents]``."""
    lengths: np.ndarray = dataclasses.field(repr=False, compare=False)
    """Length of each episode, int32, in the shape of ``returns``."""

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers by name, without the arrays of all episodes, such as for JSON."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.compare}
        return fields | {"metrics": {name: dataclasses.asdict(metric) for name, metric in self.metrics.items()}}


@final
class Evaluations(dict[str, Evaluation]):
    """Evaluations by role, which print as a table. A single agent has the role ``agent``."""

    def __repr__(self) -> str:
        return text_table(evaluation_rows(self))

    def _repr_html_(self) -> str:
        return html_table(evaluation_rows(self), heading=True)


def evaluation_rows(results: Mapping[str, Any]) -> list[Row]:
    """Return a row of headings, and a row for each role's ``Evaluation`` and each metric."""
    rows: list[Row] = [("role", "mean return", "95 %", "std", "mean length", "episodes")]
    metrics: dict[str, Any] = {}  # the same for all roles
    for role, evaluation in results.items():
        rows.append((role, *_numbers(evaluation), f"{evaluation.length:.6g}", f"{evaluation.episodes:,}"))
        metrics |= evaluation.metrics
    return rows + [(name, *_numbers(metric), "", "") for name, metric in metrics.items()]


def _numbers(estimate: Any) -> Row:
    return f"{estimate.mean:.6g}", f"+-{estimate.interval:.3g}", f"{estimate.std:.4g}"


def evaluate(
    policy: Callable[..., Any] | None,
    env: str | Spec | Any,
    *,
    episodes: int = 100,
    num_envs: int | None = None,
    seed: Seed = 0,
    device: str = "auto",
    output: str | None = None,
    progress: bool | None = None,
    **params: Any,
) -> Evaluations:
    """Play full episodes with a policy; return the results by role.

    ``gpu_envs.training.evaluate`` evaluates the policies of a run.

    Args:
        policy: A callable that maps the environment's observations to actions for all replicas, in the environment's
            format: arrays, for several agents dicts of arrays by role. If the environment has action masks, it is
            called with observations and masks. None: random actions, among those that the masks allow.
        env: What ``gpu_envs.make`` takes: an id, a spec, or where a spec is defined. Or an environment made by it, also
            in wrappers; it is reset, and its own returns are counted, not those that wrappers change.
        episodes: Minimum number of episodes; each replica plays equally many, of at most 1,000,000 steps each.
        num_envs: Number of replicas; None: one per episode, up to 4,096.
        seed: Seed of the replicas and of random actions. The replicas' seeds are hashed from it, so that they are not
            the seeds of a training. Equal seeds give all policies the same initial states.
        device: As in ``gpu_envs.make``.
        output: Library of the observations, as in ``gpu_envs.make``; None: NumPy.
        progress: Whether to draw a progress bar; None: draw one in a terminal or a notebook, and otherwise write a line
            every 30 s.
        **params: Parameters of the environment and other arguments of ``gpu_envs.make``.

    Raises:
        TypeError: ``policy`` or its actions are not what the environment expects.
        ValueError: Arguments for ``make`` were given with an environment that is made already.
        RuntimeError: An episode does not end.

    Example:
        >>> evaluations = gpu_envs.evaluate(lambda observations: observations[:, 2] > 0, "CartPole-v1", episodes=100)
        >>> evaluations["agent"].mean
        42.08
    """
    if policy is not None and not callable(policy):
        raise TypeError(
            f"policy is {policy!r}; give a function of observations, or None for random actions. For a model of "
            f"Stable-Baselines3: {_SB3_POLICY}. For a run: gpu_envs.training.evaluate"
        )
    check_num_envs(episodes, "episodes")
    number = check_seed(seed)
    if number is None:
        raise TypeError("seed is None; give an integer or a numpy.random.SeedSequence")
    if isinstance(env, str | Spec):
        count = min(episodes, MAX_REPLICAS) if num_envs is None else num_envs
        options: dict[str, Any] = {"device": device, "output": output or "numpy", "autoreset_mode": "SameStep"}
        env = make(env, count, **options | params)
    else:
        _refuse_arguments(env, {"num_envs": num_envs, "output": output} | params, device)
    torch = sys.modules.get("torch")
    with torch.no_grad() if torch is not None else contextlib.nullcontext():
        act = RandomActions(env, number) if policy is None else policy
        return _evaluate(act, env, episodes, derived_seed(number, "evaluation"), progress)


_SB3_POLICY = "lambda observations: model.predict(observations, deterministic=True)[0]"


def _refuse_arguments(env: Any, arguments: Mapping[str, Any], device: str) -> None:
    """Raise an error if ``env`` is no environment of this package, or if arguments for ``make`` were given with it."""
    if not isinstance(getattr(env, "unwrapped", env), Batch):
        raise TypeError(
            f"env is {env!r}; give an id, a spec, where a spec is defined, or an environment made by gpu_envs.make"
        )
    given = [name for name, value in arguments.items() if value is not None] + ["device"] * (device != "auto")
    if given:
        raise ValueError(
            f"env is an environment that is made already, so it cannot be made with {', '.join(given)}: give an id, or "
            "give these arguments to gpu_envs.make"
        )


def call_policy(policy: Callable[..., Any], env: Batch[Any, Any], observations: Any) -> Any:
    """Return the policy's actions for observations and, if any, action masks; a TypeError about them gets a note."""
    masks = env.action_mask
    try:
        return policy(observations) if masks is None else policy(observations, masks)
    except TypeError as error:
        message = str(error)
        if env.output == "numpy" and "Tensor" in message and "numpy.ndarray" in message:
            error.add_note(
                "observations are NumPy arrays; for torch policies pass output='torch' to gpu_envs.evaluate, and to "
                "gpu_envs.replays.record an environment that was made with it"
            )
        elif masks is not None and re.search(r"takes .*positional arguments? but .* given", message):
            error.add_note("the environment has action masks, which the policy gets as its second argument")
        raise


def _evaluate(policy: Callable[..., Any], env: Any, episodes: int, seed: int, progress: bool | None) -> Evaluations:
    """Return the results of an environment's first episodes after a reset with ``seed``."""
    base: Batch[Any, Any] = getattr(env, "unwrapped", env)
    by_role, resets = RoleInterface(base), base.autoreset_mode.value == "Disabled"
    observations, _ = env.reset(seed=seed)

    def step(_: int) -> tuple[Array, Results]:
        nonlocal observations
        actions = call_policy(policy, base, observations)
        if actions is None or isinstance(actions, tuple):
            raise TypeError(
                f"the policy returned {'None' if actions is None else 'a tuple'}; it must return the actions of all "
                f"{base.num_envs} replicas" + (f". For Stable-Baselines3: {_SB3_POLICY}" if actions is not None else "")
            )
        observations, *_ = env.step(actions)
        ended = base.finished
        if resets and ended.any():
            observations, _ = env.reset(options={"reset_mask": ended})
        return ended, Results(
            by_role.split(base.episode_return), by_role.split(base.episode_length), base.episode_metrics
        )

    evaluations = play_episodes(base, episodes, step, progress)
    base.check()  # of actions on a GPU, invalid ones are reported only here
    return evaluations


@final
@dataclasses.dataclass(frozen=True)
class Results:
    """Results of each replica's last finished episode, which are valid where an episode has just ended."""

    returns: Mapping[str, Array]
    """Returns by role, ``[num_envs]``, or with several agents ``[num_envs, agents]``."""
    lengths: Mapping[str, Array]
    """Lengths by role, in the same shapes."""
    metrics: Mapping[str, Array]
    """Metrics by name, ``[num_envs]``."""


def play_episodes(
    env: Batch[Any, Any],
    episodes: int,
    step: Callable[[int], tuple[Array, Results]],
    progress: bool | None,
) -> Evaluations:
    """Step until each replica has finished its share of episodes; return the evaluations by role.

    Args:
        env: The environment, which has been reset.
        episodes: Minimum number of episodes, which all replicas share equally.
        step: A function that takes a step, given its number; it returns whether each replica's episode ended, bool
            ``[num_envs]``, and the results, in arrays of the environment's library.
        progress: As in ``evaluate``.
    """
    per_replica = -(-episodes // env.num_envs)
    tally = EpisodeTally(per_replica, env.num_envs, NumpyArrays() if env.output == "numpy" else env.simulation.arrays)
    bar = Progress(tally.episodes, None if progress is None else not progress, unit="episodes")
    start = time.perf_counter()
    with contextlib.closing(bar):
        for i in range(1, MAX_EPISODE_STEPS * per_replica + 1):
            tally.add(*step(i - 1))
            shows = i % _CHECK_INTERVAL == 0
            if not shows and env.device != "cpu":
                continue
            count = tally.count()
            if shows or count == tally.episodes:
                bar.update(count, count / (time.perf_counter() - start), tally.mean_returns(count))
            if count == tally.episodes:
                return tally.evaluations()
    raise RuntimeError(
        f"a replica of {env.env_spec.id} needs over {MAX_EPISODE_STEPS * per_replica:,} steps for {per_replica} "
        f"episode{'s' * (per_replica > 1)}: limit them by max_episode_steps"
    )


@final
class EpisodeTally:
    """Records the results of each replica's first episodes, in arrays of any library; adding waits for no device."""

    def __init__(self, per_replica: int, num_envs: int, arrays: Arrays) -> None:
        """Record the first ``per_replica`` episodes of each replica, in memory that ``arrays`` allocates."""
        self.episodes = per_replica * num_envs
        self._per_replica, self._arrays = per_replica, arrays
        self._done = arrays.zeros((num_envs,), "int64")
        self._replicas = arrays.from_numpy(np.arange(num_envs))
        self._records: dict[str, dict[str, Array]] = {}

    def add(self, ended: Array, results: Results) -> None:
        """Record a step: whether each replica's episode ended, bool ``[num_envs]``, and the results."""
        groups: dict[str, Mapping[str, Array]] = vars(results)
        if not self._records:
            self._records = {
                group: {name: self._zeros_like(values) for name, values in arrays.items()}
                for group, arrays in groups.items()
            }
        if isinstance(ended, np.ndarray) and not ended.any():
            return
        # steps without an end and surplus episodes are written to an additional slot, which is never read
        last = self._per_replica
        slot = last + (self._done.clip(None, last) - last) * ended
        for group, arrays in groups.items():
            for name, values in arrays.items():
                self._records[group][name][slot, self._replicas] = values
        self._done += ended

    def _zeros_like(self, values: Array) -> Array:
        return self._arrays.zeros((self._per_replica + 1, *values.shape), dtype_name(values))

    def count(self) -> int:
        """Return the number of recorded episodes."""
        return int(self._arrays.read(self._done).clip(None, self._per_replica).sum())

    def mean_returns(self, count: int) -> dict[str, float]:
        """Return the mean return of each role over the ``count`` recorded episodes; NaN without any."""
        weight = self.episodes / count if count else math.nan  # records of missing episodes are zero
        return {role: float(values[:-1].mean()) * weight for role, values in self._records["returns"].items()}

    def evaluations(self) -> Evaluations:
        """Return the evaluation of each role, once all replicas have played their episodes."""
        by_group = {
            group: {name: self._arrays.read(values[:-1]) for name, values in records.items()}
            for group, records in self._records.items()
        }
        metrics = {name: Estimate.of(values) for name, values in by_group["metrics"].items()}
        evaluations = Evaluations()
        for role, returns in by_group["returns"].items():
            lengths = by_group["lengths"][role]
            mean, length = _of_episodes(returns), _of_episodes(lengths)
            evaluations[role] = Evaluation(
                mean.mean,
                mean.std,
                mean.interval,
                length.mean,
                length.interval,
                self.episodes,
                metrics,
                returns,
                lengths,
            )
        return evaluations


def _of_episodes(values: np.ndarray) -> Estimate:
    """Return the estimate over episodes, each with the mean of its agents, from returns or lengths by episode."""
    return Estimate.of(values.reshape(*values.shape[:2], -1).mean(-1, dtype=np.float64))
