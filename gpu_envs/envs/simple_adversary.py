"""Agents go to a landmark that an adversary does not know."""

from gpu_envs.envs import particles
from gpu_envs.pictures import Params
from gpu_envs.specs.fields import Field
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.team import Role, TeamSpec


def _observation_size(params: Params) -> int:
    return int(2 * ((params["num_landmark_neighbors"] or params["N"]) + (params["num_agent_neighbors"] or params["N"])))


SIMPLE_ADVERSARY = TeamSpec(
    id="SimpleAdversary-v3",
    header="simple_adversary.cuh",
    description="Agents go to a landmark that an adversary does not know.",
    roles=(
        Role("adversary", 1, particles.observation(_observation_size), particles.action()),
        Role("agent", "N", particles.observation(lambda params: 2 + _observation_size(params)), particles.action()),
    ),
    state=particles.AGENT_STATE,
    shared={**particles.landmarks(lambda params: int(params["N"])), "goal": Field("int")},
    scratch={"gap": Field()},
    shared_scratch={"distance": Field()},
    params={
        "N": Param(2, "number of agents, and of landmarks", positive=True, fixed=True),
        **particles.common(),
        **particles.neighbours(),
    },
    metrics={
        "distance": Metric("distance of the nearest agent from the goal"),
        "adversary_distance": Metric("distance of the adversary from the goal"),
    },
    start_fields=(*particles.START_FIELDS, "goal"),
    start_rule=particles.start_rule("N"),
    max_episode_steps=particles.limit,
    drawing=particles.drawing(
        particles.marks(particles.DARK, 0.08, 0, "N", "landmark"),
        particles.agents(particles.BLUE, 0.15, 1, "N", "agent"),
        particles.agents(particles.RED, 0.15, 0, 1, "adversary"),
        goals=True,
    ),
)
