"""The environments as skrl's own, which stay on their device, and agents of skrl's that know last observations.

``Wrapper`` (one agent) and ``MultiAgentWrapper`` (teams) take the place of ``wrap_env``: any agent and any trainer of
skrl runs on them. They restart a replica in the step that ends its episode, so that a step's observations are the next
episode's there. skrl takes them for what followed the last action: with ``time_limit_bootstrap`` its PPO would add the
value of another episode's beginning, without it the advantage runs on into that episode, and its off-policy agents
store such transitions. ``PPO``, ``IPPO`` and ``MAPPO`` of this package look at the last observation instead; for any
other agent ``class Agent(FinalObservations, SAC)`` does. Use ``time_limit_bootstrap=True`` with them.
"""

from gpu_envs.extras import extra

with extra("skrl", "skrl", "torch"):
    from gpu_envs.adapters.skrl.agents import IPPO, MAPPO, PPO, FinalObservations, FinalObservationsByAgent
    from gpu_envs.adapters.skrl.multi_agent import MultiAgentWrapper
    from gpu_envs.adapters.skrl.wrapper import Wrapper

__all__ = ["IPPO", "MAPPO", "PPO", "FinalObservations", "FinalObservationsByAgent", "MultiAgentWrapper", "Wrapper"]
