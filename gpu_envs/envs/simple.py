"""An agent goes to a landmark."""

from gpu_envs.envs import particles
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.team import Role, TeamSpec

SIMPLE = TeamSpec(
    id="Simple-v3",
    header="simple.cuh",
    description="An agent goes to a landmark.",
    roles=(Role("agent", 1, particles.observation(4), particles.action()),),
    state=particles.AGENT_STATE,
    shared=particles.landmarks(lambda _: 1),
    params=particles.common(),
    metrics={"distance": Metric("distance of the agent from the landmark")},
    start_fields=particles.START_FIELDS,
    start_rule=particles.start_rule(),
    max_episode_steps=particles.limit,
    drawing=particles.drawing(
        particles.marks(particles.RED, 0.05, 0, 1, "landmark"), particles.agents(particles.DARK, 0.05, 0, 1, "agent")
    ),
)
