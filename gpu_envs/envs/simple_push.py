"""An agent goes to one of two landmarks, and an adversary keeps it away."""

from gpu_envs.envs import particles
from gpu_envs.specs.fields import Field
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.team import Role, TeamSpec

LANDMARKS = 2

SIMPLE_PUSH = TeamSpec(
    id="SimplePush-v3",
    header="simple_push.cuh",
    description="An agent goes to one of two landmarks, and an adversary keeps it away.",
    roles=(
        Role("adversary", 1, particles.observation(8), particles.action()),
        Role("agent", 1, particles.observation(19), particles.action()),
    ),
    state=particles.AGENT_STATE,
    shared={**particles.landmarks(lambda _: LANDMARKS), "goal": Field("int")},
    scratch={**particles.CONTACT_SCRATCH, "gap": Field()},
    params={
        **particles.common(),
        "agent_size": Param(0.05, "radius of the agent and the adversary", positive=True),
        **particles.contacts(),
    },
    metrics={
        "distance": Metric("distance of the agent from the goal"),
        "adversary_distance": Metric("distance of the adversary from the goal"),
    },
    start_fields=(*particles.START_FIELDS, "goal"),
    start_rule=particles.start_rule(LANDMARKS),
    max_episode_steps=particles.limit,
    drawing=particles.drawing(
        particles.marks(particles.GREEN, 0.05, 0, 1),
        particles.marks(particles.BLUE, 0.05, 1, 1),
        particles.agents(particles.RED, "agent_size", 0, 1, "adversary"),
        particles.agents(particles.DARK, "agent_size", 1, 1, "agent"),
        goals=True,
    ),
)
