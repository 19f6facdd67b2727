"""An agent goes to one landmark of two, and an adversary keeps it away."""

from gpu_envs.envs import particles
from gpu_envs.specs.fields import Field
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.team import Role, TeamSpec

LANDMARKS = 2

SIMPLE_PUSH = TeamSpec(
    id="SimplePush-v3",
    header="simple_push.cuh",
    description="An agent goes to one landmark of two, and an adversary keeps it away.",
    roles=(
        Role("adversary", 1, particles.seen(8), particles.action()),
        Role("agent", 1, particles.seen(19), particles.action()),
    ),
    state=particles.OF_AGENTS,
    shared={**particles.landmarks(lambda _: LANDMARKS), "goal": Field("int")},
    scratch={**particles.NEXT, "gap": Field()},
    params={
        **particles.common(),
        "agent_size": Param(0.05, "radius, of the adversary too", positive=True),
        **particles.contacts(),
    },
    metrics={
        "distance": Metric("of the agent from the goal"),
        "adversary_distance": Metric("of the adversary from the goal"),
    },
    start_fields=(*particles.PLACES, "goal"),
    start_rule=particles.start_rule(LANDMARKS),
    max_episode_steps=particles.limit,
    drawing=particles.drawing(
        particles.marks(particles.GREEN, 0.05, 0, 1),
        particles.marks(particles.BLUE, 0.05, 1, 1),
        particles.agents(particles.RED, "agent_size", 0, 1),
        particles.agents(particles.DARK, "agent_size", 1, 1),
    ),
)
