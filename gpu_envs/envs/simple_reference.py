"""Two agents tell each other which landmark to go to."""

from gpu_envs.envs import particles
from gpu_envs.specs.fields import Field
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.team import Role, TeamSpec

LANDMARKS, WORDS = 3, 10

SIMPLE_REFERENCE = TeamSpec(
    id="SimpleReference-v3",
    header="simple_reference.cuh",
    description="Two agents tell each other which landmark to go to.",
    roles=(Role("agent", 2, particles.observation(21), particles.action(words=WORDS)),),
    state={**particles.AGENT_STATE, "c": Field("real", WORDS), "goal": Field("int")},
    shared=particles.landmarks(lambda _: LANDMARKS),
    scratch={"gap": Field()},
    params={
        "local_ratio": Param(0.5, "weight of an agent's own distance in its reward", minimum=0, maximum=1),
        **particles.common(),
    },
    metrics={"distance": Metric("mean distance of the agents from their landmarks")},
    start_fields=(*particles.START_FIELDS, "c", "goal"),
    start_rule=particles.start_rule(LANDMARKS),
    max_episode_steps=particles.limit,
    drawing=particles.drawing(
        particles.marks(particles.RED, 0.05, 0, 1),
        particles.marks(particles.GREEN, 0.05, 1, 1),
        particles.marks(particles.BLUE, 0.05, 2, 1),
        particles.agents(particles.DARK, 0.05, 0, 2, "agent"),
        goals=True,
        words=WORDS,
        speakers=(0, 1),
    ),
)
