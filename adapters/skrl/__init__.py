"""skrl: wrappers for the environments, and agents that use final observations.

``Wrapper`` (single agent) and ``MultiAgentWrapper`` (teams) replace ``wrap_env``, and work with all agents and trainers
of skrl. A replica is reset in the step that ends its episode, so that this step returns the first observation of the
next episode, which skrl uses as the next observation of the last action. With ``time_limit_bootstrap`` skrl's PPO then
bootstraps from the wrong episode; without it, advantages leak from the next episode; off-policy agents store wrong
transitions. ``PPO``, ``IPPO`` and ``MAPPO`` of this package use the final observation instead: use them with
``time_limit_bootstrap=True``. For other agents, define ``class Agent(FinalObservations, SAC)``.
"""

from gpu_envs.extras import extra

with extra("skrl", "skrl", "torch"):
    from gpu_envs.adapters.skrl.agents import IPPO, MAPPO, PPO, FinalObservations, FinalObservationsByAgent
    from gpu_envs.adapters.skrl.multi_agent import MultiAgentWrapper
    from gpu_envs.adapters.skrl.wrapper import Wrapper

__all__ = ["IPPO", "MAPPO", "PPO", "FinalObservations", "FinalObservationsByAgent", "MultiAgentWrapper", "Wrapper"]
