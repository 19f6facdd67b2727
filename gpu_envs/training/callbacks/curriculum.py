"""A curriculum: an environment that becomes harder while a policy learns."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

from gpu_envs.specs.distributions import Distribution, LogUniform, parse, stored
from gpu_envs.training.callbacks.base import Callback


class Stage(NamedTuple):
    """How long the present stage of a curriculum has lasted."""

    steps: int
    """Environment steps, summed over all replicas."""
    episodes: int
    """Lower bound of the number of episodes that have begun and ended in the stage."""


Condition = Callable[[Any, Stage], bool]
"""A function of an iteration's ``Report`` and the ``Stage``: whether the next stage begins."""


def return_above(value: float, role: str = "") -> Condition:
    """Return the condition that the mean return of 100 episodes of the stage is ``value`` or more.

    Args:
        value: The mean return.
        role: In a team, the role whose return counts.
    """
    name = f"{role}/return" if role else "return"
    return lambda report, stage: stage.episodes >= 100 and report[name] >= value


def after_steps(steps: int) -> Condition:
    """Return the condition that the stage has lasted for ``steps`` environment steps, summed over all replicas."""
    return lambda report, stage: stage.steps >= steps  # noqa: ARG005


def stages_between(first: str | Distribution, last: str | Distribution, count: int) -> list[Distribution]:
    """Return ``count`` distributions from ``first`` to ``last``, whose numbers change in equal steps.

    The numbers of a ``LogUniform`` distribution change by equal factors.

    Example:
        >>> from gpu_envs.training.callbacks import stages_between
        >>> stages_between("uniform:0.1:0.2", "uniform:0.1:0.6", 3)
        [Uniform(low=0.1, high=0.2), Uniform(low=0.1, high=0.4), Uniform(low=0.1, high=0.6)]
    """
    ends = [parse(end) for end in (first, last)]
    if not all(isinstance(end, Distribution) for end in ends) or ends[0].kind != ends[1].kind or count < 2:
        raise ValueError(
            f"got {stored(first)!r}, {stored(last)!r} and {count} stages; give two distributions of one kind, such as "
            "uniform:0.1:0.2 and uniform:0.1:0.6, and 2 stages or more"
        )
    pairs = list(zip(*(end.numbers for end in ends), strict=True))
    shares = [k / (count - 1) for k in range(count)]
    if isinstance(ends[0], LogUniform):
        rows = [[math.exp((1 - s) * math.log(a) + s * math.log(b)) for a, b in pairs] for s in shares[1:-1]]
    else:
        rows = [[(1 - s) * a + s * b for a, b in pairs] for s in shares[1:-1]]
    return [ends[0], *(type(ends[0])(*numbers) for numbers in rows), ends[1]]


@final
class Curriculum(Callback):
    """Gives a parameter of the environment the values or distributions of ``stages``, one after the other.

    The run starts with the first stage: give the same value or distribution in ``Run.params``. ``log.csv`` has the
    number of the stage, from 0, as ``curriculum/PARAMETER``.

    Example:
        >>> from gpu_envs.training import Run, train
        >>> from gpu_envs.training.callbacks import Curriculum, return_above, stages_between
        >>> stages = stages_between("uniform:0.09:0.11", "uniform:0.01:0.8", 6)
        >>> run = Run(env="CartPole-v1", params={"pole_mass": stages[0]}, num_envs=64, total_steps=8192)
        >>> result = train(run, callbacks=[Curriculum("pole_mass", stages, when=return_above(450))])
    """

    def __init__(self, parameter: str, stages: Sequence[Any], when: Condition | Sequence[Condition]) -> None:
        """Make a curriculum.

        Args:
            parameter: Name of the parameter.
            stages: Numbers, or distributions of one kind, as objects or texts.
            when: When the next stage begins: ``return_above(450)``, ``after_steps(1_000_000)``, your function,
                or a sequence of conditions, one for each stage but the last.
        """
        self.parameter, self.stages = parameter, [parse(stage) for stage in stages]
        if len(self.stages) < 2:
            raise ValueError(f"a curriculum of {parameter!r} has {len(self.stages)} stages; give 2 or more")
        kinds = {stage.kind if isinstance(stage, Distribution) else None for stage in self.stages}
        if len(kinds) > 1:
            raise ValueError(
                f"the stages of {parameter!r} are {', '.join(str(stored(stage)) for stage in self.stages)}; give only "
                "numbers, or only distributions of one kind (choices of equally many numbers)"
            )
        transitions = len(self.stages) - 1
        self._when = [when] * transitions if callable(when) else list(when)
        if len(self._when) != transitions:
            raise ValueError(f"{len(self.stages)} stages need {transitions} conditions; got {len(self._when)}")
        self.parameters = () if None not in kinds else (parameter,)
        self._stage, self._began, self._ended = 0, 0, 0

    def on_start(self, trainer: Any) -> None:
        """Give the parameter its value of the present stage; ValueError if it cannot change in this run."""
        trainer.set_params(**{self.parameter: self.stages[self._stage]})

    def on_iteration(self, trainer: Any, report: Any) -> None:
        """Begin the next stage, if its condition holds."""
        self._ended += report.ended
        replicas = trainer.config.replicas * trainer.config.gpus  # their present episodes may have begun before
        stage = Stage(report.steps - self._began, max(0, self._ended - replicas))
        if self._stage < len(self._when) and self._when[self._stage](report, stage):
            self._stage, self._began, self._ended = self._stage + 1, report.steps, 0
            trainer.set_params(**{self.parameter: self.stages[self._stage]})
        trainer.log(f"curriculum/{self.parameter}", self._stage)

    def state_dict(self) -> dict[str, int]:
        """Return the stage, and when it began."""
        return {"stage": self._stage, "began": self._began, "ended": self._ended}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore a result of ``state_dict``."""
        self._stage, self._began, self._ended = state["stage"], state["began"], state["ended"]
