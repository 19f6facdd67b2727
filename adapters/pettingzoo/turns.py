"""One replica of a team as a PettingZoo ``AECEnv``."""

from typing import Any, final

from pettingzoo.utils.conversions import parallel_to_aec_wrapper

from gpu_envs.adapters.pettingzoo.one_replica import TeamEnv


@final
class TurnEnv(parallel_to_aec_wrapper):
    """A PettingZoo ``AECEnv`` of a ``TeamEnv`` that checks each action when it is passed."""

    env: TeamEnv

    def step(self, action: Any) -> None:
        """Store the action of the selected agent, and step the replica after the last agent's action.

        Raises:
            ActionError: The action is out of range or NaN. The selected agent is unchanged.
        """
        agent = self.agent_selection
        if not (self.terminations[agent] or self.truncations[agent]):
            self.env.check_action(agent, action)
        super().step(action)
