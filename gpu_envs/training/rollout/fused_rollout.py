"""A horizon in one launch, where one policy of small networks acts in single-agent environments on a GPU."""

from collections.abc import Callable, Collection, Mapping
from typing import Final, final

from gpu_envs.backend.arrays import dtype_of
from gpu_envs.backend.program import Program
from gpu_envs.codegen import SingleLayout
from gpu_envs.engine.actions import KINDS
from gpu_envs.engine.by_role import ALONE
from gpu_envs.engine.program import EnvProgram
from gpu_envs.engine.rollouts import joined
from gpu_envs.engine.simulation import Simulation
from gpu_envs.training.engines.small import SmallNetworks
from gpu_envs.training.learner import Learner, OnPolicyLearner
from gpu_envs.training.operations.act_and_step import act_and_step_program, steps_where_it_acts
from gpu_envs.training.rollout.horizon_env import HorizonEnv


@final
class FusedRollout:
    """Acts and steps for a horizon, with the same results as step by step."""

    @classmethod
    def of(
        cls,
        horizon_env: HorizonEnv,
        learners: Mapping[str, Learner],
        players: Collection[str],
        params: Mapping[str, object],
    ) -> "FusedRollout | None":
        """The rollout of these policies in environments made with these parameters; None: they act step by step."""
        if players or len(learners) > 1 or not steps_where_it_acts(horizon_env.env.simulation.layout, params):
            return None
        (learner,) = learners.values()
        if not isinstance(learner, OnPolicyLearner) or not isinstance(learner.networks, SmallNetworks):
            return None
        return cls(horizon_env, learner, learner.networks)

    def __init__(self, horizon_env: HorizonEnv, learner: OnPolicyLearner, networks: SmallNetworks) -> None:
        """Begins to compile."""
        self._horizon_env: Final = horizon_env
        self._learner, self._networks = learner, networks
        self._sim: Simulation = horizon_env.env.simulation
        self._of: EnvProgram | None = None
        horizon_env.env.backend.begin(self._program())

    def __call__(self) -> None:
        """Writes the horizon's storage."""
        if self._of is not self._sim.program:  # what is compiled into it may have changed: by a checkpoint, say
            self._launch, self._of = self._joined(), self._sim.program
        self._launch()

    def _program(self) -> Program:
        layout = self._sim.layout
        assert isinstance(layout, SingleLayout)
        return act_and_step_program(layout, self._networks.network, self._sim.backend.traits.processors)

    def _joined(self) -> Callable[[], None]:
        horizon_env = self._horizon_env
        storage, metrics = horizon_env.storage[ALONE], horizon_env.episode_metrics
        learner = self._learner
        actions, acted = learner.actions, learner.acted
        ((_, first_row),) = learner.policy_rows.spans
        call, launch = joined(self._sim, self._program())
        call.horizon = horizon_env.horizon
        step, act = call.step, call.act
        step.action_kind = KINDS[dtype_of(actions)]
        step.observations = storage.observations[1].data_ptr()
        for name in ("rewards", "terminations", "truncations", "episode_return", "episode_length", "final_obs"):
            array = getattr(storage, name)
            setattr(step, name, None if array is None else array.data_ptr())
        if metrics is not None:
            step.episode_metrics = metrics.data_ptr()
        self._networks.act_with(act, storage.observations[0].flatten(0, 1))
        act.rows, act.first_row, act.stream = horizon_env.num_envs, first_row, learner.streams["actions"].data_ptr()
        act.actions, act.log_probs = actions.data_ptr(), learner.log_probs.data_ptr()
        act.acted = None if acted is None else acted.data_ptr()
        return launch
