"""Agents cover as many landmarks as they are, and keep apart."""

from gpu_envs.envs import particles
from gpu_envs.pictures import Params
from gpu_envs.specs.fields import Field
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.team import Role, TeamSpec


def _seen(params: Params) -> int:
    agents = params["num_agent_neighbors"] or params["N"] - 1
    return int(4 + 2 * (params["num_landmark_neighbors"] or params["N"]) + 4 * agents)


SIMPLE_SPREAD = TeamSpec(
    id="SimpleSpread-v3",
    header="simple_spread.cuh",
    description="Agents cover as many landmarks as they are, and keep apart.",
    roles=(Role("agent", "N", particles.seen(_seen), particles.action()),),
    state=particles.OF_AGENTS,
    shared=particles.landmarks(lambda params: int(params["N"])),
    scratch={**particles.NEXT, "gap": Field(), "touching": Field("int")},
    shared_scratch={"distance": Field(), "collisions": Field("int"), "occupied": Field("int")},
    params={
        "N": Param(3, "agents, and landmarks", positive=True, fixed=True),
        "local_ratio": Param(0.5, "share of an agent's own collisions in its reward", minimum=0, maximum=1),
        **particles.common(),
        "terminate_on_success": Param(False, "an episode ends where all landmarks are occupied"),
        **particles.neighbours(),
        "agent_size": Param(0.15, "radius", positive=True),
        "capture_radius": Param(0.1, "an agent nearer than this to a landmark occupies it", positive=True),
        **particles.contacts(),
    },
    metrics={
        "collisions": Metric("pairs of agents that touch", "sum"),
        "distance": Metric("sum over landmarks of how far the nearest agent is"),
        "occupied": Metric("landmarks that are occupied"),
    },
    start_fields=particles.PLACES,
    start_rule=particles.start_rule(),
    max_episode_steps=particles.limit,
    drawing=particles.drawing(
        particles.agents(particles.BLUE, "agent_size", 0, "N"), particles.marks(particles.DARK, 0.05, 0, "N")
    ),
)
