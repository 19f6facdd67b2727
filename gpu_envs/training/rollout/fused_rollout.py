"""A rollout of a full horizon in one launch, for one on-policy network in a single-agent environment."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, final

from gpu_envs.backend.arrays import dtype_name
from gpu_envs.backend.program import Program
from gpu_envs.codegen import SingleLayout
from gpu_envs.engine.actions import KINDS
from gpu_envs.engine.program import EnvProgram
from gpu_envs.engine.roles import SINGLE_ROLE
from gpu_envs.engine.rollouts import bind_stepping_kernel
from gpu_envs.engine.simulation import Simulation
from gpu_envs.training.engines.base import ActRequest
from gpu_envs.training.engines.cpu import CpuPolicyNetworks
from gpu_envs.training.engines.small import SmallNetworks
from gpu_envs.training.engines.small_programs import supports_act_and_step
from gpu_envs.training.learner import Learner, OnPolicyLearner
from gpu_envs.training.rollout.horizon_env import HorizonEnv


@final
class FusedRollout:
    """Acts and steps for a horizon in one kernel, with the same results as step by step."""

    @classmethod
    def of(
        cls,
        horizon_env: HorizonEnv,
        learners: Mapping[str, Learner],
        players: Collection[str],
        params: Mapping[str, object],
    ) -> "FusedRollout | None":
        """Return the fused rollout for policies and environment parameters; None if there is no kernel for them."""
        learner = next(iter(learners.values()))
        alone = len(learners) == 1 and not players and horizon_env.roles[0].frames == 1
        alone = alone and horizon_env.storage[horizon_env.roles[0].name].params is None
        if (
            alone
            and isinstance(learner, OnPolicyLearner)
            and isinstance(learner.networks, SmallNetworks | CpuPolicyNetworks)
            and supports_act_and_step(horizon_env.env.simulation.layout, params)
        ):
            return cls(horizon_env, learner, learner.networks)
        for learner in learners.values():
            if isinstance(learner.networks, CpuPolicyNetworks):
                learner.networks.begin_acting()
        return None

    def __init__(
        self, horizon_env: HorizonEnv, learner: OnPolicyLearner, networks: SmallNetworks | CpuPolicyNetworks
    ) -> None:
        """Start to compile in the background."""
        self._horizon_env: Final = horizon_env
        self._learner, self._networks = learner, networks
        self._sim: Simulation = horizon_env.env.simulation
        self._env_program: EnvProgram | None = None
        horizon_env.env.backend.start_compiling(self._program())

    def __call__(self) -> None:
        """Launch the kernel, which writes a horizon into the storage of the environment and of the learner."""
        if self._env_program is not self._sim.program:  # a checkpoint may change parameters that are compiled in
            self._launch, self._env_program = self._bind(), self._sim.program
        self._launch()

    def _program(self) -> Program:
        layout = self._sim.layout
        assert isinstance(layout, SingleLayout)
        return self._networks.act_and_step_program(layout)

    def _bind(self) -> Callable[[], None]:
        """Return a function that launches the kernel, with the addresses of the arrays that it reads and writes."""
        horizon_env, learner = self._horizon_env, self._learner
        storage = horizon_env.storage[SINGLE_ROLE]
        ((_, first_row),) = learner.policy_rows.spans
        call, launch = bind_stepping_kernel(self._sim, self._program())
        call.horizon = horizon_env.horizon
        step = call.step
        step.action_kind = KINDS[dtype_name(learner.actions)]
        step.observations = storage.observations[1].data_ptr()
        names = ("rewards", "terminations", "truncations", "episode_return", "episode_length", "final_obs")
        arrays = {"episode_metrics": horizon_env.episode_metrics, **{name: getattr(storage, name) for name in names}}
        for name, array in arrays.items():
            setattr(step, name, None if array is None else array.data_ptr())
        observations, stream = storage.observations[0].flatten(0, 1), learner.streams["actions"]
        outputs = learner.actions, learner.log_probs
        values = learner.values[0] if self._networks.acts_with_value else None
        more: dict[str, Any] = {"acted": learner.acted, "values": values, "first_row": first_row}
        request = ActRequest(observations, *outputs, stream, turn=0, **more)
        self._networks.act_with(call.act, request)
        return launch
