"""One replica whose agents act one after another."""

from typing import Any, final

from pettingzoo.utils.conversions import parallel_to_aec_wrapper

from gpu_envs.adapters.pettingzoo.one_replica import TeamEnv


@final
class TurnEnv(parallel_to_aec_wrapper):
    """PettingZoo's ``AECEnv`` over a ``TeamEnv``, which tells an agent of an illegal action at its own turn."""

    env: TeamEnv

    def step(self, action: Any) -> None:
        """Takes the action of the agent whose turn it is; with the last agent's the replica steps.

        Raises:
            ActionError: It is out of range or not a number. It is still that agent's turn.
        """
        agent = self.agent_selection
        if not (self.terminations[agent] or self.truncations[agent]):
            self.env.check_action(agent, action)
        super().step(action)
